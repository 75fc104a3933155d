"""The engine's contract: sessions sleep until there is something to do, and what is silent wakes nobody."""

from __future__ import annotations

import asyncio

import pytest
from contracts.engine_cancel import thinking
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    all_news,
    kinds,
    opened,
    rows,
    shown,
    until,
    user_turns,
)

from retinue.domain.envelope import EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.event import EventKind
from retinue.domain.record import RecordKind
from retinue.domain.session import QueueMode, QueuePolicy, SessionActivity
from retinue.models.base import ModelPrompt
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply

FOLLOWUP = QueuePolicy(mode=QueueMode.FOLLOWUP)


async def note(house: LocalServer, session: str | None, text: str) -> str:
    """Tell a session something without asking anything of it."""
    here = f"agent:ada/{session}"
    return (await house.send(text, kind=EnvelopeKind.SYSTEM, silent=True, sender="agent:ada", recipient=here)).envelope


@pytest.mark.spec("D2")
async def test_a_session_and_its_start_are_stored_before_its_first_message_is_handled(
    any_household: LocalInstance,
) -> None:
    household = any_household
    household.model.will_reply(text_reply("hello", after_s=1))
    async with opened(household) as house:
        _, session = await thinking(household, house)
        found = await rows(house, "SELECT agent, origin_kind, origin_key, wakefulness FROM sessions")
        assert found == [("ada", "web", "person:maria", "active")]
        assert kinds(await house.list_records(session)) == [RecordKind.START, RecordKind.USER]
        (started,) = await all_news(house, EventKind.SESSION_STARTED)
        assert started.session == session
        await household.clock.advance(1)


@pytest.mark.spec("D12")
async def test_an_idle_session_is_stored_as_sleeping_and_woken_by_the_next_item(any_household: LocalInstance) -> None:
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        first = await house.send("hello")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        assert (await house.get_session(first.session)).activity is SessionActivity.SLEEPING
        second = await house.send("hello again")
        assert second.session == first.session
        assert await house.wait_for_answer(second.envelope) == "ok"
        await house.wait_until_idle()
        assert (await house.get_session(first.session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D12")
async def test_sleeping_sessions_are_not_touched_when_the_house_opens(household: LocalInstance, hands: Hands) -> None:
    household.people = ("maria", "owner", *(f"p{n}" for n in range(20)))
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        for n in range(20):
            await house.wait_for_outcome((await house.send("hello", sender=f"person:p{n}")).envelope)
        await house.wait_until_idle()
        household.model.rule = lambda prompt: text_reply("never", after_s=100)
        envelope, session = await thinking(household, house)
        house.crash()
    household.model.rule = lambda prompt: text_reply("ok")
    seen = len(hands.points)
    before = "SELECT id, epoch, updated_ms, record_seq, wakefulness FROM sessions WHERE wakefulness = 'sleeping'"
    async with opened(household) as house:
        asleep = await rows(house, before)
        assert await house.wait_for_answer(envelope) == "ok"
        await house.wait_until_idle()
        assert len(asleep) == 20
        after = {row.id: row for row in await rows(house, before)}
        assert [after[row.id] for row in asleep] == asleep, "nobody has touched those that slept"
        assert hands.points[seen:].count("claim") <= 2, "one claim for the session that was awake, and one look after"
        assert (await house.get_session(session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D13")
@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
async def test_mail_posted_around_the_commit_that_ends_a_run_is_not_lost(
    any_household: LocalInstance, hands: Hands, committed: bool
) -> None:
    """The same commit puts the session to sleep when it finds nothing more to do."""
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("finish", committed=committed) as finish:
            first = await house.send("first")
            await finish.reached.wait()
            second = await house.send("second")
        assert await house.wait_for_answer(first.envelope) == "ok"
        assert await house.wait_for_answer(second.envelope) == "ok"
        await house.wait_until_idle()
        assert (await house.get_session(first.session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D13")
@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
async def test_mail_posted_around_the_commit_that_puts_a_session_to_sleep_is_not_lost(
    household: LocalInstance, hands: Hands, committed: bool
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        first = await house.send("first")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        with hands.holding("claim", committed=committed) as claim:
            # Silent mail wakes the lane only to be written down: the claim finds no work and puts it to sleep.
            await house.send(
                "note",
                kind=EnvelopeKind.SYSTEM,
                silent=True,
                sender="agent:ada",
                recipient=f"agent:ada/{first.session}",
            )
            await claim.reached.wait()
            second = await house.send("second")
        assert await house.wait_for_answer(second.envelope) == "ok"
        await house.wait_until_idle()
        assert (await house.get_session(first.session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D13")
async def test_mail_whose_commit_is_slow_wakes_a_session_that_went_to_sleep_meanwhile(
    household: LocalInstance, hands: Hands
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("finish") as finish:
            first = await house.send("first")
            await finish.reached.wait()
            with hands.holding("accept") as accept:
                posting = asyncio.create_task(house.send("second"))
                await accept.reached.wait()
                hands.release("finish")
                await house.wait_for_outcome(first.envelope)
                await house.wait_until_idle()
                assert (await house.get_session(first.session)).activity is SessionActivity.SLEEPING
        assert await house.wait_for_answer((await posting).envelope) == "ok"


async def test_mail_whose_sender_hung_up_before_hearing_of_it_is_worked_all_the_same(
    any_household: LocalInstance, hands: Hands
) -> None:
    """It was stored; the hint that goes with it was lost. The alarm finds it with its next look."""
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("accept") as accept:
            posting = asyncio.create_task(house.send("are you there?"))
            await accept.reached.wait()
            posting.cancel()
        statement = "SELECT id FROM envelopes WHERE kind = 'message'"
        id_ = await house.wait_for(lambda conn: conn.exec_driver_sql(statement).scalar(), what="the letter")
        await a_moment(house)
        await household.clock.advance(60)
        assert await house.wait_for_answer(id_) == "ok"


async def test_many_who_write_at_once_are_all_heard(household: LocalInstance) -> None:
    """Waking and going to sleep, over and over, from many sides."""
    household.agents = (ada(queue=QueuePolicy(cap=1000)),)
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:

        async def write(n: int) -> list[str]:
            ids: list[str] = []
            for k in range(20):
                ids.append((await house.send(f"{n} {k}")).envelope)
                if (n + k) % 5 == 0:
                    await house.wait_for_outcome(ids[-1])
                for _ in range(n):
                    await asyncio.sleep(0)
            return ids

        for ids in await asyncio.gather(*(write(n) for n in range(8))):
            for id_ in ids:
                assert (await house.wait_for_outcome(id_)).outcome is Outcome.ANSWERED
        read = "\n".join(user_turns(household.model.prompts[-1].records)).split("\n")
        assert sorted(line for line in read if line.count(" ") == 1 and line[0].isdigit()) == sorted(
            f"{n} {k}" for n in range(8) for k in range(20)
        )


# System mail


@pytest.mark.spec("D4", "D78")
async def test_a_system_message_is_wrapped_with_its_origin_recorded_and_worked(any_household: LocalInstance) -> None:
    household = any_household
    household.model.will_reply("first", "understood")
    async with opened(household) as house:
        first = await house.send("hello")
        await house.wait_for_outcome(first.envelope)
        system = await house.send(
            "the heating is off", kind=EnvelopeKind.SYSTEM, sender="agent:ada", recipient=f"agent:ada/{first.session}"
        )
        assert (await house.wait_for_outcome(system.envelope)).outcome is Outcome.ANSWERED
        wrapped = '<system_message origin="agent:ada">the heating is off</system_message>'
        assert wrapped in shown(household.model.prompts[1]).split("\n")
        history = await house.list_records(first.session)
        assert wrapped in user_turns(history)[-1]
        assert kinds(history)[-2:] == [RecordKind.USER, RecordKind.ASSISTANT]


@pytest.mark.spec("D5", "D78", "C21")
async def test_a_silent_system_message_is_written_down_read_next_time_and_triggers_nothing(
    any_household: LocalInstance,
) -> None:
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok")
    wrapped = '<system_message origin="agent:ada">the heating is off</system_message>'
    async with opened(household) as house:
        first = await house.send("hello")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        silent = await note(house, first.session, "the heating is off")
        assert (await house.wait_for_outcome(silent)).outcome is Outcome.NOTED
        await house.wait_until_idle()
        assert len(household.model.prompts) == 1
        assert len(await all_news(house, EventKind.RUN_STARTED)) == 1
        assert (await house.get_session(first.session)).activity is SessionActivity.SLEEPING
        history = await house.list_records(first.session)
        assert kinds(history)[-1] is RecordKind.USER and user_turns(history)[-1] == wrapped
        house.crash()
    async with opened(household) as house:
        for _ in range(2):
            assert await house.wait_for_answer((await house.send("is it cold?")).envelope) == "ok"
            await house.wait_until_idle()
        for prompt in household.model.prompts[1:]:
            assert user_turns(prompt.records).count(wrapped) == 1, "once, and still there after a restart"


@pytest.mark.spec("D5")
async def test_a_silent_message_can_be_the_first_of_its_session(household: LocalInstance) -> None:
    async with opened(household) as house:
        silent = await house.send("remember this", kind=EnvelopeKind.SYSTEM, silent=True)
        assert (await house.wait_for_outcome(silent.envelope)).outcome is Outcome.NOTED
        await house.wait_until_idle()
        assert household.model.prompts == []
        assert kinds(await house.list_records(silent.session)) == [RecordKind.START, RecordKind.USER]


@pytest.mark.spec("D5", "C21")
async def test_silent_mail_during_a_run_is_written_down_after_it_and_parts_no_call_from_its_result(
    household: LocalInstance,
) -> None:
    household.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1), text_reply("first", after_s=1), "second"
    )
    async with opened(household) as house:
        first, session = await thinking(household, house)
        notes = [await note(house, session, "one")]
        await household.clock.advance(1)
        await until(lambda: len(household.model.prompts) == 2, what="the second turn")
        notes.append(await note(house, session, "two"))
        await a_moment(house)
        assert [(await house.get_envelope(id_)).status for id_ in notes] == [
            EnvelopeStatus.PENDING,
            EnvelopeStatus.PENDING,
        ]
        await household.clock.advance(1)
        assert await house.wait_for_answer(first) == "first"
        for id_ in notes:
            assert (await house.wait_for_outcome(id_)).outcome is Outcome.NOTED
        await house.wait_until_idle()
        assert len(household.model.prompts) == 2, "it has triggered nothing"
        assert kinds(await house.list_records(session)) == [
            RecordKind.START,
            RecordKind.USER,
            RecordKind.ASSISTANT,
            RecordKind.TOOL,
            RecordKind.ASSISTANT,
            RecordKind.USER,
            RecordKind.USER,
        ]
        await house.wait_for_outcome((await house.send("and now?")).envelope)
        assert notes_in(household.model.prompts[2]) == ["one", "two"]


def notes_in(prompt: ModelPrompt) -> list[str]:
    opening, closing = '<system_message origin="agent:ada">', "</system_message>"
    return [
        text.removeprefix(opening).removesuffix(closing)
        for text in user_turns(prompt.records)
        if text.startswith(opening)
    ]


async def test_more_silent_mail_than_fits_one_look_is_all_written_down(household: LocalInstance, hands: Hands) -> None:
    household.model.will_reply("hello", "I have read it")
    async with opened(household) as house:
        first = await house.send("hello")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        with hands.holding("claim") as claim:
            notes = [
                await house.send(
                    f"{n}",
                    kind=EnvelopeKind.SYSTEM,
                    silent=True,
                    sender="agent:ada",
                    recipient=f"agent:ada/{first.session}",
                )
                for n in range(120)
            ]
            await claim.reached.wait()
        for receipt in notes:
            assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.NOTED
        await house.wait_for_outcome((await house.send("and now?")).envelope)
        assert notes_in(household.model.prompts[1]) == [f"{n}" for n in range(120)]
