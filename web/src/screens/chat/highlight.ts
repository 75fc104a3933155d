// Marks words within a line without touching its nodes: the browser's own highlights.

const NAME = "found";
const SHOWN_MAX = 200;

/** `wanted` is in lower case. Without a line, nothing is marked any more. */
export function highlight(line: HTMLElement | null, wanted: string): void {
  if (!("highlights" in CSS)) return;
  CSS.highlights.delete(NAME);
  if (!line || !wanted) return;
  const ranges = rangesIn(line, wanted);
  if (!ranges.length) {
    // It is in what is folded: thoughts, or what a tool was given and said.
    for (const folded of line.querySelectorAll("details")) folded.open = true;
    requestAnimationFrame(() => mark(rangesIn(line, wanted)));
    return;
  }
  mark(ranges);
}

function mark(ranges: Range[]): void {
  if (!ranges.length) return;
  CSS.highlights.set(NAME, new Highlight(...ranges));
  ranges[0]?.startContainer.parentElement?.scrollIntoView({ block: "nearest" });
}

function rangesIn(line: HTMLElement, wanted: string): Range[] {
  const texts = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const ranges: Range[] = [];
  while (texts.nextNode() && ranges.length < SHOWN_MAX) {
    const node = texts.currentNode as Text;
    if (node.parentElement?.closest(".visually-hidden, details:not([open]) > :not(summary)")) continue;
    const words = node.data.toLowerCase();
    if (words.length !== node.data.length) continue; // letters that change their length: the places would be wrong
    for (let at = words.indexOf(wanted); at >= 0; at = words.indexOf(wanted, at + wanted.length)) {
      const range = document.createRange();
      range.setStart(node, at);
      range.setEnd(node, at + wanted.length);
      ranges.push(range);
    }
  }
  return ranges;
}
