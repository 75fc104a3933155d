// The dock: which panels stand beside the screen of this window, and how they lie. Each window has its own; a new one
// begins with what was left last, in this browser or on another device.

import { untrack } from "svelte";
import { ask } from "../lib/api";
import { contextLine } from "../lib/context";
import { house } from "../lib/house.svelte";
import { router } from "../lib/router.svelte";
import { panels } from "../strings/panels";
import { changed, joined, paneWith, panesOf, parted, SHARE_MAX, SHARE_MIN, shown, TABS_MAX, tabsOf, treeFrom, without } from "./layout";
import type { Pane, Region, Tab, Tree } from "./layout";
import { panelTypes, typeOf, type PanelType, type Said } from "./panelTypes";

export const MAIN = "main";
export const WIDTH_MIN = 260;
export const WIDTH_MAX = 900;
export const HEIGHT_MIN = 25;
export const HEIGHT_MAX = 75;

const KEPT = "retinue.panels.";
const PREFERENCE = "page.panels";
const TOLD_AFTER_MS = 1_500;

/** Why something was not done, in words that an agent reads as well as a person. */
export class Cannot extends Error {}

export interface Opening {
  title?: string;
  session?: string | null;
  region?: Region;
  beside?: string | null;
  /** Whether it is brought before the person. */
  focus?: boolean;
}

interface Layout {
  open: boolean;
  /** In pixels, at the side of the screen. */
  width: number;
  /** In percent of the screen, as a sheet from below. */
  height: number;
  along: boolean;
  brief: boolean;
  tree: Tree;
}

function atFirst(): Layout {
  const tabs = ["run", "files", "notes"].map((type): Tab => ({ kind: "tab", id: `${type}-1`, type, title: "", session: null, kept: "" }));
  return { open: false, width: 352, height: 50, along: true, brief: false, tree: { kind: "pane", tabs, active: "run-1" } };
}

export class Dock {
  open: boolean = $state(false);
  width: number = $state(0);
  height: number = $state(0);
  /** Whether what a panel shows goes along with what one writes. */
  along: boolean = $state(true);
  /** Whether a short answer is wanted. */
  brief: boolean = $state(false);
  tree: Tree = $state.raw({ kind: "pane", tabs: [], active: null });
  /** What the panels that are shown say of their content. */
  said: Readonly<Record<string, Said>> = $state.raw({});
  /** The panel that was used last. */
  #used: string | null = $state(null);
  /** The conversation that was looked at last. */
  #looked: string | null = $state(null);
  #person = "";
  #timer = 0;

  constructor() {
    this.#take(atFirst());
  }

  /** As this person left it. */
  begin(person: string): void {
    this.#person = person;
    const here = kept("sessionStorage", KEPT + person) ?? kept("localStorage", KEPT + person);
    this.#take(here ?? atFirst());
    if (!here) void this.#fetch(this.tree);
  }

  /** To be called while the page is there: the conversation that is looked at is remembered beside other screens. */
  look(): void {
    const [screen, session] = router.parts;
    if (screen === "chat" && session) this.#looked = session;
  }

  get looked(): string | null {
    return this.#looked ?? house.sessions[0]?.sessionId ?? null;
  }

  get tabs(): Tab[] {
    return tabsOf(this.tree);
  }

  get panes(): Pane[] {
    return panesOf(this.tree);
  }

  /** The panel that is before the person, where the dock is open. */
  get front(): Tab | null {
    if (!this.open) return null;
    const pane = paneWith(this.tree, this.#used) ?? this.panes[0];
    return pane?.tabs.find((tab) => tab.id === pane.active) ?? null;
  }

  tab(id: string): Tab | undefined {
    return this.tabs.find((tab) => tab.id === id);
  }

  titleOf(tab: Tab): string {
    return tab.title || typeOf(tab.type)?.title || tab.type;
  }

  /** The conversation that a panel shows. */
  sessionOf(tab: Tab): string | null {
    const type = typeOf(tab.type);
    if (type?.binding === "follows") return tab.session ?? this.looked;
    return type?.binding === "fixed" ? tab.session : null;
  }

  isVisible(tab: Tab): boolean {
    return this.open && paneWith(this.tree, tab.id)?.active === tab.id;
  }

  /** The context line for what is sent now, or nothing where nothing goes along. */
  line(): string {
    const tab = this.along ? this.front : null;
    if (!tab && !this.brief) return "";
    const panel = tab ? { id: tab.id, type: tab.type, title: this.titleOf(tab) } : undefined;
    return contextLine({ panel, brief: this.brief, ...(tab ? this.said[tab.id] : {}) });
  }

  // --- what people and agents do with panels ---

  toggle(open = !this.open): void {
    this.open = open;
    this.#keep();
  }

  /** Opens one, or shows the one there is where there may be only one. Gives its id. */
  add(name: string, { title = "", session = null, region = "tab", beside = null, focus = true }: Opening = {}): string {
    const type = this.#known(name);
    const next = beside === null || beside === MAIN ? (this.front?.id ?? null) : this.#here(beside).id;
    const same = type.several ? undefined : this.tabs.find((tab) => tab.type === name);
    if (same) {
      if (focus) this.focus(same.id);
      return same.id;
    }
    if (this.tabs.length >= TABS_MAX) throw new Cannot(panels.refused.most(TABS_MAX));
    const tab: Tab = { kind: "tab", id: this.#newId(name), type: name, title, session: this.#bound(type, session), kept: "" };
    const alone = beside === MAIN && this.tree.kind === "pane"; // beside the screen is where the dock is
    this.#put(region === "tab" || alone ? joined(this.tree, tab, next) : parted(this.tree, tab, next, region));
    if (focus) this.focus(tab.id);
    return tab.id;
  }

  close(id: string): void {
    this.#put(without(this.tree, this.#here(id).id));
  }

  move(id: string, beside: string, region: Region = "tab", { before = false }: { before?: boolean } = {}): void {
    const tab = this.#here(id);
    if (id === beside && (region === "tab" || paneWith(this.tree, id)?.tabs.length === 1)) throw new Cannot(panels.refused.itself);
    const rest = without(this.tree, id);
    const next = id === beside ? (paneWith(this.tree, id)?.tabs.find((each) => each.id !== id)?.id ?? null) : this.#here(beside).id;
    const active = paneWith(this.tree, id)?.active === id;
    this.#put(region === "tab" ? joined(rest, tab, next, { before }) : parted(rest, tab, next, region));
    if (active) this.#put(shown(this.tree, id));
  }

  /** Puts a panel of another type into the place of one. Gives its id. */
  replace(id: string, name: string, session: string | null = null): string {
    const type = this.#known(name);
    const tab = this.#here(id);
    if (!type.several && this.tabs.some((each) => each.type === name && each !== tab)) throw new Cannot(panels.refused.several(name));
    const made = tab.type === name ? id : this.#newId(name);
    this.#put(changed(this.tree, id, { id: made, type: name, title: "", session: this.#bound(type, session), kept: "" }));
    if (this.#used === id) this.#used = made;
    return made;
  }

  /** Brings a panel before the person. What they type goes on where they type it. */
  focus(id: string): void {
    this.#put(shown(this.tree, this.#here(id).id));
    this.#used = id;
    this.open = true;
    this.#keep();
  }

  /** Someone does something in it. */
  use(id: string): void {
    if (this.#used !== id) this.#used = id;
  }

  /** Keep it to one conversation, or have it follow the one that is looked at. */
  bind(id: string, session: string | null): void {
    this.#put(changed(this.tree, id, { session }));
  }

  part(share: number): void {
    if (this.tree.kind === "split") this.#put({ ...this.tree, share: Math.min(SHARE_MAX, Math.max(SHARE_MIN, Math.round(share))) });
  }

  resize({ width = this.width, height = this.height }: { width?: number; height?: number }): void {
    this.width = Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, Math.round(width)));
    this.height = Math.min(HEIGHT_MAX, Math.max(HEIGHT_MIN, Math.round(height)));
    this.#keep();
  }

  send(what: { along?: boolean; brief?: boolean }): void {
    this.along = what.along ?? this.along;
    this.brief = what.brief ?? this.brief;
    this.#keep();
  }

  /** As at first, for whoever looks at it: it stays open. */
  reset(): void {
    this.#take({ ...atFirst(), open: this.open, brief: this.brief });
    this.#keep();
  }

  // --- what panels say ---

  // To say something is not to listen: panels do so in their effects.

  say(id: string, said: Said | null): void {
    const others = Object.entries(untrack(() => this.said)).filter(([other]) => other !== id);
    this.said = Object.fromEntries(said ? [...others, [id, said]] : others);
  }

  remember(id: string, value: string): void {
    untrack(() => {
      const tab = this.tab(id);
      if (tab && tab.kept !== value) this.#put(changed(this.tree, id, { kept: value }));
    });
  }

  // ---

  #here(id: string): Tab {
    if (id === MAIN) throw new Cannot(panels.refused.main);
    const tab = this.tab(id);
    if (!tab) throw new Cannot(panels.refused.panel(id));
    return tab;
  }

  #known(name: string): PanelType {
    const type = typeOf(name);
    if (!type) throw new Cannot(panels.refused.type(name, panelTypes.map((each) => each.type).join(", ")));
    return type;
  }

  #bound(type: PanelType, session: string | null): string | null {
    if (type.binding === "none") return null;
    return session ?? (type.binding === "fixed" ? this.looked : null);
  }

  #newId(name: string): string {
    for (let number = 1; ; number++) if (!this.tab(`${name}-${number}`)) return `${name}-${number}`;
  }

  #put(tree: Tree | null): void {
    if (!tree) throw new Cannot(panels.refused.region);
    this.tree = tree;
    this.#keep();
  }

  #take(layout: Layout): void {
    this.open = layout.open;
    this.width = layout.width;
    this.height = layout.height;
    this.along = layout.along;
    this.brief = layout.brief;
    this.tree = layout.tree;
    this.#used = null;
  }

  #keep(): void {
    const { open, width, height, along, brief, tree } = this;
    const layout: Layout = { open, width, height, along, brief, tree };
    const text = JSON.stringify(layout);
    for (const storage of ["sessionStorage", "localStorage"] as const) {
      try {
        window[storage].setItem(KEPT + this.#person, text);
      } catch {
        // a browser that keeps nothing: the house does
      }
    }
    clearTimeout(this.#timer);
    const tell = (): Promise<unknown> => ask("preference.set", { key: PREFERENCE, value: layout }).catch(() => null);
    this.#timer = window.setTimeout(() => void tell(), TOLD_AFTER_MS);
  }

  /** As it was left on another device, unless something was done here meanwhile. */
  async #fetch(before: Tree): Promise<void> {
    const found = await ask("preference.get", { key: PREFERENCE }).catch(() => null);
    const layout = layoutFrom(found?.value);
    if (layout && this.tree === before) this.#take({ ...layout, open: this.open });
  }
}

function kept(storage: "sessionStorage" | "localStorage", key: string): Layout | null {
  try {
    return layoutFrom(JSON.parse(window[storage].getItem(key) ?? "null"));
  } catch {
    return null;
  }
}

function layoutFrom(given: unknown): Layout | null {
  const raw = given as Partial<Record<string, unknown>> | null | undefined;
  const tree = treeFrom(raw?.["tree"]);
  if (!raw || !tree) return null;
  const first = atFirst();
  const within = (value: unknown, least: number, most: number, otherwise: number): number =>
    typeof value === "number" && Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : otherwise;
  return {
    open: raw["open"] === true,
    width: within(raw["width"], WIDTH_MIN, WIDTH_MAX, first.width),
    height: within(raw["height"], HEIGHT_MIN, HEIGHT_MAX, first.height),
    along: raw["along"] !== false,
    brief: raw["brief"] === true,
    tree,
  };
}

export const dock = new Dock();
