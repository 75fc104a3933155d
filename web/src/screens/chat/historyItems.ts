// Session records as a person reads them: a call and its result are one item, and server notes are small.

import { stripContextLine } from "../../lib/uiContext";
import type { CommandReply, SessionRecord } from "../../lib/conversation.svelte";
import type { Partial } from "../../lib/eventStream.svelte";
import { replaceBidiControls } from "../../lib/format";

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
  /** The download URL. It names the record or envelope that gives access to the file. */
  url: string;
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

/** The delegation that a message starts or ends. */
export type MessageDelegation = NonNullable<SessionRecord["envelopes"][number]["delegation"]>;
export type MessageItem = {
  kind: "message"; id: string; seq: number; from: string; text: string; at: string; files: File[]; envelope: string | null; trust: string;
  /** The kind of envelope. */
  envelopeKind: string;
  delegation: MessageDelegation | null;
}; // prettier-ignore
export type ReplyItem = {
  kind: "reply"; id: string; seq: number; text: string; thinking: string; at: string; run: string | null; model: string; stop: string; usage: Usage | null;
  /** Whether it is still being streamed. */
  growing: boolean;
}; // prettier-ignore
export type CallItem = { kind: "call"; id: string; seq: number; call: Call; result: Result | null; at: string; endedAt: string | null; run: string | null };
/** Text from the server itself. A system note has a sender, such as a schedule, and the agent reads it. */
export type NoteItem = {
  kind: "note"; id: string; seq: number; text: string; at: string; what: "note" | "summary" | "start" | "reset" | "silent" | "system" | "command"; from: string; command: string; run: string | null; trust: string; files: File[];
}; // prettier-ignore
export type Item = MessageItem | ReplyItem | CallItem | NoteItem;

/** A reply that is exactly one of these is recorded but not sent. */
const SILENT = new Set(["NO_REPLY", "[[SILENT_REPLY]]"]);

/** Tools that give work to another agent. */
export const DELEGATING_TOOLS: ReadonlySet<string> = new Set(["agents_message", "sessions_send", "sessions_spawn", "start_background_agent"]);

type Raw = Record<string, unknown>;

/** `results` has the results of all records: a result may come after the records that are shown here. */
export function buildItems(records: readonly SessionRecord[], results: ReadonlyMap<string, SessionRecord>, session: string): Item[] {
  return records.flatMap((record) => buildRecordItems(record, results, session));
}

export function indexResults(records: readonly SessionRecord[]): Map<string, SessionRecord> {
  return new Map(records.filter((record) => record.kind === "tool").map((record) => [String((record.body as Raw)["call"]), record]));
}

/** The streamed reply, with the `seq` that its record will have. */
export function buildLiveItem(partial: Partial, seq: number): ReplyItem {
  const { text, thinking, run } = partial;
  return { kind: "reply", id: `${seq}`, seq, text, thinking, at: "", run, model: "", stop: "", usage: null, growing: true };
}

/** Whether a streamed text may still become one of the silent replies. */
export function mayBeSilent(text: string): boolean {
  const trimmed = text.trim();
  return trimmed !== "" && [...SILENT].some((each) => each.startsWith(trimmed));
}

export function buildCommandItem(reply: CommandReply): NoteItem {
  return { ...note(reply.after, reply.at, "command", reply.answer), id: `command-${reply.envelope}`, command: stripContextLine(reply.text) };
}

function buildRecordItems(record: SessionRecord, results: ReadonlyMap<string, SessionRecord>, session: string): Item[] {
  const body = record.body as Raw;
  const { seq, at, run } = record;
  const source = `session=${session}&record=${seq}`;
  const text = String(body["text"] ?? "");
  switch (record.kind) {
    case "user":
      if (!record.envelopes.length) {
        return [{ kind: "message", id: `${seq}`, seq, from: "", text, at, files: buildFiles(body["attachments"], source), envelope: null, trust: record.trust, envelopeKind: "message", delegation: null }];
      }
      return record.envelopes.map((envelope, i) => {
        const id = `${seq}.${i}`;
        const files = buildFiles(envelope.attachments, `envelope=${envelope.envelope}`);
        if (envelope.kind !== "message" && envelope.kind !== "answer" && !envelope.delegation) {
          return { ...note(seq, envelope.at, "system", envelope.text), id, from: envelope.from, files, trust: record.trust };
        }
        return { kind: "message", id, seq, from: envelope.from, text: envelope.text, at: envelope.at, files, envelope: envelope.envelope, trust: record.trust, envelopeKind: envelope.kind, delegation: envelope.delegation };
      });
    case "assistant": {
      const calls = (body["calls"] ?? []) as Call[];
      const thinking = String(body["thinking"] ?? "");
      if (SILENT.has(text.trim()) && !calls.length && !thinking) return [{ ...note(seq, at, "silent", ""), run }];
      const reply: Item = {
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
      const callItems = calls.map((call): Item => {
        const found = results.get(call.id);
        const result = found ? buildResult(found, session) : null;
        return { kind: "call", id: `${seq}:${call.id}`, seq, call, result, at, endedAt: found?.at ?? null, run };
      });
      return text || thinking || !calls.length ? [reply, ...callItems] : callItems;
    }
    case "tool":
      return []; // shown with its call
    default:
      return [{ ...note(seq, at, record.kind, text), run, trust: String(body["trust"] ?? ""), files: buildFiles(body["attachments"], source) }];
  }
}

function note(seq: number, at: string, what: NoteItem["what"], text: string): NoteItem {
  return { kind: "note", id: `${seq}`, seq, text, at, what, from: "", command: "", run: null, trust: "", files: [] };
}

function buildResult(record: SessionRecord, session: string): Result {
  const body = record.body as Raw;
  return {
    call: String(body["call"]),
    tool: String(body["tool"]),
    output: String(body["output"] ?? ""),
    failed: Boolean(body["failed"]),
    trust: String(body["trust"] ?? ""),
    whole: String(body["whole"] ?? ""),
    attachments: buildFiles(body["attachments"], `session=${session}&record=${record.seq}`),
  };
}

function buildFiles(list: unknown, source: string): File[] {
  return ((list ?? []) as Raw[]).map((each) => ({
    url: `/api/attachments/${encodeURIComponent(String(each["hash"]))}?${source}`,
    hash: String(each["hash"]),
    name: replaceBidiControls(String(each["name"])),
    mediaType: String(each.media_type ?? each["media_type"] ?? ""),
    size: Number(each.size_bytes ?? each["size_bytes"] ?? 0),
  }));
}

/** The text of an item that a search looks in. */
export function getSearchText(item: Item): string {
  switch (item.kind) {
    case "message":
      return stripContextLine(item.text);
    case "reply":
      return `${item.text}\n${item.thinking}`;
    case "call":
      return `${item.call.tool} ${JSON.stringify(item.call.arguments)} ${item.result?.output ?? ""}`;
    case "note":
      return `${item.command} ${item.text}`;
  }
}
