"""How long a credential is left alone, and for what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.credential import Credential, CredentialCooldown, CredentialFailureRecord
from retinue.domain.model import ModelFailureKind
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import (
    COOLDOWN_FAILURES,
    QUOTA_BACKOFF_STEPS,
    RETRY_AFTER_MAX,
    CredentialCooldowns,
    apply_failure,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
WORK = Credential(id="acme:work", provider="acme", source="env:ACME_KEY")
HOUR = timedelta(hours=1)


def failed(
    failure: ModelFailureKind, *, at: datetime = NOW, model: str = "big", retry_after_s: float | None = None
) -> CredentialFailureRecord:
    mark = cooldowns.build_failure_record(WORK, model, failure, at=at, retry_after_s=retry_after_s)
    assert mark is not None
    return mark


def in_a_row(failure: ModelFailureKind, times: int) -> list[timedelta]:
    """How long it is left alone after each failure, each coming the moment it is free again."""
    stands: CredentialCooldown | None = None
    at, spans = NOW, list[timedelta]()
    for _ in range(times):
        stands = apply_failure(stands, failed(failure, at=at))
        spans.append(stands.until - at)
        at = stands.until
    return spans


@pytest.mark.spec("C37")
@pytest.mark.parametrize(
    "failure",
    [ModelFailureKind.RATE_LIMIT, ModelFailureKind.OVERLOADED, ModelFailureKind.TIMEOUT, ModelFailureKind.AUTH],
)
def test_failures_in_a_row_cool_for_1_5_25_and_then_60_minutes(failure: ModelFailureKind) -> None:
    assert [span // timedelta(minutes=1) for span in in_a_row(failure, 6)] == [1, 5, 25, 60, 60, 60]


@pytest.mark.spec("C37")
def test_an_empty_purse_cools_for_5_hours_doubling_up_to_24() -> None:
    assert [span // HOUR for span in in_a_row(ModelFailureKind.QUOTA, 4)] == [5, 10, 20, 24]


@pytest.mark.spec("C37")
def test_a_failure_more_than_a_day_after_the_last_counts_as_the_first() -> None:
    thrice = None
    for _ in range(3):
        thrice = apply_failure(thrice, failed(ModelFailureKind.RATE_LIMIT))
    within, after = NOW + 24 * HOUR, NOW + 24 * HOUR + timedelta(seconds=1)
    assert apply_failure(thrice, failed(ModelFailureKind.RATE_LIMIT, at=within)).errors == 4
    assert apply_failure(thrice, failed(ModelFailureKind.RATE_LIMIT, at=after)).errors == 1


def test_a_key_is_refused_for_every_model_and_a_rate_limit_is_of_one() -> None:
    assert {failure: failed(failure).model for failure in COOLDOWN_FAILURES} == {
        ModelFailureKind.AUTH: "",
        ModelFailureKind.QUOTA: "",
        ModelFailureKind.PERMISSION: "big",
        ModelFailureKind.RATE_LIMIT: "big",
        ModelFailureKind.OVERLOADED: "big",
        ModelFailureKind.TIMEOUT: "big",
    }
    states = CredentialCooldowns().with_failure(failed(ModelFailureKind.RATE_LIMIT))
    assert states.find_active(WORK, "big", NOW) is not None
    assert states.find_active(WORK, "small", NOW) is None
    states = states.with_failure(failed(ModelFailureKind.AUTH))
    assert states.find_active(WORK, "small", NOW) is not None


@pytest.mark.parametrize("failure", sorted(set(ModelFailureKind) - COOLDOWN_FAILURES))
def test_what_is_no_fault_of_the_credential_does_not_cool_it(failure: ModelFailureKind) -> None:
    assert cooldowns.build_failure_record(WORK, "big", failure, at=NOW) is None


def test_a_provider_that_wants_more_time_gets_it_within_a_day() -> None:
    def until(retry_after_s: float) -> timedelta:
        return apply_failure(None, failed(ModelFailureKind.RATE_LIMIT, retry_after_s=retry_after_s)).until - NOW

    assert until(7) == timedelta(minutes=1)
    assert until(600) == timedelta(minutes=10)
    assert until(1e300) == until(float("inf")) == RETRY_AFTER_MAX


def test_what_failed_for_several_at_once_failed_once() -> None:
    """Ten runs met the same limit at the same moment, and the credential was left alone for an hour."""
    stands = apply_failure(None, failed(ModelFailureKind.RATE_LIMIT))
    for second in range(1, 10):
        late = cooldowns.build_failure_record(
            WORK,
            "big",
            ModelFailureKind.RATE_LIMIT,
            at=NOW + timedelta(seconds=second),
            asked_at=NOW - timedelta(seconds=3),
        )
        assert late is not None
        stands = apply_failure(stands, late)
    assert stands.errors == 1 and stands.until <= NOW + timedelta(seconds=69)


def test_a_refused_key_does_not_shorten_the_wait_for_an_empty_purse() -> None:
    empty = apply_failure(None, failed(ModelFailureKind.QUOTA))
    assert apply_failure(empty, failed(ModelFailureKind.AUTH, at=NOW + HOUR)) == empty


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(COOLDOWN_FAILURES)),
            st.integers(0, 100_000),
            st.none() | st.floats(0, 1e9),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_no_failure_ever_frees_a_credential_sooner(story: list[tuple[ModelFailureKind, int, float | None]]) -> None:
    at, states = NOW, CredentialCooldowns()
    for failure, later_s, retry_after_s in story:
        at += timedelta(seconds=later_s)
        before = {model: states.find_active(WORK, model, at) for model in ("big", "small")}
        states = states.with_failure(failed(failure, at=at, retry_after_s=retry_after_s))
        held = states.find_active(WORK, "big", at)
        assert held is not None and at < held.until <= at + max(RETRY_AFTER_MAX, QUOTA_BACKOFF_STEPS[-1])
        for model, earlier in before.items():
            now = states.find_active(WORK, model, at)
            assert earlier is None or (now is not None and now.until >= earlier.until)
