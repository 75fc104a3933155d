// Unsaved edits of files in an agent directory. A file is saved only if it has not changed since it was read.

import { SvelteMap } from "svelte/reactivity";
import { callOperation, ApiError, type Result } from "../../lib/api";
import { router } from "../../lib/router.svelte";
import { toasts } from "../../lib/toasts.svelte";
import { agents } from "../../strings/agents";

const s = agents.files;

/** The version on the server; null if the file does not exist. */
export type ServerVersion = { content: string; hash: string; trust: string } | null;

export class FileDraft {
  /** Content as last read or saved; empty for a new file. */
  savedText: string = $state("");
  hash: string = $state("");
  trust: string = $state("");
  text: string = $state("");
  trusted: boolean = $state(false);
  loaded: boolean = $state(false);
  error: unknown = $state.raw(null);
  saving: boolean = $state(false);
  /** Whether someone else has saved the file since it was read. */
  changedByOthers: boolean = $state(false);
  /** The version of someone else, while the person chooses between the two. */
  otherVersion: ServerVersion | undefined = $state.raw(undefined);

  constructor(
    readonly agent: string,
    readonly path: string,
  ) {}

  get dirty(): boolean {
    return this.loaded && (this.text !== this.savedText || this.trusted);
  }

  get isNew(): boolean {
    return this.loaded && this.hash === "";
  }

  startNew(): void {
    this.loaded = true;
  }

  /** Read the file. Unsaved edits are kept, and `changedByOthers` is set if they are based on an old version. */
  async load(): Promise<void> {
    try {
      const version = await this.#readVersion();
      this.error = null;
      if (!version && !this.loaded) throw new ApiError(404, "path.not_found", `no file named ${this.path}`, "it was deleted, or the address is wrong", "choose another file");
      if (this.dirty || (this.loaded && !version)) this.changedByOthers = (version?.hash ?? "") !== this.hash;
      else if (version) this.replace(version);
    } catch (error) {
      this.error = error;
    }
  }

  replace(version: ServerVersion): void {
    this.savedText = this.text = version?.content ?? "";
    this.hash = version?.hash ?? "";
    this.trust = version?.trust ?? "";
    this.#resetState();
  }

  revert(): void {
    this.text = this.savedText;
    this.trusted = false;
    if (this.changedByOthers) void this.load();
  }

  async compare(): Promise<void> {
    try {
      this.otherVersion = await this.#readVersion();
    } catch (error) {
      toasts.showError(error);
    }
  }

  /** Save the file if its hash on the server is still `expectedHash`. */
  async save(expectedHash: string = this.hash): Promise<void> {
    const { text, trusted } = this;
    this.saving = true;
    try {
      const saved = await callOperation("agent.write_file", { name: this.agent, path: this.path, content: text, hash: expectedHash, mark_trusted: trusted });
      this.savedText = text;
      this.hash = saved.hash;
      if (trusted || saved.created) this.trust = "";
      this.#resetState();
      toasts.show(s.saved(this.path));
    } catch (error) {
      if (error instanceof ApiError && (error.code === "agent_file.changed" || error.code === "file.changed")) await this.compare();
      else toasts.showError(error);
    } finally {
      this.saving = false;
    }
  }

  #resetState(): void {
    this.loaded = true;
    this.trusted = false;
    this.changedByOthers = false;
    this.otherVersion = undefined;
  }

  async #readVersion(): Promise<ServerVersion> {
    try {
      return await callOperation("agent.file", { name: this.agent, path: this.path });
    } catch (error) {
      if (error instanceof ApiError && error.code === "path.not_found") return null;
      throw error;
    }
  }
}

const drafts = new SvelteMap<string, FileDraft>();
router.guard(() => ![...drafts.values()].some((each) => each.dirty));

function key(agent: string, path: string): string {
  return `${agent}\n${path}`;
}

export function getFileDraft(agent: string, path: string): FileDraft {
  const existing = drafts.get(key(agent, path));
  if (existing) return existing;
  const draft = new FileDraft(agent, path);
  drafts.set(key(agent, path), draft);
  return draft;
}

/** Paths of the files of an agent with unsaved edits. */
export function listUnsavedPaths(agent: string): string[] {
  return [...drafts.values()].filter((each) => each.agent === agent && each.dirty).map((each) => each.path);
}

export type ListedFile = Result<"agent.files">["files"][number];
