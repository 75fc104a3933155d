"""What confining a command costs: `true`, plain and sandboxed in turns, under the same load.

The plain spawn is the house's own: the same door, group, limits and environment, without the walls. What a bare fork
and exec costs, with none of these, is reported beside it.
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
TRUE = "/usr/bin/true"


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
        await _over(await sandbox.start([TRUE], confinement))

    host = HostSandbox()

    async def plain() -> None:
        await _over(await host.start([TRUE], confined))

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "bare": _bare,
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
    # A sandbox hands over between processes five times. Where others want the processor too, each time is a wait, and
    # the wall says more of the machine than of us; so it is the quickest tenth that counts, of each.
    taken = {name: sorted(values)[len(values) // 10] for name, values in walls_ms.items()}
    return [
        Figure("sandbox-bare-spawn", taken["bare"], "ms", note="a fork and an exec, without any limit"),
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


async def _bare() -> None:
    """As one would spawn a command without us: with its output read, and waited for."""
    process = await asyncio.create_subprocess_exec(
        TRUE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    await process.communicate()


async def _over(child: ChildProcess) -> None:
    child.close_input()
    while await child.read():
        pass
    await child.wait()
