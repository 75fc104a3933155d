"""Credentials in a real store: what is known of them survives a restart, and a key is nowhere in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from stores import Place

from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.model import ModelFailureKind
from retinue.domain.times import to_ms
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import CredentialCooldowns, apply_failure
from retinue.store.agents import credentials
from retinue.store.core.connection import Store

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW_MS = to_ms(NOW)
WORK = Credential(id="acme:work", provider="acme", source="env:ACME_KEY")
SPARE = Credential(id="acme:spare", provider="acme", source="file:/k/spare", kind=CredentialKind.TOKEN, region="eu")
ADAS = Credential(id="acme:work", provider="acme", source="file:/k/ada", agent="ada")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind: str = request.param
    return Place(kind, request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "house.db"))


@asynccontextmanager
async def opened(place: Place) -> AsyncGenerator[Store]:
    async with place.open() as store:
        yield store


async def fail(
    store: Store, credential: Credential, failure: ModelFailureKind, *, model: str = "big", at: datetime = NOW
) -> None:
    mark = cooldowns.build_failure_record(credential, model, failure, at=at)
    assert mark is not None
    await store.write(partial(credentials.mark_failed, mark=mark, judge=apply_failure), point="credential")


async def states(store: Store, *, at: datetime = NOW) -> CredentialCooldowns:
    return CredentialCooldowns(await store.read(partial(credentials.list_cooldowns, now_ms=to_ms(at))))


async def add(store: Store, *new: Credential) -> None:
    def body(conn: sa.Connection) -> None:
        assert all(credentials.add(conn, each, at_ms=NOW_MS) for each in new)

    await store.write(body, point="credential")


@pytest.mark.spec("C106")
async def test_what_is_known_of_a_credential_survives_a_restart(place: Place) -> None:
    async with opened(place) as store:
        await add(store, WORK, SPARE, ADAS)
        await fail(store, WORK, ModelFailureKind.QUOTA)
        await store.write(partial(credentials.mark_used, credential=SPARE, at_ms=NOW_MS), point="credential")
    async with opened(place) as store:
        found = {each.row_key: each for each in await store.read(credentials.list_all)}
        assert found[WORK.row_key] == WORK and found[ADAS.row_key] == ADAS
        assert found[SPARE.row_key].used_at == NOW
        assert (found[SPARE.row_key].kind, found[SPARE.row_key].region) == (CredentialKind.TOKEN, "eu")
        [cooling] = (await states(store)).list_for(WORK)
        assert (cooling.failure, cooling.errors, cooling.until) == (ModelFailureKind.QUOTA, 1, NOW + timedelta(hours=5))
        assert (await states(store)).find_active(ADAS, "big", NOW) is None  # the same id, and another's


@pytest.mark.spec("C37", "C38")
async def test_cooldowns_grow_over_restarts_and_only_success_ends_them(place: Place) -> None:
    at = NOW
    for minutes in (1, 5, 25, 60):
        async with opened(place) as store:
            await fail(store, WORK, ModelFailureKind.RATE_LIMIT, at=at)
            held = (await states(store, at=at)).find_active(WORK, "big", at)
            assert held is not None and held.until - at == timedelta(minutes=minutes)
            at = held.until
    async with opened(place) as store:
        await store.write(
            partial(credentials.mark_used, credential=WORK, at_ms=to_ms(at), model="big"), point="credential"
        )
        assert (await states(store, at=at)).cooldowns == []


@pytest.mark.spec("C38")
async def test_a_call_begun_before_a_failure_does_not_forgive_it(place: Place) -> None:
    """A cooldown that was just written was taken away again by what came in at the same time."""
    async with opened(place) as store:
        await fail(store, WORK, ModelFailureKind.RATE_LIMIT)
        slow = partial(
            credentials.mark_used, credential=WORK, at_ms=NOW_MS + 5_000, model="big", asked_ms=NOW_MS - 5_000
        )
        await store.write(slow, point="credential")
        assert (await states(store)).find_active(WORK, "big", NOW) is not None
        [kept] = await store.read(credentials.list_all)
        assert kept.used_at == NOW + timedelta(seconds=5)


async def test_success_with_one_model_says_nothing_of_another(place: Place) -> None:
    async with opened(place) as store:
        await fail(store, WORK, ModelFailureKind.RATE_LIMIT, model="big")
        await fail(store, WORK, ModelFailureKind.RATE_LIMIT, model="small")
        await fail(store, WORK, ModelFailureKind.AUTH)
        await store.write(
            partial(credentials.mark_used, credential=WORK, at_ms=NOW_MS, model="small"), point="credential"
        )
        assert [each.model for each in (await states(store)).cooldowns] == ["big"]
        await store.write(partial(credentials.mark_used, credential=WORK, at_ms=NOW_MS), point="credential")
        assert (await states(store)).cooldowns == []


async def test_failures_are_cleared_for_one_model_or_for_all(place: Place) -> None:
    async with opened(place) as store:
        for model in ("big", "small"):
            await fail(store, WORK, ModelFailureKind.OVERLOADED, model=model)
            await fail(store, SPARE, ModelFailureKind.OVERLOADED, model=model)

        async def clear(model: str | None) -> int:
            return await store.write(
                partial(credentials.clear_cooldowns, agent="", id_=WORK.id, model=model), point="credential"
            )

        assert await clear("big") == 1
        assert await clear(None) == 1
        assert await clear(None) == 0
        assert len((await states(store)).list_for(SPARE)) == 2


async def test_failures_of_more_than_a_day_ago_are_not_told_unless_they_still_cool(place: Place) -> None:
    async with opened(place) as store:
        await fail(store, WORK, ModelFailureKind.RATE_LIMIT)
        assert len((await states(store, at=NOW + timedelta(hours=24))).cooldowns) == 1
        assert len((await states(store, at=NOW + timedelta(hours=25))).cooldowns) == 0


async def test_an_order_is_kept_for_found_ones_too_and_can_be_taken_back(place: Place) -> None:
    found = Credential(id="acme:env", provider="acme", source="env:ACME_API_KEY")

    async def order(*wanted: Credential) -> dict[str, int | None]:
        await store.write(
            partial(credentials.set_order, agent="", provider="acme", order=wanted, at_ms=NOW_MS), point="credential"
        )
        return {each.id: each.position for each in await store.read(credentials.list_all) if not each.agent}

    async with opened(place) as store:
        await add(store, WORK, SPARE, ADAS)
        assert await order(found, WORK) == {"acme:env": 0, "acme:work": 1, "acme:spare": None}
        assert await order(SPARE) == {"acme:env": None, "acme:work": None, "acme:spare": 0}
        assert await order() == {"acme:env": None, "acme:work": None, "acme:spare": None}


async def test_one_that_is_there_stays_as_it_is_and_one_that_goes_takes_its_failures_along(place: Place) -> None:
    async with opened(place) as store:
        await add(store, WORK, ADAS)
        other = Credential(id="acme:work", provider="acme", source="env:OTHER")
        assert not await store.write(partial(credentials.add, credential=other, at_ms=NOW_MS), point="credential")
        await fail(store, WORK, ModelFailureKind.AUTH)
        remove = partial(credentials.remove, agent="", id_=WORK.id)
        assert await store.write(remove, point="credential")
        assert not await store.write(remove, point="credential")
        assert await store.read(credentials.list_all) == [ADAS]
        assert (await states(store)).cooldowns == []
