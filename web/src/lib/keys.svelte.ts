// The keyboard: what can be pressed, where it is written down, and who listens. One list, which the help sheet shows.

import { untrack } from "svelte";

export interface Shortcut {
  /** Such as "?", "mod+k", "g c" (one after the other), "Escape". `mod` is Ctrl, or Command on a Mac. */
  keys: string;
  label: string;
  /** Under which heading the help sheet shows it. */
  group: string;
  /** Also while typing. */
  typing?: boolean;
  /** False means: not mine now, ask the next. */
  run(event: KeyboardEvent): boolean | void;
}

const SEQUENCE_WITHIN_MS = 1_200;
export const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

class Keys {
  /** The newest first: what lies on top is asked first. */
  list: Shortcut[] = $state.raw([]);
  #pressed = "";
  #timer = 0;

  constructor() {
    addEventListener("keydown", this.#down);
  }

  add(...shortcuts: Shortcut[]): () => void {
    this.list = [...shortcuts, ...untrack(() => this.list)]; // to add is not to listen
    return () => {
      this.list = this.list.filter((each) => !shortcuts.includes(each));
    };
  }

  #down = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing || event.key === "Shift" || event.key === "Control") return;
    const typing = isTyping(event.target);
    const stroke = strokeOf(event);
    const sequence = this.#pressed ? `${this.#pressed} ${stroke}` : stroke;
    for (const wanted of this.#pressed ? [sequence, stroke] : [stroke]) {
      for (const shortcut of this.list) {
        if (shortcut.keys !== wanted || (typing && !shortcut.typing) || inDialog(event.target, shortcut)) continue;
        if (shortcut.run(event) === false) continue;
        event.preventDefault();
        this.#begin("");
        return;
      }
    }
    const begins = !typing && this.list.some((each) => each.keys.startsWith(`${stroke} `));
    this.#begin(begins ? stroke : "");
  };

  #begin(pressed: string): void {
    this.#pressed = pressed;
    clearTimeout(this.#timer);
    if (pressed) this.#timer = window.setTimeout(() => (this.#pressed = ""), SEQUENCE_WITHIN_MS);
  }
}

function strokeOf(event: KeyboardEvent): string {
  const mod = isMac ? event.metaKey : event.ctrlKey;
  const shift = event.shiftKey && (event.key.length > 1 || mod) ? "shift+" : "";
  const key = event.key.length === 1 && mod ? event.key.toLowerCase() : event.key;
  return `${mod ? "mod+" : ""}${event.altKey ? "alt+" : ""}${shift}${key}`;
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement) return true;
  return target instanceof HTMLInputElement && !["checkbox", "radio", "button", "submit", "range"].includes(target.type);
}

/** While a dialog is open, single keys belong to it; those with `typing` say that they are meant everywhere. */
function inDialog(target: EventTarget | null, shortcut: Shortcut): boolean {
  return !shortcut.typing && target instanceof Element && target.closest("dialog[open]") !== null;
}

/** As one writes it for a person. */
export function shown(keys: string): string[] {
  return keys.split(/[ ]/).map((stroke) =>
    stroke
      .replace("mod+", isMac ? "⌘" : "Ctrl ")
      .replace("alt+", isMac ? "⌥" : "Alt ")
      .replace("shift+", isMac ? "⇧" : "Shift ")
      .replace("Escape", "Esc")
      .replace("ArrowUp", "↑")
      .replace("ArrowDown", "↓")
      .replace("Enter", "↵"),
  );
}

export const keys = new Keys();
