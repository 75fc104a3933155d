"""Lanes: the order of envelopes in a session, and which lane gets the next free slot. Kept in memory only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from retinue.domain.delegation import Lineage
from retinue.domain.envelope import Envelope, EnvelopeKind, needs_answer
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.domain.run import RunRequest
from retinue.domain.session import BATCH_MAX, LaneKind, QueueMode, QueuePolicy
from retinue.intake.accept import LaneWake

WAITING_LANES_MAX = 10_000
DEBOUNCE_WAITS_MAX = 10  # multiples of the debounce time that the first message waits at most
SINGLE_RUN_KINDS = frozenset(
    {EnvelopeKind.DECISION, EnvelopeKind.DELEGATION, EnvelopeKind.JOB}
)  # each gets its own run
RESULT_KINDS = frozenset({EnvelopeKind.ANSWER, EnvelopeKind.NOTICE})


class SlotLimits(Struct, frozen=True, kw_only=True):
    """The maximum number of active runs for each lane kind."""

    main: int = 4
    schedule: int = 2
    subagent: int = 8
    background: int = 4

    def limit_for(self, kind: LaneKind) -> int:
        """Return the number of slots for a lane kind."""
        match kind:
            case LaneKind.MAIN:
                return self.main
            case LaneKind.SCHEDULE:
                return self.schedule
            case LaneKind.SUBAGENT:
                return self.subagent
            case LaneKind.BACKGROUND:
                return self.background


class SlotStatus(Struct, frozen=True):
    """Which slots are in use, and which lanes wait for a slot."""

    slots: Mapping[LaneKind, tuple[int, int]]  # (in use, total)
    waiting_lanes: Mapping[SessionId, LaneKind]


class Batch(Struct, frozen=True):
    """The next work of a lane: silent envelopes to record, and envelopes with the same batch key for the next run."""

    silent: tuple[Envelope, ...]
    envelopes: tuple[Envelope, ...]


def batch_key(
    envelope: Envelope,
) -> tuple[tuple[str, ...], EnvelopeKind | bool, RunRequest | None, Lineage | None, EnvelopeId | None]:
    """Return the batch key of an envelope. Envelopes with equal keys may share a run.

    The key consists of the sender, whether an answer is due, the run request and the lineage. For a result of delegated
    work it also has the delegation, so that each result gets a separate batch.
    """
    context = envelope.context
    owed = EnvelopeKind.SYSTEM if envelope.kind is EnvelopeKind.SYSTEM else needs_answer(envelope.kind)
    about = envelope.reply_to if envelope.kind in RESULT_KINDS else None
    who = str(envelope.sender), context.speaker, context.sender_name, context.username
    return who, owed, context.request, context.lineage, about


def next_batch(due: Sequence[Envelope], queue: QueuePolicy) -> Batch:
    """Split the due envelopes, in order, into those to record and those for the next run."""
    silent = tuple(envelope for envelope in due if envelope.silent)
    loud = [envelope for envelope in due if not envelope.silent]
    if not loud:
        return Batch(silent, ())
    first = loud[0]
    if first.kind in SINGLE_RUN_KINDS or queue.mode in (QueueMode.FOLLOWUP, QueueMode.STEER_BACKLOG):
        return Batch(silent, (first,))
    work: list[Envelope] = []
    for envelope in loud:
        if len(work) == BATCH_MAX or envelope.kind in SINGLE_RUN_KINDS or batch_key(envelope) != batch_key(first):
            break
        work.append(envelope)
    return Batch(silent, tuple(work))


def debounce_left_s(due: Sequence[Envelope], queue: QueuePolicy, *, now: datetime) -> float:
    """Return how much longer a lane waits for more messages.

    It waits until no message has arrived for the queue's debounce time. The first message never waits longer than
    `DEBOUNCE_WAITS_MAX` debounce times.
    """
    if not queue.debounce_s:
        return 0.0
    loud = [envelope for envelope in due if not envelope.silent]
    if not loud or any(envelope.kind is not EnvelopeKind.MESSAGE for envelope in loud):
        return 0.0
    times = [envelope.accepted_at for envelope in loud]
    pause = timedelta(seconds=queue.debounce_s)
    until = min(max(times) + pause, min(times) + DEBOUNCE_WAITS_MAX * pause)
    return max(0.0, (until - now).total_seconds())


class LaneQueue:
    """The lanes that wait for a slot. Lanes of an agent are first in, first out; agents and lane kinds take turns.

    The queue is limited in size. If a lane does not fit, it is dropped and `has_overflowed` is set. That is safe,
    because the store still has the lane's envelopes.
    """

    def __init__(
        self, limits: SlotLimits, concurrency: Callable[[str], int], *, waiting_max: int = WAITING_LANES_MAX
    ) -> None:
        self._limits = limits
        self._concurrency = concurrency
        self._waiting_max = waiting_max
        self._waiting: dict[LaneKind, dict[str, deque[LaneWake]]] = {kind: {} for kind in LaneKind}
        self._waiting_sessions: set[SessionId] = set()
        self._used: Counter[LaneKind] = Counter()
        self._used_by_agent: Counter[str] = Counter()
        self.has_overflowed = False

    def __len__(self) -> int:
        return len(self._waiting_sessions)

    def slot_status(self) -> SlotStatus:
        """Return slot usage and the waiting lanes."""
        waiting = (wakes for by_agent in self._waiting.values() for wakes in by_agent.values())
        return SlotStatus(
            slots={kind: (self._used[kind], self._limits.limit_for(kind)) for kind in LaneKind},
            waiting_lanes={wake.session: wake.lane for wakes in waiting for wake in wakes},
        )

    def set_limits(self, limits: SlotLimits) -> None:
        """Set the slot limits. Added slots are available at once. A removed slot disappears when its run ends."""
        self._limits = limits

    def push(self, wake: LaneWake) -> None:
        """Add a lane to the queue. A lane that already waits keeps its position."""
        if wake.session in self._waiting_sessions:
            return
        if len(self._waiting_sessions) >= self._waiting_max:
            self.has_overflowed = True
            return
        self._waiting_sessions.add(wake.session)
        self._waiting[wake.lane].setdefault(wake.agent, deque()).append(wake)

    def take_next(self) -> LaneWake | None:
        """Return the next lane for which a slot of its kind and a slot of its agent are free, and take both slots."""
        for kind, by_agent in self._waiting.items():
            if self._used[kind] >= self._limits.limit_for(kind):
                continue
            for agent in by_agent:
                if self._has_free_slot(agent):
                    return self._take_from_agent(kind, agent)
        return None

    def _take_from_agent(self, kind: LaneKind, agent: str) -> LaneWake:
        by_agent = self._waiting[kind]
        waiting = by_agent.pop(agent)
        wake = waiting.popleft()
        if waiting:
            by_agent[agent] = waiting  # move to the end: the other agents come first now
        self._waiting_sessions.discard(wake.session)
        self._use_slot(kind, agent)
        return wake

    def _use_slot(self, kind: LaneKind, agent: str) -> None:
        self._waiting[kind] = self._waiting.pop(kind)  # move to the end: the other lane kinds come first now
        self._used[kind] += 1
        self._used_by_agent[agent] += 1

    def reserve_slot(self, agent: str, kind: LaneKind) -> bool:
        """Take a slot before its lane is known, if no lane waits for that slot."""
        if self._waiting_sessions or self._used[kind] >= self._limits.limit_for(kind) or not self._has_free_slot(agent):
            return False
        self._use_slot(kind, agent)
        return True

    def release_slot(self, agent: str, kind: LaneKind) -> None:
        self._used[kind] -= 1
        self._used_by_agent[agent] -= 1
        if not self._used_by_agent[agent]:
            del self._used_by_agent[agent]

    def is_contended(self, wake: LaneWake) -> bool:
        """Whether another lane waits for this lane's slot. It has the same lane kind or the same agent."""
        if not self._waiting_sessions:
            return False
        for kind, by_agent in self._waiting.items():
            if kind is wake.lane:
                # Another agent's lane can use our slot only if that agent has a free slot.
                if wake.agent in by_agent or any(self._has_free_slot(agent) for agent in by_agent):
                    return True
            elif wake.agent in by_agent and self._used[kind] < self._limits.limit_for(kind):
                return True
        return False

    def _has_free_slot(self, agent: str) -> bool:
        return self._used_by_agent[agent] < self._concurrency(agent)
