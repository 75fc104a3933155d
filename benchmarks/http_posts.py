"""A small POST without effect, next to bare Starlette and msgspec, and the rate of durably accepted envelopes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.client import Client
from benchmarks.measure import Figure, median
from benchmarks.raw_http import Wire, unix_wire

ROUNDS, POSTS = 7, 400
RATIO_MIN = 0.5
ACCEPTS, AT_ONCE = 600, 16


async def _rate(wire: Wire, path: bytes, headers: bytes) -> float:
    before = time.perf_counter()
    for _ in range(POSTS):
        await wire.request([b"{}"], path=path, headers=headers)
    return POSTS / (time.perf_counter() - before)


async def _measure_rates(home: Path, bare_socket: str) -> tuple[float, float]:
    token = (home / "owner-token").read_text().strip()
    ours = await unix_wire((home / "socket").read_text())
    bare = await _bare_wire(bare_socket)
    headers = f"authorization: Bearer {token}\r\ncontent-type: application/json\r\n".encode()
    server_rates: list[float] = []
    floor: list[float] = []
    for _ in range(ROUNDS):  # alternating, so other load on the machine affects both
        floor.append(await _rate(bare, b"/api/person/whoami", headers))
        server_rates.append(await _rate(ours, b"/api/person/whoami", headers))
    ours.close()
    bare.close()
    return median(server_rates), median(floor)


async def _bare_wire(path: str) -> Wire:
    for _ in range(500):
        try:
            return await unix_wire(path)
        except OSError:
            await asyncio.sleep(0.02)
    raise RuntimeError("bare Starlette did not start")


async def _accept_rate(home: Path) -> float:
    """Measure how many messages to a person are accepted per second. They are stored, and start no run."""
    client = Client(home)
    await client.call("server.status", {})

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
    bare = subprocess.Popen([sys.executable, "-m", "benchmarks.bare_starlette", socket])
    try:
        ours, floor = asyncio.run(_measure_rates(home, socket))
    finally:
        bare.terminate()
        bare.wait(30)
    return [
        Figure("post-floor-rate", floor, "/s"),
        Figure("post-rate", ours, "/s"),
        Figure("post-ratio", ours / floor, "x", RATIO_MIN, at_least=True),
        Figure("accept-rate", asyncio.run(_accept_rate(home)), "/s", note=f"{AT_ONCE} at once, each on disk"),
    ]
