// The context line: what someone had before them as they wrote, in one line before their words. The house keeps it as
// it is and makes none itself, so all the rules are here. Its reader there is `domain/ui_context.py`.

const DESCRIPTION_CHARS_MAX = 500;
const SELECTION_CHARS_MAX = 1_000;
const VALUE_CHARS_MAX = 500;
const EXTRAS_MAX = 20;

const NAME = /^[a-z][a-z0-9-]*$/;
const NAME_CHARS_MAX = 40;
const LINE = /^<context(?: [a-z][a-z0-9-]*="[^"<>\n]*")* \/>(?:\n|$)/;
const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** What is the page's own to say: a panel may not say it in its place. */
export const RESERVED: ReadonlySet<string> = new Set([
  "panel-id", "panel-type", "panel-title", "type", "id", "name", "description",
  "view-name", "view-query", "selection", "selection-titles", "mode",
]); // prettier-ignore

export interface ActivePanel {
  id: string;
  type: string;
  title: string;
}

/** What is open in the panel: an item, such as a list or a note, or a view by its query. */
export type Active =
  | { kind: "item"; type: string; id: string; name: string; description?: string | undefined }
  | { kind: "view"; name: string; query: string };

export interface Before {
  panel?: ActivePanel | undefined;
  active?: Active | undefined;
  /** Ids of what is selected, and how these are called. */
  selection?: readonly string[] | undefined;
  selectionTitles?: readonly string[] | undefined;
  /** Whether a short answer is wanted. */
  brief?: boolean | undefined;
  /** What the panel adds of its own. */
  extras?: Readonly<Record<string, string>> | undefined;
}

/** The line, with its newline. Where nothing applies it is empty, and still there. */
export function contextLine(before: Before): string {
  const said: [string, string][] = [];
  const add = (name: string, value: string | undefined, most = VALUE_CHARS_MAX): void => {
    const bounded = shortened(value ?? "", most);
    if (bounded !== "") said.push([name, bounded]);
  };
  const { panel, active } = before;
  add("panel-id", panel?.id);
  add("panel-type", panel?.type);
  add("panel-title", panel?.title);
  if (active?.kind === "item") {
    add("type", active.type);
    add("id", active.id);
    add("name", active.name);
    add("description", active.description, DESCRIPTION_CHARS_MAX);
  } else if (active?.kind === "view") {
    add("view-name", active.name);
    add("view-query", active.query);
  }
  if (active !== undefined) {
    add("selection", before.selection?.join(","), SELECTION_CHARS_MAX);
    if (before.selectionTitles?.length) add("selection-titles", JSON.stringify(before.selectionTitles), SELECTION_CHARS_MAX);
  }
  if (before.brief) add("mode", "brief");
  for (const [name, value] of extrasOf(before)) add(name, value);
  return `<context${said.map(([name, value]) => ` ${name}="${escaped(value)}"`).join("")} />\n`;
}

function extrasOf({ extras }: Before): [string, string][] {
  const usable = Object.entries(extras ?? {}).filter(
    ([name, value]) => NAME.test(name) && name.length <= NAME_CHARS_MAX && !RESERVED.has(name) && typeof value === "string",
  );
  return usable.slice(0, EXTRAS_MAX);
}

/** On one line, and visibly cut where it is too long. */
function shortened(text: string, most: number): string {
  const plain = [...text.replace(/\p{Surrogate}/gu, "\u{fffd}").replace(/[\s\p{Cc}]+/gu, " ").trim()];
  return plain.length <= most ? plain.join("") : plain.slice(0, most - 1).join("") + "…";
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (sign) => ENTITIES[sign] ?? "");
}

/** What someone wrote themselves: the words without the line before them. */
export function wordsOf(text: string): string {
  return text.startsWith("<context") ? text.replace(LINE, "") : text;
}
