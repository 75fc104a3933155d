// Going on with another agent: asked for from wherever one is, done by the conversation that one looks at.

import type { Session } from "./house.svelte";

export interface Wish {
  /** Where one came from: back there. */
  back: boolean;
  /** Whom one has chosen already. */
  agent: string;
}

class Switching {
  wish: Wish | null = $state.raw(null);

  to(agent = ""): void {
    this.wish = { back: false, agent };
  }

  back(agent: string): void {
    this.wish = { back: true, agent };
  }

  done(): void {
    this.wish = null;
  }
}

export const switching = new Switching();

/** The conversation from which one came to this one. */
export function cameFrom(session: Session | undefined): string | null {
  const core: unknown = session?.attributes["core"];
  const before = typeof core === "object" && core !== null ? (core as Record<string, unknown>)["cameFrom"] : null;
  return typeof before === "string" ? before : null;
}
