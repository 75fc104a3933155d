// Changes of the settings that are not saved yet. They outlive a look at another part of the house.

import type { Answered } from "../../lib/api";

export type Setting = Answered<"config.fields">["sections"][number]["settings"][number];
export type Fault = Answered<"config.preview">["faults"][number];
/** Null takes the key out of the file. */
export type Value = string | number | boolean | string[] | null;

const BARE = /^[A-Za-z0-9_-]+$/;

/** As the house writes a path: `house.listen.port`. */
export function dotted(path: string[]): string {
  return path.map((part) => (BARE.test(part) ? part : `"${part.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`)).join(".");
}

class Draft {
  /** By path, as the house writes it. */
  changes: ReadonlyMap<string, { path: string[]; value: Value }> = $state.raw(new Map());
  /** The whole file as it was typed; null while nobody did. */
  text: string | null = $state(null);

  set(setting: Setting, value: Value): void {
    const changes = new Map(this.changes);
    const unset = value === null && setting.from !== "file";
    if (unset || same(value, setting.value)) changes.delete(dotted(setting.path));
    else changes.set(dotted(setting.path), { path: setting.path, value });
    this.changes = changes;
  }

  undo(setting: Setting): void {
    const changes = new Map(this.changes);
    changes.delete(dotted(setting.path));
    this.changes = changes;
  }

  clear(): void {
    this.changes = new Map();
  }

  /** As config.patch takes it: tables within tables. */
  nested(): Record<string, unknown> {
    const root: Record<string, unknown> = {};
    for (const { path, value } of this.changes.values()) {
      let table = root;
      for (const part of path.slice(0, -1)) table = (table[part] ??= {}) as Record<string, unknown>;
      table[path.at(-1) ?? ""] = value;
    }
    return root;
  }
}

function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** What is wrong with one setting, in a line; empty where nothing is. */
export function faultOf(name: string, faults: Fault[]): string {
  const found = faults.find((each) => each.path === name || each.path.startsWith(`${name}[`) || each.path.startsWith(`${name}.`));
  if (!found) return "";
  const words = found.sentence.startsWith(found.path) ? found.sentence.slice(found.path.length).trim() : found.sentence;
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}. ${found.try ? `Try: ${found.try}` : ""}`.trim();
}

export const draft = new Draft();
