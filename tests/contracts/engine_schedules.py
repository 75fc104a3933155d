"""The engine's contract for time: due envelopes are processed, and senders are notified of expired ones."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_cancel import send_and_wait_for_model_call
from contracts.engine_instance import (
    StoreControl,
    ada,
    advance_clock_until_done,
    cut_power,
    let_tasks_settle,
    list_answers_to,
    list_notices_to,
    list_outcomes,
    newest_user_text,
    query_rows,
    run_with_ledger_check,
    wait_until_clock_sleep,
    wait_until_suspended,
    wait_until_true,
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


async def assert_still_pending(server: LocalServer, envelope: str) -> None:
    """Assert that an envelope stays pending."""
    await let_tasks_settle(server)
    assert (await server.get_envelope(envelope)).status is EnvelopeStatus.PENDING


@pytest.mark.spec("H11")
async def test_an_envelope_waits_until_deliver_at_and_a_past_deliver_at_is_immediate(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        now = instance.clock.now()
        late = await server.send("for earlier", deliver_at=now - timedelta(hours=1))
        assert await server.wait_for_answer(late.envelope) == "ok"
        later = await server.send("for later", deliver_at=now + timedelta(seconds=90))
        await server.wait_until_idle()
        await assert_still_pending(server, later.envelope)
        await instance.clock.advance(89)
        await assert_still_pending(server, later.envelope)
        await instance.clock.advance(1)
        assert await server.wait_for_answer(later.envelope) == "ok"


@pytest.mark.spec("H14")
async def test_the_timer_wakes_at_the_earliest_of_thousands_of_due_times(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.people = ("maria", "owner")
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        now = instance.clock.now()
        posts = [
            server.send(f"number {n}", deliver_at=now + timedelta(seconds=10 + (n * 7919) % 3000 + 600 * (n > 0)))
            for n in range(3000)
        ]
        receipts = await asyncio.gather(*posts)
        await wait_until_clock_sleep(server, seconds_max=10)  # the alarm has checked all of them
        scan_count = store_control.scan_count
        await instance.clock.advance(9)
        await let_tasks_settle(server)
        assert store_control.scan_count == scan_count, "no check before the first due time"
        await instance.clock.advance(1)
        assert await server.wait_for_answer(receipts[0].envelope) == "ok"
        assert await query_rows(server, "SELECT count(*) FROM envelopes WHERE status = 'pending'") == [(2999,)]


@pytest.mark.spec("H14")
async def test_an_earlier_envelope_moves_the_timer_forward(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        now = instance.clock.now()
        far = await server.send("far", deliver_at=now + timedelta(seconds=50))
        await let_tasks_settle(server)
        near = await server.send("near", deliver_at=now + timedelta(seconds=5))
        await let_tasks_settle(server)
        await instance.clock.advance(5)
        assert await server.wait_for_answer(near.envelope) == "ok"
        await assert_still_pending(server, far.envelope)


@pytest.mark.spec("H14")
async def test_an_envelope_due_in_thirty_years_is_delivered_on_time(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("it has been a while")
    async with run_with_ledger_check(instance) as server:
        due = instance.clock.now() + timedelta(days=30 * 365)
        receipt = await server.send("see you then", deliver_at=due)
        await let_tasks_settle(server)
        await instance.clock.advance(600)
        await assert_still_pending(server, receipt.envelope)
        server.crash()
    instance.clock.jump(timedelta(days=30 * 365 - 1))
    async with run_with_ledger_check(instance) as server:
        await instance.clock.advance(3600)
        await assert_still_pending(server, receipt.envelope)
        instance.clock.jump(timedelta(days=1))
        await instance.clock.advance(60)
        assert await server.wait_for_answer(receipt.envelope) == "it has been a while"


async def test_after_a_forward_clock_jump_an_envelope_is_at_most_one_tick_late(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("in a week", deliver_at=instance.clock.now() + timedelta(days=7))
        await let_tasks_settle(server)
        instance.clock.jump(timedelta(days=8))
        await instance.clock.advance(60)
        assert await server.wait_for_answer(receipt.envelope) == "ok"


async def test_after_a_backward_clock_jump_no_envelope_is_lost_late_or_out_of_order(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        start = instance.clock.now()
        first = await server.send("first")
        await server.wait_for_outcome(first.envelope)
        later = await server.send("at ten past", deliver_at=start + timedelta(minutes=10))
        await let_tasks_settle(server)
        instance.clock.jump(-timedelta(hours=1))
        # An immediate message is processed at once, and is never accepted at an earlier time than one before it.
        second = await server.send("second")
        assert await server.wait_for_answer(second.envelope) == "ok"
        assert (await server.get_envelope(second.envelope)).accepted_at >= (
            await server.get_envelope(first.envelope)
        ).accepted_at
        await instance.clock.advance(3600 + 540)  # nine minutes past
        await assert_still_pending(server, later.envelope)
        assert await advance_clock_until_done(server, server.wait_for_answer(later.envelope), step_s=30) == "ok"
        assert (await server.wait_for_outcome(later.envelope)).at >= start + timedelta(minutes=10)


async def test_a_temporarily_wrong_clock_does_not_stop_the_timer(instance: LocalInstance) -> None:
    """A message arrived while the wall clock showed next year; then the clock was corrected."""
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        start = instance.clock.now()
        receipt = await server.send("at ten past", deliver_at=start + timedelta(minutes=10))
        await let_tasks_settle(server)
        instance.clock.jump(timedelta(days=365))
        other = await server.send("hello", sender="person:owner")
        await server.wait_for_outcome(other.envelope)
        instance.clock.jump(-timedelta(days=365))
        assert await advance_clock_until_done(server, server.wait_for_answer(receipt.envelope), step_s=30) == "ok"
        third = await server.send("hello again", sender="person:owner")
        assert await server.wait_for_answer(third.envelope) == "ok"


@pytest.mark.parametrize(
    ("night", "wall", "instant"),
    [
        ("2026-03-28T23:30Z", "2026-03-29T04:00", "2026-03-29T02:00Z"),  # the hour from 02:00 to 03:00 is skipped
        ("2026-10-24T22:30Z", "2026-10-25T04:00", "2026-10-25T03:00Z"),  # the hour from 02:00 to 03:00 occurs twice
    ],
)
async def test_an_envelope_due_after_a_dst_change_arrives_at_its_local_time(
    instance: LocalInstance, night: str, wall: str, instant: str
) -> None:
    instance.clock = clock = FakeClock(datetime.fromisoformat(night))
    instance.model.clock = clock
    instance.zone = zone = ZoneInfo("Europe/Berlin")
    instance.model.rule = lambda prompt: text_reply("good morning")
    due = datetime.fromisoformat(instant).astimezone(UTC)
    async with run_with_ledger_check(instance) as server:
        deliver_at = parse_time(wall, now=clock.now(), zone=zone)
        assert deliver_at == due
        receipt = await server.send("wake up", deliver_at=deliver_at)
        await let_tasks_settle(server)
        await clock.advance(due - clock.now() - timedelta(seconds=1))
        await assert_still_pending(server, receipt.envelope)
        await clock.advance(1)
        assert await server.wait_for_answer(receipt.envelope) == "good morning"
        assert f"now: {wall}:00" in newest_user_text(instance.model.prompts[0])


async def test_the_timer_retries_if_it_cannot_read_the_store(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("later", deliver_at=instance.clock.now() + timedelta(seconds=10))
        await wait_until_clock_sleep(server, seconds_max=10)  # no check is in progress
        store_control.scan_failures_left = 3
        await instance.clock.advance(10)
        await let_tasks_settle(server)
        await assert_still_pending(server, receipt.envelope)
        for left in (1, 0):
            await instance.clock.advance(1)
            await wait_until_true(lambda left=left: store_control.scan_failures_left <= left, what="the next alarm")
            await let_tasks_settle(server)
        await instance.clock.advance(1)
        assert await server.wait_for_answer(receipt.envelope) == "ok"


async def test_a_due_envelope_is_processed_even_if_expired_ones_cannot_be_closed(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply(text_reply("busy", after_s=1000), "ok")
    async with run_with_ledger_check(instance) as server:
        await send_and_wait_for_model_call(instance, server)
        now = instance.clock.now()
        expires = await server.send("hurry", expires_at=now + timedelta(seconds=10))
        due = await server.send("later", sender="person:owner", deliver_at=now + timedelta(seconds=10))
        await let_tasks_settle(server)
        store_control.failing["sweep"] = 1
        await instance.clock.advance(10)
        assert await server.wait_for_answer(due.envelope) == "ok"
        assert store_control.failing["sweep"] == 0
        await instance.clock.advance(1)
        assert (await server.wait_for_outcome(expires.envelope)).outcome is Outcome.EXPIRED


async def test_an_envelope_that_becomes_due_while_it_is_stored_is_processed(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """The alarm's check passed the due time before the envelope was stored, and the time was still ahead when it was
    written."""
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("accept") as accept:
            due = instance.clock.now() + timedelta(seconds=1)
            posting = asyncio.create_task(server.send("in a second", deliver_at=due))
            await accept.reached.wait()
            await instance.clock.advance(5)
            server.engine.wake(TimerWake())
            await let_tasks_settle(server)
        assert await server.wait_for_answer((await posting).envelope) == "ok"


async def test_a_waiting_envelope_expires_and_its_sender_is_notified(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.will_reply(text_reply("busy", after_s=1000))
    async with run_with_ledger_check(instance) as server:
        await send_and_wait_for_model_call(instance, server)
        now = instance.clock.now()
        receipt = await server.send("hurry", expires_at=now + timedelta(seconds=30))
        await let_tasks_settle(server)
        await instance.clock.advance(29)
        await assert_still_pending(server, receipt.envelope)
        await instance.clock.advance(1)
        settled = await server.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.because) == (Outcome.EXPIRED, "it expired before its turn came")
        assert await list_notices_to(server, "maria") == ["Not processed: it expired before its turn came."]


async def test_an_envelope_that_expired_during_downtime_is_never_read(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim") as claim:
            soon = instance.clock.now() + timedelta(seconds=30)
            expired = [(await server.send(f"hurry {n}", expires_at=soon)).envelope for n in range(5)]
            fresh = await server.send("no hurry")
            await claim.reached.wait()
            cut_power(server)
    await instance.clock.advance(60)
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(fresh.envelope) == "ok"
        for id_ in expired:
            assert (await server.wait_for_outcome(id_)).outcome is Outcome.EXPIRED
        assert not any("hurry 0" in newest_user_text(prompt) for prompt in instance.model.prompts)


async def test_many_expired_envelopes_are_all_closed_and_the_message_behind_them_is_answered(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim") as claim:
            soon = instance.clock.now() + timedelta(seconds=30)
            expired = [
                # Silent, so that their expiry sends no notice and wakes nothing.
                (await server.send(f"{n}", expires_at=soon, kind=EnvelopeKind.SYSTEM, silent=True)).envelope
                for n in range(130)
            ]
            fresh = await server.send("no hurry")
            await claim.reached.wait()
            cut_power(server)
    await instance.clock.advance(60)
    with store_control.hold_commits("sweep"):  # so that the lane sees it first
        async with run_with_ledger_check(instance) as server:
            assert await server.wait_for_answer(fresh.envelope) == "ok"
            for id_ in expired:
                assert (await server.wait_for_outcome(id_)).outcome is Outcome.EXPIRED
            store_control.release("sweep")


async def test_a_run_with_an_elapsed_approval_wait_and_no_free_slot_does_not_busy_loop_the_timer(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.slots = SlotLimits(main=1)
    instance.agents = (ada(approval_wait_s=10.0, tools=ToolRules(ask=("append_line",))),)
    instance.model.will_reply(tool_call_reply("append_line", text="x"), text_reply("busy", after_s=50), "I wait")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("write it down")
        await wait_until_suspended(server)
        await send_and_wait_for_model_call(instance, server, sender="person:owner")
        await instance.clock.advance(20)
        await let_tasks_settle(server)
        scan_count = store_control.scan_count
        for _ in range(10):
            await let_tasks_settle(server)
        assert store_control.scan_count - scan_count <= 2
        await instance.clock.advance(30)
        assert await server.wait_for_answer(first.envelope) == "I wait"


# Removed agents


@pytest.mark.spec("H16")
async def test_due_envelopes_of_a_removed_agent_are_refused_in_bounded_batches(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.agents = (ada(queue=QueuePolicy(cap=1000)),)
    async with run_with_ledger_check(instance) as server:
        later = await server.send("for later", deliver_at=instance.clock.now() + timedelta(hours=1))
        with store_control.hold_commits("claim") as claim:
            due = [(await server.send(f"number {n}")).envelope for n in range(250)]
            await claim.reached.wait()
            await server.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
            claims = store_control.commit_points.count("claim")
        for id_ in due:
            settled = await server.wait_for_outcome(id_)
            assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert store_control.commit_points.count("claim") - claims >= 3, "a hundred at a time"
        assert len(await list_notices_to(server, "maria")) == 250
        assert (await server.get_envelope(later.envelope)).status is EnvelopeStatus.PENDING
        await instance.clock.advance(3600)
        settled = await server.wait_for_outcome(later.envelope)
        assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert instance.model.prompts == []
        await server.wait_until_idle()
        assert await query_rows(server, "SELECT activity FROM sessions") == [("sleeping",)]


@pytest.mark.spec("H16")
async def test_open_runs_of_a_removed_agent_are_refused(instance: LocalInstance) -> None:
    instance.agents = (ada(tools=ToolRules(ask=("append_line",))),)
    instance.model.will_reply(tool_call_reply("append_line", text="x"), text_reply("never", after_s=100))
    async with run_with_ledger_check(instance) as server:
        waiting = await server.send("write it down")
        await wait_until_suspended(server)
        cut_off, _ = await send_and_wait_for_model_call(instance, server, sender="person:owner")
        await server.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        server.crash()
    instance.agents = ()
    async with run_with_ledger_check(instance) as server:
        assert (await server.wait_for_outcome(cut_off)).because == "agent-not-found"
        # The suspended one is closed when its wait ends.
        settled = await advance_clock_until_done(server, server.wait_for_outcome(waiting.envelope), step_s=60)
        assert settled.because == "agent-not-found"
        assert await list_outcomes(server, [cut_off, waiting.envelope]) == [Outcome.REFUSED, Outcome.REFUSED]
        assert await list_answers_to(server, "maria") == []


@pytest.mark.spec("H16")
async def test_an_agent_removed_during_a_run_finishes_it_and_reads_no_further_envelopes(
    instance: LocalInstance,
) -> None:
    instance.model.will_reply(text_reply("my last words", after_s=1))
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        behind = await server.send("behind it")
        await server.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        await instance.clock.advance(1)
        assert await server.wait_for_answer(envelope) == "my last words"
        settled = await server.wait_for_outcome(behind.envelope)
        assert (settled.outcome, settled.because) == (Outcome.REFUSED, "agent-not-found")
        assert len(instance.model.prompts) == 1
