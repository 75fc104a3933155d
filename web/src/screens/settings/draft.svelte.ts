// Unsaved changes of the settings. They are kept while the person visits other screens.

import type { Result } from "../../lib/api";

export type Setting = Result<"config.fields">["sections"][number]["settings"][number];
export type SettingError = Result<"config.preview">["faults"][number];
/** Null removes the key from the file. */
export type Value = string | number | boolean | string[] | null;

const BARE_KEY = /^[A-Za-z0-9_-]+$/;

/** A path in the notation of the server: `server.listen.port`. */
export function formatPath(path: string[]): string {
  return path.map((part) => (BARE_KEY.test(part) ? part : `"${part.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`)).join(".");
}

class Draft {
  /** By path, in the notation of `formatPath`. */
  changes: ReadonlyMap<string, { path: string[]; value: Value }> = $state.raw(new Map());
  /** The edited text of the settings file; null if it was not edited. */
  text: string | null = $state(null);

  set(setting: Setting, value: Value): void {
    const changes = new Map(this.changes);
    const unset = value === null && setting.from !== "file";
    if (unset || isEqual(value, setting.value)) changes.delete(formatPath(setting.path));
    else changes.set(formatPath(setting.path), { path: setting.path, value });
    this.changes = changes;
  }

  undo(setting: Setting): void {
    const changes = new Map(this.changes);
    changes.delete(formatPath(setting.path));
    this.changes = changes;
  }

  clear(): void {
    this.changes = new Map();
  }

  /** The changes as nested tables, for config.patch. */
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

function isEqual(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** The error of one setting in one line; empty if it has none. */
export function findError(name: string, errors: SettingError[]): string {
  const found = errors.find((each) => each.path === name || each.path.startsWith(`${name}[`) || each.path.startsWith(`${name}.`));
  if (!found) return "";
  const text = found.sentence.startsWith(found.path) ? found.sentence.slice(found.path.length).trim() : found.sentence;
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}. ${found.try ? `Try: ${found.try}` : ""}`.trim();
}

export const draft = new Draft();
