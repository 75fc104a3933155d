// Keyboard shortcuts: one list that handles key presses and that the help dialog shows.

import { untrack } from "svelte";

export interface Shortcut {
  /** Such as "?", "mod+k", "g c" (a sequence), "Escape". `mod` is Ctrl, or Command on a Mac. */
  keys: string;
  label: string;
  /** The heading under which the help dialog shows it. */
  group: string;
  /** Whether it also works while the person types. */
  typing?: boolean;
  /** Returns false if the next shortcut with the same keys should run instead. */
  run(event: KeyboardEvent): boolean | void;
}

const SEQUENCE_TIMEOUT_MS = 1_200;
export const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

class Shortcuts {
  /** The newest first: the topmost layer handles a key first. */
  list: Shortcut[] = $state.raw([]);
  #pressed = "";
  #timer = 0;

  constructor() {
    addEventListener("keydown", this.#handleKeydown);
  }

  add(...added: Shortcut[]): () => void {
    this.list = [...added, ...untrack(() => this.list)]; // an effect that adds shortcuts must not depend on the list
    return () => {
      this.list = this.list.filter((each) => !added.includes(each));
    };
  }

  #handleKeydown = (event: KeyboardEvent): void => {
    if (event.defaultPrevented || event.isComposing || event.key === "Shift" || event.key === "Control") return;
    const typing = isTyping(event.target);
    const stroke = parseStroke(event);
    const sequence = this.#pressed ? `${this.#pressed} ${stroke}` : stroke;
    for (const wanted of this.#pressed ? [sequence, stroke] : [stroke]) {
      for (const shortcut of this.list) {
        if (shortcut.keys !== wanted || (typing && !shortcut.typing) || isBlockedByDialog(event.target, shortcut)) continue;
        if (shortcut.run(event) === false) continue;
        event.preventDefault();
        this.#setPressed("");
        return;
      }
    }
    const startsSequence = !typing && this.list.some((each) => each.keys.startsWith(`${stroke} `));
    this.#setPressed(startsSequence ? stroke : "");
  };

  #setPressed(pressed: string): void {
    this.#pressed = pressed;
    clearTimeout(this.#timer);
    if (pressed) this.#timer = window.setTimeout(() => (this.#pressed = ""), SEQUENCE_TIMEOUT_MS);
  }
}

function parseStroke(event: KeyboardEvent): string {
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

/** Whether an open dialog blocks a shortcut: in a dialog, only shortcuts with `typing` work. */
function isBlockedByDialog(target: EventTarget | null, shortcut: Shortcut): boolean {
  return !shortcut.typing && target instanceof Element && target.closest("dialog[open]") !== null;
}

/** The keys as they are printed on a keyboard, one string for each stroke. */
export function formatKeys(keys: string): string[] {
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

export const shortcuts = new Shortcuts();
