// What the parts of this screen look at together.

import type { Answered } from "../../lib/api";
import type { Reading } from "../../lib/reading.svelte";

export interface Read {
  connectors: Reading<Answered<"connector.list">>;
  pairings: Reading<Answered<"pairing.list">>;
  /** Those that wait. */
  aside: Reading<Answered<"set-aside.list">>;
}

/** Doors have no news of their own. What comes in by them is an envelope, what goes out is settled, and of a stranger the
 * owner is told: by these the screen is true at once, and by looking again in between. */
export const HEARD = ["envelope.accepted", "envelope.settled"];
