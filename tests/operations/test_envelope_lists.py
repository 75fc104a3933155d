"""Lists of mail, and what acknowledging does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.domain.envelope import EnvelopeStatus, Outcome
from retinue.domain.errors import Invalid
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply, text_reply

OWNER, MARIA, NOOR = person("owner"), person("maria"), person("noor")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


async def statuses(house: DeskHouse, ids: Iterable[str]) -> set[EnvelopeStatus]:
    return {(await house.house.get_envelope(id_)).status for id_ in ids}


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
async def test_a_list_wants_one_side_a_status_and_a_sensible_limit(
    house: DeskHouse, parameters: dict[str, Any], code: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await house.ask(MARIA, "envelope.list", **parameters)
    assert refused.value.code == code


@pytest.mark.spec("H22")
async def test_ten_are_listed_unless_asked_otherwise_newest_first_and_page_by_page(house: DeskHouse) -> None:
    sent = [(await house.converse(MARIA, f"number {n}"))[0] for n in range(12)]
    listed = (await house.ask(MARIA, "envelope.list", **{"from": "person:maria", "status": "done"}))["envelopes"]
    assert [envelope["text"] for envelope in listed] == [f"number {n}" for n in range(11, 1, -1)]
    rest = await house.ask(
        MARIA, "envelope.list", **{"from": "person:maria", "status": "done", "before": sent[2], "limit": 50}
    )
    assert [envelope["text"] for envelope in rest["envelopes"]] == ["number 1", "number 0"]
    answers = await house.ask(MARIA, "envelope.list", to="person:maria", status="done", limit=50)
    assert len(answers["envelopes"]) == 12
    by_ada = await house.ask(MARIA, "envelope.list", **{"from": "agent:ada", "status": "done", "limit": 50})
    assert len(by_ada["envelopes"]) == 12


@pytest.mark.spec("H22")
async def test_a_list_holds_nobody_elses_mail(house: DeskHouse) -> None:
    await house.converse(MARIA, "hers")
    for who, status in ((NOOR, "done"), (agent("bo"), "done")):
        for side in ({"from": "person:maria"}, {"to": "person:maria"}, {"to": "agent:ada"}):
            assert (await house.ask(who, "envelope.list", status=status, **side))["envelopes"] == []


@pytest.mark.spec("H24")
async def test_lists_can_be_bounded_in_time_and_an_inverted_span_is_refused(house: DeskHouse) -> None:
    await house.converse(MARIA, "early")
    await house.house.instance.clock.advance(timedelta(hours=2))
    await house.converse(MARIA, "late")
    side = {"from": "person:maria", "status": "done"}
    after = await house.ask(MARIA, "envelope.list", **side, created_after="2026-01-05T10:00:00Z")
    assert [envelope["text"] for envelope in after["envelopes"]] == ["late"]
    before = await house.ask(MARIA, "envelope.list", **side, created_before="2026-01-05T10:00:00Z")
    assert [envelope["text"] for envelope in before["envelopes"]] == ["early"]
    with pytest.raises(Invalid) as inverted:
        await house.ask(
            MARIA,
            "envelope.list",
            **side,
            created_after="2026-01-05T12:00:00Z",
            created_before="2026-01-05T11:00:00Z",
        )
    assert inverted.value.code == "time.inverted"


@pytest.mark.spec("H23")
async def test_reading_does_not_acknowledge_and_acknowledging_takes_exactly_what_is_returned(house: DeskHouse) -> None:
    """An agent reads its mail by hand: only what is due, and no more than the list shows."""
    household = house.house.instance
    household.model.rule = lambda prompt: text_reply("busy", after_s=3600)
    ada = agent("ada")
    await house.ask(MARIA, "envelope.send", to="agent:ada", text="keeps ada busy")
    waiting = [
        (await house.ask(MARIA, "envelope.send", to="agent:ada", text=f"waits {n}"))["envelope"] for n in range(4)
    ]
    later = (await house.ask(MARIA, "envelope.send", to="agent:ada", text="later", deliver_at="+1D"))["envelope"]
    side = {"from": "person:maria", "status": "pending"}

    seen = await house.ask(ada, "envelope.list", **side)
    assert len(seen["envelopes"]) == 5 and seen["acknowledged"] == 0
    assert await statuses(house, (*waiting, later)) == {EnvelopeStatus.PENDING}

    read = await house.ask(ada, "envelope.list", **side, limit=2, ack=True)
    assert [envelope["text"] for envelope in read["envelopes"]] == ["waits 3", "waits 2"]
    assert read["acknowledged"] == 2
    for id_ in waiting[2:]:
        settled = await house.house.wait_for_outcome(id_)
        assert (settled.outcome, settled.because) == (Outcome.NOTED, "acknowledged by agent:ada")
    assert await statuses(house, (*waiting[:2], later)) == {EnvelopeStatus.PENDING}


@pytest.mark.spec("H23")
async def test_nobody_acknowledges_mail_that_is_not_theirs(house: DeskHouse) -> None:
    household = house.house.instance
    household.model.rule = lambda prompt: text_reply("busy", after_s=3600)
    await house.ask(MARIA, "envelope.send", to="agent:ada", text="keeps ada busy")
    waits = await house.ask(MARIA, "envelope.send", to="agent:ada", text="waits")
    for who in (MARIA, OWNER):
        told = await house.ask(who, "envelope.list", **{"from": "person:maria", "status": "pending", "ack": True})
        assert told["acknowledged"] == 0
    assert (await house.house.get_envelope(waits["envelope"])).status is EnvelopeStatus.PENDING


@pytest.mark.spec("H23")
async def test_an_inbox_keeps_what_is_unread_until_it_is_acknowledged(house: DeskHouse) -> None:
    for n in range(3):
        await house.converse(MARIA, f"question {n}")
    for _ in range(2):
        inbox = await house.ask(MARIA, "inbox.list")
        assert (len(inbox["envelopes"]), inbox["unread"]) == (3, 3)
    read = await house.ask(MARIA, "inbox.list", limit=2, ack=True)
    assert (len(read["envelopes"]), read["unread"]) == (2, 1)
    assert len((await house.ask(MARIA, "inbox.list"))["envelopes"]) == 1
    with pytest.raises(Invalid):
        await house.ask(agent("ada"), "inbox.list")


async def test_the_newest_are_told_whoever_wrote_them_and_to_each_what_is_theirs(house: DeskHouse) -> None:
    first, session = await house.converse(MARIA, "What is on today?")
    await house.converse(NOOR, "noor's own")
    passed = (await house.ask(MARIA, "envelope.recent"))["envelopes"]
    assert [(each["from"], each["to"]) for each in passed] == [
        (f"agent:ada/{session}", "person:maria"),
        ("person:maria", f"agent:ada/{session}"),
    ]
    assert (passed[1]["id"], passed[1]["words"], passed[1]["session"]) == (first, "What is on today?", session)
    assert (passed[1]["status"], passed[1]["outcome"]) == ("done", "answered")
    assert len((await house.ask(OWNER, "envelope.recent"))["envelopes"]) == 4
    assert len((await house.ask(OWNER, "envelope.recent", limit=3))["envelopes"]) == 3
    assert (await house.ask(agent("bo"), "envelope.recent"))["envelopes"] == []
    with pytest.raises(Invalid):
        await house.ask(OWNER, "envelope.recent", limit=51)


async def test_dead_letters_come_page_by_page_and_tell_of_their_retries(house: DeskHouse) -> None:
    house.house.instance.model.rule = lambda prompt: ScriptedReply(fails="no more today")
    sent = [(await house.converse(MARIA, f"number {n}"))[0] for n in range(3)]
    first = (await house.ask(OWNER, "envelope.dead", limit=2))["letters"]
    assert [letter["id"] for letter in first] == [sent[2], sent[1]]
    assert "retry" not in first[0]
    retried = await house.ask(OWNER, "envelope.retry", id=sent[0])
    [letter] = [
        each
        for each in (await house.ask(OWNER, "envelope.dead", limit=2, before=sent[1]))["letters"]
        if each["id"] == sent[0]
    ]
    assert letter["retry"] == retried["envelope"]
    await house.house.wait_for_outcome(retried["envelope"])
    newest = (await house.ask(OWNER, "envelope.dead", limit=1))["letters"][0]
    assert newest["id"] == retried["envelope"] and "retry" not in newest
