"""Runs commands on the host without a sandbox, if the owner explicitly chose that.

The commands see what the server sees, including its secrets. They still have their own process
group, limits per process and a separate environment.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from retinue.sandbox.base import Confinement, ResourceLimits, SandboxProbe
from retinue.sandbox.child_process import ChildProcess, spawn
from retinue.sandbox.errors import CommandNotStarted
from retinue.sandbox.mounts import build_command_environment
from retinue.sandbox.resource_monitor import ResourceMonitor, list_process_tree

MARKER_VARIABLE = "RETINUE_COMMAND"
"""Environment variable that marks all processes of a command, to find those that left its process group."""
KILL_ROUNDS_MAX = 5
_NUMBERS = itertools.count(1)


class HostSandbox:
    """Runs commands on the host, without isolation but with resource limits."""

    name = "off"

    def __init__(self) -> None:
        self._prlimit = shutil.which("prlimit")
        self._setsid = shutil.which("setsid")

    async def probe(self) -> SandboxProbe:
        return SandboxProbe(
            True,
            "it isolates nothing: commands run with all the rights that the server has",
            'set `kind = "bubblewrap"` in [sandbox]',
        )

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> ChildProcess:
        if confinement.network is not None and confinement.network.injected:
            raise CommandNotStarted(
                because="adding a secret to requests needs a sandbox with its own network", try_this=_TRY_SANDBOX
            )
        if not argv or any("\0" in word for word in argv):
            raise CommandNotStarted(
                because="the command is empty or contains NUL", try_this="pass a program and its arguments"
            )
        mark = f"{os.getpid()}-{next(_NUMBERS)}"
        environment = {**build_command_environment(confinement), MARKER_VARIABLE: mark}
        try:
            spawned = spawn(
                [*self._build_limit_arguments(confinement.limits), *self._build_terminal_arguments(pty), *argv],
                environment=environment,
                folder=confinement.folder,
                pty=pty,
                new_session=not (pty and self._setsid),
            )
        except OSError as error:
            raise CommandNotStarted(
                because=error.strerror or "it cannot be executed",
                try_this="check that the program and its folder exist",
            ) from error
        pid = spawned.popen.pid
        watch = ResourceMonitor(pid, confinement.limits).find_excess if sys.platform == "linux" else None
        return ChildProcess(
            spawned,
            limits=confinement.limits,
            kill_all=lambda: _kill_tree(pid, mark),
            has_terminal=pty,
            find_excess=watch,
        )

    def _build_limit_arguments(self, limits: ResourceLimits) -> list[str]:
        """Return a prlimit command, which sets limits per process before the command starts.

        The number of processes and their total memory are monitored instead, because prlimit cannot
        limit them for one command.
        """
        if self._prlimit is None:
            return []
        return [
            self._prlimit,
            f"--data={limits.memory_bytes}",
            f"--fsize={limits.file_bytes}",
            "--core=0",
        ]

    def _build_terminal_arguments(self, pty: bool) -> list[str]:
        return [self._setsid, "--ctty"] if pty and self._setsid else []


def _kill_tree(pid: int, marker: str) -> None:
    """Kill the process group, its descendants, and all other processes with the command's marker.

    Repeats until no new process is found.
    """
    for _ in range(KILL_ROUNDS_MAX):
        found = (
            set(list_process_tree(pid)) - {pid} | _find_marked_processes(marker, pid)
            if sys.platform == "linux"
            else set[int]()
        )
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        for each in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        if not found - {pid}:
            return


def _find_marked_processes(marker: str, first_pid: int) -> set[int]:
    """Return the processes that have the marker in their environment.

    Only pids above `first_pid` are checked, unless pids have wrapped around.
    """
    wanted = f"{MARKER_VARIABLE}={marker}".encode()
    latest = int(Path("/proc/loadavg").read_text().rsplit(maxsplit=1)[1])
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    found: set[int] = set()
    for pid in pids if latest < first_pid else {pid for pid in pids if pid > first_pid}:
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


_TRY_SANDBOX = 'set `kind = "bubblewrap"` in [sandbox]'
