// A schedule as a person writes it, before it is saved: kept while one walks through the house.

import { SvelteMap } from "svelte/reactivity";
import { ask, inWords, Refused, type Answered, type Asked } from "../../lib/api";
import type { GateForm, Missed, Place } from "../../lib/operations";
import { router } from "../../lib/router.svelte";
import { sessionIn } from "../../lib/words";
import type { Shown } from "./acting";

export type Way = "cron" | "every" | "at";

/** What the fields hold. Lists are texts with a line for each. */
export interface Values {
  name: string;
  way: Way;
  cron: string;
  every: string;
  /** What the clock shows in the schedule's zone, as a field for dates has it. */
  at: string;
  zone: string;
  /** An address without a conversation. */
  to: string;
  place: Place | "session";
  session: string;
  text: string;
  deliver: string;
  missed: Missed | "";
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
const PLAIN: Values = {
  name: "",
  way: "cron",
  cron: "",
  every: "",
  at: "",
  zone: "",
  to: "",
  place: "fresh",
  session: "",
  text: "",
  deliver: "",
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

/** Which field a refusal is about. */
const ABOUT: Record<string, Field> = {
  "name.invalid": "name",
  "schedule.name-taken": "name",
  "zone.unknown": "zone",
  "address.invalid": "to",
  "schedule.recipient-invalid": "to",
  "agent.not-found": "to",
  "person.not-found": "to",
  "session.not-found": "session",
  "schedule.place-invalid": "place",
  "schedule.empty": "text",
  "schedule.deliver-invalid": "deliver",
  "schedule.gate-invalid": "command",
  "schedule.gate-not-allowed": "command",
};

type Form = Omit<Asked<"schedule.add">, "name" | "enabled">;

function valuesOf(shown: Shown): Values {
  const [to = "", session = ""] = [shown.to.split("/")[0], sessionIn(shown.to)];
  const gate = shown.gate;
  return {
    name: shown.name,
    way: shown.cron ? "cron" : shown.every ? "every" : "at",
    cron: shown.cron,
    every: shown.every,
    at: shown.at.slice(0, 19).replace(/:00$/, ""),
    zone: shown["follows-owner-zone"] ? "" : shown.zone,
    to,
    place: session ? "session" : (shown.place as Place),
    session,
    text: shown.text,
    deliver: shown.deliver,
    missed: shown.missed as Missed,
    delete_after_run: shown["delete-after-run"],
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

const lines = (text: string): string[] => text.split("\n").map((each) => each.trim()).filter(Boolean); // prettier-ignore

function gateOf(values: Values): GateForm | null {
  if (!values.command.trim()) return null;
  const pairs = lines(values.env).map((each) => [each.split("=", 1)[0] ?? "", each.slice(each.indexOf("=") + 1)]);
  return {
    command: values.command,
    cwd: values.cwd.trim(),
    timeout_ms: Math.round(Number(values.timeout_s || TIMEOUT_S) * 1000),
    permissions: lines(values.permissions),
    domains: lines(values.domains),
    env: Object.fromEntries(pairs),
  };
}

/** As the house takes it. */
function formOf(values: Values): Form {
  const inSession = values.place === "session" && values.session !== "";
  return {
    to: inSession ? `${values.to.trim()}/${values.session}` : values.to.trim(),
    text: values.text,
    cron: values.way === "cron" ? values.cron.trim() : "",
    every: values.way === "every" ? values.every.trim() : "",
    at: values.way === "at" ? values.at : "",
    zone: values.zone.trim(),
    place: values.place === "session" ? "fresh" : values.place,
    deliver: values.deliver.trim(),
    ...(values.missed ? { missed: values.missed } : {}),
    delete_after_run: values.delete_after_run,
    gate: gateOf(values),
    model: values.model.trim(),
    title: values.title.trim(),
    description: values.description.trim(),
  };
}

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a) === JSON.stringify(b);

export class Draft {
  /** Null for one that is not there yet. */
  readonly id: string | null;
  shown: Shown | null = $state.raw(null);
  base: Values | null = $state.raw(null);
  changes: Partial<Values> = $state.raw({});
  errors: Readonly<Partial<Record<Field, string>>> = $state.raw({});
  /** What is wrong beside that. */
  refused: unknown = $state.raw(null);
  /** Why it cannot be shown. */
  trouble: unknown = $state.raw(null);
  elsewhere: boolean = $state(false);
  saving: boolean = $state(false);

  constructor(id: string | null, to = "") {
    this.id = id;
    if (id === null) this.base = { ...PLAIN, to };
  }

  // Getters, and nothing derived: a draft outlives the page that began it.

  get values(): Values | null {
    return this.base && { ...this.base, ...this.changes };
  }

  get dirty(): boolean {
    return Object.keys(this.changes).length > 0;
  }

  async load(): Promise<void> {
    if (this.id === null) return;
    try {
      const shown = await ask("schedule.show", { schedule: this.id });
      const base = valuesOf(shown);
      this.elsewhere ||= this.dirty && this.base !== null && !same(base, this.base);
      this.shown = shown;
      this.base = base;
      this.changes = Object.fromEntries(Object.entries(this.changes).filter(([field, value]) => base[field as Field] !== value));
      this.trouble = null;
    } catch (error) {
      this.trouble = error;
    }
  }

  set<F extends Field>(field: F, value: Values[F]): void {
    const { [field]: _, ...others } = this.changes;
    this.changes = (this.base && this.base[field] === value ? others : { ...others, [field]: value }) as Partial<Values>;
    const { [field]: __, ...errors } = this.errors;
    this.errors = errors;
    this.refused = null;
  }

  discard(): void {
    this.changes = {};
    this.errors = {};
    this.refused = null;
    this.elsewhere = false;
  }

  /** When it would come, as `schedule.explain` is asked; null while nothing is said. */
  get when(): { cron: string } | { every: string } | { at: string } | null {
    const values = this.values;
    if (!values) return null;
    const said = values[values.way].trim();
    return said ? ({ [values.way]: said } as { cron: string }) : null;
  }

  /** Whether what says when is as it was: then the house knows from when on steps are counted. */
  get whenStays(): boolean {
    return this.id !== null && !["way", "cron", "every", "at", "zone"].some((each) => each in this.changes);
  }

  /** It, as it is kept; undefined where it was not. */
  async save({ enabled = true } = {}): Promise<Answered<"schedule.add"> | undefined> {
    if (!this.values || !this.base) return undefined;
    this.saving = true;
    try {
      const kept = this.id === null ? await ask("schedule.add", { name: this.values.name.trim(), enabled, ...formOf(this.values) }) : await ask("schedule.set", { schedule: this.id, ...this.#changed() });
      this.discard();
      if (this.id !== null) [this.shown, this.base] = [kept, valuesOf(kept)];
      return kept;
    } catch (error) {
      const field = error instanceof Refused ? ABOUT[error.code] : undefined;
      if (field) this.errors = { [field]: inWords(error) };
      else this.refused = error;
      return undefined;
    } finally {
      this.saving = false;
    }
  }

  #changed(): Partial<Form> {
    const [before, after] = [formOf(this.base ?? PLAIN), formOf(this.values ?? PLAIN)];
    const changed = Object.fromEntries(Object.entries(after).filter(([name, value]) => !same(value, before[name as keyof Form]))) as Partial<Form>;
    // What is no longer said is not said as nothing: another way takes its place. A time of day in another zone is another time.
    for (const way of ["cron", "every", "at"] as const) if (!changed[way]) delete changed[way];
    if (after.at && changed.zone !== undefined) changed.at = after.at;
    return changed;
  }
}

const drafts = new SvelteMap<string, Draft>();
router.guard(() => ![...drafts.values()].some((each) => each.dirty));

/** The one draft of a schedule, as it was left; without an id, that of one that is not there yet, `to` someone. */
export function draftOf(id: string | null, to = ""): Draft {
  const known = drafts.get(id ?? "");
  if (known && (id !== null || known.dirty)) return known;
  const made = new Draft(id, to);
  drafts.set(id ?? "", made);
  return made;
}

export function forget(draft: Draft): void {
  drafts.delete(draft.id ?? "");
}
