"""Running commands: start, watch and end them. A command is in the store before it is left
unattended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from retinue.domain.errors import StoreError
from retinue.domain.ids import SessionId, short
from retinue.domain.ports import Clock, Ids
from retinue.domain.storable_text import storable
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.sandbox.base import Child, Ended
from retinue.store.core.connection import HOPELESS
from retinue.store.runs.processes import Process, ProcessState
from retinue.tools.base import Scene, ToolFailed
from retinue.tools.shell.job_output import Log
from retinue.tools.shell.job_store import Book
from retinue.tools.shell.process_identity import mark_of
from retinue.tools.shell.sandbox_choice import PathGuard

log = logging.getLogger(__name__)

KILL_WAIT_S = 10.0
CLOSE_WAIT_S = 15.0
DRAIN_WAIT_S = 5.0  # for the remaining output of a finished command
RETRY_S = 5.0
RETRIES_MAX = 20

T = TypeVar("T")

Believed = Callable[[bool], Awaitable[Trust]]
"""Returns the current trust of a command's output. The argument: whether it gets untrusted input from now on."""


class Order(Struct, frozen=True, kw_only=True):
    """A command to start, and what to record about it."""

    start: Callable[[], Coroutine[Any, Any, Child]]
    command: str
    folder: Path
    timeout_s: float
    believed: Believed
    guard: PathGuard | None = None  # paths it may not change, because of the run principal
    pty: bool = False
    background: bool = False


class Job:
    """A command that runs or has just ended."""

    def __init__(self, process: Process, child: Child, order: Order) -> None:
        self.process = process
        self.child = child
        self.pty = order.pty
        self.believed = order.believed
        self.guard = order.guard
        self.over = asyncio.Event()
        self.because = ""  # why we ended it, if we did
        self.ended_by_session = False

    @property
    def id(self) -> str:
        return self.process.id


class Jobs:
    """Starts, watches and ends commands."""

    def __init__(self, book: Book, clock: Clock, ids: Ids) -> None:
        self.book = book
        self._clock = clock
        self._ids = ids
        self._live: dict[str, Job] = {}
        self._beginning: list[SessionId] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._pruning: Callable[[], None] | None = None
        self._closing = False

    async def open(self) -> None:
        """Clean up after an earlier server process. Called before the first command."""
        await self.book.reconcile()
        self._prune_later()

    async def close(self) -> None:
        """End every command, within a time limit. Sessions are notified at the next start of the
        server.
        """
        self._closing = True
        if self._pruning is not None:
            self._pruning()
        for job in list(self._live.values()):
            self._spawn(self.kill(job, "the house was closed"))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_WAIT_S)
            for task in late:
                task.cancel()
            if late:
                log.warning("commands not ended in time", extra={"count": len(self._live)})
                await asyncio.wait(late, timeout=1.0)

    def live(self, id_: str) -> Job | None:
        return self._live.get(id_)

    async def begin(self, order: Order, scene: Scene) -> Job:
        """Start a command and store it. If the caller is cancelled meanwhile, the command is ended."""
        self._make_sure_of_room(scene.session)
        self._beginning.append(scene.session)
        beginning = asyncio.ensure_future(self._begin(order, scene))
        self._tasks.add(beginning)
        beginning.add_done_callback(self._begun)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(self._discard)
            raise

    async def wait(self, job: Job, seconds: float) -> bool:
        """Return whether the command ended within `seconds`."""
        over = asyncio.ensure_future(job.over.wait())
        late = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({over, late}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            late.cancel()
        return job.over.is_set()

    async def leave(self, job: Job) -> bool:
        """Leave the command running. Returns whether it was still running."""
        if await self.book.leave(job.id):
            return True
        await job.over.wait()  # its end is stored, so the event follows shortly
        return False

    async def kill(self, job: Job, because: str, *, by_session: bool = False) -> None:
        """Kill the command and everything it started. Returns when it has ended, or after a time
        limit.
        """
        job.because = job.because or because
        job.ended_by_session = job.ended_by_session or by_session
        # In a separate task, so that cancelling the caller does not cancel the kill.
        await asyncio.shield(self._spawn(self._kill(job)))

    async def end_session(self, session: SessionId, because: str) -> None:
        """Kill all commands of a session, for example when it is deleted."""
        for job in [each for each in self._live.values() if each.process.session == session]:
            await self.kill(job, because, by_session=True)

    async def weigh(self, job: Job, *, untrusted: bool = False) -> Trust:
        """Update the trust of a command's output: untrusted content may have come within its reach.

        `untrusted` means that it is about to receive untrusted input.
        """
        if job.process.trust is not Trust.UNTRUSTED and await job.believed(untrusted) is Trust.UNTRUSTED:
            await self.book.distrust(job.id)
            job.process = replace(job.process, trust=Trust.UNTRUSTED)
        return job.process.trust

    async def _begin(self, order: Order, scene: Scene) -> Job:
        try:
            await self.book.prune(scene.session)
            trust = await order.believed(False)
            if order.guard is not None:
                await order.guard.begin()
            id_ = self._ids.new()
            log_ = self.book.new_log(id_)
            try:
                job = await self._start(order, scene, id_, trust)
            except BaseException:
                log_.close()
                self.book.path_of(id_).unlink(missing_ok=True)
                raise
            self._live[id_] = job
            self._spawn(self._watch(job, log_, order.timeout_s))
            return job
        finally:
            self._beginning.remove(scene.session)

    async def _start(self, order: Order, scene: Scene, id_: str, trust: Trust) -> Job:
        child = await order.start()
        process = Process(
            id=id_,
            session=scene.session,
            run=scene.run,
            agent=scene.agent.name,
            command=storable(order.command),
            folder=storable(str(order.folder)),
            pid=child.pid,
            boot=mark_of(child.pid),
            trust=trust,
            started_at=self._clock.now(),
            state=ProcessState.RUNNING if order.background else ProcessState.WATCHED,
        )
        try:
            await self.book.add(process)
        except BaseException:  # a command that is not stored must not run
            await child.kill()
            raise
        return Job(process, child, order)

    def _begun(self, beginning: asyncio.Future[Job]) -> None:
        self._tasks.discard(beginning)
        if not beginning.cancelled():
            beginning.exception()  # the caller gets the exception, if it still waits

    def _discard(self, beginning: asyncio.Future[Job]) -> None:
        """Kill a command whose caller was cancelled while it started."""
        if not beginning.cancelled() and beginning.exception() is None:
            self._spawn(self.kill(beginning.result(), "its run was cancelled", by_session=True))

    def _make_sure_of_room(self, session: SessionId) -> None:
        if self._closing:
            raise ToolFailed("nothing new is begun", because="the house is closing", code="process.closing")
        busy = [job.process.session for job in self._live.values()] + self._beginning
        caps = self.book.caps
        for count, most, whose in (
            (busy.count(session), caps.per_session, "in this session"),
            (len(busy), caps.per_house, "in this house"),
        ):
            if count >= most:
                raise ToolFailed(
                    f"{count} commands run already {whose}",
                    because=f"at most {most} may",
                    try_this="wait for one to end, or end one with `process` and the action kill",
                    code="process.too-many",
                )

    async def _kill(self, job: Job) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_WAIT_S):
                await job.child.kill()
                await job.over.wait()

    async def _watch(self, job: Job, log_: Log, timeout_s: float) -> None:
        expiry = self._clock.later(timeout_s, partial(self._expire, job, timeout_s))
        reading = self._spawn(self._read(job, log_))
        try:
            ended = await job.child.wait()
            _, late = await asyncio.wait({reading}, timeout=DRAIN_WAIT_S)
            if late:  # a descendant still holds the output open
                await job.child.kill()
        except Exception as error:  # a command must never look as if it ran forever
            log.exception("command lost sight of", extra={"command": short(job.id)})
            ended = Ended(code=None, because=f"it was lost sight of: {type(error).__name__}")
            self._spawn(job.child.kill())
        finally:
            reading.cancel()
            expiry()
            log_.close()
        await self._finish(job, ended)

    async def _read(self, job: Job, log_: Log) -> None:
        try:
            while chunk := await job.child.read():
                log_.add(chunk)
        except OSError as error:  # for example, the disk is full
            self._spawn(self.kill(job, f"its output could not be kept: {error.strerror}"))

    def _expire(self, job: Job, timeout_s: float) -> None:
        self._spawn(self.kill(job, f"it took longer than {timeout_s:g} s"))

    async def _finish(self, job: Job, ended: Ended) -> None:
        await self._insist(partial(self.weigh, job))
        because = "" if ended.code == 0 else job.because or ended.because
        if ended.signal is not None and not because:
            because = f"a signal ended it: {_name(ended.signal)}"
        process = replace(job.process, exit_code=ended.code, because=storable(because), ended_at=self._clock.now())
        try:
            state = await self._insist(partial(self.book.end, process, told=job.ended_by_session))
        finally:
            job.process = process
            self._live.pop(job.id, None)
            job.over.set()
        if job.guard is not None and not self._beginning:  # a starting command may rely on it
            others = {path for each in self._live.values() if each.guard is not None for path in each.guard.paths}
            settled = [path for path in job.guard.paths if path not in others]
            await self._insist(partial(job.guard.settle, settled))
        if state is ProcessState.ENDED and not self._closing:
            await self._insist(partial(self.book.tell, process))
        self._prune_later()

    async def _insist(self, act: Callable[[], Awaitable[T]]) -> T | None:
        """Retry while the store cannot write. If it never succeeds, the next start cleans up."""
        for _ in range(RETRIES_MAX):
            try:
                return await act()
            except StoreError as error:
                log.warning("end of a command not written", extra={"code": error.code})
                if self._closing or error.code in HOPELESS:
                    return None
                await self._clock.sleep(RETRY_S)
        return None

    def _prune_later(self) -> None:
        if self._pruning is None and not self._closing:
            self._pruning = self._clock.later(self.book.caps.kept_s, self._prune_now)

    def _prune_now(self) -> None:
        self._spawn(self._prune())

    async def _prune(self) -> None:
        self._pruning = None
        if await self._insist(self.book.prune):
            self._prune_later()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("watching a command failed", exc_info=error)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
