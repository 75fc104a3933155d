"""One message that joins the run it finds, or waits for its end, and what waits meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.domain.envelope import Outcome
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.event import StoredEvent
from retinue.domain.principal import Principal
from retinue.store.core import events
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply

OWNER, MARIA, NOOR, GUS = (person(name) for name in ("owner", "maria", "noor", "gus"))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def busy(house: DeskHouse, *then: str, **kw: Any) -> tuple[str, str]:
    """A run that has a second turn to come, a second from now."""
    model = house.house.instance.model
    model.rule = None
    model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), *then)
    asked = len(model.prompts)
    sent = await house.ask(MARIA, "envelope.send", **({"to": "agent:ada", "text": "first"} | kw))
    await house.house.wait_for(lambda _: len(model.prompts) > asked, what="the model to be asked")
    return sent["envelope"], sent["session"]


async def send(house: DeskHouse, session: str, text: str, who: Principal = MARIA, **kw: Any) -> str:
    return (await house.ask(who, "envelope.send", to="agent:ada", session=session, text=text, **kw))["envelope"]


async def told(house: DeskHouse, session: str, kind: str, who: Principal = MARIA) -> list[StoredEvent]:
    found = await house.house.store.scan(lambda conn: events.list_next(conn, session, 0, limit=1_000, seen_by=who))
    return [piece for piece in found.events if piece.kind == kind]


async def mode(house: DeskHouse, mode: str) -> None:
    await house.ask(OWNER, "agent.set", name="ada", queue_mode=mode)


@pytest.mark.spec("A19")
@pytest.mark.parametrize("queue", ["collect", "followup", "steer", "interrupt"])
async def test_a_message_that_steers_joins_the_run_and_that_is_acknowledged(house: DeskHouse, queue: str) -> None:
    await mode(house, queue)
    first, session = await busy(house, "as you wish")
    steered = await send(house, session, "make it short", when_busy="steer")
    shown = await house.ask(MARIA, "envelope.show", id=steered)
    assert (shown["status"], shown["when-busy"]) == ("pending", "steer")
    assert await told(house, session, "run.joined") == []

    await house.house.instance.clock.advance(1)

    assert await house.house.wait_for_answer(steered) == "as you wish" == await house.house.wait_for_answer(first)
    [joined] = await told(house, session, "run.joined")
    assert joined.body["envelopes"] == [steered]
    [started] = await told(house, session, "run.started")
    assert started.body["envelopes"] == [first], "it has no run of its own"
    prompt = str(house.house.instance.model.prompts[-1].records)
    assert prompt.index("first") < prompt.index("make it short")


@pytest.mark.spec("A19")
@pytest.mark.parametrize("queue", ["steer", "steer-backlog", "interrupt"])
async def test_a_message_that_waits_does_so_whatever_the_queue_does_with_others(house: DeskHouse, queue: str) -> None:
    await mode(house, queue)
    first, session = await busy(house, "one", "two")
    later = await send(house, session, "later", when_busy="collect")
    await house.house.instance.clock.advance(1)
    assert await house.house.wait_for_answer(first) == "one"
    assert await house.house.wait_for_answer(later) == "two"
    assert await told(house, session, "run.joined") == []
    assert [piece.body["envelopes"] for piece in await told(house, session, "run.started")] == [[first], [later]]


async def test_without_a_word_the_queue_does_as_it_did(house: DeskHouse) -> None:
    first, session = await busy(house, "one", "two")
    plain = await send(house, session, "plain")
    steered = await send(house, session, "steered", when_busy="steer")
    await house.house.instance.clock.advance(1)
    assert [await house.house.wait_for_answer(id_) for id_ in (first, steered, plain)] == ["one", "one", "two"]
    await mode(house, "interrupt")
    running, _ = await busy(house, "about the newer", session=session)
    newer = await send(house, session, "newer")
    assert (await house.house.wait_for_outcome(running)).outcome is Outcome.CANCELLED
    assert await house.house.wait_for_answer(newer) == "about the newer"


async def test_a_word_to_steer_opens_no_run_of_somebody_elses(house: DeskHouse) -> None:
    first, session = await busy(house, "for maria", "for noor")
    await house.ask(MARIA, "session.share", session=session, person="noor")
    noors = await send(house, session, "tell me instead", NOOR, when_busy="steer")
    await house.house.instance.clock.advance(1)
    assert await house.house.wait_for_answer(first) == "for maria"
    assert await house.house.wait_for_answer(noors) == "for noor"
    assert await told(house, session, "run.joined") == []


async def test_a_message_to_an_idle_session_is_worked_on_whatever_it_says(house: DeskHouse) -> None:
    for word in ("steer", "collect"):
        sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text="hello", when_busy=word)
        assert await house.house.wait_for_answer(sent["envelope"]) == "ok"
    with pytest.raises(Invalid):
        await house.ask(MARIA, "envelope.send", to="agent:ada", text="hello", when_busy="interrupt")


async def test_what_waits_is_shown_in_its_order_and_can_be_taken_back(house: DeskHouse) -> None:
    first, session = await busy(house, "one", "two")
    waiting = [await send(house, session, text, when_busy="collect") for text in ("a", "b", "c")]

    async def shown(**kw: Any) -> dict[str, Any]:
        return await house.ask(MARIA, "session.waiting", session=session, **kw)

    found = await shown()
    assert [(each["id"], each["position"], each["text"]) for each in found["envelopes"]] == [
        (waiting[0], 1, "a"),
        (waiting[1], 2, "b"),
        (waiting[2], 3, "c"),
    ]
    assert (found["run"]["status"], found["queue"]["mode"], found["more"]) == ("running", "collect", False)
    few = await shown(limit=2)
    assert len(few["envelopes"]) == 2 and few["more"]
    await house.ask(MARIA, "envelope.cancel", id=waiting[1])
    assert [(each["id"], each["position"]) for each in (await shown())["envelopes"]] == [
        (waiting[0], 1),
        (waiting[2], 2),
    ]
    for stranger in (NOOR, GUS):
        with pytest.raises(NotFound):
            await house.ask(stranger, "session.waiting", session=session)

    await house.house.instance.clock.advance(1)
    assert await house.house.wait_for_answer(waiting[2]) == "two"
    await house.house.wait_until_idle()
    assert await house.house.wait_for_answer(first) == "one"
    empty = await shown()
    assert (empty["run"], empty["envelopes"]) == (None, [])
    house.house.instance.model.rule = lambda _: text_reply("ok")
