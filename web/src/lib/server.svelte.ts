// The state of the server as the app knows it: who is signed in, the agents, the sessions, the pending approvals. It is
// read with `server.initial_state`, and events keep it up to date.

import { callOperation, ApiError, ServerUnreachable, onSignedOut, type Result } from "./api";
import { stripContextLine } from "./uiContext";
import { EventStream, type ServerEvent } from "./eventStream.svelte";

type State = Result<"server.initial_state">;
export type AgentSummary = State["agents"][number];
export type Session = State["sessions"][number];
export type Approval = State["approvals"][number];

export type Phase = "starting" | "signed-in" | "signed-out" | "unreachable";

const REFRESH_DELAY_MS = 250;
const SESSION_PAGE_SIZE = 50;
const RETRY_DELAY_MS = 2_000;

/** Events after which the state is read again: they do not carry everything that they change. */
const STATE_EVENTS = new Set([
  "session.started",
  "session.changed",
  "session.deleted",
  "session.restored",
  "session.reset",
  "session.switched",
  "agent.changed",
  "approval.created",
  "approval.decided",
  "run.suspended",
]);

export class ServerState {
  phase: Phase = $state("starting");
  /** Why signing in failed, as a sentence. */
  error: string = $state("");
  you: string = $state("");
  level: string = $state("");
  agents: AgentSummary[] = $state.raw([]);
  sessions: Session[] = $state.raw([]);
  approvals: Approval[] = $state.raw([]);
  unread: number = $state(0);
  /** Ids of the sessions that have an active run. */
  running: ReadonlySet<string> = $state.raw(new Set<string>());
  readonly events = new EventStream();

  /** Whether the server has older sessions that are not loaded yet. */
  hasMoreSessions: boolean = $state(false);

  #refreshTimer = 0;
  #cursor = 0;
  /** The cursor of the next page of sessions; null after the last page. */
  #nextPage: string | null = "";

  constructor() {
    onSignedOut(() => this.#setSignedOut(""));
    this.events.listen({ event: (event) => this.#handleEvent(event), reset: (session) => session === null && this.refreshSoon() });
    $effect.root(() => {
      $effect(() => {
        if (this.events.state === "signed-out") this.#setSignedOut("");
      });
    });
  }

  /** Sign in with the code in the fragment of the address if there is one, else with the cookie. */
  async start(): Promise<void> {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (location.hash) history.replaceState(null, "", location.pathname + location.search);
    if (code) {
      const error = await this.signIn(code);
      if (error === null) return;
      this.error = error;
    }
    await this.#connect();
  }

  /** Exchange a code for a cookie. Returns what is wrong with the code, or null. */
  async signIn(code: string): Promise<string | null> {
    const response = await fetch("/api/sign-in", {
      method: "POST",
      credentials: "same-origin",
      headers: { "content-type": "application/json", "x-retinue": "1" },
      body: JSON.stringify({ code }),
    }).catch(() => null);
    if (response === null) return "The server does not answer.";
    if (!response.ok) {
      const body = (await response.json().catch(() => null)) as { error?: { sentence?: string; because?: string } } | null;
      return `${body?.error?.sentence ?? "the sign-in code was rejected"}: ${body?.error?.because ?? `the server returned status ${response.status}`}.`;
    }
    await this.#connect();
    return null;
  }

  async signOut(): Promise<void> {
    await fetch("/api/sign-out", { method: "POST", credentials: "same-origin", headers: { "x-retinue": "1" } }).catch(() => null);
    this.#setSignedOut("");
  }

  agent(name: string): AgentSummary | undefined {
    return this.agents.find((each) => each.name === name);
  }

  session(id: string): Session | undefined {
    return this.sessions.find((each) => each.sessionId === id);
  }

  /** Read the whole state again after a short delay, so that many events cause one request. */
  refreshSoon(): void {
    if (this.#refreshTimer) return;
    this.#refreshTimer = window.setTimeout(() => {
      this.#refreshTimer = 0;
      void this.#refresh().catch(() => undefined); // the connection status shows that the server does not answer
    }, REFRESH_DELAY_MS);
  }

  /** Load the next page of sessions. */
  async loadOlderSessions(): Promise<void> {
    if (this.#nextPage === null) return;
    const page = await callOperation("session.list", { limit: SESSION_PAGE_SIZE, cursor: this.#nextPage });
    this.#nextPage = page.next;
    this.hasMoreSessions = page.next !== null;
    this.sessions = sortByUpdate([...this.sessions, ...page.sessions.filter((each) => !this.session(each.sessionId))]);
  }

  removeSession(session: string): void {
    this.sessions = this.sessions.filter((each) => each.sessionId !== session);
  }

  #setSession(session: Session): void {
    this.sessions = sortByUpdate([session, ...this.sessions.filter((each) => each.sessionId !== session.sessionId)]);
  }

  async #connect(): Promise<void> {
    try {
      const cursor = await this.#refresh();
      this.phase = "signed-in";
      this.error = "";
      this.events.start(cursor);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        this.#setSignedOut(this.error);
      } else if (error instanceof ServerUnreachable) {
        this.phase = "unreachable";
        window.setTimeout(() => void this.#connect(), RETRY_DELAY_MS);
      } else {
        this.phase = "unreachable";
        this.error = error instanceof Error ? error.message : String(error);
      }
    }
  }

  #setSignedOut(error: string): void {
    if (this.phase === "signed-out") return;
    this.events.stop("signed-out");
    this.error = error;
    this.phase = "signed-out";
  }

  async #refresh(): Promise<number> {
    const state = await callOperation("server.initial_state");
    if (state.cursor < this.#cursor) return this.#cursor; // an older response that arrived later
    this.#cursor = state.cursor;
    this.you = state.principal;
    this.level = state.level;
    this.agents = state.agents;
    const ids = new Set(state.sessions.map((each) => each.sessionId));
    const isComplete = state.sessions.length < SESSION_PAGE_SIZE;
    this.sessions = sortByUpdate([...state.sessions, ...(isComplete ? [] : this.sessions.filter((each) => !ids.has(each.sessionId)))]);
    if (this.#nextPage !== null) this.hasMoreSessions = !isComplete;
    this.approvals = state.approvals;
    this.unread = state.unread;
    this.running = new Set(state.sessions.filter((each) => each.wakefulness === "active").map((each) => each.sessionId));
    return state.cursor;
  }

  #handleEvent(event: ServerEvent): void {
    const session = event.session;
    if (session !== null) {
      if (event.event === "run.started" || event.event === "run.resumed") this.#setRunning(session, true);
      if (event.event === "run.ended" || event.event === "run.suspended") this.#setRunning(session, false);
      const known = this.session(session);
      if (known && (event.event === "envelope.accepted" || event.event === "run.ended")) {
        const last = typeof event["text"] === "string" && event["text"] ? { lastSnippet: snippet(stripContextLine(event["text"])) } : {};
        this.#setSession({ ...known, ...last, updatedAt: event.at });
      } else if (!known) this.refreshSoon();
      if (event.event === "session.deleted") this.removeSession(session);
    }
    if (event.event === "envelope.accepted" && event["to"] === this.you) this.refreshSoon(); // it changes the unread count
    if (STATE_EVENTS.has(event.event)) this.refreshSoon();
  }

  #setRunning(session: string, isRunning: boolean): void {
    if (this.running.has(session) === isRunning) return;
    const running = new Set(this.running);
    if (isRunning) running.add(session);
    else running.delete(session);
    this.running = running;
  }
}

const SNIPPET_LENGTH = 120;

function snippet(text: string): string {
  return text.replace(/\s+/g, " ").trim().slice(0, SNIPPET_LENGTH);
}

function sortByUpdate(sessions: Session[]): Session[] {
  return sessions.toSorted((a, b) => Date.parse(b.updatedAt) - Date.parse(a.updatedAt));
}

export const server = new ServerState();
