"""Simulates a server under load and faults, driven by a seed.

    python -m retinue.testing.simulation SEED [--runs N] [--trace]

The seed decides everything:

- the agents, their settings, and the envelopes that clients send;
- the replies and failures of models, their context windows, and the latency of the disk;
- crashes at any moment and at any commit, and a paused server that resumes after its replacement;
- a full disk, clock jumps, cancellations and resets;
- approvals that are answered early, late, twice or never.

`retinue.testing.invariants` checks every commit. From time to time the events stop, and the server
must become idle.

The same seed repeats the same steps in any process.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import sqlite3
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from retinue.domain.errors import RetinueError
from retinue.domain.times import MS_MAX, to_ms
from retinue.testing.failure_context import FailureDescription, describe_on_failure, register_seed
from retinue.testing.invariants import RULES, InvariantViolation
from retinue.testing.server_description import ServerSource
from retinue.testing.simulation_workload import EventTrace, Workload
from retinue.testing.virtual_time import SimulationError, simulate

RUNS_DEFAULT = 500
STEPS_MAX = 2_000_000
STEPS_PER_DAY = 50_000
START_DATE = date(2026, 10, 25)  # daylight saving time ends in Berlin on this day, and in New York a week later
IDLE_PHASES = 4
IDLE_AFTER_RUNS_MIN = 40
EVENT_GAP_S = 1.5
"""The average time between two events in stress mode, in seconds."""

CALENDAR_EVENT_GAP_S = 2 * 3600.0
"""The average time between two events in calendar mode, in seconds."""

IDLE_WAIT_S_MAX = 2 * 3600.0
"""Time in which a server must become idle after the last request: runs that wait for a person wait 600 s each."""


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The figures of a simulation in which no invariant was violated."""

    seed: int
    runs: int
    envelopes: int
    effects: int
    commits: int
    steps: int
    virtual_s: float
    event_counts: Counter[str]
    outcome_counts: Counter[str]
    occurrence_counts: Counter[str]
    takeovers: int
    fingerprint: str
    store_hash: str

    def lines(self) -> list[str]:
        return [
            f"seed {self.seed}: held through {self.runs} runs, {self.envelopes} envelopes, {self.effects} effects,"
            f" {self.commits} commits, {self.steps} steps, {self.virtual_s:.0f} virtual seconds",
            "  struck by  " + ", ".join(f"{n} {what}" for what, n in sorted(self.event_counts.items())),
            "  slots      " + ", ".join(f"{n} {what}" for what, n in sorted(self.occurrence_counts.items())),
            "  outcomes   " + ", ".join(f"{n} {what}" for what, n in sorted(self.outcome_counts.items())),
            f"  fingerprint {self.fingerprint}, store {self.store_hash}",
        ]


async def simulate_runs(seed: int, trace: EventTrace, *, runs: int, rules: Collection[str]) -> SimulationReport:
    """Simulate a server until the given number of runs have started.

    Idle phases, in which no events happen, come in between and at the end.
    """
    with TemporaryDirectory() as home:
        return await _drive_runs(Workload(seed, trace, Path(home), rules=rules), runs=runs)


async def _drive_runs(workload: Workload, *, runs: int) -> SimulationReport:
    with _report_logged_errors(workload), describe_on_failure(partial(_describe_server, workload)):
        await workload.start_server()
        looking = asyncio.create_task(workload.watch_promptness())
        quiet_every = max(IDLE_AFTER_RUNS_MIN, runs // IDLE_PHASES)
        quiet_at = quiet_every
        while workload.checker.runs_started < runs:
            await asyncio.sleep(workload.rng.expovariate(1 / EVENT_GAP_S))  # sleep: virtual time
            workload.start_event()
            if workload.checker.runs_started >= quiet_at:
                quiet_at = workload.checker.runs_started + quiet_every
                await _wait_until_idle(workload)
        await _wait_until_idle(workload)
        await _wait_for_deferred(workload)
        workload.checker.check_final_state()
        workload.external_agent.check_final_state()
        looking.cancel()
        await asyncio.sleep(0)  # violations are raised after the next step of the loop
    return _build_report(workload)


async def simulate_days(
    seed: int, trace: EventTrace, *, begin: datetime, days: float, rules: Collection[str]
) -> SimulationReport:
    """Simulate several days of ordinary use, with an event every few hours. The clock also advances in between."""
    with TemporaryDirectory() as home:
        storm = Workload(seed, trace, Path(home), rules=rules, start=begin)
        return await _drive_until(storm, begin + timedelta(days=days))


async def _drive_until(workload: Workload, end: datetime) -> SimulationReport:
    with _report_logged_errors(workload), describe_on_failure(partial(_describe_server, workload)):
        await workload.start_server()
        while workload.clock.now() < end:
            await asyncio.sleep(workload.rng.expovariate(1 / CALENDAR_EVENT_GAP_S))  # sleep: virtual time
            workload.start_event()
        await _wait_until_idle(workload)
        workload.checker.check_final_state()
        await asyncio.sleep(0)
    return _build_report(workload)


async def _wait_until_idle(workload: Workload) -> None:
    """Stop all events of a simulation, and check that the server finishes its work within a time limit."""
    await workload.stop_events()
    raw = workload.disk.raw_connection
    now_ms = to_ms(workload.clock.now())
    (latest_ms,) = raw.execute("SELECT latest_ms FROM counters").fetchone()
    (waking_ms,) = raw.execute("SELECT coalesce(max(resume_ms), 0) FROM runs").fetchone()
    # The server's time never goes backwards. If the clock was set back, it stands still until the clock catches up.
    standing_still_s = max(0, latest_ms - now_ms, waking_ms - now_ms) / 1000
    deadline = workload.loop.time() + IDLE_WAIT_S_MAX + standing_still_s  # time limit: virtual
    while (
        (left := workload.checker.list_unfinished())
        or workload.is_busy
        or (workload.server is not None and workload.server.engine.active_lanes)
    ):
        if workload.loop.time() > deadline:
            for line in left:
                workload.trace("left: {}", line)
            workload.checker.report("promptness", f"the server does not become idle: {'; '.join(left[:5])}")
            break
        await asyncio.sleep(2)  # sleep: virtual time
        await workload.disable_schedules()  # a run that is still working may have added a schedule
    workload.checker.check_ledger(to_ms(workload.clock.now()))
    workload.trace("the server is idle")


async def _wait_for_deferred(workload: Workload) -> None:
    """Set the clock to the due time of the latest deferred envelope, and wait until the server is idle.

    Repeat this until no envelope is deferred.
    """
    while True:
        sql = "SELECT max(due_ms) FROM envelopes WHERE status = 'pending' AND due_ms < ?"
        (due_ms,) = workload.disk.raw_connection.execute(sql, (MS_MAX,)).fetchone()
        if due_ms is None:
            return
        workload.jump_clock_by(timedelta(milliseconds=max(0, due_ms - to_ms(workload.clock.now()))))
        # A clock jump fires no timer, but the server checks the wall clock at least every minute.
        await asyncio.sleep(70)  # sleep: virtual time
        await _wait_until_idle(workload)


def _build_report(workload: Workload) -> SimulationReport:
    raw, judge = workload.disk.raw_connection, workload.checker
    outcomes = raw.execute("SELECT outcome, count(*) FROM outcomes GROUP BY outcome").fetchall()
    return SimulationReport(
        seed=workload.seed,
        runs=judge.runs_started,
        envelopes=sum(n for _, n in outcomes),
        effects=len(judge.performed),
        commits=judge.commits,
        steps=workload.loop.steps,
        virtual_s=workload.loop.time(),
        event_counts=workload.event_counts + judge.child_approvals + Counter(compactions=judge.compactions),
        outcome_counts=Counter(dict(outcomes)),
        occurrence_counts=Counter(judge.schedules.occurrence_counts),
        takeovers=judge.takeovers,
        fingerprint=workload.loop.fingerprint,
        store_hash=hash_store(raw),
    )


def hash_store(raw: sqlite3.Connection) -> str:
    """Return a hash of every row of the store."""
    digest = hashlib.blake2b(digest_size=16)
    tables = raw.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        digest.update(f"\n{table}\n".encode())
        for row in sorted(map(repr, raw.execute(f'SELECT * FROM "{table}"'))):
            digest.update(row.encode())
    return digest.hexdigest()


def _describe_server(workload: Workload, error: BaseException | None) -> FailureDescription:
    """Describe the simulated server for a failure report.

    A violation of an invariant ends the loop, and is raised here as a cancellation. The
    violation that the checker found is therefore reported first.
    """
    return ServerSource(database=workload.disk.connection)(workload.checker.violation or error)


@contextmanager
def _report_logged_errors(workload: Workload) -> Generator[None]:
    """Report each unexpected error in the log of the server as a violation, because nothing else reads this log."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if error is not None and not isinstance(error, RetinueError):
                trace = traceback.extract_tb(error.__traceback__)
                where = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else "nowhere"
                workload.report_unexpected_error(f"{record.getMessage()}: {error!r} at {where}")

    logger, listener = logging.getLogger("retinue"), Listener()
    before = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def run_seed(
    seed: int,
    *,
    runs: int = RUNS_DEFAULT,
    rules: Collection[str] = tuple(RULES),
    trace: Callable[[str], None] | None = None,
) -> SimulationReport:
    """Simulate one seed. A raised error contains notes with the last events and the command that repeats it."""
    register_seed(f"{seed} (simulation: {replay_command(seed, runs=runs)} --trace)")
    notes = EventTrace(trace)
    try:
        return simulate(seed, partial(simulate_runs, seed, notes, runs=runs, rules=rules), steps_max=STEPS_MAX)
    except (InvariantViolation, SimulationError) as error:
        error.add_note(f"what happened last:\n{notes}")
        error.add_note(f"to see it again: {replay_command(seed, runs=runs)} --trace")
        raise


def run_days(
    days: float,
    seed: int,
    *,
    start: datetime,
    rules: Collection[str] = tuple(RULES),
    trace: Callable[[str], None] | None = None,
) -> SimulationReport:
    """Simulate the given number of days from a date. A raised error contains the same notes as in `run_seed`."""
    register_seed(f"{seed} (simulation: {_replay_days_command(seed, days, start)})")
    notes = EventTrace(trace)
    steps_max = STEPS_MAX + round(STEPS_PER_DAY * days)
    try:
        return simulate(
            seed, partial(simulate_days, seed, notes, begin=start, days=days, rules=rules), steps_max=steps_max
        )
    except (InvariantViolation, SimulationError) as error:
        error.add_note(f"what happened last:\n{notes}")
        error.add_note(f"to see it again: {_replay_days_command(seed, days, start)}")
        raise


def _replay_days_command(seed: int, days: float, start: datetime) -> str:
    return f"{replay_command(seed)} --days {days:g} --from {start:%Y-%m-%d} --trace"


def replay_command(seed: int, *, runs: int | None = None) -> str:
    return f"python -m retinue.testing.simulation {seed}" + (f" --runs {runs}" if runs is not None else "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m retinue.testing.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="+")
    parser.add_argument(
        "--runs", type=int, default=RUNS_DEFAULT, help=f"number of runs to simulate (default: {RUNS_DEFAULT})"
    )
    parser.add_argument("--days", type=float, help="simulate this many days of ordinary use instead")
    parser.add_argument(
        "--from", dest="begin", type=date.fromisoformat, default=START_DATE, help=f"first day (default: {START_DATE})"
    )
    parser.add_argument("--trace", action="store_true", help="print every event as it happens")
    chosen = parser.parse_args(arguments)
    for seed in chosen.seed:
        try:
            trace = _print_line if chosen.trace else None
            if chosen.days is None:
                verdict = run_seed(seed, runs=chosen.runs, trace=trace)
            else:
                begin = datetime.combine(chosen.begin, time(tzinfo=UTC))
                verdict = run_days(chosen.days, seed, start=begin, trace=trace)
        except (InvariantViolation, SimulationError) as error:
            _print_line(f"seed {seed}: {type(error).__name__}: {error}")
            for line in getattr(error, "__notes__", ()):
                _print_line(line)
            return 1
        for line in verdict.lines():
            _print_line(line)
    return 0


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    raise SystemExit(main())
