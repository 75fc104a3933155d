"""Files beside the store that must be there, whole, after a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Of a folder: what was made, renamed or removed in it stays so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_private(path: Path, content: bytes) -> None:
    """Ours alone, and on disk when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as writing:
        writing.write(content)
        writing.flush()
        os.fsync(writing.fileno())


def put_private(path: Path, content: bytes) -> None:
    """The same in one step: whoever looks meanwhile sees the old one or the new one, and never half of it."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    write_private(beside, content)
    os.replace(beside, path)
    sync(path.parent)
