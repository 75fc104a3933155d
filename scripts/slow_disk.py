"""A slow disk for tests: `fsync` and `fdatasync` take longer in a process and in its children, SQLite and PostgreSQL
included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from retinue.testing.postgres import SYNC_VARIABLE

SOURCE = Path(__file__).parent / "slow_fsync.c"
DELAY_MS = 50


class NoSlowDisk(Exception):
    """This machine cannot simulate a slow disk. The message says what to do."""


@contextmanager
def slow_disk(delay_ms: int = DELAY_MS) -> Generator[dict[str, str]]:
    """Yield the environment variables for processes with a slow disk."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        raise NoSlowDisk("error: a slow disk needs Linux and a C compiler\ntry: sudo apt-get install -y gcc libc6-dev")
    folder = Path(tempfile.mkdtemp(prefix="retinue-slow-disk-", dir="/tmp"))
    try:
        library = folder / "slow_fsync.so"
        command = [compiler, "-shared", "-fPIC", "-O2", f"-DDELAY_MS={delay_ms}", "-o", str(library), str(SOURCE)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise NoSlowDisk(f"error: {SOURCE.name} does not compile\n{made.stderr}")
        for each in (folder, library):  # readable for the other user as whom PostgreSQL runs if we are root
            each.chmod(0o755)
        yield {**os.environ, "LD_PRELOAD": str(library), SYNC_VARIABLE: "1"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
