"""Print one figure per line, `NAME VALUE LIMIT ok|failed`; exit with an error if any figure failed."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import (
    cli,
    clients,
    connector_intake,
    delegation,
    floor,
    http_posts,
    large_store,
    sandbox,
    schedules,
    tool_calls,
    tool_turns,
)
from benchmarks.client import Client
from benchmarks.measure import Figure, cpu_s, median, rss_mb
from benchmarks.processes import mock, server_process

TURNS = 200
TURNS_PER_ROUND = 20
SESSIONS, TURNS_EACH, LATENCY_S = 100, 20, 0.05

CPU_RATIO_MAX = 10.0
GROWTH_MAX = 1.3
WALL_MARGIN_MS_MAX, WALL_COMMITS = 3.0, 3
RATE_MIN, CPU_MS_WHERE_LOADED_MAX = 500.0, 1.5
LARGE_STORE_RATIO_MAX = 1.5
READY_S_MAX = 1.0
RSS_MB_MAX = 80.0


@dataclass(frozen=True, slots=True)
class PlainTurnCosts:
    """The cost of plain turns on the server, and of turns of the floor between them, under the same load."""

    walls_s: list[float]
    cpus_s: list[float]
    floor: floor.Floor


async def _plain_turns(folder: Path, port: int, pid: int) -> PlainTurnCosts:
    base = floor.Floor(folder / "floor.db", port)
    client = Client(folder / "one")
    await client.follow()
    await client.ask("warm up", "warm-up")
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(TURNS // TURNS_PER_ROUND):
        await base.turns(TURNS_PER_ROUND)
        before = cpu_s(pid)
        for _ in range(TURNS_PER_ROUND):
            walls.append(await client.ask(f"message number {len(walls)}", "plain"))
        cpus.append((cpu_s(pid) - before) / TURNS_PER_ROUND)
    client.close()
    base.close()
    return PlainTurnCosts(walls, cpus, base)


async def _run_many_sessions(home: Path) -> float:
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
    with mock(0) as port, server_process(folder / "one", port) as (pid, _):
        turns = asyncio.run(_plain_turns(folder, port, pid))
        commit_ms = floor.measure_commit_ms(folder / "commits.db", TURNS)
    base = turns.floor
    # Each round is compared with the floor just before it, so other load on the machine affects both.
    ratio = median([ours / theirs for ours, theirs in zip(turns.cpus_s, base.cpus_s, strict=True)])
    growth = (turns.cpus_s[-1] / base.cpus_s[-1]) / (turns.cpus_s[0] / base.cpus_s[0])
    wall_ms, floor_wall_ms = median(turns.walls_s) * 1000, median(base.walls_s) * 1000
    return [
        Figure("plain-turn-floor-cpu", median(base.cpus_s) * 1000, "ms"),
        Figure("plain-turn-floor-time", floor_wall_ms, "ms"),
        Figure("durable-commit-time", commit_ms, "ms"),
        Figure("plain-turn-cpu", median(turns.cpus_s) * 1000, "ms"),
        Figure("plain-turn-cpu-ratio", ratio, "x", CPU_RATIO_MAX),
        Figure(
            "plain-turn-growth",
            turns.cpus_s[-1] / turns.cpus_s[0],
            "x",
            GROWTH_MAX,
            note=f"{growth:.2f}x relative to the floor",
        ),
        Figure("plain-turn-time", wall_ms, "ms", floor_wall_ms + WALL_COMMITS * commit_ms + WALL_MARGIN_MS_MAX),
    ]


def measure_many(folder: Path) -> list[Figure]:
    with mock(LATENCY_S) as port, server_process(folder / "many", port) as (pid, _):
        before = cpu_s(pid)
        wall_s = asyncio.run(_run_many_sessions(folder / "many"))
        cpu_ms = (cpu_s(pid) - before) * 1000 / (SESSIONS * TURNS_EACH)
        rss = rss_mb(pid)
    rate = SESSIONS * TURNS_EACH / wall_s
    # The rate depends on other load on the machine. If it is too low, the CPU of a turn decides.
    loaded = rate < RATE_MIN
    return [
        Figure("many-sessions-rate", rate, "/s", None if loaded else RATE_MIN, at_least=True),
        Figure("many-sessions-cpu", cpu_ms, "ms", CPU_MS_WHERE_LOADED_MAX if loaded else None),
        Figure("many-sessions-memory", rss, "MB", RSS_MB_MAX),
    ]


def measure_ready(folder: Path) -> list[Figure]:
    with mock(0) as port:
        first: list[float] = []
        for _ in range(5):
            with server_process(folder / "ready", port) as (_, ready_s):
                first.append(ready_s)
    return [
        Figure("first-start-time", first[0], "s", note="creates the store"),
        Figure("start-time", median(first[1:]), "s", READY_S_MAX),
    ]


def measure_large_store(folder: Path, rows: int = large_store.ROWS) -> list[Figure]:
    accept, claim = large_store.main(folder, rows)
    note = f"{rows:,} envelopes, relative to an empty store"
    return [
        Figure("large-store-accept-ratio", accept, "x", LARGE_STORE_RATIO_MAX, note=note),
        Figure("large-store-claim-ratio", claim, "x", LARGE_STORE_RATIO_MAX, note=note),
    ]


def measure_cli(folder: Path) -> list[Figure]:
    with mock(0) as port, server_process(folder / "cli", port):
        return cli.measure(folder / "cli")


def measure_posts(folder: Path) -> list[Figure]:
    with mock(0) as port, server_process(folder / "http_posts", port):
        return http_posts.measure(folder / "http_posts")


def measure_clients(_: Path) -> list[Figure]:
    with mock(0) as port:
        return clients.measure(port)


PARTS: Mapping[str, Callable[[Path], list[Figure]]] = {
    "clients": measure_clients,
    "turns": measure_turns,
    "tools": tool_turns.measure_tools,
    "restored": tool_turns.measure_restored,
    "tool-calls": tool_calls.measure,
    "sandbox": sandbox.measure,
    "delegation": delegation.measure,
    "schedules": schedules.measure,
    "connector-intake": connector_intake.measure,
    "many": measure_many,
    "ready": measure_ready,
    "large-store": measure_large_store,
    "cli": measure_cli,
    "http-posts": measure_posts,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one or more of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rows", type=int, default=large_store.ROWS, help="number of envelopes in the large store")
    asked = parser.parse_args()
    unknown = set(asked.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="retinue-bench-", dir=os.environ.get("RETINUE_BENCH_DIR")) as name:
        for part in asked.parts or PARTS:
            folder = Path(name) / part
            folder.mkdir()
            for figure in measure_large_store(folder, asked.rows) if part == "large-store" else PARTS[part](folder):
                print(figure.line(), flush=True)
                failed += figure.failed
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
