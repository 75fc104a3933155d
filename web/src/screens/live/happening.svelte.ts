// What happens in the house, as the picture and the lists beside it show it.

import { ask, type Answered } from "../../lib/api";
import { wordsOf } from "../../lib/context";
import { house } from "../../lib/house.svelte";
import type { News } from "../../lib/live.svelte";
import { soon } from "../../lib/soon";
import { NODES_MAX, whoIs, type Who } from "./picture";

export type Passed = Answered<"envelope.recent">["envelopes"][number];
export type LanesShown = Answered<"house.lanes">;
export type Lane = LanesShown["lanes"][number];

export interface Edge {
  key: string;
  from: string;
  to: string;
  /** When the last one went this way. */
  at: number;
}

export interface Dot {
  id: number;
  key: string;
}

const KEPT_MAX = 50;
const DOTS_MAX = 30;
const WORDS_MAX = 80;
const EDGE_KEPT_MS = 10 * 60_000;
const CHANGES_LANES = /^(envelope|run|step|approval|session)\./;

export class Happening {
  envelopes: Passed[] = $state.raw([]);
  edges: Edge[] = $state.raw([]);
  dots: Dot[] = $state.raw([]);
  lanes: LanesShown | null = $state.raw(null);
  people: string[] = $state.raw([]);
  trouble: unknown = $state.raw(null);
  loaded = $state(false);
  paused = $state(false);
  /** What came since it was paused. */
  held: number = $state(0);
  now = $state(Date.now());

  #waiting: Passed[] = [];
  #dot = 0;
  #looking = soon(() => this.#look(), 300);
  #clock = window.setInterval(() => this.#tick(), 1_000);
  #deaf: () => void;

  constructor() {
    this.#deaf = house.live.listen({ news: (news) => this.#news(news), reset: (session) => session === null && void this.load() });
    void this.load();
  }

  close(): void {
    this.#deaf();
    this.#looking.stop();
    clearInterval(this.#clock);
  }

  async load(): Promise<void> {
    try {
      const [recent, people] = await Promise.all([
        ask("envelope.recent", { limit: KEPT_MAX }),
        ask("person.list"),
        this.#look(),
      ]);
      this.people = people.people.map((each) => each.name);
      this.envelopes = recent.envelopes;
      const edges = new Map<string, Edge>();
      for (const each of recent.envelopes.toReversed()) {
        const edge = edgeOf(each, Date.parse(each["accepted-at"]));
        if (edge) edges.set(edge.key, edge);
      }
      this.edges = [...edges.values()];
      this.trouble = null;
      this.#tick();
    } catch (error) {
      this.trouble = error;
    } finally {
      this.loaded = true;
    }
  }

  /** Who is in the picture: the staff and whoever was seen; then, while there is room, the others. */
  get everyone(): Who[] {
    const found = new Map<string, Who>();
    const add = (who: Who): void => void (found.has(who.id) || found.size >= NODES_MAX || found.set(who.id, who));
    add(whoIs(house.you));
    for (const agent of house.agents) add(whoIs(`agent:${agent.name}`));
    for (const lane of this.lanes?.lanes ?? []) add(whoIs(`agent:${lane.agent}`));
    for (const room of this.lanes?.rooms ?? []) add(whoIs(room.channel));
    for (const edge of this.edges) [edge.from, edge.to].forEach((id) => add(whoIs(id)));
    for (const name of this.people) add(whoIs(`person:${name}`));
    return [...found.values()];
  }

  /** How an agent stands: at work before waiting, whatever else it does. */
  stands(agent: string): "running" | "parked" | null {
    const runs = this.lanes?.lanes.filter((lane) => lane.agent === agent).map((lane) => lane.run?.status) ?? [];
    return runs.includes("running") ? "running" : runs.includes("parked") ? "parked" : null;
  }

  pause(): void {
    this.paused = !this.paused;
    if (this.paused) return;
    for (const each of this.#waiting.splice(0)) this.#pass(each, { travels: false });
    this.held = 0;
  }

  arrived(dot: Dot): void {
    this.dots = this.dots.filter((each) => each !== dot);
  }

  look(): void {
    this.#looking.ask();
  }

  async #look(): Promise<void> {
    this.lanes = await ask("house.lanes");
  }

  #tick(): void {
    this.now = Date.now();
    if (this.edges.some((edge) => this.now - edge.at > EDGE_KEPT_MS)) {
      this.edges = this.edges.filter((edge) => this.now - edge.at <= EDGE_KEPT_MS);
    }
  }

  #news(news: News): void {
    if (CHANGES_LANES.test(news.news)) this.#looking.ask();
    if (news.news === "envelope.accepted" && news.envelope) {
      const passed = passedOf(news);
      if (!this.paused) this.#pass(passed, { travels: true });
      else {
        this.#waiting = [...this.#waiting, passed].slice(-KEPT_MAX);
        this.held += 1;
      }
    } else if (news.news === "envelope.settled" && news.envelope) {
      this.#settle([news.envelope], String(news["outcome"]));
    } else if (news.news === "run.ended" && Array.isArray(news["envelopes"])) {
      this.#settle(news["envelopes"] as string[], String(news["outcome"]));
    } else if (news.news === "run.started" && Array.isArray(news["envelopes"])) {
      this.#change(news["envelopes"] as string[], { status: "claimed" });
    }
  }

  #pass(passed: Passed, { travels }: { travels: boolean }): void {
    this.envelopes = [passed, ...this.envelopes.filter((each) => each.id !== passed.id)].slice(0, KEPT_MAX);
    const edge = edgeOf(passed, Date.now());
    if (!edge) return;
    this.edges = [...this.edges.filter((each) => each.key !== edge.key), edge];
    if (travels && !document.hidden) this.dots = [...this.dots, { id: ++this.#dot, key: edge.key }].slice(-DOTS_MAX);
  }

  #settle(ids: string[], outcome: string): void {
    this.#change(ids, { status: "done", outcome: outcome as NonNullable<Passed["outcome"]> });
  }

  #change(ids: string[], to: Partial<Passed>): void {
    const changed = (each: Passed): Passed => (ids.includes(each.id) ? { ...each, ...to } : each);
    this.#waiting = this.#waiting.map(changed);
    if (this.envelopes.some((each) => ids.includes(each.id))) this.envelopes = this.envelopes.map(changed);
  }
}

function edgeOf(passed: Passed, at: number): Edge | null {
  const [from, to] = [whoIs(passed.from).id, whoIs(passed.to).id];
  return from === to ? null : { key: `${from} ${to}`, from, to, at };
}

function passedOf(news: News): Passed {
  const text = wordsOf(String(news["text"] ?? ""));
  const words = text.slice(0, 4 * WORDS_MAX).replace(/\s+/g, " ").trim();
  return {
    id: news.envelope ?? "",
    from: String(news["from"] ?? "house"),
    to: String(news["to"] ?? "house"),
    kind: news["kind"] as Passed["kind"],
    words: words.length > WORDS_MAX ? `${words.slice(0, WORDS_MAX - 1)}…` : words,
    session: news.session,
    "accepted-at": news.at,
    status: "pending",
    outcome: null,
  };
}
