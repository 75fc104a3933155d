// To talk to an agent from wherever one is: in its newest conversation, or in a new one.

import { ask } from "./api";
import { house, type Session } from "./house.svelte";
import { path, router } from "./router.svelte";
import { attempt } from "./toasts.svelte";

/** Where people talk. What agents and schedules say to each other is read, and not answered in. */
const WITH_PEOPLE = new Set<Session["kind"]>(["web", "terminal", "chat"]);

export function newestWith(agent: string): Session | undefined {
  return house.sessions.find((each) => each.agentId === agent && WITH_PEOPLE.has(each.kind));
}

/** A new conversation. */
export async function begin(agent: string): Promise<void> {
  const made = await attempt(() => ask("session.create", { agent }));
  if (!made) return;
  house.look();
  router.go(path("chat", made.sessionId));
}

/** Go on where one was, or begin. */
export async function talkTo(agent: string): Promise<void> {
  const known = newestWith(agent);
  if (known) router.go(path("chat", known.sessionId));
  else await begin(agent);
}
