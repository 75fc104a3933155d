"""Identifies a process beyond its pid, because the kernel reuses pids."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # start time in ticks since boot, a field of /proc/PID/stat after the name


def mark_of(pid: int) -> str:
    """Return the boot id and the start time of a process; empty if the system does not provide
    them.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The name is in parentheses and may itself contain parentheses.
        fields = stat.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):  # a zombie that was not reaped yet
            return ""
        return f"{_BOOT.read_text().strip()}/{fields[_START_FIELD]}"
    except (OSError, IndexError):
        return ""


def end_left_over(pid: int, mark: str) -> str:
    """Kill a process left by an earlier server process, with its group, if the pid was not reused.

    Returns what was found and done.
    """
    if pid <= 1 or not mark or mark_of(pid) != mark:
        return "it was gone when the house was opened again, and how it ended is not known"
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return "it was gone when the house was opened again, and how it ended is not known"
    except PermissionError:
        return "the house was closed while it ran, and it could not be ended: it runs as somebody else"
    return "the house was closed while it ran, so it was ended when the house was opened again"
