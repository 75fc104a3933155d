"""Revision 0015 renames tables, columns and values: a store of revision 0014 keeps every row."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from store.test_migrations import schema_at_revision

from retinue.domain.renamed_names import STORED_NAMES, VALUES
from retinue.store.core import sqlite
from retinue.store.open_store import copy_and_upgrade, prepare_postgres, prepare_sqlite

ROWS = 8
RENAMED_TABLES = {old: new for old, new in STORED_NAMES.items() if "." not in old}
CHECKED = {
    "envelopes.status": ("pending", "claimed", "parked", "done"),
    "pairings.state": ("waiting", "accepted", "refused", "expired"),
    "set_aside.state": ("waiting", "done", "dropped"),
}
KEYS = {  # old values whose new value depends on more than the column: old, new
    "connector_words.key": [("house/trouble", "server/trouble"), ("houseboat", "houseboat"), ("house", "house")],
    "pins.name": [
        ("house", "instance"),
        ("house/own", "instance/own"),
        ("house/tell", "instance/tell"),
        ("house", "house"),
    ],
}
PIN_KINDS = ("instructions", "skill", "hook", "mcp")


def new_table(table: str) -> str:
    return RENAMED_TABLES.get(table, table)


def new_column(table: str, column: str) -> str:
    return STORED_NAMES.get(f"{table}.{column}", f".{column}").partition(".")[2]


def old_value(column: sa.Column[Any], number: int) -> object:
    """The value of a column in the row of this number: unique, and each renamed value in some row."""
    if column.foreign_keys:
        return old_value(next(iter(column.foreign_keys)).column, number)
    table, name = column.table.name, column.name
    known: list[object] = list(CHECKED.get(f"{table}.{name}", ()))
    known = known or [old for old, _ in KEYS.get(f"{table}.{name}", ())]
    if (table, name) == ("pins", "kind"):
        known = list(PIN_KINDS)
    known = known or list(VALUES.get(f"{new_table(table)}.{new_column(table, name)}", ()))
    if known and (number < len(known) or f"{table}.{name}" in CHECKED):
        return known[number % len(known)]
    if table == "house" and name.endswith("_seq"):
        return 1_000  # the file is damaged if it counts fewer than there are
    match column.type:
        case sa.Boolean():
            return number % 2 == 1
        case sa.Integer():
            return number + 1
        case sa.LargeBinary():
            return bytes([number])
        case _:
            return f"{number} {name} 'parked'"[: getattr(column.type, "length", None) or 200]


def new_value(table: str, column: str, old: object, number: int) -> object:
    keys = KEYS.get(f"{table}.{column}", [])
    if number < len(keys):
        return keys[number][1]
    values: Mapping[Any, Any] = VALUES.get(f"{new_table(table)}.{new_column(table, column)}", {})
    return values.get(old, old)


def fill(engine: sa.Engine) -> dict[str, list[dict[str, object]]]:
    """Insert rows in every table, with the names that the database has. Returns the rows expected after the upgrade."""
    expected: dict[str, list[dict[str, object]]] = {}
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM house"))
        for table in metadata.sorted_tables:
            if table.name == "alembic_version":
                continue
            rows = [{each.name: old_value(each, number) for each in table.columns} for number in range(ROWS)]
            names = ", ".join(f'"{name}"' for name in rows[0])
            marks = ", ".join(f":{name}" for name in rows[0])
            conn.execute(sa.text(f"INSERT INTO {table.name} ({names}) VALUES ({marks})"), rows)
            expected[new_table(table.name)] = [
                {new_column(table.name, name): new_value(table.name, name, old, number) for name, old in row.items()}
                for number, row in enumerate(rows)
            ]
    return expected


def read(engine: sa.Engine) -> dict[str, list[dict[str, object]]]:
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as conn:
        return {
            table.name: [dict(row._mapping) for row in conn.execute(sa.select(table))]
            for table in metadata.sorted_tables
            if table.name != "alembic_version"
        }


def in_order(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(({name: row[name] for name in sorted(row)} for row in rows), key=repr)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_row_of_revision_0014_is_kept_under_the_new_names(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    upgrade: Callable[[], None]
    if kind == "sqlite":
        path = tmp_path / "retinue.db"
        prepare_sqlite(path, schema=schema_at_revision("0014", tmp_path))
        engine = sa.create_engine(f"sqlite:///{path}")

        def upgrade() -> None:
            prepare_sqlite(path)
    else:
        url = sa.make_url(request.getfixturevalue("empty_postgres_url"))
        prepare_postgres(url, schema_at_revision("0014", tmp_path))
        engine = sa.create_engine(url)

        def upgrade() -> None:
            prepare_postgres(url)

    expected = fill(engine)
    engine.dispose()
    upgrade()

    found = read(engine)
    engine.dispose()
    assert set(found) == set(expected)
    for table, rows in expected.items():
        assert in_order(found[table]) == in_order(rows), table
    assert {row["status"] for row in found["envelopes"]} == {"pending", "claimed", "suspended", "done"}
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "retinue.db")) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert raw.execute("PRAGMA foreign_key_check").fetchall() == []


def test_every_renamed_schema_name_and_value_is_of_a_table_and_column_that_exist(tmp_path: Path) -> None:
    prepare_sqlite(tmp_path / "old", schema=schema_at_revision("0014", tmp_path))
    prepare_sqlite(tmp_path / "new")
    columns: list[set[str]] = []
    for name in ("old", "new"):
        with closing(sqlite.connect(tmp_path / name, writable=False)) as conn:
            found = sa.inspect(conn)
            columns.append(
                {f"{table}.{each['name']}" for table in found.get_table_names() for each in found.get_columns(table)}
            )
    old, new = columns
    tables = [{each.partition(".")[0] for each in known} for known in columns]
    assert set(STORED_NAMES) <= old | tables[0]
    assert set(STORED_NAMES.values()) <= new | tables[1]
    assert set(VALUES) <= new


def test_an_offline_copy_of_a_store_gets_the_renamed_schema_and_the_store_stays_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "house.db"
    prepare_sqlite(path, schema=schema_at_revision("0014", tmp_path))
    before = path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())

    with closing(sqlite.connect(copy_and_upgrade(path, tmp_path / "copy"), writable=False)) as conn:
        assert conn.execute(sa.text("SELECT event_seq FROM counters")).scalar() == 0

    for leftover in tmp_path.glob("copy*"):
        leftover.unlink()
    assert (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())) == before
