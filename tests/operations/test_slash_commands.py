"""Slash commands in a session: the server answers them at once, without a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

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
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made
        now_ms = to_ms(made.services.clock.now())
        checked = await made.server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
        assert checked.is_ok, checked.lines()


async def send_command(server: OperationsServer, text: str, **kw: Any) -> str:
    """Send a command as Maria, and return the server's answer."""
    sent = await server.ask(MARIA, "envelope.send", to="agent:ada", text=text, **kw)
    assert sent["outcome"] == "answered", sent
    return await server.server.wait_for_answer(sent["envelope"])


async def test_the_slash_command_help_lists_every_command_without_a_model_call(server: OperationsServer) -> None:
    answer = await send_command(server, "/help")
    for name in CommandName:
        assert f"/{name}" in answer
    assert server.server.instance.model.prompts == []


async def test_a_message_with_two_slashes_reaches_the_agent_with_one(server: OperationsServer) -> None:
    envelope, _ = await server.converse(MARIA, "//help")
    assert (await server.server.get_envelope(envelope)).text == "/help"
    assert len(server.server.instance.model.prompts) == 1


@pytest.mark.parametrize("text", ["/hepl", "/dance"])
async def test_an_unknown_slash_command_is_answered_with_a_suggestion(server: OperationsServer, text: str) -> None:
    answer = await send_command(server, text)
    assert f"Unknown command {text}." in answer
    assert "/help lists the commands" in answer
    if text == "/hepl":
        assert "Did you mean /help?" in answer


async def test_the_slash_commands_status_context_and_whoami_describe_the_session_and_sender(
    server: OperationsServer,
) -> None:
    _, session = await server.converse(MARIA, "hello")
    status = await send_command(server, "/status")
    assert f"session: {session[:8]}" in status and "agent: ada" in status and "run: none" in status
    assert "records-in-context: 3" in await send_command(server, "/context")
    assert "You are person:maria" in await send_command(server, "/whoami")


async def test_the_slash_command_stop_cancels_the_run_and_the_waiting_envelopes(server: OperationsServer) -> None:
    instance = server.server.instance
    instance.model.rule = lambda prompt: text_reply("too late", after_s=3600)
    running = await server.ask(MARIA, "envelope.send", to="agent:ada", text="long work")
    waiting = await server.ask(MARIA, "envelope.send", to="agent:ada", text="and more")
    assert await send_command(server, "/stop") == "1 run stopped, 1 waiting cleared."
    for sent in (running, waiting):
        assert (await server.server.wait_for_outcome(sent["envelope"])).outcome is Outcome.CANCELLED
    await server.server.wait_until_idle()
    assert await send_command(server, "/abort") == "Nothing was running or waiting here."


async def test_the_slash_command_reset_starts_a_new_context_with_its_text(server: OperationsServer) -> None:
    _, session = await server.converse(MARIA, "hello")
    assert "The new context starts with your text." in await send_command(server, "/reset I like tea")
    records = await server.server.list_records(session)
    assert records[-1].kind is RecordKind.RESET
    await server.converse(MARIA, "and now?")
    prompt = server.server.instance.model.prompts[-1]
    assert "I like tea" in str(prompt.records[0].body)
    assert all("hello" not in str(record.body) for record in prompt.records)


async def test_the_slash_command_new_with_text_starts_a_run_on_the_text_in_a_new_context(
    server: OperationsServer,
) -> None:
    await server.converse(MARIA, "hello")
    await send_command(server, "/new what is new?")
    await server.server.wait_for(
        lambda _: len(server.server.instance.model.prompts) == 2, what="a run with the text after the command"
    )
    await server.server.wait_until_idle()
    prompt = server.server.instance.model.prompts[-1]
    assert "what is new?" in str(prompt.records[-1].body)
    assert all("hello" not in str(record.body) for record in prompt.records)


async def test_the_slash_command_allow_decides_an_approval(server: OperationsServer) -> None:
    def ask_first(conn: Any) -> None:
        found = agents.find(conn, "ada")
        assert found is not None
        agents.upsert(conn, replace(found, tools=ToolRules(ask=("read",))), source="test", at_ms=2)

    await server.server.store.write(ask_first, point="test")
    instance = server.server.instance
    instance.model.will_reply(tool_call_reply("read", path="SOUL.md"), "thank you")
    sent = await server.ask(MARIA, "envelope.send", to="agent:ada", text="look")
    [approval] = await server.server.wait_for(
        lambda conn: approvals.list_open(conn, limit=5) or None, what="a question"
    )
    assert "Not done" in await send_command(server, "/allow ffffffff")
    assert "Not done" in await send_command(server, "/allow")
    assert await send_command(server, f"/allow {approval.id[:8]}") == f"{approval.id[:8]} is allowed."
    assert await server.server.wait_for_answer(sent["envelope"]) == "thank you"
    assert "no longer open" in await send_command(server, f"/deny {approval.id[:8]}")


async def test_a_slash_command_of_an_untrusted_sender_is_refused_without_an_answer(server: OperationsServer) -> None:
    receipt = await server.server.send(
        "/stop", sender="channel:quiet:lobby", recipient="agent:ada", trust=Trust.UNTRUSTED
    )
    settled = await server.server.wait_for_outcome(receipt.envelope)
    assert settled.outcome is Outcome.REFUSED
    assert settled.because.startswith("command-not-allowed")
    assert settled.answer is None
    rows = await server.server.execute_sql(
        "SELECT count(*) AS n FROM envelopes WHERE reply_to = :id", id=receipt.envelope
    )
    assert rows[0].n == 0


async def test_a_slash_at_the_start_of_a_message_of_an_agent_is_no_slash_command(server: OperationsServer) -> None:
    sent = await server.ask(agent("bo"), "envelope.send", to="agent:ada", text="/stop")
    await server.server.wait_for_outcome(sent["envelope"])
    assert len(server.server.instance.model.prompts) >= 1


async def test_a_slash_command_repeated_with_its_idempotency_key_is_carried_out_once(server: OperationsServer) -> None:
    _, session = await server.converse(MARIA, "hello")
    first, again = [await server.ask(MARIA, "envelope.send", to="agent:ada", text="/reset", key="k") for _ in range(2)]
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    marks = [record for record in await server.server.list_records(session) if record.kind is RecordKind.RESET]
    assert len(marks) == 1


async def test_a_slash_command_to_an_unknown_agent_is_not_found(server: OperationsServer) -> None:
    with pytest.raises(NotFound):
        await server.ask(MARIA, "envelope.send", to="agent:nobody", text="/help")
