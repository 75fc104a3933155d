"""Decides which lane gets the next free slot.

The queue is kept in memory only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from msgspec import Struct

from retinue.domain.ids import SessionId
from retinue.domain.session import LaneKind
from retinue.intake.accept import LaneWake

WAITING_LANES_MAX = 10_000


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
    """Which slots are in use, and which lanes are waiting for a slot."""

    slots: Mapping[LaneKind, tuple[int, int]]  # (in use, total)
    waiting_lanes: Mapping[SessionId, LaneKind]


class LaneQueue:
    """The lanes that are waiting for a slot.

    The lanes of an agent are first in, first out. Free slots rotate among agents and lane kinds.
    The queue is limited in size. If a lane does not fit, it is dropped and `has_overflowed` is set.
    That is safe, because the store still has the lane's envelopes.
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
        """Return how many slots are in use, and which lanes are waiting for a slot."""
        waiting = (wakes for by_agent in self._waiting.values() for wakes in by_agent.values())
        return SlotStatus(
            slots={kind: (self._used[kind], self._limits.limit_for(kind)) for kind in LaneKind},
            waiting_lanes={wake.session: wake.lane for wakes in waiting for wake in wakes},
        )

    def set_limits(self, limits: SlotLimits) -> None:
        """Set the slot limits. Added slots are available at once. A removed slot disappears when its run ends."""
        self._limits = limits

    def push(self, wake: LaneWake) -> None:
        """Add a lane to the queue. A lane that is already waiting keeps its position."""
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
        """Take a slot before its lane is known. Returns False if a lane is waiting or no slot is free."""
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
        """Return whether another lane, of the same lane kind or the same agent, is waiting for this lane's slot."""
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
