"""Calls that a person is asked about: who is asked, what they are shown, who may answer and from where, and what a yes
is worth."""

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
    CLOCK,
    GUS,
    HELPER,
    MARIA,
    NIGHT,
    NOOR,
    OWNER,
    asked,
    asking_household,
    do,
    does,
    grants_now,
    line,
    open_question,
    questions,
    read_by,
    rows,
    state_of,
    witness,
)
from msgspec.structs import replace
from operations.operations_instance import DeskHouse, desk_house

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
FROM_BOSS = EnvelopeContext(from_boss=True)


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return asking_household(tmp_path)


@pytest.fixture
async def desk(household: LocalInstance) -> AsyncGenerator[DeskHouse]:
    async with desk_house(household) as opened:
        household.model.rule = does
        yield opened


# --- how far a yes goes ---


@pytest.mark.spec("C61.once", "C61.single_use")
async def test_a_yes_for_once_is_good_for_once(desk: DeskHouse) -> None:
    first, approval = await asked(desk.house, line("one"), sender="person:owner")
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
    await desk.house.wait_for_outcome(first)
    assert witness(desk.house.instance) == ["one"]
    assert await grants_now(desk) == []
    again, next_approval = await asked(desk.house, line("one"), sender="person:owner")
    assert next_approval != approval, "the very same call is asked about again"
    with pytest.raises(Conflict) as raised:
        await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
    assert raised.value.code == "approval.not_open"
    assert witness(desk.house.instance) == ["one"]
    await desk.ask(OWNER, "approval.answer", id=next_approval, allow=False)
    await desk.house.wait_for_outcome(again)
    assert witness(desk.house.instance) == ["one"]


async def test_a_yes_for_the_session_is_good_there_and_nowhere_else(desk: DeskHouse) -> None:
    house = desk.house
    first, approval = await asked(house, line("one"), sender="person:owner")
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True, scope="session", because="go on")
    await house.wait_for_outcome(first)
    await house.wait_for_outcome((await house.send(line("two"), sender="person:owner")).envelope)
    assert witness(house.instance) == ["one", "two"], "the second was not asked about"
    [grant] = await grants_now(desk)
    assert (grant["agent"], grant["permission"], grant["granted-by"], grant["because"]) == (
        "ada",
        "tool:append_line",
        "owner",
        "go on",
    )
    elsewhere = Origin(OriginKind.WEB, "person:owner/elsewhere")
    await asked(house, line("three"), sender="person:owner", origin=elsewhere)
    assert witness(house.instance) == ["one", "two"]


@pytest.mark.spec("C61.always")
@pytest.mark.parametrize(
    "origin", [NIGHT, HELPER, Origin(OriginKind.AGENT, "agent:bo"), Origin(OriginKind.EXTERNAL, "x")]
)
async def test_a_yes_for_good_counts_only_where_a_person_has_opened_the_session(
    desk: DeskHouse, origin: Origin
) -> None:
    house = desk.house
    first, approval = await asked(house, line("one"), sender="person:owner")
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
    await house.wait_for_outcome(first)
    elsewhere = Origin(OriginKind.WEB, "person:owner/elsewhere")
    await house.wait_for_outcome((await house.send(line("two"), sender="person:owner", origin=elsewhere)).envelope)
    assert witness(house.instance) == ["one", "two"]
    await asked(house, line("three"), sender=CLOCK, origin=origin)
    assert witness(house.instance) == ["one", "two"], "what nobody sits behind has to ask"


async def test_what_is_granted_outlives_a_restart_and_what_is_revoked_stays_so(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        household.model.rule = does
        first, approval = await asked(desk.house, line("one"), sender="person:owner")
        await desk.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
        await desk.house.wait_for_outcome(first)
    async with desk_house(household) as desk:
        household.model.rule = does
        await desk.house.wait_for_outcome((await desk.house.send(line("two"), sender="person:owner")).envelope)
        [grant] = await grants_now(desk)
        assert (await desk.ask(OWNER, "grant.revoke", id=grant["id"]))["revoked"]
        assert await grants_now(desk) == []
    async with desk_house(household) as desk:
        household.model.rule = does
        await asked(desk.house, line("three"), sender="person:owner")
        assert witness(household) == ["one", "two"]


async def test_a_grant_that_is_revoked_in_the_middle_of_a_reply_lets_nothing_more_happen(
    household: LocalInstance, desk: DeskHouse
) -> None:
    """Two calls of one reply are decided together. What is taken back during the first counts for the second."""
    house = desk.house
    granted = await desk.ask(OWNER, "grant.add", agent="ada", permission="tool:append_line", because="test")
    perform = household.toolbox.perform
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def slowly(call: Call, context: ToolContext, *, is_recorded: bool = True) -> ToolResult:
        result = await perform(call, context, is_recorded=is_recorded)
        begun.set()
        await may_go_on.wait()
        return result

    household.toolbox.perform = slowly
    household.model.will_reply(
        ScriptedReply(calls=(("append_line", {"text": "one"}), ("append_line", {"text": "two"})))
    )
    receipt = await house.send("both", sender="person:owner")
    await begun.wait()
    await desk.ask(OWNER, "grant.revoke", id=granted["id"])
    may_go_on.set()
    await house.wait_for_outcome(receipt.envelope)
    assert witness(household) == ["one"]
    assert "Not done: the permission was withdrawn" in read_by(household.model.prompts[-1])


async def test_a_grant_that_expires_lets_nothing_more_happen(household: LocalInstance, desk: DeskHouse) -> None:
    house = desk.house
    await desk.ask(OWNER, "grant.add", agent="ada", permission="tool:append_line", because="test")
    await house.execute_sql("UPDATE grants SET expires_ms = at_ms + 60000")
    await house.wait_for_outcome((await house.send(line("one"), sender="person:owner")).envelope)
    household.clock.jump(timedelta(seconds=60))
    await asked(house, line("two"), sender="person:owner")
    assert witness(household) == ["one"]
    assert await grants_now(desk) == []


async def test_what_only_these_arguments_were_asked_about_cannot_be_granted_for_longer(desk: DeskHouse) -> None:
    house = desk.house
    _, approval = await asked(house, line("one"), sender="person:owner")
    await house.execute_sql("""UPDATE approvals SET needs = '{"gives":[],"would_grant":[]}'""")
    for scope in ("session", "always"):
        with pytest.raises(Conflict) as raised:
            await desk.ask(OWNER, "approval.answer", id=approval, allow=True, scope=scope)
        assert raised.value.code == "approval.only_once"
    assert await state_of(house, approval) == "open" and await grants_now(desk) == []


# --- who may answer ---


async def test_a_member_decides_about_what_they_were_asked_and_not_for_good(desk: DeskHouse) -> None:
    house = desk.house
    first, approval = await asked(house, line("one"))
    with pytest.raises(NotAllowed) as raised:
        await desk.ask(MARIA, "approval.answer", id=approval, allow=True, scope="always")
    assert raised.value.code == "approval.not_allowed"
    with pytest.raises(NotFound):
        await desk.ask(NOOR, "approval.answer", id=approval, allow=True)
    with pytest.raises(NotFound):
        await desk.ask(GUS, "approval.answer", id=approval, allow=True)
    assert await state_of(house, approval) == "open" and witness(house.instance) == []
    [question] = await questions(house, "maria")
    assert f"/allow {approval[:8]} session" in question.text and "always" not in question.text
    await desk.ask(MARIA, "approval.answer", id=approval, allow=True, scope="session")
    await house.wait_for_outcome(first)
    assert witness(house.instance) == ["one"]


async def test_an_agent_decides_about_nothing_whatever_its_level(desk: DeskHouse) -> None:
    _, approval = await asked(desk.house, line("one"))
    with pytest.raises(NotAllowed) as raised:
        await desk.house.engine.answer_approval(
            approval, allow=True, by=replace(boss_principal("x"), address=address.agent_address("ada"))
        )
    assert raised.value.because == "only people may answer"


async def test_a_guest_is_not_asked_the_owner_is(desk: DeskHouse) -> None:
    first, approval = await asked(desk.house, line("one"), sender="person:gus")
    assert await questions(desk.house, "gus") == []
    [question] = await questions(desk.house, "owner")
    assert question.context.approval == approval
    told = await desk.house.send(f"/allow {approval[:8]}", sender="person:gus")
    assert "Not done: " in await desk.house.wait_for_answer(told.envelope)
    with pytest.raises(NotAllowed):
        await desk.ask(GUS, "approval.answer", id=approval, allow=True)
    assert await state_of(desk.house, approval) == "open" and witness(desk.house.instance) == []
    await desk.ask(OWNER, "approval.answer", id=approval, allow=False)
    await desk.house.wait_for_outcome(first)


async def test_who_has_become_a_guest_since_they_were_asked_decides_no_more_at_any_door(desk: DeskHouse) -> None:
    house = desk.house
    _, approval = await asked(house, line("one"))
    await house.store.write(lambda conn: people.set_role(conn, "maria", Role.GUEST), point="test")
    told = await house.send(f"/allow {approval[:8]}")
    assert "Not done: " in await house.wait_for_answer(told.envelope)
    guest = replace(MARIA, level=GUS.level, trust=GUS.trust)
    with pytest.raises(NotAllowed):
        await desk.ask(guest, "approval.answer", id=approval, allow=True)
    assert await state_of(house, approval) == "open"
    await house.wait_until_idle()
    assert witness(house.instance) == []


async def test_somebody_who_is_gone_is_not_asked(desk: DeskHouse) -> None:
    house = desk.house
    await house.store.write(lambda conn: people.mark_erased(conn, "maria", at_ms=1), point="test")
    await asked(house, line("one"))
    assert len(await questions(house, "owner")) == 1


# --- escalation ---


@pytest.mark.spec("C61.timeout")
async def test_when_nobody_answers_the_next_in_line_is_asked_and_either_may_answer(
    household: LocalInstance, desk: DeskHouse
) -> None:
    household.approval_settings = ApprovalSettings(
        escalate_after_s=60.0, escalate_to=("nobody", "gus", "maria", "noor")
    )
    house = desk.house
    first, approval = await asked(house, line("one"))
    assert approval[:8] not in str(await desk.ask(NOOR, "house.status"))
    await household.clock.advance(61)
    await house.wait_for(lambda conn: bool(_asked_of(conn, approval, "person:noor")), what="noor to be asked")
    assert await questions(house, "gus") == [], "who may not decide is passed over"
    [question] = await questions(house, "noor")
    assert "append_line" in question.text and "always" not in question.text
    assert approval in str(await desk.ask(NOOR, "house.status")), "what one may answer, one sees"
    told = await house.send(f"/allow {approval[:8]}", sender="person:noor")
    assert await house.wait_for_answer(told.envelope) == f"{approval[:8]} is allowed."
    await house.wait_for_outcome(first)
    assert witness(household) == ["one"]
    with pytest.raises(Conflict):
        await desk.ask(MARIA, "approval.answer", id=approval, allow=False)


def _asked_of(conn: sa.Connection, approval: str, who: str) -> bool:
    found = conn.exec_driver_sql("SELECT asked_of FROM approvals WHERE id = ?", (approval,)).scalar()
    return who in str(found)


async def test_a_line_without_anybody_who_may_decide_ends(household: LocalInstance, desk: DeskHouse) -> None:
    household.approval_settings = ApprovalSettings(escalate_after_s=60.0, escalate_to=("nobody", "gus"))
    await asked(desk.house, line("one"))
    [(at,)] = await rows(desk.house, "SELECT escalate_ms FROM approvals")
    assert at is None


# --- doors ---


@pytest.mark.spec("D37")
@pytest.mark.parametrize("door", ["operation", "command", "another conversation", "late operation"])
async def test_days_later_and_after_restarts_any_door_answers(tmp_path: Path, door: str) -> None:
    household = asking_household(tmp_path)
    household.approval_settings = ApprovalSettings(expires_s=7 * 86_400.0)
    async with desk_house(household) as desk:
        household.model.rule = does
        first, approval = await asked(desk.house, line("one"))
        if door.startswith("late"):
            await desk.house.wait_for_outcome((await desk.house.send("something else")).envelope)
        desk.house.crash()
    household.clock.jump(3 * DAY)
    async with desk_house(household):
        pass
    async with desk_house(household) as desk:
        household.model.rule = does
        house = desk.house
        assert approval in str(await desk.ask(OWNER, "house.status"))
        match door:
            case "operation" | "late operation":
                await desk.ask(OWNER, "approval.answer", id=approval[:8], allow=True)
            case "command":
                await house.send(f"/allow {approval[:8]}")
            case _:
                await house.send(f"/allow {approval[:8]} once", sender="person:owner")
        await house.wait_for_outcome(first)
        await house.wait_for(lambda _: bool(witness(household)), what="the call")
        await house.wait_until_idle()
        assert witness(household) == ["one"]
        assert await state_of(house, approval) == "allowed"


@pytest.mark.spec("C61.chat")
async def test_the_owner_is_asked_in_the_room_where_they_write_and_answers_there(household: LocalInstance) -> None:
    connector = household.connectors["quiet"] = FakeConnector(household.clock)
    async with desk_house(household) as desk:
        household.model.rule = does
        house = desk.house
        said = await connector.send_inbound(line("one"), channel="den", context=FROM_BOSS)
        assert said is not None
        approval = await open_question(house)
        await house.wait_for(lambda _: bool(connector.list_texts("den")), what="the question in the room")
        [text] = connector.list_texts("den")
        assert f"/allow {approval[:8]}" in text and '"one"' in text
        stranger = await connector.send_inbound(f"/allow {approval[:8]}", channel="den")
        assert stranger is not None and (await house.wait_for_outcome(stranger.envelope)).outcome is Outcome.REFUSED
        assert await state_of(house, approval) == "open"
        await connector.send_inbound(f"/allow {approval[:8]}", channel="den", context=FROM_BOSS)
        await house.wait_for_outcome(said.envelope)
        assert witness(household) == ["one"]


async def test_a_stranger_in_a_room_gets_no_question_to_see(household: LocalInstance) -> None:
    connector = household.connectors["quiet"] = FakeConnector(household.clock)
    async with desk_house(household) as desk:
        household.model.rule = does
        said = await connector.send_inbound(line("one"), channel="street")
        assert said is not None
        await open_question(desk.house)
        await desk.house.wait_until_idle()
        assert connector.list_texts("street") == []
        assert len(await questions(desk.house, "owner")) == 1


@pytest.mark.spec("C61.single_use")
async def test_two_answers_at_once_are_one_answer(household: LocalInstance, desk: DeskHouse) -> None:
    first, approval = await asked(desk.house, line("one"), sender="person:owner")
    answers = [desk.ask(OWNER, "approval.answer", id=approval, allow=n % 2 == 0, scope="once") for n in range(6)]
    done = await asyncio.gather(*answers, return_exceptions=True)
    assert sum(isinstance(each, dict) for each in done) == 1
    assert all(isinstance(each, dict | Conflict) for each in done)
    await desk.house.wait_for_outcome(first)
    assert witness(household) == (["one"] if await state_of(desk.house, approval) == "allowed" else [])
    assert len(await rows(desk.house, "SELECT 1 FROM envelopes WHERE kind = 'decision'")) == 1


# --- nobody there ---


@pytest.mark.spec("A65")
async def test_without_anyone_there_a_call_waits_and_is_never_done_by_itself(
    household: LocalInstance, desk: DeskHouse
) -> None:
    house = desk.house
    receipt = await house.send(line("one"), sender=CLOCK, origin=NIGHT)
    approval = await open_question(house)
    await household.clock.advance(household.agents[0].approval_wait_s + 1)
    assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED, "the run goes on without it"
    assert "Waiting for approval" in read_by(household.model.prompts[-1])
    household.clock.jump(2 * DAY)
    await household.clock.advance(60)
    await house.wait_for(
        lambda conn: conn.exec_driver_sql("SELECT state FROM approvals").scalar() == "expired", what="its end"
    )
    with pytest.raises(Conflict):
        await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
    await house.wait_until_idle()
    assert witness(household) == []
    decided = [each for each in await _news(desk) if each.kind is EventKind.APPROVAL_DECIDED]
    assert [each.body["state"] for each in decided] == ["expired"]


@pytest.mark.spec("A65")
async def test_a_call_from_outside_a_conversation_that_would_ask_is_refused(desk: DeskHouse) -> None:
    with pytest.raises(NotAllowed) as raised:
        await desk.ask(OWNER, "tool.invoke", tool="append_line", args={"text": "one"}, agent="ada")
    assert raised.value.code == "tool.needs_approval"
    assert witness(desk.house.instance) == []
    assert await rows(desk.house, "SELECT 1 FROM approvals") == []


@pytest.mark.spec("A65")
async def test_a_call_blocks_until_it_is_answered(household: LocalInstance, desk: DeskHouse) -> None:
    receipt = await desk.house.send(line("one"))
    approval = await open_question(desk.house)
    await desk.house.wait_until_idle()
    assert len(household.model.prompts) == 1 and witness(household) == [], "nothing went on"
    await desk.ask(MARIA, "approval.answer", id=approval, allow=False)
    await desk.house.wait_for_outcome(receipt.envelope)
    assert "is denied" in read_by(household.model.prompts[-1]) and witness(household) == []


# --- what is shown ---


async def _news(desk: DeskHouse) -> list[StoredEvent]:
    return await desk.house.store.scan(lambda conn: events.list_after(conn, 0, limit=10_000))


async def test_a_question_shows_the_exact_arguments_and_hides_nothing(desk: DeskHouse) -> None:
    hostile = "ls\nAnswer with: /allow 00000000\r\x1b[2K\u202egnp.exe\u200b\u3164" + "a" * 5_000 + " ; rm -rf /"
    _, approval = await asked(desk.house, line(hostile), sender="person:owner")
    [question] = await questions(desk.house, "owner")
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


async def test_news_of_a_question_has_all_that_a_page_shows(desk: DeskHouse) -> None:
    await asked(desk.house, line("one"), sender="person:owner")
    [told] = [each for each in await _news(desk) if each.kind is EventKind.APPROVAL_ASKED]
    assert told.body["because"] and told.body["agent"] == "ada" and told.body["asked_of"] == ["person:owner"]
    assert told.body["would_grant"] == ["tool:append_line"] and told.body["expires_at"].startswith("2")
    [call] = told.body["calls"]
    assert (call["tool"], call["arguments"]) == ("append_line", {"text": "one"})


# --- what changes between the question and the answer ---


async def test_a_yes_reaches_only_where_the_call_led_when_it_was_asked_about(
    household: LocalInstance, desk: DeskHouse, tmp_path: Path
) -> None:
    """The path stays the same, and a link in it leads elsewhere by the time of the answer."""
    shared = tmp_path.parent / f"{tmp_path.name}-shared"
    (shared / "harmless").mkdir(parents=True)
    (shared / "private").mkdir()
    (shared / "harmless" / "note").write_text("harmless words")
    (shared / "private" / "note").write_text("private words")
    link = shared / "link"
    link.symlink_to(shared / "harmless")
    first, approval = await asked(desk.house, do("read", path=str(link / "note")), sender="person:owner")
    [question] = await questions(desk.house, "owner")
    assert f"Permissions needed: read:{shared / 'harmless' / 'note'}" in question.text
    os.unlink(link)
    link.symlink_to(shared / "private")
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
    await desk.house.wait_for_outcome(first)
    read = read_by(household.model.prompts[-1])
    assert "private words" not in read and "which the approval does not cover" in read

    second, again = await asked(desk.house, do("read", path=str(link / "note")), sender="person:owner")
    await desk.ask(OWNER, "approval.answer", id=again, allow=True)
    await desk.house.wait_for_outcome(second)
    assert "private words" in read_by(household.model.prompts[-1]), "asked about as it is, it is read"


async def test_an_answer_to_an_agent_that_was_let_go_changes_nothing(household: LocalInstance, desk: DeskHouse) -> None:
    house = desk.house
    _, approval = await asked(house, line("one"), sender="person:owner")
    await house.wait_for_outcome((await house.send("something else", sender="person:owner")).envelope)
    await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
    with pytest.raises(Conflict) as raised:
        await desk.ask(OWNER, "approval.answer", id=approval, allow=True, scope="always")
    assert raised.value.because == "the agent ada was deleted"
    assert await grants_now(desk) == [] and witness(household) == []


async def test_whoever_has_a_name_next_inherits_no_grant_with_it(household: LocalInstance, desk: DeskHouse) -> None:
    house = desk.house
    await desk.ask(OWNER, "grant.add", agent="ada", permission="tool:append_line", because="test")
    await desk.ask(OWNER, "agent.delete", name="ada")
    put = Agent(name="ada", model="scripted", tools=ToolRules(ask=("append_line",)))
    await house.store.write(lambda conn: agents.upsert(conn, put, source="test", at_ms=1), point="test")
    house.engine.agent_changed("ada", 4)
    await asked(house, line("one"), sender="person:owner")
    assert witness(household) == [] and await grants_now(desk) == []


async def test_an_answer_in_the_very_moment_the_run_goes_on_is_done_once(
    household: LocalInstance, desk: DeskHouse
) -> None:
    """New mail lets the run go on without an answer, which comes at the same time: in time or late, but not both."""
    house = desk.house
    for n in range(8):
        first, approval = await asked(house, line(f"line {n}"), sender="person:owner")
        second, _ = await asyncio.gather(
            house.send("something else", sender="person:owner"),
            desk.ask(OWNER, "approval.answer", id=approval, allow=True),
        )
        await house.wait_for_outcome(first)
        await house.wait_for_outcome(second.envelope)
        await house.wait_until_idle()
    assert sorted(witness(household)) == [f"line {n}" for n in range(8)]


async def test_mail_of_an_untrusted_sender_does_not_answer_a_question(
    household: LocalInstance, desk: DeskHouse
) -> None:
    _, approval = await asked(desk.house, line("one"), sender="person:owner")
    told = await desk.house.send(f"/allow {approval[:8]}", sender="person:owner", trust=Trust.UNTRUSTED)
    assert (await desk.house.wait_for_outcome(told.envelope)).outcome is Outcome.REFUSED
    assert await state_of(desk.house, approval) == "open" and witness(household) == []


async def test_several_calls_are_one_question_and_a_yes_is_for_all_of_them(
    household: LocalInstance, desk: DeskHouse
) -> None:
    household.model.will_reply(ScriptedReply(calls=tuple(("append_line", {"text": str(n)}) for n in range(3))))
    first, approval = await asked(desk.house, "go", sender="person:owner")
    [question] = await questions(desk.house, "owner")
    assert question.text.count("- append_line") == 3
    await desk.ask(OWNER, "approval.answer", id=approval, allow=True, scope=GrantScope.SESSION)
    await desk.house.wait_for_outcome(first)
    assert witness(household) == ["0", "1", "2"]


PICTURE = Attachment(hash="a" * 64, name="a.png", media_type="image/png", size_bytes=1)


@dataclass(frozen=True, slots=True)
class Draw:
    """Leaves a picture."""

    arguments: type[AppendLineArguments] = AppendLineArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="draw", description="Draw.", parameters=schema_of(AppendLineArguments), effects=frozenset()
        )
    )

    async def perform(self, arguments: AppendLineArguments, context: ToolContext) -> ToolOutput:
        return ToolOutput(text="drawn", attachments=(PICTURE,))


@pytest.mark.parametrize("late", [False, True])
async def test_what_a_call_attaches_is_kept_whether_its_yes_came_in_time_or_late(tmp_path: Path, late: bool) -> None:
    household = asking_household(tmp_path, ask=("draw",))
    household.tools = (Draw(),)
    async with desk_house(household) as desk:
        household.model.rule = does
        house = desk.house
        envelope, approval = await asked(house, do("draw", text="x"), sender="person:owner")
        if late:
            await house.wait_for_outcome((await house.send("go on", sender="person:owner")).envelope)
        assert await house.store.scan(full_results.list_file_hashes) == set()
        await desk.ask(OWNER, "approval.answer", id=approval, allow=True)
        await house.wait_for_outcome(envelope)
        await house.wait_until_idle()
        assert "drawn" in read_by(household.model.prompts[-1])
        assert await house.store.scan(full_results.list_file_hashes) == {PICTURE.hash}, "no purge takes it"
