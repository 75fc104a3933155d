// Made from the code by `make generate`.

export type ActiveRun = { "id": string; "status": RunStatus; "sender": string; "started_at": string; "attempt": number; "turn": number | null; "step": StepKind | null; "tool": string; "step_started_at": string | null; "because": string; "approval": string | null; "resumes_at": string | null };

export type AdmittedSenderDetails = { "connector": string; "sender_id": string; "admitted_by": string; "admitted_at": string };

export type AgentChanged = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternalSettings; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "crash_policy": CrashPolicy; "concurrency": number | null; "queue": AgentQueueSettings; "reset": AgentResetSettings; "tools": AgentToolSettings; "delegation": AgentDelegationSettings; "subagents": AgentSubagentSettings; "heartbeat": AgentHeartbeatSettings; "sandbox": AgentSandboxSettings; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "color": Color | null; "visible": boolean; "version": number; "changed": Array<string>; "dry_run"?: boolean };

export type AgentComparison = { "name": string; "old": number; "new": number; "changes": Array<AgentFieldChange> };

export type AgentDelegationSettings = { "allow": Array<string>; "deny": Array<string>; "depth_max": number; "open_max": number; "exchanges_max": number; "allow_cycles": boolean; "other_sessions": boolean };

export type AgentDeleteRequest = { "name": string; "keep_directory"?: boolean };

export type AgentDeleted = { "name": string; "deleted": boolean; "cancelled_runs": Array<string>; "directory": string | null };

export type AgentDetails = { "name": string; "display_name": string; "description": string; "runner": string; "external"?: AgentExternalSettings; "provider"?: string | null; "model": string; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string; "instructions_mode"?: InstructionMode; "workspace"?: string; "context_files"?: Array<string>; "crash_policy"?: CrashPolicy; "concurrency"?: number | null; "queue"?: AgentQueueSettings; "reset"?: AgentResetSettings; "tools"?: AgentToolSettings; "delegation"?: AgentDelegationSettings; "subagents"?: AgentSubagentSettings; "heartbeat"?: AgentHeartbeatSettings; "sandbox"?: AgentSandboxSettings; "turns_max"?: number; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number; "replay_age_s"?: number | null; "approval_wait_s"?: number; "permission_level"?: PermissionLevel; "icon": string; "color": Color | null; "visible": boolean; "version": number; "state": AgentState; "effective_settings"?: Record<string, EffectiveSetting> };

export type AgentDiffRequest = { "name": string; "old": number; "new"?: number | null };

export type AgentExternalSettings = { "url": string; "secret": string; "timeout_s": number; "retries": number };

export type AgentFieldChange = { "field": string; "old": unknown; "new": unknown };

export type AgentFileDetails = { "name": string; "path": string; "content": string; "size_bytes": number; "modified_at": string; "hash": string; "trust": Trust };

export type AgentFileList = { "name": string; "files": Array<AgentFileRow>; "has_more": boolean };

export type AgentFileRequest = { "name": string; "path": string };

export type AgentFileRow = { "path": string; "size_bytes": number; "modified_at": string; "hash": string | null };

export type AgentFileWriteRequest = { "name": string; "path": string; "content": string; "hash": string; "mark_trusted"?: boolean };

export type AgentFileWritten = { "name": string; "path": string; "size_bytes": number; "hash": string; "created": boolean };

export type AgentFilesRequest = { "name": string };

export type AgentHeartbeatSettings = { "every_s": number | null; "active_start": string | null; "active_end": string | null; "active_zone": string | null; "prompt": string | null; "model": string | null; "session": ScheduleSession | null; "target": string | null; "ack_chars_max": number | null };

export type AgentList = { "agents": Array<AgentRow> };

export type AgentModelChain = { "agent": string; "session"?: string; "runner": string; "effort": string | null; "chain": Array<ModelChainEntry>; "current"?: Array<string>; "error"?: string };

export type AgentNameRequest = { "name": string };

export type AgentPromptDetails = { "name": string; "session": string | null; "template": string; "tokens": number; "sections": Array<PromptSection>; "text": string; "files"?: Array<PromptFile>; "previous"?: PreviousPrompt | null; "template_error"?: TemplateError | null };

export type AgentPromptRequest = { "name": string; "session"?: string; "mode"?: InstructionMode | null; "check"?: Array<AttachmentUpload>; "parts"?: boolean };

export type AgentQueueSettings = { "mode": QueueMode; "cap": number; "overflow": Overflow; "debounce_s": number };

export type AgentRegisterRequest = { "name": string; "display_name"?: string | null; "description"?: string | null; "runner"?: string | null; "external_url"?: string | null; "external_secret"?: string | null; "external_timeout_s"?: number | null; "external_retries"?: number | null; "provider"?: string | null; "model"?: string | ModelWithFallbacks | null; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string | null; "instructions_mode"?: InstructionMode | null; "workspace"?: string | null; "context_files"?: Array<string> | null; "crash_policy"?: CrashPolicy | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "queue_debounce_s"?: number | null; "reset_daily_at"?: string | null; "reset_idle_minutes"?: number | null; "reset_context_tokens_max"?: number | null; "tools_profile"?: string | null; "tools_allow"?: Array<string> | null; "tools_also_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "tools_capabilities_allow"?: Array<string> | null; "tools_capabilities_deny"?: Array<string> | null; "tools_policy"?: string | null; "delegation_allow"?: Array<string> | null; "delegation_deny"?: Array<string> | null; "delegation_depth_max"?: number | null; "delegation_open_max"?: number | null; "delegation_exchanges_max"?: number | null; "delegation_allow_cycles"?: boolean | null; "delegation_other_sessions"?: boolean | null; "subagents_allow"?: Array<string> | null; "subagents_model"?: string | null; "subagents_effort"?: string | null; "subagents_run_seconds_max"?: number | null; "subagents_archive_after_s"?: number | null; "heartbeat_every_s"?: number | null; "heartbeat_active_start"?: string | null; "heartbeat_active_end"?: string | null; "heartbeat_active_zone"?: string | null; "heartbeat_prompt"?: string | null; "heartbeat_model"?: string | null; "heartbeat_session"?: ScheduleSession | null; "heartbeat_target"?: string | null; "heartbeat_ack_chars_max"?: number | null; "sandbox_mode"?: SandboxMode | null; "sandbox_scope"?: SandboxScope | null; "sandbox_workspace"?: WorkspaceAccess | null; "sandbox_visible_sessions"?: SandboxVisibleSessions | null; "sandbox_browser"?: boolean | null; "sandbox_image"?: string | null; "sandbox_cpus"?: number | null; "sandbox_idle_hours"?: number | null; "sandbox_age_days"?: number | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "icon"?: string | null; "color"?: Color | null; "visible"?: boolean | null; "dry_run"?: boolean; "token"?: boolean };

export type AgentRegistered = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternalSettings; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "crash_policy": CrashPolicy; "concurrency": number | null; "queue": AgentQueueSettings; "reset": AgentResetSettings; "tools": AgentToolSettings; "delegation": AgentDelegationSettings; "subagents": AgentSubagentSettings; "heartbeat": AgentHeartbeatSettings; "sandbox": AgentSandboxSettings; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "color": Color | null; "visible": boolean; "version": number; "directory"?: string; "token"?: string; "dry_run"?: boolean; "shown_once"?: Array<string> };

export type AgentResetSettings = { "daily_at": string | null; "idle_minutes": number | null; "context_tokens_max": number | null };

export type AgentRestoreRequest = { "name": string; "version": number };

export type AgentRestored = { "name": string; "display_name": string; "description": string; "runner": string; "external": AgentExternalSettings; "provider": string | null; "model": string; "fallbacks": Array<string> | null; "effort": string | null; "verbose": Verbosity | null; "elevated": Elevation | null; "instructions": string; "instructions_mode": InstructionMode; "workspace": string; "context_files": Array<string>; "crash_policy": CrashPolicy; "concurrency": number | null; "queue": AgentQueueSettings; "reset": AgentResetSettings; "tools": AgentToolSettings; "delegation": AgentDelegationSettings; "subagents": AgentSubagentSettings; "heartbeat": AgentHeartbeatSettings; "sandbox": AgentSandboxSettings; "turns_max": number; "run_seconds_max": number | null; "tokens_max": number | null; "cost_microusd_max": number | null; "tree_microusd_max": number | null; "day_microusd_max": number | null; "month_microusd_max": number | null; "attempts_max": number; "replay_age_s": number | null; "approval_wait_s": number; "permission_level": PermissionLevel; "icon": string; "color": Color | null; "visible": boolean; "version": number; "restored": number };

export type AgentRow = { "name": string; "display_name": string; "description": string; "runner": string; "model": string; "version": number; "icon": string; "color": Color | null; "visible": boolean };

export type AgentSandboxSettings = { "mode": SandboxMode | null; "scope": SandboxScope | null; "workspace": WorkspaceAccess | null; "visible_sessions": SandboxVisibleSessions | null; "browser": boolean | null; "image": string; "cpus": number | null; "idle_hours": number | null; "age_days": number | null };

export type AgentSetRequest = { "name": string; "display_name"?: string | null; "description"?: string | null; "runner"?: string | null; "external_url"?: string | null; "external_secret"?: string | null; "external_timeout_s"?: number | null; "external_retries"?: number | null; "provider"?: string | null; "model"?: string | ModelWithFallbacks | null; "fallbacks"?: Array<string> | null; "effort"?: string | null; "verbose"?: Verbosity | null; "elevated"?: Elevation | null; "instructions"?: string | null; "instructions_mode"?: InstructionMode | null; "workspace"?: string | null; "context_files"?: Array<string> | null; "crash_policy"?: CrashPolicy | null; "concurrency"?: number | null; "queue_mode"?: QueueMode | null; "queue_cap"?: number | null; "queue_overflow"?: Overflow | null; "queue_debounce_s"?: number | null; "reset_daily_at"?: string | null; "reset_idle_minutes"?: number | null; "reset_context_tokens_max"?: number | null; "tools_profile"?: string | null; "tools_allow"?: Array<string> | null; "tools_also_allow"?: Array<string> | null; "tools_ask"?: Array<string> | null; "tools_deny"?: Array<string> | null; "tools_capabilities_allow"?: Array<string> | null; "tools_capabilities_deny"?: Array<string> | null; "tools_policy"?: string | null; "delegation_allow"?: Array<string> | null; "delegation_deny"?: Array<string> | null; "delegation_depth_max"?: number | null; "delegation_open_max"?: number | null; "delegation_exchanges_max"?: number | null; "delegation_allow_cycles"?: boolean | null; "delegation_other_sessions"?: boolean | null; "subagents_allow"?: Array<string> | null; "subagents_model"?: string | null; "subagents_effort"?: string | null; "subagents_run_seconds_max"?: number | null; "subagents_archive_after_s"?: number | null; "heartbeat_every_s"?: number | null; "heartbeat_active_start"?: string | null; "heartbeat_active_end"?: string | null; "heartbeat_active_zone"?: string | null; "heartbeat_prompt"?: string | null; "heartbeat_model"?: string | null; "heartbeat_session"?: ScheduleSession | null; "heartbeat_target"?: string | null; "heartbeat_ack_chars_max"?: number | null; "sandbox_mode"?: SandboxMode | null; "sandbox_scope"?: SandboxScope | null; "sandbox_workspace"?: WorkspaceAccess | null; "sandbox_visible_sessions"?: SandboxVisibleSessions | null; "sandbox_browser"?: boolean | null; "sandbox_image"?: string | null; "sandbox_cpus"?: number | null; "sandbox_idle_hours"?: number | null; "sandbox_age_days"?: number | null; "turns_max"?: number | null; "run_seconds_max"?: number | null; "tokens_max"?: number | null; "cost_microusd_max"?: number | null; "tree_microusd_max"?: number | null; "day_microusd_max"?: number | null; "month_microusd_max"?: number | null; "attempts_max"?: number | null; "replay_age_s"?: number | null; "approval_wait_s"?: number | null; "permission_level"?: PermissionLevel | null; "icon"?: string | null; "color"?: Color | null; "visible"?: boolean | null; "clear"?: Array<string>; "dry_run"?: boolean };

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

export type ApprovalDetails = { "id": string; "agent": string; "grantee": string; "session": string; "session_name": string | null; "run": string; "calls": Array<Call>; "needed_permissions": Array<string>; "grant_permissions": Array<string>; "because": string; "recipients": Array<string>; "scopes": Array<GrantScope>; "requested_at": string; "expires_at": string; "state": ApprovalState; "decided_by": string; "decided_at": string | null; "scope": GrantScope | null; "comment": string };

export type ApprovalEntry = { "type": "approval"; "at_ms": number; "ended_ms": number | null; "approval": string; "state": ApprovalState; "calls": Array<string>; "because": string; "recipients": Array<string>; "decided_by": string; "scope": GrantScope | null; "comment": string };

export type ApprovalList = { "approvals": Array<ApprovalDetails>; "next": string | null };

export type ApprovalListRequest = { "decided"?: boolean; "limit"?: number; "cursor"?: string };

export type ApprovalState = "allowed" | "closed" | "denied" | "expired" | "open";

export type AttachStatus = "attached" | "created" | "restored";

export type AttachmentDetails = { "name": string; "hash": string; "media_type": string; "size_bytes": number };

export type AttachmentUpload = { "name": string; "data"?: string; "hash"?: string; "media_type"?: string };

export type AuditEntryDetails = { "at": string; "kind": string; "principal": string; "agent": string; "subject": string; "decision": string; "because": string; "run": string | null; "session": string; "position": number; "content": string; "hash": string };

export type AuditEntryList = { "entries": Array<AuditEntryDetails>; "next": string | null };

export type AuditExport = { "lines": Array<string>; "next": string | null };

export type AuditExportRequest = { "session"?: string; "after"?: string; "limit"?: number };

export type AuditFlaw = { "session": string; "position": number; "sentence": string };

export type AuditKind = "agent-changed" | "anchored" | "approval-asked" | "approval-decided" | "approval-expired" | "approval-refused" | "call-allowed" | "call-ended" | "call-refused" | "chain-begun" | "credential-changed" | "forgotten" | "grant-given" | "grant-revoked" | "mcp-approved" | "person-changed" | "purged" | "sandbox-off" | "settings-changed" | "skill-approved" | "token-made" | "token-revoked";

export type AuditListRequest = { "session"?: string; "kind"?: AuditKind | null; "agent"?: string; "principal"?: string; "since"?: string; "before"?: string; "limit"?: number };

export type AuditVerifyRequest = { "session"?: string; "anchor"?: Array<string>; "log"?: boolean };

export type AuditVerifyResult = { "ok": boolean; "checked": number; "chains": number; "anchors": number; "flaws": Array<AuditFlaw>; "lines": Array<string> };

export type BackupRequest = { "to"?: string; "verify"?: boolean };

export type BackupResult = { "folder": string; "parts": number; "size_bytes": number; "missing": Array<string>; "verified": boolean };

export type BindingDetails = { "id": string; "agent": string; "connector": string; "account": string; "peer_kind": string; "peer": string; "parent": string; "guild": string; "team": string; "extra_agents": Array<string>; "created_by": string };

export type BindingIdRequest = { "id": string };

export type BindingList = { "bindings": Array<BindingDetails> };

export type BindingRemoved = { "id": string; "removed": boolean };

export type BindingSet = { "binding": BindingDetails; "replaced": Array<BindingDetails> };

export type BindingSetRequest = { "agent": string; "connector": string; "account"?: string; "peer_kind"?: PeerKind | null; "peer"?: string; "parent"?: string; "guild"?: string; "team"?: string; "extra_agents"?: Array<string> };

export type BrokenHookRow = { "folder": string; "because": string };

export type BrokenSkillRow = { "folder": string; "source": SkillSource; "because": string };

export type BudgetList = { "today": string; "warn_share": number; "budgets": Array<BudgetStatus> };

export type BudgetStatus = { "name": string; "owner": string; "setting": string; "cap_microusd": number; "spent_microusd"?: number | null; "reserved_microusd"?: number | null; "left_microusd"?: number | null; "share"?: number | null; "resets_on"?: string | null };

export type CalendarDetails = { "zone": string; "now": string; "until": string; "schedules": Array<CalendarRow>; "has_more": boolean };

export type CalendarRequest = { "days"?: number };

export type CalendarRow = { "id": string; "name": string; "kind": string; "to": string; "when": string; "text": string; "times": Array<string>; "truncated": boolean };

export type Call = { "id": string; "tool": string; "arguments"?: Record<string, unknown> };

export type CallSource = "invoke" | "mcp" | "model" | "skill";

export type CallerDetails = { "address": string; "level": PermissionLevel; "sees_all": boolean };

export type ChannelQueue = { "channel": string; "waiting_count": number; "next_at": string; "attempts": number; "error": string | null };

export type Color = "amber" | "blue" | "cyan" | "green" | "indigo" | "lime" | "orange" | "pink" | "red" | "slate" | "teal" | "violet";

export type ConfigApplied = { "dry_run": boolean; "agents": Array<ApplyStep>; "people": Array<ApplyStep>; "schedules": Array<ApplyStep>; "bindings": Array<ApplyStep>; "tokens"?: Record<string, string>; "cleared_runs"?: number; "shown_once"?: Array<string> };

export type ConfigApplyRequest = { "dry_run"?: boolean; "overwrite"?: boolean; "reset"?: boolean };

export type ConfigChanged = { "changes": Array<SettingChange>; "pending_restart": Array<string>; "hash": string };

export type ConfigCheckRequest = { "text"?: string | null };

export type ConfigChecked = { "ok": boolean; "faults": Array<string>; "hash": string };

export type ConfigDetails = { "file": string; "hash": string; "files": Array<string>; "settings": Record<string, unknown>; "default_agent": string | null; "pending_restart": Array<string> };

export type ConfigExported = { "text": string };

export type ConfigFaultDetails = { "path": string; "sentence": string; "line": number | null; "because": string; "try": string; "code": string };

export type ConfigFields = { "file": string; "hash": string; "sections": Array<SettingSectionDetails>; "faults": Array<ConfigFaultDetails>; "pending_restart": Array<string> };

export type ConfigPatchRequest = { "changes": Record<string, unknown>; "expected_hash": string };

export type ConfigPreview = { "old": string; "new": string; "patch": Record<string, unknown>; "changes": Array<SettingChange>; "faults": Array<ConfigFaultDetails>; "hash": string };

export type ConfigPreviewRequest = { "changes"?: Record<string, unknown> | null; "text"?: string | null };

export type ConnectionStatus = "connecting" | "failed" | "listening" | "needs_owner" | "off" | "waiting";

export type ConnectorAddRequest = { "platform": string; "name"?: string; "settings"?: Record<string, unknown>; "answers"?: Record<string, string>; "secrets"?: Record<string, string>; "check"?: boolean };

export type ConnectorAdded = { "connector": ConnectorStatus; "account": string; "next": Array<string> };

export type ConnectorDetails = { "connector": ConnectorStatus; "settings": Record<string, unknown> };

export type ConnectorList = { "connectors": Array<ConnectorStatus> };

export type ConnectorNameRequest = { "name": string };

export type ConnectorRemoved = { "name": string; "removed": boolean };

export type ConnectorStatus = { "name": string; "platform": string; "state": ConnectionStatus; "since": string; "last_received_at"?: string | null; "last_delivered_at"?: string | null; "failures_in_a_row"?: number; "because"?: string; "try"?: string; "retry_at"?: string | null; "dm_policy"?: string; "in_groups"?: string };

export type ConnectorTestResult = { "name": string; "ok": boolean; "account": string; "sentence": string; "because": string; "try": string };

export type CrashPolicy = "at-most-once" | "resume";

export type CredentialAddRequest = { "provider": string; "name": string; "agent"?: string; "kind"?: CredentialKind; "region"?: string; "key_env"?: string; "key_file"?: string; "key"?: string };

export type CredentialDetails = { "id": string; "provider": string; "agent": string | null; "kind": CredentialKind; "source": string; "state": CredentialState; "because": string; "region": string | null; "position": number | null; "used_at": string | null; "failures": Record<string, CredentialFailure> };

export type CredentialFailure = { "reason": ModelFailureKind; "errors": number; "failed_at": string; "cooling_until": string | null };

export type CredentialFailureReason = "auth" | "overloaded" | "permission" | "quota" | "rate_limit" | "timeout";

export type CredentialFailureRequest = { "id": string; "reason": CredentialFailureReason; "agent"?: string; "model"?: string };

export type CredentialIdRequest = { "id": string; "agent"?: string };

export type CredentialKind = "api_key" | "token";

export type CredentialList = { "credentials": Array<CredentialDetails> };

export type CredentialListRequest = { "provider"?: string; "agent"?: string };

export type CredentialOrderRequest = { "provider": string; "ids"?: Array<string>; "agent"?: string };

export type CredentialRemoved = { "id": string; "agent": string | null; "removed": boolean };

export type CredentialState = "cooling_down" | "ready" | "unreadable";

export type CredentialUseRequest = { "id": string; "agent"?: string; "model"?: string };

export type DailyUsageReport = { "by": UsageGrouping; "days": Array<string>; "series": Array<UsageSeries>; "total": UsageRow };

export type DamagedRecordRow = { "seq": number; "because": string };

export type DeadLetterList = { "dead_letters": Array<EnvelopeDetails> };

export type DeadLetterListRequest = { "limit"?: number; "before"?: string };

export type DecisionKind = "allow" | "ask" | "deny";

export type DelegationKind = "background" | "external" | "message" | "send" | "spawn";

export type DelegationList = { "delegations": Array<DelegationRow>; "next": string | null; "open_count": number; "counted_max": number };

export type DelegationListRequest = { "session"?: string; "open"?: boolean; "limit"?: number; "cursor"?: string };

export type DelegationProgress = "awaiting_approval" | "error" | "ok" | "stopped" | "suspended" | "timeout" | "waiting" | "working";

export type DelegationRow = { "id": string; "kind": DelegationKind; "agent": string; "session": string; "session_name": string | null; "requester_run": string; "call": string; "target": string; "target_session": string | null; "target_session_name": string | null; "run": string | null; "label": string; "task": string; "status": DelegationProgress; "because": string; "blocking": boolean; "result": string | null; "created_at": string; "started_at": string | null; "ended_at": string | null; "duration_ms": number | null; "cost_microusd": number };

export type DelegationStopRequest = { "id": string; "reason"?: string };

export type DelegationStopped = { "stopped": Array<string>; "cancelled_runs": Array<string> };

export type DeletedSessionList = { "sessions": Array<DeletedSessionRow> };

export type DeletedSessionListRequest = { "limit"?: number };

export type DeletedSessionRow = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "deletedAt": string; "restorableUntil": string };

export type DeliveryAttemptDetails = { "attempt": number; "state": DeliveryState; "receipt": string | null; "error_kind": string | null; "error": string | null };

export type DeliveryState = "failed" | "sending" | "sent" | "unknown";

export type DoctorCheckRow = { "name": string; "ok_message": string; "health": "ok" | "problem" | "skipped" | "warning"; "findings": Array<DoctorFindingRow> };

export type DoctorFindingRow = { "health": DoctorHealth; "sentence": string; "because": string; "try": string };

export type DoctorHealth = "ok" | "problem" | "warning";

export type DoctorReport = { "health": DoctorHealth; "checks": Array<DoctorCheckRow>; "lines": Array<string>; "security"?: Array<SecurityFindingRow>; "fixed"?: Array<string> };

export type DoctorRequest = { "quick"?: boolean; "security"?: boolean; "fix"?: boolean };

export type EffectiveSetting = { "value": unknown; "by": SettingSource; "key": string };

export type Elevation = "ask" | "full" | "off" | "on";

export type EmptyRequest = Record<string, never>;

export type EnvelopeCancelled = { "envelope": string; "outcome": Outcome };

export type EnvelopeDetails = { "id": string; "short": string; "from": string; "to": string; "kind": EnvelopeKind; "status": EnvelopeStatus; "accepted_at": string; "text": string; "reply_to"?: string; "deliver_at"?: string; "attachments"?: Array<AttachmentDetails>; "outcome"?: Outcome; "because"?: string; "answer"?: string | null; "retry"?: string; "when_busy"?: WhenBusy; "position"?: number; "deliveries"?: Array<DeliveryAttemptDetails> };

export type EnvelopeIdRequest = { "id": string };

export type EnvelopeKind = "answer" | "approval" | "decision" | "delegation" | "job" | "message" | "notice" | "system";

export type EnvelopeList = { "envelopes": Array<EnvelopeDetails>; "acknowledged": number };

export type EnvelopeListRequest = { "status": EnvelopeStatus; "to"?: string; "from"?: string; "limit"?: number; "created_after"?: string; "created_before"?: string; "before"?: string; "ack"?: boolean };

export type EnvelopeReadEntry = { "type": "envelope_read"; "at_ms": number; "envelope": string; "from": string; "kind": EnvelopeKind; "excerpt": string; "steered": boolean };

export type EnvelopeReceipt = { "envelope": string; "session": string | null; "cursor": number; "duplicate": boolean; "outcome": Outcome | null; "because": string };

export type EnvelopeRecentRequest = { "limit"?: number };

export type EnvelopeRow = { "id": string; "from": string; "to": string; "kind": EnvelopeKind; "excerpt": string; "session": string | null; "accepted_at": string; "status": EnvelopeStatus; "outcome": Outcome | null };

export type EnvelopeSendRequest = { "to"?: string; "text": string; "key"?: string; "conversation"?: string; "session"?: string; "deliver_at"?: string; "expires_at"?: string; "reply_to"?: string; "attachments"?: Array<AttachmentUpload>; "model"?: string; "provider"?: string; "lane"?: LaneKind | null; "workspace"?: string; "extra_system_prompt"?: string; "when_busy"?: WhenBusy | null; "webhook"?: Webhook | null };

export type EnvelopeSentEntry = { "type": "envelope_sent"; "at_ms": number; "envelope": string; "to": string; "kind": EnvelopeKind; "excerpt": string };

export type EnvelopeStatus = "claimed" | "done" | "pending" | "suspended";

export type ErrorForm = { "code": string; "sentence": string; "because": string; "try": string; "candidates"?: Array<string>; "matches"?: number; "retry_after_s"?: number };

export type ErrorResponse = { "error": ErrorForm };

export type GateForm = { "command": string; "cwd"?: string; "timeout_ms"?: number; "env"?: Record<string, string>; "permissions"?: Array<string>; "domains"?: Array<string> };

export type GrantAddRequest = { "agent": string; "permission": string; "because": string; "session"?: string };

export type GrantDetails = { "id": string; "agent": string; "permission": string; "session": string | null; "granted_by": string; "because": string; "at": string; "expires_at": string | null };

export type GrantIdRequest = { "id": string };

export type GrantList = { "grants": Array<GrantDetails> };

export type GrantRevoked = { "id": string; "revoked": boolean };

export type GrantScope = "always" | "once" | "session";

export type HeartbeatAddRequest = { "text": string; "id"?: string; "title"?: string; "gate"?: GateForm | null; "overwrite"?: boolean; "agent"?: string };

export type HeartbeatDetails = { "agent": string; "schedule": string | null; "enabled": boolean; "because": string; "when": string; "next": string | null; "last_run": string | null; "last_status": string | null; "checklist": string; "tasks": Array<HeartbeatTaskRow> };

export type HeartbeatList = { "heartbeats": Array<HeartbeatDetails> };

export type HeartbeatListRequest = { "agent"?: string };

export type HeartbeatRunRequest = { "ids"?: Array<string>; "force"?: boolean; "agent"?: string };

export type HeartbeatRunResult = { "agent": string; "started": boolean; "because": string; "envelope": string | null };

export type HeartbeatTaskAdded = { "agent": string; "id": string; "title": string; "file": string };

export type HeartbeatTaskDetails = { "agent": string; "id": string; "title": string; "text": string; "gate": GateForm | null; "because"?: string };

export type HeartbeatTaskRemoved = { "agent": string; "id": string };

export type HeartbeatTaskRequest = { "id": string; "agent"?: string };

export type HeartbeatTaskRow = { "id": string; "title": string; "has_gate": boolean; "because"?: string };

export type HistoryRecord = { "seq": number; "kind": RecordKind; "at": string; "body": unknown; "run": string | null };

export type HookContent = { "hook": HookDetails; "content": string };

export type HookDetails = { "name": string; "description": string; "events": Array<string>; "source": HookSource; "state": HookState; "because": string; "path": string; "hash": string };

export type HookDisabled = { "name": string; "was_enabled": boolean };

export type HookEnableRequest = { "name": string; "hash"?: string };

export type HookList = { "hooks": Array<HookDetails>; "shadowed": Array<string>; "broken": Array<BrokenHookRow> };

export type HookListRequest = Record<string, never>;

export type HookNameRequest = { "name": string };

export type HookSource = "bundled" | "instance" | "workspace";

export type HookState = "changed" | "new" | "off" | "ready" | "unavailable";

export type IdentityDetails = { "person": string; "platform": string; "id": string };

export type IdentityLinkRequest = { "person": string; "platform": string; "id": string };

export type IdentityList = { "identities": Array<IdentityDetails> };

export type IdentityUnlinkRequest = { "platform": string; "id": string };

export type IdentityUnlinked = { "platform": string; "id": string; "unlinked": boolean };

export type InboxList = { "envelopes": Array<EnvelopeDetails>; "unread": number };

export type InboxListRequest = { "limit"?: number; "ack"?: boolean };

export type InitialState = { "cursor": number; "principal": string; "level": PermissionLevel; "agents": Array<ServerAgentRow>; "sessions": Array<SessionRow>; "approvals": Array<ApprovalDetails>; "unread": number };

export type InitialStateRequest = { "hidden"?: boolean };

export type InstructionMode = "full" | "minimal" | "none";

export type LaneDetails = { "session": string; "session_name": string | null; "agent": string; "kind": OriginKind; "lane": LaneKind; "run": ActiveRun | null; "waiting": Array<WaitingEnvelope>; "waiting_count": number };

export type LaneKind = "background" | "main" | "schedule" | "subagent";

export type LaneList = { "now": string; "lanes": Array<LaneDetails>; "omitted_count": number; "slots": Array<SlotUsage>; "channels": Array<ChannelQueue>; "omitted_channels_count": number; "dead_count": number; "counted_max": number };

export type LaneListRequest = { "limit"?: number };

export type LedgerCheckResult = { "ok": boolean; "lines": Array<string> };

export type LogEntryList = { "entries": Array<LogEntryRow>; "next": string | null };

export type LogEntryRow = { "at": string; "level": string; "text": string };

export type LogListRequest = { "level"?: MinimumLogLevel; "text"?: string; "limit"?: number; "cursor"?: string };

export type McpApproveRequest = { "name": string; "hash"?: string };

export type McpApproved = { "server": McpServerStatus; "approved": boolean; "diff": Array<string>; "try": string; "lines": Array<string> };

export type McpConnectionState = "failed" | "off" | "ready" | "starting" | "waiting";

export type McpRevoked = { "name": string; "revoked": boolean };

export type McpServerDetails = { "server": McpServerStatus; "content": string; "diff": Array<string>; "approved_by": string; "approved_at": string; "lines": Array<string> };

export type McpServerList = { "servers": Array<McpServerStatus> };

export type McpServerNameRequest = { "name": string };

export type McpServerStatus = { "name": string; "state": McpConnectionState; "because": string; "try": string; "hash": string; "retry_at": string; "agents": Array<string>; "tools": Array<string>; "omitted_tools": Record<string, string> };

export type MinimumLogLevel = "debug" | "error" | "info" | "warning";

export type MissedPolicy = "run" | "skip";

export type ModelCallEntry = { "type": "model"; "at_ms": number; "ended_ms": number | null; "status": TraceEntryStatus; "turn": number; "attempt": number; "summary": boolean; "model": string; "usage": Usage; "cost_microusd": number; "cost_unknown": boolean; "failure": string | null; "next_action": string | null; "error": string | null; "text": string; "text_chars": number; "calls": Array<string>; "record": number | null };

export type ModelCallRow = { "turn": number; "attempt": number; "summary": boolean; "provider": string; "model": string; "credential": string; "usage": Usage; "cost_usd": number; "cost_unknown": boolean; "failure": string | null; "next_action": string | null; "error": string | null; "at": string };

export type ModelChainEntry = { "model": string; "because": string; "window_tokens": number; "price": string; "missing"?: string; "retired"?: string };

export type ModelChainList = { "default": string; "default_because": string; "agents": Array<AgentModelChain>; "catalog_date": string };

export type ModelFailureKind = "auth" | "bad_request" | "connection" | "content_filter" | "context_overflow" | "malformed" | "not_found" | "overloaded" | "permission" | "quota" | "rate_limit" | "server" | "timeout" | "too_large";

export type ModelList = { "models": Array<ModelRow>; "allow": Array<string>; "catalog_date": string };

export type ModelRow = { "number": number; "model": string; "alias"?: string; "provider_name"?: string; "window_tokens": number; "output_tokens_max": number; "vision": boolean; "tools": boolean; "efforts": Array<string> | null; "price": string; "default": boolean; "missing"?: string; "retired"?: string };

export type ModelShowRequest = { "agent"?: string; "session"?: string };

export type ModelWithFallbacks = { "primary"?: string | null; "fallbacks"?: Array<string> | null };

export type NotificationCreateRequest = { "title": string; "text"?: string; "to"?: string };

export type NotificationCreated = { "id": string; "to": string };

export type NotificationDetails = { "id": string; "from": string; "title": string; "text": string; "at": string; "read": boolean; "untrusted": boolean; "session": string | null };

export type NotificationList = { "notifications": Array<NotificationDetails>; "unread": number; "next": string | null };

export type NotificationListRequest = { "unread"?: boolean; "limit"?: number; "before"?: string };

export type NotificationSelectionRequest = { "id"?: string; "all"?: boolean };

export type NotificationsChanged = { "changed": number; "unread": number };

export type OccurrenceDetails = { "number": number; "at": string; "trigger": string; "state": string; "because": string; "envelope": string | null; "until": string | null; "count": number | null; "started_at": string | null; "ended_at": string | null };

export type OpenRun = { "id": string; "status": RunStatus; "attempt": number };

export type OriginKind = "agent" | "background" | "chat" | "external" | "heartbeat" | "schedule" | "subagent" | "terminal" | "web";

export type Outcome = "answered" | "cancelled" | "dead" | "delivered" | "expired" | "interrupted" | "noted" | "refused";

export type Overflow = "oldest" | "refuse" | "summarize";

export type PairingAcceptRequest = { "request": string; "person"?: string };

export type PairingDecided = { "pairing": PairingDetails; "person": string };

export type PairingDetails = { "id": string; "code": string; "connector": string; "platform": string; "sender_id": string; "name": string; "state": PairingState; "requested_at": string; "expires_at": string; "decided_by": string };

export type PairingIdRequest = { "request": string };

export type PairingList = { "pairings": Array<PairingDetails>; "admitted": Array<AdmittedSenderDetails> };

export type PairingRevokeRequest = { "connector": string; "sender_id": string };

export type PairingRevoked = { "connector": string; "sender_id": string; "revoked": boolean };

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

export type PersonInvited = { "name": string; "role": Role; "invitation"?: string; "expires_at": string; "shown_once"?: Array<string> };

export type PersonList = { "people": Array<PersonDetails> };

export type PersonRoleRequest = { "name": string; "role": Role };

export type PlatformDetails = { "platform": string; "title": string; "questions": Array<SetupQuestion> };

export type PlatformList = { "platforms": Array<PlatformDetails>; "unavailable": Record<string, string> };

export type PluginDetails = { "name": string; "plugin": string; "state": PluginStatus; "version"?: string; "description"?: string; "because"?: string; "try"?: string; "exclusive"?: boolean; "folder"?: string; "registers"?: Record<string, Array<string>>; "settings_schema"?: Record<string, unknown> };

export type PluginEnableRequest = { "name": string; "plugin"?: string };

export type PluginInstanceRequest = { "name": string };

export type PluginList = { "plugins": Array<PluginDetails> };

export type PluginSettingsDetails = { "name": string; "settings": Record<string, unknown>; "schema": Record<string, unknown>; "plugin": PluginDetails };

export type PluginSettingsRequest = { "name": string; "settings": Record<string, unknown> };

export type PluginStatus = "failed" | "installed" | "loaded" | "off";

export type PoisonMessageDetails = { "id": string; "connector": string; "channel": string; "message_id": string; "because": string; "attempts": number; "state": PoisonMessageState; "at": string };

export type PoisonMessageDropped = { "id": string; "dropped": boolean };

export type PoisonMessageIdRequest = { "id": string };

export type PoisonMessageList = { "poison_messages": Array<PoisonMessageDetails> };

export type PoisonMessageListRequest = { "all"?: boolean; "limit"?: number };

export type PoisonMessageRetried = { "id": string; "envelope": string | null };

export type PoisonMessageState = "done" | "dropped" | "waiting";

export type PolicyDifference = { "session": string; "run": string; "agent": string; "tool": string; "arguments": Record<string, unknown>; "current": DecisionKind; "proposed": DecisionKind; "because": string; "key": string };

export type PolicyExplainRequest = { "agent": string; "tool": string; "args"?: Record<string, unknown>; "sender"?: string; "session"?: string; "model"?: string; "origin"?: OriginKind; "call_source"?: CallSource; "changes"?: Record<string, unknown> };

export type PolicyExplanation = { "agent": string; "tool": string; "decision": DecisionKind; "because": string; "key": string; "findings": Array<PolicyFindingRow>; "grant_permissions": Array<string>; "warnings": Array<string> };

export type PolicyFindingRow = { "layer": string; "decision": DecisionKind; "because": string; "key": string };

export type PolicyTestRequest = { "text"?: string | null; "agent"?: string };

export type PolicyTestResult = { "calls": number; "sessions": number; "differences": Array<PolicyDifference>; "omitted_count": number; "incomplete_because": string };

export type PreferenceDetails = { "key": string; "value": unknown };

export type PreferenceGetRequest = { "key": string };

export type PreferenceList = { "preferences": Array<PreferenceDetails> };

export type PreferenceSetRequest = { "key": string; "value": unknown };

export type PreviousPrompt = { "at": string; "text": string };

export type PromptFile = { "name": string; "section": string; "tokens": number; "chars": number };

export type PromptSection = { "name": string; "tokens": number; "chars": number; "text"?: string };

export type PurgeRequest = { "done_days"?: number | null; "events_days"?: number | null; "runs_days"?: number | null; "unread"?: boolean; "dry_run"?: boolean };

export type PurgeResult = { "dry_run": boolean; "envelopes": number; "events": number; "runs": number; "idempotency_keys": number; "stored_answers": number; "tokens": number; "notifications": number; "questionnaires": number; "files": number };

export type QuestionnaireCancelled = { "id": string; "state": QuestionnaireState };

export type QuestionnaireDetails = { "id": string; "short": string; "state": QuestionnaireState; "title": string; "agent": string; "session": string; "to": string; "created_at": string; "expires_at": string; "untrusted": boolean; "fields": Array<QuestionnaireFieldDetails>; "answers": Record<string, string | number | boolean | Array<string> | null>; "ended_by": string; "envelope": string | null };

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

export type QueuedEnvelopeList = { "session": string; "queue": QueuePolicy; "run": OpenRun | null; "envelopes": Array<EnvelopeDetails>; "has_more": boolean };

export type QueuedEnvelopeListRequest = { "session": string; "limit"?: number };

export type RecentEnvelopeList = { "envelopes": Array<EnvelopeRow> };

export type RecordKind = "assistant" | "note" | "reset" | "start" | "summary" | "tool" | "user";

export type ReminderAddRequest = { "text": string; "at"?: string; "delay_s"?: number; "to"?: string };

export type ReminderIdRequest = { "id": string };

export type ReminderList = { "reminders": Array<ScheduleDetails> };

export type ReminderListRequest = { "limit"?: number };

export type ReplyThreadDetails = { "envelopes": Array<EnvelopeDetails>; "omitted_count": number; "total": number; "purged": boolean };

export type Role = "guest" | "member" | "owner";

export type RunDetails = { "id": string; "session": string; "agent": string; "status": RunResultStatus; "run_status": RunStatus; "error": string | null; "model": string; "provider": string; "usage": Usage; "cost_usd": number; "started_at": string; "ended_at": string | null; "calls": Array<ModelCallRow> };

export type RunIdRequest = { "id": string };

export type RunList = { "runs": Array<RunRow>; "next": string | null };

export type RunListRequest = { "agent"?: string; "session"?: string; "person"?: string; "sender"?: string; "status"?: RunStatus | null; "model"?: string; "since"?: string; "until"?: string; "limit"?: number; "cursor"?: string };

export type RunResultStatus = "compaction" | "error" | "failover" | "ok" | "open" | "timeout";

export type RunResumedEntry = { "type": "resumed"; "at_ms": number; "because": string; "attempt": number };

export type RunRow = { "id": string; "agent": string; "session": string; "session_name": string | null; "sender": string; "person": string; "envelopes": Array<string>; "status": RunResultStatus; "run_status": RunStatus; "error": string | null; "attempt": number; "turns": number; "tool_calls": number | null; "models": Array<string>; "usage": Usage; "cost_microusd": number; "cost_unknown": boolean; "started_at": string; "started_ms": number; "ended_at": string | null; "duration_ms": number | null; "resumes_at": string | null };

export type RunStatus = "cancelled" | "completed" | "failed" | "running" | "suspended";

export type RunSuspendedEntry = { "type": "suspended"; "at_ms": number; "approval": string | null; "because": string };

export type RunTraceDetails = { "run": RunRow; "entries": Array<EnvelopeReadEntry | EnvelopeSentEntry | ModelCallEntry | ToolCallEntry | ApprovalEntry | RunSuspendedEntry | RunResumedEntry>; "omitted_count": number; "purged": boolean };

export type SandboxMode = "all" | "non-main" | "off";

export type SandboxScope = "agent" | "session" | "shared";

export type SandboxVisibleSessions = "all" | "spawned";

export type ScheduleAddRequest = { "to"?: string; "text"?: string; "at"?: string; "every"?: string; "cron"?: string; "zone"?: string; "session"?: ScheduleSession | null; "deliver_to"?: string; "missed"?: MissedPolicy | null; "delete_after_run"?: boolean; "gate"?: GateForm | null; "model"?: string; "title"?: string; "attributes"?: Record<string, unknown>; "description"?: string; "name"?: string; "enabled"?: boolean };

export type ScheduleChanged = { "id": string; "name": string; "enabled": boolean; "because": string; "next": string | null };

export type ScheduleDeleted = { "id": string; "name": string };

export type ScheduleDetails = { "id": string; "name": string; "kind": string; "owner": string; "to": string; "when": string; "at": string; "every": string; "cron": string; "zone": string; "follows_owner_zone": boolean; "enabled": boolean; "because": string; "next": string | null; "envelope": string | null; "last_run": string | null; "last_status": string | null; "text": string; "description": string; "session": string; "deliver_to": string; "missed": string; "delete_after_run": boolean; "gate": GateForm | null; "model": string; "title": string; "attributes": Record<string, unknown>; "source": string; "created_at": string; "updated_at": string; "redacted"?: boolean };

export type ScheduleExplainRequest = { "cron"?: string; "every"?: string; "at"?: string; "zone"?: string; "count"?: number };

export type ScheduleExplanation = { "description": string; "zone": string; "evaluated_at": string; "next": Array<string> };

export type ScheduleHistory = { "occurrences": Array<OccurrenceDetails>; "next": string | null };

export type ScheduleHistoryRequest = { "schedule": string; "limit"?: number; "cursor"?: string };

export type ScheduleKind = "heartbeat" | "reminder" | "schedule" | "wake-up";

export type ScheduleList = { "schedules": Array<ScheduleDetails>; "next": string | null; "unreadable_files"?: Array<string> };

export type ScheduleListRequest = { "kind"?: ScheduleKind | null; "agent"?: string; "limit"?: number; "cursor"?: string };

export type ScheduleNextRequest = { "schedule": string; "count"?: number };

export type ScheduleRequest = { "schedule": string };

export type ScheduleRunRequest = { "schedule": string; "force"?: boolean };

export type ScheduleRunResult = { "id": string; "started": boolean; "because": string; "envelope": string | null };

export type ScheduleSession = "fresh" | "main" | "own";

export type ScheduleSetRequest = { "schedule": string; "to"?: string | null; "text"?: string | null; "at"?: string | null; "every"?: string | null; "cron"?: string | null; "zone"?: string | null; "session"?: ScheduleSession | null; "deliver_to"?: string | null; "missed"?: string | null; "delete_after_run"?: boolean | null; "gate"?: GateForm | null; "model"?: string | null; "title"?: string | null; "attributes"?: Record<string, unknown> | null; "description"?: string | null };

export type SecurityFindingRow = { "check": string; "severity": "critical" | "info" | "warning"; "sentence": string; "because": string; "try": string; "fixable": boolean };

export type SendOverride = "inherit" | "off" | "on";

export type ServerAgentRow = { "name": string; "display_name": string; "model": string; "description": string; "icon": string; "color": Color | null; "visible": boolean };

export type ServerStatus = { "version": string; "cursor": number; "agents": Array<ServerAgentRow>; "default_agent": string | null; "approvals": Array<ApprovalDetails>; "principal": string; "now": string };

export type SessionActivity = "active" | "sleeping";

export type SessionAttachRequest = { "agent": string; "id": string };

export type SessionAttached = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "externalId": string; "attached": AttachStatus };

export type SessionAttributesRequest = { "session": string; "patch": Record<string, unknown> };

export type SessionCleared = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "cancelled_runs": Array<string> };

export type SessionCreateRequest = { "agent": string; "name"?: string | null; "attributes"?: Record<string, unknown> };

export type SessionDeleted = { "session": string; "deleted": boolean; "cancelled_runs": Array<string>; "cleared_pending_count": number; "restorable_until": string };

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

export type SessionPolicyDetails = { "session": string; "daily_at": string | null; "idle_minutes": number | null; "context_tokens_max": number | null; "context_started_at": string; "last_active_at": string; "next_reset_at": string | null; "next_reset_because": string; "pending_reset_because": string | null; "send": SendOverride };

export type SessionQueueRequest = { "session": string; "mode"?: QueueMode | null; "cap"?: number | null; "overflow"?: Overflow | null; "debounce_s"?: number | null };

export type SessionQueueSet = { "session": string; "queue": QueueOverride };

export type SessionRecord = { "seq": number; "kind": RecordKind; "body": unknown; "run": string | null };

export type SessionRenameRequest = { "session": string; "name": string | null };

export type SessionResetAfterRunRequest = { "session": string; "reason"?: string };

export type SessionResetAfterRunResult = { "session": string; "reset": boolean; "pending_reset_because": string | null };

export type SessionResetRequest = { "session": string; "message"?: string };

export type SessionResetResult = { "session": string; "cancelled_runs": Array<string> };

export type SessionRow = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null; "kind": OriginKind; "run": string | null; "runStatus": RunStatus | null; "unread": number };

export type SessionSendingRequest = { "session": string; "send": SendOverride };

export type SessionSendingSet = { "session": string; "send": SendOverride };

export type SessionShareRequest = { "session": string; "person": string };

export type SessionShared = { "session": string; "shared_with": Array<string> };

export type SessionState = { "cursor": number; "session": string; "agent": string; "revision": number; "wakefulness": SessionActivity; "queue": QueueOverride; "run": OpenRun | null; "records": Array<SessionRecord>; "damaged": Array<DamagedRecordRow>; "partials": Array<PartialReplyDetails> };

export type SessionStopRequest = { "session": string; "reason"?: string; "clear"?: boolean };

export type SessionStopped = { "cancelled_runs": Array<string>; "cleared_pending_count": number };

export type SessionSummary = { "sessionId": string; "agentId": string; "name": string | null; "pinnedAt": string | null; "createdAt": string; "updatedAt": string; "lastSnippet": string; "attributes": Record<string, unknown>; "origin": string; "wakefulness": SessionActivity; "archivedAt": string | null };

export type SessionTranscript = { "cursor": number; "session": string; "agent": string; "revision": number; "run": OpenRun | null; "context_start": number; "has_earlier": boolean; "records": Array<TranscriptRecord>; "damaged": Array<DamagedRecordRow>; "partials": Array<PartialReplyDetails> };

export type SessionTrimRequest = { "session": string; "seq": number; "remove": TrimMode; "revision"?: number | null };

export type SessionTrimmed = { "session": string; "revision": number; "records": number; "removed_count": number };

export type SettingChange = { "path": string; "effect": SettingEffect };

export type SettingControl = "choice" | "integer" | "list" | "number" | "other" | "switch" | "text";

export type SettingDetails = { "path": Array<string>; "help": string; "control": SettingControl; "choices": Array<string>; "minimum": number | null; "maximum": number | null; "example": string; "effect": SettingEffect; "value": unknown; "default": unknown; "from": SettingOrigin; "location": string; "pending_restart": boolean };

export type SettingEffect = "apply" | "hot" | "message" | "restart";

export type SettingOrigin = "default" | "environment" | "file";

export type SettingSectionDetails = { "path": Array<string>; "help": string; "settings": Array<SettingDetails> };

export type SettingSource = "agent" | "built_in" | "server";

export type SetupQuestion = { "key": string; "question": string; "secret": boolean; "default": string; "help": string };

export type SignInCode = { "code"?: string; "expires_at": string; "shown_once"?: Array<string> };

export type SkillApproveRequest = { "name": string; "hash"?: string; "agent"?: string; "workspace"?: string };

export type SkillApproved = { "skill": SkillRow; "approved": boolean; "diff": Array<string>; "try": string; "lines": Array<string> };

export type SkillDetails = { "skill": SkillRow; "content": string; "diff": Array<string>; "approved_by": string; "approved_at": string; "lines": Array<string> };

export type SkillExportRequest = { "name": string; "to"?: string };

export type SkillExported = { "name": string; "folder": string; "files": Array<string>; "commands": Array<string>; "approved": boolean };

export type SkillList = { "skills": Array<SkillRow>; "shadowed": Array<string>; "broken": Array<BrokenSkillRow> };

export type SkillListRequest = { "agent"?: string; "workspace"?: string };

export type SkillNameRequest = { "name": string; "agent"?: string; "workspace"?: string };

export type SkillRevoked = { "name": string; "revoked": boolean };

export type SkillRow = { "name": string; "description": string; "path": string; "source": SkillSource; "state": SkillState; "because": string; "hash": string; "bundle": string };

export type SkillSource = "agent" | "extra" | "instance" | "plugin" | "workspace";

export type SkillState = "changed" | "new" | "off" | "ready" | "unavailable";

export type SlashCommandList = { "commands": Array<SlashCommandRow> };

export type SlashCommandListRequest = { "agent"?: string };

export type SlashCommandRow = { "name": string; "syntax": string; "summary": string; "directive"?: boolean; "skill"?: string };

export type SlotUsage = { "lane": LaneKind; "used": number; "total": number; "waiting_count": number };

export type SpendGrouping = "agent" | "day" | "model" | "person" | "provider" | "run" | "session";

export type StepKind = "model" | "tool";

export type SubagentCleanup = "delete" | "keep";

export type SubagentDetails = { "id": string; "label": string; "agent": string; "outcome": string; "session": string | null; "session_key": string; "requester": string; "run": string; "task": string; "cleanup": SubagentCleanup; "created_at": string; "started_at": string | null; "ended_at": string | null; "archived_at": string | null; "because": string; "result": string | null; "result_text": string; "input_tokens": number; "output_tokens": number; "cost_microusd": number };

export type SubagentIdRequest = { "id": string };

export type SubagentList = { "subagents": Array<SubagentRow>; "next": string | null };

export type SubagentListRequest = { "session"?: string; "all"?: boolean; "limit"?: number; "cursor"?: string };

export type SubagentLogRequest = { "id": string; "limit"?: number; "before"?: number | null };

export type SubagentRow = { "id": string; "label": string; "agent": string; "outcome": string; "session": string | null; "session_key": string; "requester": string; "run": string; "task": string; "cleanup": SubagentCleanup; "created_at": string; "started_at": string | null; "ended_at": string | null; "archived_at": string | null };

export type SubagentSendRequest = { "id": string; "text": string; "key"?: string };

export type SubagentStopRequest = { "id"?: string; "session"?: string; "reason"?: string };

export type SubagentsStopped = { "stopped": number; "subagents": Array<string>; "cancelled_runs": Array<string>; "cleared_pending_count": number };

export type TemplateError = { "sentence": string; "because": string };

export type TokenCreateRequest = { "label"?: string; "principal"?: string; "expires_in_days"?: number | null };

export type TokenCreated = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created_at": string; "expires_at": string | null; "token"?: string; "shown_once"?: Array<string> };

export type TokenIdRequest = { "id": string; "principal"?: string };

export type TokenKind = "code" | "invite" | "token" | "web";

export type TokenList = { "tokens": Array<TokenRow> };

export type TokenListRequest = { "principal"?: string };

export type TokenRevoked = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created_at": string; "expires_at": string | null; "revoked": boolean };

export type TokenRow = { "id": string; "kind": TokenKind; "principal": string; "label": string; "created_at": string; "expires_at": string | null };

export type ToolCallEntry = { "type": "tool"; "at_ms": number; "ended_ms": number | null; "status": TraceEntryStatus; "turn": number; "attempt": number; "call": string; "tool": string; "arguments": Record<string, unknown>; "decision": DecisionKind; "because": string; "approval": string | null; "output": string; "output_chars": number; "full_result": string; "record": number | null };

export type ToolInvokeRequest = { "tool": string; "args"?: Record<string, unknown>; "agent"?: string; "session"?: string };

export type ToolInvokeResult = { "tool": string; "output": string; "failed": boolean };

export type ToolList = { "tools": Array<ToolRow> };

export type ToolListRequest = { "agent"?: string; "changes"?: Record<string, unknown> };

export type ToolRow = { "name": string; "description": string; "source": string; "effects": Array<string>; "capabilities": Array<string>; "repeatable": boolean; "decision"?: DecisionKind; "because"?: string };

export type TraceEntryStatus = "done" | "failed" | "interrupted" | "open" | "refused";

export type TranscriptDelegation = { "id": string; "kind": DelegationKind; "label": string; "target": string; "outcome": string };

export type TranscriptEnvelope = { "envelope": string; "from": string; "kind": EnvelopeKind; "text": string; "at": string; "attachments": Array<AttachmentDetails>; "delegation": TranscriptDelegation | null };

export type TranscriptRecord = { "seq": number; "kind": RecordKind; "at": string; "run": string | null; "trust": Trust; "body": unknown; "envelopes": Array<TranscriptEnvelope> };

export type TranscriptRequest = { "session": string; "before"?: number | null; "after"?: number | null; "limit"?: number };

export type TrimMode = "after" | "before" | "request";

export type Trust = "agent" | "owner" | "person" | "private" | "untrusted";

export type Usage = { "input_tokens"?: number; "output_tokens"?: number; "cost_microusd"?: number; "cache_read_tokens"?: number; "cache_write_tokens"?: number; "reasoning_tokens"?: number; "estimated"?: boolean };

export type UsageDaysRequest = { "by"?: UsageGrouping; "from"?: string; "to"?: string; "limit"?: number };

export type UsageGrouping = "agent" | "model" | "person" | "provider";

export type UsageReport = { "by": SpendGrouping; "from": string; "to": string; "rows": Array<UsageRow>; "omitted_count": number; "total": UsageRow };

export type UsageRequest = { "by"?: SpendGrouping; "from"?: string; "to"?: string; "agent"?: string; "person"?: string; "limit"?: number };

export type UsageRow = { "key": string; "calls": number; "failed_calls": number; "unknown_calls": number; "input_tokens": number; "output_tokens": number; "cache_read_tokens": number; "cache_write_tokens": number; "reasoning_tokens": number; "cost_microusd": number; "unknown_microusd": number; "reserved_microusd": number };

export type UsageSeries = { "key": string; "is_rest": boolean; "calls": Array<number>; "input_tokens": Array<number>; "output_tokens": Array<number>; "cost_microusd": Array<number> };

export type ValueChange = { "from": unknown; "to": unknown };

export type Verbosity = "full" | "off" | "on";

export type WaitReason = "agent" | "busy" | "next" | "not_due" | "slots" | "steered";

export type WaitingEnvelope = { "id": string; "from": string; "kind": EnvelopeKind; "excerpt": string; "position": number | null; "due_at": string; "wait_reason": WaitReason };

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
  "envelope.send": { parameters: EnvelopeSendRequest; result: EnvelopeReceipt; hasEffect: true };
  /** Show an envelope. */
  "envelope.show": { parameters: EnvelopeIdRequest; result: EnvelopeDetails; hasEffect: false };
  /** Show the reply thread of an envelope. */
  "envelope.thread": { parameters: EnvelopeIdRequest; result: ReplyThreadDetails; hasEffect: false };
  /** List dead letters. */
  "envelope.dead": { parameters: DeadLetterListRequest; result: DeadLetterList; hasEffect: false };
  /** Cancel a waiting envelope. */
  "envelope.cancel": { parameters: EnvelopeIdRequest; result: EnvelopeCancelled; hasEffect: true };
  /** Retry a dead letter. */
  "envelope.retry": { parameters: EnvelopeIdRequest; result: EnvelopeReceipt; hasEffect: true };
  /** List envelopes by sender or recipient. */
  "envelope.list": { parameters: EnvelopeListRequest; result: EnvelopeList; hasEffect: true };
  /** List the newest envelopes. */
  "envelope.recent": { parameters: EnvelopeRecentRequest; result: RecentEnvelopeList; hasEffect: false };
  /** List your unread messages. */
  "inbox.list": { parameters: InboxListRequest; result: InboxList; hasEffect: true };
  /** List sessions. */
  "session.list": { parameters: SessionListRequest; result: SessionList; hasEffect: false };
  /** Create a session with an agent. */
  "session.create": { parameters: SessionCreateRequest; result: SessionSummary; hasEffect: true };
  /** Rename a session. */
  "session.rename": { parameters: SessionRenameRequest; result: SessionSummary; hasEffect: true };
  /** Pin a session to the top of the list. */
  "session.pin": { parameters: SessionIdRequest; result: SessionSummary; hasEffect: true };
  /** Unpin a session. */
  "session.unpin": { parameters: SessionIdRequest; result: SessionSummary; hasEffect: true };
  /** Change the attributes of a session. */
  "session.attributes": { parameters: SessionAttributesRequest; result: SessionSummary; hasEffect: true };
  /** Clear a session: start a new context without earlier messages. */
  "session.clear": { parameters: SessionIdRequest; result: SessionCleared; hasEffect: true };
  /** Stop the run in a session. */
  "session.stop": { parameters: SessionStopRequest; result: SessionStopped; hasEffect: true };
  /** Stop the run in a session, and reset the context. */
  "session.reset": { parameters: SessionResetRequest; result: SessionResetResult; hasEffect: true };
  /** Show the records of a session. */
  "session.history": { parameters: SessionHistoryRequest; result: SessionHistory; hasEffect: false };
  /** Show the current state of a session. */
  "session.state": { parameters: SessionIdRequest; result: SessionState; hasEffect: false };
  /** Share a session with a person. */
  "session.share": { parameters: SessionShareRequest; result: SessionShared; hasEffect: true };
  /** Stop sharing a session with a person. */
  "session.unshare": { parameters: SessionShareRequest; result: SessionShared; hasEffect: true };
  /** Open a session of an external agent under an id that you choose. */
  "session.attach": { parameters: SessionAttachRequest; result: SessionAttached; hasEffect: true };
  /** Mark the messages from a session as read. */
  "session.mark_read": { parameters: SessionIdRequest; result: SessionMarkedRead; hasEffect: true };
  /** Show when a session's context is reset, and whether its replies are sent to its channel. */
  "session.policy": { parameters: SessionIdRequest; result: SessionPolicyDetails; hasEffect: false };
  /** Reset the context after the current run. */
  "session.reset_after_run": { parameters: SessionResetAfterRunRequest; result: SessionResetAfterRunResult; hasEffect: true };
  /** Set whether a session's replies are sent to its channel. */
  "session.set_sending": { parameters: SessionSendingRequest; result: SessionSendingSet; hasEffect: true };
  /** Read a conversation with the original text of its messages, newest page first. */
  "session.transcript": { parameters: TranscriptRequest; result: SessionTranscript; hasEffect: false };
  /** Show how a run ended, and its models, tokens and cost. */
  "run.show": { parameters: RunIdRequest; result: RunDetails; hasEffect: false };
  /** List runs with their cost and result, newest first. */
  "run.list": { parameters: RunListRequest; result: RunList; hasEffect: false };
  /** Show everything a run did: model calls, tool calls, approvals and envelopes, with times and cost. */
  "run.trace": { parameters: RunIdRequest; result: RunTraceDetails; hasEffect: false };
  /** List pending or past approvals. */
  "approval.list": { parameters: ApprovalListRequest; result: ApprovalList; hasEffect: false };
  /** Answer an approval: allow or deny the calls. */
  "approval.answer": { parameters: ApprovalAnswerRequest; result: ApprovalAnswered; hasEffect: true };
  /** List the slash commands of a conversation. */
  "slash_command.list": { parameters: SlashCommandListRequest; result: SlashCommandList; hasEffect: false };
  /** Export a session as files. */
  "session.export": { parameters: SessionIdRequest; result: SessionExport; hasEffect: false };
  /** Import a session from files. */
  "session.import": { parameters: SessionImportRequest; result: SessionSummary; hasEffect: true };
  /** Fork a session: copy its records up to a chosen record. */
  "session.fork": { parameters: SessionForkRequest; result: SessionForked; hasEffect: true };
  /** Remove records from the context of a session. */
  "session.trim": { parameters: SessionTrimRequest; result: SessionTrimmed; hasEffect: true };
  /** List deleted sessions that can be restored. */
  "session.deleted": { parameters: DeletedSessionListRequest; result: DeletedSessionList; hasEffect: false };
  /** Restore a deleted session. */
  "session.restore": { parameters: SessionIdRequest; result: SessionSummary; hasEffect: true };
  /** Delete a session. */
  "session.delete": { parameters: SessionIdRequest; result: SessionDeleted; hasEffect: true };
  /** List the envelopes that are waiting in a session, in the order in which they will be read. */
  "session.queued": { parameters: QueuedEnvelopeListRequest; result: QueuedEnvelopeList; hasEffect: false };
  /** Set how messages are queued while a run is active. */
  "session.set_queue": { parameters: SessionQueueRequest; result: SessionQueueSet; hasEffect: true };
  /** List delegations between agents. */
  "delegation.list": { parameters: DelegationListRequest; result: DelegationList; hasEffect: false };
  /** Stop a delegation, and all delegations that its run made in turn. */
  "delegation.stop": { parameters: DelegationStopRequest; result: DelegationStopped; hasEffect: true };
  /** List subagents. */
  "subagent.list": { parameters: SubagentListRequest; result: SubagentList; hasEffect: false };
  /** Show a subagent and its result. */
  "subagent.show": { parameters: SubagentIdRequest; result: SubagentDetails; hasEffect: false };
  /** Stop a subagent, or all subagents of a session. */
  "subagent.stop": { parameters: SubagentStopRequest; result: SubagentsStopped; hasEffect: true };
  /** Show the history of a subagent. */
  "subagent.log": { parameters: SubagentLogRequest; result: SessionHistory; hasEffect: false };
  /** Send a message to a subagent. */
  "subagent.send": { parameters: SubagentSendRequest; result: EnvelopeReceipt; hasEffect: true };
  /** List agents. */
  "agent.list": { parameters: EmptyRequest; result: AgentList; hasEffect: false };
  /** Show an agent. */
  "agent.show": { parameters: AgentNameRequest; result: AgentDetails; hasEffect: false };
  /** Register an agent. */
  "agent.register": { parameters: AgentRegisterRequest; result: AgentRegistered; hasEffect: true };
  /** Change an agent. */
  "agent.set": { parameters: AgentSetRequest; result: AgentChanged; hasEffect: true };
  /** List the versions of an agent. */
  "agent.versions": { parameters: AgentVersionsRequest; result: AgentVersionList; hasEffect: false };
  /** Compare two versions of an agent. */
  "agent.diff": { parameters: AgentDiffRequest; result: AgentComparison; hasEffect: false };
  /** Restore an old version of an agent. */
  "agent.restore": { parameters: AgentRestoreRequest; result: AgentRestored; hasEffect: true };
  /** Delete an agent. */
  "agent.delete": { parameters: AgentDeleteRequest; result: AgentDeleted; hasEffect: true };
  /** Create a permanent agent inside your workspace (for agents only). */
  "agent.create_permanent": { parameters: PermanentAgentRequest; result: PermanentAgentResult; hasEffect: true };
  /** List the files that define an agent. */
  "agent.files": { parameters: AgentFilesRequest; result: AgentFileList; hasEffect: false };
  /** Show one file that defines an agent. */
  "agent.file": { parameters: AgentFileRequest; result: AgentFileDetails; hasEffect: false };
  /** Write one file that defines an agent. */
  "agent.write_file": { parameters: AgentFileWriteRequest; result: AgentFileWritten; hasEffect: true };
  /** Show the system prompt of an agent, section by section. */
  "agent.prompt": { parameters: AgentPromptRequest; result: AgentPromptDetails; hasEffect: false };
  /** List the available models. */
  "model.list": { parameters: EmptyRequest; result: ModelList; hasEffect: false };
  /** Show which models an agent would use now, and why. */
  "model.show": { parameters: ModelShowRequest; result: ModelChainList; hasEffect: false };
  /** List model credentials and their failures. Keys are not shown. */
  "credential.list": { parameters: CredentialListRequest; result: CredentialList; hasEffect: false };
  /** Add a credential, for the server or for one agent. */
  "credential.add": { parameters: CredentialAddRequest; result: CredentialDetails; hasEffect: true };
  /** Remove a credential and its stored key. */
  "credential.remove": { parameters: CredentialIdRequest; result: CredentialRemoved; hasEffect: true };
  /** Set the order in which a provider's credentials are used. */
  "credential.order": { parameters: CredentialOrderRequest; result: CredentialList; hasEffect: true };
  /** Record that a credential worked, and clear its failures. */
  "credential.mark_used": { parameters: CredentialUseRequest; result: CredentialDetails; hasEffect: true };
  /** Record that a credential failed, so the server does not use it for a while. */
  "credential.mark_failed": { parameters: CredentialFailureRequest; result: CredentialDetails; hasEffect: true };
  /** Clear a credential's failures, so that the server can use the credential again at once. */
  "credential.clear": { parameters: CredentialUseRequest; result: CredentialDetails; hasEffect: true };
  /** List people and their roles. */
  "person.list": { parameters: EmptyRequest; result: PersonList; hasEffect: false };
  /** Show your address and your permission level. */
  "person.whoami": { parameters: EmptyRequest; result: CallerDetails; hasEffect: false };
  /** Invite a person. The invitation is shown only once. */
  "person.invite": { parameters: PersonInviteRequest; result: PersonInvited; hasEffect: true };
  /** Change a person's role. */
  "person.role": { parameters: PersonRoleRequest; result: PersonDetails; hasEffect: true };
  /** Erase a person: remove their access and delete their messages. */
  "person.forget": { parameters: PersonForgetRequest; result: PersonForgotten; hasEffect: true };
  /** Create a token. Its secret is shown only once. */
  "token.create": { parameters: TokenCreateRequest; result: TokenCreated; hasEffect: true };
  /** List tokens, without their secrets. */
  "token.list": { parameters: TokenListRequest; result: TokenList; hasEffect: false };
  /** Revoke a token. */
  "token.revoke": { parameters: TokenIdRequest; result: TokenRevoked; hasEffect: true };
  /** Replace the secret of a token. The new secret is shown only once. */
  "token.rotate": { parameters: TokenIdRequest; result: TokenCreated; hasEffect: true };
  /** Create a code with which a browser can sign in once. */
  "token.code": { parameters: EmptyRequest; result: SignInCode; hasEffect: true };
  /** Show the settings in use. */
  "config.show": { parameters: EmptyRequest; result: ConfigDetails; hasEffect: false };
  /** Check a settings file. */
  "config.check": { parameters: ConfigCheckRequest; result: ConfigChecked; hasEffect: false };
  /** Change the settings file and keep its comments. */
  "config.patch": { parameters: ConfigPatchRequest; result: ConfigChanged; hasEffect: true };
  /** Reload the settings file. */
  "config.reload": { parameters: EmptyRequest; result: ConfigChanged; hasEffect: true };
  /** Apply the agents, people, schedules and bindings of the settings file. */
  "config.apply": { parameters: ConfigApplyRequest; result: ConfigApplied; hasEffect: true };
  /** Export agents and people as a settings file, without secrets. */
  "config.export": { parameters: EmptyRequest; result: ConfigExported; hasEffect: false };
  /** List all settings, their values and where each value is set. */
  "config.fields": { parameters: EmptyRequest; result: ConfigFields; hasEffect: false };
  /** Preview a change to the settings file without making it. */
  "config.preview": { parameters: ConfigPreviewRequest; result: ConfigPreview; hasEffect: false };
  /** Show the agents and your pending approvals. */
  "server.status": { parameters: EmptyRequest; result: ServerStatus; hasEffect: false };
  /** Return the state that a client needs when it starts, and the cursor for the events that follow. */
  "server.initial_state": { parameters: InitialStateRequest; result: InitialState; hasEffect: false };
  /** Check the ledger: prove that no message was lost. */
  "server.ledger": { parameters: EmptyRequest; result: LedgerCheckResult; hasEffect: false };
  /** Explain what happened to an envelope, run, approval or session. */
  "server.why": { parameters: WhyRequest; result: WhyExplanation; hasEffect: false };
  /** Show active runs, and waiting envelopes with the reason why each is waiting. */
  "server.lanes": { parameters: LaneListRequest; result: LaneList; hasEffect: false };
  /** Show the server log, newest first. */
  "server.logs": { parameters: LogListRequest; result: LogEntryList; hasEffect: false };
  /** Back up all data to a new folder while the server is running. */
  "server.backup": { parameters: BackupRequest; result: BackupResult; hasEffect: true };
  /** Delete old data. By default, the data is only counted. */
  "server.purge": { parameters: PurgeRequest; result: PurgeResult; hasEffect: true };
  /** Show usage and cost. */
  "usage.show": { parameters: UsageRequest; result: UsageReport; hasEffect: false };
  /** Show usage per day, grouped by agent, model, provider or person. */
  "usage.days": { parameters: UsageDaysRequest; result: DailyUsageReport; hasEffect: false };
  /** Show the budgets, and how much of each is spent. */
  "usage.budgets": { parameters: EmptyRequest; result: BudgetList; hasEffect: false };
  /** Explain why an agent may or may not use a tool, or needs an approval. */
  "policy.explain": { parameters: PolicyExplainRequest; result: PolicyExplanation; hasEffect: false };
  /** Check recorded tool calls against changed settings, and show each call whose decision would change. */
  "policy.test": { parameters: PolicyTestRequest; result: PolicyTestResult; hasEffect: false };
  /** List all tools, or show which of them an agent may use. */
  "tool.list": { parameters: ToolListRequest; result: ToolList; hasEffect: false };
  /** List the grants of agents. */
  "grant.list": { parameters: EmptyRequest; result: GrantList; hasEffect: false };
  /** Grant an agent a permission. */
  "grant.add": { parameters: GrantAddRequest; result: GrantDetails; hasEffect: true };
  /** Revoke a grant. This takes effect at once. */
  "grant.revoke": { parameters: GrantIdRequest; result: GrantRevoked; hasEffect: true };
  /** Call a tool directly, as an agent would. */
  "tool.invoke": { parameters: ToolInvokeRequest; result: ToolInvokeResult; hasEffect: true };
  /** List skills, their status and folders. */
  "skill.list": { parameters: SkillListRequest; result: SkillList; hasEffect: false };
  /** Show a skill, and what changed since it was approved. */
  "skill.show": { parameters: SkillNameRequest; result: SkillDetails; hasEffect: false };
  /** Approve a skill's current version after reading it. */
  "skill.approve": { parameters: SkillApproveRequest; result: SkillApproved; hasEffect: true };
  /** Revoke the approval of a skill. */
  "skill.revoke": { parameters: SkillNameRequest; result: SkillRevoked; hasEffect: true };
  /** Export all operations of a noun, such as session, as a skill with commands. */
  "skill.export": { parameters: SkillExportRequest; result: SkillExported; hasEffect: true };
  /** List plugins and their status. */
  "plugin.list": { parameters: EmptyRequest; result: PluginList; hasEffect: false };
  /** Show one plugin and what it registers. */
  "plugin.show": { parameters: PluginInstanceRequest; result: PluginDetails; hasEffect: false };
  /** Show the settings of a plugin. */
  "plugin.settings": { parameters: PluginInstanceRequest; result: PluginSettingsDetails; hasEffect: false };
  /** Change some settings of a plugin. */
  "plugin.patch": { parameters: PluginSettingsRequest; result: PluginSettingsDetails; hasEffect: true };
  /** Replace all settings of a plugin. */
  "plugin.replace": { parameters: PluginSettingsRequest; result: PluginSettingsDetails; hasEffect: true };
  /** Enable and load a plugin. */
  "plugin.enable": { parameters: PluginEnableRequest; result: PluginDetails; hasEffect: true };
  /** Disable and unload a plugin. Its data is kept. */
  "plugin.disable": { parameters: PluginInstanceRequest; result: PluginDetails; hasEffect: true };
  /** Unload a plugin and load it again. */
  "plugin.reload": { parameters: PluginInstanceRequest; result: PluginDetails; hasEffect: true };
  /** List hooks, their status and folders. */
  "hook.list": { parameters: HookListRequest; result: HookList; hasEffect: false };
  /** Show a hook: its description and its program. */
  "hook.show": { parameters: HookNameRequest; result: HookContent; hasEffect: false };
  /** Enable a hook's current version. */
  "hook.enable": { parameters: HookEnableRequest; result: HookDetails; hasEffect: true };
  /** Disable a hook. */
  "hook.disable": { parameters: HookNameRequest; result: HookDisabled; hasEffect: true };
  /** List MCP servers and their status. */
  "mcp.list": { parameters: EmptyRequest; result: McpServerList; hasEffect: false };
  /** Show the tools of an MCP server, and what changed since they were approved. */
  "mcp.show": { parameters: McpServerNameRequest; result: McpServerDetails; hasEffect: false };
  /** Approve the current tools of an MCP server after reading them. */
  "mcp.approve": { parameters: McpApproveRequest; result: McpApproved; hasEffect: true };
  /** Revoke the approval of an MCP server's tools. */
  "mcp.revoke": { parameters: McpServerNameRequest; result: McpRevoked; hasEffect: true };
  /** Restart an MCP server. */
  "mcp.restart": { parameters: McpServerNameRequest; result: McpServerStatus; hasEffect: true };
  /** List connectors and their status. */
  "connector.list": { parameters: EmptyRequest; result: ConnectorList; hasEffect: false };
  /** List the supported platforms. */
  "connector.platforms": { parameters: EmptyRequest; result: PlatformList; hasEffect: false };
  /** Show a connector and its settings. */
  "connector.show": { parameters: ConnectorNameRequest; result: ConnectorDetails; hasEffect: false };
  /** Test the connection of a connector. */
  "connector.test": { parameters: ConnectorNameRequest; result: ConnectorTestResult; hasEffect: false };
  /** Add a connector. */
  "connector.add": { parameters: ConnectorAddRequest; result: ConnectorAdded; hasEffect: true };
  /** Remove a connector. */
  "connector.remove": { parameters: ConnectorNameRequest; result: ConnectorRemoved; hasEffect: true };
  /** Enable a connector. */
  "connector.enable": { parameters: ConnectorNameRequest; result: ConnectorStatus; hasEffect: true };
  /** Disable a connector. */
  "connector.disable": { parameters: ConnectorNameRequest; result: ConnectorStatus; hasEffect: true };
  /** List unprocessed messages. */
  "poison_message.list": { parameters: PoisonMessageListRequest; result: PoisonMessageList; hasEffect: false };
  /** Process an unprocessed message again. */
  "poison_message.retry": { parameters: PoisonMessageIdRequest; result: PoisonMessageRetried; hasEffect: true };
  /** Drop an unprocessed message. */
  "poison_message.drop": { parameters: PoisonMessageIdRequest; result: PoisonMessageDropped; hasEffect: true };
  /** List which agent answers in which channel. */
  "binding.list": { parameters: EmptyRequest; result: BindingList; hasEffect: false };
  /** Set which agent answers in a channel, and replace the previous binding. */
  "binding.set": { parameters: BindingSetRequest; result: BindingSet; hasEffect: true };
  /** Remove a binding. */
  "binding.remove": { parameters: BindingIdRequest; result: BindingRemoved; hasEffect: true };
  /** List access requests and admitted senders. */
  "pairing.list": { parameters: EmptyRequest; result: PairingList; hasEffect: false };
  /** Accept an access request, by its pairing code or its id. */
  "pairing.accept": { parameters: PairingAcceptRequest; result: PairingDecided; hasEffect: true };
  /** Refuse an access request, by its pairing code or its id. */
  "pairing.refuse": { parameters: PairingIdRequest; result: PairingDecided; hasEffect: true };
  /** Revoke the access of an admitted sender. */
  "pairing.revoke": { parameters: PairingRevokeRequest; result: PairingRevoked; hasEffect: true };
  /** List identities: platform ids linked to people. */
  "identity.list": { parameters: EmptyRequest; result: IdentityList; hasEffect: false };
  /** Link a platform id to a person. */
  "identity.link": { parameters: IdentityLinkRequest; result: IdentityDetails; hasEffect: true };
  /** Unlink a platform id from its person. */
  "identity.unlink": { parameters: IdentityUnlinkRequest; result: IdentityUnlinked; hasEffect: true };
  /** List audit entries, newest first. */
  "audit.list": { parameters: AuditListRequest; result: AuditEntryList; hasEffect: false };
  /** Verify that the audit log is unchanged. */
  "audit.verify": { parameters: AuditVerifyRequest; result: AuditVerifyResult; hasEffect: false };
  /** Export the audit log as JSON lines. */
  "audit.export": { parameters: AuditExportRequest; result: AuditExport; hasEffect: false };
  /** Check the server and its data, and report problems, each with a next step. */
  "server.doctor": { parameters: DoctorRequest; result: DoctorReport; hasEffect: false };
  /** Notify a person. */
  "notification.create": { parameters: NotificationCreateRequest; result: NotificationCreated; hasEffect: true };
  /** List your notifications, newest first. */
  "notification.list": { parameters: NotificationListRequest; result: NotificationList; hasEffect: false };
  /** Mark notifications as read. */
  "notification.read": { parameters: NotificationSelectionRequest; result: NotificationsChanged; hasEffect: true };
  /** Delete notifications. */
  "notification.clear": { parameters: NotificationSelectionRequest; result: NotificationsChanged; hasEffect: true };
  /** List your questionnaires, newest first. */
  "questionnaire.list": { parameters: QuestionnaireListRequest; result: QuestionnaireList; hasEffect: false };
  /** Show a questionnaire. */
  "questionnaire.show": { parameters: QuestionnaireIdRequest; result: QuestionnaireDetails; hasEffect: false };
  /** Answer a questionnaire. The agent gets your answers. */
  "questionnaire.submit": { parameters: QuestionnaireSubmitRequest; result: QuestionnaireSubmitted; hasEffect: true };
  /** Close a questionnaire without an answer. */
  "questionnaire.cancel": { parameters: QuestionnaireIdRequest; result: QuestionnaireCancelled; hasEffect: true };
  /** Show one of your preferences. */
  "preference.get": { parameters: PreferenceGetRequest; result: PreferenceDetails; hasEffect: false };
  /** List your preferences. */
  "preference.list": { parameters: EmptyRequest; result: PreferenceList; hasEffect: false };
  /** Set one of your preferences, for all your devices. */
  "preference.set": { parameters: PreferenceSetRequest; result: PreferenceDetails; hasEffect: true };
  /** Schedule a message, once or repeatedly. */
  "schedule.add": { parameters: ScheduleAddRequest; result: ScheduleDetails; hasEffect: true };
  /** List your schedules, newest first. */
  "schedule.list": { parameters: ScheduleListRequest; result: ScheduleList; hasEffect: false };
  /** Show a schedule. */
  "schedule.show": { parameters: ScheduleRequest; result: ScheduleDetails; hasEffect: false };
  /** Change a schedule. */
  "schedule.set": { parameters: ScheduleSetRequest; result: ScheduleDetails; hasEffect: true };
  /** Enable a schedule. */
  "schedule.enable": { parameters: ScheduleRequest; result: ScheduleChanged; hasEffect: true };
  /** Disable a schedule. */
  "schedule.disable": { parameters: ScheduleRequest; result: ScheduleChanged; hasEffect: true };
  /** Run a schedule now, even if it is disabled. */
  "schedule.run": { parameters: ScheduleRunRequest; result: ScheduleRunResult; hasEffect: true };
  /** Describe the times of a schedule in words, and list the next ones. */
  "schedule.explain": { parameters: ScheduleExplainRequest; result: ScheduleExplanation; hasEffect: false };
  /** List the next occurrences of a schedule. */
  "schedule.next": { parameters: ScheduleNextRequest; result: ScheduleExplanation; hasEffect: false };
  /** List the past occurrences of a schedule and their results. */
  "schedule.history": { parameters: ScheduleHistoryRequest; result: ScheduleHistory; hasEffect: false };
  /** Delete a schedule and its history. */
  "schedule.delete": { parameters: ScheduleRequest; result: ScheduleDeleted; hasEffect: true };
  /** List heartbeats with their times and tasks. */
  "heartbeat.list": { parameters: HeartbeatListRequest; result: HeartbeatList; hasEffect: false };
  /** Show a heartbeat task. */
  "heartbeat.show": { parameters: HeartbeatTaskRequest; result: HeartbeatTaskDetails; hasEffect: false };
  /** Add a task to an agent's heartbeat. */
  "heartbeat.add": { parameters: HeartbeatAddRequest; result: HeartbeatTaskAdded; hasEffect: true };
  /** Remove a task from an agent's heartbeat. */
  "heartbeat.remove": { parameters: HeartbeatTaskRequest; result: HeartbeatTaskRemoved; hasEffect: true };
  /** Run the given heartbeat tasks now, or all tasks that are due. */
  "heartbeat.run": { parameters: HeartbeatRunRequest; result: HeartbeatRunResult; hasEffect: true };
  /** List the occurrences scheduled for the coming days. */
  "schedule.calendar": { parameters: CalendarRequest; result: CalendarDetails; hasEffect: false };
  /** Send a person a reminder at a set time, without starting a run. */
  "reminder.add": { parameters: ReminderAddRequest; result: ScheduleDetails; hasEffect: true };
  /** List pending reminders, soonest first. */
  "reminder.list": { parameters: ReminderListRequest; result: ReminderList; hasEffect: false };
  /** Delete a reminder. */
  "reminder.delete": { parameters: ReminderIdRequest; result: ScheduleDeleted; hasEffect: true };
  /** Send a message to a session at a set time, to wake its agent. */
  "wakeup.add": { parameters: WakeupAddRequest; result: ScheduleDetails; hasEffect: true };
  /** List pending wake-ups (messages to sessions), soonest first. */
  "wakeup.list": { parameters: WakeupListRequest; result: WakeupList; hasEffect: false };
  /** Delete a wake-up. */
  "wakeup.delete": { parameters: ReminderIdRequest; result: ScheduleDeleted; hasEffect: true };
}

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
  "session.create": "/api/session/create",
  "session.rename": "/api/session/rename",
  "session.pin": "/api/session/pin",
  "session.unpin": "/api/session/unpin",
  "session.attributes": "/api/session/attributes",
  "session.clear": "/api/session/clear",
  "session.stop": "/api/session/stop",
  "session.reset": "/api/session/reset",
  "session.history": "/api/session/history",
  "session.state": "/api/session/state",
  "session.share": "/api/session/share",
  "session.unshare": "/api/session/unshare",
  "session.attach": "/api/session/attach",
  "session.mark_read": "/api/session/mark_read",
  "session.policy": "/api/session/policy",
  "session.reset_after_run": "/api/session/reset_after_run",
  "session.set_sending": "/api/session/set_sending",
  "session.transcript": "/api/session/transcript",
  "run.show": "/api/run/show",
  "run.list": "/api/run/list",
  "run.trace": "/api/run/trace",
  "approval.list": "/api/approval/list",
  "approval.answer": "/api/approval/answer",
  "slash_command.list": "/api/slash_command/list",
  "session.export": "/api/session/export",
  "session.import": "/api/session/import",
  "session.fork": "/api/session/fork",
  "session.trim": "/api/session/trim",
  "session.deleted": "/api/session/deleted",
  "session.restore": "/api/session/restore",
  "session.delete": "/api/session/delete",
  "session.queued": "/api/session/queued",
  "session.set_queue": "/api/session/set_queue",
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
  "agent.create_permanent": "/api/agent/create_permanent",
  "agent.files": "/api/agent/files",
  "agent.file": "/api/agent/file",
  "agent.write_file": "/api/agent/write_file",
  "agent.prompt": "/api/agent/prompt",
  "model.list": "/api/model/list",
  "model.show": "/api/model/show",
  "credential.list": "/api/credential/list",
  "credential.add": "/api/credential/add",
  "credential.remove": "/api/credential/remove",
  "credential.order": "/api/credential/order",
  "credential.mark_used": "/api/credential/mark_used",
  "credential.mark_failed": "/api/credential/mark_failed",
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
  "server.status": "/api/server/status",
  "server.initial_state": "/api/server/initial_state",
  "server.ledger": "/api/server/ledger",
  "server.why": "/api/server/why",
  "server.lanes": "/api/server/lanes",
  "server.logs": "/api/server/logs",
  "server.backup": "/api/server/backup",
  "server.purge": "/api/server/purge",
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
  "connector.platforms": "/api/connector/platforms",
  "connector.show": "/api/connector/show",
  "connector.test": "/api/connector/test",
  "connector.add": "/api/connector/add",
  "connector.remove": "/api/connector/remove",
  "connector.enable": "/api/connector/enable",
  "connector.disable": "/api/connector/disable",
  "poison_message.list": "/api/poison_message/list",
  "poison_message.retry": "/api/poison_message/retry",
  "poison_message.drop": "/api/poison_message/drop",
  "binding.list": "/api/binding/list",
  "binding.set": "/api/binding/set",
  "binding.remove": "/api/binding/remove",
  "pairing.list": "/api/pairing/list",
  "pairing.accept": "/api/pairing/accept",
  "pairing.refuse": "/api/pairing/refuse",
  "pairing.revoke": "/api/pairing/revoke",
  "identity.list": "/api/identity/list",
  "identity.link": "/api/identity/link",
  "identity.unlink": "/api/identity/unlink",
  "audit.list": "/api/audit/list",
  "audit.verify": "/api/audit/verify",
  "audit.export": "/api/audit/export",
  "server.doctor": "/api/server/doctor",
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
