"""Lists of envelopes, and acknowledging them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.domain.envelope import EnvelopeStatus, Outcome
from retinue.domain.errors import Invalid
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply

OWNER, MARIA, NOOR = person("owner"), person("maria"), person("noor")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


async def statuses(server: OperationsServer, ids: Iterable[str]) -> set[EnvelopeStatus]:
    return {(await server.server.get_envelope(id_)).status for id_ in ids}


@pytest.mark.spec("H22")
@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({}, "request.invalid"),
        ({"to": "person:maria"}, "request.invalid"),
        ({"status": "done"}, "envelope.filter_invalid"),
        ({"status": "done", "to": "person:maria", "from": "agent:ada"}, "envelope.filter_invalid"),
        ({"status": "late", "to": "person:maria"}, "request.invalid"),
        ({"status": "done", "to": "person:maria", "limit": 0}, "list.limit"),
        ({"status": "done", "to": "person:maria", "limit": 51}, "list.limit"),
        ({"status": "done", "to": "nobody"}, "address.invalid"),
    ],
)
async def test_envelope_list_requires_one_address_a_status_and_a_valid_limit(
    server: OperationsServer, parameters: dict[str, Any], code: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await server.ask(MARIA, "envelope.list", **parameters)
    assert refused.value.code == code


@pytest.mark.spec("H22")
async def test_envelope_list_returns_ten_by_default_newest_first_and_in_pages(server: OperationsServer) -> None:
    sent = [(await server.converse(MARIA, f"number {n}"))[0] for n in range(12)]
    listed = (await server.ask(MARIA, "envelope.list", **{"from": "person:maria", "status": "done"}))["envelopes"]
    assert [envelope["text"] for envelope in listed] == [f"number {n}" for n in range(11, 1, -1)]
    rest = await server.ask(
        MARIA, "envelope.list", **{"from": "person:maria", "status": "done", "before": sent[2], "limit": 50}
    )
    assert [envelope["text"] for envelope in rest["envelopes"]] == ["number 1", "number 0"]
    answers = await server.ask(MARIA, "envelope.list", to="person:maria", status="done", limit=50)
    assert len(answers["envelopes"]) == 12
    by_ada = await server.ask(MARIA, "envelope.list", **{"from": "agent:ada", "status": "done", "limit": 50})
    assert len(by_ada["envelopes"]) == 12


@pytest.mark.spec("H22")
async def test_envelope_list_omits_envelopes_of_other_principals(server: OperationsServer) -> None:
    await server.converse(MARIA, "hers")
    for who, status in ((NOOR, "done"), (agent("bo"), "done")):
        for side in ({"from": "person:maria"}, {"to": "person:maria"}, {"to": "agent:ada"}):
            assert (await server.ask(who, "envelope.list", status=status, **side))["envelopes"] == []


@pytest.mark.spec("H24")
async def test_envelope_list_filters_by_time_and_refuses_an_inverted_span(server: OperationsServer) -> None:
    await server.converse(MARIA, "early")
    await server.server.instance.clock.advance(timedelta(hours=2))
    await server.converse(MARIA, "late")
    side = {"from": "person:maria", "status": "done"}
    after = await server.ask(MARIA, "envelope.list", **side, created_after="2026-01-05T10:00:00Z")
    assert [envelope["text"] for envelope in after["envelopes"]] == ["late"]
    before = await server.ask(MARIA, "envelope.list", **side, created_before="2026-01-05T10:00:00Z")
    assert [envelope["text"] for envelope in before["envelopes"]] == ["early"]
    with pytest.raises(Invalid) as inverted:
        await server.ask(
            MARIA,
            "envelope.list",
            **side,
            created_after="2026-01-05T12:00:00Z",
            created_before="2026-01-05T11:00:00Z",
        )
    assert inverted.value.code == "time.inverted"


@pytest.mark.spec("H23")
async def test_envelope_list_acknowledges_exactly_the_returned_envelopes_and_only_if_asked(
    server: OperationsServer,
) -> None:
    """An agent reads its messages itself: it gets only due ones, and no more than the list shows."""
    instance = server.server.instance
    instance.model.rule = lambda prompt: text_reply("busy", after_s=3600)
    ada = agent("ada")
    await server.ask(MARIA, "envelope.send", to="agent:ada", text="keeps ada busy")
    waiting = [
        (await server.ask(MARIA, "envelope.send", to="agent:ada", text=f"waits {n}"))["envelope"] for n in range(4)
    ]
    later = (await server.ask(MARIA, "envelope.send", to="agent:ada", text="later", deliver_at="+1D"))["envelope"]
    side = {"from": "person:maria", "status": "pending"}

    seen = await server.ask(ada, "envelope.list", **side)
    assert len(seen["envelopes"]) == 5 and seen["acknowledged"] == 0
    assert await statuses(server, (*waiting, later)) == {EnvelopeStatus.PENDING}

    read = await server.ask(ada, "envelope.list", **side, limit=2, ack=True)
    assert [envelope["text"] for envelope in read["envelopes"]] == ["waits 3", "waits 2"]
    assert read["acknowledged"] == 2
    for id_ in waiting[2:]:
        settled = await server.server.wait_for_outcome(id_)
        assert (settled.outcome, settled.because) == (Outcome.NOTED, "acknowledged by agent:ada")
    assert await statuses(server, (*waiting[:2], later)) == {EnvelopeStatus.PENDING}


@pytest.mark.spec("H23")
async def test_sender_and_owner_cannot_acknowledge_envelopes_to_an_agent(server: OperationsServer) -> None:
    instance = server.server.instance
    instance.model.rule = lambda prompt: text_reply("busy", after_s=3600)
    await server.ask(MARIA, "envelope.send", to="agent:ada", text="keeps ada busy")
    waits = await server.ask(MARIA, "envelope.send", to="agent:ada", text="waits")
    for who in (MARIA, OWNER):
        response = await server.ask(who, "envelope.list", **{"from": "person:maria", "status": "pending", "ack": True})
        assert response["acknowledged"] == 0
    assert (await server.server.get_envelope(waits["envelope"])).status is EnvelopeStatus.PENDING


@pytest.mark.spec("H23")
async def test_an_inbox_keeps_unread_envelopes_until_they_are_acknowledged(server: OperationsServer) -> None:
    for n in range(3):
        await server.converse(MARIA, f"question {n}")
    for _ in range(2):
        inbox = await server.ask(MARIA, "inbox.list")
        assert (len(inbox["envelopes"]), inbox["unread"]) == (3, 3)
    read = await server.ask(MARIA, "inbox.list", limit=2, ack=True)
    assert (len(read["envelopes"]), read["unread"]) == (2, 1)
    assert len((await server.ask(MARIA, "inbox.list"))["envelopes"]) == 1
    with pytest.raises(Invalid):
        await server.ask(agent("ada"), "inbox.list")


async def test_envelope_recent_lists_the_newest_envelopes_that_the_caller_may_see(server: OperationsServer) -> None:
    first, session = await server.converse(MARIA, "What is on today?")
    await server.converse(NOOR, "noor's own")
    passed = (await server.ask(MARIA, "envelope.recent"))["envelopes"]
    assert [(each["from"], each["to"]) for each in passed] == [
        (f"agent:ada/{session}", "person:maria"),
        ("person:maria", f"agent:ada/{session}"),
    ]
    assert (passed[1]["id"], passed[1]["excerpt"], passed[1]["session"]) == (first, "What is on today?", session)
    assert (passed[1]["status"], passed[1]["outcome"]) == ("done", "answered")
    assert len((await server.ask(OWNER, "envelope.recent"))["envelopes"]) == 4
    assert len((await server.ask(OWNER, "envelope.recent", limit=3))["envelopes"]) == 3
    assert (await server.ask(agent("bo"), "envelope.recent"))["envelopes"] == []
    with pytest.raises(Invalid):
        await server.ask(OWNER, "envelope.recent", limit=51)


async def test_dead_letters_are_listed_in_pages_with_their_retries(server: OperationsServer) -> None:
    server.server.instance.model.rule = lambda prompt: ScriptedReply(fails="no more today")
    sent = [(await server.converse(MARIA, f"number {n}"))[0] for n in range(3)]
    first = (await server.ask(OWNER, "envelope.dead", limit=2))["dead_letters"]
    assert [row["id"] for row in first] == [sent[2], sent[1]]
    assert "retry" not in first[0]
    retried = await server.ask(OWNER, "envelope.retry", id=sent[0])
    [row] = [
        each
        for each in (await server.ask(OWNER, "envelope.dead", limit=2, before=sent[1]))["dead_letters"]
        if each["id"] == sent[0]
    ]
    assert row["retry"] == retried["envelope"]
    await server.server.wait_for_outcome(retried["envelope"])
    newest = (await server.ask(OWNER, "envelope.dead", limit=1))["dead_letters"][0]
    assert newest["id"] == retried["envelope"] and "retry" not in newest
