// Events from the server as they happen, over one WebSocket that reconnects by itself and resumes from its cursor.

/** A committed change. Its other fields depend on its kind, which is in `event`. */
export interface ServerEvent {
  seq: number;
  event: string;
  session: string | null;
  at: string;
  envelope?: string;
  run?: string;
  record?: { seq: number; kind: string; body: Record<string, unknown> };
  [more: string]: unknown;
}

/** A piece of a model reply, and its position in the reply. */
export interface Delta {
  session: string;
  run: string;
  turn: number;
  attempt: number;
  kind: "text" | "thinking";
  offset: number;
  text: string;
}

/** A model reply as far as it was streamed. */
export interface Partial {
  session: string;
  run: string;
  turn: number;
  attempt: number;
  text: string;
  thinking: string;
}

/** A piece of the work that another agent does for an open call: text, or the name of a tool. */
export interface NestedDelta {
  session: string;
  call: string;
  agent: string;
  run: string;
  kind: "text" | "call";
  text: string;
  offset: number;
}

/** The work that another agent does for an open call, as far as it was streamed. */
export interface NestedWork {
  session: string;
  call: string;
  agent: string;
  run: string;
  text: string;
  calls: string[];
}

export interface Listener {
  event?(event: ServerEvent): void;
  delta?(delta: Delta): void;
  /** The partial replies of one session, or of every followed session if `session` is null. */
  partials?(partials: Partial[], session: string | null): void;
  nestedDelta?(delta: NestedDelta): void;
  /** The work for open calls of one session, or of every followed session if `session` is null. */
  nestedWork?(work: NestedWork[], session: string | null): void;
  /** The server does not know our cursor: local state may be stale, so read it again. */
  reset?(session: string | null): void;
  /** Any other frame, such as a command for a browser window. */
  frame?(frame: { type: string; [more: string]: unknown }): void;
}

export type ConnectionState = "connecting" | "open" | "waiting" | "signed-out";

const PROTOCOL = 2;
const RETRY_FIRST_MS = 400;
const RETRY_MAX_MS = 15_000;
const PING_INTERVAL_MS = 20_000;
const PONG_TIMEOUT_MS = 10_000;
const SIGNED_OUT = 4401;

export class EventStream {
  state: ConnectionState = $state("connecting");
  /** The time of the next attempt while the state is "waiting". */
  retryAt: number | null = $state(null);

  #socket: WebSocket | null = null;
  #cursor: number | null = null;
  #sessions = new Map<string, number>();
  #listeners = new Set<Listener>();
  #attempts = 0;
  #timer = 0;
  #pingTimer = 0;
  #pongTimer = 0;
  #stopped = true;

  /** Connect and receive events after this cursor: the state that the app has read already includes the ones before. */
  start(cursor: number): void {
    this.#cursor = cursor;
    this.#stopped = false;
    addEventListener("online", this.#retryNow);
    document.addEventListener("visibilitychange", this.#checkWhenVisible);
    this.#connect();
  }

  stop(state: ConnectionState = "connecting"): void {
    this.#stopped = true;
    removeEventListener("online", this.#retryNow);
    document.removeEventListener("visibilitychange", this.#checkWhenVisible);
    clearTimeout(this.#timer);
    this.#stopPings();
    this.#socket?.close();
    this.#socket = null;
    this.state = state;
  }

  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Receive the deltas of a session too, from a cursor on. Returns a function that stops it. */
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

  /** Send a frame to the server. Returns false, and drops the frame, if there is no connection. */
  send(frame: object): boolean {
    if (this.#socket?.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #connect(): void {
    this.state = "connecting";
    this.retryAt = null;
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
    this.#socket = socket;
    socket.onopen = () => {
      const follow = [
        { session: "*", filter: { types: ["event"] } },
        ...[...this.#sessions.keys()].map((session) => ({ session })),
      ];
      socket.send(JSON.stringify({ type: "hello", protocol: PROTOCOL, after: this.#cursor, follow }));
    };
    socket.onmessage = (message) => {
      if (socket === this.#socket) this.#receive(JSON.parse(String(message.data)));
    };
    socket.onclose = (closed) => {
      if (socket === this.#socket) this.#handleClose(closed.code);
    };
  }

  #receive(frame: { type: string; [more: string]: unknown }): void {
    switch (frame.type) {
      case "hello":
        this.#attempts = 0;
        this.state = "open";
        this.#pingTimer = window.setInterval(this.#ping, PING_INTERVAL_MS);
        this.#cursor = Math.max(this.#cursor ?? 0, Number(frame["cursor"]));
        this.#notify((listener) => listener.partials?.(frame["partials"] as Partial[], null));
        this.#notify((listener) => listener.nestedWork?.((frame["nested"] ?? []) as NestedWork[], null));
        break;
      case "event": {
        const event = frame as unknown as ServerEvent;
        // A session that catches up alone may send events that are older than the cursor.
        this.#cursor = Math.max(this.#cursor ?? 0, event.seq);
        this.#notify((listener) => listener.event?.(event));
        break;
      }
      case "delta":
        this.#notify((listener) => listener.delta?.(frame as unknown as Delta));
        break;
      case "nested":
        this.#notify((listener) => listener.nestedDelta?.(frame as unknown as NestedDelta));
        break;
      case "partials": {
        const session = (frame["session"] as string) ?? null;
        this.#notify((listener) => listener.partials?.(frame["partials"] as Partial[], session));
        this.#notify((listener) => listener.nestedWork?.((frame["nested"] ?? []) as NestedWork[], session));
        break;
      }
      case "reset":
        if (frame["session"] === undefined) this.#cursor = Number(frame["cursor"]);
        this.#notify((listener) => listener.reset?.((frame["session"] as string) ?? null));
        break;
      case "pong":
        clearTimeout(this.#pongTimer);
        break;
      default:
        this.#notify((listener) => listener.frame?.(frame));
    }
  }

  #notify(call: (listener: Listener) => void): void {
    for (const listener of [...this.#listeners]) call(listener);
  }

  #ping = (): void => {
    if (!this.send({ type: "ping" })) return;
    clearTimeout(this.#pongTimer);
    // A connection may be dead without a close event: close it, and the next attempt follows.
    this.#pongTimer = window.setTimeout(() => this.#socket?.close(), PONG_TIMEOUT_MS);
  };

  #stopPings(): void {
    clearInterval(this.#pingTimer);
    clearTimeout(this.#pongTimer);
  }

  #handleClose(code: number): void {
    this.#stopPings();
    this.#socket = null;
    if (this.#stopped) return;
    if (code === SIGNED_OUT) {
      this.stop("signed-out");
      return;
    }
    const delayMax = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** this.#attempts);
    const delay = delayMax / 2 + Math.random() * (delayMax / 2); // so that tabs do not reconnect all at once
    this.#attempts += 1;
    this.state = "waiting";
    this.retryAt = Date.now() + delay;
    this.#timer = window.setTimeout(() => this.#connect(), delay);
  }

  #retryNow = (): void => {
    if (this.state !== "waiting") return;
    clearTimeout(this.#timer);
    this.#connect();
  };

  #checkWhenVisible = (): void => {
    if (document.visibilityState !== "visible") return;
    if (this.state === "waiting") this.#retryNow();
    else this.#ping();
  };

  /** Reconnect now instead of waiting for the next attempt. */
  retry(): void {
    this.#retryNow();
  }
}
