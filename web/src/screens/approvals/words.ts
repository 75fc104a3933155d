import type { Approval } from "../../lib/house.svelte";
import { seen } from "../../lib/seen";

/** What was asked for, in a few words: the tools, each once, or the permissions. */
export function whatFor(approval: Approval): string {
  const named = approval.calls.length ? [...new Set(approval.calls.map((call) => call.tool))] : approval["would-grant"];
  return seen(named.join(", "));
}
