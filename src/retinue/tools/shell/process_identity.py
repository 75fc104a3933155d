"""Telling a process from another one that has its number by now."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # of /proc/PID/stat, counted from after the name: when it began, in ticks since the boot


def mark_of(pid: int) -> str:
    """The boot of the machine and the moment at which a process began; empty where the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The name stands in parentheses and may hold anything, also parentheses.
        fields = stat.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):  # it has ended, and only nobody has looked yet
            return ""
        return f"{_BOOT.read_text().strip()}/{fields[_START_FIELD]}"
    except (OSError, IndexError):
        return ""


def end_left_over(pid: int, mark: str) -> str:
    """End a process of an earlier house, and its group, if it is still that one. What was found, and what was done."""
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
