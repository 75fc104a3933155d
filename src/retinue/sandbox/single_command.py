"""Runs a program named in the settings, such as a hook, until it exits, and returns its output.

Commands from agents are run by `tools/shell`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from retinue.domain.errors import RetinueError
from retinue.domain.structs import replace
from retinue.sandbox.base import Confinement, RunningCommand, Sandbox

LIMIT_MARGIN_S = 5.0  # after `timeout_s`, in case the command has not stopped by then
SHOWN_CHARS_MAX = 200


class CommandFailed(RetinueError):
    """A program named in the settings has failed."""

    code = "command.failed"


class OwnerCommandFailed(CommandFailed):
    """A program named in the settings ended with an error, took too long, or wrote too much."""

    def __init__(self, argv: Sequence[str], *, because: str) -> None:
        program = argv[0].rpartition("/")[2] if argv else ""
        super().__init__(
            f"the command {program[:64]!r} failed", because=because, try_this="run the command in a terminal"
        )


async def run_command(
    sandbox: Sandbox,
    argv: Sequence[str],
    confinement: Confinement,
    *,
    input_data: bytes = b"",
    timeout_s: float,
    bytes_max: int,
) -> bytes:
    """Run a command with the given input, and return its output.

    Raises `CommandFailed` if the command fails, or `SandboxFailed` if it was not started. The
    timeout is in real seconds, independent of the server's clock.
    """
    limits = replace(confinement.limits, seconds=timeout_s + LIMIT_MARGIN_S, output_bytes=bytes_max + 1)
    child = await sandbox.start(argv, replace(confinement, limits=limits))
    kept = bytearray()
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(_write_input(child, input_data))
            while data := await child.read():
                kept += data[: bytes_max + 1 - len(kept)]
            ended = await child.wait()
    except TimeoutError:
        raise OwnerCommandFailed(argv, because=f"it took longer than {timeout_s:g} seconds, and was stopped") from None
    finally:
        await child.kill()
    if ended.code != 0:
        how = ended.because or (f"exit {ended.code}" if ended.code is not None else f"signal {ended.signal}")
        output = " ".join(kept.decode(errors="replace").split())[:SHOWN_CHARS_MAX]
        raise OwnerCommandFailed(argv, because=f"{how}: {output}" if output else how)
    if len(kept) > bytes_max:
        raise OwnerCommandFailed(argv, because=f"it wrote more than {bytes_max:,} bytes")
    return bytes(kept)


async def _write_input(child: RunningCommand, input_data: bytes) -> None:
    """Write the input of a command. Errors are ignored, because a command need not read its input."""
    with contextlib.suppress(OSError, RetinueError):
        if input_data:
            await child.write(input_data)
        child.close_input()
