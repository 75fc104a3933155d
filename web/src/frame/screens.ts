// A screen is one folder in `screens/`, whose index says what it is called, where it lies and how it is loaded. Nothing
// else has to be told of it.

import type { Component } from "svelte";

export interface Screen {
  /** The first part of its path. */
  name: string;
  title: string;
  icon: string;
  /** Its place in the list of screens; those from 100 on lie under "more" on a phone. */
  order: number;
  /** What takes one there: a sequence for the keyboard. */
  keys: string;
  /** Only for those who may do more than talk. */
  privileged?: boolean;
  /** A number beside its name, where there is something to do. */
  badge?(): number;
  load(): Promise<{ default: Component }>;
}

const found = import.meta.glob<{ default: Screen }>("../screens/*/index.ts", { eager: true });

export const screens: Screen[] = Object.values(found)
  .map((module) => module.default)
  .sort((a, b) => a.order - b.order);

export function screenAt(name: string | undefined): Screen | undefined {
  return screens.find((each) => each.name === name);
}
