"""Describes the parameters of operations as plain data, for the CLI and the reference pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import msgspec
from msgspec import Struct, inspect

from retinue.operations.base import Operation

ScalarDefault = str | int | float | bool | None

PARAMETER_FLAGS = ("required", "repeated", "nullable", "positional")


class ParameterKind(StrEnum):
    """Type of the values that a parameter accepts in the CLI."""

    TEXT = "text"
    LONG_TEXT = "long_text"  # text that may be read from stdin
    NUMBER = "number"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    FILE = "file"  # a path; the file is sent as name and bytes
    JSON = "json"


class OperationParameter(Struct, frozen=True, kw_only=True):
    """One parameter of an operation, and whether it is an option or a positional argument in the CLI."""

    name: str
    option: str
    kind: ParameterKind
    default: ScalarDefault
    help: str
    choices: tuple[str, ...]
    required: bool
    repeated: bool
    nullable: bool  # null is accepted, and means something other than an omitted parameter
    positional: bool


# Help for parameters whose declaration has no `msgspec.Meta(description=...)`. A parameter gets the most specific
# entry: for its operation (`noun.verb.parameter`), for its noun (`noun.parameter`) or for all operations (`parameter`).
_HELP: Mapping[str, str] = {
    "agent.name": "name of an agent",
    "agent.create_permanent.agent_id": "name of the agent in addresses; default: derived from `name`",
    "agent.create_permanent.name": "display name of the agent",
    "agent.create_permanent.system_prompt": "instructions for the agent",
    "agent.create_permanent.workspace_dir": "folder inside your workspace in which the agent works; default: a new one",
    "agent.diff.new": "version to compare to; default: the newest",
    "agent.diff.old": "version to compare from",
    "agent.register.name": "name of the new agent",
    "agent.set.clear": "field to reset to its default",
    "agent.restore.version": "number of the version to restore",
    "agent.versions.before": "`next` of the previous page; default: the first page",
    "approval.answer.allow": "allow the calls; otherwise they are denied",
    "approval.answer.because": "comment on the decision, which the agent reads",
    "approval.answer.scope": "how long the permission lasts",
    "approval.id": "id of an approval, or at least its first 8 digits",
    "config.apply.overwrite": "overwrite changes that were made outside the settings file",
    "config.apply.reset": "also delete all runs and all undeclared schedules and bindings, and replace agent tokens",
    "config.check.text": "text of a settings file; default: the file in use",
    "config.patch.changes": "nested tables with the new values, as in the settings file; null removes a setting",
    "config.patch.expected_hash": "hash of the file as you last read it, from `config check` or `config show`",
    "delegation.id": "id of a delegation, or at least its first 8 digits",
    "delegation.stop.reason": "reason, stored with the stopped delegation",
    "envelope.dead.before": "id of the last envelope on the previous page",
    "envelope.list.ack": "mark the listed envelopes as read",
    "envelope.list.before": "id of the last envelope on the previous page",
    "envelope.id": "id of an envelope, or at least its first 8 digits",
    "envelope.list.from": "only envelopes from this sender",
    "envelope.list.to": "only envelopes to this recipient",
    "envelope.list.status": "status of the envelopes to list",
    "envelope.send.extra_system_prompt": "text to add to the system prompt of the run",
    "envelope.send.key": "idempotency key: two envelopes with the same key are accepted as one",
    "envelope.send.lane": "lane kind whose slots the run uses; default: the lane kind of the session",
    "envelope.send.session": "id of a session, or `latest` for the session that you used last",
    "envelope.send.to": "agent:NAME[/SESSION], person:NAME or channel:CONNECTOR:CHANNEL; default: the default agent",
    "envelope.send.workspace": "absolute path of the workspace for the run",
    "grant.id": "id of a grant, or at least its first 8 digits",
    "server.backup.to": "absolute path of the folder to create; default: a new folder in RETINUE_HOME/backups",
    "server.backup.verify": "read the backup again and check every part of it",
    "server.doctor.quick": "skip checks that read the whole store",
    "server.purge.dry_run": "make a dry run, which only counts what would be deleted",
    "server.purge.unread": "also delete envelopes that their recipient has not marked as read",
    "server.why.id": "id of an envelope, run, approval or session, or at least its first 8 digits",
    "inbox.list.ack": "mark the listed envelopes as read",
    "model.show.agent": "name of an agent; default: all agents",
    "model.show.session": "id of a session, to include the model that was chosen for it",
    "notification.id": "id of a notification, or at least its first 8 digits",
    "notification.text": "text of the notification",
    "person.forget.confirm": "name of the person again, to confirm; this cannot be undone",
    "person.invite.name": "name of the new person",
    "person.invite.role": "role of the new person",
    "person.name": "name of a person",
    "person.role.role": "new role of the person",
    "questionnaire.id": "id of a questionnaire, or at least its first 8 digits",
    "reminder.id": "id of a reminder, or at least its first 8 digits",
    "run.id": "id of a run, or at least its first 8 digits",
    "schedule.add.enabled": "enable the schedule",
    "schedule.count": "maximum number of occurrences to list",
    "schedule.gate": "command that decides whether an occurrence starts a run",
    "schedule.list.kind": "only schedules of this kind",
    "schedule.set.attributes": "attributes of the schedule's dedicated conversation",
    "schedule.set.deliver_to": "address that gets the answer, or `none`",
    "schedule.set.description": "purpose of the schedule",
    "schedule.set.session": "conversation in which each occurrence runs: fresh, own or main, as in `schedule add`",
    "schedule.at": "time of a single occurrence: +2h, or 2026-01-28T20:30 with or without an offset",
    "schedule.cron": "cron expression: 5 fields, 6 with seconds first, or @hourly @daily @weekly @monthly",
    "schedule.delete_after_run": "delete the schedule after its run",
    "schedule.every": "interval: 30m, 1h30m, 1d",
    "schedule.title": "title of the schedule's dedicated conversation",
    "schedule.zone": "time zone; default: the owner's",
    "session.attributes.patch": "object to merge into the attributes; the value null removes an attribute",
    "session.create.name": "name of the new session",
    "session.import.files": "names and contents of the files, as `session export` returns them",
    "session.list.agent": "only sessions of this agent",
    "session.name": "new name of the session",
    "session.set_queue.cap": "maximum number of waiting envelopes",
    "session.set_queue.debounce_s": "seconds without a new message after which a run reads the waiting envelopes",
    "session.set_queue.mode": "how a message is handled while a run is active",
    "session.set_queue.overflow": "what happens when `cap` is reached",
    "session.reset_after_run.reason": "reason, stored with the start of the new context",
    "session.reset.message": "text that becomes the first message of the new context",
    "session.set_sending.send": "`on` and `off` override the rules for sending replies; `inherit` follows the rules",
    "session.stop.clear": "cancel the envelopes that are waiting in the session",
    "session.stop.reason": "reason, stored with the stopped run",
    "slash_command.list.agent": "agent whose skill commands are included; default: no skill commands",
    "subagent.id": "id of a subagent, or at least its first 8 digits",
    "subagent.stop.reason": "reason, stored with the stopped subagent",
    "token.create.expires_in_days": "days until the token expires; default: valid until it is revoked",
    "token.create.label": "label, to recognize the token later",
    "token.id": "id of a token, or at least its first 8 digits",
    "token.principal": "address of the token's principal, such as agent:ada; default: you",
    "usage.days.by": "how to group the usage of each day",
    "usage.days.from": "first day: 2026-11-15, or -7D; default: 29 days before the last day",
    "usage.days.limit": "maximum number of series; the remaining ones are combined into one",
    "usage.days.to": "last day; default: today",
    "usage.show.agent": "only the usage of this agent",
    "usage.show.by": "how to group usage and cost",
    "usage.show.from": "first day: 2026-11-15, or -7D; default: 29 days before the last day",
    "usage.show.person": "only the usage on behalf of this person",
    "usage.show.to": "last day; default: today",
    "wakeup.id": "id of a wake-up, or at least its first 8 digits",
    "after": "only entries after this entry",
    "agent": "name of an agent",
    "agents": "names of agents",
    "allow": "whether to allow it",
    "approval_wait_s": "maximum time to wait for an approval, in seconds",
    "attachments": "file to attach",
    "attempts_max": "maximum number of attempts to complete a run",
    "attributes": "attributes to store with the session",
    "before": "`next` of the previous page; default: the first page",
    "color": "color in the web app",
    "concurrency": "maximum number of active runs of the agent",
    "confirm": "name again, to confirm",
    "context_files": "workspace files that are added to the agent's system prompt",
    "conversation": "name of a separate conversation; a new name starts a new conversation",
    "cost_microusd_max": "maximum cost of a run, in millionths of a dollar",
    "created_after": "only envelopes accepted after this time",
    "created_before": "only envelopes accepted before this time",
    "cursor": "`next` of the previous page; default: the first page",
    "day_microusd_max": "maximum cost of the agent's runs in a day, in millionths of a dollar",
    "delegation_allow": "agents that this agent sees and may delegate to",
    "delegation_deny": "agents that this agent does not see and may not delegate to",
    "delegation_depth_max": "maximum delegation depth; 1: the agents that it delegates to cannot delegate further",
    "delegation_exchanges_max": "maximum number of replies in one exchange between two agents, counting both sides",
    "delegation_allow_cycles": "whether work may be delegated back to an agent that delegated it",
    "delegation_other_sessions": "whether this agent may read sessions of other agents and write to them",
    "delegation_open_max": "maximum number of open delegations in one session of the agent",
    "deliver_at": "do not process the envelope before this time: +2h30m, or 2026-01-28T20:30",
    "crash_policy": "what happens to a run that a crash interrupted",
    "description": "purpose of the agent, in one sentence",
    "display_name": "name that people see",
    "done_days": "delete envelopes whose outcome is at least this many days old; default: keep them",
    "dry_run": "show what would be done, and change nothing",
    "effort": "reasoning effort of the model",
    "elevated": "whether the agent's commands run outside the sandbox, if the server's settings permit it",
    "expires_at": "do not process the envelope after this time: +2h30m, or 2026-01-28T20:30",
    "external_url": "URL of an external agent",
    "external_secret": "source of the key that signs requests to the external agent: env:NAME or file:PATH",
    "external_timeout_s": "maximum time to wait for the external agent's answer, in seconds",
    "external_retries": "maximum number of retries of a failed request to the external agent",
    "fallbacks": "model to use when the model before it fails",
    "heartbeat_ack_chars_max": "a reply with HEARTBEAT_OK is an alert if it has more than this many other characters",
    "heartbeat_active_end": "time of day at which heartbeats end: HH:MM, up to 24:00",
    "heartbeat_active_start": "time of day at which heartbeats start: HH:MM in the time zone of the heartbeat",
    "heartbeat_active_zone": "time zone of the heartbeat start and end times; default: the owner's",
    "heartbeat_every_s": "time between heartbeats, in seconds; 0: never",
    "heartbeat_model": "model for the agent's heartbeats",
    "heartbeat_session": "conversation in which the agent's heartbeats run",
    "heartbeat_prompt": "text that precedes the checklist in each heartbeat",
    "heartbeat_target": "recipient of alerts: last (where the owner last wrote to the agent), none, or an address",
    "icon": "emoji or a few letters for the web app",
    "id": "id, or at least its first 8 digits",
    "instructions": "instructions for the agent",
    "instructions_mode": "how much the system prompt includes; none: only the agent's name",
    "keep_directory": "keep the agent directory on disk",
    "key": "idempotency key: a request that is repeated with the same key is performed only once",
    "label": "label, to recognize it later",
    "limit": "maximum number of results",
    "message": "text of the message",
    "model": "model: PROVIDER/MODEL, an alias, or `default`",
    "month_microusd_max": "maximum cost of the agent's runs in a month, in millionths of a dollar",
    "name": "name",
    "events_days": "delete events that are at least this many days old; default: keep them",
    "permission_level": "permission level, which decides which operations the agent may use",
    "person": "name of a person",
    "principal": "address of the principal; default: you",
    "provider": "provider of the model",
    "queue_cap": "maximum number of envelopes that wait while the agent is busy",
    "queue_debounce_s": "seconds without a new message after which a run reads the waiting envelopes",
    "queue_mode": "how a message is handled while a run is active",
    "queue_overflow": "what happens when `queue_cap` is reached",
    "reset_context_tokens_max": "context size in tokens above which the next run starts a new context; 0: never",
    "reset_daily_at": "time of the daily context reset, such as 04:00, or never",
    "reset_idle_minutes": "minutes without activity after which the context is reset; 0: never",
    "replay_age_s": "maximum age of envelopes that are still processed after the server was down, in seconds",
    "reply_to": "id of the envelope that this envelope answers",
    "role": "owner, member or guest",
    "run_seconds_max": "maximum duration of a run, in seconds",
    "runner": "runner that executes the agent's turns: loop, claude, codex, pi, external or a plugin's runner",
    "runs_days": "delete the steps of runs that ended at least this many days ago; default: keep them",
    "sandbox_mode": "sessions whose commands run in the sandbox; the server's setting applies if it is stricter",
    "sandbox_scope": "which commands share a container; the server's setting applies if it is stricter",
    "sandbox_workspace": "access of commands to the workspace; the server's setting applies if it is stricter",
    "sandbox_visible_sessions": (
        "sessions that a sandboxed session can see; the server's setting applies if it is stricter"
    ),
    "sandbox_browser": "whether sandboxed sessions may use the browser",
    "sandbox_image": "image of the agent's containers",
    "sandbox_cpus": "maximum number of processors of a container",
    "sandbox_idle_hours": "hours without use after which a container is removed",
    "sandbox_age_days": "age in days at which a container is removed",
    "session": "id of a session, or at least its first 8 digits",
    "status": "only entries with this status",
    "subagents_allow": "agents that this agent may start as subagents, besides itself",
    "subagents_archive_after_s": "seconds after which the session of a finished subagent is archived; 0: never",
    "subagents_effort": "reasoning effort of the agent's subagents",
    "subagents_model": "model of the agent's subagents",
    "subagents_run_seconds_max": "maximum duration of a subagent's run, in seconds",
    "text": "text of the message",
    "to": "address of the recipient",
    "token": "also create a token for the agent, which is shown once",
    "tokens_max": "maximum number of tokens of a run",
    "tool": "name of a tool",
    "tools_profile": "set of tools to start from: minimal, coding, messaging or full",
    "tools_allow": "tools that the agent may use",
    "tools_also_allow": "tools that the agent may use in addition to its profile or to `tools_allow`",
    "tools_ask": "tools whose calls need an approval",
    "tools_deny": "tools that the agent may not use",
    "tools_capabilities_allow": "capabilities that the agent's tools may have",
    "tools_capabilities_deny": "capabilities that the agent's tools may not have",
    "tools_policy": "name of the server's tool policy that applies to the agent",
    "tree_microusd_max": "maximum cost of a run and all work that it delegates, in millionths of a dollar",
    "turns_max": "maximum number of turns of a run",
    "verbose": "which tool calls people see while the agent works",
    "verify": "read the result back and check it byte by byte",
    "version": "number of a version",
    "visible": "whether the agent is visible in the web app and to other agents",
    "reason": "reason, which is stored",
    "workspace": "workspace: an absolute path, or a folder in the agent directory",
}
_OPTION_NAMES = {"attachments": "attach"}
_LONG_TEXT_NAMES = frozenset({"text", "message"})
_POSITIONAL_IF_FIRST = frozenset({"id", "session", "name", "agent", "envelope.send.to"})
_POSITIONALS_MAX = 2


def command_row(operation: Operation) -> tuple[object, ...]:
    """Return an operation's row of the CLI table, as plain values for Python source code or for a response."""
    found = tuple(
        (
            each.name,
            each.option,
            str(each.kind),
            " ".join(mark for mark in PARAMETER_FLAGS if getattr(each, mark)),
            each.default,
            each.choices,
            each.help,
        )
        for each in describe_parameters(operation)
    )
    return (operation.name, operation.summary, operation.has_effect, str(operation.permission), found)


def describe_parameters(operation: Operation) -> tuple[OperationParameter, ...]:
    """Return the parameters of an operation, in the order of their declaration."""
    positionals = 0
    found: list[OperationParameter] = []
    info = inspect.type_info(operation.parameters)
    assert isinstance(info, inspect.StructType)
    for number, field in enumerate(info.fields):
        kind, choices, repeated, nullable = _value_shape(field.type)
        if kind is ParameterKind.TEXT and field.encode_name in _LONG_TEXT_NAMES and not repeated:
            kind = ParameterKind.LONG_TEXT
        is_text = kind in (ParameterKind.TEXT, ParameterKind.LONG_TEXT) and not repeated
        first = (
            field.encode_name in _POSITIONAL_IF_FIRST or f"{operation.name}.{field.encode_name}" in _POSITIONAL_IF_FIRST
        )
        obvious = field.required or (number == 0 and first)
        is_positional = is_text and obvious and not nullable and positionals < _POSITIONALS_MAX
        positionals += is_positional
        default = None if field.required else _default_value(field)
        found.append(
            OperationParameter(
                name=field.encode_name,
                option="--" + _OPTION_NAMES.get(field.encode_name, field.encode_name).replace("_", "-"),
                kind=kind,
                default=default,
                help=_help_text(operation.name, field),
                choices=choices,
                required=field.required,
                repeated=repeated,
                nullable=nullable and (field.required or field.default is not None),
                positional=is_positional,
            )
        )
    return tuple(found)


def _value_shape(type_: inspect.Type) -> tuple[ParameterKind, tuple[str, ...], bool, bool]:
    """Return the kind of a parameter's type, its choices, whether it can be repeated, and whether it accepts null."""
    match type_:
        case inspect.Metadata(type=inner):
            return _value_shape(inner)
        case inspect.UnionType(types=types):
            others = [each for each in types if not isinstance(each, inspect.NoneType)]
            return (*_union_shape(others), len(others) < len(types))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            if isinstance(item, inspect.StructType) and _is_upload(item):
                return ParameterKind.FILE, (), True, False
            kind, choices, repeated, _ = _value_shape(item)
            return (
                (ParameterKind.JSON, (), False, False)
                if repeated or kind is ParameterKind.JSON
                else (kind, choices, True, False)
            )
        case inspect.StrType() | inspect.DateTimeType() | inspect.BytesType():
            return ParameterKind.TEXT, (), False, False
        case inspect.BoolType():
            return ParameterKind.BOOLEAN, (), False, False
        case inspect.IntType():
            return ParameterKind.NUMBER, (), False, False
        case inspect.FloatType():
            return ParameterKind.DECIMAL, (), False, False
        case inspect.EnumType(cls=cls):
            return ParameterKind.CHOICE, tuple(str(member.value) for member in cls), False, False
        case inspect.LiteralType(values=values) if all(isinstance(value, str) for value in values):
            return ParameterKind.CHOICE, tuple(map(str, values)), False, False
        case _:
            return ParameterKind.JSON, (), False, False


def _union_shape(types: Sequence[inspect.Type]) -> tuple[ParameterKind, tuple[str, ...], bool]:
    shapes = [_value_shape(each)[:3] for each in types]
    if len(shapes) == 1:
        return shapes[0]
    kinds = {kind for kind, _, _ in shapes}
    if len(types) == 2 and {type(each) for each in types} == {inspect.StrType, inspect.StructType}:
        return ParameterKind.TEXT, (), False  # in the CLI, a string is the short form of the object
    return (
        (ParameterKind.DECIMAL, (), False)
        if kinds == {ParameterKind.NUMBER, ParameterKind.DECIMAL}
        else (ParameterKind.JSON, (), False)
    )


def _is_upload(item: inspect.StructType) -> bool:
    return {"name", "data"} <= {field.encode_name for field in item.fields}


def _default_value(field: inspect.Field) -> ScalarDefault:
    value: Any = field.default
    if value is msgspec.NODEFAULT or value is msgspec.UNSET:
        return None
    return str(value) if isinstance(value, str) else value if isinstance(value, int | float) else None


def _help_text(operation: str, field: inspect.Field) -> str:
    name = field.encode_name
    noun = operation.partition(".")[0]
    keys = (f"{operation}.{name}", f"{noun}.{name}", name)
    return _meta_description(field.type) or next((_HELP[key] for key in keys if key in _HELP), name.replace("_", " "))


def _meta_description(type_: inspect.Type) -> str:
    match type_:
        case inspect.Metadata():
            extra: dict[str, object] = cast(Any, type_).extra_json_schema or {}
            return str(extra.get("description", "")) or _meta_description(type_.type)
        case inspect.UnionType(types=types):
            return next((description for each in types if (description := _meta_description(each))), "")
        case _:
            return ""
