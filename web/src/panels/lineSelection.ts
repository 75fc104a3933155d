// The selected lines of a text field, for panels whose content is text.

import type { PanelContent } from "./panelTypes";

export interface LineRange {
  first: number;
  last: number;
  texts: string[];
}

/** The lines that the selection covers. Null if nothing is selected. */
export function getSelectedLines(field: HTMLTextAreaElement): LineRange | null {
  const { value, selectionStart: start, selectionEnd: end } = field;
  if (start === end) return null;
  const first = value.slice(0, start).split("\n").length;
  // A selection that ends at the start of a line does not include that line.
  const until = value[end - 1] === "\n" ? end - 1 : end;
  const from = value.lastIndexOf("\n", start - 1) + 1;
  const to = value.indexOf("\n", until);
  const texts = value.slice(from, to < 0 ? undefined : to).split("\n");
  return { first, last: first + texts.length - 1, texts };
}

/** The selection as panel content: line numbers as ids, and the lines as titles. */
export function buildSelection(lines: LineRange | null): Pick<PanelContent, "selection" | "selectionTitles"> {
  if (!lines) return {};
  return { selection: lines.texts.map((_, i) => String(lines.first + i)), selectionTitles: lines.texts };
}
