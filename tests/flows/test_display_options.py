"""How a conversation shows its work: what a person is told of calls, of thoughts, and of what an answer took."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_instance import books_hold

from retinue.config import Settings
from retinue.config.agent_defaults import AgentDefaults
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.display_options import DisplayOptions, ReasoningDisplay, UsageFooter, Verbosity
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.record import Usage
from retinue.store.runs import approvals
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import text_reply, tool_call_reply

CALLING = (tool_call_reply("append_line", text="milk"), text_reply("Noted."))
USED = Usage(input_tokens=1_200, output_tokens=34, cost_microusd=1_500)


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


@pytest.fixture
async def house(household: LocalInstance) -> AsyncIterator[LocalServer]:
    async with household.run() as opened:
        yield opened
        await opened.wait_until_idle()
        await books_hold(opened)


async def say(house: LocalServer, text: str, **kw: Any) -> str:
    return await house.wait_for_answer((await house.send(text, origin=terminal_origin("maria"), **kw)).envelope)


async def told(house: LocalServer) -> list[str]:
    """What Maria got, in order, apart from what the house answered to commands."""
    mail = await house.list_envelopes_to("maria")
    return [each.text for each in mail if each.kind is EnvelopeKind.NOTICE or each.source == "run"]


class Deltas:
    """All that those who look on were told as it came."""

    def __init__(self, house: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Delta] = []
        tell = house.events.on_delta
        monkeypatch.setattr(house.events, "on_delta", lambda delta: (self.seen.append(delta), tell(delta)))

    @property
    def thoughts(self) -> str:
        return "".join(delta.text for delta in self.seen if delta.kind is DeltaKind.THINKING)


# /verbose


@pytest.mark.spec("C30")
@pytest.mark.parametrize(
    ("level", "notices"),
    [("off", []), ("on", ["→ append_line text=milk"]), ("full", ["→ append_line text=milk", "← append_line: "])],
)
async def test_calls_are_told_of_as_they_are_made_as_far_as_the_conversation_says(
    house: LocalServer, level: str, notices: list[str]
) -> None:
    said = {"off": "Tool calls are not", "on": "Each tool call is shown when", "full": "Each tool call is shown, with"}
    assert (await say(house, f"/verbose {level}")).startswith(f"Verbose: {level}. {said[level]}")
    house.instance.model.will_reply(*CALLING)
    await say(house, "buy milk")
    *before, answer = await told(house)
    assert answer == "Noted." and len(before) == len(notices)
    assert all(line.startswith(begin) for line, begin in zip(before, notices, strict=True)), before


@pytest.mark.spec("C27", "C30")
async def test_a_directive_among_words_holds_for_that_message_and_nobody_reads_it(house: LocalServer) -> None:
    model = house.instance.model
    model.will_reply(*CALLING, *CALLING)
    await say(house, "buy /verbose on milk")
    await say(house, "and again")
    assert await told(house) == ["→ append_line text=milk", "Noted.", "Noted."]
    assert "buy milk" in str(model.prompts[0].records[-1].body) and "/verbose" not in str(model.prompts[0])
    assert "Verbose: not set." in await say(house, "/verbose")


@pytest.mark.spec("C30", "C114.verbose")
async def test_a_message_goes_before_the_session_the_session_before_the_agent_and_the_agent_before_the_house(
    tmp_path: Path,
) -> None:
    defaults = AgentDefaults(verbose=Verbosity.ON)
    household = LocalInstance(
        tmp_path,
        agents=(Agent(name="ada", model="scripted"), Agent(name="bo", model="scripted", verbose=Verbosity.OFF)),
        settings=Settings(home=tmp_path, store=tmp_path / "house.db", zone=ZoneInfo("UTC"), defaults=defaults),
    )

    async def lines(house: LocalServer, text: str, agent: str) -> int:
        before = len(await told(house))
        household.model.will_reply(*CALLING)
        await say(house, text, recipient=f"agent:{agent}")
        return len(await told(house)) - before - 1

    async with household.run() as house:
        assert await lines(house, "hello", "ada") == 1, "by the house"
        assert await lines(house, "hello", "bo") == 0, "by the agent"
        await say(house, "/verbose full", recipient="agent:bo")
        assert await lines(house, "hello", "bo") == 2, "by the session"
        assert await lines(house, "hello /verbose off", "bo") == 0, "by the message"
        await say(house, "/verbose default", recipient="agent:bo")
        assert await lines(house, "hello", "bo") == 0, "by the agent again"


async def test_calls_are_told_of_once_however_often_the_run_is_taken_up(household: LocalInstance) -> None:
    household.agents = (Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",))),)
    async with household.run() as house:
        await say(house, "/verbose full")
        household.model.will_reply(tool_call_reply("session_status"), tool_call_reply("append_line", text="milk"))
        await house.send("buy milk", origin=terminal_origin("maria"))
        (asked,) = await house.wait_for(lambda conn: approvals.list_open(conn, limit=5) or None, what="a question")
        house.crash()
    household.model.will_reply("Noted.")
    async with household.run() as house:
        await house.send(f"/allow {asked.id[:8]}", origin=terminal_origin("maria"))
        await house.wait_for(lambda _: not household.model.script or None, what="the run to go on")
        await house.wait_until_idle()
        starts = [line.split(" ", 2)[:2] for line in await told(house) if line[0] in "→←"]
        assert starts == [
            ["→", "session_status"],
            ["←", "session_status:"],
            ["→", "append_line"],
            ["←", "append_line:"],
        ]
        await books_hold(house)


async def test_an_agent_that_asks_is_not_told_of_calls(household: LocalInstance) -> None:
    """What another agent's run does is for people to see, and in its own session."""
    household.agents = tuple(Agent(name=name, model="scripted", verbose=Verbosity.FULL) for name in ("ada", "bo"))
    async with household.run() as house:
        household.model.will_reply(*CALLING)
        receipt = await house.send("buy milk", sender="agent:bo", recipient="agent:ada")
        await house.wait_for_outcome(receipt.envelope)
        rows = await house.execute_sql("SELECT count(*) AS n FROM envelopes WHERE kind = 'notice'")
        assert rows[0].n == 0


# /reasoning


@pytest.mark.spec("C30")
@pytest.mark.parametrize(
    ("level", "sent", "shown"),
    [("off", [], ""), ("on", ["Reasoning:\nMilk, then."], ""), ("stream", [], "Milk, then."), ("", [], "Milk, then.")],
)
async def test_thoughts_are_sent_or_shown_or_neither(
    house: LocalServer, monkeypatch: pytest.MonkeyPatch, level: str, sent: list[str], shown: str
) -> None:
    if level:
        assert (await say(house, f"/reasoning {level}")).startswith(f"Reasoning: {level}. Thinking is ")
    deltas = Deltas(house, monkeypatch)
    house.instance.model.will_reply(text_reply("Noted.", thinking="Milk, then."))
    assert await say(house, "buy milk") == "Noted."
    assert await told(house) == [*sent, "Noted."]
    assert deltas.thoughts == shown


# /usage


@pytest.mark.spec("C28.usage")
@pytest.mark.parametrize(
    ("level", "line"),
    [
        ("off", ""),
        ("tokens", "\n\n[1,200 tokens in, 34 out]"),
        ("cost", "\n\n[$0.0015]"),
        ("full", "\n\n[1,200 tokens in, 34 out; $0.0015; 1,234 tokens in context; scripted]"),
    ],
)
async def test_a_line_below_each_answer_says_what_it_took(house: LocalServer, level: str, line: str) -> None:
    assert (await say(house, f"/usage {level}")).startswith(
        f"Usage: {level}. {'Answers show no' if level == 'off' else 'Each answer shows'}"
    )
    house.instance.model.will_reply(text_reply("Noted.", usage=USED), text_reply("And again.", usage=USED))
    assert await say(house, "buy milk") == f"Noted.{line}"
    assert await say(house, "and bread") == f"And again.{line}"
    total = dict(each.split(": ", 1) for each in (await say(house, "/usage")).splitlines())
    assert (total["calls"], total["input-tokens"], total["output-tokens"]) == ("2", "2,400", "68")
    assert total["cost"] == "$0.0030" and total["usage-line"] == level


@pytest.mark.spec("C28.usage")
async def test_what_a_conversation_used_is_not_what_another_did(house: LocalServer) -> None:
    house.instance.model.will_reply(text_reply("Noted.", usage=USED))
    await say(house, "buy milk")
    other = await house.wait_for_answer((await house.send("/usage", sender="person:owner")).envelope)
    assert "calls: 0" in other.splitlines()


@pytest.mark.spec("C27")
async def test_directives_alone_are_kept_with_the_session_and_answered_together(household: LocalInstance) -> None:
    async with household.run() as house:
        answer = await say(house, "/verbose on /reasoning on\n/queue followup cap:3")
        assert [line.split(":")[0] for line in answer.splitlines()] == ["Verbose", "Reasoning", "Queue"]
        assert household.model.prompts == []
        await say(house, "/usage tokens")
    async with household.run() as house:
        ((session,),) = await house.execute_sql("SELECT id FROM sessions")
        kept = await house.get_session(session)
        assert kept.options.manner == DisplayOptions(
            verbose=Verbosity.ON, reasoning=ReasoningDisplay.ON, usage=UsageFooter.TOKENS
        )
        assert (kept.queue.mode, kept.queue.cap) == ("followup", 3)
        await say(house, "/new")
        assert (await house.get_session(session)).options.manner == kept.options.manner, "a fresh context keeps it"


@pytest.mark.parametrize("command", ["/verbose loud", "/reasoning maybe", "/usage all", "/elevated higher"])
async def test_a_level_that_is_none_is_said_and_changes_nothing(house: LocalServer, command: str) -> None:
    name, word = command[1:].split()
    answer = await say(house, command)
    assert answer.startswith(f"Invalid level '{word}' for /{name}. It must be one of: off, ")
    ((session,),) = await house.execute_sql("SELECT id FROM sessions")
    assert (await house.get_session(session)).options.manner == DisplayOptions()
