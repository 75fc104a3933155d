"""Permissions that an agent requests or grants to another: who is asked, where the decision goes, what it allows."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from flows.approval_instance import (
    MARIA,
    OWNER,
    SCHEDULE_ADDRESS,
    SCHEDULE_ORIGIN,
    SUBAGENT_ORIGIN,
    asking_instance,
    follow_instruction,
    list_approval_envelopes,
    list_grants,
    read_approval_state,
    rows,
    texts_read_by_model,
    tool_instruction,
    tool_outputs,
    wait_for_open_approval,
)
from operations.operations_instance import OperationsServer, open_operations_server

from retinue.config.tools import ApprovalSettings
from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeContext, Outcome
from retinue.domain.errors import Conflict
from retinue.domain.session import Origin, OriginKind
from retinue.domain.trust import Trust
from retinue.engine import approvals
from retinue.store.people import people
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance

OTHER_ORIGIN = Origin(OriginKind.WEB, "person:owner/elsewhere")
REQUEST_WEB_INSTRUCTION = tool_instruction("request_permission", permission="web", reason="to look up the trains")


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    instance = asking_instance(tmp_path, ask=())
    instance.agents = (*instance.agents, Agent(name="cleo", model="scripted"))
    return instance


@pytest.fixture
async def operations(instance: LocalInstance) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(instance) as opened:
        instance.model.rule = follow_instruction
        yield opened


async def silent_notices(operations: OperationsServer) -> list[tuple[str, str, str]]:
    """Recipient, text and outcome of every silent system envelope."""
    found = await rows(
        operations.server,
        "SELECT e.recipient, e.text, o.outcome FROM envelopes e LEFT JOIN outcomes o ON o.envelope = e.id"
        " WHERE e.silent AND e.kind = 'system' ORDER BY e.seq",
    )
    return [tuple(row) for row in found]


@pytest.mark.spec("D32.at_once", "D32.resumes")
@pytest.mark.parametrize("allow", [True, False])
async def test_a_permission_request_returns_at_once_and_its_decision_starts_a_run_of_the_requester(
    instance: LocalInstance, operations: OperationsServer, allow: bool
) -> None:
    server = operations.server
    receipt = await server.send(REQUEST_WEB_INSTRUCTION, sender="person:owner")
    assert await server.wait_for_answer(receipt.envelope) == "ok", "the run does not wait"
    approval = await wait_for_open_approval(server)
    assert f"Asked person:owner for web (approval {approval[:8]})" in texts_read_by_model(instance.model.prompts[-1])
    [question] = await list_approval_envelopes(server, "owner")
    assert question.text.split("\n")[:3] == [
        "ada asks: may I have web?",
        "Because: to look up the trains",
        f"Answer with: /allow {approval[:8]} (for this conversation), /allow {approval[:8]} always, "
        f"or /deny {approval[:8]}",
    ]
    before = len(instance.model.prompts)
    await operations.ask(OWNER, "approval.answer", id=approval, allow=allow, because="as I said")
    [(decision,)] = await rows(server, "SELECT id FROM envelopes WHERE kind = 'decision'")
    assert (await server.wait_for_outcome(decision)).outcome is Outcome.ANSWERED
    assert len(instance.model.prompts) == before + 1
    read = texts_read_by_model(instance.model.prompts[-1])
    assert f"owner {'allowed' if allow else 'denied'} web" in read and "Comment: as I said" in read
    assert [grant["permission"] for grant in await list_grants(operations)] == (["web"] if allow else [])


@pytest.mark.spec("D33", "D82")
@pytest.mark.parametrize("tool", ["request_permission", "request_permission_via_parent"])
@pytest.mark.parametrize(
    "origin", [SCHEDULE_ORIGIN, Origin(OriginKind.AGENT, "agent:bo"), Origin(OriginKind.EXTERNAL, "job")]
)
async def test_a_background_permission_request_goes_to_the_last_active_person_and_notifies_their_agent(
    instance: LocalInstance, operations: OperationsServer, tool: str, origin: Origin
) -> None:
    server = operations.server
    talk = await server.send("hello", sender="person:maria", recipient="agent:cleo")
    await server.wait_for_outcome(talk.envelope)
    receipt = await server.send(
        tool_instruction(tool, permission="web", reason="news"), sender=SCHEDULE_ADDRESS, origin=origin
    )
    await server.wait_for_outcome(receipt.envelope)
    approval = await wait_for_open_approval(server)
    [question] = await list_approval_envelopes(server, "maria")
    assert question.text.startswith("ada, in the background, asks: may I have web?")
    assert await list_approval_envelopes(server, "owner") == []
    await server.wait_until_idle()
    prompts = len(instance.model.prompts)
    [(to, presented, outcome)] = await silent_notices(operations)
    assert to == f"agent:cleo/{talk.session}" and outcome == "noted"
    assert "ada asks person:maria: web" in presented and approval[:8] in presented
    assert len(instance.model.prompts) == prompts, "a silent notice starts no run"

    # She talks to another agent meanwhile: the second notice goes to the agent that received the first.
    await server.wait_for_outcome((await server.send("hello", recipient="agent:bo")).envelope)
    await operations.ask(MARIA, "approval.answer", id=approval, allow=True)
    [(decision, where)] = await rows(server, "SELECT id, session FROM envelopes WHERE kind = 'decision'")
    assert where == receipt.session, "the decision goes to the requester"
    await server.wait_for_outcome(decision)
    await server.wait_until_idle()
    _, (to, decided, outcome) = await silent_notices(operations)
    assert to == f"agent:cleo/{talk.session}" and outcome == "noted"
    assert f"maria allowed the request of ada: web (approval {approval[:8]})" in decided
    await server.wait_for_outcome((await server.send("what was that?", recipient="agent:cleo")).envelope)
    read = texts_read_by_model(instance.model.prompts[-1])
    assert presented in read and decided in read


@pytest.mark.parametrize("trust", [Trust.UNTRUSTED, Trust.PRIVATE])
@pytest.mark.parametrize("allow", [True, False])
async def test_the_notice_of_an_untrusted_permission_request_is_untrusted(
    instance: LocalInstance, operations: OperationsServer, trust: Trust, allow: bool
) -> None:
    server = operations.server
    await server.wait_for_outcome((await server.send("hello", sender="person:maria", recipient="agent:cleo")).envelope)
    await server.wait_for_outcome(
        (
            await server.send(REQUEST_WEB_INSTRUCTION, sender=SCHEDULE_ADDRESS, origin=SCHEDULE_ORIGIN, trust=trust)
        ).envelope
    )
    await operations.ask(MARIA, "approval.answer", id=await wait_for_open_approval(server), allow=allow)
    await server.wait_until_idle()
    found = await rows(
        server, "SELECT trust FROM envelopes WHERE silent AND recipient LIKE 'agent:cleo/%' ORDER BY seq"
    )
    believed = Trust.UNTRUSTED if trust is Trust.UNTRUSTED else Trust.AGENT
    assert [row.trust for row in found] == [believed, believed], "one notice for the request, one for the decision"


async def test_a_permission_request_with_too_much_history_to_check_is_untrusted(
    instance: LocalInstance, operations: OperationsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = operations.server
    monkeypatch.setattr(approvals, "RECORDS_READ_MAX", 4)
    await server.wait_for_outcome((await server.send("hello", sender="person:maria", recipient="agent:cleo")).envelope)
    for number in range(2):
        request_instruction = tool_instruction("request_permission", permission=f"read:/srv/{number}", reason="to look")
        await server.wait_for_outcome(
            (
                await server.send(
                    request_instruction, sender=SCHEDULE_ADDRESS, origin=SCHEDULE_ORIGIN, trust=Trust.PRIVATE
                )
            ).envelope
        )
    await server.wait_until_idle()
    found = await rows(
        server, "SELECT trust FROM envelopes WHERE silent AND recipient LIKE 'agent:cleo/%' ORDER BY seq"
    )
    assert [row.trust for row in found] == [Trust.AGENT, Trust.UNTRUSTED]


async def test_a_guests_session_gets_no_notice_of_a_permission_request(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    await server.wait_for_outcome((await server.send("hello", sender="person:maria", recipient="agent:cleo")).envelope)
    await instance.clock.advance(5)
    await server.wait_for_outcome((await server.send("hello", sender="person:gus", recipient="agent:bo")).envelope)
    await server.wait_for_outcome(
        (await server.send(REQUEST_WEB_INSTRUCTION, sender=SCHEDULE_ADDRESS, origin=SCHEDULE_ORIGIN)).envelope
    )
    assert (
        len(await list_approval_envelopes(server, "maria")) == 1 and await list_approval_envelopes(server, "gus") == []
    )
    assert [to.partition("/")[0] for to, _, _ in await silent_notices(operations)] == ["agent:cleo"]


@pytest.mark.parametrize("boss", [True, False])
async def test_a_background_permission_request_goes_to_a_channel_only_if_the_owner_alone_writes_there(
    instance: LocalInstance, boss: bool
) -> None:
    connector = instance.connectors["quiet"] = FakeConnector(instance.clock)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        receipt = await connector.send_inbound("hello", channel="den", context=EnvelopeContext(from_boss=boss))
        assert receipt is not None
        settled = await operations.server.wait_for_outcome(receipt.envelope)
        assert settled.answer is not None
        await operations.server.wait_for_outcome(settled.answer)
        await operations.server.wait_for_outcome(
            (
                await operations.server.send(REQUEST_WEB_INSTRUCTION, sender=SCHEDULE_ADDRESS, origin=SCHEDULE_ORIGIN)
            ).envelope
        )
        await operations.server.wait_until_idle()
        asked = [text for text in connector.list_texts("den") if "may I have web?" in text]
        assert len(asked) == boss
        assert len(await silent_notices(operations)) == boss
        assert len(await list_approval_envelopes(operations.server, "owner")) == 1


@pytest.mark.spec("D34")
async def test_a_permission_decision_goes_to_the_requesting_session_and_a_denial_grants_nothing(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    asker = await server.send(REQUEST_WEB_INSTRUCTION, sender=SCHEDULE_ADDRESS, origin=SCHEDULE_ORIGIN)
    await server.wait_for_outcome(asker.envelope)
    other = await server.send("hello", sender="person:owner")
    await server.wait_for_outcome(other.envelope)
    approval = await wait_for_open_approval(server)
    before = await rows(server, "SELECT * FROM grants")
    await operations.ask(OWNER, "approval.answer", id=approval, allow=False)
    [(decision, session)] = await rows(server, "SELECT id, session FROM envelopes WHERE kind = 'decision'")
    await server.wait_for_outcome(decision)
    assert session == asker.session != other.session
    assert await rows(server, "SELECT * FROM grants") == before == []


@pytest.mark.spec("D37")
async def test_a_pending_permission_request_survives_a_restart_or_expires_with_a_notice(tmp_path: Path) -> None:
    instance = asking_instance(tmp_path, ask=())
    instance.approval_settings = ApprovalSettings(expires_s=3_600.0)
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        await operations.server.wait_for_outcome(
            (await operations.server.send(REQUEST_WEB_INSTRUCTION, sender="person:owner")).envelope
        )
        kept = await wait_for_open_approval(operations.server)
        operations.server.crash()
    instance.clock.jump(timedelta(minutes=30))
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        await operations.ask(OWNER, "approval.answer", id=kept, allow=True)
        await operations.server.wait_until_idle()
        assert [grant["permission"] for grant in await list_grants(operations)] == ["web"]
        request_instruction = tool_instruction("request_permission", permission="read:/srv/music", reason="songs")
        await operations.server.wait_for_outcome(
            (await operations.server.send(request_instruction, sender="person:owner")).envelope
        )
        late = await wait_for_open_approval(operations.server)
        operations.server.crash()
    instance.clock.jump(timedelta(hours=2))
    async with open_operations_server(instance) as operations:
        instance.model.rule = follow_instruction
        with pytest.raises(Conflict) as raised:
            await operations.ask(OWNER, "approval.answer", id=late, allow=True)
        # A server checks for expired approvals as soon as it starts, so the state may already be stored.
        assert raised.value.because in ("it has expired", "it is expired by server")
        await instance.clock.advance(60)
        await operations.server.wait_for(
            lambda conn: conn.exec_driver_sql("SELECT count(*) FROM approvals WHERE state = 'expired'").scalar() == 1,
            what="the sweep",
        )
        await operations.server.wait_for_outcome((await operations.server.send("and?", sender="person:owner")).envelope)
        assert f"No one answered approval {late[:8]} (read:/srv/music) in time" in texts_read_by_model(
            instance.model.prompts[-1]
        )
        assert [grant["permission"] for grant in await list_grants(operations)] == ["web"]


async def test_the_path_of_a_permission_request_is_resolved_when_it_is_requested(
    instance: LocalInstance, operations: OperationsServer, tmp_path: Path
) -> None:
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    server = operations.server
    request_instruction = tool_instruction("request_permission", permission=f"read:{link}", reason="to read")
    await server.wait_for_outcome((await server.send(request_instruction, sender="person:owner")).envelope)
    approval = await wait_for_open_approval(server)
    [question] = await list_approval_envelopes(server, "owner")
    assert f"may I have read:{real}?" in question.text
    os.unlink(link)
    link.symlink_to(other)
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
    assert [grant["permission"] for grant in await list_grants(operations)] == [f"read:{real}"]
    added = await operations.ask(OWNER, "grant.add", agent="ada", permission=f"write:{link}", because="test")
    assert added["permission"] == f"write:{other}", "also for a grant added by the owner"


async def test_a_permission_for_a_path_with_invisible_characters_is_not_requested(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    request_instruction = tool_instruction("request_permission", permission="read:/srv/\u202egpj.exe", reason="to read")
    await operations.server.wait_for_outcome(
        (await operations.server.send(request_instruction, sender="person:owner")).envelope
    )
    assert await rows(operations.server, "SELECT 1 FROM approvals") == []


async def test_a_repeated_permission_request_adds_no_second_approval_while_the_first_is_open(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    for _ in range(3):
        await server.wait_for_outcome((await server.send(REQUEST_WEB_INSTRUCTION, sender="person:owner")).envelope)
    assert len(await list_approval_envelopes(server, "owner")) == 1
    approval = await wait_for_open_approval(server)
    await operations.ask(OWNER, "approval.answer", id=approval, allow=False)
    await server.wait_until_idle()
    await server.wait_for_outcome((await server.send(REQUEST_WEB_INSTRUCTION, sender="person:owner")).envelope)
    assert len(await list_approval_envelopes(server, "owner")) == 2


async def test_pending_permission_requests_are_limited(instance: LocalInstance, operations: OperationsServer) -> None:
    server = operations.server
    for n in range(21):
        request_instruction = tool_instruction("request_permission", permission=f"read:/srv/{n}", reason="more")
        await server.wait_for_outcome((await server.send(request_instruction, sender="person:owner")).envelope)
    assert len(await list_approval_envelopes(server, "owner")) == 20
    assert "too many pending approvals" in texts_read_by_model(instance.model.prompts[-1])


async def test_a_background_agent_can_request_permissions_only_for_itself(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    request_instruction = tool_instruction("request_permission", permission="web", reason="x", agent="cleo")
    await operations.server.wait_for_outcome(
        (await operations.server.send(request_instruction, sender=SCHEDULE_ADDRESS, origin=SCHEDULE_ORIGIN)).envelope
    )
    assert await rows(operations.server, "SELECT 1 FROM approvals") == []
    await operations.server.wait_for_outcome(
        (await operations.server.send(request_instruction, sender="person:owner")).envelope
    )
    approval = await wait_for_open_approval(operations.server)
    [question] = await list_approval_envelopes(operations.server, "owner")
    assert question.text.startswith("ada asks: may cleo have web?") and "(for a day)" in question.text
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
    [grant] = await list_grants(operations)
    assert (grant["agent"], grant["session"]) == ("cleo", None) and grant["expires_at"] is not None


async def test_a_subagent_cannot_grant_permissions_by_default(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    grant = tool_instruction("grant_permission", agent="cleo", permission="web", reason="x")
    await operations.ask(OWNER, "grant.add", agent="ada", permission="web", because="test")
    await operations.server.wait_for_outcome(
        (await operations.server.send(grant, sender="agent:bo", origin=SUBAGENT_ORIGIN)).envelope
    )
    assert any(
        "Not allowed" in texts_read_by_model(prompt) for prompt in instance.model.prompts
    )  # bo reads the answer of ada, too
    assert [each["agent"] for each in await list_grants(operations)] == ["ada"]


# --- passing permissions to another agent ---


@pytest.mark.spec("D35")
async def test_an_agent_can_grant_only_permissions_it_holds_and_only_with_a_reason(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server

    async def try_to_grant(**arguments: str) -> str:
        call = tool_instruction(
            "grant_permission", **{"agent": "cleo", "permission": "web", "reason": "she asked", **arguments}
        )
        await server.wait_for_outcome((await server.send(call, sender="person:owner")).envelope)
        return tool_outputs(instance.model.prompts[-1])[-1]

    assert "you cannot grant web" in await try_to_grant()
    await operations.ask(OWNER, "grant.add", agent="ada", permission="read:/srv/music", because="test")
    assert "you cannot grant web" in await try_to_grant()
    assert "you cannot grant read:/srv " in await try_to_grant(permission="read:/srv")
    assert "you cannot grant write:/srv/music" in await try_to_grant(permission="write:/srv/music")
    assert "no reason given" in await try_to_grant(permission="read:/srv/music", reason="  ")
    assert "Invalid arguments" in await try_to_grant(permission="read:/srv/music", reason="")
    assert "you cannot grant yourself" in await try_to_grant(agent="ada", permission="read:/srv/music")
    assert "no agent named" in await try_to_grant(agent="nobody", permission="read:/srv/music")
    assert len(await list_grants(operations)) == 1
    assert await try_to_grant(permission="read:/srv/music/new") == "cleo now has read:/srv/music/new."
    [passed_on_grant] = [grant for grant in await list_grants(operations) if grant["agent"] == "cleo"]
    assert (passed_on_grant["agent"], passed_on_grant["granted_by"], passed_on_grant["because"]) == (
        "cleo",
        "agent:ada",
        "she asked",
    )


async def test_a_granted_permission_cannot_be_granted_again_and_ends_with_its_source(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    own = await operations.ask(OWNER, "grant.add", agent="ada", permission="web", because="test")
    await server.wait_for_outcome(
        (
            await server.send(
                tool_instruction("grant_permission", agent="cleo", permission="web", reason="x"), sender="person:owner"
            )
        ).envelope
    )
    again = tool_instruction("grant_permission", agent="bo", permission="web", reason="x")
    await server.wait_for_outcome((await server.send(again, sender="person:owner", recipient="agent:cleo")).envelope)
    assert "cannot be passed on" in texts_read_by_model(instance.model.prompts[-1])
    assert {grant["agent"] for grant in await list_grants(operations)} == {"ada", "cleo"}
    await operations.ask(OWNER, "grant.revoke", id=own["id"])
    assert await list_grants(operations) == []


async def test_a_session_permission_is_passed_on_for_at_most_a_day(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    await server.wait_for_outcome((await server.send(REQUEST_WEB_INSTRUCTION, sender="person:owner")).envelope)
    await operations.ask(OWNER, "approval.answer", id=await wait_for_open_approval(server), allow=True)
    await server.wait_until_idle()
    give = tool_instruction("grant_permission", agent="cleo", permission="web", reason="x")
    await server.wait_for_outcome((await server.send(give, sender="person:owner", origin=OTHER_ORIGIN)).envelope)
    assert "you cannot grant web" in texts_read_by_model(instance.model.prompts[-1])
    await server.wait_for_outcome((await server.send(give, sender="person:owner")).envelope)
    [passed_on_grant] = [grant for grant in await list_grants(operations) if grant["agent"] == "cleo"]
    assert passed_on_grant["expires_at"] is not None
    instance.clock.jump(timedelta(days=1))
    assert [grant["agent"] for grant in await list_grants(operations)] == ["ada"]


async def test_a_permission_request_of_an_erased_person_can_be_answered_by_the_owner(
    instance: LocalInstance, operations: OperationsServer
) -> None:
    server = operations.server
    await server.wait_for_outcome((await server.send(REQUEST_WEB_INSTRUCTION)).envelope)
    approval = await wait_for_open_approval(server)
    await server.store.write(lambda conn: people.mark_erased(conn, "maria", at_ms=1), point="test")
    receipt = await server.send(f"/allow {approval[:8]}")
    assert "Not done: " in await server.wait_for_answer(receipt.envelope)
    assert await read_approval_state(server, approval) == "open"
    await operations.ask(OWNER, "approval.answer", id=approval, allow=True)
    assert await read_approval_state(server, approval) == "allowed"
