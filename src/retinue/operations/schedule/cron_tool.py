"""The `cron` tool, and the tools that read and write the memory of a schedule.

The `cron` tool calls operations, and fills in parameters from the current conversation. These are the
session of a wake-up, the reply address of a schedule, and recent messages to quote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.errors import RetinueError
from retinue.domain.principal import Principal
from retinue.domain.record import Record, Reply, UserTurn
from retinue.domain.schedule import Schedule
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.intake.routing import get_session_address
from retinue.operations.base import Operation, Services, perform_operation
from retinue.operations.operation_tools import scheduling_principal
from retinue.operations.schedule.errors import ScheduleMemoryUnavailable
from retinue.store.envelopes import envelopes
from retinue.store.schedules import schedules
from retinue.store.sessions import records, sessions
from retinue.tools.base import Tool, ToolContext, ToolOutput, as_tool_failed, schema_of
from retinue.tools.files.file_services import FileServices
from retinue.tools.files.read_tool import ReadArguments, ReadTool
from retinue.tools.files.write_tool import WriteArguments, WriteTool
from retinue.tools.notify import person_of

CONTEXT_MESSAGES_MAX = 10
MESSAGE_CHARS_MAX = 220
CONTEXT_CHARS_MAX = 700
RECORDS_READ_MAX = 60  # records searched for recent messages
NO_MEMORY = "No memory"

_encode = msgspec.json.Encoder().encode

# The operation that each action performs.
ACTION_OPERATIONS: Mapping[str, str] = {
    "status": "schedule.show",
    "list": "schedule.list",
    "add": "schedule.add",
    "update": "schedule.set",
    "enable": "schedule.enable",
    "disable": "schedule.disable",
    "remove": "schedule.delete",
    "run": "schedule.run",
    "runs": "schedule.history",
    "next": "schedule.next",
    "explain": "schedule.explain",
    "wake": "wakeup.add",
    "wakes": "wakeup.list",
    "remind": "reminder.add",
    "reminders": "reminder.list",
}

CronAction = Literal[
    "status",
    "list",
    "add",
    "update",
    "enable",
    "disable",
    "remove",
    "run",
    "runs",
    "next",
    "explain",
    "wake",
    "wakes",
    "remind",
    "reminders",
]


class CronArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: CronAction
    schedule: Annotated[str, msgspec.Meta(description="name or id of the schedule")] = ""
    parameters: Annotated[
        dict[str, Any],
        msgspec.Meta(
            description=(
                "add, update: name, text, to, and one of cron (0 9 * * 1-5), every (1h30m), at; also zone, deliver_to, "
                "gate, session (fresh, own, main). wake: text, and at (with an offset, or +2h) or delay_s; you get the "
                "text in this conversation. remind: text, at or delay_s, to. explain: cron, every or at, and zone."
            )
        ),
    ] = {}
    context_messages: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=CONTEXT_MESSAGES_MAX,
            description="wake, remind, add: number of last messages of this conversation to quote",
        ),
    ] = 0


class CronTool(Struct, frozen=True):
    """The `cron` tool, with which an agent manages its schedules, reminders and wake-ups.

    The agent sees and changes only the schedules that it owns. In a run on behalf of a person other than
    the owner, the agent acts as that person, who then owns the schedules.
    """

    services: Callable[[], Services]
    operations: Mapping[str, Operation]
    arguments: type[msgspec.Struct] = CronArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron",
            description=(
                "Schedule something for later: recurring schedules, wake-ups for you in this conversation, and "
                "reminders for people. List, change, run and delete what you have scheduled. Returns JSON."
            ),
            parameters=schema_of(CronArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE, ToolEffect.WRITES, ToolEffect.SPENDS}),
            capabilities=frozenset({"schedules.write"}),
        )
    )

    async def perform(self, arguments: CronArguments, context: ToolContext) -> ToolOutput:
        services = self.services()
        operation = self.operations[ACTION_OPERATIONS[arguments.action]]
        parameters = dict(arguments.parameters)
        if arguments.schedule:
            parameters["schedule"] = arguments.schedule
        await self._add_defaults(services, arguments, parameters, context)
        trust = Trust.UNTRUSTED if context.trust is Trust.UNTRUSTED else Trust.AGENT
        agent = context.agent
        principal = scheduling_principal(context, level=agent.permission_level) or Principal(
            address=address.agent_address(agent.name), level=agent.permission_level, trust=trust
        )
        key = f"{context.session}/{context.call}" if operation.has_effect else ""
        try:
            answer = await perform_operation(services, principal, operation, _encode(parameters), key=key)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return ToolOutput(text=answer.decode(), trust=Trust.PRIVATE if operation.has_effect else None)

    async def _add_defaults(
        self, services: Services, arguments: CronArguments, parameters: dict[str, Any], context: ToolContext
    ) -> None:
        """Fill in missing parameters from the current conversation, such as the session and the reply address."""
        match arguments.action:
            case "wake":
                parameters["session"] = context.session
            case "wakes":
                parameters.setdefault("session", context.session)
            case "remind":
                person = person_of(context)
                parameters.setdefault("to", f"person:{person}" if person else "person:owner")
            case "add":
                parameters.setdefault("to", str(address.agent_address(context.agent.name)))
                if (
                    "deliver_to" not in parameters
                    and context.origin.is_foreground
                    and parameters.get("session") != "main"
                ):
                    parameters["deliver_to"] = await _read_reply_address(services, context)
            case _:
                pass
        if arguments.context_messages and arguments.action in ("wake", "remind", "add"):
            lines = await services.store.scan(
                lambda conn: format_recent_messages(conn, context.session, arguments.context_messages)
            )
            if lines:
                parameters["text"] = f"{parameters.get('text', '')}\n\nRecent context:\n{lines}"


async def _read_reply_address(services: Services, context: ToolContext) -> str:
    """Return the reply address of the current session, to which the answers of a new schedule are sent."""
    session = await services.store.read(lambda conn: sessions.get(conn, context.session))
    return str(get_session_address(session.origin)) if session is not None else ""


def format_recent_messages(conn: sa.Connection, session: str, count: int) -> str:
    """Return the last messages of a session as short lines with their senders."""
    found = sessions.get(conn, session)
    if found is None:
        return ""
    first = max(found.context_start_seq, found.record_seq - RECORDS_READ_MAX)
    read, _ = records.read_range(conn, session, first=first, last=found.record_seq)
    lines: list[str] = []
    left = CONTEXT_CHARS_MAX
    for line in (text for record in reversed(read) for text in _format_messages(conn, record)):
        short = line if len(line) <= MESSAGE_CHARS_MAX else line[: MESSAGE_CHARS_MAX - 1] + "…"
        if len(lines) == count or len(short) > left:
            break
        lines.append(short)
        left -= len(short)
    return "\n".join(reversed(lines))


def _format_messages(conn: sa.Connection, record: Record) -> list[str]:
    """Return the record's messages as lines, newest first."""
    match record.body:
        case Reply(text=text) if text.strip():
            return [f"- Agent: {' '.join(text.split())}"]
        case UserTurn() as turn:
            found = [envelopes.get(conn, id_) for id_ in reversed(turn.envelopes)]
            sent = [each for each in found if each is not None and each.text.strip()]
            return [f"- {_sender_name(each.sender)}: {' '.join(each.text.split())}" for each in sent]
        case _:
            return []


def _sender_name(sender: address.Address) -> str:
    return sender.name if sender.kind is AddressKind.PERSON else str(sender)


# --- memory of a schedule ---


class NoCronArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The argument type of tools without arguments."""


class CronMemoryArguments(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    append: Annotated[bool, msgspec.Meta(description="Append to the memory instead of replacing it")] = True


def schedule_folder(schedule: Schedule) -> str:
    """Return the folder of a schedule's memory and files, relative to the agent directory."""
    return f"schedules/{schedule.name or schedule.id}"


def _open_memory_folder(schedule: Schedule, context: ToolContext) -> tuple[str, ToolContext]:
    """Return the path of the schedule's memory file, and a tool context that may write to its folder."""
    folder = context.agent_directory / schedule_folder(schedule)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return str(folder / "MEMORY.md"), replace(
        context, rights=replace(context.rights, write=(*context.rights.write, folder))
    )


async def _require_schedule(services: Services, context: ToolContext) -> Schedule:
    """Return the schedule to which the session of this call belongs. Raise if it belongs to no schedule."""
    session = await services.store.read(lambda conn: sessions.get(conn, context.session))
    id_ = session.origin.key.removeprefix("schedule:") if session is not None else ""
    kept = (
        await services.store.read(lambda conn: schedules.get(conn, id_))
        if context.origin is OriginKind.SCHEDULE
        else None
    )
    if kept is None:
        raise ScheduleMemoryUnavailable()
    return kept.schedule


class CronReadTaskTool(Struct, frozen=True):
    services: Callable[[], Services]
    arguments: type[msgspec.Struct] = NoCronArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron_read_task",
            description="Read the schedule that started this run: its text, times and folder for files.",
            parameters=schema_of(NoCronArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
            capabilities=frozenset({"schedules.read"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: NoCronArguments, context: ToolContext) -> ToolOutput:
        schedule = await _require_schedule(self.services(), context)
        files = f"{schedule_folder(schedule)}/files"
        folder = Path(context.agent_directory, files)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = f"schedule: {schedule.name or schedule.id}\nwhen: {schedule.when}\nfiles: {files}\n\n{schedule.text}"
        return ToolOutput(text=text, trust=schedule.trust)


class CronReadMemoryTool(Struct, frozen=True):
    services: Callable[[], Services]
    read_tool: ReadTool
    arguments: type[msgspec.Struct] = NoCronArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron_read_memory",
            description="Read the memory of this schedule: notes from its earlier runs.",
            parameters=schema_of(NoCronArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
            capabilities=frozenset({"schedules.read"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: NoCronArguments, context: ToolContext) -> ToolOutput:
        schedule = await _require_schedule(self.services(), context)
        path, context = _open_memory_folder(schedule, context)
        if not Path(path).exists():
            return ToolOutput(text=NO_MEMORY, trust=Trust.PRIVATE)
        return await self.read_tool.perform(ReadArguments(path=path), context)


class CronWriteMemoryTool(Struct, frozen=True):
    services: Callable[[], Services]
    write_tool: WriteTool
    arguments: type[msgspec.Struct] = CronMemoryArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron_write_memory",
            description="Write to the memory of this schedule, for its later runs.",
            parameters=schema_of(CronMemoryArguments),
            effects=frozenset({ToolEffect.WRITES}),
            capabilities=frozenset({"schedules.write"}),
        )
    )

    async def perform(self, arguments: CronMemoryArguments, context: ToolContext) -> ToolOutput:
        schedule = await _require_schedule(self.services(), context)
        path, context = _open_memory_folder(schedule, context)
        append = arguments.append and not await asyncio.to_thread(_is_empty, Path(path))
        text = f"\n{arguments.text}\n" if append else f"{arguments.text}\n"
        return await self.write_tool.perform(WriteArguments(path=path, content=text, append=append), context)


def _is_empty(path: Path) -> bool:
    """Whether a memory file is missing or empty, or contains only the placeholder for an empty memory."""
    try:
        with path.open(errors="replace") as file:
            return file.read(len(NO_MEMORY) + 2).strip() in ("", NO_MEMORY)
    except FileNotFoundError:
        return True


def build_cron_tools(
    services: Callable[[], Services], operations: Mapping[str, Operation], file_services: FileServices
) -> tuple[Tool, ...]:
    return (
        CronTool(services, operations),
        CronReadTaskTool(services),
        CronReadMemoryTool(services, ReadTool(file_services)),
        CronWriteMemoryTool(services, WriteTool(file_services)),
    )
