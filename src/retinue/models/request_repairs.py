"""Remembers which parts of a request a provider refuses, so that later requests omit them.

A format declares which refusals it can repair (`provider_http.RequestRepairer`). Repairs are kept
in memory. After a restart, each is learned again from one refused request, which costs nothing.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from enum import StrEnum

from msgspec import Struct

from retinue.domain.ids import SessionId

REPAIRABLE_STATUSES = frozenset({400, 422})  # the request was rejected, and nothing was generated
LEARNED_MAX = 1_000
LEARNED_TTL_S = 24 * 3600.0  # an organization may have been verified since


class RepairScope(StrEnum):
    """Which later requests omit a part too: those with the same credential, or those of the same session."""

    CREDENTIAL = "credential"
    SESSION = "session"


class OmittedParts(Struct, frozen=True, kw_only=True):
    """The parts that are omitted from a request because the provider refused them."""

    reasoning_summary: bool = False
    thinking_until_seq: int = 0  # thinking in records up to this sequence number; newer thinking is sent as usual

    def merge(self, other: OmittedParts) -> OmittedParts:
        return OmittedParts(
            reasoning_summary=self.reasoning_summary or other.reasoning_summary,
            thinking_until_seq=max(self.thinking_until_seq, other.thinking_until_seq),
        )


NOTHING_OMITTED = OmittedParts()


class RequestRepair(Struct, frozen=True, kw_only=True):
    """The parts to omit, and the requests from which to omit them from now on."""

    scope: RepairScope
    omitted: OmittedParts


class LearnedRepairs:
    """The repairs that were learned since the server started. The oldest are dropped first."""

    def __init__(self) -> None:
        self._repairs: OrderedDict[tuple[RepairScope, str, str], tuple[OmittedParts, float]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._repairs)

    def remember(self, repair: RequestRepair, *, provider: str, session: SessionId, key: str, now_s: float) -> None:
        place = (repair.scope, provider, session if repair.scope is RepairScope.SESSION else _fingerprint(key))
        self._repairs.pop(place, None)
        self._repairs[place] = (repair.omitted, now_s)
        if len(self._repairs) > LEARNED_MAX:
            self._repairs.popitem(last=False)

    def find_omitted(self, *, provider: str, session: SessionId, key: str, now_s: float) -> OmittedParts:
        """Return what to omit from a request of this session with this key."""
        omitted = NOTHING_OMITTED
        for place in ((RepairScope.SESSION, provider, session), (RepairScope.CREDENTIAL, provider, _fingerprint(key))):
            kept = self._repairs.get(place)
            if kept is None:
                continue
            lesson, learned_at_s = kept
            if now_s - learned_at_s < LEARNED_TTL_S:
                omitted = omitted.merge(lesson)
            else:
                del self._repairs[place]
        return omitted


def _fingerprint(key: str) -> str:
    """Identify a credential without storing its key."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
