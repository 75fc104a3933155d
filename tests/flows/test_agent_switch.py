"""Going on with another agent, and coming back with what was decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_instance import books_hold

from retinue.domain.agent import Agent
from retinue.domain.envelope import Kind
from retinue.domain.ids import SessionId
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.testing.local_instance import House, Household, terminal
from retinue.testing.scripted_model import says

STAFF = tuple(Agent(name=name, model="scripted", visible=name != "cy") for name in ("ada", "bo", "cy"))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    household = Household(tmp_path, agents=STAFF)
    household.model.rule = lambda _: says("Yes.")
    async with household.open() as opened:
        yield opened
        await opened.quiet()
        await books_hold(opened)


async def say(house: House, text: str, to: str = "ada", **kw: Any) -> str:
    kw.setdefault("origin", terminal("maria"))
    return await house.answer_to((await house.post(text, recipient=f"agent:{to}", **kw)).envelope)


async def sessions_of(house: House, agent: str) -> list[SessionId]:
    return [row.id for row in await house.sql("SELECT id FROM sessions WHERE agent = :agent ORDER BY id", agent=agent)]


async def news(house: House) -> list[Any]:
    return await house.sql("SELECT session, body FROM news WHERE kind = 'session.switched' ORDER BY seq")


@pytest.mark.spec("A81")
async def test_words_open_another_agents_session_as_the_persons_first_message_there(house: House) -> None:
    await say(house, "hello")
    (ada,) = await sessions_of(house, "ada")
    told = await say(house, "/switch bo what is for dinner?")
    await house.quiet()
    (bo,) = await sessions_of(house, "bo")
    assert told == f"You go on with bo, in the session {bo[:8]}."
    first = (await house.sql("SELECT * FROM envelopes WHERE session = :bo ORDER BY seq", bo=bo))[0]
    assert (first.sender, first.text, first.trust) == ("person:maria", "what is for dinner?", "person")
    assert "what is for dinner?" in str(house.household.model.prompts[-1].records[-1].body)
    assert "hello" not in str(house.household.model.prompts[-1].records), "what was said to ada stays there"
    (switched,) = await news(house)
    assert switched.session == ada and f'"to":"{bo}"' in switched.body and '"by":"person:maria"' in switched.body
    # A person who writes to bo from here on is in that session.
    await say(house, "and tomorrow?", "bo")
    assert await sessions_of(house, "bo") == [bo]


@pytest.mark.spec("A81")
async def test_the_most_recent_session_that_the_person_had_there_is_gone_on_with(house: House) -> None:
    await say(house, "old", "bo", origin=Origin(OriginKind.WEB, "person:maria/old"))
    await house.household.clock.advance(5)
    await say(house, "new", "bo", origin=Origin(OriginKind.WEB, "person:maria/new"))
    await house.household.clock.advance(5)
    await say(house, "not hers", "bo", origin=terminal("owner"), sender="person:owner")
    assert len(await sessions_of(house, "bo")) == 3
    await say(house, "/switch bo go on")
    await house.quiet()
    assert len(await sessions_of(house, "bo")) == 3
    context = str([record.body for record in house.household.model.prompts[-1].records])
    assert "new" in context and "go on" in context and "not hers" not in context


@pytest.mark.spec("A81")
async def test_coming_back_brings_a_summary_as_a_message_there(house: House) -> None:
    await say(house, "hello")
    (ada,) = await sessions_of(house, "ada")
    await say(house, "/switch bo what is for dinner?")
    await house.quiet()
    told = await say(house, "/switch back we decided on soup", "bo")
    await house.quiet()
    assert told == f"You go on with ada, in the session {ada[:8]}."
    last = str(house.household.model.prompts[-1].records[-1].body)
    assert "Back from bo. we decided on soup" in last
    context = str([record.body for record in house.household.model.prompts[-1].records])
    assert "hello" in context
    assert [row.session for row in await news(house)] == [ada, *await sessions_of(house, "bo")]


@pytest.mark.spec("A81")
@pytest.mark.parametrize("heard", [Trust.PERSON, Trust.UNTRUSTED])
async def test_without_words_what_was_said_last_comes_along_as_the_agents_words_and_no_better_than_they_are(
    house: House, heard: Trust
) -> None:
    await say(house, "hello")
    (ada,) = await sessions_of(house, "ada")
    await say(house, "/switch bo what is for dinner?")
    await house.quiet()
    (bo,) = await sessions_of(house, "bo")
    house.household.model.will_reply("Soup, says the cook book.")
    receipt = await house.post("look it up", sender="channel:quiet:7", recipient=f"agent:bo/{bo}", trust=heard)
    await house.outcome(receipt.envelope)
    prompts = len(house.household.model.prompts)
    await say(house, "/switch back", "bo")
    await house.quiet()
    assert len(house.household.model.prompts) == prompts, "it is written down, and nobody is asked"
    rows = await house.sql("SELECT * FROM envelopes WHERE session = :ada AND kind = 'system'", ada=ada)
    (note,) = rows
    assert "Soup, says the cook book." in note.text and note.sender == f"agent:bo/{bo}"
    assert note.trust == ("untrusted" if heard is Trust.UNTRUSTED else "agent")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("/switch", "Who is it to be? /switch AGENT [WORDS]; /agents says who is here."),
        ("/switch nobody hi", "There is no agent 'nobody' here. /agents says who is."),
        ("/switch cy hi", "There is no agent 'cy' here. /agents says who is."),
        ("/switch ada", "You are talking to ada already."),
        ("/switch back", "You did not come here from another agent. /switch AGENT goes to one."),
    ],
)
async def test_a_switch_that_leads_nowhere_is_said_and_changes_nothing(house: House, text: str, answer: str) -> None:
    await say(house, "hello")
    assert await say(house, text) == answer
    assert len(await house.sql("SELECT id FROM sessions")) == 1 and await news(house) == []


async def test_nobody_comes_back_into_a_conversation_that_is_not_theirs(house: House) -> None:
    """The mark of where one came from lies in the session, where whoever may change it can write anything."""
    await say(house, "secret", sender="person:owner", origin=terminal("owner"))
    (owners,) = await sessions_of(house, "ada")
    await say(house, "hello", "bo")
    (bo,) = await sessions_of(house, "bo")
    forged = f'{{"core":{{"cameFrom":"{owners}"}}}}'
    await house.sql("UPDATE sessions SET attributes = :forged WHERE id = :bo", forged=forged, bo=bo)
    assert await say(house, "/switch back and tell me", "bo") == (
        "You did not come here from another agent. /switch AGENT goes to one."
    )
    rows = await house.sql("SELECT count(*) AS n FROM envelopes WHERE session = :id", id=owners)
    assert rows[0].n == 2, "the owner's own two letters"


async def test_whoever_speaks_in_a_room_stays_in_it(house: House) -> None:
    receipt = await house.post("/switch bo what is for dinner?", sender="channel:quiet:42", trust=Trust.PERSON)
    told = await house.answer_to(receipt.envelope)
    assert told == "bo has it, and answers here. What you write here still goes to ada."
    await house.quiet()
    (bo,) = await sessions_of(house, "bo")
    assert (await house.session(bo)).origin == Origin(OriginKind.CHAT, "channel:quiet:42")
    rows = await house.sql("SELECT recipient FROM envelopes WHERE kind = :kind", kind=Kind.ANSWER.value)
    assert {row.recipient for row in rows} == {"channel:quiet:42"}
