// A panel type is one folder in `types/`, whose index says what it is called, what it shows and how it is loaded. Nothing
// else has to be told of it.

import type { Component } from "svelte";
import type { Active } from "../lib/context";
import type { IconName } from "../parts/icons";

/** What a panel says of its content: to agents that look at the screen, and before the words that are sent beside it. */
export interface Said {
  active?: Active | undefined;
  /** Ids of what is selected, and how these are called. */
  selection?: readonly string[] | undefined;
  selectionTitles?: readonly string[] | undefined;
  /** What else there is to say, by names of the panel's own. */
  extras?: Readonly<Record<string, string>> | undefined;
}

/** What the component of a panel is given. */
export interface PanelProps {
  /** The conversation it shows, where its type shows one and there is one. */
  session: string | null;
  /** What it asked to find again. */
  kept: string;
  onkeep: (kept: string) => void;
  onsay: (said: Said) => void;
}

export interface PanelType {
  type: string;
  title: string;
  icon: IconName;
  /** What it is good for, in a line. */
  description: string;
  order: number;
  /** Whether several may be open. */
  several: boolean;
  /** Whose conversation it shows: none; the one that is looked at, unless it is kept to one; or always one and the same. */
  binding: "none" | "follows" | "fixed";
  load(): Promise<{ default: Component<PanelProps> }>;
}

const found = import.meta.glob<{ default: PanelType }>("./types/*/index.ts", { eager: true });

export const panelTypes: PanelType[] = Object.values(found)
  .map((module) => module.default)
  .sort((a, b) => a.order - b.order);

export function typeOf(name: string): PanelType | undefined {
  return panelTypes.find((each) => each.type === name);
}
