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
from retinue.domain.envelope import Draft, Kind
from retinue.domain.errors import Conflict, NotFound, StoreError
from retinue.domain.ids import EnvelopeId, SessionId, derived, prefix, short
from retinue.domain.ports import Clock, Post
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.sandbox.base import MIB
from retinue.store.core.connection import Store
from retinue.store.runs import processes
from retinue.store.runs.processes import Process, ProcessState
from retinue.tools.base import ToolFailed
from retinue.tools.shell import job_output
from retinue.tools.shell.process_identity import end_left_over

log = logging.getLogger(__name__)

TOLD_CHARS = 400
COMMAND_CHARS_SHOWN = 300
BATCH = 1_000


class Caps(Struct, frozen=True, kw_only=True):
    """Limits on what is kept of commands, and on how many run at once."""

    shown_chars: int = 200_000  # of the output in one result
    log_bytes: int = 64 * MIB  # per command
    per_session: int = 16
    per_house: int = 64
    finished_per_session: int = 50
    kept_s: float = 1_800.0  # after the end of a command


def ending(process: Process) -> str:
    """Describe how a command ended."""
    how = "no exit code" if process.exit_code is None else f"exit code {process.exit_code}"
    took = (process.ended_at - process.started_at).total_seconds() if process.ended_at else 0.0
    because = f" ({process.because})" if process.because else ""
    return f"{how} after {max(0.0, took):.1f} s{because}"


def shown_command(process: Process) -> str:
    command = process.command
    return command if len(command) <= COMMAND_CHARS_SHOWN else command[: COMMAND_CHARS_SHOWN - 1] + "…"


class Book:
    """Stores commands and their logs. The records survive a restart of the server."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        post: Post,
        folder: Path,
        *,
        caps: Caps | None = None,
        mask: Callable[[str], str] = str,
    ) -> None:
        """`folder` holds the logs, and no agent may read it. `redact` redacts secrets in shown
        output.
        """
        self._store = store
        self._clock = clock
        self._post = post
        self._folder = folder
        self.caps = caps or Caps()
        self.mask = mask

    def path_of(self, id_: str) -> Path:
        return self._folder / f"{id_}.log"

    def new_log(self, id_: str) -> job_output.Log:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return job_output.Log(self.path_of(id_), bytes_max=self.caps.log_bytes)

    async def add(self, process: Process) -> None:
        await self._store.write(partial(processes.add, process=process), point="process-begin")

    async def leave(self, id_: str) -> bool:
        """Mark a command as running in the background, so that its session is notified of its end.

        Returns whether the command was still running.
        """
        return await self._store.write(partial(processes.leave, id_=id_), point="process-leave")

    async def distrust(self, id_: str) -> None:
        await self._store.write(partial(processes.distrust, id_=id_), point="process-distrust")

    async def end(self, process: Process, *, told: bool = False) -> ProcessState | None:
        """Record the end of a command. Returns its new state, or None if the end was recorded
        before.
        """
        body = partial(
            processes.end,
            id_=process.id,
            exit_code=process.exit_code,
            because=process.because,
            at_ms=to_ms(process.ended_at or self._clock.now()),
            told=told,
        )
        return await self._store.write(body, point="process-end")

    async def tell(self, process: Process) -> None:
        """Send the envelope about the end of a command. Its key derives from the process, so it is
        sent once.
        """
        draft = Draft(
            id=EnvelopeId(derived(process.id, "ended")),
            sender=address.HOUSE,
            recipient=address.agent(process.agent, process.session),
            text=await asyncio.to_thread(self._words, process),
            source=processes.SOURCE,
            key=processes.end_key(process.id),
            kind=Kind.SYSTEM,
            trust=Trust.UNTRUSTED if process.trust is Trust.UNTRUSTED else Trust.PRIVATE,
        )
        try:
            await self._post.post(draft)
        except (NotFound, Conflict) as error:  # the session is gone, or the envelope was sent before with another text
            log.info("end of a command told to nobody", extra={"command": short(process.id), "code": error.code})
        await self._store.write(partial(processes.mark_told, id_=process.id), point="process-told")

    def _words(self, process: Process) -> str:
        said = self.tail(process.id, chars_max=TOLD_CHARS)
        told = f"The command {short(process.id)} has ended: {ending(process)}.\n$ {shown_command(process)}"
        return f"{told}\n{said}" if said else f"{told}\n[it said nothing]"

    def tail(self, id_: str, *, chars_max: int) -> str:
        try:
            return job_output.tail(self.path_of(id_), chars_max=chars_max, mask=self.mask)[0].strip("\n")
        except FileNotFoundError:
            return ""

    async def of_session(self, session: SessionId) -> list[Process]:
        """Return the commands left in the background, and those whose log still exists."""
        return await self._store.read(partial(processes.of_session, session=session, limit=BATCH))

    async def find(self, session: SessionId, text: str) -> Process:
        """Return the command of this session with the short id. Other sessions' commands are not
        found.
        """
        begins = prefix(text)
        found = [each for each in await self.of_session(session) if each.id.startswith(begins)]
        if len(found) != 1:
            raise ToolFailed(
                f"there is no command {text[:40]} in this session",
                because="none was begun here, or it has ended and was cleared away",
                try_this="use `process` with the action list",
                code="process.not-found",
            )
        return found[0]

    async def remove(self, id_: str) -> None:
        """Delete a finished command and its log. A running command stays."""
        if await self._store.write(partial(processes.remove, id_=id_), point="process-remove"):
            self.path_of(id_).unlink(missing_ok=True)

    async def prune(self, session: SessionId | None = None) -> bool:
        """Delete expired commands, and surplus ones of a session. Returns whether any finished
        command is left.
        """
        before = to_ms(self._clock.now() - timedelta(seconds=self.caps.kept_s))
        stale = await self._store.read(partial(processes.stale, before_ms=before, limit=BATCH))
        if session is not None:
            told = [each.id for each in await self.of_session(session) if each.state is ProcessState.TOLD]
            stale += told[: max(0, len(told) - self.caps.finished_per_session)]
        for id_ in dict.fromkeys(stale):
            await self.remove(id_)
        return bool(await self._store.read(partial(processes.finished, limit=1)))

    async def reconcile(self) -> None:
        """Kill commands left by an earlier server process, and send missing notifications. Runs at
        startup.
        """
        for process in await self._store.read(partial(processes.unfinished, limit=BATCH)):
            try:
                await self._reconcile(process)
            except StoreError as error:
                log.warning("command not reconciled", extra={"command": short(process.id), "code": error.code})
        await self.prune()
        await self._remove_strays()

    async def _reconcile(self, process: Process) -> None:
        if process.runs:
            because = end_left_over(process.pid, process.boot)
            body = partial(
                processes.end, id_=process.id, exit_code=None, because=because, at_ms=to_ms(self._clock.now())
            )
            state = await self._store.write(body, point="process-end")
            log.info("command of an earlier house", extra={"command": short(process.id), "found": because})
            if state is not ProcessState.ENDED:
                return
            process = await self._store.read(partial(processes.get, id_=process.id)) or process
        await self.tell(process)

    async def _remove_strays(self) -> None:
        """Delete logs of commands that are not in the store."""
        if not self._folder.is_dir():
            return
        for name in os.listdir(self._folder):
            id_, dot, ending_ = name.rpartition(".")
            if dot and ending_ == "log" and await self._store.read(partial(processes.get, id_=id_)) is None:
                (self._folder / name).unlink(missing_ok=True)
