"""`make bench`: a line a figure, `NAME VALUE LIMIT ok|short`; exits non-zero if any is short."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cli, clients, clock, doors, floor, hands, million, minds, posts, sandbox, staff
from benchmarks.client import Client
from benchmarks.measure import Figure, cpu_s, median, rss_mb
from benchmarks.processes import house, mock

TURNS = 200
EDGE = 20
SESSIONS, TURNS_EACH, LATENCY_S = 100, 20, 0.05

CPU_RATIO_MAX = 10.0
GROWTH_MAX = 1.3
WALL_MARGIN_MS, WALL_COMMITS = 3.0, 3
RATE_MIN, CPU_MS_WHERE_LOADED_MAX = 500.0, 1.5
MILLION_RATIO_MAX = 1.5
READY_S_MAX = 1.0
RSS_MB_MAX = 80.0


@dataclass(frozen=True, slots=True)
class Turns:
    """What plain turns cost: in the house, and at the floor in between, under the same load."""

    walls_s: list[float]
    cpus_s: list[float]
    floor: floor.Floor


async def _plain_turns(folder: Path, port: int, pid: int) -> Turns:
    base = floor.Floor(folder / "floor.db", port)
    client = Client(folder / "one")
    await client.follow()
    await client.ask("warm up", "warm-up")
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(TURNS // EDGE):
        await base.turns(EDGE)
        before = cpu_s(pid)
        for _ in range(EDGE):
            walls.append(await client.ask(f"message number {len(walls)}", "plain"))
        cpus.append((cpu_s(pid) - before) / EDGE)
    client.close()
    base.close()
    return Turns(walls, cpus, base)


async def _many(home: Path) -> float:
    client = Client(home)
    await client.follow()

    async def session(n: int) -> None:
        for i in range(TURNS_EACH):
            await client.ask(f"message number {i}", f"session-{n}")

    before = time.perf_counter()
    await asyncio.gather(*(session(n) for n in range(SESSIONS)))
    wall_s = time.perf_counter() - before
    client.close()
    return wall_s


def measure_turns(folder: Path) -> list[Figure]:
    with mock(0) as port, house(folder / "one", port) as (pid, _):
        turns = asyncio.run(_plain_turns(folder, port, pid))
        commit_ms = floor.measure_commit_ms(folder / "commits.db", TURNS)
    base = turns.floor
    # Each round of the house against the floor just before it: whatever else the machine did, it did to both.
    ratio = median([ours / theirs for ours, theirs in zip(turns.cpus_s, base.cpus_s, strict=True)])
    growth = (turns.cpus_s[-1] / base.cpus_s[-1]) / (turns.cpus_s[0] / base.cpus_s[0])
    wall_ms, floor_wall_ms = median(turns.walls_s) * 1000, median(base.walls_s) * 1000
    return [
        Figure("floor-cpu", median(base.cpus_s) * 1000, "ms"),
        Figure("floor-wall", floor_wall_ms, "ms"),
        Figure("floor-commit", commit_ms, "ms"),
        Figure("turn-cpu", median(turns.cpus_s) * 1000, "ms"),
        Figure("turn-cpu-ratio", ratio, "x", CPU_RATIO_MAX),
        Figure(
            "turn-growth", turns.cpus_s[-1] / turns.cpus_s[0], "x", GROWTH_MAX, note=f"{growth:.2f}x beside the floor"
        ),
        Figure("turn-wall", wall_ms, "ms", floor_wall_ms + WALL_COMMITS * commit_ms + WALL_MARGIN_MS),
    ]


def measure_many(folder: Path) -> list[Figure]:
    with mock(LATENCY_S) as port, house(folder / "many", port) as (pid, _):
        before = cpu_s(pid)
        wall_s = asyncio.run(_many(folder / "many"))
        cpu_ms = (cpu_s(pid) - before) * 1000 / (SESSIONS * TURNS_EACH)
        rss = rss_mb(pid)
    rate = SESSIONS * TURNS_EACH / wall_s
    # The rate depends on what else this machine does; where it falls short, the CPU a turn took decides.
    loaded = rate < RATE_MIN
    return [
        Figure("many-rate", rate, "/s", None if loaded else RATE_MIN, at_least=True),
        Figure("many-cpu", cpu_ms, "ms", CPU_MS_WHERE_LOADED_MAX if loaded else None),
        Figure("many-rss", rss, "MB", RSS_MB_MAX),
    ]


def measure_ready(folder: Path) -> list[Figure]:
    with mock(0) as port:
        first: list[float] = []
        for _ in range(5):
            with house(folder / "ready", port) as (_, ready_s):
                first.append(ready_s)
    return [
        Figure("ready-first-start", first[0], "s", note="makes the store"),
        Figure("ready", median(first[1:]), "s", READY_S_MAX),
    ]


def measure_million(folder: Path, rows: int = million.ROWS) -> list[Figure]:
    accept, claim = million.main(folder, rows)
    note = f"{rows:,} envelopes against none"
    return [
        Figure("million-accept", accept, "x", MILLION_RATIO_MAX, note=note),
        Figure("million-claim", claim, "x", MILLION_RATIO_MAX, note=note),
    ]


def measure_cli(folder: Path) -> list[Figure]:
    with mock(0) as port, house(folder / "cli", port):
        return cli.measure(folder / "cli")


def measure_posts(folder: Path) -> list[Figure]:
    with mock(0) as port, house(folder / "posts", port):
        return posts.measure(folder / "posts")


def measure_clients(_: Path) -> list[Figure]:
    with mock(0) as port:
        return clients.measure(port)


PARTS: Mapping[str, Callable[[Path], list[Figure]]] = {
    "clients": measure_clients,
    "turns": measure_turns,
    "tools": minds.measure_tools,
    "restored": minds.measure_restored,
    "hands": hands.measure,
    "sandbox": sandbox.measure,
    "staff": staff.measure,
    "clock": clock.measure,
    "doors": doors.measure,
    "many": measure_many,
    "ready": measure_ready,
    "million": measure_million,
    "cli": measure_cli,
    "posts": measure_posts,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which of {', '.join(PARTS)} (all)")
    parser.add_argument("--rows", type=int, default=million.ROWS, help="envelopes in the large store")
    asked = parser.parse_args()
    unknown = set(asked.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    short = 0
    with tempfile.TemporaryDirectory(prefix="retinue-bench-", dir=os.environ.get("RETINUE_BENCH_DIR")) as name:
        for part in asked.parts or PARTS:
            folder = Path(name) / part
            folder.mkdir()
            for figure in measure_million(folder, asked.rows) if part == "million" else PARTS[part](folder):
                print(figure.line(), flush=True)
                short += figure.short
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
