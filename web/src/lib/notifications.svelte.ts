// What was put where one notices it, for whoever looks at this page.

import { untrack } from "svelte";
import { ask, type Answered } from "./api";
import { house } from "./house.svelte";

export type Notification = Answered<"notification.list">["notifications"][number];

const AT_ONCE = 20;
const LOOK_AGAIN_MS = 120;

class Notifications {
  list: Notification[] = $state.raw([]);
  unread: number = $state(0);
  next: string | null = $state(null);
  trouble: unknown = $state(null);
  #timer = 0;
  /** Counts looks and changes: the answer to an older look is outdated. */
  #turn = 0;

  constructor() {
    house.live.listen({
      news: (news) => {
        if (news.news !== "notification.changed") return;
        if (typeof news["unread"] === "number") this.unread = news["unread"];
        this.#soon();
      },
      reset: (session) => session === null && this.#soon(),
    });
    $effect.root(() => {
      $effect(() => {
        if (house.phase === "in") untrack(() => void this.look());
      });
    });
  }

  /** As many as were shown, anew. */
  async look(): Promise<void> {
    const shown = this.#shown();
    const mine = ++this.#turn;
    try {
      const read = await ask("notification.list", { limit: shown });
      if (mine !== this.#turn) return;
      this.list = read.notifications;
      this.unread = read.unread;
      this.next = read.next;
      this.trouble = null;
    } catch (error) {
      if (mine === this.#turn) this.trouble = error;
    }
  }

  async more(): Promise<void> {
    if (!this.next) return;
    const read = await ask("notification.list", { limit: AT_ONCE, before: this.next });
    const known = new Set(this.list.map((each) => each.id));
    this.list = [...this.list, ...read.notifications.filter((each) => !known.has(each.id))];
    this.next = read.next;
  }

  /** One, or all of them. */
  async read(id: string | null): Promise<void> {
    this.unread = (await ask("notification.read", id ? { id } : { all: true })).unread;
    this.#changed();
    this.list = this.list.map((each) => (id === null || each.id === id ? { ...each, read: true } : each));
  }

  async clear(id: string | null): Promise<void> {
    this.unread = (await ask("notification.clear", id ? { id } : { all: true })).unread;
    this.#changed();
    this.list = id ? this.list.filter((each) => each.id !== id) : [];
    if (!id) this.next = null;
  }

  /** A look that is under way may not know of this: look again. */
  #changed(): void {
    this.#turn += 1;
    this.#soon();
  }

  #shown(): number {
    return Math.min(100, Math.max(AT_ONCE, this.list.length));
  }

  #soon(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.look(), LOOK_AGAIN_MS);
  }
}

export const notifications = new Notifications();
