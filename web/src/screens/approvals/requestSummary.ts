import type { Approval } from "../../lib/server.svelte";
import { escapeInvisible } from "../../lib/visibleText";

/** The tools of a request, each once, or its permissions. */
export function summarizeRequest(approval: Approval): string {
  const names = approval.calls.length ? [...new Set(approval.calls.map((call) => call.tool))] : approval.grant_permissions;
  return escapeInvisible(names.join(", "));
}
