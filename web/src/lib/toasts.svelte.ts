// Short words at the edge of the page: what was done, with a way back, or what went wrong, with what to do.

import { inWords } from "./api";

export interface Toast {
  id: number;
  words: string;
  kind: "said" | "bad";
  action: { label: string; run(): void } | null;
}

const SHOWN_MS = 6_000;
const SHOWN_MAX = 4;

class Toasts {
  list: Toast[] = $state([]);
  #last = 0;
  #timers = new Map<number, number>();

  say(words: string, action: Toast["action"] = null, { forMs = SHOWN_MS }: { forMs?: number } = {}): number {
    return this.#add({ words, kind: "said", action }, forMs);
  }

  /** Errors stay until they are closed: nobody reads them in six seconds. */
  failed(error: unknown): number {
    return this.#add({ words: inWords(error), kind: "bad", action: null }, null);
  }

  close(id: number): void {
    clearTimeout(this.#timers.get(id));
    this.#timers.delete(id);
    this.list = this.list.filter((each) => each.id !== id);
  }

  #add(toast: Omit<Toast, "id">, forMs: number | null): number {
    const same = this.list.find((each) => each.words === toast.words && each.kind === "bad");
    if (same) return same.id;
    const id = ++this.#last;
    this.list = [...this.list, { ...toast, id }].slice(-SHOWN_MAX);
    if (forMs !== null) this.#timers.set(id, window.setTimeout(() => this.close(id), forMs));
    return id;
  }
}

export const toasts = new Toasts();

/** Do it, and say so if it does not work. */
export async function attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    toasts.failed(error);
    return undefined;
  }
}
