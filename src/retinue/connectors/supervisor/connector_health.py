"""Health of a connector, and the back-off after its connection broke. Pure types and arithmetic;
the supervisor acts."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

AGAIN_FIRST_S = 1.0
AGAIN_MAX_S = 60.0
ASKED_MAX_S = 3600.0  # the longest delay that a platform can request
NEEDS_OWNER_S = 900.0
STEADY_S = 60.0  # a connection that lasted this long is healthy, even without messages
JITTER = 0.5  # the random share of a delay, so that instances that lost a platform together do not reconnect together
_DOUBLINGS_MAX = 10


class LineState(StrEnum):
    """The status of the connection to a platform."""

    OFF = "off"  # disabled by the settings
    FAILED = "failed"  # there is no connector: it could not be created
    TRYING = "trying"  # reconnecting after a break, result not known yet
    LISTENING = "listening"
    WAITING = "waiting"  # the connection broke and is retried after a delay
    NEEDS_OWNER = "needs-owner"  # the connection broke, and waiting does not help


class LineHealth(Struct, frozen=True, kw_only=True):
    """The current health of one connector. `failures` counts consecutive ones; `retry_at` is the
    next attempt."""

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
    """The delay before reconnecting after this many consecutive failures. `random_share` is from 0
    to 1.

    It is never shorter than the delay that the platform requested. It is jittered, so that clients
    that were disconnected together do not return together.
    """
    longest = AGAIN_FIRST_S * 2 ** min(max(breaks - 1, 0), _DOUBLINGS_MAX)
    own = NEEDS_OWNER_S if needs_owner else min(longest, AGAIN_MAX_S)
    jittered = own * (1 - JITTER * chance)
    if asked_s is None:
        return jittered
    asked = min(max(asked_s, 0.0), ASKED_MAX_S)
    return max(asked + AGAIN_FIRST_S * JITTER * chance, jittered)
