"""Finds a directory in memory for temporary test files, so that commits do not wait for a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY_DISK_PATH = Path("/dev/shm")
FREE_BYTES_MIN = 2 * 1024**3  # a container often has 64 MiB, which the tests would fill
# If this variable is set, files are on a real disk and writes wait for fsync.
SYNC_VARIABLE = "RETINUE_TEST_SYNC"


def find_memory_disk() -> Path | None:
    """Return the directory in memory, or None if there is none with enough space."""
    if os.environ.get(SYNC_VARIABLE) or not os.access(MEMORY_DISK_PATH, os.W_OK | os.X_OK):
        return None
    return MEMORY_DISK_PATH if shutil.disk_usage(MEMORY_DISK_PATH).free >= FREE_BYTES_MIN else None
