// The keys of a question work while it, or something in it, has the focus. They are in the help sheet once, however many
// questions there are.

import { keys } from "../../lib/keys.svelte";
import { approvals as s } from "../../strings/approvals";
import { frame } from "../../strings/frame";

export const KEYS = { once: "a", session: "s", always: "w", deny: "d" } as const;
export type Choice = keyof typeof KEYS;

let cards = 0;
let forget: () => void = () => {};

/** For the element of a question: `choose` is told which answer was pressed. */
export function answers(node: HTMLElement, choose: (choice: Choice) => void): { update(choose: (choice: Choice) => void): void; destroy(): void } {
  const press = (event: KeyboardEvent): void => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const choice = (Object.keys(KEYS) as Choice[]).find((each) => KEYS[each] === event.key);
    if (!choice) return;
    event.preventDefault(); // not for anybody else who listens for this key
    choose(choice);
  };
  node.addEventListener("keydown", press);
  if (!cards++) {
    const list = (Object.keys(KEYS) as Choice[]).map((each) => ({ keys: KEYS[each], label: s.keys[each], group: frame.groups.approvals, run: () => false }));
    forget = keys.add(...list);
  }
  return {
    update: (other) => (choose = other),
    destroy: () => {
      node.removeEventListener("keydown", press);
      if (!--cards) forget();
    },
  };
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement;
}

/** Go on to the question after or before the one that has the focus. */
export function step(within: HTMLElement | undefined, by: 1 | -1): void {
  const list = [...(within?.querySelectorAll<HTMLElement>("[data-asks]") ?? [])];
  const now = list.findIndex((each) => each.contains(document.activeElement));
  const next = now < 0 ? (by > 0 ? 0 : list.length - 1) : Math.min(list.length - 1, Math.max(0, now + by));
  list[next]?.focus();
  list[next]?.scrollIntoView({ block: "nearest" });
}
