"""The empty store that tests are given is the one that opening makes."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from retinue.store.open_store import prepare_sqlite
from retinue.testing.empty_store import create_empty_store


def contents(path: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return list(database.iterdump())


def test_a_placed_store_is_what_opening_makes(tmp_path: Path) -> None:
    placed, opened = tmp_path / "placed.db", tmp_path / "opened.db"

    create_empty_store(placed)
    prepare_sqlite(opened)

    assert contents(placed) == contents(opened)
    assert stat.S_IMODE(placed.stat().st_mode) == stat.S_IMODE(opened.stat().st_mode) == 0o600
    prepare_sqlite(placed)
    assert contents(placed) == contents(opened), "opening it changes nothing"


def test_a_store_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "house.db").write_bytes(b"ours")

    create_empty_store(tmp_path / "house.db")

    assert (tmp_path / "house.db").read_bytes() == b"ours"
