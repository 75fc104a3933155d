// Made from the code by `make generate`.

export type Answer = { "id": string; "allow": boolean };

export type Apply = { "dry_run"?: boolean; "take"?: string; "reset"?: boolean };

export type Attributes = { "session": string; "patch": Record<string, unknown> };

export type Backup = { "to"?: string; "verify"?: boolean };

export type Check = { "text"?: string | null };

export type Delete = { "name": string; "keep_home"?: boolean };

export type Delivery = "at-most-once" | "resume";

export type Diff = { "name": string; "old": number; "new"?: number | null };

export type Doctor = { "quick"?: boolean };

export type ErrorForm = { "code": string; "sentence": string; "because": string; "try": string; "candidates"?: Array<string>; "matches"?: number; "retry-after-s"?: number };

export type Forget = { "name": string; "confirm"?: string };

export type History = { "session": string; "limit"?: number; "before"?: number | null };

export type Import = { "agent": string; "files": Record<string, string> };

export type Inbox = { "limit"?: number; "ack"?: boolean };

export type Invite = { "name": string; "role"?: Role };

export type Named = { "name": string };

export type Nothing = Record<string, never>;

export type OfPrincipal = { "principal"?: string };

export type OfSession = { "session": string };

export type Overflow = "oldest" | "refuse" | "summarize";

export type Patch = { "changes": Record<string, unknown>; "expected_hash": string };

export type PermissionLevel = "boss" | "privileged" | "restricted" | "standard";

export type Purge = { "done_days"?: number | null; "news_days"?: number | null; "runs_days"?: number | null; "unread"?: boolean; "dry_run"?: boolean };

export type Queue = { "session": string; "mode"?: QueueMode | null; "cap"?: number | null; "overflow"?: Overflow | null };

export type QueueMode = "collect" | "followup" | "interrupt" | "steer" | "steer-backlog";

export type Refusal = { "error": ErrorForm };

export type Register = { "name": string; "description"?: string | null; "runner"?: string | null; "provider"?: string | null; "model"?: string | null; "effort"?: string | null; "instructions"?: string | null; "delivery"?: Delivery | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "tools_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "dry_run"?: boolean; "token"?: boolean };

export type Rename = { "session": string; "name": string | null };

export type Reset = { "session": string; "message"?: string };

export type Restore = { "name": string; "version": number };

export type Role = "guest" | "member" | "owner";

export type Send = { "to": string; "text": string; "key"?: string; "conversation"?: string; "session"?: string; "deliver_at"?: string; "expires_at"?: string; "reply_to"?: string; "attachments"?: Array<Upload> };

export type Set = { "name": string; "description"?: string | null; "runner"?: string | null; "provider"?: string | null; "model"?: string | null; "effort"?: string | null; "instructions"?: string | null; "delivery"?: Delivery | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "tools_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "clear"?: Array<string>; "dry_run"?: boolean };

export type SetRole = { "name": string; "role": Role };

export type Share = { "session": string; "person": string };

export type Status = "claimed" | "done" | "parked" | "pending";

export type Stop = { "session": string; "why"?: string; "clear"?: boolean };

export type Upload = { "name": string; "data": string; "media_type"?: string };

export type Versions = { "name": string; "limit"?: number; "before"?: number | null };

export type Why = { "id": string };

export type RetinueOperationsEnvelopesById = { "id": string };

export type RetinueOperationsEnvelopesListing = { "limit"?: number };

export type RetinueOperationsMailListing = { "status": Status; "to"?: string; "from"?: string; "limit"?: number; "created_after"?: string; "created_before"?: string; "before"?: string; "ack"?: boolean };

export type RetinueOperationsSessionsCreate = { "agent": string; "name"?: string | null; "attributes"?: Record<string, unknown> };

export type RetinueOperationsSessionsListing = { "limit"?: number; "agent"?: string; "cursor"?: string };

export type RetinueOperationsTokensById = { "id": string; "principal"?: string };

export type RetinueOperationsTokensCreate = { "label"?: string; "principal"?: string; "expires_in_days"?: number | null };

export interface Operations {
  /** Send an envelope. */
  "envelope.send": { asked: Send; answered: Record<string, unknown>; effect: true };
  /** Show one envelope. */
  "envelope.show": { asked: RetinueOperationsEnvelopesById; answered: Record<string, unknown>; effect: false };
  /** Show what an envelope replies to. */
  "envelope.thread": { asked: RetinueOperationsEnvelopesById; answered: Record<string, unknown>; effect: false };
  /** List dead letters. */
  "envelope.dead": { asked: RetinueOperationsEnvelopesListing; answered: Record<string, unknown>; effect: false };
  /** Take back an envelope that still waits. */
  "envelope.cancel": { asked: RetinueOperationsEnvelopesById; answered: Record<string, unknown>; effect: true };
  /** Send a dead letter once more. */
  "envelope.retry": { asked: RetinueOperationsEnvelopesById; answered: Record<string, unknown>; effect: true };
  /** List envelopes by who sent or received them. */
  "envelope.list": { asked: RetinueOperationsMailListing; answered: Record<string, unknown>; effect: true };
  /** Show what waits for you. */
  "inbox.list": { asked: Inbox; answered: Record<string, unknown>; effect: true };
  /** List sessions. */
  "session.list": { asked: RetinueOperationsSessionsListing; answered: Record<string, unknown>; effect: false };
  /** Show the records of a session. */
  "session.history": { asked: History; answered: Record<string, unknown>; effect: false };
  /** Begin a session of your own. */
  "session.create": { asked: RetinueOperationsSessionsCreate; answered: Record<string, unknown>; effect: true };
  /** Name a session. */
  "session.rename": { asked: Rename; answered: Record<string, unknown>; effect: true };
  /** Keep a session at the top. */
  "session.pin": { asked: OfSession; answered: Record<string, unknown>; effect: true };
  /** Let a session go down the list. */
  "session.unpin": { asked: OfSession; answered: Record<string, unknown>; effect: true };
  /** Patch what is noted about a session. */
  "session.attributes": { asked: Attributes; answered: Record<string, unknown>; effect: true };
  /** Begin afresh, with nothing of what was said. */
  "session.clear": { asked: OfSession; answered: Record<string, unknown>; effect: true };
  /** Delete a session. */
  "session.delete": { asked: OfSession; answered: Record<string, unknown>; effect: true };
  /** Share a session with a person. */
  "session.share": { asked: Share; answered: Record<string, unknown>; effect: true };
  /** Share a session no longer. */
  "session.unshare": { asked: Share; answered: Record<string, unknown>; effect: true };
  /** Show a session as it is now. */
  "session.state": { asked: OfSession; answered: Record<string, unknown>; effect: false };
  /** Stop what runs in a session. */
  "session.stop": { asked: Stop; answered: Record<string, unknown>; effect: true };
  /** Begin a fresh context. */
  "session.reset": { asked: Reset; answered: Record<string, unknown>; effect: true };
  /** Set how mail queues. */
  "session.queue": { asked: Queue; answered: Record<string, unknown>; effect: true };
  /** Allow or deny a call. */
  "approval.answer": { asked: Answer; answered: Record<string, unknown>; effect: true };
  /** Give a session out as files. */
  "session.export": { asked: OfSession; answered: Record<string, unknown>; effect: false };
  /** Make a session from files. */
  "session.import": { asked: Import; answered: Record<string, unknown>; effect: true };
  /** List the staff. */
  "agent.list": { asked: Nothing; answered: Record<string, unknown>; effect: false };
  /** Show one agent. */
  "agent.show": { asked: Named; answered: Record<string, unknown>; effect: false };
  /** Take an agent on. */
  "agent.register": { asked: Register; answered: Record<string, unknown>; effect: true };
  /** Change an agent. */
  "agent.set": { asked: Set; answered: Record<string, unknown>; effect: true };
  /** List what an agent has been. */
  "agent.versions": { asked: Versions; answered: Record<string, unknown>; effect: false };
  /** Compare two versions of an agent. */
  "agent.diff": { asked: Diff; answered: Record<string, unknown>; effect: false };
  /** Make an old version of an agent the newest. */
  "agent.restore": { asked: Restore; answered: Record<string, unknown>; effect: true };
  /** Let an agent go. */
  "agent.delete": { asked: Delete; answered: Record<string, unknown>; effect: true };
  /** Who is at home here. */
  "person.list": { asked: Nothing; answered: Record<string, unknown>; effect: false };
  /** Who you are, and what you may do. */
  "person.whoami": { asked: Nothing; answered: Record<string, unknown>; effect: false };
  /** Invite someone. The invitation is shown this once. */
  "person.invite": { asked: Invite; answered: Record<string, unknown>; effect: true };
  /** Make someone a member or a guest. */
  "person.role": { asked: SetRole; answered: Record<string, unknown>; effect: true };
  /** Sign someone out for good, and take their words out of the store. */
  "person.forget": { asked: Forget; answered: Record<string, unknown>; effect: true };
  /** Make a token. Its secret is shown this once. */
  "token.create": { asked: RetinueOperationsTokensCreate; answered: Record<string, unknown>; effect: true };
  /** List tokens, without their secrets. */
  "token.list": { asked: OfPrincipal; answered: Record<string, unknown>; effect: false };
  /** Make a token worthless. */
  "token.revoke": { asked: RetinueOperationsTokensById; answered: Record<string, unknown>; effect: true };
  /** Put a new secret in a token's place. It is shown this once. */
  "token.rotate": { asked: RetinueOperationsTokensById; answered: Record<string, unknown>; effect: true };
  /** Make a code that signs a browser in, once. */
  "token.code": { asked: Nothing; answered: Record<string, unknown>; effect: true };
  /** Show the settings as they are in use. */
  "config.show": { asked: Nothing; answered: Record<string, unknown>; effect: false };
  /** Say what is wrong with a settings file. */
  "config.check": { asked: Check; answered: Record<string, unknown>; effect: false };
  /** Change the settings file, its comments kept. */
  "config.patch": { asked: Patch; answered: Record<string, unknown>; effect: true };
  /** Read the settings file again. */
  "config.reload": { asked: Nothing; answered: Record<string, unknown>; effect: true };
  /** Make the staff what the settings file declares. */
  "config.apply": { asked: Apply; answered: Record<string, unknown>; effect: true };
  /** Write the staff down as a settings file, without secrets. */
  "config.export": { asked: Nothing; answered: Record<string, unknown>; effect: false };
  /** Who is here, and what waits for you. */
  "house.status": { asked: Nothing; answered: Record<string, unknown>; effect: false };
  /** Prove that nothing is lost. */
  "house.ledger": { asked: Nothing; answered: Record<string, unknown>; effect: false };
  /** Tell why something became what it is. */
  "house.why": { asked: Why; answered: Record<string, unknown>; effect: false };
  /** Copy everything the house keeps into a new folder, while it goes on. */
  "house.backup": { asked: Backup; answered: Record<string, unknown>; effect: true };
  /** Take away what is long done. Without `dry_run` set to false it only counts. */
  "house.purge": { asked: Purge; answered: Record<string, unknown>; effect: true };
  /** Look for what is wrong with the house, and say what to do. */
  "house.doctor": { asked: Doctor; answered: Record<string, unknown>; effect: false };
}

export type Refused = Refusal;

export const routes: { [Name in keyof Operations]: string } = {
  "envelope.send": "/api/envelope/send",
  "envelope.show": "/api/envelope/show",
  "envelope.thread": "/api/envelope/thread",
  "envelope.dead": "/api/envelope/dead",
  "envelope.cancel": "/api/envelope/cancel",
  "envelope.retry": "/api/envelope/retry",
  "envelope.list": "/api/envelope/list",
  "inbox.list": "/api/inbox/list",
  "session.list": "/api/session/list",
  "session.history": "/api/session/history",
  "session.create": "/api/session/create",
  "session.rename": "/api/session/rename",
  "session.pin": "/api/session/pin",
  "session.unpin": "/api/session/unpin",
  "session.attributes": "/api/session/attributes",
  "session.clear": "/api/session/clear",
  "session.delete": "/api/session/delete",
  "session.share": "/api/session/share",
  "session.unshare": "/api/session/unshare",
  "session.state": "/api/session/state",
  "session.stop": "/api/session/stop",
  "session.reset": "/api/session/reset",
  "session.queue": "/api/session/queue",
  "approval.answer": "/api/approval/answer",
  "session.export": "/api/session/export",
  "session.import": "/api/session/import",
  "agent.list": "/api/agent/list",
  "agent.show": "/api/agent/show",
  "agent.register": "/api/agent/register",
  "agent.set": "/api/agent/set",
  "agent.versions": "/api/agent/versions",
  "agent.diff": "/api/agent/diff",
  "agent.restore": "/api/agent/restore",
  "agent.delete": "/api/agent/delete",
  "person.list": "/api/person/list",
  "person.whoami": "/api/person/whoami",
  "person.invite": "/api/person/invite",
  "person.role": "/api/person/role",
  "person.forget": "/api/person/forget",
  "token.create": "/api/token/create",
  "token.list": "/api/token/list",
  "token.revoke": "/api/token/revoke",
  "token.rotate": "/api/token/rotate",
  "token.code": "/api/token/code",
  "config.show": "/api/config/show",
  "config.check": "/api/config/check",
  "config.patch": "/api/config/patch",
  "config.reload": "/api/config/reload",
  "config.apply": "/api/config/apply",
  "config.export": "/api/config/export",
  "house.status": "/api/house/status",
  "house.ledger": "/api/house/ledger",
  "house.why": "/api/house/why",
  "house.backup": "/api/house/backup",
  "house.purge": "/api/house/purge",
  "house.doctor": "/api/house/doctor",
};
