"""The process of a local model: loads one GGUF file and serves it on localhost with the OpenAI API.

Run as `python -m retinue.models.local_server`. Its configuration, which includes the token, arrives as one JSON line on
stdin, so the token is not on a command line. It reports its state as JSON lines on stdout. It exits when stdin closes,
because its parent has then ended.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

CONFIG_BYTES_MAX = 64 * 1024
READ_CHUNK_BYTES = 4 * 1024 * 1024
PROGRESS_STEPS = 10
READ_AHEAD_MEMORY_SHARE_MAX = 0.5
OOM_SCORE = 500  # if memory runs out, the kernel kills this process before the server

_PR_SET_PDEATHSIG = 1
_LOG_ERRORS_ONLY = 1


class LocalServerState(StrEnum):
    """The state of the process: the `state` field of a line on stdout."""

    READING = "reading"  # with `fraction`, the part of the file
    LOADING = "loading"
    READY = "ready"  # with `url`
    MISSING = "missing"  # the runtime is not installed; with `because`
    FAILED = "failed"  # with `because`, or the reason is on stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServerConfig:
    """Configuration of the process: the model to serve, and the token that requests must have."""

    gguf: str
    window_tokens: int
    token: str = field(repr=False)

    def to_json_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> int:
    _end_with_parent()
    output = _reserve_stdout()
    line = sys.stdin.buffer.readline(CONFIG_BYTES_MAX)
    if not line:
        return 0  # the parent is already gone
    order = LocalServerConfig(**json.loads(line))

    def report(state: LocalServerState, **more: object) -> None:
        output.write(json.dumps({"state": state, **more}).encode() + b"\n")
        output.flush()

    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as error:
        report(LocalServerState.MISSING, because=str(error))
        return 1
    try:
        for fraction in read_ahead(Path(order.gguf), memory_bytes=_get_memory_bytes()):
            report(LocalServerState.READING, fraction=fraction)
        report(LocalServerState.LOADING)
        server = xllamacpp.Server(_build_params(xllamacpp, order))
    except OSError as error:
        report(LocalServerState.FAILED, because=error.strerror)
        return 1
    except RuntimeError:
        report(LocalServerState.FAILED)
        return 1
    report(LocalServerState.READY, url=server.listening_address)
    sys.stdin.buffer.read()
    # Immediately: threads of the runtime may be generating a reply that no one reads anymore.
    os._exit(0)


def read_ahead(path: Path, *, memory_bytes: int) -> Iterator[float]:
    """Read a file so that it is in the page cache when it is loaded, and yield the progress.

    Reading may take minutes, and the loader itself reports no progress. A file that would fill most
    of the machine's memory is not read ahead.
    """
    size_bytes = path.stat().st_size
    if size_bytes > memory_bytes * READ_AHEAD_MEMORY_SHARE_MAX:
        return
    done_bytes = reported = 0
    buffer = bytearray(READ_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(buffer):
            done_bytes += got
            steps = done_bytes * PROGRESS_STEPS // size_bytes
            if steps > reported:
                reported = steps
                yield steps / PROGRESS_STEPS


def _build_params(xllamacpp: Any, config: LocalServerConfig) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = config.gguf
    params.n_ctx = config.window_tokens
    params.n_parallel = 1
    params.use_jinja = True  # the model's own template, including tools
    params.warmup = False
    params.verbosity = _LOG_ERRORS_ONLY  # more could log what people wrote
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [config.token]
    params.ui = False
    params.endpoint_slots = False  # would show the requests in progress
    params.cache_ram_mib = 0
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = max(1, _count_cores() - 1)  # one is left for the server
        cpu.poll = 0  # waiting threads sleep: spinning made a busy machine five to a hundred times slower
    return params


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _get_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _reserve_stdout() -> BinaryIO:
    """Keep stdout for the state lines. Everything else that is printed in this process goes to stderr."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def _end_with_parent() -> None:
    """Make the kernel kill this process when its parent dies (Linux only).

    While a model loads, this process cannot notice that its stdin was closed. The function also makes
    the kernel kill this process before others if memory runs out.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # in the child process only

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    except OSError:
        pass  # a sandbox may forbid it; the model runs anyway


if __name__ == "__main__":
    sys.exit(main())
