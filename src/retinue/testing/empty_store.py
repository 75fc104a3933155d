"""An empty SQLite store, created once per process and copied.

Copying saves time: creating the tables took a quarter of the time of a short test.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from retinue.store.open_store import prepare_sqlite


def create_empty_store(path: Path) -> None:
    """Create an empty store at a path, unless a file exists there."""
    if not path.exists():
        with open(path, "xb", opener=_open_private) as file:
            file.write(_empty_store_bytes())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


@cache
def _empty_store_bytes() -> bytes:
    with TemporaryDirectory(prefix="retinue-empty-") as folder:
        path = Path(folder, "empty.db")
        prepare_sqlite(path)
        return path.read_bytes()
