"""Identifies a process by more than its pid, because the kernel reuses pids."""

from __future__ import annotations

import os
import signal
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # start time in ticks since boot, a field of /proc/PID/stat after the name


def read_identity(pid: int) -> str:
    """Return the boot id and the start time of a process as one string. It is empty if they cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # The name is in parentheses and may itself contain parentheses.
        fields = stat.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):  # a zombie that was not reaped yet
            return ""
        return f"{_BOOT_ID.read_text().strip()}/{fields[_START_FIELD]}"
    except (OSError, IndexError):
        return ""


def kill_leftover(pid: int, identity: str) -> str:
    """Kill a process that an earlier server process left running, and its group, unless the pid was reused.

    Returns the reason to store for the end of the command.
    """
    if pid <= 1 or not identity or read_identity(pid) != identity:
        return "it had ended when the server was started again, and its exit code is unknown"
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return "it had ended when the server was started again, and its exit code is unknown"
    except PermissionError:
        return "the server was stopped while it ran, and it could not be ended: it runs as another user"
    return "the server was stopped while it ran, so it was ended when the server was started again"
