// What can be done with a conversation, wherever it is shown.

import { ask } from "../../lib/api";
import { house, type Session } from "../../lib/house.svelte";
import { path, router } from "../../lib/router.svelte";
import { attempt, toasts } from "../../lib/toasts.svelte";
import { unturned } from "../../lib/words";
import { chat } from "../../strings/chat";
import { frame } from "../../strings/frame";

export { begin } from "../../lib/talk";

const UNDO_MS = 12_000;
const PAGES_MAX = 100;

export function titleOf(session: Session): string {
  return unturned(session.name ?? session.lastSnippet.replace(/[`*#>|]+/g, "").trim()) || chat.unnamed;
}

/** Agents in the order of their newest conversation, each with those that fit, the pinned ones first; agents without
 * one come after them, to be begun with. */
export function groups(words: string): { agent: string; sessions: Session[] }[] {
  const byAgent = new Map<string, Session[]>();
  for (const session of house.sessions) {
    if (!fits(session, words)) continue;
    const list = byAgent.get(session.agentId);
    if (list) list.push(session);
    else byAgent.set(session.agentId, [session]);
  }
  if (!words.trim()) for (const agent of house.agents) if (!byAgent.has(agent.name)) byAgent.set(agent.name, []);
  return [...byAgent].map(([agent, sessions]) => ({ agent, sessions: sessions.toSorted(pinnedFirst) }));
}

/** As they stand in the list, one after the other. */
export function inOrder(words: string): Session[] {
  return groups(words).flatMap((group) => group.sessions);
}

function pinnedFirst(a: Session, b: Session): number {
  return (b.pinnedAt ? Date.parse(b.pinnedAt) : 0) - (a.pinnedAt ? Date.parse(a.pinnedAt) : 0);
}

function fits(session: Session, typed: string): boolean {
  const all = `${titleOf(session)} ${session.lastSnippet} ${session.agentId}`.toLowerCase();
  return typed.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}

/** All of them, to be looked through. */
export async function everySession(): Promise<void> {
  for (let pages = 0; house.more && pages < PAGES_MAX; pages++) await house.older();
}

/** Have one known that is not among those used lately. */
export async function find(id: string): Promise<void> {
  for (let pages = 0; !house.session(id) && house.more && pages < PAGES_MAX; pages++) await house.older();
}

export async function rename(session: Session, name: string | null): Promise<void> {
  await ask("session.rename", { session: session.sessionId, name });
  house.look();
}

export async function pin(session: Session): Promise<void> {
  await attempt(() => ask(session.pinnedAt ? "session.unpin" : "session.pin", { session: session.sessionId }));
  house.look();
}

export async function remove(session: Session): Promise<void> {
  const done = await attempt(() => ask("session.delete", { session: session.sessionId }));
  if (!done) return;
  house.forget(session.sessionId);
  if (router.parts[1] === session.sessionId) router.go("/chat", { replace: true });
  const undo = async (): Promise<void> => {
    if (!(await attempt(() => ask("session.restore", { session: session.sessionId })))) return;
    house.look();
    router.go(path("chat", session.sessionId));
    toasts.say(chat.restored);
  };
  toasts.say(chat.deleted(titleOf(session)), { label: frame.undo, run: () => void undo() }, { forMs: UNDO_MS });
}

export async function exported(session: Session): Promise<void> {
  const given = await attempt(() => ask("session.export", { session: session.sessionId }));
  if (!given) return;
  const file = new Blob([JSON.stringify(given, null, 2)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = `${titleOf(session).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
