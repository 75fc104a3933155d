"""Runs that begin in the very commit that accepts their mail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_instance import Hands, books_hold, until
from faults import Unheard

from retinue.domain.agent import Agent, CrashPolicy
from retinue.domain.envelope import EnvelopeStatus, Outcome
from retinue.domain.errors import NotFound, StoreError
from retinue.domain.session import LaneKind, QueuePolicy, SessionActivity
from retinue.domain.structs import replace
from retinue.engine import embedded_engine as engine_module
from retinue.engine.lanes import SlotLimits
from retinue.intake.accept import EnvelopeIntake, LaneWake
from retinue.store.runs import runs
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply

ADA = Agent(name="ada", model="scripted")


@pytest.fixture
def hands() -> Iterator[Hands]:
    hands = Hands()
    yield hands
    hands.let_go()


@pytest.fixture
def household(tmp_path: Path, hands: Hands) -> LocalInstance:
    household = LocalInstance(tmp_path, wrap_store=hands.over)
    household.model.rule = lambda prompt: text_reply("ok")
    return household


def commits(hands: Hands) -> list[str]:
    return [point for point in hands.points if point not in ("setup", "test")]


async def open_run(house: LocalServer, session: str | None) -> Any:
    assert session is not None
    return await house.store.read(lambda conn: runs.get_open(conn, session))


async def test_mail_for_an_idle_lane_begins_its_run_as_it_is_accepted(household: LocalInstance, hands: Hands) -> None:
    async with household.run() as house:
        with hands.holding("finish"):
            receipt = await house.send("hello")
            envelope = await house.get_envelope(receipt.envelope)
            run = await open_run(house, receipt.session)
            assert (envelope.status, envelope.attempts, envelope.run) == (EnvelopeStatus.CLAIMED, 1, run.id)
            assert run.envelopes == (receipt.envelope,)
            session = await house.get_session(receipt.session)
            assert (session.activity, session.snippet) == (SessionActivity.ACTIVE, "hello")
            assert receipt.event_seq >= 3  # the session, the envelope and the run were all told before it was given
        assert await house.wait_for_answer(receipt.envelope) == "ok"
        await house.wait_until_idle()
        assert commits(hands) == ["accept", "finish"]
        assert (await house.get_session(receipt.session)).activity is SessionActivity.SLEEPING
        await books_hold(house)


async def test_mail_for_a_busy_lane_waits_for_its_turn(household: LocalInstance, hands: Hands) -> None:
    async with household.run() as house:
        with hands.holding("finish"):
            first = await house.send("one")
            second = await house.send("two")
            assert (await house.get_envelope(second.envelope)).status is EnvelopeStatus.PENDING
        await house.wait_for_outcome(second.envelope)
        assert [(await house.wait_for_outcome(r.envelope)).outcome for r in (first, second)] == [Outcome.ANSWERED] * 2
        await house.wait_until_idle()
        await books_hold(house)


async def test_a_post_whose_caller_hangs_up_is_worked_on_all_the_same(household: LocalInstance, hands: Hands) -> None:
    async with household.run() as house:
        with hands.holding("accept", committed=True) as accepted:
            posting = asyncio.create_task(house.send("hello", key="k"))
            await accepted.reached.wait()
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)
        again = await house.send("hello", key="k")
        assert again.duplicate
        assert await house.wait_for_answer(again.envelope) == "ok"
        assert len(household.model.prompts) == 1


async def test_mail_goes_before_nothing_that_was_due(household: LocalInstance, hands: Hands) -> None:
    """A reminder whose time has just come, and of which the clock has not yet said so, is read first."""
    async with household.run() as house:
        await house.wait_for_outcome((await house.send("warm up")).envelope)
        later = household.clock.now() + timedelta(seconds=60)
        first = await house.send("first", deliver_at=later)
        household.clock.jump(timedelta(seconds=61))  # the wall moves; no sleeper wakes
        second = await house.send("second")
        await house.wait_for_outcome(second.envelope)
        held = [e.id for e in (await house.get_envelope(first.envelope), await house.get_envelope(second.envelope))]
        run = (await house.get_envelope(second.envelope)).run
        order = await house.execute_sql("SELECT envelopes FROM runs WHERE id = :run", run=run)
        assert order[0].envelopes.index(held[0]) < order[0].envelopes.index(held[1])


async def test_a_slot_is_given_back_when_the_mail_is_refused(household: LocalInstance) -> None:
    household.slots = SlotLimits(main=1)
    async with household.run() as house:
        await house.wait_for_outcome((await house.send("warm up")).envelope)
        for _ in range(3):
            with pytest.raises(NotFound):
                await house.send("hello", recipient="agent:nobody")
        assert await house.wait_for_answer((await house.send("hello")).envelope) == "ok"


async def test_no_more_runs_begin_than_there_are_slots(household: LocalInstance, hands: Hands) -> None:
    household.slots = SlotLimits(main=2)
    household.agents = (replace(ADA, concurrency=10),)
    household.people = ("maria", "owner", *(f"p{n}" for n in range(6)))
    async with household.run() as house:
        with hands.holding("finish"):
            posted = await asyncio.gather(*(house.send("hi", sender=f"person:p{n}") for n in range(6)))
            await until(lambda: len(household.model.prompts) == 2, what="two runs")
            assert house.engine.active_lanes == 2
            statuses = [(await house.get_envelope(r.envelope)).status for r in posted]
            assert statuses.count(EnvelopeStatus.CLAIMED) == 2
        for receipt in posted:
            assert await house.wait_for_answer(receipt.envelope) == "ok"


async def test_an_agents_own_bound_holds_for_mail_that_begins_at_once(household: LocalInstance, hands: Hands) -> None:
    household.agents = (replace(ADA, concurrency=1),)
    async with household.run() as house:
        with hands.holding("finish"):
            await house.send("one")
            other = await house.send("two", sender="person:owner")
            assert (await house.get_envelope(other.envelope)).status is EnvelopeStatus.PENDING
        assert await house.wait_for_answer(other.envelope) == "ok"


async def test_a_cap_of_nothing_lets_nothing_begin(household: LocalInstance) -> None:
    household.agents = (replace(ADA, queue=QueuePolicy(cap=0)),)
    async with household.run() as house:
        receipt = await house.send("hello")
        assert receipt.outcome is Outcome.REFUSED
        assert household.model.prompts == []


async def test_a_lane_that_looks_at_the_same_moment_leaves_the_run_to_its_worker(
    household: LocalInstance, hands: Hands
) -> None:
    """Its claim finds an open run, which is not one that was cut off: at most once would otherwise mean never."""
    household.agents = (replace(ADA, delivery=CrashPolicy.AT_MOST_ONCE),)
    async with household.run() as house:
        warm = await house.send("warm up")
        await house.wait_for_outcome(warm.envelope)
        await house.wait_until_idle()
        assert warm.session is not None
        with hands.holding("claim") as claim:
            house.engine.wake(LaneWake(warm.session, "ada", LaneKind.MAIN))
            await claim.reached.wait()
            receipt = await house.send("hello")  # begins, while that lane is about to look
        assert await house.wait_for_answer(receipt.envelope) == "ok"
        await house.wait_until_idle()
        assert len(household.model.prompts) == 2
        await books_hold(house)


async def test_a_run_that_begins_while_the_last_one_ends_is_worked_next(household: LocalInstance, hands: Hands) -> None:
    """The finish is committed and not yet heard of when the next mail comes in."""
    async with household.run() as house:
        with hands.holding("finish", committed=True) as finish:
            first = await house.send("one")
            await finish.reached.wait()
            second = await house.send("two")
            assert (await house.get_envelope(second.envelope)).status is EnvelopeStatus.CLAIMED
            assert house.engine.active_lanes == 1
        assert await house.wait_for_answer(first.envelope) == "ok"
        assert await house.wait_for_answer(second.envelope) == "ok"
        await house.wait_until_idle()
        assert commits(hands) == ["accept", "finish", "accept", "finish"]
        await books_hold(house)


async def test_a_cancel_reaches_a_run_that_waits_for_its_worker(household: LocalInstance, hands: Hands) -> None:
    async with household.run() as house:
        with hands.holding("finish", committed=True) as finish:
            await house.send("one")
            await finish.reached.wait()
            second = await house.send("two")
            assert second.session is not None
            done = await house.engine.cancel(second.session, by="maria", reason="never mind")
            assert len(done.runs) == 1
        assert (await house.wait_for_outcome(second.envelope)).outcome is Outcome.CANCELLED
        await house.wait_until_idle()
        assert len(household.model.prompts) == 1
        assert await house.wait_for_answer((await house.send("three")).envelope) == "ok"


async def test_mail_is_kept_although_its_run_cannot_begin(
    household: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: Any, **_kw: Any) -> Any:
        raise RuntimeError("a damaged neighbour")

    monkeypatch.setattr(engine_module, "start_run_on_accept", broken)
    async with household.run() as house:
        receipt = await house.send("hello")
        assert await house.wait_for_answer(receipt.envelope) == "ok"
        await books_hold(house)


async def test_a_run_that_may_have_begun_unheard_is_found(household: LocalInstance) -> None:
    """The database committed, and the line broke before it could say so."""
    async with household.run() as house:
        unheard = Unheard(house.store, "accept")
        store: Any = house.store
        inbox = EnvelopeIntake(store, household.clock, house.engine.wake, house.engine.reserve_slot)
        store.write = unheard.write
        house.intake = inbox
        with pytest.raises(StoreError):
            await house.send("hello", key="k")
        again = await house.send("hello", key="k")
        assert again.duplicate
        assert await house.wait_for_answer(again.envelope) == "ok"
        await house.wait_until_idle()
        await books_hold(house)


async def test_what_begins_while_the_house_stops_is_taken_up_at_the_next_start(
    household: LocalInstance, hands: Hands
) -> None:
    async with household.run(drain_s=0) as house:
        with hands.holding("accept") as accept:
            posting = asyncio.create_task(house.send("hello", key="k"))
            await accept.reached.wait()
            stopping = asyncio.create_task(house.engine.stop(drain_s=0))
            await asyncio.sleep(0)
        await posting
        await stopping
        assert household.model.prompts == []
    async with household.run() as house:
        again = await house.send("hello", key="k")
        assert await house.wait_for_answer(again.envelope) == "ok"
