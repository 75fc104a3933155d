// Unsaved changes of a schedule. They are kept while the person visits other screens.

import { SvelteMap } from "svelte/reactivity";
import { callOperation, formatError, ApiError, type Result, type Params } from "../../lib/api";
import { router } from "../../lib/router.svelte";
import { parseAddressSession } from "../../lib/format";
import type { Shown } from "./scheduleActions";

type AddParams = Params<"schedule.add">;
type SessionKind = NonNullable<AddParams["session"]>;
type MissedPolicy = NonNullable<AddParams["missed"]>;
type Gate = NonNullable<AddParams["gate"]>;

export type Repetition = "cron" | "every" | "at";

/** Values of the form. Lists are texts with one item per line. */
export interface Values {
  name: string;
  repetition: Repetition;
  cron: string;
  every: string;
  /** Local time in the time zone of the schedule, in the format of a datetime-local field. */
  at: string;
  zone: string;
  /** An address without a conversation. */
  to: string;
  session_kind: SessionKind | "session";
  session: string;
  text: string;
  deliver_to: string;
  missed: MissedPolicy | "";
  delete_after_run: boolean;
  model: string;
  title: string;
  description: string;
  command: string;
  cwd: string;
  timeout_s: string;
  permissions: string;
  domains: string;
  env: string;
}
export type Field = keyof Values;

const TIMEOUT_S = "30";
const EMPTY_VALUES: Values = {
  name: "",
  repetition: "cron",
  cron: "",
  every: "",
  at: "",
  zone: "",
  to: "",
  session_kind: "fresh",
  session: "",
  text: "",
  deliver_to: "",
  missed: "",
  delete_after_run: false,
  model: "",
  title: "",
  description: "",
  command: "",
  cwd: "",
  timeout_s: TIMEOUT_S,
  permissions: "",
  domains: "",
  env: "",
};

/** The field that an error code refers to. */
const FIELD_BY_CODE: Record<string, Field> = {
  "name.invalid": "name",
  "schedule.name_taken": "name",
  "zone.unknown": "zone",
  "address.invalid": "to",
  "schedule.recipient_invalid": "to",
  "schedule.recipient_missing": "to",
  "agent.not_found": "to",
  "person.not_found": "to",
  "session.not_found": "session",
  "schedule.session_invalid": "session_kind",
  "schedule.empty": "text",
  "schedule.deliver_invalid": "deliver_to",
  "schedule.gate_invalid": "command",
  "schedule.gate_not_allowed": "command",
};

type ScheduleParams = Omit<AddParams, "name" | "enabled">;

function readValues(shown: Shown): Values {
  const [to = "", session = ""] = [shown.to.split("/")[0], parseAddressSession(shown.to)];
  const gate = shown.gate;
  return {
    name: shown.name,
    repetition: shown.cron ? "cron" : shown.every ? "every" : "at",
    cron: shown.cron,
    every: shown.every,
    at: shown.at.slice(0, 19).replace(/:00$/, ""),
    zone: shown.follows_owner_zone ? "" : shown.zone,
    to,
    session_kind: session ? "session" : (shown.session as SessionKind),
    session,
    text: shown.text,
    deliver_to: shown.deliver_to,
    missed: shown.missed as MissedPolicy,
    delete_after_run: shown.delete_after_run,
    model: shown.model,
    title: shown.title,
    description: shown.description,
    command: gate?.command ?? "",
    cwd: gate?.cwd ?? "",
    timeout_s: gate?.timeout_ms ? String(gate.timeout_ms / 1000) : TIMEOUT_S,
    permissions: gate?.permissions?.join("\n") ?? "",
    domains: gate?.domains?.join("\n") ?? "",
    env: Object.entries(gate?.env ?? {}).map(([name, value]) => `${name}=${value}`).join("\n"), // prettier-ignore
  };
}

const splitLines = (text: string): string[] => text.split("\n").map((each) => each.trim()).filter(Boolean); // prettier-ignore

function buildGate(values: Values): Gate | null {
  if (!values.command.trim()) return null;
  const pairs = splitLines(values.env).map((each) => [each.split("=", 1)[0] ?? "", each.slice(each.indexOf("=") + 1)]);
  return {
    command: values.command,
    cwd: values.cwd.trim(),
    timeout_ms: Math.round(Number(values.timeout_s || TIMEOUT_S) * 1000),
    permissions: splitLines(values.permissions),
    domains: splitLines(values.domains),
    env: Object.fromEntries(pairs),
  };
}

/** The values as parameters of `schedule.add`. */
function buildParams(values: Values): ScheduleParams {
  const inSession = values.session_kind === "session" && values.session !== "";
  return {
    to: inSession ? `${values.to.trim()}/${values.session}` : values.to.trim(),
    text: values.text,
    cron: values.repetition === "cron" ? values.cron.trim() : "",
    every: values.repetition === "every" ? values.every.trim() : "",
    at: values.repetition === "at" ? values.at : "",
    zone: values.zone.trim(),
    session: values.session_kind === "session" ? "fresh" : values.session_kind,
    deliver_to: values.deliver_to.trim(),
    ...(values.missed ? { missed: values.missed } : {}),
    delete_after_run: values.delete_after_run,
    gate: buildGate(values),
    model: values.model.trim(),
    title: values.title.trim(),
    description: values.description.trim(),
  };
}

const isEqual = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

export class Draft {
  /** Null for a new schedule. */
  readonly id: string | null;
  shown: Shown | null = $state.raw(null);
  base: Values | null = $state.raw(null);
  changes: Partial<Values> = $state.raw({});
  errors: Readonly<Partial<Record<Field, string>>> = $state.raw({});
  /** Error that belongs to no field. */
  saveError: unknown = $state.raw(null);
  /** Error of the last load. */
  loadError: unknown = $state.raw(null);
  changedByOthers: boolean = $state(false);
  saving: boolean = $state(false);

  constructor(id: string | null, to = "") {
    this.id = id;
    if (id === null) this.base = { ...EMPTY_VALUES, to };
  }

  // Getters instead of $derived, because a draft outlives the component that created it.

  get values(): Values | null {
    return this.base && { ...this.base, ...this.changes };
  }

  get dirty(): boolean {
    return Object.keys(this.changes).length > 0;
  }

  async load(): Promise<void> {
    if (this.id === null) return;
    try {
      const shown = await callOperation("schedule.show", { schedule: this.id });
      const base = readValues(shown);
      this.changedByOthers ||= this.dirty && this.base !== null && !isEqual(base, this.base);
      this.shown = shown;
      this.base = base;
      this.changes = Object.fromEntries(Object.entries(this.changes).filter(([field, value]) => base[field as Field] !== value));
      this.loadError = null;
    } catch (error) {
      this.loadError = error;
    }
  }

  set<F extends Field>(field: F, value: Values[F]): void {
    const { [field]: _, ...others } = this.changes;
    this.changes = (this.base && this.base[field] === value ? others : { ...others, [field]: value }) as Partial<Values>;
    const { [field]: __, ...errors } = this.errors;
    this.errors = errors;
    this.saveError = null;
  }

  discard(): void {
    this.changes = {};
    this.errors = {};
    this.saveError = null;
    this.changedByOthers = false;
  }

  /** The time as parameters of `schedule.explain`; null while the field is empty. */
  get time(): { cron: string } | { every: string } | { at: string } | null {
    const values = this.values;
    if (!values) return null;
    const value = values[values.repetition].trim();
    return value ? ({ [values.repetition]: value } as { cron: string }) : null;
  }

  /** Whether the time is unchanged. Then `schedule.next` gives the exact times, counted from the stored start. */
  get timeUnchanged(): boolean {
    return this.id !== null && !["repetition", "cron", "every", "at", "zone"].some((each) => each in this.changes);
  }

  /** Returns the saved schedule, or undefined if saving failed. */
  async save({ enabled = true } = {}): Promise<Result<"schedule.add"> | undefined> {
    if (!this.values || !this.base) return undefined;
    this.saving = true;
    try {
      const saved = this.id === null ? await callOperation("schedule.add", { name: this.values.name.trim(), enabled, ...buildParams(this.values) }) : await callOperation("schedule.set", { schedule: this.id, ...this.#changedParams() });
      this.discard();
      if (this.id !== null) [this.shown, this.base] = [saved, readValues(saved)];
      return saved;
    } catch (error) {
      const field = error instanceof ApiError ? FIELD_BY_CODE[error.code] : undefined;
      if (field) this.errors = { [field]: formatError(error) };
      else this.saveError = error;
      return undefined;
    } finally {
      this.saving = false;
    }
  }

  #changedParams(): Partial<ScheduleParams> {
    const [before, after] = [buildParams(this.base ?? EMPTY_VALUES), buildParams(this.values ?? EMPTY_VALUES)];
    const params = Object.fromEntries(Object.entries(after).filter(([name, value]) => !isEqual(value, before[name as keyof ScheduleParams]))) as Partial<ScheduleParams>;
    // Cleared times are left out, because the new one replaces them. A one-time schedule in another zone has another time.
    for (const key of ["cron", "every", "at"] as const) if (!params[key]) delete params[key];
    if (after.at && params.zone !== undefined) params.at = after.at;
    return params;
  }
}

const drafts = new SvelteMap<string, Draft>();
router.guard(() => ![...drafts.values()].some((each) => each.dirty));

/** The draft of a schedule, created on first use. Null: the draft of a new schedule for the recipient `to`. */
export function getDraft(id: string | null, to = ""): Draft {
  const existing = drafts.get(id ?? "");
  if (existing && (id !== null || existing.dirty)) return existing;
  const draft = new Draft(id, to);
  drafts.set(id ?? "", draft);
  return draft;
}

export function removeDraft(draft: Draft): void {
  drafts.delete(draft.id ?? "");
}
