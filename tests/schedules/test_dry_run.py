"""`retinue dry-run` shows what would run, on a copy of the store, and changes nothing."""

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
from cli.server_process import ServerProcess, command, environment
from schedules.schedule_instance import EveryTrigger, OnceTrigger, add, advance_clock_to, ended, make_schedule, utc

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

PRICED_MODELS = ModelRoutingSettings(entries={"anthropic/scripted": ModelEntry(input_usd=3.0, output_usd=15.0)})
ASSUMED_MICROUSD = 3 * ASSUMED_INPUT_TOKENS + 15 * ASSUMED_OUTPUT_TOKENS
ADA = Agent(name="ada", model="scripted")


def settings_of(instance: LocalInstance, **kw: Any) -> Settings:
    kw = {"home": instance.root, "store": instance.root / STORE, "zone": instance.zone, "models": PRICED_MODELS} | kw
    return Settings(**kw)


async def dry_run_report(
    instance: LocalInstance, *, now: datetime | None = None, settings: Settings | None = None, **kw: Any
) -> DryRunReport:
    """Make a dry run of a stopped instance from its current time, in a thread because it runs its own loops."""
    perform = partial(run_dry_run, now=now or instance.clock.now(), environment={})
    return await asyncio.to_thread(perform, DryRunRequest(**kw), settings or settings_of(instance))


async def make_closed_instance(tmp_path: Path, *schedules: tuple[Any, dict[str, Any]], **kw: Any) -> LocalInstance:
    """Make an instance with these schedules that was started and stopped once."""
    instance = LocalInstance(tmp_path / "home", agents=kw.pop("agents", (ADA,)), **kw)
    instance.root.mkdir()
    async with instance.run() as server:
        for number, (when, fields) in enumerate(schedules):
            await add(server, make_schedule(instance, when, **({"name": f"s{number}"} | fields)))
    return instance


def summary_of(report: DryRunReport, name: str) -> ScheduleSummary:
    [found] = [each for each in report.schedules if each.name == name]
    return found


def start_times(report: DryRunReport) -> list[str]:
    return [run.started_at for run in report.runs]


def snapshot(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, and every folder. The lock file names its last owner."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "-"
        for path in sorted(folder.rglob("*"))
        if path.name != "lock" and not path.is_socket()
    }


def rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("select name from sqlite_master where type = 'table' order by name")]
        return {name: sorted(db.execute(f'select * from "{name}"'), key=repr) for name in names}


# --- time ---


async def test_dry_run_reports_a_run_for_every_occurrence(tmp_path: Path) -> None:
    instance = await make_closed_instance(
        tmp_path, ("0 12 * * *", {"name": "daily"}), (EveryTrigger(43_200, START), {"name": "twice"})
    )

    report = await dry_run_report(instance, days=7)

    daily, twice = summary_of(report, "daily"), summary_of(report, "twice")
    assert (daily.totals.runs, twice.totals.runs, report.totals.runs, report.totals.skipped) == (7, 13, 20, 0)
    assert (report.start, report.until) == ("2026-01-05T09:00:00+00:00", "2026-01-12T09:00:00+00:00")
    report_json = [run for run in report.runs if run.schedule == "daily"]
    assert [run.at[:10] for run in report_json] == [f"2026-01-{day:02}" for day in range(5, 12)]
    assert {(run.agent, run.state, len(run.session)) for run in report_json} == {("ada", "ran", 8)}
    assert [each.name for each in report.by_day] == [f"2026-01-{day:02}" for day in range(5, 12)]


async def test_dry_run_across_the_start_of_daylight_saving_time_keeps_local_times(tmp_path: Path) -> None:
    """On 29 March 2026 there is no 02:30 in Berlin: the schedule runs at the first time after the gap."""
    instance = await make_closed_instance(
        tmp_path,
        ("30 2 * * *", {"name": "night"}),
        zone=ZoneInfo("Europe/Berlin"),
        clock=FakeClock(utc("2026-03-27 12:00")),
    )

    report = await dry_run_report(instance, days=4)

    assert start_times(report) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]
    assert (report.start[11:], report.until[11:]) == ("13:00:00+01:00", "13:00:00+02:00")


async def test_dry_run_has_one_run_of_a_daily_schedule_in_an_hour_that_occurs_twice(tmp_path: Path) -> None:
    instance = await make_closed_instance(
        tmp_path,
        ("30 2 * * *", {}),
        zone=ZoneInfo("Europe/Berlin"),
        clock=FakeClock(utc("2026-10-24 12:00")),
    )
    assert start_times(await dry_run_report(instance, days=2)) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


async def test_dry_run_with_a_later_start_ignores_earlier_occurrences(tmp_path: Path) -> None:
    instance = await make_closed_instance(
        tmp_path, ("0 12 * * *", {"name": "noon"}), (OnceTrigger(utc("2026-01-06 12:00")), {"name": "once"})
    )

    report = await dry_run_report(instance, days=2, start="2026-01-10 00:00")

    assert start_times(report) == ["2026-01-10T12:00:00+00:00", "2026-01-11T12:00:00+00:00"]
    assert report.skips == []
    assert [each.schedule for each in report.idle_schedules] == ["once"]


# --- skips ---


async def test_dry_run_skips_occurrences_that_overlap_a_running_one(tmp_path: Path) -> None:
    """The schedule runs every ten minutes, and each run takes 25: one of three occurrences runs."""
    instance = await make_closed_instance(tmp_path, ("*/10 * * * *", {}))

    report = await dry_run_report(instance, days=1, run_duration="25m")

    assert start_times(report)[:3] == [f"2026-01-05T{at}:00+00:00" for at in ("09:10", "09:40", "10:10")]
    assert (report.totals.runs, report.runs[-1].state) == (48, "working")
    assert report.totals.skipped == 47 * 2
    assert {(skip.kind, skip.times) for skip in report.skips} == {(SkipKind.OVERLAP, 2)}
    assert report.skips[0].because == "the previous occurrence was still running"

    quick = await dry_run_report(instance, days=1, run_duration="5m")
    assert (quick.totals.runs, quick.totals.skipped) == (143, 0)


async def test_dry_run_applies_the_missed_policy_to_occurrences_missed_while_the_server_was_stopped(
    tmp_path: Path,
) -> None:
    instance = await make_closed_instance(
        tmp_path, ("0 10 * * *", {"name": "skips"}), ("0 10 * * *", {"name": "runs", "missed": MissedPolicy.RUN})
    )

    report = await dry_run_report(instance, days=1, now=utc("2026-01-05 13:00"))

    [skip] = report.skips
    assert (skip.schedule, skip.kind, skip.at) == ("skips", SkipKind.MISSED, "2026-01-05T10:00:00+00:00")
    assert "3 hours" in skip.because
    assert [(run.schedule, run.started_at[11:16]) for run in report.runs if run.started_at < "2026-01-06"] == [
        ("runs", "13:00")
    ]


async def test_dry_run_lists_schedules_without_an_occurrence_with_the_reason(tmp_path: Path) -> None:
    instance = await make_closed_instance(tmp_path, ("0 0 1 6 *", {"name": "june"}), ("0 9 * * *", {"name": "daily"}))
    report = await dry_run_report(instance, days=3)
    assert [(each.schedule, each.because) for each in report.idle_schedules] == [
        ("june", "its next occurrence is at 2026-06-01T00:00:00+00:00")
    ]


async def test_dry_run_reports_runs_that_wait_for_a_slot(tmp_path: Path) -> None:
    """There are two slots for schedules: of six runs at the same time, two minutes each, four wait."""
    instance = await make_closed_instance(tmp_path, *[("0 12 * * *", {}) for _ in range(6)])
    report = await dry_run_report(instance, days=1, run_duration="2m")
    assert sorted(run.started_at[11:16] for run in report.runs) == [
        "12:00",
        "12:00",
        "12:02",
        "12:02",
        "12:04",
        "12:04",
    ]
    assert (report.delayed.runs, report.delayed.longest_s) == (4, 240)
    assert [(each.at[11:16], each.runs) for each in report.busiest_minutes] == [("12:00", 2)]


async def test_dry_run_performs_runs_of_one_session_one_after_the_other(tmp_path: Path) -> None:
    """All are for the owner's latest session with the agent."""
    instance = await make_closed_instance(
        tmp_path, *[(f"{minute} 12 * * *", {"place": ScheduleSession.MAIN}) for minute in (0, 1, 2)]
    )
    report = await dry_run_report(instance, days=1, run_duration="5m")
    assert [(run.at[11:16], run.started_at[11:16]) for run in report.runs] == [
        ("12:00", "12:00"),
        ("12:01", "12:05"),
        ("12:02", "12:10"),
    ]
    assert len({run.session for run in report.runs}) == 1


# --- cost ---


async def test_dry_run_without_earlier_runs_uses_assumed_token_counts(tmp_path: Path) -> None:
    instance = await make_closed_instance(tmp_path, ("0 12 * * *", {}))

    report = await dry_run_report(instance, days=10)

    assert ASSUMED_MICROUSD == 3 * 8_000 + 15 * 500 == 31_500
    assert {run.cost_microusd for run in report.runs} == {31_500}
    assert (report.totals.runs, report.totals.cost_microusd) == (10, 315_000)
    assert report.schedules[0].model == "anthropic/scripted"
    assert report.schedules[0].estimate_basis.startswith("assumed: 8,000 input tokens, 500 output tokens")


async def test_dry_run_estimates_a_run_by_the_medians_of_earlier_runs(tmp_path: Path) -> None:
    """The medians of three real runs: 2,000 input tokens and 200 output tokens, in 40 seconds."""
    instance = LocalInstance(tmp_path / "home", agents=(ADA,))
    instance.root.mkdir()
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *", name="hourly"))
        for hour, (read, written, seconds) in enumerate(
            [(1_000, 900, 10), (2_000, 200, 40), (9_000, 100, 50)], start=10
        ):
            usage = Usage(input_tokens=read, output_tokens=written)
            instance.model.will_reply(text_reply("done", usage=usage, after_s=seconds))
            at = datetime(2026, 1, 5, hour, tzinfo=UTC)
            await advance_clock_to(server, at)
            await server.wait_for(lambda conn: not instance.model.script, what="the model to be asked")
            await advance_clock_to(server, at + timedelta(seconds=seconds))  # not further: its end is recorded
            await ended(server, schedule, at=at)

    report = await dry_run_report(instance, days=1)

    [run, *_] = report.runs
    assert (run.input_tokens, run.output_tokens, run.cost_microusd) == (2_000, 200, 3 * 2_000 + 15 * 200)
    assert datetime.fromisoformat(run.ended_at or "") - datetime.fromisoformat(run.started_at) == timedelta(seconds=40)
    assert summary_of(report, "hourly").estimate_basis == "the median of its last 3 runs"


async def test_dry_run_reports_runs_without_a_known_price_as_unpriced(tmp_path: Path) -> None:
    instance = await make_closed_instance(tmp_path, ("0 12 * * *", {}))
    report = await dry_run_report(instance, days=2, settings=settings_of(instance, models=ModelRoutingSettings()))
    assert [run.cost_microusd for run in report.runs] == [None, None]
    assert (report.totals.cost_microusd, report.totals.unpriced) == (0, 2)


async def test_dry_run_reports_when_a_budget_first_refuses_a_run(tmp_path: Path) -> None:
    """Six runs a day cost 31,500 each, and the budget is 100,000: three fit."""
    capped = with_changed(ADA, day_microusd_max=100_000)
    instance = await make_closed_instance(
        tmp_path, ("0 */4 * * *", {}), agents=(capped,), clock=FakeClock(utc("2026-01-05 23:00"))
    )

    report = await dry_run_report(instance, days=3)

    [budget] = report.budgets
    assert (budget.name, budget.owner, budget.cap_microusd) == ("agent's day", "ada", 100_000)
    assert (budget.highest_microusd, budget.refused, budget.first_refused) == (94_500, 9, "2026-01-06T12:00:00+00:00")
    assert (report.totals.runs, report.totals.failed) == (18, 9)
    assert report.totals.cost_microusd == 9 * 31_500
    assert "the budget of agent 'ada' for today does not cover" in next(
        run.because for run in report.runs if run.because
    )


async def test_dry_run_without_a_budget_refuses_no_run(tmp_path: Path) -> None:
    instance = await make_closed_instance(tmp_path, ("0 */4 * * *", {}), clock=FakeClock(utc("2026-01-05 23:00")))
    report = await dry_run_report(instance, days=3)
    assert (report.budgets, report.totals.failed) == ([], 0)


# --- no effects ---


async def test_dry_run_of_a_stopped_instance_changes_no_file_and_creates_no_workspace(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    worker = with_changed(ADA, workspace=str(elsewhere / "work"))
    instance = await make_closed_instance(
        tmp_path,
        ("0 * * * *", {}),
        ("30 * * * *", {"place": ScheduleSession.MAIN}),
        ("15 * * * *", {"to": "person:maria"}),
        agents=(worker,),
    )
    (ensure_agent_directory(instance.root, "ada") / "note.txt").write_text("mine")
    before = snapshot(instance.root)

    report = await dry_run_report(instance, days=2)

    assert report.totals.runs == 47 + 48 + 48
    assert snapshot(instance.root) == before
    assert not elsewhere.exists()


async def test_dry_run_sends_nothing_to_people_or_channels(tmp_path: Path) -> None:
    """An envelope to a person and one to a channel have the same outcome as on a server, but there is no connector."""
    instance = await make_closed_instance(
        tmp_path,
        ("0 12 * * *", {"to": "channel:telegram:42", "name": "room"}),
        ("0 12 * * *", {"to": "person:maria", "kind": ScheduleKind.REMINDER, "name": "word"}),
    )
    report = await dry_run_report(instance, days=2)
    assert {(run.schedule, run.state, run.agent, run.cost_microusd) for run in report.runs} == {
        ("room", "ran", "", 0),
        ("word", "ran", "", 0),
    }
    assert report.totals.runs == 4


async def test_dry_run_cancels_an_open_run_and_continues_its_schedule(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path / "home", agents=(ADA,))
    instance.root.mkdir()
    async with instance.run() as server:
        await add(server, make_schedule(instance, "0 * * * *", name="hourly"))
        instance.model.will_reply(text_reply("never", after_s=7_200))
        await advance_clock_to(server, utc("2026-01-05 10:00"))
        await server.wait_for(lambda conn: bool(instance.model.prompts), what="the model to be asked")
        server.crash()

    report = await dry_run_report(instance, days=1)

    assert report.cancelled_runs == 1
    assert (report.totals.runs, report.runs[0].started_at[11:16]) == (23, "11:00")


async def test_two_dry_runs_with_the_same_seed_give_the_same_report(tmp_path: Path) -> None:
    instance = await make_closed_instance(tmp_path, *[("0 * * * *", {}) for _ in range(5)])

    async def report_json(seed: int) -> bytes:
        report = await dry_run_report(instance, days=1, run_duration="7m", seed=seed)
        return msgspec.json.encode(msgspec.structs.replace(report, duration_s=0.0))

    assert await report_json(3) == await report_json(3)
    assert await report_json(3) != await report_json(4)


async def test_dry_run_of_a_stopped_instance_includes_schedule_files_not_read_yet(tmp_path: Path) -> None:
    instance = await make_closed_instance(tmp_path, ("0 9 * * *", {}))
    folder = instance.root / "schedules"
    folder.mkdir()
    (folder / "noon.md").write_text(f"---\nid: {instance.ids.new()}\ncron: 0 12 * * *\nto: agent:ada\n---\nLook out.\n")
    (folder / "wrong.md").write_text(
        f"---\nid: {instance.ids.new()}\ncron: every now and then\nto: agent:ada\n---\nLook out.\n"
    )
    before = snapshot(instance.root)

    report = await dry_run_report(instance, days=2)

    assert summary_of(report, "noon").totals.runs == 2
    assert [note.split(":")[0] for note in report.notes] == ["wrong.md"]
    assert snapshot(instance.root) == before


# --- heartbeats ---


async def test_dry_run_performs_heartbeats_in_their_active_hours_if_the_checklist_is_not_empty(tmp_path: Path) -> None:
    """The first is at 09:00:01, then every half hour, and none from 20 to 8. The other agent has an empty checklist."""
    beating = with_changed(ADA, heartbeat=HeartbeatRules(every_s=1_800, active_start="08:00", active_end="20:00"))
    idle = with_changed(beating, name="bob")
    instance = await make_closed_instance(tmp_path, agents=(beating, idle))
    (ensure_agent_directory(instance.root, "ada") / "HEARTBEAT.md").write_text("- Look after the plants.\n")
    (ensure_agent_directory(instance.root, "bob") / "HEARTBEAT.md").write_text("# Nothing yet\n")
    before = snapshot(instance.root)

    report = await dry_run_report(instance, days=1)

    ada, bob = summary_of(report, "heartbeat of ada"), summary_of(report, "heartbeat of bob")
    assert (ada.totals.runs, ada.totals.skipped) == (22 + 2, 24)
    assert {skip.kind for skip in report.skips if skip.schedule == ada.name} == {SkipKind.HOURS}
    assert (bob.totals.runs, bob.totals.skipped, bob.totals.cost_microusd) == (0, 48, 0)
    assert {skip.kind for skip in report.skips if skip.schedule == bob.name} == {SkipKind.HOURS, SkipKind.EMPTY}
    assert report.runs[0].started_at == "2026-01-05T09:00:01+00:00"
    assert snapshot(instance.root) == before


# --- gates ---


def with_gate(text: str, **kw: Any) -> dict[str, Any]:
    return {"gate": ScheduleGate(command=text, **kw), "trust": Trust.OWNER}


async def test_dry_run_assumes_open_gates_and_reports_their_history(tmp_path: Path) -> None:
    async def close_gate(schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
        return GateResult(is_open=False, because="gate: exit 1")

    instance = LocalInstance(tmp_path / "home", agents=(ADA,), run_gate=close_gate)
    instance.root.mkdir()
    async with instance.run() as server:
        schedule = await add(server, make_schedule(instance, "0 * * * *", name="gated", **with_gate("touch was-here")))
        for hour in (10, 11):
            at = datetime(2026, 1, 5, hour, tzinfo=UTC)
            await advance_clock_to(server, at)
            await ended(server, schedule, at=at)

    report = await dry_run_report(instance, days=1)

    report_json = summary_of(report, "gated")
    assert report_json.gate is not None
    assert (report_json.gate.treatment, report_json.gate.was_open, report_json.gate.was_closed) == (
        "assumed open",
        0,
        2,
    )
    assert report_json.totals.runs == 23
    assert not list(tmp_path.rglob("was-here"))


async def test_dry_run_with_gates_runs_each_gate_once_in_a_copy_of_the_agent_directory(tmp_path: Path) -> None:
    probe = await BubblewrapSandbox(folder=tmp_path / "probe", user_home=tmp_path).probe()
    if not probe.works:
        pytest.skip(f"no sandbox here: {probe.because}")
    instance = await make_closed_instance(
        tmp_path,
        ("0 * * * *", {"name": "open", **with_gate("cat ready && touch was-here")}),
        ("0 * * * *", {"name": "closed", **with_gate("test -e not-there")}),
        ("0 * * * *", {"name": "far", **with_gate("true", domains=("example.org",))}),
    )
    (ensure_agent_directory(instance.root, "ada") / "ready").write_text("yes")
    before = snapshot(instance.root)

    report = await dry_run_report(instance, days=1, gates=True)

    taken = {each.name: each.gate.treatment for each in report.schedules if each.gate is not None}
    assert taken == {
        "open": "run once: open",
        "closed": "run once: closed (gate: exit 1)",
        "far": "assumed open: it uses the network",
    }
    assert (summary_of(report, "open").totals.runs, summary_of(report, "far").totals.runs) == (23, 23)
    assert (summary_of(report, "closed").totals.runs, summary_of(report, "closed").totals.skipped) == (0, 23)
    assert {skip.kind for skip in report.skips} == {SkipKind.GATE}
    assert snapshot(instance.root) == before


# --- limits ---


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"days": 0}, "dry_run.days_invalid"),
        ({"days": 367}, "dry_run.days_invalid"),
        ({"start": "2026-01-04 00:00"}, "dry_run.start_invalid"),
        ({"start": "2028-01-04 00:00"}, "dry_run.start_invalid"),
        ({"start": "soon"}, "time.invalid"),
        ({"run_duration": "soon"}, "schedule.duration_invalid"),
        ({"run_duration": "2d"}, "dry_run.run_takes_invalid"),
    ],
)
async def test_invalid_dry_run_parameters_are_refused(tmp_path: Path, asked: dict[str, Any], code: str) -> None:
    instance = await make_closed_instance(tmp_path)
    with pytest.raises(RetinueError) as refused:
        await dry_run_report(instance, **asked)
    assert (refused.value.code, bool(refused.value.because), bool(refused.value.try_this)) == (code, True, True)


async def test_dry_run_stops_at_its_limit_of_runs_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make_closed_instance(tmp_path, ("* * * * *", {}))
    monkeypatch.setattr(copied_server, "RUNS_MAX", 10)
    report = await dry_run_report(instance, days=30, run_duration="1s")
    assert report.stopped_because == "after 10 runs, which is the limit of a dry run"
    assert (report.totals.runs, report.until) == (10, "2026-01-05T09:10:00+00:00")


async def test_dry_run_reports_more_occurrences_than_the_history_of_a_schedule_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps a limited number of occurrences of each schedule, but a dry run reports all."""
    instance = await make_closed_instance(tmp_path, ("* * * * *", {}))
    monkeypatch.setattr(copied_server, "RUNS_MAX", OCCURRENCES_KEPT_MAX + 100)
    report = await dry_run_report(instance, days=2, run_duration="1s", keep=str(tmp_path / "kept"))
    assert report.totals.runs == OCCURRENCES_KEPT_MAX + 100
    assert len(rows(tmp_path / "kept" / STORE)["occurrences"]) == OCCURRENCES_KEPT_MAX


async def test_dry_run_removes_its_copy_unless_a_target_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make_closed_instance(tmp_path, ("0 12 * * *", {}))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    await dry_run_report(instance, days=1)
    assert list(temporary.iterdir()) == []

    kept = tmp_path / "kept"
    await dry_run_report(instance, days=1, keep=str(kept))
    assert len(rows(kept / STORE)["runs"]) == 1
    assert kept.stat().st_mode & 0o077 == 0
    with pytest.raises(RetinueError) as refused:
        await dry_run_report(instance, days=1, keep=str(kept))
    assert refused.value.code == "dry_run.target_exists"


# --- on PostgreSQL ---


async def test_dry_run_copies_a_postgresql_instance_into_a_file(tmp_path: Path, postgres_url: str) -> None:
    instance = await make_closed_instance(tmp_path, ("0 */6 * * *", {}), url=postgres_url)
    report = await dry_run_report(instance, days=2, settings=settings_of(instance, store=postgres_url))
    assert (report.totals.runs, report.totals.skipped) == (8, 0)
    async with instance.run() as server:
        assert await server.execute_sql("SELECT id FROM runs") == []


# --- the command ---


@contextmanager
def model_server() -> Iterator[tuple[str, list[str]]]:
    """A provider on loopback that records its requests."""
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


@contextmanager
def running_server(home: Path) -> Iterator[tuple[ServerProcess, list[str]]]:
    """A running server whose agent uses a provider on loopback. Its schedules run tomorrow."""
    server = ServerProcess(home)
    with model_server() as (url, asked):
        server.home.mkdir()
        (server.home / "retinue.toml").write_text(
            f'[server]\nzone = "UTC"\n\n[providers.near]\nurl = "{url}/v1"\nformat = "openai-chat"\n\n'
            '[models.entries."near/small"]\ninput_usd = 3.0\noutput_usd = 15.0\n'
        )
        try:
            server.open()
            server.call("agent.register", name="ada", model="near/small")
            soon = datetime.now(UTC) + timedelta(hours=20)
            for name, cron in (
                ("daily", f"0 {soon.hour} * * *"),
                ("weekly", f"0 {soon.hour} * * {soon.isoweekday() % 7}"),
            ):
                server.call("schedule.add", name=name, to="agent:ada", cron=cron, text="Water the plants.")
            wait_until_sync(
                lambda: not [row for row in rows(server.home / STORE)["schedules"] if not row[9]],
                "each schedule has a time",
            )
            yield server, asked
        finally:
            server.close()


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, list[str]]]:
    with running_server(tmp_path_factory.mktemp("dry_run") / "home") as opened:
        yield opened


def test_dry_run_of_a_running_server_makes_no_model_call_and_changes_nothing(
    open_server: tuple[ServerProcess, list[str]],
) -> None:
    server, asked = open_server
    before, files = rows(server.home / STORE), snapshot(server.home / "agents")

    report = server.json("dry-run", "--days", "14")

    assert {each["name"]: each["totals"]["runs"] for each in report["schedules"]} == {"daily": 14, "weekly": 2}
    assert report["totals"]["cost_microusd"] == 16 * 31_500
    assert report["schedules"][0]["model"] == "near/small"
    assert asked == []
    assert rows(server.home / STORE) == before
    assert snapshot(server.home / "agents") == files


def test_dry_run_report_prints_tables_and_shows_progress(open_server: tuple[ServerProcess, list[str]]) -> None:
    server, _ = open_server
    done = server.retinue("dry-run", "--days", "3")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] in ("runs (3):", "runs (4):")
    assert any(line.split()[2:4] == ["daily", "ada"] for line in lines[2:6])
    assert "about $" in lines[-2]
    assert lines[-1].startswith("took ")
    assert lines[-1].endswith("; seed 0")
    assert "dry run: day 3 of 3" in done.stderr


def test_a_refused_dry_run_command_prints_an_error_code_and_what_to_try(
    open_server: tuple[ServerProcess, list[str]],
) -> None:
    server, _ = open_server
    done = server.retinue("dry-run", "--days", "1000", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "dry_run.days_invalid"
    assert done.stderr.splitlines()[-1].startswith("try: ")
    elsewhere = server.retinue("dry-run", env={"RETINUE_URL": "http://127.0.0.1:9"})
    assert (elsewhere.returncode, "[dry_run.remote_server]" in elsewhere.stderr) == (1, True)


def test_an_interrupted_dry_run_leaves_no_copy_behind(
    open_server: tuple[ServerProcess, list[str]], tmp_path: Path
) -> None:
    server, _ = open_server
    for number in (signal.SIGINT, signal.SIGTERM):
        child = subprocess.Popen(
            command("dry-run", "--days", "366", "--json")
            if number == signal.SIGINT
            else [*command()[:1], "-m", "retinue.dry_run", '{"days": 366}'],
            env={**environment(server.home), "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

        def has_started(child: subprocess.Popen[bytes] = child) -> bool:
            assert child.poll() is None, child.communicate()
            return bool(list(tmp_path.glob("retinue-dry-run-*/retinue.db-wal")))

        wait_until_sync(has_started, "the dry run has begun")
        os.killpg(child.pid, number)
        _, complaints = child.communicate(timeout=60)
        assert child.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], complaints
        assert b"Traceback" not in complaints
        assert list(tmp_path.iterdir()) == []


def test_a_signal_cancels_a_dry_run_only_between_steps() -> None:
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


def test_a_signal_cancels_a_waiting_coroutine_of_a_dry_run() -> None:
    ended: list[str] = []

    async def wait_forever() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            ended.append("which is shell syntax")

    leaving = SignalRecorder()
    with leaving.record_signals(signal.SIGTERM), pytest.raises(DryRunCancelled) as left:
        leaving.run(wait_forever())
    assert (ended, left.value.exit_code) == (["which is shell syntax"], 143)


def test_dry_run_command_on_a_stopped_instance_changes_no_byte(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as (server, asked):
        server.close()
        before = snapshot(server.home)

        report = server.json("dry-run", "--days", "14")

        assert report["totals"]["runs"] == 16
        assert (snapshot(server.home), asked) == (before, [])
