"""The health of a connector, and the back-off delay after its connection broke."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
RETRY_AFTER_MAX_S = 3600.0  # the longest delay that a platform can request
NEEDS_OWNER_RETRY_S = 900.0
HEALTHY_AFTER_S = 60.0  # a connection that lasted this long is healthy, even without messages
JITTER = 0.5  # the random share of a delay, so that instances that lost a platform together reconnect separately
_DOUBLINGS_MAX = 10


class ConnectionStatus(StrEnum):
    """The status of the connection to a platform."""

    OFF = "off"  # disabled by the settings
    FAILED = "failed"  # there is no connector: it could not be created
    CONNECTING = "connecting"  # for the first time or again; the result is not known yet
    LISTENING = "listening"
    WAITING = "waiting"  # the connection broke, and the server reconnects after a delay
    NEEDS_OWNER = "needs_owner"  # the connection broke, and only the owner can solve the problem


class ConnectorHealth(Struct, frozen=True, kw_only=True):
    """The current health of one connector.

    `failures` is the number of consecutive failures, and `retry_at` the time of the next attempt.
    """

    name: str
    platform: str
    status: ConnectionStatus
    since: datetime
    last_received_at: datetime | None = None
    last_delivered_at: datetime | None = None
    failures: int = 0
    because: str = ""
    try_this: str = ""
    retry_at: datetime | None = None

    @property
    def is_healthy(self) -> bool:
        return self.status in (ConnectionStatus.LISTENING, ConnectionStatus.OFF)


def reconnect_delay_s(
    failures: int, *, random_share: float, retry_after_s: float | None = None, needs_owner: bool = False
) -> float:
    """Return the delay before the next attempt to connect, after this many consecutive failures.

    `random_share` is from 0 to 1, for jitter: clients that were disconnected at the same time must
    not reconnect at the same time. The delay is at least as long as the platform requested. A
    request for more than an hour counts as one hour.
    """
    longest = BACKOFF_FIRST_S * 2 ** min(max(failures - 1, 0), _DOUBLINGS_MAX)
    own = NEEDS_OWNER_RETRY_S if needs_owner else min(longest, BACKOFF_MAX_S)
    jittered = own * (1 - JITTER * random_share)
    if retry_after_s is None:
        return jittered
    asked = min(max(retry_after_s, 0.0), RETRY_AFTER_MAX_S)
    return max(asked + BACKOFF_FIRST_S * JITTER * random_share, jittered)
