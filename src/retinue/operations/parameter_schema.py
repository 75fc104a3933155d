"""Describe the parameters of operations as plain data, for the CLI and the reference pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import msgspec
from msgspec import Struct, inspect

from retinue.operations.base import Operation

Plain = str | int | float | bool | None

MARKS = ("required", "repeated", "nullable", "place")


class Kind(StrEnum):
    """Type of value that the CLI accepts for a parameter."""

    TEXT = "text"
    WORDS = "words"  # text that may be read from stdin
    NUMBER = "number"
    DECIMAL = "decimal"
    FLAG = "flag"
    CHOICE = "choice"
    FILE = "file"  # a path; the file is sent as name and bytes
    JSON = "json"


class Parameter(Struct, frozen=True, kw_only=True):
    """One parameter of an operation, and how the CLI takes it: positional or as an option."""

    name: str
    option: str
    kind: Kind
    default: Plain
    help: str
    choices: tuple[str, ...]
    required: bool
    repeated: bool
    nullable: bool  # null is accepted and differs from leaving it out
    place: bool  # positional on the command line


# Help for parameters whose declaration has no `msgspec.Meta(description=...)`. An entry for one operation
# (`noun.verb.parameter`) wins over one for all operations (`parameter`).
_HELP: Mapping[str, str] = {
    "agent.diff.new": "the other version; left out, the newest",
    "agent.diff.old": "the version to compare with",
    "agent.set.clear": "a setting to bring back to its default",
    "agent.versions.before": "the last version shown, for the page after it",
    "approval.answer.allow": "let it be done, or not",
    "config.apply.take": "file, where it may overwrite what was changed elsewhere",
    "config.check.text": "the text of a settings file; left out, the one in use",
    "config.patch.changes": "dotted paths, each with its new value, or null to take it out",
    "config.patch.expected_hash": "the hash of the file as you read it, from config check or show",
    "envelope.dead.before": "the last id shown, for the page after it",
    "envelope.list.ack": "mark what is shown as read",
    "envelope.list.before": "the last id shown, for the page after it",
    "envelope.list.from": "who sent it",
    "envelope.list.to": "whose mail",
    "envelope.send.key": "of two envelopes with the same key one is accepted",
    "envelope.send.session": "the id of a session, or latest for the one last used",
    "envelope.send.to": "agent:NAME, agent:NAME/SESSION, person:NAME or channel:INSTANCE:ROOM; or nobody",
    "house.backup.to": "the folder to make; left out, one in the home",
    "house.backup.verify": "open the copy once more and look at every part of it",
    "house.doctor.quick": "leave out what reads the whole store",
    "house.purge.dry_run": "only count what would go",
    "house.purge.unread": "also mail that its reader has not marked as read",
    "inbox.list.ack": "mark what is shown as read",
    "model.show.agent": "an agent by name; left out, everyone",
    "model.show.session": "a session, for what was chosen in it",
    "person.forget.confirm": "the name once more: what is forgotten cannot be brought back",
    "person.invite.role": "what they may do here",
    "person.role.role": "what they may do from now on",
    "session.attributes.patch": "what to merge into its attributes; null takes a value away",
    "session.import.files": "the files, as session export gave them",
    "session.queue.cap": "how much may wait",
    "session.queue.debounce_s": "what waited is taken up once nothing more has come for so many seconds",
    "session.queue.mode": "what mail does while a run is active",
    "session.queue.overflow": "what happens beyond that",
    "session.refresh.why": "kept with the mark at which the fresh context begins",
    "session.reset.message": "words to carry into the fresh context",
    "session.sending.send": "on and off before all rules; inherit as the rules have it",
    "session.stop.clear": "also clear the mail that waits there",
    "session.stop.why": "kept with what was stopped",
    "token.create.expires_in_days": "how long it is good; left out, until it is revoked",
    "token.create.label": "what it is for, in your words",
    "usage.days.by": "what to tell apart in each day",
    "usage.days.from": "the first day: 2026-11-15, or -7D; left out, 30 days are shown",
    "usage.days.to": "the last day; left out, today",
    "usage.show.agent": "only what this agent spent",
    "usage.show.by": "what to sum up by",
    "usage.show.from": "the first day: 2026-11-15, or -7D; left out, 30 days are shown",
    "usage.show.person": "only what was spent for this person",
    "usage.show.to": "the last day; left out, today",
    "after": "only what comes after this",
    "agent": "an agent by name",
    "agents": "agents by name",
    "allow": "whether it may be done",
    "approval_wait_s": "how long a run waits for a decision",
    "attachments": "a file to send along",
    "attempts_max": "how often a run is tried",
    "attributes": "values to keep with it",
    "before": "where the last page ended",
    "colour": "the colour in which pages show it",
    "concurrency": "how many of its sessions run at once",
    "confirm": "once more, so that it is not done by accident",
    "context_files": "files of its workspace that it is told with its instructions",
    "conversation": "a conversation of its own, by any name you like",
    "cost_microusd_max": "what a run may cost, in millionths of a dollar",
    "created_after": "only what was accepted after this time",
    "created_before": "only what was accepted before this time",
    "cursor": "where the last page ended",
    "day_microusd_max": "what its runs may cost in a day, in millionths of a dollar",
    "delegation_allow": "agents it sees and may write to",
    "delegation_deny": "agents it does not see, and may not write to",
    "delegation_depth_max": "how often work may be handed on below it",
    "delegation_exchanges_max": "how often two sessions may answer each other",
    "delegation_circles": "whether work may come back to an agent that it came from",
    "delegation_histories": "whether it may read and write to sessions of other agents",
    "delegation_open_max": "how much that it has handed out may be open at once",
    "deliver_at": "not before: +2h30m, or 2026-01-28T20:30",
    "delivery": "what a crash does to a run",
    "description": "what it is for, in a sentence",
    "display_name": "what people call it",
    "done_days": "envelopes that have been done for so many days",
    "dry_run": "only say what would be done",
    "effort": "how hard the model is to think",
    "elevated": "whether its commands ask to leave the sandbox",
    "expires_at": "not after: +2h30m, or 2026-01-28T20:30",
    "external_url": "where an agent that runs elsewhere is reached",
    "external_secret": "where the key is that signs letters to it: env:NAME or file:PATH",
    "external_timeout_s": "how long its answer is waited for",
    "external_retries": "how often a letter that did not arrive is sent again",
    "fallbacks": "a model to ask when the one before it fails",
    "heartbeat_ack_chars_max": "how much may stand beside HEARTBEAT_OK in an answer that is not told",
    "heartbeat_active_end": "until when it looks by itself: HH:MM, up to 24:00",
    "heartbeat_active_start": "from when on it looks by itself: HH:MM",
    "heartbeat_active_zone": "by which zone; left out, the owner's",
    "heartbeat_every_s": "how often it looks by itself whether something needs attention; 0 is never",
    "heartbeat_model": "which model it does so with",
    "heartbeat_place": "in which conversation it does so",
    "heartbeat_prompt": "what it is told each time, before its checklist",
    "heartbeat_target": "where it says what needs attention: last, none, or an address",
    "icon": "an emoji or a few letters, by which pages show it",
    "id": "8 or more digits of an id",
    "instructions": "what it is told",
    "instructions_mode": "how much it is told: full, minimal, or none but who it is",
    "keep_home": "leave its home on disk",
    "key": "asked again with the same key, nothing is done twice",
    "label": "what it is for, in your words",
    "limit": "how many",
    "message": "the words",
    "model": "which model replies: PROVIDER/MODEL, an alias, or default",
    "month_microusd_max": "what its runs may cost in a month, in millionths of a dollar",
    "name": "its name",
    "news_days": "news that is so many days old",
    "permission_level": "what it may ask of the house",
    "person": "a person by name",
    "principal": "whose, as an address; left out, your own",
    "provider": "who sells the model",
    "queue_cap": "how much mail may wait while it is busy",
    "queue_debounce_s": "how quiet it must be before waiting mail is taken up",
    "queue_mode": "what mail does while a run is active",
    "queue_overflow": "what happens beyond the cap",
    "reset_context_tokens_max": "beyond how many tokens the next run begins afresh; 0 is never",
    "reset_daily_at": "when its contexts begin anew each day, as 04:00, or never",
    "reset_idle_minutes": "after how many minutes without activity a context begins anew; 0 is never",
    "replay_age_s": "mail older than this is not worked on after a downtime",
    "reply_to": "the envelope this answers",
    "role": "owner, member or guest",
    "run_seconds_max": "how long a run may take",
    "runner": "how it takes its turns",
    "runs_days": "steps of runs that ended so many days ago",
    "sandbox_mode": "whose commands are confined, where that is stricter than the house",
    "sandbox_scope": "who shares a container, where that is stricter than the house",
    "sandbox_workspace": "what a command has of the workspace, where that is stricter than the house",
    "sandbox_sessions": "which sessions a sandboxed one sees, where that is stricter than the house",
    "sandbox_browser": "whether sandboxed sessions may use the browser",
    "sandbox_image": "the image of its containers",
    "sandbox_cpus": "how many processors a container of its may use",
    "sandbox_idle_hours": "after so many hours without use a container is removed",
    "sandbox_age_days": "after so many days a container is removed",
    "session": "8 or more digits of a session's id",
    "status": "how they stand",
    "subagents_allow": "agents it may send out beside itself",
    "subagents_archive_after_s": "after so many seconds the sessions of those are put away; 0 is never",
    "subagents_effort": "how hard the model of those is to think",
    "subagents_model": "which model those have",
    "subagents_run_seconds_max": "how long a run of those may take",
    "text": "the words",
    "to": "an address",
    "token": "also make a token; it is shown this once",
    "tokens_max": "how many tokens a run may use",
    "tools_profile": "what tools it begins with: minimal, coding, messaging, full",
    "tools_allow": "tools it may use",
    "tools_also_allow": "tools it may use beside those",
    "tools_ask": "tools it asks a person for",
    "tools_deny": "tools it may not use",
    "tools_capabilities_allow": "capabilities its tools may have",
    "tools_capabilities_deny": "capabilities its tools may not have",
    "tools_policy": "which of the house's tool policies it is under",
    "tree_microusd_max": "what a run and all that comes of it may cost, in millionths of a dollar",
    "turns_max": "how many turns a run may take",
    "verbose": "what people are told of its calls as they are made",
    "verify": "look at the result once more, byte by byte",
    "version": "the number of a version",
    "visible": "whether pages show it, and other agents see it",
    "why": "a reason, kept with it",
    "workspace": "where it works: a folder, or one below its home",
}
_OPTIONS = {"attachments": "attach"}
_WORDS = frozenset({"text", "message"})
_FIRST = frozenset({"id", "session", "name", "agent", "envelope.send.to"})
_PLACES_MAX = 2


def command(operation: Operation) -> tuple[object, ...]:
    """Return an operation's row of the CLI table: plain values that can be written as source or sent."""
    noun, _, verb = operation.name.partition(".")
    found = tuple(
        (
            each.name,
            each.option,
            str(each.kind),
            " ".join(mark for mark in MARKS if getattr(each, mark)),
            each.default,
            each.choices,
            each.help,
        )
        for each in parameters(operation)
    )
    return (noun, verb, operation.summary, operation.effect, str(operation.permission), found)


def parameters(operation: Operation) -> tuple[Parameter, ...]:
    """Return the parameters of an operation, in the order of their declaration."""
    places = 0
    found: list[Parameter] = []
    info = inspect.type_info(operation.parameters)
    assert isinstance(info, inspect.StructType)
    for number, field in enumerate(info.fields):
        kind, choices, repeated, nullable = _shape(field.type)
        if kind is Kind.TEXT and field.encode_name in _WORDS and not repeated:
            kind = Kind.WORDS
        is_text = kind in (Kind.TEXT, Kind.WORDS) and not repeated
        first = field.encode_name in _FIRST or f"{operation.name}.{field.encode_name}" in _FIRST
        obvious = field.required or (number == 0 and first)
        place = is_text and obvious and not nullable and places < _PLACES_MAX
        places += place
        default = None if field.required else _default(field)
        found.append(
            Parameter(
                name=field.encode_name,
                option="--" + _OPTIONS.get(field.encode_name, field.encode_name).replace("_", "-"),
                kind=kind,
                default=default,
                help=_help(operation.name, field),
                choices=choices,
                required=field.required,
                repeated=repeated,
                nullable=nullable and (field.required or field.default is not None),
                place=place,
            )
        )
    return tuple(found)


def _shape(type_: inspect.Type) -> tuple[Kind, tuple[str, ...], bool, bool]:
    """Return (kind, choices, repeated, nullable)."""
    match type_:
        case inspect.Metadata(type=inner):
            return _shape(inner)
        case inspect.UnionType(types=types):
            others = [each for each in types if not isinstance(each, inspect.NoneType)]
            return (*_of_several(others), len(others) < len(types))
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            if isinstance(item, inspect.StructType) and _is_upload(item):
                return Kind.FILE, (), True, False
            kind, choices, repeated, _ = _shape(item)
            return (Kind.JSON, (), False, False) if repeated or kind is Kind.JSON else (kind, choices, True, False)
        case inspect.StrType() | inspect.DateTimeType() | inspect.BytesType():
            return Kind.TEXT, (), False, False
        case inspect.BoolType():
            return Kind.FLAG, (), False, False
        case inspect.IntType():
            return Kind.NUMBER, (), False, False
        case inspect.FloatType():
            return Kind.DECIMAL, (), False, False
        case inspect.EnumType(cls=cls):
            return Kind.CHOICE, tuple(str(member.value) for member in cls), False, False
        case inspect.LiteralType(values=values) if all(isinstance(value, str) for value in values):
            return Kind.CHOICE, tuple(map(str, values)), False, False
        case _:
            return Kind.JSON, (), False, False


def _of_several(types: Sequence[inspect.Type]) -> tuple[Kind, tuple[str, ...], bool]:
    shapes = [_shape(each)[:3] for each in types]
    if len(shapes) == 1:
        return shapes[0]
    kinds = {kind for kind, _, _ in shapes}
    if len(types) == 2 and {type(each) for each in types} == {inspect.StrType, inspect.StructType}:
        return Kind.TEXT, (), False  # the text is a short form of the object
    return (Kind.DECIMAL, (), False) if kinds == {Kind.NUMBER, Kind.DECIMAL} else (Kind.JSON, (), False)


def _is_upload(item: inspect.StructType) -> bool:
    return {"name", "data"} <= {field.encode_name for field in item.fields}


def _default(field: inspect.Field) -> Plain:
    value: Any = field.default
    if value is msgspec.NODEFAULT or value is msgspec.UNSET:
        return None
    return str(value) if isinstance(value, str) else value if isinstance(value, int | float) else None


def _help(operation: str, field: inspect.Field) -> str:
    name = field.encode_name
    said = _description(field.type)
    return said or _HELP.get(f"{operation}.{name}") or _HELP.get(name) or name.replace("_", " ")


def _description(type_: inspect.Type) -> str:
    match type_:
        case inspect.Metadata():
            extra: dict[str, object] = cast(Any, type_).extra_json_schema or {}
            return str(extra.get("description", "")) or _description(type_.type)
        case inspect.UnionType(types=types):
            return next((said for each in types if (said := _description(each))), "")
        case _:
            return ""
