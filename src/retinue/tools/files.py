"""`read`: a file of the agent's own home, and nothing beside it."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from retinue.domain.tool import Effect, ToolSpec
from retinue.tools.base import Scene, ToolFailed, schema_of

READ_BYTES_MAX = 200_000


class ReadArguments(msgspec.Struct, forbid_unknown_fields=True):
    path: str


@dataclass(frozen=True, slots=True)
class Read:
    arguments: type[msgspec.Struct] = ReadArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="read",
            description="Read a text file of your home, by its path there, for example internal_space/MEMORY.md.",
            parameters=schema_of(ReadArguments),
            effects=frozenset({Effect.READS_PRIVATE}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: ReadArguments, scene: Scene) -> str:
        content = read_confined(scene.home, arguments.path)
        if len(content) > READ_BYTES_MAX:
            shown = content[:READ_BYTES_MAX].decode(errors="replace")
            return f"{shown}\n[cut: the file has more than {READ_BYTES_MAX} bytes]"
        return content.decode(errors="replace")


def read_confined(home: Path, path: str) -> bytes:
    """Walk from the home down, step by step, following no link: a name cannot lead outside, not even for a moment.

    Checking a resolved path first and opening it afterwards would leave a gap in which the path can change.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or not parts or ".." in parts or "\x00" in path:
        raise ToolFailed(
            f"'{path[:200]}' is not a path inside your home",
            because="a path here is relative and has no '..'",
            try_this="for example: SOUL.md",
            code="path.outside",
        )
    opened: list[int] = []
    try:
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        opened.append(folder)
        for part in parts[:-1]:
            folder = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            opened.append(folder)
        file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        opened.append(file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ToolFailed(
                f"'{path[:200]}' is not a file", because="only plain files can be read", code="path.no-file"
            )
        return os.read(file, READ_BYTES_MAX + 1)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        for fd in opened:
            os.close(fd)


def _refused(path: str, error: OSError) -> ToolFailed:
    if error.errno in (errno.ELOOP, errno.EMLINK) or (error.errno == errno.ENOTDIR):
        return ToolFailed(
            f"'{path[:200]}' leads through a link or a file", because="links are not followed", code="path.link"
        )
    if error.errno == errno.ENOENT:
        return ToolFailed(f"there is no '{path[:200]}' in your home", because="no such file", code="path.not-found")
    return ToolFailed(f"'{path[:200]}' cannot be read", because=error.strerror or "unknown", code="path.unreadable")
