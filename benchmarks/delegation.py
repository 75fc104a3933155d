"""The cost of delegation: one agent asks another, and one starts a thousand subagents at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.client import Client
from benchmarks.delegation_model import ASK
from benchmarks.measure import Figure, cpu_s, median, rss_mb
from benchmarks.processes import mock, server_process
from benchmarks.server import SUBAGENTS_AT_ONCE

ROUNDS, TURNS = 10, 20
CHILDREN, SPAWN_ROUNDS = 1_000, 4
DONE_S_MAX = 300.0
PAGE_SIZE = 100

ROUND_TRIP_RATIO_MAX = 4.0
GROWTH_MB_MAX = 4.0  # growth by another thousand subagents, once the caches are full


def measure(folder: Path) -> list[Figure]:
    with mock(0) as port:
        with server_process(folder / "asking", port) as (pid, _):
            plain, asked = asyncio.run(_round_trips(folder / "asking", pid))
        with server_process(folder / "sending", port) as (pid, _):
            most, walls, memory = asyncio.run(_spawn_children(folder / "sending", pid))
    ratio = median([theirs / ours for ours, theirs in zip(plain, asked, strict=True)])
    return [
        Figure("delegation-plain-turn-cpu", median(plain) * 1000, "ms"),
        Figure("delegation-turn-cpu", median(asked) * 1000, "ms", note="two runs, three model calls"),
        Figure("delegation-turn-ratio", ratio, "x", ROUND_TRIP_RATIO_MAX),
        Figure("subagents-time", median(walls), "s", note=f"{CHILDREN:,} subagents at once, until all have reported"),
        Figure("subagents-slots", most, "", SUBAGENTS_AT_ONCE, note="most slots of subagents in use"),
        Figure("subagents-memory", memory[-1], "MB"),
        Figure("subagents-memory-growth", memory[-1] - memory[-2], "MB", GROWTH_MB_MAX, note="by the last thousand"),
    ]


async def _round_trips(home: Path, pid: int) -> tuple[list[float], list[float]]:
    """Measure the CPU time of a plain turn, and of a turn that asks another agent, alternating under the same load."""
    client = Client(home)  # one client follows the events, as in every other turn that is measured
    await client.follow()
    await client.ask("warm up", "warm-up")
    await client.ask(f"{ASK}: warm up", "warm-up", agent="asker")
    plain: list[float] = []
    asked: list[float] = []
    for number in range(ROUNDS):
        before = cpu_s(pid)
        for _ in range(TURNS):
            await client.ask("message number 1", f"plain-{number}")
        plain.append((cpu_s(pid) - before) / TURNS)
        before = cpu_s(pid)
        for _ in range(TURNS):
            await client.ask(f"{ASK}: message number 1", f"asked-{number}", agent="asker")
        asked.append((cpu_s(pid) - before) / TURNS)
    client.close()
    return plain, asked


async def _spawn_children(home: Path, pid: int) -> tuple[float, list[float], list[float]]:
    """Start a thousand subagents in each round. Returns the most slots in use, the seconds for each
    round, and the server's memory after each.
    """
    client = Client(home, agent="asker")
    await client.follow()
    most, walls, memory = 0, list[float](), list[float]()
    for number in range(1, SPAWN_ROUNDS + 1):
        before = time.perf_counter()
        sent = await client.call(
            "envelope.send", {"to": "agent:asker", "text": f"Send out {CHILDREN}", "conversation": "sending"}
        )
        most = max(most, await _wait_until_reported(client, sent["session"], CHILDREN * number, before))
        walls.append(time.perf_counter() - before)
        memory.append(rss_mb(pid))
        # The reports stay in the cached context of the session, so each thousand starts with a reset.
        await client.call("session.reset", {"session": sent["session"]})
    client.close()
    return float(most), walls, memory


async def _wait_until_reported(client: Client, session: str, count: int, since: float) -> int:
    """Wait until all subagents have ended and reported. Returns the most that ran at once."""
    most = 0
    while time.perf_counter() - since < DONE_S_MAX:
        client.check()
        lanes = await client.call("server.lanes", {"limit": 1})
        most = max(most, *(slots["used"] for slots in lanes["slots"] if slots["lane"] == "subagent"))
        if not any(slots["used"] or slots["waiting_count"] for slots in lanes["slots"]):
            found = await _outcomes(client, session)
            if len(found) == count and set(found) == {"ok"}:
                return most
        await asyncio.sleep(0.05)
    raise RuntimeError(f"not done within {DONE_S_MAX:g} s")


async def _outcomes(client: Client, session: str) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        page: dict[str, Any] = await client.call(
            "subagent.list", {"session": session, "limit": PAGE_SIZE, "cursor": cursor, "all": True}
        )
        found += (each["outcome"] for each in page["subagents"])
        if not page["next"]:
            return found
        cursor = page["next"]
