"""`retinue rehearse`: what would come, in the house as it is, and with nothing of it touched."""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import json
import os
import signal
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cli.server_process import HouseProcess, command, environment
from schedules.schedule_instance import EveryTrigger, OnceTrigger, a_schedule, add, ended, turn_to, utc

from retinue.agents.agent_directory import ensure_agent_directory
from retinue.config import Settings
from retinue.config.models import ModelEntry, ModelRoutingSettings
from retinue.domain.agent import Agent, HeartbeatRules
from retinue.domain.errors import RetinueError
from retinue.domain.ids import SessionId
from retinue.domain.record import Usage
from retinue.domain.schedule import (
    OCCURRENCES_KEPT_MAX,
    GateResult,
    MissedPolicy,
    Schedule,
    ScheduleGate,
    ScheduleKind,
    ScheduleSession,
)
from retinue.domain.structs import replace as with_changed
from retinue.domain.trust import Trust
from retinue.dry_run import copied_server
from retinue.dry_run.cancellation import DryRunCancelled, SignalRecorder
from retinue.dry_run.dry_run import run_dry_run
from retinue.dry_run.estimates import ASSUMED_INPUT_TOKENS, ASSUMED_OUTPUT_TOKENS
from retinue.dry_run.parameters import DryRunRequest
from retinue.dry_run.report_types import DryRunReport, ScheduleSummary, SkipKind
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.store.maintenance.backup import STORE
from retinue.testing.fake_clock import START, FakeClock
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply
from retinue.testing.virtual_time import simulate
from retinue.testing.wait_conditions import wait_until_sync

PRICED = ModelRoutingSettings(entries={"anthropic/scripted": ModelEntry(input_usd=3.0, output_usd=15.0)})
ASSUMED_MICROUSD = 3 * ASSUMED_INPUT_TOKENS + 15 * ASSUMED_OUTPUT_TOKENS
ADA = Agent(name="ada", model="scripted")


def settings_of(household: LocalInstance, **kw: Any) -> Settings:
    kw = {"home": household.root, "store": household.root / STORE, "zone": household.zone, "models": PRICED} | kw
    return Settings(**kw)


async def rehearsed(
    household: LocalInstance, *, now: datetime | None = None, settings: Settings | None = None, **kw: Any
) -> DryRunReport:
    """Rehearse a house that is closed, from when its clock stands. In a thread: a rehearsal has loops of its own."""
    play = partial(run_dry_run, now=now or household.clock.now(), environment={})
    return await asyncio.to_thread(play, DryRunRequest(**kw), settings or settings_of(household))


async def closed(tmp_path: Path, *schedules: tuple[Any, dict[str, Any]], **kw: Any) -> LocalInstance:
    """A house with these schedules, which was opened once and closed."""
    household = LocalInstance(tmp_path / "home", agents=kw.pop("agents", (ADA,)), **kw)
    household.root.mkdir()
    async with household.run() as house:
        for number, (when, fields) in enumerate(schedules):
            await add(house, a_schedule(household, when, **({"name": f"s{number}"} | fields)))
    return household


def of(report: DryRunReport, name: str) -> ScheduleSummary:
    [found] = [each for each in report.schedules if each.name == name]
    return found


def began(report: DryRunReport) -> list[str]:
    return [run.began for run in report.runs]


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its bytes, and every folder. The lock names whoever held it last."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "-"
        for path in sorted(folder.rglob("*"))
        if path.name != "lock" and not path.is_socket()
    }


def rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("select name from sqlite_master where type = 'table' order by name")]
        return {name: sorted(db.execute(f'select * from "{name}"'), key=repr) for name in names}


# --- time ---


async def test_every_slot_of_the_coming_days_runs_and_is_told(tmp_path: Path) -> None:
    household = await closed(
        tmp_path, ("0 12 * * *", {"name": "daily"}), (EveryTrigger(43_200, START), {"name": "twice"})
    )

    report = await rehearsed(household, days=7)

    daily, twice = of(report, "daily"), of(report, "twice")
    assert (daily.sums.runs, twice.sums.runs, report.sums.runs, report.sums.skipped) == (7, 13, 20, 0)
    assert (report.begin, report.until) == ("2026-01-05T09:00:00+00:00", "2026-01-12T09:00:00+00:00")
    told = [run for run in report.runs if run.schedule == "daily"]
    assert [run.at[:10] for run in told] == [f"2026-01-{day:02}" for day in range(5, 12)]
    assert {(run.agent, run.state, len(run.session)) for run in told} == {("ada", "ran", 8)}
    assert [each.name for each in report.by_day] == [f"2026-01-{day:02}" for day in range(5, 12)]


async def test_thirty_days_end_at_the_same_time_of_day_where_the_clocks_are_changed(tmp_path: Path) -> None:
    """On 29 March 2026 there is no 02:30 in Berlin: it comes as soon as the clock goes on."""
    household = await closed(
        tmp_path,
        ("30 2 * * *", {"name": "night"}),
        zone=ZoneInfo("Europe/Berlin"),
        clock=FakeClock(utc("2026-03-27 12:00")),
    )

    report = await rehearsed(household, days=4)

    assert began(report) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]
    assert (report.begin[11:], report.until[11:]) == ("13:00:00+01:00", "13:00:00+02:00")


async def test_an_hour_that_comes_twice_has_one_run(tmp_path: Path) -> None:
    household = await closed(
        tmp_path,
        ("30 2 * * *", {}),
        zone=ZoneInfo("Europe/Berlin"),
        clock=FakeClock(utc("2026-10-24 12:00")),
    )
    assert began(await rehearsed(household, days=2)) == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]


async def test_it_may_begin_later_and_what_comes_before_is_not_missed(tmp_path: Path) -> None:
    household = await closed(
        tmp_path, ("0 12 * * *", {"name": "noon"}), (OnceTrigger(utc("2026-01-06 12:00")), {"name": "once"})
    )

    report = await rehearsed(household, days=2, begin="2026-01-10 00:00")

    assert began(report) == ["2026-01-10T12:00:00+00:00", "2026-01-11T12:00:00+00:00"]
    assert report.skips == []
    assert [each.schedule for each in report.never] == ["once"]


# --- skips ---


async def test_what_is_still_at_work_is_not_begun_again(tmp_path: Path) -> None:
    """Every ten minutes, and each run takes 25: of three slots one runs."""
    household = await closed(tmp_path, ("*/10 * * * *", {}))

    report = await rehearsed(household, days=1, run_takes="25m")

    assert began(report)[:3] == [f"2026-01-05T{at}:00+00:00" for at in ("09:10", "09:40", "10:10")]
    assert (report.sums.runs, report.runs[-1].state) == (48, "working")
    assert report.sums.skipped == 47 * 2
    assert {(skip.kind, skip.times) for skip in report.skips} == {(SkipKind.OVERLAP, 2)}
    assert report.skips[0].because == "the previous occurrence was still running"

    quick = await rehearsed(household, days=1, run_takes="5m")
    assert (quick.sums.runs, quick.sums.skipped) == (143, 0)


async def test_a_slot_that_went_by_while_the_house_was_closed_is_missed(tmp_path: Path) -> None:
    household = await closed(
        tmp_path, ("0 10 * * *", {"name": "skips"}), ("0 10 * * *", {"name": "runs", "missed": MissedPolicy.RUN})
    )

    report = await rehearsed(household, days=1, now=utc("2026-01-05 13:00"))

    [skip] = report.skips
    assert (skip.schedule, skip.kind, skip.at) == ("skips", SkipKind.MISSED, "2026-01-05T10:00:00+00:00")
    assert "3 hours" in skip.because
    assert [(run.schedule, run.began[11:16]) for run in report.runs if run.began < "2026-01-06"] == [("runs", "13:00")]


async def test_who_is_disabled_or_comes_later_is_told(tmp_path: Path) -> None:
    household = await closed(tmp_path, ("0 0 1 6 *", {"name": "june"}), ("0 9 * * *", {"name": "daily"}))
    report = await rehearsed(household, days=3)
    assert [(each.schedule, each.because) for each in report.never] == [
        ("june", "its next occurrence is at 2026-06-01T00:00:00+00:00")
    ]


async def test_runs_that_wait_for_a_seat_are_told(tmp_path: Path) -> None:
    """The house has two seats for schedules: of six that come at once and take two minutes each, four wait."""
    household = await closed(tmp_path, *[("0 12 * * *", {}) for _ in range(6)])
    report = await rehearsed(household, days=1, run_takes="2m")
    assert sorted(run.began[11:16] for run in report.runs) == ["12:00", "12:00", "12:02", "12:02", "12:04", "12:04"]
    assert (report.held_up.runs, report.held_up.longest_s) == (4, 240)
    assert [(each.at[11:16], each.runs) for each in report.busiest] == [("12:00", 2)]


async def test_one_conversation_takes_one_after_the_other(tmp_path: Path) -> None:
    """All are for the conversation that the owner last had with the agent."""
    household = await closed(
        tmp_path, *[(f"{minute} 12 * * *", {"place": ScheduleSession.MAIN}) for minute in (0, 1, 2)]
    )
    report = await rehearsed(household, days=1, run_takes="5m")
    assert [(run.at[11:16], run.began[11:16]) for run in report.runs] == [
        ("12:00", "12:00"),
        ("12:01", "12:05"),
        ("12:02", "12:10"),
    ]
    assert len({run.session for run in report.runs}) == 1


# --- what it costs ---


async def test_without_experience_a_run_costs_what_is_assumed(tmp_path: Path) -> None:
    household = await closed(tmp_path, ("0 12 * * *", {}))

    report = await rehearsed(household, days=10)

    assert ASSUMED_MICROUSD == 3 * 8_000 + 15 * 500 == 31_500
    assert {run.cost_microusd for run in report.runs} == {31_500}
    assert (report.sums.runs, report.sums.cost_microusd) == (10, 315_000)
    assert report.schedules[0].model == "anthropic/scripted"
    assert report.schedules[0].estimated.startswith("assumed: 8,000 input tokens, 500 output tokens")


async def test_with_experience_a_run_is_as_the_last_ones_were(tmp_path: Path) -> None:
    """The medians of three real runs: 2,000 tokens read and 200 written, in 40 seconds."""
    household = LocalInstance(tmp_path / "home", agents=(ADA,))
    household.root.mkdir()
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *", name="hourly"))
        for hour, (read, written, seconds) in enumerate(
            [(1_000, 900, 10), (2_000, 200, 40), (9_000, 100, 50)], start=10
        ):
            usage = Usage(input_tokens=read, output_tokens=written)
            household.model.will_reply(text_reply("done", usage=usage, after_s=seconds))
            at = datetime(2026, 1, 5, hour, tzinfo=UTC)
            await turn_to(house, at)
            await house.wait_for(lambda conn: not household.model.script, what="the model to be asked")
            await turn_to(house, at + timedelta(minutes=1))
            await ended(house, schedule, at=at)

    report = await rehearsed(household, days=1)

    [run, *_] = report.runs
    assert (run.input_tokens, run.output_tokens, run.cost_microusd) == (2_000, 200, 3 * 2_000 + 15 * 200)
    assert datetime.fromisoformat(run.ended or "") - datetime.fromisoformat(run.began) == timedelta(seconds=40)
    assert of(report, "hourly").estimated == "the median of its last 3 runs"


async def test_a_price_that_nobody_knows_is_not_nothing(tmp_path: Path) -> None:
    household = await closed(tmp_path, ("0 12 * * *", {}))
    report = await rehearsed(household, days=2, settings=settings_of(household, models=ModelRoutingSettings()))
    assert [run.cost_microusd for run in report.runs] == [None, None]
    assert (report.sums.cost_microusd, report.sums.unpriced) == (0, 2)


async def test_the_day_on_which_a_budget_refuses_is_told(tmp_path: Path) -> None:
    """Six runs of 31,500 a day, and 100,000 may be spent: three fit."""
    capped = with_changed(ADA, day_microusd_max=100_000)
    household = await closed(tmp_path, ("0 */4 * * *", {}), agents=(capped,), clock=FakeClock(utc("2026-01-05 23:00")))

    report = await rehearsed(household, days=3)

    [budget] = report.budgets
    assert (budget.what, budget.whose, budget.cap_microusd) == ("agent's day", "ada", 100_000)
    assert (budget.most_microusd, budget.refused, budget.first_refused) == (94_500, 9, "2026-01-06T12:00:00+00:00")
    assert (report.sums.runs, report.sums.failed) == (18, 9)
    assert report.sums.cost_microusd == 9 * 31_500
    assert "the budget of agent 'ada' for today is spent" in next(run.because for run in report.runs if run.because)


async def test_without_a_cap_no_budget_refuses(tmp_path: Path) -> None:
    household = await closed(tmp_path, ("0 */4 * * *", {}), clock=FakeClock(utc("2026-01-05 23:00")))
    report = await rehearsed(household, days=3)
    assert (report.budgets, report.sums.failed) == ([], 0)


# --- what is left alone ---


async def test_a_closed_house_is_as_it_was_and_so_is_the_owners_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    worker = with_changed(ADA, workspace=str(elsewhere / "work"))
    household = await closed(
        tmp_path,
        ("0 * * * *", {}),
        ("30 * * * *", {"place": ScheduleSession.MAIN}),
        ("15 * * * *", {"to": "person:maria"}),
        agents=(worker,),
    )
    (ensure_agent_directory(household.root, "ada") / "note.txt").write_text("mine")
    before = snapshot(household.root)

    report = await rehearsed(household, days=2)

    assert report.sums.runs == 47 + 48 + 48
    assert snapshot(household.root) == before
    assert not elsewhere.exists()


async def test_nobody_is_written_to(tmp_path: Path) -> None:
    """A word to a person and one into a channel end as in the house; there is no connector, and nobody hears."""
    household = await closed(
        tmp_path,
        ("0 12 * * *", {"to": "channel:telegram:42", "name": "room"}),
        ("0 12 * * *", {"to": "person:maria", "kind": ScheduleKind.REMINDER, "name": "word"}),
    )
    report = await rehearsed(household, days=2)
    assert {(run.schedule, run.state, run.agent, run.cost_microusd) for run in report.runs} == {
        ("room", "ran", "", 0),
        ("word", "ran", "", 0),
    }
    assert report.sums.runs == 4


async def test_what_is_under_way_is_left_out_and_its_schedule_goes_on(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path / "home", agents=(ADA,))
    household.root.mkdir()
    async with household.run() as house:
        await add(house, a_schedule(household, "0 * * * *", name="hourly"))
        household.model.will_reply(text_reply("never", after_s=7_200))
        await turn_to(house, utc("2026-01-05 10:00"))
        await house.wait_for(lambda conn: bool(household.model.prompts), what="the model to be asked")
        house.crash()

    report = await rehearsed(household, days=1)

    assert report.left_out == 1
    assert (report.sums.runs, report.runs[0].began[11:16]) == (23, "11:00")


async def test_two_rehearsals_with_one_seed_are_the_same(tmp_path: Path) -> None:
    household = await closed(tmp_path, *[("0 * * * *", {}) for _ in range(5)])

    async def told(seed: int) -> bytes:
        report = await rehearsed(household, days=1, run_takes="7m", seed=seed)
        return msgspec.json.encode(msgspec.structs.replace(report, took_s=0.0))

    assert await told(3) == await told(3)
    assert await told(3) != await told(4)


async def test_a_file_that_a_closed_house_has_not_read_yet_is_rehearsed(tmp_path: Path) -> None:
    household = await closed(tmp_path, ("0 9 * * *", {}))
    folder = household.root / "schedules"
    folder.mkdir()
    (folder / "noon.md").write_text(
        f"---\nid: {household.ids.new()}\ncron: 0 12 * * *\nto: agent:ada\n---\nLook out.\n"
    )
    (folder / "wrong.md").write_text(
        f"---\nid: {household.ids.new()}\ncron: every now and then\nto: agent:ada\n---\nLook out.\n"
    )
    before = snapshot(household.root)

    report = await rehearsed(household, days=2)

    assert of(report, "noon").sums.runs == 2
    assert [note.split(":")[0] for note in report.notes] == ["wrong.md"]
    assert snapshot(household.root) == before


# --- heartbeats ---


async def test_a_heartbeat_beats_in_its_hours_and_where_something_is_on_its_checklist(tmp_path: Path) -> None:
    """Every half hour from 09:00:01 on; from 20 to 8 it rests. Nobody else has one."""
    beating = with_changed(ADA, heartbeat=HeartbeatRules(every_s=1_800, active_start="08:00", active_end="20:00"))
    idle = with_changed(beating, name="bob")
    household = await closed(tmp_path, agents=(beating, idle))
    (ensure_agent_directory(household.root, "ada") / "HEARTBEAT.md").write_text("- Look after the plants.\n")
    (ensure_agent_directory(household.root, "bob") / "HEARTBEAT.md").write_text("# Nothing yet\n")
    before = snapshot(household.root)

    report = await rehearsed(household, days=1)

    ada, bob = of(report, "heartbeat of ada"), of(report, "heartbeat of bob")
    assert (ada.sums.runs, ada.sums.skipped) == (22 + 2, 24)
    assert {skip.kind for skip in report.skips if skip.schedule == ada.name} == {SkipKind.HOURS}
    assert (bob.sums.runs, bob.sums.skipped, bob.sums.cost_microusd) == (0, 48, 0)
    assert {skip.kind for skip in report.skips if skip.schedule == bob.name} == {SkipKind.HOURS, SkipKind.EMPTY}
    assert report.runs[0].began == "2026-01-05T09:00:01+00:00"
    assert snapshot(household.root) == before


# --- gates ---


def gated(text: str, **kw: Any) -> dict[str, Any]:
    return {"gate": ScheduleGate(command=text, **kw), "trust": Trust.OWNER}


async def test_gates_are_taken_as_open_and_their_history_is_told(tmp_path: Path) -> None:
    async def says_no(schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
        return GateResult(is_open=False, because="gate: exit 1")

    household = LocalInstance(tmp_path / "home", agents=(ADA,), run_gate=says_no)
    household.root.mkdir()
    async with household.run() as house:
        schedule = await add(house, a_schedule(household, "0 * * * *", name="gated", **gated("touch was-here")))
        for hour in (10, 11):
            at = datetime(2026, 1, 5, hour, tzinfo=UTC)
            await turn_to(house, at)
            await ended(house, schedule, at=at)

    report = await rehearsed(household, days=1)

    told = of(report, "gated")
    assert told.gate is not None
    assert (told.gate.taken, told.gate.was_open, told.gate.was_closed) == ("assumed open", 0, 2)
    assert told.sums.runs == 23
    assert not list(tmp_path.rglob("was-here"))


async def test_gates_are_asked_once_in_a_copy_of_the_home_if_wanted(tmp_path: Path) -> None:
    probe = await BubblewrapSandbox(folder=tmp_path / "probe", user_home=tmp_path).probe()
    if not probe.works:
        pytest.skip(f"no sandbox here: {probe.because}")
    household = await closed(
        tmp_path,
        ("0 * * * *", {"name": "open", **gated("cat ready && touch was-here")}),
        ("0 * * * *", {"name": "closed", **gated("test -e not-there")}),
        ("0 * * * *", {"name": "far", **gated("true", domains=("example.org",))}),
    )
    (ensure_agent_directory(household.root, "ada") / "ready").write_text("yes")
    before = snapshot(household.root)

    report = await rehearsed(household, days=1, gates=True)

    taken = {each.name: each.gate.taken for each in report.schedules if each.gate is not None}
    assert taken == {
        "open": "run once: open",
        "closed": "run once: closed (gate: exit 1)",
        "far": "assumed open: it uses the network",
    }
    assert (of(report, "open").sums.runs, of(report, "far").sums.runs) == (23, 23)
    assert (of(report, "closed").sums.runs, of(report, "closed").sums.skipped) == (0, 23)
    assert {skip.kind for skip in report.skips} == {SkipKind.GATE}
    assert snapshot(household.root) == before


# --- bounds ---


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"days": 0}, "dry_run.days_invalid"),
        ({"days": 367}, "dry_run.days_invalid"),
        ({"begin": "2026-01-04 00:00"}, "dry_run.start_invalid"),
        ({"begin": "2028-01-04 00:00"}, "dry_run.start_invalid"),
        ({"begin": "soon"}, "time.invalid"),
        ({"run_takes": "soon"}, "schedule.duration_invalid"),
        ({"run_takes": "2d"}, "dry_run.run_takes_invalid"),
    ],
)
async def test_what_cannot_be_rehearsed_is_refused(tmp_path: Path, asked: dict[str, Any], code: str) -> None:
    household = await closed(tmp_path)
    with pytest.raises(RetinueError) as refused:
        await rehearsed(household, **asked)
    assert (refused.value.code, bool(refused.value.because), bool(refused.value.try_this)) == (code, True, True)


async def test_a_rehearsal_has_so_many_runs_and_says_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    household = await closed(tmp_path, ("* * * * *", {}))
    monkeypatch.setattr(copied_server, "RUNS_MAX", 10)
    report = await rehearsed(household, days=30, run_takes="1s")
    assert report.stopped == "after 10 runs, which is the limit of a dry run"
    assert (report.sums.runs, report.until) == (10, "2026-01-05T09:10:00+00:00")


async def test_a_schedule_that_comes_often_loses_no_slot_of_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The house keeps so many slots of each, and forgets the others; a rehearsal tells of all."""
    household = await closed(tmp_path, ("* * * * *", {}))
    monkeypatch.setattr(copied_server, "RUNS_MAX", OCCURRENCES_KEPT_MAX + 100)
    report = await rehearsed(household, days=2, run_takes="1s", keep=str(tmp_path / "kept"))
    assert report.sums.runs == OCCURRENCES_KEPT_MAX + 100
    assert len(rows(tmp_path / "kept" / STORE)["schedule_slots"]) == OCCURRENCES_KEPT_MAX


async def test_the_copy_is_removed_unless_it_is_to_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    household = await closed(tmp_path, ("0 12 * * *", {}))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    await rehearsed(household, days=1)
    assert list(temporary.iterdir()) == []

    kept = tmp_path / "kept"
    await rehearsed(household, days=1, keep=str(kept))
    assert len(rows(kept / STORE)["runs"]) == 1
    assert kept.stat().st_mode & 0o077 == 0
    with pytest.raises(RetinueError) as refused:
        await rehearsed(household, days=1, keep=str(kept))
    assert refused.value.code == "dry_run.target_exists"


# --- on PostgreSQL ---


async def test_a_house_on_postgres_is_copied_into_a_file_and_rehearsed(tmp_path: Path, postgres_url: str) -> None:
    household = await closed(tmp_path, ("0 */6 * * *", {}), url=postgres_url)
    report = await rehearsed(household, days=2, settings=settings_of(household, store=postgres_url))
    assert (report.sums.runs, report.sums.skipped) == (8, 0)
    async with household.run() as house:
        assert await house.execute_sql("SELECT id FROM runs") == []


# --- the command ---


@contextmanager
def model_server() -> Iterator[tuple[str, list[str]]]:
    """A provider on loopback that writes down who asks it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(500)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def staffed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HouseProcess, list[str]]]:
    """A real house, open, whose agent thinks with a provider on loopback. Its schedules come tomorrow."""
    house = HouseProcess(tmp_path_factory.mktemp("rehearsed") / "home")
    with model_server() as (url, asked):
        house.home.mkdir()
        (house.home / "retinue.toml").write_text(
            f'[house]\nzone = "UTC"\n\n[providers.near]\nurl = "{url}/v1"\nformat = "openai-chat"\n\n'
            '[models.entries."near/small"]\ninput_usd = 3.0\noutput_usd = 15.0\n'
        )
        house.open()
        house.call("agent.register", name="ada", model="near/small")
        soon = datetime.now(UTC) + timedelta(hours=20)
        for name, cron in (("daily", f"0 {soon.hour} * * *"), ("weekly", f"0 {soon.hour} * * {soon.isoweekday() % 7}")):
            house.call("schedule.add", name=name, to="agent:ada", cron=cron, text="Water the plants.")
        wait_until_sync(
            lambda: not [row for row in rows(house.home / STORE)["schedules"] if not row[9]], "each schedule has a time"
        )
        yield house, asked
        house.close()


def test_an_open_house_is_rehearsed_and_nobody_is_asked(staffed: tuple[HouseProcess, list[str]]) -> None:
    house, asked = staffed
    before, files = rows(house.home / STORE), snapshot(house.home / "agents")

    report = house.json("rehearse", "--days", "14")

    assert {each["name"]: each["sums"]["runs"] for each in report["schedules"]} == {"daily": 14, "weekly": 2}
    assert report["sums"]["cost-microusd"] == 16 * 31_500
    assert report["schedules"][0]["model"] == "near/small"
    assert asked == []
    assert rows(house.home / STORE) == before
    assert snapshot(house.home / "agents") == files


def test_what_came_of_it_is_told_in_tables_and_progress_beside_it(staffed: tuple[HouseProcess, list[str]]) -> None:
    house, _ = staffed
    done = house.retinue("rehearse", "--days", "3")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] in ("runs (3):", "runs (4):")
    assert any(line.split()[2:4] == ["daily", "ada"] for line in lines[2:6])
    assert "about $" in lines[-2]
    assert lines[-1].startswith("took ")
    assert lines[-1].endswith("; seed 0")
    assert "dry run: day 3 of 3" in done.stderr


def test_a_refusal_has_a_code_and_a_next_move(staffed: tuple[HouseProcess, list[str]]) -> None:
    house, _ = staffed
    done = house.retinue("rehearse", "--days", "1000", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "dry_run.days_invalid"
    assert done.stderr.splitlines()[-1].startswith("try: ")
    elsewhere = house.retinue("rehearse", env={"RETINUE_URL": "http://127.0.0.1:9"})
    assert (elsewhere.returncode, "[dry_run.remote_server]" in elsewhere.stderr) == (1, True)


def test_a_rehearsal_that_is_broken_off_leaves_nothing_behind(
    staffed: tuple[HouseProcess, list[str]], tmp_path: Path
) -> None:
    house, _ = staffed
    for number in (signal.SIGINT, signal.SIGTERM):
        child = subprocess.Popen(
            command("rehearse", "--days", "366", "--json")
            if number == signal.SIGINT
            else [*command()[:1], "-m", "retinue.dry_run", '{"days": 366}'],
            env={**environment(house.home), "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

        def begun(child: subprocess.Popen[bytes] = child) -> bool:
            assert child.poll() is None, child.communicate()
            return bool(list(tmp_path.glob("retinue-rehearsal-*/house.db-wal")))

        wait_until_sync(begun, "the rehearsal has begun")
        os.killpg(child.pid, number)
        _, complaints = child.communicate(timeout=60)
        assert child.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], complaints
        assert b"Traceback" not in complaints
        assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_no_step_in_its_middle() -> None:
    done: list[str] = []

    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        done.append("this step")
        await asyncio.sleep(1)  # sleep: virtual time
        done.append("the next")

    leaving = SignalRecorder()
    with leaving.record_signals(signal.SIGINT), pytest.raises(DryRunCancelled) as left:
        simulate(0, main, after_step=leaving.raise_if_signalled)
    assert (done, left.value.exit_code) == (["this step"], 130)


def test_what_waits_for_something_outside_is_broken_off() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            ended.append("which is shell syntax")

    leaving = SignalRecorder()
    with leaving.record_signals(signal.SIGTERM), pytest.raises(DryRunCancelled) as left:
        leaving.run(waits())
    assert (ended, left.value.exit_code) == (["which is shell syntax"], 143)


def test_a_closed_house_is_rehearsed_and_not_a_byte_of_it_is_changed(staffed: tuple[HouseProcess, list[str]]) -> None:
    """The last: it closes the house."""
    house, asked = staffed
    house.close()
    before = snapshot(house.home)

    report = house.json("rehearse", "--days", "14")

    assert report["sums"]["runs"] == 16
    assert (snapshot(house.home), asked) == (before, [])
