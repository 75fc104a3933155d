// Markdown from models and strangers as nodes that cannot do anything: no script, no style, no name of ours, no address
// of another host that is loaded by itself.

import DOMPurify from "dompurify";
import { Marked, type Token } from "marked";

const LINKS = /^(?:https?:|mailto:)/i;
const TAGS = [
  "p", "br", "strong", "em", "del", "code", "pre", "ul", "ol", "li", "blockquote", "h3", "hr", "a",
  "table", "thead", "tbody", "tr", "th", "td", "input", "sub", "sup",
]; // prettier-ignore

const marked = new Marked({
  gfm: true,
  renderer: {
    // A heading in a message is a heading within that message, however large it wants to be.
    heading({ tokens, depth }) {
      return `<h3 data-depth="${Math.min(depth, 3)}">${this.parser.parseInline(tokens)}</h3>`;
    },
    // Pictures of other hosts would tell them who reads: they are links.
    image({ href, text }) {
      return `<a href="${escaped(href)}">${escaped(text || href)}</a>`;
    },
    code({ text, lang }) {
      return `<pre data-lang="${escaped((lang ?? "").split(/\s/)[0] ?? "")}"><code>${escaped(text)}</code></pre>`;
    },
    html({ text }) {
      return escaped(text); // shown as it was written: nobody reads a conversation for its tags
    },
    checkbox({ checked }) {
      return `<input type="checkbox" disabled ${checked ? "checked" : ""}> `;
    },
  },
});

const purify = DOMPurify();
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    const href = node.getAttribute("href") ?? "";
    if (!LINKS.test(href)) {
      node.removeAttribute("href");
      return;
    }
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
    node.setAttribute("title", href);
    // Words that look like an address of another place are followed by the place they lead to.
    const host = hostOf(href);
    const claimed = /(?:https?:\/\/)?([\w-]+(?:\.[\w-]+)+)/i.exec(node.textContent ?? "")?.[1]?.toLowerCase();
    if (host && claimed && !host.endsWith(claimed) && !claimed.endsWith(host)) node.append(` (${host})`);
  } else if (node.tagName === "INPUT" && node.getAttribute("type") !== "checkbox") node.remove();
});

export interface Block {
  /** What it was made of: the same text gives the same block. */
  source: string;
  kind: string;
}

/** A text as its blocks. Nothing is made of them yet. */
export function blocksOf(text: string): Block[] {
  return marked
    .lexer(text)
    .filter((token) => token.type !== "space")
    .map((token: Token) => ({ source: token.raw, kind: token.type }));
}

/** Where the last block of a text begins: all before it will not change, whatever is said next. */
export function openFrom(text: string): number {
  const tokens = marked.lexer(text);
  let end = text.length;
  for (const token of tokens.toReversed()) {
    end -= token.raw.length;
    if (token.type !== "space") return Math.max(0, end);
  }
  return 0;
}

export function nodesOf(source: string): DocumentFragment {
  const made = marked.parse(source, { async: false });
  const clean = purify.sanitize(made, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "title", "start", "align", "type", "checked", "disabled", "data-lang", "data-depth"],
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  for (const box of clean.querySelectorAll("input")) {
    box.disabled = true;
    box.setAttribute("aria-label", box.checked ? "done" : "not done");
  }
  for (const table of clean.querySelectorAll("table")) table.replaceWith(scrolling(table));
  return clean;
}

function scrolling(node: Element): HTMLElement {
  const around = document.createElement("div");
  around.className = "scrolling";
  around.tabIndex = 0;
  around.role = "region";
  around.ariaLabel = "table";
  around.append(node.cloneNode(true));
  return around;
}

function hostOf(address: string): string {
  try {
    return new URL(address).host.toLowerCase();
  } catch {
    return "";
  }
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);
}
