"""Work that nobody waits for: what the call says, and the one letter that tells what came of it."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import letters, outcome, plays, said_to, sums_hold
from flows.tools_instance import ADA, BO, HandsHouse, hands_house

from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.envelope import Envelope, EnvelopeKind, Outcome
from retinue.domain.event import EventKind
from retinue.domain.record import Reply
from retinue.domain.structs import replace
from retinue.store.core import events
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply

CY = Agent(name="cy", model="scripted")


def ask(content: str = "Count the chairs.", **more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId="bo", content=content, mode="async", **more)


async def told(house: HandsHouse, session: str, nth: int = -1) -> dict[str, Any]:
    return json.loads((await house.results(session))[nth].output)


async def answers(house: HandsHouse, session: str) -> list[Envelope]:
    """What others have answered into a session of ada's."""
    return [mail for mail in await house.mail(f"agent:ada/{session}") if mail.kind is EnvelopeKind.ANSWER]


async def turns_of(house: HandsHouse, session: str | None) -> int:
    """How many runs there were in a session."""
    found = await house.house.store.scan(partial(events.list_next, session=session, cursor=0, limit=10_000))
    return sum(piece.kind is EventKind.RUN_STARTED for piece in found.events)


@pytest.mark.spec("A26", "A78.result", "A78.kept")
async def test_the_call_comes_back_at_once_and_the_answer_is_one_letter_and_one_turn(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {
                "Ask bo.": [ask(), "I asked bo."],
                "Count the chairs.": [text_reply("Three chairs.", once=house.once_told("I asked bo."))],
                "Three chairs.": ["Bo says: three."],
            }
        )
        session = await house.turn("Ask bo.")
        said = await told(house, session)
        (letter,) = await letters(house, EnvelopeKind.DELEGATION)
        assert {key: said[key] for key in ("mode", "status", "agentId", "sessionId", "created", "responseId")} == {
            "mode": "async",
            "status": "started",
            "agentId": "bo",
            "sessionId": letter.session,
            "created": True,
            "responseId": letter.id,
        }
        assert "sessionName" in said
        assert "response" not in said
        assert await turns_of(house, session) == 2, "the one that asked, and the one that read the answer"
        assert await said_to(house) == ["I asked bo.", "Bo says: three."]
        # Whoever looks at the other conversation sees it as any other.
        kept = [
            record.body.text for record in await house.records(letter.session or "") if isinstance(record.body, Reply)
        ]
        assert kept == ["Three chairs."]
        assert await turns_of(house, letter.session) == 1
        await sums_hold(house)


@pytest.mark.spec("A26")
async def test_the_answer_is_one_turn_also_when_the_house_was_closed_before_it_was_read(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {"Ask bo.": [ask(), "I asked bo."], "Count the chairs.": [text_reply("Three.", after_s=3600)]}
        )
        receipt = await house.post("Ask bo.")
        await house.once_read("Count the chairs.")()
        await house.house.engine.stop(drain_s=0)
    async with hands_house(tmp_path) as house:
        house.model.rule = plays({"Count the chairs.": ["Three chairs."], "Three chairs.": ["Bo says: three."]})
        await house.rest()
        assert await turns_of(house, receipt.session) == 2
        assert (await said_to(house))[-1] == "Bo says: three."
        await sums_hold(house)


@pytest.mark.spec("A78.kept", "A78.notify_off")
async def test_with_notify_off_the_answer_stays_where_it_was_given(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {"Ask bo.": [ask(notify="off"), "I asked bo."], "Count the chairs.": ["Three chairs."]}
        )
        session = await house.turn("Ask bo.")
        (letter,) = await letters(house, EnvelopeKind.DELEGATION)
        settled = await outcome(house, letter.id)
        assert (settled.outcome, settled.answer) == (Outcome.ANSWERED, None)
        assert await turns_of(house, session) == 1
        assert [mail.text for mail in await letters(house, EnvelopeKind.ANSWER)] == ["I asked bo."]
        kept = [record.body for record in await house.records(letter.session or "") if isinstance(record.body, Reply)]
        assert [reply.text for reply in kept] == ["Three chairs."]
        await sums_hold(house)


async def test_with_notify_note_the_answer_is_read_with_the_next_turn(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        asked = [ask(notify="note"), "I asked bo."]
        house.model.rule = plays({"Ask bo.": asked, "Count the chairs.": ["Three chairs."]})
        session = await house.turn("Ask bo.")
        (answer,) = await answers(house, session)
        assert answer.silent
        assert (await outcome(house, answer.id)).outcome is Outcome.NOTED
        assert await turns_of(house, session) == 1
        await house.turn("And?", "Three, it seems.")
        shown = [str(record.body) for record in house.model.prompts[-1].records]
        assert any("Three chairs." in text for text in shown)
        assert await turns_of(house, session) == 2
        await sums_hold(house)


@pytest.mark.spec("A27")
@pytest.mark.parametrize(("notify", "turns", "notices"), [("wake", 2, 1), ("note", 1, 1), ("off", 1, 0)])
async def test_a_failure_is_told_once_and_as_it_was_asked_for(
    tmp_path: Path, notify: str, turns: int, notices: int
) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {
                "Ask bo.": [ask(notify=notify), "I asked bo."],
                "Count the chairs.": [ScriptedReply(fails="no such model")],
                "no such model": ["Bo could not."],
            }
        )
        session = await house.turn("Ask bo.")
        told_of = await letters(house, EnvelopeKind.NOTICE)
        assert len(told_of) == notices
        assert all("no such model" in mail.text and mail.silent is (notify == "note") for mail in told_of)
        assert await turns_of(house, session) == turns
        await sums_hold(house)


@pytest.mark.spec("A26")
async def test_an_answer_for_a_conversation_that_was_deleted_starts_nothing_and_is_closed(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        deleted = asyncio.Event()
        house.model.rule = plays(
            {"Ask bo.": [ask(), "I asked bo."], "Count the chairs.": [text_reply("Three.", once=deleted.wait)]}
        )
        receipt = await house.post("Ask bo.")
        await house.once_told("I asked bo.")()
        await house.ask("session.delete", session=receipt.session)
        deleted.set()
        await house.rest()
        assert await turns_of(house, receipt.session) == 1
        (answer,) = await answers(house, receipt.session or "")
        assert (await outcome(house, answer.id)).outcome is Outcome.REFUSED
        assert await said_to(house) == ["I asked bo."]
        await sums_hold(house)


@pytest.mark.spec("A28")
async def test_one_who_is_busy_has_it_queued_and_answers_each_in_its_turn(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        both = ScriptedReply(
            calls=(
                ("agents_message", {"agentId": "bo", "content": "Count the chairs.", "mode": "async"}),
                ("agents_message", {"agentId": "bo", "content": "Count the tables.", "mode": "async"}),
            )
        )
        house.model.rule = plays(
            {
                "Ask bo.": [both, "I asked twice."],
                "Count the chairs.": [text_reply("Three chairs.", once=house.once_told("I asked twice."))],
                "Count the tables.": ["Two tables."],
                "Three chairs.": ["Three, says bo."],
                "Two tables.": ["Two, says bo."],
            }
        )
        session = await house.turn("Ask bo.")
        first, second = (await house.results(session))[:2]
        assert [json.loads(each.output)["status"] for each in (first, second)] == ["started", "queued"]
        assert [mail.text for mail in await answers(house, session)] == ["Three chairs.", "Two tables."]
        assert (await said_to(house))[0] == "I asked twice."
        assert sorted((await said_to(house))[1:]) == ["Three, says bo.", "Two, says bo."]
        await sums_hold(house)


@pytest.mark.spec("A29")
@pytest.mark.parametrize(
    ("ada", "bo", "named"),
    [
        (replace(ADA, delegation=DelegationRules(deny=("b*",))), BO, "agents.ada.delegation.deny"),
        (replace(ADA, delegation=DelegationRules(allow=("c*",))), BO, "agents.ada.delegation.allow"),
        (ADA, replace(BO, visible=False), "agents.bo.visible"),
    ],
)
async def test_whom_an_agent_does_not_see_it_is_not_told_of_and_cannot_ask(
    tmp_path: Path, ada: Agent, bo: Agent, named: str
) -> None:
    async with hands_house(tmp_path, staff=(ada, bo, CY)) as house:
        session = await house.turn("Who is here?", tool_call_reply("agents_list"), ask(), "Cy is here.")
        listed, asked = await house.results(session)
        assert [row["id"] for row in json.loads(listed.output)["agents"]] == ["cy"]
        assert asked.failed
        assert named in asked.output
        assert await letters(house, EnvelopeKind.DELEGATION) == []
