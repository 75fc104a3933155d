"""Credentials in a real store: cooldowns survive a restart, and no key is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from stores import StoreLocation

from retinue.domain.credential import Credential, CredentialKind
from retinue.domain.model import ModelFailureKind
from retinue.domain.times import to_ms
from retinue.policy.limits import cooldowns
from retinue.policy.limits.cooldowns import CredentialCooldowns, apply_failure
from retinue.store.agents import credentials
from retinue.store.core.connection import Store

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW_MS = to_ms(NOW)
WORK_CREDENTIAL = Credential(id="acme:work", provider="acme", source="env:ACME_KEY")
SPARE_CREDENTIAL = Credential(
    id="acme:spare", provider="acme", source="file:/k/spare", kind=CredentialKind.TOKEN, region="eu"
)
ADAS_CREDENTIAL = Credential(id="acme:work", provider="acme", source="file:/k/ada", agent="ada")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    kind: str = request.param
    return StoreLocation(
        kind, request.getfixturevalue("postgres_url") if kind == "postgres" else str(tmp_path / "retinue.db")
    )


@asynccontextmanager
async def open_store_at(place: StoreLocation) -> AsyncGenerator[Store]:
    async with place.open() as store:
        yield store


async def record_failure(
    store: Store, credential: Credential, failure: ModelFailureKind, *, model: str = "big", at: datetime = NOW
) -> None:
    mark = cooldowns.build_failure_record(credential, model, failure, at=at)
    assert mark is not None
    await store.write(partial(credentials.mark_failed, mark=mark, judge=apply_failure), point="credential")


async def load_cooldowns(store: Store, *, at: datetime = NOW) -> CredentialCooldowns:
    return CredentialCooldowns(await store.read(partial(credentials.list_cooldowns, now_ms=to_ms(at))))


async def add(store: Store, *new: Credential) -> None:
    def body(conn: sa.Connection) -> None:
        assert all(credentials.add(conn, each, at_ms=NOW_MS) for each in new)

    await store.write(body, point="credential")


@pytest.mark.spec("C106")
async def test_credentials_and_their_cooldowns_survive_a_restart(place: StoreLocation) -> None:
    async with open_store_at(place) as store:
        await add(store, WORK_CREDENTIAL, SPARE_CREDENTIAL, ADAS_CREDENTIAL)
        await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.QUOTA)
        await store.write(partial(credentials.mark_used, credential=SPARE_CREDENTIAL, at_ms=NOW_MS), point="credential")
    async with open_store_at(place) as store:
        found = {each.row_key: each for each in await store.read(credentials.list_all)}
        assert found[WORK_CREDENTIAL.row_key] == WORK_CREDENTIAL and found[ADAS_CREDENTIAL.row_key] == ADAS_CREDENTIAL
        assert found[SPARE_CREDENTIAL.row_key].used_at == NOW
        assert (found[SPARE_CREDENTIAL.row_key].kind, found[SPARE_CREDENTIAL.row_key].region) == (
            CredentialKind.TOKEN,
            "eu",
        )
        [cooling] = (await load_cooldowns(store)).list_for(WORK_CREDENTIAL)
        assert (cooling.failure, cooling.errors, cooling.until) == (ModelFailureKind.QUOTA, 1, NOW + timedelta(hours=5))
        assert (await load_cooldowns(store)).find_active(
            ADAS_CREDENTIAL, "big", NOW
        ) is None  # the same id, with another owner


@pytest.mark.spec("C37", "C38")
async def test_the_cooldowns_of_a_credential_grow_across_restarts_and_end_with_a_success(place: StoreLocation) -> None:
    at = NOW
    for minutes in (1, 5, 25, 60):
        async with open_store_at(place) as store:
            await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.RATE_LIMIT, at=at)
            held = (await load_cooldowns(store, at=at)).find_active(WORK_CREDENTIAL, "big", at)
            assert held is not None and held.until - at == timedelta(minutes=minutes)
            at = held.until
    async with open_store_at(place) as store:
        await store.write(
            partial(credentials.mark_used, credential=WORK_CREDENTIAL, at_ms=to_ms(at), model="big"), point="credential"
        )
        assert (await load_cooldowns(store, at=at)).cooldowns == []


@pytest.mark.spec("C38")
async def test_a_model_call_started_before_a_failure_does_not_end_the_cooldown_of_the_credential(
    place: StoreLocation,
) -> None:
    """Regression: a concurrent success cleared a cooldown that had just been written."""
    async with open_store_at(place) as store:
        await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.RATE_LIMIT)
        slow = partial(
            credentials.mark_used,
            credential=WORK_CREDENTIAL,
            at_ms=NOW_MS + 5_000,
            model="big",
            asked_ms=NOW_MS - 5_000,
        )
        await store.write(slow, point="credential")
        assert (await load_cooldowns(store)).find_active(WORK_CREDENTIAL, "big", NOW) is not None
        [kept] = await store.read(credentials.list_all)
        assert kept.used_at == NOW + timedelta(seconds=5)


async def test_a_success_with_one_model_keeps_the_cooldown_of_the_credential_for_another_model(
    place: StoreLocation,
) -> None:
    async with open_store_at(place) as store:
        await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.RATE_LIMIT, model="big")
        await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.RATE_LIMIT, model="small")
        await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.AUTH)
        await store.write(
            partial(credentials.mark_used, credential=WORK_CREDENTIAL, at_ms=NOW_MS, model="small"), point="credential"
        )
        assert [each.model for each in (await load_cooldowns(store)).cooldowns] == ["big"]
        await store.write(partial(credentials.mark_used, credential=WORK_CREDENTIAL, at_ms=NOW_MS), point="credential")
        assert (await load_cooldowns(store)).cooldowns == []


async def test_the_cooldowns_of_a_credential_are_cleared_for_one_model_or_for_all(place: StoreLocation) -> None:
    async with open_store_at(place) as store:
        for model in ("big", "small"):
            await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.OVERLOADED, model=model)
            await record_failure(store, SPARE_CREDENTIAL, ModelFailureKind.OVERLOADED, model=model)

        async def clear(model: str | None) -> int:
            return await store.write(
                partial(credentials.clear_cooldowns, agent="", id_=WORK_CREDENTIAL.id, model=model), point="credential"
            )

        assert await clear("big") == 1
        assert await clear(None) == 1
        assert await clear(None) == 0
        assert len((await load_cooldowns(store)).list_for(SPARE_CREDENTIAL)) == 2


async def test_cooldowns_older_than_a_day_are_not_listed(place: StoreLocation) -> None:
    async with open_store_at(place) as store:
        await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.RATE_LIMIT)
        assert len((await load_cooldowns(store, at=NOW + timedelta(hours=24))).cooldowns) == 1
        assert len((await load_cooldowns(store, at=NOW + timedelta(hours=25))).cooldowns) == 0


async def test_a_credential_order_includes_discovered_credentials_and_can_be_reset(place: StoreLocation) -> None:
    found = Credential(id="acme:env", provider="acme", source="env:ACME_API_KEY")

    async def order(*wanted: Credential) -> dict[str, int | None]:
        await store.write(
            partial(credentials.set_order, agent="", provider="acme", order=wanted, at_ms=NOW_MS), point="credential"
        )
        return {each.id: each.position for each in await store.read(credentials.list_all) if not each.agent}

    async with open_store_at(place) as store:
        await add(store, WORK_CREDENTIAL, SPARE_CREDENTIAL, ADAS_CREDENTIAL)
        assert await order(found, WORK_CREDENTIAL) == {"acme:env": 0, "acme:work": 1, "acme:spare": None}
        assert await order(SPARE_CREDENTIAL) == {"acme:env": None, "acme:work": None, "acme:spare": 0}
        assert await order() == {"acme:env": None, "acme:work": None, "acme:spare": None}


async def test_an_existing_credential_is_not_overwritten_and_removal_deletes_its_cooldowns(
    place: StoreLocation,
) -> None:
    async with open_store_at(place) as store:
        await add(store, WORK_CREDENTIAL, ADAS_CREDENTIAL)
        other = Credential(id="acme:work", provider="acme", source="env:OTHER")
        assert not await store.write(partial(credentials.add, credential=other, at_ms=NOW_MS), point="credential")
        await record_failure(store, WORK_CREDENTIAL, ModelFailureKind.AUTH)
        remove = partial(credentials.remove, agent="", id_=WORK_CREDENTIAL.id)
        assert await store.write(remove, point="credential")
        assert not await store.write(remove, point="credential")
        assert await store.read(credentials.list_all) == [ADAS_CREDENTIAL]
        assert (await load_cooldowns(store)).cooldowns == []
