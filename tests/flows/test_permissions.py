"""Permissions that an agent asks for, and hands on: by whom it is heard, where the decision goes, and what it opens."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from flows.approval_instance import (
    CLOCK,
    HELPER,
    MARIA,
    NIGHT,
    OWNER,
    asking_household,
    do,
    does,
    grants_now,
    open_question,
    questions,
    read_by,
    results,
    rows,
    state_of,
)
from operations.operations_instance import DeskHouse, desk_house

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

ELSEWHERE = Origin(OriginKind.WEB, "person:owner/elsewhere")
WISH = do("request_permission", permission="web", reason="to look up the trains")


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    household = asking_household(tmp_path, ask=())
    household.agents = (*household.agents, Agent(name="cleo", model="scripted"))
    return household


@pytest.fixture
async def desk(household: LocalInstance) -> AsyncGenerator[DeskHouse]:
    async with desk_house(household) as opened:
        household.model.rule = does
        yield opened


async def silent_notices(desk: DeskHouse) -> list[tuple[str, str, str]]:
    """Recipient, text and outcome of every silent system letter."""
    found = await rows(
        desk.house,
        "SELECT e.recipient, e.text, o.outcome FROM envelopes e LEFT JOIN outcomes o ON o.envelope = e.id"
        " WHERE e.silent AND e.kind = 'system' ORDER BY e.seq",
    )
    return [tuple(row) for row in found]


@pytest.mark.spec("D32.at_once", "D32.resumes")
@pytest.mark.parametrize("allow", [True, False])
async def test_a_request_returns_at_once_and_the_decision_resumes_whoever_asked(
    household: LocalInstance, desk: DeskHouse, allow: bool
) -> None:
    house = desk.house
    receipt = await house.send(WISH, sender="person:owner")
    assert await house.wait_for_answer(receipt.envelope) == "ok", "the run did not wait"
    approval = await open_question(house)
    assert f"Asked person:owner for web (approval {approval[:8]})" in read_by(household.model.prompts[-1])
    [question] = await questions(house, "owner")
    assert question.text.split("\n")[:3] == [
        "ada asks: may I have web?",
        "Because: to look up the trains",
        f"Answer with: /allow {approval[:8]} (for this conversation), /allow {approval[:8]} always, "
        f"or /deny {approval[:8]}",
    ]
    before = len(household.model.prompts)
    await desk.ask(OWNER, "approval.answer", id=approval, allow=allow, because="as I said")
    [(decision,)] = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
    assert (await house.wait_for_outcome(decision)).outcome is Outcome.ANSWERED
    assert len(household.model.prompts) == before + 1
    read = read_by(household.model.prompts[-1])
    assert f"owner {'allowed' if allow else 'denied'} web" in read and "Comment: as I said" in read
    assert [grant["permission"] for grant in await grants_now(desk)] == (["web"] if allow else [])


@pytest.mark.spec("D33", "D82")
@pytest.mark.parametrize("tool", ["request_permission", "request_permission_via_parent"])
@pytest.mark.parametrize("origin", [NIGHT, Origin(OriginKind.AGENT, "agent:bo"), Origin(OriginKind.EXTERNAL, "job")])
async def test_a_background_request_reaches_the_person_of_the_last_conversation_and_its_agent_hears_of_it(
    household: LocalInstance, desk: DeskHouse, tool: str, origin: Origin
) -> None:
    house = desk.house
    talk = await house.send("hello", sender="person:maria", recipient="agent:cleo")
    await house.wait_for_outcome(talk.envelope)
    receipt = await house.send(do(tool, permission="web", reason="news"), sender=CLOCK, origin=origin)
    await house.wait_for_outcome(receipt.envelope)
    approval = await open_question(house)
    [question] = await questions(house, "maria")
    assert question.text.startswith("ada, in the background, asks: may I have web?")
    assert await questions(house, "owner") == []
    await house.wait_until_idle()
    prompts = len(household.model.prompts)
    [(to, presented, outcome)] = await silent_notices(desk)
    assert to == f"agent:cleo/{talk.session}" and outcome == "noted"
    assert "ada asks person:maria: web" in presented and approval[:8] in presented
    assert len(household.model.prompts) == prompts, "a silent notice makes no one work"

    # She talks to someone else meanwhile: the second notice goes to whoever has heard the first.
    await house.wait_for_outcome((await house.send("hello", recipient="agent:bo")).envelope)
    await desk.ask(MARIA, "approval.answer", id=approval, allow=True)
    [(decision, where)] = await rows(house, "SELECT id, session FROM envelopes WHERE kind = 'decision'")
    assert where == receipt.session, "straight to the requester"
    await house.wait_for_outcome(decision)
    await house.wait_until_idle()
    _, (to, decided, outcome) = await silent_notices(desk)
    assert to == f"agent:cleo/{talk.session}" and outcome == "noted"
    assert f"maria allowed the request of ada: web (approval {approval[:8]})" in decided
    await house.wait_for_outcome((await house.send("what was that?", recipient="agent:cleo")).envelope)
    read = read_by(household.model.prompts[-1])
    assert presented in read and decided in read


@pytest.mark.parametrize("trust", [Trust.UNTRUSTED, Trust.PRIVATE])
@pytest.mark.parametrize("allow", [True, False])
async def test_what_a_stranger_had_an_agent_ask_for_is_no_better_where_another_agent_hears_of_it(
    household: LocalInstance, desk: DeskHouse, trust: Trust, allow: bool
) -> None:
    house = desk.house
    await house.wait_for_outcome((await house.send("hello", sender="person:maria", recipient="agent:cleo")).envelope)
    await house.wait_for_outcome((await house.send(WISH, sender=CLOCK, origin=NIGHT, trust=trust)).envelope)
    await desk.ask(MARIA, "approval.answer", id=await open_question(house), allow=allow)
    await house.wait_until_idle()
    found = await rows(house, "SELECT trust FROM envelopes WHERE silent AND recipient LIKE 'agent:cleo/%' ORDER BY seq")
    believed = Trust.UNTRUSTED if trust is Trust.UNTRUSTED else Trust.AGENT
    assert [row.trust for row in found] == [believed, believed], "asked, and decided"


async def test_what_is_too_long_to_look_through_is_not_believed(
    household: LocalInstance, desk: DeskHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = desk.house
    monkeypatch.setattr(approvals, "RECORDS_READ_MAX", 4)
    await house.wait_for_outcome((await house.send("hello", sender="person:maria", recipient="agent:cleo")).envelope)
    for number in range(2):
        wish = do("request_permission", permission=f"read:/srv/{number}", reason="to look")
        await house.wait_for_outcome((await house.send(wish, sender=CLOCK, origin=NIGHT, trust=Trust.PRIVATE)).envelope)
    await house.wait_until_idle()
    found = await rows(house, "SELECT trust FROM envelopes WHERE silent AND recipient LIKE 'agent:cleo/%' ORDER BY seq")
    assert [row.trust for row in found] == [Trust.AGENT, Trust.UNTRUSTED]


async def test_a_guests_conversation_hears_of_no_request(household: LocalInstance, desk: DeskHouse) -> None:
    house = desk.house
    await house.wait_for_outcome((await house.send("hello", sender="person:maria", recipient="agent:cleo")).envelope)
    await household.clock.advance(5)
    await house.wait_for_outcome((await house.send("hello", sender="person:gus", recipient="agent:bo")).envelope)
    await house.wait_for_outcome((await house.send(WISH, sender=CLOCK, origin=NIGHT)).envelope)
    assert len(await questions(house, "maria")) == 1 and await questions(house, "gus") == []
    assert [to.partition("/")[0] for to, _, _ in await silent_notices(desk)] == ["agent:cleo"]


@pytest.mark.parametrize("boss", [True, False])
async def test_a_background_request_goes_into_a_room_only_where_nobody_but_the_owner_writes(
    household: LocalInstance, boss: bool
) -> None:
    connector = household.connectors["quiet"] = FakeConnector(household.clock)
    async with desk_house(household) as desk:
        household.model.rule = does
        said = await connector.send_inbound("hello", channel="den", context=EnvelopeContext(from_boss=boss))
        assert said is not None
        settled = await desk.house.wait_for_outcome(said.envelope)
        assert settled.answer is not None
        await desk.house.wait_for_outcome(settled.answer)
        await desk.house.wait_for_outcome((await desk.house.send(WISH, sender=CLOCK, origin=NIGHT)).envelope)
        await desk.house.wait_until_idle()
        asked = [text for text in connector.list_texts("den") if "may I have web?" in text]
        assert len(asked) == boss
        assert len(await silent_notices(desk)) == boss
        assert len(await questions(desk.house, "owner")) == 1


@pytest.mark.spec("D34")
async def test_a_decision_goes_to_the_session_that_asked_and_a_no_changes_nothing(
    household: LocalInstance, desk: DeskHouse
) -> None:
    house = desk.house
    asker = await house.send(WISH, sender=CLOCK, origin=NIGHT)
    await house.wait_for_outcome(asker.envelope)
    other = await house.send("hello", sender="person:owner")
    await house.wait_for_outcome(other.envelope)
    approval = await open_question(house)
    before = await rows(house, "SELECT * FROM grants")
    await desk.ask(OWNER, "approval.answer", id=approval, allow=False)
    [(decision, session)] = await rows(house, "SELECT id, session FROM envelopes WHERE kind = 'decision'")
    await house.wait_for_outcome(decision)
    assert session == asker.session != other.session
    assert await rows(house, "SELECT * FROM grants") == before == []


@pytest.mark.spec("D37")
async def test_a_pending_request_outlives_a_restart_or_is_clearly_expired(tmp_path: Path) -> None:
    household = asking_household(tmp_path, ask=())
    household.approval_settings = ApprovalSettings(expires_s=3_600.0)
    async with desk_house(household) as desk:
        household.model.rule = does
        await desk.house.wait_for_outcome((await desk.house.send(WISH, sender="person:owner")).envelope)
        kept = await open_question(desk.house)
        desk.house.crash()
    household.clock.jump(timedelta(minutes=30))
    async with desk_house(household) as desk:
        household.model.rule = does
        await desk.ask(OWNER, "approval.answer", id=kept, allow=True)
        await desk.house.wait_until_idle()
        assert [grant["permission"] for grant in await grants_now(desk)] == ["web"]
        wish = do("request_permission", permission="read:/srv/music", reason="songs")
        await desk.house.wait_for_outcome((await desk.house.send(wish, sender="person:owner")).envelope)
        late = await open_question(desk.house)
        desk.house.crash()
    household.clock.jump(timedelta(hours=2))
    async with desk_house(household) as desk:
        household.model.rule = does
        with pytest.raises(Conflict) as raised:
            await desk.ask(OWNER, "approval.answer", id=late, allow=True)
        assert raised.value.because == "it has expired"
        await household.clock.advance(60)
        await desk.house.wait_for(
            lambda conn: conn.exec_driver_sql("SELECT count(*) FROM approvals WHERE state = 'expired'").scalar() == 1,
            what="the sweep",
        )
        await desk.house.wait_for_outcome((await desk.house.send("and?", sender="person:owner")).envelope)
        assert f"No one answered approval {late[:8]} (read:/srv/music) in time" in read_by(household.model.prompts[-1])
        assert [grant["permission"] for grant in await grants_now(desk)] == ["web"]


async def test_a_path_is_asked_for_as_it_leads_now(household: LocalInstance, desk: DeskHouse, tmp_path: Path) -> None:
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(real)
    house = desk.house
    wish = do("request_permission", permission=f"read:{link}", reason="to read")
    await house.wait_for_outcome((await house.send(wish, sender="person:owner")).envelope)
    approval = await open_question(house)
    [question] = await questions(house, "owner")
    assert f"may I have read:{real}?" in question.text
    os.unlink(link)
    link.symlink_to(other)
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
    assert [grant["permission"] for grant in await grants_now(desk)] == [f"read:{real}"]
    added = await desk.ask(OWNER, "grant.add", agent="ada", permission=f"write:{link}", because="test")
    assert added["permission"] == f"write:{other}", "the owner's own grants, too"


async def test_a_path_that_cannot_be_seen_is_not_asked_for(household: LocalInstance, desk: DeskHouse) -> None:
    wish = do("request_permission", permission="read:/srv/\u202egpj.exe", reason="to read")
    await desk.house.wait_for_outcome((await desk.house.send(wish, sender="person:owner")).envelope)
    assert await rows(desk.house, "SELECT 1 FROM approvals") == []


async def test_the_same_wish_is_one_question_while_it_is_open(household: LocalInstance, desk: DeskHouse) -> None:
    house = desk.house
    for _ in range(3):
        await house.wait_for_outcome((await house.send(WISH, sender="person:owner")).envelope)
    assert len(await questions(house, "owner")) == 1
    approval = await open_question(house)
    await desk.ask(OWNER, "approval.answer", id=approval, allow=False)
    await house.wait_until_idle()
    await house.wait_for_outcome((await house.send(WISH, sender="person:owner")).envelope)
    assert len(await questions(house, "owner")) == 2


async def test_nobody_is_asked_for_more_than_a_few_things_at_once(household: LocalInstance, desk: DeskHouse) -> None:
    house = desk.house
    for n in range(21):
        wish = do("request_permission", permission=f"read:/srv/{n}", reason="more")
        await house.wait_for_outcome((await house.send(wish, sender="person:owner")).envelope)
    assert len(await questions(house, "owner")) == 20
    assert "too many pending approvals" in read_by(household.model.prompts[-1])


async def test_a_background_agent_asks_only_for_itself(household: LocalInstance, desk: DeskHouse) -> None:
    wish = do("request_permission", permission="web", reason="x", agent="cleo")
    await desk.house.wait_for_outcome((await desk.house.send(wish, sender=CLOCK, origin=NIGHT)).envelope)
    assert await rows(desk.house, "SELECT 1 FROM approvals") == []
    await desk.house.wait_for_outcome((await desk.house.send(wish, sender="person:owner")).envelope)
    approval = await open_question(desk.house)
    [question] = await questions(desk.house, "owner")
    assert question.text.startswith("ada asks: may cleo have web?") and "(for a day)" in question.text
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
    [grant] = await grants_now(desk)
    assert (grant["agent"], grant["session"]) == ("cleo", None) and grant["expires-at"] is not None


async def test_a_wish_of_a_subagent_is_denied_by_default(household: LocalInstance, desk: DeskHouse) -> None:
    grant = do("grant_permission", agent="cleo", permission="web", reason="x")
    await desk.ask(OWNER, "grant.add", agent="ada", permission="web", because="test")
    await desk.house.wait_for_outcome((await desk.house.send(grant, sender="agent:bo", origin=HELPER)).envelope)
    assert any("Not allowed" in read_by(prompt) for prompt in household.model.prompts)  # bo reads ada's answer, too
    assert [each["agent"] for each in await grants_now(desk)] == ["ada"]


# --- handing on ---


@pytest.mark.spec("D35")
async def test_nobody_hands_on_what_they_do_not_hold_or_without_a_reason(
    household: LocalInstance, desk: DeskHouse
) -> None:
    house = desk.house

    async def hands_on(**arguments: str) -> str:
        call = do("grant_permission", **{"agent": "cleo", "permission": "web", "reason": "she asked", **arguments})
        await house.wait_for_outcome((await house.send(call, sender="person:owner")).envelope)
        return results(household.model.prompts[-1])[-1]

    assert "you cannot grant web" in await hands_on()
    await desk.ask(OWNER, "grant.add", agent="ada", permission="read:/srv/music", because="test")
    assert "you cannot grant web" in await hands_on()
    assert "you cannot grant read:/srv " in await hands_on(permission="read:/srv")
    assert "you cannot grant write:/srv/music" in await hands_on(permission="write:/srv/music")
    assert "no reason given" in await hands_on(permission="read:/srv/music", reason="  ")
    assert "Invalid arguments" in await hands_on(permission="read:/srv/music", reason="")
    assert "you cannot grant yourself" in await hands_on(agent="ada", permission="read:/srv/music")
    assert "no agent named" in await hands_on(agent="nobody", permission="read:/srv/music")
    assert len(await grants_now(desk)) == 1
    assert await hands_on(permission="read:/srv/music/new") == "cleo now has read:/srv/music/new."
    [handed_on] = [grant for grant in await grants_now(desk) if grant["agent"] == "cleo"]
    assert (handed_on["agent"], handed_on["granted-by"], handed_on["because"]) == ("cleo", "agent:ada", "she asked")


async def test_what_was_handed_on_is_not_handed_on_again_and_ends_with_what_it_came_from(
    household: LocalInstance, desk: DeskHouse
) -> None:
    house = desk.house
    own = await desk.ask(OWNER, "grant.add", agent="ada", permission="web", because="test")
    await house.wait_for_outcome(
        (
            await house.send(do("grant_permission", agent="cleo", permission="web", reason="x"), sender="person:owner")
        ).envelope
    )
    again = do("grant_permission", agent="bo", permission="web", reason="x")
    await house.wait_for_outcome((await house.send(again, sender="person:owner", recipient="agent:cleo")).envelope)
    assert "cannot be passed on" in read_by(household.model.prompts[-1])
    assert {grant["agent"] for grant in await grants_now(desk)} == {"ada", "cleo"}
    await desk.ask(OWNER, "grant.revoke", id=own["id"])
    assert await grants_now(desk) == []


async def test_what_holds_for_one_conversation_is_handed_on_for_a_day_at_most(
    household: LocalInstance, desk: DeskHouse
) -> None:
    house = desk.house
    await house.wait_for_outcome((await house.send(WISH, sender="person:owner")).envelope)
    await desk.ask(OWNER, "approval.answer", id=await open_question(house), allow=True)
    await house.wait_until_idle()
    give = do("grant_permission", agent="cleo", permission="web", reason="x")
    await house.wait_for_outcome((await house.send(give, sender="person:owner", origin=ELSEWHERE)).envelope)
    assert "you cannot grant web" in read_by(household.model.prompts[-1])
    await house.wait_for_outcome((await house.send(give, sender="person:owner")).envelope)
    [handed_on] = [grant for grant in await grants_now(desk) if grant["agent"] == "cleo"]
    assert handed_on["expires-at"] is not None
    household.clock.jump(timedelta(days=1))
    assert [grant["agent"] for grant in await grants_now(desk)] == ["ada"]


async def test_who_was_asked_and_is_gone_leaves_it_to_the_owner(household: LocalInstance, desk: DeskHouse) -> None:
    house = desk.house
    await house.wait_for_outcome((await house.send(WISH)).envelope)
    approval = await open_question(house)
    await house.store.write(lambda conn: people.mark_erased(conn, "maria", at_ms=1), point="test")
    told = await house.send(f"/allow {approval[:8]}")
    assert "Not done: " in await house.wait_for_answer(told.envelope)
    assert await state_of(house, approval) == "open"
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
    assert await state_of(house, approval) == "allowed"
