"""Protocols that a package calls and that a package above it implements.

Implementations are passed in as arguments. This includes the clock and the source of ids, which are never global.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from msgspec import Struct

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
    """Returns the current time (aware, UTC), and measures delays.

    The time may jump when the system's clock is set. Delays are not affected.
    """

    def now(self) -> datetime: ...
    async def sleep(self, seconds: float) -> None: ...
    def call_later(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` after a delay. Returns a function that cancels the call."""
        ...


class IdSource(Protocol):
    """Generates new ids of 32 hex digits."""

    def new(self) -> str: ...


class CrashPoints(Protocol):
    """Named points at which a test may kill the process. In production, reaching one does nothing."""

    def reach(self, point: str) -> None: ...


class EnvelopeAcceptor(Protocol):
    """Accepts envelopes. Once `accept` returns, the envelope is stored."""

    async def accept(self, draft: EnvelopeDraft) -> Receipt: ...


class RunApprovals(Protocol):
    """The approvals that were requested for the calls of one run, with the answers so far."""

    def state_of(self, call: Call) -> ApprovalState | None:
        """Return the state of the call's approval, or None if no approval was requested.

        `open` means that an approval was requested, and that the run continues without the answer.
        """
        ...

    def short_id_of(self, call: Call) -> str:
        """Return the short id of the approval for which this call is waiting or has waited."""
        ...

    def permissions_of(self, call: Call) -> Sequence[Permission]:
        """Return the permissions that the person saw in the request for this call.

        If the person allows the call, it gets only these permissions.
        """
        ...


class RunGate(Protocol):
    """Runs the command of a schedule's gate with the rights of its agent, in the schedule's session.

    If anything fails, the result is a closed gate, so this occurrence does not run.
    """

    async def __call__(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateResult: ...


class ReadChecklist(Protocol):
    """Builds one prompt from everything that is due at a heartbeat. Waits while the session is busy.

    If nothing is due or anything fails, the result is a closed gate, so no model is called. `wanted`
    are the ids of the tasks to check; empty means all tasks.
    """

    async def __call__(
        self, schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
    ) -> GateResult: ...


class RunObserver(Protocol):
    """Receives the progress of an active run. Progress is not stored, so a crash may lose some of it."""

    def on_delta(self, delta: Delta) -> None: ...
    def on_tool_call(self, run: RunId, tool: str) -> None:
        """Called when the run begins a tool call."""
        ...


class ModelStep(Struct):
    """A model call in progress. Its intent is stored, and its cost is reserved."""

    attempt: int
    granted: ModelCallReservation
    reply: Reply | None = None

    def record(self, reply: Reply) -> Reply:
        """Record the reply. The end of the block adds it to the journal."""
        self.reply = reply
        return reply


class ToolStep(Struct):
    """A tool call in progress. `result` is set if a crash interrupted the call, which must then not be performed."""

    result: ToolResult | None = None

    def record(self, result: ToolResult) -> None:
        """Record the result. The end of the block adds it to the journal."""
        self.result = result


class Journal(Protocol):
    """The stored steps of a run. After a crash, the run resumes from them.

    Each step is written before it is performed.
    """

    @property
    def run(self) -> Run: ...

    @property
    def records(self) -> Sequence[Record]:
        """All records of the context. The records of this run are last."""
        ...

    @property
    def least_trust(self) -> Trust:
        """The least trust of any record in the context."""
        ...

    @property
    def run_records(self) -> Sequence[Record]:
        """This run's records so far."""
        ...

    def model_call(self, turn: int, *, request: ModelCallReservationRequest) -> AbstractAsyncContextManager[ModelStep]:
        """Write the intent and reserve the maximum cost. The block calls the model and records its reply.

        If the block fails, the step stays open. The caller then reports the failure with `record_failure`, and calls
        this or another model.
        """
        ...

    def summary_call(
        self, turn: int, *, request: ModelCallReservationRequest, notice: str = ""
    ) -> AbstractAsyncContextManager[ModelStep]:
        """Like `model_call`, for a summary of the context, or of a part of it.

        The summary is not stored; `compact` stores it. `notice` is shown to a waiting person before the model is
        called.
        """
        ...

    def record_failure(self, turn: int, error: ModelFailed, *, next_action: str) -> None:
        """Record why the last model call failed and what is tried next."""
        ...

    async def flush(self) -> None:
        """Store all writes that are still pending. Call this before the run waits for anything."""
        ...

    async def compact(self, summary: Summary) -> None:
        """Replace the context with this summary and the records that the summary does not cover."""
        ...

    async def add_note(self, note: Note) -> None:
        """Add a note from the server to the records of this run, for the model to read."""
        ...

    def was_interrupted(self, turn: int, index: int) -> bool:
        """Whether a crash interrupted the step after its intent was written. If so, its effect is unknown."""
        ...

    def tool_call(
        self,
        turn: int,
        index: int,
        call: Call,
        *,
        repeatable: bool,
        is_read_only: bool = False,
        is_late: bool = False,
        because: str = "",
    ) -> AbstractAsyncContextManager[ToolStep]:
        """Write the intent and why the call is allowed. The block performs the call and records its result.

        With `is_late`, the turn of the call is over, so the result is stored as a note. A call that a crash interrupted
        is performed again only if it is repeatable; otherwise, the step already has a result. A read-only call starts
        at once. Its intent is written with its result, or earlier if the call takes a long time.
        """
        ...

    async def add_bodies(self, bodies: Sequence[ToolResult | Reply]) -> None:
        """Store records without performing a tool call.

        These are results of calls that were not performed, and replies that no model of this server wrote.
        """
        ...

    async def add_late_result(self, result: ToolResult) -> None:
        """Store the result of a call whose turn is over, without performing anything."""
        ...
