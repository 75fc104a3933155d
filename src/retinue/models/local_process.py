"""The process of a local model, from the server's side: start it, read its states, stop it, explain why it ended."""

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

from retinue.domain.model import Failure, ModelFailed
from retinue.models.error_messages import clean
from retinue.models.local_server import Order, Tells

# -P: no imports from the current directory.
COMMAND: Final = (sys.executable, "-P", "-m", "retinue.models.local_server")
INSTALL = "pip install 'retinue[local]'"
ENDED_WITHIN_S = 2.0
ERROR_LINES_MAX = 100
ERROR_LINE_BYTES_MAX = 4096

# The only environment variables it gets: paths, locale and GPU selection. No keys.
PASSED_ON = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
)


class Told(msgspec.Struct, frozen=True):
    """One state line of the process."""

    tells: Tells
    share: float = 0.0
    url: str = ""
    because: str = ""


class LocalProcess:
    """One process, from start to end. It leads its own process group, and ends with this process in any case."""

    def __init__(self, process: asyncio.subprocess.Process, token: str) -> None:
        self.token = token
        self._process = process
        self._errors: deque[str] = deque(maxlen=ERROR_LINES_MAX)
        self._hearing = asyncio.create_task(self._hear_errors())

    @classmethod
    async def start(cls, command: Sequence[str], order: Order, environment: Mapping[str, str]) -> LocalProcess:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in environment.items() if name in PASSED_ON},
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which then stops it
        )
        started = cls(process, order.token)
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has already ended: the first read will say so
            process.stdin.write(order.line())
            await process.stdin.drain()
        return started

    async def told(self) -> Told | None:
        """Return its next state while it starts; None if it has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=Told) if line else None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def has_ended(self) -> bool:
        """Whether it has ended. Waits briefly: after a broken connection, its end may not have been reported yet."""
        try:
            await asyncio.wait_for(self._process.wait(), ENDED_WITHIN_S)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Kill it and everything it may have started. It has no state to save."""
        with contextlib.suppress(ProcessLookupError):
            if self.running:
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._hearing
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def why(self) -> str:
        """Explain to a person why it ended: by its stderr, or by its exit code. Stops it first if it still runs."""
        if not await self.has_ended():
            await self.stop()
        await self._hearing
        return reason(self._errors, self._process.returncode or 0)

    async def _hear_errors(self) -> None:
        """Read its stderr and keep the last lines: a full pipe would block it."""
        assert self._process.stderr is not None
        rest = b""
        while piece := await self._process.stderr.read(ERROR_LINE_BYTES_MAX):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-ERROR_LINE_BYTES_MAX:]
            self._errors.extend(line.decode(errors="replace") for line in lines)
        if rest:
            self._errors.append(rest.decode(errors="replace"))


# What llama.cpp writes, and what it means. The first pattern that matches any line wins.
_MEANINGS: Final = tuple(
    (re.compile(pattern, re.I), meaning)
    for pattern, meaning in (
        (r"invalid magic", "it is no GGUF file: it does not begin as one"),
        (r"unknown model architecture: '([\w.-]{1,60})'", "it is a model of the kind '{}', which is not known here"),
        (
            r"not within the file bounds|failed to read (key-value|tensor)|unexpectedly reached end of file",
            "it is cut short: it was not copied or downloaded to its end",
        ),
        (r"bad_alloc|(failed|unable) to allocate|out of memory|cannot allocate", "there is not enough memory for it"),
        (r"permission denied", "this user may not read it"),
        (r"no such file", "there is no such file"),
    )
)
_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGKILL: "its process was killed, as happens where memory runs out",
    signal.SIGILL: "this processor lacks something that its code needs",
    signal.SIGSEGV: "its process crashed",
    signal.SIGABRT: "its process gave up",
}
_STAMP = re.compile(r"^[\d.]+ [A-Z] ")


def reason(lines: Sequence[str], code: int) -> str:
    """Explain why a process with these last lines and this exit code ended."""
    for pattern, meaning in _MEANINGS:
        for line in lines:
            if found := pattern.search(line):
                return meaning.format(*found.groups(default="")[:1])
    said = next((clean(_STAMP.sub("", line)) for line in reversed(lines) if line.strip()), "")
    if code < 0:
        how = _SIGNALS.get(-code, f"its process was ended by the signal {-code}")
        return f"{how}; the last it wrote: {said}" if said else how
    return f"its process wrote: {said}" if said else f"its process ended with code {code}, and wrote nothing"


def missing(because: str, *, try_this: str = INSTALL) -> ModelFailed:
    return ModelFailed(
        "the local model is not installed",
        because=because,
        try_this=try_this,
        code="model.local-missing",
        failure=Failure.NOT_FOUND,
    )


def unloadable(path: str, because: str) -> ModelFailed:
    return ModelFailed(
        f"the local model {path} cannot be loaded",
        because=because,
        try_this="check the file, or name another GGUF file",
        code="model.local-unloadable",
        failure=Failure.NOT_FOUND,
    )


def load_too_slow(path: str, patience_s: float) -> ModelFailed:
    return ModelFailed(
        f"the local model {path} was not loaded in time",
        because=f"nothing was heard of it for {patience_s:g} seconds",
        try_this="ask again, or name a smaller model",
        code="model.local-slow",
        failure=Failure.TIMEOUT,
    )


def ended(because: str, *, begun: bool) -> ModelFailed:
    return ModelFailed(
        "the local model ended in the middle of its reply" if begun else "the local model ended before it replied",
        because=because,
        try_this="ask again: it is started anew; where memory runs out, name a smaller model or a smaller window",
        code="model.local-ended",
        failure=Failure.CONNECTION,
        begun=begun,
    )


def busy(waiting: int) -> ModelFailed:
    return ModelFailed(
        "the local model has too much to do",
        because=f"it gives one answer at a time, and {waiting} wait for theirs",
        try_this="ask again later",
        code="model.local-busy",
        failure=Failure.OVERLOADED,
    )
