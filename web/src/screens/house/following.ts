// The newest page of a log, put to what is already known of it.

export interface Entry {
  at: string;
  level: string;
  text: string;
}

/** What is known, oldest first, and after it what a newer page (oldest first) has beyond it. Null where the two do not
 * meet: so much was logged in between that the page begins later. */
export function joined(known: Entry[], page: Entry[]): Entry[] | null {
  if (!known.length) return page;
  for (let length = Math.min(known.length, page.length); length > 0; length -= 1) {
    if (meets(known, page, length)) return length === page.length ? known : [...known, ...page.slice(length)];
  }
  return page.length ? null : known;
}

function meets(known: Entry[], page: Entry[], length: number): boolean {
  for (let i = 0; i < length; i += 1) {
    const [a, b] = [known[known.length - length + i], page[i]];
    if (a?.at !== b?.at || a?.text !== b?.text) return false;
  }
  return true;
}
