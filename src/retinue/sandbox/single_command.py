"""Runs one command of the owner to its end: writes its input, reads its output.

For programs that the server itself runs because the settings name them. Commands of agents are in
`tools/shell`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from retinue.domain.errors import RetinueError
from retinue.domain.structs import replace
from retinue.sandbox.base import Child, Confinement, Sandbox

LIMIT_SLACK_S = 5.0  # we end an overdue command; the sandbox does if we could not
SHOWN_CHARS_MAX = 200


class CommandFailed(RetinueError):
    """A configured program failed."""

    code = "command.failed"


async def run(
    sandbox: Sandbox,
    argv: Sequence[str],
    confinement: Confinement,
    *,
    given: bytes = b"",
    timeout_s: float,
    bytes_max: int,
) -> bytes:
    """Return the output of a successful command. Raises `CommandFailed`, or `SandboxFailed` if not
    started.

    The timeout is in real seconds, independent of the server's clock.
    """
    limits = replace(confinement.limits, seconds=timeout_s + LIMIT_SLACK_S, output_bytes=bytes_max + 1)
    child = await sandbox.start(argv, replace(confinement, limits=limits))
    kept = bytearray()
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(_give(child, given))
            while data := await child.read():
                kept += data[: bytes_max + 1 - len(kept)]
            ended = await child.wait()
    except TimeoutError:
        raise _failed(argv, f"it took longer than {timeout_s:g} seconds, and was ended") from None
    finally:
        await child.kill()
    if ended.code != 0:
        how = ended.because or (f"exit {ended.code}" if ended.code is not None else f"signal {ended.signal}")
        said = " ".join(kept.decode(errors="replace").split())[:SHOWN_CHARS_MAX]
        raise _failed(argv, f"{how}: {said}" if said else how)
    if len(kept) > bytes_max:
        raise _failed(argv, f"it said more than {bytes_max:,} bytes")
    return bytes(kept)


async def _give(child: Child, given: bytes) -> None:
    """Write the input. A command that does not read it has not failed."""
    with contextlib.suppress(OSError, RetinueError):
        if given:
            await child.write(given)
        child.close_input()


def _failed(argv: Sequence[str], because: str) -> CommandFailed:
    name = argv[0].rpartition("/")[2] if argv else ""
    return CommandFailed(f"the command {name[:64]!r} failed", because=because, try_this="try it in a terminal")
