"""The cost of a sandbox. The command `true` runs plain and sandboxed in turn, under the same load.

The plain spawn is the server's own, with the same launcher, limits and environment, but without a sandbox. A bare
fork and exec is reported next to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.measure import Figure
from retinue.sandbox.base import Confinement, NetworkAccess
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.sandbox.child_process import ChildProcess
from retinue.sandbox.host import HostSandbox

ROUNDS = 60
PLAIN_RATIO_MAX, NETWORK_RATIO_MAX = 4.0, 15.0
TRUE_COMMAND = "/usr/bin/true"


def measure(folder: Path) -> list[Figure]:
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> list[Figure]:
    sandbox = BubblewrapSandbox(folder=folder / "sandbox")
    probe = await sandbox.probe()
    if not probe.works:
        return [Figure("sandbox", 0, "x", skipped=probe.because)]
    workspace = (folder / "workspace").resolve()
    workspace.mkdir()
    confined = Confinement(folder=workspace, writable=(workspace,))
    networked = Confinement(folder=workspace, writable=(workspace,), network=NetworkAccess(hosts=("example.com",)))

    async def sandboxed(confinement: Confinement) -> None:
        await _wait_for_end(await sandbox.start([TRUE_COMMAND], confinement))

    host = HostSandbox()

    async def plain() -> None:
        await _wait_for_end(await host.start([TRUE_COMMAND], confined))

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "bare": _spawn_bare,
        "plain": plain,
        "confined": lambda: sandboxed(confined),
        "networked": lambda: sandboxed(networked),
    }
    walls_ms: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            before = time.perf_counter()
            await way()
            walls_ms[name].append((time.perf_counter() - before) * 1000)
    # A sandbox switches between processes five times. On a busy machine each switch is a wait, and the elapsed time
    # measures the load; so the fastest tenth of each counts.
    taken = {name: sorted(values)[len(values) // 10] for name, values in walls_ms.items()}
    return [
        Figure("sandbox-bare-spawn", taken["bare"], "ms", note="a fork and an exec, without limits"),
        Figure("sandbox-plain-spawn", taken["plain"], "ms"),
        *_figures("sandbox", taken, "confined", PLAIN_RATIO_MAX),
        *_figures("sandbox-network", taken, "networked", NETWORK_RATIO_MAX),
    ]


def _figures(name: str, taken: dict[str, float], way: str, limit: float) -> list[Figure]:
    note = f"{taken[way] / taken['bare']:.1f}x the bare spawn"
    return [
        Figure(f"{name}-true", taken[way], "ms"),
        Figure(f"{name}-ratio", taken[way] / taken["plain"], "x", limit, note=note),
    ]


async def _spawn_bare() -> None:
    """Run the command without our launcher: read its output, and wait for its end."""
    process = await asyncio.create_subprocess_exec(
        TRUE_COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    await process.communicate()


async def _wait_for_end(child: ChildProcess) -> None:
    child.close_input()
    while await child.read():
        pass
    await child.wait()
