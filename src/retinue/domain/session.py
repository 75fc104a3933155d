"""Sessions: one agent's ongoing conversation, and what it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from retinue.domain.ids import SessionId

QUEUE_CAP = 20
BATCH_MAX = 10
SNIPPET_LENGTH_MAX = 120


class OriginKind(StrEnum):
    CHAT = "chat"
    WEB = "web"
    TERMINAL = "terminal"
    AGENT = "agent"
    EXTERNAL = "external"
    SCHEDULE = "schedule"
    HEARTBEAT = "heartbeat"
    SUBAGENT = "subagent"

    @property
    def foreground(self) -> bool:
        """Whether a person sits behind it."""
        return self in (OriginKind.CHAT, OriginKind.WEB, OriginKind.TERMINAL)


class LaneKind(StrEnum):
    MAIN = "main"
    SCHEDULE = "schedule"
    SUBAGENT = "subagent"
    BACKGROUND = "background"


def lane_kind(origin: OriginKind) -> LaneKind:
    match origin:
        case OriginKind.SCHEDULE | OriginKind.HEARTBEAT:
            return LaneKind.SCHEDULE
        case OriginKind.SUBAGENT:
            return LaneKind.SUBAGENT
        case _:
            return LaneKind.MAIN


@dataclass(frozen=True, slots=True)
class Origin:
    """What a session belongs to. An agent has at most one session for each."""

    kind: OriginKind
    key: str
    parent: SessionId | None = None


class QueueMode(StrEnum):
    COLLECT = "collect"
    FOLLOWUP = "followup"
    STEER = "steer"
    STEER_BACKLOG = "steer-backlog"
    INTERRUPT = "interrupt"


class Overflow(StrEnum):
    REFUSE = "refuse"
    OLDEST = "oldest"
    SUMMARIZE = "summarize"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """What happens to mail that arrives while a run is active, and when too much of it waits."""

    mode: QueueMode = QueueMode.COLLECT
    cap: int = QUEUE_CAP
    overflow: Overflow = Overflow.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverride:
    """A session's own word on its queue; None leaves the agent's."""

    mode: QueueMode | None = None
    cap: int | None = None
    overflow: Overflow | None = None

    def over(self, policy: QueuePolicy) -> QueuePolicy:
        return QueuePolicy(
            mode=self.mode or policy.mode,
            cap=policy.cap if self.cap is None else self.cap,
            overflow=self.overflow or policy.overflow,
        )


class Wakefulness(StrEnum):
    """Stored, so that a start loads only the sessions that have something to do."""

    ACTIVE = "active"
    SLEEPING = "sleeping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    id: SessionId
    agent: str
    origin: Origin
    name: str
    wakefulness: Wakefulness
    queue: QueueOverride
    epoch: int
    record_seq: int
    context_from: int  # seq of the last start or reset marker: the context begins there
    revision: int
    created_at: datetime
    updated_at: datetime
    snippet: str
    pinned_at: datetime | None = None
    attributes: dict[str, str] | None = None
