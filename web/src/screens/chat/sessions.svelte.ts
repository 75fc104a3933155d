// What can be done with a conversation, wherever it is shown.

import { ask } from "../../lib/api";
import { house, type Session } from "../../lib/house.svelte";
import { path, router } from "../../lib/router.svelte";
import { attempt, toasts } from "../../lib/toasts.svelte";
import { chat } from "../../strings/chat";
import { frame } from "../../strings/frame";

const UNDO_MS = 12_000;

export function titleOf(session: Session): string {
  return session.name ?? (withoutTags(session.lastSnippet) || chat.unnamed);
}

function withoutTags(text: string): string {
  return text.replace(/^<context[^\n]*\n?/, "");
}

export async function begin(agent: string): Promise<void> {
  const made = await attempt(() => ask("session.create", { agent }));
  if (!made) return;
  house.look();
  router.go(path("chat", made.sessionId));
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
