// Delegations between agents: the list from the server, kept up to date by events, and as trees.

import { callOperation, type Result } from "./api";
import { server } from "./server.svelte";
import type { ServerEvent } from "./eventStream.svelte";
import { debounce } from "./debounce";

export type Delegation = Result<"delegation.list">["delegations"][number];

export interface Branch {
  delegation: Delegation;
  children: Branch[];
}

/** All delegations that started in one conversation. */
export interface DelegationTree {
  session: string;
  name: string | null;
  agent: string;
  branches: Branch[];
}

const PAGE_SIZE = 50;
const OPEN_MAX = 100;
const REFRESH_DELAY_MS = 300;
const RELEVANT_EVENTS = /^(delegation|run)\./;

export function isOpen(delegation: Delegation): boolean {
  return delegation.ended_at === null;
}

export class Delegations {
  /** Newest first. */
  all: Delegation[] = $state.raw([]);
  openCount: number = $state(0);
  error: unknown = $state.raw(null);
  loaded: boolean = $state(false);
  /** Whether the server has older delegations that are not loaded yet. */
  hasMore: boolean = $state(false);

  #nextPage: string | null = null;
  #refresh = debounce(() => this.load(), REFRESH_DELAY_MS);
  #unlisten: () => void;

  /** Without a session: the delegations of all sessions. */
  constructor(readonly session: string = "") {
    this.#unlisten = server.events.listen({ event: (event) => this.#isRelevant(event) && this.#refresh.trigger(), reset: () => this.#refresh.trigger() });
    void this.load();
  }

  close(): void {
    this.#unlisten();
    this.#refresh.stop();
  }

  /** Read the newest delegations and all open ones. Older ones that were loaded stay. */
  async load(): Promise<void> {
    try {
      const [newest, open] = await Promise.all([
        callOperation("delegation.list", { session: this.session, limit: PAGE_SIZE }),
        callOperation("delegation.list", { session: this.session, limit: OPEN_MAX, open: true }),
      ]);
      const read = new Map([...open.delegations, ...newest.delegations].map((each) => [each.id, each]));
      // One that was open and is on neither page now has ended: it is read again with its page.
      const kept = this.all.filter((each) => !read.has(each.id) && !isOpen(each));
      this.all = [...read.values(), ...kept].toSorted((a, b) => Date.parse(b.created_at) - Date.parse(a.created_at) || (a.id < b.id ? 1 : -1));
      this.openCount = newest.open_count;
      if (!this.loaded) this.#setNextPage(newest.next);
      this.error = null;
    } catch (error) {
      this.error = error;
    } finally {
      this.loaded = true;
    }
  }

  async loadMore(): Promise<void> {
    if (this.#nextPage === null) return;
    const read = await callOperation("delegation.list", { session: this.session, limit: PAGE_SIZE, cursor: this.#nextPage });
    const known = new Set(this.all.map((each) => each.id));
    this.all = [...this.all, ...read.delegations.filter((each) => !known.has(each.id))];
    this.#setNextPage(read.next);
  }

  /** The delegation that a tool call made. */
  findByCall(call: string): Delegation | undefined {
    return this.all.find((each) => each.call === call);
  }

  #setNextPage(next: string | null): void {
    this.#nextPage = next;
    this.hasMore = next !== null;
  }

  #isRelevant(event: ServerEvent): boolean {
    if (!RELEVANT_EVENTS.test(event.event)) return false;
    return !this.session || event.session === this.session || this.all.some((each) => each.target_session === event.session);
  }
}

/** One tree for each conversation: a delegation by a run is a child of the delegation that started the run. */
export function buildDelegationTrees(all: readonly Delegation[]): DelegationTree[] {
  const branches = new Map(all.map((each) => [each.id, { delegation: each, children: [] as Branch[] }]));
  const byRun = new Map(all.flatMap((each) => (each.run ? [[each.run, each] as const] : [])));
  const trees = new Map<string, DelegationTree>();
  for (const each of all) {
    const branch = branches.get(each.id);
    if (!branch) continue;
    const parentDelegation = byRun.get(each.requester_run) ?? findLatestInto(all, each);
    const parent = parentDelegation && branches.get(parentDelegation.id);
    if (parent && parent !== branch) {
      parent.children.push(branch);
      continue;
    }
    const tree = trees.get(each.session) ?? { session: each.session, name: each.session_name, agent: each.agent, branches: [] };
    tree.branches.push(branch);
    trees.set(each.session, tree);
  }
  return [...trees.values()];
}

/** The newest earlier delegation into the session of this one: its run may be a later run there. */
function findLatestInto(all: readonly Delegation[], one: Delegation): Delegation | undefined {
  return all.find((each) => each.target_session === one.session && each.id !== one.id && Date.parse(each.created_at) <= Date.parse(one.created_at));
}

// One shared list for each open conversation, with the number of components that use it.
const lists = new Map<string, { list: Delegations; users: number }>();

export function acquireDelegations(session: string): { list: Delegations; release(): void } {
  const found = lists.get(session) ?? { list: new Delegations(session), users: 0 };
  found.users += 1;
  lists.set(session, found);
  return {
    list: found.list,
    release: () => {
      found.users -= 1;
      if (found.users) return;
      found.list.close();
      lists.delete(session);
    },
  };
}
