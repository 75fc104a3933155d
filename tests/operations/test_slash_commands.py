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
from retinue.testing.local_instance import Household
from retinue.testing.scripted_model import calls, says

MARIA, OWNER = person("maria"), person("owner")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(Household(tmp_path)) as made:
        yield made
        now_ms = to_ms(made.desk.clock.now())
        checked = await made.house.store.scan(lambda conn: ledger.check(conn, now_ms=now_ms))
        assert checked.holds, checked.lines()


async def command(house: DeskHouse, text: str, **kw: Any) -> str:
    """Send a command as Maria, and read the house's answer."""
    sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text=text, **kw)
    assert sent["outcome"] == "answered", sent
    return await house.house.answer_to(sent["envelope"])


async def test_help_lists_every_command_and_no_model_is_asked(house: DeskHouse) -> None:
    answer = await command(house, "/help")
    for name in CommandName:
        assert f"/{name}" in answer
    assert house.house.household.model.prompts == []


async def test_words_with_two_slashes_reach_the_agent_with_one(house: DeskHouse) -> None:
    envelope, _ = await house.converse(MARIA, "//help")
    assert (await house.house.envelope(envelope)).text == "/help"
    assert len(house.house.household.model.prompts) == 1


@pytest.mark.parametrize("text", ["/hepl", "/dance"])
async def test_an_unknown_command_is_answered(house: DeskHouse, text: str) -> None:
    answer = await command(house, text)
    assert f"There is no command {text}." in answer
    assert "/help lists them" in answer
    if text == "/hepl":
        assert "Did you mean /help?" in answer


async def test_status_and_context_say_how_it_stands(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    status = await command(house, "/status")
    assert f"session: {session[:8]}" in status and "agent: ada" in status and "run: none" in status
    assert "records-in-context: 3" in await command(house, "/context")
    assert "You are person:maria" in await command(house, "/whoami")


async def test_stop_ends_what_runs_and_clears_what_waits(house: DeskHouse) -> None:
    household = house.house.household
    household.model.rule = lambda prompt: says("too late", after_s=3600)
    running = await house.ask(MARIA, "envelope.send", to="agent:ada", text="long work")
    waiting = await house.ask(MARIA, "envelope.send", to="agent:ada", text="and more")
    assert await command(house, "/stop") == "1 run stopped, 1 waiting cleared."
    for sent in (running, waiting):
        assert (await house.house.outcome(sent["envelope"])).outcome is Outcome.CANCELLED
    await house.house.quiet()
    assert await command(house, "/abort") == "Nothing was running here, and nothing waited."


async def test_reset_begins_a_fresh_context_and_keeps_its_words(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    assert "A fresh context. Your words" in await command(house, "/reset I like tea")
    records = await house.house.records(session)
    assert records[-1].kind is RecordKind.RESET
    await house.converse(MARIA, "and now?")
    prompt = house.house.household.model.prompts[-1]
    assert "I like tea" in str(prompt.records[0].body)
    assert all("hello" not in str(record.body) for record in prompt.records)


async def test_new_with_words_works_on_them_in_a_fresh_context(house: DeskHouse) -> None:
    await house.converse(MARIA, "hello")
    await command(house, "/new what is new?")
    await house.house.eventually(
        lambda _: len(house.house.household.model.prompts) == 2, what="the words to be worked on"
    )
    await house.house.quiet()
    prompt = house.house.household.model.prompts[-1]
    assert "what is new?" in str(prompt.records[-1].body)
    assert all("hello" not in str(record.body) for record in prompt.records)


async def test_a_question_is_decided_by_a_command(house: DeskHouse) -> None:
    def ask_first(conn: Any) -> None:
        found = agents.find(conn, "ada")
        assert found is not None
        agents.put(conn, replace(found, tools=ToolRules(ask=("read",))), source="test", at_ms=2)

    await house.house.store.write(ask_first, point="test")
    household = house.house.household
    household.model.will_reply(calls("read", path="SOUL.md"), "thank you")
    sent = await house.ask(MARIA, "envelope.send", to="agent:ada", text="look")
    [approval] = await house.house.eventually(lambda conn: approvals.listed(conn, limit=5) or None, what="a question")
    assert "That could not be done" in await command(house, "/allow ffffffff")
    assert "That could not be done" in await command(house, "/allow")
    assert await command(house, f"/allow {approval.id[:8]}") == f"{approval.id[:8]} is allowed."
    assert await house.house.answer_to(sent["envelope"]) == "thank you"
    assert "no longer open" in await command(house, f"/deny {approval.id[:8]}")


async def test_a_command_of_someone_not_entitled_is_refused_recorded_and_not_answered(house: DeskHouse) -> None:
    receipt = await house.house.post(
        "/stop", sender="channel:quiet:lobby", recipient="agent:ada", trust=Trust.UNTRUSTED
    )
    settled = await house.house.outcome(receipt.envelope)
    assert settled.outcome is Outcome.REFUSED
    assert settled.because.startswith("command-not-allowed")
    assert settled.answer is None
    rows = await house.house.sql("SELECT count(*) AS n FROM envelopes WHERE reply_to = :id", id=receipt.envelope)
    assert rows[0].n == 0


async def test_an_agents_slash_is_plain_words(house: DeskHouse) -> None:
    sent = await house.ask(agent("bo"), "envelope.send", to="agent:ada", text="/stop")
    await house.house.outcome(sent["envelope"])
    assert len(house.house.household.model.prompts) >= 1


async def test_a_command_with_the_same_key_is_carried_out_once(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    first, again = [await house.ask(MARIA, "envelope.send", to="agent:ada", text="/reset", key="k") for _ in range(2)]
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    marks = [record for record in await house.house.records(session) if record.kind is RecordKind.RESET]
    assert len(marks) == 1


async def test_a_command_to_nobody_is_not_found(house: DeskHouse) -> None:
    with pytest.raises(NotFound):
        await house.ask(MARIA, "envelope.send", to="agent:nobody", text="/help")
