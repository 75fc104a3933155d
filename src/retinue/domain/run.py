"""Runs: an agent's work on a batch of envelopes, and the steps of that work."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.delegation import Lineage
from retinue.domain.display_options import NO_DISPLAY_OPTIONS, DisplayOptions
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.session import LaneKind
from retinue.domain.tool import Call

# Beginnings of the stored error of a run that exceeded its time limit: the code, and its former spelling with a hyphen.
TIMED_OUT_CODES = ("run.timed_out:", "run.timed-out:")


class RunStatus(StrEnum):
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        return self in (RunStatus.RUNNING, RunStatus.SUSPENDED)


class Run(Struct, frozen=True, kw_only=True):
    id: RunId
    session: SessionId
    agent: str
    lane: LaneKind
    epoch: int
    status: RunStatus
    sender: Address
    envelopes: tuple[EnvelopeId, ...]
    first_seq: int  # seq of the run's first record
    attempt: int
    started_at: datetime
    wake_at: datetime | None = None
    ended_at: datetime | None = None
    final_text: str | None = None
    error: str | None = None
    lineage: Lineage | None = None  # set if another run started it

    @property
    def root_run(self) -> RunId:
        """The first run of this run's tree. All runs of a tree share a budget."""
        return self.lineage.root if self.lineage is not None else self.id

    @property
    def effective_lineage(self) -> Lineage:
        """The lineage of this run. For a root run, it is a lineage that begins with this run."""
        return self.lineage or Lineage(root=self.id, behalf=self.sender, agents=(self.agent,))


class RunRequest(Struct, frozen=True, kw_only=True):
    """Options that a sender requests for the run that processes the envelope.

    For options that are not set, the agent's settings apply.
    """

    model: str | None = None  # a model reference, or the provider's name for it
    provider: str | None = None
    lane: LaneKind | None = None
    workspace: str | None = None
    extra_system_prompt: str = ""
    compact: str | None = None  # only compact the context, with these instructions
    effort: str | None = None
    seconds_max: float | None = None  # time limit of the run; it can only lower the agent's limit
    manner: DisplayOptions = NO_DISPLAY_OPTIONS
    skill: str = ""  # a skill that the text asks for, included in full
    call: Call | None = None  # only perform this call; its result is the answer

    @property
    def model_reference(self) -> str | None:
        if self.model and self.provider and not self.model.startswith(f"{self.provider}/"):
            return f"{self.provider}/{self.model}"
        return self.model


NO_RUN_REQUEST = RunRequest()


class StepKind(StrEnum):
    MODEL = "model"
    TOOL = "tool"


class StepState(StrEnum):
    OPEN = "open"  # the intent is written; the effect is unknown
    CLOSED = "closed"
    INTERRUPTED = "interrupted"


class Step(Struct, frozen=True, kw_only=True):
    """One model call or tool call in a turn. A step is stored before the call, and closed when the result is stored."""

    run: RunId
    turn: int
    index: int  # 0: the model's reply; 1 and up: its calls; -1 and down: summaries made before it
    kind: StepKind
    hash: str
    attempt: int = 1
    state: StepState = StepState.OPEN
    call: Call | None = None
    because: str = ""  # why the call is allowed; kept by the audit log
