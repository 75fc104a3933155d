"""The cost of a turn with a tool on the complete server, and of the first turn of a long session after a restart.

The floor of both is a raw request for each request that the server makes, and one durable commit.
For a turn with a tool, these are the server's own requests: a stream with a call, and a stream of
text.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.client import Client
from benchmarks.floor import Floor, LongFloor, ToolFloor
from benchmarks.measure import Figure, cpu_s, median
from benchmarks.mock import ASKS_FOR, LOOK, TOOL
from benchmarks.processes import mock, server_process

ROUNDS, TURNS = 10, 15
MESSAGES, RESTARTS = 5_000, 7

TOOL_RATIO_MAX = 10.0
RESTORED_RATIO_MAX = 4.0


def measure_tools(folder: Path) -> list[Figure]:
    """Measure a read-only built-in tool, as in most calls, and a tool whose intent has its own commit."""
    with mock(0) as port, server_process(folder / "tools", port) as (pid, _):
        floor, small = ToolFloor(folder / "floor.db", port), Floor(folder / "small-floor.db", port, requests=2)
        looks, calls = asyncio.run(_tool_turns(folder / "tools", pid, floor, small))
        floor.close()
        small.close()

    def ratio(cpus: list[float], base: Floor) -> float:
        return median([ours / theirs for ours, theirs in zip(cpus, base.cpus_s, strict=True)])

    return [
        Figure("tool-turn-floor-cpu", median(floor.cpus_s) * 1000, "ms", note="the same two streams, one commit"),
        Figure("tool-turn-read-only-cpu", median(looks) * 1000, "ms", note=f"{LOOK}, which is read-only"),
        Figure("tool-turn-read-only-cpu-ratio", ratio(looks, floor), "x", TOOL_RATIO_MAX),
        Figure("tool-turn-effect-cpu", median(calls) * 1000, "ms", note="a tool that might have an effect"),
        Figure("tool-turn-effect-cpu-ratio", ratio(calls, floor), "x", TOOL_RATIO_MAX),
        Figure(
            "tool-turn-small-floor-cpu", median(small.cpus_s) * 1000, "ms", note="two small JSON bodies, one commit"
        ),
        Figure("tool-turn-read-only-small-floor-ratio", ratio(looks, small), "x"),
        Figure("tool-turn-effect-small-floor-ratio", ratio(calls, small), "x"),
    ]


async def _tool_turns(home: Path, pid: int, *floors: Floor) -> tuple[list[float], list[float]]:
    client = Client(home, agent="thinker")
    await client.follow()
    cpus: dict[str, list[float]] = {LOOK: [], TOOL: []}
    for tool in cpus:
        await client.ask(f"{ASKS_FOR}{tool}", "warm-up")
    for _ in range(ROUNDS):  # alternating, so other load on the machine affects all
        for floor in floors:
            await floor.turns(TURNS)
        for tool, taken in cpus.items():
            before = cpu_s(pid)
            for number in range(TURNS):
                await client.ask(f"{number}: {ASKS_FOR}{tool}", tool)
            taken.append((cpu_s(pid) - before) / TURNS)
    client.close()
    return cpus[LOOK], cpus[TOOL]


def measure_restored(folder: Path) -> list[Figure]:
    home = folder / "restored"
    with mock(0) as port:
        base = LongFloor(folder, port, messages=MESSAGES)
        with server_process(home, port):
            asyncio.run(_long_session(home))
        firsts: list[float] = []
        nexts: list[float] = []
        for number in range(RESTARTS):
            with server_process(home, port) as (pid, _):
                asyncio.run(base.run_first_turn())
                first, following = asyncio.run(_measure_turns_after_restart(home, pid, number))
                firsts.append(first)
                nexts.append(following)
    ratio = median([ours / theirs for ours, theirs in zip(firsts, base.cpus_s, strict=True)])
    return [
        Figure(
            "restored-session-floor-cpu", median(base.cpus_s) * 1000, "ms", note=f"{MESSAGES:,} messages read and sent"
        ),
        Figure("restored-session-cpu", median(firsts) * 1000, "ms"),
        Figure("restored-session-cpu-ratio", ratio, "x", RESTORED_RATIO_MAX),
        Figure("restored-session-next-turn-cpu", median(nexts) * 1000, "ms", note="the turn after the first"),
    ]


async def _long_session(home: Path) -> None:
    client = Client(home, agent="thinker")
    await client.follow()
    for number in range(MESSAGES // 2):
        await client.ask(f"message number {number}", "long")
    client.close()


async def _measure_turns_after_restart(home: Path, pid: int, number: int) -> tuple[float, float]:
    """Measure the CPU time of the first and of the second turn in the long session. Before them, a
    turn in another session loads the shared parts.
    """
    client = Client(home, agent="thinker")
    await client.follow()
    await client.ask("warm up", "warm-up")
    before = cpu_s(pid)
    await client.ask(f"restart number {number}", "long")
    between = cpu_s(pid)
    await client.ask("and then?", "long")
    after = cpu_s(pid)
    client.close()
    return between - before, after - between
