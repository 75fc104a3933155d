"""What somebody does who was asked, as whoever watches the call that waits sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import let_in, letters, plays
from flows.tools_instance import HandsHouse, Visit, hands_house
from operations.operations_instance import person

from retinue.api.event_feed import EventFeed, EventFilter, FeedMessage
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.event import NestedActivity, NestedActivityKind
from retinue.domain.ids import SessionId
from retinue.domain.person import Role
from retinue.domain.principal import Principal
from retinue.domain.record import Reply
from retinue.domain.trust import Trust
from retinue.engine.event_broadcast import NESTED_CHARS_MAX
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until


def ask(**more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId="bo", content="Count the chairs.", **more)


@asynccontextmanager
async def watching(
    house: HandsHouse, who: Principal, session: SessionId | None, *, mask: EventFilter | None = None
) -> AsyncGenerator[list[FeedMessage]]:
    """All that one is told meanwhile."""
    feed = EventFeed(house.house.services, who)
    heard: list[FeedMessage] = list(await feed.open(None))
    if session is None:
        feed.follow_all(mask or EventFilter())
    else:
        feed.follow(session, mask or EventFilter())

    async def listen() -> None:
        while not feed.is_closed:
            heard.extend(await feed.next_messages() or [])

    task = asyncio.create_task(listen())
    try:
        yield heard
        last = FeedMessage("last", {})
        feed.queue_reply(last)  # told in its turn: after all that has happened
        await wait_until(lambda: last in heard, "all is told")
        heard.remove(last)
    finally:
        feed.stop()
        await task
        feed.close()


def nested(heard: list[FeedMessage]) -> list[NestedActivity]:
    return [event.data for event in heard if event.name == "nested"]


def words(heard: list[FeedMessage]) -> str:
    return "".join(piece.text for piece in nested(heard) if piece.kind is NestedActivityKind.TEXT)


@pytest.mark.spec("A32")
async def test_whoever_watches_a_call_that_waits_sees_what_is_said_and_called_for_it(tmp_path: Path) -> None:
    async with hands_house(tmp_path, tools=[Visit(says="secret shelf", trust=Trust.PRIVATE)]) as house:
        session = await house.turn("Hello.", "Hello.")
        house.model.rule = plays(
            {
                "Ask bo.": [ask(), "Bo says: three."],
                "Count the chairs.": [
                    tool_call_reply("visit", page="shop"),
                    text_reply("Three chairs it is.", thinking="private"),
                ],
            }
        )
        async with watching(house, person("owner"), session) as heard:
            await house.turn("Ask bo.")
        (call,) = [
            record.body.calls[0].id
            for record in await house.records(session)
            if isinstance(record.body, Reply) and record.body.calls
        ]
        assert {(piece.session, piece.call, piece.agent) for piece in nested(heard)} == {(session, call, "bo")}
        assert words(heard) == "Three chairs it is."
        assert [piece.text for piece in nested(heard) if piece.kind is NestedActivityKind.CALL] == ["visit"]
        told = str(nested(heard))
        assert "private" not in told, "what it thought stays with it"
        assert "secret shelf" not in told, "and what its tools read"
        names = [event.name for event in heard]
        closed = next(
            i
            for i, event in enumerate(heard)
            if event.name == "news" and event.data["news"] == "step.closed" and "tool" in str(event.data.get("record"))
        )
        assert max(i for i, name in enumerate(names) if name == "nested") < closed, "while it waits, and no longer"
        assert house.house.services.event_broadcast.nested_runs() == []


@pytest.mark.spec("A32")
async def test_one_who_comes_later_is_told_what_was_done_so_far(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        session = await house.turn("Hello.", "Hello.")
        looked = asyncio.Event()
        slow = [tool_call_reply("append_line", text="x"), text_reply("Three.", once=looked.wait)]
        house.model.rule = plays({"Ask bo.": [ask(), "Three."], "Count the chairs.": slow})
        await house.post("Ask bo.")
        await wait_until(
            lambda: any(within.calls for within in house.house.services.event_broadcast.nested_runs()),
            "bo calls a tool",
        )
        feed = EventFeed(house.house.services, person("owner"))
        feed.follow(session)
        (hello,) = await feed.open(None)
        (within,) = hello.data["nested"]
        assert (within.session, within.agent, within.calls) == (session, "bo", ["append_line"])
        feed.close()
        looked.set()
        await house.rest()


@pytest.mark.spec("A78.stream")
async def test_whoever_follows_one_that_is_asked_without_waiting_sees_its_words_as_in_any_run(tmp_path: Path) -> None:
    async with hands_house(tmp_path, tools=[Visit(says="a shelf", trust=Trust.PRIVATE)]) as house:
        house.model.rule = plays(
            {
                "Ask bo.": [ask(mode="async", notify="off"), "Asked."] * 2,
                "Count the chairs.": ["One chair.", tool_call_reply("visit", page="shop"), "Three chairs."],
                "Ask yourself.": [tool_call_reply("visit", page="shop"), "Three chairs."],
            }
        )
        await house.turn("Ask bo.")
        [theirs] = {each.session for each in await letters(house, EnvelopeKind.DELEGATION)}
        assert theirs is not None
        async with watching(house, person("owner"), theirs) as heard:
            await house.turn("Ask bo.")
        plain = await house.turn("Hello.", "Hello.", origin="person:owner/plain")
        async with watching(house, person("owner"), plain) as usual:
            await house.turn("Ask yourself.", origin="person:owner/plain")
        for each in (heard, usual):
            assert "".join(event.data.text for event in each if event.name == "delta") == "Three chairs."
        assert _kinds(heard) == _kinds(usual)


def _kinds(heard: list[FeedMessage]) -> list[str]:
    """What was told of runs and their steps, in order; mail is told of as it is sent and read."""
    found = [event.data["news"] for event in heard if event.name == "news"]
    return [kind for kind in found if kind.startswith(("run.", "step."))]


async def test_only_who_sees_the_conversation_is_told(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        await let_in(house, maria=Role.MEMBER, noor=Role.MEMBER)
        session = await house.turn("Hello.", "Hello.", sender="person:maria")
        house.model.rule = plays({"Ask bo.": [ask(), "Three."], "Count the chairs.": ["Three chairs."]})
        async with (
            watching(house, person("maria"), session) as hers,
            watching(house, person("noor"), None) as others,
            watching(house, person("maria"), session, mask=EventFilter(events=frozenset({"news"}))) as masked,
        ):
            await house.turn("Ask bo.", sender="person:maria")
        assert words(hers) == "Three chairs."
        assert nested(others) == []
        assert nested(masked) == []
        assert not any(event.name == "delta" and event.data.session != session for event in hers)


async def test_a_call_that_does_not_wait_shows_nothing_and_what_is_shown_is_bounded(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        session = await house.turn("Hello.", "Hello.")
        house.model.chunk_chars = 1_000
        long = "x" * (NESTED_CHARS_MAX + 5_000)
        house.model.rule = plays(
            {
                "Ask bo.": [ask(mode="async"), "Asked."],
                "Wait for bo.": [ask(), "Done."],
                "Count the chairs.": ["Three chairs.", long],
                "Three chairs.": ["Three."],
            }
        )
        async with watching(house, person("owner"), session) as heard:
            await house.turn("Ask bo.")
            assert nested(heard) == []
            await house.turn("Wait for bo.")
        assert 0 < len(words(heard)) <= NESTED_CHARS_MAX
