"""What a slash means in a conversation: answered by the house, at once, without a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.domain.agent import ToolRules
from retinue.domain.envelope import Outcome
from retinue.domain.errors import NotFound
from retinue.domain.record import RecordKind
from retinue.domain.slash_command import CommandName
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.store.agents import agents
from retinue.store.ledger import ledger
from retinue.store.runs import approvals
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply, tool_call_reply

MARIA, OWNER = person("maria"), person("owner")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made
        now_ms = to_ms(made.desk.clock.now())
        checked = await made.house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
        assert checked.is_ok, checked.lines()


async def command(house: DeskHouse, text: str, **kw: Any) -> str:
    """Send a command as Maria, and read the house's answer."""
    sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text=text, **kw)
    assert sent["outcome"] == "answered", sent
    return await house.house.wait_for_answer(sent["envelope"])


async def test_help_lists_every_command_and_no_model_is_asked(house: DeskHouse) -> None:
    answer = await command(house, "/help")
    for name in CommandName:
        assert f"/{name}" in answer
    assert house.house.instance.model.prompts == []


async def test_words_with_two_slashes_reach_the_agent_with_one(house: DeskHouse) -> None:
    envelope, _ = await house.converse(MARIA, "//help")
    assert (await house.house.get_envelope(envelope)).text == "/help"
    assert len(house.house.instance.model.prompts) == 1


@pytest.mark.parametrize("text", ["/hepl", "/dance"])
async def test_an_unknown_command_is_answered(house: DeskHouse, text: str) -> None:
    answer = await command(house, text)
    assert f"Unknown command {text}." in answer
    assert "/help lists the commands" in answer
    if text == "/hepl":
        assert "Did you mean /help?" in answer


async def test_status_and_context_say_how_it_stands(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    status = await command(house, "/status")
    assert f"session: {session[:8]}" in status and "agent: ada" in status and "run: none" in status
    assert "records-in-context: 3" in await command(house, "/context")
    assert "You are person:maria" in await command(house, "/whoami")


async def test_stop_ends_what_runs_and_clears_what_waits(house: DeskHouse) -> None:
    household = house.house.instance
    household.model.rule = lambda prompt: text_reply("too late", after_s=3600)
    running = await house.ask(MARIA, "envelope.send", to="agent:ada", text="long work")
    waiting = await house.ask(MARIA, "envelope.send", to="agent:ada", text="and more")
    assert await command(house, "/stop") == "1 run stopped, 1 waiting cleared."
    for sent in (running, waiting):
        assert (await house.house.wait_for_outcome(sent["envelope"])).outcome is Outcome.CANCELLED
    await house.house.wait_until_idle()
    assert await command(house, "/abort") == "Nothing was running or waiting here."


async def test_reset_begins_a_fresh_context_and_keeps_its_words(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    assert "The context was reset. Your text" in await command(house, "/reset I like tea")
    records = await house.house.list_records(session)
    assert records[-1].kind is RecordKind.RESET
    await house.converse(MARIA, "and now?")
    prompt = house.house.instance.model.prompts[-1]
    assert "I like tea" in str(prompt.records[0].body)
    assert all("hello" not in str(record.body) for record in prompt.records)


async def test_new_with_words_works_on_them_in_a_fresh_context(house: DeskHouse) -> None:
    await house.converse(MARIA, "hello")
    await command(house, "/new what is new?")
    await house.house.wait_for(lambda _: len(house.house.instance.model.prompts) == 2, what="the words to be worked on")
    await house.house.wait_until_idle()
    prompt = house.house.instance.model.prompts[-1]
    assert "what is new?" in str(prompt.records[-1].body)
    assert all("hello" not in str(record.body) for record in prompt.records)


async def test_a_question_is_decided_by_a_command(house: DeskHouse) -> None:
    def ask_first(conn: Any) -> None:
        found = agents.find(conn, "ada")
        assert found is not None
        agents.upsert(conn, replace(found, tools=ToolRules(ask=("read",))), source="test", at_ms=2)

    await house.house.store.write(ask_first, point="test")
    household = house.house.instance
    household.model.will_reply(tool_call_reply("read", path="SOUL.md"), "thank you")
    sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text="look")
    [approval] = await house.house.wait_for(lambda conn: approvals.list_open(conn, limit=5) or None, what="a question")
    assert "Not done" in await command(house, "/allow ffffffff")
    assert "Not done" in await command(house, "/allow")
    assert await command(house, f"/allow {approval.id[:8]}") == f"{approval.id[:8]} is allowed."
    assert await house.house.wait_for_answer(sent["envelope"]) == "thank you"
    assert "no longer open" in await command(house, f"/deny {approval.id[:8]}")


async def test_a_command_of_someone_not_entitled_is_refused_recorded_and_not_answered(house: DeskHouse) -> None:
    receipt = await house.house.send(
        "/stop", sender="channel:quiet:lobby", recipient="agent:ada", trust=Trust.UNTRUSTED
    )
    settled = await house.house.wait_for_outcome(receipt.envelope)
    assert settled.outcome is Outcome.REFUSED
    assert settled.because.startswith("command-not-allowed")
    assert settled.answer is None
    rows = await house.house.execute_sql(
        "SELECT count(*) AS n FROM envelopes WHERE reply_to = :id", id=receipt.envelope
    )
    assert rows[0].n == 0


async def test_an_agents_slash_is_plain_words(house: DeskHouse) -> None:
    sent = await house.ask(agent("bo"), "envelope.send", to="agent:ada", text="/stop")
    await house.house.wait_for_outcome(sent["envelope"])
    assert len(house.house.instance.model.prompts) >= 1


async def test_a_command_with_the_same_key_is_carried_out_once(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    first, again = [await house.ask(MARIA, "envelope.send", to="agent:ada", text="/reset", key="k") for _ in range(2)]
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    marks = [record for record in await house.house.list_records(session) if record.kind is RecordKind.RESET]
    assert len(marks) == 1


async def test_a_command_to_nobody_is_not_found(house: DeskHouse) -> None:
    with pytest.raises(NotFound):
        await house.ask(MARIA, "envelope.send", to="agent:nobody", text="/help")
