"""What a part may need from outside itself. Clock, ids and chance are always handed in, never taken from the air."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from retinue.domain.agent import Agent
from retinue.domain.approval import ApprovalState
from retinue.domain.envelope import Draft, Receipt
from retinue.domain.event import Delta
from retinue.domain.ids import RunId, SessionId
from retinue.domain.model import ModelFailed
from retinue.domain.money import CallTerms, Granted
from retinue.domain.permission import Permission
from retinue.domain.record import Note, Record, Reply, Summary
from retinue.domain.run import Run
from retinue.domain.schedule import GateSaid, Schedule
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust


class Clock(Protocol):
    """Wall time, aware and UTC, and a way to wait. The wall may jump; a sleep does not."""

    def now(self) -> datetime: ...
    async def sleep(self, seconds: float) -> None: ...
    def later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Have `call` called after so long a sleep. Calling what is given back takes it back."""
        ...


class Ids(Protocol):
    """Where new ids come from: 32 hex digits each."""

    def new(self) -> str: ...


class Faults(Protocol):
    """Named points at which a test may end the process. In a real house, reaching one does nothing."""

    def reach(self, point: str) -> None: ...


class Post(Protocol):
    """A way to put an envelope into the house. Once it returns, the envelope is stored."""

    async def post(self, draft: Draft) -> Receipt: ...


class Ask(Protocol):
    """What people have said so far about the calls of this run."""

    def answer_to(self, call: Call) -> ApprovalState | None:
        """None where nobody was asked yet; `open` where someone was, and the run goes on without the answer."""
        ...

    def name_of(self, call: Call) -> str:
        """The short id of the approval that this call waits or waited for."""
        ...

    def gives(self, call: Call) -> Sequence[Permission]:
        """What the person was told that this call reaches for. By their yes it may reach for that, and no further."""
        ...


class AskGate(Protocol):
    """Runs the command of a schedule's gate as its agent might, in its session. Whatever goes wrong, it is closed."""

    async def __call__(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateSaid: ...


class ReadChecklist(Protocol):
    """Finds what is due at a heartbeat, and says so in one prompt. Waits while its conversation is busy. Where nothing
    is due, or whatever goes wrong, it is closed. `wanted` are tasks by their ids; none: all of them."""

    async def __call__(
        self, schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
    ) -> GateSaid: ...


class Tell(Protocol):
    """Whoever watches a run as it goes. Told at once, promised nothing."""

    def delta(self, delta: Delta) -> None: ...
    def called(self, run: RunId, tool: str) -> None:
        """A tool is used now."""
        ...


Asking = Callable[[int, Granted], Awaitable[Reply]]
"""Asks a model: handed the attempt, and what it was granted."""


class Journal(Protocol):
    """Where a run's steps are kept, to resume from. A step is written before it is taken."""

    @property
    def run(self) -> Run: ...

    @property
    def records(self) -> Sequence[Record]:
        """The whole context, this run's own records last."""
        ...

    @property
    def believed(self) -> Trust:
        """How far the least trusted words in the context can be believed."""
        ...

    @property
    def own(self) -> Sequence[Record]:
        """This run's records so far."""
        ...

    async def reply(self, turn: int, ask: Asking, *, terms: CallTerms) -> Reply:
        """Write the intent to ask the model, reserve what it may cost, ask it, and keep what it said.

        Where that fails, the step stays open: say so with `failed`, and ask again, or another.
        """
        ...

    async def summarize(self, turn: int, ask: Asking, *, terms: CallTerms, notice: str = "") -> Reply:
        """The same for a summary of the context, or a part of one. What it said is kept by `compact`, if at all.

        `notice` is told to whoever waits, where someone does, before the model is asked.
        """
        ...

    def failed(self, turn: int, error: ModelFailed, *, next_move: str) -> None:
        """Keep why the model that was asked last did not reply, and what is tried next."""
        ...

    async def settle_up(self) -> None:
        """Write down what came back so far, before a wait."""
        ...

    async def compact(self, summary: Summary) -> None:
        """Have the context begin with this summary, and go on with what it has kept."""
        ...

    async def note(self, note: Note) -> None:
        """Put words of the house before the model, as part of this run."""
        ...

    def begun(self, turn: int, index: int) -> bool:
        """Whether a step was cut off after its intent was written: nobody knows if it had its effect."""
        ...

    async def perform(
        self,
        turn: int,
        index: int,
        call: Call,
        act: Callable[[], Awaitable[ToolResult]],
        *,
        repeatable: bool,
        looks: bool = False,
        stored: bool = False,
        because: str = "",
    ) -> ToolResult:
        """Write the intent, and because of what it is allowed; act, keep the result. `stored`: its turn has gone by, so
        the result is kept as a note.

        A call cut off by a crash is not acted on again unless repeatable. One that only looks is begun at once, and its
        intent is written with its result, or when it takes long.
        """
        ...

    async def keep(self, bodies: Sequence[ToolResult | Reply]) -> None:
        """Keep what took no act: results that were refused, are unknown or still wait; calls nobody's model made."""
        ...

    async def keep_note(self, result: ToolResult) -> None:
        """Keep the result of a stored call that took no act."""
        ...
