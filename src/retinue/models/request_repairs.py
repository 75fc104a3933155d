"""Remembers which parts of a request a provider refuses, so that the request is repeated without them.

A format declares which refusals it can repair (`provider_http.RequestRepairer`). Repairs are kept
in memory: after a restart they are learned again, at the cost of one refused request, which is
free.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from enum import StrEnum

from msgspec import Struct

from retinue.domain.ids import SessionId

REPAIRABLE = frozenset({400, 422})  # the request was rejected, and nothing was generated
LEARNED_MAX = 1_000
LEARNED_S = 24 * 3600.0  # an organization may have been verified since


class Scope(StrEnum):
    """Which requests a refusal applies to."""

    CREDENTIAL = "credential"
    SESSION = "session"


class Omitted(Struct, frozen=True, kw_only=True):
    """What is omitted from a request because the provider refused it."""

    reasoning_summary: bool = False
    thoughts_until: int = 0  # thinking in records up to this sequence number; newer thinking is sent as usual

    def joined(self, other: Omitted) -> Omitted:
        return Omitted(
            reasoning_summary=self.reasoning_summary or other.reasoning_summary,
            thoughts_until=max(self.thoughts_until, other.thoughts_until),
        )


NOTHING = Omitted()


class Repair(Struct, frozen=True, kw_only=True):
    """What to omit, and for which requests from now on."""

    scope: Scope
    omitted: Omitted


class Learned:
    """The repairs learned so far. The oldest are dropped first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Scope, str, str], tuple[Omitted, float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, repair: Repair, *, provider: str, session: SessionId, key: str, now_s: float) -> None:
        place = (repair.scope, provider, session if repair.scope is Scope.SESSION else _fingerprint(key))
        self._kept.pop(place, None)
        self._kept[place] = (repair.omitted, now_s)
        if len(self._kept) > LEARNED_MAX:
            self._kept.popitem(last=False)

    def of(self, *, provider: str, session: SessionId, key: str, now_s: float) -> Omitted:
        """Return what to omit from a request of this session with this key."""
        omitted = NOTHING
        for place in ((Scope.SESSION, provider, session), (Scope.CREDENTIAL, provider, _fingerprint(key))):
            kept = self._kept.get(place)
            if kept is None:
                continue
            lesson, learned_at_s = kept
            if now_s - learned_at_s < LEARNED_S:
                omitted = omitted.joined(lesson)
            else:
                del self._kept[place]
        return omitted


def _fingerprint(key: str) -> str:
    """Identify a credential without storing its key."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
