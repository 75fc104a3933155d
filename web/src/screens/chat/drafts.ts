// Unsent text for each conversation, kept across reloads.

const STORAGE_PREFIX = "retinue.draft.";
const DRAFTS_MAX = 100;

export function loadDraft(session: string): string {
  try {
    return localStorage.getItem(STORAGE_PREFIX + session) ?? "";
  } catch {
    return "";
  }
}

export function saveDraft(session: string, text: string): void {
  try {
    if (text) localStorage.setItem(STORAGE_PREFIX + session, text);
    else localStorage.removeItem(STORAGE_PREFIX + session);
    const all = Object.keys(localStorage).filter((key) => key.startsWith(STORAGE_PREFIX));
    if (all.length > DRAFTS_MAX) localStorage.removeItem(all.find((key) => key !== STORAGE_PREFIX + session) ?? "");
  } catch {
    // the browser has no local storage
  }
}
