"""The `cron` tool, and the tools that keep a schedule's memory between its occurrences.

Operations do the work. The tool adds what follows from the conversation: reminders can quote recent
messages, wake-ups return to this session, and answers go to its reply address.
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
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.intake.routing import who_listens
from retinue.operations.base import Desk, Operation, perform
from retinue.operations.operation_tools import sets_for_later
from retinue.store.envelopes import envelopes
from retinue.store.schedules import schedules
from retinue.store.sessions import records, sessions
from retinue.tools.base import Output, Scene, Tool, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files.file_access import Ground
from retinue.tools.files.read_tool import Read, ReadArguments
from retinue.tools.files.write_tool import Write, WriteArguments
from retinue.tools.notify import person_of

LINES_MAX = 10
LINE_CHARS_MAX = 220
LINES_CHARS_MAX = 700
LOOKED_BACK_MAX = 60  # records searched for recent messages
NO_MEMORY = "No memory"

_encode = msgspec.json.Encoder().encode

# The operation that each action performs.
ACTIONS: Mapping[str, str] = {
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

Action = Literal[
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
    action: Action
    schedule: Annotated[str, msgspec.Meta(description="which one, by its name or id")] = ""
    parameters: Annotated[
        dict[str, Any],
        msgspec.Meta(
            description=(
                "add, update: name, text, to, and one of cron (0 9 * * 1-5), every (1h30m), at; also zone, deliver, "
                "gate, place (fresh, own, main). wake: text, and at (with an offset, or +2h) or delay_s, to write to "
                "you in this conversation. remind: text, at or delay_s, to. explain: cron, every or at, and zone."
            )
        ),
    ] = {}
    context_messages: Annotated[
        int,
        msgspec.Meta(ge=0, le=LINES_MAX, description="wake, remind, add: with so many of the last lines said here"),
    ] = 0


class Cron(Struct, frozen=True):
    """The `cron` tool.

    The agent acts with its own rights: it sees and changes only the schedules that it owns. In a
    run on behalf of a person other than the owner, it acts as that person, who then owns the
    schedules.
    """

    desk: Callable[[], Desk]
    operations: Mapping[str, Operation]
    arguments: type[msgspec.Struct] = CronArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron",
            description=(
                "Set something for later: schedules that come again and again, wake-ups for this conversation, and "
                "reminders for people. List, change, run and delete what you have set."
            ),
            parameters=schema_of(CronArguments),
            effects=frozenset({Effect.READS_PRIVATE, Effect.WRITES, Effect.SPENDS}),
            capabilities=frozenset({"schedules.write"}),
        )
    )

    async def perform(self, arguments: CronArguments, scene: Scene) -> Output:
        desk = self.desk()
        operation = self.operations[ACTIONS[arguments.action]]
        parameters = dict(arguments.parameters)
        if arguments.schedule:
            parameters["schedule"] = arguments.schedule
        await self._fill_in(desk, arguments, parameters, scene)
        trust = Trust.UNTRUSTED if scene.trust is Trust.UNTRUSTED else Trust.AGENT
        agent = scene.agent
        principal = sets_for_later(scene, level=agent.permission_level) or Principal(
            address=address.agent(agent.name), level=agent.permission_level, trust=trust
        )
        key = f"{scene.session}/{scene.call}" if operation.effect else ""
        try:
            answer = await perform(desk, principal, operation, _encode(parameters), key=key)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        return Output(text=answer.decode(), trust=Trust.PRIVATE if operation.effect else None)

    async def _fill_in(self, desk: Desk, arguments: CronArguments, parameters: dict[str, Any], scene: Scene) -> None:
        """Add parameters that follow from the current conversation."""
        match arguments.action:
            case "wake":
                parameters["session"] = scene.session
            case "wakes":
                parameters.setdefault("session", scene.session)
            case "remind":
                person = person_of(scene)
                parameters.setdefault("to", f"person:{person}" if person else "person:owner")
            case "add":
                parameters.setdefault("to", str(address.agent(scene.agent.name)))
                if "deliver" not in parameters and scene.origin.foreground and parameters.get("place") != "main":
                    parameters["deliver"] = await _listener(desk, scene)
            case _:
                pass
        if arguments.context_messages and arguments.action in ("wake", "remind", "add"):
            lines = await desk.store.scan(lambda conn: recent_lines(conn, scene.session, arguments.context_messages))
            if lines:
                parameters["text"] = f"{parameters.get('text', '')}\n\nRecent context:\n{lines}"


async def _listener(desk: Desk, scene: Scene) -> str:
    """Return the reply address of the current session. A new schedule's answers go there."""
    session = await desk.store.read(lambda conn: sessions.get(conn, scene.session))
    return str(who_listens(session.origin)) if session is not None else ""


def recent_lines(conn: sa.Connection, session: str, count: int) -> str:
    """Return the last messages of a session as short lines with their senders."""
    found = sessions.get(conn, session)
    if found is None:
        return ""
    first = max(found.context_from, found.record_seq - LOOKED_BACK_MAX)
    read, _ = records.read(conn, session, first=first, last=found.record_seq)
    lines: list[str] = []
    left = LINES_CHARS_MAX
    for line in (said for record in reversed(read) for said in _said(conn, record)):
        short = line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1] + "…"
        if len(lines) == count or len(short) > left:
            break
        lines.append(short)
        left -= len(short)
    return "\n".join(reversed(lines))


def _said(conn: sa.Connection, record: Record) -> list[str]:
    """Return the record's messages as lines, newest first."""
    match record.body:
        case Reply(text=text) if text.strip():
            return [f"- Agent: {' '.join(text.split())}"]
        case UserTurn() as turn:
            found = [envelopes.get(conn, id_) for id_ in reversed(turn.envelopes)]
            said = [each for each in found if each is not None and each.text.strip()]
            return [f"- {_who(each.sender)}: {' '.join(each.text.split())}" for each in said]
        case _:
            return []


def _who(sender: address.Address) -> str:
    return sender.name if sender.kind is AddressKind.PERSON else str(sender)


# --- memory of a schedule ---


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


class MemoryArguments(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    append: Annotated[bool, msgspec.Meta(description="Add it to what is there, instead of replacing it")] = True


def folder_of(schedule: Schedule) -> str:
    """Return the folder of a schedule's memory and files, relative to the agent directory."""
    return f"schedules/{schedule.name or schedule.id}"


def _at_its_folder(schedule: Schedule, scene: Scene) -> tuple[str, Scene]:
    """Return the path of the schedule's memory, and a tool context that may write to its folder."""
    folder = scene.home / folder_of(schedule)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return str(folder / "MEMORY.md"), replace(scene, rights=replace(scene.rights, write=(*scene.rights.write, folder)))


async def _schedule_of(desk: Desk, scene: Scene) -> Schedule:
    """Return the schedule that the session of this call belongs to."""
    session = await desk.store.read(lambda conn: sessions.get(conn, scene.session))
    id_ = session.origin.key.removeprefix("schedule:") if session is not None else ""
    kept = await desk.store.read(lambda conn: schedules.get(conn, id_)) if scene.origin is OriginKind.SCHEDULE else None
    if kept is None:
        raise ToolFailed(
            "this conversation is of no schedule",
            because="only what the clock begins has a memory of this kind, and its schedule may be gone",
            code="schedule.not-found",
        )
    return kept.schedule


class ReadTask(Struct, frozen=True):
    desk: Callable[[], Desk]
    arguments: type[msgspec.Struct] = Nothing
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron_read_task",
            description="Read the schedule that you are working for: its text, its times, and its folder.",
            parameters=schema_of(Nothing),
            effects=frozenset({Effect.READS_PRIVATE}),
            capabilities=frozenset({"schedules.read"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: Nothing, scene: Scene) -> Output:
        schedule = await _schedule_of(self.desk(), scene)
        files = f"{folder_of(schedule)}/files"
        folder = Path(scene.home, files)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = f"schedule: {schedule.name or schedule.id}\nwhen: {schedule.when}\nfiles: {files}\n\n{schedule.text}"
        return Output(text=text, trust=schedule.trust)


class ReadMemory(Struct, frozen=True):
    desk: Callable[[], Desk]
    reads: Read
    arguments: type[msgspec.Struct] = Nothing
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron_read_memory",
            description="Read what was kept from earlier times of this schedule.",
            parameters=schema_of(Nothing),
            effects=frozenset({Effect.READS_PRIVATE}),
            capabilities=frozenset({"schedules.read"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: Nothing, scene: Scene) -> Output:
        schedule = await _schedule_of(self.desk(), scene)
        path, scene = _at_its_folder(schedule, scene)
        if not Path(path).exists():
            return Output(text=NO_MEMORY, trust=Trust.PRIVATE)
        return await self.reads.perform(ReadArguments(path=path), scene)


class WriteMemory(Struct, frozen=True):
    desk: Callable[[], Desk]
    writes: Write
    arguments: type[msgspec.Struct] = MemoryArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="cron_write_memory",
            description="Keep something for later times of this schedule.",
            parameters=schema_of(MemoryArguments),
            effects=frozenset({Effect.WRITES}),
            capabilities=frozenset({"schedules.write"}),
        )
    )

    async def perform(self, arguments: MemoryArguments, scene: Scene) -> Output:
        schedule = await _schedule_of(self.desk(), scene)
        path, scene = _at_its_folder(schedule, scene)
        append = arguments.append and not await asyncio.to_thread(_is_empty, Path(path))
        text = f"\n{arguments.text}\n" if append else f"{arguments.text}\n"
        return await self.writes.perform(WriteArguments(path=path, content=text, append=append), scene)


def _is_empty(path: Path) -> bool:
    """Whether the file is missing, empty, or contains only the text for an empty memory."""
    try:
        with path.open(errors="replace") as file:
            return file.read(len(NO_MEMORY) + 2).strip() in ("", NO_MEMORY)
    except FileNotFoundError:
        return True


def clock_tools(desk: Callable[[], Desk], operations: Mapping[str, Operation], ground: Ground) -> tuple[Tool, ...]:
    return (Cron(desk, operations), ReadTask(desk), ReadMemory(desk, Read(ground)), WriteMemory(desk, Write(ground)))
