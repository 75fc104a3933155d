"""Write files next to the database so that they survive a power cut intact."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Call fsync on a file, or on a directory to make creations, renames and removals in it durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only the owner can read. It is on disk when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as writing:
        writing.write(content)
        writing.flush()
        os.fsync(writing.fileno())


def replace_private_file(path: Path, content: bytes) -> None:
    """Replace a private file atomically: a concurrent reader sees the old content or the new, never a part."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    write_private_file(beside, content)
    os.replace(beside, path)
    fsync_path(path.parent)
