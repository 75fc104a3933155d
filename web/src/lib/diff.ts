// Two texts, line by line: what was taken out, what was put in, and a little of what stayed around it.

export type Line = { kind: "same" | "added" | "removed"; text: string } | { kind: "gap"; count: number };

const AROUND = 3;
/** Above so many pairs of lines, what differs in the middle is shown as one block: comparing would take seconds. */
const PAIRS_MAX = 4_000_000;

export function diff(old: string, now: string): Line[] {
  const a = old.split("\n");
  const b = now.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const lines: Line[] = [
    ...a.slice(0, head).map(same),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(same),
  ];
  return folded(lines);
}

function same(text: string): Line {
  return { kind: "same", text };
}

/** The longest that both have in common, by the table that every book has. */
function middle(a: string[], b: string[]): Line[] {
  if (a.length * b.length > PAIRS_MAX) return [...a.map(removed), ...b.map(added)];
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      common[i * width + j] =
        a[i] === b[j] ? at(common, (i + 1) * width + j + 1) + 1 : Math.max(at(common, (i + 1) * width + j), at(common, i * width + j + 1));
  const lines: Line[] = [];
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

function removed(text: string): Line {
  return { kind: "removed", text };
}

function added(text: string): Line {
  return { kind: "added", text };
}

function folded(lines: Line[]): Line[] {
  const near = lines.map((_, i) => lines.slice(Math.max(0, i - AROUND), i + AROUND + 1).some((each) => each.kind !== "same"));
  if (!near.some(Boolean)) return lines;
  const shown: Line[] = [];
  let left = 0;
  for (const [i, line] of lines.entries()) {
    if (near[i]) {
      if (left) shown.push({ kind: "gap", count: left });
      left = 0;
      shown.push(line);
    } else left++;
  }
  if (left) shown.push({ kind: "gap", count: left });
  return shown;
}
