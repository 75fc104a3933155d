// The trace of a run as steps of a list.

import type { Result } from "../../../lib/api";
import { parseAddressName } from "../../../lib/format";
import type { IconName } from "../../../parts/icons";
import { panelTypeStrings } from "../../../strings/panel-types";

type TraceEntry = Result<"run.trace">["entries"][number];

export interface Step {
  id: string;
  icon: IconName;
  /** The kind of step, as text. The tool, model or address is in `name`. */
  what: string;
  name: string;
  because: string;
  outcome: string;
  durationMs: number | null;
}

export function buildSteps(entries: readonly TraceEntry[]): Step[] {
  return entries.map(buildStep);
}

function buildStep(entry: TraceEntry, at: number): Step {
  const { step, compaction } = panelTypeStrings.run;
  const durationMs = "ended_ms" in entry && entry.ended_ms !== null ? entry.ended_ms - entry.at_ms : null;
  const base = { because: "", outcome: "", durationMs, id: `${at + 1}` };
  switch (entry.type) {
    case "model":
      return { ...base, id: `${entry.turn}.${entry.attempt}`, icon: "thought", what: step.model, name: entry.model, because: entry.error ?? (entry.summary ? compaction : ""), outcome: entry.status };
    case "tool":
      return { ...base, id: entry.call, icon: "tool", what: step.tool, name: entry.tool, because: entry.status === "refused" ? entry.because : "", outcome: entry.status };
    case "approval":
      return { ...base, id: entry.approval, icon: "shield", what: step.approval, name: entry.state, because: entry.because };
    case "envelope_read":
      return { ...base, id: entry.envelope, icon: "chat", what: step.read, name: parseAddressName(entry.from) };
    case "envelope_sent":
      return { ...base, id: entry.envelope, icon: "send", what: step.sent, name: parseAddressName(entry.to) };
    case "suspended":
      return { ...base, icon: "clock", what: step.suspended, name: "", because: entry.because };
    case "resumed":
      return { ...base, icon: "right", what: step.resumed, name: "", because: entry.because };
  }
}
