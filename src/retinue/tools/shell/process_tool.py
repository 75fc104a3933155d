"""`process`: reads, controls and ends the background commands of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeVar, assert_never

import msgspec
from msgspec import Meta

from retinue.domain.errors import Invalid
from retinue.domain.ids import short
from retinue.domain.tool import RESULT_CHARS_MAX, Effect, ToolSpec
from retinue.domain.trust import Trust, least
from retinue.sandbox.base import SandboxFailed
from retinue.store.runs.processes import Process as Written
from retinue.tools.base import Output, Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files.instruction_guard import instructions_refused
from retinue.tools.shell import job_output, terminal_keys
from retinue.tools.shell.job_store import ending, shown_command
from retinue.tools.shell.jobs import Job, Jobs

LINES, LINES_MAX = 200, 2_000
DATA_CHARS_MAX = 65_536
POLL_CHARS = 30_000
SAYING_CHARS = 1_000
POLLED_MAX = 1_000

T = TypeVar("T")

Action = Literal["list", "poll", "log", "write", "send_keys", "submit", "paste", "kill", "clear", "remove"]


class ProcessArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Annotated[
        Action,
        Meta(
            description=(
                "list: all of this session. poll: what is new. log: lines of the output. write: to its input. "
                "send_keys, submit (Enter), paste: as from a terminal. kill: end it. clear: forget one that has ended, "
                "or all that have. remove: end it and forget it."
            )
        ),
    ]
    id: Annotated[str, Meta(description="Which one: the id that exec or list told.")] = ""
    offset: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="log: the first line, counted from 0. Without it, the last lines."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX, description="log: how many lines.")] = LINES
    data: Annotated[str, Meta(max_length=DATA_CHARS_MAX, description="write, paste: the text.")] = ""
    eof: Annotated[bool, Meta(description="write: that was all, close its input.")] = False
    keys: Annotated[list[str], Meta(description="send_keys: names such as Enter, Tab, C-c, M-x, Up, F5.")] = []
    hex: Annotated[list[str], Meta(description="send_keys: bytes as two hex digits each.")] = []
    literal: Annotated[str, Meta(max_length=DATA_CHARS_MAX, description="send_keys: text as it is.")] = ""
    bracketed: Annotated[bool, Meta(description="paste: mark it as pasted, where it has a terminal.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Manages the background commands of this session."""

    jobs: Jobs
    arguments: type[msgspec.Struct] = ProcessArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="process",
            description="Look at, talk to and end the commands that exec has left running in this conversation.",
            parameters=schema_of(ProcessArguments),
            effects=frozenset({Effect.RUNS_CODE, Effect.READS_PRIVATE, Effect.READS_UNTRUSTED}),
            capabilities=frozenset({"terminal.exec"}),
        )
    )
    _polled: dict[str, int] = field(default_factory=dict[str, int], repr=False)

    async def perform(self, arguments: ProcessArguments, scene: Scene) -> Output:
        if arguments.action == "list":
            return await self._list(scene)
        if arguments.action == "clear" and not arguments.id:
            return await self._clear_all(scene)
        try:
            written = await self.jobs.book.find(scene.session, arguments.id)
        except Invalid as error:
            raise as_tool_failed(error) from error
        job = self.jobs.live(written.id)
        if job is not None:
            await self.jobs.weigh(job)
            written = job.process
        match arguments.action:
            case "poll":
                return await self._poll(written, running=job is not None)
            case "log":
                return await self._log(arguments, written)
            case "kill":
                return await self._kill(_running(job, written))
            case "clear":
                return await self._clear(written, running=job is not None)
            case "remove":
                return await self._remove(job, written)
            case "write" | "send_keys" | "submit" | "paste":
                return await self._write(arguments, _running(job, written), scene)
            case _:
                assert_never(arguments.action)

    # Reading

    async def _list(self, scene: Scene) -> Output:
        found = await self.jobs.book.of_session(scene.session)
        if not found:
            return Output(text="No commands were left running in this conversation.", trust=Trust.PRIVATE)
        lines = [f"{short(each.id)}  {self._state(each)}  {shown_command(each)}" for each in found]
        return Output(text="\n".join(lines), trust=_least(found))

    def _state(self, written: Written) -> str:
        return f"running, pid {written.pid}" if self.jobs.live(written.id) else ending(written)

    async def _poll(self, written: Written, *, running: bool) -> Output:
        start = self._polled.pop(written.id, 0)
        book = self.jobs.book
        look = partial(job_output.tail, book.path_of(written.id), chars_max=POLL_CHARS, from_byte=start, mask=book.mask)
        text, end = await _looked(look)
        while len(self._polled) >= POLLED_MAX:
            del self._polled[next(iter(self._polled))]
        self._polled[written.id] = end
        state = "It runs." if running else f"It has ended: {ending(written)}."
        return Output(text=f"{state}\n{text or '[nothing new]'}", trust=_believed(written))

    async def _log(self, arguments: ProcessArguments, written: Written) -> Output:
        book, path = self.jobs.book, self.jobs.book.path_of(written.id)
        page = await _looked(
            partial(job_output.page, path, offset=arguments.offset, limit=arguments.limit, mask=book.mask)
        )
        shown: list[str] = []
        room = RESULT_CHARS_MAX - SAYING_CHARS
        # When showing the end of the log, keep the last lines.
        for line in page.lines if arguments.offset is not None else reversed(page.lines):
            room -= len(line) + 1
            if room < 0:
                break
            shown.append(line)
        first = page.first
        if arguments.offset is None:
            shown.reverse()
            first = page.total - len(shown)
        last = first + len(shown)
        said = f"Lines {first} to {last - 1} of {page.total}." if shown else f"There are {page.total} lines."
        if last < page.total:
            said += f" Go on with offset {last}."
        return Output(text="\n".join([said, *shown]), trust=_believed(written))

    # Input

    async def _write(self, arguments: ProcessArguments, job: Job, scene: Scene) -> Output:
        if scene.others and job.guard is None:
            raise instructions_refused(f"nothing is sent to the command {short(job.id)}", scene)
        data = _typed(arguments, pty=job.pty)
        if not data and not arguments.eof:
            raise ToolFailed("there is nothing to send", because="no text and no keys were given", code="process.empty")
        # Update the trust before sending: after a crash in between it is too low rather than too high.
        await self.jobs.weigh(job, untrusted=scene.trust is Trust.UNTRUSTED)
        try:
            if data:
                await job.child.write(data)
            if arguments.eof and arguments.action == "write":
                job.child.close_input()
        except SandboxFailed as error:
            raise as_tool_failed(error) from error
        return Output(text=f"Sent {len(data)} bytes. Use poll to see what it says.", trust=Trust.PRIVATE)

    # Ending

    async def _kill(self, job: Job) -> Output:
        await self.jobs.kill(job, "it was killed", by_session=True)
        if not job.over.is_set():
            raise ToolFailed(
                f"the command {short(job.id)} was killed, and has not ended yet",
                because="it does not end in time",
                try_this="look again in a moment",
                code="process.lingers",
            )
        return Output(text=f"The command {short(job.id)} has ended: {ending(job.process)}.", trust=Trust.PRIVATE)

    async def _remove(self, job: Job | None, written: Written) -> Output:
        if job is not None:
            await self._kill(job)
        await self.jobs.book.remove(written.id)
        return Output(text=f"The command {short(written.id)} was removed, with its log.", trust=Trust.PRIVATE)

    async def _clear(self, written: Written, *, running: bool) -> Output:
        if running:
            raise ToolFailed(
                f"the command {short(written.id)} still runs",
                because="only one that has ended can be cleared",
                try_this="use remove to end it and forget it",
                code="process.running",
            )
        await self.jobs.book.remove(written.id)
        return Output(text=f"The command {short(written.id)} was cleared.", trust=Trust.PRIVATE)

    async def _clear_all(self, scene: Scene) -> Output:
        found = await self.jobs.book.of_session(scene.session)
        ended = [each for each in found if not each.runs]
        for each in ended:
            await self.jobs.book.remove(each.id)
        return Output(text=f"{len(ended)} commands that have ended were cleared.", trust=Trust.PRIVATE)


def _running(job: Job | None, written: Written) -> Job:
    if job is None:
        raise ToolFailed(
            f"the command {short(written.id)} has ended",
            because=ending(written),
            try_this="use log to read what it said",
            code="process.ended",
        )
    return job


def _typed(arguments: ProcessArguments, *, pty: bool) -> bytes:
    match arguments.action:
        case "send_keys":
            return terminal_keys.encoded(arguments.keys, arguments.hex, arguments.literal)
        case "submit":
            return b"\r" if pty else b"\n"
        case "paste":
            return terminal_keys.pasted(arguments.data, bracketed=arguments.bracketed and pty)
        case _:
            return arguments.data.encode(errors="replace")


async def _looked(look: Callable[[], T]) -> T:
    """Read a log in a thread, because it can be long."""
    try:
        return await asyncio.to_thread(look)
    except FileNotFoundError:
        raise ToolFailed("its log is no longer here", because="it was cleared away", code="process.no-log") from None


def _believed(written: Written) -> Trust:
    return Trust.UNTRUSTED if written.trust is Trust.UNTRUSTED else Trust.PRIVATE


def _least(found: Sequence[Written]) -> Trust:
    return least(_believed(each) for each in found)
