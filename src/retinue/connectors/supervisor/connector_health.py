"""How the line of a connector fares, and how long to wait after it broke. Nouns and sums; the switchboard acts."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

AGAIN_FIRST_S = 1.0
AGAIN_MAX_S = 60.0
ASKED_MAX_S = 3600.0  # the longest that a place's word on when to come again is believed
NEEDS_OWNER_S = 900.0
STEADY_S = 60.0  # a line that has held for so long is well, though nothing was said
JITTER = 0.5  # the share of a wait that chance decides: houses that lost one place together do not come back together
_DOUBLINGS_MAX = 10


class LineState(StrEnum):
    """What the line to a place is doing."""

    OFF = "off"  # by the settings
    FAILED = "failed"  # there is no connector: it could not be made
    TRYING = "trying"  # taken up again after a break, and nobody knows yet
    LISTENING = "listening"
    WAITING = "waiting"  # it broke, and is taken up again in a while
    NEEDS_OWNER = "needs-owner"  # it broke, and waiting does not help


class LineHealth(Struct, frozen=True, kw_only=True):
    """One connector, as it fares now. `breaks` are those in a row; `again_at` is when the line is tried next."""

    instance: str
    kind: str
    state: LineState
    since: datetime
    last_heard: datetime | None = None
    last_delivered: datetime | None = None
    breaks: int = 0
    because: str = ""
    try_this: str = ""
    again_at: datetime | None = None

    @property
    def is_well(self) -> bool:
        return self.state in (LineState.LISTENING, LineState.OFF)


def wait_s(breaks: int, *, chance: float, asked_s: float | None = None, needs_owner: bool = False) -> float:
    """How long to leave a line alone that broke this often in a row. `chance` is from 0 to 1.

    Never less than the place asked for, and never at one moment with everyone else who was thrown out.
    """
    longest = AGAIN_FIRST_S * 2 ** min(max(breaks - 1, 0), _DOUBLINGS_MAX)
    own = NEEDS_OWNER_S if needs_owner else min(longest, AGAIN_MAX_S)
    jittered = own * (1 - JITTER * chance)
    if asked_s is None:
        return jittered
    asked = min(max(asked_s, 0.0), ASKED_MAX_S)
    return max(asked + AGAIN_FIRST_S * JITTER * chance, jittered)
