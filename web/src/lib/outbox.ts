// What was written and has not arrived yet, for each conversation: a page that is closed meanwhile sends it when it
// opens again, with the same key, so that it arrives once.

const KEPT = "retinue.outbox.";

export interface Unsent {
  key: string;
  text: string;
  whenBusy: "collect" | "steer" | null;
  at: string;
}

export function unsentIn(session: string): Unsent[] {
  try {
    return JSON.parse(localStorage.getItem(KEPT + session) ?? "[]") as Unsent[];
  } catch {
    return [];
  }
}

export function keepUnsent(session: string, list: readonly Unsent[]): void {
  try {
    const kept = list.map(({ key, text, whenBusy, at }) => ({ key, text, whenBusy, at }));
    if (kept.length) localStorage.setItem(KEPT + session, JSON.stringify(kept));
    else localStorage.removeItem(KEPT + session);
  } catch {
    // a browser that keeps nothing
  }
}
