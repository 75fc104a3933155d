// The notifications of the signed-in person, newest first.

import { untrack } from "svelte";
import { callOperation, type Result } from "./api";
import { server } from "./server.svelte";

export type Notification = Result<"notification.list">["notifications"][number];

const PAGE_SIZE = 20;
const REFRESH_DELAY_MS = 120;

class Notifications {
  list: Notification[] = $state.raw([]);
  unread: number = $state(0);
  next: string | null = $state(null);
  error: unknown = $state(null);
  #timer = 0;
  /** Counts requests and changes: the response to an older request is stale. */
  #version = 0;

  constructor() {
    server.events.listen({
      event: (event) => {
        if (event.event !== "notification.changed") return;
        if (typeof event["unread"] === "number") this.unread = event["unread"];
        this.#refreshSoon();
      },
      reset: (session) => session === null && this.#refreshSoon(),
    });
    $effect.root(() => {
      $effect(() => {
        if (server.phase === "signed-in") untrack(() => void this.refresh());
      });
    });
  }

  /** Read as many notifications again as are loaded. */
  async refresh(): Promise<void> {
    const limit = this.#loadedCount();
    const version = ++this.#version;
    try {
      const page = await callOperation("notification.list", { limit });
      if (version !== this.#version) return;
      this.list = page.notifications;
      this.unread = page.unread;
      this.next = page.next;
      this.error = null;
    } catch (error) {
      if (version === this.#version) this.error = error;
    }
  }

  async loadMore(): Promise<void> {
    if (!this.next) return;
    const page = await callOperation("notification.list", { limit: PAGE_SIZE, before: this.next });
    const known = new Set(this.list.map((each) => each.id));
    this.list = [...this.list, ...page.notifications.filter((each) => !known.has(each.id))];
    this.next = page.next;
  }

  /** Mark one notification as read, or all of them if `id` is null. */
  async markRead(id: string | null): Promise<void> {
    this.unread = (await callOperation("notification.read", id ? { id } : { all: true })).unread;
    this.#invalidate();
    this.list = this.list.map((each) => (id === null || each.id === id ? { ...each, read: true } : each));
  }

  /** Remove one notification, or all of them if `id` is null. */
  async clear(id: string | null): Promise<void> {
    this.unread = (await callOperation("notification.clear", id ? { id } : { all: true })).unread;
    this.#invalidate();
    this.list = id ? this.list.filter((each) => each.id !== id) : [];
    if (!id) this.next = null;
  }

  /** A request that is under way may not include this change: ignore its response and read again. */
  #invalidate(): void {
    this.#version += 1;
    this.#refreshSoon();
  }

  #loadedCount(): number {
    return Math.min(100, Math.max(PAGE_SIZE, this.list.length));
  }

  #refreshSoon(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.refresh(), REFRESH_DELAY_MS);
  }
}

export const notifications = new Notifications();
