// Markdown from models and strangers as nodes that cannot do anything: no script, no style, no name of ours, no address
// of another host that is loaded by itself.

import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import { unturned } from "./words";

const LINKS = /^(?:https?:|mailto:)/i;
const TAGS = [
  "p", "br", "strong", "em", "del", "code", "pre", "ul", "ol", "li", "blockquote", "h3", "hr", "a",
  "table", "thead", "tbody", "tr", "th", "td", "input", "sub", "sup",
]; // prettier-ignore

const marked = new Marked({
  gfm: true,
  breaks: true, // who presses Enter in a conversation means it
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
    if (host && claimsOther(node.textContent ?? "", host)) node.append(` (${host})`);
  } else if (node.tagName === "INPUT" && node.getAttribute("type") !== "checkbox") node.remove();
});

/** So many items of a list are one block: a block is made anew as a whole while it grows. */
const ITEMS_MAX = 20;

export interface Parted {
  /** What each block is made of: the same text gives the same block. */
  blocks: string[];
  /** Where the last of them begins: all before it will not change, whatever is said next. */
  open: number;
}

/** A text as its blocks. Nothing is made of them yet. */
export function parted(text: string): Parted {
  const blocks: string[] = [];
  const places: string[] = [];
  let at = 0;
  let open = 0;
  const add = (source: string): void => {
    open = at;
    at += source.length;
    blocks.push(source);
  };
  for (const token of marked.lexer(text)) {
    if (token.type === "space") at += token.raw.length;
    else if (token.type === "def") {
      places.push(token.raw.trim());
      at += token.raw.length;
    } else if (isLong(token)) for (const piece of piecesOf(token)) add(piece);
    else add(token.raw);
  }
  return { blocks: places.length ? blocks.map((each) => withPlaces(each, places)) : blocks, open };
}

function isLong(token: Token): token is Tokens.List {
  return token.type === "list" && (token as Tokens.List).items.length > ITEMS_MAX;
}

function piecesOf(list: Tokens.List): string[] {
  const pieces: string[] = [];
  let rest = list.raw;
  for (let i = 0; i + ITEMS_MAX < list.items.length; i += ITEMS_MAX) {
    const length = list.items.slice(i, i + ITEMS_MAX).reduce((sum, item) => sum + item.raw.length, 0);
    pieces.push(rest.slice(0, length));
    rest = rest.slice(length);
  }
  return [...pieces, rest];
}

/** Where links lead may be said at the end of a text: each block that needs it gets it along. */
function withPlaces(source: string, places: string[]): string {
  return source.includes("]") ? `${source}\n\n${places.join("\n")}` : source;
}

/** The words within a block of code that is not closed yet, or null where it is something else. */
export function openCode(source: string): string | null {
  if (!/^ {0,3}(?:`{3}|~{3})/.test(source)) return null;
  const [token, ...more] = marked.lexer(source);
  return token?.type === "code" && !more.length ? unturned((token as Tokens.Code).text) : null;
}

export function nodesOf(source: string): DocumentFragment {
  const made = marked.parse(unturned(source), { async: false });
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
    return new URL(address).hostname.toLowerCase();
  } catch {
    return "";
  }
}

/** Whether words name a host that is not this one, whatever letters and dots they write it with. */
function claimsOther(words: string, host: string): boolean {
  const named = words.toLowerCase().match(/[\p{L}\p{N}-]+(?:[.\u2024\u3002\uff0e\uff61][\p{L}\p{N}-]+)+/gu) ?? [];
  return named.some((each) => each !== host && !host.endsWith(`.${each}`));
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);
}
