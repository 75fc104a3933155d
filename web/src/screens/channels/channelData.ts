// Data shared by the sections of this screen.

import type { Result } from "../../lib/api";
import type { Query } from "../../lib/query.svelte";

export interface ChannelData {
  connectors: Query<Result<"connector.list">>;
  pairings: Query<Result<"pairing.list">>;
  /** Unresolved poison messages. */
  unprocessed: Query<Result<"poison_message.list">>;
}

/** Events after which the data is loaded again. Connectors have no events of their own, but messages in and out do, and so
 * does an access request, which sends the owner a message. The data is also refreshed from time to time. */
export const CHANNEL_EVENTS = ["envelope.accepted", "envelope.settled"];
