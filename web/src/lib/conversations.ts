// Open a conversation with an agent from any screen: its newest one, or a new one.

import { callOperation } from "./api";
import { server, type Session } from "./server.svelte";
import { path, router } from "./router.svelte";
import { attempt } from "./toasts.svelte";

/** Sessions in which people write. Sessions between agents and of schedules are read-only. */
const WITH_PEOPLE = new Set<Session["kind"]>(["web", "terminal", "chat"]);

export function findNewestConversation(agent: string): Session | undefined {
  return server.sessions.find((each) => each.agentId === agent && WITH_PEOPLE.has(each.kind));
}

/** Create a conversation and open it. */
export async function startConversation(agent: string): Promise<void> {
  const session = await attempt(() => callOperation("session.create", { agent }));
  if (!session) return;
  server.refreshSoon();
  router.go(path("chat", session.sessionId));
}

/** Open the newest conversation with an agent, or create one. */
export async function openConversation(agent: string): Promise<void> {
  const newest = findNewestConversation(agent);
  if (newest) router.go(path("chat", newest.sessionId));
  else await startConversation(agent);
}
