"""Decides what to do when a model call fails: retry, next credential, next model, compact, or give up.

There is one plan per reply. It only decides: the caller waits, calls the model, and records the
failures that the plan returns. A cancelled call is not a failure and never gets here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from retinue.domain.credential import Credential, Mark
from retinue.domain.errors import RetinueError
from retinue.domain.model import Failure, ModelFailed, ModelRef
from retinue.domain.session import Mind
from retinue.domain.times import show
from retinue.models.credential_order import is_pinned, order
from retinue.models.fallback_actions import Again, Candidate, Compact, GiveUp, NextCredential, NextModel, Verdict
from retinue.models.provider_limits import HouseLimit
from retinue.models.retired_models import ModelGone
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import States

BACKOFF_MIN_S = 0.3
BACKOFF_MAX_S = 30.0
BACKOFF_GROWTH = 4.0  # 0.3, 1.2, 4.8, 19.2, 30
JITTER_SHARE = 0.25
WAIT_MAX_S = 60.0  # for the only candidate left, in cooldown: long enough for the first step
COMPACTIONS_MAX = 5  # three summaries, shortened results, a reset context: more cannot help
MALFORMED_RETRIES_MAX = 1
PROVIDERS_WORDS_MAX = 300

_UTC = ZoneInfo("UTC")

WORDS: dict[Failure, str] = {
    Failure.AUTH: "the key was refused",
    Failure.PERMISSION: "the key has no right to it",
    Failure.QUOTA: "there is nothing left to spend",
    Failure.RATE_LIMIT: "too many requests",
    Failure.OVERLOADED: "it is overloaded",
    Failure.SERVER: "its server failed",
    Failure.TIMEOUT: "it took too long",
    Failure.CONNECTION: "it could not be reached",
    Failure.CONTEXT_OVERFLOW: "the conversation is too long for it",
    Failure.TOO_LARGE: "the request is too large for it",
    Failure.NOT_FOUND: "there is no such model",
    Failure.CONTENT_FILTER: "it refused the content",
    Failure.BAD_REQUEST: "it did not take the request",
    Failure.MALFORMED: "its reply made no sense",
}
_OWN_WORDS = frozenset({Failure.BAD_REQUEST, Failure.CONTENT_FILTER})  # only the provider can say what was wrong
_PASSING = frozenset({Failure.OVERLOADED, Failure.SERVER, Failure.CONNECTION, Failure.MALFORMED})
_REFUSED = frozenset({Failure.AUTH, Failure.PERMISSION})
_OF_CREDENTIAL = _REFUSED | {Failure.QUOTA, Failure.RATE_LIMIT}


class NotAsked(ModelFailed):
    """A model that the server itself refused to call. Another may do; alone, its own text becomes the error."""

    def __init__(self, error: RetinueError) -> None:
        super().__init__(
            error.sentence,
            because=error.because,
            try_this=error.try_this,
            code=error.code,
            failure=Failure.BAD_REQUEST,
        )


_Place = tuple[ModelRef, tuple[str, str] | None]


def plan(
    chain: Sequence[ModelRef],
    credentials_of: Callable[[str], Sequence[Credential]],
    states: States,
    mind: Mind,
    *,
    needs_key: Callable[[str], bool],
    retries_max: int,
    now: datetime,
    chance: Random,
    none_because: Callable[[str], str] = lambda provider: "there is no key for it",
    zone: ZoneInfo = _UTC,
) -> Plan:
    """Build the plan.

    `find_credentials` returns a provider's readable credentials, an agent's own before the server's.
    """
    credentials = {ref.provider: tuple(credentials_of(ref.provider)) if ref.provider else () for ref in chain}
    lacking = {
        provider: none_because(provider)
        for provider, found in credentials.items()
        if provider and not found and needs_key(provider)
    }
    return Plan(
        tuple(dict.fromkeys(chain)),
        credentials,
        lacking,
        states,
        mind,
        retries_max=retries_max,
        now=now,
        chance=chance,
        zone=zone,
    )


class Plan:
    """The state of the attempts to get one reply. It always ends: each candidate has a limited number of attempts."""

    def __init__(
        self,
        chain: Sequence[ModelRef],
        credentials: dict[str, tuple[Credential, ...]],
        lacking: dict[str, str],
        states: States,
        mind: Mind,
        *,
        retries_max: int,
        now: datetime,
        chance: Random,
        zone: ZoneInfo,
    ) -> None:
        self.chain = chain
        self._credentials = credentials
        self._lacking = lacking
        self._states = states
        self._mind = mind
        self._retries_max = retries_max
        self._chance = chance
        self._zone = zone
        self._retries: Counter[_Place] = Counter()
        self._compactions = 0
        self._dropped: set[ModelRef] = set()  # models that are not tried again for this reply
        self._spent: set[_Place] = set()  # the same, for one credential with one model
        self._cooled: set[_Place] = set()  # candidates that may be tried once more after their cooldown
        self._failed: dict[_Place, ModelFailed] = {}
        self._decided_at = now
        self._current = self._choose(now)

    @property
    def current(self) -> Candidate | None:
        """The next candidate, to call after its `wait_s`; None if there is none, and `build_error` says why."""
        return self._current

    def after(
        self, failure: ModelFailed, *, now: datetime, asked_at: datetime | None = None, may_repeat: bool = False
    ) -> Verdict:
        """Decide what to do about a failure of the current candidate.

        If a reply had begun, a part of it was seen. The same model is not called again for it
        unless `may_repeat`.
        """
        candidate = self._current
        assert candidate is not None, "nobody was asked"
        reason, place = failure.failure, _place(candidate.ref, candidate.credential)
        self._failed[place] = failure
        asked_at, self._decided_at = asked_at or self._decided_at, now
        if reason in (Failure.CONTEXT_OVERFLOW, Failure.TOO_LARGE) and self._compactions < COMPACTIONS_MAX:
            self._compactions += 1
            self._current = replace(candidate, wait_s=0.0)
            return Compact()
        if (may_repeat or not failure.begun) and (after_s := self._again_after_s(candidate, failure)) is not None:
            self._retries[place] += 1
            self._current = replace(candidate, wait_s=after_s)
            return Again(after_s=after_s)
        mark = self._mark(candidate, failure, now=now, asked_at=asked_at)
        if mark is not None:
            self._states = self._states.after(mark)
        self._set_aside(candidate, failure)
        self._current = found = self._choose(now)
        if found is None:
            return GiveUp(error=self.error(now), mark=mark)
        if found.ref != candidate.ref:
            return NextModel(candidate=found, mark=mark)
        if _place(found.ref, found.credential) == place:
            return Again(after_s=found.wait_s, mark=mark)
        return NextCredential(candidate=found, mark=mark)

    def error(self, now: datetime) -> ModelFailed:
        """Build the error: why there is no reply, model by model, and when to retry.

        A single failure is returned unchanged.
        """
        last = next(reversed(self._failed.values()), None)
        free_at = self._free_at(now)
        if last is not None and len(self._failed) == 1 and len(self.chain) == 1:
            return last if free_at is None else _with_time(last, self._free_words(free_at), wait_s=free_at.wait_s)
        listed = [f"{ref}: {self._story(ref, now)}" for ref in self.chain]
        back = "`retinue credential clear ID` takes a cooldown back; " if free_at else ""
        return ModelFailed(
            f"{self.chain[0]} could not reply" if len(self.chain) == 1 else "no model could reply",
            because="; ".join([*listed, *([self._free_words(free_at)] if free_at else [])]),
            try_this=f"{back}`retinue models` shows what can be asked",
            code="model.all-failed",
            failure=last.failure if last else Failure.RATE_LIMIT if free_at else Failure.AUTH,
            retry_after_s=free_at.wait_s if free_at else None,
            begun=any(each.begun for each in self._failed.values()),
        )

    def lines(self, now: datetime) -> list[str]:
        """Describe each model of the chain: the one that would be called now and why, and why the others would not."""
        said: list[str] = []
        for ref in self.chain:
            if self._current is not None and ref == self._current.ref:
                said.append(f"{_named(self._current)}: {self._current.because}")
            elif found := self._first_fresh(ref, now):
                said.append(f"{_named(found)}: if those before it fail")
            else:
                said.append(f"{ref}: not now, {self._story(ref, now)}")
        return said

    def _again_after_s(self, candidate: Candidate, failure: ModelFailed) -> float | None:
        """Return the delay before the same call is retried; None if it must not be."""
        reason, wanted_s = failure.failure, failure.retry_after_s
        place = _place(candidate.ref, candidate.credential)
        retries_max = self._retries_max
        if reason is Failure.MALFORMED:
            retries_max = min(retries_max, MALFORMED_RETRIES_MAX)
        if isinstance(failure, HouseLimit) or self._retries[place] >= retries_max:
            return None
        # Without a credential there is nothing to put into cooldown and no alternative: only time can help.
        counts_requests = reason is Failure.RATE_LIMIT and (wanted_s is not None or candidate.credential is None)
        if reason not in _PASSING and not counts_requests:
            return None
        if wanted_s is not None and wanted_s > BACKOFF_MAX_S:
            return None
        backoff_s = min(BACKOFF_MIN_S * BACKOFF_GROWTH ** self._retries[place], BACKOFF_MAX_S)
        base_s = max(backoff_s, wanted_s or 0.0)
        # Only upwards: never before the time the provider gave, and not all clients at once.
        return min(base_s * (1 + JITTER_SHARE * self._chance.random()), BACKOFF_MAX_S)

    def _mark(self, candidate: Candidate, failure: ModelFailed, *, now: datetime, asked_at: datetime) -> Mark | None:
        if candidate.credential is None or isinstance(failure, HouseLimit):
            return None
        return cooldowns.mark(
            candidate.credential,
            candidate.ref.model,
            failure.failure,
            at=now,
            asked_at=asked_at,
            retry_after_s=failure.retry_after_s,
        )

    def _set_aside(self, candidate: Candidate, failure: ModelFailed) -> None:
        place = _place(candidate.ref, candidate.credential)
        if candidate.credential is None or isinstance(failure, HouseLimit) or failure.failure not in _OF_CREDENTIAL:
            self._dropped.add(candidate.ref)  # another credential would fail the same way
        elif failure.failure is Failure.RATE_LIMIT and place not in self._cooled:
            self._cooled.add(place)
        else:
            self._spent.add(place)

    def _choose(self, now: datetime) -> Candidate | None:
        """Return the first available candidate, by chain and then by credential order; else one worth waiting for."""
        for ref in self.chain:
            if found := self._first_fresh(ref, now):
                return found
        waiting = [
            (cooling.until, ref, credential)
            for ref in self.chain
            for credential in self._of(ref, now)
            if credential is not None and (cooling := self._states.holding(credential, ref.model, now))
        ]
        until, ref, credential = min(waiting, key=lambda each: each[0], default=(None, None, None))
        if until is None or ref is None or (wait_s := (until - now).total_seconds()) > WAIT_MAX_S:
            return None
        because = f"all that could be asked cool down, and this one is free again at {show(until, self._zone)}"
        return Candidate(ref=ref, credential=credential, because=because, wait_s=wait_s)

    def _first_fresh(self, ref: ModelRef, now: datetime) -> Candidate | None:
        for credential in self._of(ref, now):
            if credential is None or self._states.holding(credential, ref.model, now) is None:
                return Candidate(ref=ref, credential=credential, because=self._why(ref, credential, now))
        return None

    def _of(self, ref: ModelRef, now: datetime) -> Sequence[Credential | None]:
        """Return the credentials with which a model may still be called, in order.

        None stands for a call without one.
        """
        if ref in self._dropped or ref.provider in self._lacking:
            return ()
        credentials = self._credentials[ref.provider]
        if not credentials:
            return () if is_pinned(self._mind, ref.provider) else (None,)
        ordered = order(credentials, self._states, model=ref.model, mind=self._mind, now=now)
        return [each for each in ordered if _place(ref, each) not in self._spent]

    def _why(self, ref: ModelRef, credential: Credential | None, now: datetime) -> str:
        said = [f"{each}: {self._story(each, now)}" for each in self.chain[: self.chain.index(ref)]]
        if credential is not None and credential.id == self._mind.credential:
            said.insert(0, "chosen for this session" if self._mind.pinned else "it served this session before")
        else:
            said = [*self._reasons(ref, now), *said]
        return "; ".join(said) or "first in the chain"

    def _story(self, ref: ModelRef, now: datetime) -> str:
        """Explain why a model is not called."""
        if ref.provider in self._lacking:
            return self._lacking[ref.provider]
        if failure := self._failed.get(_place(ref, None)):
            return _reason(failure)
        if is_pinned(self._mind, ref.provider) and not self._eligible(ref):
            return f"{self._mind.credential} was chosen for this session, and cannot be used"
        return ", ".join(self._reasons(ref, now)) or "not asked"

    def _reasons(self, ref: ModelRef, now: datetime) -> list[str]:
        """Explain what is against each credential of a model: its failure just now, or its cooldown."""
        said: list[str] = []
        for credential in self._eligible(ref):
            if failure := self._failed.get(_place(ref, credential)):
                said.append(f"{_reason(failure)} ({credential.id})")
            elif cooling := self._states.holding(credential, ref.model, now):
                until = show(cooling.until, self._zone)
                said.append(f"{credential.id} cools down until {until}, {WORDS[cooling.failure]}")
        return said

    def _eligible(self, ref: ModelRef) -> list[Credential]:
        """Return a provider's credentials, or the one that a person has chosen."""
        chosen = self._mind.credential if is_pinned(self._mind, ref.provider) else None
        return [each for each in self._credentials[ref.provider] if chosen in (None, each.id)]

    def _free_at(self, now: datetime) -> _Free | None:
        """Return when the first credential leaves its cooldown. Rejected keys do not count: time does not fix them."""
        held = [
            _Free(cooling.until, str(ref), (cooling.until - now).total_seconds())
            for ref in self.chain
            for credential in self._eligible(ref)
            if (cooling := self._states.holding(credential, ref.model, now)) and cooling.failure not in _REFUSED
        ]
        return min(held, default=None)

    def _free_words(self, free: _Free) -> str:
        return f"{free.what} is free again at {show(free.at, self._zone)}"


class _Free(NamedTuple):
    at: datetime
    what: str
    wait_s: float


def _with_time(failure: ModelFailed, free: str, *, wait_s: float) -> ModelFailed:
    return ModelFailed(
        failure.sentence,
        because="; ".join(filter(None, [failure.because, free])),
        try_this=failure.try_this,
        code=failure.code,
        failure=failure.failure,
        status=failure.status,
        retry_after_s=wait_s,
        begun=failure.begun,
    )


def why_now(plan: Plan, now: datetime) -> list[str]:
    """Describe what would be called now and why, one line per model of the chain."""
    return plan.lines(now)


def _place(ref: ModelRef, credential: Credential | None) -> _Place:
    return ref, credential.key if credential else None


def _named(candidate: Candidate) -> str:
    return f"{candidate.ref} with {candidate.credential.id}" if candidate.credential else str(candidate.ref)


def _reason(failure: ModelFailed) -> str:
    words = WORDS[failure.failure]
    if isinstance(failure, HouseLimit):
        return failure.because
    if isinstance(failure, NotAsked):
        return failure.sentence
    if isinstance(failure, ModelGone):
        return failure.in_short
    if failure.failure in _OWN_WORDS and (own := failure.because or failure.sentence):
        return f"{words}: {own[:PROVIDERS_WORDS_MAX]}"
    return words
