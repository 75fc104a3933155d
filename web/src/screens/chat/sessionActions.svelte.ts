// Actions on conversations, and the order in which conversations are listed.

import { callOperation } from "../../lib/api";
import { server, type Session } from "../../lib/server.svelte";
import { path, router } from "../../lib/router.svelte";
import { attempt, toasts } from "../../lib/toasts.svelte";
import { replaceBidiControls } from "../../lib/format";
import { chat } from "../../strings/chat";
import { frame } from "../../strings/frame";

export { startConversation } from "../../lib/conversations";

const UNDO_MS = 12_000;
const PAGES_MAX = 100;

export function getTitle(session: Session): string {
  return replaceBidiControls(session.name ?? session.lastSnippet.replace(/[`*#>|]+/g, "").trim()) || chat.unnamed;
}

/** Agents in the order of their newest conversation, each with its matching conversations, the pinned ones first. Agents
 * without a conversation come last. */
export function groupSessions(search: string): { agent: string; sessions: Session[] }[] {
  const byAgent = new Map<string, Session[]>();
  for (const session of server.sessions) {
    if (!matches(session, search)) continue;
    const list = byAgent.get(session.agentId);
    if (list) list.push(session);
    else byAgent.set(session.agentId, [session]);
  }
  if (!search.trim()) for (const agent of server.agents) if (!byAgent.has(agent.name)) byAgent.set(agent.name, []);
  return [...byAgent].map(([agent, sessions]) => ({ agent, sessions: sessions.toSorted(comparePinned) }));
}

/** All conversations in the order of the list. */
export function listSessionsInOrder(search: string): Session[] {
  return groupSessions(search).flatMap((group) => group.sessions);
}

function comparePinned(a: Session, b: Session): number {
  return (b.pinnedAt ? Date.parse(b.pinnedAt) : 0) - (a.pinnedAt ? Date.parse(a.pinnedAt) : 0);
}

function matches(session: Session, search: string): boolean {
  const all = `${getTitle(session)} ${session.lastSnippet} ${session.agentId}`.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}

/** Load all sessions, to search them. */
export async function loadAllSessions(): Promise<void> {
  for (let pages = 0; server.hasMoreSessions && pages < PAGES_MAX; pages++) await server.loadOlderSessions();
}

/** Load older sessions until the one with this id is known. */
export async function loadSession(id: string): Promise<void> {
  for (let pages = 0; !server.session(id) && server.hasMoreSessions && pages < PAGES_MAX; pages++) await server.loadOlderSessions();
}

export async function rename(session: Session, name: string | null): Promise<void> {
  await callOperation("session.rename", { session: session.sessionId, name });
  server.refreshSoon();
}

export async function pin(session: Session): Promise<void> {
  await attempt(() => callOperation(session.pinnedAt ? "session.unpin" : "session.pin", { session: session.sessionId }));
  server.refreshSoon();
}

export async function remove(session: Session): Promise<void> {
  const done = await attempt(() => callOperation("session.delete", { session: session.sessionId }));
  if (!done) return;
  server.removeSession(session.sessionId);
  if (router.parts[1] === session.sessionId) router.go("/chat", { replace: true });
  const undo = async (): Promise<void> => {
    if (!(await attempt(() => callOperation("session.restore", { session: session.sessionId })))) return;
    server.refreshSoon();
    router.go(path("chat", session.sessionId));
    toasts.show(chat.restored);
  };
  toasts.show(chat.deleted(getTitle(session)), { label: frame.undo, run: () => void undo() }, { forMs: UNDO_MS });
}

export async function exportSession(session: Session): Promise<void> {
  const content = await attempt(() => callOperation("session.export", { session: session.sessionId }));
  if (!content) return;
  const file = new Blob([JSON.stringify(content, null, 2)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = `${getTitle(session).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
