"""Decides how long a credential is not used after a failure (back-off), and after which failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from retinue.domain.credential import FORGOTTEN_AFTER, Cooling, Credential, Mark
from retinue.domain.model import Failure

STEPS = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 25, 60))  # by consecutive failures
BILLING_STEPS = tuple(timedelta(hours=hours) for hours in (5, 10, 20, 24))
RETRY_AFTER_MAX = timedelta(hours=24)  # the longest wait that we accept from a provider

_WHOLE = frozenset({Failure.AUTH, Failure.QUOTA})  # a rejected or exhausted key fails for every model
_OF_MODEL = frozenset({Failure.RATE_LIMIT, Failure.OVERLOADED, Failure.TIMEOUT, Failure.PERMISSION})
COOLS = _WHOLE | _OF_MODEL


def mark(
    credential: Credential,
    model: str,
    failure: Failure,
    *,
    at: datetime,
    asked_at: datetime | None = None,
    retry_after_s: float | None = None,
) -> Mark | None:
    """Return the failure to record; None if the credential is not at fault."""
    if failure not in COOLS:
        return None
    return Mark(
        credential=credential,
        model="" if failure in _WHOLE else model,
        failure=failure,
        at=at,
        asked_at=at if asked_at is None else asked_at,
        retry_after_s=retry_after_s,
    )


def cooled(earlier: Cooling | None, mark: Mark) -> Cooling:
    """Return the new cooldown of a credential after a failure. A failure never shortens an existing cooldown."""
    if earlier is not None and mark.at - earlier.failed_at > FORGOTTEN_AFTER and earlier.until <= mark.at:
        earlier = None
    alike = earlier is not None and _is_billing(earlier.failure) == _is_billing(mark.failure)
    errors = 1
    if earlier is not None and alike:
        errors = earlier.errors + (mark.asked_at >= earlier.failed_at)
    until = mark.at + _step(mark, errors)
    if earlier is not None and earlier.until > until:
        if not alike:
            return earlier
        until = earlier.until
    return Cooling(
        agent=mark.credential.agent,
        credential=mark.credential.id,
        model=mark.model,
        failure=mark.failure,
        errors=errors,
        until=until,
        failed_at=mark.at,
    )


def _is_billing(failure: Failure) -> bool:
    return failure is Failure.QUOTA


def _step(mark: Mark, errors: int) -> timedelta:
    steps = BILLING_STEPS if _is_billing(mark.failure) else STEPS
    step = steps[min(errors, len(steps)) - 1]
    if mark.retry_after_s is None or mark.retry_after_s <= step.total_seconds():
        return step
    # Limited as seconds: a provider may name a number that no timedelta can hold.
    return timedelta(seconds=min(mark.retry_after_s, RETRY_AFTER_MAX.total_seconds()))


@dataclass(frozen=True, slots=True)
class States:
    """The cooldowns of all credentials that ever failed, as read from the store.

    Immutable: a failure makes a new object.
    """

    coolings: Sequence[Cooling] = ()
    _of: dict[tuple[str, str, str], Cooling] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {(each.agent, each.credential, each.model): each for each in self.coolings}
        object.__setattr__(self, "_of", found)

    def holding(self, credential: Credential, model: str, now: datetime) -> Cooling | None:
        """Return the cooldown that blocks this credential for this model now; of two, the longer one."""
        if not self._of:  # the common case
            return None
        found = [self._of.get((*credential.key, whom)) for whom in ("", model)]
        held = [each for each in found if each is not None and each.until > now]
        return max(held, key=lambda each: each.until, default=None)

    def of(self, credential: Credential) -> list[Cooling]:
        return [each for each in self.coolings if (each.agent, each.credential) == credential.key]

    def after(self, mark: Mark) -> States:
        place = (*mark.credential.key, mark.model)
        return States(_replaced(self.coolings, cooled(self._of.get(place), mark)))


def _replaced(coolings: Iterable[Cooling], new: Cooling) -> tuple[Cooling, ...]:
    place = (new.agent, new.credential, new.model)
    return (*(each for each in coolings if (each.agent, each.credential, each.model) != place), new)
