// Lines of a text that are selected in a field, for panels whose content is text.

import type { Said } from "./panelTypes";

export interface Lines {
  first: number;
  last: number;
  texts: string[];
}

/** The lines that the selection touches; null where nothing is selected. */
export function linesIn(field: HTMLTextAreaElement): Lines | null {
  const { value, selectionStart: start, selectionEnd: end } = field;
  if (start === end) return null;
  const first = value.slice(0, start).split("\n").length;
  // A selection that ends at the beginning of a line has nothing of that line.
  const until = value[end - 1] === "\n" ? end - 1 : end;
  const from = value.lastIndexOf("\n", start - 1) + 1;
  const to = value.indexOf("\n", until);
  const texts = value.slice(from, to < 0 ? undefined : to).split("\n");
  return { first, last: first + texts.length - 1, texts };
}

/** As a panel says it: the numbers of the lines, and the lines. */
export function saidOf(lines: Lines | null): Pick<Said, "selection" | "selectionTitles"> {
  if (!lines) return {};
  return { selection: lines.texts.map((_, i) => String(lines.first + i)), selectionTitles: lines.texts };
}
