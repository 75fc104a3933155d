"""Starts test servers fast, by forking a process that has already imported the code.

Imports take most of the time of a normal start. The result is the real program in its own process,
which tests can signal and kill like any other. A test of the start itself, or of what is imported,
uses `subprocess` instead.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import cache
from typing import BinaryIO

# Modules that a server imports, at the start or with its first requests.
PRELOADED_MODULES = ("retinue.app.server", "retinue.api.event_feed", "uvloop")
REQUEST_BYTES_MAX = 1024 * 1024
FILES_MAX = 4  # standard input, output and error, and the socket that reports the exit status
SELECT_TIMEOUT_S = 60.0


class ForkedProcess:
    """A started program, with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, pidfd: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._status = status

    def poll(self) -> int | None:
        return self.returncode if self.returncode is not None else self._read_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        ended = self.returncode if self.returncode is not None else self._read_status(timeout)
        if ended is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        return ended

    async def wait_async(self) -> int:
        """Wait for the exit status without blocking the event loop. The call may be cancelled and repeated."""
        if self.returncode is None:
            loop, readable = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(self._status, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(self._status)
        return self.wait()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended meanwhile
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_status(self, timeout_s: float | None) -> int | None:
        poll = select.poll()  # `select` refuses numbers above 1,023, and a test may have that many files open
        poll.register(self._status, select.POLLIN)
        if not poll.poll(None if timeout_s is None else timeout_s * 1000):
            return None
        answer = self._status.recv(64)
        if not answer:
            raise RuntimeError(f"the fork server ended before process {self.pid}")
        self.returncode = int(answer)
        self._status.close()
        os.close(self._pidfd)
        return self.returncode


class ForkServer:
    """The process that forks test servers. It ends when the process that started it ends."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "retinue.testing.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def start(self, module: str, *, environment: Mapping[str, str], output: BinaryIO) -> ForkedProcess:
        """Start `python -m MODULE` with these variables. `output` gets its standard output and error."""
        request = json.dumps({"module": module, "environment": dict(environment), "directory": os.getcwd()})
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), output.fileno(), output.fileno(), theirs.fileno()]
            socket.send_fds(self._control, [request.encode()], files)
        answer, pidfds, _, _ = socket.recv_fds(ours, 64, 1, socket.MSG_CMSG_CLOEXEC)
        if not answer:
            ours.close()
            raise RuntimeError(f"the fork server did not start {module}")
        return ForkedProcess(int(answer), pidfds[0], ours)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


@cache
def get_fork_server() -> ForkServer:
    """Return the fork server of this process. It is started on first use."""
    server = ForkServer()
    atexit.register(server.close)
    return server


# --- the process that forks ---


def serve(control: socket.socket) -> Callable[[], int] | None:
    """Fork for each request until the control socket closes.

    In a forked child, return the program to run. In the parent, return None.
    """
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, _ignore_signal)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([control, woken], [], [], SELECT_TIMEOUT_S)
        if woken in readable:
            woken.recv(4096)
        _report_ended(running)
        if control not in readable:
            continue
        request, files, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, FILES_MAX)
        if not request:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _prepare_child(request, files)
        for file in files[:-1]:
            os.close(file)
        running[pid] = socket.socket(fileno=files[-1])
        pidfd = os.pidfd_open(pid)  # here, because the child may have ended, and its id is free once it is reaped
        socket.send_fds(running[pid], [str(pid).encode()], [pidfd])
        os.close(pidfd)


def _ignore_signal(number: int, frame: object) -> None:
    """Handle a signal by doing nothing. Without a handler, the signal would be ignored and would not wake `select`."""


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with closing(running.pop(pid)) as asker, suppress(OSError):  # the requesting process may be gone
            asker.send(str(os.waitstatus_to_exitcode(status)).encode())


def _prepare_child(request: bytes, files: list[int]) -> Callable[[], int]:
    """Set up a forked child as a new process, and return the main function to run.

    File descriptors, directory and environment are replaced, so that nothing of the forking process
    remains.
    """
    asked = json.loads(request)
    for number, file in enumerate(files[:-1]):
        os.dup2(file, number)
    os.closerange(3, 1 + max(int(name) for name in os.listdir("/proc/self/fd")))
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    path = asked["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in path if folder and folder not in sys.path]
    sys.argv = [asked["module"]]
    main: Callable[[], int] = importlib.import_module(asked["module"]).main
    return main


def main(number: str) -> int:
    for module in PRELOADED_MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that forks share these memory pages for longer
    program = serve(socket.socket(fileno=int(number)))
    return program() if program is not None else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
