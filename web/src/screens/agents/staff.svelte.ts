// Who works here and what each is about, from what the page knows of the house.

import { house } from "../../lib/house.svelte";

/** As many as the house tells of at once: beyond, a count is only the least there are. */
const SESSIONS_TOLD = 50;

export type Doing = "working" | "waiting" | "idle";

export function doing(name: string): Doing {
  if (house.approvals.some((each) => each.agent === name)) return "waiting";
  return house.sessions.some((each) => each.agentId === name && house.running.has(each.sessionId)) ? "working" : "idle";
}

export function conversations(name: string): { count: number; more: boolean } {
  const count = house.sessions.filter((each) => each.agentId === name).length;
  return { count, more: house.sessions.length >= SESSIONS_TOLD };
}

export function mayChange(): boolean {
  return house.level === "privileged" || house.level === "boss";
}

export function isBoss(): boolean {
  return house.level === "boss";
}
