// Messages that the server has not confirmed yet, for each conversation. A page that is closed meanwhile sends them when
// it opens again, with the same idempotency key, so that each arrives once.

const STORAGE_PREFIX = "retinue.outbox.";

export interface UnsentMessage {
  key: string;
  text: string;
  whenBusy: "collect" | "steer" | null;
  at: string;
}

export function loadUnsent(session: string): UnsentMessage[] {
  try {
    return JSON.parse(localStorage.getItem(STORAGE_PREFIX + session) ?? "[]") as UnsentMessage[];
  } catch {
    return [];
  }
}

export function saveUnsent(session: string, messages: readonly UnsentMessage[]): void {
  try {
    const stored = messages.map(({ key, text, whenBusy, at }) => ({ key, text, whenBusy, at }));
    if (stored.length) localStorage.setItem(STORAGE_PREFIX + session, JSON.stringify(stored));
    else localStorage.removeItem(STORAGE_PREFIX + session);
  } catch {
    // the browser has no local storage
  }
}
