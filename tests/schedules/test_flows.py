"""Schedules on a server run on time and once, across stops, time zones and clock changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_instance import ControlledStore, StoreControl, advance_clock_until_done, run_with_power_cuts
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

from retinue.domain.agent import Agent
from retinue.domain.ids import ScheduleId
from retinue.domain.record import UserTurn
from retinue.domain.schedule import (
    EveryTrigger,
    GateResult,
    MissedPolicy,
    OccurrenceCause,
    OccurrenceState,
    OnceTrigger,
    Schedule,
    ScheduleGate,
    ScheduleSession,
)
from retinue.domain.session import OriginKind
from retinue.store.core.transaction import Transaction
from retinue.store.schedules import schedules
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply

TEN = utc("2026-01-05 10:00")


@pytest.fixture
def instance(memory_path: Path) -> LocalInstance:
    return LocalInstance(memory_path)


def get_stored_schedule(tx: Transaction, schedule: Schedule) -> schedules.StoredSchedule:
    stored_schedule = schedules.get(tx.conn, schedule.id)
    assert stored_schedule is not None
    return stored_schedule


async def occurrence_states(server: LocalServer, schedule: Schedule) -> list[tuple[datetime, OccurrenceState]]:
    return [(slot.at, slot.state) for slot in await history(server, schedule)]


@pytest.mark.spec("H25", "H26", "C72")
async def test_a_schedule_has_one_pending_envelope_and_gets_the_next_when_it_ends(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *"))
        assert await pending_times(server, schedule) == [TEN]

        instance.model.will_reply("Done.")
        await advance_clock_to(server, TEN)
        slot = await ended(server, schedule, at=TEN)

        assert (slot.state, slot.cause) == (OccurrenceState.RAN, OccurrenceCause.CLOCK)
        assert await pending_times(server, schedule) == [utc("2026-01-06 10:00")]
        assert [mail.text for mail in await server.list_envelopes_to("owner")] == ["Done."]
        assert (await schedule_status(server, schedule)).last_run_at == TEN
        await assert_ledger_holds(server)


async def schedule_status(server: LocalServer, schedule: Schedule) -> schedules.ScheduleStatus:
    known = await stored_schedule(server, schedule)
    return await server.store.scan(lambda conn: schedules.get_status(conn, known))


@pytest.mark.spec("C72")
async def test_once_and_interval_schedules_run_at_their_times_and_a_once_schedule_is_then_disabled(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        once = await add(server, make_schedule(instance, OnceTrigger(TEN)))
        every = await add(server, make_schedule(instance, EveryTrigger(1800, utc("2026-01-05 09:00"))))
        assert await pending_times(server, every) == [utc("2026-01-05 09:30")]
        await advance_clock_to(server, utc("2026-01-05 09:30"))
        await ended(server, every, at=utc("2026-01-05 09:30"))
        await advance_clock_to(server, TEN)
        await ended(server, every, at=TEN)
        await ended(server, once, at=TEN)

        assert await pending_times(server, once) == []
        over = await stored_schedule(server, once)
        assert (over.enabled, over.because) == (False, "it was to occur once, and its time has passed")
        assert await pending_times(server, every) == [utc("2026-01-05 10:30")]
        await assert_ledger_holds(server)


# --- stops ---


@pytest.mark.spec("H27", "C73")
async def test_occurrences_missed_while_the_server_was_stopped_are_skipped_with_the_reason(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *"))
    instance.clock.jump(timedelta(hours=5, minutes=30))

    async with instance.run() as server:
        await ended(server, schedule, at=TEN)

        first, others = await history(server, schedule)
        assert first.state is others.state is OccurrenceState.SKIPPED
        assert "the server was not running" in first.because and "the server was not running" in others.because
        assert (others.at, others.until, others.count) == (utc("2026-01-05 11:00"), utc("2026-01-05 15:00"), 4)
        assert await pending_times(server, schedule) == [utc("2026-01-05 15:00")]
        assert instance.model.prompts == []
        await assert_ledger_holds(server)


@pytest.mark.spec("C73")
async def test_a_schedule_with_missed_run_runs_once_for_all_missed_occurrences(instance: LocalInstance) -> None:
    instance.model.will_reply("Late.")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *", missed=MissedPolicy.RUN))
    instance.clock.jump(timedelta(hours=5, minutes=30))

    async with instance.run() as server:
        ran = await ended(server, schedule, at=TEN)
        assert ran.state is OccurrenceState.RAN
        [_, others] = await history(server, schedule)
        assert (others.state, others.because) == (
            OccurrenceState.SKIPPED,
            "its time had passed when the server processed it",
        )
        assert (others.at, others.count) == (utc("2026-01-05 11:00"), 4)
        assert len(instance.model.prompts) == 1


async def test_an_occurrence_a_few_seconds_late_is_not_missed(instance: LocalInstance) -> None:
    instance.model.will_reply("Just in time.")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *"))
    instance.clock.jump(timedelta(hours=1, seconds=20))
    async with instance.run() as server:
        assert (await ended(server, schedule, at=TEN)).state is OccurrenceState.RAN


@pytest.mark.spec("C73")
async def test_a_scheduled_run_interrupted_by_a_crash_is_resumed_and_its_occurrence_runs_once(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *"))
        instance.model.will_reply(ScriptedReply(text="never said", after_s=3600))
        await advance_clock_to(server, TEN)
        await server.wait_for(
            lambda conn: (
                (occurrence := schedules.get_open_occurrence(conn, schedule.id))
                and occurrence.state is OccurrenceState.WORKING
            ),
            what="a run of the occurrence",
        )
        await server.wait_for(lambda conn: len(instance.model.prompts) == 1, what="the model to be asked")
        server.crash()

    instance.model.will_reply("After the crash.")
    async with instance.run() as server:
        assert (await ended(server, schedule, at=TEN)).state is OccurrenceState.RAN
        assert await occurrence_states(server, schedule) == [(TEN, OccurrenceState.RAN)]
        assert await pending_times(server, schedule) == [utc("2026-01-06 10:00")]
        await assert_ledger_holds(server)


@pytest.fixture
def store_control() -> StoreControl:
    return StoreControl()


@pytest.fixture
def new_instance(tmp_path: Path, store_control: StoreControl) -> Callable[[], LocalInstance]:
    made: list[Path] = []

    def new() -> LocalInstance:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(root)
        instance = LocalInstance(root, wrap_store=lambda store: ControlledStore(store, store_control))
        instance.model.rule = lambda prompt: text_reply("ok")
        return instance

    return new


@pytest.mark.spec("H26", "H32", "C73")
async def test_a_crash_at_any_commit_runs_an_occurrence_once_and_plans_the_next(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl
) -> None:
    id_ = ScheduleId("5" * 32)

    async def run_schedule(server: LocalServer) -> None:
        instance = server.instance
        schedule = replace(make_schedule(instance, "0 10 * * *"), id=id_)
        if await server.store.read(lambda conn: schedules.get(conn, id_)) is None:
            await add(server, schedule)
        if instance.clock.now() < TEN:
            await advance_clock_to(server, TEN)
        await ended(server, schedule, at=TEN)

    async for server in run_with_power_cuts(new_instance, store_control, run_schedule):
        schedule = replace(make_schedule(server.instance, "0 10 * * *"), id=id_)
        assert await occurrence_states(server, schedule) == [(TEN, OccurrenceState.RAN)]
        assert await pending_times(server, schedule) == [utc("2026-01-06 10:00")]
        assert len([mail for mail in await server.list_envelopes_to("owner") if mail.text == "ok"]) == 1
        await assert_ledger_holds(server)


# --- time zones and clock changes ---


@pytest.mark.spec("H29")
async def test_a_schedule_without_a_zone_follows_the_instance_zone_and_one_with_a_zone_keeps_it(
    instance: LocalInstance,
) -> None:
    instance.zone = ZoneInfo("Europe/Berlin")
    async with instance.run() as server:
        mine = await add(server, make_schedule(instance, "0 18 * * *"))
        theirs = await add(server, make_schedule(instance, "0 18 * * *", zone="Asia/Tokyo"))
        assert await pending_times(server, mine) == [utc("2026-01-05 17:00")]
        assert await pending_times(server, theirs) == [utc("2026-01-06 09:00")]

    instance.zone = ZoneInfo("America/New_York")
    async with instance.run() as server:
        assert await pending_times(server, mine) == [utc("2026-01-05 23:00")]
        assert await pending_times(server, theirs) == [utc("2026-01-06 09:00")]
        assert await occurrence_states(server, mine) == []  # a moved occurrence is not skipped
        [taken_back] = await server.execute_sql("SELECT because FROM outcomes")
        assert taken_back.because == "the owner's time zone is now America/New_York"
        await assert_ledger_holds(server)


@pytest.mark.spec("C73")
@pytest.mark.parametrize(
    ("start", "slots"),
    [
        ("2026-03-28 00:00", ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),  # 02:30 is missing once
        ("2026-10-24 00:00", ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),  # 02:30 occurs twice
    ],
)
async def test_a_daily_schedule_runs_once_a_day_across_daylight_saving_changes(
    tmp_path: Path, start: str, slots: list[str]
) -> None:
    from retinue.testing.fake_clock import FakeClock

    instance = LocalInstance(tmp_path, clock=FakeClock(utc(start)), zone=ZoneInfo("Europe/Berlin"))
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "30 2 * * *"))
        for slot in map(utc, slots):
            assert await pending_times(server, schedule) == [slot]
            await advance_clock_to(server, slot)
            await ended(server, schedule, at=slot)
        assert await occurrence_states(server, schedule) == [(utc(slot), OccurrenceState.RAN) for slot in slots]


@pytest.mark.spec("C73")
async def test_a_jump_of_the_wall_clock_repeats_no_schedule_occurrence_and_records_those_skipped(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *"))
        await advance_clock_to(server, TEN)
        await ended(server, schedule, at=TEN)
        instance.clock.jump(timedelta(hours=-3))  # back to 07:00: the server's time does not go back
        await instance.clock.advance(120)
        assert await occurrence_states(server, schedule) == [(TEN, OccurrenceState.RAN)]
        instance.clock.jump(timedelta(hours=7))  # to 14:02
        await instance.clock.advance(61)
        await ended(server, schedule, at=utc("2026-01-05 11:00"))
        skipped = (await history(server, schedule))[1:]
        assert [slot.state for slot in skipped] == [OccurrenceState.SKIPPED, OccurrenceState.SKIPPED]
        assert (skipped[0].at, skipped[1].at, skipped[1].count) == (
            utc("2026-01-05 11:00"),
            utc("2026-01-05 12:00"),
            3,
        )
        assert await pending_times(server, schedule) == [utc("2026-01-05 15:00")]


# --- during a run ---


@pytest.mark.spec("D40", "C73")
async def test_occurrences_during_a_run_are_skipped_and_the_last_run_is_kept(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, EveryTrigger(600, utc("2026-01-05 09:00"))))
        instance.model.will_reply(ScriptedReply(text="Took long.", after_s=1500))
        first = utc("2026-01-05 09:10")
        await advance_clock_to(server, first)
        await server.wait_for(lambda conn: len(instance.model.prompts) == 1, what="the model to be asked")
        assert (await pending_times(server, schedule)) == []  # the running one is the only open one
        await advance_clock_to(server, utc("2026-01-05 09:35"))
        await ended(server, schedule, at=first)

        [ran, skipped] = await history(server, schedule)
        assert (ran.state, ran.ended_at) == (OccurrenceState.RAN, utc("2026-01-05 09:35"))
        assert (skipped.state, skipped.because) == (
            OccurrenceState.SKIPPED,
            "the previous occurrence was still running",
        )
        assert (skipped.at, skipped.until, skipped.count) == (
            utc("2026-01-05 09:20"),
            utc("2026-01-05 09:40"),
            2,
        )
        assert await pending_times(server, schedule) == [utc("2026-01-05 09:40")]
        assert (await schedule_status(server, schedule)).last_run_at == utc("2026-01-05 09:35")
        await assert_ledger_holds(server)


@pytest.mark.spec("A63", "C74.manual_run")
async def test_a_manual_occurrence_runs_at_once_but_is_skipped_during_a_run_unless_forced(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *"))
        await write(server, lambda page: schedules.disable(page, get_stored_schedule(page, schedule), because="test"))
        await write(
            server,
            lambda page: schedules.create_manual_occurrence(page, get_stored_schedule(page, schedule), is_forced=False),
        )
        await ended(server, schedule, at=instance.clock.now())
        assert [(slot.cause, slot.state) for slot in await history(server, schedule)] == [
            (OccurrenceCause.MANUAL, OccurrenceState.RAN)
        ]
        assert await pending_times(server, schedule) == []  # it is still disabled

        instance.model.script.append(ScriptedReply(text="slow", after_s=600))
        begun = instance.clock.now()
        await write(
            server,
            lambda page: schedules.create_manual_occurrence(page, get_stored_schedule(page, schedule), is_forced=True),
        )
        await server.wait_for(lambda conn: len(instance.model.prompts) == 2, what="the model to be asked")
        await instance.clock.advance(1)
        await write(
            server,
            lambda page: schedules.create_manual_occurrence(page, get_stored_schedule(page, schedule), is_forced=False),
        )
        skipped = await ended(server, schedule, at=begun + timedelta(seconds=1))
        assert skipped.state is OccurrenceState.SKIPPED and skipped.because.startswith("overlap: the occurrence of ")
        await write(
            server,
            lambda page: schedules.create_manual_occurrence(page, get_stored_schedule(page, schedule), is_forced=True),
        )
        await instance.clock.advance(600)
        await server.wait_for(
            lambda conn: all(not slot.state.is_open for slot in schedules.list_history(conn, schedule.id, limit=10)),
            what="all to end",
        )
        assert [(slot.cause, slot.state) for slot in await history(server, schedule)][1:] == [
            (OccurrenceCause.FORCE, OccurrenceState.RAN),
            (OccurrenceCause.MANUAL, OccurrenceState.SKIPPED),
            (OccurrenceCause.FORCE, OccurrenceState.RAN),
        ]


@pytest.mark.spec("C73")
async def test_an_occurrence_during_a_manual_run_is_skipped(instance: LocalInstance) -> None:
    async with instance.run(drain_s=0) as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *"))
        instance.model.will_reply(ScriptedReply(text="slow", after_s=3000))
        await advance_clock_to(server, utc("2026-01-05 09:30"))
        await write(
            server,
            lambda page: schedules.create_manual_occurrence(page, get_stored_schedule(page, schedule), is_forced=False),
        )
        await server.wait_for(lambda conn: len(instance.model.prompts) == 1, what="the model to be asked")
        await advance_clock_to(server, TEN)
        skipped = await ended(server, schedule, at=TEN)
        assert skipped.state is OccurrenceState.SKIPPED and skipped.because.startswith("overlap: ")
        assert await pending_times(server, schedule) == [utc("2026-01-06 10:00")]


# --- enable, disable, delete ---


@pytest.mark.spec("H28")
async def test_disabling_or_deleting_a_schedule_removes_its_occurrence_and_enabling_adds_it(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *"))

        async def do(act: Callable[..., object], **kw: object) -> None:
            await write(server, lambda page: act(page, get_stored_schedule(page, schedule), **kw))

        await do(schedules.disable, because="for now")
        assert await pending_times(server, schedule) == []
        assert (await stored_schedule(server, schedule)).because == "for now"
        await advance_clock_to(server, utc("2026-01-05 09:30"))
        await do(schedules.enable)
        assert await pending_times(server, schedule) == [TEN]
        await do(schedules.enable)  # again: still one
        assert await pending_times(server, schedule) == [TEN]
        await do(schedules.delete, because="no longer needed")
        assert await pending_times(server, schedule) == []
        assert await server.store.read(lambda conn: schedules.get(conn, schedule.id)) is None
        await advance_clock_to(server, utc("2026-01-05 10:05"))
        assert instance.model.prompts == []
        await assert_ledger_holds(server)


@pytest.mark.spec("C74.auto_disable")
async def test_a_schedule_of_a_deleted_agent_is_disabled_with_the_reason(instance: LocalInstance) -> None:
    instance.agents = (*instance.agents, Agent(name="bo", model="scripted"))
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *", to="agent:bo"))
        await server.execute_sql("UPDATE agents SET removed_ms = 1 WHERE name = 'bo'")
        await advance_clock_to(server, TEN)
        await ended(server, schedule, at=TEN)
        off = await stored_schedule(server, schedule)
        assert (off.enabled, off.because) == (False, "the agent bo was deleted")
        [skipped] = await history(server, schedule)
        assert (skipped.state, skipped.because) == (OccurrenceState.SKIPPED, "the agent bo was deleted")
        await assert_ledger_holds(server)


@pytest.mark.spec("H32", "C73")
async def test_a_schedule_continues_after_a_failed_run(instance: LocalInstance) -> None:
    async with instance.run() as server:  # the script is empty, so model calls fail
        schedule = await add(server, make_schedule(instance, "0 10 * * *", delete_after_run=True))
        await advance_clock_to(server, TEN)
        slot = await advance_clock_until_done(server, ended(server, schedule, at=TEN))
        assert slot.state is OccurrenceState.FAILED and slot.because
        assert await pending_times(server, schedule) == [utc("2026-01-06 10:00")]
        [notice] = await server.list_envelopes_to("owner")
        assert notice.text  # the owner gets a notice about the failure


@pytest.mark.spec("H32")
async def test_a_schedule_continues_after_a_failed_delivery(instance: LocalInstance) -> None:
    quiet = FakeConnector(instance.clock)
    instance.connectors["quiet"] = quiet
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *", to="channel:quiet:kitchen"))
        quiet.will_fail(permanent=True)
        await advance_clock_to(server, TEN)
        slot = await ended(server, schedule, at=TEN)
        assert slot.state is OccurrenceState.FAILED
        assert await pending_times(server, schedule) == [utc("2026-01-06 10:00")]
        await advance_clock_to(server, utc("2026-01-06 10:00"))
        assert (await ended(server, schedule, at=utc("2026-01-06 10:00"))).state is OccurrenceState.RAN
        assert quiet.list_texts("kitchen") == ["Water the plants."]


# --- gates and deleted agents ---


def gate_with_results(*answers: GateResult) -> Callable[..., object]:
    said = list(answers)

    async def ask(schedule: Schedule, agent: Agent, session: str) -> GateResult:
        return said.pop(0)

    return ask


@pytest.mark.spec("D41", "D48", "A62")
async def test_a_closed_schedule_gate_makes_no_model_call_and_delete_after_run_needs_a_run(
    instance: LocalInstance,
) -> None:
    instance.run_gate = gate_with_results(  # type: ignore[assignment]
        GateResult(is_open=False, because="gate: exit 1"), GateResult(is_open=True, output="3 new letters")
    )
    instance.model.will_reply("Read them.")
    async with instance.run() as server:
        schedule = await add(
            server, make_schedule(instance, "0 * * * *", gate=ScheduleGate(command="test"), delete_after_run=True)
        )
        await advance_clock_to(server, TEN)
        skipped = await ended(server, schedule, at=TEN)
        assert (skipped.state, skipped.because) == (OccurrenceState.SKIPPED, "gate: exit 1")
        assert instance.model.prompts == []
        assert (await stored_schedule(server, schedule)).enabled

        await advance_clock_to(server, utc("2026-01-05 11:00"))
        await server.wait_for(lambda conn: schedules.get(conn, schedule.id) is None, what="the schedule to be deleted")
        [prompt] = instance.model.prompts
        words = "\n".join(r.body.text for r in prompt.records if isinstance(r.body, UserTurn))
        assert "Water the plants.\n\n[Gate output]\n3 new letters" not in words  # untrusted, so it is a separate record
        assert "Water the plants." in words and "3 new letters" in words


async def test_a_schedule_gate_interrupted_by_a_server_stop_runs_again(instance: LocalInstance) -> None:
    instance.run_gate = gate_with_results()  # type: ignore[assignment]
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *", gate=ScheduleGate(command="test")))
        await server.execute_sql("UPDATE occurrences SET clock_ms = NULL")  # as while its gate is running
    instance.run_gate = gate_with_results(GateResult(is_open=True))  # type: ignore[assignment]
    instance.model.will_reply("Done.")
    async with instance.run() as server:
        await advance_clock_to(server, TEN)
        assert (await ended(server, schedule, at=TEN)).state is OccurrenceState.RAN


async def test_a_schedule_gate_that_raises_an_error_is_closed(instance: LocalInstance) -> None:
    instance.run_gate = gate_with_results()  # type: ignore[assignment]  # it has no answer: it raises
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *", gate=ScheduleGate(command="test")))
        await advance_clock_to(server, TEN)
        slot = await ended(server, schedule, at=TEN)
        assert (slot.state, slot.because) == (OccurrenceState.SKIPPED, "its gate failed: IndexError")


# --- sessions and recipients ---


@pytest.mark.spec("D39", "A63")
async def test_a_schedule_runs_in_its_own_session_with_the_current_title_and_attributes(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        schedule = await add(
            server, make_schedule(instance, "0 * * * *", title="Garden", attributes={"core": {"mood": "calm"}})
        )
        await advance_clock_to(server, TEN)
        slot = await ended(server, schedule, at=TEN)
        session = await server.get_session((await server.get_envelope(slot.envelope or "")).session)
        assert (session.origin.kind, session.origin.key) == (OriginKind.SCHEDULE, f"schedule:{schedule.id}")
        assert (session.name, session.attributes) == ("Garden", {"core": {"mood": "calm"}})

        changed = replace(schedule, title="Greenhouse", attributes={"core": {"mood": "brisk"}})
        await write(
            server,
            lambda page: schedules.change(
                page, get_stored_schedule(page, schedule), changed, zone=instance.zone, because="test"
            ),
        )
        await advance_clock_to(server, utc("2026-01-05 11:00"))
        await ended(server, schedule, at=utc("2026-01-05 11:00"))
        same = await server.get_session(session.id)
        assert (same.name, same.attributes) == ("Greenhouse", {"core": {"mood": "brisk"}})


@pytest.mark.parametrize(("place", "turns"), [(ScheduleSession.FRESH, 1), (ScheduleSession.OWN, 2)])
async def test_a_fresh_schedule_session_starts_a_new_context_and_an_own_session_keeps_it(
    instance: LocalInstance, place: ScheduleSession, turns: int
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *", place=place))
        for slot in (TEN, utc("2026-01-05 11:00")):
            await advance_clock_to(server, slot)
            await ended(server, schedule, at=slot)
        read = [record for record in instance.model.prompts[-1].records if isinstance(record.body, UserTurn)]
        assert len(read) == turns


@pytest.mark.spec("D39", "C72")
async def test_a_schedule_can_run_in_the_main_session_or_a_named_session(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        receipt = await server.send("Hello.", sender="person:owner", origin=terminal_origin("owner"))
        await server.wait_for_outcome(receipt.envelope)
        main = await add(server, make_schedule(instance, "0 10 * * *", place=ScheduleSession.MAIN))
        named = await add(server, make_schedule(instance, "0 10 * * *", to=f"agent:ada/{receipt.session}"))
        await advance_clock_to(server, TEN)
        for schedule in (main, named):
            slot = await ended(server, schedule, at=TEN)
            envelope = await server.get_envelope(slot.envelope or "")
            assert envelope.session == receipt.session
        words = [r.body.text for r in await server.list_records(receipt.session) if isinstance(r.body, UserTurn)]
        assert any('<system_message origin="schedule:' in text for text in words)  # not as the owner's text
        assert [mail.text for mail in await server.list_envelopes_to("owner")] == ["ok", "ok", "ok"]


@pytest.mark.spec("C72")
async def test_a_schedules_answer_is_delivered_to_its_target_unless_the_run_wrote_there_itself(
    instance: LocalInstance,
) -> None:
    from retinue.tools.message_tool import MessageTool

    quiet = FakeConnector(instance.clock)
    instance.connectors["quiet"] = quiet
    sent: list[LocalServer] = []

    class LateBoundIntake:
        async def accept(self, draft):  # type: ignore[no-untyped-def]
            return await sent[0].intake.accept(draft)

    instance.create_tools = lambda store, asks: [MessageTool(LateBoundIntake(), None, None)]  # type: ignore[arg-type]
    async with instance.run() as server:
        sent.append(server)
        nowhere = await add(server, make_schedule(instance, "0 10 * * *", deliver="none"))
        kitchen = await add(server, make_schedule(instance, "0 11 * * *", deliver="channel:quiet:kitchen"))
        itself = await add(server, make_schedule(instance, "0 12 * * *", deliver="person:maria"))
        instance.model.will_reply("An answer without a recipient.")
        await advance_clock_to(server, TEN)
        assert (await ended(server, nowhere, at=TEN)).state is OccurrenceState.RAN
        instance.model.will_reply("Dinner is ready.")
        await advance_clock_to(server, utc("2026-01-05 11:00"))
        await ended(server, kitchen, at=utc("2026-01-05 11:00"))
        instance.model.will_reply(tool_call_reply("message", to="person:maria", text="By hand."), "And as an answer.")
        await advance_clock_to(server, utc("2026-01-05 12:00"))
        assert (await ended(server, itself, at=utc("2026-01-05 12:00"))).state is OccurrenceState.RAN
        await server.wait_until_idle()
        assert quiet.list_texts("kitchen") == ["Dinner is ready."]
        assert [mail.text for mail in await server.list_envelopes_to("maria")] == ["By hand."]
        assert await server.list_envelopes_to("owner") == []
        await assert_ledger_holds(server)


async def test_more_due_occurrences_than_one_commit_releases_are_all_released(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        made = [
            await add(server, make_schedule(instance, OnceTrigger(TEN), to="person:maria", text=f"{n}"))
            for n in range(230)
        ]
        await advance_clock_to(server, TEN)
        await server.wait_for(
            lambda conn: not any(schedules.get_open_occurrence(conn, schedule.id) for schedule in made),
            what="all to be released",
        )
        assert sorted(int(mail.text) for mail in await server.list_envelopes_to("maria")) == list(range(230))
        await assert_ledger_holds(server)


async def test_an_idle_server_with_schedules_makes_no_commits_and_few_reads(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl
) -> None:
    instance = new_instance()
    async with instance.run() as server:
        for n in range(50):
            await add(server, make_schedule(instance, f"{n} 20 * * *"))
        await instance.clock.advance(5)
        begun, looked = len(store_control.commit_points), store_control.scan_count
        await instance.clock.advance(600)
        assert len(store_control.commit_points) == begun  # no commit
        assert store_control.scan_count - looked <= 12  # one check a minute, as without schedules


async def test_the_history_of_a_schedule_is_limited_and_drops_the_oldest_occurrences(instance: LocalInstance) -> None:
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 10 * * *"))
        for _ in range(520):
            await write(
                server,
                lambda page: schedules.record_manual_skip(page, get_stored_schedule(page, schedule), because="busy"),
            )
        occurrences = await server.store.scan(lambda conn: schedules.list_history(conn, schedule.id, limit=1000))
        assert 495 <= len(occurrences) <= 501
        assert (await open_occurrence(server, schedule)) is not None  # the waiting one is kept, however old
        assert min(occurrence.seq for occurrence in occurrences if not occurrence.state.is_open) > 20
