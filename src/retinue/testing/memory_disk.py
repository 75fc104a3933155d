"""Where a test keeps files that nobody needs afterwards: in memory, because a commit there does not wait for a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY_DISK = Path("/dev/shm")
FREE_BYTES_MIN = 2 * 1024**3  # a container often has 64 MiB, which the tests would fill
# With this variable set, files are on a real disk, and what is written waits for it.
SYNC = "RETINUE_TEST_SYNC"


def memory_disk() -> Path | None:
    """Returns the directory of the memory disk, or None if there is none with enough room."""
    if os.environ.get(SYNC) or not os.access(MEMORY_DISK, os.W_OK | os.X_OK):
        return None
    return MEMORY_DISK if shutil.disk_usage(MEMORY_DISK).free >= FREE_BYTES_MIN else None
