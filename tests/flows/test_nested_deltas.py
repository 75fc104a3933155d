"""The run of an asked agent, as shown to people who watch the waiting tool call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import add_people, list_envelopes_of_kind, scripted_rule
from flows.tools_instance import ScriptedServer, Visit, open_scripted_server
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


def delegation_call(**more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId="bo", content="Count the chairs.", **more)


@asynccontextmanager
async def watch_feed(
    server: ScriptedServer, who: Principal, session: SessionId | None, *, mask: EventFilter | None = None
) -> AsyncGenerator[list[FeedMessage]]:
    """Everything that one subscriber receives meanwhile."""
    feed = EventFeed(server.server.services, who)
    messages: list[FeedMessage] = list(await feed.open(None))
    if session is None:
        feed.follow_all(mask or EventFilter())
    else:
        feed.follow(session, mask or EventFilter())

    async def listen() -> None:
        while not feed.is_closed:
            messages.extend(await feed.next_messages() or [])

    task = asyncio.create_task(listen())
    try:
        yield messages
        last = FeedMessage("last", {})
        feed.queue_reply(last)  # in order: after everything before it
        await wait_until(lambda: last in messages, "all frames were sent")
        messages.remove(last)
    finally:
        feed.stop()
        await task
        feed.close()


def list_nested(messages: list[FeedMessage]) -> list[NestedActivity]:
    return [event.data for event in messages if event.name == "nested"]


def nested_text(messages: list[FeedMessage]) -> str:
    return "".join(piece.text for piece in list_nested(messages) if piece.kind is NestedActivityKind.TEXT)


@pytest.mark.spec("A32")
async def test_a_watcher_of_a_waiting_call_sees_nested_text_and_tool_names_of_the_other_agent(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, tools=[Visit(says="secret shed", trust=Trust.PRIVATE)]) as server:
        session = await server.turn("Hello.", "Hello.")
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [delegation_call(), "Bo says: three."],
                "Count the chairs.": [
                    tool_call_reply("visit", page="shop"),
                    text_reply("Three chairs it is.", thinking="private"),
                ],
            }
        )
        async with watch_feed(server, person("owner"), session) as messages:
            await server.turn("Ask bo.")
        (call,) = [
            record.body.calls[0].id
            for record in await server.records(session)
            if isinstance(record.body, Reply) and record.body.calls
        ]
        assert {(piece.session, piece.call, piece.agent) for piece in list_nested(messages)} == {(session, call, "bo")}
        assert nested_text(messages) == "Three chairs it is."
        assert [piece.text for piece in list_nested(messages) if piece.kind is NestedActivityKind.CALL] == ["visit"]
        nested = str(list_nested(messages))
        assert "private" not in nested, "its thinking is not shown"
        assert "secret shed" not in nested, "its tool results are not shown"
        names = [event.name for event in messages]
        closed = next(
            i
            for i, event in enumerate(messages)
            if event.name == "event"
            and event.data["event"] == "step.closed"
            and "tool" in str(event.data.get("record"))
        )
        assert max(i for i, name in enumerate(names) if name == "nested") < closed, "only while the call waits"
        assert server.server.services.event_broadcast.nested_runs() == []


@pytest.mark.spec("A32")
async def test_a_late_watcher_gets_the_nested_activity_so_far(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        session = await server.turn("Hello.", "Hello.")
        looked = asyncio.Event()
        slow = [tool_call_reply("append_line", text="x"), text_reply("Three.", once=looked.wait)]
        server.model.rule = scripted_rule({"Ask bo.": [delegation_call(), "Three."], "Count the chairs.": slow})
        await server.post("Ask bo.")
        await wait_until(
            lambda: any(within.calls for within in server.server.services.event_broadcast.nested_runs()),
            "bo calls a tool",
        )
        feed = EventFeed(server.server.services, person("owner"))
        feed.follow(session)
        (hello,) = await feed.open(None)
        (within,) = hello.data["nested"]
        assert (within.session, within.agent, within.calls) == (session, "bo", ["append_line"])
        feed.close()
        looked.set()
        await server.rest()


@pytest.mark.spec("A78.stream")
async def test_a_watcher_of_an_async_delegation_sees_the_same_deltas_and_events_as_for_any_run(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, tools=[Visit(says="a shed", trust=Trust.PRIVATE)]) as server:
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [delegation_call(mode="async", notify="off"), "Asked."] * 2,
                "Count the chairs.": ["One chair.", tool_call_reply("visit", page="shop"), "Three chairs."],
                "Ask yourself.": [tool_call_reply("visit", page="shop"), "Three chairs."],
            }
        )
        await server.turn("Ask bo.")
        [theirs] = {each.session for each in await list_envelopes_of_kind(server, EnvelopeKind.DELEGATION)}
        assert theirs is not None
        async with watch_feed(server, person("owner"), theirs) as messages:
            await server.turn("Ask bo.")
        plain = await server.turn("Hello.", "Hello.", origin="person:owner/plain")
        async with watch_feed(server, person("owner"), plain) as usual:
            await server.turn("Ask yourself.", origin="person:owner/plain")
        for each in (messages, usual):
            assert "".join(event.data.text for event in each if event.name == "delta") == "Three chairs."
        assert _run_event_kinds(messages) == _run_event_kinds(usual)


def _run_event_kinds(messages: list[FeedMessage]) -> list[str]:
    """The kinds of events about runs and their steps, in order, without events about envelopes."""
    found = [event.data["event"] for event in messages if event.name == "event"]
    return [kind for kind in found if kind.startswith(("run.", "step."))]


async def test_nested_activity_is_sent_only_to_people_who_see_the_session(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        await add_people(server, maria=Role.MEMBER, noor=Role.MEMBER)
        session = await server.turn("Hello.", "Hello.", sender="person:maria")
        server.model.rule = scripted_rule(
            {"Ask bo.": [delegation_call(), "Three."], "Count the chairs.": ["Three chairs."]}
        )
        async with (
            watch_feed(server, person("maria"), session) as hers,
            watch_feed(server, person("noor"), None) as others,
            watch_feed(server, person("maria"), session, mask=EventFilter(types=frozenset({"event"}))) as masked,
        ):
            await server.turn("Ask bo.", sender="person:maria")
        assert nested_text(hers) == "Three chairs."
        assert list_nested(others) == []
        assert list_nested(masked) == []
        assert not any(event.name == "delta" and event.data.session != session for event in hers)


async def test_an_async_call_shows_no_nested_activity_and_the_shown_text_is_limited(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        session = await server.turn("Hello.", "Hello.")
        server.model.chunk_chars = 1_000
        long = "x" * (NESTED_CHARS_MAX + 5_000)
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [delegation_call(mode="async"), "Asked."],
                "Wait for bo.": [delegation_call(), "Done."],
                "Count the chairs.": ["Three chairs.", long],
                "Three chairs.": ["Three."],
            }
        )
        async with watch_feed(server, person("owner"), session) as messages:
            await server.turn("Ask bo.")
            assert list_nested(messages) == []
            await server.turn("Wait for bo.")
        assert 0 < len(nested_text(messages)) <= NESTED_CHARS_MAX
