// What a person changes of an agent, before it is saved: kept while one walks through the house, judged by the house
// while one types.

import { SvelteMap } from "svelte/reactivity";
import { ask, Refused, type Answered, type Asked } from "../../lib/api";
import type { Colour, Delivery, Elevation, InstructionMode, Overflow, PermissionLevel, Place, QueueMode, SandboxMode, Scope, SessionsSeen, Verbosity, WorkspaceAccess } from "../../lib/operations";
import { router } from "../../lib/router.svelte";
import { attempt, toasts } from "../../lib/toasts.svelte";
import { agents as s } from "../../strings/agents";

/** The fields of an agent by the names that `agent.set` has for them. */
export interface Values {
  display_name: string;
  description: string;
  icon: string;
  colour: Colour | null;
  visible: boolean;
  instructions: string;
  instructions_mode: InstructionMode;
  model: string;
  fallbacks: string[] | null;
  effort: string | null;
  verbose: Verbosity | null;
  elevated: Elevation | null;
  workspace: string;
  context_files: string[];
  delivery: Delivery;
  concurrency: number | null;
  queue_mode: QueueMode;
  queue_cap: number;
  queue_overflow: Overflow;
  reset_daily_at: string | null;
  reset_idle_minutes: number | null;
  reset_context_tokens_max: number | null;
  heartbeat_every_s: number | null;
  heartbeat_active_start: string | null;
  heartbeat_active_end: string | null;
  heartbeat_active_zone: string | null;
  heartbeat_prompt: string | null;
  heartbeat_model: string | null;
  heartbeat_place: Place | null;
  heartbeat_target: string | null;
  heartbeat_ack_chars_max: number | null;
  tools_profile: string | null;
  tools_allow: string[];
  tools_also_allow: string[];
  tools_ask: string[];
  tools_deny: string[];
  tools_capabilities_allow: string[];
  tools_capabilities_deny: string[];
  tools_policy: string | null;
  delegation_allow: string[];
  delegation_deny: string[];
  delegation_depth_max: number;
  delegation_open_max: number;
  delegation_exchanges_max: number;
  delegation_circles: boolean;
  delegation_histories: boolean;
  subagents_allow: string[];
  subagents_model: string;
  subagents_effort: string | null;
  subagents_run_seconds_max: number | null;
  subagents_archive_after_s: number | null;
  sandbox_mode: SandboxMode | null;
  sandbox_scope: Scope | null;
  sandbox_workspace: WorkspaceAccess | null;
  sandbox_sessions: SessionsSeen | null;
  sandbox_browser: boolean | null;
  sandbox_image: string;
  sandbox_cpus: number | null;
  sandbox_idle_hours: number | null;
  sandbox_age_days: number | null;
  external_url: string;
  external_secret: string;
  external_timeout_s: number;
  external_retries: number;
  turns_max: number;
  run_seconds_max: number | null;
  tokens_max: number | null;
  cost_microusd_max: number | null;
  tree_microusd_max: number | null;
  day_microusd_max: number | null;
  month_microusd_max: number | null;
  attempts_max: number;
  replay_age_s: number | null;
  approval_wait_s: number;
  permission_level: PermissionLevel;
}
export type Field = keyof Values;
export type ListField = { [F in Field]: Values[F] extends string[] ? F : never }[Field];
/** Null: as on a new agent. */
export type Changes = { [F in Field]?: Values[F] | null };

/** How hard a model can be told to think, where the house does not say what this one takes. */
export const EFFORTS = ["none", "low", "medium", "high", "xhigh"];

const CHECK_AFTER_MS = 250;
const EMPTY_IS_NONE: ReadonlySet<string> = new Set([
  "model",
  "subagents_model",
  "display_name",
  "workspace",
  "sandbox_image",
  "external_url",
  "external_secret",
  "reset_daily_at",
  "heartbeat_active_start",
  "heartbeat_active_end",
  "heartbeat_active_zone",
  "heartbeat_prompt",
  "heartbeat_model",
  "heartbeat_target",
]);
/** Refusals that say which field they are about only by their code. */
const ABOUT: Record<string, "name" | Field> = {
  "name.invalid": "name",
  "agent.exists": "name",
  "agent.name-reserved": "name",
  "model.effort": "effort",
};

type Whole = Answered<"agent.set"> | Answered<"agent.register"> | Answered<"agent.show">;

/** Null where only the looks of an agent are told. */
function valuesOf(agent: Whole): Values | null {
  const { queue, reset, heartbeat, tools, delegation, subagents, sandbox, external } = agent;
  if (!queue || !reset || !heartbeat || !tools || !delegation || !subagents || !sandbox || !external) return null;
  const { by_provider: _, ...lists } = tools;
  const flat: Record<string, unknown> = { ...agent };
  for (const [group, values] of Object.entries({ queue, reset, heartbeat, tools: lists, delegation, subagents, sandbox, external })) for (const [name, value] of Object.entries(values)) flat[`${group}_${name}`] = value;
  return flat as unknown as Values;
}

export class Draft {
  /** Empty while a new one has none yet. */
  name: string = $state("");
  readonly isNew: boolean;
  shown: Answered<"agent.show"> | null = $state.raw(null);
  base: Values | null = $state.raw(null);
  changes: Changes = $state.raw({});
  /** What is wrong with each field. */
  errors: Readonly<Record<string, string>> = $state.raw({});
  /** What is wrong beside that. */
  refused: unknown = $state.raw(null);
  /** Why the agent cannot be shown. */
  trouble: unknown = $state.raw(null);
  elsewhere: boolean = $state(false);
  saving: boolean = $state(false);

  #timer = 0;
  #checks = 0;

  constructor(name: string | null) {
    this.isNew = name === null;
    this.name = name ?? "";
  }

  // Getters, and nothing derived: a draft outlives the page that began it.

  get values(): Values | null {
    return this.base && ({ ...this.base, ...this.changes } as Values);
  }

  /** What holds where the agent itself says nothing, as the house has it; null where it says nothing either. */
  otherwise(field: Field): string | null {
    const holds = this.shown?.in_force?.[field];
    return holds && holds.by !== "agent" && holds.value !== null ? String(holds.value) : null;
  }

  get changed(): Field[] {
    return Object.keys(this.changes) as Field[];
  }

  get sound(): boolean {
    return Object.keys(this.errors).length === 0 && !this.refused;
  }

  get dirty(): boolean {
    return this.changed.length > 0 || (this.isNew && this.name !== "");
  }

  async load(): Promise<void> {
    try {
      if (this.isNew) {
        // As the house would make one: a name that nobody has, and nothing stored.
        const plain = await ask("agent.register", { name: `newcomer-${crypto.randomUUID().slice(0, 8)}`, dry_run: true });
        this.base = valuesOf(plain);
      } else this.#take(await ask("agent.show", { name: this.name }));
      this.trouble = null;
    } catch (error) {
      this.trouble = error;
    }
  }

  /** It became something else meanwhile. What was changed here stays, on top of that. */
  async follow(version: number): Promise<void> {
    if (version <= (this.shown?.version ?? 0)) return;
    this.elsewhere = this.dirty;
    await this.load();
  }

  set<F extends Field>(field: F, value: Values[F] | null): void {
    const { [field]: _, ...others } = this.changes;
    this.changes = this.base && same(this.base[field], value) ? others : { ...others, [field]: value };
    this.check();
  }

  rename(name: string): void {
    this.name = name;
    this.check();
  }

  discard(): void {
    this.changes = {};
    this.elsewhere = false;
    if (this.isNew) this.name = "";
    this.#judge({}, null);
  }

  /** What `agent.set` is asked; also what is judged as if it were saved. */
  get asked(): Omit<Asked<"agent.set">, "name"> {
    const given: Record<string, unknown> = {};
    const clear: string[] = [];
    for (const [field, value] of Object.entries(this.changes)) {
      if (value === null || (EMPTY_IS_NONE.has(field) && value === "")) clear.push(field);
      else given[field] = value;
    }
    return { ...given, ...(clear.length ? { clear } : {}) };
  }

  /** Have the house look at it, soon. */
  check(): void {
    clearTimeout(this.#timer);
    const number = ++this.#checks;
    this.#timer = window.setTimeout(() => void this.#check(number), CHECK_AFTER_MS);
  }

  async #check(number: number): Promise<void> {
    if (!this.dirty || (this.isNew && !this.name)) return this.#judge({}, null);
    try {
      await this.#ask(true);
      if (number === this.#checks) this.#judge({}, null);
    } catch (error) {
      if (number === this.#checks) this.#wrong(error);
    }
  }

  /** Whether it was. */
  async save(): Promise<boolean> {
    clearTimeout(this.#timer);
    this.#checks++;
    this.saving = true;
    try {
      const kept = await this.#ask(false);
      this.changes = {};
      this.elsewhere = false;
      this.#judge({}, null);
      if (this.isNew) toasts.say(s.created(kept.name));
      else {
        this.#take({ ...kept, state: this.shown?.state ?? "idle" });
        toasts.say(s.saved(kept.version));
      }
      this.name = kept.name;
      return true;
    } catch (error) {
      this.#wrong(error);
      return false;
    } finally {
      this.saving = false;
    }
  }

  #ask(dry_run: boolean): Promise<Answered<"agent.set"> | Answered<"agent.register">> {
    if (!this.isNew) return ask("agent.set", { name: this.name, ...this.asked, dry_run });
    const { clear: _, ...given } = this.asked;
    return ask("agent.register", { name: this.name, ...given, dry_run });
  }

  #take(shown: Answered<"agent.show">): void {
    this.shown = shown;
    this.base = valuesOf(shown);
    const base = this.base;
    if (base) this.changes = Object.fromEntries(Object.entries(this.changes).filter(([field, value]) => !same(base[field as Field], value)));
  }

  #judge(errors: Record<string, string>, refused: unknown): void {
    this.errors = errors;
    this.refused = refused;
  }

  #wrong(error: unknown): void {
    if (!(error instanceof Refused)) return this.#judge({}, error);
    const field = ABOUT[error.code] ?? /^\w+(?= is too long$)/.exec(error.sentence)?.[0] ?? /\$\.(\w+)/.exec(error.because)?.[1];
    if (Object.keys(error.fields).length) this.#judge(error.fields, null);
    else if (field) this.#judge({ [field]: `${error.sentence}: ${error.because}` }, null);
    else this.#judge({}, error);
  }
}

function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

const drafts = new SvelteMap<string, Draft>();
router.guard(() => ![...drafts.values()].some((each) => each.dirty));

/** The one draft of an agent, as it was left; without a name, that of one who is not here yet. */
export function draftOf(name: string | null): Draft {
  const key = name ?? "";
  const known = drafts.get(key);
  if (known) return known;
  const made = new Draft(name);
  drafts.set(key, made);
  return made;
}

export function forget(draft: Draft): void {
  for (const [key, each] of drafts) if (each === draft) drafts.delete(key);
}

export function hasUnsaved(name: string): boolean {
  return drafts.get(name)?.dirty ?? false;
}

type Model = Answered<"model.list">["models"][number];
let models: Promise<Model[]> | undefined;

/** The models there are to choose from. */
export async function modelsHere(): Promise<Model[]> {
  models ??= ask("model.list").then((told) => told.models);
  const told = await attempt(() => models ?? Promise.resolve([]));
  if (!told) models = undefined;
  return told ?? [];
}
export type { Model };
