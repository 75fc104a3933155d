"""The processes of a run: the mock provider, and the house that asks it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

from benchmarks.client import Client
from benchmarks.measure import cpu_s
from retinue.testing.telegram_server import TOKEN

READY_S_MAX = 30.0
REST_S_MAX = 10.0
IDLE_S, IDLE_CPU_S = 0.25, 0.005


@contextlib.contextmanager
def mock(latency_s: float) -> Generator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.mock", str(latency_s)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def house(home: Path, port: int, *, telegram: str = "") -> Generator[tuple[int, float]]:
    """The daemon as a process: its id, and how long it took to answer its first request. With the address of a Bot API
    it listens there."""
    home.mkdir(exist_ok=True)
    started = time.perf_counter()
    words = [str(home), str(port), *([telegram] if telegram else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.house", *words], env={**os.environ, "BENCH_BOT_TOKEN": TOKEN}
    )
    try:
        ready_s = asyncio.run(_ready(home, started))
        _rest(process.pid)
        yield process.pid, ready_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _rest(pid: int) -> None:
    """Until it does nothing more of its own. A new house makes the folders of its sandbox beside whatever it is asked
    first: once in its life, and nothing that a turn takes."""
    deadline = time.perf_counter() + REST_S_MAX
    before, now = -1.0, cpu_s(pid)
    while now - before > IDLE_CPU_S and time.perf_counter() < deadline:
        time.sleep(IDLE_S)
        before, now = now, cpu_s(pid)


async def _ready(home: Path, started: float) -> float:
    while True:
        client = Client(home)
        try:
            await client.call("house.status", {})
            return time.perf_counter() - started
        except OSError:
            if time.perf_counter() - started > READY_S_MAX:
                raise
            await asyncio.sleep(0.01)
        finally:
            client.close()
