// A screen is one folder in `screens/`. Its index declares the title, the path and how it is loaded; nothing else needs
// to know it.

import type { Component } from "svelte";

export interface Screen {
  /** The first part of its path. */
  name: string;
  title: string;
  icon: string;
  /** Its position in the list of screens. On a phone, those from 100 on are under "More". */
  order: number;
  /** The keyboard shortcut that opens it. */
  keys: string;
  /** Whether it needs the level privileged or boss. */
  privileged?: boolean;
  /** A number beside the title: how many items need attention. */
  badge?(): number;
  load(): Promise<{ default: Component }>;
}

const modules = import.meta.glob<{ default: Screen }>("../screens/*/index.ts", { eager: true });

export const screens: Screen[] = Object.values(modules)
  .map((module) => module.default)
  .sort((a, b) => a.order - b.order);

export function findScreen(name: string | undefined): Screen | undefined {
  return screens.find((each) => each.name === name);
}
