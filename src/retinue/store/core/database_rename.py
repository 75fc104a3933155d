"""Find and rename a database file that still has the name used by earlier versions.

The server renames the file when it starts. Commands that only read the database do not rename it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Set
from contextlib import closing
from pathlib import Path

from retinue.domain.ports import CrashPoints
from retinue.store.core.durable_files import fsync_path
from retinue.store.core.errors import FormerFileInUse, StoreFilesConflict
from retinue.store.core.file_inspection import inspect_file

STORE_NAME, FORMER_NAME = "retinue.db", "house.db"
SUFFIXES = ("-wal", "-shm", "-journal")
FORMER_COPY = f"{FORMER_NAME}.rehearsal"  # a copy left behind by an interrupted upgrade of an earlier version


def find_store_file(path: Path) -> Path:
    """Return the path of the database file: `path`, or its former name if only that file exists.

    Raises `StoreFilesConflict` if both files exist, because only a person can decide which one to
    use.
    """
    former = path.with_name(FORMER_NAME)
    if path.name != STORE_NAME or not os.path.lexists(former):
        return path
    if os.path.lexists(path):
        raise StoreFilesConflict(path, former)
    return former


def rename_former_file(path: Path, *, known_revisions: Set[str], faults: CrashPoints) -> None:
    """Rename a database file that still has its former name. The caller must hold the instance lock.

    SQLite finds a write-ahead log by the name of its database. The log is therefore checkpointed
    into the database first, so that only one file has to be renamed. If the process is killed in
    between, the next start completes the rename. A damaged file is rejected and not changed.
    """
    former = find_store_file(path)
    if former == path:
        return
    faults.reach("rename-store.begin")
    inspect_file(former, known_revisions)
    with closing(sqlite3.connect(former, isolation_level=None)) as raw:
        raw.execute("SELECT count(*) FROM sqlite_master").fetchone()  # rolls back a hot journal
        (busy, *_) = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    faults.reach("rename-store.checkpointed")
    log = Path(f"{former}-wal")
    if busy or (log.exists() and log.stat().st_size > 0) or Path(f"{former}-journal").exists():
        raise FormerFileInUse(former)
    for leftover in (f"{former}-wal", f"{former}-shm"):
        Path(leftover).unlink(missing_ok=True)
    for suffix in ("", *SUFFIXES):
        path.with_name(f"{FORMER_COPY}{suffix}").unlink(missing_ok=True)
    fsync_path(path.parent)
    faults.reach("rename-store.ready")
    os.rename(former, path)
    faults.reach("rename-store.renamed")
    fsync_path(path.parent)
    faults.reach("rename-store.done")
