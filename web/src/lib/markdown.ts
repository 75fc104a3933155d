// Markdown from models and strangers as nodes that cannot do anything. The nodes are made here one by one from what was
// read: none of a text ever becomes markup, so there is nothing to clean, no script, no style, no name of ours, and no
// address of another host that is loaded by itself.

import { getDefaults, Lexer, type Token, type Tokens } from "marked";
import { unturned } from "./words";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const ENTITIES: Record<string, string> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", hellip: "…", mdash: "—", ndash: "–", copy: "©",
  rarr: "→", larr: "←", times: "×", deg: "°", euro: "€", laquo: "«", raquo: "»", bull: "•", middot: "·", shy: "\u00ad",
}; // prettier-ignore

/** Who presses Enter in a conversation means it: a single one breaks the line. */
function lex(text: string): Token[] {
  return new Lexer({ ...getDefaults(), gfm: true, breaks: true }).lex(text);
}

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
  for (const token of lex(text)) {
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
  const [token, ...more] = lex(source);
  return token?.type === "code" && !more.length ? unturned((token as Tokens.Code).text) : null;
}

export function nodesOf(source: string): DocumentFragment {
  return inside(document.createDocumentFragment(), lex(unturned(source)));
}

function inside<N extends ParentNode>(node: N, tokens: readonly Token[] | undefined, loose = false): N {
  for (const token of tokens ?? []) {
    const made = nodeOf(token as Known, loose);
    if (made !== null) node.append(made);
  }
  return node;
}

function made<K extends keyof HTMLElementTagNameMap>(tag: K, tokens?: readonly Token[]): HTMLElementTagNameMap[K] {
  return inside(document.createElement(tag), tokens);
}

type Known =
  | Tokens.Blockquote | Tokens.Br | Tokens.Checkbox | Tokens.Code | Tokens.Codespan | Tokens.Def | Tokens.Del | Tokens.Em
  | Tokens.Escape | Tokens.Heading | Tokens.Hr | Tokens.HTML | Tokens.Image | Tokens.Link | Tokens.List | Tokens.Paragraph
  | Tokens.Space | Tokens.Strong | Tokens.Table | Tokens.Tag | Tokens.Text; // prettier-ignore

function nodeOf(token: Known, loose: boolean): Node | string | null {
  switch (token.type) {
    case "paragraph":
      return made("p", token.tokens);
    case "text":
      if (!token.tokens) return decoded(token.text);
      return loose ? made("p", token.tokens) : inside(document.createDocumentFragment(), token.tokens);
    case "strong":
    case "em":
    case "del":
      return made(token.type, token.tokens);
    case "blockquote":
      return made("blockquote", token.tokens);
    case "codespan":
      return words("code", token.text);
    case "br":
    case "hr":
      return document.createElement(token.type);
    case "heading":
      return heading(token);
    case "code":
      return code(token);
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "link":
      return link(token.href, inside(document.createDocumentFragment(), token.tokens));
    case "image": // one of another host would tell it who reads: it is a link
      return link(token.href, decoded(token.text || token.href));
    case "checkbox":
      return checkbox(token.checked);
    case "html": // shown as it was written: nobody reads a conversation for its tags
      return token.block ? words("p", token.text.trim()) : token.text;
    case "escape":
      return token.text;
    case "space":
    case "def":
      return null;
  }
}

function words(tag: "code" | "p", text: string): HTMLElement {
  const node = document.createElement(tag);
  node.textContent = text;
  return node;
}

/** A heading in a message is a heading within that message, however large it wants to be. */
function heading(token: Tokens.Heading): HTMLElement {
  const node = made("h3", token.tokens);
  node.dataset["depth"] = String(Math.min(token.depth, 3));
  return node;
}

function code(token: Tokens.Code): HTMLElement {
  const node = document.createElement("pre");
  node.dataset["lang"] = (token.lang ?? "").split(/\s/)[0] ?? "";
  node.append(words("code", token.text));
  return node;
}

function list(token: Tokens.List): HTMLElement {
  const node = document.createElement(token.ordered ? "ol" : "ul");
  if (node instanceof HTMLOListElement && typeof token.start === "number") node.start = token.start;
  for (const item of token.items) node.append(inside(document.createElement("li"), item.tokens, item.loose));
  return node;
}

function checkbox(checked: boolean): HTMLElement {
  const node = document.createElement("input");
  node.type = "checkbox";
  node.checked = checked;
  node.disabled = true;
  node.ariaLabel = checked ? "done" : "not done";
  return node;
}

function table(token: Tokens.Table): HTMLElement {
  const node = document.createElement("table");
  const row = (cells: Tokens.TableCell[], tag: "td" | "th"): HTMLElement => {
    const line = document.createElement("tr");
    for (const cell of cells) {
      const one = made(tag, cell.tokens);
      if (cell.align) one.align = cell.align;
      line.append(one);
    }
    return line;
  };
  node.createTHead().append(row(token.header, "th"));
  node.createTBody().append(...token.rows.map((cells) => row(cells, "td")));
  const around = document.createElement("div");
  around.className = "scrolling";
  around.tabIndex = 0;
  around.role = "region";
  around.ariaLabel = "table";
  around.append(node);
  return around;
}

function link(href: string, content: Node | string): HTMLElement {
  const node = document.createElement("a");
  node.append(content);
  const to = addressOf(decoded(href));
  if (to === null) return node;
  node.href = to.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  node.title = to.href;
  // Words that look like an address of another place are followed by the place they lead to.
  const host = to.hostname.toLowerCase();
  if (host && claimsOther(node.textContent ?? "", host)) node.append(` (${host})`);
  return node;
}

function addressOf(href: string): URL | null {
  try {
    const to = new URL(href);
    return SCHEMES.has(to.protocol) ? to : null;
  } catch {
    return null;
  }
}

/** Whether words name a host that is not this one, whatever letters and dots they write it with. */
function claimsOther(words: string, host: string): boolean {
  const named = words.toLowerCase().match(/[\p{L}\p{N}-]+(?:[.\u2024\u3002\uff0e\uff61][\p{L}\p{N}-]+)+/gu) ?? [];
  return named.some((each) => each !== host && !host.endsWith(`.${each}`));
}

/** Entities as the letters they stand for. */
function decoded(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(\w{1,10}));/g, (all, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return ENTITIES[name] ?? all;
    const point = hex !== undefined ? parseInt(hex, 16) : Number(decimal);
    return point > 0 && point <= 0x10ffff ? unturned(String.fromCodePoint(point)) : "\u{fffd}";
  });
}
