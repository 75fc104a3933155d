// A line diff of two texts: removed lines, added lines, and a few unchanged lines around them.

export type DiffLine = { kind: "same" | "added" | "removed"; text: string } | { kind: "gap"; count: number };

const CONTEXT_LINES = 3;
/** Above this number of line pairs, the middle is shown as one block: comparing would take seconds. */
const PAIRS_MAX = 4_000_000;

export function diffLines(old: string, now: string): DiffLine[] {
  const a = old.split("\n");
  const b = now.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const lines: DiffLine[] = [
    ...a.slice(0, head).map(same),
    ...diffMiddle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(same),
  ];
  return foldUnchanged(lines);
}

function same(text: string): DiffLine {
  return { kind: "same", text };
}

/** Longest common subsequence by dynamic programming. */
function diffMiddle(a: string[], b: string[]): DiffLine[] {
  if (a.length * b.length > PAIRS_MAX) return [...a.map(removed), ...b.map(added)];
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i * width + j] =
        a[i] === b[j] ? at(common, (i + 1) * width + j + 1) + 1 : Math.max(at(common, (i + 1) * width + j), at(common, i * width + j + 1));
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push(same(a[i++] ?? ""));
      j++;
    } else if (i < a.length && (j >= b.length || at(common, (i + 1) * width + j) >= at(common, i * width + j + 1))) lines.push(removed(a[i++] ?? ""));
    else lines.push(added(b[j++] ?? ""));
  }
  return lines;
}

function at(table: Uint32Array, index: number): number {
  return table[index] ?? 0;
}

function removed(text: string): DiffLine {
  return { kind: "removed", text };
}

function added(text: string): DiffLine {
  return { kind: "added", text };
}

function foldUnchanged(lines: DiffLine[]): DiffLine[] {
  const isNearChange = lines.map((_, i) => lines.slice(Math.max(0, i - CONTEXT_LINES), i + CONTEXT_LINES + 1).some((each) => each.kind !== "same"));
  if (!isNearChange.some(Boolean)) return lines;
  const shown: DiffLine[] = [];
  let skipped = 0;
  for (const [i, line] of lines.entries()) {
    if (isNearChange[i]) {
      if (skipped) shown.push({ kind: "gap", count: skipped });
      skipped = 0;
      shown.push(line);
    } else skipped++;
  }
  if (skipped) shown.push({ kind: "gap", count: skipped });
  return shown;
}
