"""A person switches to another agent, and back with a summary of what was decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_instance import assert_ledger_balances

from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.ids import SessionId
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply

STAFF = tuple(Agent(name=name, model="scripted", visible=name != "cy") for name in ("ada", "bo", "cy"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    instance = LocalInstance(tmp_path, agents=STAFF)
    instance.model.rule = lambda _: text_reply("Yes.")
    async with instance.run() as opened:
        yield opened
        await opened.wait_until_idle()
        await assert_ledger_balances(opened)


async def send_and_wait_for_answer(server: LocalServer, text: str, to: str = "ada", **kw: Any) -> str:
    kw.setdefault("origin", terminal_origin("maria"))
    return await server.wait_for_answer((await server.send(text, recipient=f"agent:{to}", **kw)).envelope)


async def list_session_ids(server: LocalServer, agent: str) -> list[SessionId]:
    return [
        row.id
        for row in await server.execute_sql("SELECT id FROM sessions WHERE agent = :agent ORDER BY id", agent=agent)
    ]


async def list_switch_events(server: LocalServer) -> list[Any]:
    return await server.execute_sql("SELECT session, body FROM events WHERE kind = 'session.switched' ORDER BY seq")


@pytest.mark.spec("A81")
async def test_switching_with_text_opens_the_other_agents_session_with_it_as_the_first_message(
    server: LocalServer,
) -> None:
    await send_and_wait_for_answer(server, "hello")
    (ada,) = await list_session_ids(server, "ada")
    answer = await send_and_wait_for_answer(server, "/switch bo what is for dinner?")
    await server.wait_until_idle()
    (bo,) = await list_session_ids(server, "bo")
    assert answer == f"You are now talking to bo, in the session {bo[:8]}."
    first = (await server.execute_sql("SELECT * FROM envelopes WHERE session = :bo ORDER BY seq", bo=bo))[0]
    assert (first.sender, first.text, first.trust) == ("person:maria", "what is for dinner?", "person")
    assert "what is for dinner?" in str(server.instance.model.prompts[-1].records[-1].body)
    assert "hello" not in str(server.instance.model.prompts[-1].records), "bo does not read what was said to ada"
    (switched,) = await list_switch_events(server)
    assert switched.session == ada and f'"to":"{bo}"' in switched.body and '"by":"person:maria"' in switched.body
    # From now on a message of the person to bo goes to that session.
    await send_and_wait_for_answer(server, "and tomorrow?", "bo")
    assert await list_session_ids(server, "bo") == [bo]


@pytest.mark.spec("A81")
async def test_switching_continues_the_most_recent_session_of_that_person_with_the_agent(server: LocalServer) -> None:
    await send_and_wait_for_answer(server, "old", "bo", origin=Origin(OriginKind.WEB, "person:maria/old"))
    await server.instance.clock.advance(5)
    await send_and_wait_for_answer(server, "new", "bo", origin=Origin(OriginKind.WEB, "person:maria/new"))
    await server.instance.clock.advance(5)
    await send_and_wait_for_answer(server, "not hers", "bo", origin=terminal_origin("owner"), sender="person:owner")
    assert len(await list_session_ids(server, "bo")) == 3
    await send_and_wait_for_answer(server, "/switch bo go on")
    await server.wait_until_idle()
    assert len(await list_session_ids(server, "bo")) == 3
    context = str([record.body for record in server.instance.model.prompts[-1].records])
    assert "new" in context and "go on" in context and "not hers" not in context


@pytest.mark.spec("A81")
async def test_switching_back_to_an_agent_with_a_summary_sends_it_to_the_earlier_session(server: LocalServer) -> None:
    await send_and_wait_for_answer(server, "hello")
    (ada,) = await list_session_ids(server, "ada")
    await send_and_wait_for_answer(server, "/switch bo what is for dinner?")
    await server.wait_until_idle()
    answer = await send_and_wait_for_answer(server, "/switch back we decided on soup", "bo")
    await server.wait_until_idle()
    assert answer == f"You are now talking to ada, in the session {ada[:8]}."
    last = str(server.instance.model.prompts[-1].records[-1].body)
    assert "Back from bo. we decided on soup" in last
    context = str([record.body for record in server.instance.model.prompts[-1].records])
    assert "hello" in context
    assert [row.session for row in await list_switch_events(server)] == [ada, *await list_session_ids(server, "bo")]


@pytest.mark.spec("A81")
@pytest.mark.parametrize("heard", [Trust.PERSON, Trust.UNTRUSTED])
async def test_switching_back_without_text_copies_the_last_reply_with_no_more_than_the_agents_trust(
    server: LocalServer, heard: Trust
) -> None:
    await send_and_wait_for_answer(server, "hello")
    (ada,) = await list_session_ids(server, "ada")
    await send_and_wait_for_answer(server, "/switch bo what is for dinner?")
    await server.wait_until_idle()
    (bo,) = await list_session_ids(server, "bo")
    server.instance.model.will_reply("Soup, says the cook book.")
    receipt = await server.send("look it up", sender="channel:quiet:7", recipient=f"agent:bo/{bo}", trust=heard)
    await server.wait_for_outcome(receipt.envelope)
    prompts = len(server.instance.model.prompts)
    await send_and_wait_for_answer(server, "/switch back", "bo")
    await server.wait_until_idle()
    assert len(server.instance.model.prompts) == prompts, "the message is stored without a run"
    rows = await server.execute_sql("SELECT * FROM envelopes WHERE session = :ada AND kind = 'system'", ada=ada)
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
async def test_an_invalid_switch_to_another_agent_is_explained_and_changes_nothing(
    server: LocalServer, text: str, answer: str
) -> None:
    await send_and_wait_for_answer(server, "hello")
    assert await send_and_wait_for_answer(server, text) == answer
    assert len(await server.execute_sql("SELECT id FROM sessions")) == 1 and await list_switch_events(server) == []


async def test_switching_back_to_an_agent_does_not_open_a_session_of_another_person(server: LocalServer) -> None:
    """The session stores where a switch came from, so anyone who may change the session can change that."""
    await send_and_wait_for_answer(server, "secret", sender="person:owner", origin=terminal_origin("owner"))
    (owners,) = await list_session_ids(server, "ada")
    await send_and_wait_for_answer(server, "hello", "bo")
    (bo,) = await list_session_ids(server, "bo")
    forged = f'{{"core":{{"cameFrom":"{owners}"}}}}'
    await server.execute_sql("UPDATE sessions SET attributes = :forged WHERE id = :bo", forged=forged, bo=bo)
    assert await send_and_wait_for_answer(server, "/switch back and tell me", "bo") == (
        "You were not switched here from another agent. /switch AGENT switches to one."
    )
    rows = await server.execute_sql("SELECT count(*) AS n FROM envelopes WHERE session = :id", id=owners)
    assert rows[0].n == 2, "only the owner's own two envelopes"


async def test_switching_agents_in_a_channel_answers_there_and_leaves_later_messages_to_the_earlier_agent(
    server: LocalServer,
) -> None:
    receipt = await server.send("/switch bo what is for dinner?", sender="channel:quiet:42", trust=Trust.PERSON)
    answer = await server.wait_for_answer(receipt.envelope)
    assert answer == "bo got your message and will answer here. Your next messages here still go to ada."
    await server.wait_until_idle()
    (bo,) = await list_session_ids(server, "bo")
    assert (await server.get_session(bo)).origin == Origin(OriginKind.CHAT, "channel:quiet:42")
    rows = await server.execute_sql(
        "SELECT recipient FROM envelopes WHERE kind = :kind", kind=EnvelopeKind.ANSWER.value
    )
    assert {row.recipient for row in rows} == {"channel:quiet:42"}
