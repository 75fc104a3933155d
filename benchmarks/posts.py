"""A small POST without effect, beside bare Starlette and msgspec; and how many envelopes are durably taken a second."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.client import Client
from benchmarks.measure import Figure, median
from benchmarks.wire import Wire, unix_wire

ROUNDS, POSTS = 7, 400
RATIO_MIN = 0.5
ACCEPTS, AT_ONCE = 600, 16


async def _rate(wire: Wire, path: bytes, headers: bytes) -> float:
    before = time.perf_counter()
    for _ in range(POSTS):
        await wire.request([b"{}"], path=path, headers=headers)
    return POSTS / (time.perf_counter() - before)


async def _beside_bare(home: Path, bare_socket: str) -> tuple[float, float]:
    token = (home / "owner-token").read_text().strip()
    ours = await unix_wire((home / "socket").read_text())
    bare = await _bare_wire(bare_socket)
    headers = f"authorization: Bearer {token}\r\ncontent-type: application/json\r\n".encode()
    house: list[float] = []
    floor: list[float] = []
    for _ in range(ROUNDS):  # in turn: whatever else the machine does, it does to both
        floor.append(await _rate(bare, b"/api/person/whoami", headers))
        house.append(await _rate(ours, b"/api/person/whoami", headers))
    ours.close()
    bare.close()
    return median(house), median(floor)


async def _bare_wire(path: str) -> Wire:
    for _ in range(500):
        try:
            return await unix_wire(path)
        except OSError:
            await asyncio.sleep(0.02)
    raise RuntimeError("bare Starlette does not open")


async def _accepts(home: Path) -> float:
    """Mail to a person: on disk and in an inbox, and nobody's turn."""
    client = Client(home)
    await client.call("house.status", {})

    async def send(count: int) -> None:
        for _ in range(count):
            await client.call("envelope.send", {"to": "person:owner", "text": json.dumps({"n": 1})})

    before = time.perf_counter()
    await asyncio.gather(*(send(ACCEPTS // AT_ONCE) for _ in range(AT_ONCE)))
    rate = ACCEPTS // AT_ONCE * AT_ONCE / (time.perf_counter() - before)
    client.close()
    return rate


def measure(home: Path) -> list[Figure]:
    socket = str(home / "bare.sock")
    bare = subprocess.Popen([sys.executable, "-m", "benchmarks.bare", socket])
    try:
        ours, floor = asyncio.run(_beside_bare(home, socket))
    finally:
        bare.terminate()
        bare.wait(30)
    return [
        Figure("post-bare", floor, "/s"),
        Figure("post-rate", ours, "/s"),
        Figure("post-ratio", ours / floor, "x", RATIO_MIN, at_least=True),
        Figure("accept-rate", asyncio.run(_accepts(home)), "/s", note=f"{AT_ONCE} at once, each on disk"),
    ]
