"""A real house, killed: nothing is lost, and a house that would lose something is found out."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.testing.crash import (
    INBOUND_COMMITS,
    KILLS,
    KILLS_QUICK,
    REACHED_COMMITS,
    UNREACHED_COMMITS,
    CrashPlan,
    CrashTrial,
    ServerProcess,
    list_commits,
    list_crash_points,
    list_quick_points,
    open_trial,
    run_crash_test,
)
from retinue.testing.crash_client import SenderProfile
from retinue.testing.crash_evidence import read_evidence
from retinue.testing.crash_script import SCHEDULE_INTERVALS_S, ScriptAction
from retinue.testing.crash_verdict import CrashVerdict, FindingKind, judge_evidence
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until


@pytest.mark.spec("H1", "D11", "D27")
@pytest.mark.timeout(600)
async def test_a_house_killed_at_its_crash_points_and_at_random_loses_doubles_and_reorders_nothing(
    tmp_path: Path,
) -> None:
    points = list_quick_points()
    report = await run_crash_test(CrashPlan(folder=tmp_path, seed=7, points=points, kills=KILLS_QUICK))
    assert report.ok, "\n".join(report.lines())
    assert set(report.visited_points) == set(points)
    assert report.random_kills == KILLS_QUICK
    assert report.verdict.figures["acknowledged"] > 100
    assert report.verdict.figures["slots ran"] > len(SCHEDULE_INTERVALS_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_house_killed_at_every_crash_point_and_a_hundred_times_at_random_loses_nothing(tmp_path: Path) -> None:
    points = list_crash_points()
    report = await run_crash_test(CrashPlan(folder=tmp_path, seed=1, points=points, kills=KILLS))
    assert set(report.visited_points) == set(points)
    assert report.ok, "\n".join(report.lines())


def test_the_crash_points_are_read_off_the_code() -> None:
    points = list_crash_points()
    for commit in ("accept", "claim", "step", "park", "finish", "deliver-claim", "deliver-done"):
        assert {f"{commit}.before-commit", f"{commit}.after-commit"} <= set(points)
    for effect in ("model", "tool", "deliver"):
        assert {f"{effect}.before", f"{effect}.after"} <= set(points)


def test_of_every_commit_it_is_known_whether_a_trial_comes_by() -> None:
    """A new one is to be put among those of the desk, of the doors, or those that are reached: a trial that waits for
    one it never comes by takes minutes to say so."""
    known = UNREACHED_COMMITS | INBOUND_COMMITS | REACHED_COMMITS
    assert list_commits() - known == set(), "name them in retinue.testing.crash"
    assert known - list_commits() == set(), "no such commit is left in the code"
    assert len(known) == len(UNREACHED_COMMITS) + len(INBOUND_COMMITS) + len(REACHED_COMMITS), (
        "each is one or the other"
    )


def test_the_short_tour_leaves_out_no_commit_and_no_effect() -> None:
    assert {point.partition(".")[0] for point in list_quick_points()} == {
        point.partition(".")[0] for point in list_crash_points()
    }


async def killed_once(
    folder: Path, *, do: ScriptAction, crash: str, bugs: str, shows: FindingKind | None = None
) -> CrashVerdict:
    """One correspondent, one kill at a chosen point, and the verdict after the house has come to rest, or, where it is
    broken, after it `shows` that it is."""
    habit = SenderProfile(recipient="agent:ada", action_weights={do: 1}, pause_s=0.0)
    # Without a clock: what it begins in the moment before the last kill would wait for another start.
    async with open_trial(folder, seed=1, habits=[habit], envelopes_max=2, bugs=bugs, has_schedules=False) as (
        tried,
        writing,
    ):
        life = await tried.start(crash)
        assert await life.wait_for_exit(within_s=WAIT_LIMIT_S) == -signal.SIGKILL, life.output
        await tried.start()
        await come_to_rest(tried, writing, shows)
    return verdict_on(tried)


def verdict_on(tried: CrashTrial) -> CrashVerdict:
    return judge_evidence(read_evidence(tried.data_dir, tried.outside), has_schedules=False)


@pytest.mark.timeout(600)
async def test_the_verdict_catches_a_house_that_acknowledges_before_it_commits(tmp_path: Path) -> None:
    bug = await killed_once(
        tmp_path / "bug",
        do=ScriptAction.PLAIN,
        crash="accept.before-commit:2",
        bugs="acknowledge-before-commit",
        shows=FindingKind.LOST,
    )
    assert bug.count(FindingKind.LOST) >= 1, bug.lines()
    sound = await killed_once(tmp_path / "sound", do=ScriptAction.PLAIN, crash="accept.before-commit:2", bugs="")
    assert sound.is_ok, sound.lines()


@pytest.mark.timeout(600)
async def test_the_verdict_catches_a_house_that_acts_before_it_has_written_its_intent(tmp_path: Path) -> None:
    bug = await killed_once(
        tmp_path / "bug",
        do=ScriptAction.TOOL,
        crash="step.before-commit:1",
        bugs="effect-before-intent",
        shows=FindingKind.RUN_TWICE,
    )
    assert bug.count(FindingKind.RUN_TWICE) >= 1, bug.lines()
    sound = await killed_once(tmp_path / "sound", do=ScriptAction.TOOL, crash="step.before-commit:1", bugs="")
    assert sound.is_ok, sound.lines()


OPEN_CALLS = "SELECT count(*) FROM steps WHERE kind = 'model' AND state = 'open'"
OF_ADA = "SELECT id FROM runs WHERE agent = 'ada'"  # the clock writes too, to another


async def taken_over(folder: Path, *, bugs: str, shows: FindingKind | None = None) -> CrashVerdict:
    """A worker is paused in the middle of a run, another takes it over and ends it, and the first one comes back."""
    habit = SenderProfile(recipient="agent:ada", action_weights={ScriptAction.VARIABLE: 1}, delay_s=2.0)
    both = f"lock-not-held{bugs}"
    # Without a clock: what the first one begins in the moment before it is killed would wait for a third to open.
    about = open_trial(folder, seed=1, habits=[habit], envelopes_max=1, bugs=both, has_schedules=False)
    async with about as (tried, writing):
        first = await tried.start()
        await wait_until(lambda: stored(tried, f"{OPEN_CALLS} AND run IN ({OF_ADA})") == 1, "the model is asked")
        await pause_between_commits(tried, first)
        second = await tried.start()
        ended = "SELECT count(*) FROM runs WHERE status = 'completed' AND agent = 'ada'"
        await wait_until(lambda: stored(tried, ended) == 1, "the second one has ended the run")
        first.send_signal(signal.SIGCONT)
        # They share one log.
        await wait_until(
            lambda: "run claimed by another worker" in second.output or witnessed(tried) == 2, "the first one goes on"
        )
        await first.kill()
        await come_to_rest(tried, writing, shows)
    return verdict_on(tried)


async def pause_between_commits(tried: CrashTrial, life: ServerProcess) -> None:
    """A house that is paused in the middle of a commit keeps the store to itself, and nobody could take over."""

    async def is_paused() -> bool:
        life.send_signal(signal.SIGSTOP)
        await wait_until(lambda: stands_still(life.process.pid), "it stands still")
        if not writable(tried):
            life.send_signal(signal.SIGCONT)
            return False
        return True

    await wait_until(is_paused, "it is paused between two commits")


def stands_still(pid: int) -> bool:
    """A signal is heard of a little later than it is sent, and by each thread for itself."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def writable(tried: CrashTrial) -> bool:
    conn = sqlite3.connect(tried.data_dir / "house.db", timeout=0, isolation_level=None)
    try:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        conn.close()
    return True


async def come_to_rest(tried: CrashTrial, writing: asyncio.Task[None], shows: FindingKind | None) -> None:
    """A broken house need not come to rest: what it did is enough."""
    if shows is None:
        assert await tried.finish(writing) == ""
    else:
        await wait_until(lambda: verdict_on(tried).count(shows) >= 1, f"{shows} shows", poll_s=0.2)


def stored(tried: CrashTrial, query: str) -> int:
    path = tried.data_dir / "house.db"
    if not path.exists():
        return 0
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return conn.execute(query).fetchone()[0]
    except sqlite3.OperationalError:  # its tables are not there yet
        return 0
    finally:
        conn.close()


def witnessed(tried: CrashTrial) -> int:
    path = tried.outside / "witness"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.timeout(600)
async def test_the_verdict_catches_a_house_whose_workers_write_under_an_outdated_epoch(tmp_path: Path) -> None:
    bug = await taken_over(tmp_path / "bug", bugs=",epoch-not-checked", shows=FindingKind.RUN_TWICE)
    assert bug.count(FindingKind.RUN_TWICE) >= 1, bug.lines()
    sound = await taken_over(tmp_path / "sound", bugs="")
    assert sound.is_ok, sound.lines()


def test_a_crash_point_is_refused_where_this_is_not_a_test(tmp_path: Path) -> None:
    refused = run("retinue.app.server", tmp_path, RETINUE_TEST_CRASH="finish.after-commit:1")
    assert refused.returncode == 1
    assert "RETINUE_TEST_CRASH is set, but this is not a test [config.test_only]" in refused.stderr
    assert "try: unset RETINUE_TEST_CRASH" in refused.stderr
    assert not (tmp_path / "home").exists()


def test_the_daemon_for_crash_tests_is_refused_where_this_is_not_a_test(tmp_path: Path) -> None:
    refused = run("retinue.testing.crash_server", tmp_path, RETINUE_TEST_BUG="acknowledge-before-commit")
    assert refused.returncode == 1
    assert "this server is for crash tests only [testing.server_outside_test]" in refused.stderr
    assert not (tmp_path / "home").exists()


def run(module: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
    return subprocess.run(
        [sys.executable, "-m", module],
        env=inherited | {"RETINUE_HOME": str(folder / "home")} | environment,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
    )
