"""Going on with another agent, and coming back with what was decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_instance import books_hold

from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.ids import SessionId
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply

STAFF = tuple(Agent(name=name, model="scripted", visible=name != "cy") for name in ("ada", "bo", "cy"))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[LocalServer]:
    household = LocalInstance(tmp_path, agents=STAFF)
    household.model.rule = lambda _: text_reply("Yes.")
    async with household.run() as opened:
        yield opened
        await opened.wait_until_idle()
        await books_hold(opened)


async def say(house: LocalServer, text: str, to: str = "ada", **kw: Any) -> str:
    kw.setdefault("origin", terminal_origin("maria"))
    return await house.wait_for_answer((await house.send(text, recipient=f"agent:{to}", **kw)).envelope)


async def sessions_of(house: LocalServer, agent: str) -> list[SessionId]:
    return [
        row.id
        for row in await house.execute_sql("SELECT id FROM sessions WHERE agent = :agent ORDER BY id", agent=agent)
    ]


async def news(house: LocalServer) -> list[Any]:
    return await house.execute_sql("SELECT session, body FROM news WHERE kind = 'session.switched' ORDER BY seq")


@pytest.mark.spec("A81")
async def test_words_open_another_agents_session_as_the_persons_first_message_there(house: LocalServer) -> None:
    await say(house, "hello")
    (ada,) = await sessions_of(house, "ada")
    told = await say(house, "/switch bo what is for dinner?")
    await house.wait_until_idle()
    (bo,) = await sessions_of(house, "bo")
    assert told == f"You are now talking to bo, in the session {bo[:8]}."
    first = (await house.execute_sql("SELECT * FROM envelopes WHERE session = :bo ORDER BY seq", bo=bo))[0]
    assert (first.sender, first.text, first.trust) == ("person:maria", "what is for dinner?", "person")
    assert "what is for dinner?" in str(house.instance.model.prompts[-1].records[-1].body)
    assert "hello" not in str(house.instance.model.prompts[-1].records), "what was said to ada stays there"
    (switched,) = await news(house)
    assert switched.session == ada and f'"to":"{bo}"' in switched.body and '"by":"person:maria"' in switched.body
    # A person who writes to bo from here on is in that session.
    await say(house, "and tomorrow?", "bo")
    assert await sessions_of(house, "bo") == [bo]


@pytest.mark.spec("A81")
async def test_the_most_recent_session_that_the_person_had_there_is_gone_on_with(house: LocalServer) -> None:
    await say(house, "old", "bo", origin=Origin(OriginKind.WEB, "person:maria/old"))
    await house.instance.clock.advance(5)
    await say(house, "new", "bo", origin=Origin(OriginKind.WEB, "person:maria/new"))
    await house.instance.clock.advance(5)
    await say(house, "not hers", "bo", origin=terminal_origin("owner"), sender="person:owner")
    assert len(await sessions_of(house, "bo")) == 3
    await say(house, "/switch bo go on")
    await house.wait_until_idle()
    assert len(await sessions_of(house, "bo")) == 3
    context = str([record.body for record in house.instance.model.prompts[-1].records])
    assert "new" in context and "go on" in context and "not hers" not in context


@pytest.mark.spec("A81")
async def test_coming_back_brings_a_summary_as_a_message_there(house: LocalServer) -> None:
    await say(house, "hello")
    (ada,) = await sessions_of(house, "ada")
    await say(house, "/switch bo what is for dinner?")
    await house.wait_until_idle()
    told = await say(house, "/switch back we decided on soup", "bo")
    await house.wait_until_idle()
    assert told == f"You are now talking to ada, in the session {ada[:8]}."
    last = str(house.instance.model.prompts[-1].records[-1].body)
    assert "Back from bo. we decided on soup" in last
    context = str([record.body for record in house.instance.model.prompts[-1].records])
    assert "hello" in context
    assert [row.session for row in await news(house)] == [ada, *await sessions_of(house, "bo")]


@pytest.mark.spec("A81")
@pytest.mark.parametrize("heard", [Trust.PERSON, Trust.UNTRUSTED])
async def test_without_words_what_was_said_last_comes_along_as_the_agents_words_and_no_better_than_they_are(
    house: LocalServer, heard: Trust
) -> None:
    await say(house, "hello")
    (ada,) = await sessions_of(house, "ada")
    await say(house, "/switch bo what is for dinner?")
    await house.wait_until_idle()
    (bo,) = await sessions_of(house, "bo")
    house.instance.model.will_reply("Soup, says the cook book.")
    receipt = await house.send("look it up", sender="channel:quiet:7", recipient=f"agent:bo/{bo}", trust=heard)
    await house.wait_for_outcome(receipt.envelope)
    prompts = len(house.instance.model.prompts)
    await say(house, "/switch back", "bo")
    await house.wait_until_idle()
    assert len(house.instance.model.prompts) == prompts, "it is written down, and nobody is asked"
    rows = await house.execute_sql("SELECT * FROM envelopes WHERE session = :ada AND kind = 'system'", ada=ada)
    (note,) = rows
    assert "Soup, says the cook book." in note.text and note.sender == f"agent:bo/{bo}"
    assert note.trust == ("untrusted" if heard is Trust.UNTRUSTED else "agent")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/switch", "Name an agent: /switch AGENT [TEXT]. /agents lists the agents."),
        ("/switch nobody hi", "No agent named 'nobody'. /agents lists the agents."),
        ("/switch cy hi", "No agent named 'cy'. /agents lists the agents."),
        ("/switch ada", "You are already talking to ada."),
        ("/switch back", "You were not switched here from another agent. /switch AGENT switches to one."),
    ],
)
async def test_a_switch_that_leads_nowhere_is_said_and_changes_nothing(
    house: LocalServer, text: str, answer: str
) -> None:
    await say(house, "hello")
    assert await say(house, text) == answer
    assert len(await house.execute_sql("SELECT id FROM sessions")) == 1 and await news(house) == []


async def test_nobody_comes_back_into_a_conversation_that_is_not_theirs(house: LocalServer) -> None:
    """The mark of where one came from lies in the session, where whoever may change it can write anything."""
    await say(house, "secret", sender="person:owner", origin=terminal_origin("owner"))
    (owners,) = await sessions_of(house, "ada")
    await say(house, "hello", "bo")
    (bo,) = await sessions_of(house, "bo")
    forged = f'{{"core":{{"cameFrom":"{owners}"}}}}'
    await house.execute_sql("UPDATE sessions SET attributes = :forged WHERE id = :bo", forged=forged, bo=bo)
    assert await say(house, "/switch back and tell me", "bo") == (
        "You were not switched here from another agent. /switch AGENT switches to one."
    )
    rows = await house.execute_sql("SELECT count(*) AS n FROM envelopes WHERE session = :id", id=owners)
    assert rows[0].n == 2, "the owner's own two letters"


async def test_whoever_speaks_in_a_room_stays_in_it(house: LocalServer) -> None:
    receipt = await house.send("/switch bo what is for dinner?", sender="channel:quiet:42", trust=Trust.PERSON)
    told = await house.wait_for_answer(receipt.envelope)
    assert told == "bo got your message and answers here. Your next messages here still go to ada."
    await house.wait_until_idle()
    (bo,) = await sessions_of(house, "bo")
    assert (await house.get_session(bo)).origin == Origin(OriginKind.CHAT, "channel:quiet:42")
    rows = await house.execute_sql("SELECT recipient FROM envelopes WHERE kind = :kind", kind=EnvelopeKind.ANSWER.value)
    assert {row.recipient for row in rows} == {"channel:quiet:42"}
