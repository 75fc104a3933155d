"""A conversation as a person reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.domain.errors import NotFound
from retinue.testing.local_instance import LocalInstance

OWNER, GUS = person("owner"), person("gus")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def talked(house: DeskHouse, *texts: str) -> str:
    session = ""
    for text in texts:
        sent = await house.ask(OWNER, "envelope.send", to="agent:ada", text=text)
        await house.house.wait_for_outcome(sent["envelope"])
        session = sent["session"]
    return session


def words(read: dict[str, Any]) -> list[str]:
    return [line["mail"][0]["text"] if line["mail"] else line["body"]["text"] for line in read["lines"]]


async def test_people_read_what_was_written_and_not_what_the_model_was_given(house: DeskHouse) -> None:
    session = await talked(house, "good day")
    read = await house.ask(OWNER, "session.transcript", session=session)
    assert [line["kind"] for line in read["lines"]] == ["start", "user", "assistant"]
    [mail] = read["lines"][1]["mail"]
    assert (mail["from"], mail["text"]) == ("person:owner", "good day")
    assert "## Turn Context" in read["lines"][1]["body"]["text"]
    assert not read["earlier"] and read["begins"] == 1


async def test_a_long_conversation_is_read_backwards_in_pages_that_fit_together(house: DeskHouse) -> None:
    session = await talked(house, *(f"word {n}" for n in range(6)))
    whole = await house.ask(OWNER, "session.transcript", session=session)
    newest = await house.ask(OWNER, "session.transcript", session=session, limit=5)
    assert newest["earlier"] and newest["lines"] == whole["lines"][-5:]
    before = await house.ask(OWNER, "session.transcript", session=session, before=newest["lines"][0]["seq"], limit=500)
    assert before["lines"] + newest["lines"] == whole["lines"] and not before["earlier"]
    after = await house.ask(OWNER, "session.transcript", session=session, after=whole["lines"][-3]["seq"])
    assert after["lines"] == whole["lines"][-2:] and not after["earlier"]


async def test_what_was_before_a_fresh_context_is_read_only_by_who_asks_for_it(house: DeskHouse) -> None:
    session = await talked(house, "before")
    await house.ask(OWNER, "session.reset", session=session)
    await talked(house, "after")
    now = await house.ask(OWNER, "session.transcript", session=session)
    assert "before" not in words(now) and "after" in words(now)
    assert now["earlier"] and now["begins"] == now["lines"][0]["seq"]
    then = await house.ask(OWNER, "session.transcript", session=session, before=now["begins"])
    assert "before" in words(then)


async def test_a_conversation_that_is_not_seen_is_not_read(house: DeskHouse) -> None:
    session = await talked(house, "mine")
    with pytest.raises(NotFound):
        await house.ask(GUS, "session.transcript", session=session)
