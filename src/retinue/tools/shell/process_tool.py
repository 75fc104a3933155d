"""The tool `process`: reads, controls and ends the background commands of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeVar, assert_never

import msgspec
from msgspec import Meta

from retinue.domain.errors import Invalid
from retinue.domain.ids import short_id
from retinue.domain.tool import RESULT_CHARS_MAX, ToolEffect, ToolSpec
from retinue.domain.trust import Trust, least_trust
from retinue.sandbox.base import SandboxFailed
from retinue.store.runs.processes import CommandProcess as Written
from retinue.text.quantity import format_quantity
from retinue.tools.base import ToolContext, ToolOutput, as_tool_failed, schema_of
from retinue.tools.files.instruction_guard import build_instructions_error
from retinue.tools.shell import job_output, terminal_keys
from retinue.tools.shell.errors import JobEnded, JobInputEmpty, JobKillPending, JobLogDeleted, JobRunning
from retinue.tools.shell.job_store import describe_end, shorten_command
from retinue.tools.shell.jobs import Job, JobRunner

LINES_DEFAULT, LINES_MAX = 200, 2_000
DATA_CHARS_MAX = 65_536
POLL_CHARS = 30_000
RESERVED_CHARS = 1_000
POLL_OFFSETS_MAX = 1_000

T = TypeVar("T")

ProcessAction = Literal["list", "poll", "log", "write", "send_keys", "submit", "paste", "kill", "clear", "remove"]


class ProcessArguments(msgspec.Struct, forbid_unknown_fields=True):
    action: Annotated[
        ProcessAction,
        Meta(
            description=(
                "list: all commands of this session. poll: state and new output. log: lines of the output. write: "
                "send `data` to its input. send_keys, submit (Enter), paste: input as from a terminal. kill: end it. "
                "clear: delete one that has ended, or all of them without `id`. remove: end it and delete its log."
            )
        ),
    ]
    id: Annotated[str, Meta(description="Id of the command, as returned by exec or list.")] = ""
    offset: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="log: first line, counted from 0. Default: the last lines."),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX, description="log: maximum number of lines.")] = LINES_DEFAULT
    data: Annotated[str, Meta(max_length=DATA_CHARS_MAX, description="write, paste: the text.")] = ""
    eof: Annotated[bool, Meta(description="write: whether to close the command's input afterwards.")] = False
    keys: Annotated[list[str], Meta(description="send_keys: names such as Enter, Tab, C-c, M-x, Up, F5.")] = []
    hex: Annotated[list[str], Meta(description="send_keys: bytes as two hex digits each.")] = []
    literal: Annotated[str, Meta(max_length=DATA_CHARS_MAX, description="send_keys: literal text.")] = ""
    bracketed: Annotated[
        bool, Meta(description="paste: whether to mark the text as pasted, if the command has a terminal.")
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTool:
    """The tool `process`: manages the background commands of this session."""

    jobs: JobRunner
    arguments: type[msgspec.Struct] = ProcessArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="process",
            description="Read the output of commands that exec left running in this conversation, send them input, "
            "or end them.",
            parameters=schema_of(ProcessArguments),
            effects=frozenset({ToolEffect.RUNS_CODE, ToolEffect.READS_PRIVATE, ToolEffect.READS_UNTRUSTED}),
            capabilities=frozenset({"terminal.exec"}),
        )
    )
    _poll_offsets: dict[str, int] = field(default_factory=dict[str, int], repr=False)

    async def perform(self, arguments: ProcessArguments, context: ToolContext) -> ToolOutput:
        if arguments.action == "list":
            return await self._list(context)
        if arguments.action == "clear" and not arguments.id:
            return await self._clear_all(context)
        try:
            written = await self.jobs.store.find(context.session, arguments.id)
        except Invalid as error:
            raise as_tool_failed(error) from error
        job = self.jobs.find_running(written.id)
        if job is not None:
            await self.jobs.update_trust(job)
            written = job.process
        match arguments.action:
            case "poll":
                return await self._poll(written, running=job is not None)
            case "log":
                return await self._log(arguments, written)
            case "kill":
                return await self._kill(_require_running(job, written))
            case "clear":
                return await self._clear(written, running=job is not None)
            case "remove":
                return await self._remove(job, written)
            case "write" | "send_keys" | "submit" | "paste":
                return await self._send_input(arguments, _require_running(job, written), context)
            case _:
                assert_never(arguments.action)

    # Reading

    async def _list(self, context: ToolContext) -> ToolOutput:
        found = await self.jobs.store.list_session_jobs(context.session)
        if not found:
            return ToolOutput(text="No background commands in this conversation.", trust=Trust.PRIVATE)
        lines = [f"{short_id(each.id)}  {self._describe_state(each)}  {shorten_command(each)}" for each in found]
        return ToolOutput(text="\n".join(lines), trust=_least_trust(found))

    def _describe_state(self, written: Written) -> str:
        return f"running, pid {written.pid}" if self.jobs.find_running(written.id) else describe_end(written)

    async def _poll(self, written: Written, *, running: bool) -> ToolOutput:
        start = self._poll_offsets.pop(written.id, 0)
        job_store = self.jobs.store
        read = partial(
            job_output.read_tail,
            job_store.log_path(written.id),
            chars_max=POLL_CHARS,
            from_byte=start,
            mask=job_store.redact,
        )
        text, end = await _read_log(read)
        while len(self._poll_offsets) >= POLL_OFFSETS_MAX:
            del self._poll_offsets[next(iter(self._poll_offsets))]
        self._poll_offsets[written.id] = end
        state = "It is running." if running else f"It has ended: {describe_end(written)}."
        return ToolOutput(text=f"{state}\n{text or '[no new output]'}", trust=_output_trust(written))

    async def _log(self, arguments: ProcessArguments, written: Written) -> ToolOutput:
        job_store, path = self.jobs.store, self.jobs.store.log_path(written.id)
        page = await _read_log(
            partial(job_output.read_page, path, offset=arguments.offset, limit=arguments.limit, mask=job_store.redact)
        )
        shown: list[str] = []
        chars_left = RESULT_CHARS_MAX - RESERVED_CHARS
        # When showing the end of the log, keep the last lines.
        for line in page.lines if arguments.offset is not None else reversed(page.lines):
            chars_left -= len(line) + 1
            if chars_left < 0:
                break
            shown.append(line)
        first = page.first_line
        if arguments.offset is None:
            shown.reverse()
            first = page.line_count - len(shown)
        last = first + len(shown)
        notice = (
            f"Lines {first} to {last - 1} of {page.line_count}."
            if shown
            else f"The log has {format_quantity(page.line_count, 'line')}."
        )
        if last < page.line_count:
            notice += f" Read on with offset {last}."
        return ToolOutput(text="\n".join([notice, *shown]), trust=_output_trust(written))

    # Input

    async def _send_input(self, arguments: ProcessArguments, job: Job, context: ToolContext) -> ToolOutput:
        if context.non_owner_requesters and job.path_guard is None:
            raise build_instructions_error(f"send input to the command {short_id(job.id)}", context)
        data = _encode_input(arguments, pty=job.pty)
        if not data and not arguments.eof:
            raise JobInputEmpty
        # Update the trust before sending, so that a crash in between leaves it too low rather than too high.
        await self.jobs.update_trust(job, untrusted=context.trust is Trust.UNTRUSTED)
        try:
            if data:
                await job.child.write(data)
            if arguments.eof and arguments.action == "write":
                job.child.close_input()
        except SandboxFailed as error:
            raise as_tool_failed(error) from error
        return ToolOutput(text=f"Sent {len(data)} bytes. Use poll to read its output.", trust=Trust.PRIVATE)

    # Ending

    async def _kill(self, job: Job) -> ToolOutput:
        await self.jobs.kill(job, "it was killed", by_session=True)
        if not job.finished.is_set():
            raise JobKillPending(short_id(job.id))
        return ToolOutput(
            text=f"The command {short_id(job.id)} has ended: {describe_end(job.process)}.", trust=Trust.PRIVATE
        )

    async def _remove(self, job: Job | None, written: Written) -> ToolOutput:
        if job is not None:
            await self._kill(job)
        await self.jobs.store.remove(written.id)
        return ToolOutput(text=f"The command {short_id(written.id)} was removed, with its log.", trust=Trust.PRIVATE)

    async def _clear(self, written: Written, *, running: bool) -> ToolOutput:
        if running:
            raise JobRunning(short_id(written.id))
        await self.jobs.store.remove(written.id)
        return ToolOutput(text=f"The command {short_id(written.id)} was cleared.", trust=Trust.PRIVATE)

    async def _clear_all(self, context: ToolContext) -> ToolOutput:
        found = await self.jobs.store.list_session_jobs(context.session)
        ended = [each for each in found if not each.is_running]
        for each in ended:
            await self.jobs.store.remove(each.id)
        return ToolOutput(text=f"Cleared {format_quantity(len(ended), 'command')} that had ended.", trust=Trust.PRIVATE)


def _require_running(job: Job | None, written: Written) -> Job:
    if job is None:
        raise JobEnded(short_id(written.id), end=describe_end(written))
    return job


def _encode_input(arguments: ProcessArguments, *, pty: bool) -> bytes:
    match arguments.action:
        case "send_keys":
            return terminal_keys.encode_keys(arguments.keys, arguments.hex, arguments.literal)
        case "submit":
            return b"\r" if pty else b"\n"
        case "paste":
            return terminal_keys.encode_paste(arguments.data, bracketed=arguments.bracketed and pty)
        case _:
            return arguments.data.encode(errors="replace")


async def _read_log(read: Callable[[], T]) -> T:
    """Read a log in a thread, because the log can be long."""
    try:
        return await asyncio.to_thread(read)
    except FileNotFoundError:
        raise JobLogDeleted from None


def _output_trust(written: Written) -> Trust:
    return Trust.UNTRUSTED if written.trust is Trust.UNTRUSTED else Trust.PRIVATE


def _least_trust(found: Sequence[Written]) -> Trust:
    return least_trust(_output_trust(each) for each in found)
