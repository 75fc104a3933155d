// What a call would change in a text, where it is a tool whose arguments we know.

import { ask } from "../../lib/api";
import type { Approval } from "../../lib/house.svelte";

type Call = Approval["calls"][number];

export interface Change {
  old: string;
  now: string;
}

const OLD = ["old", "old_string", "old_text", "oldText"];
const NEW = ["new", "new_string", "new_text", "newText"];

/** The places that `edit` would change; null for any other call, and for one that is not as it should be. */
export function edits(call: Call): Change[] | null {
  if (call.tool !== "edit") return null;
  const given = call.arguments ?? {};
  const list = Array.isArray(given["edits"]) && given["edits"].length ? (given["edits"] as unknown[]) : [given];
  const found = list.map(changeIn);
  return found.every((each) => each !== null) ? found : null;
}

function changeIn(given: unknown): Change | null {
  if (typeof given !== "object" || given === null) return null;
  const old = only(given, OLD);
  const now = only(given, NEW);
  return old === null || now === null ? null : { old, now };
}

/** The text under one of these names; null where there is none, or two that differ. */
function only(given: object, names: string[]): string | null {
  const found = new Set(names.map((name) => (given as Record<string, unknown>)[name]).filter((each) => each !== undefined && each !== null));
  const [text] = found;
  return found.size === 1 && typeof text === "string" ? text : null;
}

export interface Written {
  path: string;
  content: string;
  append: boolean;
}

export function written(call: Call): Written | null {
  if (call.tool !== "write") return null;
  const { path, content, append } = call.arguments ?? {};
  return typeof path === "string" && typeof content === "string" ? { path, content, append: append === true } : null;
}

/** What the file says now, where it is one of those that the agent's home shows. Null where that cannot be told. */
export async function contentNow(agent: string, path: string): Promise<string | null> {
  if (path.startsWith("/") || path.startsWith("~")) return null;
  const inHome = path.replace(/^(\.\/)+/, "");
  try {
    const { files } = await ask("agent.files", { name: agent });
    if (!files.some((each) => each.path === inHome)) return null;
    return (await ask("agent.file", { name: agent, path: inHome })).content;
  } catch {
    return null;
  }
}
