"""Describe the parameters of operations as plain data, for the CLI and the reference pages."""

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
    """Type of value that the CLI accepts for a parameter."""

    TEXT = "text"
    LONG_TEXT = "long_text"  # text that may be read from stdin
    NUMBER = "number"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    FILE = "file"  # a path; the file is sent as name and bytes
    JSON = "json"


class OperationParameter(Struct, frozen=True, kw_only=True):
    """One parameter of an operation, and how the CLI takes it: positional or as an option."""

    name: str
    option: str
    kind: ParameterKind
    default: ScalarDefault
    help: str
    choices: tuple[str, ...]
    required: bool
    repeated: bool
    nullable: bool  # null is accepted and differs from leaving it out
    positional: bool


# Help for parameters whose declaration has no `msgspec.Meta(description=...)`. An entry for one operation
# (`noun.verb.parameter`) wins over one for all operations (`parameter`).
_HELP: Mapping[str, str] = {
    "agent.diff.new": "version to compare; default: the newest",
    "agent.diff.old": "version to compare with",
    "agent.set.clear": "field to reset to its default",
    "agent.versions.before": "last version of the previous page",
    "approval.answer.allow": "whether to allow the calls",
    "config.apply.overwrite": "overwrite changes that were made elsewhere",
    "config.check.text": "text of a settings file; default: the file in use",
    "config.patch.changes": "dotted paths with their new values; null removes a setting",
    "config.patch.expected_hash": "hash of the file as you read it, from config check or config show",
    "envelope.dead.before": "last id of the previous page",
    "envelope.list.ack": "mark the listed envelopes as read",
    "envelope.list.before": "last id of the previous page",
    "envelope.list.from": "only envelopes from this sender",
    "envelope.list.to": "only envelopes to this recipient",
    "envelope.send.key": "idempotency key: two envelopes with the same key are accepted as one",
    "envelope.send.session": "id of a session, or latest for the one used last",
    "envelope.send.to": "agent:NAME[/SESSION], person:NAME or channel:CONNECTOR:CHANNEL; default: the default agent",
    "server.backup.to": "absolute path of the folder to create; default: a new folder in RETINUE_HOME/backups",
    "server.backup.verify": "read the copy back and check every part of it",
    "server.doctor.quick": "skip checks that read the whole store",
    "server.purge.dry_run": "only count what would be deleted",
    "server.purge.unread": "also delete envelopes that their reader has not marked as read",
    "inbox.list.ack": "mark the listed envelopes as read",
    "model.show.agent": "name of an agent; default: all agents",
    "model.show.session": "id of a session, to include the model chosen for it",
    "person.forget.confirm": "the name again: forgetting a person cannot be undone",
    "person.invite.role": "role of the new person",
    "person.role.role": "new role",
    "session.attributes.patch": "object to merge into the attributes; null removes a value",
    "session.import.files": "files, as session export returns them",
    "session.set_queue.cap": "maximum number of waiting envelopes",
    "session.set_queue.debounce_s": "seconds without a new message before waiting envelopes are read",
    "session.set_queue.mode": "what a message does while a run is active",
    "session.set_queue.overflow": "what happens when the maximum is reached",
    "session.reset_after_run.reason": "reason, stored with the start of the new context",
    "session.reset.message": "text to keep in the new context",
    "session.set_sending.send": "on and off override all rules; inherit follows them",
    "session.stop.clear": "also clear the waiting envelopes",
    "session.stop.reason": "reason, stored with the stopped run",
    "token.create.expires_in_days": "days until the token expires; default: valid until it is revoked",
    "token.create.label": "label, to recognize the token later",
    "usage.days.by": "how to group each day",
    "usage.days.from": "first day: 2026-11-15, or -7D; default: 30 days ago",
    "usage.days.to": "last day; default: today",
    "usage.show.agent": "only the usage of this agent",
    "usage.show.by": "how to group the sums",
    "usage.show.from": "first day: 2026-11-15, or -7D; default: 30 days ago",
    "usage.show.person": "only the usage on behalf of this person",
    "usage.show.to": "last day; default: today",
    "after": "only entries after this one",
    "agent": "name of an agent",
    "agents": "names of agents",
    "allow": "whether to allow it",
    "approval_wait_s": "maximum time to wait for an approval, in seconds",
    "attachments": "file to attach",
    "attempts_max": "maximum number of attempts of a run",
    "attributes": "attributes to store with it",
    "before": "end of the previous page",
    "color": "color in the web app",
    "concurrency": "maximum number of its sessions that run at once",
    "confirm": "the name again, so that it does not happen by accident",
    "context_files": "workspace files that are added to its system prompt",
    "conversation": "separate conversation, by any name",
    "cost_microusd_max": "maximum cost of a run, in millionths of a dollar",
    "created_after": "only envelopes accepted after this time",
    "created_before": "only envelopes accepted before this time",
    "cursor": "`next` of the previous page",
    "day_microusd_max": "maximum cost of its runs in a day, in millionths of a dollar",
    "delegation_allow": "agents that it sees and may delegate to",
    "delegation_deny": "agents that it does not see and may not delegate to",
    "delegation_depth_max": "maximum delegation depth; 1: the agents it delegates to cannot delegate further",
    "delegation_exchanges_max": "maximum number of replies between two sessions",
    "delegation_allow_cycles": "whether work may be delegated back to an agent that it came from",
    "delegation_other_sessions": "whether it may read and write to sessions of other agents",
    "delegation_open_max": "maximum number of its open delegations",
    "deliver_at": "earliest time: +2h30m, or 2026-01-28T20:30",
    "crash_policy": "what happens to a run that a crash interrupted",
    "description": "purpose, in one sentence",
    "display_name": "name that people see",
    "done_days": "delete envelopes this many days after their outcome",
    "dry_run": "only show what would be done",
    "effort": "reasoning effort of the model",
    "elevated": "whether its commands ask to leave the sandbox",
    "expires_at": "latest time: +2h30m, or 2026-01-28T20:30",
    "external_url": "URL of an external agent",
    "external_secret": "source of the key that signs requests to it: env:NAME or file:PATH",
    "external_timeout_s": "maximum time to wait for its answer, in seconds",
    "external_retries": "maximum number of retries of a request that failed",
    "fallbacks": "model to use when the one before it fails",
    "heartbeat_ack_chars_max": "a reply of HEARTBEAT_OK plus at most this many characters notifies no one",
    "heartbeat_active_end": "end of the time in which heartbeats run: HH:MM, up to 24:00",
    "heartbeat_active_start": "start of the time in which heartbeats run: HH:MM",
    "heartbeat_active_zone": "time zone of these times; default: the owner's",
    "heartbeat_every_s": "time between heartbeats, in seconds; 0: never",
    "heartbeat_model": "model of its heartbeats",
    "heartbeat_session": "conversation in which its heartbeats run",
    "heartbeat_prompt": "text of each heartbeat, before the checklist",
    "heartbeat_target": "where it reports what needs attention: last, none, or an address",
    "icon": "emoji or a few letters for the web app",
    "id": "id, at least its first 8 digits",
    "instructions": "instructions for the agent",
    "instructions_mode": "size of the system prompt: full, minimal, or none (only its name)",
    "keep_directory": "keep its agent directory on disk",
    "key": "idempotency key: a repeated request with the same key has no second effect",
    "label": "label, to recognize it later",
    "limit": "maximum number of results",
    "message": "text of the message",
    "model": "model: PROVIDER/MODEL, an alias, or default",
    "month_microusd_max": "maximum cost of its runs in a month, in millionths of a dollar",
    "name": "name",
    "events_days": "delete events that are this many days old",
    "permission_level": "permission level: which operations it may use",
    "person": "name of a person",
    "principal": "address of the principal; default: you",
    "provider": "provider of the model",
    "queue_cap": "maximum number of envelopes that wait while it is busy",
    "queue_debounce_s": "seconds without a new message before waiting envelopes are read",
    "queue_mode": "what a message does while a run is active",
    "queue_overflow": "what happens when the maximum is reached",
    "reset_context_tokens_max": "context size in tokens from which the next run starts a new context; 0: never",
    "reset_daily_at": "time of the daily context reset, such as 04:00, or never",
    "reset_idle_minutes": "minutes without activity after which the context is reset; 0: never",
    "replay_age_s": "maximum age of envelopes that are still processed after a downtime, in seconds",
    "reply_to": "id of the envelope that this one answers",
    "role": "owner, member or guest",
    "run_seconds_max": "maximum duration of a run, in seconds",
    "runner": "runner: the code that takes its turns",
    "runs_days": "delete steps of runs that ended this many days ago",
    "sandbox_mode": "which sessions run commands in the sandbox, if stricter than on the server",
    "sandbox_scope": "who shares a container, if stricter than on the server",
    "sandbox_workspace": "access of commands to the workspace, if stricter than on the server",
    "sandbox_visible_sessions": "sessions that a sandboxed session sees, if stricter than on the server",
    "sandbox_browser": "whether sandboxed sessions may use the browser",
    "sandbox_image": "image of its containers",
    "sandbox_cpus": "maximum number of processors of a container",
    "sandbox_idle_hours": "hours without use after which a container is removed",
    "sandbox_age_days": "days after which a container is removed",
    "session": "id of a session, at least its first 8 digits",
    "status": "only entries with this status",
    "subagents_allow": "agents that it may start as subagents, besides itself",
    "subagents_archive_after_s": "seconds after which the sessions of its subagents are archived; 0: never",
    "subagents_effort": "reasoning effort of its subagents",
    "subagents_model": "model of its subagents",
    "subagents_run_seconds_max": "maximum duration of a subagent's run, in seconds",
    "text": "text",
    "to": "address of the recipient",
    "token": "also create a token, which is shown once",
    "tokens_max": "maximum number of tokens of a run",
    "tools_profile": "set of tools to start from: minimal, coding, messaging or full",
    "tools_allow": "tools that it may use",
    "tools_also_allow": "tools that it may use in addition",
    "tools_ask": "tools that need an approval",
    "tools_deny": "tools that it may not use",
    "tools_capabilities_allow": "capabilities that its tools may have",
    "tools_capabilities_deny": "capabilities that its tools may not have",
    "tools_policy": "tool policy of the server that applies to it",
    "tree_microusd_max": "maximum cost of a run and everything it delegates, in millionths of a dollar",
    "turns_max": "maximum number of turns of a run",
    "verbose": "which tool calls people see while a run works",
    "verify": "read the result back and check it byte by byte",
    "version": "number of a version",
    "visible": "whether the web app and other agents show it",
    "reason": "reason, stored with it",
    "workspace": "workspace: an absolute path, or a folder in its agent directory",
}
_OPTION_NAMES = {"attachments": "attach"}
_LONG_TEXT_NAMES = frozenset({"text", "message"})
_POSITIONAL_IF_FIRST = frozenset({"id", "session", "name", "agent", "envelope.send.to"})
_POSITIONALS_MAX = 2


def command_row(operation: Operation) -> tuple[object, ...]:
    """Return an operation's row of the CLI table: plain values that can be written as source or sent."""
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
    """Return (kind, choices, repeated, nullable)."""
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
        return ParameterKind.TEXT, (), False  # the text is a short form of the object
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
    description = _meta_description(field.type)
    return description or _HELP.get(f"{operation}.{name}") or _HELP.get(name) or name.replace("_", " ")


def _meta_description(type_: inspect.Type) -> str:
    match type_:
        case inspect.Metadata():
            extra: dict[str, object] = cast(Any, type_).extra_json_schema or {}
            return str(extra.get("description", "")) or _meta_description(type_.type)
        case inspect.UnionType(types=types):
            return next((description for each in types if (description := _meta_description(each))), "")
        case _:
            return ""
