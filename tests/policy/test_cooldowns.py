"""Test for how long, and after which failures, a credential is not used."""

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


def make_failure(
    failure: ModelFailureKind, *, at: datetime = NOW, model: str = "big", retry_after_s: float | None = None
) -> CredentialFailureRecord:
    mark = cooldowns.build_failure_record(WORK, model, failure, at=at, retry_after_s=retry_after_s)
    assert mark is not None
    return mark


def list_cooldowns_in_a_row(failure: ModelFailureKind, times: int) -> list[timedelta]:
    """Return the length of each cooldown when every failure comes at the end of the previous one."""
    cooldown: CredentialCooldown | None = None
    at, spans = NOW, list[timedelta]()
    for _ in range(times):
        cooldown = apply_failure(cooldown, make_failure(failure, at=at))
        spans.append(cooldown.until - at)
        at = cooldown.until
    return spans


@pytest.mark.spec("C37")
@pytest.mark.parametrize(
    "failure",
    [ModelFailureKind.RATE_LIMIT, ModelFailureKind.OVERLOADED, ModelFailureKind.TIMEOUT, ModelFailureKind.AUTH],
)
def test_repeated_failures_cool_a_credential_down_for_1_5_25_and_then_60_minutes(failure: ModelFailureKind) -> None:
    assert [span // timedelta(minutes=1) for span in list_cooldowns_in_a_row(failure, 6)] == [1, 5, 25, 60, 60, 60]


@pytest.mark.spec("C37")
def test_quota_failures_cool_a_credential_down_for_5_hours_doubling_up_to_24() -> None:
    assert [span // HOUR for span in list_cooldowns_in_a_row(ModelFailureKind.QUOTA, 4)] == [5, 10, 20, 24]


@pytest.mark.spec("C37")
def test_a_failure_more_than_a_day_after_the_last_starts_a_new_series_of_cooldowns() -> None:
    third_failure = None
    for _ in range(3):
        third_failure = apply_failure(third_failure, make_failure(ModelFailureKind.RATE_LIMIT))
    within, after = NOW + 24 * HOUR, NOW + 24 * HOUR + timedelta(seconds=1)
    assert apply_failure(third_failure, make_failure(ModelFailureKind.RATE_LIMIT, at=within)).errors == 4
    assert apply_failure(third_failure, make_failure(ModelFailureKind.RATE_LIMIT, at=after)).errors == 1


def test_auth_and_quota_failures_cool_down_all_models_of_a_credential_and_other_failures_only_one() -> None:
    assert {failure: make_failure(failure).model for failure in COOLDOWN_FAILURES} == {
        ModelFailureKind.AUTH: "",
        ModelFailureKind.QUOTA: "",
        ModelFailureKind.PERMISSION: "big",
        ModelFailureKind.RATE_LIMIT: "big",
        ModelFailureKind.OVERLOADED: "big",
        ModelFailureKind.TIMEOUT: "big",
    }
    states = CredentialCooldowns().with_failure(make_failure(ModelFailureKind.RATE_LIMIT))
    assert states.find_active(WORK, "big", NOW) is not None
    assert states.find_active(WORK, "small", NOW) is None
    states = states.with_failure(make_failure(ModelFailureKind.AUTH))
    assert states.find_active(WORK, "small", NOW) is not None


@pytest.mark.parametrize("failure", sorted(set(ModelFailureKind) - COOLDOWN_FAILURES))
def test_failures_not_caused_by_the_credential_cause_no_cooldown(failure: ModelFailureKind) -> None:
    assert cooldowns.build_failure_record(WORK, "big", failure, at=NOW) is None


def test_retry_after_extends_a_cooldown_up_to_its_maximum() -> None:
    def until(retry_after_s: float) -> timedelta:
        return apply_failure(None, make_failure(ModelFailureKind.RATE_LIMIT, retry_after_s=retry_after_s)).until - NOW

    assert until(7) == timedelta(minutes=1)
    assert until(600) == timedelta(minutes=10)
    assert until(1e300) == until(float("inf")) == RETRY_AFTER_MAX


def test_concurrent_failures_of_one_rate_limit_count_once_for_the_cooldown() -> None:
    """Ten runs meet the same limit at the same moment. Counting each would disable the credential for an hour."""
    cooldown = apply_failure(None, make_failure(ModelFailureKind.RATE_LIMIT))
    for second in range(1, 10):
        late = cooldowns.build_failure_record(
            WORK,
            "big",
            ModelFailureKind.RATE_LIMIT,
            at=NOW + timedelta(seconds=second),
            asked_at=NOW - timedelta(seconds=3),
        )
        assert late is not None
        cooldown = apply_failure(cooldown, late)
    assert cooldown.errors == 1 and cooldown.until <= NOW + timedelta(seconds=69)


def test_an_auth_failure_does_not_shorten_a_quota_cooldown() -> None:
    empty = apply_failure(None, make_failure(ModelFailureKind.QUOTA))
    assert apply_failure(empty, make_failure(ModelFailureKind.AUTH, at=NOW + HOUR)) == empty


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
def test_a_further_failure_never_shortens_a_cooldown(
    failures: list[tuple[ModelFailureKind, int, float | None]],
) -> None:
    at, states = NOW, CredentialCooldowns()
    for failure, later_s, retry_after_s in failures:
        at += timedelta(seconds=later_s)
        before = {model: states.find_active(WORK, model, at) for model in ("big", "small")}
        states = states.with_failure(make_failure(failure, at=at, retry_after_s=retry_after_s))
        held = states.find_active(WORK, "big", at)
        assert held is not None and at < held.until <= at + max(RETRY_AFTER_MAX, QUOTA_BACKOFF_STEPS[-1])
        for model, earlier in before.items():
            now = states.find_active(WORK, model, at)
            assert earlier is None or (now is not None and now.until >= earlier.until)
