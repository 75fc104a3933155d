// What one does with a schedule, from whichever row or page.

import { ask, type Answered } from "../../lib/api";
import { attempt, toasts } from "../../lib/toasts.svelte";
import { nameIn } from "../../lib/words";
import { schedulesWords as s } from "../../strings/schedules";
import { spoken } from "./times";

export type Shown = Answered<"schedule.show">;

/** News after which schedules are looked at again. That one is at work is told by its run. */
export const CHANGES = ["schedule.changed", "heartbeat.changed", "run.started"];

const NAME_LENGTH = 60;

/** Its name; of one without a name, the beginning of what it says. */
export function called(schedule: { name: string; kind: string; to: string; text: string; when: string }): string {
  if (schedule.name) return schedule.name;
  if (schedule.kind === "heartbeat") return s.heartbeatOf(nameIn(schedule.to));
  const [line = ""] = schedule.text.trim().split("\n");
  return line.length > NAME_LENGTH ? `${line.slice(0, NAME_LENGTH)}…` : line || spoken(schedule.when);
}

/** A heartbeat goes by the settings and its checklist: it is neither changed nor deleted as a schedule. */
export const isHeartbeat = (schedule: Shown): boolean => schedule.kind === "heartbeat";

export async function run(schedule: Shown, force = false): Promise<void> {
  const told = await attempt(() => ask("schedule.run", { schedule: schedule.id, force }));
  if (told?.begun) toasts.say(s.begun(called(schedule)));
  else if (told) toasts.say(s.notBegun(spoken(told.because)), { label: s.anyway, run: () => void run(schedule, true) });
}

export async function turn(schedule: Shown, on: boolean): Promise<void> {
  const told = await attempt(() => ask(on ? "schedule.enable" : "schedule.disable", { schedule: schedule.id }));
  if (told) toasts.say((told.enabled ? s.enabled : s.disabled)(called(schedule)));
}

export async function remove(schedule: Shown): Promise<void> {
  await ask("schedule.delete", { schedule: schedule.id });
  toasts.say(s.removed(called(schedule)));
}
