// The layout of the panels as plain data: a pane has tabs, and the dock is one pane or a split of two. All functions are
// pure.

export interface Tab {
  kind: "tab";
  id: string;
  type: string;
  /** The title that was given when it was opened. Empty: the title of its type. */
  title: string;
  /** The conversation it is pinned to. Null: it follows the open conversation. */
  session: string | null;
  /** State that the panel stores, such as the open file. */
  state: string;
}

export interface Pane {
  kind: "pane";
  tabs: Tab[];
  active: string | null;
}

export interface Split {
  kind: "split";
  direction: "row" | "column";
  /** The share of the first pane in percent. */
  share: number;
  panes: [Pane, Pane];
}

export type Tree = Pane | Split;
export type Region = "tab" | "left" | "right" | "top" | "bottom";
export const REGIONS: readonly Region[] = ["tab", "left", "right", "top", "bottom"];

export const TABS_MAX = 10;
export const SHARE_MIN = 20;
export const SHARE_MAX = 80;
const NAME = /^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}$/;
const TITLE_MAX = 200;
const STATE_MAX = 500;

export function listPanes(tree: Tree): Pane[] {
  return tree.kind === "split" ? tree.panes : [tree];
}

export function listTabs(tree: Tree): Tab[] {
  return listPanes(tree).flatMap((pane) => pane.tabs);
}

export function findPane(tree: Tree, id: string | null): Pane | undefined {
  return listPanes(tree).find((pane) => pane.tabs.some((tab) => tab.id === id));
}

/** Replace one pane. If it has no tabs left, the other pane takes the whole dock. */
function replacePane(tree: Tree, pane: Pane, replacement: Pane): Tree {
  if (tree.kind === "pane") return replacement;
  const [first, second] = tree.panes.map((each) => (each === pane ? replacement : each)) as [Pane, Pane];
  if (!first.tabs.length) return second;
  return second.tabs.length ? { ...tree, panes: [first, second] } : first;
}

export function activateTab(tree: Tree, id: string): Tree {
  const pane = findPane(tree, id);
  return pane ? replacePane(tree, pane, { ...pane, active: id }) : tree;
}

export function removeTab(tree: Tree, id: string): Tree {
  const pane = findPane(tree, id);
  if (!pane) return tree;
  const at = pane.tabs.findIndex((tab) => tab.id === id);
  const tabs = pane.tabs.toSpliced(at, 1);
  const active = pane.active === id ? ((tabs[at] ?? tabs[at - 1])?.id ?? null) : pane.active;
  return replacePane(tree, pane, { ...pane, tabs, active });
}

/** Insert a tab before or after another one, or at the end of the first pane. */
export function insertTab(tree: Tree, tab: Tab, beside: string | null, { before = false }: { before?: boolean } = {}): Tree {
  const pane = findPane(tree, beside) ?? listPanes(tree)[0];
  if (!pane) return tree;
  const at = pane.tabs.findIndex((each) => each.id === beside);
  const index = at < 0 ? pane.tabs.length : before ? at : at + 1;
  return replacePane(tree, pane, { ...pane, tabs: pane.tabs.toSpliced(index, 0, tab), active: pane.active ?? tab.id });
}

export function updateTab(tree: Tree, id: string, change: Partial<Tab>): Tree {
  const pane = findPane(tree, id);
  if (!pane) return tree;
  const tabs = pane.tabs.map((tab) => (tab.id === id ? { ...tab, ...change } : tab));
  return replacePane(tree, pane, { ...pane, tabs, active: pane.active === id ? (change.id ?? id) : pane.active });
}

/** Put a tab into the half on that side of another tab. Returns null if there is no such half: the dock has at most two, so
 * a dock that is split already accepts only the direction it is split in. */
export function splitTab(tree: Tree, tab: Tab, beside: string | null, region: Exclude<Region, "tab">): Tree | null {
  const direction = region === "left" || region === "right" ? "row" : "column";
  const first = region === "left" || region === "top";
  if (tree.kind === "split") {
    const [target, other] = first ? [tree.panes[1], tree.panes[0]] : tree.panes;
    if (tree.direction !== direction || findPane(tree, beside) !== target) return null;
    return insertTab(tree, tab, other.tabs.at(-1)?.id ?? null);
  }
  if (!tree.tabs.length) return insertTab(tree, tab, null);
  const newPane: Pane = { kind: "pane", tabs: [tab], active: tab.id };
  return { kind: "split", direction, share: 50, panes: first ? [newPane, tree] : [tree, newPane] };
}

/** Parse a stored layout. Returns null if it is invalid, as it may be if another version of the app wrote it. */
export function parseTree(stored: unknown): Tree | null {
  const raw = stored as Partial<Record<string, unknown>> | null;
  let tree: Tree;
  if (raw?.["kind"] === "split" && Array.isArray(raw["panes"]) && raw["panes"].length === 2) {
    const [first, second] = raw["panes"].map(parsePane);
    if (!first?.tabs.length || !second?.tabs.length) return null;
    const share = Math.min(SHARE_MAX, Math.max(SHARE_MIN, Number(raw["share"]) || 50));
    tree = { kind: "split", direction: raw["direction"] === "row" ? "row" : "column", share, panes: [first, second] };
  } else {
    const pane = parsePane(raw);
    if (!pane) return null;
    tree = pane;
  }
  const ids = listTabs(tree).map((tab) => tab.id);
  return ids.length <= TABS_MAX && new Set(ids).size === ids.length ? tree : null;
}

function parsePane(stored: unknown): Pane | null {
  const raw = stored as Partial<Record<string, unknown>> | null;
  if (raw?.["kind"] !== "pane" || !Array.isArray(raw["tabs"])) return null;
  const tabs = raw["tabs"].map(parseTab).filter((tab) => tab !== null);
  const active = tabs.some((tab) => tab.id === raw["active"]) ? String(raw["active"]) : (tabs[0]?.id ?? null);
  return { kind: "pane", tabs, active };
}

function parseTab(stored: unknown): Tab | null {
  const raw = stored as Partial<Record<string, unknown>> | null;
  const id = String(raw?.["id"] ?? "");
  const type = String(raw?.["type"] ?? "");
  const session = typeof raw?.["session"] === "string" && NAME.test(raw["session"]) ? raw["session"] : null;
  if (!NAME.test(id) || !NAME.test(type)) return null;
  const text = (value: unknown, lengthMax: number): string => (typeof value === "string" ? value.slice(0, lengthMax) : "");
  return { kind: "tab", id, type, title: text(raw?.["title"], TITLE_MAX), session, state: text(raw?.["state"] ?? raw?.["kept"], STATE_MAX) };
}
