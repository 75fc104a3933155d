// The acts of a run as steps that one reads down.

import type { Answered } from "../../../lib/api";
import { nameIn } from "../../../lib/words";
import type { IconName } from "../../../parts/icons";
import { inPanels } from "../../../strings/panel-types";

type Act = Answered<"run.trace">["acts"][number];

export interface Step {
  id: string;
  icon: IconName;
  /** What was done, and to what or whom. */
  what: string;
  name: string;
  because: string;
  came: string;
  took: number | null;
}

export function stepsOf(acts: readonly Act[]): Step[] {
  return acts.map(stepOf);
}

function stepOf(act: Act, at: number): Step {
  const { step, summary } = inPanels.run;
  const took = "ended-ms" in act && act["ended-ms"] !== null ? act["ended-ms"] - act["at-ms"] : null;
  const of = { because: "", came: "", took, id: `${at + 1}` };
  switch (act.act) {
    case "model":
      return { ...of, id: `${act.turn}.${act.attempt}`, icon: "thought", what: step.model, name: act.model, because: act.error ?? (act.summary ? summary : ""), came: act.came };
    case "tool":
      return { ...of, id: act.call, icon: "tool", what: step.tool, name: act.tool, because: act.came === "refused" ? act.because : "", came: act.came };
    case "approval":
      return { ...of, id: act.approval, icon: "hand", what: step.approval, name: act.state, because: act.because };
    case "envelope-read":
      return { ...of, id: act.envelope, icon: "chat", what: step.read, name: nameIn(act.from) };
    case "envelope-sent":
      return { ...of, id: act.envelope, icon: "send", what: step.sent, name: nameIn(act.to) };
    case "parked":
      return { ...of, icon: "clock", what: step.parked, name: "", because: act.because };
    case "resumed":
      return { ...of, icon: "right", what: step.resumed, name: "", because: act.because };
  }
}
