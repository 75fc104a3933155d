// Lists that are read a page at a time, newest first, and read again while they are shown.

/** The rows to keep below a first page that was read again: those it no longer reaches. None where the page does not
 * reach any row that is shown, because then the rows in between are missing: the list starts over from the page. */
export function keepRowsBelow<Row extends { id: string }>(shown: Row[] | null, page: Row[], next: string | null): Row[] {
  if (!shown || next === null) return [];
  const ids = new Set(page.map((row) => row.id));
  const last = shown.findLastIndex((row) => ids.has(row.id));
  return last < 0 ? [] : shown.slice(last + 1);
}
