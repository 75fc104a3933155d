"""Protocols for what a package needs from packages above it. The clock and the source of ids are
always passed in, never global."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol

from retinue.domain.agent import Agent
from retinue.domain.approval import ApprovalState
from retinue.domain.budget import ModelCallReservation, ModelCallReservationRequest
from retinue.domain.envelope import EnvelopeDraft, Receipt
from retinue.domain.event import Delta
from retinue.domain.ids import RunId, SessionId
from retinue.domain.model import ModelFailed
from retinue.domain.permission import Permission
from retinue.domain.record import Note, Record, Reply, Summary
from retinue.domain.run import Run
from retinue.domain.schedule import GateResult, Schedule
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust


class Clock(Protocol):
    """The current time, aware and UTC, and ways to wait. The time may jump when the system's clock
    is set; a wait is not affected."""

    def now(self) -> datetime: ...
    async def sleep(self, seconds: float) -> None: ...
    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after a delay. The returned function cancels it."""
        ...


class IdSource(Protocol):
    """A source of new ids, 32 hex digits each."""

    def new(self) -> str: ...


class CrashPoints(Protocol):
    """Named points at which a test may kill the process. In production, reaching one does nothing."""

    def reach(self, point: str) -> None: ...


class EnvelopeAcceptor(Protocol):
    """Accepts an envelope. Once `accept` returns, the envelope is stored."""

    async def accept(self, draft: EnvelopeDraft) -> Receipt: ...


class RunApprovals(Protocol):
    """The approvals that were requested for calls of this run, with the answers so far."""

    def state_of(self, call: Call) -> ApprovalState | None:
        """Return the state of the call's approval; None if no approval was requested.

        `open` means that an approval was requested, and the run continues without the answer.
        """
        ...

    def short_id_of(self, call: Call) -> str:
        """Return the short id of the approval that this call waits or waited for."""
        ...

    def permissions_of(self, call: Call) -> Sequence[Permission]:
        """Return the permissions that the person saw in the request for this call. A yes allows
        these permissions only."""
        ...


class RunGate(Protocol):
    """Runs the command of a schedule's gate with the rights of its agent, in its session. On any
    error the gate is closed."""

    async def __call__(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateResult: ...


class ReadChecklist(Protocol):
    """Collects what is due at a heartbeat into one prompt. Waits while the session is busy.

    The gate is closed if nothing is due or on any error. `wanted` are task ids; empty means all
    tasks.
    """

    async def __call__(
        self, schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
    ) -> GateResult: ...


class RunObserver(Protocol):
    """Observes a run while it works. It is called at once, but a call may be missed."""

    def on_delta(self, delta: Delta) -> None: ...
    def on_tool_call(self, run: RunId, tool: str) -> None:
        """Called when a tool call begins."""
        ...


CallModel = Callable[[int, ModelCallReservation], Awaitable[Reply]]
"""Calls a model. The arguments are the number of the attempt and the reservation of the cost."""


class Journal(Protocol):
    """The stored steps of a run, from which it can resume. A step is written before it is
    performed."""

    @property
    def run(self) -> Run: ...

    @property
    def records(self) -> Sequence[Record]:
        """The whole context. This run's records are last."""
        ...

    @property
    def least_trust(self) -> Trust:
        """The least trust of anything in the context."""
        ...

    @property
    def run_records(self) -> Sequence[Record]:
        """This run's records so far."""
        ...

    async def call_model(self, turn: int, call: CallModel, *, request: ModelCallReservationRequest) -> Reply:
        """Write the intent to call the model, reserve its maximum cost, call it and store the
        reply.

        If the call fails, the step stays open: report it with `record_failure`, then call again or
        call another model.
        """
        ...

    async def summarize(
        self, turn: int, call: CallModel, *, request: ModelCallReservationRequest, notice: str = ""
    ) -> Reply:
        """Call the model for a summary of the context, or of a part of it. This does not store the
        summary; `compact` does.

        `notice` is shown to a waiting person before the model is called.
        """
        ...

    def record_failure(self, turn: int, error: ModelFailed, *, next_action: str) -> None:
        """Record why the last model call failed and what is tried next."""
        ...

    async def flush(self) -> None:
        """Store everything that was received so far. Call this before a wait."""
        ...

    async def compact(self, summary: Summary) -> None:
        """Shorten the context to this summary, followed by the records that the summary does not cover."""
        ...

    async def add_note(self, note: Note) -> None:
        """Add a text from the server that the model reads, as a record of this run."""
        ...

    def was_interrupted(self, turn: int, index: int) -> bool:
        """Whether a step was interrupted after its intent was written, so its effect is unknown."""
        ...

    async def perform(
        self,
        turn: int,
        index: int,
        call: Call,
        act: Callable[[], Awaitable[ToolResult]],
        *,
        repeatable: bool,
        is_read_only: bool = False,
        is_late: bool = False,
        because: str = "",
    ) -> ToolResult:
        """Write the intent and why it is allowed, perform the call and store the result.

        `is_late`: the turn of the call is over, so the result is stored as a note. A call that a
        crash interrupted is performed again only if it is repeatable. A read-only call starts at
        once; its intent is written with its result, or earlier if the call takes long.
        """
        ...

    async def add_bodies(self, bodies: Sequence[ToolResult | Reply]) -> None:
        """Store bodies for which nothing is performed: results of refused, unknown or pending
        calls, and replies with calls that no model requested."""
        ...

    async def add_late_result(self, result: ToolResult) -> None:
        """Store the result of a late call for which nothing is performed."""
        ...
