// The dock: the panels beside the screen of this window, and their layout. Each window has its own dock; a new window
// starts with the last layout of this browser or of another device.

import { untrack } from "svelte";
import { callOperation } from "../lib/api";
import { buildContextLine } from "../lib/uiContext";
import { server } from "../lib/server.svelte";
import { router } from "../lib/router.svelte";
import { panels } from "../strings/panels";
import { activateTab, findPane, insertTab, listPanes, listTabs, parseTree, removeTab, SHARE_MAX, SHARE_MIN, splitTab, TABS_MAX, updateTab } from "./layout";
import type { Pane, Region, Tab, Tree } from "./layout";
import { panelTypes, findPanelType, type PanelType, type PanelContent } from "./panelTypes";

export const MAIN = "main";
export const WIDTH_MIN = 260;
export const WIDTH_MAX = 900;
export const HEIGHT_MIN = 25;
export const HEIGHT_MAX = 75;

const STORAGE_PREFIX = "retinue.panels.";
const PREFERENCE = "page.panels";
const SAVE_DELAY_MS = 1_500;

/** Why a panel command was not performed. People and agents read the message. */
export class PanelError extends Error {}

export interface PanelOptions {
  title?: string;
  session?: string | null;
  region?: Region;
  beside?: string | null;
  /** Whether to show it at once. */
  focus?: boolean;
}

interface Layout {
  open: boolean;
  /** Width in pixels, beside the screen. */
  width: number;
  /** Height in percent of the screen, as a sheet at the bottom. */
  height: number;
  includeContext: boolean;
  brief: boolean;
  tree: Tree;
}

function createDefaultLayout(): Layout {
  const tabs = ["run", "files", "notes"].map((type): Tab => ({ kind: "tab", id: `${type}-1`, type, title: "", session: null, state: "" }));
  return { open: false, width: 352, height: 50, includeContext: true, brief: false, tree: { kind: "pane", tabs, active: "run-1" } };
}

export class Dock {
  open: boolean = $state(false);
  width: number = $state(0);
  height: number = $state(0);
  /** Whether messages are sent with the content of the front panel as context. */
  includeContext: boolean = $state(true);
  /** Whether a short answer is requested. */
  brief: boolean = $state(false);
  tree: Tree = $state.raw({ kind: "pane", tabs: [], active: null });
  /** The content of the visible panels, by panel id. */
  contents: Readonly<Record<string, PanelContent>> = $state.raw({});
  /** The panel that was used last. */
  #lastUsed: string | null = $state(null);
  /** The conversation that was open last. */
  #lastSession: string | null = $state(null);
  #person = "";
  #timer = 0;

  constructor() {
    this.#apply(createDefaultLayout());
  }

  /** Load the last layout of this person. */
  load(person: string): void {
    this.#person = person;
    const stored = readStorage("sessionStorage", STORAGE_PREFIX + person) ?? readStorage("localStorage", STORAGE_PREFIX + person);
    this.#apply(stored ?? createDefaultLayout());
    if (!stored) void this.#loadPreference(this.tree);
  }

  /** In an effect: remember the open conversation, for the panels beside other screens. */
  trackSession(): void {
    const [screen, session] = router.parts;
    if (screen === "chat" && session) this.#lastSession = session;
  }

  get currentSession(): string | null {
    return this.#lastSession ?? server.sessions[0]?.sessionId ?? null;
  }

  get tabs(): Tab[] {
    return listTabs(this.tree);
  }

  get panes(): Pane[] {
    return listPanes(this.tree);
  }

  /** The panel that was used last and is visible. Null if the dock is closed. */
  get front(): Tab | null {
    if (!this.open) return null;
    const pane = findPane(this.tree, this.#lastUsed) ?? this.panes[0];
    return pane?.tabs.find((tab) => tab.id === pane.active) ?? null;
  }

  tab(id: string): Tab | undefined {
    return this.tabs.find((tab) => tab.id === id);
  }

  getTitle(tab: Tab): string {
    return tab.title || findPanelType(tab.type)?.title || tab.type;
  }

  /** The conversation that a panel shows. */
  getSession(tab: Tab): string | null {
    const type = findPanelType(tab.type);
    if (type?.binding === "follows") return tab.session ?? this.currentSession;
    return type?.binding === "fixed" ? tab.session : null;
  }

  isVisible(tab: Tab): boolean {
    return this.open && findPane(this.tree, tab.id)?.active === tab.id;
  }

  /** The context line for the next message. Empty if there is no context to send. */
  buildContextLine(): string {
    const tab = this.includeContext ? this.front : null;
    if (!tab && !this.brief) return "";
    const panel = tab ? { id: tab.id, type: tab.type, title: this.getTitle(tab) } : undefined;
    return buildContextLine({ panel, brief: this.brief, ...(tab ? this.contents[tab.id] : {}) });
  }

  // --- commands of people and agents ---

  toggle(open = !this.open): void {
    this.open = open;
    this.#save();
  }

  /** Open a panel, or show the existing one if its type allows only one. Returns its id. */
  add(name: string, { title = "", session = null, region = "tab", beside = null, focus = true }: PanelOptions = {}): string {
    const type = this.#requireType(name);
    const next = beside === null || beside === MAIN ? (this.front?.id ?? null) : this.#requireTab(beside).id;
    const same = type.several ? undefined : this.tabs.find((tab) => tab.type === name);
    if (same) {
      if (focus) this.focus(same.id);
      return same.id;
    }
    if (this.tabs.length >= TABS_MAX) throw new PanelError(panels.errors.tooMany(TABS_MAX));
    const tab: Tab = { kind: "tab", id: this.#newId(name), type: name, title, session: this.#chooseSession(type, session), state: "" };
    const inDock = beside === MAIN && this.tree.kind === "pane"; // the dock itself is beside the screen
    this.#setTree(region === "tab" || inDock ? insertTab(this.tree, tab, next) : splitTab(this.tree, tab, next, region));
    if (focus) this.focus(tab.id);
    return tab.id;
  }

  close(id: string): void {
    this.#setTree(removeTab(this.tree, this.#requireTab(id).id));
  }

  move(id: string, beside: string, region: Region = "tab", { before = false }: { before?: boolean } = {}): void {
    const tab = this.#requireTab(id);
    if (id === beside && (region === "tab" || findPane(this.tree, id)?.tabs.length === 1)) throw new PanelError(panels.errors.itself);
    const rest = removeTab(this.tree, id);
    const next = id === beside ? (findPane(this.tree, id)?.tabs.find((each) => each.id !== id)?.id ?? null) : this.#requireTab(beside).id;
    const active = findPane(this.tree, id)?.active === id;
    this.#setTree(region === "tab" ? insertTab(rest, tab, next, { before }) : splitTab(rest, tab, next, region));
    if (active) this.#setTree(activateTab(this.tree, id));
  }

  /** Replace a panel by one of another type. Returns the id of the new panel. */
  replace(id: string, name: string, session: string | null = null): string {
    const type = this.#requireType(name);
    const tab = this.#requireTab(id);
    if (!type.several && this.tabs.some((each) => each.type === name && each !== tab)) throw new PanelError(panels.errors.single(name));
    const newId = tab.type === name ? id : this.#newId(name);
    this.#setTree(updateTab(this.tree, id, { id: newId, type: name, title: "", session: this.#chooseSession(type, session), state: "" }));
    if (this.#lastUsed === id) this.#lastUsed = newId;
    return newId;
  }

  /** Show a panel. The keyboard focus does not move. */
  focus(id: string): void {
    this.#setTree(activateTab(this.tree, this.#requireTab(id).id));
    this.#lastUsed = id;
    this.open = true;
    this.#save();
  }

  /** The person interacts with a panel. */
  markUsed(id: string): void {
    if (this.#lastUsed !== id) this.#lastUsed = id;
  }

  /** Pin a panel to a conversation, or let it follow the open one if `session` is null. */
  bind(id: string, session: string | null): void {
    this.#setTree(updateTab(this.tree, id, { session }));
  }

  setShare(share: number): void {
    if (this.tree.kind === "split") this.#setTree({ ...this.tree, share: Math.min(SHARE_MAX, Math.max(SHARE_MIN, Math.round(share))) });
  }

  resize({ width = this.width, height = this.height }: { width?: number; height?: number }): void {
    this.width = Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, Math.round(width)));
    this.height = Math.min(HEIGHT_MAX, Math.max(HEIGHT_MIN, Math.round(height)));
    this.#save();
  }

  setOptions(options: { includeContext?: boolean; brief?: boolean }): void {
    this.includeContext = options.includeContext ?? this.includeContext;
    this.brief = options.brief ?? this.brief;
    this.#save();
  }

  /** Restore the default layout. An open dock stays open. */
  reset(): void {
    this.#apply({ ...createDefaultLayout(), open: this.open, brief: this.brief });
    this.#save();
  }

  // --- content and state from the panels ---

  // Panels call these in effects, which must not depend on what they write: hence `untrack`.

  setContent(id: string, content: PanelContent | null): void {
    const others = Object.entries(untrack(() => this.contents)).filter(([other]) => other !== id);
    this.contents = Object.fromEntries(content ? [...others, [id, content]] : others);
  }

  setState(id: string, state: string): void {
    untrack(() => {
      const tab = this.tab(id);
      if (tab && tab.state !== state) this.#setTree(updateTab(this.tree, id, { state }));
    });
  }

  // ---

  #requireTab(id: string): Tab {
    if (id === MAIN) throw new PanelError(panels.errors.main);
    const tab = this.tab(id);
    if (!tab) throw new PanelError(panels.errors.panel(id));
    return tab;
  }

  #requireType(name: string): PanelType {
    const type = findPanelType(name);
    if (!type) throw new PanelError(panels.errors.type(name, panelTypes.map((each) => each.type).join(", ")));
    return type;
  }

  #chooseSession(type: PanelType, session: string | null): string | null {
    if (type.binding === "none") return null;
    return session ?? (type.binding === "fixed" ? this.currentSession : null);
  }

  #newId(name: string): string {
    for (let number = 1; ; number++) if (!this.tab(`${name}-${number}`)) return `${name}-${number}`;
  }

  #setTree(tree: Tree | null): void {
    if (!tree) throw new PanelError(panels.errors.region);
    this.tree = tree;
    this.#save();
  }

  #apply(layout: Layout): void {
    this.open = layout.open;
    this.width = layout.width;
    this.height = layout.height;
    this.includeContext = layout.includeContext;
    this.brief = layout.brief;
    this.tree = layout.tree;
    this.#lastUsed = null;
  }

  #save(): void {
    const { open, width, height, includeContext, brief, tree } = this;
    const layout: Layout = { open, width, height, includeContext, brief, tree };
    const text = JSON.stringify(layout);
    for (const storage of ["sessionStorage", "localStorage"] as const) {
      try {
        window[storage].setItem(STORAGE_PREFIX + this.#person, text);
      } catch {
        // the browser has no storage; the server has a copy
      }
    }
    clearTimeout(this.#timer);
    const store = (): Promise<unknown> => callOperation("preference.set", { key: PREFERENCE, value: layout }).catch(() => null);
    this.#timer = window.setTimeout(() => void store(), SAVE_DELAY_MS);
  }

  /** Load the last layout of another device, unless this one changed meanwhile. */
  async #loadPreference(before: Tree): Promise<void> {
    const found = await callOperation("preference.get", { key: PREFERENCE }).catch(() => null);
    const layout = parseLayout(found?.value);
    if (layout && this.tree === before) this.#apply({ ...layout, open: this.open });
  }
}

function readStorage(storage: "sessionStorage" | "localStorage", key: string): Layout | null {
  try {
    return parseLayout(JSON.parse(window[storage].getItem(key) ?? "null"));
  } catch {
    return null;
  }
}

function parseLayout(stored: unknown): Layout | null {
  const raw = stored as Partial<Record<string, unknown>> | null | undefined;
  const tree = parseTree(raw?.["tree"]);
  if (!raw || !tree) return null;
  const defaults = createDefaultLayout();
  const clamp = (value: unknown, min: number, max: number, fallback: number): number =>
    typeof value === "number" && Number.isFinite(value) ? Math.min(max, Math.max(min, value)) : fallback;
  return {
    open: raw["open"] === true,
    width: clamp(raw["width"], WIDTH_MIN, WIDTH_MAX, defaults.width),
    height: clamp(raw["height"], HEIGHT_MIN, HEIGHT_MAX, defaults.height),
    includeContext: (raw["includeContext"] ?? raw["along"]) !== false,
    brief: raw["brief"] === true,
    tree,
  };
}

export const dock = new Dock();
