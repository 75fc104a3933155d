import { pluralize } from "../lib/format";

/** Work that one agent gives to another. */
export const delegationStrings = {
  title: "Delegated",
  trees: "Delegated work",
  none: "No delegated work yet",
  noneText: "When an agent delegates work to another agent, it appears here with its status and cost. To start, ask an agent to message another agent.",
  hint: "If you stop a delegation, all work that its agent delegated to others is stopped too. The agent that delegated the work is notified.",
  openOnly: "Show only open delegations",
  noneOpen: "No open delegations. All delegated work is finished.",
  status: { waiting: "queued", working: "working", suspended: "waiting for an agent", awaiting_approval: "waiting for approval", ok: "done", error: "failed", timeout: "timed out", stopped: "stopped" },
  kinds: { message: "asked", send: "messaged", spawn: "started subagent", background: "started background job", external: "asked external agent" },
  in: "in",
  unnamed: "unnamed conversation",
  conversation: "Conversation",
  conversationOf: (agent: string, task: string): string => `Conversation of ${agent}: ${task}`,
  run: "Run",
  runOf: (agent: string, task: string): string => `Run of ${agent}: ${task}`,
  stop: "Stop",
  stopOf: (agent: string, task: string): string => `Stop ${agent}: ${task}`,
  stopped: (count: number): string => (count ? `Stopped ${pluralize(count, "delegation", "delegations")}.` : "This delegation had already ended."),
  delegatedBy: (agent: string): string => `Delegated by ${agent}`,
  more: "Show more",
};
