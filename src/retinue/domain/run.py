"""Runs: an agent working through what arrived, and the steps it took."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.delegation import Lineage
from retinue.domain.display_options import PLAIN, Manner
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.session import LaneKind
from retinue.domain.tool import Call

TIMED_OUT = "run.timed-out"  # the code with which a run fails that took too long


class RunStatus(StrEnum):
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        return self in (RunStatus.RUNNING, RunStatus.PARKED)


class Run(Struct, frozen=True, kw_only=True):
    id: RunId
    session: SessionId
    agent: str
    lane: LaneKind
    epoch: int
    status: RunStatus
    sender: Address
    envelopes: tuple[EnvelopeId, ...]
    first_seq: int  # the run's first record
    attempt: int
    started_at: datetime
    wake_at: datetime | None = None
    ended_at: datetime | None = None
    final_text: str | None = None
    error: str | None = None
    lineage: Lineage | None = None  # where another run set it going

    @property
    def root(self) -> RunId:
        """The run with which it all began: all that came of that one is paid from one purse."""
        return self.lineage.root if self.lineage is not None else self.id

    @property
    def descent(self) -> Lineage:
        """Its lineage, also where it begins with this very run."""
        return self.lineage or Lineage(root=self.id, behalf=self.sender, agents=(self.agent,))


class RunRequest(Struct, frozen=True, kw_only=True):
    """What a sender asks of the run over its envelope, beyond an answer. What is left out is as the agent has it."""

    model: str | None = None  # a reference, or what `provider` calls it
    provider: str | None = None
    lane: LaneKind | None = None
    workspace: str | None = None
    extra_system_prompt: str = ""
    compact: str | None = None  # nothing but to compact the context, minding these words
    effort: str | None = None
    seconds_max: float | None = None  # of the run; it can only be less than its agent has
    manner: Manner = PLAIN
    skill: str = ""  # one that its words call for, told in full
    call: Call | None = None  # nothing but to make this call: what comes of it is the answer

    @property
    def reference(self) -> str | None:
        if self.model and self.provider and not self.model.startswith(f"{self.provider}/"):
            return f"{self.provider}/{self.model}"
        return self.model


NO_REQUEST = RunRequest()


class StepKind(StrEnum):
    MODEL = "model"
    TOOL = "tool"


class StepState(StrEnum):
    OPEN = "open"  # the intent is written; the effect may or may not have happened
    CLOSED = "closed"
    INTERRUPTED = "interrupted"


class Step(Struct, frozen=True, kw_only=True):
    """One recorded act within a turn: written down before it is done, closed with what came of it."""

    run: RunId
    turn: int
    index: int  # 0 is the model's reply, 1.. are the calls it asked for, -1.. are summaries that were needed first
    kind: StepKind
    hash: str
    attempt: int = 1
    state: StepState = StepState.OPEN
    call: Call | None = None
    because: str = ""  # why the call is allowed: for the audit, which keeps it
