"""`make crash`: kill a real server again and again under a real load, and count what it lost.

First the server is killed once at every crash point of its code, then at random moments. Each time
it is started again while its clients keep sending. At the end it becomes idle, and the verdict is
made.
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
from retinue.testing.crash_client import Client, Closed, Habit, Line, Refused
from retinue.testing.crash_evidence import read_evidence
from retinue.testing.crash_external_agent import KEY, KEY_NAME, FarSide
from retinue.testing.crash_log import Answered, Log
from retinue.testing.crash_verdict import Verdict, judge
from retinue.testing.failure_context import explained, register_seed
from retinue.testing.fork_server import ForkedProcess, fork_server
from retinue.testing.server_description import ServerSource

KILLS = 100
KILLS_QUICK = 8
NTH_MAX = 4  # a crash point is not always tested at its first time
RARE_S = 30.0  # time for a crash point to be reached more than once; after that, the first time is enough
REACHED_S_MAX = 120.0
OPEN_S_MAX = 120.0
REST_S_MAX = 120.0
CLOSE_S_MAX = 120.0
LOOK_S = 0.02
EARLY_S = 0.6  # killed before it serves requests, or during recovery
LATE_S = 0.4
PAUSE_S = 1.0


# Commits of operations and tools that no trial uses. Each is independent: nothing has to follow from it.
DESK = frozenset(
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
        "process-told",
        "purge",
        "questionnaire",
        "refresh",
        "rehearsal",
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


# Commits of inbound connectors, of which a trial has none. The fault kit tests each of them with failures.
DOORS = frozenset(["connector", "door", "join", "overhear", "pair"])

# Commits that a trial reaches, so that it can be killed there. It would wait for any other in vain.
REACHED = frozenset(
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
        "put-away",
        "queue",
        "retry",
        "setup",
        "step",
        "strike",
        "sweep",
    ]
)


def crash_points() -> list[str]:
    """Returns every crash point of the core, read from its source: around each commit and each effect."""
    return sorted(point for point in _all_points() if point.partition(".")[0] not in DESK | DOORS)


def commits() -> set[str]:
    """Returns the name of every commit, read from the source."""
    return {name for name, _, side in (point.partition(".") for point in _all_points()) if side.endswith("-commit")}


@cache
def _all_points() -> frozenset[str]:
    points: set[str] = set()
    source = Path(retinue.__file__).parent
    for path in source.rglob("*.py"):
        if path.relative_to(source).parts[0] != "testing":
            text = path.read_bytes()
            if b"point=" in text or b".reach(" in text:  # parsing every file takes seconds
                points.update(_points_in(ast.parse(text)))
    return frozenset(points)


def quick_points() -> list[str]:
    """Returns a shorter list: all effects, and one side of each commit, alternating."""
    points = crash_points()
    commits = [point for point in points if point.endswith("-commit")]
    return sorted({*points} - {*commits[0::4], *commits[3::4]})


def _points_in(tree: ast.Module) -> Iterator[str]:
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
class Life:
    """One server process, from its start to its end."""

    process: ForkedProcess
    log: Path
    log_from: int
    started: float
    pending: frozenset[str]  # tokens of the envelopes that waited when it was started
    open: float | None = None  # when it first answered
    ended: float | None = None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def end(self, *, within_s: float) -> int | None:
        """Wait for the exit status. Returns None if the process does not end in time."""
        try:
            status = await asyncio.wait_for(self.process.ended(), within_s)
        except TimeoutError:
            return None
        self.ended = time.monotonic()
        return status

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.signal(signal.SIGKILL)
        await self.end(within_s=CLOSE_S_MAX)

    @property
    def said(self) -> str:
        return self.log.read_bytes()[self.log_from :].decode(errors="replace")


class FellOver(Exception):
    """The server ended, or did not start, without having been killed."""


@dataclass(slots=True)
class Trial:
    """A data directory, the evidence outside it, the clients, and one server process after another."""

    home: Path
    outside: Path
    client: Client
    far: FarSide
    log: Log
    bugs: str = ""
    lives: list[Life] = field(default_factory=list[Life])

    @property
    def daemon_log(self) -> Path:
        return self.outside / "daemon.log"

    async def start(self, crash: str = "") -> Life:
        with self.daemon_log.open("ab") as log:
            environment = self._environment(crash)
            process = fork_server().start("retinue.testing.crash_server", environment=environment, output=log)
            life = Life(process, self.daemon_log, log.tell(), time.monotonic(), frozenset(self.client.pending.values()))
        self.lives.append(life)
        return life

    def _environment(self, crash: str) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RETINUE_") and k != "XDG_RUNTIME_DIR"}
        return inherited | {
            "RETINUE_HOME": str(self.home),
            "RETINUE_LISTEN": "off",
            "RETINUE_TEST": "1",
            "RETINUE_TEST_OUTSIDE": str(self.outside),
            "RETINUE_TEST_CRASH": crash,
            "RETINUE_TEST_BUG": self.bugs,
            "RETINUE_TEST_ELSEWHERE": self.far.url,
            KEY_NAME: KEY,
        }

    async def opened(self, life: Life) -> None:
        """Wait until a server process answers requests."""
        line = Line(self.home)
        try:
            while life.process.poll() is None and time.monotonic() - life.started < OPEN_S_MAX:
                try:
                    await line.call("house.status")
                    life.open = time.monotonic()
                    return
                except (Closed, Refused):
                    await asyncio.sleep(LOOK_S)  # sleep: before it is asked again; within OPEN_S_MAX
        finally:
            line.hang_up()
        raise FellOver(f"the house did not open:\n{life.said[-2000:]}")

    async def rest(self, writing: asyncio.Task[None], *, within_s: float = REST_S_MAX) -> str:
        """Let the clients finish, then stop the server. Returns what went wrong, or an empty string."""
        self.client.stop()
        life = self.lives[-1]
        await self.opened(life)
        deadline = time.monotonic() + within_s  # time limit: of the trial; the caller reports what it found
        _, unfinished = await asyncio.wait({writing}, timeout=within_s)
        while (self.far.talking or self._handed_out()) and time.monotonic() < deadline:  # noqa: ASYNC110 - a test may
            await asyncio.sleep(LOOK_S)  # sleep: before it is checked again; within `within_s`
        waiting = sorted(self.client.pending.values())
        life.signal(signal.SIGTERM)
        status = await life.end(within_s=CLOSE_S_MAX)
        if unfinished:
            return f"the house did not come to rest in {within_s:g} s; it owes {', '.join(waiting) or 'a session'}"
        if status != 0:
            return f"the house did not close: {status}\n{life.said[-2000:]}"
        return ""

    def _handed_out(self) -> int:
        """Returns how many requests to the external agent are open."""
        store = sqlite3.connect(f"file:{self.home / 'house.db'}?mode=ro", uri=True)
        try:
            return store.execute(_HANDED_OUT).fetchone()[0]
        finally:
            store.close()


_HANDED_OUT = "SELECT count(*) FROM delegations WHERE kind = 'external' AND state = 'open'"


@asynccontextmanager
async def trial(
    folder: Path,
    *,
    seed: int,
    habits: Sequence[Habit] = (),
    letters_max: int = 0,
    bugs: str = "",
    ticks: bool = True,
) -> AsyncGenerator[tuple[Trial, asyncio.Task[None]]]:
    """Set up everything in a folder, with clients that send, and with schedules unless `has_schedules` is false."""
    home, outside = folder / "home", folder / "outside"
    outside.mkdir(parents=True)
    if ticks:
        _declare_schedules(home)
    log = Log(outside / "client.log")
    client = Client(home, log, seed=seed, habits=habits, letters_max=letters_max)
    far = FarSide(home, log)
    await far.open()
    made = Trial(home, outside, client, far, log, bugs)
    register_seed(f"{seed} (crash trial)")
    writing = asyncio.create_task(client.write_letters())
    try:
        with explained(ServerSource(database=home / "house.db", log=made.daemon_log)):
            yield made, writing
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await far.close()
        for life in made.lives:
            await life.kill()
        log.close()


def _declare_schedules(home: Path) -> None:
    """Write the schedules as files: they exist before the server does, which reads them when it starts."""
    folder = home / "schedules"
    folder.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    for number, (name, every_s) in enumerate(script.EVERY_S.items(), 1):
        gate = 'gate: {"command": "true"}\n' if name == "gated" else ""
        head = f'id: {number:032x}\ncron: "*/{every_s} * * * * *"\nto: agent:dee\ndeliver: none\n{gate}'
        (folder / f"{name}.md").write_text(f"---\n{head}---\ntick\n")


# --- the kills ---


@dataclass(slots=True)
class Tour:
    """The kills of one trial, and the problems they caused."""

    trial: Trial
    chance: random.Random
    visited: list[str] = field(default_factory=list[str])
    killed: int = 0
    problems: list[str] = field(default_factory=list[str])

    async def visit(self, point: str) -> None:
        """Kill the server at a crash point, and check that it was really there."""
        for nth, within_s in ((self.chance.randint(1, NTH_MAX), RARE_S), (1, REACHED_S_MAX)):
            life = await self.trial.start(crash=f"{point}:{nth}")
            status = await life.end(within_s=within_s)
            if status is not None:
                break
            await life.kill()  # some points are rare: then the first time is enough
        else:
            self.problems.append(f"crash point {point} was never reached")
            return
        if status != -signal.SIGKILL or f"crash point {point} reached\n" not in life.said:
            raise FellOver(f"the house ended with {status} on its way to {point}:\n{life.said[-2000:]}")
        self.visited.append(point)

    async def kill_at_random(self) -> None:
        life = await self.trial.start()
        if self.chance.random() < 0.2:
            await self._wait(life, self.chance.random() * EARLY_S)
        else:
            await self.trial.opened(life)
            await self._wait(life, self.chance.expovariate(1 / LATE_S))
        if self.chance.random() < 0.05:
            life.signal(signal.SIGSTOP)
            await asyncio.sleep(PAUSE_S)  # sleep: how long the process is stopped
            life.signal(signal.SIGCONT)
            await self._wait(life, self.chance.random() * LATE_S)
        await life.kill()
        self.killed += 1

    async def _wait(self, life: Life, seconds: float) -> None:
        status = await life.end(within_s=seconds)
        if status is not None:
            raise FellOver(f"the house ended by itself with {status}:\n{life.said[-2000:]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do to a server, and where."""

    folder: Path
    seed: int
    points: Sequence[str]
    kills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a whole crash test."""

    plan: Plan
    visited: Sequence[str]
    killed: int
    open_s: Sequence[float]
    answer_s: Sequence[float]
    problems: Sequence[str]
    verdict: Verdict

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.problems

    def lines(self) -> list[str]:
        *table, last = self.verdict.lines()
        return [
            f"  {'crash points visited':<28}{len(self.visited):>5}/{len(self.plan.points)}",
            f"  {'killed at random':<28}{self.killed:>8}",
            f"  {'start to request served, s':<28}{_spread(self.open_s)}",
            f"  {'start to mail answered, s':<28}{_spread(self.answer_s)}",
            *table,
            *(f"  problem: {problem}" for problem in self.problems),
            last if self.ok or not self.verdict.ok else last.replace(": ok", ": FAILED"),
        ]


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "    none"
    ordered = sorted(seconds)
    p50, p95 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.95))
    return f"    p50 {p50:.2f}  p95 {p95:.2f}  max {ordered[-1]:.2f}  (of {len(ordered)})"


async def crash(plan: Plan) -> Report:
    """Run the whole trial, and report."""
    chance = random.Random(plan.seed)
    setup = [point for point in plan.points if point.startswith("setup.")]
    others = [point for point in plan.points if point not in setup]
    chance.shuffle(others)
    async with trial(plan.folder, seed=plan.seed) as (tried, writing):
        tour = Tour(tried, chance)
        try:
            for point in setup + others:  # a commit of the first start is best interrupted in the first start
                await tour.visit(point)
            for _ in range(plan.kills):
                await tour.kill_at_random()
            await tried.start()
            if problem := await tried.rest(writing):
                tour.problems.append(problem)
        except FellOver as fell:
            tour.problems.append(str(fell))
        open_s, answer_s = _recoveries(tried)
    return Report(
        plan=plan,
        visited=tour.visited,
        killed=tour.killed,
        open_s=open_s,
        answer_s=answer_s,
        problems=tour.problems,
        verdict=judge(read_evidence(tried.home, tried.outside)),
    )


def _recoveries(tried: Trial) -> tuple[list[float], list[float]]:
    """Returns, for each process, the time to its first response, and the time to the first answer
    to a waiting envelope.
    """
    answered = [entry for entry in tried.log.entries if isinstance(entry, Answered)]
    open_s = [life.open - life.started for life in tried.lives if life.open is not None]
    answer_s: list[float] = []
    for life in tried.lives:
        until = life.ended or time.monotonic()
        for entry in answered:
            if life.started <= entry.t < until:
                if any(answer.token in life.pending for answer in script.answers(entry.text)):
                    answer_s.append(entry.t - life.started)
                    break
    return open_s, answer_s


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=None, help=f"how many kills at random ({KILLS})")
    parser.add_argument("--quick", action="store_true", help=f"half of the commits, and {KILLS_QUICK} kills only")
    parser.add_argument("--seed", type=int, default=None, help="to choose the same moments again")
    parser.add_argument("--keep", action="store_true", help="keep the folder, also when all is well")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="retinue-crash-"))
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    kills = given.kills if given.kills is not None else KILLS_QUICK if given.quick else KILLS
    points = quick_points() if given.quick else crash_points()
    plan = Plan(folder=folder, seed=seed, points=points, kills=kills)
    print(f"crash: seed {seed}, {len(points)} crash points, {kills} kills, in {folder}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no process outlives this one
    started = time.monotonic()
    report = asyncio.run(crash(plan))
    print(f"  {'seconds':<28}{time.monotonic() - started:>8.0f}")
    print("\n".join(report.lines()))
    if report.ok and not given.keep:
        shutil.rmtree(folder)
    elif not report.ok:
        print(f"kept for inspection: {folder}", file=sys.stderr)
    return 0 if report.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
