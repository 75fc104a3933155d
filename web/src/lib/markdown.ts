// Untrusted Markdown as safe DOM nodes. Every node is created from a parsed token and text is never used as HTML, so
// there is nothing to sanitize: no scripts, styles, ids or classes from the text, and no automatic requests to other hosts.

import { getDefaults, Lexer, type Token, type Tokens } from "marked";
import { replaceBidiControls } from "./format";

const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const ENTITIES: Record<string, string> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", hellip: "…", mdash: "—", ndash: "–", copy: "©",
  rarr: "→", larr: "←", times: "×", deg: "°", euro: "€", laquo: "«", raquo: "»", bull: "•", middot: "·", shy: "\u00ad",
}; // prettier-ignore

/** In a chat message, a single newline is a line break. */
function lex(text: string): Token[] {
  return new Lexer({ ...getDefaults(), gfm: true, breaks: true }).lex(text);
}

/** Longer lists are split into several blocks, because a growing block is rendered again as a whole. */
const ITEMS_MAX = 20;

export interface SplitText {
  /** The source text of each block. */
  blocks: string[];
  /** The offset of the last block. The blocks before it do not change when the text grows. */
  open: number;
}

/** Split a text into blocks without rendering them. */
export function splitBlocks(text: string): SplitText {
  const blocks: string[] = [];
  const definitions: string[] = [];
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
      definitions.push(token.raw.trim());
      at += token.raw.length;
    } else if (isLongList(token)) for (const piece of splitList(token)) add(piece);
    else add(token.raw);
  }
  return { blocks: definitions.length ? blocks.map((each) => appendDefinitions(each, definitions)) : blocks, open };
}

function isLongList(token: Token): token is Tokens.List {
  return token.type === "list" && (token as Tokens.List).items.length > ITEMS_MAX;
}

function splitList(list: Tokens.List): string[] {
  const pieces: string[] = [];
  let rest = list.raw;
  for (let i = 0; i + ITEMS_MAX < list.items.length; i += ITEMS_MAX) {
    const length = list.items.slice(i, i + ITEMS_MAX).reduce((sum, item) => sum + item.raw.length, 0);
    pieces.push(rest.slice(0, length));
    rest = rest.slice(length);
  }
  return [...pieces, rest];
}

/** Reference links are defined anywhere in a text: append the definitions to each block that may use them. */
function appendDefinitions(source: string, definitions: string[]): string {
  return source.includes("]") ? `${source}\n\n${definitions.join("\n")}` : source;
}

/** The code in a code block that is not closed yet, or null for any other block. */
export function parseOpenCode(source: string): string | null {
  if (!/^ {0,3}(?:`{3}|~{3})/.test(source)) return null;
  const [token, ...more] = lex(source);
  return token?.type === "code" && !more.length ? replaceBidiControls((token as Tokens.Code).text) : null;
}

export function renderBlock(source: string): DocumentFragment {
  return appendTokens(document.createDocumentFragment(), lex(replaceBidiControls(source)));
}

function appendTokens<N extends ParentNode>(node: N, tokens: readonly Token[] | undefined, loose = false): N {
  for (const token of tokens ?? []) {
    const child = renderToken(token as Known, loose);
    if (child !== null) node.append(child);
  }
  return node;
}

function createElement<K extends keyof HTMLElementTagNameMap>(tag: K, tokens?: readonly Token[]): HTMLElementTagNameMap[K] {
  return appendTokens(document.createElement(tag), tokens);
}

type Known =
  | Tokens.Blockquote | Tokens.Br | Tokens.Checkbox | Tokens.Code | Tokens.Codespan | Tokens.Def | Tokens.Del | Tokens.Em
  | Tokens.Escape | Tokens.Heading | Tokens.Hr | Tokens.HTML | Tokens.Image | Tokens.Link | Tokens.List | Tokens.Paragraph
  | Tokens.Space | Tokens.Strong | Tokens.Table | Tokens.Tag | Tokens.Text; // prettier-ignore

function renderToken(token: Known, loose: boolean): Node | string | null {
  switch (token.type) {
    case "paragraph":
      return createElement("p", token.tokens);
    case "text":
      if (!token.tokens) return decodeEntities(token.text);
      return loose ? createElement("p", token.tokens) : appendTokens(document.createDocumentFragment(), token.tokens);
    case "strong":
    case "em":
    case "del":
      return createElement(token.type, token.tokens);
    case "blockquote":
      return createElement("blockquote", token.tokens);
    case "codespan":
      return createTextElement("code", token.text);
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
      return link(token.href, appendTokens(document.createDocumentFragment(), token.tokens));
    case "image": // loading an image would tell its host who reads this, so show a link
      return link(token.href, decodeEntities(token.text || token.href));
    case "checkbox":
      return checkbox(token.checked);
    case "html": // HTML tags are shown as text
      return token.block ? createTextElement("p", token.text.trim()) : token.text;
    case "escape":
      return token.text;
    case "space":
    case "def":
      return null;
  }
}

function createTextElement(tag: "code" | "p", text: string): HTMLElement {
  const node = document.createElement(tag);
  node.textContent = text;
  return node;
}

/** All headings in a message are h3, so that they fit the outline of the page. */
function heading(token: Tokens.Heading): HTMLElement {
  const node = createElement("h3", token.tokens);
  node.dataset["depth"] = String(Math.min(token.depth, 3));
  return node;
}

function code(token: Tokens.Code): HTMLElement {
  const node = document.createElement("pre");
  node.dataset["lang"] = (token.lang ?? "").split(/\s/)[0] ?? "";
  node.append(createTextElement("code", token.text));
  return node;
}

function list(token: Tokens.List): HTMLElement {
  const node = document.createElement(token.ordered ? "ol" : "ul");
  if (node instanceof HTMLOListElement && typeof token.start === "number") node.start = token.start;
  for (const item of token.items) node.append(appendTokens(document.createElement("li"), item.tokens, item.loose));
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
      const one = createElement(tag, cell.tokens);
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
  const to = parseUrl(decodeEntities(href));
  if (to === null) return node;
  node.href = to.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  node.title = to.href;
  // If the link text looks like another host, append the real host.
  const host = to.hostname.toLowerCase();
  if (host && namesOtherHost(node.textContent ?? "", host)) node.append(` (${host})`);
  return node;
}

function parseUrl(href: string): URL | null {
  try {
    const to = new URL(href);
    return SCHEMES.has(to.protocol) ? to : null;
  } catch {
    return null;
  }
}

/** Whether a text names a host other than this one. Covers look-alike dots. */
function namesOtherHost(words: string, host: string): boolean {
  const named = words.toLowerCase().match(/[\p{L}\p{N}-]+(?:[.\u2024\u3002\uff0e\uff61][\p{L}\p{N}-]+)+/gu) ?? [];
  return named.some((each) => each !== host && !host.endsWith(`.${each}`));
}

/** Replace HTML entities by their characters. */
function decodeEntities(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(\w{1,10}));/g, (all, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return ENTITIES[name] ?? all;
    const point = hex !== undefined ? parseInt(hex, 16) : Number(decimal);
    return point > 0 && point <= 0x10ffff ? replaceBidiControls(String.fromCodePoint(point)) : "\u{fffd}";
  });
}
