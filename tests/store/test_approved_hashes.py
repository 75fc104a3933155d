"""What was found good stays found good, as it was, over restarts and on every store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from stores import Place, place_of

from retinue.store.agents import approved_hashes

KINDS = ["sqlite", "postgres"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


def good(name: str, hash_: str, *, kind: str = "skill", content: str = "words", by: str = "person:owner", at: int = 5):
    return partial(approved_hashes.upsert, kind=kind, name=name, hash_=hash_, content=content, decided_by=by, at_ms=at)


async def test_what_was_found_good_is_known_after_a_restart(place: Place) -> None:
    async with place.open() as store:
        await store.write(good("house/weather", "a" * 64, content="look out of the window ☂"), point="skill")
    async with place.open() as store:
        pin = await store.read(partial(approved_hashes.find, kind="skill", name="house/weather"))
        assert pin is not None
        assert (pin.hash, pin.content, pin.decided_by) == ("a" * 64, "look out of the window ☂", "person:owner")
        assert pin.at.timestamp() == 0.005


async def test_found_good_again_takes_the_place_of_what_was_before(place: Place) -> None:
    async with place.open() as store:
        await store.write(good("house/weather", "a" * 64), point="skill")
        await store.write(good("house/weather", "b" * 64, content="other words", by="person:noor", at=9), point="skill")
        [pin] = await store.read(partial(approved_hashes.list_all, kind="skill"))
        assert (pin.hash, pin.content, pin.decided_by) == ("b" * 64, "other words", "person:noor")


async def test_kinds_do_not_know_each_others_names(place: Place) -> None:
    async with place.open() as store:
        await store.write(good("same", "a" * 64), point="skill")
        await store.write(good("same", "b" * 64, kind="mcp"), point="skill")
        assert await store.read(partial(approved_hashes.get_hashes, kind="skill")) == {"same": "a" * 64}
        assert await store.write(partial(approved_hashes.remove, kind="skill", name="same"), point="skill")
        assert not await store.write(partial(approved_hashes.remove, kind="skill", name="same"), point="skill")
        assert await store.read(partial(approved_hashes.get_hashes, kind="skill")) == {}
        assert await store.read(partial(approved_hashes.get_hashes, kind="mcp")) == {"same": "b" * 64}


async def test_a_content_without_end_is_cut_and_its_hash_stays(place: Place) -> None:
    async with place.open() as store:
        await store.write(good("big", "c" * 64, content="x" * (approved_hashes.CONTENT_CHARS_MAX + 10)), point="skill")
        pin = await store.read(partial(approved_hashes.find, kind="skill", name="big"))
        assert pin is not None and len(pin.content) == approved_hashes.CONTENT_CHARS_MAX and pin.hash == "c" * 64
