"""`make crash`: kill a real server again and again under load, and count what was lost.

First the server is killed once at every crash point in its code, and then at random moments. After
each kill it is started again, while its clients keep sending. At the end, the server must become
idle. Then the verdict is computed from the evidence: the clients' log, the effects and the store.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import retinue
from retinue.testing import crash_script as script
from retinue.testing.crash_client import ApiConnection, ConnectionClosed, CrashClient, RequestRefused, SenderProfile
from retinue.testing.crash_evidence import read_evidence
from retinue.testing.crash_external_agent import KEY, KEY_NAME, CrashExternalAgent
from retinue.testing.crash_log import AnsweredEntry, CrashLog
from retinue.testing.crash_verdict import CrashVerdict, judge_evidence
from retinue.testing.failure_context import describe_on_failure, register_seed
from retinue.testing.fork_server import ForkedProcess, get_fork_server
from retinue.testing.server_description import ServerSource

KILLS = 100
KILLS_QUICK = 8
NTH_ARRIVAL_MAX = 4  # the server is killed at a random one of the first arrivals at a crash point, up to this one
NTH_ARRIVAL_S_MAX = 30.0  # time for a crash point to be reached more than once; after that, the first time is enough
FIRST_ARRIVAL_S_MAX = 300.0  # some points are rare, and on a slow disk everything takes longer
START_S_MAX = 120.0
IDLE_S_MAX = 120.0
STOP_S_MAX = 120.0
POLL_S = 0.02
EARLY_KILL_S = 0.6  # killed before it serves requests, or during recovery
LATE_KILL_S = 0.4
STOPPED_S = 1.0


# Commits of operations and tools that no trial uses. Each is independent: nothing has to follow from it.
UNREACHED_COMMITS = frozenset(
    [
        "ack",
        "agent",
        "anchor",
        "answer",
        "apply",
        "ask",
        "audit",
        "binding",
        "command",
        "credential",
        "forget",
        "grant",
        "hook",
        "identity",
        "key-claim",
        "key-release",
        "label",
        "mcp",
        "notification",
        "pairing",
        "person",
        "plugin",
        "preference",
        "process-begin",
        "process-distrust",
        "process-end",
        "process-leave",
        "process-remove",
        "process-reported",
        "purge",
        "questionnaire",
        "refresh",
        "dry_run",
        "schedule",
        "send-policy",
        "session",
        "sign-in",
        "sign-out",
        "skill",
        "token",
        "webhook",
        "word",
    ]
)


# The steps of an upgrade from an earlier version, which a new instance never takes. The upgrade tests kill it there.
UPGRADE_STEPS = frozenset(["rename-store"])

# Commits of inbound connectors, of which a trial has none. The fault test suite tests each of them with failures.
INBOUND_COMMITS = frozenset(["access", "ambient", "connector", "join", "pair"])

# Commits that a trial reaches, so that it can be killed there. A kill at any other commit would never happen.
REACHED_COMMITS = frozenset(
    [
        "accept",
        "callback",
        "cancel",
        "claim",
        "clock",
        "decide",
        "delegate",
        "deliver-claim",
        "deliver-done",
        "deliver-part",
        "fail",
        "finish",
        "gate",
        "instructions",
        "park",
        "clean-up",
        "queue",
        "retry",
        "setup",
        "step",
        "strike",
        "sweep",
    ]
)


def list_crash_points() -> list[str]:
    """Return every crash point of the server, as its source code defines them: around each commit and each effect."""
    excluded = UNREACHED_COMMITS | INBOUND_COMMITS | UPGRADE_STEPS
    return sorted(point for point in _find_all_points() if point.partition(".")[0] not in excluded)


def list_commits() -> set[str]:
    """Return the name of every commit that the source code contains."""
    return {
        name for name, _, side in (point.partition(".") for point in _find_all_points()) if side.endswith("-commit")
    }


@cache
def _find_all_points() -> frozenset[str]:
    points: set[str] = set()
    source = Path(retinue.__file__).parent
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] != "testing":
            text = path.read_bytes()
            if b"point=" in text or b".reach(" in text:  # parsing every file takes seconds
                points.update(_iter_points(ast.parse(text)))
    return frozenset(points)


def list_quick_points() -> list[str]:
    """Return the crash points for a quick test: around each effect, and either before or after each commit."""
    points = list_crash_points()
    commits = [point for point in points if point.endswith("-commit")]
    return sorted({*points} - {*commits[0::4], *commits[3::4]})


def _iter_points(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="write"), keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == "point" and isinstance(keyword.value, ast.Constant):
                        yield f"{keyword.value.value}.before-commit"
                        yield f"{keyword.value.value}.after-commit"
            case ast.Call(func=ast.Attribute(attr="reach"), args=[ast.Constant(str(name))]):
                yield name
            case _:
                pass


@dataclass(slots=True)
class ServerProcess:
    """One process of the server under test, from its start to its end."""

    process: ForkedProcess
    log: Path
    log_offset: int
    started_at_s: float
    pending_tokens: frozenset[str]  # tokens of the envelopes that waited when it was started
    answered_at_s: float | None = None  # when it first answered
    ended_at_s: float | None = None

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def wait_for_exit(self, *, within_s: float) -> int | None:
        """Wait for the exit status of the server process. Returns None if the process does not end in time."""
        try:
            status = await asyncio.wait_for(self.process.wait_async(), within_s)
        except TimeoutError:
            return None
        self.ended_at_s = time.monotonic()
        return status

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.send_signal(signal.SIGKILL)
        await self.wait_for_exit(within_s=STOP_S_MAX)

    @property
    def output(self) -> str:
        return self.log.read_bytes()[self.log_offset :].decode(errors="replace")


class ServerFailed(Exception):
    """The server under test did not start, or it ended without having been killed."""


@dataclass(slots=True)
class CrashTrial:
    """One trial of the crash test.

    A trial has a data directory, the evidence outside it, the clients, and the server processes,
    which are started one after another.
    """

    data_dir: Path
    outside: Path
    client: CrashClient
    external_agent: CrashExternalAgent
    log: CrashLog
    bugs: str = ""
    processes: list[ServerProcess] = field(default_factory=list[ServerProcess])

    @property
    def server_log(self) -> Path:
        return self.outside / "daemon.log"

    async def start(self, crash: str = "") -> ServerProcess:
        with self.server_log.open("ab") as log:
            environment, log_offset = self._environment(crash), log.tell()  # the process writes to the same file
            process = get_fork_server().start("retinue.testing.crash_server", environment=environment, output=log)
            life = ServerProcess(
                process, self.server_log, log_offset, time.monotonic(), frozenset(self.client.pending.values())
            )
        self.processes.append(life)
        return life

    def _environment(self, crash: str) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RETINUE_") and k != "XDG_RUNTIME_DIR"}
        return inherited | {
            "RETINUE_HOME": str(self.data_dir),
            "RETINUE_LISTEN": "off",
            "RETINUE_TEST": "1",
            "RETINUE_TEST_OUTSIDE": str(self.outside),
            "RETINUE_TEST_CRASH": crash,
            "RETINUE_TEST_BUG": self.bugs,
            "RETINUE_TEST_ELSEWHERE": self.external_agent.url,
            KEY_NAME: KEY,
        }

    async def wait_until_started(self, process: ServerProcess) -> None:
        """Wait until a server process answers requests."""
        line = ApiConnection(self.data_dir)
        try:
            while process.process.poll() is None and time.monotonic() - process.started_at_s < START_S_MAX:
                try:
                    await line.call("server.status")
                    process.answered_at_s = time.monotonic()
                    return
                except (ConnectionClosed, RequestRefused):
                    await asyncio.sleep(POLL_S)  # sleep: before it is asked again; within START_S_MAX
        finally:
            line.close()
        raise ServerFailed(f"the server did not start:\n{process.output[-2000:]}")

    async def finish(self, sending: asyncio.Task[None], *, within_s: float = IDLE_S_MAX) -> str:
        """Let the clients of the trial finish, then stop the server. Return what went wrong, or an empty string."""
        self.client.stop()
        life = self.processes[-1]
        await self.wait_until_started(life)
        deadline = time.monotonic() + within_s  # time limit: of the trial; the caller reports what it found
        _, unfinished = await asyncio.wait({sending}, timeout=within_s)
        while (self.external_agent.is_busy or self._count_unfinished()) and time.monotonic() < deadline:  # noqa: ASYNC110 - a test may
            await asyncio.sleep(POLL_S)  # sleep: before it is checked again; within `within_s`
        waiting = sorted(self.client.pending.values())
        life.send_signal(signal.SIGTERM)
        status = await life.wait_for_exit(within_s=STOP_S_MAX)
        if unfinished:
            return f"the server was not idle after {within_s:g} s; still open: {', '.join(waiting) or 'a session'}"
        if status != 0:
            return f"the server did not stop: {status}\n{life.output[-2000:]}"
        return ""

    def _count_unfinished(self) -> int:
        """Return the number of open requests to the external agent plus the number of unfinished deliveries."""
        store = sqlite3.connect(f"file:{self.data_dir / 'retinue.db'}?mode=ro", uri=True)
        try:
            return store.execute(_UNFINISHED).fetchone()[0]
        finally:
            store.close()


# A request can be answered while its envelope, whose first delivery attempt failed, is waiting for the next one.
_UNFINISHED = """
SELECT (SELECT count(*) FROM delegations WHERE kind = 'external' AND state = 'open')
     + (SELECT count(*) FROM envelopes WHERE recipient LIKE 'channel:%' AND status <> 'done')
"""


@asynccontextmanager
async def open_trial(
    folder: Path,
    *,
    seed: int,
    habits: Sequence[SenderProfile] = (),
    envelopes_max: int = 0,
    bugs: str = "",
    has_schedules: bool = True,
) -> AsyncGenerator[tuple[CrashTrial, asyncio.Task[None]]]:
    """Set up a trial in a folder, with clients that send messages.

    The trial includes schedules unless `has_schedules` is false.
    """
    home, outside = folder / "home", folder / "outside"
    outside.mkdir(parents=True)
    if has_schedules:
        _write_schedules(home)
    log = CrashLog(outside / "client.log")
    client = CrashClient(home, log, seed=seed, profiles=habits, envelopes_max=envelopes_max)
    far = CrashExternalAgent(home, log)
    await far.open()
    made = CrashTrial(home, outside, client, far, log, bugs)
    register_seed(f"{seed} (crash trial)")
    writing = asyncio.create_task(client.run())
    try:
        with describe_on_failure(ServerSource(database=home / "retinue.db", log=made.server_log)):
            yield made, writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await far.close()
        for life in made.processes:
            await life.kill()
        log.close()


def _write_schedules(data_dir: Path) -> None:
    """Write the schedules of the trial as files, which the server reads when it starts."""
    folder = data_dir / "schedules"
    folder.mkdir(parents=True, mode=0o700)
    data_dir.chmod(0o700)
    for number, (name, every_s) in enumerate(script.SCHEDULE_INTERVALS_S.items(), 1):
        gate = 'gate: {"command": "true"}\n' if name == "gated" else ""
        head = f'id: {number:032x}\ncron: "*/{every_s} * * * * *"\nto: agent:dee\ndeliver: none\n{gate}'
        (folder / f"{name}.md").write_text(f"---\n{head}---\ntick\n")


# --- the kills ---


@dataclass(slots=True)
class KillTour:
    """Kills the server of one trial again and again, and collects the problems that the kills caused."""

    trial: CrashTrial
    rng: random.Random
    visited: list[str] = field(default_factory=list[str])
    killed: int = 0
    problems: list[str] = field(default_factory=list[str])

    async def kill_at_point(self, point: str) -> None:
        """Kill the server at a crash point, and check that it died at exactly this point."""
        for nth, within_s in ((self.rng.randint(1, NTH_ARRIVAL_MAX), NTH_ARRIVAL_S_MAX), (1, FIRST_ARRIVAL_S_MAX)):
            life = await self.trial.start(crash=f"{point}:{nth}")
            status = await life.wait_for_exit(within_s=within_s)
            if status is not None:
                break
            await life.kill()  # some points are rare: then the first time is enough
        else:
            self.problems.append(f"crash point {point} was never reached")
            return
        if status != -signal.SIGKILL or f"crash point {point} reached\n" not in life.output:
            raise ServerFailed(f"the server ended with {status} before {point}:\n{life.output[-2000:]}")
        self.visited.append(point)

    async def kill_at_random(self) -> None:
        life = await self.trial.start()
        if self.rng.random() < 0.2:
            await self._wait_alive(life, self.rng.random() * EARLY_KILL_S)
        else:
            await self.trial.wait_until_started(life)
            await self._wait_alive(life, self.rng.expovariate(1 / LATE_KILL_S))
        if self.rng.random() < 0.05:
            life.send_signal(signal.SIGSTOP)
            await asyncio.sleep(STOPPED_S)  # sleep: how long the process is stopped
            life.send_signal(signal.SIGCONT)
            await self._wait_alive(life, self.rng.random() * LATE_KILL_S)
        await life.kill()
        self.killed += 1

    async def _wait_alive(self, process: ServerProcess, seconds: float) -> None:
        status = await process.wait_for_exit(within_s=seconds)
        if status is not None:
            raise ServerFailed(f"the server ended by itself with {status}:\n{process.output[-2000:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPlan:
    """The parameters of a crash test.

    `points` are the crash points at which the server is killed. `kills` is the number of kills at
    random moments afterwards.
    """

    folder: Path
    seed: int
    points: Sequence[str]
    kills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """The result of a complete crash test."""

    plan: CrashPlan
    visited_points: Sequence[str]
    random_kills: int
    start_times_s: Sequence[float]
    answer_times_s: Sequence[float]
    problems: Sequence[str]
    verdict: CrashVerdict

    @property
    def ok(self) -> bool:
        return self.verdict.is_ok and not self.problems

    def lines(self) -> list[str]:
        *table, last = self.verdict.lines()
        return [
            f"  {'crash points visited':<28}{len(self.visited_points):>5}/{len(self.plan.points)}",
            f"  {'killed at random':<28}{self.random_kills:>8}",
            f"  {'start to request served, s':<28}{_format_percentiles(self.start_times_s)}",
            f"  {'start to first answer, s':<28}{_format_percentiles(self.answer_times_s)}",
            *table,
            *(f"  problem: {problem}" for problem in self.problems),
            last if self.ok or not self.verdict.is_ok else last.replace(": ok", ": FAILED"),
        ]


def _format_percentiles(seconds: Sequence[float]) -> str:
    if not seconds:
        return "    none"
    ordered = sorted(seconds)
    p50, p95 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95))
    return f"    p50 {p50:.2f}  p95 {p95:.2f}  max {ordered[-1]:.2f}  (of {len(ordered)})"


async def run_crash_test(plan: CrashPlan) -> CrashReport:
    """Run a crash test, and return its report."""
    chance = random.Random(plan.seed)
    setup = [point for point in plan.points if point.startswith("setup.")]
    others = [point for point in plan.points if point not in setup]
    chance.shuffle(others)
    async with open_trial(plan.folder, seed=plan.seed) as (tried, writing):
        tour = KillTour(tried, chance)
        try:
            for point in setup + others:  # a commit of the first start must be interrupted during the first start
                await tour.kill_at_point(point)
            for _ in range(plan.kills):
                await tour.kill_at_random()
            await tried.start()
            if problem := await tried.finish(writing):
                tour.problems.append(problem)
        except ServerFailed as fell:
            tour.problems.append(str(fell))
        open_s, answer_timeout_s = _measure_recoveries(tried)
    return CrashReport(
        plan=plan,
        visited_points=tour.visited,
        random_kills=tour.killed,
        start_times_s=open_s,
        answer_times_s=answer_timeout_s,
        problems=tour.problems,
        verdict=judge_evidence(read_evidence(tried.data_dir, tried.outside)),
    )


def _measure_recoveries(trial: CrashTrial) -> tuple[list[float], list[float]]:
    """Return how fast each server process recovered.

    For each process, this is the time until its first response, and the time until it first
    answered an envelope that had waited.
    """
    answered = [entry for entry in trial.log.entries if isinstance(entry, AnsweredEntry)]
    open_s = [life.answered_at_s - life.started_at_s for life in trial.processes if life.answered_at_s is not None]
    answer_timeout_s: list[float] = []
    for life in trial.processes:
        until = life.ended_at_s or time.monotonic()
        for entry in answered:
            if life.started_at_s <= entry.t < until:
                if any(answer.token in life.pending_tokens for answer in script.parse_answers(entry.text)):
                    answer_timeout_s.append(entry.t - life.started_at_s)
                    break
    return open_s, answer_timeout_s


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=None, help=f"number of kills at random times (default: {KILLS})")
    parser.add_argument("--quick", action="store_true", help=f"one side of each commit, and {KILLS_QUICK} random kills")
    parser.add_argument("--seed", type=int, default=None, help="seed, to repeat the same kills")
    parser.add_argument("--keep", action="store_true", help="keep the folder even if all checks pass")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="retinue-crash-"))
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    kills = given.kills if given.kills is not None else KILLS_QUICK if given.quick else KILLS
    points = list_quick_points() if given.quick else list_crash_points()
    plan = CrashPlan(folder=folder, seed=seed, points=points, kills=kills)
    print(f"crash: seed {seed}, {len(points)} crash points, {kills} kills, in {folder}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process outlives this one
    started = time.monotonic()
    report = asyncio.run(run_crash_test(plan))
    print(f"  {'seconds':<28}{time.monotonic() - started:>8.0f}")
    print("\n".join(report.lines()))
    if report.ok and not given.keep:
        shutil.rmtree(folder)
    elif not report.ok:
        print(f"kept for inspection: {folder}", file=sys.stderr)
    return 0 if report.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
