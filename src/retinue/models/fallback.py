"""Decides what to do when a model call fails: retry, next credential, next model, compact, or give up.

There is one plan per reply. The plan only decides: its caller waits, calls the model, and records the failures that the
plan returns. A cancelled call is not a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import NamedTuple
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from retinue.domain.credential import Credential, CredentialFailureRecord
from retinue.domain.errors import RetinueError
from retinue.domain.model import ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.session import SessionOptions
from retinue.domain.times import format_time
from retinue.models.credential_order import is_pinned, order_credentials
from retinue.models.errors import ConfiguredLimitReached, ModelNotOffered, ModelRetired, NoModelReplied
from retinue.models.fallback_actions import (
    CompactAction,
    FallbackAction,
    GiveUpAction,
    ModelCandidate,
    NextCredentialAction,
    NextModelAction,
    RetryAction,
)
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import CredentialCooldowns

BACKOFF_MIN_S = 0.3
BACKOFF_MAX_S = 30.0
BACKOFF_GROWTH = 4.0  # delays in seconds: 0.3, 1.2, 4.8, 19.2, 30
JITTER_SHARE = 0.25
WAIT_MAX_S = 60.0  # maximum wait if all candidates are in cooldown: enough for the first cooldown
COMPACTIONS_MAX = 5  # enough for three summaries, shortened results and a reset; more cannot help
MALFORMED_RETRIES_MAX = 1
PROVIDER_MESSAGE_CHARS_MAX = 300

_UTC = ZoneInfo("UTC")

FAILURE_TEXTS: dict[ModelFailureKind, str] = {
    ModelFailureKind.AUTH: "the key was rejected",
    ModelFailureKind.PERMISSION: "the key has no access to it",
    ModelFailureKind.QUOTA: "the account has no credit left",
    ModelFailureKind.RATE_LIMIT: "too many requests",
    ModelFailureKind.OVERLOADED: "it is overloaded",
    ModelFailureKind.SERVER: "its server failed",
    ModelFailureKind.TIMEOUT: "it took too long",
    ModelFailureKind.CONNECTION: "the connection failed",
    ModelFailureKind.CONTEXT_OVERFLOW: "the conversation is too long for it",
    ModelFailureKind.TOO_LARGE: "the request is too large for it",
    ModelFailureKind.NOT_FOUND: "the provider does not offer it",
    ModelFailureKind.CONTENT_FILTER: "it refused the content",
    ModelFailureKind.BAD_REQUEST: "it rejected the request",
    ModelFailureKind.MALFORMED: "its reply was invalid",
}
_QUOTED_FAILURES = frozenset(
    {ModelFailureKind.BAD_REQUEST, ModelFailureKind.CONTENT_FILTER}
)  # only the provider can say what was wrong
_TRANSIENT_FAILURES = frozenset(
    {ModelFailureKind.OVERLOADED, ModelFailureKind.SERVER, ModelFailureKind.CONNECTION, ModelFailureKind.MALFORMED}
)
_REFUSED_KEY_FAILURES = frozenset({ModelFailureKind.AUTH, ModelFailureKind.PERMISSION})
_CREDENTIAL_FAILURES = _REFUSED_KEY_FAILURES | {ModelFailureKind.QUOTA, ModelFailureKind.RATE_LIMIT}


class ModelNotCalled(ModelFailed):
    """The server itself refused to call a model, because the model's window is too small or its price is unknown.

    Another model may work. If there is none, this error is reported.
    """

    def __init__(self, error: RetinueError) -> None:
        super().__init__(
            error.sentence,
            because=error.because,
            try_this=error.try_this,
            code=error.code,
            failure=ModelFailureKind.BAD_REQUEST,
        )


_CandidateKey = tuple[ModelRef, tuple[str, str] | None]


def build_fallback_plan(
    chain: Sequence[ModelRef],
    find_credentials: Callable[[str], Sequence[Credential]],
    cooldowns: CredentialCooldowns,
    session_options: SessionOptions,
    *,
    needs_key: Callable[[str], bool],
    retries_max: int,
    now: datetime,
    random: Random,
    explain_none: Callable[[str], str] = lambda provider: "no API key",
    zone: ZoneInfo = _UTC,
) -> FallbackPlan:
    """Build the plan that decides which models and credentials are tried for one reply.

    `find_credentials` returns a provider's credentials whose keys can be read, with the agent's own
    before the server's.
    """
    credentials = {ref.provider: tuple(find_credentials(ref.provider)) if ref.provider else () for ref in chain}
    lacking = {
        provider: explain_none(provider)
        for provider, found in credentials.items()
        if provider and not found and needs_key(provider)
    }
    return FallbackPlan(
        tuple(dict.fromkeys(chain)),
        credentials,
        lacking,
        cooldowns,
        session_options,
        retries_max=retries_max,
        now=now,
        random=random,
        zone=zone,
    )


class FallbackPlan:
    """Tracks the attempts to get one reply, and decides what to do after each failure.

    The attempts always end, because each candidate has a limited number of them.
    """

    def __init__(
        self,
        chain: Sequence[ModelRef],
        credentials: dict[str, tuple[Credential, ...]],
        missing_keys: dict[str, str],
        cooldowns: CredentialCooldowns,
        session_options: SessionOptions,
        *,
        retries_max: int,
        now: datetime,
        random: Random,
        zone: ZoneInfo,
    ) -> None:
        self.chain = chain
        self._credentials = credentials
        self._missing_keys = missing_keys
        self._cooldowns = cooldowns
        self._session_options = session_options
        self._retries_max = retries_max
        self._random = random
        self._zone = zone
        self._retries: Counter[_CandidateKey] = Counter()
        self._compactions = 0
        self._excluded_models: set[ModelRef] = set()  # models that are not tried again for this reply
        self._excluded_candidates: set[_CandidateKey] = set()  # the same, for one credential with one model
        self._retried_after_cooldown: set[_CandidateKey] = (
            set()
        )  # candidates that may be tried once more after their cooldown
        self._failures: dict[_CandidateKey, ModelFailed] = {}
        self._decided_at = now
        self._current = self._choose_candidate(now)

    @property
    def current(self) -> ModelCandidate | None:
        """The candidate to call next, after waiting for its `wait_s`. If it is None, `build_error` says why."""
        return self._current

    def handle_failure(
        self, failure: ModelFailed, *, now: datetime, asked_at: datetime | None = None, may_repeat: bool = False
    ) -> FallbackAction:
        """Decide what to do about a failure of the current candidate.

        A call that may have been charged is not retried with the same model unless `may_repeat` is true.
        """
        candidate = self._current
        assert candidate is not None, "no model was called"
        reason, place = failure.failure, _build_candidate_key(candidate.ref, candidate.credential)
        self._failures[place] = failure
        asked_at, self._decided_at = asked_at or self._decided_at, now
        if (
            reason in (ModelFailureKind.CONTEXT_OVERFLOW, ModelFailureKind.TOO_LARGE)
            and self._compactions < COMPACTIONS_MAX
        ):
            self._compactions += 1
            self._current = replace(candidate, wait_s=0.0)
            return CompactAction()
        if (may_repeat or not failure.may_be_charged) and (
            after_s := self._find_retry_delay_s(candidate, failure)
        ) is not None:
            self._retries[place] += 1
            self._current = replace(candidate, wait_s=after_s)
            return RetryAction(delay_s=after_s)
        mark = self._build_failure_record(candidate, failure, now=now, asked_at=asked_at)
        if mark is not None:
            self._cooldowns = self._cooldowns.with_failure(mark)
        self._exclude(candidate, failure)
        self._current = found = self._choose_candidate(now)
        if found is None:
            return GiveUpAction(error=self.build_error(now), mark=mark)
        if found.ref != candidate.ref:
            return NextModelAction(candidate=found, mark=mark)
        if _build_candidate_key(found.ref, found.credential) == place:
            return RetryAction(delay_s=found.wait_s, mark=mark)
        return NextCredentialAction(candidate=found, mark=mark)

    def build_error(self, now: datetime) -> ModelFailed:
        """Build the error that explains, model by model, why there is no reply and when to retry.

        A single failure is returned unchanged.
        """
        last = next(reversed(self._failures.values()), None)
        free_at = self._find_next_available(now)
        if last is not None and len(self._failures) == 1 and len(self.chain) == 1:
            return (
                last
                if free_at is None
                else _add_retry_time(last, self._format_next_available(free_at), wait_s=free_at.wait_s)
            )
        listed = [f"{ref}: {self._explain_unavailable(ref, now)}" for ref in self.chain]
        return NoModelReplied(
            listed,
            next_available=self._format_next_available(free_at) if free_at else "",
            failure=last.failure if last else ModelFailureKind.RATE_LIMIT if free_at else ModelFailureKind.AUTH,
            retry_after_s=free_at.wait_s if free_at else None,
            may_be_charged=any(each.may_be_charged for each in self._failures.values()),
        )

    def describe(self, now: datetime) -> list[str]:
        """Describe each model of the chain: which would be called now and why, and why the others would not."""
        lines: list[str] = []
        for ref in self.chain:
            if self._current is not None and ref == self._current.ref:
                lines.append(f"{_format_candidate(self._current)}: {self._current.because}")
            elif found := self._find_available(ref, now):
                lines.append(f"{_format_candidate(found)}: if those before it fail")
            else:
                lines.append(f"{ref}: not now, {self._explain_unavailable(ref, now)}")
        return lines

    def _find_retry_delay_s(self, candidate: ModelCandidate, failure: ModelFailed) -> float | None:
        """Return the delay before the same call is retried. None if it must not be retried."""
        reason, wanted_s = failure.failure, failure.retry_after_s
        place = _build_candidate_key(candidate.ref, candidate.credential)
        retries_max = self._retries_max
        if reason is ModelFailureKind.MALFORMED:
            retries_max = min(retries_max, MALFORMED_RETRIES_MAX)
        if isinstance(failure, ConfiguredLimitReached) or self._retries[place] >= retries_max:
            return None
        # Without a credential there is nothing to put into cooldown and no alternative: only time can help.
        counts_requests = reason is ModelFailureKind.RATE_LIMIT and (
            wanted_s is not None or candidate.credential is None
        )
        if reason not in _TRANSIENT_FAILURES and not counts_requests:
            return None
        if wanted_s is not None and wanted_s > BACKOFF_MAX_S:
            return None
        backoff_s = min(BACKOFF_MIN_S * BACKOFF_GROWTH ** self._retries[place], BACKOFF_MAX_S)
        base_s = max(backoff_s, wanted_s or 0.0)
        # Jitter only adds to the delay: no retry comes before the time that the provider gave.
        return min(base_s * (1 + JITTER_SHARE * self._random.random()), BACKOFF_MAX_S)

    def _build_failure_record(
        self, candidate: ModelCandidate, failure: ModelFailed, *, now: datetime, asked_at: datetime
    ) -> CredentialFailureRecord | None:
        if candidate.credential is None or isinstance(failure, ConfiguredLimitReached):
            return None
        return cooldowns.build_failure_record(
            candidate.credential,
            candidate.ref.model,
            failure.failure,
            at=now,
            asked_at=asked_at,
            retry_after_s=failure.retry_after_s,
        )

    def _exclude(self, candidate: ModelCandidate, failure: ModelFailed) -> None:
        place = _build_candidate_key(candidate.ref, candidate.credential)
        if (
            candidate.credential is None
            or isinstance(failure, ConfiguredLimitReached)
            or failure.failure not in _CREDENTIAL_FAILURES
        ):
            self._excluded_models.add(candidate.ref)  # another credential would fail the same way
        elif failure.failure is ModelFailureKind.RATE_LIMIT and place not in self._retried_after_cooldown:
            self._retried_after_cooldown.add(place)
        else:
            self._excluded_candidates.add(place)

    def _choose_candidate(self, now: datetime) -> ModelCandidate | None:
        """Return the first available candidate, ordered by chain and then by credential.

        If all are in cooldown, return the one that is available soonest. Returns None if the wait
        would be too long.
        """
        for ref in self.chain:
            if found := self._find_available(ref, now):
                return found
        waiting = [
            (cooling.until, ref, credential)
            for ref in self.chain
            for credential in self._list_credentials(ref, now)
            if credential is not None and (cooling := self._cooldowns.find_active(credential, ref.model, now))
        ]
        until, ref, credential = min(waiting, key=lambda each: each[0], default=(None, None, None))
        if until is None or ref is None or (wait_s := (until - now).total_seconds()) > WAIT_MAX_S:
            return None
        because = f"all candidates are in cooldown, and this one is available again at {format_time(until, self._zone)}"
        return ModelCandidate(ref=ref, credential=credential, because=because, wait_s=wait_s)

    def _find_available(self, ref: ModelRef, now: datetime) -> ModelCandidate | None:
        for credential in self._list_credentials(ref, now):
            if credential is None or self._cooldowns.find_active(credential, ref.model, now) is None:
                return ModelCandidate(
                    ref=ref, credential=credential, because=self._explain_choice(ref, credential, now)
                )
        return None

    def _list_credentials(self, ref: ModelRef, now: datetime) -> Sequence[Credential | None]:
        """Return the credentials with which a model may still be called, in order.

        None in the list stands for a call without a credential.
        """
        if ref in self._excluded_models or ref.provider in self._missing_keys:
            return ()
        credentials = self._credentials[ref.provider]
        if not credentials:
            return () if is_pinned(self._session_options, ref.provider) else (None,)
        ordered = order_credentials(
            credentials, self._cooldowns, model=ref.model, session_options=self._session_options, now=now
        )
        return [each for each in ordered if _build_candidate_key(ref, each) not in self._excluded_candidates]

    def _explain_choice(self, ref: ModelRef, credential: Credential | None, now: datetime) -> str:
        reasons = [f"{each}: {self._explain_unavailable(each, now)}" for each in self.chain[: self.chain.index(ref)]]
        if credential is not None and credential.id == self._session_options.credential:
            reasons.insert(
                0, "chosen for this session" if self._session_options.pinned else "used in this session before"
            )
        else:
            reasons = [*self._explain_credentials(ref, now), *reasons]
        return "; ".join(reasons) or "first in the chain"

    def _explain_unavailable(self, ref: ModelRef, now: datetime) -> str:
        """Explain why a model is not called."""
        if ref.provider in self._missing_keys:
            return self._missing_keys[ref.provider]
        if failure := self._failures.get(_build_candidate_key(ref, None)):
            return _describe_failure(failure)
        if is_pinned(self._session_options, ref.provider) and not self._list_eligible(ref):
            return f"{self._session_options.credential} was chosen for this session, but cannot be used"
        return ", ".join(self._explain_credentials(ref, now)) or "not called"

    def _explain_credentials(self, ref: ModelRef, now: datetime) -> list[str]:
        """Explain why each credential of a model cannot be used: its failure in this plan, or its cooldown."""
        lines: list[str] = []
        for credential in self._list_eligible(ref):
            if failure := self._failures.get(_build_candidate_key(ref, credential)):
                lines.append(f"{_describe_failure(failure)} ({credential.id})")
            elif cooling := self._cooldowns.find_active(credential, ref.model, now):
                until = format_time(cooling.until, self._zone)
                lines.append(f"{credential.id} is in cooldown until {until}: {FAILURE_TEXTS[cooling.failure]}")
        return lines

    def _list_eligible(self, ref: ModelRef) -> list[Credential]:
        """Return a provider's credentials, or only the credential that a person has chosen."""
        chosen = self._session_options.credential if is_pinned(self._session_options, ref.provider) else None
        return [each for each in self._credentials[ref.provider] if chosen in (None, each.id)]

    def _find_next_available(self, now: datetime) -> _NextAvailable | None:
        """Return the model whose credential is the first to leave its cooldown, with the time.

        None if there is no such credential. Rejected keys do not count, because waiting does not make them valid.
        """
        held = [
            _NextAvailable(cooling.until, str(ref), (cooling.until - now).total_seconds())
            for ref in self.chain
            for credential in self._list_eligible(ref)
            if (cooling := self._cooldowns.find_active(credential, ref.model, now))
            and cooling.failure not in _REFUSED_KEY_FAILURES
        ]
        return min(held, default=None)

    def _format_next_available(self, free: _NextAvailable) -> str:
        return f"{free.model} is available again at {format_time(free.at, self._zone)}"


class _NextAvailable(NamedTuple):
    at: datetime
    model: str
    wait_s: float


def _add_retry_time(failure: ModelFailed, next_available: str, *, wait_s: float) -> ModelFailed:
    return ModelFailed(
        failure.sentence,
        because="; ".join(filter(None, [failure.because, next_available])),
        try_this=failure.try_this,
        code=failure.code,
        failure=failure.failure,
        status=failure.status,
        retry_after_s=wait_s,
        may_be_charged=failure.may_be_charged,
    )


def describe_plan(plan: FallbackPlan, now: datetime) -> list[str]:
    """Describe which model a plan would call now and why, with one line per model of the chain."""
    return plan.describe(now)


def _build_candidate_key(ref: ModelRef, credential: Credential | None) -> _CandidateKey:
    return ref, credential.row_key if credential else None


def _format_candidate(candidate: ModelCandidate) -> str:
    return f"{candidate.ref} with {candidate.credential.id}" if candidate.credential else str(candidate.ref)


def _describe_failure(failure: ModelFailed) -> str:
    words = FAILURE_TEXTS[failure.failure]
    if isinstance(failure, ConfiguredLimitReached):
        return failure.because
    if isinstance(failure, ModelNotCalled):
        return failure.sentence
    if isinstance(failure, ModelNotOffered | ModelRetired):
        return failure.summary
    if failure.failure in _QUOTED_FAILURES and (own := failure.because or failure.sentence):
        return f"{words}: {own[:PROVIDER_MESSAGE_CHARS_MAX]}"
    return words
