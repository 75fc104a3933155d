// The changes that a call of the tools edit and write would make.

import { callOperation } from "../../lib/api";
import type { Approval } from "../../lib/server.svelte";

type Call = Approval["calls"][number];

export interface Change {
  old: string;
  now: string;
}

const OLD = ["old", "old_string", "old_text", "oldText"];
const NEW = ["new", "new_string", "new_text", "newText"];

/** The replacements of a call of `edit`. Null for any other tool, or if the arguments are invalid. */
export function parseEdits(call: Call): Change[] | null {
  if (call.tool !== "edit") return null;
  const values = call.arguments ?? {};
  const list = Array.isArray(values["edits"]) && values["edits"].length ? (values["edits"] as unknown[]) : [values];
  const found = list.map(parseChange);
  return found.every((each) => each !== null) ? found : null;
}

function parseChange(values: unknown): Change | null {
  if (typeof values !== "object" || values === null) return null;
  const old = findText(values, OLD);
  const now = findText(values, NEW);
  return old === null || now === null ? null : { old, now };
}

/** The text of the argument with one of these names. Null if there is none, or if two differ. */
function findText(values: object, names: string[]): string | null {
  const found = new Set(names.map((name) => (values as Record<string, unknown>)[name]).filter((each) => each !== undefined && each !== null));
  const [text] = found;
  return found.size === 1 && typeof text === "string" ? text : null;
}

export interface FileWrite {
  path: string;
  content: string;
  append: boolean;
}

export function parseWrite(call: Call): FileWrite | null {
  if (call.tool !== "write") return null;
  const { path, content, append } = call.arguments ?? {};
  return typeof path === "string" && typeof content === "string" ? { path, content, append: append === true } : null;
}

/** The current content of a file in the agent directory. Null if it cannot be read. */
export async function readCurrentContent(agent: string, path: string): Promise<string | null> {
  if (path.startsWith("/") || path.startsWith("~")) return null;
  const relativePath = path.replace(/^(\.\/)+/, "");
  try {
    const { files } = await callOperation("agent.files", { name: agent });
    if (!files.some((each) => each.path === relativePath)) return null;
    return (await callOperation("agent.file", { name: agent, path: relativePath })).content;
  } catch {
    return null;
  }
}
