// Lines as a person reads them: a call and its result are one thing, and what the house says about itself is small.

import { wordsOf as ownWords } from "../../lib/context";
import type { Aside, Line } from "../../lib/conversation.svelte";
import type { Partial } from "../../lib/live.svelte";
import { unturned } from "../../lib/words";

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
  /** Where its bytes are given: only with what one sees it in. */
  address: string;
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

/** Work that was handed on: what a letter asks for, or tells the end of. */
export type Work = NonNullable<Line["mail"][number]["work"]>;
export type Mail = {
  kind: "mail"; id: string; seq: number; from: string; text: string; at: string; files: File[]; envelope: string | null; trust: string;
  /** The kind of letter it is. */
  as: string;
  work: Work | null;
}; // prettier-ignore
export type Reply = {
  kind: "reply"; id: string; seq: number; text: string; thinking: string; at: string; run: string | null; model: string; stop: string; usage: Usage | null;
  /** It is being said now. */
  growing: boolean;
}; // prettier-ignore
export type Called = { kind: "call"; id: string; seq: number; call: Call; result: Result | null; at: string; endedAt: string | null; run: string | null };
/** Words of the house itself. A system note has a sender: another part of the house wrote it to the agent. */
export type Note = {
  kind: "note"; id: string; seq: number; text: string; at: string; what: "note" | "summary" | "start" | "reset" | "silent" | "system" | "aside"; from: string; asked: string; run: string | null; trust: string; files: File[];
}; // prettier-ignore
export type Item = Mail | Reply | Called | Note;

/** A whole reply of one of these is recorded and not sent. */
const SILENT = new Set(["NO_REPLY", "[[SILENT_REPLY]]"]);

/** Calls by which work is handed to somebody else. */
export const HANDS_ON: ReadonlySet<string> = new Set(["agents_message", "sessions_send", "sessions_spawn", "start_background_agent"]);

type Raw = Record<string, unknown>;

/** `results` are those of all lines: a result may lie behind what is shown here. */
export function itemsOf(lines: readonly Line[], results: ReadonlyMap<string, Line>, session: string): Item[] {
  return lines.flatMap((line) => itemsIn(line, results, session));
}

export function resultsIn(lines: readonly Line[]): Map<string, Line> {
  return new Map(lines.filter((line) => line.kind === "tool").map((line) => [String((line.body as Raw)["call"]), line]));
}

/** What is being said now, with the number that it will have as a line. */
export function liveItem(partial: Partial, seq: number): Reply {
  const { text, thinking, run } = partial;
  return { kind: "reply", id: `${seq}`, seq, text, thinking, at: "", run, model: "", stop: "", usage: null, growing: true };
}

/** Whether it may still become one of the words that mean: no answer. */
export function staysSilent(text: string): boolean {
  const said = text.trim();
  return said !== "" && [...SILENT].some((word) => word.startsWith(said));
}

export function asideItem(aside: Aside): Note {
  return { ...note(aside.after, aside.at, "aside", aside.answer), id: `aside-${aside.envelope}`, asked: ownWords(aside.text) };
}

function itemsIn(line: Line, results: ReadonlyMap<string, Line>, session: string): Item[] {
  const body = line.body as Raw;
  const { seq, at, run } = line;
  const here = `session=${session}&record=${seq}`;
  const text = String(body["text"] ?? "");
  switch (line.kind) {
    case "user":
      if (!line.mail.length) {
        return [{ kind: "mail", id: `${seq}`, seq, from: "", text, at, files: filesOf(body["attachments"], here), envelope: null, trust: line.trust, as: "message", work: null }];
      }
      return line.mail.map((mail, i) => {
        const id = `${seq}.${i}`;
        const files = filesOf(mail.attachments, `envelope=${mail.envelope}`);
        if (mail.kind !== "message" && mail.kind !== "answer" && !mail.work) {
          return { ...note(seq, mail.at, "system", mail.text), id, from: mail.from, files, trust: line.trust };
        }
        return { kind: "mail", id, seq, from: mail.from, text: mail.text, at: mail.at, files, envelope: mail.envelope, trust: line.trust, as: mail.kind, work: mail.work };
      });
    case "assistant": {
      const calls = (body["calls"] ?? []) as Call[];
      const thinking = String(body["thinking"] ?? "");
      if (SILENT.has(text.trim()) && !calls.length && !thinking) return [{ ...note(seq, at, "silent", ""), run }];
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
        growing: false,
      };
      const made = calls.map((call): Item => {
        const found = results.get(call.id);
        const result = found ? resultOf(found, session) : null;
        return { kind: "call", id: `${seq}:${call.id}`, seq, call, result, at, endedAt: found?.at ?? null, run };
      });
      return text || thinking || !calls.length ? [said, ...made] : made;
    }
    case "tool":
      return []; // shown with its call
    default:
      return [{ ...note(seq, at, line.kind, text), run, trust: String(body["trust"] ?? ""), files: filesOf(body["attachments"], here) }];
  }
}

function note(seq: number, at: string, what: Note["what"], text: string): Note {
  return { kind: "note", id: `${seq}`, seq, text, at, what, from: "", asked: "", run: null, trust: "", files: [] };
}

function resultOf(line: Line, session: string): Result {
  const body = line.body as Raw;
  return {
    call: String(body["call"]),
    tool: String(body["tool"]),
    output: String(body["output"] ?? ""),
    failed: Boolean(body["failed"]),
    trust: String(body["trust"] ?? ""),
    whole: String(body["whole"] ?? ""),
    attachments: filesOf(body["attachments"], `session=${session}&record=${line.seq}`),
  };
}

function filesOf(list: unknown, where: string): File[] {
  return ((list ?? []) as Raw[]).map((each) => ({
    address: `/api/blob/${encodeURIComponent(String(each["hash"]))}?${where}`,
    hash: String(each["hash"]),
    name: unturned(String(each["name"])),
    mediaType: String(each["media-type"] ?? each["media_type"] ?? ""),
    size: Number(each["size-bytes"] ?? each["size_bytes"] ?? 0),
  }));
}

/** All words of an item, to be searched. */
export function wordsOf(item: Item): string {
  switch (item.kind) {
    case "mail":
      return ownWords(item.text);
    case "reply":
      return `${item.text}\n${item.thinking}`;
    case "call":
      return `${item.call.tool} ${JSON.stringify(item.call.arguments)} ${item.result?.output ?? ""}`;
    case "note":
      return `${item.asked} ${item.text}`;
  }
}
