// Short messages at the edge of the window: what was done, with an undo action, or what failed, with the next step.

import { formatError } from "./api";

export interface Toast {
  id: number;
  text: string;
  kind: "info" | "error";
  action: { label: string; run(): void } | null;
}

const SHOWN_MS = 6_000;
const SHOWN_MAX = 4;

class Toasts {
  list: Toast[] = $state([]);
  #lastId = 0;
  #timers = new Map<number, number>();

  show(text: string, action: Toast["action"] = null, { forMs = SHOWN_MS }: { forMs?: number } = {}): number {
    return this.#add({ text, kind: "info", action }, forMs);
  }

  /** Errors stay until they are closed: six seconds are too short to read them. */
  showError(error: unknown): number {
    return this.#add({ text: formatError(error), kind: "error", action: null }, null);
  }

  close(id: number): void {
    clearTimeout(this.#timers.get(id));
    this.#timers.delete(id);
    this.list = this.list.filter((each) => each.id !== id);
  }

  #add(toast: Omit<Toast, "id">, forMs: number | null): number {
    const same = this.list.find((each) => each.text === toast.text && each.kind === "error");
    if (same) return same.id;
    const id = ++this.#lastId;
    this.list = [...this.list, { ...toast, id }].slice(-SHOWN_MAX);
    if (forMs !== null) this.#timers.set(id, window.setTimeout(() => this.close(id), forMs));
    return id;
  }
}

export const toasts = new Toasts();

/** Do the work, and show a toast if it fails. */
export async function attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    toasts.showError(error);
    return undefined;
  }
}
