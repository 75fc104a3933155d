"""The empty database for tests is the same as one that the server creates."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from retinue.store.open_store import prepare_sqlite
from retinue.testing.empty_store import create_empty_store


def dump_database(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return list(database.iterdump())


def test_an_empty_store_equals_a_newly_prepared_store(tmp_path: Path) -> None:
    placed, opened = tmp_path / "placed.db", tmp_path / "opened.db"

    create_empty_store(placed)
    prepare_sqlite(opened)

    assert dump_database(placed) == dump_database(opened)
    assert stat.S_IMODE(placed.stat().st_mode) == stat.S_IMODE(opened.stat().st_mode) == 0o600
    prepare_sqlite(placed)
    assert dump_database(placed) == dump_database(opened), "opening it changes nothing"


def test_create_empty_store_leaves_an_existing_file_unchanged(tmp_path: Path) -> None:
    (tmp_path / "retinue.db").write_bytes(b"ours")

    create_empty_store(tmp_path / "retinue.db")

    assert (tmp_path / "retinue.db").read_bytes() == b"ours"
