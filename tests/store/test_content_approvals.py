"""Approved hashes stay approved and unchanged, over restarts and on every store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from stores import StoreLocation, create_store_location

from retinue.store.agents import content_approvals

KINDS = ["sqlite", "postgres"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return create_store_location(request.param, request, tmp_path)


def approve(
    name: str, hash_: str, *, kind: str = "skill", content: str = "words", by: str = "person:owner", at: int = 5
):
    return partial(
        content_approvals.upsert, kind=kind, name=name, hash_=hash_, content=content, decided_by=by, at_ms=at
    )


async def test_the_approved_hash_of_a_content_approval_survives_a_restart(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(approve("instance/weather", "a" * 64, content="look out of the window ☂"), point="skill")
    async with place.open() as store:
        pin = await store.read(partial(content_approvals.find, kind="skill", name="instance/weather"))
        assert pin is not None
        assert (pin.hash, pin.content, pin.decided_by) == ("a" * 64, "look out of the window ☂", "person:owner")
        assert pin.at.timestamp() == 0.005


async def test_a_new_content_approval_replaces_the_approved_hash(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(approve("instance/weather", "a" * 64), point="skill")
        await store.write(
            approve("instance/weather", "b" * 64, content="other words", by="person:noor", at=9), point="skill"
        )
        [pin] = await store.read(partial(content_approvals.list_all, kind="skill"))
        assert (pin.hash, pin.content, pin.decided_by) == ("b" * 64, "other words", "person:noor")


async def test_content_approvals_of_different_kinds_with_the_same_name_are_separate(place: StoreLocation) -> None:
    async with place.open() as store:
        await store.write(approve("same", "a" * 64), point="skill")
        await store.write(approve("same", "b" * 64, kind="mcp"), point="skill")
        assert await store.read(partial(content_approvals.get_hashes, kind="skill")) == {"same": "a" * 64}
        assert await store.write(partial(content_approvals.remove, kind="skill", name="same"), point="skill")
        assert not await store.write(partial(content_approvals.remove, kind="skill", name="same"), point="skill")
        assert await store.read(partial(content_approvals.get_hashes, kind="skill")) == {}
        assert await store.read(partial(content_approvals.get_hashes, kind="mcp")) == {"same": "b" * 64}


async def test_a_content_approval_stores_a_long_content_truncated_with_the_hash_of_the_full_content(
    place: StoreLocation,
) -> None:
    async with place.open() as store:
        await store.write(
            approve("big", "c" * 64, content="x" * (content_approvals.CONTENT_CHARS_MAX + 10)), point="skill"
        )
        pin = await store.read(partial(content_approvals.find, kind="skill", name="big"))
        assert pin is not None and len(pin.content) == content_approvals.CONTENT_CHARS_MAX and pin.hash == "c" * 64
