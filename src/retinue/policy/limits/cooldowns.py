"""How long a credential is left alone after a failure, and which failures mean that it should be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from retinue.domain.credential import FORGOTTEN_AFTER, Cooling, Credential, Mark
from retinue.domain.model import Failure

STEPS = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 25, 60))  # by failures in a row
BILLING_STEPS = tuple(timedelta(hours=hours) for hours in (5, 10, 20, 24))
RETRY_AFTER_MAX = timedelta(hours=24)  # what a provider may ask of us

_WHOLE = frozenset({Failure.AUTH, Failure.QUOTA})  # a key that is refused, or has nothing left, is so for every model
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
    """What is to be written down of a failure; None where the credential is not to blame."""
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
    """How a credential stands after a failure, given how it stood. No failure ever shortens what was decided before."""
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
    # Bounded as seconds: a provider may name a number that no calendar has room for.
    return timedelta(seconds=min(mark.retry_after_s, RETRY_AFTER_MAX.total_seconds()))


@dataclass(frozen=True, slots=True)
class States:
    """How every credential that ever failed stands, as of one look into the store. A failure makes new ones."""

    coolings: Sequence[Cooling] = ()
    _of: dict[tuple[str, str, str], Cooling] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {(each.agent, each.credential, each.model): each for each in self.coolings}
        object.__setattr__(self, "_of", found)

    def holding(self, credential: Credential, model: str, now: datetime) -> Cooling | None:
        """What keeps this credential from being asked for this model now; of two, the one that lasts longer."""
        if not self._of:  # as a rule
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
