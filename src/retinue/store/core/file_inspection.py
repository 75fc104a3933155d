"""Inspect a SQLite file before it is opened for writing.

A damaged file, or a database of another program, is rejected and not changed.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Set
from contextlib import closing
from pathlib import Path

from retinue.store.core.errors import ForeignDatabase, StoreDamaged

_WAL_MAGIC = (0x377F0682, 0x377F0683)
_WAL_VERSION = 3007000
_WAL_HEADER_BYTES = 32
_FILE_HEADER_BYTES = 100


def inspect_file(path: Path, known_revisions: Set[str]) -> str | None:
    """Return the schema revision of a database file, or None if it has no tables.

    Raises `StoreDamaged` if the file is damaged, and `ForeignDatabase` if another program created
    it.
    """
    if path.stat().st_size == 0:
        raise StoreDamaged(because="it is empty: it was truncated, or a copy of it failed")
    log = Path(f"{path}-wal")
    if log.exists():
        _check_wal(path, log)
        mode = "mode=ro"
    else:
        mode = "immutable=1"  # no process has it open, and `mode=ro` would leave a WAL and a WAL index behind
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)) as raw:
        tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "alembic_version" in tables:
            row = raw.execute("SELECT version_num FROM alembic_version").fetchone()
            revision: str | None = row[0] if row else None
            if revision in known_revisions:
                _check_counters(raw, renamed="counters" in tables)
            return revision
    if tables:
        raise ForeignDatabase(path, tables=sorted(tables)[:3])
    return None


def _check_wal(path: Path, wal: Path) -> None:
    """Check the header of the write-ahead log, and raise `StoreDamaged` if it is wrong.

    SQLite would treat a log with a damaged header as empty, and silently lose the commits in it.
    """
    try:
        with path.open("rb") as store, wal.open("rb") as reading:
            file_head, head = store.read(_FILE_HEADER_BYTES), reading.read(_WAL_HEADER_BYTES)
    except FileNotFoundError:
        return  # Another process closed the database in between, so the log is now part of the file.
    if len(head) < _WAL_HEADER_BYTES or len(file_head) < _FILE_HEADER_BYTES:
        return  # The log was just created, or the file is not a database, which SQLite will report.
    magic, version, page_bytes, _, _, _, sum_0, sum_1 = struct.unpack(">8I", head)
    if magic not in _WAL_MAGIC or version != _WAL_VERSION or _wal_checksum(head[:24], magic) != (sum_0, sum_1):
        raise StoreDamaged(because=f"the header of its log {wal.name} is damaged")
    (file_page_bytes,) = struct.unpack(">H", file_head[16:18])
    if page_bytes != (65_536 if file_page_bytes == 1 else file_page_bytes):
        raise StoreDamaged(because=f"its log {wal.name} belongs to another file")


def _wal_checksum(data: bytes, magic: int) -> tuple[int, int]:
    """Return the checksum that SQLite computes for a WAL header. The magic number determines the byte order."""
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data)
    sum_0 = sum_1 = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum_0 = (sum_0 + first + sum_1) & 0xFFFFFFFF
        sum_1 = (sum_1 + second + sum_0) & 0xFFFFFFFF
    return sum_0, sum_1


def _check_counters(raw: sqlite3.Connection, *, renamed: bool) -> None:
    """Raise `StoreDamaged` if a stored counter is lower than the highest sequence number in its table.

    This detects most files that were combined with the write-ahead log of another file.
    """
    # Revision 0015 renamed the tables. An older store is inspected before it is upgraded.
    counts = "event_seq, envelope_seq FROM counters" if renamed else "news_seq, envelope_seq FROM house"
    counters = raw.execute(f"SELECT {counts} WHERE id = 1").fetchone()
    if counters is None:
        raise StoreDamaged(because="the row with its counters is missing")
    events = "events" if renamed else "news"
    newest = raw.execute(f"SELECT (SELECT max(seq) FROM {events}), (SELECT max(seq) FROM envelopes)").fetchone()
    for counted, found, name in zip(counters, newest, ("events", "envelopes"), strict=True):
        if found is not None and found > counted:
            raise StoreDamaged(because=f"it has more {name} than its counter says")
