// The acts of a run as steps of a list.

import type { Result } from "../../../lib/api";
import { parseAddressName } from "../../../lib/format";
import type { IconName } from "../../../parts/icons";
import { panelTypeStrings } from "../../../strings/panel-types";

type Act = Result<"run.trace">["acts"][number];

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

export function buildSteps(acts: readonly Act[]): Step[] {
  return acts.map(buildStep);
}

function buildStep(act: Act, at: number): Step {
  const { step, compaction } = panelTypeStrings.run;
  const durationMs = "ended-ms" in act && act["ended-ms"] !== null ? act["ended-ms"] - act["at-ms"] : null;
  const base = { because: "", outcome: "", durationMs, id: `${at + 1}` };
  switch (act.act) {
    case "model":
      return { ...base, id: `${act.turn}.${act.attempt}`, icon: "thought", what: step.model, name: act.model, because: act.error ?? (act.summary ? compaction : ""), outcome: act.came };
    case "tool":
      return { ...base, id: act.call, icon: "tool", what: step.tool, name: act.tool, because: act.came === "refused" ? act.because : "", outcome: act.came };
    case "approval":
      return { ...base, id: act.approval, icon: "shield", what: step.approval, name: act.state, because: act.because };
    case "envelope-read":
      return { ...base, id: act.envelope, icon: "chat", what: step.read, name: parseAddressName(act.from) };
    case "envelope-sent":
      return { ...base, id: act.envelope, icon: "send", what: step.sent, name: parseAddressName(act.to) };
    case "parked":
      return { ...base, icon: "clock", what: step.parked, name: "", because: act.because };
    case "resumed":
      return { ...base, icon: "right", what: step.resumed, name: "", because: act.because };
  }
}
