"""Runs commands on the host without a sandbox, by the owner's explicit choice.

They see what the server sees, including its secrets. They still get their own process group, limits
per process and a separate environment.
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

from retinue.sandbox.base import Confinement, Limits, Probe, SandboxFailed
from retinue.sandbox.child_process import Process, spawn
from retinue.sandbox.mounts import environment_of
from retinue.sandbox.resource_monitor import Watch, descendants

MARK = "RETINUE_COMMAND"
"""Environment variable that identifies processes of a command that left its process group."""
ENDINGS_MAX = 5
_NUMBERS = itertools.count(1)


class Host:
    """Runs commands on the host."""

    name = "off"

    def __init__(self) -> None:
        self._prlimit = shutil.which("prlimit")
        self._setsid = shutil.which("setsid")

    async def probe(self) -> Probe:
        return Probe(True, "it confines nothing: commands run as the house itself", 'set `kind = "bubblewrap"`')

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> Process:
        if confinement.network is not None and confinement.network.injected:
            raise _failed("only a sandbox with a network of its own can use a secret without reading it", _SANDBOX)
        if not argv or any("\0" in word for word in argv):
            raise _failed("there is no command, or it has a NUL in it", "name a program and its arguments")
        mark = f"{os.getpid()}-{next(_NUMBERS)}"
        environment = {**environment_of(confinement), MARK: mark}
        try:
            spawned = spawn(
                [*self._limited(confinement.limits), *self._at_terminal(pty), *argv],
                environment=environment,
                folder=confinement.folder,
                pty=pty,
                new_session=not (pty and self._setsid),
            )
        except OSError as error:
            raise _failed(
                error.strerror or "it cannot be run", "look whether the program and its folder are there"
            ) from error
        pid = spawned.popen.pid
        watch = Watch(pid, confinement.limits).excess if sys.platform == "linux" else None
        return Process(spawned, limits=confinement.limits, end=lambda: _end(pid, mark), terminal=pty, excess=watch)

    def _limited(self, limits: Limits) -> list[str]:
        """Return a prlimit command for limits per process, set before it starts.

        The number of processes and their total memory are monitored instead, because the kernel
        counts those per user.
        """
        if self._prlimit is None:
            return []
        return [
            self._prlimit,
            f"--data={limits.memory_bytes}",
            f"--fsize={limits.file_bytes}",
            "--core=0",
        ]

    def _at_terminal(self, pty: bool) -> list[str]:
        return [self._setsid, "--ctty"] if pty and self._setsid else []


def _end(pid: int, mark: str) -> None:
    """Kill the process group, its descendants, and processes outside of it that have the marker.

    Repeats until no new process is found.
    """
    for _ in range(ENDINGS_MAX):
        found = set(descendants(pid)) - {pid} | _marked(mark, pid) if sys.platform == "linux" else set[int]()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        for each in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        if not found - {pid}:
            return


def _marked(mark: str, first: int) -> set[int]:
    """Return the processes with the marker. Only pids above the command's are checked, unless pids
    wrapped.
    """
    wanted = f"{MARK}={mark}".encode()
    latest = int(Path("/proc/loadavg").read_text().rsplit(maxsplit=1)[1])
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    found: set[int] = set()
    for pid in pids if latest < first else {pid for pid in pids if pid > first}:
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


_SANDBOX = 'set `kind = "bubblewrap"` in [sandbox]'


def _failed(because: str, try_this: str) -> SandboxFailed:
    return SandboxFailed("the command was not begun", because=because, try_this=try_this)
