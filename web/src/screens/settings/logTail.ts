// Joins the newest page of a log to the entries that are already loaded.

export interface Entry {
  at: string;
  level: string;
  text: string;
}

/** The loaded entries followed by the new ones of a page; both are sorted oldest first. Null if the two do not overlap,
 * because too much was logged in between. */
export function appendNewest(loaded: Entry[], page: Entry[]): Entry[] | null {
  if (!loaded.length) return page;
  for (let length = Math.min(loaded.length, page.length); length > 0; length -= 1) {
    if (overlaps(loaded, page, length)) return length === page.length ? loaded : [...loaded, ...page.slice(length)];
  }
  return page.length ? null : loaded;
}

function overlaps(loaded: Entry[], page: Entry[], length: number): boolean {
  for (let i = 0; i < length; i += 1) {
    const [a, b] = [loaded[loaded.length - length + i], page[i]];
    if (a?.at !== b?.at || a?.text !== b?.text) return false;
  }
  return true;
}
