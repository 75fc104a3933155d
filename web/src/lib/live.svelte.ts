// News as it happens, over one WebSocket that comes back by itself and goes on from its cursor.

/** Something was committed. What else it carries depends on its kind. */
export interface News {
  seq: number;
  news: string;
  session: string | null;
  at: string;
  envelope?: string;
  run?: string;
  record?: { seq: number; kind: string; body: Record<string, unknown> };
  [more: string]: unknown;
}

/** A piece of a reply: where it belongs, and its words. */
export interface Delta {
  session: string;
  run: string;
  turn: number;
  attempt: number;
  kind: "text" | "thinking";
  offset: number;
  text: string;
}

/** All of a reply that was said so far. */
export interface Partial {
  session: string;
  run: string;
  turn: number;
  attempt: number;
  text: string;
  thinking: string;
}

/** A piece of what is done for a call that waits, by whoever it asked: words, or the name of a tool. */
export interface Nested {
  session: string;
  call: string;
  agent: string;
  run: string;
  kind: "text" | "call";
  text: string;
  offset: number;
}

/** All of it so far. */
export interface Within {
  session: string;
  call: string;
  agent: string;
  run: string;
  text: string;
  calls: string[];
}

export interface Listener {
  news?(news: News): void;
  delta?(delta: Delta): void;
  /** What is being said now; of one session, or of all that are followed. */
  partials?(partials: Partial[], session: string | null): void;
  nested?(nested: Nested): void;
  /** What is done now for calls that wait; of one session, or of all that are followed. */
  within?(within: Within[], session: string | null): void;
  /** The house does not know our cursor: what we hold may be wrong, ask again. */
  reset?(session: string | null): void;
  /** Any other frame, such as a command for a window. */
  frame?(frame: { type: string; [more: string]: unknown }): void;
}

export type Connection = "connecting" | "open" | "waiting" | "signed-out";

const PROTOCOL = 1;
const WAIT_FIRST_MS = 400;
const WAIT_MAX_MS = 15_000;
const PING_EVERY_MS = 20_000;
const PONG_WITHIN_MS = 10_000;
const SIGNED_OUT = 4401;

export class Live {
  state: Connection = $state("connecting");
  /** When the next try comes, while waiting. */
  nextTryAt: number | null = $state(null);

  #socket: WebSocket | null = null;
  #cursor: number | null = null;
  #sessions = new Map<string, number>();
  #listeners = new Set<Listener>();
  #tries = 0;
  #timer = 0;
  #pings = 0;
  #pong = 0;
  #stopped = true;

  /** Begin after this cursor: what the page already shows is as of then. */
  start(cursor: number): void {
    this.#cursor = cursor;
    this.#stopped = false;
    addEventListener("online", this.#now);
    document.addEventListener("visibilitychange", this.#seen);
    this.#connect();
  }

  stop(state: Connection = "connecting"): void {
    this.#stopped = true;
    removeEventListener("online", this.#now);
    document.removeEventListener("visibilitychange", this.#seen);
    clearTimeout(this.#timer);
    this.#quiet();
    this.#socket?.close();
    this.#socket = null;
    this.state = state;
  }

  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Follow a session word by word, from a cursor on. Returns how to stop. */
  follow(session: string, after: number): () => void {
    const followers = this.#sessions.get(session) ?? 0;
    this.#sessions.set(session, followers + 1);
    if (!followers) this.send({ type: "subscribe", session, after });
    return () => {
      const left = (this.#sessions.get(session) ?? 1) - 1;
      if (left) this.#sessions.set(session, left);
      else if (this.#sessions.delete(session)) this.send({ type: "unsubscribe", session });
    };
  }

  /** Say something to the house. What is said while nobody listens is lost: it is about this moment only. */
  send(frame: object): boolean {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #connect(): void {
    this.state = "connecting";
    this.nextTryAt = null;
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
    this.#socket = socket;
    socket.onopen = () => {
      const follow = [
        { session: "*", mask: { events: ["news"] } },
        ...[...this.#sessions.keys()].map((session) => ({ session })),
      ];
      socket.send(JSON.stringify({ type: "hello", protocol: PROTOCOL, after: this.#cursor, follow }));
    };
    socket.onmessage = (message) => {
      if (socket === this.#socket) this.#hear(JSON.parse(String(message.data)));
    };
    socket.onclose = (closed) => {
      if (socket === this.#socket) this.#lost(closed.code);
    };
  }

  #hear(frame: { type: string; [more: string]: unknown }): void {
    switch (frame.type) {
      case "hello":
        this.#tries = 0;
        this.state = "open";
        this.#pings = window.setInterval(this.#ping, PING_EVERY_MS);
        this.#cursor = Math.max(this.#cursor ?? 0, Number(frame["cursor"]));
        this.#tell((to) => to.partials?.(frame["partials"] as Partial[], null));
        this.#tell((to) => to.within?.((frame["nested"] ?? []) as Within[], null));
        break;
      case "news": {
        const news = frame as unknown as News;
        // A session that is caught up on alone may tell what is older than the rest.
        this.#cursor = Math.max(this.#cursor ?? 0, news.seq);
        this.#tell((to) => to.news?.(news));
        break;
      }
      case "delta":
        this.#tell((to) => to.delta?.(frame as unknown as Delta));
        break;
      case "nested":
        this.#tell((to) => to.nested?.(frame as unknown as Nested));
        break;
      case "partials": {
        const of = (frame["session"] as string) ?? null;
        this.#tell((to) => to.partials?.(frame["partials"] as Partial[], of));
        this.#tell((to) => to.within?.((frame["nested"] ?? []) as Within[], of));
        break;
      }
      case "reset":
        if (frame["session"] === undefined) this.#cursor = Number(frame["cursor"]);
        this.#tell((to) => to.reset?.((frame["session"] as string) ?? null));
        break;
      case "pong":
        clearTimeout(this.#pong);
        break;
      default:
        this.#tell((to) => to.frame?.(frame));
    }
  }

  #tell(say: (to: Listener) => void): void {
    for (const listener of [...this.#listeners]) say(listener);
  }

  #ping = (): void => {
    if (!this.send({ type: "ping" })) return;
    clearTimeout(this.#pong);
    // A line that is dead without saying so: end it, and the next try begins.
    this.#pong = window.setTimeout(() => this.#socket?.close(), PONG_WITHIN_MS);
  };

  #quiet(): void {
    clearInterval(this.#pings);
    clearTimeout(this.#pong);
  }

  #lost(code: number): void {
    this.#quiet();
    this.#socket = null;
    if (this.#stopped) return;
    if (code === SIGNED_OUT) {
      this.stop("signed-out");
      return;
    }
    const longest = Math.min(WAIT_MAX_MS, WAIT_FIRST_MS * 2 ** this.#tries);
    const wait = longest / 2 + Math.random() * (longest / 2); // not every tab at once
    this.#tries += 1;
    this.state = "waiting";
    this.nextTryAt = Date.now() + wait;
    this.#timer = window.setTimeout(() => this.#connect(), wait);
  }

  #now = (): void => {
    if (this.state !== "waiting") return;
    clearTimeout(this.#timer);
    this.#connect();
  };

  #seen = (): void => {
    if (document.visibilityState !== "visible") return;
    if (this.state === "waiting") this.#now();
    else this.#ping();
  };

  /** Try at once, because a person asks for it. */
  retry(): void {
    this.#now();
  }
}

