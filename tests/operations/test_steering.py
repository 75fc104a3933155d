"""A message joins the current run or waits for its end, and other messages wait meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.envelope import Outcome
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.event import StoredEvent
from retinue.domain.principal import Principal
from retinue.store.core import events
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply

OWNER, MARIA, NOOR, GUS = (person(name) for name in ("owner", "maria", "noor", "gus"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def start_busy_run(server: OperationsServer, *then: str, **kw: Any) -> tuple[str, str]:
    """Start a run whose second turn begins a second from now."""
    model = server.server.instance.model
    model.rule = None
    model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), *then)
    asked = len(model.prompts)
    sent = await server.ask(MARIA, "envelope.send", **({"to": "agent:ada", "text": "first"} | kw))
    await server.server.wait_for(lambda _: len(model.prompts) > asked, what="the model to be asked")
    return sent["envelope"], sent["session"]


async def send(server: OperationsServer, session: str, text: str, who: Principal = MARIA, **kw: Any) -> str:
    return (await server.ask(who, "envelope.send", to="agent:ada", session=session, text=text, **kw))["envelope"]


async def list_events(server: OperationsServer, session: str, kind: str, who: Principal = MARIA) -> list[StoredEvent]:
    found = await server.server.store.scan(lambda conn: events.list_next(conn, session, 0, limit=1_000, seen_by=who))
    return [piece for piece in found.events if piece.kind == kind]


async def mode(server: OperationsServer, mode: str) -> None:
    await server.ask(OWNER, "agent.set", name="ada", queue_mode=mode)


@pytest.mark.spec("A19")
@pytest.mark.parametrize("queue", ["collect", "followup", "steer", "interrupt"])
async def test_a_message_with_when_busy_steer_joins_the_current_run(server: OperationsServer, queue: str) -> None:
    await mode(server, queue)
    first, session = await start_busy_run(server, "as you wish")
    steered = await send(server, session, "make it short", when_busy="steer")
    shown = await server.ask(MARIA, "envelope.show", id=steered)
    assert (shown["status"], shown["when_busy"]) == ("pending", "steer")
    assert await list_events(server, session, "run.joined") == []

    await server.server.instance.clock.advance(1)

    assert await server.server.wait_for_answer(steered) == "as you wish" == await server.server.wait_for_answer(first)
    [joined] = await list_events(server, session, "run.joined")
    assert joined.body["envelopes"] == [steered]
    [started] = await list_events(server, session, "run.started")
    assert started.body["envelopes"] == [first], "it has no run of its own"
    prompt = str(server.server.instance.model.prompts[-1].records)
    assert prompt.index("first") < prompt.index("make it short")


@pytest.mark.spec("A19")
@pytest.mark.parametrize("queue", ["steer", "steer-backlog", "interrupt"])
async def test_a_message_with_when_busy_collect_waits_in_every_queue_mode(server: OperationsServer, queue: str) -> None:
    await mode(server, queue)
    first, session = await start_busy_run(server, "one", "two")
    later = await send(server, session, "later", when_busy="collect")
    await server.server.instance.clock.advance(1)
    assert await server.server.wait_for_answer(first) == "one"
    assert await server.server.wait_for_answer(later) == "two"
    assert await list_events(server, session, "run.joined") == []
    assert [piece.body["envelopes"] for piece in await list_events(server, session, "run.started")] == [
        [first],
        [later],
    ]


async def test_a_message_without_when_busy_follows_the_queue_mode(server: OperationsServer) -> None:
    first, session = await start_busy_run(server, "one", "two")
    plain = await send(server, session, "plain")
    steered = await send(server, session, "steered", when_busy="steer")
    await server.server.instance.clock.advance(1)
    assert [await server.server.wait_for_answer(id_) for id_ in (first, steered, plain)] == ["one", "one", "two"]
    await mode(server, "interrupt")
    running, _ = await start_busy_run(server, "about the newer", session=session)
    newer = await send(server, session, "newer")
    assert (await server.server.wait_for_outcome(running)).outcome is Outcome.CANCELLED
    assert await server.server.wait_for_answer(newer) == "about the newer"


async def test_a_steering_message_does_not_join_a_run_on_behalf_of_another_person(server: OperationsServer) -> None:
    first, session = await start_busy_run(server, "for maria", "for noor")
    await server.ask(MARIA, "session.share", session=session, person="noor")
    noors = await send(server, session, "tell me instead", NOOR, when_busy="steer")
    await server.server.instance.clock.advance(1)
    assert await server.server.wait_for_answer(first) == "for maria"
    assert await server.server.wait_for_answer(noors) == "for noor"
    assert await list_events(server, session, "run.joined") == []


async def test_when_busy_has_no_effect_in_an_idle_session_and_rejects_interrupt(server: OperationsServer) -> None:
    for word in ("steer", "collect"):
        sent = await server.ask(MARIA, "envelope.send", to="agent:ada", text="hello", when_busy=word)
        assert await server.server.wait_for_answer(sent["envelope"]) == "ok"
    with pytest.raises(Invalid):
        await server.ask(MARIA, "envelope.send", to="agent:ada", text="hello", when_busy="interrupt")


async def test_session_queued_lists_waiting_messages_in_order_and_they_can_be_cancelled(
    server: OperationsServer,
) -> None:
    first, session = await start_busy_run(server, "one", "two")
    waiting = [await send(server, session, text, when_busy="collect") for text in ("a", "b", "c")]

    async def shown(**kw: Any) -> dict[str, Any]:
        return await server.ask(MARIA, "session.queued", session=session, **kw)

    found = await shown()
    assert [(each["id"], each["position"], each["text"]) for each in found["envelopes"]] == [
        (waiting[0], 1, "a"),
        (waiting[1], 2, "b"),
        (waiting[2], 3, "c"),
    ]
    assert (found["run"]["status"], found["queue"]["mode"], found["has_more"]) == ("running", "collect", False)
    few = await shown(limit=2)
    assert len(few["envelopes"]) == 2 and few["has_more"]
    await server.ask(MARIA, "envelope.cancel", id=waiting[1])
    assert [(each["id"], each["position"]) for each in (await shown())["envelopes"]] == [
        (waiting[0], 1),
        (waiting[2], 2),
    ]
    for stranger in (NOOR, GUS):
        with pytest.raises(NotFound):
            await server.ask(stranger, "session.queued", session=session)

    await server.server.instance.clock.advance(1)
    assert await server.server.wait_for_answer(waiting[2]) == "two"
    await server.server.wait_until_idle()
    assert await server.server.wait_for_answer(first) == "one"
    empty = await shown()
    assert (empty["run"], empty["envelopes"]) == (None, [])
    server.server.instance.model.rule = lambda _: text_reply("ok")
