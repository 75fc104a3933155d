// Data from an operation, kept up to date while a component shows it. Much of it has no event of its own, so it is
// read again at intervals and when the window gets the focus.

import { untrack } from "svelte";
import { server } from "./server.svelte";
import { debounce } from "./debounce";

const INTERVAL_MS = 15_000;

export interface Query<T> {
  readonly value: T | undefined;
  /** Why there is no value, or no newer one. */
  readonly error: unknown;
  readonly busy: boolean;
  refresh(): Promise<void>;
}

/** Create a query for the lifetime of a component. It reads again when the state that `read` uses changes. */
export function createQuery<T>(read: () => Promise<T>, { everyMs = INTERVAL_MS, events = [] as string[] } = {}): Query<T> {
  let value = $state.raw<T>();
  let error = $state.raw<unknown>(null);
  let busy = $state(false);
  let latest = 0;

  async function store(pending: Promise<T>): Promise<void> {
    const request = ++latest;
    busy = true;
    try {
      const result = await pending;
      if (request !== latest) return; // an older response that arrived later
      value = result;
      error = null;
    } catch (failure) {
      if (request === latest) error = failure;
    } finally {
      if (request === latest) busy = false;
    }
  }
  const refresh = (): Promise<void> => untrack(() => store(read()));

  $effect(() => {
    const pending = read();
    untrack(() => void store(pending));
  });
  $effect(() => {
    const refreshIfVisible = (): void => {
      if (document.visibilityState === "visible") void refresh();
    };
    const refreshSoon = debounce(async () => refreshIfVisible());
    const unlisten = server.events.listen({
      event: (event) => events.includes(event.event) && refreshSoon.trigger(),
      reset: () => refreshSoon.trigger(),
    });
    const timer = everyMs ? setInterval(refreshIfVisible, everyMs) : 0;
    if (everyMs) addEventListener("focus", refreshIfVisible);
    return () => {
      latest += 1;
      refreshSoon.stop();
      unlisten();
      clearInterval(timer);
      removeEventListener("focus", refreshIfVisible);
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
    refresh,
  };
}

/** Whether the signed-in principal may change the server's settings. */
export function isOwner(): boolean {
  return server.level === "boss";
}
