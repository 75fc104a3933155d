"""Manages the process of a local model: starts it, reads its status, stops it and explains why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from retinue.models.error_messages import clean_message
from retinue.models.local_server import LocalServerConfig, LocalServerState

# -P: no imports from the current directory.
SERVER_COMMAND: Final = (sys.executable, "-P", "-m", "retinue.models.local_server")
INSTALL_COMMAND = "pip install 'retinue[local]'"
EXIT_WAIT_S = 2.0
ERROR_LINES_MAX = 100
ERROR_LINE_BYTES_MAX = 4096

# The only environment variables that the process gets: paths, locale and GPU selection. No keys.
PASSED_VARIABLES = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
)


class LocalServerStatus(msgspec.Struct, frozen=True):
    """One status that the process of a local model reports on its stdout."""

    state: LocalServerState
    fraction: float = 0.0
    url: str = ""
    because: str = ""


class LocalProcess:
    """The running process of a local model.

    It has its own process group, and exits when the server exits.
    """

    def __init__(self, process: asyncio.subprocess.Process, token: str) -> None:
        self.token = token
        self._process = process
        self._errors: deque[str] = deque(maxlen=ERROR_LINES_MAX)
        self._stderr_task = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(
        cls, command: Sequence[str], config: LocalServerConfig, environment: Mapping[str, str]
    ) -> LocalProcess:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in environment.items() if name in PASSED_VARIABLES},
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which then stops it
        )
        started = cls(process, config.token)
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has already ended: the first read will say so
            process.stdin.write(config.to_json_line())
            await process.stdin.drain()
        return started

    async def read_status(self) -> LocalServerStatus | None:
        """Return the next status that the process reports while it starts. None if the process has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=LocalServerStatus) if line else None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    async def has_ended(self) -> bool:
        """Whether the process has ended.

        Waits briefly, because the server may notice the broken connection before the process has
        ended.
        """
        try:
            await asyncio.wait_for(self._process.wait(), EXIT_WAIT_S)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Kill the process and everything it has started. It has no state to save."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_running:
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._stderr_task
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def explain_end(self) -> str:
        """Explain to a person why the process ended, from its stderr or exit code.

        Stops the process first if it is still running.
        """
        if not await self.has_ended():
            await self.stop()
        await self._stderr_task
        return explain_exit(self._errors, self._process.returncode or 0)

    async def _read_stderr(self) -> None:
        """Read the process's stderr and keep the last lines. A full pipe would block the process."""
        assert self._process.stderr is not None
        rest = b""
        while piece := await self._process.stderr.read(ERROR_LINE_BYTES_MAX):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-ERROR_LINE_BYTES_MAX:]
            self._errors.extend(line.decode(errors="replace") for line in lines)
        if rest:
            self._errors.append(rest.decode(errors="replace"))


# What llama.cpp writes, and what it means. The first pattern that matches any line wins.
_STDERR_MEANINGS: Final = tuple(
    (re.compile(pattern, re.I), meaning)
    for pattern, meaning in (
        (r"invalid magic", "it is not a GGUF file: it has another signature"),
        (
            r"unknown model architecture: '([\w.-]{1,60})'",
            "its architecture '{}' is not supported by this version of llama.cpp",
        ),
        (
            r"not within the file bounds|failed to read (key-value|tensor)|unexpectedly reached end of file",
            "it is incomplete: the copy or download did not finish",
        ),
        (
            r"bad_alloc|(failed|unable) to allocate|out of memory|cannot allocate",
            "there is not enough memory to load it",
        ),
        (r"permission denied", "permission denied"),
        (r"no such file", "the file does not exist"),
    )
)
_SIGNAL_MEANINGS: Final[Mapping[int, str]] = {
    signal.SIGKILL: "its process was killed, probably because memory ran out",
    signal.SIGILL: "this processor does not support an instruction that it needs",
    signal.SIGSEGV: "its process crashed",
    signal.SIGABRT: "its process aborted",
}
_LOG_PREFIX = re.compile(r"^[\d.]+ [A-Z] ")


def explain_exit(lines: Sequence[str], code: int) -> str:
    """Explain why a process ended, from its last stderr lines and its exit code."""
    for pattern, meaning in _STDERR_MEANINGS:
        for line in lines:
            if found := pattern.search(line):
                return meaning.format(*found.groups(default="")[:1])
    output = next((clean_message(_LOG_PREFIX.sub("", line)) for line in reversed(lines) if line.strip()), "")
    if code < 0:
        how = _SIGNAL_MEANINGS.get(-code, f"its process was killed by signal {-code}")
        return f"{how}; its last output: {output}" if output else how
    return f"its last output: {output}" if output else f"its process exited with code {code} and no output"
