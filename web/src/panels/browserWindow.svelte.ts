// This browser window, as agents see it: it reports its panels to the server, performs panel commands, and reports their
// results.

import { server } from "../lib/server.svelte";
import { router } from "../lib/router.svelte";
import { toasts } from "../lib/toasts.svelte";
import { findScreen } from "../frame/screens";
import { panels } from "../strings/panels";
import { PanelError, dock, MAIN } from "./dock.svelte";
import { REGIONS, type Pane, type Region, type Tree } from "./layout";
import { panelTypes, type PanelContent } from "./panelTypes";

const REPORT_DELAY_MS = 150;
const TITLE_LENGTH_MAX = 200;
const VALUE_LENGTH_MAX = 1_000;
const CONTEXT_BYTES_MAX = 4_096;
const LINKS_MAX = 3;
// The server waits ten seconds for an answer. Before that, answer that the person has not decided yet.
const LINK_TIMEOUT_MS = 8_000;
const ID_STORAGE_KEY = "retinue.window";

/** A link that an agent asks the person to open. */
export interface LinkRequest {
  command: string;
  agent: string;
  url: URL;
}

type Frame = { type: string; [more: string]: unknown };

class BrowserWindow {
  links: LinkRequest[] = $state.raw([]);
  readonly id = loadId();
  #lastReport = "";
  #timer = 0;

  /** Start to receive commands. Returns a function that stops it. */
  start(): () => void {
    const unlisten = server.events.listen({ frame: (frame) => frame.type === "panel_command" && frame["window"] === this.id && this.#handleCommand(frame) });
    const handleVisible = (): void => void (document.visibilityState === "visible" && this.report({ force: true }));
    addEventListener("focus", handleVisible);
    document.addEventListener("visibilitychange", handleVisible);
    return () => {
      unlisten();
      removeEventListener("focus", handleVisible);
      document.removeEventListener("visibilitychange", handleVisible);
      clearTimeout(this.#timer);
    };
  }

  /** In an effect: report the panels after a change, with a delay that combines several changes. */
  reportSoon(): void {
    void buildReport();
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => this.report(), REPORT_DELAY_MS);
  }

  report({ force = false }: { force?: boolean } = {}): void {
    clearTimeout(this.#timer);
    const frame = { type: "panels", window: this.id, ...buildReport() };
    const text = JSON.stringify(frame);
    if ((force || text !== this.#lastReport) && server.events.state === "open" && server.events.send(frame)) this.#lastReport = text;
  }

  /** The person opened or declined a link. */
  decide(link: LinkRequest, opened: boolean): void {
    this.links = this.links.filter((each) => each !== link);
    this.#answer(link.command, opened ? {} : { error: panels.errors.declined });
  }

  #handleCommand(frame: Frame): void {
    const command = String(frame["command"]);
    try {
      if (frame["action"] === "open_url") return this.#requestLink(frame, command);
      const panel = perform(frame);
      this.report(); // the next command must see the new state
      this.#answer(command, { panel });
    } catch (error) {
      if (!(error instanceof PanelError)) throw error;
      this.#answer(command, { error: error.message });
    }
  }

  #answer(command: string, result: { panel?: string; error?: string }): void {
    server.events.send({ type: "panel_done", command, ok: result.error === undefined, ...result });
  }

  // A browser opens a page only after a click, and the person must see the URL and which agent asks.
  #requestLink(frame: Frame, command: string): void {
    const url = URL.canParse(String(frame["url"])) ? new URL(String(frame["url"])) : null;
    if (!url || !["http:", "https:"].includes(url.protocol) || url.username || url.password) throw new PanelError(panels.errors.link);
    if (this.links.length >= LINKS_MAX) throw new PanelError(panels.errors.tooManyLinks);
    const link: LinkRequest = { command, agent: parseAgent(frame), url };
    this.links = [...this.links, link];
    window.setTimeout(() => {
      if (this.links.includes(link)) this.#answer(command, { error: panels.errors.pending });
    }, LINK_TIMEOUT_MS);
  }
}

/** Perform a command and show a toast that names the agent. Returns the id of the panel. */
function perform(frame: Frame): string {
  const { actionsOfAgents: messages } = panels;
  const agent = parseAgent(frame);
  const panel = String(frame["panel"]);
  const getTitle = (id: string): string => {
    const tab = dock.tab(id);
    return tab ? dock.getTitle(tab) : id;
  };
  const notify = (format: (agent: string, title: string) => string, title: string): void => void toasts.show(format(agent, title));
  switch (frame["action"]) {
    case "open": {
      const opened = dock.add(String(frame["panel_type"]), {
        title: String(frame["title"] ?? "").slice(0, TITLE_LENGTH_MAX),
        session: (frame["binding"] as string | null) ?? null,
        region: parseRegion(frame),
        beside: (frame["beside"] as string | null) ?? null,
        focus: frame["focus"] !== false,
      });
      notify(messages.opened, getTitle(opened));
      return opened;
    }
    case "close": {
      const title = getTitle(panel);
      dock.close(panel);
      notify(messages.closed, title);
      return panel;
    }
    case "move":
      dock.move(panel, String(frame["beside"]), parseRegion(frame));
      notify(messages.moved, getTitle(panel));
      return panel;
    case "replace": {
      const opened = dock.replace(panel, String(frame["panel_type"]), (frame["binding"] as string | null) ?? null);
      notify(messages.replaced, getTitle(opened));
      return opened;
    }
    case "focus":
      if (panel === MAIN) return MAIN; // the screen is always visible
      dock.focus(panel);
      notify(messages.shown, getTitle(panel));
      return panel;
    default:
      throw new PanelError(panels.errors.unknown);
  }
}

function parseAgent(frame: Frame): string {
  return String(frame["agent"] ?? "") || panels.link.unknownAgent;
}

function parseRegion(frame: Frame): Region {
  return REGIONS.find((each) => each === frame["region"]) ?? "tab";
}

// --- the report ---

function buildReport(): { panels: object[]; selected: string; layout: object } {
  const [name = "chat", session] = router.parts;
  const conversation = name === "chat" && session ? server.session(session) : undefined;
  const title = conversation ? (conversation.name ?? conversation.lastSnippet) : (findScreen(name)?.title ?? "");
  const screen = { id: MAIN, type: findScreen(name) ? name : "none", title: shorten(title, TITLE_LENGTH_MAX), visible: true, binding: conversation?.sessionId ?? null, context: {} };
  const open = dock.tabs.map((tab) => ({
    id: tab.id,
    type: tab.type,
    title: shorten(dock.getTitle(tab), TITLE_LENGTH_MAX),
    visible: dock.isVisible(tab),
    binding: dock.getSession(tab),
    context: buildContext(dock.contents[tab.id] ?? {}),
  }));
  const types = panelTypes.map(({ type, description, several, binding }) => ({ type, description, several, binding }));
  return { panels: [screen, ...open], selected: dock.front?.id ?? MAIN, layout: { open: dock.open, tree: serializeTree(dock.tree), types } };
}

function serializeTree(tree: Tree): object {
  const pane = ({ kind, tabs, active }: Pane): object => ({ kind, active, tabs: tabs.map((tab) => tab.id) });
  if (tree.kind === "pane") return pane(tree);
  return { kind: tree.kind, direction: tree.direction, panes: tree.panes.map(pane) };
}

/** The content of a panel within the size limit of the server: the selection is dropped before the active item. */
function buildContext({ active, selection, selectionTitles, extras }: PanelContent): object {
  const about = active && Object.fromEntries(Object.entries(active).map(([name, value]) => [name, shorten(String(value), VALUE_LENGTH_MAX)]));
  const selected = selection?.length ? { selection: shorten(selection.join(","), VALUE_LENGTH_MAX) } : {};
  const titles = selectionTitles?.length ? { "selection-titles": shorten(JSON.stringify(selectionTitles), VALUE_LENGTH_MAX) } : {};
  const candidates = [{ ...extras, ...about, ...selected, ...titles }, { ...about, ...selected }, { ...about }];
  return candidates.find((each) => new TextEncoder().encode(JSON.stringify(each)).length <= CONTEXT_BYTES_MAX) ?? {};
}

function shorten(text: string, lengthMax: number): string {
  const chars = [...text.toWellFormed()];
  return chars.length <= lengthMax ? chars.join("") : chars.slice(0, lengthMax - 1).join("") + "…";
}

// The id survives a reload only: a duplicated tab copies the session storage, and must not get the same id.
function loadId(): string {
  let id = `w-${Math.random().toString(36).slice(2, 10)}`;
  try {
    id = sessionStorage.getItem(ID_STORAGE_KEY) ?? id;
    sessionStorage.removeItem(ID_STORAGE_KEY);
    addEventListener("pagehide", () => sessionStorage.setItem(ID_STORAGE_KEY, id));
    addEventListener("pageshow", () => sessionStorage.removeItem(ID_STORAGE_KEY));
  } catch {
    // the browser has no storage: a reload gets a new id
  }
  return id;
}

export const browserWindow = new BrowserWindow();
