// Work that agents hand to one another: what the house lists of it, kept true by news, and as trees.

import { ask, type Answered } from "./api";
import { house } from "./house.svelte";
import type { News } from "./live.svelte";
import { soon } from "./soon";

export type Delegation = Answered<"delegation.list">["delegations"][number];

export interface Branch {
  delegation: Delegation;
  below: Branch[];
}

/** All that began in one conversation. */
export interface Tree {
  session: string;
  name: string | null;
  agent: string;
  branches: Branch[];
}

const PAGE = 50;
const OPEN_MAX = 100;
const LOOK_AFTER_MS = 300;
const CHANGES = /^(delegation|run)\./;

export function isOpen(delegation: Delegation): boolean {
  return delegation["ended-at"] === null;
}

export class Delegations {
  /** Newest first. */
  all: Delegation[] = $state.raw([]);
  openCount: number = $state(0);
  trouble: unknown = $state.raw(null);
  loaded: boolean = $state(false);
  /** Whether there are older ones. */
  more: boolean = $state(false);

  #next: string | null = null;
  #looking = soon(() => this.load(), LOOK_AFTER_MS);
  #deaf: () => void;

  /** Of one conversation, or of all. */
  constructor(readonly session: string = "") {
    this.#deaf = house.live.listen({ news: (news) => this.#concerns(news) && this.#looking.ask(), reset: () => this.#looking.ask() });
    void this.load();
  }

  close(): void {
    this.#deaf();
    this.#looking.stop();
  }

  /** The newest, and whatever is open however old it is. What one has paged to stays. */
  async load(): Promise<void> {
    try {
      const [newest, open] = await Promise.all([
        ask("delegation.list", { session: this.session, limit: PAGE }),
        ask("delegation.list", { session: this.session, limit: OPEN_MAX, open: true }),
      ]);
      const read = new Map([...open.delegations, ...newest.delegations].map((each) => [each.id, each]));
      // One that was open when it was last seen, and is on neither page now, is over: it is read when one pages to it.
      const kept = this.all.filter((each) => !read.has(each.id) && !isOpen(each));
      this.all = [...read.values(), ...kept].toSorted((a, b) => Date.parse(b["created-at"]) - Date.parse(a["created-at"]) || (a.id < b.id ? 1 : -1));
      this.openCount = newest["open-count"];
      if (!this.loaded) this.#goesOn(newest.next);
      this.trouble = null;
    } catch (error) {
      this.trouble = error;
    } finally {
      this.loaded = true;
    }
  }

  async further(): Promise<void> {
    if (this.#next === null) return;
    const read = await ask("delegation.list", { session: this.session, limit: PAGE, cursor: this.#next });
    const known = new Set(this.all.map((each) => each.id));
    this.all = [...this.all, ...read.delegations.filter((each) => !known.has(each.id))];
    this.#goesOn(read.next);
  }

  /** The one that a call made. */
  ofCall(call: string): Delegation | undefined {
    return this.all.find((each) => each.call === call);
  }

  #goesOn(next: string | null): void {
    this.#next = next;
    this.more = next !== null;
  }

  #concerns(news: News): boolean {
    if (!CHANGES.test(news.news)) return false;
    return !this.session || news.session === this.session || this.all.some((each) => each.to === news.session);
  }
}

/** A tree for each conversation: what was asked by a run hangs below what that run was begun for. */
export function treesOf(all: readonly Delegation[]): Tree[] {
  const branches = new Map(all.map((each) => [each.id, { delegation: each, below: [] as Branch[] }]));
  const byRun = new Map(all.flatMap((each) => (each.run ? [[each.run, each] as const] : [])));
  const trees = new Map<string, Tree>();
  for (const each of all) {
    const branch = branches.get(each.id);
    if (!branch) continue;
    const above = byRun.get(each["asked-by"]) ?? latestInto(all, each);
    const parent = above && branches.get(above.id);
    if (parent && parent !== branch) {
      parent.below.push(branch);
      continue;
    }
    const tree = trees.get(each.session) ?? { session: each.session, name: each["session-name"], agent: each.agent, branches: [] };
    tree.branches.push(branch);
    trees.set(each.session, tree);
  }
  return [...trees.values()];
}

/** Asked by a later run of a session that was made for other work, such as one that read an answer. */
function latestInto(all: readonly Delegation[], one: Delegation): Delegation | undefined {
  return all.find((each) => each.to === one.session && each.id !== one.id && Date.parse(each["created-at"]) <= Date.parse(one["created-at"]));
}

// One list for each conversation that is looked at, however many cards ask for it.
const lists = new Map<string, { list: Delegations; users: number }>();

export function listOf(session: string): { list: Delegations; leave(): void } {
  const found = lists.get(session) ?? { list: new Delegations(session), users: 0 };
  found.users += 1;
  lists.set(session, found);
  return {
    list: found.list,
    leave: () => {
      found.users -= 1;
      if (found.users) return;
      found.list.close();
      lists.delete(session);
    },
  };
}
