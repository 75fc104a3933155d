"""Limits per minute by provider: a call over the limit waits in order, and is refused if it would wait too long."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.models import ProviderSettings
from retinue.domain.model import ModelFailureKind
from retinue.domain.record import Usage
from retinue.models.errors import ConfiguredLimitReached
from retinue.models.provider_limits import WAIT_MAX_S, ProviderRateLimits
from retinue.testing.fake_clock import FakeClock

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def make_limits(*, requests: int | None = None, tokens: int | None = None) -> ProviderRateLimits:
    providers = {"acme": ProviderSettings(requests_per_minute=requests, tokens_per_minute=tokens)}
    return ProviderRateLimits(lambda: providers)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.spec("C100")
def test_requests_over_a_provider_limit_wait_until_the_60_second_window_allows_them() -> None:
    limit = make_limits(requests=2)
    assert limit.reserve("acme", 10, at(0)).wait_s == 0
    assert limit.reserve("acme", 10, at(50)).wait_s == 0
    assert limit.wait_s("acme", 10, at(55)) == 5
    assert limit.reserve("acme", 10, at(55)).wait_s == 5  # the first call is then 60 seconds old
    assert limit.reserve("acme", 10, at(55)).wait_s == 55  # and now the second call must be
    assert limit.reserve("acme", 10, at(500)).wait_s == 0


@pytest.mark.spec("C100")
def test_tokens_over_a_provider_limit_wait_and_recorded_tokens_replace_the_estimate() -> None:
    limit = make_limits(tokens=1000)
    first = limit.reserve("acme", 900, at(0))
    assert limit.wait_s("acme", 200, at(1)) == 59
    first.record(Usage(input_tokens=300))  # fewer than estimated
    assert limit.wait_s("acme", 200, at(1)) == 0
    first.record(Usage(input_tokens=4000, output_tokens=1000))  # more than estimated
    assert limit.wait_s("acme", 200, at(1)) == 59


def test_a_model_call_larger_than_the_token_limit_of_its_provider_runs_alone() -> None:
    limit = make_limits(tokens=1000)
    assert limit.reserve("acme", 4000, at(0)).wait_s == 0
    assert limit.wait_s("acme", 4000, at(20)) == 40


@pytest.mark.spec("C100")
def test_a_model_call_that_would_wait_too_long_for_a_provider_limit_is_refused_with_the_setting() -> None:
    limit = make_limits(requests=1)
    assert [limit.reserve("acme", 1, at(0)).wait_s for _ in range(2)] == [0, 60]
    with pytest.raises(ConfiguredLimitReached) as refused:
        limit.reserve("acme", 1, at(0))
    assert (refused.value.failure, refused.value.retry_after_s) == (ModelFailureKind.RATE_LIMIT, 120)
    assert "requests_per_minute" in refused.value.try_this and refused.value.code == "model.configured_limit"
    assert limit.reserve("acme", 1, at(60)).wait_s == 60  # a refused call reserves nothing


def test_model_calls_to_a_provider_without_limits_never_wait() -> None:
    limit = make_limits()
    assert [limit.reserve(provider, 10**9, at(0)).wait_s for provider in ("acme", "rival") * 100] == [0] * 200


def test_changed_provider_limits_apply_to_the_next_model_call() -> None:
    providers = {"acme": ProviderSettings(requests_per_minute=1)}
    limit = ProviderRateLimits(lambda: providers)
    limit.reserve("acme", 1, at(0))
    assert limit.wait_s("acme", 1, at(0)) == 60
    providers["acme"] = ProviderSettings(requests_per_minute=5)
    assert limit.wait_s("acme", 1, at(0)) == 0


def test_a_clock_set_back_does_not_delay_model_calls_under_a_provider_limit() -> None:
    limit = make_limits(requests=1)
    limit.reserve("acme", 1, at(0))
    assert limit.wait_s("acme", 1, at(-7200)) == 0


async def test_a_model_call_cancelled_while_it_waits_for_a_provider_limit_releases_its_slot() -> None:
    clock, limit, admitted = FakeClock(), make_limits(requests=1), list[str]()

    async def wait_for_a_slot(name: str) -> None:
        async with limit.slot("acme", 1, clock):
            admitted.append(name)

    await wait_for_a_slot("first")
    waiting = asyncio.create_task(wait_for_a_slot("second"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert admitted == ["first"]
    assert limit.wait_s("acme", 1, clock.now()) == 60


@given(
    requests=st.none() | st.integers(1, 5),
    tokens=st.none() | st.integers(1, 1000),
    calls=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 1200)), max_size=40),
)
def test_no_60_second_window_exceeds_the_provider_limits(
    requests: int | None, tokens: int | None, calls: list[tuple[int, int]]
) -> None:
    limit, now_ms, made = make_limits(requests=requests, tokens=tokens), 0, list[tuple[int, int]]()
    for later_ms, size in calls:
        now_ms += later_ms
        try:
            reservation = limit.reserve("acme", size, NOW + timedelta(milliseconds=now_ms))
        except ConfiguredLimitReached:
            continue
        assert 0 <= reservation.wait_s <= WAIT_MAX_S
        made.append((reservation.at_ms, size))
    assert made == sorted(made, key=lambda call: call[0])  # calls stay in order
    for start_ms, _ in made:
        inside = [size for at_ms, size in made if start_ms <= at_ms < start_ms + 60_000]
        assert requests is None or len(inside) <= requests
        assert tokens is None or sum(inside) <= tokens or len([size for size in inside if size]) == 1
