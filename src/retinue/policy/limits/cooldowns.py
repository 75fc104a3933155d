"""Decides which failures make the server stop using a credential for a while (back-off), and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from retinue.domain.credential import FAILURE_FORGOTTEN_AFTER, Credential, CredentialCooldown, CredentialFailureRecord
from retinue.domain.model import ModelFailureKind

BACKOFF_STEPS = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 25, 60))  # by consecutive failures
QUOTA_BACKOFF_STEPS = tuple(timedelta(hours=hours) for hours in (5, 10, 20, 24))
RETRY_AFTER_MAX = timedelta(hours=24)  # a longer wait that a provider requests is shortened to this

_CREDENTIAL_FAILURES = frozenset(
    {ModelFailureKind.AUTH, ModelFailureKind.QUOTA}
)  # a rejected or exhausted key fails for every model
_MODEL_FAILURES = frozenset(
    {ModelFailureKind.RATE_LIMIT, ModelFailureKind.OVERLOADED, ModelFailureKind.TIMEOUT, ModelFailureKind.PERMISSION}
)
COOLDOWN_FAILURES = _CREDENTIAL_FAILURES | _MODEL_FAILURES


def build_failure_record(
    credential: Credential,
    model: str,
    failure: ModelFailureKind,
    *,
    at: datetime,
    asked_at: datetime | None = None,
    retry_after_s: float | None = None,
) -> CredentialFailureRecord | None:
    """Return the failure to record for a credential, or None if the credential did not cause the failure."""
    if failure not in COOLDOWN_FAILURES:
        return None
    return CredentialFailureRecord(
        credential=credential,
        model="" if failure in _CREDENTIAL_FAILURES else model,
        failure=failure,
        at=at,
        requested_at=at if asked_at is None else asked_at,
        retry_after_s=retry_after_s,
    )


def apply_failure(earlier: CredentialCooldown | None, mark: CredentialFailureRecord) -> CredentialCooldown:
    """Return the new cooldown of a credential after a failure. A failure never shortens an existing cooldown."""
    if earlier is not None and mark.at - earlier.failed_at > FAILURE_FORGOTTEN_AFTER and earlier.until <= mark.at:
        earlier = None
    alike = earlier is not None and _is_quota_failure(earlier.failure) == _is_quota_failure(mark.failure)
    errors = 1
    if earlier is not None and alike:
        errors = earlier.errors + (mark.requested_at >= earlier.failed_at)
    until = mark.at + _cooldown_duration(mark, errors)
    if earlier is not None and earlier.until > until:
        if not alike:
            return earlier
        until = earlier.until
    return CredentialCooldown(
        agent=mark.credential.agent,
        credential=mark.credential.id,
        model=mark.model,
        failure=mark.failure,
        errors=errors,
        until=until,
        failed_at=mark.at,
    )


def _is_quota_failure(failure: ModelFailureKind) -> bool:
    return failure is ModelFailureKind.QUOTA


def _cooldown_duration(mark: CredentialFailureRecord, errors: int) -> timedelta:
    steps = QUOTA_BACKOFF_STEPS if _is_quota_failure(mark.failure) else BACKOFF_STEPS
    step = steps[min(errors, len(steps)) - 1]
    if mark.retry_after_s is None or mark.retry_after_s <= step.total_seconds():
        return step
    # Limited as seconds: a provider may name a number that no timedelta can hold.
    return timedelta(seconds=min(mark.retry_after_s, RETRY_AFTER_MAX.total_seconds()))


@dataclass(frozen=True, slots=True)
class CredentialCooldowns:
    """The stored cooldowns of all credentials.

    Immutable: `with_failure` returns a new object.
    """

    cooldowns: Sequence[CredentialCooldown] = ()
    _by_key: dict[tuple[str, str, str], CredentialCooldown] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {(each.agent, each.credential, each.model): each for each in self.cooldowns}
        object.__setattr__(self, "_by_key", found)

    def find_active(self, credential: Credential, model: str, now: datetime) -> CredentialCooldown | None:
        """Return the cooldown that blocks this credential for this model now, or None.

        If two cooldowns block the credential, the one that ends later is returned.
        """
        if not self._by_key:  # the common case
            return None
        found = [self._by_key.get((*credential.row_key, whom)) for whom in ("", model)]
        held = [each for each in found if each is not None and each.until > now]
        return max(held, key=lambda each: each.until, default=None)

    def list_for(self, credential: Credential) -> list[CredentialCooldown]:
        return [each for each in self.cooldowns if (each.agent, each.credential) == credential.row_key]

    def with_failure(self, mark: CredentialFailureRecord) -> CredentialCooldowns:
        place = (*mark.credential.row_key, mark.model)
        return CredentialCooldowns(_replace_cooldown(self.cooldowns, apply_failure(self._by_key.get(place), mark)))


def _replace_cooldown(
    cooldowns: Iterable[CredentialCooldown], new: CredentialCooldown
) -> tuple[CredentialCooldown, ...]:
    place = (new.agent, new.credential, new.model)
    return (*(each for each in cooldowns if (each.agent, each.credential, each.model) != place), new)
