// Actions on a schedule, shared by the list and the details.

import { callOperation, type Result } from "../../lib/api";
import { attempt, toasts } from "../../lib/toasts.svelte";
import { parseAddressName } from "../../lib/format";
import { schedules as s } from "../../strings/schedules";
import { localizeTimes } from "./times";

export type Shown = Result<"schedule.show">;

/** Events after which schedules are loaded again. The start of a run shows that a schedule is running. */
export const SCHEDULE_EVENTS = ["schedule.changed", "heartbeat.changed", "run.started"];

const TITLE_CHARS = 60;

/** The name of a schedule, or the start of its text. */
export function getScheduleTitle(schedule: { name: string; kind: string; to: string; text: string; when: string }): string {
  if (schedule.name) return schedule.name;
  if (schedule.kind === "heartbeat") return s.heartbeatOf(parseAddressName(schedule.to));
  const [line = ""] = schedule.text.trim().split("\n");
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS)}…` : line || localizeTimes(schedule.when);
}

/** A heartbeat is defined by the agent and its checklist, so it cannot be edited or deleted as a schedule. */
export const isHeartbeat = (schedule: Shown): boolean => schedule.kind === "heartbeat";

export async function run(schedule: Shown, force = false): Promise<void> {
  const result = await attempt(() => callOperation("schedule.run", { schedule: schedule.id, force }));
  if (result?.started) toasts.show(s.started(getScheduleTitle(schedule)));
  else if (result) toasts.show(s.skipped(localizeTimes(result.because)), { label: s.force, run: () => void run(schedule, true) });
}

export async function setEnabled(schedule: Shown, on: boolean): Promise<void> {
  const result = await attempt(() => callOperation(on ? "schedule.enable" : "schedule.disable", { schedule: schedule.id }));
  if (result) toasts.show((result.enabled ? s.resumed : s.pausedToast)(getScheduleTitle(schedule)));
}

export async function remove(schedule: Shown): Promise<void> {
  await callOperation("schedule.delete", { schedule: schedule.id });
  toasts.show(s.removed(getScheduleTitle(schedule)));
}
