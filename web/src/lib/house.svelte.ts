// What the page knows of the house: who one is, who works here, the sessions, what is asked. It begins with
// `house.state`, and news keeps it true.

import { ask, Refused, Unreachable, whenSignedOut, type Answered } from "./api";
import { wordsOf } from "./context";
import { Live, type News } from "./live.svelte";

type State = Answered<"house.state">;
export type AgentHere = State["agents"][number];
export type Session = State["sessions"][number];
export type Approval = State["approvals"][number];

export type Phase = "opening" | "in" | "signed-out" | "unreachable";

const LOOK_AGAIN_MS = 250;
const SESSIONS_AT_ONCE = 50;
const TRY_AGAIN_MS = 2_000;

/** After which news the house is looked at again: what they change is not all in them. */
const CHANGES_STATE = new Set([
  "session.started",
  "session.changed",
  "session.deleted",
  "session.restored",
  "session.reset",
  "session.switched",
  "agent.changed",
  "approval.asked",
  "approval.decided",
  "run.parked",
]);

export class House {
  phase: Phase = $state("opening");
  /** Why one cannot get in, in words. */
  trouble: string = $state("");
  you: string = $state("");
  level: string = $state("");
  agents: AgentHere[] = $state.raw([]);
  sessions: Session[] = $state.raw([]);
  approvals: Approval[] = $state.raw([]);
  unread: number = $state(0);
  /** Which sessions have a run now. */
  running: ReadonlySet<string> = $state.raw(new Set<string>());
  readonly live = new Live();

  /** Whether there are sessions that were not asked for yet. */
  more: boolean = $state(false);

  #looking = 0;
  #cursor = 0;
  /** Where the list of sessions goes on; null after its end. */
  #next: string | null = "";

  constructor() {
    whenSignedOut(() => this.#out(""));
    this.live.listen({ news: (news) => this.#news(news), reset: (session) => session === null && this.look() });
    $effect.root(() => {
      $effect(() => {
        if (this.live.state === "signed-out") this.#out("");
      });
    });
  }

  /** Come in: with the code behind the # if there is one, else with the cookie. */
  async open(): Promise<void> {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (location.hash) history.replaceState(null, "", location.pathname + location.search);
    if (code) {
      const trouble = await this.signIn(code);
      if (trouble === null) return;
      this.trouble = trouble;
    }
    await this.#enter();
  }

  /** Exchange a code for a cookie. What is wrong with it, or null. */
  async signIn(code: string): Promise<string | null> {
    const response = await fetch("/api/sign-in", {
      method: "POST",
      credentials: "same-origin",
      headers: { "content-type": "application/json", "x-retinue": "1" },
      body: JSON.stringify({ code }),
    }).catch(() => null);
    if (response === null) return "The house does not answer.";
    if (!response.ok) {
      const told = (await response.json().catch(() => null)) as { error?: { sentence?: string; because?: string } } | null;
      return `${told?.error?.sentence ?? "this code was not taken"}: ${told?.error?.because ?? `it answered ${response.status}`}.`;
    }
    await this.#enter();
    return null;
  }

  async signOut(): Promise<void> {
    await fetch("/api/sign-out", { method: "POST", credentials: "same-origin", headers: { "x-retinue": "1" } }).catch(() => null);
    this.#out("");
  }

  agent(name: string): AgentHere | undefined {
    return this.agents.find((each) => each.name === name);
  }

  session(id: string): Session | undefined {
    return this.sessions.find((each) => each.sessionId === id);
  }

  /** Look at everything again, soon: many news are one look. */
  look(): void {
    if (this.#looking) return;
    this.#looking = window.setTimeout(() => {
      this.#looking = 0;
      void this.#read().catch(() => undefined); // the line says when nobody answers
    }, LOOK_AGAIN_MS);
  }

  /** Have a session known at once, where an answer just told of it. */
  know(session: Session): void {
    this.sessions = byUse([session, ...this.sessions.filter((each) => each.sessionId !== session.sessionId)]);
  }

  /** The next page of the list of sessions. */
  async older(): Promise<void> {
    if (this.#next === null) return;
    const read = await ask("session.list", { limit: SESSIONS_AT_ONCE, cursor: this.#next });
    this.#next = read.next;
    this.more = read.next !== null;
    this.sessions = byUse([...this.sessions, ...read.sessions.filter((each) => !this.session(each.sessionId))]);
  }

  forget(session: string): void {
    this.sessions = this.sessions.filter((each) => each.sessionId !== session);
  }

  async #enter(): Promise<void> {
    try {
      const cursor = await this.#read();
      this.phase = "in";
      this.trouble = "";
      this.live.start(cursor);
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        this.#out(this.trouble);
      } else if (error instanceof Unreachable) {
        this.phase = "unreachable";
        window.setTimeout(() => void this.#enter(), TRY_AGAIN_MS);
      } else {
        this.phase = "unreachable";
        this.trouble = error instanceof Error ? error.message : String(error);
      }
    }
  }

  #out(trouble: string): void {
    if (this.phase === "signed-out") return;
    this.live.stop("signed-out");
    this.trouble = trouble;
    this.phase = "signed-out";
  }

  async #read(): Promise<number> {
    const state = await ask("house.state");
    if (state.cursor < this.#cursor) return this.#cursor; // an older look that came later
    this.#cursor = state.cursor;
    this.you = state.you;
    this.level = state.level;
    this.agents = state.agents;
    const read = new Set(state.sessions.map((each) => each.sessionId));
    const all = state.sessions.length < SESSIONS_AT_ONCE;
    this.sessions = byUse([...state.sessions, ...(all ? [] : this.sessions.filter((each) => !read.has(each.sessionId)))]);
    if (this.#next !== null) this.more = !all;
    this.approvals = state.approvals;
    this.unread = state.unread;
    this.running = new Set(state.sessions.filter((each) => each.wakefulness === "active").map((each) => each.sessionId));
    return state.cursor;
  }

  #news(news: News): void {
    const session = news.session;
    if (session !== null) {
      if (news.news === "run.started" || news.news === "run.resumed") this.#run(session, true);
      if (news.news === "run.ended" || news.news === "run.parked") this.#run(session, false);
      const known = this.session(session);
      if (known && (news.news === "envelope.accepted" || news.news === "run.ended")) {
        const words = typeof news["text"] === "string" && news["text"] ? { lastSnippet: snippet(wordsOf(news["text"])) } : {};
        this.know({ ...known, ...words, updatedAt: news.at });
      } else if (!known) this.look();
      if (news.news === "session.deleted") this.forget(session);
    }
    if (news.news === "envelope.accepted" && news["to"] === this.you) this.look(); // it is unread until it is read
    if (CHANGES_STATE.has(news.news)) this.look();
  }

  #run(session: string, runs: boolean): void {
    if (this.running.has(session) === runs) return;
    const running = new Set(this.running);
    if (runs) running.add(session);
    else running.delete(session);
    this.running = running;
  }
}

const SNIPPET_LENGTH = 120;

function snippet(text: string): string {
  return text.replace(/\s+/g, " ").trim().slice(0, SNIPPET_LENGTH);
}

function byUse(sessions: Session[]): Session[] {
  return sessions.toSorted((a, b) => Date.parse(b.updatedAt) - Date.parse(a.updatedAt));
}

export const house = new House();
