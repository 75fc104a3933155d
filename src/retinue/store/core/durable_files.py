"""Write files next to the database so that a power cut does not damage them."""

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
    """Write a file that only the owner can read. Once this returns, the file is on disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as writing:
        writing.write(content)
        writing.flush()
        os.fsync(writing.fileno())


def replace_private_file(path: Path, content: bytes) -> None:
    """Replace a private file atomically. A concurrent reader sees all of the old content or all of the new."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    write_private_file(beside, content)
    os.replace(beside, path)
    fsync_path(path.parent)
