"""Simulates a server under load and faults, driven by a seed.

    python -m retinue.testing.simulation SEED [--runs N] [--trace]

The seed decides everything:

- the agents, their settings, and the envelopes that clients send;
- the replies and failures of models, their context windows, and the latency of the disk;
- crashes at any moment and at any commit, and a paused server that resumes after its replacement;
- a full disk, clock jumps, cancels and resets;
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
from retinue.testing.failure_context import Description, explained, register_seed
from retinue.testing.invariants import RULES, Violation
from retinue.testing.server_description import ServerSource
from retinue.testing.simulation_workload import Notes, Storm
from retinue.testing.virtual_time import SimulationError, simulate

RUNS = 500
STEPS_MAX = 2_000_000
STEPS_OF_A_DAY = 50_000
BEGIN = date(2026, 10, 25)  # daylight saving time ends in Berlin on this day, and in New York a week later
QUIETS = 4
QUIET_AFTER_RUNS_MIN = 40
GAP_S = 1.5
"""How long it takes, on average, until something happens again."""

LULL_S = 2 * 3600.0
"""The same, in weeks in which there is no storm."""

AT_REST_WITHIN_S = 2 * 3600.0
"""How long a house may take to come to rest once nobody asks for more: runs that wait for a person wait 600 s each."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures of a simulation in which all invariants held."""

    seed: int
    runs: int
    envelopes: int
    effects: int
    commits: int
    steps: int
    virtual_s: float
    strikes: Counter[str]
    outcomes: Counter[str]
    slots: Counter[str]
    takeovers: int
    fingerprint: str
    dump: str

    def lines(self) -> list[str]:
        return [
            f"seed {self.seed}: held through {self.runs} runs, {self.envelopes} envelopes, {self.effects} effects,"
            f" {self.commits} commits, {self.steps} steps, {self.virtual_s:.0f} virtual seconds",
            "  struck by  " + ", ".join(f"{n} {what}" for what, n in sorted(self.strikes.items())),
            "  slots      " + ", ".join(f"{n} {what}" for what, n in sorted(self.slots.items())),
            "  outcomes   " + ", ".join(f"{n} {what}" for what, n in sorted(self.outcomes.items())),
            f"  fingerprint {self.fingerprint}, store {self.dump}",
        ]


async def live(seed: int, notes: Notes, *, runs: int, rules: Collection[str]) -> Verdict:
    """Simulate one seed until so many runs have started, with idle phases in between and at the end."""
    with TemporaryDirectory() as home:
        return await _live(Storm(seed, notes, Path(home), rules=rules), runs=runs)


async def _live(storm: Storm, *, runs: int) -> Verdict:
    with _listening_to_the_log(storm), explained(partial(_describe, storm)):
        await storm.open()
        looking = asyncio.create_task(storm.keep_looking())
        quiet_every = max(QUIET_AFTER_RUNS_MIN, runs // QUIETS)
        quiet_at = quiet_every
        while storm.judge.runs_started < runs:
            await asyncio.sleep(storm.chance.expovariate(1 / GAP_S))  # sleep: virtual time
            storm.happen()
            if storm.judge.runs_started >= quiet_at:
                quiet_at = storm.judge.runs_started + quiet_every
                await _come_to_rest(storm)
        await _come_to_rest(storm)
        await _wait_for_the_future(storm)
        storm.judge.check_the_end()
        storm.far.check_the_end()
        looking.cancel()
        await asyncio.sleep(0)  # violations are raised after the next step of the loop
    return _verdict(storm)


async def live_for(seed: int, notes: Notes, *, begin: datetime, days: float, rules: Collection[str]) -> Verdict:
    """Simulate several days of ordinary use: an event every few hours, and the clock runs on."""
    with TemporaryDirectory() as home:
        storm = Storm(seed, notes, Path(home), rules=rules, begin=begin)
        return await _live_until(storm, begin + timedelta(days=days))


async def _live_until(storm: Storm, end: datetime) -> Verdict:
    with _listening_to_the_log(storm), explained(partial(_describe, storm)):
        await storm.open()
        while storm.clock.now() < end:
            await asyncio.sleep(storm.chance.expovariate(1 / LULL_S))  # sleep: virtual time
            storm.happen()
        await _come_to_rest(storm)
        storm.judge.check_the_end()
        await asyncio.sleep(0)
    return _verdict(storm)


async def _come_to_rest(storm: Storm) -> None:
    """Stop all events, and check that the server finishes its work within a time limit."""
    await storm.calm_down()
    raw = storm.disk.raw
    now_ms = to_ms(storm.clock.now())
    (latest_ms,) = raw.execute("SELECT latest_ms FROM house").fetchone()
    (waking_ms,) = raw.execute("SELECT coalesce(max(wake_ms), 0) FROM runs").fetchone()
    # The server's time never goes back. After the wall clock did, it stays until that has caught up.
    standing_still_s = max(0, latest_ms - now_ms, waking_ms - now_ms) / 1000
    deadline = storm.loop.time() + AT_REST_WITHIN_S + standing_still_s  # time limit: virtual
    while (
        (left := storm.judge.open_business()) or storm.busy or (storm.house is not None and storm.house.engine.active)
    ):
        if storm.loop.time() > deadline:
            for line in left:
                storm.note("left: {}", line)
            storm.judge.blame("silence", f"the house does not come to rest: {'; '.join(left[:5])}")
            break
        await asyncio.sleep(2)  # sleep: virtual time
        await storm.stop_the_clock()  # a run that still works may have added a schedule
    storm.judge.check_ledger(to_ms(storm.clock.now()))
    storm.note("the house is at rest")


async def _wait_for_the_future(storm: Storm) -> None:
    """Jump to the time of each deferred envelope, and wait until it is handled."""
    while True:
        sql = "SELECT max(due_ms) FROM envelopes WHERE status = 'pending' AND due_ms < ?"
        (due_ms,) = storm.disk.raw.execute(sql, (MS_MAX,)).fetchone()
        if due_ms is None:
            return
        storm.jump_by(timedelta(milliseconds=max(0, due_ms - to_ms(storm.clock.now()))))
        # A clock jump fires no timer, but the server compares with the wall clock at least every minute.
        await asyncio.sleep(70)  # sleep: virtual time
        await _come_to_rest(storm)


def _verdict(storm: Storm) -> Verdict:
    raw, judge = storm.disk.raw, storm.judge
    outcomes = raw.execute("SELECT outcome, count(*) FROM outcomes GROUP BY outcome").fetchall()
    return Verdict(
        seed=storm.seed,
        runs=judge.runs_started,
        envelopes=sum(n for _, n in outcomes),
        effects=len(judge.performed),
        commits=judge.commits,
        steps=storm.loop.steps,
        virtual_s=storm.loop.time(),
        strikes=storm.strikes + judge.children + Counter(compactions=judge.compactions),
        outcomes=Counter(dict(outcomes)),
        slots=Counter(judge.time.slots),
        takeovers=judge.takeovers,
        fingerprint=storm.loop.fingerprint,
        dump=dump(raw),
    )


def dump(raw: sqlite3.Connection) -> str:
    """Returns a hash of every row of the store."""
    digest = hashlib.blake2b(digest_size=16)
    tables = raw.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        digest.update(f"\n{table}\n".encode())
        for row in sorted(map(repr, raw.execute(f'SELECT * FROM "{table}"'))):
            digest.update(row.encode())
    return digest.hexdigest()


def _describe(storm: Storm, error: BaseException | None) -> Description:
    """Describe the server for a failure report.

    A violation ends the loop and arrives here as a cancellation, so the checker's own violation
    comes first.
    """
    return ServerSource(database=storm.disk.conn)(storm.judge.violation or error)


@contextmanager
def _listening_to_the_log(storm: Storm) -> Generator[None]:
    """Report unexpected errors that the server logs as violations. In a simulation the log has no other reader."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if error is not None and not isinstance(error, RetinueError):
                trace = traceback.extract_tb(error.__traceback__)
                where = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else "nowhere"
                storm.surprised(f"{record.getMessage()}: {error!r} at {where}")

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


def run(
    seed: int,
    *,
    runs: int = RUNS,
    rules: Collection[str] = tuple(RULES),
    trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Simulate one seed. A raised error has notes with the command that repeats it and the last events."""
    register_seed(f"{seed} (simulation: {replay_command(seed, runs=runs)} --trace)")
    notes = Notes(trace)
    try:
        return simulate(seed, partial(live, seed, notes, runs=runs, rules=rules), steps_max=STEPS_MAX)
    except (Violation, SimulationError) as error:
        error.add_note(f"what happened last:\n{notes}")
        error.add_note(f"to see it again: {replay_command(seed, runs=runs)} --trace")
        raise


def run_for(
    days: float,
    seed: int,
    *,
    begin: datetime,
    rules: Collection[str] = tuple(RULES),
    trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Simulate so many days from a date on. A raised error has the same notes as in `run_seed`."""
    register_seed(f"{seed} (simulation: {_replay_days(seed, days, begin)})")
    notes = Notes(trace)
    steps_max = STEPS_MAX + round(STEPS_OF_A_DAY * days)
    try:
        return simulate(seed, partial(live_for, seed, notes, begin=begin, days=days, rules=rules), steps_max=steps_max)
    except (Violation, SimulationError) as error:
        error.add_note(f"what happened last:\n{notes}")
        error.add_note(f"to see it again: {_replay_days(seed, days, begin)}")
        raise


def _replay_days(seed: int, days: float, begin: datetime) -> str:
    return f"{replay_command(seed)} --days {days:g} --from {begin:%Y-%m-%d} --trace"


def replay_command(seed: int, *, runs: int | None = None) -> str:
    return f"python -m retinue.testing.simulation {seed}" + (f" --runs {runs}" if runs is not None else "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m retinue.testing.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="+")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how many runs to live through (default {RUNS})")
    parser.add_argument("--days", type=float, help="live through so many days instead, in which there is no storm")
    parser.add_argument("--from", dest="begin", type=date.fromisoformat, default=BEGIN, help=f"the first ({BEGIN})")
    parser.add_argument("--trace", action="store_true", help="tell everything as it happens")
    chosen = parser.parse_args(arguments)
    for seed in chosen.seed:
        try:
            trace = _tell if chosen.trace else None
            if chosen.days is None:
                verdict = run(seed, runs=chosen.runs, trace=trace)
            else:
                begin = datetime.combine(chosen.begin, time(tzinfo=UTC))
                verdict = run_for(chosen.days, seed, begin=begin, trace=trace)
        except (Violation, SimulationError) as error:
            _tell(f"seed {seed}: {type(error).__name__}: {error}")
            for line in getattr(error, "__notes__", ()):
                _tell(line)
            return 1
        for line in verdict.lines():
            _tell(line)
    return 0


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    raise SystemExit(main())
