// One conversation as it is, and as it goes on: lines from the house, what is being said now, what waits, and what one
// has just sent oneself.

import { ask, newKey, type Answered, type Asked } from "./api";
import { house } from "./house.svelte";
import type { Delta, News, Partial } from "./live.svelte";

export type Line = Answered<"session.transcript">["lines"][number];
export type Waiting = Answered<"session.waiting">["envelopes"][number];
type Send = Asked<"envelope.send">;

/** What one wrote, until the house shows it among the lines. */
export interface Sending {
  key: string;
  text: string;
  files: { name: string; media_type: string; data: string }[];
  whenBusy: "collect" | "steer" | null;
  envelope: string | null;
  error: unknown;
  at: string;
}

/** A call that is being made now. */
export interface Step {
  call: string;
  tool: string;
  since: number;
}

const LINES_AT_ONCE = 100;
const LINES_TO_FIND = 500;
const WAITING_AFTER_MS = 120;

export class Conversation {
  readonly session: string;
  phase: "loading" | "ready" | "gone" = $state("loading");
  trouble: unknown = $state(null);
  agent: string = $state("");
  revision: number = $state(0);
  lines: Line[] = $state.raw([]);
  /** Where the context begins that the model reads. */
  begins: number = $state(1);
  earlier: boolean = $state(false);
  run: { id: string; status: string } | null = $state.raw(null);
  partial: Partial | null = $state.raw(null);
  steps: Step[] = $state.raw([]);
  waiting: Waiting[] = $state.raw([]);
  sending: Sending[] = $state([]);
  /** The last run ended so, where it did not end well. */
  ended: { because: string; outcome: string } | null = $state.raw(null);

  #cursor = 0;
  #unfollow: () => void = () => {};
  #unlisten: () => void;
  #deltas: Delta[] = [];
  #frame = 0;
  #tail: Promise<void> | null = null;
  #tailAgain = false;
  #timer = 0;
  #chars = 0;

  constructor(session: string) {
    this.session = session;
    this.#unlisten = house.live.listen({
      news: (news) => news.session === session && this.#news(news),
      delta: (delta) => delta.session === session && this.#delta(delta),
      partials: (all, of) => (of === null || of === session) && this.#partials(all),
      reset: (of) => (of === null || of === session) && void this.load(),
    });
    void this.load();
  }

  close(): void {
    this.#unlisten();
    this.#unfollow();
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
  }

  /** From the house, anew. */
  async load(): Promise<void> {
    try {
      const read = await ask("session.transcript", { session: this.session, limit: LINES_AT_ONCE });
      this.agent = read.agent;
      this.revision = read.revision;
      this.lines = read.lines;
      this.begins = read.begins;
      this.earlier = read.earlier;
      this.run = read.run;
      this.#cursor = read.cursor;
      this.#partials(read.partials);
      this.#settle();
      this.phase = "ready";
      this.trouble = null;
      this.#unfollow();
      this.#unfollow = house.live.follow(this.session, read.cursor);
      void this.#wait();
    } catch (error) {
      this.trouble = error;
      this.phase = (error as { code?: string }).code === "session.not-found" ? "gone" : this.phase;
    }
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

  async send(text: string, files: Sending["files"], whenBusy: Sending["whenBusy"]): Promise<void> {
    const one: Sending = { key: newKey(), text, files, whenBusy, envelope: null, error: null, at: new Date().toISOString() };
    this.sending.push(one);
    this.ended = null;
    await this.again(one.key);
  }

  /** Try to send it once more: with the same key it arrives once, however often it was tried. */
  async again(key: string): Promise<void> {
    const one = this.sending.find((each) => each.key === key);
    if (!one) return;
    one.error = null;
    const wanted: Send = { to: `agent:${this.agent}`, session: this.session, text: one.text, key };
    if (one.files.length) wanted.attachments = one.files;
    if (one.whenBusy && this.run) wanted.when_busy = one.whenBusy;
    try {
      one.envelope = (await ask("envelope.send", wanted)).envelope;
      this.#settle();
      this.#waitSoon();
    } catch (error) {
      one.error = error;
    }
  }

  discard(key: string): void {
    this.sending = this.sending.filter((each) => each.key !== key);
  }

  async stop(): Promise<void> {
    await ask("session.stop", { session: this.session });
  }

  // --- what the house tells ---

  #news(news: News): void {
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
        this.steps = [];
        break;
      case "run.ended": {
        this.run = null;
        this.partial = null;
        this.steps = [];
        const because = String(news["because"] ?? "");
        this.ended = news["status"] === "completed" ? null : { because, outcome: String(news["status"]) };
        break;
      }
      case "step.opened":
        this.steps = [...this.steps, { call: String(news["call"] ?? ""), tool: String(news["tool"] ?? ""), since: Date.now() }];
        break;
      case "session.reset":
      case "session.deleted":
        if (news.news === "session.deleted") this.phase = "gone";
        else void this.load();
        return;
    }
    if (news.news.startsWith("envelope.") || news.news.startsWith("run.")) this.#waitSoon();
    if (news.record) this.#record(news);
    else if (news.news === "session.changed" && news["revision"] !== undefined) void this.load();
  }

  #record(news: News): void {
    const record = news.record;
    const last = this.lines.at(-1)?.seq ?? 0;
    if (!record || record.seq <= last) return;
    if (record.kind === "assistant") this.partial = null;
    if (record.kind === "tool") this.steps = this.steps.filter((each) => each.call !== record.body["call"]);
    if (record.seq === last + 1 && record.kind !== "user") {
      const line = { ...record, at: news.at, run: news.run ?? null, trust: "private", mail: [] } as Line;
      this.lines = [...this.lines, line];
    } else this.#more();
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
      if (read.revision !== this.revision) return void (await this.load());
      const known = this.lines.at(-1)?.seq ?? 0;
      this.lines = [...this.lines, ...read.lines.filter((line) => line.seq > known)];
      this.#settle();
    } catch (error) {
      this.trouble = error;
    }
  }

  /** What one sent is here when the house shows it. */
  #settle(): void {
    const shown = new Set(this.lines.flatMap((line) => line.mail.map((mail) => mail.envelope)));
    this.sending = this.sending.filter((each) => each.envelope === null || !shown.has(each.envelope));
  }

  #waitSoon(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#wait(), WAITING_AFTER_MS);
  }

  async #wait(): Promise<void> {
    try {
      this.waiting = (await ask("session.waiting", { session: this.session })).envelopes;
    } catch {
      // what waits is shown when the house answers again
    }
  }

  // --- words as they are said: taken up once a frame ---

  #delta(delta: Delta): void {
    this.#deltas.push(delta);
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
  };

  #said(now: Partial | null, delta: Delta): Partial | null {
    const newer = !now || delta.run !== now.run || delta.turn > now.turn || (delta.turn === now.turn && delta.attempt > now.attempt);
    if (newer) {
      if (delta.offset) return this.#lost(now);
      now = { session: delta.session, run: delta.run, turn: delta.turn, attempt: delta.attempt, text: "", thinking: "" };
      this.#chars = 0;
    } else if (!now || delta.turn < now.turn || delta.attempt < now.attempt) return now;
    const before = now[delta.kind];
    // Offsets count characters, which are not JavaScript's.
    const length = delta.kind === "text" ? this.#chars : lengthOf(before);
    if (delta.offset > length) return this.#lost(now);
    if (delta.offset < length) return now;
    if (delta.kind === "text") this.#chars += lengthOf(delta.text);
    return { ...now, [delta.kind]: before + delta.text };
  }

  /** Something was missed: ask for all that was said so far. */
  #lost(now: Partial | null): Partial | null {
    house.live.send({ type: "subscribe", session: this.session, after: this.#cursor });
    return now;
  }

  #partials(all: Partial[]): void {
    const mine = all.findLast((each) => each.session === this.session) ?? null;
    this.#deltas = [];
    this.partial = mine;
    this.#chars = lengthOf(mine?.text ?? "");
  }
}

/** In characters as the house counts them. */
function lengthOf(text: string): number {
  let length = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0xdc00 || unit > 0xdfff) length++;
  }
  return length;
}
