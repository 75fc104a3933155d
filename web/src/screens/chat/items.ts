// Lines as a person reads them: a call and its result are one thing, and what the house says about itself is small.

import type { Line } from "../../lib/conversation.svelte";

export interface Call {
  id: string;
  tool: string;
  arguments: Record<string, unknown>;
}

export interface Result {
  call: string;
  tool: string;
  output: string;
  failed: boolean;
  trust: string;
  whole: string;
  attachments: File[];
}

export interface File {
  hash: string;
  name: string;
  mediaType: string;
  size: number;
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  cost_microusd: number;
}

export type Item =
  | { kind: "mail"; id: string; seq: number; from: string; text: string; at: string; files: File[]; envelope: string | null; trust: string }
  | { kind: "reply"; id: string; seq: number; text: string; thinking: string; at: string; run: string | null; model: string; stop: string; usage: Usage | null }
  | { kind: "call"; id: string; seq: number; call: Call; result: Result | null; at: string; endedAt: string | null; run: string | null }
  | { kind: "note"; id: string; seq: number; text: string; at: string; what: "note" | "summary" | "start" | "reset" };

type Raw = Record<string, unknown>;

/** `results` are those of all lines: a result may lie behind what is shown here. */
export function itemsOf(lines: readonly Line[], results: ReadonlyMap<string, Line>): Item[] {
  return lines.flatMap((line) => itemsIn(line, results));
}

export function resultsIn(lines: readonly Line[]): Map<string, Line> {
  return new Map(lines.filter((line) => line.kind === "tool").map((line) => [String((line.body as Raw)["call"]), line]));
}

function itemsIn(line: Line, results: ReadonlyMap<string, Line>): Item[] {
  const body = line.body as Raw;
  const { seq, at, run } = line;
  switch (line.kind) {
    case "user":
      if (!line.mail.length) {
        return [{ kind: "mail", id: `${seq}`, seq, from: "", text: String(body["text"] ?? ""), at, files: filesOf(body["attachments"]), envelope: null, trust: line.trust }];
      }
      return line.mail.map((mail, i) => ({
        kind: "mail",
        id: `${seq}.${i}`,
        seq,
        from: mail.from,
        text: mail.text,
        at: mail.at,
        files: filesOf(mail.attachments),
        envelope: mail.envelope,
        trust: line.trust,
      }));
    case "assistant": {
      const calls = (body["calls"] ?? []) as Call[];
      const text = String(body["text"] ?? "");
      const thinking = String(body["thinking"] ?? "");
      const said: Item = {
        kind: "reply",
        id: `${seq}`,
        seq,
        text,
        thinking,
        at,
        run,
        model: String(body["model"] ?? ""),
        stop: String(body["stop"] ?? ""),
        usage: (body["usage"] ?? null) as Usage | null,
      };
      const made = calls.map((call): Item => {
        const found = results.get(call.id);
        const result = found ? resultOf(found.body as Raw) : null;
        return { kind: "call", id: `${seq}:${call.id}`, seq, call, result, at, endedAt: found?.at ?? null, run };
      });
      return text || thinking || !calls.length ? [said, ...made] : made;
    }
    case "tool":
      return []; // shown with its call
    default:
      return [{ kind: "note", id: `${seq}`, seq, text: String(body["text"] ?? ""), at, what: line.kind as "note" }];
  }
}

function resultOf(body: Raw): Result {
  return {
    call: String(body["call"]),
    tool: String(body["tool"]),
    output: String(body["output"] ?? ""),
    failed: Boolean(body["failed"]),
    trust: String(body["trust"] ?? ""),
    whole: String(body["whole"] ?? ""),
    attachments: filesOf(body["attachments"]),
  };
}

function filesOf(list: unknown): File[] {
  return ((list ?? []) as Raw[]).map((each) => ({
    hash: String(each["hash"]),
    name: String(each["name"]),
    mediaType: String(each["media-type"] ?? each["media_type"] ?? ""),
    size: Number(each["size-bytes"] ?? each["size_bytes"] ?? 0),
  }));
}

/** The line that a client puts before a person's words, for the model alone. */
export function withoutContext(text: string): string {
  if (!text.startsWith("<context")) return text;
  const end = text.indexOf("\n");
  return end < 0 ? "" : text.slice(end + 1);
}

/** All words of an item, to be searched. */
export function wordsOf(item: Item): string {
  switch (item.kind) {
    case "mail":
      return withoutContext(item.text);
    case "reply":
      return `${item.text}\n${item.thinking}`;
    case "call":
      return `${item.call.tool} ${JSON.stringify(item.call.arguments)} ${item.result?.output ?? ""}`;
    case "note":
      return item.text;
  }
}
