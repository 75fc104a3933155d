// How panels lie in the dock, as plain data: a pane has tabs, and the dock is one pane or two of them, split. Nothing here
// changes what it is given.

export interface Tab {
  kind: "tab";
  id: string;
  type: string;
  /** What it was called by whoever opened it; empty where its type says that. */
  title: string;
  /** The conversation it is kept to, or null where it follows the one that is looked at. */
  session: string | null;
  /** What the panel wants to find again, such as the file that was open. */
  kept: string;
}

export interface Pane {
  kind: "pane";
  tabs: Tab[];
  active: string | null;
}

export interface Split {
  kind: "split";
  direction: "row" | "column";
  /** How much of it the first pane has, in percent. */
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
const KEPT_MAX = 500;

export function panesOf(tree: Tree): Pane[] {
  return tree.kind === "split" ? tree.panes : [tree];
}

export function tabsOf(tree: Tree): Tab[] {
  return panesOf(tree).flatMap((pane) => pane.tabs);
}

export function paneWith(tree: Tree, id: string | null): Pane | undefined {
  return panesOf(tree).find((pane) => pane.tabs.some((tab) => tab.id === id));
}

/** The same with one pane changed. A pane that has nothing left gives its place to the other. */
function withPane(tree: Tree, pane: Pane, changed: Pane): Tree {
  if (tree.kind === "pane") return changed;
  const [first, second] = tree.panes.map((each) => (each === pane ? changed : each)) as [Pane, Pane];
  if (!first.tabs.length) return second;
  return second.tabs.length ? { ...tree, panes: [first, second] } : first;
}

export function shown(tree: Tree, id: string): Tree {
  const pane = paneWith(tree, id);
  return pane ? withPane(tree, pane, { ...pane, active: id }) : tree;
}

export function without(tree: Tree, id: string): Tree {
  const pane = paneWith(tree, id);
  if (!pane) return tree;
  const at = pane.tabs.findIndex((tab) => tab.id === id);
  const tabs = pane.tabs.toSpliced(at, 1);
  const active = pane.active === id ? ((tabs[at] ?? tabs[at - 1])?.id ?? null) : pane.active;
  return withPane(tree, pane, { ...pane, tabs, active });
}

/** With a tab before or after another one, or at the end of the first pane. */
export function joined(tree: Tree, tab: Tab, beside: string | null, { before = false }: { before?: boolean } = {}): Tree {
  const pane = paneWith(tree, beside) ?? panesOf(tree)[0];
  if (!pane) return tree;
  const at = pane.tabs.findIndex((each) => each.id === beside);
  const place = at < 0 ? pane.tabs.length : before ? at : at + 1;
  return withPane(tree, pane, { ...pane, tabs: pane.tabs.toSpliced(place, 0, tab), active: pane.active ?? tab.id });
}

export function changed(tree: Tree, id: string, change: Partial<Tab>): Tree {
  const pane = paneWith(tree, id);
  if (!pane) return tree;
  const tabs = pane.tabs.map((tab) => (tab.id === id ? { ...tab, ...change } : tab));
  return withPane(tree, pane, { ...pane, tabs, active: pane.active === id ? (change.id ?? id) : pane.active });
}

/** With a tab in a half of its own, at that side of another one; null where there is no room for it. Two halves are all
 * there are, so what is put beside one goes to the other, if that lies where it was asked for. */
export function parted(tree: Tree, tab: Tab, beside: string | null, region: Exclude<Region, "tab">): Tree | null {
  const direction = region === "left" || region === "right" ? "row" : "column";
  const first = region === "left" || region === "top";
  if (tree.kind === "split") {
    const [here, there] = first ? [tree.panes[1], tree.panes[0]] : tree.panes;
    if (tree.direction !== direction || paneWith(tree, beside) !== here) return null;
    return joined(tree, tab, there.tabs.at(-1)?.id ?? null);
  }
  if (!tree.tabs.length) return joined(tree, tab, null);
  const alone: Pane = { kind: "pane", tabs: [tab], active: tab.id };
  return { kind: "split", direction, share: 50, panes: first ? [alone, tree] : [tree, alone] };
}

/** What was kept, if it is what we would have written: it may come from another version of this page. */
export function treeFrom(given: unknown): Tree | null {
  const raw = given as Partial<Record<string, unknown>> | null;
  let tree: Tree;
  if (raw?.["kind"] === "split" && Array.isArray(raw["panes"]) && raw["panes"].length === 2) {
    const [first, second] = raw["panes"].map(paneFrom);
    if (!first?.tabs.length || !second?.tabs.length) return null;
    const share = Math.min(SHARE_MAX, Math.max(SHARE_MIN, Number(raw["share"]) || 50));
    tree = { kind: "split", direction: raw["direction"] === "row" ? "row" : "column", share, panes: [first, second] };
  } else {
    const pane = paneFrom(raw);
    if (!pane) return null;
    tree = pane;
  }
  const ids = tabsOf(tree).map((tab) => tab.id);
  return ids.length <= TABS_MAX && new Set(ids).size === ids.length ? tree : null;
}

function paneFrom(given: unknown): Pane | null {
  const raw = given as Partial<Record<string, unknown>> | null;
  if (raw?.["kind"] !== "pane" || !Array.isArray(raw["tabs"])) return null;
  const tabs = raw["tabs"].map(tabFrom).filter((tab) => tab !== null);
  const active = tabs.some((tab) => tab.id === raw["active"]) ? String(raw["active"]) : (tabs[0]?.id ?? null);
  return { kind: "pane", tabs, active };
}

function tabFrom(given: unknown): Tab | null {
  const raw = given as Partial<Record<string, unknown>> | null;
  const id = String(raw?.["id"] ?? "");
  const type = String(raw?.["type"] ?? "");
  const session = typeof raw?.["session"] === "string" && NAME.test(raw["session"]) ? raw["session"] : null;
  if (!NAME.test(id) || !NAME.test(type)) return null;
  const text = (value: unknown, most: number): string => (typeof value === "string" ? value.slice(0, most) : "");
  return { kind: "tab", id, type, title: text(raw?.["title"], TITLE_MAX), session, kept: text(raw?.["kept"], KEPT_MAX) };
}
