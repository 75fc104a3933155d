"""What agents working together costs: one that asks another, and a thousand that are sent out at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.client import Client
from benchmarks.house import SUBAGENTS_AT_ONCE
from benchmarks.measure import Figure, cpu_s, median, rss_mb
from benchmarks.processes import house, mock
from benchmarks.staff_model import ASK

ROUNDS, TURNS = 10, 20
CHILDREN, SENDINGS = 1_000, 4
DONE_S_MAX = 300.0
PAGE = 100

ROUND_TRIP_RATIO_MAX = 4.0
GROWTH_MB_MAX = 4.0  # by another thousand, once the first have filled what is remembered


def measure(folder: Path) -> list[Figure]:
    with mock(0) as port:
        with house(folder / "asking", port) as (pid, _):
            plain, asked = asyncio.run(_round_trips(folder / "asking", pid))
        with house(folder / "sending", port) as (pid, _):
            most, walls, memory = asyncio.run(_sendings(folder / "sending", pid))
    ratio = median([theirs / ours for ours, theirs in zip(plain, asked, strict=True)])
    return [
        Figure("staff-turn-cpu", median(plain) * 1000, "ms"),
        Figure("staff-asked-cpu", median(asked) * 1000, "ms", note="two runs, three model calls"),
        Figure("staff-asked-ratio", ratio, "x", ROUND_TRIP_RATIO_MAX),
        Figure("staff-thousand", median(walls), "s", note=f"{CHILDREN:,} subagents at once, each told of"),
        Figure("staff-at-work", most, "", SUBAGENTS_AT_ONCE, note="slots of subagents in use at most"),
        Figure("staff-rss", memory[-1], "MB"),
        Figure("staff-rss-growth", memory[-1] - memory[-2], "MB", GROWTH_MB_MAX, note="by the last thousand"),
    ]


async def _round_trips(home: Path, pid: int) -> tuple[list[float], list[float]]:
    """CPU of a plain turn, and of one in which another agent is asked: in turn, under the same load."""
    client = Client(home)  # one follows the news, as in every other turn that is measured
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


async def _sendings(home: Path, pid: int) -> tuple[float, list[float], list[float]]:
    """Slots in use at most, how long each thousand took, and what the house holds after each."""
    client = Client(home, agent="asker")
    await client.follow()
    most, walls, memory = 0, list[float](), list[float]()
    for number in range(1, SENDINGS + 1):
        before = time.perf_counter()
        sent = await client.call(
            "envelope.send", {"to": "agent:asker", "text": f"Send out {CHILDREN}", "conversation": "sending"}
        )
        most = max(most, await _all_told(client, sent["session"], CHILDREN * number, before))
        walls.append(time.perf_counter() - before)
        memory.append(rss_mb(pid))
        # What it was told is a conversation like any other, and is kept warm: the next thousand begin afresh.
        await client.call("session.reset", {"session": sent["session"]})
    client.close()
    return float(most), walls, memory


async def _all_told(client: Client, session: str, count: int, since: float) -> int:
    """Wait until every one is done, and told of. Says how many were at work at once."""
    most = 0
    while time.perf_counter() - since < DONE_S_MAX:
        client.check()
        lanes = await client.call("house.lanes", {"limit": 1})
        most = max(most, *(slots["used"] for slots in lanes["slots"] if slots["lane"] == "subagent"))
        if not any(slots["used"] or slots["in-line"] for slots in lanes["slots"]):
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
            "subagent.list", {"session": session, "limit": PAGE, "cursor": cursor, "all": True}
        )
        found += (each["outcome"] for each in page["subagents"])
        if not page["next"]:
            return found
        cursor = page["next"]
