"""What a part may need from outside itself. Clock, ids and chance are always handed in, never taken from the air."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from retinue.domain.approval import ApprovalState
from retinue.domain.envelope import Draft, Receipt
from retinue.domain.event import Delta
from retinue.domain.record import Record, Reply
from retinue.domain.run import Run
from retinue.domain.tool import Call, ToolResult


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


class Tell(Protocol):
    """Whoever watches a run as it goes. Told at once, promised nothing."""

    def delta(self, delta: Delta) -> None: ...


class Journal(Protocol):
    """Where a run's steps are kept, to resume from. A step is written before it is taken."""

    @property
    def run(self) -> Run: ...

    @property
    def records(self) -> Sequence[Record]:
        """The whole context, this run's own records last."""
        ...

    @property
    def own(self) -> Sequence[Record]:
        """This run's records so far."""
        ...

    async def reply(self, turn: int, ask: Callable[[int], Awaitable[Reply]], *, reserve_microusd: int = 0) -> Reply:
        """Write the intent to ask the model, ask it (handing it the attempt), and keep what it said."""
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
        stored: bool = False,
    ) -> ToolResult:
        """Write the intent, act, keep the result. `stored`: its turn has gone by, so the result is kept as a note.

        A call cut off by a crash is not acted on again unless repeatable.
        """
        ...

    async def keep(self, results: Sequence[ToolResult]) -> None:
        """Keep results that took no act: refused, unknown or still waiting."""
        ...

    async def keep_note(self, result: ToolResult) -> None:
        """Keep the result of a stored call that took no act."""
        ...
