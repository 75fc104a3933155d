"""How long a credential is left alone, and for what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.credential import Cooling, Credential, Mark
from retinue.domain.model import Failure
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import BILLING_STEPS, COOLS, RETRY_AFTER_MAX, States, cooled

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WORK = Credential(id="acme:work", provider="acme", source="env:ACME_KEY")
HOUR = timedelta(hours=1)


def failed(failure: Failure, *, at: datetime = NOW, model: str = "big", retry_after_s: float | None = None) -> Mark:
    mark = cooldowns.mark(WORK, model, failure, at=at, retry_after_s=retry_after_s)
    assert mark is not None
    return mark


def in_a_row(failure: Failure, times: int) -> list[timedelta]:
    """How long it is left alone after each failure, each coming the moment it is free again."""
    stands: Cooling | None = None
    at, spans = NOW, list[timedelta]()
    for _ in range(times):
        stands = cooled(stands, failed(failure, at=at))
        spans.append(stands.until - at)
        at = stands.until
    return spans


@pytest.mark.spec("C37")
@pytest.mark.parametrize("failure", [Failure.RATE_LIMIT, Failure.OVERLOADED, Failure.TIMEOUT, Failure.AUTH])
def test_failures_in_a_row_cool_for_1_5_25_and_then_60_minutes(failure: Failure) -> None:
    assert [span // timedelta(minutes=1) for span in in_a_row(failure, 6)] == [1, 5, 25, 60, 60, 60]


@pytest.mark.spec("C37")
def test_an_empty_purse_cools_for_5_hours_doubling_up_to_24() -> None:
    assert [span // HOUR for span in in_a_row(Failure.QUOTA, 4)] == [5, 10, 20, 24]


@pytest.mark.spec("C37")
def test_a_failure_more_than_a_day_after_the_last_counts_as_the_first() -> None:
    thrice = None
    for _ in range(3):
        thrice = cooled(thrice, failed(Failure.RATE_LIMIT))
    within, after = NOW + 24 * HOUR, NOW + 24 * HOUR + timedelta(seconds=1)
    assert cooled(thrice, failed(Failure.RATE_LIMIT, at=within)).errors == 4
    assert cooled(thrice, failed(Failure.RATE_LIMIT, at=after)).errors == 1


def test_a_key_is_refused_for_every_model_and_a_rate_limit_is_of_one() -> None:
    assert {failure: failed(failure).model for failure in COOLS} == {
        Failure.AUTH: "",
        Failure.QUOTA: "",
        Failure.PERMISSION: "big",
        Failure.RATE_LIMIT: "big",
        Failure.OVERLOADED: "big",
        Failure.TIMEOUT: "big",
    }
    states = States().after(failed(Failure.RATE_LIMIT))
    assert states.holding(WORK, "big", NOW) is not None
    assert states.holding(WORK, "small", NOW) is None
    states = states.after(failed(Failure.AUTH))
    assert states.holding(WORK, "small", NOW) is not None


@pytest.mark.parametrize("failure", sorted(set(Failure) - COOLS))
def test_what_is_no_fault_of_the_credential_does_not_cool_it(failure: Failure) -> None:
    assert cooldowns.mark(WORK, "big", failure, at=NOW) is None


def test_a_provider_that_wants_more_time_gets_it_within_a_day() -> None:
    def until(retry_after_s: float) -> timedelta:
        return cooled(None, failed(Failure.RATE_LIMIT, retry_after_s=retry_after_s)).until - NOW

    assert until(7) == timedelta(minutes=1)
    assert until(600) == timedelta(minutes=10)
    assert until(1e300) == until(float("inf")) == RETRY_AFTER_MAX


def test_what_failed_for_several_at_once_failed_once() -> None:
    """Ten runs met the same limit at the same moment, and the credential was left alone for an hour."""
    stands = cooled(None, failed(Failure.RATE_LIMIT))
    for second in range(1, 10):
        late = cooldowns.mark(
            WORK, "big", Failure.RATE_LIMIT, at=NOW + timedelta(seconds=second), asked_at=NOW - timedelta(seconds=3)
        )
        assert late is not None
        stands = cooled(stands, late)
    assert stands.errors == 1 and stands.until <= NOW + timedelta(seconds=69)


def test_a_refused_key_does_not_shorten_the_wait_for_an_empty_purse() -> None:
    empty = cooled(None, failed(Failure.QUOTA))
    assert cooled(empty, failed(Failure.AUTH, at=NOW + HOUR)) == empty


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(COOLS)),
            st.integers(0, 100_000),
            st.none() | st.floats(0, 1e9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_no_failure_ever_frees_a_credential_sooner(story: list[tuple[Failure, int, float | None]]) -> None:
    at, states = NOW, States()
    for failure, later_s, retry_after_s in story:
        at += timedelta(seconds=later_s)
        before = {model: states.holding(WORK, model, at) for model in ("big", "small")}
        states = states.after(failed(failure, at=at, retry_after_s=retry_after_s))
        held = states.holding(WORK, "big", at)
        assert held is not None and at < held.until <= at + max(RETRY_AFTER_MAX, BILLING_STEPS[-1])
        for model, earlier in before.items():
            now = states.holding(WORK, model, at)
            assert earlier is None or (now is not None and now.until >= earlier.until)
