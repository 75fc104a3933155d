// One conversation as it is, and as it goes on: lines from the house, what is being said now, what waits, and what one
// has just sent oneself.

import { ask, newKey, Unreachable, upload, type Answered, type Asked } from "./api";
import { house } from "./house.svelte";
import type { Delta, Nested, News, Partial, Within } from "./live.svelte";
import { keepUnsent, unsentIn } from "./outbox";

export type Line = Answered<"session.transcript">["lines"][number];
export type Waiting = Answered<"session.waiting">["envelopes"][number];
type Read = Answered<"session.transcript">;
type Send = Asked<"envelope.send">;

/** A file that goes along. */
export interface Chosen {
  name: string;
  type: string;
  bytes: Blob;
}

/** What one wrote, until the house shows it among the lines. */
export interface Sending {
  key: string;
  text: string;
  files: Chosen[];
  whenBusy: "collect" | "steer" | null;
  envelope: string | null;
  error: unknown;
  at: string;
}

/** A command and what the house answered: beside the conversation, which its agent never reads. */
export interface Aside {
  envelope: string;
  text: string;
  answer: string;
  at: string;
  /** The line it came after. */
  after: number;
}

const LINES_AT_ONCE = 100;
const LINES_TO_FIND = 500;
const WAITING_AFTER_MS = 120;
const ANSWER_WITHIN_MS = 2_000;
const ASIDES_MAX = 50;

export class Conversation {
  readonly session: string;
  phase: "loading" | "ready" | "gone" = $state("loading");
  trouble: unknown = $state(null);
  agent: string = $state("");
  revision: number = $state(0);
  lines: Line[] = $state.raw([]);
  /** The number of the newest line that was heard of: it may still be on its way. */
  newest: number = $state(0);
  /** Where the context begins that the model reads. */
  begins: number = $state(1);
  earlier: boolean = $state(false);
  run: { id: string; status: string } | null = $state.raw(null);
  partial: Partial | null = $state.raw(null);
  /** What others do for calls that wait, by the call. */
  nested: Record<string, Within> = $state.raw({});
  waiting: Waiting[] = $state.raw([]);
  sending: Sending[] = $state([]);
  asides: Aside[] = $state.raw([]);
  /** The last run ended so, where it did not end well and no line says it. */
  ended: { because: string; outcome: string } | null = $state.raw(null);
  /** Somebody went on with another agent: who, and in which conversation. */
  switched: { by: string; to: string } | null = $state.raw(null);

  #cursor = 0;
  #unfollow: () => void = () => {};
  #unlisten: () => void;
  #loads = 0;
  #deltas: Delta[] = [];
  #pieces: Nested[] = [];
  #frame = 0;
  #asked = false;
  #tail: Promise<void> | null = null;
  #tailAgain = false;
  #timer = 0;
  #waits = 0;
  #chars = { text: 0, thinking: 0 };
  #underway = new Set<Promise<unknown>>();

  constructor(session: string) {
    this.session = session;
    this.sending = unsentIn(session).map((one) => ({ ...one, files: [], envelope: null, error: null }));
    this.#unlisten = house.live.listen({
      news: (news) => news.session === session && this.phase !== "loading" && this.#news(news),
      delta: (delta) => delta.session === session && this.#delta(delta),
      nested: (piece) => piece.session === session && this.#piece(piece),
      within: (all, of) => (of === null || of === session) && this.#within(all),
      partials: (all, of) => {
        if (of === null || of === session) this.#partials(all);
        if (of === null) this.#back();
      },
      reset: (of) => (of === null || of === session) && void this.load(),
    });
    void this.load().then(() => this.sending.forEach((one) => void this.again(one.key)));
  }

  close(): void {
    this.#unlisten();
    this.#unfollow();
    this.#loads++;
    clearTimeout(this.#timer);
    clearTimeout(this.#frame);
    cancelAnimationFrame(this.#frame);
  }

  /** From the house, anew. */
  async load(): Promise<void> {
    const load = ++this.#loads;
    try {
      const read = await ask("session.transcript", { session: this.session, limit: LINES_AT_ONCE });
      await this.#answers();
      if (load !== this.#loads) return;
      this.#take(read);
      this.phase = "ready";
      this.trouble = null;
      this.#unfollow();
      this.#unfollow = house.live.follow(this.session, read.cursor);
      void this.#wait();
    } catch (error) {
      if (load !== this.#loads) return;
      this.trouble = error;
      if ((error as { code?: string }).code === "session.not-found") this.phase = "gone";
    }
  }

  #take(read: Read): void {
    this.agent = read.agent;
    this.revision = read.revision;
    this.lines = read.lines;
    this.newest = read.lines.at(-1)?.seq ?? 0;
    this.begins = read.begins;
    this.earlier = read.earlier;
    this.run = read.run;
    this.#cursor = read.cursor;
    this.partial = null;
    this.#partials(read.partials);
    this.#settle();
  }

  /** The lines before those that are here. How many came. */
  async older(limit = LINES_AT_ONCE): Promise<number> {
    const first = this.lines[0];
    if (!first || !this.earlier) return 0;
    const read = await ask("session.transcript", { session: this.session, before: first.seq, limit });
    if (this.lines[0]?.seq !== first.seq) return 0; // it was loaded anew meanwhile
    this.lines = [...read.lines, ...this.lines];
    this.earlier = read.earlier && read.lines.length > 0;
    return read.lines.length;
  }

  /** Everything, to be looked through. */
  async whole(): Promise<void> {
    while (this.earlier && (await this.older(LINES_TO_FIND)));
  }

  async send(text: string, files: Chosen[], whenBusy: Sending["whenBusy"], key = newKey()): Promise<void> {
    this.sending.push({ key, text, files, whenBusy, envelope: null, error: null, at: new Date().toISOString() });
    this.ended = null;
    await this.again(key);
  }

  /** Try to send it once more: with the same key it arrives once, however often it was tried. */
  async again(key: string): Promise<void> {
    const one = this.sending.find((each) => each.key === key);
    if (!one || one.envelope) return;
    one.error = null;
    this.#keep();
    const trying = this.#post(one);
    this.#underway.add(trying);
    await trying;
    this.#underway.delete(trying);
    this.#keep();
  }

  async #post(one: Sending): Promise<void> {
    const wanted: Send = { to: `agent:${this.agent}`, session: this.session, text: one.text, key: one.key };
    if (one.whenBusy && this.run) wanted.when_busy = one.whenBusy;
    try {
      if (one.files.length) {
        const taken = one.files.map(async (file) => ({ name: file.name, media_type: file.type, hash: await upload(file.bytes) }));
        wanted.attachments = await Promise.all(taken);
      }
      one.envelope = (await ask("envelope.send", wanted)).envelope;
      this.#settle();
      this.#waitSoon();
    } catch (error) {
      one.error = error;
    }
  }

  discard(key: string): void {
    this.sending = this.sending.filter((each) => each.key !== key);
    this.#keep();
  }

  /** Take back what waits. */
  async cancel(envelope: string): Promise<void> {
    await ask("envelope.cancel", { id: envelope });
    this.#gone(envelope);
  }

  async stop(): Promise<void> {
    await ask("session.stop", { session: this.session, clear: false });
  }

  /** Files are not kept: a browser has no room for them. */
  #keep(): void {
    keepUnsent(this.session, this.sending.filter((one) => one.envelope === null && !one.files.length));
  }

  /** The answers to what is being sent right now: what they tell of may be among the lines already. */
  async #answers(): Promise<void> {
    if (!this.#underway.size) return;
    const late = new Promise((resolve) => setTimeout(resolve, ANSWER_WITHIN_MS));
    await Promise.race([Promise.allSettled([...this.#underway]), late]);
  }

  /** The house is there again: what failed for want of it is tried again. */
  #back(): void {
    if (this.trouble) void this.load();
    for (const one of this.sending) if (one.error instanceof Unreachable) void this.again(one.key);
  }

  // --- what the house tells ---

  #news(news: News): void {
    this.#heard(news);
    if (news.seq <= this.#cursor) return;
    this.#cursor = news.seq;
    switch (news.news) {
      case "run.started":
      case "run.resumed":
        this.run = { id: news.run ?? "", status: "running" };
        this.ended = null;
        break;
      case "run.parked":
        this.run = { id: news.run ?? "", status: "parked" };
        break;
      case "run.ended":
        this.run = null;
        if (!news.record) this.#silence();
        if (news["status"] !== "completed" && !news.record) {
          this.ended = { because: String(news["because"] ?? ""), outcome: String(news["status"]) };
        }
        break;
      case "envelope.accepted":
        this.#answered(news);
        break;
      case "envelope.settled":
        this.#settled(news);
        break;
      case "session.switched":
        this.switched = { by: String(news["by"]), to: String(news["to"]) };
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
    if (news.news.startsWith("envelope.") || news.news.startsWith("run.")) this.#waitSoon();
    if (news.record) {
      if (typeof news["revision"] === "number") this.revision = news["revision"];
      this.#record(news);
    } else if (typeof news["revision"] === "number" && news["revision"] !== this.revision) void this.load();
  }

  /** A line that was read before its words came over the other way: they were said, and are said no more. */
  #heard({ record }: News): void {
    const line = record && this.lines.findLast((each) => each.seq === record.seq);
    if (!line) return;
    this.#flush();
    if (this.#isSaid([line])) this.#silence();
  }

  #record(news: News): void {
    const record = news.record;
    const last = this.lines.at(-1)?.seq ?? 0;
    if (!record || record.seq <= last) return;
    this.newest = Math.max(this.newest, record.seq);
    if (record.seq !== last + 1 || record.kind === "user") return this.#more();
    const line = { ...record, at: news.at, run: news.run ?? null, trust: "private", mail: [] } as Line;
    this.#add([line]);
  }

  /** What is missing at the end, as one request at a time. */
  #more(): void {
    if (this.#tail) {
      this.#tailAgain = true;
      return;
    }
    this.#tail = this.#readTail().finally(() => {
      this.#tail = null;
      if (this.#tailAgain) {
        this.#tailAgain = false;
        this.#more();
      }
    });
  }

  async #readTail(): Promise<void> {
    const after = this.lines.at(-1)?.seq ?? 0;
    try {
      const read = await ask("session.transcript", { session: this.session, after, limit: LINES_TO_FIND });
      await this.#answers();
      if (read.revision !== this.revision) return void (await this.load());
      const known = this.lines.at(-1)?.seq ?? 0;
      this.#add(read.lines.filter((line) => line.seq > known));
      this.#settle();
    } catch (error) {
      this.trouble = error;
    }
  }

  #add(lines: Line[]): void {
    this.#flush();
    if (this.#isSaid(lines)) this.#silence();
    this.#answeredCalls(lines);
    this.lines = [...this.lines, ...lines];
    this.newest = Math.max(this.newest, this.lines.at(-1)?.seq ?? 0);
  }

  /** What was sent is here when the house shows it. */
  #settle(): void {
    const shown = new Set(this.lines.flatMap((line) => line.mail.map((mail) => mail.envelope)));
    for (const aside of this.asides) shown.add(aside.envelope);
    this.sending = this.sending.filter((each) => each.envelope === null || !shown.has(each.envelope));
    if (this.waiting.some((each) => shown.has(each.id))) this.waiting = this.waiting.filter((each) => !shown.has(each.id));
  }

  /** An envelope that no run will read: taken back, or answered by the house itself. */
  #settled(news: News): void {
    const envelope = news.envelope ?? "";
    if (news["kind"] !== "message" || !String(news["to"]).startsWith("agent:")) return;
    if (news["outcome"] === "cancelled") return this.#gone(envelope);
    if (this.lines.some((line) => line.mail.some((mail) => mail.envelope === envelope))) return;
    const answer = news["outcome"] === "answered" ? "" : String(news["because"] ?? "");
    const aside = { envelope, text: String(news["text"] ?? ""), answer, at: news.at, after: this.newest };
    this.asides = [...this.asides, aside].slice(-ASIDES_MAX);
    this.#settle();
  }

  #answered(news: News): void {
    const to = news["reply_to"];
    if (!this.asides.some((each) => each.envelope === to)) return;
    const answer = String(news["text"] ?? "");
    this.asides = this.asides.map((each) => (each.envelope === to ? { ...each, answer } : each));
  }

  #gone(envelope: string): void {
    this.sending = this.sending.filter((each) => each.envelope !== envelope);
    this.waiting = this.waiting.filter((each) => each.id !== envelope);
  }

  #waitSoon(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#wait(), WAITING_AFTER_MS);
  }

  async #wait(): Promise<void> {
    const mine = ++this.#waits;
    try {
      const { envelopes } = await ask("session.waiting", { session: this.session });
      if (mine !== this.#waits) return; // an older answer that came later
      this.waiting = envelopes;
      this.#settle();
    } catch {
      // what waits is shown when the house answers again
    }
  }

  // --- words as they are said: taken up once a frame ---

  #delta(delta: Delta): void {
    this.#deltas.push(delta);
    this.#nextFrame();
  }

  #piece(piece: Nested): void {
    this.#pieces.push(piece);
    this.#nextFrame();
  }

  #nextFrame(): void {
    if (this.#frame) return;
    this.#frame = document.hidden ? window.setTimeout(this.#flush, 100) : requestAnimationFrame(this.#flush);
  }

  #flush = (): void => {
    this.#frame = 0;
    const deltas = this.#deltas;
    this.#deltas = [];
    let now = this.partial;
    for (const delta of deltas) now = this.#said(now, delta);
    this.partial = now;
    if (this.#pieces.length) this.#nest();
  };

  #nest(): void {
    const nested = { ...this.nested };
    for (const { call, agent, run, session, kind, text, offset } of this.#pieces.splice(0)) {
      const known = nested[call]?.run === run ? nested[call] : { session, call, agent, run, text: "", calls: [] };
      const said = offset ? known.text + text : text;
      nested[call] = kind === "call" ? { ...known, calls: [...known.calls, text] } : { ...known, text: said };
    }
    this.nested = nested;
  }

  #within(all: Within[]): void {
    this.#pieces = [];
    this.nested = Object.fromEntries(all.filter((each) => each.session === this.session).map((each) => [each.call, each]));
  }

  /** Calls that have their result wait no longer. */
  #answeredCalls(lines: Line[]): void {
    const closed = new Set(lines.filter((line) => line.kind === "tool").map((line) => String((line.body as { call?: unknown }).call)));
    if (!Object.keys(this.nested).some((call) => closed.has(call))) return;
    this.nested = Object.fromEntries(Object.entries(this.nested).filter(([call]) => !closed.has(call)));
  }

  #said(now: Partial | null, delta: Delta): Partial | null {
    const newer = !now || delta.run !== now.run || delta.turn > now.turn || (delta.turn === now.turn && delta.attempt > now.attempt);
    if (newer) {
      if (delta.offset) return this.#lost(now);
      now = { session: delta.session, run: delta.run, turn: delta.turn, attempt: delta.attempt, text: "", thinking: "" };
      this.#chars = { text: 0, thinking: 0 };
    } else if (!now || delta.turn < now.turn || delta.attempt < now.attempt) return now;
    const length = this.#chars[delta.kind];
    if (delta.offset > length) return this.#lost(now);
    if (delta.offset < length) return now;
    this.#chars[delta.kind] += lengthOf(delta.text);
    return { ...now, [delta.kind]: now[delta.kind] + delta.text };
  }

  /** Something was missed: ask, once, for all that was said so far. */
  #lost(now: Partial | null): Partial | null {
    if (!this.#asked) this.#asked = house.live.send({ type: "subscribe", session: this.session, after: this.#cursor });
    return now;
  }

  #partials(all: Partial[]): void {
    this.#flush();
    this.#asked = false;
    const mine = all.findLast((each) => each.session === this.session) ?? null;
    const now = this.partial;
    // Words that were said since it was written down may have come before it.
    const same = mine && now && mine.run === now.run && mine.turn === now.turn && mine.attempt === now.attempt;
    if (same && now.text.length >= mine.text.length && now.thinking.length >= mine.thinking.length) return;
    this.partial = mine;
    this.#chars = { text: lengthOf(mine?.text ?? ""), thinking: lengthOf(mine?.thinking ?? "") };
  }

  /** Whether what is being said is one of these lines. */
  #isSaid(lines: Line[]): boolean {
    const spoken = this.partial;
    return spoken !== null && lines.some((line) => line.run === spoken.run && line.kind !== "user" && isOf(line, spoken));
  }

  /** What was being said is a line now, or will never be one. */
  #silence(): void {
    this.#deltas = [];
    this.partial = null;
  }
}

/** Whether a line is what was being said; or a note that it will not be said to its end. */
function isOf(line: Line, spoken: Partial): boolean {
  if (line.kind === "note") return true;
  return line.kind === "assistant" && String((line.body as { text?: unknown }).text ?? "").startsWith(spoken.text);
}

/** In characters as the house counts them, which are not JavaScript's. */
function lengthOf(text: string): number {
  let length = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0xdc00 || unit > 0xdfff) length++;
  }
  return length;
}
