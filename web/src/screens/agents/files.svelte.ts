// The files of a home while one writes them: kept as they were left, saved only over what was read.

import { SvelteMap } from "svelte/reactivity";
import { ask, Refused, type Answered } from "../../lib/api";
import { router } from "../../lib/router.svelte";
import { toasts } from "../../lib/toasts.svelte";
import { agents } from "../../strings/agents";

const s = agents.files;

/** What somebody else wrote meanwhile; null where they took it away. */
export type Theirs = { content: string; hash: string; trust: string } | null;

export class Text {
  /** As it was read: empty where there is none yet. */
  read: string = $state("");
  hash: string = $state("");
  trust: string = $state("");
  text: string = $state("");
  believe: boolean = $state(false);
  loaded: boolean = $state(false);
  trouble: unknown = $state.raw(null);
  saving: boolean = $state(false);
  /** Somebody has written it since. */
  elsewhere: boolean = $state(false);
  /** What they wrote, once it is to be chosen between the two. */
  theirs: Theirs | undefined = $state.raw(undefined);

  constructor(
    readonly agent: string,
    readonly path: string,
  ) {}

  get dirty(): boolean {
    return this.loaded && (this.text !== this.read || this.believe);
  }

  get isNew(): boolean {
    return this.loaded && this.hash === "";
  }

  begin(): void {
    this.loaded = true;
  }

  /** As it is now, unless one has written into it: that is kept, and told. */
  async load(): Promise<void> {
    try {
      const theirs = await this.#theirs();
      this.trouble = null;
      if (!theirs && !this.loaded) throw new Refused(404, "path.not-found", `there is no ${this.path}`, "it was removed, or never there", "choose another file");
      if (this.dirty || (this.loaded && !theirs)) this.elsewhere = (theirs?.hash ?? "") !== this.hash;
      else if (theirs) this.take(theirs);
    } catch (error) {
      this.trouble = error;
    }
  }

  take(theirs: Theirs): void {
    this.read = this.text = theirs?.content ?? "";
    this.hash = theirs?.hash ?? "";
    this.trust = theirs?.trust ?? "";
    this.#settle();
  }

  revert(): void {
    this.text = this.read;
    this.believe = false;
    if (this.elsewhere) void this.load();
  }

  async compare(): Promise<void> {
    try {
      this.theirs = await this.#theirs();
    } catch (error) {
      toasts.failed(error);
    }
  }

  /** Over what was read, or over `theirs` where one has seen it. */
  async save(over: string = this.hash): Promise<void> {
    const { text, believe } = this;
    this.saving = true;
    try {
      const kept = await ask("agent.write-file", { name: this.agent, path: this.path, content: text, hash: over, believe });
      this.read = text;
      this.hash = kept.hash;
      if (believe || kept.created) this.trust = "";
      this.#settle();
      toasts.say(s.saved(this.path));
    } catch (error) {
      if (error instanceof Refused && (error.code === "agent.file-changed" || error.code === "file.changed")) await this.compare();
      else toasts.failed(error);
    } finally {
      this.saving = false;
    }
  }

  #settle(): void {
    this.loaded = true;
    this.believe = false;
    this.elsewhere = false;
    this.theirs = undefined;
  }

  async #theirs(): Promise<Theirs> {
    try {
      return await ask("agent.file", { name: this.agent, path: this.path });
    } catch (error) {
      if (error instanceof Refused && error.code === "path.not-found") return null;
      throw error;
    }
  }
}

const texts = new SvelteMap<string, Text>();
router.guard(() => ![...texts.values()].some((each) => each.dirty));

function key(agent: string, path: string): string {
  return `${agent}\n${path}`;
}

export function textOf(agent: string, path: string): Text {
  const known = texts.get(key(agent, path));
  if (known) return known;
  const made = new Text(agent, path);
  texts.set(key(agent, path), made);
  return made;
}

/** Those of an agent that were begun or changed, and not saved. */
export function unsavedOf(agent: string): string[] {
  return [...texts.values()].filter((each) => each.agent === agent && each.dirty).map((each) => each.path);
}

export type Listed = Answered<"agent.files">["files"][number];
