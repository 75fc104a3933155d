"""A real server is killed: nothing is lost, and planted bugs that would lose something are detected."""

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
@pytest.mark.timeout(900)
async def test_a_server_killed_at_crash_points_and_at_random_loses_duplicates_and_reorders_nothing(
    tmp_path: Path,
) -> None:
    points = list_quick_points()
    report = await run_crash_test(CrashPlan(folder=tmp_path, seed=7, points=points, kills=KILLS_QUICK))
    assert report.ok, "\n".join(report.lines())
    assert set(report.visited_points) == set(points)
    assert report.random_kills == KILLS_QUICK
    assert report.verdict.figures["acknowledged"] > 100
    assert report.verdict.figures["occurrences ran"] > len(SCHEDULE_INTERVALS_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_server_killed_at_every_crash_point_and_100_times_at_random_loses_nothing(tmp_path: Path) -> None:
    points = list_crash_points()
    report = await run_crash_test(CrashPlan(folder=tmp_path, seed=1, points=points, kills=KILLS))
    assert set(report.visited_points) == set(points)
    assert report.ok, "\n".join(report.lines())


def test_the_crash_points_are_read_from_the_code() -> None:
    points = list_crash_points()
    for commit in ("accept", "claim", "step", "park", "finish", "deliver-claim", "deliver-done"):
        assert {f"{commit}.before-commit", f"{commit}.after-commit"} <= set(points)
    for effect in ("model", "tool", "deliver"):
        assert {f"{effect}.before", f"{effect}.after"} <= set(points)


def test_every_commit_is_classified_by_whether_a_crash_trial_reaches_it() -> None:
    """Each new commit must be classified: a trial that waits for a commit it never reaches takes minutes to fail."""
    known = UNREACHED_COMMITS | INBOUND_COMMITS | REACHED_COMMITS
    assert list_commits() - known == set(), "add them to retinue.testing.crash"
    assert known - list_commits() == set(), "remove them from retinue.testing.crash"
    assert len(known) == len(UNREACHED_COMMITS) + len(INBOUND_COMMITS) + len(REACHED_COMMITS), (
        "each commit is in exactly one set"
    )


def test_the_quick_crash_points_cover_every_commit_and_effect() -> None:
    assert {point.partition(".")[0] for point in list_quick_points()} == {
        point.partition(".")[0] for point in list_crash_points()
    }


async def run_killed_trial(
    folder: Path, *, action: ScriptAction, crash: str, bugs: str, expected_finding: FindingKind | None = None
) -> CrashVerdict:
    """Run one sender, kill the server once at a chosen point, and check the outcome after the server is idle.

    With planted bugs, check as soon as the expected finding shows.
    """
    sender_profile = SenderProfile(recipient="agent:ada", action_weights={action: 1}, pause_s=0.0)
    # No schedules: a schedule that fires just before the last kill would need another start.
    async with open_trial(folder, seed=1, habits=[sender_profile], envelopes_max=2, bugs=bugs, has_schedules=False) as (
        trial,
        writing,
    ):
        server = await trial.start(crash)
        assert await server.wait_for_exit(within_s=WAIT_LIMIT_S) == -signal.SIGKILL, server.output
        await trial.start()
        await wait_for_end_of_trial(trial, writing, expected_finding)
    return judge_trial(trial)


def judge_trial(trial: CrashTrial) -> CrashVerdict:
    return judge_evidence(read_evidence(trial.data_dir, trial.outside), has_schedules=False)


@pytest.mark.timeout(900)
async def test_the_crash_test_detects_a_server_that_acknowledges_before_it_commits(tmp_path: Path) -> None:
    bug = await run_killed_trial(
        tmp_path / "bug",
        action=ScriptAction.PLAIN,
        crash="accept.before-commit:2",
        bugs="acknowledge-before-commit",
        expected_finding=FindingKind.LOST,
    )
    assert bug.count(FindingKind.LOST) >= 1, bug.lines()
    sound = await run_killed_trial(
        tmp_path / "sound", action=ScriptAction.PLAIN, crash="accept.before-commit:2", bugs=""
    )
    assert sound.is_ok, sound.lines()


@pytest.mark.timeout(900)
async def test_the_crash_test_detects_a_server_that_acts_before_it_stores_its_intent(tmp_path: Path) -> None:
    bug = await run_killed_trial(
        tmp_path / "bug",
        action=ScriptAction.TOOL,
        crash="step.before-commit:1",
        bugs="effect-before-intent",
        expected_finding=FindingKind.RUN_TWICE,
    )
    assert bug.count(FindingKind.RUN_TWICE) >= 1, bug.lines()
    sound = await run_killed_trial(tmp_path / "sound", action=ScriptAction.TOOL, crash="step.before-commit:1", bugs="")
    assert sound.is_ok, sound.lines()


COUNT_OPEN_MODEL_STEPS = "SELECT count(*) FROM steps WHERE kind = 'model' AND state = 'open'"
RUNS_OF_ADA = "SELECT id FROM runs WHERE agent = 'ada'"  # the schedules write envelopes, too, to another agent


async def run_takeover_trial(folder: Path, *, bugs: str, expected_finding: FindingKind | None = None) -> CrashVerdict:
    """Pause a worker in the middle of a run, let another take the run over and finish it, then resume the first one."""
    sender_profile = SenderProfile(recipient="agent:ada", action_weights={ScriptAction.VARIABLE: 1}, delay_s=4.0)
    both = f"lock-not-held{bugs}"
    # No schedules: a schedule that fires just before the kill would need a third worker.
    trial_context = open_trial(folder, seed=1, habits=[sender_profile], envelopes_max=1, bugs=both, has_schedules=False)
    async with trial_context as (trial, writing):
        first = await trial.start()
        await wait_until(
            lambda: query_store(trial, f"{COUNT_OPEN_MODEL_STEPS} AND run IN ({RUNS_OF_ADA})") == 1,
            "the model is called",
        )
        await pause_between_commits(trial, first)
        second = await trial.start()
        ended = "SELECT count(*) FROM runs WHERE status = 'completed' AND agent = 'ada'"
        await wait_until(lambda: query_store(trial, ended) == 1, "the second worker has finished the run")
        first.send_signal(signal.SIGCONT)
        # Both workers write to one log.
        await wait_until(
            lambda: "run claimed by another worker" in second.output or count_witness_lines(trial) == 2,
            "the first worker has resumed",
        )
        await first.kill()
        await wait_for_end_of_trial(trial, writing, expected_finding)
    return judge_trial(trial)


async def pause_between_commits(trial: CrashTrial, server: ServerProcess) -> None:
    """A server that is paused during a commit keeps the database locked, so no other worker could take over."""

    async def is_paused() -> bool:
        server.send_signal(signal.SIGSTOP)
        await wait_until(lambda: is_process_stopped(server.process.pid), "the process is stopped")
        if not is_store_writable(trial):
            server.send_signal(signal.SIGCONT)
            return False
        return True

    await wait_until(is_paused, "the server is paused between two commits")


def is_process_stopped(pid: int) -> bool:
    """A signal takes effect a little later than it is sent, separately in each thread."""
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    return set(states) == {"T"}


def is_store_writable(trial: CrashTrial) -> bool:
    conn = sqlite3.connect(trial.data_dir / "retinue.db", timeout=0, isolation_level=None)
    try:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        conn.close()
    return True


async def wait_for_end_of_trial(
    trial: CrashTrial, writing: asyncio.Task[None], expected_finding: FindingKind | None
) -> None:
    """A server with a planted bug may never become idle, so stop at the expected finding."""
    if expected_finding is None:
        assert await trial.finish(writing) == ""
    else:
        await wait_until(
            lambda: judge_trial(trial).count(expected_finding) >= 1, f"{expected_finding} shows", poll_s=0.2
        )


def query_store(trial: CrashTrial, query: str) -> int:
    path = trial.data_dir / "retinue.db"
    if not path.exists():
        return 0
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return conn.execute(query).fetchone()[0]
    except sqlite3.OperationalError:  # the tables do not exist yet
        return 0
    finally:
        conn.close()


def count_witness_lines(trial: CrashTrial) -> int:
    path = trial.outside / "witness"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.timeout(900)
async def test_the_crash_test_detects_a_worker_that_writes_with_an_outdated_epoch(tmp_path: Path) -> None:
    bug = await run_takeover_trial(tmp_path / "bug", bugs=",epoch-not-checked", expected_finding=FindingKind.RUN_TWICE)
    assert bug.count(FindingKind.RUN_TWICE) >= 1, bug.lines()
    sound = await run_takeover_trial(tmp_path / "sound", bugs="")
    assert sound.is_ok, sound.lines()


def test_a_crash_point_is_refused_outside_tests(tmp_path: Path) -> None:
    refused = run("retinue.app.server", tmp_path, RETINUE_TEST_CRASH="finish.after-commit:1")
    assert refused.returncode == 1
    assert "RETINUE_TEST_CRASH is set, but this is not a test [config.test_only]" in refused.stderr
    assert "try: unset RETINUE_TEST_CRASH" in refused.stderr
    assert not (tmp_path / "home").exists()


def test_the_crash_test_server_is_refused_outside_tests(tmp_path: Path) -> None:
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
