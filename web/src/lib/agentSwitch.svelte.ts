// A request to switch to another agent. Any part of the app can make it; the open conversation performs it.

import type { Session } from "./server.svelte";

export interface SwitchRequest {
  /** Whether to return to the conversation that the person switched from. */
  back: boolean;
  /** The chosen agent. Empty: not chosen yet. */
  agent: string;
}

class AgentSwitch {
  request: SwitchRequest | null = $state.raw(null);

  start(agent = ""): void {
    this.request = { back: false, agent };
  }

  startReturn(agent: string): void {
    this.request = { back: true, agent };
  }

  finish(): void {
    this.request = null;
  }
}

export const agentSwitch = new AgentSwitch();

/** The conversation from which the person switched to this one. */
export function getPreviousSession(session: Session | undefined): string | null {
  const core: unknown = session?.attributes["core"];
  const values = typeof core === "object" && core !== null ? (core as Record<string, unknown>) : {};
  const previous = values["came_from"] ?? values["cameFrom"]; // the second was stored by an earlier version
  return typeof previous === "string" ? previous : null;
}
