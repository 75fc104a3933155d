// One conversation, kept up to date: its records, the reply that is being streamed, queued envelopes, and messages that
// this browser is sending.

import { callOperation, createIdempotencyKey, ServerUnreachable, uploadFile, type Result, type Params } from "./api";
import { server } from "./server.svelte";
import type { Delta, NestedDelta, ServerEvent, Partial, NestedWork } from "./eventStream.svelte";
import { saveUnsent, loadUnsent } from "./unsentMessages";

export type SessionRecord = Result<"session.transcript">["records"][number];
export type QueuedEnvelope = Result<"session.queued">["envelopes"][number];
type Transcript = Result<"session.transcript">;
type SendParams = Params<"envelope.send">;

/** A file to attach. */
export interface ChosenFile {
  name: string;
  type: string;
  bytes: Blob;
}

/** A message from this browser, until a record or the queue contains it. */
export interface OutgoingMessage {
  key: string;
  text: string;
  files: ChosenFile[];
  whenBusy: "collect" | "steer" | null;
  envelope: string | null;
  error: unknown;
  at: string;
}

/** A command and the server's reply. The agent does not read either. */
export interface CommandReply {
  envelope: string;
  text: string;
  answer: string;
  at: string;
  /** The `seq` of the record before it. */
  after: number;
}

const PAGE_SIZE = 100;
const LARGE_PAGE_SIZE = 500;
const QUEUE_DELAY_MS = 120;
const SEND_WAIT_MS = 2_000;
const COMMAND_REPLIES_MAX = 50;

export class Conversation {
  readonly session: string;
  phase: "loading" | "ready" | "gone" = $state("loading");
  error: unknown = $state(null);
  agent: string = $state("");
  revision: number = $state(0);
  records: SessionRecord[] = $state.raw([]);
  /** The `seq` of the newest record that is known. The record may not be loaded yet. */
  newestSeq: number = $state(0);
  /** The `seq` of the first record that the model reads. */
  contextStart: number = $state(1);
  hasEarlier: boolean = $state(false);
  run: { id: string; status: string } | null = $state.raw(null);
  partial: Partial | null = $state.raw(null);
  /** The work that other agents do for open calls, by call id. */
  nestedWork: Record<string, NestedWork> = $state.raw({});
  queued: QueuedEnvelope[] = $state.raw([]);
  outgoing: OutgoingMessage[] = $state([]);
  commandReplies: CommandReply[] = $state.raw([]);
  /** How the last run ended, if it did not complete and no record says so. */
  runEnd: { because: string; outcome: string } | null = $state.raw(null);
  /** A switch to another agent: by whom, and to which conversation. */
  switched: { by: string; to: string } | null = $state.raw(null);

  #cursor = 0;
  #unfollow: () => void = () => {};
  #unlisten: () => void;
  #loads = 0;
  #deltas: Delta[] = [];
  #nestedDeltas: NestedDelta[] = [];
  #frame = 0;
  #resubscribed = false;
  #tailRequest: Promise<void> | null = null;
  #tailPending = false;
  #timer = 0;
  #queueRequests = 0;
  #chars = { text: 0, thinking: 0 };
  #sendRequests = new Set<Promise<unknown>>();

  constructor(session: string) {
    this.session = session;
    this.outgoing = loadUnsent(session).map((each) => ({ ...each, files: [], envelope: null, error: null }));
    this.#unlisten = server.events.listen({
      event: (event) => event.session === session && this.phase !== "loading" && this.#handleEvent(event),
      delta: (delta) => delta.session === session && this.#addDelta(delta),
      nestedDelta: (delta) => delta.session === session && this.#addNestedDelta(delta),
      nestedWork: (all, of) => (of === null || of === session) && this.#setNestedWork(all),
      partials: (all, of) => {
        if (of === null || of === session) this.#setPartial(all);
        if (of === null) this.#reconnect();
      },
      reset: (of) => (of === null || of === session) && void this.load(),
    });
    void this.load().then(() => this.outgoing.forEach((each) => void this.retry(each.key)));
  }

  close(): void {
    this.#unlisten();
    this.#unfollow();
    this.#loads++;
    clearTimeout(this.#timer);
    clearTimeout(this.#frame);
    cancelAnimationFrame(this.#frame);
  }

  /** Read the newest records from the server, and replace what is loaded. */
  async load(): Promise<void> {
    const load = ++this.#loads;
    try {
      const read = await callOperation("session.transcript", { session: this.session, limit: PAGE_SIZE });
      await this.#waitForSends();
      if (load !== this.#loads) return;
      this.#setTranscript(read);
      this.phase = "ready";
      this.error = null;
      this.#unfollow();
      this.#unfollow = server.events.follow(this.session, read.cursor);
      void this.#loadQueue();
    } catch (error) {
      if (load !== this.#loads) return;
      this.error = error;
      if ((error as { code?: string }).code === "session.not_found") this.phase = "gone";
    }
  }

  #setTranscript(read: Transcript): void {
    this.agent = read.agent;
    this.revision = read.revision;
    this.records = read.records;
    this.newestSeq = read.records.at(-1)?.seq ?? 0;
    this.contextStart = read.context_start;
    this.hasEarlier = read.has_earlier;
    this.run = read.run;
    this.#cursor = read.cursor;
    this.partial = null;
    this.#setPartial(read.partials);
    this.#removeShown();
  }

  /** Load the records before the first loaded one. Returns how many were added. */
  async loadEarlier(limit = PAGE_SIZE): Promise<number> {
    const first = this.records[0];
    if (!first || !this.hasEarlier) return 0;
    const read = await callOperation("session.transcript", { session: this.session, before: first.seq, limit });
    if (this.records[0]?.seq !== first.seq) return 0; // the conversation was loaded again meanwhile
    this.records = [...read.records, ...this.records];
    this.hasEarlier = read.has_earlier && read.records.length > 0;
    return read.records.length;
  }

  /** Load all records, to search them. */
  async loadAll(): Promise<void> {
    while (this.hasEarlier && (await this.loadEarlier(LARGE_PAGE_SIZE)));
  }

  async send(text: string, files: ChosenFile[], whenBusy: OutgoingMessage["whenBusy"], key = createIdempotencyKey()): Promise<void> {
    this.outgoing.push({ key, text, files, whenBusy, envelope: null, error: null, at: new Date().toISOString() });
    this.runEnd = null;
    await this.retry(key);
  }

  /** Send a message again. Its idempotency key makes sure that it arrives once. */
  async retry(key: string): Promise<void> {
    const message = this.outgoing.find((each) => each.key === key);
    if (!message || message.envelope) return;
    message.error = null;
    this.#saveUnsent();
    const request = this.#post(message);
    this.#sendRequests.add(request);
    await request;
    this.#sendRequests.delete(request);
    this.#saveUnsent();
  }

  async #post(message: OutgoingMessage): Promise<void> {
    const params: SendParams = { to: `agent:${this.agent}`, session: this.session, text: message.text, key: message.key };
    if (message.whenBusy && this.run) params.when_busy = message.whenBusy;
    try {
      if (message.files.length) {
        const uploads = message.files.map(async (file) => ({ name: file.name, media_type: file.type, hash: await uploadFile(file.bytes) }));
        params.attachments = await Promise.all(uploads);
      }
      message.envelope = (await callOperation("envelope.send", params)).envelope;
      this.#removeShown();
      this.#loadQueueSoon();
    } catch (error) {
      message.error = error;
    }
  }

  discard(key: string): void {
    this.outgoing = this.outgoing.filter((each) => each.key !== key);
    this.#saveUnsent();
  }

  /** Cancel a queued envelope. */
  async cancel(envelope: string): Promise<void> {
    await callOperation("envelope.cancel", { id: envelope });
    this.#removeEnvelope(envelope);
  }

  async stop(): Promise<void> {
    await callOperation("session.stop", { session: this.session, clear: false });
  }

  /** Messages with files are not saved: local storage is too small for files. */
  #saveUnsent(): void {
    saveUnsent(this.session, this.outgoing.filter((each) => each.envelope === null && !each.files.length));
  }

  /** Wait for send requests that are under way: a record may already contain their envelopes. */
  async #waitForSends(): Promise<void> {
    if (!this.#sendRequests.size) return;
    const timeout = new Promise((resolve) => setTimeout(resolve, SEND_WAIT_MS));
    await Promise.race([Promise.allSettled([...this.#sendRequests]), timeout]);
  }

  /** After a reconnect, retry what failed because the server was unreachable. */
  #reconnect(): void {
    if (this.error) void this.load();
    for (const each of this.outgoing) if (each.error instanceof ServerUnreachable) void this.retry(each.key);
  }

  // --- events from the server ---

  #handleEvent(event: ServerEvent): void {
    this.#clearRecordedPartial(event);
    if (event.seq <= this.#cursor) return;
    this.#cursor = event.seq;
    switch (event.event) {
      case "run.started":
      case "run.resumed":
        this.run = { id: event.run ?? "", status: "running" };
        this.runEnd = null;
        break;
      case "run.suspended":
        this.run = { id: event.run ?? "", status: "suspended" };
        break;
      case "run.ended":
        this.run = null;
        if (!event.record) this.#clearPartial();
        if (event["status"] !== "completed" && !event.record) {
          this.runEnd = { because: String(event["because"] ?? ""), outcome: String(event["status"]) };
        }
        break;
      case "envelope.accepted":
        this.#setCommandReply(event);
        break;
      case "envelope.settled":
        this.#handleSettled(event);
        break;
      case "session.switched":
        this.switched = { by: String(event["by"]), to: String(event["to"]) };
        break;
      case "session.deleted":
        this.phase = "gone";
        return;
      case "session.restored":
      case "session.reset":
      case "session.trimmed":
        void this.load();
        return;
    }
    if (event.event.startsWith("envelope.") || event.event.startsWith("run.")) this.#loadQueueSoon();
    if (event.record) {
      if (typeof event["revision"] === "number") this.revision = event["revision"];
      this.#addRecord(event);
    } else if (typeof event["revision"] === "number" && event["revision"] !== this.revision) void this.load();
  }

  /** The record may have been loaded before the event: then its partial reply is complete. */
  #clearRecordedPartial({ record }: ServerEvent): void {
    const loaded = record && this.records.findLast((each) => each.seq === record.seq);
    if (!loaded) return;
    this.#flush();
    if (this.#includesPartial([loaded])) this.#clearPartial();
  }

  #addRecord(event: ServerEvent): void {
    const record = event.record;
    const last = this.records.at(-1)?.seq ?? 0;
    if (!record || record.seq <= last) return;
    this.newestSeq = Math.max(this.newestSeq, record.seq);
    if (record.seq !== last + 1 || record.kind === "user") return this.#loadTailSoon();
    const complete = { ...record, at: event.at, run: event.run ?? null, trust: "private", envelopes: [] } as SessionRecord;
    this.#append([complete]);
  }

  /** Load the records after the last loaded one, with one request at a time. */
  #loadTailSoon(): void {
    if (this.#tailRequest) {
      this.#tailPending = true;
      return;
    }
    this.#tailRequest = this.#loadTail().finally(() => {
      this.#tailRequest = null;
      if (this.#tailPending) {
        this.#tailPending = false;
        this.#loadTailSoon();
      }
    });
  }

  async #loadTail(): Promise<void> {
    const after = this.records.at(-1)?.seq ?? 0;
    try {
      const read = await callOperation("session.transcript", { session: this.session, after, limit: LARGE_PAGE_SIZE });
      await this.#waitForSends();
      if (read.revision !== this.revision) return void (await this.load());
      const known = this.records.at(-1)?.seq ?? 0;
      this.#append(read.records.filter((each) => each.seq > known));
      this.#removeShown();
    } catch (error) {
      this.error = error;
    }
  }

  #append(records: SessionRecord[]): void {
    this.#flush();
    if (this.#includesPartial(records)) this.#clearPartial();
    this.#clearFinishedCalls(records);
    this.records = [...this.records, ...records];
    this.newestSeq = Math.max(this.newestSeq, this.records.at(-1)?.seq ?? 0);
  }

  /** Remove outgoing and queued messages that a record or a command reply shows now. */
  #removeShown(): void {
    const shown = new Set(this.records.flatMap((record) => record.envelopes.map((each) => each.envelope)));
    for (const reply of this.commandReplies) shown.add(reply.envelope);
    this.outgoing = this.outgoing.filter((each) => each.envelope === null || !shown.has(each.envelope));
    if (this.queued.some((each) => shown.has(each.id))) this.queued = this.queued.filter((each) => !shown.has(each.id));
  }

  /** An envelope that no run reads: it was cancelled, or the server answered it as a command. */
  #handleSettled(event: ServerEvent): void {
    const envelope = event.envelope ?? "";
    if (event["kind"] !== "message" || !String(event["to"]).startsWith("agent:")) return;
    if (event["outcome"] === "cancelled") return this.#removeEnvelope(envelope);
    if (this.records.some((record) => record.envelopes.some((each) => each.envelope === envelope))) return;
    const answer = event["outcome"] === "answered" ? "" : String(event["because"] ?? "");
    const reply = { envelope, text: String(event["text"] ?? ""), answer, at: event.at, after: this.newestSeq };
    this.commandReplies = [...this.commandReplies, reply].slice(-COMMAND_REPLIES_MAX);
    this.#removeShown();
  }

  #setCommandReply(event: ServerEvent): void {
    const to = event["reply_to"];
    if (!this.commandReplies.some((each) => each.envelope === to)) return;
    const answer = String(event["text"] ?? "");
    this.commandReplies = this.commandReplies.map((each) => (each.envelope === to ? { ...each, answer } : each));
  }

  #removeEnvelope(envelope: string): void {
    this.outgoing = this.outgoing.filter((each) => each.envelope !== envelope);
    this.queued = this.queued.filter((each) => each.id !== envelope);
  }

  #loadQueueSoon(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#loadQueue(), QUEUE_DELAY_MS);
  }

  async #loadQueue(): Promise<void> {
    const request = ++this.#queueRequests;
    try {
      const { envelopes } = await callOperation("session.queued", { session: this.session });
      if (request !== this.#queueRequests) return; // an older response that arrived later
      this.queued = envelopes;
      this.#removeShown();
    } catch {
      // the queue is loaded again with the next event
    }
  }

  // --- streamed replies: applied once per animation frame ---

  #addDelta(delta: Delta): void {
    this.#deltas.push(delta);
    this.#scheduleFlush();
  }

  #addNestedDelta(delta: NestedDelta): void {
    this.#nestedDeltas.push(delta);
    this.#scheduleFlush();
  }

  #scheduleFlush(): void {
    if (this.#frame) return;
    this.#frame = document.hidden ? window.setTimeout(this.#flush, 100) : requestAnimationFrame(this.#flush);
  }

  #flush = (): void => {
    this.#frame = 0;
    const deltas = this.#deltas;
    this.#deltas = [];
    let now = this.partial;
    for (const delta of deltas) now = this.#applyDelta(now, delta);
    this.partial = now;
    if (this.#nestedDeltas.length) this.#applyNestedDeltas();
  };

  #applyNestedDeltas(): void {
    const nested = { ...this.nestedWork };
    for (const { call, agent, run, session, kind, text, offset } of this.#nestedDeltas.splice(0)) {
      const known = nested[call]?.run === run ? nested[call] : { session, call, agent, run, text: "", calls: [] };
      const joined = offset ? known.text + text : text;
      nested[call] = kind === "call" ? { ...known, calls: [...known.calls, text] } : { ...known, text: joined };
    }
    this.nestedWork = nested;
  }

  #setNestedWork(all: NestedWork[]): void {
    this.#nestedDeltas = [];
    this.nestedWork = Object.fromEntries(all.filter((each) => each.session === this.session).map((each) => [each.call, each]));
  }

  /** Remove the nested work of calls that have a result. */
  #clearFinishedCalls(records: SessionRecord[]): void {
    const closed = new Set(records.filter((each) => each.kind === "tool").map((each) => String((each.body as { call?: unknown }).call)));
    if (!Object.keys(this.nestedWork).some((call) => closed.has(call))) return;
    this.nestedWork = Object.fromEntries(Object.entries(this.nestedWork).filter(([call]) => !closed.has(call)));
  }

  #applyDelta(now: Partial | null, delta: Delta): Partial | null {
    const newer = !now || delta.run !== now.run || delta.turn > now.turn || (delta.turn === now.turn && delta.attempt > now.attempt);
    if (newer) {
      if (delta.offset) return this.#requestPartials(now);
      now = { session: delta.session, run: delta.run, turn: delta.turn, attempt: delta.attempt, text: "", thinking: "" };
      this.#chars = { text: 0, thinking: 0 };
    } else if (!now || delta.turn < now.turn || delta.attempt < now.attempt) return now;
    const length = this.#chars[delta.kind];
    if (delta.offset > length) return this.#requestPartials(now);
    if (delta.offset < length) return now;
    this.#chars[delta.kind] += countCodePoints(delta.text);
    return { ...now, [delta.kind]: now[delta.kind] + delta.text };
  }

  /** A delta is missing: subscribe again, once, to get the complete partial reply. */
  #requestPartials(now: Partial | null): Partial | null {
    if (!this.#resubscribed) this.#resubscribed = server.events.send({ type: "subscribe", session: this.session, after: this.#cursor });
    return now;
  }

  #setPartial(all: Partial[]): void {
    this.#flush();
    this.#resubscribed = false;
    const received = all.findLast((each) => each.session === this.session) ?? null;
    const now = this.partial;
    // Deltas that are newer than the snapshot may have arrived before it.
    const same = received && now && received.run === now.run && received.turn === now.turn && received.attempt === now.attempt;
    if (same && now.text.length >= received.text.length && now.thinking.length >= received.thinking.length) return;
    this.partial = received;
    this.#chars = { text: countCodePoints(received?.text ?? ""), thinking: countCodePoints(received?.thinking ?? "") };
  }

  /** Whether one of these records is the partial reply. */
  #includesPartial(records: SessionRecord[]): boolean {
    const partial = this.partial;
    return partial !== null && records.some((each) => each.run === partial.run && each.kind !== "user" && isRecordOf(each, partial));
  }

  /** The partial reply has become a record, or never will. */
  #clearPartial(): void {
    this.#deltas = [];
    this.partial = null;
  }
}

/** Whether a record completes the partial reply, or is a note that the reply was interrupted. */
function isRecordOf(record: SessionRecord, partial: Partial): boolean {
  if (record.kind === "note") return true;
  return record.kind === "assistant" && String((record.body as { text?: unknown }).text ?? "").startsWith(partial.text);
}

/** Length in code points, as the server counts. JavaScript counts UTF-16 units. */
function countCodePoints(text: string): number {
  let length = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0xdc00 || unit > 0xdfff) length++;
  }
  return length;
}
