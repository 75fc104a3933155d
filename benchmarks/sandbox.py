"""What confining a command costs: `true`, plain and sandboxed in turns, under the same load.

The plain spawn is the house's own: the same door, group, limits and environment, without the walls. What a bare fork and
exec costs, with none of these, is reported beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.measure import Figure, median
from retinue.sandbox.base import Confinement, Network
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.child import Process
from retinue.sandbox.host import Host

ROUNDS = 60
PLAIN_RATIO_MAX, NETWORK_RATIO_MAX = 4.0, 15.0
TRUE = "/usr/bin/true"


def measure(folder: Path) -> list[Figure]:
    return asyncio.run(_measure(folder))


async def _measure(folder: Path) -> list[Figure]:
    sandbox = Bubblewrap(folder=folder / "sandbox")
    probe = await sandbox.probe()
    if not probe.works:
        return [Figure("sandbox", 0, "x", skipped=probe.because)]
    workspace = (folder / "workspace").resolve()
    workspace.mkdir()
    confined = Confinement(folder=workspace, writable=(workspace,))
    networked = Confinement(folder=workspace, writable=(workspace,), network=Network(hosts=("example.com",)))

    async def sandboxed(confinement: Confinement) -> None:
        await _over(await sandbox.start([TRUE], confinement))

    host = Host()

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
    return [
        Figure("sandbox-bare-spawn", median(walls_ms["bare"]), "ms", note="a fork and an exec, without any limit"),
        Figure("sandbox-plain-spawn", median(walls_ms["plain"]), "ms"),
        Figure("sandbox-true", median(walls_ms["confined"]), "ms"),
        Figure("sandbox-ratio", _ratio(walls_ms, "confined"), "x", PLAIN_RATIO_MAX),
        Figure("sandbox-network-true", median(walls_ms["networked"]), "ms"),
        Figure("sandbox-network-ratio", _ratio(walls_ms, "networked"), "x", NETWORK_RATIO_MAX),
    ]


def _ratio(walls_ms: dict[str, list[float]], name: str) -> float:
    return median(walls_ms[name]) / median(walls_ms["plain"])


async def _bare() -> None:
    """As one would spawn a command without us: with its output read, and waited for."""
    process = await asyncio.create_subprocess_exec(
        TRUE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    await process.communicate()


async def _over(child: Process) -> None:
    child.close_input()
    while await child.read():
        pass
    await child.wait()
