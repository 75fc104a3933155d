"""The engine's contract: time is one more sender. What is due is worked, and what expired is told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_cancel import thinking
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    answers_to,
    as_time_goes_by,
    notices_to,
    opened,
    outcomes,
    parked,
    power_goes,
    rows,
    shown,
    until,
)

from retinue.domain.agent import ToolRules
from retinue.domain.envelope import EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.session import QueuePolicy
from retinue.domain.times import parse_time
from retinue.engine.lanes import SlotLimits
from retinue.intake.accept import TimerWake
from retinue.store.agents import agents
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply, tool_call_reply


async def waits(house: LocalServer, envelope: str) -> None:
    """However long one looks at it."""
    await a_moment(house)
    assert (await house.get_envelope(envelope)).status is EnvelopeStatus.PENDING


@pytest.mark.spec("H11")
async def test_mail_for_later_waits_for_its_time_and_mail_for_earlier_does_not(any_household: LocalInstance) -> None:
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        now = household.clock.now()
        late = await house.send("for earlier", deliver_at=now - timedelta(hours=1))
        assert await house.wait_for_answer(late.envelope) == "ok"
        later = await house.send("for later", deliver_at=now + timedelta(seconds=90))
        await house.wait_until_idle()
        await waits(house, later.envelope)
        await household.clock.advance(89)
        await waits(house, later.envelope)
        await household.clock.advance(1)
        assert await house.wait_for_answer(later.envelope) == "ok"


@pytest.mark.spec("H14")
async def test_the_alarm_rings_at_the_earliest_of_thousands_of_moments(household: LocalInstance, hands: Hands) -> None:
    household.people = ("maria", "owner")
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        now = household.clock.now()
        posts = [
            house.send(f"number {n}", deliver_at=now + timedelta(seconds=10 + (n * 7919) % 3000 + 600 * (n > 0)))
            for n in range(3000)
        ]
        receipts = await asyncio.gather(*posts)
        await a_moment(house)
        looks = hands.looks
        await household.clock.advance(9)
        await a_moment(house)
        assert hands.looks == looks, "nobody has looked before the first moment"
        await household.clock.advance(1)
        assert await house.wait_for_answer(receipts[0].envelope) == "ok"
        assert await rows(house, "SELECT count(*) FROM envelopes WHERE status = 'pending'") == [(2999,)]


@pytest.mark.spec("H14")
async def test_earlier_mail_brings_the_alarm_forward(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        now = household.clock.now()
        far = await house.send("far", deliver_at=now + timedelta(seconds=50))
        await a_moment(house)
        near = await house.send("near", deliver_at=now + timedelta(seconds=5))
        await a_moment(house)
        await household.clock.advance(5)
        assert await house.wait_for_answer(near.envelope) == "ok"
        await waits(house, far.envelope)


@pytest.mark.spec("H14")
async def test_a_delay_of_thirty_years_is_kept(any_household: LocalInstance) -> None:
    household = any_household
    household.model.rule = lambda prompt: text_reply("it has been a while")
    async with opened(household) as house:
        due = household.clock.now() + timedelta(days=30 * 365)
        receipt = await house.send("see you then", deliver_at=due)
        await a_moment(house)
        await household.clock.advance(600)
        await waits(house, receipt.envelope)
        house.crash()
    household.clock.jump(timedelta(days=30 * 365 - 1))
    async with opened(household) as house:
        await household.clock.advance(3600)
        await waits(house, receipt.envelope)
        household.clock.jump(timedelta(days=1))
        await household.clock.advance(60)
        assert await house.wait_for_answer(receipt.envelope) == "it has been a while"


async def test_when_the_wall_clock_jumps_forwards_mail_is_late_by_a_tick_at_most(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        receipt = await house.send("in a week", deliver_at=household.clock.now() + timedelta(days=7))
        await a_moment(house)
        household.clock.jump(timedelta(days=8))
        await household.clock.advance(60)
        assert await house.wait_for_answer(receipt.envelope) == "ok"


async def test_when_the_wall_clock_jumps_back_nothing_is_lost_late_or_out_of_order(
    any_household: LocalInstance,
) -> None:
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        start = household.clock.now()
        first = await house.send("first")
        await house.wait_for_outcome(first.envelope)
        later = await house.send("at ten past", deliver_at=start + timedelta(minutes=10))
        await a_moment(house)
        household.clock.jump(-timedelta(hours=1))
        # Mail for now is worked now, whatever the wall shows, and never bears an earlier time than mail before it.
        second = await house.send("second")
        assert await house.wait_for_answer(second.envelope) == "ok"
        assert (await house.get_envelope(second.envelope)).accepted_at >= (
            await house.get_envelope(first.envelope)
        ).accepted_at
        await household.clock.advance(3600 + 540)  # nine minutes past
        await waits(house, later.envelope)
        assert await as_time_goes_by(house, house.wait_for_answer(later.envelope), step_s=30) == "ok"
        assert (await house.wait_for_outcome(later.envelope)).at >= start + timedelta(minutes=10)


async def test_a_clock_that_was_wrong_for_a_moment_does_not_make_the_alarm_deaf(household: LocalInstance) -> None:
    """Somebody wrote while the wall showed next year; then it was put right."""
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        start = household.clock.now()
        receipt = await house.send("at ten past", deliver_at=start + timedelta(minutes=10))
        await a_moment(house)
        household.clock.jump(timedelta(days=365))
        other = await house.send("hello", sender="person:owner")
        await house.wait_for_outcome(other.envelope)
        household.clock.jump(-timedelta(days=365))
        assert await as_time_goes_by(house, house.wait_for_answer(receipt.envelope), step_s=30) == "ok"
        third = await house.send("hello again", sender="person:owner")
        assert await house.wait_for_answer(third.envelope) == "ok"


@pytest.mark.parametrize(
    ("night", "wall", "instant"),
    [
        ("2026-03-28T23:30Z", "2026-03-29T04:00", "2026-03-29T02:00Z"),  # the hour from two to three is left out
        ("2026-10-24T22:30Z", "2026-10-25T04:00", "2026-10-25T03:00Z"),  # the hour from two to three comes twice
    ],
)
async def test_mail_for_the_morning_after_the_clocks_change_comes_when_the_wall_shows_its_time(
    household: LocalInstance, night: str, wall: str, instant: str
) -> None:
    household.clock = clock = FakeClock(datetime.fromisoformat(night))
    household.model.clock = clock
    household.zone = zone = ZoneInfo("Europe/Berlin")
    household.model.rule = lambda prompt: text_reply("good morning")
    due = datetime.fromisoformat(instant).astimezone(UTC)
    async with opened(household) as house:
        deliver_at = parse_time(wall, now=clock.now(), zone=zone)
        assert deliver_at == due
        receipt = await house.send("wake up", deliver_at=deliver_at)
        await a_moment(house)
        await clock.advance(due - clock.now() - timedelta(seconds=1))
        await waits(house, receipt.envelope)
        await clock.advance(1)
        assert await house.wait_for_answer(receipt.envelope) == "good morning"
        assert f"now: {wall}:00" in shown(household.model.prompts[0])


async def test_an_alarm_that_cannot_read_the_store_rings_again(household: LocalInstance, hands: Hands) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        receipt = await house.send("later", deliver_at=household.clock.now() + timedelta(seconds=10))
        await a_moment(house)
        hands.failing_looks = 3
        await household.clock.advance(10)
        await a_moment(house)
        await waits(house, receipt.envelope)
        for left in (1, 0):
            await household.clock.advance(1)
            await until(lambda left=left: hands.failing_looks <= left, what="the alarm to ring again")
            await a_moment(house)
        await household.clock.advance(1)
        assert await house.wait_for_answer(receipt.envelope) == "ok"


async def test_what_came_due_is_worked_although_what_expired_could_not_be_closed(
    household: LocalInstance, hands: Hands
) -> None:
    household.model.will_reply(text_reply("busy", after_s=1000), "ok")
    async with opened(household) as house:
        await thinking(household, house)
        now = household.clock.now()
        expires = await house.send("hurry", expires_at=now + timedelta(seconds=10))
        due = await house.send("later", sender="person:owner", deliver_at=now + timedelta(seconds=10))
        await a_moment(house)
        hands.failing["sweep"] = 1
        await household.clock.advance(10)
        assert await house.wait_for_answer(due.envelope) == "ok"
        assert hands.failing["sweep"] == 0
        await household.clock.advance(1)
        assert (await house.wait_for_outcome(expires.envelope)).outcome is Outcome.EXPIRED


async def test_mail_whose_time_came_while_it_was_being_stored_is_found(household: LocalInstance, hands: Hands) -> None:
    """The alarm has looked past its time before it was there, and it was still to come when it was written."""
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("accept") as accept:
            due = household.clock.now() + timedelta(seconds=1)
            posting = asyncio.create_task(house.send("in a second", deliver_at=due))
            await accept.reached.wait()
            await household.clock.advance(5)
            house.engine.wake(TimerWake())
            await a_moment(house)
        assert await house.wait_for_answer((await posting).envelope) == "ok"


async def test_mail_expires_while_it_waits_and_its_sender_is_told(any_household: LocalInstance) -> None:
    household = any_household
    household.model.will_reply(text_reply("busy", after_s=1000))
    async with opened(household) as house:
        await thinking(household, house)
        now = household.clock.now()
        receipt = await house.send("hurry", expires_at=now + timedelta(seconds=30))
        await a_moment(house)
        await household.clock.advance(29)
        await waits(house, receipt.envelope)
        await household.clock.advance(1)
        settled = await house.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.because) == (Outcome.EXPIRED, "it expired before its turn came")
        assert await notices_to(house, "maria") == ["Not processed: it expired before its turn came."]


async def test_mail_that_expired_in_the_dark_is_never_read(household: LocalInstance, hands: Hands) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            soon = household.clock.now() + timedelta(seconds=30)
            expired = [(await house.send(f"hurry {n}", expires_at=soon)).envelope for n in range(5)]
            fresh = await house.send("no hurry")
            await claim.reached.wait()
            power_goes(house)
    await household.clock.advance(60)
    async with opened(household) as house:
        assert await house.wait_for_answer(fresh.envelope) == "ok"
        for id_ in expired:
            assert (await house.wait_for_outcome(id_)).outcome is Outcome.EXPIRED
        assert not any("hurry 0" in shown(prompt) for prompt in household.model.prompts)


async def test_however_much_has_expired_all_of_it_is_closed_and_what_is_behind_it_worked(
    household: LocalInstance, hands: Hands
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            soon = household.clock.now() + timedelta(seconds=30)
            expired = [
                # Silent, so that nobody is told and no wake comes of it.
                (await house.send(f"{n}", expires_at=soon, kind=EnvelopeKind.SYSTEM, silent=True)).envelope
                for n in range(130)
            ]
            fresh = await house.send("no hurry")
            await claim.reached.wait()
            power_goes(house)
    await household.clock.advance(60)
    with hands.holding("sweep"):  # so that the lane comes to it first
        async with opened(household) as house:
            assert await house.wait_for_answer(fresh.envelope) == "ok"
            for id_ in expired:
                assert (await house.wait_for_outcome(id_)).outcome is Outcome.EXPIRED
            hands.release("sweep")


async def test_a_run_that_waited_long_enough_but_finds_no_slot_does_not_keep_the_alarm_busy(
    household: LocalInstance, hands: Hands
) -> None:
    household.slots = SlotLimits(main=1)
    household.agents = (ada(approval_wait_s=10.0, tools=ToolRules(ask=("append_line",))),)
    household.model.will_reply(tool_call_reply("append_line", text="x"), text_reply("busy", after_s=50), "I wait")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        await thinking(household, house, sender="person:owner")
        await household.clock.advance(20)
        await a_moment(house)
        looks = hands.looks
        for _ in range(10):
            await a_moment(house)
        assert hands.looks - looks <= 2
        await household.clock.advance(30)
        assert await house.wait_for_answer(first.envelope) == "I wait"


# An agent that was let go


@pytest.mark.spec("H16")
async def test_due_mail_of_a_removed_agent_is_closed_in_bounded_batches(household: LocalInstance, hands: Hands) -> None:
    household.agents = (ada(queue=QueuePolicy(cap=1000)),)
    async with opened(household) as house:
        later = await house.send("for later", deliver_at=household.clock.now() + timedelta(hours=1))
        with hands.holding("claim") as claim:
            due = [(await house.send(f"number {n}")).envelope for n in range(250)]
            await claim.reached.wait()
            await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
            claims = hands.points.count("claim")
        for id_ in due:
            settled = await house.wait_for_outcome(id_)
            assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert hands.points.count("claim") - claims >= 3, "a hundred at a time"
        assert len(await notices_to(house, "maria")) == 250
        assert (await house.get_envelope(later.envelope)).status is EnvelopeStatus.PENDING
        await household.clock.advance(3600)
        settled = await house.wait_for_outcome(later.envelope)
        assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert household.model.prompts == []
        await house.wait_until_idle()
        assert await rows(house, "SELECT wakefulness FROM sessions") == [("sleeping",)]


@pytest.mark.spec("H16")
async def test_the_open_runs_of_a_removed_agent_are_closed_too(household: LocalInstance) -> None:
    household.agents = (ada(tools=ToolRules(ask=("append_line",))),)
    household.model.will_reply(tool_call_reply("append_line", text="x"), text_reply("never", after_s=100))
    async with opened(household) as house:
        waiting = await house.send("write it down")
        await parked(house)
        cut_off, _ = await thinking(household, house, sender="person:owner")
        await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        house.crash()
    household.agents = ()
    async with opened(household) as house:
        assert (await house.wait_for_outcome(cut_off)).because == "agent-not-found"
        # The one that waits for a person is closed when its waiting ends.
        settled = await as_time_goes_by(house, house.wait_for_outcome(waiting.envelope), step_s=60)
        assert settled.because == "agent-not-found"
        assert await outcomes(house, [cut_off, waiting.envelope]) == [Outcome.REFUSED, Outcome.REFUSED]
        assert await answers_to(house, "maria") == []


@pytest.mark.spec("H16")
async def test_an_agent_let_go_in_the_middle_of_a_run_ends_it_and_reads_nothing_more(household: LocalInstance) -> None:
    household.model.will_reply(text_reply("my last words", after_s=1))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        behind = await house.send("behind it")
        await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        await household.clock.advance(1)
        assert await house.wait_for_answer(envelope) == "my last words"
        settled = await house.wait_for_outcome(behind.envelope)
        assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert len(household.model.prompts) == 1
