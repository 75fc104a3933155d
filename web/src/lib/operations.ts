// Made from the code by `make generate`.

export type ActiveRun = { "id": string; "status": RunStatus; "sender": string; "since": string; "attempt": number; "turn": number | null; "doing": StepKind | null; "tool": string; "doing-since": string | null; "because": string; "approval": string | null; "until": string | null };

export type AdmittedSenderDetails = { "connector": string; "speaker": string; "by": string; "at": string };

export type AgentChanged = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternalSettings; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "delivery": CrashPolicy; "concurrency": number | null; "queue": AgentQueueSettings; "reset": AgentResetSettings; "tools": AgentToolSettings; "delegation": AgentDelegationSettings; "subagents": AgentSubagentSettings; "heartbeat": AgentHeartbeatSettings; "sandbox": AgentSandboxSettings; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "colour": Color | null; "visible": boolean; "version": number; "changed": Array<string>; "dry-run"?: boolean };

export type AgentComparison = { "name": string; "old": number; "new": number; "changes": Array<AgentFieldChange> };

export type AgentDelegationSettings = { "allow": Array<string>; "deny": Array<string>; "depth_max": number; "open_max": number; "exchanges_max": number; "circles": boolean; "histories": boolean };

export type AgentDeleteRequest = { "name": string; "keep_home"?: boolean };

export type AgentDeleted = { "name": string; "deleted": boolean; "cancelled-runs": Array<string>; "home": string | null };

export type AgentDetails = { "name": string; "display_name": string; "description": string; "runner": string; "external"?: AgentExternalSettings; "provider"?: string | null; "model": string; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string; "instructions_mode"?: InstructionMode; "workspace"?: string; "context_files"?: Array<string>; "delivery"?: CrashPolicy; "concurrency"?: number | null; "queue"?: AgentQueueSettings; "reset"?: AgentResetSettings; "tools"?: AgentToolSettings; "delegation"?: AgentDelegationSettings; "subagents"?: AgentSubagentSettings; "heartbeat"?: AgentHeartbeatSettings; "sandbox"?: AgentSandboxSettings; "turns_max"?: number; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number; "replay_age_s"?: number | null; "approval_wait_s"?: number; "permission_level"?: PermissionLevel; "icon": string; "colour": Color | null; "visible": boolean; "version": number; "state": AgentState; "in_force"?: Record<string, EffectiveSetting> };

export type AgentDiffRequest = { "name": string; "old": number; "new"?: number | null };

export type AgentExternalSettings = { "url": string; "secret": string; "timeout_s": number; "retries": number };

export type AgentFieldChange = { "field": string; "old": unknown; "new": unknown };

export type AgentFileDetails = { "name": string; "path": string; "content": string; "size-bytes": number; "changed-at": string; "hash": string; "trust": Trust };

export type AgentFileList = { "name": string; "files": Array<AgentFileRow>; "more": boolean };

export type AgentFileRequest = { "name": string; "path": string };

export type AgentFileRow = { "path": string; "size-bytes": number; "changed-at": string; "hash": string | null };

export type AgentFileWriteRequest = { "name": string; "path": string; "content": string; "hash": string; "believe"?: boolean };

export type AgentFileWritten = { "name": string; "path": string; "size-bytes": number; "hash": string; "created": boolean };

export type AgentFilesRequest = { "name": string };

export type AgentHeartbeatSettings = { "every_s": number | null; "active_start": string | null; "active_end": string | null; "active_zone": string | null; "prompt": string | null; "model": string | null; "place": ScheduleSession | null; "target": string | null; "ack_chars_max": number | null };

export type AgentList = { "agents": Array<AgentRow> };

export type AgentModelChain = { "agent": string; "session"?: string; "runner": string; "effort": string | null; "chain": Array<ModelChainEntry>; "now"?: Array<string>; "refused"?: string };

export type AgentNameRequest = { "name": string };

export type AgentPromptDetails = { "name": string; "session": string | null; "template": string; "tokens": number; "sections": Array<PromptSection>; "text": string; "files"?: Array<PromptFile>; "before"?: PreviousPrompt | null; "trouble"?: TemplateError | null };

export type AgentPromptRequest = { "name": string; "session"?: string; "mode"?: InstructionMode | null; "check"?: Array<AttachmentUpload>; "parts"?: boolean };

export type AgentQueueSettings = { "mode": QueueMode; "cap": number; "overflow": Overflow; "debounce_s": number };

export type AgentRegisterRequest = { "name": string; "display_name"?: string | null; "description"?: string | null; "runner"?: string | null; "external_url"?: string | null; "external_secret"?: string | null; "external_timeout_s"?: number | null; "external_retries"?: number | null; "provider"?: string | null; "model"?: string | ModelWithFallbacks | null; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string | null; "instructions_mode"?: InstructionMode | null; "workspace"?: string | null; "context_files"?: Array<string> | null; "delivery"?: CrashPolicy | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "queue_debounce_s"?: number | null; "reset_daily_at"?: string | null; "reset_idle_minutes"?: number | null; "reset_context_tokens_max"?: number | null; "tools_profile"?: string | null; "tools_allow"?: Array<string> | null; "tools_also_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "tools_capabilities_allow"?: Array<string> | null; "tools_capabilities_deny"?: Array<string> | null; "tools_policy"?: string | null; "delegation_allow"?: Array<string> | null; "delegation_deny"?: Array<string> | null; "delegation_depth_max"?: number | null; "delegation_open_max"?: number | null; "delegation_exchanges_max"?: number | null; "delegation_circles"?: boolean | null; "delegation_histories"?: boolean | null; "subagents_allow"?: Array<string> | null; "subagents_model"?: string | null; "subagents_effort"?: string | null; "subagents_run_seconds_max"?: number | null; "subagents_archive_after_s"?: number | null; "heartbeat_every_s"?: number | null; "heartbeat_active_start"?: string | null; "heartbeat_active_end"?: string | null; "heartbeat_active_zone"?: string | null; "heartbeat_prompt"?: string | null; "heartbeat_model"?: string | null; "heartbeat_place"?: ScheduleSession | null; "heartbeat_target"?: string | null; "heartbeat_ack_chars_max"?: number | null; "sandbox_mode"?: SandboxMode | null; "sandbox_scope"?: SandboxScope | null; "sandbox_workspace"?: WorkspaceAccess | null; "sandbox_sessions"?: SandboxVisibleSessions | null; "sandbox_browser"?: boolean | null; "sandbox_image"?: string | null; "sandbox_cpus"?: number | null; "sandbox_idle_hours"?: number | null; "sandbox_age_days"?: number | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "icon"?: string | null; "colour"?: Color | null; "visible"?: boolean | null; "dry_run"?: boolean; "token"?: boolean };

export type AgentRegistered = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternalSettings; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "delivery": CrashPolicy; "concurrency": number | null; "queue": AgentQueueSettings; "reset": AgentResetSettings; "tools": AgentToolSettings; "delegation": AgentDelegationSettings; "subagents": AgentSubagentSettings; "heartbeat": AgentHeartbeatSettings; "sandbox": AgentSandboxSettings; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "colour": Color | null; "visible": boolean; "version": number; "home"?: string; "token"?: string; "dry-run"?: boolean; "shown-once"?: Array<string> };

export type AgentResetSettings = { "daily_at": string | null; "idle_minutes": number | null; "context_tokens_max": number | null };

export type AgentRestoreRequest = { "name": string; "version": number };

export type AgentRestored = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternalSettings; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "delivery": CrashPolicy; "concurrency": number | null; "queue": AgentQueueSettings; "reset": AgentResetSettings; "tools": AgentToolSettings; "delegation": AgentDelegationSettings; "subagents": AgentSubagentSettings; "heartbeat": AgentHeartbeatSettings; "sandbox": AgentSandboxSettings; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "colour": Color | null; "visible": boolean; "version": number; "restored": number };

export type AgentRow = { "name": string; "display_name": string; "description": string; "runner": string; "model": string; "version": number; "icon": string; "colour": Color | null; "visible": boolean };

export type AgentSandboxSettings = { "mode": SandboxMode | null; "scope": SandboxScope | null; "workspace": WorkspaceAccess | null; "sessions": SandboxVisibleSessions | null; "browser": boolean | null; "image": string; "cpus": number | null; "idle_hours": number | null; "age_days": number | null };

export type AgentSetRequest = { "name": string; "display_name"?: string | null; "description"?: string | null; "runner"?: string | null; "external_url"?: string | null; "external_secret"?: string | null; "external_timeout_s"?: number | null; "external_retries"?: number | null; "provider"?: string | null; "model"?: string | ModelWithFallbacks | null; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string | null; "instructions_mode"?: InstructionMode | null; "workspace"?: string | null; "context_files"?: Array<string> | null; "delivery"?: CrashPolicy | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "queue_debounce_s"?: number | null; "reset_daily_at"?: string | null; "reset_idle_minutes"?: number | null; "reset_context_tokens_max"?: number | null; "tools_profile"?: string | null; "tools_allow"?: Array<string> | null; "tools_also_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "tools_capabilities_allow"?: Array<string> | null; "tools_capabilities_deny"?: Array<string> | null; "tools_policy"?: string | null; "delegation_allow"?: Array<string> | null; "delegation_deny"?: Array<string> | null; "delegation_depth_max"?: number | null; "delegation_open_max"?: number | null; "delegation_exchanges_max"?: number | null; "delegation_circles"?: boolean | null; "delegation_histories"?: boolean | null; "subagents_allow"?: Array<string> | null; "subagents_model"?: string | null; "subagents_effort"?: string | null; "subagents_run_seconds_max"?: number | null; "subagents_archive_after_s"?: number | null; "heartbeat_every_s"?: number | null; "heartbeat_active_start"?: string | null; "heartbeat_active_end"?: string | null; "heartbeat_active_zone"?: string | null; "heartbeat_prompt"?: string | null; "heartbeat_model"?: string | null; "heartbeat_place"?: ScheduleSession | null; "heartbeat_target"?: string | null; "heartbeat_ack_chars_max"?: number | null; "sandbox_mode"?: SandboxMode | null; "sandbox_scope"?: SandboxScope | null; "sandbox_workspace"?: WorkspaceAccess | null; "sandbox_sessions"?: SandboxVisibleSessions | null; "sandbox_browser"?: boolean | null; "sandbox_image"?: string | null; "sandbox_cpus"?: number | null; "sandbox_idle_hours"?: number | null; "sandbox_age_days"?: number | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "icon"?: string | null; "colour"?: Color | null; "visible"?: boolean | null; "clear"?: Array<string>; "dry_run"?: boolean };

export type AgentState = "idle" | "running";

export type AgentSubagentSettings = { "allow": Array<string>; "model": string; "effort": string | null; "run_seconds_max": number | null; "archive_after_s": number | null };

export type AgentToolLists = { "profile": string | null; "allow": Array<string>; "also_allow": Array<string>; "ask": Array<string>; "deny": Array<string>; "capabilities_allow": Array<string>; "capabilities_deny": Array<string> };

export type AgentToolSettings = { "profile": string | null; "allow": Array<string>; "also_allow": Array<string>; "ask": Array<string>; "deny": Array<string>; "capabilities_allow": Array<string>; "capabilities_deny": Array<string>; "policy": string | null; "by_provider": Record<string, AgentToolLists> };

export type AgentVersionList = { "versions": Array<AgentVersionRow>; "next": number | null };

export type AgentVersionRow = { "version": number; "at": string; "by": string; "source": string; "changed": Array<string> };

export type AgentVersionsRequest = { "name": string; "limit"?: number; "before"?: number | null };

export type ApplyAction = "add" | "change" | "drift" | "keep" | "undeclared";

export type ApplyStep = { "name": string; "step": ApplyAction; "because": string; "changed": Record<string, ValueChange> };

export type ApprovalAnswerRequest = { "id": string; "allow": boolean; "scope"?: GrantScope; "because"?: string };

export type ApprovalAnswered = { "approval": string; "state": ApprovalState };

export type ApprovalDetails = { "id": string; "agent": string; "for-whom": string; "session": string; "session-name": string | null; "run": string; "calls": Array<Call>; "to-reach": Array<string>; "would-grant": Array<string>; "because": string; "asked-of": Array<string>; "scopes": Array<GrantScope>; "asked-at": string; "expires-at": string; "state": ApprovalState; "decided-by": string; "decided-at": string | null; "scope": GrantScope | null; "words": string };

export type ApprovalEntry = { "act": "approval"; "at-ms": number; "ended-ms": number | null; "approval": string; "state": ApprovalState; "calls": Array<string>; "because": string; "asked-of": Array<string>; "decided-by": string; "scope": GrantScope | null; "words": string };

export type ApprovalList = { "approvals": Array<ApprovalDetails>; "next": string | null };

export type ApprovalListRequest = { "past"?: boolean; "limit"?: number; "cursor"?: string };

export type ApprovalState = "allowed" | "closed" | "denied" | "expired" | "open";

export type AttachStatus = "attached" | "created" | "revived";

export type AttachmentDetails = { "name": string; "hash": string; "media-type": string; "size-bytes": number };

export type AttachmentUpload = { "name": string; "data"?: string; "hash"?: string; "media_type"?: string };

export type AuditEntryDetails = { "at": string; "kind": string; "who": string; "agent": string; "subject": string; "verdict": string; "because": string; "run": string | null; "session": string; "position": number; "content": string; "hash": string };

export type AuditEntryList = { "audit": Array<AuditEntryDetails>; "next": string | null };

export type AuditExport = { "lines": Array<string>; "next": string | null };

export type AuditExportRequest = { "session"?: string; "after"?: string; "limit"?: number };

export type AuditFlaw = { "session": string; "position": number; "sentence": string };

export type AuditKind = "agent-changed" | "anchored" | "approval-asked" | "approval-decided" | "approval-expired" | "approval-refused" | "call-allowed" | "call-ended" | "call-refused" | "chain-begun" | "credential-changed" | "forgotten" | "grant-given" | "grant-revoked" | "mcp-approved" | "person-changed" | "purged" | "sandbox-off" | "settings-changed" | "skill-approved" | "token-made" | "token-revoked";

export type AuditListRequest = { "session"?: string; "kind"?: AuditKind | null; "agent"?: string; "who"?: string; "since"?: string; "before"?: string; "limit"?: number };

export type AuditVerifyRequest = { "session"?: string; "anchor"?: Array<string>; "log"?: boolean };

export type AuditVerifyResult = { "holds": boolean; "checked": number; "chains": number; "anchors": number; "flaws": Array<AuditFlaw>; "lines": Array<string> };

export type BackupRequest = { "to"?: string; "verify"?: boolean };

export type BackupResult = { "folder": string; "parts": number; "size-bytes": number; "missing": Array<string>; "verified": boolean };

export type BindingDetails = { "id": string; "agent": string; "connector": string; "account": string; "peer-kind": string; "peer": string; "parent": string; "guild": string; "team": string; "also": Array<string>; "made-by": string };

export type BindingIdRequest = { "id": string };

export type BindingList = { "bindings": Array<BindingDetails> };

export type BindingRemoved = { "id": string; "removed": boolean };

export type BindingSet = { "binding": BindingDetails; "replaced": Array<BindingDetails> };

export type BindingSetRequest = { "agent": string; "connector": string; "account"?: string; "peer_kind"?: PeerKind | null; "peer"?: string; "parent"?: string; "guild"?: string; "team"?: string; "also"?: Array<string> };

export type BrokenHookRow = { "folder": string; "because": string };

export type BrokenSkillRow = { "folder": string; "source": SkillSource; "because": string };

export type BudgetList = { "today": string; "warn-share": number; "budgets": Array<BudgetStatus> };

export type BudgetStatus = { "what": string; "whose": string; "raised-by": string; "cap-microusd": number; "spent-microusd"?: number | null; "held-microusd"?: number | null; "left-microusd"?: number | null; "share"?: number | null; "resets-on"?: string | null };

export type CalendarDetails = { "zone": string; "now": string; "until": string; "coming": Array<CalendarRow>; "more": boolean };

export type CalendarRequest = { "days"?: number };

export type CalendarRow = { "id": string; "name": string; "kind": string; "to": string; "when": string; "text": string; "times": Array<string>; "often": boolean };

export type Call = { "id": string; "tool": string; "arguments"?: Record<string, unknown> };

export type CallSource = "invoke" | "mcp" | "model" | "skill";

export type CallerDetails = { "address": string; "level": PermissionLevel; "sees-all": boolean };

export type ChannelQueue = { "channel": string; "waiting-count": number; "next-at": string; "attempts": number; "error": string | null };

export type Color = "amber" | "blue" | "cyan" | "green" | "indigo" | "lime" | "orange" | "pink" | "red" | "slate" | "teal" | "violet";

export type ConfigApplied = { "dry-run": boolean; "agents": Array<ApplyStep>; "people": Array<ApplyStep>; "schedules": Array<ApplyStep>; "bindings": Array<ApplyStep>; "not-yet": Array<string>; "tokens"?: Record<string, string>; "cleared-runs"?: number; "shown-once"?: Array<string> };

export type ConfigApplyRequest = { "dry_run"?: boolean; "take"?: string; "reset"?: boolean };

export type ConfigChanged = { "changes": Array<SettingChange>; "waiting-for-a-restart": Array<string>; "hash": string };

export type ConfigCheckRequest = { "text"?: string | null };

export type ConfigChecked = { "ok": boolean; "faults": Array<string>; "hash": string };

export type ConfigDetails = { "file": string; "hash": string; "files": Array<string>; "settings": Record<string, unknown>; "default-agent": string | null; "waiting-for-a-restart": Array<string> };

export type ConfigExported = { "text": string };

export type ConfigFaultDetails = { "path": string; "sentence": string; "line": number | null; "because": string; "try": string; "code": string };

export type ConfigFields = { "file": string; "hash": string; "sections": Array<SettingSectionDetails>; "faults": Array<ConfigFaultDetails>; "waiting-for-a-restart": Array<string> };

export type ConfigPatchRequest = { "changes": Record<string, unknown>; "expected_hash": string };

export type ConfigPreview = { "old": string; "new": string; "patch": Record<string, unknown>; "changes": Array<SettingChange>; "faults": Array<ConfigFaultDetails>; "hash": string };

export type ConfigPreviewRequest = { "changes"?: Record<string, unknown> | null; "text"?: string | null };

export type ConnectionStatus = "failed" | "listening" | "needs-owner" | "off" | "trying" | "waiting";

export type ConnectorAddRequest = { "kind": string; "name"?: string; "settings"?: Record<string, unknown>; "answers"?: Record<string, string>; "secrets"?: Record<string, string>; "check"?: boolean };

export type ConnectorAdded = { "connector": ConnectorStatus; "account": string; "next": Array<string> };

export type ConnectorDetails = { "connector": ConnectorStatus; "settings": Record<string, unknown> };

export type ConnectorList = { "connectors": Array<ConnectorStatus> };

export type ConnectorNameRequest = { "name": string };

export type ConnectorRemoved = { "name": string; "removed": boolean };

export type ConnectorStatus = { "name": string; "kind": string; "state": ConnectionStatus; "since": string; "last-heard"?: string | null; "last-delivered"?: string | null; "breaks"?: number; "because"?: string; "try"?: string; "again-at"?: string | null; "dm"?: string; "in-groups"?: string };

export type ConnectorTestResult = { "name": string; "ok": boolean; "account": string; "sentence": string; "because": string; "try": string };

export type CrashPolicy = "at-most-once" | "resume";

export type CredentialAddRequest = { "provider": string; "name": string; "agent"?: string; "kind"?: CredentialKind; "region"?: string; "key_env"?: string; "key_file"?: string; "key"?: string };

export type CredentialDetails = { "id": string; "provider": string; "agent": string | null; "kind": CredentialKind; "where": string; "state": CredentialState; "because": string; "region": string | null; "position": number | null; "used-at": string | null; "failures": Record<string, CredentialFailure> };

export type CredentialFailure = { "reason": ModelFailureKind; "errors": number; "failed-at": string; "cooling-until": string | null };

export type CredentialFailureReason = "auth" | "overloaded" | "permission" | "quota" | "rate_limit" | "timeout";

export type CredentialFailureRequest = { "id": string; "reason": CredentialFailureReason; "agent"?: string; "model"?: string };

export type CredentialIdRequest = { "id": string; "agent"?: string };

export type CredentialKind = "api_key" | "token";

export type CredentialList = { "credentials": Array<CredentialDetails> };

export type CredentialListRequest = { "provider"?: string; "agent"?: string };

export type CredentialOrderRequest = { "provider": string; "ids"?: Array<string>; "agent"?: string };

export type CredentialRemoved = { "id": string; "agent": string | null; "removed": boolean };

export type CredentialState = "cooling-down" | "ready" | "unreadable";

export type CredentialUseRequest = { "id": string; "agent"?: string; "model"?: string };

export type DailyUsageReport = { "by": UsageGrouping; "days": Array<string>; "series": Array<UsageSeries>; "total": UsageRow };

export type DamagedRecordRow = { "seq": number; "because": string };

export type DeadLetterList = { "letters": Array<EnvelopeDetails> };

export type DeadLetterListRequest = { "limit"?: number; "before"?: string };

export type DecisionKind = "allow" | "ask" | "deny";

export type DelegationKind = "background" | "external" | "message" | "send" | "spawn";

export type DelegationList = { "delegations": Array<DelegationRow>; "next": string | null; "open-count": number; "counted-max": number };

export type DelegationListRequest = { "session"?: string; "open"?: boolean; "limit"?: number; "cursor"?: string };

export type DelegationProgress = "asking" | "error" | "ok" | "parked" | "stopped" | "timeout" | "waiting" | "working";

export type DelegationRow = { "id": string; "kind": DelegationKind; "agent": string; "session": string; "session-name": string | null; "asked-by": string; "call": string; "target": string; "to": string | null; "to-name": string | null; "run": string | null; "label": string; "task": string; "stands": DelegationProgress; "because": string; "waits": boolean; "result": string | null; "created-at": string; "started-at": string | null; "ended-at": string | null; "duration-ms": number | null; "cost-microusd": number };

export type DelegationStopRequest = { "id": string; "why"?: string };

export type DelegationStopped = { "stopped": Array<string>; "cancelled-runs": Array<string> };

export type DeletedSessionList = { "sessions": Array<DeletedSessionRow> };

export type DeletedSessionListRequest = { "limit"?: number };

export type DeletedSessionRow = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "deletedAt": string; "restorableUntil": string };

export type DeliveryAttemptDetails = { "attempt": number; "state": DeliveryState; "receipt": string | null; "error-kind": string | null; "error": string | null };

export type DeliveryState = "failed" | "sending" | "sent" | "unknown";

export type DoctorCheckRow = { "name": string; "looks-at": string; "health": "ok" | "problem" | "skipped" | "warning"; "found": Array<DoctorFindingRow> };

export type DoctorFindingRow = { "health": DoctorHealth; "sentence": string; "because": string; "try": string };

export type DoctorHealth = "ok" | "problem" | "warning";

export type DoctorReport = { "health": DoctorHealth; "checks": Array<DoctorCheckRow>; "lines": Array<string>; "security"?: Array<SecurityFindingRow>; "fixed"?: Array<string> };

export type DoctorRequest = { "quick"?: boolean; "security"?: boolean; "fix"?: boolean };

export type EffectiveSetting = { "value": unknown; "by": SettingSource; "key": string };

export type Elevation = "ask" | "full" | "off" | "on";

export type EmptyRequest = Record<string, never>;

export type EnvelopeCancelled = { "envelope": string; "outcome": Outcome };

export type EnvelopeDetails = { "id": string; "short": string; "from": string; "to": string; "kind": EnvelopeKind; "status": EnvelopeStatus; "accepted-at": string; "text": string; "reply-to"?: string; "deliver-at"?: string; "attachments"?: Array<AttachmentDetails>; "outcome"?: Outcome; "because"?: string; "answer"?: string | null; "retry"?: string; "when-busy"?: WhenBusy; "position"?: number; "deliveries"?: Array<DeliveryAttemptDetails> };

export type EnvelopeIdRequest = { "id": string };

export type EnvelopeKind = "answer" | "approval" | "decision" | "delegation" | "job" | "message" | "notice" | "system";

export type EnvelopeList = { "envelopes": Array<EnvelopeDetails>; "acknowledged": number };

export type EnvelopeListRequest = { "status": EnvelopeStatus; "to"?: string; "from"?: string; "limit"?: number; "created_after"?: string; "created_before"?: string; "before"?: string; "ack"?: boolean };

export type EnvelopeReadEntry = { "act": "envelope-read"; "at-ms": number; "envelope": string; "from": string; "kind": EnvelopeKind; "words": string; "joined": boolean };

export type EnvelopeReceipt = { "envelope": string; "session": string | null; "cursor": number; "duplicate": boolean; "outcome": Outcome | null; "because": string };

export type EnvelopeRecentRequest = { "limit"?: number };

export type EnvelopeRow = { "id": string; "from": string; "to": string; "kind": EnvelopeKind; "words": string; "session": string | null; "accepted-at": string; "status": EnvelopeStatus; "outcome": Outcome | null };

export type EnvelopeSendRequest = { "to"?: string; "text": string; "key"?: string; "conversation"?: string; "session"?: string; "deliver_at"?: string; "expires_at"?: string; "reply_to"?: string; "attachments"?: Array<AttachmentUpload>; "model"?: string; "provider"?: string; "lane"?: LaneKind | null; "workspace"?: string; "extra_system_prompt"?: string; "when_busy"?: WhenBusy | null; "webhook"?: Webhook | null };

export type EnvelopeSentEntry = { "act": "envelope-sent"; "at-ms": number; "envelope": string; "to": string; "kind": EnvelopeKind; "words": string };

export type EnvelopeStatus = "claimed" | "done" | "parked" | "pending";

export type ErrorForm = { "code": string; "sentence": string; "because": string; "try": string; "candidates"?: Array<string>; "matches"?: number; "retry-after-s"?: number };

export type ErrorResponse = { "error": ErrorForm };

export type GateForm = { "command": string; "cwd"?: string; "timeout_ms"?: number; "env"?: Record<string, string>; "permissions"?: Array<string>; "domains"?: Array<string> };

export type GrantAddRequest = { "agent": string; "permission": string; "because": string; "session"?: string };

export type GrantDetails = { "id": string; "agent": string; "permission": string; "session": string | null; "granted-by": string; "because": string; "at": string; "expires-at": string | null };

export type GrantIdRequest = { "id": string };

export type GrantList = { "grants": Array<GrantDetails> };

export type GrantRevoked = { "id": string; "revoked": boolean };

export type GrantScope = "always" | "once" | "session";

export type HeartbeatAddRequest = { "text": string; "id"?: string; "title"?: string; "gate"?: GateForm | null; "overwrite"?: boolean; "agent"?: string };

export type HeartbeatDetails = { "agent": string; "schedule": string | null; "enabled": boolean; "because": string; "when": string; "next": string | null; "last-run": string | null; "last": string | null; "checklist": string; "tasks": Array<HeartbeatTaskRow> };

export type HeartbeatList = { "heartbeats": Array<HeartbeatDetails> };

export type HeartbeatListRequest = { "agent"?: string };

export type HeartbeatRunRequest = { "ids"?: Array<string>; "force"?: boolean; "agent"?: string };

export type HeartbeatRunResult = { "agent": string; "begun": boolean; "because": string; "envelope": string | null };

export type HeartbeatTaskAdded = { "agent": string; "id": string; "title": string; "file": string };

export type HeartbeatTaskDetails = { "agent": string; "id": string; "title": string; "text": string; "gate": GateForm | null; "because"?: string };

export type HeartbeatTaskRemoved = { "agent": string; "id": string };

export type HeartbeatTaskRequest = { "id": string; "agent"?: string };

export type HeartbeatTaskRow = { "id": string; "title": string; "gated": boolean; "because"?: string };

export type HistoryRecord = { "seq": number; "kind": RecordKind; "at": string; "body": unknown; "run": string | null };

export type HookContent = { "hook": HookDetails; "content": string };

export type HookDetails = { "name": string; "description": string; "events": Array<string>; "source": HookSource; "state": HookState; "because": string; "path": string; "hash": string };

export type HookDisabled = { "name": string; "was_enabled": boolean };

export type HookEnableRequest = { "name": string; "hash"?: string };

export type HookList = { "hooks": Array<HookDetails>; "shadowed": Array<string>; "broken": Array<BrokenHookRow> };

export type HookListRequest = Record<string, never>;

export type HookNameRequest = { "name": string };

export type HookSource = "bundled" | "house" | "workspace";

export type HookState = "changed" | "new" | "off" | "ready" | "unfit";

export type IdentityDetails = { "person": string; "service": string; "id": string };

export type IdentityLinkRequest = { "person": string; "service": string; "id": string };

export type IdentityList = { "identities": Array<IdentityDetails> };

export type IdentityUnlinkRequest = { "service": string; "id": string };

export type IdentityUnlinked = { "service": string; "id": string; "unlinked": boolean };

export type InboxList = { "envelopes": Array<EnvelopeDetails>; "unread": number };

export type InboxListRequest = { "limit"?: number; "ack"?: boolean };

export type InitialState = { "cursor": number; "you": string; "level": PermissionLevel; "agents": Array<ServerAgentRow>; "sessions": Array<SessionRow>; "approvals": Array<ApprovalDetails>; "unread": number };

export type InitialStateRequest = { "hidden"?: boolean };

export type InstructionMode = "full" | "minimal" | "none";

export type LaneDetails = { "session": string; "session-name": string | null; "agent": string; "kind": OriginKind; "lane": LaneKind; "run": ActiveRun | null; "waiting": Array<WaitingEnvelope>; "waiting-count": number };

export type LaneKind = "background" | "main" | "schedule" | "subagent";

export type LaneList = { "now": string; "lanes": Array<LaneDetails>; "left-out": number; "slots": Array<SlotUsage>; "rooms": Array<ChannelQueue>; "rooms-left-out": number; "dead-count": number; "counted-max": number };

export type LaneListRequest = { "limit"?: number };

export type LedgerCheckResult = { "holds": boolean; "lines": Array<string> };

export type LogEntryList = { "entries": Array<LogEntryRow>; "next": string | null };

export type LogEntryRow = { "at": string; "level": string; "text": string };

export type LogListRequest = { "level"?: MinimumLogLevel; "text"?: string; "limit"?: number; "cursor"?: string };

export type McpApproveRequest = { "name": string; "hash"?: string };

export type McpApproved = { "server": McpServerStatus; "approved": boolean; "difference": Array<string>; "try": string; "lines": Array<string> };

export type McpConnectionState = "failed" | "off" | "ready" | "starting" | "waiting";

export type McpRevoked = { "name": string; "revoked": boolean };

export type McpServerDetails = { "server": McpServerStatus; "content": string; "difference": Array<string>; "found-good-by": string; "found-good-at": string; "lines": Array<string> };

export type McpServerList = { "servers": Array<McpServerStatus> };

export type McpServerNameRequest = { "name": string };

export type McpServerStatus = { "name": string; "state": McpConnectionState; "because": string; "try": string; "hash": string; "retry-at": string; "agents": Array<string>; "tools": Array<string>; "left-out": Record<string, string> };

export type MinimumLogLevel = "debug" | "error" | "info" | "warning";

export type MissedPolicy = "run" | "skip";

export type ModelCallEntry = { "act": "model"; "at-ms": number; "ended-ms": number | null; "came": TraceEntryStatus; "turn": number; "attempt": number; "summary": boolean; "model": string; "usage": Usage; "cost-microusd": number; "cost-unknown": boolean; "failure": string | null; "next-move": string | null; "error": string | null; "text": string; "text-chars": number; "calls": Array<string>; "record": number | null };

export type ModelCallRow = { "turn": number; "attempt": number; "summary": boolean; "provider": string; "model": string; "credential": string; "usage": Usage; "cost-usd": number; "cost-unknown": boolean; "failure": string | null; "next-move": string | null; "error": string | null; "at": string };

export type ModelChainEntry = { "model": string; "because": string; "window-tokens": number; "price": string; "missing"?: string; "retired"?: string };

export type ModelChainList = { "default": string; "default-because": string; "agents": Array<AgentModelChain>; "known-on": string };

export type ModelFailureKind = "auth" | "bad_request" | "connection" | "content_filter" | "context_overflow" | "malformed" | "not_found" | "overloaded" | "permission" | "quota" | "rate_limit" | "server" | "timeout" | "too_large";

export type ModelList = { "models": Array<ModelRow>; "allow": Array<string>; "known-on": string };

export type ModelRow = { "number": number; "model": string; "alias"?: string; "sold-by"?: string; "window-tokens": number; "output-tokens-max": number; "vision": boolean; "tools": boolean; "efforts": Array<string> | null; "price": string; "default": boolean; "missing"?: string; "retired"?: string };

export type ModelShowRequest = { "agent"?: string; "session"?: string };

export type ModelWithFallbacks = { "primary"?: string | null; "fallbacks"?: Array<string> | null };

export type NotificationCreateRequest = { "title": string; "text"?: string; "to"?: string };

export type NotificationCreated = { "id": string; "to": string };

export type NotificationDetails = { "id": string; "from": string; "title": string; "text": string; "at": string; "read": boolean; "untrusted": boolean; "session": string | null };

export type NotificationList = { "notifications": Array<NotificationDetails>; "unread": number; "next": string | null };

export type NotificationListRequest = { "unread"?: boolean; "limit"?: number; "before"?: string };

export type NotificationSelectionRequest = { "id"?: string; "all"?: boolean };

export type NotificationsChanged = { "changed": number; "unread": number };

export type OccurrenceDetails = { "number": number; "at": string; "by": string; "state": string; "because": string; "envelope": string | null; "until": string | null; "count": number | null; "begun-at": string | null; "ended-at": string | null };

export type OpenRun = { "id": string; "status": RunStatus; "attempt": number };

export type OriginKind = "agent" | "background" | "chat" | "external" | "heartbeat" | "schedule" | "subagent" | "terminal" | "web";

export type Outcome = "answered" | "cancelled" | "dead" | "delivered" | "expired" | "interrupted" | "noted" | "refused";

export type Overflow = "oldest" | "refuse" | "summarize";

export type PairingAcceptRequest = { "which": string; "person"?: string };

export type PairingDecided = { "pairing": PairingDetails; "person": string };

export type PairingDetails = { "id": string; "code": string; "connector": string; "service": string; "speaker": string; "name": string; "state": PairingState; "asked-at": string; "expires-at": string; "decided-by": string };

export type PairingDismissRequest = { "connector": string; "speaker": string };

export type PairingDismissed = { "connector": string; "speaker": string; "dismissed": boolean };

export type PairingIdRequest = { "which": string };

export type PairingList = { "pairings": Array<PairingDetails>; "admitted": Array<AdmittedSenderDetails> };

export type PairingState = "accepted" | "expired" | "refused" | "waiting";

export type PartialReplyDetails = { "session": string; "run": string; "turn": number; "attempt": number; "text": string; "thinking": string };

export type PeerKind = "channel" | "dm" | "group";

export type PermanentAgentRequest = { "name": string; "description": string; "system_prompt": string; "workspace_dir"?: string; "agent_id"?: string };

export type PermanentAgentResult = { "name": string; "display_name": string; "version": number; "created": boolean; "changed": Array<string>; "workspace": string };

export type PermissionLevel = "boss" | "privileged" | "restricted" | "standard";

export type PersonDetails = { "name": string; "role": Role; "level": PermissionLevel };

export type PersonForgetRequest = { "name": string; "confirm"?: string };

export type PersonForgotten = { "name": string; "sessions": number; "envelopes": number; "records": number };

export type PersonInviteRequest = { "name": string; "role"?: Role };

export type PersonInvited = { "name": string; "role": Role; "invitation"?: string; "expires-at": string; "shown-once"?: Array<string> };

export type PersonList = { "people": Array<PersonDetails> };

export type PersonRoleRequest = { "name": string; "role": Role };

export type PlatformDetails = { "kind": string; "title": string; "questions": Array<SetupQuestion> };

export type PlatformList = { "kinds": Array<PlatformDetails>; "absent": Record<string, string> };

export type PluginDetails = { "instance": string; "plugin": string; "state": PluginStatus; "version"?: string; "description"?: string; "because"?: string; "try"?: string; "exclusive"?: boolean; "folder"?: string; "brings"?: Record<string, Array<string>>; "settings-schema"?: Record<string, unknown> };

export type PluginEnableRequest = { "name": string; "plugin"?: string };

export type PluginInstanceRequest = { "name": string };

export type PluginList = { "plugins": Array<PluginDetails> };

export type PluginSettingsDetails = { "name": string; "settings": Record<string, unknown>; "schema": Record<string, unknown>; "plugin": PluginDetails };

export type PluginSettingsRequest = { "name": string; "settings": Record<string, unknown> };

export type PluginStatus = "failed" | "installed" | "loaded" | "off";

export type PoisonMessageDetails = { "id": string; "connector": string; "room": string; "message-id": string; "because": string; "tries": number; "state": PoisonMessageState; "at": string };

export type PoisonMessageDropped = { "id": string; "dropped": boolean };

export type PoisonMessageIdRequest = { "id": string };

export type PoisonMessageList = { "set-aside": Array<PoisonMessageDetails> };

export type PoisonMessageListRequest = { "every"?: boolean; "limit"?: number };

export type PoisonMessageRetried = { "id": string; "envelope": string | null };

export type PoisonMessageState = "done" | "dropped" | "waiting";

export type PolicyDifference = { "session": string; "run": string; "agent": string; "tool": string; "arguments": Record<string, unknown>; "now": DecisionKind; "then": DecisionKind; "because": string; "key": string };

export type PolicyExplainRequest = { "agent": string; "tool": string; "args"?: Record<string, unknown>; "sender"?: string; "session"?: string; "model"?: string; "origin"?: OriginKind; "door"?: CallSource; "changes"?: Record<string, unknown> };

export type PolicyExplanation = { "agent": string; "tool": string; "verdict": DecisionKind; "because": string; "key": string; "findings": Array<PolicyFindingRow>; "would-grant": Array<string>; "warnings": Array<string> };

export type PolicyFindingRow = { "layer": string; "verdict": DecisionKind; "because": string; "key": string };

export type PolicyTestRequest = { "text"?: string | null; "agent"?: string };

export type PolicyTestResult = { "calls": number; "sessions": number; "differences": Array<PolicyDifference>; "left-out": number; "stopped": string };

export type PreferenceDetails = { "key": string; "value": unknown };

export type PreferenceGetRequest = { "key": string };

export type PreferenceList = { "preferences": Array<PreferenceDetails> };

export type PreferenceSetRequest = { "key": string; "value": unknown };

export type PreviousPrompt = { "at": string; "text": string };

export type PromptFile = { "name": string; "section": string; "tokens": number; "chars": number };

export type PromptSection = { "name": string; "tokens": number; "chars": number; "text"?: string };

export type PurgeRequest = { "done_days"?: number | null; "news_days"?: number | null; "runs_days"?: number | null; "unread"?: boolean; "dry_run"?: boolean };

export type PurgeResult = { "dry-run": boolean; "envelopes": number; "news": number; "runs": number; "keys": number; "answers": number; "tokens": number; "notifications": number; "questionnaires": number; "files": number };

export type QuestionnaireCancelled = { "id": string; "state": QuestionnaireState };

export type QuestionnaireDetails = { "id": string; "short": string; "state": QuestionnaireState; "title": string; "agent": string; "session": string; "to": string; "asked-at": string; "expires-at": string; "untrusted": boolean; "fields": Array<QuestionnaireFieldDetails>; "answers": Record<string, string | number | boolean | Array<string> | null>; "ended-by": string; "envelope": string | null };

export type QuestionnaireFieldDetails = { "name": string; "label": string; "kind": QuestionnaireFieldKind; "required": boolean; "options": Array<string>; "least": number | null; "most": number | null };

export type QuestionnaireFieldKind = "choice" | "number" | "several" | "text" | "yes-no";

export type QuestionnaireIdRequest = { "id": string };

export type QuestionnaireList = { "questionnaires": Array<QuestionnaireDetails>; "next": string | null };

export type QuestionnaireListRequest = { "open"?: boolean; "limit"?: number; "before"?: string };

export type QuestionnaireState = "answered" | "cancelled" | "expired" | "open";

export type QuestionnaireSubmitRequest = { "id": string; "answers": Record<string, string | number | boolean | Array<string> | null> };

export type QuestionnaireSubmitted = { "id": string; "envelope": string; "session": string };

export type QueueMode = "collect" | "followup" | "interrupt" | "steer" | "steer-backlog";

export type QueueOverride = { "mode"?: QueueMode | null; "cap"?: number | null; "overflow"?: Overflow | null; "debounce_s"?: number | null };

export type QueuePolicy = { "mode"?: QueueMode; "cap"?: number; "overflow"?: Overflow; "debounce_s"?: number };

export type RecentEnvelopeList = { "envelopes": Array<EnvelopeRow> };

export type RecordKind = "assistant" | "note" | "reset" | "start" | "summary" | "tool" | "user";

export type ReminderAddRequest = { "text": string; "at"?: string; "delay_s"?: number; "to"?: string };

export type ReminderIdRequest = { "id": string };

export type ReminderList = { "reminders": Array<ScheduleDetails> };

export type ReminderListRequest = { "limit"?: number };

export type ReplyThreadDetails = { "envelopes": Array<EnvelopeDetails>; "left-out": number; "total": number; "purged": boolean };

export type Role = "guest" | "member" | "owner";

export type RunDetails = { "id": string; "session": string; "agent": string; "status": RunResultStatus; "run-status": RunStatus; "error": string | null; "model": string; "provider": string; "usage": Usage; "cost-usd": number; "started-at": string; "ended-at": string | null; "calls": Array<ModelCallRow> };

export type RunIdRequest = { "id": string };

export type RunList = { "runs": Array<RunRow>; "next": string | null };

export type RunListRequest = { "agent"?: string; "session"?: string; "person"?: string; "sender"?: string; "status"?: RunStatus | null; "model"?: string; "since"?: string; "until"?: string; "limit"?: number; "cursor"?: string };

export type RunResultStatus = "compaction" | "error" | "failover" | "ok" | "open" | "timeout";

export type RunResumedEntry = { "act": "resumed"; "at-ms": number; "because": string; "attempt": number };

export type RunRow = { "id": string; "agent": string; "session": string; "session-name": string | null; "sender": string; "person": string; "envelopes": Array<string>; "status": RunResultStatus; "run-status": RunStatus; "error": string | null; "attempt": number; "turns": number; "tool-calls": number | null; "models": Array<string>; "usage": Usage; "cost-microusd": number; "cost-unknown": boolean; "started-at": string; "started-ms": number; "ended-at": string | null; "duration-ms": number | null; "waits-until": string | null };

export type RunStatus = "cancelled" | "completed" | "failed" | "parked" | "running";

export type RunSuspendedEntry = { "act": "parked"; "at-ms": number; "approval": string | null; "because": string };

export type RunTraceDetails = { "run": RunRow; "acts": Array<EnvelopeReadEntry | EnvelopeSentEntry | ModelCallEntry | ToolCallEntry | ApprovalEntry | RunSuspendedEntry | RunResumedEntry>; "left-out": number; "purged": boolean };

export type SandboxMode = "all" | "non-main" | "off";

export type SandboxScope = "agent" | "session" | "shared";

export type SandboxVisibleSessions = "all" | "spawned";

export type ScheduleAddRequest = { "to"?: string; "text"?: string; "at"?: string; "every"?: string; "cron"?: string; "zone"?: string; "place"?: ScheduleSession | null; "deliver"?: string; "missed"?: MissedPolicy | null; "delete_after_run"?: boolean; "gate"?: GateForm | null; "model"?: string; "title"?: string; "attributes"?: Record<string, unknown>; "description"?: string; "name"?: string; "enabled"?: boolean };

export type ScheduleChanged = { "id": string; "name": string; "enabled": boolean; "because": string; "next": string | null };

export type ScheduleDeleted = { "id": string; "name": string };

export type ScheduleDetails = { "id": string; "name": string; "kind": string; "owner": string; "to": string; "when": string; "at": string; "every": string; "cron": string; "zone": string; "follows-owner-zone": boolean; "enabled": boolean; "because": string; "next": string | null; "envelope": string | null; "last-run": string | null; "last": string | null; "text": string; "description": string; "place": string; "deliver": string; "missed": string; "delete-after-run": boolean; "gate": GateForm | null; "model": string; "title": string; "attributes": Record<string, unknown>; "source": string; "created-at": string; "updated-at": string; "redacted"?: boolean };

export type ScheduleExplainRequest = { "cron"?: string; "every"?: string; "at"?: string; "zone"?: string; "count"?: number };

export type ScheduleExplanation = { "words": string; "zone": string; "evaluated-at": string; "next": Array<string> };

export type ScheduleHistory = { "slots": Array<OccurrenceDetails>; "next": string | null };

export type ScheduleHistoryRequest = { "schedule": string; "limit"?: number; "cursor"?: string };

export type ScheduleKind = "heartbeat" | "reminder" | "schedule" | "wake-up";

export type ScheduleList = { "schedules": Array<ScheduleDetails>; "next": string | null; "unread"?: Array<string> };

export type ScheduleListRequest = { "kind"?: ScheduleKind | null; "agent"?: string; "limit"?: number; "cursor"?: string };

export type ScheduleNextRequest = { "schedule": string; "count"?: number };

export type ScheduleRequest = { "schedule": string };

export type ScheduleRunRequest = { "schedule": string; "force"?: boolean };

export type ScheduleRunResult = { "id": string; "begun": boolean; "because": string; "envelope": string | null };

export type ScheduleSession = "fresh" | "main" | "own";

export type ScheduleSetRequest = { "schedule": string; "to"?: string | null; "text"?: string | null; "at"?: string | null; "every"?: string | null; "cron"?: string | null; "zone"?: string | null; "place"?: ScheduleSession | null; "deliver"?: string | null; "missed"?: string | null; "delete_after_run"?: boolean | null; "gate"?: GateForm | null; "model"?: string | null; "title"?: string | null; "attributes"?: Record<string, unknown> | null; "description"?: string | null };

export type SecurityFindingRow = { "check": string; "severity": "critical" | "info" | "warning"; "sentence": string; "because": string; "try": string; "fixable": boolean };

export type SendOverride = "inherit" | "off" | "on";

export type ServerAgentRow = { "name": string; "display_name": string; "model": string; "description": string; "icon": string; "colour": Color | null; "visible": boolean };

export type ServerStatus = { "version": string; "cursor": number; "agents": Array<ServerAgentRow>; "default_agent": string | null; "approvals": Array<ApprovalDetails>; "you": string; "now": string };

export type SessionActivity = "active" | "sleeping";

export type SessionAttachRequest = { "agent": string; "id": string };

export type SessionAttached = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "externalId": string; "attached": AttachStatus };

export type SessionAttributesRequest = { "session": string; "patch": Record<string, unknown> };

export type SessionCleared = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "cancelled-runs": Array<string> };

export type SessionCreateRequest = { "agent": string; "name"?: string | null; "attributes"?: Record<string, unknown> };

export type SessionDeleted = { "session": string; "deleted": boolean; "cancelled-runs": Array<string>; "cleared-pending-count": number; "restorable-until": string };

export type SessionExport = { "session": string; "files": Record<string, string>; "damaged": Array<DamagedRecordRow> };

export type SessionForkRequest = { "session": string; "before": number; "name"?: string | null };

export type SessionForked = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "forkedFrom": string; "records": number };

export type SessionHistory = { "session": string; "agent": string; "records": Array<HistoryRecord>; "damaged": Array<DamagedRecordRow>; "next": number | null };

export type SessionHistoryRequest = { "session": string; "limit"?: number; "before"?: number | null };

export type SessionIdRequest = { "session": string };

export type SessionImportRequest = { "agent": string; "files": Record<string, string> };

export type SessionList = { "sessions": Array<SessionRow>; "next": string | null };

export type SessionListRequest = { "limit"?: number; "agent"?: string; "cursor"?: string; "archived"?: boolean };

export type SessionMarkedRead = { "session": string; "read": number; "unread": number };

export type SessionPolicyDetails = { "session": string; "daily_at": string | null; "idle_minutes": number | null; "context_tokens_max": number | null; "began_at": string; "active_at": string; "next_at": string | null; "next_because": string; "refresh": string | null; "send": SendOverride };

export type SessionQueueRequest = { "session": string; "mode"?: QueueMode | null; "cap"?: number | null; "overflow"?: Overflow | null; "debounce_s"?: number | null };

export type SessionQueueSet = { "session": string; "queue": QueueOverride };

export type SessionRecord = { "seq": number; "kind": RecordKind; "body": unknown; "run": string | null };

export type SessionRefreshRequest = { "session": string; "why"?: string };

export type SessionRefreshed = { "session": string; "refreshed": boolean; "refresh": string | null };

export type SessionRenameRequest = { "session": string; "name": string | null };

export type SessionResetRequest = { "session": string; "message"?: string };

export type SessionResetResult = { "session": string; "cancelled-runs": Array<string> };

export type SessionRow = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "kind": OriginKind; "run": string | null; "runStatus": RunStatus | null; "unread": number };

export type SessionSendingRequest = { "session": string; "send": SendOverride };

export type SessionSendingSet = { "session": string; "send": SendOverride };

export type SessionShareRequest = { "session": string; "person": string };

export type SessionShared = { "session": string; "shared-with": Array<string> };

export type SessionState = { "cursor": number; "session": string; "agent": string; "revision": number; "wakefulness": SessionActivity; "queue": QueueOverride; "run": OpenRun | null; "records": Array<SessionRecord>; "damaged": Array<DamagedRecordRow>; "partials": Array<PartialReplyDetails> };

export type SessionStopRequest = { "session": string; "why"?: string; "clear"?: boolean };

export type SessionStopped = { "cancelled-runs": Array<string>; "cleared-pending-count": number };

export type SessionSummary = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null };

export type SessionTranscript = { "cursor": number; "session": string; "agent": string; "revision": number; "run": OpenRun | null; "begins": number; "earlier": boolean; "lines": Array<TranscriptRecord>; "damaged": Array<DamagedRecordRow>; "partials": Array<PartialReplyDetails> };

export type SessionTrimRequest = { "session": string; "seq": number; "cut": TrimMode; "revision"?: number | null };

export type SessionTrimmed = { "session": string; "revision": number; "records": number; "left-out": number };

export type SessionWaitingList = { "session": string; "queue": QueuePolicy; "run": OpenRun | null; "envelopes": Array<EnvelopeDetails>; "more": boolean };

export type SessionWaitingRequest = { "session": string; "limit"?: number };

export type SettingChange = { "path": string; "effect": SettingEffect };

export type SettingControl = "choice" | "number" | "other" | "switch" | "text" | "texts" | "whole";

export type SettingDetails = { "path": Array<string>; "says": string; "shape": SettingControl; "choices": Array<string>; "least": number | null; "most": number | null; "example": string; "effect": SettingEffect; "value": unknown; "default": unknown; "from": SettingOrigin; "place": string; "waiting": boolean };

export type SettingEffect = "apply" | "hot" | "message" | "restart";

export type SettingOrigin = "default" | "environment" | "file";

export type SettingSectionDetails = { "path": Array<string>; "says": string; "settings": Array<SettingDetails> };

export type SettingSource = "agent" | "built-in" | "house";

export type SetupQuestion = { "key": string; "ask": string; "secret": boolean; "default": string; "help": string };

export type SignInCode = { "code"?: string; "expires-at": string; "shown-once"?: Array<string> };

export type SkillApproveRequest = { "name": string; "hash"?: string; "agent"?: string; "workspace"?: string };

export type SkillApproved = { "skill": SkillRow; "approved": boolean; "difference": Array<string>; "try": string; "lines": Array<string> };

export type SkillDetails = { "skill": SkillRow; "content": string; "difference": Array<string>; "found-good-by": string; "found-good-at": string; "lines": Array<string> };

export type SkillExportRequest = { "name": string; "to"?: string };

export type SkillExported = { "name": string; "folder": string; "files": Array<string>; "commands": Array<string>; "found-good": boolean };

export type SkillList = { "skills": Array<SkillRow>; "shadowed": Array<string>; "broken": Array<BrokenSkillRow> };

export type SkillListRequest = { "agent"?: string; "workspace"?: string };

export type SkillNameRequest = { "name": string; "agent"?: string; "workspace"?: string };

export type SkillRevoked = { "name": string; "revoked": boolean };

export type SkillRow = { "name": string; "description": string; "path": string; "source": SkillSource; "state": SkillState; "because": string; "hash": string; "bundle": string };

export type SkillSource = "agent" | "extra" | "house" | "plugin" | "workspace";

export type SkillState = "changed" | "new" | "off" | "ready" | "unfit";

export type SlashCommandList = { "commands": Array<SlashCommandRow> };

export type SlashCommandListRequest = { "agent"?: string };

export type SlashCommandRow = { "name": string; "form": string; "summary": string; "directive"?: boolean; "skill"?: string };

export type SlotUsage = { "lane": LaneKind; "used": number; "total": number; "in-line": number };

export type SpendGrouping = "agent" | "day" | "model" | "person" | "provider" | "run" | "session";

export type StepKind = "model" | "tool";

export type SubagentCleanup = "delete" | "keep";

export type SubagentDetails = { "id": string; "label": string; "agent": string; "outcome": string; "session": string | null; "session-key": string; "requester": string; "run": string; "task": string; "cleanup": SubagentCleanup; "created-at": string; "started-at": string | null; "ended-at": string | null; "archived-at": string | null; "because": string; "result": string | null; "result-text": string; "input-tokens": number; "output-tokens": number; "cost-microusd": number };

export type SubagentIdRequest = { "id": string };

export type SubagentList = { "subagents": Array<SubagentRow>; "next": string | null };

export type SubagentListRequest = { "session"?: string; "all"?: boolean; "limit"?: number; "cursor"?: string };

export type SubagentLogRequest = { "id": string; "limit"?: number; "before"?: number | null };

export type SubagentRow = { "id": string; "label": string; "agent": string; "outcome": string; "session": string | null; "session-key": string; "requester": string; "run": string; "task": string; "cleanup": SubagentCleanup; "created-at": string; "started-at": string | null; "ended-at": string | null; "archived-at": string | null };

export type SubagentSendRequest = { "id": string; "text": string; "key"?: string };

export type SubagentStopRequest = { "id"?: string; "session"?: string; "why"?: string };

export type SubagentsStopped = { "stopped": number; "subagents": Array<string>; "cancelled-runs": Array<string>; "cleared-pending-count": number };

export type TemplateError = { "sentence": string; "because": string };

export type TokenCreateRequest = { "label"?: string; "principal"?: string; "expires_in_days"?: number | null };

export type TokenCreated = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created-at": string; "expires-at": string | null; "token"?: string; "shown-once"?: Array<string> };

export type TokenIdRequest = { "id": string; "principal"?: string };

export type TokenKind = "code" | "invite" | "token" | "web";

export type TokenList = { "tokens": Array<TokenRow> };

export type TokenListRequest = { "principal"?: string };

export type TokenRevoked = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created-at": string; "expires-at": string | null; "revoked": boolean };

export type TokenRow = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created-at": string; "expires-at": string | null };

export type ToolCallEntry = { "act": "tool"; "at-ms": number; "ended-ms": number | null; "came": TraceEntryStatus; "turn": number; "attempt": number; "call": string; "tool": string; "arguments": Record<string, unknown>; "verdict": DecisionKind; "because": string; "approval": string | null; "output": string; "output-chars": number; "whole": string; "record": number | null };

export type ToolInvokeRequest = { "tool": string; "args"?: Record<string, unknown>; "agent"?: string; "session"?: string };

export type ToolInvokeResult = { "tool": string; "output": string; "failed": boolean };

export type ToolList = { "tools": Array<ToolRow> };

export type ToolListRequest = { "agent"?: string; "changes"?: Record<string, unknown> };

export type ToolRow = { "name": string; "description": string; "source": string; "effects": Array<string>; "capabilities": Array<string>; "repeatable": boolean; "verdict"?: DecisionKind; "because"?: string };

export type TraceEntryStatus = "done" | "failed" | "interrupted" | "open" | "refused";

export type TranscriptDelegation = { "id": string; "kind": DelegationKind; "label": string; "target": string; "outcome": string };

export type TranscriptEnvelope = { "envelope": string; "from": string; "kind": EnvelopeKind; "text": string; "at": string; "attachments": Array<AttachmentDetails>; "work": TranscriptDelegation | null };

export type TranscriptRecord = { "seq": number; "kind": RecordKind; "at": string; "run": string | null; "trust": Trust; "body": unknown; "mail": Array<TranscriptEnvelope> };

export type TranscriptRequest = { "session": string; "before"?: number | null; "after"?: number | null; "limit"?: number };

export type TrimMode = "after" | "before" | "request";

export type Trust = "agent" | "owner" | "person" | "private" | "untrusted";

export type Usage = { "input_tokens"?: number; "output_tokens"?: number; "cost_microusd"?: number; "cache_read_tokens"?: number; "cache_write_tokens"?: number; "reasoning_tokens"?: number; "estimated"?: boolean };

export type UsageDaysRequest = { "by"?: UsageGrouping; "from"?: string; "to"?: string; "limit"?: number };

export type UsageGrouping = "agent" | "model" | "person" | "provider";

export type UsageReport = { "by": SpendGrouping; "from": string; "to": string; "rows": Array<UsageRow>; "left-out": number; "total": UsageRow };

export type UsageRequest = { "by"?: SpendGrouping; "from"?: string; "to"?: string; "agent"?: string; "person"?: string; "limit"?: number };

export type UsageRow = { "key": string; "calls": number; "failed-calls": number; "unknown-calls": number; "input-tokens": number; "output-tokens": number; "cache-read-tokens": number; "cache-write-tokens": number; "reasoning-tokens": number; "cost-microusd": number; "unknown-microusd": number; "held-microusd": number };

export type UsageSeries = { "key": string; "rest": boolean; "calls": Array<number>; "input-tokens": Array<number>; "output-tokens": Array<number>; "cost-microusd": Array<number> };

export type ValueChange = { "from": unknown; "to": unknown };

export type Verbosity = "full" | "off" | "on";

export type WaitReason = "agent" | "busy" | "joined" | "next" | "not-due" | "slots";

export type WaitingEnvelope = { "id": string; "from": string; "kind": EnvelopeKind; "words": string; "position": number | null; "due-at": string; "waits": WaitReason };

export type WakeupAddRequest = { "session": string; "text": string; "at"?: string; "delay_s"?: number };

export type WakeupList = { "wakeups": Array<ScheduleDetails> };

export type WakeupListRequest = { "limit"?: number; "session"?: string };

export type Webhook = { "url": string; "headers"?: Record<string, string> };

export type WhenBusy = "collect" | "steer";

export type WhyExplanation = { "lines": Array<string> };

export type WhyRequest = { "id": string };

export type WorkspaceAccess = "none" | "ro" | "rw";

export interface Operations {
  /** Send an envelope. */
  "envelope.send": { asked: EnvelopeSendRequest; answered: EnvelopeReceipt; effect: true };
  /** Show an envelope. */
  "envelope.show": { asked: EnvelopeIdRequest; answered: EnvelopeDetails; effect: false };
  /** Show the reply thread of an envelope. */
  "envelope.thread": { asked: EnvelopeIdRequest; answered: ReplyThreadDetails; effect: false };
  /** List dead letters. */
  "envelope.dead": { asked: DeadLetterListRequest; answered: DeadLetterList; effect: false };
  /** Cancel a waiting envelope. */
  "envelope.cancel": { asked: EnvelopeIdRequest; answered: EnvelopeCancelled; effect: true };
  /** Retry a dead letter. */
  "envelope.retry": { asked: EnvelopeIdRequest; answered: EnvelopeReceipt; effect: true };
  /** List envelopes by sender or recipient. */
  "envelope.list": { asked: EnvelopeListRequest; answered: EnvelopeList; effect: true };
  /** List the newest envelopes. */
  "envelope.recent": { asked: EnvelopeRecentRequest; answered: RecentEnvelopeList; effect: false };
  /** List your unread messages. */
  "inbox.list": { asked: InboxListRequest; answered: InboxList; effect: true };
  /** List sessions. */
  "session.list": { asked: SessionListRequest; answered: SessionList; effect: false };
  /** Show the records of a session. */
  "session.history": { asked: SessionHistoryRequest; answered: SessionHistory; effect: false };
  /** Create a session of your own. */
  "session.create": { asked: SessionCreateRequest; answered: SessionSummary; effect: true };
  /** Rename a session. */
  "session.rename": { asked: SessionRenameRequest; answered: SessionSummary; effect: true };
  /** Pin a session to the top of the list. */
  "session.pin": { asked: SessionIdRequest; answered: SessionSummary; effect: true };
  /** Unpin a session. */
  "session.unpin": { asked: SessionIdRequest; answered: SessionSummary; effect: true };
  /** Change the attributes of a session. */
  "session.attributes": { asked: SessionAttributesRequest; answered: SessionSummary; effect: true };
  /** Clear a session: start a new context without earlier messages. */
  "session.clear": { asked: SessionIdRequest; answered: SessionCleared; effect: true };
  /** Delete a session. */
  "session.delete": { asked: SessionIdRequest; answered: SessionDeleted; effect: true };
  /** Share a session with a person. */
  "session.share": { asked: SessionShareRequest; answered: SessionShared; effect: true };
  /** Stop sharing a session with a person. */
  "session.unshare": { asked: SessionShareRequest; answered: SessionShared; effect: true };
  /** Show the current state of a session. */
  "session.state": { asked: SessionIdRequest; answered: SessionState; effect: false };
  /** Stop the run in a session. */
  "session.stop": { asked: SessionStopRequest; answered: SessionStopped; effect: true };
  /** Reset the context of a session. */
  "session.reset": { asked: SessionResetRequest; answered: SessionResetResult; effect: true };
  /** Set how messages queue while a run is active. */
  "session.queue": { asked: SessionQueueRequest; answered: SessionQueueSet; effect: true };
  /** Answer an approval: allow or deny the calls. */
  "approval.answer": { asked: ApprovalAnswerRequest; answered: ApprovalAnswered; effect: true };
  /** Open a session of an external agent by an id of your choice. */
  "session.attach": { asked: SessionAttachRequest; answered: SessionAttached; effect: true };
  /** Mark the messages from a session as read. */
  "session.read": { asked: SessionIdRequest; answered: SessionMarkedRead; effect: true };
  /** Show when a session's context is reset. */
  "session.policy": { asked: SessionIdRequest; answered: SessionPolicyDetails; effect: false };
  /** Reset the context after the current run. */
  "session.refresh": { asked: SessionRefreshRequest; answered: SessionRefreshed; effect: true };
  /** Set whether a session's replies are sent. */
  "session.sending": { asked: SessionSendingRequest; answered: SessionSendingSet; effect: true };
  /** Read a conversation, newest first. */
  "session.transcript": { asked: TranscriptRequest; answered: SessionTranscript; effect: false };
  /** Show the result of a run: its status, models, tokens and cost. */
  "run.show": { asked: RunIdRequest; answered: RunDetails; effect: false };
  /** List runs with their cost and result, newest first. */
  "run.list": { asked: RunListRequest; answered: RunList; effect: false };
  /** Show everything a run did: model calls, tool calls, approvals and envelopes, with times and cost. */
  "run.trace": { asked: RunIdRequest; answered: RunTraceDetails; effect: false };
  /** List pending approvals, or past ones. */
  "approval.list": { asked: ApprovalListRequest; answered: ApprovalList; effect: false };
  /** List the slash commands of a conversation. */
  "command.list": { asked: SlashCommandListRequest; answered: SlashCommandList; effect: false };
  /** Export a session as files. */
  "session.export": { asked: SessionIdRequest; answered: SessionExport; effect: false };
  /** Import a session from files. */
  "session.import": { asked: SessionImportRequest; answered: SessionSummary; effect: true };
  /** Fork a session: copy its records up to one of them. */
  "session.fork": { asked: SessionForkRequest; answered: SessionForked; effect: true };
  /** Remove records from the context of a session. */
  "session.trim": { asked: SessionTrimRequest; answered: SessionTrimmed; effect: true };
  /** List deleted sessions that can be restored. */
  "session.deleted": { asked: DeletedSessionListRequest; answered: DeletedSessionList; effect: false };
  /** Restore a deleted session. */
  "session.restore": { asked: SessionIdRequest; answered: SessionSummary; effect: true };
  /** List the envelopes that wait in a session, in order. */
  "session.waiting": { asked: SessionWaitingRequest; answered: SessionWaitingList; effect: false };
  /** List delegations between agents. */
  "delegation.list": { asked: DelegationListRequest; answered: DelegationList; effect: false };
  /** Stop a delegation, and those made below it. */
  "delegation.stop": { asked: DelegationStopRequest; answered: DelegationStopped; effect: true };
  /** List subagents. */
  "subagent.list": { asked: SubagentListRequest; answered: SubagentList; effect: false };
  /** Show a subagent and its result. */
  "subagent.show": { asked: SubagentIdRequest; answered: SubagentDetails; effect: false };
  /** Stop a subagent, or all subagents of a session. */
  "subagent.stop": { asked: SubagentStopRequest; answered: SubagentsStopped; effect: true };
  /** Show the history of a subagent. */
  "subagent.log": { asked: SubagentLogRequest; answered: SessionHistory; effect: false };
  /** Send a message to a subagent. */
  "subagent.send": { asked: SubagentSendRequest; answered: EnvelopeReceipt; effect: true };
  /** List agents. */
  "agent.list": { asked: EmptyRequest; answered: AgentList; effect: false };
  /** Show an agent. */
  "agent.show": { asked: AgentNameRequest; answered: AgentDetails; effect: false };
  /** Register an agent. */
  "agent.register": { asked: AgentRegisterRequest; answered: AgentRegistered; effect: true };
  /** Change an agent. */
  "agent.set": { asked: AgentSetRequest; answered: AgentChanged; effect: true };
  /** List the versions of an agent. */
  "agent.versions": { asked: AgentVersionsRequest; answered: AgentVersionList; effect: false };
  /** Compare two versions of an agent. */
  "agent.diff": { asked: AgentDiffRequest; answered: AgentComparison; effect: false };
  /** Restore an old version of an agent. */
  "agent.restore": { asked: AgentRestoreRequest; answered: AgentRestored; effect: true };
  /** Delete an agent. */
  "agent.delete": { asked: AgentDeleteRequest; answered: AgentDeleted; effect: true };
  /** Create a permanent agent. */
  "agent.permanent": { asked: PermanentAgentRequest; answered: PermanentAgentResult; effect: true };
  /** List the files that define an agent. */
  "agent.files": { asked: AgentFilesRequest; answered: AgentFileList; effect: false };
  /** Show one file that defines an agent. */
  "agent.file": { asked: AgentFileRequest; answered: AgentFileDetails; effect: false };
  /** Write one file that defines an agent. */
  "agent.write-file": { asked: AgentFileWriteRequest; answered: AgentFileWritten; effect: true };
  /** Show the system prompt of an agent, section by section. */
  "agent.prompt": { asked: AgentPromptRequest; answered: AgentPromptDetails; effect: false };
  /** List the available models. */
  "model.list": { asked: EmptyRequest; answered: ModelList; effect: false };
  /** Show which models would be used now, and why. */
  "model.show": { asked: ModelShowRequest; answered: ModelChainList; effect: false };
  /** List model credentials and their failures. Keys are not shown. */
  "credential.list": { asked: CredentialListRequest; answered: CredentialList; effect: false };
  /** Add a credential, for the server or for one agent. */
  "credential.add": { asked: CredentialAddRequest; answered: CredentialDetails; effect: true };
  /** Remove a credential and its stored key. */
  "credential.remove": { asked: CredentialIdRequest; answered: CredentialRemoved; effect: true };
  /** Set the order in which a provider's credentials are used. */
  "credential.order": { asked: CredentialOrderRequest; answered: CredentialList; effect: true };
  /** Record that a credential worked, and clear its failures. */
  "credential.mark-used": { asked: CredentialUseRequest; answered: CredentialDetails; effect: true };
  /** Record that a credential failed, so that it is not used for a while. */
  "credential.mark-failed": { asked: CredentialFailureRequest; answered: CredentialDetails; effect: true };
  /** Clear a credential's failures, so that it is used again at once. */
  "credential.clear": { asked: CredentialUseRequest; answered: CredentialDetails; effect: true };
  /** List people and their roles. */
  "person.list": { asked: EmptyRequest; answered: PersonList; effect: false };
  /** Show who you are and your permission level. */
  "person.whoami": { asked: EmptyRequest; answered: CallerDetails; effect: false };
  /** Invite a person. The invitation is shown only once. */
  "person.invite": { asked: PersonInviteRequest; answered: PersonInvited; effect: true };
  /** Change a person's role. */
  "person.role": { asked: PersonRoleRequest; answered: PersonDetails; effect: true };
  /** Erase a person: remove their access and delete their messages. */
  "person.forget": { asked: PersonForgetRequest; answered: PersonForgotten; effect: true };
  /** Create a token. Its secret is shown only once. */
  "token.create": { asked: TokenCreateRequest; answered: TokenCreated; effect: true };
  /** List tokens, without their secrets. */
  "token.list": { asked: TokenListRequest; answered: TokenList; effect: false };
  /** Revoke a token. */
  "token.revoke": { asked: TokenIdRequest; answered: TokenRevoked; effect: true };
  /** Replace the secret of a token. It is shown only once. */
  "token.rotate": { asked: TokenIdRequest; answered: TokenCreated; effect: true };
  /** Create a code that signs a browser in, once. */
  "token.code": { asked: EmptyRequest; answered: SignInCode; effect: true };
  /** Show the settings in use. */
  "config.show": { asked: EmptyRequest; answered: ConfigDetails; effect: false };
  /** Check a settings file. */
  "config.check": { asked: ConfigCheckRequest; answered: ConfigChecked; effect: false };
  /** Change the settings file and keep its comments. */
  "config.patch": { asked: ConfigPatchRequest; answered: ConfigChanged; effect: true };
  /** Reload the settings file. */
  "config.reload": { asked: EmptyRequest; answered: ConfigChanged; effect: true };
  /** Apply the agents, people, schedules and bindings of the settings file. */
  "config.apply": { asked: ConfigApplyRequest; answered: ConfigApplied; effect: true };
  /** Export agents and people as a settings file, without secrets. */
  "config.export": { asked: EmptyRequest; answered: ConfigExported; effect: false };
  /** List all settings with their values and where these are set. */
  "config.fields": { asked: EmptyRequest; answered: ConfigFields; effect: false };
  /** Preview a change of the settings file without making it. */
  "config.preview": { asked: ConfigPreviewRequest; answered: ConfigPreview; effect: false };
  /** Show the agents and what waits for you. */
  "house.status": { asked: EmptyRequest; answered: ServerStatus; effect: false };
  /** Return the initial state of a client, and the cursor from which its events continue. */
  "house.state": { asked: InitialStateRequest; answered: InitialState; effect: false };
  /** Check the ledger: prove that no message was lost. */
  "house.ledger": { asked: EmptyRequest; answered: LedgerCheckResult; effect: false };
  /** Explain what happened to an envelope, run, approval or session. */
  "house.why": { asked: WhyRequest; answered: WhyExplanation; effect: false };
  /** Show active runs, waiting envelopes, and why they wait. */
  "house.lanes": { asked: LaneListRequest; answered: LaneList; effect: false };
  /** Show the server log, newest first. */
  "house.logs": { asked: LogListRequest; answered: LogEntryList; effect: false };
  /** Back up all data to a new folder while the server runs. */
  "house.backup": { asked: BackupRequest; answered: BackupResult; effect: true };
  /** Delete old data. Unless `dry_run` is false, only count it. */
  "house.purge": { asked: PurgeRequest; answered: PurgeResult; effect: true };
  /** Show usage and cost. */
  "usage.show": { asked: UsageRequest; answered: UsageReport; effect: false };
  /** Show usage per day, grouped by agent, model, provider or person. */
  "usage.days": { asked: UsageDaysRequest; answered: DailyUsageReport; effect: false };
  /** Show the budgets and what is spent of them. */
  "usage.budgets": { asked: EmptyRequest; answered: BudgetList; effect: false };
  /** Explain why an agent may use a tool, may not, or needs an approval. */
  "policy.explain": { asked: PolicyExplainRequest; answered: PolicyExplanation; effect: false };
  /** Show which recorded calls other settings would decide differently. */
  "policy.test": { asked: PolicyTestRequest; answered: PolicyTestResult; effect: false };
  /** List all tools, or what an agent may do with each. */
  "tool.list": { asked: ToolListRequest; answered: ToolList; effect: false };
  /** List the grants of agents. */
  "grant.list": { asked: EmptyRequest; answered: GrantList; effect: false };
  /** Grant an agent a permission. */
  "grant.add": { asked: GrantAddRequest; answered: GrantDetails; effect: true };
  /** Revoke a grant, effective at once. */
  "grant.revoke": { asked: GrantIdRequest; answered: GrantRevoked; effect: true };
  /** Call a tool directly, as an agent would. */
  "tool.invoke": { asked: ToolInvokeRequest; answered: ToolInvokeResult; effect: true };
  /** List skills, their status and folders. */
  "skill.list": { asked: SkillListRequest; answered: SkillList; effect: false };
  /** Show a skill, and what changed since it was approved. */
  "skill.show": { asked: SkillNameRequest; answered: SkillDetails; effect: false };
  /** Approve a skill's current version after reading it. */
  "skill.approve": { asked: SkillApproveRequest; answered: SkillApproved; effect: true };
  /** Revoke the approval of a skill. */
  "skill.revoke": { asked: SkillNameRequest; answered: SkillRevoked; effect: true };
  /** Export operations as a skill with its own commands. */
  "skill.export": { asked: SkillExportRequest; answered: SkillExported; effect: true };
  /** List plugins and their status. */
  "plugin.list": { asked: EmptyRequest; answered: PluginList; effect: false };
  /** Show one plugin and what it registers. */
  "plugin.show": { asked: PluginInstanceRequest; answered: PluginDetails; effect: false };
  /** Show the settings of a plugin. */
  "plugin.settings": { asked: PluginInstanceRequest; answered: PluginSettingsDetails; effect: false };
  /** Change some settings of a plugin. */
  "plugin.patch": { asked: PluginSettingsRequest; answered: PluginSettingsDetails; effect: true };
  /** Replace all settings of a plugin. */
  "plugin.replace": { asked: PluginSettingsRequest; answered: PluginSettingsDetails; effect: true };
  /** Enable and load a plugin. */
  "plugin.enable": { asked: PluginEnableRequest; answered: PluginDetails; effect: true };
  /** Disable and unload a plugin. Its data stays. */
  "plugin.disable": { asked: PluginInstanceRequest; answered: PluginDetails; effect: true };
  /** Unload a plugin and load it again. */
  "plugin.reload": { asked: PluginInstanceRequest; answered: PluginDetails; effect: true };
  /** List hooks, their status and folders. */
  "hook.list": { asked: HookListRequest; answered: HookList; effect: false };
  /** Show a hook: its description and its program. */
  "hook.show": { asked: HookNameRequest; answered: HookContent; effect: false };
  /** Enable a hook's current version. */
  "hook.enable": { asked: HookEnableRequest; answered: HookDetails; effect: true };
  /** Disable a hook. */
  "hook.disable": { asked: HookNameRequest; answered: HookDisabled; effect: true };
  /** List MCP servers and their status. */
  "mcp.list": { asked: EmptyRequest; answered: McpServerList; effect: false };
  /** Show the tools of an MCP server, and what changed since they were approved. */
  "mcp.show": { asked: McpServerNameRequest; answered: McpServerDetails; effect: false };
  /** Approve the current tools of an MCP server after reading them. */
  "mcp.approve": { asked: McpApproveRequest; answered: McpApproved; effect: true };
  /** Revoke the approval of an MCP server's tools. */
  "mcp.revoke": { asked: McpServerNameRequest; answered: McpRevoked; effect: true };
  /** Restart an MCP server. */
  "mcp.restart": { asked: McpServerNameRequest; answered: McpServerStatus; effect: true };
  /** List connectors and their status. */
  "connector.list": { asked: EmptyRequest; answered: ConnectorList; effect: false };
  /** List the supported platforms. */
  "connector.kinds": { asked: EmptyRequest; answered: PlatformList; effect: false };
  /** Show a connector and its settings. */
  "connector.show": { asked: ConnectorNameRequest; answered: ConnectorDetails; effect: false };
  /** Test the connection of a connector. */
  "connector.test": { asked: ConnectorNameRequest; answered: ConnectorTestResult; effect: false };
  /** Add a connector. */
  "connector.add": { asked: ConnectorAddRequest; answered: ConnectorAdded; effect: true };
  /** Remove a connector. */
  "connector.remove": { asked: ConnectorNameRequest; answered: ConnectorRemoved; effect: true };
  /** Enable a connector. */
  "connector.enable": { asked: ConnectorNameRequest; answered: ConnectorStatus; effect: true };
  /** Disable a connector. */
  "connector.disable": { asked: ConnectorNameRequest; answered: ConnectorStatus; effect: true };
  /** List unprocessed messages. */
  "set-aside.list": { asked: PoisonMessageListRequest; answered: PoisonMessageList; effect: false };
  /** Process an unprocessed message again. */
  "set-aside.retry": { asked: PoisonMessageIdRequest; answered: PoisonMessageRetried; effect: true };
  /** Drop an unprocessed message. */
  "set-aside.drop": { asked: PoisonMessageIdRequest; answered: PoisonMessageDropped; effect: true };
  /** List which agent answers in which channel. */
  "binding.list": { asked: EmptyRequest; answered: BindingList; effect: false };
  /** Set which agent answers in a channel, and replace the previous binding. */
  "binding.set": { asked: BindingSetRequest; answered: BindingSet; effect: true };
  /** Remove a binding. */
  "binding.remove": { asked: BindingIdRequest; answered: BindingRemoved; effect: true };
  /** List pairing requests and admitted senders. */
  "pairing.list": { asked: EmptyRequest; answered: PairingList; effect: false };
  /** Admit the sender with this code. */
  "pairing.accept": { asked: PairingAcceptRequest; answered: PairingDecided; effect: true };
  /** Refuse the sender with this code. */
  "pairing.refuse": { asked: PairingIdRequest; answered: PairingDecided; effect: true };
  /** Revoke the admission of a sender. */
  "pairing.dismiss": { asked: PairingDismissRequest; answered: PairingDismissed; effect: true };
  /** List identities: platform ids linked to people. */
  "identity.list": { asked: EmptyRequest; answered: IdentityList; effect: false };
  /** Link a platform id to a person. */
  "identity.link": { asked: IdentityLinkRequest; answered: IdentityDetails; effect: true };
  /** Unlink a platform id from its person. */
  "identity.unlink": { asked: IdentityUnlinkRequest; answered: IdentityUnlinked; effect: true };
  /** List audit entries, newest first. */
  "audit.list": { asked: AuditListRequest; answered: AuditEntryList; effect: false };
  /** Verify that the audit log is unchanged. */
  "audit.verify": { asked: AuditVerifyRequest; answered: AuditVerifyResult; effect: false };
  /** Export the audit log as JSON lines. */
  "audit.export": { asked: AuditExportRequest; answered: AuditExport; effect: false };
  /** Check the server and its data, and report problems with a next step. */
  "house.doctor": { asked: DoctorRequest; answered: DoctorReport; effect: false };
  /** Notify a person. */
  "notification.create": { asked: NotificationCreateRequest; answered: NotificationCreated; effect: true };
  /** List your notifications, newest first. */
  "notification.list": { asked: NotificationListRequest; answered: NotificationList; effect: false };
  /** Mark notifications as read. */
  "notification.read": { asked: NotificationSelectionRequest; answered: NotificationsChanged; effect: true };
  /** Delete notifications. */
  "notification.clear": { asked: NotificationSelectionRequest; answered: NotificationsChanged; effect: true };
  /** List your questionnaires, newest first. */
  "questionnaire.list": { asked: QuestionnaireListRequest; answered: QuestionnaireList; effect: false };
  /** Show a questionnaire. */
  "questionnaire.show": { asked: QuestionnaireIdRequest; answered: QuestionnaireDetails; effect: false };
  /** Answer a questionnaire. The agent gets your answers. */
  "questionnaire.submit": { asked: QuestionnaireSubmitRequest; answered: QuestionnaireSubmitted; effect: true };
  /** Close a questionnaire without an answer. */
  "questionnaire.cancel": { asked: QuestionnaireIdRequest; answered: QuestionnaireCancelled; effect: true };
  /** Show one of your preferences. */
  "preference.get": { asked: PreferenceGetRequest; answered: PreferenceDetails; effect: false };
  /** List your preferences. */
  "preference.list": { asked: EmptyRequest; answered: PreferenceList; effect: false };
  /** Set one of your preferences, for all your devices. */
  "preference.set": { asked: PreferenceSetRequest; answered: PreferenceDetails; effect: true };
  /** Schedule a message, once or repeatedly. */
  "schedule.add": { asked: ScheduleAddRequest; answered: ScheduleDetails; effect: true };
  /** List your schedules, newest first. */
  "schedule.list": { asked: ScheduleListRequest; answered: ScheduleList; effect: false };
  /** Show a schedule. */
  "schedule.show": { asked: ScheduleRequest; answered: ScheduleDetails; effect: false };
  /** Change a schedule. */
  "schedule.set": { asked: ScheduleSetRequest; answered: ScheduleDetails; effect: true };
  /** Enable a schedule. */
  "schedule.enable": { asked: ScheduleRequest; answered: ScheduleChanged; effect: true };
  /** Disable a schedule. */
  "schedule.disable": { asked: ScheduleRequest; answered: ScheduleChanged; effect: true };
  /** Run a schedule now, even if it is disabled. */
  "schedule.run": { asked: ScheduleRunRequest; answered: ScheduleRunResult; effect: true };
  /** Describe a time in words, and list its next occurrences. */
  "schedule.explain": { asked: ScheduleExplainRequest; answered: ScheduleExplanation; effect: false };
  /** List the next occurrences of a schedule. */
  "schedule.next": { asked: ScheduleNextRequest; answered: ScheduleExplanation; effect: false };
  /** List the past occurrences of a schedule and their results. */
  "schedule.history": { asked: ScheduleHistoryRequest; answered: ScheduleHistory; effect: false };
  /** Delete a schedule and its history. */
  "schedule.delete": { asked: ScheduleRequest; answered: ScheduleDeleted; effect: true };
  /** List heartbeats: their times and tasks. */
  "heartbeat.list": { asked: HeartbeatListRequest; answered: HeartbeatList; effect: false };
  /** Show a heartbeat task. */
  "heartbeat.show": { asked: HeartbeatTaskRequest; answered: HeartbeatTaskDetails; effect: false };
  /** Add a task to an agent's heartbeat. */
  "heartbeat.add": { asked: HeartbeatAddRequest; answered: HeartbeatTaskAdded; effect: true };
  /** Remove a task from a heartbeat. */
  "heartbeat.remove": { asked: HeartbeatTaskRequest; answered: HeartbeatTaskRemoved; effect: true };
  /** Run heartbeat tasks now, or all that are due. */
  "heartbeat.run": { asked: HeartbeatRunRequest; answered: HeartbeatRunResult; effect: true };
  /** List the scheduled occurrences of the next days. */
  "schedule.calendar": { asked: CalendarRequest; answered: CalendarDetails; effect: false };
  /** Send a person a reminder at a time. No agent works on it. */
  "reminder.add": { asked: ReminderAddRequest; answered: ScheduleDetails; effect: true };
  /** List pending reminders, soonest first. */
  "reminder.list": { asked: ReminderListRequest; answered: ReminderList; effect: false };
  /** Delete a reminder. */
  "reminder.delete": { asked: ReminderIdRequest; answered: ScheduleDeleted; effect: true };
  /** Send a message to a session at a time. */
  "wakeup.add": { asked: WakeupAddRequest; answered: ScheduleDetails; effect: true };
  /** List pending wake-ups, soonest first. */
  "wakeup.list": { asked: WakeupListRequest; answered: WakeupList; effect: false };
  /** Delete a wake-up. */
  "wakeup.delete": { asked: ReminderIdRequest; answered: ScheduleDeleted; effect: true };
}

export type Refused = ErrorResponse;

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
