// Highlight matches in a message with the CSS Custom Highlight API, which does not change the DOM.

const NAME = "found";
const SHOWN_MAX = 200;

/** `wanted` is in lower case. Without an element, the highlight is removed. */
export function highlight(element: HTMLElement | null, wanted: string): void {
  if (!("highlights" in CSS)) return;
  CSS.highlights.delete(NAME);
  if (!element || !wanted) return;
  const ranges = findRanges(element, wanted);
  if (!ranges.length) {
    // The match is in closed details: thinking, or the arguments or result of a tool.
    for (const folded of element.querySelectorAll("details")) folded.open = true;
    requestAnimationFrame(() => mark(findRanges(element, wanted)));
    return;
  }
  mark(ranges);
}

function mark(ranges: Range[]): void {
  if (!ranges.length) return;
  CSS.highlights.set(NAME, new Highlight(...ranges));
  ranges[0]?.startContainer.parentElement?.scrollIntoView({ block: "nearest" });
}

function findRanges(element: HTMLElement, wanted: string): Range[] {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const ranges: Range[] = [];
  while (texts.nextNode() && ranges.length < SHOWN_MAX) {
    const node = texts.currentNode as Text;
    if (node.parentElement?.closest(".visually-hidden, details:not([open]) > :not(summary)")) continue;
    const text = node.data.toLowerCase();
    if (text.length !== node.data.length) continue; // lower case changed the length, so the offsets would be wrong
    for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
      const range = document.createRange();
      range.setStart(node, at);
      range.setEnd(node, at + wanted.length);
      ranges.push(range);
    }
  }
  return ranges;
}
