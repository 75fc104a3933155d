"""Measures the memory and processes of a command and its descendants, for limits that the kernel does not enforce."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from retinue.sandbox.base import MIB, ResourceLimits

PAGE_BYTES = 4096
PROCESSES_MAX = 100_000
_PROC = Path("/proc")


class ResourceMonitor:
    """Checks which limit a process tree exceeds. `find_excess` returns an empty string if it exceeds none.

    The sum of the resident memory is cheap to read, but counts shared pages once per process. The
    proportional share (PSS) is expensive to read, so it is read only if that sum exceeds the limit.
    """

    def __init__(self, root: int, limits: ResourceLimits, *, launcher_processes: int = 0) -> None:
        self._root = root
        self._limits = limits
        self._launcher_processes = launcher_processes  # launcher processes, which are not counted

    def find_excess(self) -> str:
        processes = list(_iterate_process_tree(self._root))
        threads = 0
        resident = 0
        for pid in processes:
            threads += _count_threads(pid)
            resident += _read_resident_bytes(pid)
        if threads - self._launcher_processes > self._limits.processes:
            return f"it started more than {self._limits.processes:,} processes"
        if (
            resident > self._limits.memory_bytes
            and sum(map(_read_proportional_bytes, processes)) > self._limits.memory_bytes
        ):
            return f"it used more than {self._limits.memory_bytes // MIB:,} MiB of memory"
        return ""


def list_process_tree(root: int) -> list[int]:
    """Return the pids of a process and its descendants, except descendants whose parent has exited."""
    return list(_iterate_process_tree(root))


def _iterate_process_tree(root: int) -> Iterator[int]:
    waiting = [root]
    seen = 0
    while waiting and seen < PROCESSES_MAX:
        pid = waiting.pop()
        seen += 1
        yield pid
        waiting += _list_children(pid)


def _list_children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:  # the process has ended
        pass
    return found


def _count_threads(pid: int) -> int:
    try:
        return len(list((_PROC / str(pid) / "task").iterdir()))
    except OSError:
        return 0


def _read_resident_bytes(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _read_proportional_bytes(pid: int) -> int:
    """Return the proportional memory (PSS) of a process.

    If it is unreadable, return the resident memory, which is never lower.
    """
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return _read_resident_bytes(pid)
    return 0
