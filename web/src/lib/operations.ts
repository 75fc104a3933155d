// Made from the code by `make generate`.

export type Accept = { "which": string; "person"?: string };

export type AddReminder = { "text": string; "at"?: string; "delay_s"?: number; "to"?: string };

export type AddWakeup = { "session": string; "text": string; "at"?: string; "delay_s"?: number };

export type AdmittedShown = { "connector": string; "speaker": string; "by": string; "at": string };

export type AgentChanged = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternal; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "delivery": Delivery; "concurrency": number | null; "queue": AgentQueue; "reset": AgentReset; "tools": AgentTools; "delegation": AgentDelegation; "subagents": AgentSubagents; "heartbeat": AgentHeartbeat; "sandbox": AgentSandbox; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "colour": Colour | null; "visible": boolean; "version": number; "changed": Array<string>; "dry-run"?: boolean };

export type AgentDelegation = { "allow": Array<string>; "deny": Array<string>; "depth_max": number; "open_max": number; "exchanges_max": number; "circles": boolean; "histories": boolean };

export type AgentDeleted = { "name": string; "deleted": boolean; "cancelled-runs": Array<string>; "home": string | null };

export type AgentExternal = { "url": string; "secret": string; "timeout_s": number; "retries": number };

export type AgentFieldChange = { "field": string; "old": unknown; "new": unknown };

export type AgentFile = { "path": string; "size-bytes": number; "changed-at": string; "hash": string | null };

export type AgentFileShown = { "name": string; "path": string; "content": string; "size-bytes": number; "changed-at": string; "hash": string; "trust": Trust };

export type AgentFileWritten = { "name": string; "path": string; "size-bytes": number; "hash": string; "created": boolean };

export type AgentFiles = { "name": string; "files": Array<AgentFile>; "more": boolean };

export type AgentHeartbeat = { "every_s": number | null; "active_start": string | null; "active_end": string | null; "active_zone": string | null; "prompt": string | null; "model": string | null; "place": Place | null; "target": string | null; "ack_chars_max": number | null };

export type AgentHere = { "name": string; "display_name": string; "model": string; "description": string; "icon": string; "colour": Colour | null; "visible": boolean };

export type AgentListed = { "name": string; "display_name": string; "description": string; "runner": string; "model": string; "version": number; "icon": string; "colour": Colour | null; "visible": boolean };

export type AgentPrompt = { "name": string; "session": string | null; "template": string; "tokens": number; "sections": Array<PromptSection>; "text": string; "files"?: Array<PromptFile>; "before"?: PromptBefore | null; "trouble"?: TemplateTrouble | null };

export type AgentQueue = { "mode": QueueMode; "cap": number; "overflow": Overflow; "debounce_s": number };

export type AgentRegistered = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternal; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "delivery": Delivery; "concurrency": number | null; "queue": AgentQueue; "reset": AgentReset; "tools": AgentTools; "delegation": AgentDelegation; "subagents": AgentSubagents; "heartbeat": AgentHeartbeat; "sandbox": AgentSandbox; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "colour": Colour | null; "visible": boolean; "version": number; "home"?: string; "token"?: string; "dry-run"?: boolean; "shown-once"?: Array<string> };

export type AgentReset = { "daily_at": string | null; "idle_minutes": number | null; "context_tokens_max": number | null };

export type AgentRestored = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternal; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "delivery": Delivery; "concurrency": number | null; "queue": AgentQueue; "reset": AgentReset; "tools": AgentTools; "delegation": AgentDelegation; "subagents": AgentSubagents; "heartbeat": AgentHeartbeat; "sandbox": AgentSandbox; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "colour": Colour | null; "visible": boolean; "version": number; "restored": number };

export type AgentSandbox = { "mode": SandboxMode | null; "scope": Scope | null; "workspace": WorkspaceAccess | null; "sessions": SessionsSeen | null; "browser": boolean | null; "image": string; "cpus": number | null; "idle_hours": number | null; "age_days": number | null };

export type AgentShown = { "name": string; "display_name": string; "description": string; "runner": string; "external"?: AgentExternal; "provider"?: string | null; "model": string; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string; "instructions_mode"?: InstructionMode; "workspace"?: string; "context_files"?: Array<string>; "delivery"?: Delivery; "concurrency"?: number | null; "queue"?: AgentQueue; "reset"?: AgentReset; "tools"?: AgentTools; "delegation"?: AgentDelegation; "subagents"?: AgentSubagents; "heartbeat"?: AgentHeartbeat; "sandbox"?: AgentSandbox; "turns_max"?: number; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number; "replay_age_s"?: number | null; "approval_wait_s"?: number; "permission_level"?: PermissionLevel; "icon": string; "colour": Colour | null; "visible": boolean; "version": number; "state": AgentState; "in_force"?: Record<string, InForce> };

export type AgentState = "idle" | "running";

export type AgentSubagents = { "allow": Array<string>; "model": string; "effort": string | null; "run_seconds_max": number | null; "archive_after_s": number | null };

export type AgentToolLists = { "profile": string | null; "allow": Array<string>; "also_allow": Array<string>; "ask": Array<string>; "deny": Array<string>; "capabilities_allow": Array<string>; "capabilities_deny": Array<string> };

export type AgentTools = { "profile": string | null; "allow": Array<string>; "also_allow": Array<string>; "ask": Array<string>; "deny": Array<string>; "capabilities_allow": Array<string>; "capabilities_deny": Array<string>; "policy": string | null; "by_provider": Record<string, AgentToolLists> };

export type AgentVersionListed = { "version": number; "at": string; "by": string; "source": string; "changed": Array<string> };

export type AgentVersionsListed = { "versions": Array<AgentVersionListed>; "next": number | null };

export type AgentsCompared = { "name": string; "old": number; "new": number; "changes": Array<AgentFieldChange> };

export type AgentsListed = { "agents": Array<AgentListed> };

export type AgentsModels = { "agent": string; "session"?: string; "runner": string; "effort": string | null; "chain": Array<ModelInChain>; "now"?: Array<string>; "refused"?: string };

export type Answer = { "id": string; "allow": boolean; "scope"?: GrantScope; "because"?: string };

export type Apart = "agent" | "model" | "person" | "provider";

export type Apply = { "dry_run"?: boolean; "take"?: string; "reset"?: boolean };

export type ApprovalAnswered = { "approval": string; "state": ApprovalState };

export type ApprovalShown = { "id": string; "agent": string; "for-whom": string; "session": string; "session-name": string | null; "run": string; "calls": Array<Call>; "to-reach": Array<string>; "would-grant": Array<string>; "because": string; "asked-of": Array<string>; "scopes": Array<GrantScope>; "asked-at": string; "expires-at": string; "state": ApprovalState; "decided-by": string; "decided-at": string | null; "scope": GrantScope | null; "words": string };

export type ApprovalState = "allowed" | "closed" | "denied" | "expired" | "open";

export type ApprovalsListed = { "approvals": Array<ApprovalShown>; "next": string | null };

export type Attach = { "agent": string; "id": string };

export type Attached = "attached" | "created" | "revived";

export type AttachmentShown = { "name": string; "hash": string; "media-type": string; "size-bytes": number };

export type Attributes = { "session": string; "patch": Record<string, unknown> };

export type AuditExported = { "lines": Array<string>; "next": string | null };

export type AuditKind = "agent-changed" | "anchored" | "approval-asked" | "approval-decided" | "approval-expired" | "approval-refused" | "call-allowed" | "call-ended" | "call-refused" | "chain-begun" | "credential-changed" | "forgotten" | "grant-given" | "grant-revoked" | "mcp-approved" | "person-changed" | "purged" | "sandbox-off" | "settings-changed" | "skill-approved" | "token-made" | "token-revoked";

export type AuditListed = { "audit": Array<AuditShown>; "next": string | null };

export type AuditShown = { "at": string; "kind": string; "who": string; "agent": string; "subject": string; "verdict": string; "because": string; "run": string | null; "session": string; "position": number; "content": string; "hash": string };

export type AuditVerified = { "holds": boolean; "checked": number; "chains": number; "anchors": number; "flaws": Array<FlawShown>; "lines": Array<string> };

export type Backup = { "to"?: string; "verify"?: boolean };

export type BindingRemoved = { "id": string; "removed": boolean };

export type BindingSet = { "binding": BindingShown; "replaced": Array<BindingShown> };

export type BindingShown = { "id": string; "agent": string; "connector": string; "account": string; "peer-kind": string; "peer": string; "parent": string; "guild": string; "team": string; "also": Array<string>; "made-by": string };

export type BindingsListed = { "bindings": Array<BindingShown> };

export type BudgetShown = { "what": string; "whose": string; "raised-by": string; "cap-microusd": number; "spent-microusd"?: number | null; "held-microusd"?: number | null; "left-microusd"?: number | null; "share"?: number | null; "resets-on"?: string | null };

export type BudgetsShown = { "today": string; "warn-share": number; "budgets": Array<BudgetShown> };

export type By = "agent" | "day" | "model" | "person" | "provider" | "run" | "session";

export type Calendar = { "days"?: number };

export type CalendarShown = { "zone": string; "now": string; "until": string; "coming": Array<ComingShown>; "more": boolean };

export type Call = { "id": string; "tool": string; "arguments"?: Record<string, unknown> };

export type CallerShown = { "address": string; "level": PermissionLevel; "sees-all": boolean };

export type Came = "done" | "failed" | "interrupted" | "open" | "refused";

export type Check = { "text"?: string | null };

export type Cleanup = "delete" | "keep";

export type CodeMade = { "code"?: string; "expires-at": string; "shown-once"?: Array<string> };

export type Colour = "amber" | "blue" | "cyan" | "green" | "indigo" | "lime" | "orange" | "pink" | "red" | "slate" | "teal" | "violet";

export type ComingShown = { "id": string; "name": string; "kind": string; "to": string; "when": string; "text": string; "times": Array<string>; "often": boolean };

export type CommandList = { "agent"?: string };

export type CommandShown = { "name": string; "form": string; "summary": string; "directive"?: boolean; "skill"?: string };

export type CommandsListed = { "commands": Array<CommandShown> };

export type ConfigApplied = { "dry-run": boolean; "agents": Array<StepPlanned>; "people": Array<StepPlanned>; "schedules": Array<StepPlanned>; "bindings": Array<StepPlanned>; "not-yet": Array<string>; "tokens"?: Record<string, string>; "cleared-runs"?: number; "shown-once"?: Array<string> };

export type ConfigChanged = { "changes": Array<RetinueConfigSettingsDiffChange>; "waiting-for-a-restart": Array<string>; "hash": string };

export type ConfigChecked = { "ok": boolean; "faults": Array<string>; "hash": string };

export type ConfigExported = { "text": string };

export type ConfigFields = { "file": string; "hash": string; "sections": Array<SectionShown>; "faults": Array<FaultShown>; "waiting-for-a-restart": Array<string> };

export type ConfigPreview = { "old": string; "new": string; "patch": Record<string, unknown>; "changes": Array<RetinueConfigSettingsDiffChange>; "faults": Array<FaultShown>; "hash": string };

export type ConfigShown = { "file": string; "hash": string; "files": Array<string>; "settings": Record<string, unknown>; "default-agent": string | null; "waiting-for-a-restart": Array<string> };

export type ConnectorAdded = { "connector": ConnectorShown; "account": string; "next": Array<string> };

export type ConnectorRead = { "connector": ConnectorShown; "settings": Record<string, unknown> };

export type ConnectorRemoved = { "name": string; "removed": boolean };

export type ConnectorShown = { "name": string; "kind": string; "state": LineState; "since": string; "last-heard"?: string | null; "last-delivered"?: string | null; "breaks"?: number; "because"?: string; "try"?: string; "again-at"?: string | null; "dm"?: string; "in-groups"?: string };

export type ConnectorTested = { "name": string; "ok": boolean; "account": string; "sentence": string; "because": string; "try": string };

export type ConnectorsListed = { "connectors": Array<ConnectorShown> };

export type CredentialKind = "api_key" | "token";

export type CredentialRemoved = { "id": string; "agent": string | null; "removed": boolean };

export type CredentialShown = { "id": string; "provider": string; "agent": string | null; "kind": CredentialKind; "where": string; "state": RetinueOperationsModelCredentialResponsesState; "because": string; "region": string | null; "position": number | null; "used-at": string | null; "failures": Record<string, FailureShown> };

export type CredentialsListed = { "credentials": Array<CredentialShown> };

export type Cut = "after" | "before" | "request";

export type DaysShown = { "by": Apart; "days": Array<string>; "series": Array<UsedInDays>; "total": UsedShown };

export type DeadLetters = { "letters": Array<EnvelopeShown> };

export type DelegationKind = "background" | "external" | "message" | "send" | "spawn";

export type DelegationListed = { "id": string; "kind": DelegationKind; "agent": string; "session": string; "session-name": string | null; "asked-by": string; "call": string; "target": string; "to": string | null; "to-name": string | null; "run": string | null; "label": string; "task": string; "stands": Standing; "because": string; "waits": boolean; "result": string | null; "created-at": string; "started-at": string | null; "ended-at": string | null; "duration-ms": number | null; "cost-microusd": number };

export type DelegationStopped = { "stopped": Array<string>; "cancelled-runs": Array<string> };

export type DelegationsListed = { "delegations": Array<DelegationListed>; "next": string | null; "open-count": number; "counted-max": number };

export type Delete = { "name": string; "keep_home"?: boolean };

export type DeletedListed = { "sessions": Array<DeletedSession> };

export type DeletedSession = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": Wakefulness; "archivedAt": string | null; "deletedAt": string; "restorableUntil": string };

export type Delivery = "at-most-once" | "resume";

export type DeliveryShown = { "attempt": number; "state": DeliveryState; "receipt": string | null; "error-kind": string | null; "error": string | null };

export type DeliveryState = "failed" | "sending" | "sent" | "unknown";

export type Diff = { "name": string; "old": number; "new"?: number | null };

export type Difference = { "session": string; "run": string; "agent": string; "tool": string; "arguments": Record<string, unknown>; "now": Verdict; "then": Verdict; "because": string; "key": string };

export type Dismiss = { "connector": string; "speaker": string };

export type Dismissed = { "connector": string; "speaker": string; "dismissed": boolean };

export type Doctor = { "quick"?: boolean; "security"?: boolean; "fix"?: boolean };

export type Door = "invoke" | "mcp" | "model" | "skill";

export type Effect = "apply" | "hot" | "message" | "restart";

export type Elevation = "ask" | "full" | "off" | "on";

export type EnvelopeCancelled = { "envelope": string; "outcome": Outcome };

export type EnvelopePassed = { "id": string; "from": string; "to": string; "kind": RetinueDomainEnvelopeKind; "words": string; "session": string | null; "accepted-at": string; "status": Status; "outcome": Outcome | null };

export type EnvelopeRead = { "act": "envelope-read"; "at-ms": number; "envelope": string; "from": string; "kind": RetinueDomainEnvelopeKind; "words": string; "joined": boolean };

export type EnvelopeSent = { "act": "envelope-sent"; "at-ms": number; "envelope": string; "to": string; "kind": RetinueDomainEnvelopeKind; "words": string };

export type EnvelopeShown = { "id": string; "short": string; "from": string; "to": string; "kind": RetinueDomainEnvelopeKind; "status": Status; "accepted-at": string; "text": string; "reply-to"?: string; "deliver-at"?: string; "attachments"?: Array<AttachmentShown>; "outcome"?: Outcome; "because"?: string; "answer"?: string | null; "retry"?: string; "when-busy"?: WhenBusy; "position"?: number; "deliveries"?: Array<DeliveryShown> };

export type EnvelopeWaiting = { "id": string; "from": string; "kind": RetinueDomainEnvelopeKind; "words": string; "position": number | null; "due-at": string; "waits": Waits };

export type EnvelopesListed = { "envelopes": Array<EnvelopeShown>; "acknowledged": number };

export type EnvelopesPassed = { "envelopes": Array<EnvelopePassed> };

export type ErrorForm = { "code": string; "sentence": string; "because": string; "try": string; "candidates"?: Array<string>; "matches"?: number; "retry-after-s"?: number };

export type Failed = { "id": string; "reason": Reason; "agent"?: string; "model"?: string };

export type Failure = "auth" | "bad_request" | "connection" | "content_filter" | "context_overflow" | "malformed" | "not_found" | "overloaded" | "permission" | "quota" | "rate_limit" | "server" | "timeout" | "too_large";

export type FailureShown = { "reason": Failure; "errors": number; "failed-at": string; "cooling-until": string | null };

export type FaultShown = { "path": string; "sentence": string; "line": number | null; "because": string; "try": string; "code": string };

export type FieldKind = "choice" | "number" | "several" | "text" | "yes-no";

export type FieldShown = { "name": string; "label": string; "kind": FieldKind; "required": boolean; "options": Array<string>; "least": number | null; "most": number | null };

export type FindingShown = { "layer": string; "verdict": Verdict; "because": string; "key": string };

export type FlawShown = { "session": string; "position": number; "sentence": string };

export type Forget = { "name": string; "confirm"?: string };

export type Fork = { "session": string; "before": number; "name"?: string | null };

export type GateForm = { "command": string; "cwd"?: string; "timeout_ms"?: number; "env"?: Record<string, string>; "permissions"?: Array<string>; "domains"?: Array<string> };

export type Get = { "key": string };

export type GrantAdd = { "agent": string; "permission": string; "because": string; "session"?: string };

export type GrantNamed = { "id": string };

export type GrantRevoked = { "id": string; "revoked": boolean };

export type GrantScope = "always" | "once" | "session";

export type GrantShown = { "id": string; "agent": string; "permission": string; "session": string | null; "granted-by": string; "because": string; "at": string; "expires-at": string | null };

export type GrantsListed = { "grants": Array<GrantShown> };

export type Guest = { "instance": string; "plugin": string; "state": GuestState; "version"?: string; "description"?: string; "because"?: string; "try"?: string; "exclusive"?: boolean; "folder"?: string; "brings"?: Record<string, Array<string>>; "settings-schema"?: Record<string, unknown> };

export type GuestState = "failed" | "installed" | "loaded" | "off";

export type Health = "ok" | "problem" | "warning";

export type HealthChecked = { "name": string; "looks-at": string; "health": "ok" | "problem" | "skipped" | "warning"; "found": Array<HealthFound> };

export type HealthFound = { "health": Health; "sentence": string; "because": string; "try": string };

export type HeartbeatListed = { "agent": string; "schedule": string | null; "enabled": boolean; "because": string; "when": string; "next": string | null; "last-run": string | null; "last": string | null; "checklist": string; "tasks": Array<TaskListed> };

export type HeartbeatRun = { "agent": string; "begun": boolean; "because": string; "envelope": string | null };

export type HeartbeatsListed = { "heartbeats": Array<HeartbeatListed> };

export type HookBroken = { "folder": string; "because": string };

export type HookDisabled = { "name": string; "was_enabled": boolean };

export type HookRead = { "hook": HookShown; "content": string };

export type HookShown = { "name": string; "description": string; "events": Array<string>; "source": HookSource; "state": HookState; "because": string; "path": string; "hash": string };

export type HookSource = "bundled" | "house" | "workspace";

export type HookState = "changed" | "new" | "off" | "ready" | "unfit";

export type HooksListed = { "hooks": Array<HookShown>; "shadowed": Array<string>; "broken": Array<HookBroken> };

export type HouseBackedUp = { "folder": string; "parts": number; "size-bytes": number; "missing": Array<string>; "verified": boolean };

export type HouseExamined = { "health": Health; "checks": Array<HealthChecked>; "lines": Array<string>; "security"?: Array<SecurityFound>; "fixed"?: Array<string> };

export type HousePurged = { "dry-run": boolean; "envelopes": number; "news": number; "runs": number; "keys": number; "answers": number; "tokens": number; "notifications": number; "questionnaires": number; "files": number };

export type HouseState = { "cursor": number; "you": string; "level": PermissionLevel; "agents": Array<AgentHere>; "sessions": Array<SessionListed>; "approvals": Array<ApprovalShown>; "unread": number };

export type HouseStatus = { "version": string; "cursor": number; "agents": Array<AgentHere>; "default_agent": string | null; "approvals": Array<ApprovalShown>; "you": string; "now": string };

export type IdentitiesListed = { "identities": Array<IdentityShown> };

export type IdentityShown = { "person": string; "service": string; "id": string };

export type IdentityUnlinked = { "service": string; "id": string; "unlinked": boolean };

export type Import = { "agent": string; "files": Record<string, string> };

export type InDays = { "by"?: Apart; "from"?: string; "to"?: string; "limit"?: number };

export type InForce = { "value": unknown; "by": SaidBy; "key": string };

export type Inbox = { "limit"?: number; "ack"?: boolean };

export type InboxShown = { "envelopes": Array<EnvelopeShown>; "unread": number };

export type InstructionMode = "full" | "minimal" | "none";

export type Invite = { "name": string; "role"?: Role };

export type Invoke = { "tool": string; "args"?: Record<string, unknown>; "agent"?: string; "session"?: string };

export type Invoked = { "tool": string; "output": string; "failed": boolean };

export type KindShown = { "kind": string; "title": string; "questions": Array<QuestionShown> };

export type KindsListed = { "kinds": Array<KindShown>; "absent": Record<string, string> };

export type LaneKind = "background" | "main" | "schedule" | "subagent";

export type LaneShown = { "session": string; "session-name": string | null; "agent": string; "kind": OriginKind; "lane": LaneKind; "run": RunNow | null; "waiting": Array<EnvelopeWaiting>; "waiting-count": number };

export type Lanes = { "limit"?: number };

export type LanesShown = { "now": string; "lanes": Array<LaneShown>; "left-out": number; "slots": Array<SlotsShown>; "rooms": Array<RoomShown>; "rooms-left-out": number; "dead-count": number; "counted-max": number };

export type LedgerChecked = { "holds": boolean; "lines": Array<string> };

export type Level = "debug" | "error" | "info" | "warning";

export type Line = { "seq": number; "kind": RecordKind; "at": string; "run": string | null; "trust": Trust; "body": unknown; "mail": Array<MailRead> };

export type LineState = "failed" | "listening" | "needs-owner" | "off" | "trying" | "waiting";

export type Link = { "person": string; "service": string; "id": string };

export type ListWakeups = { "limit"?: number; "session"?: string };

export type Log = { "id": string; "limit"?: number; "before"?: number | null };

export type LogLine = { "at": string; "level": string; "text": string };

export type LogShown = { "entries": Array<LogLine>; "next": string | null };

export type Logs = { "level"?: Level; "text"?: string; "limit"?: number; "cursor"?: string };

export type MailRead = { "envelope": string; "from": string; "kind": RetinueDomainEnvelopeKind; "text": string; "at": string; "attachments": Array<AttachmentShown>; "work": WorkRead | null };

export type McpApproved = { "server": McpShown; "approved": boolean; "difference": Array<string>; "try": string; "lines": Array<string> };

export type McpListed = { "servers": Array<McpShown> };

export type McpRead = { "server": McpShown; "content": string; "difference": Array<string>; "found-good-by": string; "found-good-at": string; "lines": Array<string> };

export type McpRevoked = { "name": string; "revoked": boolean };

export type McpShown = { "name": string; "state": RetinueToolsMcpServerStatusState; "because": string; "try": string; "hash": string; "retry-at": string; "agents": Array<string>; "tools": Array<string>; "left-out": Record<string, string> };

export type Missed = "run" | "skip";

export type ModelAsked = { "act": "model"; "at-ms": number; "ended-ms": number | null; "came": Came; "turn": number; "attempt": number; "summary": boolean; "model": string; "usage": RetinueDomainRecordUsage; "cost-microusd": number; "cost-unknown": boolean; "failure": string | null; "next-move": string | null; "error": string | null; "text": string; "text-chars": number; "calls": Array<string>; "record": number | null };

export type ModelCall = { "turn": number; "attempt": number; "summary": boolean; "provider": string; "model": string; "credential": string; "usage": RetinueDomainRecordUsage; "cost-usd": number; "cost-unknown": boolean; "failure": string | null; "next-move": string | null; "error": string | null; "at": string };

export type ModelGiven = { "primary"?: string | null; "fallbacks"?: Array<string> | null };

export type ModelInChain = { "model": string; "because": string; "window-tokens": number; "price": string; "missing"?: string; "retired"?: string };

export type ModelListed = { "number": number; "model": string; "alias"?: string; "sold-by"?: string; "window-tokens": number; "output-tokens-max": number; "vision": boolean; "tools": boolean; "efforts": Array<string> | null; "price": string; "default": boolean; "missing"?: string; "retired"?: string };

export type ModelsListed = { "models": Array<ModelListed>; "allow": Array<string>; "known-on": string };

export type ModelsShown = { "default": string; "default-because": string; "agents": Array<AgentsModels>; "known-on": string };

export type Named = { "name": string };

export type Next = { "schedule": string; "count"?: number };

export type Nothing = Record<string, never>;

export type NotificationCreated = { "id": string; "to": string };

export type NotificationShown = { "id": string; "from": string; "title": string; "text": string; "at": string; "read": boolean; "untrusted": boolean; "session": string | null };

export type NotificationsChanged = { "changed": number; "unread": number };

export type NotificationsListed = { "notifications": Array<NotificationShown>; "unread": number; "next": string | null };

export type Of = { "name": string };

export type OfPrincipal = { "principal"?: string };

export type OfSession = { "session": string };

export type OfSubagent = { "id": string };

export type OneFile = { "name": string; "path": string };

export type Origin = "default" | "environment" | "file";

export type OriginKind = "agent" | "background" | "chat" | "external" | "heartbeat" | "schedule" | "subagent" | "terminal" | "web";

export type Outcome = "answered" | "cancelled" | "dead" | "delivered" | "expired" | "interrupted" | "noted" | "refused";

export type Overflow = "oldest" | "refuse" | "summarize";

export type PairingDecided = { "pairing": PairingShown; "person": string };

export type PairingShown = { "id": string; "code": string; "connector": string; "service": string; "speaker": string; "name": string; "state": PairingState; "asked-at": string; "expires-at": string; "decided-by": string };

export type PairingState = "accepted" | "expired" | "refused" | "waiting";

export type PairingsListed = { "pairings": Array<PairingShown>; "admitted": Array<AdmittedShown> };

export type PartialShown = { "session": string; "run": string; "turn": number; "attempt": number; "text": string; "thinking": string };

export type Patch = { "changes": Record<string, unknown>; "expected_hash": string };

export type PeerKind = "channel" | "dm" | "group";

export type PeopleListed = { "people": Array<PersonShown> };

export type Permanent = { "name": string; "description": string; "system_prompt": string; "workspace_dir"?: string; "agent_id"?: string };

export type PermanentAgent = { "name": string; "display_name": string; "version": number; "created": boolean; "changed": Array<string>; "workspace": string };

export type PermissionLevel = "boss" | "privileged" | "restricted" | "standard";

export type PersonAsked = { "act": "approval"; "at-ms": number; "ended-ms": number | null; "approval": string; "state": ApprovalState; "calls": Array<string>; "because": string; "asked-of": Array<string>; "decided-by": string; "scope": GrantScope | null; "words": string };

export type PersonForgotten = { "name": string; "sessions": number; "envelopes": number; "records": number };

export type PersonInvited = { "name": string; "role": Role; "invitation"?: string; "expires-at": string; "shown-once"?: Array<string> };

export type PersonShown = { "name": string; "role": Role; "level": PermissionLevel };

export type Place = "fresh" | "main" | "own";

export type PluginSettingsShown = { "name": string; "settings": Record<string, unknown>; "schema": Record<string, unknown>; "plugin": Guest };

export type PluginsListed = { "plugins": Array<Guest> };

export type PreferenceShown = { "key": string; "value": unknown };

export type PreferencesListed = { "preferences": Array<PreferenceShown> };

export type Preview = { "changes"?: Record<string, unknown> | null; "text"?: string | null };

export type Prompt = { "name": string; "session"?: string; "mode"?: InstructionMode | null; "check"?: Array<Upload>; "parts"?: boolean };

export type PromptBefore = { "at": string; "text": string };

export type PromptFile = { "name": string; "section": string; "tokens": number; "chars": number };

export type PromptSection = { "name": string; "tokens": number; "chars": number; "text"?: string };

export type Purge = { "done_days"?: number | null; "news_days"?: number | null; "runs_days"?: number | null; "unread"?: boolean; "dry_run"?: boolean };

export type QuestionShown = { "key": string; "ask": string; "secret": boolean; "default": string; "help": string };

export type QuestionnaireCancelled = { "id": string; "state": QuestionnaireState };

export type QuestionnaireShown = { "id": string; "short": string; "state": QuestionnaireState; "title": string; "agent": string; "session": string; "to": string; "asked-at": string; "expires-at": string; "untrusted": boolean; "fields": Array<FieldShown>; "answers": Record<string, string | number | boolean | Array<string> | null>; "ended-by": string; "envelope": string | null };

export type QuestionnaireState = "answered" | "cancelled" | "expired" | "open";

export type QuestionnaireSubmitted = { "id": string; "envelope": string; "session": string };

export type QuestionnairesListed = { "questionnaires": Array<QuestionnaireShown>; "next": string | null };

export type Queue = { "session": string; "mode"?: QueueMode | null; "cap"?: number | null; "overflow"?: Overflow | null; "debounce_s"?: number | null };

export type QueueMode = "collect" | "followup" | "interrupt" | "steer" | "steer-backlog";

export type QueueOverride = { "mode"?: QueueMode | null; "cap"?: number | null; "overflow"?: Overflow | null; "debounce_s"?: number | null };

export type QueuePolicy = { "mode"?: QueueMode; "cap"?: number; "overflow"?: Overflow; "debounce_s"?: number };

export type QueueSet = { "session": string; "queue": QueueOverride };

export type Reason = "auth" | "overloaded" | "permission" | "quota" | "rate_limit" | "timeout";

export type Recent = { "limit"?: number };

export type RecordDamaged = { "seq": number; "because": string };

export type RecordKind = "assistant" | "note" | "reset" | "start" | "summary" | "tool" | "user";

export type RecordOfHistory = { "seq": number; "kind": RecordKind; "at": string; "body": unknown; "run": string | null };

export type RecordShown = { "seq": number; "kind": RecordKind; "body": unknown; "run": string | null };

export type Refresh = { "session": string; "why"?: string };

export type Refusal = { "error": ErrorForm };

export type Register = { "name": string; "display_name"?: string | null; "description"?: string | null; "runner"?: string | null; "external_url"?: string | null; "external_secret"?: string | null; "external_timeout_s"?: number | null; "external_retries"?: number | null; "provider"?: string | null; "model"?: string | ModelGiven | null; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string | null; "instructions_mode"?: InstructionMode | null; "workspace"?: string | null; "context_files"?: Array<string> | null; "delivery"?: Delivery | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "queue_debounce_s"?: number | null; "reset_daily_at"?: string | null; "reset_idle_minutes"?: number | null; "reset_context_tokens_max"?: number | null; "tools_profile"?: string | null; "tools_allow"?: Array<string> | null; "tools_also_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "tools_capabilities_allow"?: Array<string> | null; "tools_capabilities_deny"?: Array<string> | null; "tools_policy"?: string | null; "delegation_allow"?: Array<string> | null; "delegation_deny"?: Array<string> | null; "delegation_depth_max"?: number | null; "delegation_open_max"?: number | null; "delegation_exchanges_max"?: number | null; "delegation_circles"?: boolean | null; "delegation_histories"?: boolean | null; "subagents_allow"?: Array<string> | null; "subagents_model"?: string | null; "subagents_effort"?: string | null; "subagents_run_seconds_max"?: number | null; "subagents_archive_after_s"?: number | null; "heartbeat_every_s"?: number | null; "heartbeat_active_start"?: string | null; "heartbeat_active_end"?: string | null; "heartbeat_active_zone"?: string | null; "heartbeat_prompt"?: string | null; "heartbeat_model"?: string | null; "heartbeat_place"?: Place | null; "heartbeat_target"?: string | null; "heartbeat_ack_chars_max"?: number | null; "sandbox_mode"?: SandboxMode | null; "sandbox_scope"?: Scope | null; "sandbox_workspace"?: WorkspaceAccess | null; "sandbox_sessions"?: SessionsSeen | null; "sandbox_browser"?: boolean | null; "sandbox_image"?: string | null; "sandbox_cpus"?: number | null; "sandbox_idle_hours"?: number | null; "sandbox_age_days"?: number | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "icon"?: string | null; "colour"?: Colour | null; "visible"?: boolean | null; "dry_run"?: boolean; "token"?: boolean };

export type RemindersListed = { "reminders": Array<ScheduleShown> };

export type Rename = { "session": string; "name": string | null };

export type Reset = { "session": string; "message"?: string };

export type Restore = { "name": string; "version": number };

export type Result = "compaction" | "error" | "failover" | "ok" | "open" | "timeout";

export type Role = "guest" | "member" | "owner";

export type RoomShown = { "channel": string; "waiting-count": number; "next-at": string; "attempts": number; "error": string | null };

export type RunListed = { "id": string; "agent": string; "session": string; "session-name": string | null; "sender": string; "person": string; "envelopes": Array<string>; "status": Result; "run-status": RunStatus; "error": string | null; "attempt": number; "turns": number; "tool-calls": number | null; "models": Array<string>; "usage": RetinueDomainRecordUsage; "cost-microusd": number; "cost-unknown": boolean; "started-at": string; "started-ms": number; "ended-at": string | null; "duration-ms": number | null; "waits-until": string | null };

export type RunNow = { "id": string; "status": RunStatus; "sender": string; "since": string; "attempt": number; "turn": number | null; "doing": StepKind | null; "tool": string; "doing-since": string | null; "because": string; "approval": string | null; "until": string | null };

export type RunParked = { "act": "parked"; "at-ms": number; "approval": string | null; "because": string };

export type RunResult = { "id": string; "session": string; "agent": string; "status": Result; "run-status": RunStatus; "error": string | null; "model": string; "provider": string; "usage": RetinueDomainRecordUsage; "cost-usd": number; "started-at": string; "ended-at": string | null; "calls": Array<ModelCall> };

export type RunResumed = { "act": "resumed"; "at-ms": number; "because": string; "attempt": number };

export type RunShown = { "id": string; "status": RunStatus; "attempt": number };

export type RunStatus = "cancelled" | "completed" | "failed" | "parked" | "running";

export type RunTraced = { "run": RunListed; "acts": Array<EnvelopeRead | EnvelopeSent | ModelAsked | ToolCalled | PersonAsked | RunParked | RunResumed>; "left-out": number; "purged": boolean };

export type RunsListed = { "runs": Array<RunListed>; "next": string | null };

export type SaidBy = "agent" | "built-in" | "house";

export type SandboxMode = "all" | "non-main" | "off";

export type Say = { "id": string; "text": string; "key"?: string };

export type ScheduleChanged = { "id": string; "name": string; "enabled": boolean; "because": string; "next": string | null };

export type ScheduleDeleted = { "id": string; "name": string };

export type ScheduleExplained = { "words": string; "zone": string; "evaluated-at": string; "next": Array<string> };

export type ScheduleHistory = { "slots": Array<SlotShown>; "next": string | null };

export type ScheduleRun = { "id": string; "begun": boolean; "because": string; "envelope": string | null };

export type ScheduleShown = { "id": string; "name": string; "kind": string; "owner": string; "to": string; "when": string; "at": string; "every": string; "cron": string; "zone": string; "follows-owner-zone": boolean; "enabled": boolean; "because": string; "next": string | null; "envelope": string | null; "last-run": string | null; "last": string | null; "text": string; "description": string; "place": string; "deliver": string; "missed": string; "delete-after-run": boolean; "gate": GateForm | null; "model": string; "title": string; "attributes": Record<string, unknown>; "source": string; "created-at": string; "updated-at": string; "redacted"?: boolean };

export type SchedulesListed = { "schedules": Array<ScheduleShown>; "next": string | null; "unread"?: Array<string> };

export type Scope = "agent" | "session" | "shared";

export type SectionShown = { "path": Array<string>; "says": string; "settings": Array<SettingShown> };

export type SecurityFound = { "check": string; "severity": "critical" | "info" | "warning"; "sentence": string; "because": string; "try": string; "fixable": boolean };

export type Sending = "inherit" | "off" | "on";

export type Sent = { "envelope": string; "session": string | null; "cursor": number; "duplicate": boolean; "outcome": Outcome | null; "because": string };

export type SessionAttached = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": Wakefulness; "archivedAt": string | null; "externalId": string; "attached": Attached };

export type SessionCleared = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": Wakefulness; "archivedAt": string | null; "cancelled-runs": Array<string> };

export type SessionDeleted = { "session": string; "deleted": boolean; "cancelled-runs": Array<string>; "cleared-pending-count": number; "restorable-until": string };

export type SessionExported = { "session": string; "files": Record<string, string>; "damaged": Array<RecordDamaged> };

export type SessionForked = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": Wakefulness; "archivedAt": string | null; "forkedFrom": string; "records": number };

export type SessionHistory = { "session": string; "agent": string; "records": Array<RecordOfHistory>; "damaged": Array<RecordDamaged>; "next": number | null };

export type SessionListed = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": Wakefulness; "archivedAt": string | null; "kind": OriginKind; "run": string | null; "runStatus": RunStatus | null; "unread": number };

export type SessionPolicy = { "session": string; "daily_at": string | null; "idle_minutes": number | null; "context_tokens_max": number | null; "began_at": string; "active_at": string; "next_at": string | null; "next_because": string; "refresh": string | null; "send": Sending };

export type SessionRead = { "session": string; "read": number; "unread": number };

export type SessionRefreshed = { "session": string; "refreshed": boolean; "refresh": string | null };

export type SessionReset = { "session": string; "cancelled-runs": Array<string> };

export type SessionSends = { "session": string; "send": Sending };

export type SessionShared = { "session": string; "shared-with": Array<string> };

export type SessionState = { "cursor": number; "session": string; "agent": string; "revision": number; "wakefulness": Wakefulness; "queue": QueueOverride; "run": RunShown | null; "records": Array<RecordShown>; "damaged": Array<RecordDamaged>; "partials": Array<PartialShown> };

export type SessionStopped = { "cancelled-runs": Array<string>; "cleared-pending-count": number };

export type SessionSummary = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": Wakefulness; "archivedAt": string | null };

export type SessionTrimmed = { "session": string; "revision": number; "records": number; "left-out": number };

export type SessionWaiting = { "session": string; "queue": QueuePolicy; "run": RunShown | null; "envelopes": Array<EnvelopeShown>; "more": boolean };

export type SessionsListed = { "sessions": Array<SessionListed>; "next": string | null };

export type SessionsSeen = "all" | "spawned";

export type SetAsideDropped = { "id": string; "dropped": boolean };

export type SetAsideListed = { "set-aside": Array<SetAsideShown> };

export type SetAsideRetried = { "id": string; "envelope": string | null };

export type SetAsideShown = { "id": string; "connector": string; "room": string; "message-id": string; "because": string; "tries": number; "state": SetAsideState; "at": string };

export type SetAsideState = "done" | "dropped" | "waiting";

export type SetOrder = { "provider": string; "ids"?: Array<string>; "agent"?: string };

export type SetRole = { "name": string; "role": Role };

export type SettingShown = { "path": Array<string>; "says": string; "shape": Shape; "choices": Array<string>; "least": number | null; "most": number | null; "example": string; "effect": Effect; "value": unknown; "default": unknown; "from": Origin; "place": string; "waiting": boolean };

export type Shape = "choice" | "number" | "other" | "switch" | "text" | "texts" | "whole";

export type Share = { "session": string; "person": string };

export type SkillApproved = { "skill": SkillShown; "approved": boolean; "difference": Array<string>; "try": string; "lines": Array<string> };

export type SkillBroken = { "folder": string; "source": Source; "because": string };

export type SkillExported = { "name": string; "folder": string; "files": Array<string>; "commands": Array<string>; "found-good": boolean };

export type SkillRead = { "skill": SkillShown; "content": string; "difference": Array<string>; "found-good-by": string; "found-good-at": string; "lines": Array<string> };

export type SkillRevoked = { "name": string; "revoked": boolean };

export type SkillShown = { "name": string; "description": string; "path": string; "source": Source; "state": RetinueAgentsSkillSelectionState; "because": string; "hash": string; "bundle": string };

export type SkillsListed = { "skills": Array<SkillShown>; "shadowed": Array<string>; "broken": Array<SkillBroken> };

export type SlotShown = { "number": number; "at": string; "by": string; "state": string; "because": string; "envelope": string | null; "until": string | null; "count": number | null; "begun-at": string | null; "ended-at": string | null };

export type SlotsShown = { "lane": LaneKind; "used": number; "total": number; "in-line": number };

export type Source = "agent" | "extra" | "house" | "plugin" | "workspace";

export type Standing = "asking" | "error" | "ok" | "parked" | "stopped" | "timeout" | "waiting" | "working";

export type Status = "claimed" | "done" | "parked" | "pending";

export type Step = "add" | "change" | "drift" | "keep" | "undeclared";

export type StepKind = "model" | "tool";

export type StepPlanned = { "name": string; "step": Step; "because": string; "changed": Record<string, ValueChanged> };

export type SubagentListed = { "id": string; "label": string; "agent": string; "outcome": string; "session": string | null; "session-key": string; "requester": string; "run": string; "task": string; "cleanup": Cleanup; "created-at": string; "started-at": string | null; "ended-at": string | null; "archived-at": string | null };

export type SubagentShown = { "id": string; "label": string; "agent": string; "outcome": string; "session": string | null; "session-key": string; "requester": string; "run": string; "task": string; "cleanup": Cleanup; "created-at": string; "started-at": string | null; "ended-at": string | null; "archived-at": string | null; "because": string; "result": string | null; "result-text": string; "input-tokens": number; "output-tokens": number; "cost-microusd": number };

export type SubagentsListed = { "subagents": Array<SubagentListed>; "next": string | null };

export type SubagentsStopped = { "stopped": number; "subagents": Array<string>; "cancelled-runs": Array<string>; "cleared-pending-count": number };

export type Submit = { "id": string; "answers": Record<string, string | number | boolean | Array<string> | null> };

export type TaskAdded = { "agent": string; "id": string; "title": string; "file": string };

export type TaskListed = { "id": string; "title": string; "gated": boolean; "because"?: string };

export type TaskRemoved = { "agent": string; "id": string };

export type TaskShown = { "agent": string; "id": string; "title": string; "text": string; "gate": GateForm | null; "because"?: string };

export type TemplateTrouble = { "sentence": string; "because": string };

export type Test = { "text"?: string | null; "agent"?: string };

export type Tested = { "calls": number; "sessions": number; "differences": Array<Difference>; "left-out": number; "stopped": string };

export type ThreadShown = { "envelopes": Array<EnvelopeShown>; "left-out": number; "total": number; "purged": boolean };

export type TokenKind = "code" | "invite" | "token" | "web";

export type TokenListed = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created-at": string; "expires-at": string | null };

export type TokenMade = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created-at": string; "expires-at": string | null; "token"?: string; "shown-once"?: Array<string> };

export type TokenRevoked = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created-at": string; "expires-at": string | null; "revoked": boolean };

export type TokensListed = { "tokens": Array<TokenListed> };

export type ToolCalled = { "act": "tool"; "at-ms": number; "ended-ms": number | null; "came": Came; "turn": number; "attempt": number; "call": string; "tool": string; "arguments": Record<string, unknown>; "verdict": Verdict; "because": string; "approval": string | null; "output": string; "output-chars": number; "whole": string; "record": number | null };

export type ToolShown = { "name": string; "description": string; "source": string; "effects": Array<string>; "capabilities": Array<string>; "repeatable": boolean; "verdict"?: Verdict; "because"?: string };

export type ToolsListed = { "tools": Array<ToolShown> };

export type ToolsOf = { "agent"?: string; "changes"?: Record<string, unknown> };

export type Transcript = { "session": string; "before"?: number | null; "after"?: number | null; "limit"?: number };

export type TranscriptRead = { "cursor": number; "session": string; "agent": string; "revision": number; "run": RunShown | null; "begins": number; "earlier": boolean; "lines": Array<Line>; "damaged": Array<RecordDamaged>; "partials": Array<PartialShown> };

export type Trim = { "session": string; "seq": number; "cut": Cut; "revision"?: number | null };

export type Trust = "agent" | "owner" | "person" | "private" | "untrusted";

export type Unlink = { "service": string; "id": string };

export type Upload = { "name": string; "data"?: string; "hash"?: string; "media_type"?: string };

export type UsageShown = { "by": By; "from": string; "to": string; "rows": Array<UsedShown>; "left-out": number; "total": UsedShown };

export type Used = { "id": string; "agent"?: string; "model"?: string };

export type UsedInDays = { "key": string; "rest": boolean; "calls": Array<number>; "input-tokens": Array<number>; "output-tokens": Array<number>; "cost-microusd": Array<number> };

export type UsedShown = { "key": string; "calls": number; "failed-calls": number; "unknown-calls": number; "input-tokens": number; "output-tokens": number; "cache-read-tokens": number; "cache-write-tokens": number; "reasoning-tokens": number; "cost-microusd": number; "unknown-microusd": number; "held-microusd": number };

export type ValueChanged = { "from": unknown; "to": unknown };

export type Verbosity = "full" | "off" | "on";

export type Verdict = "allow" | "ask" | "deny";

export type Verify = { "session"?: string; "anchor"?: Array<string>; "log"?: boolean };

export type Versions = { "name": string; "limit"?: number; "before"?: number | null };

export type Waiting = { "session": string; "limit"?: number };

export type Waits = "agent" | "busy" | "joined" | "next" | "not-due" | "slots";

export type Wakefulness = "active" | "sleeping";

export type WakeupsListed = { "wakeups": Array<ScheduleShown> };

export type Webhook = { "url": string; "headers"?: Record<string, string> };

export type WhenBusy = "collect" | "steer";

export type Whose = { "agent"?: string };

export type Why = { "id": string };

export type WorkRead = { "id": string; "kind": DelegationKind; "label": string; "target": string; "outcome": string };

export type WorkspaceAccess = "none" | "ro" | "rw";

export type WriteFile = { "name": string; "path": string; "content": string; "hash": string; "believe"?: boolean };

export type RetinueAgentsSkillSelectionState = "changed" | "new" | "off" | "ready" | "unfit";

export type RetinueConfigSettingsDiffChange = { "path": string; "effect": Effect };

export type RetinueDomainEnvelopeKind = "answer" | "approval" | "decision" | "delegation" | "job" | "message" | "notice" | "system";

export type RetinueDomainRecordUsage = { "input_tokens"?: number; "output_tokens"?: number; "cost_microusd"?: number; "cache_read_tokens"?: number; "cache_write_tokens"?: number; "reasoning_tokens"?: number; "estimated"?: boolean };

export type RetinueDomainScheduleKind = "heartbeat" | "reminder" | "schedule" | "wake-up";

export type RetinueOperationsAgentAgentsSet = { "name": string; "display_name"?: string | null; "description"?: string | null; "runner"?: string | null; "external_url"?: string | null; "external_secret"?: string | null; "external_timeout_s"?: number | null; "external_retries"?: number | null; "provider"?: string | null; "model"?: string | ModelGiven | null; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string | null; "instructions_mode"?: InstructionMode | null; "workspace"?: string | null; "context_files"?: Array<string> | null; "delivery"?: Delivery | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "queue_debounce_s"?: number | null; "reset_daily_at"?: string | null; "reset_idle_minutes"?: number | null; "reset_context_tokens_max"?: number | null; "tools_profile"?: string | null; "tools_allow"?: Array<string> | null; "tools_also_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "tools_capabilities_allow"?: Array<string> | null; "tools_capabilities_deny"?: Array<string> | null; "tools_policy"?: string | null; "delegation_allow"?: Array<string> | null; "delegation_deny"?: Array<string> | null; "delegation_depth_max"?: number | null; "delegation_open_max"?: number | null; "delegation_exchanges_max"?: number | null; "delegation_circles"?: boolean | null; "delegation_histories"?: boolean | null; "subagents_allow"?: Array<string> | null; "subagents_model"?: string | null; "subagents_effort"?: string | null; "subagents_run_seconds_max"?: number | null; "subagents_archive_after_s"?: number | null; "heartbeat_every_s"?: number | null; "heartbeat_active_start"?: string | null; "heartbeat_active_end"?: string | null; "heartbeat_active_zone"?: string | null; "heartbeat_prompt"?: string | null; "heartbeat_model"?: string | null; "heartbeat_place"?: Place | null; "heartbeat_target"?: string | null; "heartbeat_ack_chars_max"?: number | null; "sandbox_mode"?: SandboxMode | null; "sandbox_scope"?: Scope | null; "sandbox_workspace"?: WorkspaceAccess | null; "sandbox_sessions"?: SessionsSeen | null; "sandbox_browser"?: boolean | null; "sandbox_image"?: string | null; "sandbox_cpus"?: number | null; "sandbox_idle_hours"?: number | null; "sandbox_age_days"?: number | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "icon"?: string | null; "colour"?: Colour | null; "visible"?: boolean | null; "clear"?: Array<string>; "dry_run"?: boolean };

export type RetinueOperationsApprovalApprovalsList = { "past"?: boolean; "limit"?: number; "cursor"?: string };

export type RetinueOperationsApprovalQuestionnairesById = { "id": string };

export type RetinueOperationsApprovalQuestionnairesListing = { "open"?: boolean; "limit"?: number; "before"?: string };

export type RetinueOperationsAuditAuditExport = { "session"?: string; "after"?: string; "limit"?: number };

export type RetinueOperationsAuditAuditList = { "session"?: string; "kind"?: AuditKind | null; "agent"?: string; "who"?: string; "since"?: string; "before"?: string; "limit"?: number };

export type RetinueOperationsConnectorBindingsOne = { "id": string };

export type RetinueOperationsConnectorBindingsSet = { "agent": string; "connector": string; "account"?: string; "peer_kind"?: PeerKind | null; "peer"?: string; "parent"?: string; "guild"?: string; "team"?: string; "also"?: Array<string> };

export type RetinueOperationsConnectorConnectorsAdd = { "kind": string; "name"?: string; "settings"?: Record<string, unknown>; "answers"?: Record<string, string>; "secrets"?: Record<string, string>; "check"?: boolean };

export type RetinueOperationsConnectorConnectorsOne = { "name": string };

export type RetinueOperationsConnectorPairingWhich = { "which": string };

export type RetinueOperationsConnectorPoisonMessagesListing = { "every"?: boolean; "limit"?: number };

export type RetinueOperationsConnectorPoisonMessagesOne = { "id": string };

export type RetinueOperationsDelegationDelegationsListing = { "session"?: string; "open"?: boolean; "limit"?: number; "cursor"?: string };

export type RetinueOperationsDelegationDelegationsStop = { "id": string; "why"?: string };

export type RetinueOperationsDelegationSubagentsListing = { "session"?: string; "all"?: boolean; "limit"?: number; "cursor"?: string };

export type RetinueOperationsDelegationSubagentsStop = { "id"?: string; "session"?: string; "why"?: string };

export type RetinueOperationsEnvelopeEnvelopeListsListing = { "status": Status; "to"?: string; "from"?: string; "limit"?: number; "created_after"?: string; "created_before"?: string; "before"?: string; "ack"?: boolean };

export type RetinueOperationsEnvelopeEnvelopesById = { "id": string };

export type RetinueOperationsEnvelopeEnvelopesListing = { "limit"?: number; "before"?: string };

export type RetinueOperationsEnvelopeEnvelopesSend = { "to"?: string; "text": string; "key"?: string; "conversation"?: string; "session"?: string; "deliver_at"?: string; "expires_at"?: string; "reply_to"?: string; "attachments"?: Array<Upload>; "model"?: string; "provider"?: string; "lane"?: LaneKind | null; "workspace"?: string; "extra_system_prompt"?: string; "when_busy"?: WhenBusy | null; "webhook"?: Webhook | null };

export type RetinueOperationsMcpMcpApprove = { "name": string; "hash"?: string };

export type RetinueOperationsMcpMcpOne = { "name": string };

export type RetinueOperationsModelCredentialKeysAdd = { "provider": string; "name": string; "agent"?: string; "kind"?: CredentialKind; "region"?: string; "key_env"?: string; "key_file"?: string; "key"?: string };

export type RetinueOperationsModelCredentialResponsesState = "cooling-down" | "ready" | "unreadable";

export type RetinueOperationsModelCredentialsById = { "id": string; "agent"?: string };

export type RetinueOperationsModelCredentialsWhich = { "provider"?: string; "agent"?: string };

export type RetinueOperationsModelModelsShow = { "agent"?: string; "session"?: string };

export type RetinueOperationsModelUsageUsage = { "by"?: By; "from"?: string; "to"?: string; "agent"?: string; "person"?: string; "limit"?: number };

export type RetinueOperationsPersonNotificationsCreate = { "title": string; "text"?: string; "to"?: string };

export type RetinueOperationsPersonNotificationsListing = { "unread"?: boolean; "limit"?: number; "before"?: string };

export type RetinueOperationsPersonNotificationsWhich = { "id"?: string; "all"?: boolean };

export type RetinueOperationsPersonPreferencesSet = { "key": string; "value": unknown };

export type RetinueOperationsPersonTokensById = { "id": string; "principal"?: string };

export type RetinueOperationsPersonTokensCreate = { "label"?: string; "principal"?: string; "expires_in_days"?: number | null };

export type RetinueOperationsPluginPluginsChange = { "name": string; "settings": Record<string, unknown> };

export type RetinueOperationsPluginPluginsEnable = { "name": string; "plugin"?: string };

export type RetinueOperationsPluginPluginsOne = { "name": string };

export type RetinueOperationsPolicyPolicyExplain = { "agent": string; "tool": string; "args"?: Record<string, unknown>; "sender"?: string; "session"?: string; "model"?: string; "origin"?: OriginKind; "door"?: Door; "changes"?: Record<string, unknown> };

export type RetinueOperationsPolicyPolicyExplained = { "agent": string; "tool": string; "verdict": Verdict; "because": string; "key": string; "findings": Array<FindingShown>; "would-grant": Array<string>; "warnings": Array<string> };

export type RetinueOperationsRunRunListList = { "agent"?: string; "session"?: string; "person"?: string; "sender"?: string; "status"?: RunStatus | null; "model"?: string; "since"?: string; "until"?: string; "limit"?: number; "cursor"?: string };

export type RetinueOperationsRunRunsById = { "id": string };

export type RetinueOperationsScheduleHeartbeatsAdd = { "text": string; "id"?: string; "title"?: string; "gate"?: GateForm | null; "overwrite"?: boolean; "agent"?: string };

export type RetinueOperationsScheduleHeartbeatsRun = { "ids"?: Array<string>; "force"?: boolean; "agent"?: string };

export type RetinueOperationsScheduleHeartbeatsWhich = { "id": string; "agent"?: string };

export type RetinueOperationsScheduleRemindersById = { "id": string };

export type RetinueOperationsScheduleRemindersListing = { "limit"?: number };

export type RetinueOperationsScheduleSchedulesAdd = { "to"?: string; "text"?: string; "at"?: string; "every"?: string; "cron"?: string; "zone"?: string; "place"?: Place | null; "deliver"?: string; "missed"?: Missed | null; "delete_after_run"?: boolean; "gate"?: GateForm | null; "model"?: string; "title"?: string; "attributes"?: Record<string, unknown>; "description"?: string; "name"?: string; "enabled"?: boolean };

export type RetinueOperationsScheduleSchedulesExplain = { "cron"?: string; "every"?: string; "at"?: string; "zone"?: string; "count"?: number };

export type RetinueOperationsScheduleSchedulesHistory = { "schedule": string; "limit"?: number; "cursor"?: string };

export type RetinueOperationsScheduleSchedulesListing = { "kind"?: RetinueDomainScheduleKind | null; "agent"?: string; "limit"?: number; "cursor"?: string };

export type RetinueOperationsScheduleSchedulesRun = { "schedule": string; "force"?: boolean };

export type RetinueOperationsScheduleSchedulesSet = { "schedule": string; "to"?: string | null; "text"?: string | null; "at"?: string | null; "every"?: string | null; "cron"?: string | null; "zone"?: string | null; "place"?: Place | null; "deliver"?: string | null; "missed"?: string | null; "delete_after_run"?: boolean | null; "gate"?: GateForm | null; "model"?: string | null; "title"?: string | null; "attributes"?: Record<string, unknown> | null; "description"?: string | null };

export type RetinueOperationsScheduleSchedulesWhich = { "schedule": string };

export type RetinueOperationsServerServerExplained = { "lines": Array<string> };

export type RetinueOperationsServerServerState = { "hidden"?: boolean };

export type RetinueOperationsSessionDeletedSessionsListing = { "limit"?: number };

export type RetinueOperationsSessionSessionPolicySend = { "session": string; "send": Sending };

export type RetinueOperationsSessionSessionsCreate = { "agent": string; "name"?: string | null; "attributes"?: Record<string, unknown> };

export type RetinueOperationsSessionSessionsHistory = { "session": string; "limit"?: number; "before"?: number | null };

export type RetinueOperationsSessionSessionsListing = { "limit"?: number; "agent"?: string; "cursor"?: string; "archived"?: boolean };

export type RetinueOperationsSessionSessionsStop = { "session": string; "why"?: string; "clear"?: boolean };

export type RetinueOperationsSkillHooksEnable = { "name": string; "hash"?: string };

export type RetinueOperationsSkillHooksList = Record<string, never>;

export type RetinueOperationsSkillHooksOne = { "name": string };

export type RetinueOperationsSkillSkillsApprove = { "name": string; "hash"?: string; "agent"?: string; "workspace"?: string };

export type RetinueOperationsSkillSkillsExport = { "name": string; "to"?: string };

export type RetinueOperationsSkillSkillsList = { "agent"?: string; "workspace"?: string };

export type RetinueOperationsSkillSkillsShow = { "name": string; "agent"?: string; "workspace"?: string };

export type RetinueToolsMcpServerStatusState = "failed" | "off" | "ready" | "starting" | "waiting";

export interface Operations {
  /** Send an envelope. */
  "envelope.send": { asked: RetinueOperationsEnvelopeEnvelopesSend; answered: Sent; effect: true };
  /** Show one envelope. */
  "envelope.show": { asked: RetinueOperationsEnvelopeEnvelopesById; answered: EnvelopeShown; effect: false };
  /** Show what an envelope replies to. */
  "envelope.thread": { asked: RetinueOperationsEnvelopeEnvelopesById; answered: ThreadShown; effect: false };
  /** List dead letters. */
  "envelope.dead": { asked: RetinueOperationsEnvelopeEnvelopesListing; answered: DeadLetters; effect: false };
  /** Take back an envelope that still waits. */
  "envelope.cancel": { asked: RetinueOperationsEnvelopeEnvelopesById; answered: EnvelopeCancelled; effect: true };
  /** Send a dead letter once more. */
  "envelope.retry": { asked: RetinueOperationsEnvelopeEnvelopesById; answered: Sent; effect: true };
  /** List envelopes by who sent or received them. */
  "envelope.list": { asked: RetinueOperationsEnvelopeEnvelopeListsListing; answered: EnvelopesListed; effect: true };
  /** Show the newest envelopes, whoever wrote them. */
  "envelope.recent": { asked: Recent; answered: EnvelopesPassed; effect: false };
  /** Show what waits for you. */
  "inbox.list": { asked: Inbox; answered: InboxShown; effect: true };
  /** List sessions. */
  "session.list": { asked: RetinueOperationsSessionSessionsListing; answered: SessionsListed; effect: false };
  /** Show the records of a session. */
  "session.history": { asked: RetinueOperationsSessionSessionsHistory; answered: SessionHistory; effect: false };
  /** Begin a session of your own. */
  "session.create": { asked: RetinueOperationsSessionSessionsCreate; answered: SessionSummary; effect: true };
  /** Name a session. */
  "session.rename": { asked: Rename; answered: SessionSummary; effect: true };
  /** Keep a session at the top. */
  "session.pin": { asked: OfSession; answered: SessionSummary; effect: true };
  /** Let a session go down the list. */
  "session.unpin": { asked: OfSession; answered: SessionSummary; effect: true };
  /** Patch what is noted about a session. */
  "session.attributes": { asked: Attributes; answered: SessionSummary; effect: true };
  /** Begin afresh, with nothing of what was said. */
  "session.clear": { asked: OfSession; answered: SessionCleared; effect: true };
  /** Delete a session. */
  "session.delete": { asked: OfSession; answered: SessionDeleted; effect: true };
  /** Share a session with a person. */
  "session.share": { asked: Share; answered: SessionShared; effect: true };
  /** Share a session no longer. */
  "session.unshare": { asked: Share; answered: SessionShared; effect: true };
  /** Show a session as it is now. */
  "session.state": { asked: OfSession; answered: SessionState; effect: false };
  /** Stop what runs in a session. */
  "session.stop": { asked: RetinueOperationsSessionSessionsStop; answered: SessionStopped; effect: true };
  /** Begin a fresh context. */
  "session.reset": { asked: Reset; answered: SessionReset; effect: true };
  /** Set how mail queues. */
  "session.queue": { asked: Queue; answered: QueueSet; effect: true };
  /** Allow or deny a call. */
  "approval.answer": { asked: Answer; answered: ApprovalAnswered; effect: true };
  /** Open the session of an agent that runs elsewhere by an id of your choice. */
  "session.attach": { asked: Attach; answered: SessionAttached; effect: true };
  /** Mark the mail from a session as read. */
  "session.read": { asked: OfSession; answered: SessionRead; effect: true };
  /** Show when a context begins anew. */
  "session.policy": { asked: OfSession; answered: SessionPolicy; effect: false };
  /** Begin a fresh context after what runs. */
  "session.refresh": { asked: Refresh; answered: SessionRefreshed; effect: true };
  /** Set whether a session's words go out. */
  "session.sending": { asked: RetinueOperationsSessionSessionPolicySend; answered: SessionSends; effect: true };
  /** Read a conversation, newest first. */
  "session.transcript": { asked: Transcript; answered: TranscriptRead; effect: false };
  /** How a run came out: its status, the models that were asked, tokens and cost. */
  "run.show": { asked: RetinueOperationsRunRunsById; answered: RunResult; effect: false };
  /** List runs, newest first, with what each took and how it came out. */
  "run.list": { asked: RetinueOperationsRunRunListList; answered: RunsListed; effect: false };
  /** Tell a run act by act: models, tools, questions and mail, with moments and cost. */
  "run.trace": { asked: RetinueOperationsRunRunsById; answered: RunTraced; effect: false };
  /** List the questions that wait for an answer, or what became of the others. */
  "approval.list": { asked: RetinueOperationsApprovalApprovalsList; answered: ApprovalsListed; effect: false };
  /** List what can be asked of the house in a conversation. */
  "command.list": { asked: CommandList; answered: CommandsListed; effect: false };
  /** Give a session out as files. */
  "session.export": { asked: OfSession; answered: SessionExported; effect: false };
  /** Make a session from files. */
  "session.import": { asked: Import; answered: SessionSummary; effect: true };
  /** Begin a session with the records of another, up to one of them. */
  "session.fork": { asked: Fork; answered: SessionForked; effect: true };
  /** Cut something out of a conversation. */
  "session.trim": { asked: Trim; answered: SessionTrimmed; effect: true };
  /** List deleted sessions that can be brought back. */
  "session.deleted": { asked: RetinueOperationsSessionDeletedSessionsListing; answered: DeletedListed; effect: false };
  /** Bring a deleted session back. */
  "session.restore": { asked: OfSession; answered: SessionSummary; effect: true };
  /** Show what waits in a session, in its order. */
  "session.waiting": { asked: Waiting; answered: SessionWaiting; effect: false };
  /** List work that agents have handed to one another. */
  "delegation.list": { asked: RetinueOperationsDelegationDelegationsListing; answered: DelegationsListed; effect: false };
  /** Stop work that was handed on, and all that came of it. */
  "delegation.stop": { asked: RetinueOperationsDelegationDelegationsStop; answered: DelegationStopped; effect: true };
  /** List subagents that were sent out. */
  "subagent.list": { asked: RetinueOperationsDelegationSubagentsListing; answered: SubagentsListed; effect: false };
  /** Show a subagent, and what came of it. */
  "subagent.show": { asked: OfSubagent; answered: SubagentShown; effect: false };
  /** Stop a subagent, or all of a session. */
  "subagent.stop": { asked: RetinueOperationsDelegationSubagentsStop; answered: SubagentsStopped; effect: true };
  /** Show what a subagent has read, said and done. */
  "subagent.log": { asked: Log; answered: SessionHistory; effect: false };
  /** Write to a subagent. */
  "subagent.send": { asked: Say; answered: Sent; effect: true };
  /** List the staff. */
  "agent.list": { asked: Nothing; answered: AgentsListed; effect: false };
  /** Show one agent. */
  "agent.show": { asked: Named; answered: AgentShown; effect: false };
  /** Take an agent on. */
  "agent.register": { asked: Register; answered: AgentRegistered; effect: true };
  /** Change an agent. */
  "agent.set": { asked: RetinueOperationsAgentAgentsSet; answered: AgentChanged; effect: true };
  /** List what an agent has been. */
  "agent.versions": { asked: Versions; answered: AgentVersionsListed; effect: false };
  /** Compare two versions of an agent. */
  "agent.diff": { asked: Diff; answered: AgentsCompared; effect: false };
  /** Make an old version of an agent the newest. */
  "agent.restore": { asked: Restore; answered: AgentRestored; effect: true };
  /** Let an agent go. */
  "agent.delete": { asked: Delete; answered: AgentDeleted; effect: true };
  /** Take an agent on for good, as one of the staff. */
  "agent.permanent": { asked: Permanent; answered: PermanentAgent; effect: true };
  /** List the files that make an agent what it is. */
  "agent.files": { asked: Of; answered: AgentFiles; effect: false };
  /** Show one of these files. */
  "agent.file": { asked: OneFile; answered: AgentFileShown; effect: false };
  /** Write one of these files. */
  "agent.write-file": { asked: WriteFile; answered: AgentFileWritten; effect: true };
  /** Show what an agent is told, section by section. */
  "agent.prompt": { asked: Prompt; answered: AgentPrompt; effect: false };
  /** List the models there are to choose from. */
  "model.list": { asked: Nothing; answered: ModelsListed; effect: false };
  /** Show which models would be asked now, and why. */
  "model.show": { asked: RetinueOperationsModelModelsShow; answered: ModelsShown; effect: false };
  /** Which credentials there are for models, and how they fared. Keys are not shown. */
  "credential.list": { asked: RetinueOperationsModelCredentialsWhich; answered: CredentialsListed; effect: false };
  /** Add a credential, for the house or for one agent. */
  "credential.add": { asked: RetinueOperationsModelCredentialKeysAdd; answered: CredentialShown; effect: true };
  /** Remove a credential, and the key that was put away for it. */
  "credential.remove": { asked: RetinueOperationsModelCredentialsById; answered: CredentialRemoved; effect: true };
  /** Say in which order a provider's credentials are asked. */
  "credential.order": { asked: SetOrder; answered: CredentialsListed; effect: true };
  /** Say that a credential served: its failures are forgiven. */
  "credential.mark-used": { asked: Used; answered: CredentialShown; effect: true };
  /** Say that a credential failed: it is left alone for a while. */
  "credential.mark-failed": { asked: Failed; answered: CredentialShown; effect: true };
  /** Forget a credential's failures: it is asked again at once. */
  "credential.clear": { asked: Used; answered: CredentialShown; effect: true };
  /** Who is at home here. */
  "person.list": { asked: Nothing; answered: PeopleListed; effect: false };
  /** Who you are, and what you may do. */
  "person.whoami": { asked: Nothing; answered: CallerShown; effect: false };
  /** Invite someone. The invitation is shown this once. */
  "person.invite": { asked: Invite; answered: PersonInvited; effect: true };
  /** Make someone a member or a guest. */
  "person.role": { asked: SetRole; answered: PersonShown; effect: true };
  /** Sign someone out for good, and take their words out of the store. */
  "person.forget": { asked: Forget; answered: PersonForgotten; effect: true };
  /** Make a token. Its secret is shown this once. */
  "token.create": { asked: RetinueOperationsPersonTokensCreate; answered: TokenMade; effect: true };
  /** List tokens, without their secrets. */
  "token.list": { asked: OfPrincipal; answered: TokensListed; effect: false };
  /** Make a token worthless. */
  "token.revoke": { asked: RetinueOperationsPersonTokensById; answered: TokenRevoked; effect: true };
  /** Put a new secret in a token's place. It is shown this once. */
  "token.rotate": { asked: RetinueOperationsPersonTokensById; answered: TokenMade; effect: true };
  /** Make a code that signs a browser in, once. */
  "token.code": { asked: Nothing; answered: CodeMade; effect: true };
  /** Show the settings as they are in use. */
  "config.show": { asked: Nothing; answered: ConfigShown; effect: false };
  /** Say what is wrong with a settings file. */
  "config.check": { asked: Check; answered: ConfigChecked; effect: false };
  /** Change the settings file, its comments kept. */
  "config.patch": { asked: Patch; answered: ConfigChanged; effect: true };
  /** Read the settings file again. */
  "config.reload": { asked: Nothing; answered: ConfigChanged; effect: true };
  /** Make the staff what the settings file declares. */
  "config.apply": { asked: Apply; answered: ConfigApplied; effect: true };
  /** Write the staff down as a settings file, without secrets. */
  "config.export": { asked: Nothing; answered: ConfigExported; effect: false };
  /** Say what can be set, what it is now, and where that comes from. */
  "config.fields": { asked: Nothing; answered: ConfigFields; effect: false };
  /** Show what a change of the settings file would do. Nothing is changed. */
  "config.preview": { asked: Preview; answered: ConfigPreview; effect: false };
  /** Who is here, and what waits for you. */
  "house.status": { asked: Nothing; answered: HouseStatus; effect: false };
  /** Everything a client shows first, and the cursor from which its news goes on. */
  "house.state": { asked: RetinueOperationsServerServerState; answered: HouseState; effect: false };
  /** Prove that nothing is lost. */
  "house.ledger": { asked: Nothing; answered: LedgerChecked; effect: false };
  /** Tell why something became what it is. */
  "house.why": { asked: Why; answered: RetinueOperationsServerServerExplained; effect: false };
  /** Show what is at work, what waits, and why. */
  "house.lanes": { asked: Lanes; answered: LanesShown; effect: false };
  /** Show what the house has logged, the newest first. */
  "house.logs": { asked: Logs; answered: LogShown; effect: false };
  /** Copy everything the house keeps into a new folder, while it goes on. */
  "house.backup": { asked: Backup; answered: HouseBackedUp; effect: true };
  /** Take away what is long done. Without `dry_run` set to false it only counts. */
  "house.purge": { asked: Purge; answered: HousePurged; effect: true };
  /** Show what was used and what it cost. */
  "usage.show": { asked: RetinueOperationsModelUsageUsage; answered: UsageShown; effect: false };
  /** Show what was used day by day, told apart by agent, model, provider or person. */
  "usage.days": { asked: InDays; answered: DaysShown; effect: false };
  /** Show what may be spent, and how much of it is. */
  "usage.budgets": { asked: Nothing; answered: BudgetsShown; effect: false };
  /** Say why an agent may, may not, or must ask to use a tool. */
  "policy.explain": { asked: RetinueOperationsPolicyPolicyExplain; answered: RetinueOperationsPolicyPolicyExplained; effect: false };
  /** Say which recorded calls would be decided otherwise by other settings. */
  "policy.test": { asked: Test; answered: Tested; effect: false };
  /** List the tools of the house, or what an agent may do with them. */
  "tool.list": { asked: ToolsOf; answered: ToolsListed; effect: false };
  /** List what agents were granted. */
  "grant.list": { asked: Nothing; answered: GrantsListed; effect: false };
  /** Grant an agent a permission. */
  "grant.add": { asked: GrantAdd; answered: GrantShown; effect: true };
  /** Take a grant back. It counts at once. */
  "grant.revoke": { asked: GrantNamed; answered: GrantRevoked; effect: true };
  /** Call a tool directly, as an agent would. */
  "tool.invoke": { asked: Invoke; answered: Invoked; effect: true };
  /** List skills, how they stand, and where they lie. */
  "skill.list": { asked: RetinueOperationsSkillSkillsList; answered: SkillsListed; effect: false };
  /** Show all of a skill, and what changed since it was found good. */
  "skill.show": { asked: RetinueOperationsSkillSkillsShow; answered: SkillRead; effect: false };
  /** Find a skill good, once you have read what it says now. */
  "skill.approve": { asked: RetinueOperationsSkillSkillsApprove; answered: SkillApproved; effect: true };
  /** Take back that a skill was found good. */
  "skill.revoke": { asked: RetinueOperationsSkillSkillsShow; answered: SkillRevoked; effect: true };
  /** Write operations as a skill with a command line of its own. */
  "skill.export": { asked: RetinueOperationsSkillSkillsExport; answered: SkillExported; effect: true };
  /** List plug-ins, and how they fare. */
  "plugin.list": { asked: Nothing; answered: PluginsListed; effect: false };
  /** Show one plug-in and what it brings. */
  "plugin.show": { asked: RetinueOperationsPluginPluginsOne; answered: Guest; effect: false };
  /** Show what a plug-in is told. */
  "plugin.settings": { asked: RetinueOperationsPluginPluginsOne; answered: PluginSettingsShown; effect: false };
  /** Change some settings of a plug-in. */
  "plugin.patch": { asked: RetinueOperationsPluginPluginsChange; answered: PluginSettingsShown; effect: true };
  /** Give a plug-in other settings. */
  "plugin.replace": { asked: RetinueOperationsPluginPluginsChange; answered: PluginSettingsShown; effect: true };
  /** Load a plug-in, from now on. */
  "plugin.enable": { asked: RetinueOperationsPluginPluginsEnable; answered: Guest; effect: true };
  /** Unload a plug-in. Its data stays. */
  "plugin.disable": { asked: RetinueOperationsPluginPluginsOne; answered: Guest; effect: true };
  /** Unload a plug-in and load it again. */
  "plugin.reload": { asked: RetinueOperationsPluginPluginsOne; answered: Guest; effect: true };
  /** List hooks, how they stand, and where they lie. */
  "hook.list": { asked: RetinueOperationsSkillHooksList; answered: HooksListed; effect: false };
  /** Show all of a hook: what it says of itself, and what it runs. */
  "hook.show": { asked: RetinueOperationsSkillHooksOne; answered: HookRead; effect: false };
  /** Have a hook run from now on, as it stands. */
  "hook.enable": { asked: RetinueOperationsSkillHooksEnable; answered: HookShown; effect: true };
  /** Have a hook not run any more. */
  "hook.disable": { asked: RetinueOperationsSkillHooksOne; answered: HookDisabled; effect: true };
  /** List MCP servers, and how they fare. */
  "mcp.list": { asked: Nothing; answered: McpListed; effect: false };
  /** Show all that an MCP server offers, and what changed since it was found good. */
  "mcp.show": { asked: RetinueOperationsMcpMcpOne; answered: McpRead; effect: false };
  /** Find the tools of an MCP server good, once you have read what they say now. */
  "mcp.approve": { asked: RetinueOperationsMcpMcpApprove; answered: McpApproved; effect: true };
  /** Take back that the tools of an MCP server were found good. */
  "mcp.revoke": { asked: RetinueOperationsMcpMcpOne; answered: McpRevoked; effect: true };
  /** End an MCP server and begin it anew. */
  "mcp.restart": { asked: RetinueOperationsMcpMcpOne; answered: McpShown; effect: true };
  /** List connectors, and how their lines fare. */
  "connector.list": { asked: Nothing; answered: ConnectorsListed; effect: false };
  /** List what connectors can speak. */
  "connector.kinds": { asked: Nothing; answered: KindsListed; effect: false };
  /** Show one connector and its settings. */
  "connector.show": { asked: RetinueOperationsConnectorConnectorsOne; answered: ConnectorRead; effect: false };
  /** Ask the place of a connector whether it knows us. */
  "connector.test": { asked: RetinueOperationsConnectorConnectorsOne; answered: ConnectorTested; effect: false };
  /** Connect one more account of ours. */
  "connector.add": { asked: RetinueOperationsConnectorConnectorsAdd; answered: ConnectorAdded; effect: true };
  /** Take a connector out of the settings. */
  "connector.remove": { asked: RetinueOperationsConnectorConnectorsOne; answered: ConnectorRemoved; effect: true };
  /** Have a connector listen. */
  "connector.enable": { asked: RetinueOperationsConnectorConnectorsOne; answered: ConnectorShown; effect: true };
  /** Have a connector rest. */
  "connector.disable": { asked: RetinueOperationsConnectorConnectorsOne; answered: ConnectorShown; effect: true };
  /** List messages that the house could not take in. */
  "set-aside.list": { asked: RetinueOperationsConnectorPoisonMessagesListing; answered: SetAsideListed; effect: false };
  /** Take in what was set aside, as if it were said now. */
  "set-aside.retry": { asked: RetinueOperationsConnectorPoisonMessagesOne; answered: SetAsideRetried; effect: true };
  /** Let go of what was set aside. */
  "set-aside.drop": { asked: RetinueOperationsConnectorPoisonMessagesOne; answered: SetAsideDropped; effect: true };
  /** List which agent answers where. */
  "binding.list": { asked: Nothing; answered: BindingsListed; effect: false };
  /** Have an agent answer somewhere, in place of whoever did. */
  "binding.set": { asked: RetinueOperationsConnectorBindingsSet; answered: BindingSet; effect: true };
  /** Have nobody in particular answer there any more. */
  "binding.remove": { asked: RetinueOperationsConnectorBindingsOne; answered: BindingRemoved; effect: true };
  /** List who asked to be let in, and who was. */
  "pairing.list": { asked: Nothing; answered: PairingsListed; effect: false };
  /** Let in whoever was shown this code. */
  "pairing.accept": { asked: Accept; answered: PairingDecided; effect: true };
  /** Do not let in whoever was shown this code. */
  "pairing.refuse": { asked: RetinueOperationsConnectorPairingWhich; answered: PairingDecided; effect: true };
  /** Let somebody in no longer. */
  "pairing.dismiss": { asked: Dismiss; answered: Dismissed; effect: true };
  /** List who is who at which place. */
  "identity.list": { asked: Nothing; answered: IdentitiesListed; effect: false };
  /** Say that an id of a place is a person of this house. */
  "identity.link": { asked: Link; answered: IdentityShown; effect: true };
  /** Say that an id is nobody in particular any more. */
  "identity.unlink": { asked: Unlink; answered: IdentityUnlinked; effect: true };
  /** Show what was decided and done, the newest first. */
  "audit.list": { asked: RetinueOperationsAuditAuditList; answered: AuditListed; effect: false };
  /** See whether the audit is as it was written. */
  "audit.verify": { asked: Verify; answered: AuditVerified; effect: false };
  /** Give the audit out as lines of JSON. */
  "audit.export": { asked: RetinueOperationsAuditAuditExport; answered: AuditExported; effect: false };
  /** Look for what is wrong with the house, and say what to do. */
  "house.doctor": { asked: Doctor; answered: HouseExamined; effect: false };
  /** Put something where a person notices it. */
  "notification.create": { asked: RetinueOperationsPersonNotificationsCreate; answered: NotificationCreated; effect: true };
  /** List your notifications, newest first. */
  "notification.list": { asked: RetinueOperationsPersonNotificationsListing; answered: NotificationsListed; effect: false };
  /** Mark notifications as read. */
  "notification.read": { asked: RetinueOperationsPersonNotificationsWhich; answered: NotificationsChanged; effect: true };
  /** Take notifications away. */
  "notification.clear": { asked: RetinueOperationsPersonNotificationsWhich; answered: NotificationsChanged; effect: true };
  /** List questions with fields that were put to you, newest first. */
  "questionnaire.list": { asked: RetinueOperationsApprovalQuestionnairesListing; answered: QuestionnairesListed; effect: false };
  /** Show one questionnaire. */
  "questionnaire.show": { asked: RetinueOperationsApprovalQuestionnairesById; answered: QuestionnaireShown; effect: false };
  /** Answer a questionnaire; the agent goes on with what you say. */
  "questionnaire.submit": { asked: Submit; answered: QuestionnaireSubmitted; effect: true };
  /** Leave a questionnaire unanswered for good. */
  "questionnaire.cancel": { asked: RetinueOperationsApprovalQuestionnairesById; answered: QuestionnaireCancelled; effect: true };
  /** Show what you have set under a key. */
  "preference.get": { asked: Get; answered: PreferenceShown; effect: false };
  /** Show all that you have set. */
  "preference.list": { asked: Nothing; answered: PreferencesListed; effect: false };
  /** Keep a small value for yourself, the same on every device. */
  "preference.set": { asked: RetinueOperationsPersonPreferencesSet; answered: PreferenceShown; effect: true };
  /** Have something written at a time, or again and again. */
  "schedule.add": { asked: RetinueOperationsScheduleSchedulesAdd; answered: ScheduleShown; effect: true };
  /** List your schedules, the newest first. */
  "schedule.list": { asked: RetinueOperationsScheduleSchedulesListing; answered: SchedulesListed; effect: false };
  /** Show a schedule. */
  "schedule.show": { asked: RetinueOperationsScheduleSchedulesWhich; answered: ScheduleShown; effect: false };
  /** Change a schedule. */
  "schedule.set": { asked: RetinueOperationsScheduleSchedulesSet; answered: ScheduleShown; effect: true };
  /** Have a schedule come again. */
  "schedule.enable": { asked: RetinueOperationsScheduleSchedulesWhich; answered: ScheduleChanged; effect: true };
  /** Have a schedule come no more, until it is enabled. */
  "schedule.disable": { asked: RetinueOperationsScheduleSchedulesWhich; answered: ScheduleChanged; effect: true };
  /** Have a schedule come now, whether or not it is enabled. */
  "schedule.run": { asked: RetinueOperationsScheduleSchedulesRun; answered: ScheduleRun; effect: true };
  /** Say in words what a time means, and when it comes. */
  "schedule.explain": { asked: RetinueOperationsScheduleSchedulesExplain; answered: ScheduleExplained; effect: false };
  /** Say when a schedule comes next. */
  "schedule.next": { asked: Next; answered: ScheduleExplained; effect: false };
  /** Tell what became of each time a schedule came. */
  "schedule.history": { asked: RetinueOperationsScheduleSchedulesHistory; answered: ScheduleHistory; effect: false };
  /** Delete a schedule and its history. */
  "schedule.delete": { asked: RetinueOperationsScheduleSchedulesWhich; answered: ScheduleDeleted; effect: true };
  /** List heartbeats: how often agents look by themselves, and what is on their checklists. */
  "heartbeat.list": { asked: Whose; answered: HeartbeatsListed; effect: false };
  /** Show a task of a heartbeat. */
  "heartbeat.show": { asked: RetinueOperationsScheduleHeartbeatsWhich; answered: TaskShown; effect: false };
  /** Have an agent look after something at each of its heartbeats. */
  "heartbeat.add": { asked: RetinueOperationsScheduleHeartbeatsAdd; answered: TaskAdded; effect: true };
  /** Take a task off the checklist of a heartbeat. */
  "heartbeat.remove": { asked: RetinueOperationsScheduleHeartbeatsWhich; answered: TaskRemoved; effect: true };
  /** Have an agent do tasks of its heartbeat now, or all that is due. */
  "heartbeat.run": { asked: RetinueOperationsScheduleHeartbeatsRun; answered: HeartbeatRun; effect: true };
  /** Tell what comes in the days from today on. */
  "schedule.calendar": { asked: Calendar; answered: CalendarShown; effect: false };
  /** Remind a person of something at a time. No agent works on it. */
  "reminder.add": { asked: AddReminder; answered: ScheduleShown; effect: true };
  /** List the reminders that wait, the soonest first. */
  "reminder.list": { asked: RetinueOperationsScheduleRemindersListing; answered: RemindersListed; effect: false };
  /** Take a reminder back. */
  "reminder.delete": { asked: RetinueOperationsScheduleRemindersById; answered: ScheduleDeleted; effect: true };
  /** Write into a conversation at a time. */
  "wakeup.add": { asked: AddWakeup; answered: ScheduleShown; effect: true };
  /** List the wake-ups that wait, the soonest first. */
  "wakeup.list": { asked: ListWakeups; answered: WakeupsListed; effect: false };
  /** Take a wake-up back. */
  "wakeup.delete": { asked: RetinueOperationsScheduleRemindersById; answered: ScheduleDeleted; effect: true };
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
  "envelope.recent": "/api/envelope/recent",
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
  "session.attach": "/api/session/attach",
  "session.read": "/api/session/read",
  "session.policy": "/api/session/policy",
  "session.refresh": "/api/session/refresh",
  "session.sending": "/api/session/sending",
  "session.transcript": "/api/session/transcript",
  "run.show": "/api/run/show",
  "run.list": "/api/run/list",
  "run.trace": "/api/run/trace",
  "approval.list": "/api/approval/list",
  "command.list": "/api/command/list",
  "session.export": "/api/session/export",
  "session.import": "/api/session/import",
  "session.fork": "/api/session/fork",
  "session.trim": "/api/session/trim",
  "session.deleted": "/api/session/deleted",
  "session.restore": "/api/session/restore",
  "session.waiting": "/api/session/waiting",
  "delegation.list": "/api/delegation/list",
  "delegation.stop": "/api/delegation/stop",
  "subagent.list": "/api/subagent/list",
  "subagent.show": "/api/subagent/show",
  "subagent.stop": "/api/subagent/stop",
  "subagent.log": "/api/subagent/log",
  "subagent.send": "/api/subagent/send",
  "agent.list": "/api/agent/list",
  "agent.show": "/api/agent/show",
  "agent.register": "/api/agent/register",
  "agent.set": "/api/agent/set",
  "agent.versions": "/api/agent/versions",
  "agent.diff": "/api/agent/diff",
  "agent.restore": "/api/agent/restore",
  "agent.delete": "/api/agent/delete",
  "agent.permanent": "/api/agent/permanent",
  "agent.files": "/api/agent/files",
  "agent.file": "/api/agent/file",
  "agent.write-file": "/api/agent/write-file",
  "agent.prompt": "/api/agent/prompt",
  "model.list": "/api/model/list",
  "model.show": "/api/model/show",
  "credential.list": "/api/credential/list",
  "credential.add": "/api/credential/add",
  "credential.remove": "/api/credential/remove",
  "credential.order": "/api/credential/order",
  "credential.mark-used": "/api/credential/mark-used",
  "credential.mark-failed": "/api/credential/mark-failed",
  "credential.clear": "/api/credential/clear",
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
  "config.fields": "/api/config/fields",
  "config.preview": "/api/config/preview",
  "house.status": "/api/house/status",
  "house.state": "/api/house/state",
  "house.ledger": "/api/house/ledger",
  "house.why": "/api/house/why",
  "house.lanes": "/api/house/lanes",
  "house.logs": "/api/house/logs",
  "house.backup": "/api/house/backup",
  "house.purge": "/api/house/purge",
  "usage.show": "/api/usage/show",
  "usage.days": "/api/usage/days",
  "usage.budgets": "/api/usage/budgets",
  "policy.explain": "/api/policy/explain",
  "policy.test": "/api/policy/test",
  "tool.list": "/api/tool/list",
  "grant.list": "/api/grant/list",
  "grant.add": "/api/grant/add",
  "grant.revoke": "/api/grant/revoke",
  "tool.invoke": "/api/tool/invoke",
  "skill.list": "/api/skill/list",
  "skill.show": "/api/skill/show",
  "skill.approve": "/api/skill/approve",
  "skill.revoke": "/api/skill/revoke",
  "skill.export": "/api/skill/export",
  "plugin.list": "/api/plugin/list",
  "plugin.show": "/api/plugin/show",
  "plugin.settings": "/api/plugin/settings",
  "plugin.patch": "/api/plugin/patch",
  "plugin.replace": "/api/plugin/replace",
  "plugin.enable": "/api/plugin/enable",
  "plugin.disable": "/api/plugin/disable",
  "plugin.reload": "/api/plugin/reload",
  "hook.list": "/api/hook/list",
  "hook.show": "/api/hook/show",
  "hook.enable": "/api/hook/enable",
  "hook.disable": "/api/hook/disable",
  "mcp.list": "/api/mcp/list",
  "mcp.show": "/api/mcp/show",
  "mcp.approve": "/api/mcp/approve",
  "mcp.revoke": "/api/mcp/revoke",
  "mcp.restart": "/api/mcp/restart",
  "connector.list": "/api/connector/list",
  "connector.kinds": "/api/connector/kinds",
  "connector.show": "/api/connector/show",
  "connector.test": "/api/connector/test",
  "connector.add": "/api/connector/add",
  "connector.remove": "/api/connector/remove",
  "connector.enable": "/api/connector/enable",
  "connector.disable": "/api/connector/disable",
  "set-aside.list": "/api/set-aside/list",
  "set-aside.retry": "/api/set-aside/retry",
  "set-aside.drop": "/api/set-aside/drop",
  "binding.list": "/api/binding/list",
  "binding.set": "/api/binding/set",
  "binding.remove": "/api/binding/remove",
  "pairing.list": "/api/pairing/list",
  "pairing.accept": "/api/pairing/accept",
  "pairing.refuse": "/api/pairing/refuse",
  "pairing.dismiss": "/api/pairing/dismiss",
  "identity.list": "/api/identity/list",
  "identity.link": "/api/identity/link",
  "identity.unlink": "/api/identity/unlink",
  "audit.list": "/api/audit/list",
  "audit.verify": "/api/audit/verify",
  "audit.export": "/api/audit/export",
  "house.doctor": "/api/house/doctor",
  "notification.create": "/api/notification/create",
  "notification.list": "/api/notification/list",
  "notification.read": "/api/notification/read",
  "notification.clear": "/api/notification/clear",
  "questionnaire.list": "/api/questionnaire/list",
  "questionnaire.show": "/api/questionnaire/show",
  "questionnaire.submit": "/api/questionnaire/submit",
  "questionnaire.cancel": "/api/questionnaire/cancel",
  "preference.get": "/api/preference/get",
  "preference.list": "/api/preference/list",
  "preference.set": "/api/preference/set",
  "schedule.add": "/api/schedule/add",
  "schedule.list": "/api/schedule/list",
  "schedule.show": "/api/schedule/show",
  "schedule.set": "/api/schedule/set",
  "schedule.enable": "/api/schedule/enable",
  "schedule.disable": "/api/schedule/disable",
  "schedule.run": "/api/schedule/run",
  "schedule.explain": "/api/schedule/explain",
  "schedule.next": "/api/schedule/next",
  "schedule.history": "/api/schedule/history",
  "schedule.delete": "/api/schedule/delete",
  "heartbeat.list": "/api/heartbeat/list",
  "heartbeat.show": "/api/heartbeat/show",
  "heartbeat.add": "/api/heartbeat/add",
  "heartbeat.remove": "/api/heartbeat/remove",
  "heartbeat.run": "/api/heartbeat/run",
  "schedule.calendar": "/api/schedule/calendar",
  "reminder.add": "/api/reminder/add",
  "reminder.list": "/api/reminder/list",
  "reminder.delete": "/api/reminder/delete",
  "wakeup.add": "/api/wakeup/add",
  "wakeup.list": "/api/wakeup/list",
  "wakeup.delete": "/api/wakeup/delete",
};
