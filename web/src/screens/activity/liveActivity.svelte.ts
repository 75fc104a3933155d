// Recent messages, lanes and the edges of the message graph, kept up to date by events.

import { callOperation, type Result } from "../../lib/api";
import { stripContextLine } from "../../lib/uiContext";
import { server } from "../../lib/server.svelte";
import type { ServerEvent } from "../../lib/eventStream.svelte";
import { debounce } from "../../lib/debounce";
import { NODES_MAX, parseNode, type GraphNode } from "./graphLayout";

export type RecentEnvelope = Result<"envelope.recent">["envelopes"][number];
export type LanesResult = Result<"server.lanes">;
export type Lane = LanesResult["lanes"][number];

export interface Edge {
  key: string;
  from: string;
  to: string;
  /** The time of the last message on this edge. */
  at: number;
}

export interface Dot {
  id: number;
  key: string;
}

const ENVELOPES_MAX = 50;
const DOTS_MAX = 30;
const SNIPPET_LENGTH = 80;
const EDGE_LIFETIME_MS = 10 * 60_000;
const LANE_EVENTS = /^(envelope|run|step|approval|session)\./;

export class LiveActivity {
  envelopes: RecentEnvelope[] = $state.raw([]);
  edges: Edge[] = $state.raw([]);
  dots: Dot[] = $state.raw([]);
  lanes: LanesResult | null = $state.raw(null);
  people: string[] = $state.raw([]);
  error: unknown = $state.raw(null);
  loaded = $state(false);
  paused = $state(false);
  /** Number of messages since it was paused. */
  heldCount: number = $state(0);
  now = $state(Date.now());

  #held: RecentEnvelope[] = [];
  #lastDotId = 0;
  #refresh = debounce(() => this.#loadLanes(), 300);
  #clock = window.setInterval(() => this.#tick(), 1_000);
  #unlisten: () => void;

  constructor() {
    this.#unlisten = server.events.listen({ event: (event) => this.#handleEvent(event), reset: (session) => session === null && void this.load() });
    void this.load();
  }

  close(): void {
    this.#unlisten();
    this.#refresh.stop();
    clearInterval(this.#clock);
  }

  async load(): Promise<void> {
    try {
      const [recent, people] = await Promise.all([
        callOperation("envelope.recent", { limit: ENVELOPES_MAX }),
        callOperation("person.list"),
        this.#loadLanes(),
      ]);
      this.people = people.people.map((each) => each.name);
      this.envelopes = recent.envelopes;
      const edges = new Map<string, Edge>();
      for (const each of recent.envelopes.toReversed()) {
        const edge = buildEdge(each, Date.parse(each.accepted_at));
        if (edge) edges.set(edge.key, edge);
      }
      this.edges = [...edges.values()];
      this.error = null;
      this.#tick();
    } catch (error) {
      this.error = error;
    } finally {
      this.loaded = true;
    }
  }

  /** The nodes of the graph, up to the maximum: you, the agents, everyone who sent or received messages, other people. */
  get nodes(): GraphNode[] {
    const found = new Map<string, GraphNode>();
    const add = (node: GraphNode): void => void (found.has(node.id) || found.size >= NODES_MAX || found.set(node.id, node));
    add(parseNode(server.you));
    for (const agent of server.agents) add(parseNode(`agent:${agent.name}`));
    for (const lane of this.lanes?.lanes ?? []) add(parseNode(`agent:${lane.agent}`));
    for (const channel of this.lanes?.channels ?? []) add(parseNode(channel.channel));
    for (const edge of this.edges) [edge.from, edge.to].forEach((id) => add(parseNode(id)));
    for (const name of this.people) add(parseNode(`person:${name}`));
    return [...found.values()];
  }

  /** The state of an agent: running if any of its lanes runs, else suspended if any is. */
  getAgentState(agent: string): "running" | "suspended" | null {
    const runs = this.lanes?.lanes.filter((lane) => lane.agent === agent).map((lane) => lane.run?.status) ?? [];
    return runs.includes("running") ? "running" : runs.includes("suspended") ? "suspended" : null;
  }

  togglePause(): void {
    this.paused = !this.paused;
    if (this.paused) return;
    for (const each of this.#held.splice(0)) this.#add(each, { animated: false });
    this.heldCount = 0;
  }

  removeDot(dot: Dot): void {
    this.dots = this.dots.filter((each) => each !== dot);
  }

  refreshSoon(): void {
    this.#refresh.trigger();
  }

  async #loadLanes(): Promise<void> {
    this.lanes = await callOperation("server.lanes");
  }

  #tick(): void {
    this.now = Date.now();
    if (this.edges.some((edge) => this.now - edge.at > EDGE_LIFETIME_MS)) {
      this.edges = this.edges.filter((edge) => this.now - edge.at <= EDGE_LIFETIME_MS);
    }
  }

  #handleEvent(event: ServerEvent): void {
    if (LANE_EVENTS.test(event.event)) this.#refresh.trigger();
    if (event.event === "envelope.accepted" && event.envelope) {
      const envelope = buildEnvelope(event);
      if (!this.paused) this.#add(envelope, { animated: true });
      else {
        this.#held = [...this.#held, envelope].slice(-ENVELOPES_MAX);
        this.heldCount += 1;
      }
    } else if (event.event === "envelope.settled" && event.envelope) {
      this.#settle([event.envelope], String(event["outcome"]));
    } else if (event.event === "run.ended" && Array.isArray(event["envelopes"])) {
      this.#settle(event["envelopes"] as string[], String(event["outcome"]));
    } else if (event.event === "run.started" && Array.isArray(event["envelopes"])) {
      this.#update(event["envelopes"] as string[], { status: "claimed" });
    }
  }

  #add(envelope: RecentEnvelope, { animated }: { animated: boolean }): void {
    this.envelopes = [envelope, ...this.envelopes.filter((each) => each.id !== envelope.id)].slice(0, ENVELOPES_MAX);
    const edge = buildEdge(envelope, Date.now());
    if (!edge) return;
    this.edges = [...this.edges.filter((each) => each.key !== edge.key), edge];
    if (animated && !document.hidden) this.dots = [...this.dots, { id: ++this.#lastDotId, key: edge.key }].slice(-DOTS_MAX);
  }

  #settle(ids: string[], outcome: string): void {
    this.#update(ids, { status: "done", outcome: outcome as NonNullable<RecentEnvelope["outcome"]> });
  }

  #update(ids: string[], changes: Partial<RecentEnvelope>): void {
    const update = (each: RecentEnvelope): RecentEnvelope => (ids.includes(each.id) ? { ...each, ...changes } : each);
    this.#held = this.#held.map(update);
    if (this.envelopes.some((each) => ids.includes(each.id))) this.envelopes = this.envelopes.map(update);
  }
}

function buildEdge(envelope: RecentEnvelope, at: number): Edge | null {
  const [from, to] = [parseNode(envelope.from).id, parseNode(envelope.to).id];
  return from === to ? null : { key: `${from} ${to}`, from, to, at };
}

function buildEnvelope(event: ServerEvent): RecentEnvelope {
  const text = stripContextLine(String(event["text"] ?? ""));
  const snippet = text.slice(0, 4 * SNIPPET_LENGTH).replace(/\s+/g, " ").trim();
  return {
    id: event.envelope ?? "",
    from: String(event["from"] ?? "server"),
    to: String(event["to"] ?? "server"),
    kind: event["kind"] as RecentEnvelope["kind"],
    excerpt: snippet.length > SNIPPET_LENGTH ? `${snippet.slice(0, SNIPPET_LENGTH - 1)}…` : snippet,
    session: event.session,
    accepted_at: event.at,
    status: "pending",
    outcome: null,
  };
}
