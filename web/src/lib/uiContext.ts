// The context line: what the person had open while writing, in one line before the text. The server stores it unchanged
// and never writes one, so all the rules are here. The server reads it in `domain/ui_context.py`.

const DESCRIPTION_CHARS_MAX = 500;
const SELECTION_CHARS_MAX = 1_000;
const VALUE_CHARS_MAX = 500;
const EXTRAS_MAX = 20;

const NAME = /^[a-z][a-z0-9-]*$/;
const NAME_CHARS_MAX = 40;
const LINE = /^<context(?: [a-z][a-z0-9-]*="[^"<>\n]*")* \/>(?:\n|$)/;
const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** Attribute names that only the app may set: a panel cannot override them. */
export const RESERVED: ReadonlySet<string> = new Set([
  "panel-id", "panel-type", "panel-title", "type", "id", "name", "description",
  "view-name", "view-query", "selection", "selection-titles", "mode",
]); // prettier-ignore

export interface ActivePanel {
  id: string;
  type: string;
  title: string;
}

/** The open content of a panel: an item, such as a list or a note, or a view with its query. */
export type ActiveContent =
  | { kind: "item"; type: string; id: string; name: string; description?: string | undefined }
  | { kind: "view"; name: string; query: string };

export interface UiContext {
  panel?: ActivePanel | undefined;
  active?: ActiveContent | undefined;
  /** The ids of the selected items, and their titles. */
  selection?: readonly string[] | undefined;
  selectionTitles?: readonly string[] | undefined;
  /** Whether a short answer is wanted. */
  brief?: boolean | undefined;
  /** Attributes that the panel adds. */
  extras?: Readonly<Record<string, string>> | undefined;
}

/** The line with its newline. It is there even if it has no attributes. */
export function buildContextLine(context: UiContext): string {
  const attributes: [string, string][] = [];
  const add = (name: string, value: string | undefined, lengthMax = VALUE_CHARS_MAX): void => {
    const shortValue = shorten(value ?? "", lengthMax);
    if (shortValue !== "") attributes.push([name, shortValue]);
  };
  const { panel, active } = context;
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
    add("selection", context.selection?.join(","), SELECTION_CHARS_MAX);
    if (context.selectionTitles?.length) add("selection-titles", JSON.stringify(context.selectionTitles), SELECTION_CHARS_MAX);
  }
  if (context.brief) add("mode", "brief");
  for (const [name, value] of filterExtras(context)) add(name, value);
  return `<context${attributes.map(([name, value]) => ` ${name}="${escapeAttribute(value)}"`).join("")} />\n`;
}

function filterExtras({ extras }: UiContext): [string, string][] {
  const usable = Object.entries(extras ?? {}).filter(
    ([name, value]) => NAME.test(name) && name.length <= NAME_CHARS_MAX && !RESERVED.has(name) && typeof value === "string",
  );
  return usable.slice(0, EXTRAS_MAX);
}

/** Put a text on one line, and cut it with an ellipsis if it is too long. */
function shorten(text: string, lengthMax: number): string {
  const plain = [...text.replace(/\p{Surrogate}/gu, "\u{fffd}").replace(/[\s\p{Cc}]+/gu, " ").trim()];
  return plain.length <= lengthMax ? plain.join("") : plain.slice(0, lengthMax - 1).join("") + "…";
}

function escapeAttribute(text: string): string {
  return text.replace(/[&<>"']/g, (sign) => ENTITIES[sign] ?? "");
}

/** The text that the person wrote, without the context line. */
export function stripContextLine(text: string): string {
  return text.startsWith("<context") ? text.replace(LINE, "") : text;
}
