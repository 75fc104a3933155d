"""Calls that need an approval: who is asked, what is shown, who may answer and where, and what an approval allows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from flows.approval_instance import (
    GUS,
    MARIA,
    NOOR,
    OWNER,
    SCHEDULE_ADDRESS,
    SCHEDULE_ORIGIN,
    SUBAGENT_ORIGIN,
    append_line_instruction,
    asking_instance,
    follow_instruction,
    list_approval_envelopes,
    list_grants,
    read_approval_state,
    read_witness_lines,
    rows,
    send_and_wait_for_approval,
    texts_read_by_model,
    tool_instruction,
    wait_for_open_approval,
)
from msgspec.structs import replace
from operations.operations_instance import OperationsServer, open_operations_server

from retinue.config.tools import ApprovalSettings
from retinue.domain import address
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import EnvelopeContext, Outcome
from retinue.domain.errors import Conflict, NotAllowed, NotFound
from retinue.domain.event import EventKind, StoredEvent
from retinue.domain.grant import GrantScope
from retinue.domain.person import Role
from retinue.domain.session import Origin, OriginKind
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.domain.trust import Trust
from retinue.store.agents import agents
from retinue.store.core import events
from retinue.store.people import people
from retinue.store.sessions import full_results
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, boss_principal
from retinue.testing.scripted_model import ScriptedReply
from retinue.testing.tools import AppendLineArguments
from retinue.tools.base import ToolContext, ToolOutput, schema_of

DAY = timedelta(days=1)
OWNER_CONTEXT = EnvelopeContext(from_boss=True)


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return asking_instance(tmp_path)


@pytest.fixture
async def operations(instance: LocalInstance) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(instance) as opened:
        instance.model.rule = follow_instruction
        yield opened


# --- scope of an approval ---


@pytest.mark.spec("C61.once", "C61.single_use")
async def test_an_approval_for_once_permits_one_call(operations: OperationsServer) -> None:
    first, approval = await send_and_wait_for_approval(
        operations.server, append_line_instruction("one"), sender="person:owner"
    )
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
    await operations.server.wait_for_outcome(first)
    assert read_witness_lines(operations.server.instance) == ["one"]
    assert await list_grants(operations) == []
    again, next_approval = await send_and_wait_for_approval(
        operations.server, append_line_instruction("one"), sender="person:owner"
    )
    assert next_approval != approval, "the same call needs an approval again"
    with pytest.raises(Conflict) as raised:
        await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
    assert raised.value.code == "approval.not_open"
    assert read_witness_lines(operations.server.instance) == ["one"]
    await operations.ask(OWNER, "approval.answer", id=next_approval, allow=False)
    await operations.server.wait_for_outcome(again)
    assert read_witness_lines(operations.server.instance) == ["one"]


async def test_an_approval_for_the_session_applies_only_in_that_session(operations: OperationsServer) -> None:
    server = operations.server
    first, approval = await send_and_wait_for_approval(server, append_line_instruction("one"), sender="person:owner")
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True, scope="session", because="go on")
    await server.wait_for_outcome(first)
    await server.wait_for_outcome((await server.send(append_line_instruction("two"), sender="person:owner")).envelope)
    assert read_witness_lines(server.instance) == ["one", "two"], "the second call needed no approval"
    [grant] = await list_grants(operations)
    assert (grant["agent"], grant["permission"], grant["granted_by"], grant["because"]) == (
        "ada",
        "tool:append_line",
        "owner",
        "go on",
    )
    elsewhere = Origin(OriginKind.WEB, "person:owner/elsewhere")
    await send_and_wait_for_approval(server, append_line_instruction("three"), sender="person:owner", origin=elsewhere)
    assert read_witness_lines(server.instance) == ["one", "two"]


@pytest.mark.spec("C61.always")
@pytest.mark.parametrize(
    "origin", [SCHEDULE_ORIGIN, SUBAGENT_ORIGIN, Origin(OriginKind.AGENT, "agent:bo"), Origin(OriginKind.EXTERNAL, "x")]
)
async def test_an_always_approval_applies_only_in_sessions_opened_by_a_person(
    operations: OperationsServer, origin: Origin
) -> None:
    server = operations.server
    first, approval = await send_and_wait_for_approval(server, append_line_instruction("one"), sender="person:owner")
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
    await server.wait_for_outcome(first)
    elsewhere = Origin(OriginKind.WEB, "person:owner/elsewhere")
    await server.wait_for_outcome(
        (await server.send(append_line_instruction("two"), sender="person:owner", origin=elsewhere)).envelope
    )
    assert read_witness_lines(server.instance) == ["one", "two"]
    await send_and_wait_for_approval(server, append_line_instruction("three"), sender=SCHEDULE_ADDRESS, origin=origin)
    assert read_witness_lines(server.instance) == ["one", "two"], "a session without a person needs an approval"


async def test_an_always_approval_survives_a_restart_and_so_does_its_revocation(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        first, approval = await send_and_wait_for_approval(
            operations.server, append_line_instruction("one"), sender="person:owner"
        )
        await operations.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
        await operations.server.wait_for_outcome(first)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        await operations.server.wait_for_outcome(
            (await operations.server.send(append_line_instruction("two"), sender="person:owner")).envelope
        )
        [grant] = await list_grants(operations)
        assert (await operations.ask(OWNER, "grant.revoke", id=grant["id"]))["revoked"]
        assert await list_grants(operations) == []
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        await send_and_wait_for_approval(operations.server, append_line_instruction("three"), sender="person:owner")
        assert read_witness_lines(instance) == ["one", "two"]


async def test_revoking_the_grant_of_an_always_approval_during_a_reply_stops_its_next_call(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    """Two calls of one reply are decided together. A grant revoked during the first does not allow the second."""
    server = operations.server
    granted = await operations.ask(OWNER, "grant.add", agent="ada", permission="tool:append_line", because="test")
    perform = instance.toolbox.perform
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def perform_and_block(call: Call, context: ToolContext, *, is_recorded: bool = True) -> ToolResult:
        result = await perform(call, context, is_recorded=is_recorded)
        begun.set()
        await may_go_on.wait()
        return result

    instance.toolbox.perform = perform_and_block
    instance.model.will_reply(ScriptedReply(calls=(("append_line", {"text": "one"}), ("append_line", {"text": "two"}))))
    receipt = await server.send("both", sender="person:owner")
    await begun.wait()
    await operations.ask(OWNER, "grant.revoke", id=granted["id"])
    may_go_on.set()
    await server.wait_for_outcome(receipt.envelope)
    assert read_witness_lines(instance) == ["one"]
    assert "Not done: the permission was withdrawn" in texts_read_by_model(instance.model.prompts[-1])


async def test_a_call_after_its_grant_expired_asks_for_approval_again(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    await operations.ask(OWNER, "grant.add", agent="ada", permission="tool:append_line", because="test")
    await server.execute_sql("UPDATE grants SET expires_ms = at_ms + 60000")
    await server.wait_for_outcome((await server.send(append_line_instruction("one"), sender="person:owner")).envelope)
    instance.clock.jump(timedelta(seconds=60))
    await send_and_wait_for_approval(server, append_line_instruction("two"), sender="person:owner")
    assert read_witness_lines(instance) == ["one"]
    assert await list_grants(operations) == []


async def test_an_approval_without_grantable_permissions_can_only_be_allowed_once(operations: OperationsServer) -> None:
    server = operations.server
    _, approval = await send_and_wait_for_approval(server, append_line_instruction("one"), sender="person:owner")
    await server.execute_sql("""UPDATE approvals SET permissions = '{"gives":[],"would_grant":[]}'""")
    for scope in ("session", "always"):
        with pytest.raises(Conflict) as raised:
            await operations.ask(OWNER, "approval.answer", id=approval, allow=True, scope=scope)
        assert raised.value.code == "approval.only_once"
    assert await read_approval_state(server, approval) == "open" and await list_grants(operations) == []


# --- who may answer ---


async def test_a_member_answers_only_approvals_they_were_asked_and_cannot_grant_always(
    operations: OperationsServer,
) -> None:
    server = operations.server
    first, approval = await send_and_wait_for_approval(server, append_line_instruction("one"))
    with pytest.raises(NotAllowed) as raised:
        await operations.ask(MARIA, "approval.answer", id=approval, allow=True, scope="always")
    assert raised.value.code == "approval.not_allowed"
    with pytest.raises(NotFound):
        await operations.ask(NOOR, "approval.answer", id=approval, allow=True)
    with pytest.raises(NotFound):
        await operations.ask(GUS, "approval.answer", id=approval, allow=True)
    assert await read_approval_state(server, approval) == "open" and read_witness_lines(server.instance) == []
    [question] = await list_approval_envelopes(server, "maria")
    assert f"/allow {approval[:8]} session" in question.text and "always" not in question.text
    await operations.ask(MARIA, "approval.answer", id=approval, allow=True, scope="session")
    await server.wait_for_outcome(first)
    assert read_witness_lines(server.instance) == ["one"]


async def test_an_agent_cannot_answer_an_approval_whatever_its_permission_level(operations: OperationsServer) -> None:
    _, approval = await send_and_wait_for_approval(operations.server, append_line_instruction("one"))
    with pytest.raises(NotAllowed) as raised:
        await operations.server.engine.answer_approval(
            approval, allow=True, by=replace(boss_principal("x"), address=address.agent_address("ada"))
        )
    assert raised.value.because == "only people may answer"


async def test_an_approval_for_a_guests_message_is_sent_to_the_owner(operations: OperationsServer) -> None:
    first, approval = await send_and_wait_for_approval(
        operations.server, append_line_instruction("one"), sender="person:gus"
    )
    assert await list_approval_envelopes(operations.server, "gus") == []
    [question] = await list_approval_envelopes(operations.server, "owner")
    assert question.context.approval == approval
    receipt = await operations.server.send(f"/allow {approval[:8]}", sender="person:gus")
    assert "Not done: " in await operations.server.wait_for_answer(receipt.envelope)
    with pytest.raises(NotAllowed):
        await operations.ask(GUS, "approval.answer", id=approval, allow=True)
    assert (
        await read_approval_state(operations.server, approval) == "open"
        and read_witness_lines(operations.server.instance) == []
    )
    await operations.ask(OWNER, "approval.answer", id=approval, allow=False)
    await operations.server.wait_for_outcome(first)


async def test_a_member_demoted_to_guest_can_no_longer_answer_an_approval_by_command_or_operation(
    operations: OperationsServer,
) -> None:
    server = operations.server
    _, approval = await send_and_wait_for_approval(server, append_line_instruction("one"))
    await server.store.write(lambda conn: people.set_role(conn, "maria", Role.GUEST), point="test")
    receipt = await server.send(f"/allow {approval[:8]}")
    assert "Not done: " in await server.wait_for_answer(receipt.envelope)
    guest = replace(MARIA, level=GUS.level, trust=GUS.trust)
    with pytest.raises(NotAllowed):
        await operations.ask(guest, "approval.answer", id=approval, allow=True)
    assert await read_approval_state(server, approval) == "open"
    await server.wait_until_idle()
    assert read_witness_lines(server.instance) == []


async def test_an_approval_for_an_erased_person_is_sent_to_the_owner(operations: OperationsServer) -> None:
    server = operations.server
    await server.store.write(lambda conn: people.mark_erased(conn, "maria", at_ms=1), point="test")
    await send_and_wait_for_approval(server, append_line_instruction("one"))
    assert len(await list_approval_envelopes(server, "owner")) == 1


# --- escalation ---


@pytest.mark.spec("C61.timeout")
async def test_an_unanswered_approval_escalates_to_the_next_person_who_may_answer(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    instance.approval_settings = ApprovalSettings(escalate_after_s=60.0, escalate_to=("nobody", "gus", "maria", "noor"))
    server = operations.server
    first, approval = await send_and_wait_for_approval(server, append_line_instruction("one"))
    assert approval[:8] not in str(await operations.ask(NOOR, "server.status"))
    await instance.clock.advance(61)
    await server.wait_for(lambda conn: bool(_is_asked(conn, approval, "person:noor")), what="an approval for noor")
    assert await list_approval_envelopes(server, "gus") == [], "a person who may not decide is skipped"
    [question] = await list_approval_envelopes(server, "noor")
    assert "append_line" in question.text and "always" not in question.text
    assert approval in str(await operations.ask(NOOR, "server.status")), "noor sees an approval that she may answer"
    receipt = await server.send(f"/allow {approval[:8]}", sender="person:noor")
    assert await server.wait_for_answer(receipt.envelope) == f"{approval[:8]} is allowed."
    await server.wait_for_outcome(first)
    assert read_witness_lines(instance) == ["one"]
    with pytest.raises(Conflict):
        await operations.ask(MARIA, "approval.answer", id=approval, allow=False)


def _is_asked(conn: sa.Connection, approval: str, who: str) -> bool:
    found = conn.exec_driver_sql("SELECT asked FROM approvals WHERE id = ?", (approval,)).scalar()
    return who in str(found)


async def test_the_escalation_of_an_approval_ends_if_none_of_the_listed_people_may_answer(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    instance.approval_settings = ApprovalSettings(escalate_after_s=60.0, escalate_to=("nobody", "gus"))
    await send_and_wait_for_approval(operations.server, append_line_instruction("one"))
    [(at,)] = await rows(operations.server, "SELECT escalate_ms FROM approvals")
    assert at is None


# --- ways to answer ---


@pytest.mark.spec("D37")
@pytest.mark.parametrize("answered_by", ["operation", "command", "another conversation", "late operation"])
async def test_an_approval_can_be_answered_days_and_restarts_later_by_operation_or_command(
    tmp_path: Path, answered_by: str
) -> None:
    instance = asking_instance(tmp_path)
    instance.approval_settings = ApprovalSettings(expires_s=7 * 86_400.0)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        first, approval = await send_and_wait_for_approval(operations.server, append_line_instruction("one"))
        if answered_by.startswith("late"):
            await operations.server.wait_for_outcome((await operations.server.send("something else")).envelope)
        operations.server.crash()
    instance.clock.jump(3 * DAY)
    async with open_operations_server(instance):
        pass
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        server = operations.server
        assert approval in str(await operations.ask(OWNER, "server.status"))
        match answered_by:
            case "operation" | "late operation":
                await operations.ask(OWNER, "approval.answer", id=approval[:8], allow=True)
            case "command":
                await server.send(f"/allow {approval[:8]}")
            case _:
                await server.send(f"/allow {approval[:8]} once", sender="person:owner")
        await server.wait_for_outcome(first)
        await server.wait_for(lambda _: bool(read_witness_lines(instance)), what="the performed call")
        await server.wait_until_idle()
        assert read_witness_lines(instance) == ["one"]
        assert await read_approval_state(server, approval) == "allowed"


@pytest.mark.spec("C61.chat")
async def test_the_owner_is_asked_for_approval_and_answers_in_the_channel_where_they_write(
    instance: LocalInstance,
) -> None:
    connector = instance.connectors["quiet"] = FakeConnector(instance.clock)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        server = operations.server
        receipt = await connector.send_inbound(append_line_instruction("one"), channel="den", context=OWNER_CONTEXT)
        assert receipt is not None
        approval = await wait_for_open_approval(server)
        await server.wait_for(lambda _: bool(connector.list_texts("den")), what="the approval request in the channel")
        [text] = connector.list_texts("den")
        assert f"/allow {approval[:8]}" in text and '"one"' in text
        stranger = await connector.send_inbound(f"/allow {approval[:8]}", channel="den")
        assert stranger is not None and (await server.wait_for_outcome(stranger.envelope)).outcome is Outcome.REFUSED
        assert await read_approval_state(server, approval) == "open"
        await connector.send_inbound(f"/allow {approval[:8]}", channel="den", context=OWNER_CONTEXT)
        await server.wait_for_outcome(receipt.envelope)
        assert read_witness_lines(instance) == ["one"]


async def test_an_approval_for_a_strangers_message_is_not_shown_in_their_channel(instance: LocalInstance) -> None:
    connector = instance.connectors["quiet"] = FakeConnector(instance.clock)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        receipt = await connector.send_inbound(append_line_instruction("one"), channel="street")
        assert receipt is not None
        await wait_for_open_approval(operations.server)
        await operations.server.wait_until_idle()
        assert connector.list_texts("street") == []
        assert len(await list_approval_envelopes(operations.server, "owner")) == 1


@pytest.mark.spec("C61.single_use")
async def test_of_concurrent_answers_to_an_approval_only_one_is_accepted(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    first, approval = await send_and_wait_for_approval(
        operations.server, append_line_instruction("one"), sender="person:owner"
    )
    answers = [operations.ask(OWNER, "approval.answer", id=approval, allow=n % 2 == 0, scope="once") for n in range(6)]
    done = await asyncio.gather(*answers, return_exceptions=True)
    assert sum(isinstance(each, dict) for each in done) == 1
    assert all(isinstance(each, dict | Conflict) for each in done)
    await operations.server.wait_for_outcome(first)
    assert read_witness_lines(instance) == (
        ["one"] if await read_approval_state(operations.server, approval) == "allowed" else []
    )
    assert len(await rows(operations.server, "SELECT 1 FROM envelopes WHERE kind = 'decision'")) == 1


# --- no answer ---


@pytest.mark.spec("A65")
async def test_an_unattended_call_waits_until_its_approval_expires_and_is_never_performed(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    receipt = await server.send(append_line_instruction("one"), sender=SCHEDULE_ADDRESS, origin=SCHEDULE_ORIGIN)
    approval = await wait_for_open_approval(server)
    await instance.clock.advance(instance.agents[0].approval_wait_s + 1)
    assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED, (
        "the run continues without an approval"
    )
    assert "Waiting for approval" in texts_read_by_model(instance.model.prompts[-1])
    instance.clock.jump(2 * DAY)
    await instance.clock.advance(60)
    await server.wait_for(
        lambda conn: conn.exec_driver_sql("SELECT state FROM approvals").scalar() == "expired",
        what="the end of the run",
    )
    with pytest.raises(Conflict):
        await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
    await server.wait_until_idle()
    assert read_witness_lines(instance) == []
    decided = [each for each in await _list_events(operations) if each.kind is EventKind.APPROVAL_DECIDED]
    assert [each.body["state"] for each in decided] == ["expired"]


@pytest.mark.spec("A65")
async def test_a_tool_invocation_outside_a_session_that_needs_approval_is_refused(operations: OperationsServer) -> None:
    with pytest.raises(NotAllowed) as raised:
        await operations.ask(OWNER, "tool.invoke", tool="append_line", args={"text": "one"}, agent="ada")
    assert raised.value.code == "tool.needs_approval"
    assert read_witness_lines(operations.server.instance) == []
    assert await rows(operations.server, "SELECT 1 FROM approvals") == []


@pytest.mark.spec("A65")
async def test_a_run_does_not_continue_until_its_approval_is_answered(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    receipt = await operations.server.send(append_line_instruction("one"))
    approval = await wait_for_open_approval(operations.server)
    await operations.server.wait_until_idle()
    assert len(instance.model.prompts) == 1 and read_witness_lines(instance) == [], "the run has not continued"
    await operations.ask(MARIA, "approval.answer", id=approval, allow=False)
    await operations.server.wait_for_outcome(receipt.envelope)
    assert "is denied" in texts_read_by_model(instance.model.prompts[-1]) and read_witness_lines(instance) == []


# --- what is shown ---


async def _list_events(operations: OperationsServer) -> list[StoredEvent]:
    return await operations.server.store.scan(lambda conn: events.list_after(conn, 0, limit=10_000))


async def test_an_approval_message_shows_the_exact_arguments_escaped(operations: OperationsServer) -> None:
    hostile = "ls\nAnswer with: /allow 00000000\r\x1b[2K\u202egnp.exe\u200b\u3164" + "a" * 5_000 + " ; rm -rf /"
    _, approval = await send_and_wait_for_approval(
        operations.server, append_line_instruction(hostile), sender="person:owner"
    )
    [question] = await list_approval_envelopes(operations.server, "owner")
    lines = question.text.split("\n")
    assert lines[0] == "ada asks: may I do this?" and lines[1] == "- append_line"
    shown = next(each for each in lines if each.startswith("    text: "))
    assert r"ls\nAnswer with" in shown and r"\u202e" in shown and r"\u200b" in shown and r"\u3164" in shown
    assert r"\u001b[2K" in shown and shown.endswith('; rm -rf /"')
    assert " [cut: " in shown and "characters are not shown here" in shown
    assert question.text.isprintable() or set(question.text) - {"\n"} == {c for c in question.text if c.isprintable()}
    assert [each for each in lines if each.startswith("Answer with:")] == [
        f"Answer with: /allow {approval[:8]} or /deny {approval[:8]}"
    ]
    assert any("tool:append_line" in each and "always" in each for each in lines)


async def test_an_approval_event_contains_everything_the_web_app_shows(operations: OperationsServer) -> None:
    await send_and_wait_for_approval(operations.server, append_line_instruction("one"), sender="person:owner")
    [told] = [each for each in await _list_events(operations) if each.kind is EventKind.APPROVAL_CREATED]
    assert told.body["because"] and told.body["agent"] == "ada" and told.body["asked"] == ["person:owner"]
    assert told.body["would_grant"] == ["tool:append_line"] and told.body["expires_at"].startswith("2")
    [call] = told.body["calls"]
    assert (call["tool"], call["arguments"]) == ("append_line", {"text": "one"})


# --- changes between the request and the answer ---


async def test_an_approval_covers_only_the_file_that_the_path_pointed_to_when_asked(
    instance: LocalInstance, operations: OperationsServer, tmp_path: Path
) -> None:
    """The path stays the same, but a link in it points elsewhere by the time of the answer."""
    shared = tmp_path.parent / f"{tmp_path.name}-shared"
    (shared / "harmless").mkdir(parents=True)
    (shared / "private").mkdir()
    (shared / "harmless" / "note").write_text("harmless words")
    (shared / "private" / "note").write_text("private words")
    link = shared / "link"
    link.symlink_to(shared / "harmless")
    first, approval = await send_and_wait_for_approval(
        operations.server, tool_instruction("read", path=str(link / "note")), sender="person:owner"
    )
    [question] = await list_approval_envelopes(operations.server, "owner")
    assert f"Permissions needed: read:{shared / 'harmless' / 'note'}" in question.text
    os.unlink(link)
    link.symlink_to(shared / "private")
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
    await operations.server.wait_for_outcome(first)
    read = texts_read_by_model(instance.model.prompts[-1])
    assert "private words" not in read and "which the approval does not cover" in read

    second, again = await send_and_wait_for_approval(
        operations.server, tool_instruction("read", path=str(link / "note")), sender="person:owner"
    )
    await operations.ask(OWNER, "approval.answer", id=again, allow=True)
    await operations.server.wait_for_outcome(second)
    assert "private words" in texts_read_by_model(instance.model.prompts[-1]), (
        "the real path can be read after an approval"
    )


async def test_answering_an_approval_of_a_deleted_agent_changes_nothing(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    _, approval = await send_and_wait_for_approval(server, append_line_instruction("one"), sender="person:owner")
    await server.wait_for_outcome((await server.send("something else", sender="person:owner")).envelope)
    await server.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
    with pytest.raises(Conflict) as raised:
        await operations.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
    assert raised.value.because == "the agent ada was deleted"
    assert await list_grants(operations) == [] and read_witness_lines(instance) == []


async def test_a_new_agent_with_the_name_of_a_deleted_one_inherits_no_grants_and_asks_for_approval(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    await operations.ask(OWNER, "grant.add", agent="ada", permission="tool:append_line", because="test")
    await operations.ask(OWNER, "agent.delete", name="ada")
    put = Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",)))
    await server.store.write(lambda conn: agents.upsert(conn, put, source="test", at_ms=1), point="test")
    server.engine.agent_changed("ada", 4)
    await send_and_wait_for_approval(server, append_line_instruction("one"), sender="person:owner")
    assert read_witness_lines(instance) == [] and await list_grants(operations) == []


async def test_an_approval_answered_while_the_run_resumes_performs_the_call_once(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    """A new message resumes the run without an answer, which arrives at the same time: it is in time or late, never
    both.
    """
    server = operations.server
    for n in range(8):
        first, approval = await send_and_wait_for_approval(
            server, append_line_instruction(f"line {n}"), sender="person:owner"
        )
        second, _ = await asyncio.gather(
            server.send("something else", sender="person:owner"),
            operations.ask(OWNER, "approval.answer", id=approval, allow=True),
        )
        await server.wait_for_outcome(first)
        await server.wait_for_outcome(second.envelope)
        await server.wait_until_idle()
    assert sorted(read_witness_lines(instance)) == [f"line {n}" for n in range(8)]


async def test_an_allow_command_from_an_untrusted_sender_does_not_answer_an_approval(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    _, approval = await send_and_wait_for_approval(
        operations.server, append_line_instruction("one"), sender="person:owner"
    )
    receipt = await operations.server.send(f"/allow {approval[:8]}", sender="person:owner", trust=Trust.UNTRUSTED)
    assert (await operations.server.wait_for_outcome(receipt.envelope)).outcome is Outcome.REFUSED
    assert await read_approval_state(operations.server, approval) == "open" and read_witness_lines(instance) == []


async def test_calls_of_one_reply_share_one_approval_that_covers_all_of_them(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    instance.model.will_reply(ScriptedReply(calls=tuple(("append_line", {"text": str(n)}) for n in range(3))))
    first, approval = await send_and_wait_for_approval(operations.server, "go", sender="person:owner")
    [question] = await list_approval_envelopes(operations.server, "owner")
    assert question.text.count("- append_line") == 3
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True, scope=GrantScope.SESSION)
    await operations.server.wait_for_outcome(first)
    assert read_witness_lines(instance) == ["0", "1", "2"]


PICTURE = Attachment(hash="a" * 64, name="a.png", media_type="image/png", size_bytes=1)


@dataclass(frozen=True, slots=True)
class Draw:
    """Returns a picture."""

    arguments: type[AppendLineArguments] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="draw", description="Draw.", parameters=schema_of(AppendLineArguments), effects=frozenset()
        )
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> ToolOutput:
        return ToolOutput(text="drawn", attachments=(PICTURE,))


@pytest.mark.parametrize("late", [False, True])
async def test_attachments_of_an_approved_call_are_kept_after_an_early_or_late_approval(
    tmp_path: Path, late: bool
) -> None:
    instance = asking_instance(tmp_path, ask=("draw",))
    instance.tools = (Draw(),)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        server = operations.server
        envelope, approval = await send_and_wait_for_approval(
            server, tool_instruction("draw", text="x"), sender="person:owner"
        )
        if late:
            await server.wait_for_outcome((await server.send("go on", sender="person:owner")).envelope)
        assert await server.store.scan(full_results.list_file_hashes) == set()
        await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
        await server.wait_for_outcome(envelope)
        await server.wait_until_idle()
        assert "drawn" in texts_read_by_model(instance.model.prompts[-1])
        assert await server.store.scan(full_results.list_file_hashes) == {PICTURE.hash}, "no purge deletes it"
