"""Inspect a SQLite file before it is opened for writing. A damaged or foreign file is rejected unchanged."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Set
from contextlib import closing
from pathlib import Path

from retinue.domain.errors import StoreError

_WAL_MAGIC = (0x377F0682, 0x377F0683)
_WAL_VERSION = 3007000
_WAL_HEAD_BYTES = 32
_FILE_HEAD_BYTES = 100


def look(path: Path, known: Set[str]) -> str | None:
    """Return the schema revision of the file, or None if the database is empty."""
    if path.stat().st_size == 0:
        raise damaged("it is empty, and a store never is: it was truncated, or a copy of it failed")
    log = Path(f"{path}-wal")
    if log.exists():
        _check_log(path, log)
        mode = "mode=ro"
    else:
        mode = "immutable=1"  # no process has it open, and `mode=ro` would leave a WAL and a WAL index behind
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)) as raw:
        tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "alembic_version" in tables:
            row = raw.execute("SELECT version_num FROM alembic_version").fetchone()
            revision: str | None = row[0] if row else None
            if revision in known:
                _check_counters(raw)
            return revision
    if tables:
        raise StoreError(
            f"the file {path} is a database, but no house",
            because=f"it holds other tables: {', '.join(sorted(tables)[:3])}",
            try_this="choose another place for the store",
            code="store.not-a-house",
        )
    return None


def _check_log(path: Path, log: Path) -> None:
    """Check the header of the write-ahead log.

    SQLite treats a log with a broken header as empty and drops its commits silently.
    """
    try:
        with path.open("rb") as store, log.open("rb") as reading:
            file_head, head = store.read(_FILE_HEAD_BYTES), reading.read(_WAL_HEAD_BYTES)
    except FileNotFoundError:
        return  # A process that had it open closed it in between, so the log is now part of the file.
    if len(head) < _WAL_HEAD_BYTES or len(file_head) < _FILE_HEAD_BYTES:
        return  # The log was just created, or the file is not a database, which SQLite will report.
    magic, version, page_bytes, _, _, _, sum_0, sum_1 = struct.unpack(">8I", head)
    if magic not in _WAL_MAGIC or version != _WAL_VERSION or _sum_of(head[:24], magic) != (sum_0, sum_1):
        raise damaged(f"the head of its log {log.name} is broken")
    (file_page_bytes,) = struct.unpack(">H", file_head[16:18])
    if page_bytes != (65_536 if file_page_bytes == 1 else file_page_bytes):
        raise damaged(f"its log {log.name} belongs to another file")


def _sum_of(data: bytes, magic: int) -> tuple[int, int]:
    """Return SQLite's checksum of a WAL header. The magic number determines the byte order."""
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data)
    sum_0 = sum_1 = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum_0 = (sum_0 + first + sum_1) & 0xFFFFFFFF
        sum_1 = (sum_1 + second + sum_0) & 0xFFFFFFFF
    return sum_0, sum_1


def _check_counters(raw: sqlite3.Connection) -> None:
    """Compare the stored counters with the rows they count. A file with a foreign log rarely passes."""
    house = raw.execute("SELECT news_seq, envelope_seq FROM house WHERE id = 1").fetchone()
    if house is None:
        raise damaged("the house's own row is missing")
    newest = raw.execute("SELECT (SELECT max(seq) FROM news), (SELECT max(seq) FROM envelopes)").fetchone()
    for counted, found, what in zip(house, newest, ("news", "envelopes"), strict=True):
        if found is not None and found > counted:
            raise damaged(f"it holds more {what} than it ever counted")


def damaged(because: str) -> StoreError:
    return StoreError(
        "the store's file is damaged",
        because=because,
        try_this="stop the house, set the file aside together with its -wal and restore the latest backup",
        code="store.damaged",
    )
