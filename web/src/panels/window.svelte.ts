// This window, as agents see it that work for whoever sits before it: it says what it shows, does what it is asked for,
// and says what came of that.

import { house } from "../lib/house.svelte";
import { router } from "../lib/router.svelte";
import { toasts } from "../lib/toasts.svelte";
import { screenAt } from "../frame/screens";
import { panels } from "../strings/panels";
import { Cannot, dock, MAIN } from "./dock.svelte";
import { REGIONS, type Pane, type Region, type Tree } from "./layout";
import { panelTypes, type Said } from "./panelTypes";

const SAID_AFTER_MS = 150;
const TITLE_LENGTH_MAX = 200;
const WORDS_LENGTH_MAX = 1_000;
const CONTEXT_BYTES_MAX = 4_096;
const LINKS_MAX = 3;
// The house waits ten seconds for an answer: before that it hears that the person has not decided yet.
const LINK_ANSWERED_WITHIN_MS = 8_000;
const ID_KEPT = "retinue.window";

/** A link that an agent would like to be opened. */
export interface Link {
  command: string;
  agent: string;
  url: URL;
}

type Frame = { type: string; [more: string]: unknown };

class OwnWindow {
  links: Link[] = $state.raw([]);
  readonly id = ownId();
  #said = "";
  #timer = 0;

  /** From now on, until what is given back is called. */
  begin(): () => void {
    const unlisten = house.live.listen({ frame: (frame) => frame.type === "panel-command" && frame["window"] === this.id && this.#do(frame) });
    const turned = (): void => void (document.visibilityState === "visible" && this.tell({ again: true }));
    addEventListener("focus", turned);
    document.addEventListener("visibilitychange", turned);
    return () => {
      unlisten();
      removeEventListener("focus", turned);
      document.removeEventListener("visibilitychange", turned);
      clearTimeout(this.#timer);
    };
  }

  /** In an effect: say what is shown whenever it changes, soon, so that many changes are one. */
  watch(): void {
    void inventory();
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => this.tell(), SAID_AFTER_MS);
  }

  tell({ again = false }: { again?: boolean } = {}): void {
    clearTimeout(this.#timer);
    const frame = { type: "panels", window: this.id, ...inventory() };
    const said = JSON.stringify(frame);
    if ((again || said !== this.#said) && house.live.state === "open" && house.live.send(frame)) this.#said = said;
  }

  /** The person has opened a link, or has not wanted to. */
  decide(link: Link, opened: boolean): void {
    this.links = this.links.filter((each) => each !== link);
    this.#answer(link.command, opened ? {} : { error: panels.refused.declined });
  }

  #do(frame: Frame): void {
    const command = String(frame["command"]);
    try {
      if (frame["do"] === "open-url") return this.#show(frame, command);
      const panel = act(frame);
      this.tell(); // who asks next is to see it as it is now
      this.#answer(command, { panel });
    } catch (error) {
      if (!(error instanceof Cannot)) throw error;
      this.#answer(command, { error: error.message });
    }
  }

  #answer(command: string, came: { panel?: string; error?: string }): void {
    house.live.send({ type: "panel-done", command, ok: came.error === undefined, ...came });
  }

  // A browser opens a page only when someone clicks, and someone should see where they go and who says so.
  #show(frame: Frame, command: string): void {
    const url = URL.canParse(String(frame["url"])) ? new URL(String(frame["url"])) : null;
    if (!url || !["http:", "https:"].includes(url.protocol) || url.username || url.password) throw new Cannot(panels.refused.link);
    if (this.links.length >= LINKS_MAX) throw new Cannot(panels.refused.links);
    const link: Link = { command, agent: agentIn(frame), url };
    this.links = [...this.links, link];
    window.setTimeout(() => {
      if (this.links.includes(link)) this.#answer(command, { error: panels.refused.waits });
    }, LINK_ANSWERED_WITHIN_MS);
  }
}

/** Does a command, says who had it done, and gives the id of the panel it was about. */
function act(frame: Frame): string {
  const { by } = panels;
  const agent = agentIn(frame);
  const panel = String(frame["panel"]);
  const titleOf = (id: string): string => {
    const tab = dock.tab(id);
    return tab ? dock.titleOf(tab) : id;
  };
  const say = (words: (agent: string, title: string) => string, title: string): void => void toasts.say(words(agent, title));
  switch (frame["do"]) {
    case "open": {
      const made = dock.add(String(frame["panel-type"]), {
        title: String(frame["title"] ?? "").slice(0, TITLE_LENGTH_MAX),
        session: (frame["binding"] as string | null) ?? null,
        region: regionIn(frame),
        beside: (frame["beside"] as string | null) ?? null,
        focus: frame["focus"] !== false,
      });
      say(by.opened, titleOf(made));
      return made;
    }
    case "close": {
      const title = titleOf(panel);
      dock.close(panel);
      say(by.closed, title);
      return panel;
    }
    case "move":
      dock.move(panel, String(frame["beside"]), regionIn(frame));
      say(by.moved, titleOf(panel));
      return panel;
    case "replace": {
      const made = dock.replace(panel, String(frame["panel-type"]), (frame["binding"] as string | null) ?? null);
      say(by.replaced, titleOf(made));
      return made;
    }
    case "focus":
      if (panel === MAIN) return MAIN; // the screen is always before them
      dock.focus(panel);
      say(by.shown, titleOf(panel));
      return panel;
    default:
      throw new Cannot(panels.refused.unknown);
  }
}

function agentIn(frame: Frame): string {
  return String(frame["agent"] ?? "") || panels.link.someone;
}

function regionIn(frame: Frame): Region {
  return REGIONS.find((each) => each === frame["region"]) ?? "tab";
}

// --- what this window shows ---

function inventory(): { panels: object[]; selected: string; layout: object } {
  const [name = "chat", session] = router.parts;
  const talk = name === "chat" && session ? house.session(session) : undefined;
  const title = talk ? (talk.name ?? talk.lastSnippet) : (screenAt(name)?.title ?? "");
  const screen = { id: MAIN, type: screenAt(name) ? name : "none", title: cut(title, TITLE_LENGTH_MAX), visible: true, binding: talk?.sessionId ?? null, context: {} };
  const shown = dock.tabs.map((tab) => ({
    id: tab.id,
    type: tab.type,
    title: cut(dock.titleOf(tab), TITLE_LENGTH_MAX),
    visible: dock.isVisible(tab),
    binding: dock.sessionOf(tab),
    context: contextOf(dock.said[tab.id] ?? {}),
  }));
  const types = panelTypes.map(({ type, description, several, binding }) => ({ type, description, several, binding }));
  return { panels: [screen, ...shown], selected: dock.front?.id ?? MAIN, layout: { open: dock.open, tree: drawn(dock.tree), types } };
}

function drawn(tree: Tree): object {
  const pane = ({ kind, tabs, active }: Pane): object => ({ kind, active, tabs: tabs.map((tab) => tab.id) });
  if (tree.kind === "pane") return pane(tree);
  return { kind: tree.kind, direction: tree.direction, panes: tree.panes.map(pane) };
}

/** What a panel says, within what the house takes: what is selected is left out before what it is about. */
function contextOf({ active, selection, selectionTitles, extras }: Said): object {
  const about = active && Object.fromEntries(Object.entries(active).map(([name, value]) => [name, cut(String(value), WORDS_LENGTH_MAX)]));
  const selected = selection?.length ? { selection: cut(selection.join(","), WORDS_LENGTH_MAX) } : {};
  const titles = selectionTitles?.length ? { "selection-titles": cut(JSON.stringify(selectionTitles), WORDS_LENGTH_MAX) } : {};
  const said = [{ ...extras, ...about, ...selected, ...titles }, { ...about, ...selected }, { ...about }];
  return said.find((each) => new TextEncoder().encode(JSON.stringify(each)).length <= CONTEXT_BYTES_MAX) ?? {};
}

function cut(text: string, most: number): string {
  const whole = [...text.toWellFormed()];
  return whole.length <= most ? whole.join("") : whole.slice(0, most - 1).join("") + "…";
}

// Kept across a reload, and only then: a tab that is duplicated takes a copy of what is kept, and would be taken for this.
function ownId(): string {
  let id = `w-${Math.random().toString(36).slice(2, 10)}`;
  try {
    id = sessionStorage.getItem(ID_KEPT) ?? id;
    sessionStorage.removeItem(ID_KEPT);
    addEventListener("pagehide", () => sessionStorage.setItem(ID_KEPT, id));
    addEventListener("pageshow", () => sessionStorage.removeItem(ID_KEPT));
  } catch {
    // a browser that keeps nothing: another window, then
  }
  return id;
}

export const here = new OwnWindow();
