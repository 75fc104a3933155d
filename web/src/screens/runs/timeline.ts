// A run along a line of time. Long rests, in which nothing happens, are folded: else an hour of waiting for an answer
// would leave no room for the second in which the work was done.

import type { Answered } from "../../lib/api";

export type Act = Answered<"run.trace">["acts"][number];
export type Row = "model" | "tool" | "approval" | "parked";

export interface Bar {
  act: number;
  row: Row;
  /** In parts of the whole. */
  left: number;
  width: number;
  ms: number;
}

export interface Fold {
  at: number;
  ms: number;
}

export interface Timeline {
  bars: Bar[];
  folds: Fold[];
  marks: { at: number; ms: number }[];
  rows: Row[];
  totalMs: number;
}

const ROWS: Row[] = ["model", "tool", "approval", "parked"];
const FOLD_FROM_MS = 5_000;
const MARKS = 5;

export function timelineOf(acts: Act[], beginMs: number, endMs: number): Timeline {
  const spans = acts.flatMap((act, i) => spanOf(act, i, acts, endMs));
  const end = Math.max(endMs, beginMs + 1, ...spans.map((span) => span.to));
  const busy = merged(spans.filter((span) => span.row === "model" || span.row === "tool"), beginMs, end);
  const busyMs = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const most = Math.max(1_000, busyMs * 0.15); // of a rest that is shown

  // Pieces of time, each with how much room it gets.
  const pieces: { from: number; to: number; room: number }[] = [];
  let at = beginMs;
  for (const [from, to] of [...busy, [end, end] as const]) {
    if (from > at) pieces.push({ from: at, to: from, room: from - at > FOLD_FROM_MS ? Math.min(from - at, most) : from - at });
    if (to > from) pieces.push({ from, to, room: to - from });
    at = Math.max(at, to);
  }
  const room = pieces.reduce((sum, piece) => sum + piece.room, 0) || 1;

  const place = (ms: number): number => {
    let gone = 0;
    for (const piece of pieces) {
      if (ms <= piece.to) return (gone + (Math.max(0, ms - piece.from) / (piece.to - piece.from || 1)) * piece.room) / room;
      gone += piece.room;
    }
    return 1;
  };

  return {
    bars: spans.map((span) => ({ act: span.act, row: span.row, left: place(span.from), width: place(span.to) - place(span.from), ms: span.to - span.from })),
    folds: pieces.filter((piece) => piece.room < piece.to - piece.from).map((piece) => ({ at: (place(piece.from) + place(piece.to)) / 2, ms: piece.to - piece.from })),
    marks: marksOf(pieces, room, beginMs),
    rows: ROWS.filter((row) => spans.some((span) => span.row === row)),
    totalMs: end - beginMs,
  };
}

interface Span {
  act: number;
  row: Row;
  from: number;
  to: number;
}

function spanOf(act: Act, i: number, acts: Act[], endMs: number): Span[] {
  const from = act["at-ms"];
  switch (act.act) {
    case "model":
    case "tool":
    case "approval":
      return [{ act: i, row: act.act, from, to: Math.max(from, act["ended-ms"] ?? endMs) }];
    case "parked": {
      const resumed = acts.slice(i).find((each) => each.act === "resumed");
      return [{ act: i, row: "parked", from, to: Math.max(from, resumed?.["at-ms"] ?? endMs) }];
    }
    default:
      return [];
  }
}

function merged(spans: Span[], begin: number, end: number): (readonly [number, number])[] {
  const found: [number, number][] = [];
  for (const { from, to } of spans.toSorted((a, b) => a.from - b.from)) {
    const [start, stop] = [Math.max(begin, from), Math.min(end, to)];
    const last = found.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], stop);
    else found.push([start, stop]);
  }
  return found;
}

/** Moments to write below: evenly over the room, each with how long after the beginning it is. */
function marksOf(pieces: { from: number; to: number; room: number }[], room: number, begin: number): { at: number; ms: number }[] {
  return Array.from({ length: MARKS }, (_, i) => {
    const wanted = (i / (MARKS - 1)) * room;
    let gone = 0;
    for (const piece of pieces) {
      if (wanted <= gone + piece.room) return { at: wanted / room, ms: piece.from + ((wanted - gone) / (piece.room || 1)) * (piece.to - piece.from) - begin };
      gone += piece.room;
    }
    return { at: 1, ms: (pieces.at(-1)?.to ?? begin) - begin };
  });
}
