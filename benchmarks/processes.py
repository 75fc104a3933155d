"""The processes of a benchmark: the mock provider, and the server that uses it."""

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
IDLE_WAIT_S_MAX = 10.0
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
def server_process(home: Path, port: int, *, telegram: str = "") -> Generator[tuple[int, float]]:
    """Run the server as a process. Yields its id, and the seconds until it answered its first
    request. `telegram` is the URL of a Bot API to which the server connects."""
    home.mkdir(exist_ok=True)
    started = time.perf_counter()
    words = [str(home), str(port), *([telegram] if telegram else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.server", *words], env={**os.environ, "BENCH_BOT_TOKEN": TOKEN}
    )
    try:
        ready_s = asyncio.run(_wait_until_ready(home, started))
        _wait_until_idle(process.pid)
        yield process.pid, ready_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _wait_until_idle(pid: int) -> None:
    """Wait until the server is idle. A new server first creates the folders of its sandbox."""
    deadline = time.perf_counter() + IDLE_WAIT_S_MAX
    before, now = -1.0, cpu_s(pid)
    while now - before > IDLE_CPU_S and time.perf_counter() < deadline:
        time.sleep(IDLE_S)
        before, now = now, cpu_s(pid)


async def _wait_until_ready(home: Path, started: float) -> float:
    while True:
        client = Client(home)
        try:
            await client.call("server.status", {})
            return time.perf_counter() - started
        except OSError:
            if time.perf_counter() - started > READY_S_MAX:
                raise
            await asyncio.sleep(0.01)
        finally:
            client.close()
