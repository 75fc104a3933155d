// Keyboard shortcuts of an approval card. They work while the focus is in the card, and are listed once in the
// shortcut help.

import { shortcuts } from "../../lib/shortcuts.svelte";
import { approvals as s } from "../../strings/approvals";
import { frame } from "../../strings/frame";

export const KEYS = { once: "a", session: "s", always: "w", deny: "d" } as const;
export type Choice = keyof typeof KEYS;

let cards = 0;
let removeShortcuts: () => void = () => {};

/** Svelte action for an approval card. Calls `choose` with the answer of the pressed key. */
export function handleAnswerKeys(node: HTMLElement, choose: (choice: Choice) => void): { update(choose: (choice: Choice) => void): void; destroy(): void } {
  const handleKey = (event: KeyboardEvent): void => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const choice = (Object.keys(KEYS) as Choice[]).find((each) => KEYS[each] === event.key);
    if (!choice) return;
    event.preventDefault(); // other shortcuts do not handle this key
    choose(choice);
  };
  node.addEventListener("keydown", handleKey);
  if (!cards++) {
    const list = (Object.keys(KEYS) as Choice[]).map((each) => ({ keys: KEYS[each], label: s.keys[each], group: frame.groups.approvals, run: () => false }));
    removeShortcuts = shortcuts.add(...list);
  }
  return {
    update: (other) => (choose = other),
    destroy: () => {
      node.removeEventListener("keydown", handleKey);
      if (!--cards) removeShortcuts();
    },
  };
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement;
}

/** Focus the next or previous pending question. */
export function focusNext(container: HTMLElement | undefined, by: 1 | -1): void {
  const list = [...(container?.querySelectorAll<HTMLElement>("[data-pending-question]") ?? [])];
  const current = list.findIndex((each) => each.contains(document.activeElement));
  const next = current < 0 ? (by > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, current + by));
  list[next]?.focus();
  list[next]?.scrollIntoView({ block: "nearest" });
}
