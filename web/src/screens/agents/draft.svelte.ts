// Unsaved changes of an agent. They are kept while the person visits other screens, and checked by the server while
// the person types.

import { SvelteMap } from "svelte/reactivity";
import { callOperation, ApiError, type Result, type Params } from "../../lib/api";
import { router } from "../../lib/router.svelte";
import { attempt, toasts } from "../../lib/toasts.svelte";
import { agents as s } from "../../strings/agents";

type Agent = Result<"agent.set">;

/** The fields of an agent, named as in `agent.set`. */
export interface Values {
  display_name: string;
  description: string;
  icon: string;
  color: Agent["color"];
  visible: boolean;
  instructions: string;
  instructions_mode: Agent["instructions_mode"];
  model: string;
  fallbacks: string[] | null;
  effort: string | null;
  verbose: Agent["verbose"];
  elevated: Agent["elevated"];
  workspace: string;
  context_files: string[];
  crash_policy: Agent["crash_policy"];
  concurrency: number | null;
  queue_mode: Agent["queue"]["mode"];
  queue_cap: number;
  queue_overflow: Agent["queue"]["overflow"];
  reset_daily_at: string | null;
  reset_idle_minutes: number | null;
  reset_context_tokens_max: number | null;
  heartbeat_every_s: number | null;
  heartbeat_active_start: string | null;
  heartbeat_active_end: string | null;
  heartbeat_active_zone: string | null;
  heartbeat_prompt: string | null;
  heartbeat_model: string | null;
  heartbeat_session: Agent["heartbeat"]["session"];
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
  delegation_allow_cycles: boolean;
  delegation_other_sessions: boolean;
  subagents_allow: string[];
  subagents_model: string;
  subagents_effort: string | null;
  subagents_run_seconds_max: number | null;
  subagents_archive_after_s: number | null;
  sandbox_mode: Agent["sandbox"]["mode"];
  sandbox_scope: Agent["sandbox"]["scope"];
  sandbox_workspace: Agent["sandbox"]["workspace"];
  sandbox_visible_sessions: Agent["sandbox"]["visible_sessions"];
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
  permission_level: Agent["permission_level"];
}
export type Field = keyof Values;
export type ListField = { [F in Field]: Values[F] extends string[] ? F : never }[Field];
/** Null: the default of a new agent. */
export type Changes = { [F in Field]?: Values[F] | null };

/** Reasoning efforts of a model that is not in the catalog. */
export const EFFORTS = ["none", "low", "medium", "high", "xhigh"];

const CHECK_DELAY_MS = 250;
const EMPTY_CLEARS: ReadonlySet<string> = new Set([
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
/** Error codes that refer to a field without naming it. */
const FIELD_BY_CODE: Record<string, "name" | Field> = {
  "name.invalid": "name",
  "agent.exists": "name",
  "agent.name_reserved": "name",
  "model.effort_invalid": "effort",
  "model.effort_unsupported": "effort",
};

type AgentResult = Result<"agent.set"> | Result<"agent.register"> | Result<"agent.show">;

/** Null if the person may only see the appearance of the agent. */
function readValues(agent: AgentResult): Values | null {
  const { queue, reset, heartbeat, tools, delegation, subagents, sandbox, external } = agent;
  if (!queue || !reset || !heartbeat || !tools || !delegation || !subagents || !sandbox || !external) return null;
  const { by_provider: _, ...lists } = tools;
  const flat: Record<string, unknown> = { ...agent };
  for (const [group, values] of Object.entries({ queue, reset, heartbeat, tools: lists, delegation, subagents, sandbox, external })) for (const [name, value] of Object.entries(values)) flat[`${group}_${name}`] = value;
  return flat as unknown as Values;
}

export class Draft {
  /** Empty while a new agent has no name yet. */
  name: string = $state("");
  readonly isNew: boolean;
  shown: Result<"agent.show"> | null = $state.raw(null);
  base: Values | null = $state.raw(null);
  changes: Changes = $state.raw({});
  /** Error of each field. */
  errors: Readonly<Record<string, string>> = $state.raw({});
  /** Error that belongs to no field. */
  saveError: unknown = $state.raw(null);
  /** Error of the last load. */
  loadError: unknown = $state.raw(null);
  changedByOthers: boolean = $state(false);
  saving: boolean = $state(false);

  #timer = 0;
  #checks = 0;

  constructor(name: string | null) {
    this.isNew = name === null;
    this.name = name ?? "";
  }

  // Getters instead of $derived, because a draft outlives the component that created it.

  get values(): Values | null {
    return this.base && ({ ...this.base, ...this.changes } as Values);
  }

  /** The value from the server settings that applies if the agent has none. Null if there is none either. */
  serverDefault(field: Field): string | null {
    const inForce = this.shown?.effective_settings?.[field];
    return inForce && inForce.by !== "agent" && inForce.value !== null ? String(inForce.value) : null;
  }

  get changed(): Field[] {
    return Object.keys(this.changes) as Field[];
  }

  get isValid(): boolean {
    return Object.keys(this.errors).length === 0 && !this.saveError;
  }

  get dirty(): boolean {
    return this.changed.length > 0 || (this.isNew && this.name !== "");
  }

  async load(): Promise<void> {
    try {
      if (this.isNew) {
        // A dry run with an unused name returns the defaults and stores nothing.
        const defaults = await callOperation("agent.register", { name: `new-agent-${crypto.randomUUID().slice(0, 8)}`, dry_run: true });
        this.base = readValues(defaults);
      } else this.#apply(await callOperation("agent.show", { name: this.name }));
      this.loadError = null;
    } catch (error) {
      this.loadError = error;
    }
  }

  /** Load a newer version that someone else saved. Unsaved changes are kept. */
  async follow(version: number): Promise<void> {
    if (version <= (this.shown?.version ?? 0)) return;
    this.changedByOthers = this.dirty;
    await this.load();
  }

  set<F extends Field>(field: F, value: Values[F] | null): void {
    const { [field]: _, ...others } = this.changes;
    this.changes = this.base && isEqual(this.base[field], value) ? others : { ...others, [field]: value };
    this.check();
  }

  rename(name: string): void {
    this.name = name;
    this.check();
  }

  discard(): void {
    this.changes = {};
    this.changedByOthers = false;
    if (this.isNew) this.name = "";
    this.#setErrors({}, null);
  }

  /** Parameters of `agent.set` for the unsaved changes. */
  get params(): Omit<Params<"agent.set">, "name"> {
    const values: Record<string, unknown> = {};
    const clear: string[] = [];
    for (const [field, value] of Object.entries(this.changes)) {
      if (value === null || (EMPTY_CLEARS.has(field) && value === "")) clear.push(field);
      else values[field] = value;
    }
    return { ...values, ...(clear.length ? { clear } : {}) };
  }

  /** Let the server check the changes after a short delay. */
  check(): void {
    clearTimeout(this.#timer);
    const number = ++this.#checks;
    this.#timer = window.setTimeout(() => void this.#check(number), CHECK_DELAY_MS);
  }

  async #check(number: number): Promise<void> {
    if (!this.dirty || (this.isNew && !this.name)) return this.#setErrors({}, null);
    try {
      await this.#send(true);
      if (number === this.#checks) this.#setErrors({}, null);
    } catch (error) {
      if (number === this.#checks) this.#showError(error);
    }
  }

  /** Returns whether the agent was saved. */
  async save(): Promise<boolean> {
    clearTimeout(this.#timer);
    this.#checks++;
    this.saving = true;
    try {
      const saved = await this.#send(false);
      this.changes = {};
      this.changedByOthers = false;
      this.#setErrors({}, null);
      if (this.isNew) toasts.show(s.created(saved.name));
      else {
        this.#apply({ ...saved, state: this.shown?.state ?? "idle" });
        toasts.show(s.saved(saved.version));
      }
      this.name = saved.name;
      return true;
    } catch (error) {
      this.#showError(error);
      return false;
    } finally {
      this.saving = false;
    }
  }

  #send(dry_run: boolean): Promise<Result<"agent.set"> | Result<"agent.register">> {
    if (!this.isNew) return callOperation("agent.set", { name: this.name, ...this.params, dry_run });
    const { clear: _, ...values } = this.params;
    return callOperation("agent.register", { name: this.name, ...values, dry_run });
  }

  #apply(shown: Result<"agent.show">): void {
    this.shown = shown;
    this.base = readValues(shown);
    const base = this.base;
    if (base) this.changes = Object.fromEntries(Object.entries(this.changes).filter(([field, value]) => !isEqual(base[field as Field], value)));
  }

  #setErrors(errors: Record<string, string>, saveError: unknown): void {
    this.errors = errors;
    this.saveError = saveError;
  }

  #showError(error: unknown): void {
    if (!(error instanceof ApiError)) return this.#setErrors({}, error);
    const field = FIELD_BY_CODE[error.code] ?? /^\w+(?= is too long$)/.exec(error.sentence)?.[0] ?? /\$\.(\w+)/.exec(error.because)?.[1];
    if (Object.keys(error.fields).length) this.#setErrors(error.fields, null);
    else if (field) this.#setErrors({ [field]: `${error.sentence}: ${error.because}` }, null);
    else this.#setErrors({}, error);
  }
}

function isEqual(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

const drafts = new SvelteMap<string, Draft>();
router.guard(() => ![...drafts.values()].some((each) => each.dirty));

/** The draft of an agent, created on first use. Null: the draft of a new agent. */
export function getDraft(name: string | null): Draft {
  const key = name ?? "";
  const existing = drafts.get(key);
  if (existing) return existing;
  const draft = new Draft(name);
  drafts.set(key, draft);
  return draft;
}

export function removeDraft(draft: Draft): void {
  for (const [key, each] of drafts) if (each === draft) drafts.delete(key);
}

export function hasUnsavedChanges(name: string): boolean {
  return drafts.get(name)?.dirty ?? false;
}

type Model = Result<"model.list">["models"][number];
let models: Promise<Model[]> | undefined;

/** The models in the catalog, loaded once. */
export async function loadModels(): Promise<Model[]> {
  models ??= callOperation("model.list").then((result) => result.models);
  const loaded = await attempt(() => models ?? Promise.resolve([]));
  if (!loaded) models = undefined;
  return loaded ?? [];
}
export type { Model };
