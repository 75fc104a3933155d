"""Stores commands: their state, their logs, and the one envelope that reports the end of each."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

from msgspec import Struct

from retinue.domain import address
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind
from retinue.domain.errors import Conflict, NotFound, StoreError
from retinue.domain.ids import EnvelopeId, SessionId, derive_id, parse_id_prefix, short_id
from retinue.domain.ports import Clock, EnvelopeAcceptor
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.sandbox.base import MIB
from retinue.store.core.connection import Store
from retinue.store.runs import processes
from retinue.store.runs.processes import CommandProcess, ProcessState
from retinue.tools.shell import job_output
from retinue.tools.shell.errors import JobNotFound
from retinue.tools.shell.process_identity import kill_leftover

log = logging.getLogger(__name__)

NOTICE_OUTPUT_CHARS = 400
COMMAND_SHOWN_CHARS = 300
BATCH_SIZE = 1_000


class JobLimits(Struct, frozen=True, kw_only=True):
    """Limits on how many commands run at once, and on how much is stored of each."""

    shown_chars_max: int = 200_000  # of the output in one result
    log_bytes_max: int = 64 * MIB  # per command
    per_session_max: int = 16
    per_server_max: int = 64
    finished_per_session_max: int = 50
    retention_s: float = 1_800.0  # after the end of a command


def describe_end(process: CommandProcess) -> str:
    """Describe in words how a command ended."""
    how = "no exit code" if process.exit_code is None else f"exit code {process.exit_code}"
    took = (process.ended_at - process.started_at).total_seconds() if process.ended_at else 0.0
    because = f" ({process.because})" if process.because else ""
    return f"{how} after {max(0.0, took):.1f} s{because}"


def shorten_command(process: CommandProcess) -> str:
    command = process.command
    return command if len(command) <= COMMAND_SHOWN_CHARS else command[: COMMAND_SHOWN_CHARS - 1] + "…"


class JobStore:
    """Stores commands and their logs. The records survive a restart of the server."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        post: EnvelopeAcceptor,
        folder: Path,
        *,
        limits: JobLimits | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Use `folder` for the logs; no agent may read it. `redact` redacts secrets in output that is shown."""
        self._store = store
        self._clock = clock
        self._post = post
        self._folder = folder
        self.limits = limits or JobLimits()
        self.redact = redact

    def log_path(self, id_: str) -> Path:
        return self._folder / f"{id_}.log"

    def create_log(self, id_: str) -> job_output.JobLog:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return job_output.JobLog(self.log_path(id_), bytes_max=self.limits.log_bytes_max)

    async def add(self, process: CommandProcess) -> None:
        await self._store.write(partial(processes.add, process=process), point="process-begin")

    async def mark_background(self, id_: str) -> bool:
        """Mark a command as running in the background, so that its session is notified of its end.

        Returns whether the command was still running.
        """
        return await self._store.write(partial(processes.move_to_background, id_=id_), point="process-leave")

    async def mark_untrusted(self, id_: str) -> None:
        await self._store.write(partial(processes.mark_untrusted, id_=id_), point="process-distrust")

    async def end(self, process: CommandProcess, *, is_reported: bool = False) -> ProcessState | None:
        """Record the end of a command. Returns its new state, or None if the end was recorded
        before.
        """
        body = partial(
            processes.end,
            id_=process.id,
            exit_code=process.exit_code,
            because=process.because,
            at_ms=to_ms(process.ended_at or self._clock.now()),
            is_reported=is_reported,
        )
        return await self._store.write(body, point="process-end")

    async def notify_session(self, process: CommandProcess) -> None:
        """Send the envelope about the end of a command.

        Its key derives from the process, so it is sent only once.
        """
        draft = EnvelopeDraft(
            id=EnvelopeId(derive_id(process.id, "ended")),
            sender=address.SERVER_ADDRESS,
            recipient=address.agent_address(process.agent, process.session),
            text=await asyncio.to_thread(self._build_end_text, process),
            source=processes.PROCESS_SOURCE,
            idempotency_key=processes.end_key(process.id),
            kind=EnvelopeKind.SYSTEM,
            trust=Trust.UNTRUSTED if process.trust is Trust.UNTRUSTED else Trust.PRIVATE,
        )
        try:
            await self._post.accept(draft)
        except (NotFound, Conflict) as error:  # the session is gone, or the envelope was sent with different text
            log.info("command finished, session gone", extra={"command": short_id(process.id), "code": error.code})
        await self._store.write(partial(processes.mark_reported, id_=process.id), point="process-reported")

    def _build_end_text(self, process: CommandProcess) -> str:
        output = self.tail(process.id, chars_max=NOTICE_OUTPUT_CHARS)
        end = f"The command {short_id(process.id)} has ended: {describe_end(process)}.\n$ {shorten_command(process)}"
        return f"{end}\n{output or '[no output]'}"

    def tail(self, id_: str, *, chars_max: int) -> str:
        try:
            return job_output.read_tail(self.log_path(id_), chars_max=chars_max, mask=self.redact)[0].strip("\n")
        except FileNotFoundError:
            return ""

    async def list_session_jobs(self, session: SessionId) -> list[CommandProcess]:
        """Return the commands of a session that run in the background, and those whose log still exists."""
        return await self._store.read(partial(processes.list_of_session, session=session, limit=BATCH_SIZE))

    async def find(self, session: SessionId, text: str) -> CommandProcess:
        """Return the command of this session with the short id. Commands of other sessions are not found."""
        begins = parse_id_prefix(text)
        found = [each for each in await self.list_session_jobs(session) if each.id.startswith(begins)]
        if len(found) != 1:
            raise JobNotFound(text)
        return found[0]

    async def remove(self, id_: str) -> None:
        """Delete a finished command and its log. Does nothing if the command is running."""
        if await self._store.write(partial(processes.remove, id_=id_), point="process-remove"):
            self.log_path(id_).unlink(missing_ok=True)

    async def prune(self, session: SessionId | None = None) -> bool:
        """Delete commands that ended long ago. With `session`, also delete those beyond its limit, oldest first.

        Returns whether any finished command is left.
        """
        before = to_ms(self._clock.now() - timedelta(seconds=self.limits.retention_s))
        stale = await self._store.read(partial(processes.list_stale, before_ms=before, limit=BATCH_SIZE))
        if session is not None:
            reported = [
                each.id for each in await self.list_session_jobs(session) if each.state is ProcessState.REPORTED
            ]
            stale += reported[: max(0, len(reported) - self.limits.finished_per_session_max)]
        for id_ in dict.fromkeys(stale):
            await self.remove(id_)
        return bool(await self._store.read(partial(processes.list_reported, limit=1)))

    async def reconcile(self) -> None:
        """Kill commands that an earlier server process left running, and send missing notifications.

        Called when the server starts.
        """
        for process in await self._store.read(partial(processes.list_unfinished, limit=BATCH_SIZE)):
            try:
                await self._reconcile_job(process)
            except StoreError as error:
                log.warning("command not reconciled", extra={"command": short_id(process.id), "code": error.code})
        await self.prune()
        await self._remove_orphaned_logs()

    async def _reconcile_job(self, process: CommandProcess) -> None:
        if process.is_running:
            because = kill_leftover(process.pid, process.boot)
            body = partial(
                processes.end, id_=process.id, exit_code=None, because=because, at_ms=to_ms(self._clock.now())
            )
            state = await self._store.write(body, point="process-end")
            log.info("found command from a previous process", extra={"command": short_id(process.id), "found": because})
            if state is not ProcessState.ENDED:
                return
            process = await self._store.read(partial(processes.get, id_=process.id)) or process
        await self.notify_session(process)

    async def _remove_orphaned_logs(self) -> None:
        """Delete logs of commands that are not in the store."""
        if not self._folder.is_dir():
            return
        for name in os.listdir(self._folder):
            id_, dot, ending_ = name.rpartition(".")
            if dot and ending_ == "log" and await self._store.read(partial(processes.get, id_=id_)) is None:
                (self._folder / name).unlink(missing_ok=True)
