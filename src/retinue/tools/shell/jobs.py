"""Starts, watches and ends commands. A command is in the store before its caller stops waiting for it."""

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
from retinue.domain.ids import SessionId, short_id
from retinue.domain.ports import Clock, IdSource
from retinue.domain.storable_text import make_storable
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.sandbox.base import CommandExit, RunningCommand
from retinue.store.core.connection import PERMANENT_ERROR_CODES
from retinue.store.runs.processes import CommandProcess, ProcessState
from retinue.tools.base import ToolContext
from retinue.tools.shell.errors import JobServerStopping, TooManyJobs
from retinue.tools.shell.job_output import JobLog
from retinue.tools.shell.job_store import JobStore
from retinue.tools.shell.process_identity import read_identity
from retinue.tools.shell.sandbox_choice import CommandPathGuard

log = logging.getLogger(__name__)

KILL_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 15.0
DRAIN_TIMEOUT_S = 5.0  # for the remaining output of a finished command
RETRY_S = 5.0
RETRIES_MAX = 20

SERVER_STOPPED = "the server was stopped"

T = TypeVar("T")

AssessTrust = Callable[[bool], Awaitable[Trust]]
"""Returns the current trust of a command's output. The argument is whether it gets untrusted input from now on."""


class JobRequest(Struct, frozen=True, kw_only=True):
    """A command to start, and the facts to store about it."""

    start: Callable[[], Coroutine[Any, Any, RunningCommand]]
    command: str
    folder: Path
    timeout_s: float
    assess_trust: AssessTrust
    path_guard: CommandPathGuard | None = None  # paths it may not change, because of the run principal
    pty: bool = False
    background: bool = False


class Job:
    """A command that is running or has just ended."""

    def __init__(self, process: CommandProcess, child: RunningCommand, order: JobRequest) -> None:
        self.process = process
        self.child = child
        self.pty = order.pty
        self.assess_trust = order.assess_trust
        self.path_guard = order.path_guard
        self.finished = asyncio.Event()
        self.because = ""  # why the server ended it, if it did
        self.ended_by_session = False

    @property
    def id(self) -> str:
        return self.process.id


class JobRunner:
    """Starts, watches and ends commands."""

    def __init__(self, store: JobStore, clock: Clock, ids: IdSource) -> None:
        self.store = store
        self._clock = clock
        self._ids = ids
        self._running: dict[str, Job] = {}
        self._starting: list[SessionId] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._cancel_pruning: Callable[[], None] | None = None
        self._is_closing = False

    async def open(self) -> None:
        """Clean up after an earlier server process. Called before the first command."""
        await self.store.reconcile()
        self._prune_later()

    async def close(self) -> None:
        """End every command, within a time limit.

        Sessions are notified at the next start of the server.
        """
        self._is_closing = True
        if self._cancel_pruning is not None:
            self._cancel_pruning()
        for job in list(self._running.values()):
            self._create_task(self.kill(job, SERVER_STOPPED))
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while self._tasks:  # a command that was starting is watched and killed by new tasks
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            if late := set(self._tasks):  # the last one may have ended at this moment
                log.warning("commands not ended in time", extra={"count": len(self._running)})
                for task in late:
                    task.cancel()
                await asyncio.wait(late, timeout=1.0)

    def find_running(self, id_: str) -> Job | None:
        return self._running.get(id_)

    async def start(self, request: JobRequest, context: ToolContext) -> Job:
        """Start a command and store it. If the caller is cancelled during the start, the command is ended."""
        self._check_limits(context.session)
        self._starting.append(context.session)
        beginning = asyncio.ensure_future(self._start_and_watch(request, context))
        self._tasks.add(beginning)
        beginning.add_done_callback(self._on_started)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(self._kill_abandoned)
            raise

    async def wait(self, job: Job, seconds: float) -> bool:
        """Wait for a command to end. Returns whether it ended within `seconds`."""
        over = asyncio.ensure_future(job.finished.wait())
        late = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({over, late}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            late.cancel()
        return job.finished.is_set()

    async def leave_running(self, job: Job) -> bool:
        """Leave the command running in the background. Returns whether it was still running."""
        if await self.store.mark_background(job.id):
            return True
        await job.finished.wait()  # its end is stored, so the event follows shortly
        return False

    async def kill(self, job: Job, because: str, *, by_session: bool = False) -> None:
        """Kill the command and everything that it started.

        Returns when the command has ended, or after a time limit.
        """
        job.because = job.because or because
        job.ended_by_session = job.ended_by_session or by_session
        # In a separate task, so that cancelling the caller does not cancel the kill.
        await asyncio.shield(self._create_task(self._kill_and_wait(job)))

    async def kill_session(self, session: SessionId, because: str) -> None:
        """Kill all commands of a session, for example when it is deleted."""
        for job in [each for each in self._running.values() if each.process.session == session]:
            await self.kill(job, because, by_session=True)

    async def update_trust(self, job: Job, *, untrusted: bool = False) -> Trust:
        """Update the trust of a command's output, because the command may now be able to read untrusted content.

        `untrusted` means that the command is about to receive untrusted input.
        """
        if job.process.trust is not Trust.UNTRUSTED and await job.assess_trust(untrusted) is Trust.UNTRUSTED:
            await self.store.mark_untrusted(job.id)
            job.process = replace(job.process, trust=Trust.UNTRUSTED)
        return job.process.trust

    async def _start_and_watch(self, request: JobRequest, context: ToolContext) -> Job:
        try:
            await self.store.prune(context.session)
            trust = await request.assess_trust(False)
            if request.path_guard is not None:
                await request.path_guard.mark_doubtful()
            id_ = self._ids.new()
            log_ = self.store.create_log(id_)
            try:
                job = await self._start_and_store(request, context, id_, trust)
            except BaseException:
                log_.close()
                self.store.log_path(id_).unlink(missing_ok=True)
                raise
            self._running[id_] = job
            self._create_task(self._watch(job, log_, request.timeout_s))
            if self._is_closing:
                self._create_task(self.kill(job, SERVER_STOPPED))
            return job
        finally:
            self._starting.remove(context.session)

    async def _start_and_store(self, request: JobRequest, context: ToolContext, id_: str, trust: Trust) -> Job:
        child = await request.start()
        process = CommandProcess(
            id=id_,
            session=context.session,
            run=context.run,
            agent=context.agent.name,
            command=make_storable(request.command),
            folder=make_storable(str(request.folder)),
            pid=child.pid,
            boot=read_identity(child.pid),
            trust=trust,
            started_at=self._clock.now(),
            state=ProcessState.RUNNING if request.background else ProcessState.WATCHED,
        )
        try:
            await self.store.add(process)
        except BaseException:  # a command that is not stored must not run
            await child.kill()
            raise
        return Job(process, child, request)

    def _on_started(self, starting: asyncio.Future[Job]) -> None:
        self._tasks.discard(starting)
        if not starting.cancelled():
            starting.exception()  # the caller gets the exception, if it is still waiting

    def _kill_abandoned(self, starting: asyncio.Future[Job]) -> None:
        """Kill a command whose caller was cancelled while it started."""
        if not starting.cancelled() and starting.exception() is None:
            self._create_task(self.kill(starting.result(), "its run was cancelled", by_session=True))

    def _check_limits(self, session: SessionId) -> None:
        if self._is_closing:
            raise JobServerStopping
        busy = [job.process.session for job in self._running.values()] + self._starting
        caps = self.store.limits
        for count, count_max, scope in (
            (busy.count(session), caps.per_session_max, "session"),
            (len(busy), caps.per_server_max, "server"),
        ):
            if count >= count_max:
                raise TooManyJobs(scope=scope, count_max=count_max)

    async def _kill_and_wait(self, job: Job) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await job.child.kill()
                await job.finished.wait()

    async def _watch(self, job: Job, log_: JobLog, timeout_s: float) -> None:
        expiry = self._clock.call_later(timeout_s, partial(self._expire, job, timeout_s))
        reading = self._create_task(self._read(job, log_))
        try:
            ended = await job.child.wait()
            _, late = await asyncio.wait({reading}, timeout=DRAIN_TIMEOUT_S)
            if late:  # a descendant still holds the output open
                await job.child.kill()
        except Exception as error:  # a command must never look as if it ran forever
            log.exception("cannot watch command", extra={"command": short_id(job.id)})
            ended = CommandExit(code=None, because=f"it could not be watched: {type(error).__name__}")
            self._create_task(job.child.kill())
        finally:
            reading.cancel()
            expiry()
            log_.close()
        await self._finish(job, ended)

    async def _read(self, job: Job, log_: JobLog) -> None:
        try:
            while chunk := await job.child.read():
                log_.add(chunk)
        except OSError as error:  # for example, the disk is full
            self._create_task(self.kill(job, f"its output could not be stored: {error.strerror}"))

    def _expire(self, job: Job, timeout_s: float) -> None:
        self._create_task(self.kill(job, f"it took longer than {timeout_s:g} s"))

    async def _finish(self, job: Job, ended: CommandExit) -> None:
        await self._retry_store(partial(self.update_trust, job))
        because = "" if ended.code == 0 else job.because or ended.because
        if ended.signal is not None and not because:
            because = f"ended by the signal {_signal_name(ended.signal)}"
        process = replace(job.process, exit_code=ended.code, because=make_storable(because), ended_at=self._clock.now())
        try:
            state = await self._retry_store(partial(self.store.end, process, is_reported=job.ended_by_session))
        finally:
            job.process = process
            self._running.pop(job.id, None)
            job.finished.set()
        if job.path_guard is not None and not self._starting:  # a starting command may rely on it
            others = {
                path for each in self._running.values() if each.path_guard is not None for path in each.path_guard.paths
            }
            settled = [path for path in job.path_guard.paths if path not in others]
            await self._retry_store(partial(job.path_guard.settle_changes, settled))
        if state is ProcessState.ENDED and not self._is_closing:
            await self._retry_store(partial(self.store.notify_session, process))
        self._prune_later()

    async def _retry_store(self, write: Callable[[], Awaitable[T]]) -> T | None:
        """Write to the store, and retry if the store fails.

        If no attempt succeeds, the next start of the server cleans up.
        """
        for _ in range(RETRIES_MAX):
            try:
                return await write()
            except StoreError as error:
                log.warning("cannot record command end", extra={"code": error.code})
                if self._is_closing or error.code in PERMANENT_ERROR_CODES:
                    return None
                await self._clock.sleep(RETRY_S)
        return None

    def _prune_later(self) -> None:
        if self._cancel_pruning is None and not self._is_closing:
            self._cancel_pruning = self._clock.call_later(self.store.limits.retention_s, self._prune_now)

    def _prune_now(self) -> None:
        self._create_task(self._prune())

    async def _prune(self) -> None:
        self._cancel_pruning = None
        if await self._retry_store(self.store.prune):
            self._prune_later()

    def _create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("command task failed", exc_info=error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
