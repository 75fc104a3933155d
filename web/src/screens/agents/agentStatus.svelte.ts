// Status and conversation counts of the agents, from the state of the server.

import { server } from "../../lib/server.svelte";

/** Maximum number of sessions in the server state. If it is reached, counts are lower bounds. */
const SESSIONS_MAX = 50;

export type AgentStatus = "working" | "waiting" | "idle";

export function getAgentStatus(name: string): AgentStatus {
  if (server.approvals.some((each) => each.agent === name)) return "waiting";
  return server.sessions.some((each) => each.agentId === name && server.running.has(each.sessionId)) ? "working" : "idle";
}

export function countConversations(name: string): { count: number; more: boolean } {
  const count = server.sessions.filter((each) => each.agentId === name).length;
  return { count, more: server.sessions.length >= SESSIONS_MAX };
}

export function canEdit(): boolean {
  return server.level === "privileged" || server.level === "boss";
}

export function isBoss(): boolean {
  return server.level === "boss";
}
