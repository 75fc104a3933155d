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
from retinue.domain.envelope import Kind, Outcome, Status
from retinue.domain.session import QueuePolicy
from retinue.domain.times import parse_when
from retinue.engine.lanes import Slots
from retinue.intake.accept import ClockWake
from retinue.store.agents import agents
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import House, Household
from retinue.testing.scripted_model import calls, says


async def waits(house: House, envelope: str) -> None:
    """However long one looks at it."""
    await a_moment(house)
    assert (await house.envelope(envelope)).status is Status.PENDING


@pytest.mark.spec("H11")
async def test_mail_for_later_waits_for_its_time_and_mail_for_earlier_does_not(any_household: Household) -> None:
    household = any_household
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        now = household.clock.now()
        late = await house.post("for earlier", deliver_at=now - timedelta(hours=1))
        assert await house.answer_to(late.envelope) == "ok"
        later = await house.post("for later", deliver_at=now + timedelta(seconds=90))
        await house.quiet()
        await waits(house, later.envelope)
        await household.clock.advance(89)
        await waits(house, later.envelope)
        await household.clock.advance(1)
        assert await house.answer_to(later.envelope) == "ok"


@pytest.mark.spec("H14")
async def test_the_alarm_rings_at_the_earliest_of_thousands_of_moments(household: Household, hands: Hands) -> None:
    household.people = ("maria", "owner")
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        now = household.clock.now()
        posts = [
            house.post(f"number {n}", deliver_at=now + timedelta(seconds=10 + (n * 7919) % 3000 + 600 * (n > 0)))
            for n in range(3000)
        ]
        receipts = await asyncio.gather(*posts)
        await a_moment(house)
        looks = hands.looks
        await household.clock.advance(9)
        await a_moment(house)
        assert hands.looks == looks, "nobody has looked before the first moment"
        await household.clock.advance(1)
        assert await house.answer_to(receipts[0].envelope) == "ok"
        assert await rows(house, "SELECT count(*) FROM envelopes WHERE status = 'pending'") == [(2999,)]


@pytest.mark.spec("H14")
async def test_earlier_mail_brings_the_alarm_forward(household: Household) -> None:
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        now = household.clock.now()
        far = await house.post("far", deliver_at=now + timedelta(seconds=50))
        await a_moment(house)
        near = await house.post("near", deliver_at=now + timedelta(seconds=5))
        await a_moment(house)
        await household.clock.advance(5)
        assert await house.answer_to(near.envelope) == "ok"
        await waits(house, far.envelope)


@pytest.mark.spec("H14")
async def test_a_delay_of_thirty_years_is_kept(any_household: Household) -> None:
    household = any_household
    household.model.rule = lambda prompt: says("it has been a while")
    async with opened(household) as house:
        due = household.clock.now() + timedelta(days=30 * 365)
        receipt = await house.post("see you then", deliver_at=due)
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
        assert await house.answer_to(receipt.envelope) == "it has been a while"


async def test_when_the_wall_clock_jumps_forwards_mail_is_late_by_a_tick_at_most(household: Household) -> None:
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        receipt = await house.post("in a week", deliver_at=household.clock.now() + timedelta(days=7))
        await a_moment(house)
        household.clock.jump(timedelta(days=8))
        await household.clock.advance(60)
        assert await house.answer_to(receipt.envelope) == "ok"


async def test_when_the_wall_clock_jumps_back_nothing_is_lost_late_or_out_of_order(any_household: Household) -> None:
    household = any_household
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        start = household.clock.now()
        first = await house.post("first")
        await house.outcome(first.envelope)
        later = await house.post("at ten past", deliver_at=start + timedelta(minutes=10))
        await a_moment(house)
        household.clock.jump(-timedelta(hours=1))
        # Mail for now is worked now, whatever the wall shows, and never bears an earlier time than mail before it.
        second = await house.post("second")
        assert await house.answer_to(second.envelope) == "ok"
        assert (await house.envelope(second.envelope)).accepted_at >= (await house.envelope(first.envelope)).accepted_at
        await household.clock.advance(3600 + 540)  # nine minutes past
        await waits(house, later.envelope)
        assert await as_time_goes_by(house, house.answer_to(later.envelope), step_s=30) == "ok"
        assert (await house.outcome(later.envelope)).at >= start + timedelta(minutes=10)


async def test_a_clock_that_was_wrong_for_a_moment_does_not_make_the_alarm_deaf(household: Household) -> None:
    """Somebody wrote while the wall showed next year; then it was put right."""
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        start = household.clock.now()
        receipt = await house.post("at ten past", deliver_at=start + timedelta(minutes=10))
        await a_moment(house)
        household.clock.jump(timedelta(days=365))
        other = await house.post("hello", sender="person:owner")
        await house.outcome(other.envelope)
        household.clock.jump(-timedelta(days=365))
        assert await as_time_goes_by(house, house.answer_to(receipt.envelope), step_s=30) == "ok"
        third = await house.post("hello again", sender="person:owner")
        assert await house.answer_to(third.envelope) == "ok"


@pytest.mark.parametrize(
    ("night", "wall", "instant"),
    [
        ("2026-03-28T23:30Z", "2026-03-29T04:00", "2026-03-29T02:00Z"),  # the hour from two to three is left out
        ("2026-10-24T22:30Z", "2026-10-25T04:00", "2026-10-25T03:00Z"),  # the hour from two to three comes twice
    ],
)
async def test_mail_for_the_morning_after_the_clocks_change_comes_when_the_wall_shows_its_time(
    household: Household, night: str, wall: str, instant: str
) -> None:
    household.clock = clock = FakeClock(datetime.fromisoformat(night))
    household.model.clock = clock
    household.zone = zone = ZoneInfo("Europe/Berlin")
    household.model.rule = lambda prompt: says("good morning")
    due = datetime.fromisoformat(instant).astimezone(UTC)
    async with opened(household) as house:
        deliver_at = parse_when(wall, now=clock.now(), zone=zone)
        assert deliver_at == due
        receipt = await house.post("wake up", deliver_at=deliver_at)
        await a_moment(house)
        await clock.advance(due - clock.now() - timedelta(seconds=1))
        await waits(house, receipt.envelope)
        await clock.advance(1)
        assert await house.answer_to(receipt.envelope) == "good morning"
        assert f"now: {wall}:00" in shown(household.model.prompts[0])


async def test_an_alarm_that_cannot_read_the_store_rings_again(household: Household, hands: Hands) -> None:
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        receipt = await house.post("later", deliver_at=household.clock.now() + timedelta(seconds=10))
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
        assert await house.answer_to(receipt.envelope) == "ok"


async def test_what_came_due_is_worked_although_what_expired_could_not_be_closed(
    household: Household, hands: Hands
) -> None:
    household.model.will_reply(says("busy", after_s=1000), "ok")
    async with opened(household) as house:
        await thinking(household, house)
        now = household.clock.now()
        expires = await house.post("hurry", expires_at=now + timedelta(seconds=10))
        due = await house.post("later", sender="person:owner", deliver_at=now + timedelta(seconds=10))
        await a_moment(house)
        hands.failing["sweep"] = 1
        await household.clock.advance(10)
        assert await house.answer_to(due.envelope) == "ok"
        assert hands.failing["sweep"] == 0
        await household.clock.advance(1)
        assert (await house.outcome(expires.envelope)).outcome is Outcome.EXPIRED


async def test_mail_whose_time_came_while_it_was_being_stored_is_found(household: Household, hands: Hands) -> None:
    """The alarm has looked past its time before it was there, and it was still to come when it was written."""
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        with hands.holding("accept") as accept:
            due = household.clock.now() + timedelta(seconds=1)
            posting = asyncio.create_task(house.post("in a second", deliver_at=due))
            await accept.reached.wait()
            await household.clock.advance(5)
            house.engine.wake(ClockWake())
            await a_moment(house)
        assert await house.answer_to((await posting).envelope) == "ok"


async def test_mail_expires_while_it_waits_and_its_sender_is_told(any_household: Household) -> None:
    household = any_household
    household.model.will_reply(says("busy", after_s=1000))
    async with opened(household) as house:
        await thinking(household, house)
        now = household.clock.now()
        receipt = await house.post("hurry", expires_at=now + timedelta(seconds=30))
        await a_moment(house)
        await household.clock.advance(29)
        await waits(house, receipt.envelope)
        await household.clock.advance(1)
        settled = await house.outcome(receipt.envelope)
        assert (settled.outcome, settled.because) == (Outcome.EXPIRED, "it expired before its turn came")
        assert await notices_to(house, "maria") == ["Not worked on: it expired before its turn came."]


async def test_mail_that_expired_in_the_dark_is_never_read(household: Household, hands: Hands) -> None:
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            soon = household.clock.now() + timedelta(seconds=30)
            expired = [(await house.post(f"hurry {n}", expires_at=soon)).envelope for n in range(5)]
            fresh = await house.post("no hurry")
            await claim.reached.wait()
            power_goes(house)
    await household.clock.advance(60)
    async with opened(household) as house:
        assert await house.answer_to(fresh.envelope) == "ok"
        for id_ in expired:
            assert (await house.outcome(id_)).outcome is Outcome.EXPIRED
        assert not any("hurry 0" in shown(prompt) for prompt in household.model.prompts)


async def test_however_much_has_expired_all_of_it_is_closed_and_what_is_behind_it_worked(
    household: Household, hands: Hands
) -> None:
    household.model.rule = lambda prompt: says("ok")
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            soon = household.clock.now() + timedelta(seconds=30)
            expired = [
                # Silent, so that nobody is told and no wake comes of it.
                (await house.post(f"{n}", expires_at=soon, kind=Kind.SYSTEM, silent=True)).envelope
                for n in range(130)
            ]
            fresh = await house.post("no hurry")
            await claim.reached.wait()
            power_goes(house)
    await household.clock.advance(60)
    with hands.holding("sweep"):  # so that the lane comes to it first
        async with opened(household) as house:
            assert await house.answer_to(fresh.envelope) == "ok"
            for id_ in expired:
                assert (await house.outcome(id_)).outcome is Outcome.EXPIRED
            hands.release("sweep")


async def test_a_run_that_waited_long_enough_but_finds_no_slot_does_not_keep_the_alarm_busy(
    household: Household, hands: Hands
) -> None:
    household.slots = Slots(main=1)
    household.agents = (ada(approval_wait_s=10.0, tools=ToolRules(ask=("append_line",))),)
    household.model.will_reply(calls("append_line", text="x"), says("busy", after_s=50), "I wait")
    async with opened(household) as house:
        first = await house.post("write it down")
        await parked(house)
        await thinking(household, house, sender="person:owner")
        await household.clock.advance(20)
        await a_moment(house)
        looks = hands.looks
        for _ in range(10):
            await a_moment(house)
        assert hands.looks - looks <= 2
        await household.clock.advance(30)
        assert await house.answer_to(first.envelope) == "I wait"


# An agent that was let go


@pytest.mark.spec("H16")
async def test_due_mail_of_a_removed_agent_is_closed_in_bounded_batches(household: Household, hands: Hands) -> None:
    household.agents = (ada(queue=QueuePolicy(cap=1000)),)
    async with opened(household) as house:
        later = await house.post("for later", deliver_at=household.clock.now() + timedelta(hours=1))
        with hands.holding("claim") as claim:
            due = [(await house.post(f"number {n}")).envelope for n in range(250)]
            await claim.reached.wait()
            await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
            claims = hands.points.count("claim")
        for id_ in due:
            settled = await house.outcome(id_)
            assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert hands.points.count("claim") - claims >= 3, "a hundred at a time"
        assert len(await notices_to(house, "maria")) == 250
        assert (await house.envelope(later.envelope)).status is Status.PENDING
        await household.clock.advance(3600)
        settled = await house.outcome(later.envelope)
        assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert household.model.prompts == []
        await house.quiet()
        assert await rows(house, "SELECT wakefulness FROM sessions") == [("sleeping",)]


@pytest.mark.spec("H16")
async def test_the_open_runs_of_a_removed_agent_are_closed_too(household: Household) -> None:
    household.agents = (ada(tools=ToolRules(ask=("append_line",))),)
    household.model.will_reply(calls("append_line", text="x"), says("never", after_s=100))
    async with opened(household) as house:
        waiting = await house.post("write it down")
        await parked(house)
        cut_off, _ = await thinking(household, house, sender="person:owner")
        await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        house.crash()
    household.agents = ()
    async with opened(household) as house:
        assert (await house.outcome(cut_off)).because == "agent-not-found"
        # The one that waits for a person is closed when its waiting ends.
        settled = await as_time_goes_by(house, house.outcome(waiting.envelope), step_s=60)
        assert settled.because == "agent-not-found"
        assert await outcomes(house, [cut_off, waiting.envelope]) == [Outcome.REFUSED, Outcome.REFUSED]
        assert await answers_to(house, "maria") == []


@pytest.mark.spec("H16")
async def test_an_agent_let_go_in_the_middle_of_a_run_ends_it_and_reads_nothing_more(household: Household) -> None:
    household.model.will_reply(says("my last words", after_s=1))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        behind = await house.post("behind it")
        await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        await household.clock.advance(1)
        assert await house.answer_to(envelope) == "my last words"
        settled = await house.outcome(behind.envelope)
        assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert len(household.model.prompts) == 1
