"""Display options of a conversation: tool calls, thinking and usage in the messages to a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_instance import assert_ledger_balances

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

CALL_AND_REPLY = (tool_call_reply("append_line", text="milk"), text_reply("Noted."))
USAGE = Usage(input_tokens=1_200, output_tokens=34, cost_microusd=1_500)


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


@pytest.fixture
async def server(instance: LocalInstance) -> AsyncIterator[LocalServer]:
    async with instance.run() as opened:
        yield opened
        await opened.wait_until_idle()
        await assert_ledger_balances(opened)


async def send_and_wait_for_answer(server: LocalServer, text: str, **kw: Any) -> str:
    return await server.wait_for_answer((await server.send(text, origin=terminal_origin("maria"), **kw)).envelope)


async def list_received_texts(server: LocalServer) -> list[str]:
    """The messages that maria received, in order, without answers to commands."""
    mail = await server.list_envelopes_to("maria")
    return [each.text for each in mail if each.kind is EnvelopeKind.NOTICE or each.source == "run"]


class DeltaRecorder:
    """Records all deltas that watchers received."""

    def __init__(self, server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Delta] = []
        tell = server.events.on_delta
        monkeypatch.setattr(server.events, "on_delta", lambda delta: (self.seen.append(delta), tell(delta)))

    @property
    def thinking_text(self) -> str:
        return "".join(delta.text for delta in self.seen if delta.kind is DeltaKind.THINKING)


# --- /verbose ---


@pytest.mark.spec("C30")
@pytest.mark.parametrize(
    ("level", "notices"),
    [("off", []), ("on", ["→ append_line text=milk"]), ("full", ["→ append_line text=milk", "← append_line: "])],
)
async def test_the_verbose_display_option_decides_how_tool_calls_are_shown(
    server: LocalServer, level: str, notices: list[str]
) -> None:
    said = {"off": "Tool calls are not", "on": "Each tool call is shown when", "full": "Each tool call is shown, with"}
    assert (await send_and_wait_for_answer(server, f"/verbose {level}")).startswith(f"Verbose: {level}. {said[level]}")
    server.instance.model.will_reply(*CALL_AND_REPLY)
    await send_and_wait_for_answer(server, "buy milk")
    *before, answer = await list_received_texts(server)
    assert answer == "Noted." and len(before) == len(notices)
    assert all(line.startswith(begin) for line, begin in zip(before, notices, strict=True)), before


@pytest.mark.spec("C27", "C30")
async def test_an_inline_verbose_directive_applies_to_one_message_and_is_hidden_from_the_model(
    server: LocalServer,
) -> None:
    model = server.instance.model
    model.will_reply(*CALL_AND_REPLY, *CALL_AND_REPLY)
    await send_and_wait_for_answer(server, "buy /verbose on milk")
    await send_and_wait_for_answer(server, "and again")
    assert await list_received_texts(server) == ["→ append_line text=milk", "Noted.", "Noted."]
    assert "buy milk" in str(model.prompts[0].records[-1].body) and "/verbose" not in str(model.prompts[0])
    assert "Verbose: not set." in await send_and_wait_for_answer(server, "/verbose")


@pytest.mark.spec("C30", "C114.verbose")
async def test_the_verbose_display_option_comes_from_message_then_session_then_agent_then_default(
    tmp_path: Path,
) -> None:
    defaults = AgentDefaults(verbose=Verbosity.ON)
    instance = LocalInstance(
        tmp_path,
        agents=(Agent(name="ada", model="scripted"), Agent(name="bo", model="scripted", verbose=Verbosity.OFF)),
        settings=Settings(home=tmp_path, store=tmp_path / "retinue.db", zone=ZoneInfo("UTC"), defaults=defaults),
    )

    async def count_notices(server: LocalServer, text: str, agent: str) -> int:
        before = len(await list_received_texts(server))
        instance.model.will_reply(*CALL_AND_REPLY)
        await send_and_wait_for_answer(server, text, recipient=f"agent:{agent}")
        return len(await list_received_texts(server)) - before - 1

    async with instance.run() as server:
        assert await count_notices(server, "hello", "ada") == 1, "set for all agents"
        assert await count_notices(server, "hello", "bo") == 0, "set for the agent"
        await send_and_wait_for_answer(server, "/verbose full", recipient="agent:bo")
        assert await count_notices(server, "hello", "bo") == 2, "set for the session"
        assert await count_notices(server, "hello /verbose off", "bo") == 0, "set for the message"
        await send_and_wait_for_answer(server, "/verbose default", recipient="agent:bo")
        assert await count_notices(server, "hello", "bo") == 0, "the setting of the agent applies again"


async def test_displayed_tool_calls_are_sent_once_even_if_the_run_resumes_after_a_crash(
    instance: LocalInstance,
) -> None:
    instance.agents = (Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",))),)
    async with instance.run() as server:
        await send_and_wait_for_answer(server, "/verbose full")
        instance.model.will_reply(tool_call_reply("session_status"), tool_call_reply("append_line", text="milk"))
        await server.send("buy milk", origin=terminal_origin("maria"))
        (asked,) = await server.wait_for(
            lambda conn: approvals.list_open(conn, limit=5) or None, what="a pending approval"
        )
        server.crash()
    instance.model.will_reply("Noted.")
    async with instance.run() as server:
        await server.send(f"/allow {asked.id[:8]}", origin=terminal_origin("maria"))
        await server.wait_for(lambda _: not instance.model.script or None, what="the run to continue")
        await server.wait_until_idle()
        starts = [line.split(" ", 2)[:2] for line in await list_received_texts(server) if line[0] in "→←"]
        assert starts == [
            ["→", "session_status"],
            ["←", "session_status:"],
            ["→", "append_line"],
            ["←", "append_line:"],
        ]
        await assert_ledger_balances(server)


async def test_tool_calls_are_not_displayed_to_an_agent_that_asks_another_agent(instance: LocalInstance) -> None:
    """The run of another agent is shown in its own session."""
    instance.agents = tuple(Agent(name=name, model="scripted", verbose=Verbosity.FULL) for name in ("ada", "bo"))
    async with instance.run() as server:
        instance.model.will_reply(*CALL_AND_REPLY)
        receipt = await server.send("buy milk", sender="agent:bo", recipient="agent:ada")
        await server.wait_for_outcome(receipt.envelope)
        rows = await server.execute_sql("SELECT count(*) AS n FROM envelopes WHERE kind = 'notice'")
        assert rows[0].n == 0


# --- /reasoning ---


@pytest.mark.spec("C30")
@pytest.mark.parametrize(
    ("level", "sent", "shown"),
    [("off", [], ""), ("on", ["Reasoning:\nMilk, then."], ""), ("stream", [], "Milk, then."), ("", [], "Milk, then.")],
)
async def test_the_reasoning_display_option_sends_streams_or_hides_thinking(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch, level: str, sent: list[str], shown: str
) -> None:
    if level:
        assert (await send_and_wait_for_answer(server, f"/reasoning {level}")).startswith(
            f"Reasoning: {level}. Thinking is "
        )
    deltas = DeltaRecorder(server, monkeypatch)
    server.instance.model.will_reply(text_reply("Noted.", thinking="Milk, then."))
    assert await send_and_wait_for_answer(server, "buy milk") == "Noted."
    assert await list_received_texts(server) == [*sent, "Noted."]
    assert deltas.thinking_text == shown


# --- /usage ---


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
async def test_the_usage_display_option_shows_tokens_and_cost_in_a_footer_according_to_its_level(
    server: LocalServer, level: str, line: str
) -> None:
    assert (await send_and_wait_for_answer(server, f"/usage {level}")).startswith(
        f"Usage: {level}. {'Answers show no' if level == 'off' else 'Each answer shows'}"
    )
    server.instance.model.will_reply(text_reply("Noted.", usage=USAGE), text_reply("And again.", usage=USAGE))
    assert await send_and_wait_for_answer(server, "buy milk") == f"Noted.{line}"
    assert await send_and_wait_for_answer(server, "and bread") == f"And again.{line}"
    total = dict(each.split(": ", 1) for each in (await send_and_wait_for_answer(server, "/usage")).splitlines())
    assert (total["calls"], total["input-tokens"], total["output-tokens"]) == ("2", "2,400", "68")
    assert total["cost"] == "$0.0030" and total["usage-line"] == level


@pytest.mark.spec("C28.usage")
async def test_the_usage_command_counts_only_the_current_session(server: LocalServer) -> None:
    server.instance.model.will_reply(text_reply("Noted.", usage=USAGE))
    await send_and_wait_for_answer(server, "buy milk")
    other = await server.wait_for_answer((await server.send("/usage", sender="person:owner")).envelope)
    assert "calls: 0" in other.splitlines()


@pytest.mark.spec("C27")
async def test_standalone_display_directives_are_stored_with_the_session_and_answered_together(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        answer = await send_and_wait_for_answer(server, "/verbose on /reasoning on\n/queue followup cap:3")
        assert [line.split(":")[0] for line in answer.splitlines()] == ["Verbose", "Reasoning", "Queue"]
        assert instance.model.prompts == []
        await send_and_wait_for_answer(server, "/usage tokens")
    async with instance.run() as server:
        ((session,),) = await server.execute_sql("SELECT id FROM sessions")
        kept = await server.get_session(session)
        assert kept.options.manner == DisplayOptions(
            verbose=Verbosity.ON, reasoning=ReasoningDisplay.ON, usage=UsageFooter.TOKENS
        )
        assert (kept.queue.mode, kept.queue.cap) == ("followup", 3)
        await send_and_wait_for_answer(server, "/new")
        assert (await server.get_session(session)).options.manner == kept.options.manner, "a new context keeps it"


@pytest.mark.parametrize("command", ["/verbose loud", "/reasoning maybe", "/usage all", "/elevated higher"])
async def test_an_invalid_display_level_is_explained_and_changes_nothing(server: LocalServer, command: str) -> None:
    name, word = command[1:].split()
    answer = await send_and_wait_for_answer(server, command)
    assert answer.startswith(f"Invalid level '{word}' for /{name}. It must be one of: off, ")
    ((session,),) = await server.execute_sql("SELECT id FROM sessions")
    assert (await server.get_session(session)).options.manner == DisplayOptions()
