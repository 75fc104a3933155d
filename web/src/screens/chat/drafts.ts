// What one has typed and not sent, for each conversation: there again after a reload, or tomorrow.

const KEPT = "retinue.draft.";
const DRAFTS_MAX = 100;

export function draftOf(session: string): string {
  try {
    return localStorage.getItem(KEPT + session) ?? "";
  } catch {
    return "";
  }
}

export function keepDraft(session: string, words: string): void {
  try {
    if (words) localStorage.setItem(KEPT + session, words);
    else localStorage.removeItem(KEPT + session);
    const all = Object.keys(localStorage).filter((key) => key.startsWith(KEPT));
    if (all.length > DRAFTS_MAX) localStorage.removeItem(all.find((key) => key !== KEPT + session) ?? "");
  } catch {
    // a browser that keeps nothing
  }
}
