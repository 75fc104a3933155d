"""So much in a minute, by provider: who comes too soon waits in line, and not for ever."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.models import ProviderSettings
from retinue.domain.model import ModelFailureKind
from retinue.models.errors import ConfiguredLimitReached
from retinue.models.provider_limits import WAIT_MAX_S, ProviderRateLimits
from retinue.testing.fake_clock import FakeClock

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def limits(*, requests: int | None = None, tokens: int | None = None) -> ProviderRateLimits:
    providers = {"acme": ProviderSettings(requests_per_minute=requests, tokens_per_minute=tokens)}
    return ProviderRateLimits(lambda: providers)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.spec("C100")
def test_so_many_requests_in_any_sixty_seconds_and_the_next_waits() -> None:
    limit = limits(requests=2)
    assert limit.reserve("acme", 10, at(0)).wait_s == 0
    assert limit.reserve("acme", 10, at(50)).wait_s == 0
    assert limit.wait_s("acme", 10, at(55)) == 5
    assert limit.reserve("acme", 10, at(55)).wait_s == 5  # the first is a minute ago then
    assert limit.reserve("acme", 10, at(55)).wait_s == 55  # and now the second must be
    assert limit.reserve("acme", 10, at(500)).wait_s == 0


@pytest.mark.spec("C100")
def test_so_many_tokens_in_any_sixty_seconds_by_what_calls_came_to() -> None:
    limit = limits(tokens=1000)
    first = limit.reserve("acme", 900, at(0))
    assert limit.wait_s("acme", 200, at(1)) == 59
    limit.record_tokens(first, 300)  # less than was thought
    assert limit.wait_s("acme", 200, at(1)) == 0
    limit.record_tokens(first, 5000)  # more
    assert limit.wait_s("acme", 200, at(1)) == 59


def test_a_call_that_is_larger_than_the_limit_goes_alone_instead_of_never() -> None:
    limit = limits(tokens=1000)
    assert limit.reserve("acme", 4000, at(0)).wait_s == 0
    assert limit.wait_s("acme", 4000, at(20)) == 40


@pytest.mark.spec("C100")
def test_nobody_waits_longer_than_the_bound_and_the_error_says_which_setting_it_is() -> None:
    limit = limits(requests=1)
    assert [limit.reserve("acme", 1, at(0)).wait_s for _ in range(2)] == [0, 60]
    with pytest.raises(ConfiguredLimitReached) as refused:
        limit.reserve("acme", 1, at(0))
    assert (refused.value.failure, refused.value.retry_after_s) == (ModelFailureKind.RATE_LIMIT, 120)
    assert "requests_per_minute" in refused.value.try_this and refused.value.code == "model.configured_limit"
    assert limit.reserve("acme", 1, at(60)).wait_s == 60  # who was refused holds no place


def test_providers_without_limits_are_not_held_back_nor_remembered() -> None:
    limit = limits()
    assert [limit.reserve(provider, 10**9, at(0)).wait_s for provider in ("acme", "rival") * 100] == [0] * 200


def test_limits_that_settings_change_hold_from_the_next_call_on() -> None:
    providers = {"acme": ProviderSettings(requests_per_minute=1)}
    limit = ProviderRateLimits(lambda: providers)
    limit.reserve("acme", 1, at(0))
    assert limit.wait_s("acme", 1, at(0)) == 60
    providers["acme"] = ProviderSettings(requests_per_minute=5)
    assert limit.wait_s("acme", 1, at(0)) == 0


def test_a_clock_that_is_set_back_holds_nobody_for_hours() -> None:
    limit = limits(requests=1)
    limit.reserve("acme", 1, at(0))
    assert limit.wait_s("acme", 1, at(-7200)) == 0


async def test_who_is_cancelled_while_waiting_gives_up_the_place() -> None:
    clock, limit, entered = FakeClock(), limits(requests=1), list[str]()

    async def ask(name: str) -> None:
        async with limit.wait_for_slot("acme", 1, clock):
            entered.append(name)

    await ask("first")
    waiting = asyncio.create_task(ask("second"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert entered == ["first"]
    assert limit.wait_s("acme", 1, clock.now()) == 60


@given(
    requests=st.none() | st.integers(1, 5),
    tokens=st.none() | st.integers(1, 1000),
    calls=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 1200)), max_size=40),
)
def test_no_sixty_seconds_hold_more_than_the_limits(
    requests: int | None, tokens: int | None, calls: list[tuple[int, int]]
) -> None:
    limit, now_ms, made = limits(requests=requests, tokens=tokens), 0, list[tuple[int, int]]()
    for later_ms, size in calls:
        now_ms += later_ms
        try:
            booked = limit.reserve("acme", size, NOW + timedelta(milliseconds=now_ms))
        except ConfiguredLimitReached:
            continue
        assert 0 <= booked.wait_s <= WAIT_MAX_S
        made.append((booked.at_ms, size))
    assert made == sorted(made, key=lambda call: call[0])  # a line: nobody overtakes
    for start_ms, _ in made:
        inside = [size for at_ms, size in made if start_ms <= at_ms < start_ms + 60_000]
        assert requests is None or len(inside) <= requests
        assert tokens is None or sum(inside) <= tokens or len([size for size in inside if size]) == 1
