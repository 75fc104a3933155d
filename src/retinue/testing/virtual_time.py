"""A deterministic event loop for simulations, with virtual time and a task order that a seed decides.

`simulate(seed, main)` runs `main` without real time, threads or sockets. Time passes only when all
tasks are waiting, so hours of sleep take no real time. The seed decides races between tasks, so a seed
that found a bug finds it again.

The loop cannot make everything repeatable. Above all, sets of strings iterate in an order that
differs between processes unless `PYTHONHASHSEED` is set. Sets of most other objects iterate in the
order of addresses. For example, anyio keeps nested cancel scopes in such a set, and
`asyncio.as_completed` its coroutines. Tasks and futures of this loop hash by number, so sets of
these, as in task groups, are safe. If you are in doubt, compare `fingerprint`: it differs if two
simulations diverged.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
import heapq
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import BuiltinMethodType, CoroutineType, MethodType
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast

from retinue.testing.fake_clock import START, to_utc

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX = 1_000_000
"""The default maximum of loop passes in a simulation: some seconds of real time."""

GC_EVERY_STEPS = 20_000
PRUNE_TIMERS_MIN = 64

UNSUPPORTED_METHODS = (
    *("run_in_executor", "set_default_executor", "getaddrinfo", "getnameinfo"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "connect_accepted_socket", "sendfile", "start_tls"),
    *("subprocess_exec", "subprocess_shell", "connect_read_pipe", "connect_write_pipe"),
    *("add_reader", "remove_reader", "add_writer", "remove_writer"),
    *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto"),
    *("sock_connect", "sock_accept", "sock_sendfile", "add_signal_handler", "remove_signal_handler"),
)
"""Methods of the loop that use threads, sockets, processes and signals. None of them may be called."""


class SimulationError(Exception):
    """The simulation itself failed, and not the code under test."""


class Deadlock(SimulationError):
    """No task is ready and no timer is set, so the remaining tasks would wait forever."""


class StepLimitReached(SimulationError):
    """The simulation did not end within its number of steps."""


class NotSimulated(NotImplementedError):
    """The code under test used a real thread, socket, process or signal, or replaced a part of the loop.

    The error is a `NotImplementedError`, because event loops report an unsupported feature in this way.
    """


@dataclass(frozen=True, slots=True)
class _ReadyHandle:
    """A handle that is ready to run, with its label in the trace and the stream whose order it must keep."""

    handle: asyncio.Handle
    label: str
    stream: object
    """Handles of the same stream keep their order."""


_CALLBACKS = "callbacks"  # the one stream of all plain callbacks


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop with virtual time, in which a seed decides the order of ready handles.

    Time does not pass while any handle is ready. Otherwise it moves at once to the next timer.

    Before each pass, the ready handles are shuffled, but only where asyncio leaves their order
    open:

    - Steps of different tasks run in any order, because asyncio guarantees no order. A task has at
      most one step ready.
    - Callbacks of one future keep the order in which they were added. This includes the wake-ups of
      tasks that await it. Code relies on this, for example to see a result before the awaiting task
      does. A callback whose only argument is a future counts as one of these.
    - Plain callbacks keep their order among themselves, because `call_soon` guarantees it.
    - Timers of one moment run in any order, which asyncio leaves undefined. Timers of different
      moments never share a pass, so an earlier timer always runs first.

    As in asyncio, a handle that becomes ready during a pass waits for the next pass, so that no
    handle waits forever. Locks, queues and events are correct under every such order, because they
    transfer ownership through futures. The transports of asyncio are not, because they depend on
    the order of callbacks and futures together. This loop has no transports.

    `BaseEventLoop` provides running, stopping, closing and error handling, but no I/O. This class
    replaces its whole queue of handles. It depends on one private detail: `_run_once` is called
    until `_stopping`.
    """

    _stopping: bool

    def __init__(self, seed: int, *, steps_max: int = STEPS_MAX, after_step: Callable[[], None] | None = None) -> None:
        super().__init__()
        # Not the bare seed: a test may seed its own faults with it, and the two sequences must be independent.
        self._random = random.Random(f"ready order {seed}")
        self._now = 0.0
        self._ready: deque[_ReadyHandle] = deque()
        self._timers: list[tuple[float, int, _ReadyHandle]] = []
        self._timers_made = 0
        self._prune_timers_at = PRUNE_TIMERS_MIN
        self._numbers = 0
        self._steps = 0
        self._steps_max = steps_max
        self._steps_end = steps_max
        self._trace = hashlib.blake2b(digest_size=16)
        self._loop_thread = threading.get_ident()
        self.after_step = after_step
        """Called after every pass, to check what must always hold. An exception from it ends the simulation."""

    @property
    def steps(self) -> int:
        """The number of passes that the loop has made so far."""
        return self._steps

    @property
    def fingerprint(self) -> str:
        """A hash of everything that has run so far, with its order and its virtual times.

        The same code with the same seed has the same fingerprint in every process. The hash is
        computed from numbers and qualified names, never from addresses. Another Python version may
        give a different fingerprint.
        """
        return self._trace.hexdigest()

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(_ReadyHandle(handle, _trace_label(callback), _order_stream(callback, args)))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Do the same as `call_soon`. Calls from other threads are refused, because their timing is not repeatable."""
        if threading.get_ident() != self._loop_thread:
            raise _not_simulated("call_soon_threadsafe from another thread")
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_open()
        if math.isnan(when):
            raise ValueError("a timer needs a time to go off at, not NaN")
        # asyncio, too, treats timers less than a nanosecond apart as one moment. So ten sleeps of
        # 0.1 s end together with one of 1 s, and the seed decides between them.
        when = round(when, 9)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        if len(self._timers) >= self._prune_timers_at:
            self._prune_timers()
        heapq.heappush(self._timers, (when, self._timers_made, _ReadyHandle(handle, _trace_label(callback), object())))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(self._next_number(), loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,  # later Python versions add some
    ) -> asyncio.Task[T]:
        self._check_open()
        number = self._next_number()
        name = f"Task-{number}" if name is None else str(name)
        return _NumberedTask(number, coro, loop=self, name=name, context=context, **options)

    def set_task_factory(self, factory: object) -> None:
        if factory is not None:
            raise NotSimulated("a simulated loop makes its own tasks, because they must be numbered")

    def close(self) -> None:
        super().close()
        self._ready.clear()
        self._timers.clear()

    def cancel_remaining(self) -> None:
        """Cancel the remaining tasks, oldest first, and let them end within another `steps_max` passes.

        `after_step` is no longer called: its checks apply only while `main` runs.
        """
        self.after_step = None
        self._steps_end = self._steps + self._steps_max
        # If `after_step` raised in the same pass in which `main` ended, a stop is still pending: let it pass.
        self.call_soon(self.stop)
        self.run_forever()
        while left := self._pending():
            for task in left:
                task.cancel()
            outcomes = self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            for task, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    message = "a task that was left over failed when it was cancelled"
                    self.call_exception_handler({"message": message, "exception": outcome, "task": task})
        self.run_until_complete(self.shutdown_asyncgens())

    def _run_once(self) -> None:
        """Run one pass: everything that is ready or due, in an order drawn from the seed."""
        if self._steps >= self._steps_end:
            raise StepLimitReached(self._describe_pending(f"not finished after {self._steps} steps, at {self._now} s"))
        self._steps += 1
        ready = [turn for turn in self._ready if not turn.handle.cancelled()]
        self._drop_cancelled_timers()
        if not ready and not self._stopping:
            self._advance()
        # As in asyncio, a handle leaves the queue only when it is run: a KeyboardInterrupt must not lose the others.
        self._ready = deque(self._shuffle_streams(ready + self._take_due()))
        self._trace.update(f"\n{self._now!r}".encode())
        for _ in range(len(self._ready)):
            turn = self._ready.popleft()
            if turn.handle.cancelled():
                continue
            self._trace.update(f"\t{turn.label}".encode())
            turn.handle._run()  # pyright: ignore[reportPrivateUsage]  (every loop must; there is no public way)
        if self._steps % GC_EVERY_STEPS == 0:
            gc.collect()
        if self.after_step is not None:
            self.after_step()

    def _advance(self) -> None:
        when = self._timers[0][0] if self._timers else math.inf
        if math.isinf(when) and when > 0:
            raise Deadlock(
                self._describe_pending(
                    f"at {self._now} s nothing is ready and nothing is scheduled"
                    " (a real thread or socket, if one is awaited, cannot wake a simulated loop)"
                )
            )
        self._now = max(self._now, when)

    def _take_due(self) -> list[_ReadyHandle]:
        """Remove and return the timers of the earliest moment, if that moment has come.

        Later timers run in a later pass, even if they are overdue.
        """
        due: list[_ReadyHandle] = []
        if self._timers and (moment := self._timers[0][0]) <= self._now:
            while self._timers and self._timers[0][0] == moment:
                due.append(heapq.heappop(self._timers)[2])
        return due

    def _shuffle_streams(self, turns: list[_ReadyHandle]) -> list[_ReadyHandle]:
        """Return the handles in a random order in which each stream keeps its own order."""
        if len(turns) < 2:
            return turns
        order = [turn.stream for turn in turns]
        streams: dict[object, deque[_ReadyHandle]] = {stream: deque() for stream in order}
        for turn in turns:
            streams[turn.stream].append(turn)
        self._random.shuffle(order)
        return [streams[stream].popleft() for stream in order]

    def _drop_cancelled_timers(self) -> None:
        while self._timers and self._timers[0][2].handle.cancelled():
            heapq.heappop(self._timers)

    def _prune_timers(self) -> None:
        # Timeouts are mostly cancelled long before they are due, and would accumulate until then.
        self._timers = [timer for timer in self._timers if not timer[2].handle.cancelled()]
        heapq.heapify(self._timers)
        self._prune_timers_at = PRUNE_TIMERS_MIN + 2 * len(self._timers)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the loop finds cancelled timers by itself."""

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("the simulated loop is closed")

    def _pending(self) -> list[asyncio.Task[Any]]:
        return sorted(asyncio.all_tasks(self), key=hash)  # the hash is the task's number

    def _describe_pending(self, sentence: str) -> str:
        pending = self._pending()
        tasks = [f"  {task.get_name()}: {_await_chain(task)}" for task in pending]
        return "\n".join([f"{sentence}; tasks pending: {len(pending)}", *tasks])


class _NumberedFuture(asyncio.Future[T]):
    """A future that hashes by its number, so that a set of futures has the same order in every process."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _NumberedTask(asyncio.Task[T]):
    """A task that hashes by its number, because asyncio itself keeps sets of tasks (in task groups and in `wait`)."""

    def __init__(self, number: int, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **options: Any) -> None:
        self._number = number  # first: asyncio puts the task into a set during construction
        super().__init__(cast("Coroutine[Any, Any, T]", coro), **options)

    def __hash__(self) -> int:
        return self._number


class VirtualClock:
    """The wall clock of a simulation. It follows the virtual time of the loop, but unlike that time it may jump."""

    def __init__(self, start: datetime = START, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Create a clock that showed `start` at the moment when the loop was created.

        The default `loop` is the running loop.
        """
        self._start = to_utc(start)
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._offset = timedelta()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._loop.time()) + self._offset

    async def sleep(self, seconds: float) -> None:
        """Wait in the virtual time of the loop, which `jump` does not change."""
        await asyncio.sleep(seconds)  # sleep: virtual time

    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        return self._loop.call_later(seconds, call).cancel

    def jump(self, delta: timedelta) -> None:
        """Set the wall clock forward or back. No sleep ends, and no sleep gets longer or shorter."""
        self._offset += delta


def simulate(
    seed: int,
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    steps_max: int = STEPS_MAX,
    after_step: Callable[[], None] | None = None,
) -> T:
    """Run `main` to its end on a new loop, cancel the tasks that are left, and return its result.

    In `main`, the running loop is a `VirtualTimeLoop`. `after_step` is called after every pass
    until `main` ends. Every exception contains a note with the seed that reproduces it.
    """
    loop = VirtualTimeLoop(seed, steps_max=steps_max, after_step=after_step)
    with _deterministic_gc():
        try:
            result = loop.run_until_complete(main())
            loop.cancel_remaining()
            return result
        except BaseException as error:
            error.add_note(
                f"simulated with seed {seed}: step {loop.steps}, at {loop.time()} s, fingerprint {loop.fingerprint}"
            )
            with suppress(SimulationError):  # the first failure is the one to report
                loop.cancel_remaining()
            raise
        finally:
            loop.close()


@contextmanager
def _deterministic_gc() -> Generator[None]:
    # When the garbage collector runs depends on everything the process did before, and it closes
    # abandoned async generators through the loop. Reference counting and our own collection at
    # fixed steps are repeatable.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _trace_label(callback: object) -> str:
    """Return the name of a callback in the trace. It is not a `repr`, so that it is the same in every process."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, _NumberedTask):
        task = cast("_NumberedTask[Any]", owner)
        return f"{hash(task)} {_qualified_name(task.get_coro())} {_qualified_name(callback)}"
    return _qualified_name(callback)


def _qualified_name(thing: object) -> str:
    while isinstance(thing, functools.partial):
        thing = cast("functools.partial[Any]", thing).func
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _order_stream(callback: object, args: Sequence[object]) -> object:
    """Return the stream whose order a ready callback must keep: see `VirtualTimeLoop`."""
    if len(args) == 1 and asyncio.isfuture(args[0]):
        return args[0]  # a future's callback is called with only the future, and so is a wake-up
    if isinstance(callback, (MethodType, BuiltinMethodType)):
        return _CALLBACKS  # a task's own step is a plain wrapper; this may be `call_soon(task.cancel)`
    owner = getattr(callback, "__self__", None)
    return cast("object", owner) if isinstance(owner, asyncio.Task) else _CALLBACKS


def _await_chain(task: asyncio.Task[Any]) -> str:
    """Return the coroutines that a waiting task is in, outermost first, each with its line number."""
    places: list[str] = []
    awaited: object = task.get_coro()
    while isinstance(awaited, CoroutineType):
        file, frame = Path(awaited.cr_code.co_filename).name, awaited.cr_frame
        places.append(f"{awaited.__qualname__} ({file}:{frame.f_lineno})" if frame else awaited.__qualname__)
        awaited = awaited.cr_await
    return " > ".join(places) or _qualified_name(task.get_coro())


def _not_simulated(what: str) -> NotSimulated:
    return NotSimulated(
        f"{what} is refused in a simulation: events outside the loop have no repeatable order; pass the code "
        "under test a fake that stays inside the loop"
    )


def _refuse_method(name: str) -> Callable[..., NoReturn]:
    def refuse(_: VirtualTimeLoop, *args: object, **options: object) -> NoReturn:
        raise _not_simulated(name)

    return refuse


for _name_refused in UNSUPPORTED_METHODS:
    setattr(VirtualTimeLoop, _name_refused, _refuse_method(_name_refused))
