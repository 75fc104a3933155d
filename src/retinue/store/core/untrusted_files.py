"""Opens files that people or agents may have replaced by a link, a FIFO, a device or a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def open_untrusted(path: Path) -> BinaryIO:
    """Open a file to read it. Does not follow a link, and does not block on a FIFO.

    Raises `OSError` for a link and for a folder.
    """
    return open(path, "rb", opener=_open_carefully)


def _open_carefully(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
