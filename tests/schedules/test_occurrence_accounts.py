"""Every occurrence gets an outcome, whatever changes its schedule at the wrong moment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from schedules.schedule_instance import (
    add,
    advance_clock_to,
    assert_ledger_holds,
    ended,
    history,
    make_schedule,
    open_occurrence,
    pending_times,
    replace,
    stored_schedule,
    utc,
    write,
)

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.record import Reply
from retinue.domain.schedule import (
    CronTrigger,
    GateResult,
    MissedPolicy,
    OccurrenceState,
    OnceTrigger,
    Schedule,
    ScheduleGate,
)
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.tool import ToolResult
from retinue.store.agents import agents
from retinue.store.core.transaction import Transaction
from retinue.store.runs import approvals
from retinue.store.schedules import schedules
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply

TEN = utc("2026-01-05 10:00")
Act = Callable[[Transaction, schedules.StoredSchedule], object]


@pytest.fixture
def instance(memory_path: Path) -> LocalInstance:
    return LocalInstance(memory_path, agents=[Agent(name="ada", model="scripted", run_seconds_max=86_400)])


async def apply(server: LocalServer, schedule: Schedule, act: Act) -> None:
    def body(tx: Transaction) -> object:
        found = schedules.get(tx.conn, schedule.id)
        assert found is not None
        return act(tx, found)

    await write(server, body)


async def wait_until_running(server: LocalServer, schedule: Schedule) -> None:
    await server.wait_for(
        lambda conn: schedules.get_running_occurrence(conn, schedule.id), what="a run of the occurrence"
    )
    await server.wait_for(lambda conn: bool(server.instance.model.prompts), what="the model to be asked")


async def occurrence_summaries(server: LocalServer, schedule: Schedule) -> list[tuple[str, str, str]]:
    """Return the time of day and state of each occurrence, and the last time that it counts for."""
    return [
        (f"{slot.at:%H:%M}", slot.state.value, f"{slot.until:%H:%M}" if slot.until else "")
        for slot in await history(server, schedule)
    ]


# --- during a run ---


@pytest.mark.spec("H26", "C73")
async def test_a_schedule_changed_during_a_run_skips_occurrences_by_the_rule_in_force_at_the_time(
    instance: LocalInstance,
) -> None:
    instance.model.will_reply(ScriptedReply(text="long", after_s=3 * 3600))
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0,30 * * * *"))
        await advance_clock_to(server, utc("2026-01-05 09:30"))
        await wait_until_running(server, schedule)
        await advance_clock_to(server, utc("2026-01-05 11:10"))
        hourly = replace(schedule, when=CronTrigger("15 * * * *"))
        await apply(
            server, schedule, lambda page, found: schedules.change(page, found, hourly, zone=instance.zone, because="x")
        )
        assert (await open_occurrence(server, schedule)) is not None  # the running one, and no second
        await advance_clock_to(server, utc("2026-01-05 12:30"))
        await ended(server, schedule, at=utc("2026-01-05 09:30"))

        assert await occurrence_summaries(server, schedule) == [
            ("09:30", "ran", ""),
            ("10:00", "skipped", "11:30"),
            ("11:15", "skipped", "13:15"),
        ]
        assert await pending_times(server, schedule) == [utc("2026-01-05 13:15")]
        await assert_ledger_holds(server)


async def test_no_occurrence_is_recorded_for_the_time_a_schedule_was_disabled(instance: LocalInstance) -> None:
    instance.model.will_reply(ScriptedReply(text="long", after_s=3 * 3600))
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *"))
        await advance_clock_to(server, TEN)
        await wait_until_running(server, schedule)
        await apply(server, schedule, lambda page, found: schedules.disable(page, found, because="x"))
        await advance_clock_to(server, utc("2026-01-05 11:30"))
        await apply(server, schedule, lambda page, found: schedules.enable(page, found))
        await advance_clock_to(server, utc("2026-01-05 13:00"))
        await ended(server, schedule, at=TEN)

        assert await occurrence_summaries(server, schedule) == [("10:00", "ran", ""), ("12:00", "skipped", "14:00")]
        assert await pending_times(server, schedule) == [utc("2026-01-05 14:00")]
        await assert_ledger_holds(server)


async def test_the_last_run_of_a_schedule_is_known_despite_occurrences_skipped_during_it(
    instance: LocalInstance,
) -> None:
    instance.model.will_reply(ScriptedReply(text="long", after_s=600))
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *"))
        await advance_clock_to(server, TEN)
        await wait_until_running(server, schedule)
        await apply(server, schedule, lambda page, found: schedules.record_manual_skip(page, found, because="busy"))
        await advance_clock_to(server, TEN + timedelta(seconds=600))
        known = await stored_schedule(server, schedule)
        last = await server.wait_for(
            lambda conn: schedules.get_status(conn, known).last_run_at, what="the occurrence to have its run"
        )
        assert last == TEN + timedelta(seconds=600)


# --- before the gate has decided ---


@pytest.fixture
def gated_instance(tmp_path: Path) -> LocalInstance:
    async def ask(schedule: Schedule, agent: Agent, session: object) -> GateResult:
        await instance.clock.sleep(1000)
        return GateResult(is_open=True, output="go")

    instance = LocalInstance(tmp_path, run_gate=ask)
    instance.model.rule = lambda prompt: text_reply("ok")
    return instance


async def wait_until_gate_runs(server: LocalServer, schedule: Schedule) -> None:
    await server.wait_for(
        lambda conn: (
            not schedules.list_due_occurrences(conn, 2**62, limit=1)
            and schedules.get_open_occurrence(conn, schedule.id)
        ),
        what="the gate to run",
    )


@pytest.mark.spec("C73")
@pytest.mark.parametrize("act", ["disable", "change", "enable"])
async def test_a_due_occurrence_is_recorded_when_its_schedule_changes(gated_instance: LocalInstance, act: str) -> None:
    async with gated_instance.run() as server:
        schedule = await add(server, make_schedule(gated_instance, "*/5 * * * *", gate=ScheduleGate(command="wait")))
        await advance_clock_to(server, utc("2026-01-05 09:05"))
        await wait_until_gate_runs(server, schedule)
        await advance_clock_to(server, utc("2026-01-05 09:11"))
        other = replace(schedule, when=CronTrigger("0 * * * *"))
        acts: dict[str, Act] = {
            "disable": lambda page, found: schedules.disable(page, found, because="someone did"),
            "change": lambda page, found: schedules.change(
                page, found, other, zone=gated_instance.zone, because="someone did"
            ),
            "enable": lambda page, found: schedules.enable(page, found),
        }
        await apply(server, schedule, acts[act])

        assert await occurrence_summaries(server, schedule) == [("09:05", "skipped", ""), ("09:10", "skipped", "09:15")]
        assert all(slot.because for slot in await history(server, schedule))
        following = {"disable": [], "change": [TEN], "enable": [utc("2026-01-05 09:15")]}
        assert await pending_times(server, schedule) == following[act]
        await gated_instance.clock.advance(1000)  # the result of the gate is ignored now
        assert gated_instance.model.prompts == []
        await assert_ledger_holds(server)


async def test_a_manual_occurrence_waiting_for_its_gate_ends_when_its_schedule_is_deleted(
    gated_instance: LocalInstance,
) -> None:
    async with gated_instance.run() as server:
        schedule = await add(server, make_schedule(gated_instance, "0 12 * * *", gate=ScheduleGate(command="wait")))
        await apply(
            server, schedule, lambda page, found: schedules.create_manual_occurrence(page, found, is_forced=False)
        )
        await server.wait_for(
            lambda conn: (
                not schedules.list_due_occurrences(conn, 2**62 - 1, limit=1)
                or all(s.cause == "clock" for s in schedules.list_due_occurrences(conn, 2**62 - 1, limit=2))
            ),
            what="its gate to run",
        )
        await apply(server, schedule, lambda page, found: schedules.delete(page, found, because="someone did"))
        assert await pending_times(server, schedule) == []
        await assert_ledger_holds(server)


# --- while the server was stopped and the owner changed the time zone ---


async def test_an_occurrence_whose_gate_opens_during_another_run_is_skipped_as_overlap(
    gated_instance: LocalInstance,
) -> None:
    gated_instance.model.rule = lambda prompt: ScriptedReply(text="long", after_s=5000)
    async with gated_instance.run(drain_s=0) as server:
        schedule = await add(server, make_schedule(gated_instance, "0 10 * * *", gate=ScheduleGate(command="wait")))
        await apply(
            server, schedule, lambda page, found: schedules.create_manual_occurrence(page, found, is_forced=False)
        )
        await server.wait_for(lambda conn: schedules.next_clock_ms(conn) == 1767607200000, what="its gate to run")
        await apply(
            server, schedule, lambda page, found: schedules.create_manual_occurrence(page, found, is_forced=True)
        )
        await wait_until_running(server, schedule)
        await gated_instance.clock.advance(1000)
        [skipped] = await server.wait_for(
            lambda conn: (
                [s for s in schedules.list_history(conn, schedule.id, limit=9) if s.state is OccurrenceState.SKIPPED]
                or None
            ),
            what="the occurrence with a gate to be skipped",
        )
        assert skipped.because.startswith("overlap: ")
        assert len(gated_instance.model.prompts) == 1


@pytest.mark.spec("H29", "C73")
@pytest.mark.parametrize(
    ("missed", "state"), [(MissedPolicy.RUN, OccurrenceState.RAN), (None, OccurrenceState.SKIPPED)]
)
async def test_a_missed_occurrence_is_recorded_although_the_instance_zone_changed(
    instance: LocalInstance, missed: MissedPolicy | None, state: OccurrenceState
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    instance.zone = ZoneInfo("Europe/Berlin")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 11 * * *", missed=missed))
        assert await pending_times(server, schedule) == [TEN]
    instance.clock.jump(timedelta(hours=3))
    instance.zone = ZoneInfo("Europe/London")
    async with instance.run() as server:
        assert (await ended(server, schedule, at=TEN)).state is state
        later = await server.wait_for(lambda conn: schedules.get_open_occurrence(conn, schedule.id), what="the next")
        assert later.at == utc("2026-01-06 11:00")
        await assert_ledger_holds(server)


@pytest.mark.spec("H29", "C73")
async def test_each_missed_occurrence_is_recorded_once_after_two_zone_changes(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "* * * * *"))
        [first] = await pending_times(server, schedule)
        instance.clock.jump(first + timedelta(minutes=3) - instance.clock.now())

        def apply_two_zones(tx: Transaction) -> None:
            for zone in ("Europe/London", "Europe/Berlin"):
                schedules.apply_owner_zone(tx, ZoneInfo(zone), limit=10)

        await write(server, apply_two_zones)
        skipped = [slot for slot in await history(server, schedule) if slot.state is OccurrenceState.SKIPPED]
        minutes = [slot.at + timedelta(minutes=n) for slot in skipped for n in range(slot.count or 1)]
        # The first one is included if the clock was still checking while it was set forward.
        assert minutes[int(minutes[0] == first) :] == [first + timedelta(minutes=n) for n in (1, 2, 3)]
        await assert_ledger_holds(server)


@pytest.mark.spec("C75")
async def test_a_missed_one_time_schedule_runs_although_the_instance_zone_changed(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    instance.zone = ZoneInfo("Europe/Berlin")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, OnceTrigger(TEN)))
    instance.clock.jump(timedelta(hours=3))
    instance.zone = ZoneInfo("Europe/London")
    async with instance.run() as server:
        assert (await ended(server, schedule, at=TEN)).state is OccurrenceState.RAN


async def test_a_one_time_schedule_at_a_fraction_of_a_millisecond_runs_once(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, OnceTrigger(TEN + timedelta(microseconds=700))))
        await advance_clock_to(server, TEN)
        await ended(server, schedule, at=TEN)
        assert await occurrence_summaries(server, schedule) == [("10:00", "ran", "")]
        assert await pending_times(server, schedule) == []


@pytest.mark.spec("C73", "C74.run_log")
async def test_missed_occurrences_of_a_deleted_agent_are_recorded_as_skipped(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *", missed=MissedPolicy.RUN))
        await server.store.write(lambda conn: agents.remove(conn, "ada", at_ms=0), point="staff")
        instance.clock.jump(timedelta(hours=4))
        await instance.clock.advance(60)
        await ended(server, schedule, at=TEN)
        assert await occurrence_summaries(server, schedule) == [("10:00", "skipped", ""), ("11:00", "skipped", "14:00")]
        assert not (await stored_schedule(server, schedule)).enabled
        await assert_ledger_holds(server)


# --- sessions of schedules ---


async def test_a_fresh_schedule_session_does_not_reset_a_run_that_waits_for_an_approval(tmp_path: Path) -> None:
    """A reset would separate its calls from their results."""
    interrupting = QueuePolicy(mode=QueueMode.INTERRUPT)
    rules = ToolRules(ask=("append_line",))
    ada = Agent(name="ada", model="scripted", tools=rules, queue=interrupting, approval_wait_s=86_400)
    instance = LocalInstance(tmp_path, agents=[ada])
    instance.model.will_reply("First.", tool_call_reply("append_line", text="x"), "Second.")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *"))
        await advance_clock_to(server, TEN)
        first = await ended(server, schedule, at=TEN)
        session = (await server.get_envelope(first.envelope or "")).session
        await server.send("A line, please.", recipient=f"agent:ada/{session}")
        await server.wait_for(lambda conn: approvals.list_open(conn, limit=1) or None, what="the approval")
        await advance_clock_to(server, utc("2026-01-05 11:00"))
        await ended(server, schedule, at=utc("2026-01-05 11:00"))
        read = await server.list_records(session)
    waiting_for: set[str] = set()
    for record in read:
        if isinstance(record.body, ToolResult):
            waiting_for.discard(record.body.call)
        else:
            assert not waiting_for, f"{record.kind} is between a call and its result"
            waiting_for = {call.id for call in record.body.calls} if isinstance(record.body, Reply) else set()
    assert instance.witness_file.exists() is False
