"""Runs that start in the commit that accepts their envelopes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from contracts.engine_instance import StoreControl, assert_ledger_balances, wait_until_true
from faults import LostCommitResponse

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

ADA_AGENT = Agent(name="ada", model="scripted")


@pytest.fixture
def store_control() -> Iterator[StoreControl]:
    store_control = StoreControl()
    yield store_control
    store_control.cancel_pending_writes()


@pytest.fixture
def instance(tmp_path: Path, store_control: StoreControl) -> LocalInstance:
    instance = LocalInstance(tmp_path, wrap_store=store_control.wrap)
    instance.model.rule = lambda prompt: text_reply("ok")
    return instance


def server_commit_points(store_control: StoreControl) -> list[str]:
    return [point for point in store_control.commit_points if point not in ("setup", "test")]


async def get_open_run(server: LocalServer, session: str | None) -> Any:
    assert session is not None
    return await server.store.read(lambda conn: runs.get_open(conn, session))


async def test_an_envelope_for_an_idle_lane_reserves_a_slot_and_starts_its_run_in_the_accepting_commit(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    async with instance.run() as server:
        with store_control.hold_commits("finish"):
            receipt = await server.send("hello")
            envelope = await server.get_envelope(receipt.envelope)
            run = await get_open_run(server, receipt.session)
            assert (envelope.status, envelope.attempts, envelope.run) == (EnvelopeStatus.CLAIMED, 1, run.id)
            assert run.envelopes == (receipt.envelope,)
            session = await server.get_session(receipt.session)
            assert (session.activity, session.snippet) == (SessionActivity.ACTIVE, "hello")
            assert receipt.event_seq >= 3  # the events of the session, the envelope and the run came before the receipt
        assert await server.wait_for_answer(receipt.envelope) == "ok"
        await server.wait_until_idle()
        assert server_commit_points(store_control) == ["accept", "finish"]
        assert (await server.get_session(receipt.session)).activity is SessionActivity.SLEEPING
        await assert_ledger_balances(server)


async def test_an_envelope_for_a_busy_lane_reserves_no_slot_and_stays_pending_until_the_lane_is_free(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    async with instance.run() as server:
        with store_control.hold_commits("finish"):
            first = await server.send("one")
            second = await server.send("two")
            assert (await server.get_envelope(second.envelope)).status is EnvelopeStatus.PENDING
        await server.wait_for_outcome(second.envelope)
        assert [(await server.wait_for_outcome(r.envelope)).outcome for r in (first, second)] == [Outcome.ANSWERED] * 2
        await server.wait_until_idle()
        await assert_ledger_balances(server)


async def test_an_envelope_with_a_reserved_slot_is_answered_even_if_its_sender_cancels_the_accept(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    async with instance.run() as server:
        with store_control.hold_commits("accept", committed=True) as accepted:
            posting = asyncio.create_task(server.send("hello", key="k"))
            await accepted.reached.wait()
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)
        again = await server.send("hello", key="k")
        assert again.duplicate
        assert await server.wait_for_answer(again.envelope) == "ok"
        assert len(instance.model.prompts) == 1


async def test_an_envelope_with_a_reserved_slot_does_not_overtake_a_scheduled_one_already_due(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """A reminder that is due, but for which the timer has not fired yet, is read first."""
    async with instance.run() as server:
        await server.wait_for_outcome((await server.send("warm up")).envelope)
        later = instance.clock.now() + timedelta(seconds=60)
        first = await server.send("first", deliver_at=later)
        instance.clock.jump(timedelta(seconds=61))  # the wall clock moves; no sleep ends
        second = await server.send("second")
        await server.wait_for_outcome(second.envelope)
        held = [e.id for e in (await server.get_envelope(first.envelope), await server.get_envelope(second.envelope))]
        run = (await server.get_envelope(second.envelope)).run
        order = await server.execute_sql("SELECT envelopes FROM runs WHERE id = :run", run=run)
        assert order[0].envelopes.index(held[0]) < order[0].envelopes.index(held[1])


async def test_a_reserved_slot_is_released_if_the_envelope_is_refused(instance: LocalInstance) -> None:
    instance.slots = SlotLimits(main=1)
    async with instance.run() as server:
        await server.wait_for_outcome((await server.send("warm up")).envelope)
        for _ in range(3):
            with pytest.raises(NotFound):
                await server.send("hello", recipient="agent:nobody")
        assert await server.wait_for_answer((await server.send("hello")).envelope) == "ok"


async def test_accepted_envelopes_reserve_no_more_slots_than_there_are(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.slots = SlotLimits(main=2)
    instance.agents = (replace(ADA_AGENT, concurrency=10),)
    instance.people = ("maria", "owner", *(f"p{n}" for n in range(6)))
    async with instance.run() as server:
        with store_control.hold_commits("finish"):
            posted = await asyncio.gather(*(server.send("hi", sender=f"person:p{n}") for n in range(6)))
            await wait_until_true(lambda: len(instance.model.prompts) == 2, what="two runs")
            assert server.engine.active_lanes == 2
            statuses = [(await server.get_envelope(r.envelope)).status for r in posted]
            assert statuses.count(EnvelopeStatus.CLAIMED) == 2
        for receipt in posted:
            assert await server.wait_for_answer(receipt.envelope) == "ok"


async def test_the_concurrency_limit_of_an_agent_applies_to_slots_reserved_on_accept(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.agents = (replace(ADA_AGENT, concurrency=1),)
    async with instance.run() as server:
        with store_control.hold_commits("finish"):
            await server.send("one")
            other = await server.send("two", sender="person:owner")
            assert (await server.get_envelope(other.envelope)).status is EnvelopeStatus.PENDING
        assert await server.wait_for_answer(other.envelope) == "ok"


async def test_a_queue_limit_of_zero_refuses_every_envelope_even_if_a_slot_could_be_reserved(
    instance: LocalInstance,
) -> None:
    instance.agents = (replace(ADA_AGENT, queue=QueuePolicy(cap=0)),)
    async with instance.run() as server:
        receipt = await server.send("hello")
        assert receipt.outcome is Outcome.REFUSED
        assert instance.model.prompts == []


async def test_a_claim_leaves_a_run_that_just_started_in_a_reserved_slot_to_its_worker(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """The claim finds an open run that was not interrupted: with `at-most-once`, it would otherwise never run."""
    instance.agents = (replace(ADA_AGENT, crash_policy=CrashPolicy.AT_MOST_ONCE),)
    async with instance.run() as server:
        warm = await server.send("warm up")
        await server.wait_for_outcome(warm.envelope)
        await server.wait_until_idle()
        assert warm.session is not None
        with store_control.hold_commits("claim") as claim:
            server.engine.wake(LaneWake(warm.session, "ada", LaneKind.MAIN))
            await claim.reached.wait()
            receipt = await server.send("hello")  # it starts while the lane is about to claim
        assert await server.wait_for_answer(receipt.envelope) == "ok"
        await server.wait_until_idle()
        assert len(instance.model.prompts) == 2
        await assert_ledger_balances(server)


async def test_a_run_that_reserves_the_slot_of_a_finishing_run_is_executed_next(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """The finish is committed but not confirmed when the next envelope arrives."""
    async with instance.run() as server:
        with store_control.hold_commits("finish", committed=True) as finish:
            first = await server.send("one")
            await finish.reached.wait()
            second = await server.send("two")
            assert (await server.get_envelope(second.envelope)).status is EnvelopeStatus.CLAIMED
            assert server.engine.active_lanes == 1
        assert await server.wait_for_answer(first.envelope) == "ok"
        assert await server.wait_for_answer(second.envelope) == "ok"
        await server.wait_until_idle()
        assert server_commit_points(store_control) == ["accept", "finish", "accept", "finish"]
        await assert_ledger_balances(server)


async def test_cancelling_a_session_cancels_a_run_that_has_a_reserved_slot_and_waits_for_its_worker(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    async with instance.run() as server:
        with store_control.hold_commits("finish", committed=True) as finish:
            await server.send("one")
            await finish.reached.wait()
            second = await server.send("two")
            assert second.session is not None
            done = await server.engine.cancel(second.session, by="maria", reason="never mind")
            assert len(done.runs) == 1
        assert (await server.wait_for_outcome(second.envelope)).outcome is Outcome.CANCELLED
        await server.wait_until_idle()
        assert len(instance.model.prompts) == 1
        assert await server.wait_for_answer((await server.send("three")).envelope) == "ok"


async def test_an_envelope_is_answered_even_if_starting_its_run_in_the_reserved_slot_fails(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(*_args: Any, **_kw: Any) -> Any:
        raise RuntimeError("a damaged neighbour")

    monkeypatch.setattr(engine_module, "start_run_on_accept", raise_error)
    async with instance.run() as server:
        receipt = await server.send("hello")
        assert await server.wait_for_answer(receipt.envelope) == "ok"
        await assert_ledger_balances(server)


async def test_a_run_in_a_reserved_slot_is_executed_even_if_its_commit_was_not_confirmed(
    instance: LocalInstance,
) -> None:
    """The database committed, but the response was lost."""
    async with instance.run() as server:
        lost_response = LostCommitResponse(server.store, "accept")
        store: Any = server.store
        inbox = EnvelopeIntake(store, instance.clock, server.engine.wake, server.engine.reserve_slot)
        store.write = lost_response.write
        server.intake = inbox
        with pytest.raises(StoreError):
            await server.send("hello", key="k")
        again = await server.send("hello", key="k")
        assert again.duplicate
        assert await server.wait_for_answer(again.envelope) == "ok"
        await server.wait_until_idle()
        await assert_ledger_balances(server)


async def test_an_envelope_that_reserves_a_slot_while_the_engine_stops_is_answered_after_a_restart(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    async with instance.run(drain_s=0) as server:
        with store_control.hold_commits("accept") as accept:
            posting = asyncio.create_task(server.send("hello", key="k"))
            await accept.reached.wait()
            stopping = asyncio.create_task(server.engine.stop(drain_s=0))
            await asyncio.sleep(0)
        await posting
        await stopping
        assert instance.model.prompts == []
    async with instance.run() as server:
        again = await server.send("hello", key="k")
        assert await server.wait_for_answer(again.envelope) == "ok"
