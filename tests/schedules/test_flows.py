"""Schedules in a whole house: woken when they should be, once, across stops, zones and clocks that jump."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from contracts.engine_instance import HandledStore, Hands, as_time_goes_by, power_cuts
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
def household(memory_path: Path) -> LocalInstance:
    return LocalInstance(memory_path)


def found(page: Transaction, schedule: Schedule) -> schedules.StoredSchedule:
    kept = schedules.get(page.conn, schedule.id)
    assert kept is not None
    return kept


async def states(house: LocalServer, schedule: Schedule) -> list[tuple[datetime, OccurrenceState]]:
    return [(slot.at, slot.state) for slot in await history(house, schedule)]


@pytest.mark.spec("H25", "H26", "C72")
async def test_a_schedule_has_one_envelope_in_the_future_and_gets_the_next_with_the_end_of_that_one(
    any_household: LocalInstance,
) -> None:
    household = any_household
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *"))
        assert await pending(house, schedule) == [TEN]

        household.model.will_reply("Done.")
        await turn_to(house, TEN)
        slot = await ended(house, schedule, at=TEN)

        assert (slot.state, slot.cause) == (OccurrenceState.RAN, OccurrenceCause.CLOCK)
        assert await pending(house, schedule) == [utc("2026-01-06 10:00")]
        assert [mail.text for mail in await house.list_envelopes_to("owner")] == ["Done."]
        assert (await standing(house, schedule)).last_run_at == TEN
        await holds(house)


async def standing(house: LocalServer, schedule: Schedule) -> schedules.ScheduleStatus:
    known = await kept(house, schedule)
    return await house.store.scan(lambda conn: schedules.get_status(conn, known))


@pytest.mark.spec("C72")
async def test_once_every_and_cron_come_at_their_times_and_once_is_over_then(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        once = await add(house, a_schedule(household, OnceTrigger(TEN)))
        every = await add(house, a_schedule(household, EveryTrigger(1800, utc("2026-01-05 09:00"))))
        assert await pending(house, every) == [utc("2026-01-05 09:30")]
        await turn_to(house, utc("2026-01-05 09:30"))
        await ended(house, every, at=utc("2026-01-05 09:30"))
        await turn_to(house, TEN)
        await ended(house, every, at=TEN)
        await ended(house, once, at=TEN)

        assert await pending(house, once) == []
        over = await kept(house, once)
        assert (over.enabled, over.because) == (False, "it was to occur once, and its time has passed")
        assert await pending(house, every) == [utc("2026-01-05 10:30")]
        await holds(house)


# --- stops ---


@pytest.mark.spec("H27", "C73")
async def test_slots_that_went_by_while_the_house_was_closed_are_skipped_and_say_so(
    any_household: LocalInstance,
) -> None:
    household = any_household
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *"))
    household.clock.jump(timedelta(hours=5, minutes=30))

    async with household.run() as house:
        await ended(house, schedule, at=TEN)

        first, others = await history(house, schedule)
        assert first.state is others.state is OccurrenceState.SKIPPED
        assert "the server was not running" in first.because and "the server was not running" in others.because
        assert (others.at, others.until, others.count) == (utc("2026-01-05 11:00"), utc("2026-01-05 15:00"), 4)
        assert await pending(house, schedule) == [utc("2026-01-05 15:00")]
        assert household.model.prompts == []
        await holds(house)


@pytest.mark.spec("C73")
async def test_a_schedule_that_is_to_run_late_runs_once_for_all_that_it_missed(household: LocalInstance) -> None:
    household.model.will_reply("Late.")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *", missed=MissedPolicy.RUN))
    household.clock.jump(timedelta(hours=5, minutes=30))

    async with household.run() as house:
        ran = await ended(house, schedule, at=TEN)
        assert ran.state is OccurrenceState.RAN
        [_, others] = await history(house, schedule)
        assert (others.state, others.because) == (
            OccurrenceState.SKIPPED,
            "its time had passed when the server processed it",
        )
        assert (others.at, others.count) == (utc("2026-01-05 11:00"), 4)
        assert len(household.model.prompts) == 1


async def test_a_slot_that_is_a_few_seconds_late_was_not_missed(household: LocalInstance) -> None:
    household.model.will_reply("Just in time.")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *"))
    household.clock.jump(timedelta(hours=1, seconds=20))
    async with household.run() as house:
        assert (await ended(house, schedule, at=TEN)).state is OccurrenceState.RAN


@pytest.mark.spec("C73")
async def test_a_run_that_a_crash_cut_off_is_taken_up_and_its_slot_is_not_run_again(household: LocalInstance) -> None:
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *"))
        household.model.will_reply(ScriptedReply(text="never said", after_s=3600))
        await turn_to(house, TEN)
        await house.wait_for(
            lambda conn: (
                (slot := schedules.get_open_occurrence(conn, schedule.id)) and slot.state is OccurrenceState.WORKING
            ),
            what="the slot to be worked on",
        )
        await house.wait_for(lambda conn: len(household.model.prompts) == 1, what="the model to be asked")
        house.crash()

    household.model.will_reply("After the crash.")
    async with household.run() as house:
        assert (await ended(house, schedule, at=TEN)).state is OccurrenceState.RAN
        assert await states(house, schedule) == [(TEN, OccurrenceState.RAN)]
        assert await pending(house, schedule) == [utc("2026-01-06 10:00")]
        await holds(house)


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def new_household(tmp_path: Path, hands: Hands) -> Callable[[], LocalInstance]:
    made: list[Path] = []

    def new() -> LocalInstance:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(root)
        household = LocalInstance(root, wrap_store=lambda store: HandledStore(store, hands))
        household.model.rule = lambda prompt: text_reply("ok")
        return household

    return new


@pytest.mark.spec("H26", "H32", "C73")
async def test_wherever_the_power_is_cut_a_slot_is_run_once_and_the_next_is_there(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    id_ = ScheduleId("5" * 32)

    async def story(house: LocalServer) -> None:
        household = house.instance
        schedule = replace(a_schedule(household, "0 10 * * *"), id=id_)
        if await house.store.read(lambda conn: schedules.get(conn, id_)) is None:
            await add(house, schedule)
        if household.clock.now() < TEN:
            await turn_to(house, TEN)
        await ended(house, schedule, at=TEN)

    async for house in power_cuts(new_household, hands, story):
        schedule = replace(a_schedule(house.instance, "0 10 * * *"), id=id_)
        assert await states(house, schedule) == [(TEN, OccurrenceState.RAN)]
        assert await pending(house, schedule) == [utc("2026-01-06 10:00")]
        assert len([mail for mail in await house.list_envelopes_to("owner") if mail.text == "ok"]) == 1
        await holds(house)


# --- zones and clocks ---


@pytest.mark.spec("H29")
async def test_a_schedule_without_a_zone_goes_with_the_owner_and_one_with_a_zone_stays(
    household: LocalInstance,
) -> None:
    household.zone = ZoneInfo("Europe/Berlin")
    async with household.run() as house:
        mine = await add(house, a_schedule(household, "0 18 * * *"))
        theirs = await add(house, a_schedule(household, "0 18 * * *", zone="Asia/Tokyo"))
        assert await pending(house, mine) == [utc("2026-01-05 17:00")]
        assert await pending(house, theirs) == [utc("2026-01-06 09:00")]

    household.zone = ZoneInfo("America/New_York")
    async with household.run() as house:
        assert await pending(house, mine) == [utc("2026-01-05 23:00")]
        assert await pending(house, theirs) == [utc("2026-01-06 09:00")]
        assert await states(house, mine) == []  # what was planned and is planned anew was never skipped
        [taken_back] = await house.execute_sql("SELECT because FROM outcomes")
        assert taken_back.because == "the owner's time zone is now America/New_York"
        await holds(house)


@pytest.mark.spec("C73")
@pytest.mark.parametrize(
    ("start", "slots"),
    [
        ("2026-03-28 00:00", ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]),  # 02:30 is skipped once
        ("2026-10-24 00:00", ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]),  # 02:30 is shown twice
    ],
)
async def test_through_a_change_of_the_clocks_each_day_has_one_run(
    tmp_path: Path, start: str, slots: list[str]
) -> None:
    from retinue.testing.fake_clock import FakeClock

    household = LocalInstance(tmp_path, clock=FakeClock(utc(start)), zone=ZoneInfo("Europe/Berlin"))
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "30 2 * * *"))
        for slot in map(utc, slots):
            assert await pending(house, schedule) == [slot]
            await turn_to(house, slot)
            await ended(house, schedule, at=slot)
        assert await states(house, schedule) == [(utc(slot), OccurrenceState.RAN) for slot in slots]


@pytest.mark.spec("C73")
async def test_a_wall_clock_that_jumps_runs_nothing_twice_and_loses_no_slot_without_a_word(
    household: LocalInstance,
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *"))
        await turn_to(house, TEN)
        await ended(house, schedule, at=TEN)
        household.clock.jump(timedelta(hours=-3))  # back to 07:00: the house's time stays
        await household.clock.advance(120)
        assert await states(house, schedule) == [(TEN, OccurrenceState.RAN)]
        household.clock.jump(timedelta(hours=7))  # to 14:02
        await household.clock.advance(61)
        await ended(house, schedule, at=utc("2026-01-05 11:00"))
        skipped = (await history(house, schedule))[1:]
        assert [slot.state for slot in skipped] == [OccurrenceState.SKIPPED, OccurrenceState.SKIPPED]
        assert (skipped[0].at, skipped[1].at, skipped[1].count) == (
            utc("2026-01-05 11:00"),
            utc("2026-01-05 12:00"),
            3,
        )
        assert await pending(house, schedule) == [utc("2026-01-05 15:00")]


# --- while one is at work ---


@pytest.mark.spec("D40", "C73")
async def test_slots_that_come_while_one_is_at_work_are_skipped_and_the_last_run_is_kept(
    household: LocalInstance,
) -> None:
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, EveryTrigger(600, utc("2026-01-05 09:00"))))
        household.model.will_reply(ScriptedReply(text="Took long.", after_s=1500))
        first = utc("2026-01-05 09:10")
        await turn_to(house, first)
        await house.wait_for(lambda conn: len(household.model.prompts) == 1, what="the model to be asked")
        assert (await pending(house, schedule)) == []  # the one that is worked on is the one there is
        await turn_to(house, utc("2026-01-05 09:35"))
        await ended(house, schedule, at=first)

        [ran, skipped] = await history(house, schedule)
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
        assert await pending(house, schedule) == [utc("2026-01-05 09:40")]
        assert (await standing(house, schedule)).last_run_at == utc("2026-01-05 09:35")
        await holds(house)


@pytest.mark.spec("A63", "C74.manual_run")
async def test_one_by_hand_waits_for_nothing_but_gives_way_to_one_at_work_unless_it_is_forced(
    household: LocalInstance,
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *"))
        await write(house, lambda page: schedules.disable(page, found(page, schedule), because="test"))
        await write(
            house, lambda page: schedules.create_manual_occurrence(page, found(page, schedule), is_forced=False)
        )
        await ended(house, schedule, at=household.clock.now())
        assert [(slot.cause, slot.state) for slot in await history(house, schedule)] == [
            (OccurrenceCause.MANUAL, OccurrenceState.RAN)
        ]
        assert await pending(house, schedule) == []  # it is still disabled

        household.model.script.append(ScriptedReply(text="slow", after_s=600))
        begun = household.clock.now()
        await write(house, lambda page: schedules.create_manual_occurrence(page, found(page, schedule), is_forced=True))
        await house.wait_for(lambda conn: len(household.model.prompts) == 2, what="the model to be asked")
        await household.clock.advance(1)
        await write(
            house, lambda page: schedules.create_manual_occurrence(page, found(page, schedule), is_forced=False)
        )
        skipped = await ended(house, schedule, at=begun + timedelta(seconds=1))
        assert skipped.state is OccurrenceState.SKIPPED and skipped.because.startswith("overlap: the one of ")
        await write(house, lambda page: schedules.create_manual_occurrence(page, found(page, schedule), is_forced=True))
        await household.clock.advance(600)
        await house.wait_for(
            lambda conn: all(not slot.state.is_open for slot in schedules.list_history(conn, schedule.id, limit=10)),
            what="all to end",
        )
        assert [(slot.cause, slot.state) for slot in await history(house, schedule)][1:] == [
            (OccurrenceCause.FORCE, OccurrenceState.RAN),
            (OccurrenceCause.MANUAL, OccurrenceState.SKIPPED),
            (OccurrenceCause.FORCE, OccurrenceState.RAN),
        ]


@pytest.mark.spec("C73")
async def test_a_slot_that_comes_while_one_by_hand_is_at_work_is_skipped(household: LocalInstance) -> None:
    async with household.run(drain_s=0) as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *"))
        household.model.will_reply(ScriptedReply(text="slow", after_s=3000))
        await turn_to(house, utc("2026-01-05 09:30"))
        await write(
            house, lambda page: schedules.create_manual_occurrence(page, found(page, schedule), is_forced=False)
        )
        await house.wait_for(lambda conn: len(household.model.prompts) == 1, what="the model to be asked")
        await turn_to(house, TEN)
        skipped = await ended(house, schedule, at=TEN)
        assert skipped.state is OccurrenceState.SKIPPED and skipped.because.startswith("overlap: ")
        assert await pending(house, schedule) == [utc("2026-01-06 10:00")]


# --- on, off, gone ---


@pytest.mark.spec("H28")
async def test_what_is_disabled_or_deleted_takes_its_occurrence_back_and_enabling_makes_it_anew(
    any_household: LocalInstance,
) -> None:
    household = any_household
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *"))

        async def do(act: Callable[..., object], **kw: object) -> None:
            await write(house, lambda page: act(page, found(page, schedule), **kw))

        await do(schedules.disable, because="for now")
        assert await pending(house, schedule) == []
        assert (await kept(house, schedule)).because == "for now"
        await turn_to(house, utc("2026-01-05 09:30"))
        await do(schedules.enable)
        assert await pending(house, schedule) == [TEN]
        await do(schedules.enable)  # once more: still one
        assert await pending(house, schedule) == [TEN]
        await do(schedules.delete, because="no longer needed")
        assert await pending(house, schedule) == []
        assert await house.store.read(lambda conn: schedules.get(conn, schedule.id)) is None
        await turn_to(house, utc("2026-01-05 10:05"))
        assert household.model.prompts == []
        await holds(house)


@pytest.mark.spec("C74.auto_disable")
async def test_one_whose_agent_was_let_go_is_disabled_and_says_so(household: LocalInstance) -> None:
    household.agents = (*household.agents, Agent(name="bo", model="scripted"))
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *", to="agent:bo"))
        await house.execute_sql("UPDATE agents SET removed_ms = 1 WHERE name = 'bo'")
        await turn_to(house, TEN)
        await ended(house, schedule, at=TEN)
        off = await kept(house, schedule)
        assert (off.enabled, off.because) == (False, "the agent bo was deleted")
        [skipped] = await history(house, schedule)
        assert (skipped.state, skipped.because) == (OccurrenceState.SKIPPED, "the agent bo was deleted")
        await holds(house)


@pytest.mark.spec("H32", "C73")
async def test_a_run_that_fails_does_not_keep_its_schedule_from_going_on(household: LocalInstance) -> None:
    async with household.run() as house:  # the script has no lines: asking fails
        schedule = await add(house, a_schedule(household, "0 10 * * *", delete_after_run=True))
        await turn_to(house, TEN)
        slot = await as_time_goes_by(house, ended(house, schedule, at=TEN))
        assert slot.state is OccurrenceState.FAILED and slot.because
        assert await pending(house, schedule) == [utc("2026-01-06 10:00")]
        [notice] = await house.list_envelopes_to("owner")
        assert notice.text  # nobody waits in vain for what went wrong


@pytest.mark.spec("H32")
async def test_a_delivery_that_fails_does_not_keep_its_schedule_from_going_on(household: LocalInstance) -> None:
    quiet = FakeConnector(household.clock)
    household.connectors["quiet"] = quiet
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *", to="channel:quiet:kitchen"))
        quiet.will_fail(permanent=True)
        await turn_to(house, TEN)
        slot = await ended(house, schedule, at=TEN)
        assert slot.state is OccurrenceState.FAILED
        assert await pending(house, schedule) == [utc("2026-01-06 10:00")]
        await turn_to(house, utc("2026-01-06 10:00"))
        assert (await ended(house, schedule, at=utc("2026-01-06 10:00"))).state is OccurrenceState.RAN
        assert quiet.list_texts("kitchen") == ["Water the plants."]


# --- gates and what is deleted ---


def gate_that(*answers: GateResult) -> Callable[..., object]:
    said = list(answers)

    async def ask(schedule: Schedule, agent: Agent, session: str) -> GateResult:
        return said.pop(0)

    return ask


@pytest.mark.spec("D41", "D48", "A62")
async def test_a_gate_decides_before_a_token_is_spent_and_only_what_ran_is_deleted_after_it(
    household: LocalInstance,
) -> None:
    household.run_gate = gate_that(  # type: ignore[assignment]
        GateResult(is_open=False, because="gate: exit 1"), GateResult(is_open=True, output="3 new letters")
    )
    household.model.will_reply("Read them.")
    async with household.run() as house:
        schedule = await add(
            house, a_schedule(household, "0 * * * *", gate=ScheduleGate(command="test"), delete_after_run=True)
        )
        await turn_to(house, TEN)
        skipped = await ended(house, schedule, at=TEN)
        assert (skipped.state, skipped.because) == (OccurrenceState.SKIPPED, "gate: exit 1")
        assert household.model.prompts == []
        assert (await kept(house, schedule)).enabled

        await turn_to(house, utc("2026-01-05 11:00"))
        await house.wait_for(lambda conn: schedules.get(conn, schedule.id) is None, what="the schedule to be deleted")
        [prompt] = household.model.prompts
        words = "\n".join(r.body.text for r in prompt.records if isinstance(r.body, UserTurn))
        assert "Water the plants.\n\n[Gate output]\n3 new letters" not in words  # untrusted: a record of its own
        assert "Water the plants." in words and "3 new letters" in words


async def test_a_gate_that_was_being_asked_when_the_house_stopped_is_asked_again(household: LocalInstance) -> None:
    household.run_gate = gate_that()  # type: ignore[assignment]
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *", gate=ScheduleGate(command="test")))
        await house.execute_sql("UPDATE schedule_slots SET clock_ms = NULL")  # as it is while a gate is asked
    household.run_gate = gate_that(GateResult(is_open=True))  # type: ignore[assignment]
    household.model.will_reply("Done.")
    async with household.run() as house:
        await turn_to(house, TEN)
        assert (await ended(house, schedule, at=TEN)).state is OccurrenceState.RAN


async def test_a_gate_that_breaks_is_closed(household: LocalInstance) -> None:
    household.run_gate = gate_that()  # type: ignore[assignment]  # it has no answer: it raises
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *", gate=ScheduleGate(command="test")))
        await turn_to(house, TEN)
        slot = await ended(house, schedule, at=TEN)
        assert (slot.state, slot.because) == (OccurrenceState.SKIPPED, "its gate failed: IndexError")


# --- where it is worked on, and who hears ---


@pytest.mark.spec("D39", "A63")
async def test_it_is_worked_on_in_a_conversation_of_its_own_which_is_as_the_schedule_says_now(
    household: LocalInstance,
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        schedule = await add(
            house, a_schedule(household, "0 * * * *", title="Garden", attributes={"core": {"mood": "calm"}})
        )
        await turn_to(house, TEN)
        slot = await ended(house, schedule, at=TEN)
        session = await house.get_session((await house.get_envelope(slot.envelope or "")).session)
        assert (session.origin.kind, session.origin.key) == (OriginKind.SCHEDULE, f"schedule:{schedule.id}")
        assert (session.name, session.attributes) == ("Garden", {"core": {"mood": "calm"}})

        changed = replace(schedule, title="Greenhouse", attributes={"core": {"mood": "brisk"}})
        await write(
            house,
            lambda page: schedules.change(page, found(page, schedule), changed, zone=household.zone, because="test"),
        )
        await turn_to(house, utc("2026-01-05 11:00"))
        await ended(house, schedule, at=utc("2026-01-05 11:00"))
        same = await house.get_session(session.id)
        assert (same.name, same.attributes) == ("Greenhouse", {"core": {"mood": "brisk"}})


@pytest.mark.parametrize(("place", "turns"), [(ScheduleSession.FRESH, 1), (ScheduleSession.OWN, 2)])
async def test_a_fresh_one_begins_anew_each_time_and_one_of_its_own_remembers(
    household: LocalInstance, place: ScheduleSession, turns: int
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *", place=place))
        for slot in (TEN, utc("2026-01-05 11:00")):
            await turn_to(house, slot)
            await ended(house, schedule, at=slot)
        read = [record for record in household.model.prompts[-1].records if isinstance(record.body, UserTurn)]
        assert len(read) == turns


@pytest.mark.spec("D39", "C72")
async def test_it_goes_into_the_main_conversation_or_a_named_one_where_that_is_asked_for(
    household: LocalInstance,
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        receipt = await house.send("Hello.", sender="person:owner", origin=terminal_origin("owner"))
        await house.wait_for_outcome(receipt.envelope)
        main = await add(house, a_schedule(household, "0 10 * * *", place=ScheduleSession.MAIN))
        named = await add(house, a_schedule(household, "0 10 * * *", to=f"agent:ada/{receipt.session}"))
        await turn_to(house, TEN)
        for schedule in (main, named):
            slot = await ended(house, schedule, at=TEN)
            envelope = await house.get_envelope(slot.envelope or "")
            assert envelope.session == receipt.session
        words = [r.body.text for r in await house.list_records(receipt.session) if isinstance(r.body, UserTurn)]
        assert any('<system_message origin="schedule:' in text for text in words)  # main: not as if the owner spoke
        assert [mail.text for mail in await house.list_envelopes_to("owner")] == ["ok", "ok", "ok"]


@pytest.mark.spec("C72")
async def test_the_answer_goes_where_it_is_to_go_and_not_twice_to_whom_the_run_wrote_itself(
    household: LocalInstance,
) -> None:
    from retinue.tools.message_tool import MessageTool

    quiet = FakeConnector(household.clock)
    household.connectors["quiet"] = quiet
    sent: list[LocalServer] = []

    class Post:
        async def accept(self, draft):  # type: ignore[no-untyped-def]
            return await sent[0].intake.accept(draft)

    household.create_tools = lambda store, asks: [MessageTool(Post(), None, None)]  # type: ignore[arg-type]
    async with household.run() as house:
        sent.append(house)
        nowhere = await add(house, a_schedule(household, "0 10 * * *", deliver="none"))
        kitchen = await add(house, a_schedule(household, "0 11 * * *", deliver="channel:quiet:kitchen"))
        itself = await add(house, a_schedule(household, "0 12 * * *", deliver="person:maria"))
        household.model.will_reply("Said to nobody.")
        await turn_to(house, TEN)
        assert (await ended(house, nowhere, at=TEN)).state is OccurrenceState.RAN
        household.model.will_reply("Dinner is ready.")
        await turn_to(house, utc("2026-01-05 11:00"))
        await ended(house, kitchen, at=utc("2026-01-05 11:00"))
        household.model.will_reply(tool_call_reply("message", to="person:maria", text="By hand."), "And as an answer.")
        await turn_to(house, utc("2026-01-05 12:00"))
        assert (await ended(house, itself, at=utc("2026-01-05 12:00"))).state is OccurrenceState.RAN
        await house.wait_until_idle()
        assert quiet.list_texts("kitchen") == ["Dinner is ready."]
        assert [mail.text for mail in await house.list_envelopes_to("maria")] == ["By hand."]
        assert await house.list_envelopes_to("owner") == []
        await holds(house)


async def test_more_that_is_due_in_one_second_than_a_commit_lets_go_is_all_let_go(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        made = [
            await add(house, a_schedule(household, OnceTrigger(TEN), to="person:maria", text=f"{n}"))
            for n in range(230)
        ]
        await turn_to(house, TEN)
        await house.wait_for(
            lambda conn: not any(schedules.get_open_occurrence(conn, schedule.id) for schedule in made),
            what="all to be let go",
        )
        assert sorted(int(mail.text) for mail in await house.list_envelopes_to("maria")) == list(range(230))
        await holds(house)


async def test_an_idle_house_with_schedules_looks_no_more_often_than_one_without(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    household = new_household()
    async with household.run() as house:
        for n in range(50):
            await add(house, a_schedule(household, f"{n} 20 * * *"))
        await household.clock.advance(5)
        begun, looked = len(hands.points), hands.looks
        await household.clock.advance(600)
        assert len(hands.points) == begun  # not one commit
        assert hands.looks - looked <= 12  # a look a minute, as without any


async def test_the_history_is_bounded_and_what_is_left_out_is_the_oldest(household: LocalInstance) -> None:
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 10 * * *"))
        for _ in range(520):
            await write(
                house,
                lambda page: schedules.record_manual_skip(page, found(page, schedule), because="busy"),
            )
        told = await house.store.scan(lambda conn: schedules.list_history(conn, schedule.id, limit=1000))
        assert 495 <= len(told) <= 501
        assert (await waiting(house, schedule)) is not None  # however old, what waits is kept
        assert min(slot.seq for slot in told if not slot.state.is_open) > 20
