// Something read from the house and kept true while it is looked at. Much of it has no news of its
// own: it is read again when the window is looked at again, and every now and then.

import { untrack } from "svelte";
import { house } from "./house.svelte";
import { soon } from "./soon";

const EVERY_MS = 15_000;

export interface Reading<T> {
  readonly value: T | undefined;
  /** Why there is none, or none that is new. */
  readonly error: unknown;
  readonly busy: boolean;
  again(): Promise<void>;
}

/** For a component, while it is there. What `read` depends on is read again when it changes. */
export function reading<T>(read: () => Promise<T>, { everyMs = EVERY_MS, news = [] as string[] } = {}): Reading<T> {
  let value = $state.raw<T>();
  let error = $state.raw<unknown>(null);
  let busy = $state(false);
  let turn = 0;

  async function take(asked: Promise<T>): Promise<void> {
    const mine = ++turn;
    busy = true;
    try {
      const found = await asked;
      if (mine !== turn) return; // an older look that came later
      value = found;
      error = null;
    } catch (wrong) {
      if (mine === turn) error = wrong;
    } finally {
      if (mine === turn) busy = false;
    }
  }
  const again = (): Promise<void> => untrack(() => take(read()));

  $effect(() => {
    const asked = read();
    untrack(() => void take(asked));
  });
  $effect(() => {
    const look = (): void => {
      if (document.visibilityState === "visible") void again();
    };
    const later = soon(async () => look());
    const deaf = house.live.listen({ news: (each) => news.includes(each.news) && later.ask(), reset: () => later.ask() });
    const timer = everyMs ? setInterval(look, everyMs) : 0;
    if (everyMs) addEventListener("focus", look);
    return () => {
      turn += 1;
      later.stop();
      deaf();
      clearInterval(timer);
      removeEventListener("focus", look);
    };
  });

  return {
    get value() {
      return value;
    },
    get error() {
      return error;
    },
    get busy() {
      return busy;
    },
    again,
  };
}

/** Whether the one who looks may change the house. */
export function isOwner(): boolean {
  return house.level === "boss";
}
