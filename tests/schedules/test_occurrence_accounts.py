"""Every slot is accounted for, whatever someone does to its schedule at the wrong moment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from schedules.schedule_instance import (
    a_schedule,
    add,
    ended,
    history,
    holds,
    kept,
    pending,
    replace,
    turn_to,
    utc,
    waiting,
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
def household(memory_path: Path) -> LocalInstance:
    return LocalInstance(memory_path, agents=[Agent(name="ada", model="scripted", run_seconds_max=86_400)])


async def to(house: LocalServer, schedule: Schedule, act: Act) -> None:
    def body(page: Transaction) -> object:
        found = schedules.get(page.conn, schedule.id)
        assert found is not None
        return act(page, found)

    await write(house, body)


async def at_work(house: LocalServer, schedule: Schedule) -> None:
    await house.wait_for(
        lambda conn: schedules.get_running_occurrence(conn, schedule.id), what="the slot to be worked on"
    )
    await house.wait_for(lambda conn: bool(house.instance.model.prompts), what="the model to be asked")


async def told(house: LocalServer, schedule: Schedule) -> list[tuple[str, str, str]]:
    """Each slot by its time of day, its state, and until when it stands for others."""
    return [
        (f"{slot.at:%H:%M}", slot.state.value, f"{slot.until:%H:%M}" if slot.until else "")
        for slot in await history(house, schedule)
    ]


# --- while one is at work ---


@pytest.mark.spec("H26", "C73")
async def test_a_schedule_that_is_changed_while_it_is_at_work_owes_its_slots_by_the_rule_that_held(
    household: LocalInstance,
) -> None:
    household.model.will_reply(ScriptedReply(text="long", after_s=3 * 3600))
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0,30 * * * *"))
        await turn_to(house, utc("2026-01-05 09:30"))
        await at_work(house, schedule)
        await turn_to(house, utc("2026-01-05 11:10"))
        hourly = replace(schedule, when=CronTrigger("15 * * * *"))
        await to(
            house, schedule, lambda page, found: schedules.change(page, found, hourly, zone=household.zone, because="x")
        )
        assert (await waiting(house, schedule)) is not None  # the one at work, and no second
        await turn_to(house, utc("2026-01-05 12:30"))
        await ended(house, schedule, at=utc("2026-01-05 09:30"))

        assert await told(house, schedule) == [
            ("09:30", "ran", ""),
            ("10:00", "skipped", "11:30"),
            ("11:15", "skipped", "13:15"),
        ]
        assert await pending(house, schedule) == [utc("2026-01-05 13:15")]
        await holds(house)


async def test_what_would_have_come_while_it_was_disabled_was_no_slot(household: LocalInstance) -> None:
    household.model.will_reply(ScriptedReply(text="long", after_s=3 * 3600))
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *"))
        await turn_to(house, TEN)
        await at_work(house, schedule)
        await to(house, schedule, lambda page, found: schedules.disable(page, found, because="x"))
        await turn_to(house, utc("2026-01-05 11:30"))
        await to(house, schedule, lambda page, found: schedules.enable(page, found))
        await turn_to(house, utc("2026-01-05 13:00"))
        await ended(house, schedule, at=TEN)

        assert await told(house, schedule) == [("10:00", "ran", ""), ("12:00", "skipped", "14:00")]
        assert await pending(house, schedule) == [utc("2026-01-05 14:00")]
        await holds(house)


async def test_the_last_run_is_known_also_where_slots_were_skipped_while_it_was_at_work(
    household: LocalInstance,
) -> None:
    household.model.will_reply(ScriptedReply(text="long", after_s=600))
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *"))
        await turn_to(house, TEN)
        await at_work(house, schedule)
        await to(house, schedule, lambda page, found: schedules.record_manual_skip(page, found, because="busy"))
        await turn_to(house, TEN + timedelta(seconds=600))
        known = await kept(house, schedule)
        last = await house.wait_for(
            lambda conn: schedules.get_status(conn, known).last_run_at, what="the run to be known by its schedule"
        )
        assert last == TEN + timedelta(seconds=600)


# --- while one is due, and before its gate ---


@pytest.fixture
def gated(tmp_path: Path) -> LocalInstance:
    async def ask(schedule: Schedule, agent: Agent, session: object) -> GateResult:
        await household.clock.sleep(1000)
        return GateResult(is_open=True, output="go")

    household = LocalInstance(tmp_path, run_gate=ask)
    household.model.rule = lambda prompt: text_reply("ok")
    return household


async def before_its_gate(house: LocalServer, schedule: Schedule) -> None:
    await house.wait_for(
        lambda conn: (
            not schedules.list_due_occurrences(conn, 2**62, limit=1)
            and schedules.get_open_occurrence(conn, schedule.id)
        ),
        what="the gate to be asked",
    )


@pytest.mark.spec("C73")
@pytest.mark.parametrize("act", ["disable", "change", "enable"])
async def test_a_slot_whose_time_has_come_does_not_vanish_with_a_change(gated: LocalInstance, act: str) -> None:
    async with gated.run() as house:
        schedule = await add(house, a_schedule(gated, "*/5 * * * *", gate=ScheduleGate(command="wait")))
        await turn_to(house, utc("2026-01-05 09:05"))
        await before_its_gate(house, schedule)
        await turn_to(house, utc("2026-01-05 09:11"))
        other = replace(schedule, when=CronTrigger("0 * * * *"))
        acts: dict[str, Act] = {
            "disable": lambda page, found: schedules.disable(page, found, because="someone did"),
            "change": lambda page, found: schedules.change(page, found, other, zone=gated.zone, because="someone did"),
            "enable": lambda page, found: schedules.enable(page, found),
        }
        await to(house, schedule, acts[act])

        assert await told(house, schedule) == [("09:05", "skipped", ""), ("09:10", "skipped", "09:15")]
        assert all(slot.because for slot in await history(house, schedule))
        following = {"disable": [], "change": [TEN], "enable": [utc("2026-01-05 09:15")]}
        assert await pending(house, schedule) == following[act]
        await gated.clock.advance(1000)  # what the gate says now is about nothing any more
        assert gated.model.prompts == []
        await holds(house)


async def test_one_made_by_hand_ends_with_its_schedule_when_that_is_deleted_before_its_gate_has_spoken(
    gated: LocalInstance,
) -> None:
    async with gated.run() as house:
        schedule = await add(house, a_schedule(gated, "0 12 * * *", gate=ScheduleGate(command="wait")))
        await to(house, schedule, lambda page, found: schedules.create_manual_occurrence(page, found, is_forced=False))
        await house.wait_for(
            lambda conn: (
                not schedules.list_due_occurrences(conn, 2**62 - 1, limit=1)
                or all(s.cause == "clock" for s in schedules.list_due_occurrences(conn, 2**62 - 1, limit=2))
            ),
            what="its gate to be asked",
        )
        await to(house, schedule, lambda page, found: schedules.delete(page, found, because="someone did"))
        assert await pending(house, schedule) == []
        await holds(house)


# --- while the house was closed, and its owner has moved ---


async def test_a_gate_that_says_yes_while_another_is_at_work_is_told_so(gated: LocalInstance) -> None:
    gated.model.rule = lambda prompt: ScriptedReply(text="long", after_s=5000)
    async with gated.run(drain_s=0) as house:
        schedule = await add(house, a_schedule(gated, "0 10 * * *", gate=ScheduleGate(command="wait")))
        await to(house, schedule, lambda page, found: schedules.create_manual_occurrence(page, found, is_forced=False))
        await house.wait_for(lambda conn: schedules.next_clock_ms(conn) == 1767607200000, what="its gate to be asked")
        await to(house, schedule, lambda page, found: schedules.create_manual_occurrence(page, found, is_forced=True))
        await at_work(house, schedule)
        await gated.clock.advance(1000)
        [skipped] = await house.wait_for(
            lambda conn: (
                [s for s in schedules.list_history(conn, schedule.id, limit=9) if s.state is OccurrenceState.SKIPPED]
                or None
            ),
            what="the one behind its gate to be skipped",
        )
        assert skipped.because.startswith("overlap: ")
        assert len(gated.model.prompts) == 1


@pytest.mark.spec("H29", "C73")
@pytest.mark.parametrize(
    ("missed", "state"), [(MissedPolicy.RUN, OccurrenceState.RAN), (None, OccurrenceState.SKIPPED)]
)
async def test_a_slot_that_was_missed_is_not_forgotten_because_the_owner_has_moved(
    household: LocalInstance, missed: MissedPolicy | None, state: OccurrenceState
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    household.zone = ZoneInfo("Europe/Berlin")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 11 * * *", missed=missed))
        assert await pending(house, schedule) == [TEN]
    household.clock.jump(timedelta(hours=3))
    household.zone = ZoneInfo("Europe/London")
    async with household.run() as house:
        assert (await ended(house, schedule, at=TEN)).state is state
        later = await house.wait_for(lambda conn: schedules.get_open_occurrence(conn, schedule.id), what="the next")
        assert later.at == utc("2026-01-06 11:00")
        await holds(house)


@pytest.mark.spec("H29", "C73")
async def test_an_owner_who_moves_twice_before_the_clock_strikes_has_each_slot_told_of_once(
    household: LocalInstance,
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "* * * * *"))
        [first] = await pending(house, schedule)
        household.clock.jump(first + timedelta(minutes=3) - household.clock.now())

        def move_twice(page: Transaction) -> None:
            for zone in ("Europe/London", "Europe/Berlin"):
                schedules.apply_owner_zone(page, ZoneInfo(zone), limit=10)

        await write(house, move_twice)
        skipped = [slot for slot in await history(house, schedule) if slot.state is OccurrenceState.SKIPPED]
        minutes = [slot.at + timedelta(minutes=n) for slot in skipped for n in range(slot.count or 1)]
        # The first one too, where the clock was still looking as it was set forward.
        assert minutes[int(minutes[0] == first) :] == [first + timedelta(minutes=n) for n in (1, 2, 3)]
        await holds(house)


@pytest.mark.spec("C75")
async def test_what_comes_once_and_was_missed_comes_also_where_the_owner_has_moved(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    household.zone = ZoneInfo("Europe/Berlin")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, OnceTrigger(TEN)))
    household.clock.jump(timedelta(hours=3))
    household.zone = ZoneInfo("Europe/London")
    async with household.run() as house:
        assert (await ended(house, schedule, at=TEN)).state is OccurrenceState.RAN


async def test_what_comes_once_at_a_fraction_of_a_millisecond_comes_once(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, OnceTrigger(TEN + timedelta(microseconds=700))))
        await turn_to(house, TEN)
        await ended(house, schedule, at=TEN)
        assert await told(house, schedule) == [("10:00", "ran", "")]
        assert await pending(house, schedule) == []


@pytest.mark.spec("C73", "C74.run_log")
async def test_slots_that_were_missed_are_told_of_also_where_nobody_is_left_to_work_on_them(
    household: LocalInstance,
) -> None:
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *", missed=MissedPolicy.RUN))
        await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=0), point="staff")
        household.clock.jump(timedelta(hours=4))
        await household.clock.advance(60)
        await ended(house, schedule, at=TEN)
        assert await told(house, schedule) == [("10:00", "skipped", ""), ("11:00", "skipped", "14:00")]
        assert not (await kept(house, schedule)).enabled
        await holds(house)


# --- the conversation it is worked on in ---


async def test_a_fresh_one_does_not_cut_into_a_run_that_waits_for_a_decision(tmp_path: Path) -> None:
    """Its calls would be left without their results, on the other side of the mark."""
    interrupting = QueuePolicy(mode=QueueMode.INTERRUPT)
    rules = ToolRules(ask=("append_line",))
    ada = Agent(name="ada", model="scripted", tools=rules, queue=interrupting, approval_wait_s=86_400)
    household = LocalInstance(tmp_path, agents=[ada])
    household.model.will_reply("First.", tool_call_reply("append_line", text="x"), "Second.")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *"))
        await turn_to(house, TEN)
        first = await ended(house, schedule, at=TEN)
        session = (await house.get_envelope(first.envelope or "")).session
        await house.send("A line, please.", recipient=f"agent:ada/{session}")
        await house.wait_for(lambda conn: approvals.list_open(conn, limit=1) or None, what="the question")
        await turn_to(house, utc("2026-01-05 11:00"))
        await ended(house, schedule, at=utc("2026-01-05 11:00"))
        read = await house.list_records(session)
    waiting_for: set[str] = set()
    for record in read:
        if isinstance(record.body, ToolResult):
            waiting_for.discard(record.body.call)
        else:
            assert not waiting_for, f"{record.kind} stands between a call and its result"
            waiting_for = {call.id for call in record.body.calls} if isinstance(record.body, Reply) else set()
    assert household.witness_file.exists() is False
