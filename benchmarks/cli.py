"""The cost of a CLI command. Agents call the CLI often, and a command spends most of its time starting up."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure, median

ROUNDS = 40
SEND_WALL_MS_MAX, SEND_CPU_MS_MAX = 60.0, 45.0
VERSION_RATIO_MAX = 5.0
LOADED_RATIO_MIN = 1.25


def measure(home: Path) -> list[Figure]:
    """Measure against a running server. Bare Python, `--version` and `send` alternate, under the same load."""
    retinue = [str(Path(sys.executable).with_name("retinue"))]
    commands: dict[str, Sequence[str]] = {
        "python": [sys.executable, "-c", "pass"],
        "version": [*retinue, "--version"],
        "send": [*retinue, "send", "agent:core", "hello"],
        "status": [*retinue, "status"],
        "list": [*retinue, "session", "list"],
    }
    walls: dict[str, list[float]] = {name: [] for name in commands}
    cpus: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, words in commands.items():
            wall_s, cpu_s = _run_once(words, home)
            walls[name].append(wall_s * 1000)
            cpus[name].append(cpu_s * 1000)
    ratio = median([ours / bare for ours, bare in zip(cpus["version"], cpus["python"], strict=True)])
    # If Python itself waits for the processor, the elapsed time measures the load, and the CPU time decides.
    bare_wall, bare_cpu = median(walls["python"]), median(cpus["python"])
    loaded = bare_wall > LOADED_RATIO_MIN * bare_cpu
    note = f"bare Python {bare_wall:.0f} ms" + (", because the machine is busy" if loaded else "")
    return [
        Figure("cli-python-cpu", bare_cpu, "ms"),
        Figure("cli-version-cpu", median(cpus["version"]), "ms"),
        Figure("cli-version-ratio", ratio, "x", VERSION_RATIO_MAX),
        Figure("cli-send-time", median(walls["send"]), "ms", None if loaded else SEND_WALL_MS_MAX, note=note),
        Figure("cli-send-cpu", median(cpus["send"]), "ms", SEND_CPU_MS_MAX),
        Figure("cli-status-time", median(walls["status"]), "ms"),
        Figure("cli-session-list-time", median(walls["list"]), "ms"),
        Figure("cli-session-list-cpu", median(cpus["list"]), "ms"),
    ]


def _run_once(words: Sequence[str], home: Path) -> tuple[float, float]:
    """Run one command, and return its elapsed and CPU seconds, including the start of the interpreter."""
    environment = {**os.environ, "RETINUE_HOME": str(home)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
