// The timeline of a run. Long pauses are folded: otherwise an hour of waiting for an answer would leave no space for a
// second of work.

import type { Result } from "../../lib/api";

export type TraceEntry = Result<"run.trace">["entries"][number];
export type Row = "model" | "tool" | "approval" | "suspended";

export interface Bar {
  entry: number;
  row: Row;
  /** As a fraction of the width. */
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

const ROWS: Row[] = ["model", "tool", "approval", "suspended"];
const FOLD_FROM_MS = 5_000;
const MARKS = 5;

export function buildTimeline(entries: TraceEntry[], startMs: number, endMs: number): Timeline {
  const spans = entries.flatMap((entry, i) => buildSpans(entry, i, entries, endMs));
  const end = Math.max(endMs, startMs + 1, ...spans.map((span) => span.to));
  const busy = mergeSpans(spans.filter((span) => span.row === "model" || span.row === "tool"), startMs, end);
  const busyMs = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const pauseMax = Math.max(1_000, busyMs * 0.15); // the longest pause that is shown in full

  // Intervals of time, each with the space it gets.
  const intervals: { from: number; to: number; space: number }[] = [];
  let at = startMs;
  for (const [from, to] of [...busy, [end, end] as const]) {
    if (from > at) intervals.push({ from: at, to: from, space: from - at > FOLD_FROM_MS ? Math.min(from - at, pauseMax) : from - at });
    if (to > from) intervals.push({ from, to, space: to - from });
    at = Math.max(at, to);
  }
  const space = intervals.reduce((sum, interval) => sum + interval.space, 0) || 1;

  const position = (ms: number): number => {
    let used = 0;
    for (const interval of intervals) {
      if (ms <= interval.to) return (used + (Math.max(0, ms - interval.from) / (interval.to - interval.from || 1)) * interval.space) / space;
      used += interval.space;
    }
    return 1;
  };

  return {
    bars: spans.map((span) => ({ entry: span.entry, row: span.row, left: position(span.from), width: position(span.to) - position(span.from), ms: span.to - span.from })),
    folds: intervals.filter((interval) => interval.space < interval.to - interval.from).map((interval) => ({ at: (position(interval.from) + position(interval.to)) / 2, ms: interval.to - interval.from })),
    marks: buildMarks(intervals, space, startMs),
    rows: ROWS.filter((row) => spans.some((span) => span.row === row)),
    totalMs: end - startMs,
  };
}

interface Span {
  entry: number;
  row: Row;
  from: number;
  to: number;
}

function buildSpans(entry: TraceEntry, i: number, entries: TraceEntry[], endMs: number): Span[] {
  const from = entry.at_ms;
  switch (entry.type) {
    case "model":
    case "tool":
    case "approval":
      return [{ entry: i, row: entry.type, from, to: Math.max(from, entry.ended_ms ?? endMs) }];
    case "suspended": {
      const resumed = entries.slice(i).find((each) => each.type === "resumed");
      return [{ entry: i, row: "suspended", from, to: Math.max(from, resumed?.at_ms ?? endMs) }];
    }
    default:
      return [];
  }
}

function mergeSpans(spans: Span[], start: number, end: number): (readonly [number, number])[] {
  const found: [number, number][] = [];
  for (const { from, to } of spans.toSorted((a, b) => a.from - b.from)) {
    const [first, stop] = [Math.max(start, from), Math.min(end, to)];
    const last = found.at(-1);
    if (last && first <= last[1]) last[1] = Math.max(last[1], stop);
    else found.push([first, stop]);
  }
  return found;
}

/** Labels of the time axis: evenly spaced, each with its time since the start of the run. */
function buildMarks(intervals: { from: number; to: number; space: number }[], space: number, start: number): { at: number; ms: number }[] {
  return Array.from({ length: MARKS }, (_, i) => {
    const wanted = (i / (MARKS - 1)) * space;
    let used = 0;
    for (const interval of intervals) {
      if (wanted <= used + interval.space) return { at: wanted / space, ms: interval.from + ((wanted - used) / (interval.space || 1)) * (interval.to - interval.from) - start };
      used += interval.space;
    }
    return { at: 1, ms: (intervals.at(-1)?.to ?? start) - start };
  });
}
