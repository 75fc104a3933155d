"""Write files next to the database in a way that survives a power failure."""

from __future__ import annotations

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Call fsync on a file or directory. On a directory, this makes created, renamed and removed entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read. When this returns, the content is on disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as writing:
        writing.write(content)
        writing.flush()
        os.fsync(writing.fileno())


def replace_private_file(path: Path, content: bytes) -> None:
    """Atomically replace a file that only its owner can read. A concurrent reader sees the old or the new content."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    write_private_file(beside, content)
    os.replace(beside, path)
    fsync_path(path.parent)
