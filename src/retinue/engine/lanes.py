"""Lanes: order within a session, and who gets the next free slot. Nothing here touches the store."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from retinue.domain.delegation import Lineage
from retinue.domain.envelope import Envelope, Kind, answerable
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.domain.run import RunRequest
from retinue.domain.session import BATCH_MAX, LaneKind, QueueMode, QueuePolicy
from retinue.intake.accept import LaneWake

READY_MAX = 10_000
HELD_BACK_TIMES = 10  # so often, at most, the first of several messages waits for one more
ALONE = frozenset({Kind.DECISION, Kind.DELEGATION, Kind.JOB})  # each has a run of its own
CAME_OF_IT = frozenset({Kind.ANSWER, Kind.NOTICE})


class Slots(Struct, frozen=True, kw_only=True):
    """How many runs may be active at once, for each kind of lane."""

    main: int = 4
    schedule: int = 2
    subagent: int = 8
    background: int = 4

    def of(self, kind: LaneKind) -> int:
        match kind:
            case LaneKind.MAIN:
                return self.main
            case LaneKind.SCHEDULE:
                return self.schedule
            case LaneKind.SUBAGENT:
                return self.subagent
            case LaneKind.BACKGROUND:
                return self.background


class Standing(Struct, frozen=True):
    """How slots are given out at this moment."""

    slots: Mapping[LaneKind, tuple[int, int]]  # in use, and how many there are
    in_line: Mapping[SessionId, LaneKind]  # lanes that wait for one


class Batch(Struct, frozen=True):
    """What a lane does next: write down silent mail, and work through envelopes of one sender and one reply route."""

    silent: tuple[Envelope, ...]
    work: tuple[Envelope, ...]


def voice(
    envelope: Envelope,
) -> tuple[tuple[str, ...], Kind | bool, RunRequest | None, Lineage | None, EnvelopeId | None]:
    """Who speaks, whether an answer is owed and to whom, what is asked of the run and whose work it is: a change of any
    ends a batch. What came of work that was handed on is of the one who had it handed on, each of its own."""
    context = envelope.context
    owed = Kind.SYSTEM if envelope.kind is Kind.SYSTEM else answerable(envelope.kind)
    about = envelope.reply_to if envelope.kind in CAME_OF_IT else None
    who = str(envelope.sender), context.speaker, context.sender_name, context.username
    return who, owed, context.request, context.lineage, about


def next_batch(due: Sequence[Envelope], queue: QueuePolicy) -> Batch:
    """Split what is due, in its order, into what is written down and what is worked next."""
    silent = tuple(envelope for envelope in due if envelope.silent)
    loud = [envelope for envelope in due if not envelope.silent]
    if not loud:
        return Batch(silent, ())
    first = loud[0]
    if first.kind in ALONE or queue.mode in (QueueMode.FOLLOWUP, QueueMode.STEER_BACKLOG):
        return Batch(silent, (first,))
    work: list[Envelope] = []
    for envelope in loud:
        if len(work) == BATCH_MAX or envelope.kind in ALONE or voice(envelope) != voice(first):
            break
        work.append(envelope)
    return Batch(silent, tuple(work))


def held_back_s(due: Sequence[Envelope], queue: QueuePolicy, *, now: datetime) -> float:
    """How much longer messages wait for more of them: until none has come for so long as the queue says, and not for
    ever."""
    if not queue.debounce_s:
        return 0.0
    loud = [envelope for envelope in due if not envelope.silent]
    if not loud or any(envelope.kind is not Kind.MESSAGE for envelope in loud):
        return 0.0
    times = [envelope.accepted_at for envelope in loud]
    pause = timedelta(seconds=queue.debounce_s)
    until = min(max(times) + pause, min(times) + HELD_BACK_TIMES * pause)
    return max(0.0, (until - now).total_seconds())


class Ready:
    """Lanes that wait for a slot: first come, first served within an agent; agents in turn, and so are kinds of lanes.

    Bounded: what does not fit is left out, `overflowed` says so, and the store still knows. A wake is only a hint.
    """

    def __init__(self, slots: Slots, concurrency: Callable[[str], int], *, ready_max: int = READY_MAX) -> None:
        self._slots = slots
        self._concurrency = concurrency
        self._ready_max = ready_max
        self._waiting: dict[LaneKind, dict[str, deque[LaneWake]]] = {kind: {} for kind in LaneKind}
        self._known: set[SessionId] = set()
        self._used: Counter[LaneKind] = Counter()
        self._used_by: Counter[str] = Counter()
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._known)

    def standing(self) -> Standing:
        waiting = (wakes for by_agent in self._waiting.values() for wakes in by_agent.values())
        return Standing(
            slots={kind: (self._used[kind], self._slots.of(kind)) for kind in LaneKind},
            in_line={wake.session: wake.lane for wakes in waiting for wake in wakes},
        )

    def resize(self, slots: Slots) -> None:
        """More slots are given out at once; fewer, as those in use come back."""
        self._slots = slots

    def push(self, wake: LaneWake) -> None:
        """Have a lane wait for a slot. One that waits already keeps its place."""
        if wake.session in self._known:
            return
        if len(self._known) >= self._ready_max:
            self.overflowed = True
            return
        self._known.add(wake.session)
        self._waiting[wake.lane].setdefault(wake.agent, deque()).append(wake)

    def take(self) -> LaneWake | None:
        """The next lane whose kind and agent both have a slot free; both are taken."""
        for kind, by_agent in self._waiting.items():
            if self._used[kind] >= self._slots.of(kind):
                continue
            for agent in by_agent:
                if self._has_room(agent):
                    return self._take_from(kind, agent)
        return None

    def _take_from(self, kind: LaneKind, agent: str) -> LaneWake:
        by_agent = self._waiting[kind]
        waiting = by_agent.pop(agent)
        wake = waiting.popleft()
        if waiting:
            by_agent[agent] = waiting  # at the end: the other agents come first now
        self._known.discard(wake.session)
        self._use(kind, agent)
        return wake

    def _use(self, kind: LaneKind, agent: str) -> None:
        self._waiting[kind] = self._waiting.pop(kind)  # at the end: an agent's other kinds of lanes come first now
        self._used[kind] += 1
        self._used_by[agent] += 1

    def hold(self, agent: str, kind: LaneKind) -> bool:
        """Take a slot for a lane that is not known yet, if no lane waits for one."""
        if self._known or self._used[kind] >= self._slots.of(kind) or not self._has_room(agent):
            return False
        self._use(kind, agent)
        return True

    def release(self, agent: str, kind: LaneKind) -> None:
        self._used[kind] -= 1
        self._used_by[agent] -= 1
        if not self._used_by[agent]:
            del self._used_by[agent]

    def contended(self, wake: LaneWake) -> bool:
        """Whether another lane waits for a slot that this one holds: that of its kind, or that of its agent."""
        if not self._known:
            return False
        for kind, by_agent in self._waiting.items():
            if kind is wake.lane:
                # Another agent's lane wants our slot only if it has room to run in it.
                if wake.agent in by_agent or any(self._has_room(agent) for agent in by_agent):
                    return True
            elif wake.agent in by_agent and self._used[kind] < self._slots.of(kind):
                return True
        return False

    def _has_room(self, agent: str) -> bool:
        return self._used_by[agent] < self._concurrency(agent)
