// A panel type is one folder in `types/`. Its index declares the title, what it shows and how it is loaded; nothing else
// needs to know it.

import type { Component } from "svelte";
import type { ActiveContent } from "../lib/uiContext";
import type { IconName } from "../parts/icons";

/** The content of a panel, for agents that inspect the window and for the context line of messages. */
export interface PanelContent {
  active?: ActiveContent | undefined;
  /** The ids of the selected items, and their titles. */
  selection?: readonly string[] | undefined;
  selectionTitles?: readonly string[] | undefined;
  /** Further attributes of the panel. */
  extras?: Readonly<Record<string, string>> | undefined;
}

/** The props of a panel component. */
export interface PanelProps {
  /** The conversation it shows, if its type shows one. */
  session: string | null;
  /** The state that the panel stored. */
  state: string;
  onstate: (state: string) => void;
  oncontent: (content: PanelContent) => void;
}

export interface PanelType {
  type: string;
  title: string;
  icon: IconName;
  /** What it shows, in one line. */
  description: string;
  order: number;
  /** Whether several may be open. */
  several: boolean;
  /** Which conversation it shows: none; the open one, unless it is pinned; or always the same one. */
  binding: "none" | "follows" | "fixed";
  load(): Promise<{ default: Component<PanelProps> }>;
}

const modules = import.meta.glob<{ default: PanelType }>("./types/*/index.ts", { eager: true });

export const panelTypes: PanelType[] = Object.values(modules)
  .map((module) => module.default)
  .sort((a, b) => a.order - b.order);

export function findPanelType(name: string): PanelType | undefined {
  return panelTypes.find((each) => each.type === name);
}
