"""Statements on the quick road give what SQLAlchemy's own road gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from retinue.store.core import fast_connection
from retinue.store.core.fast_connection import FastConnection
from retinue.store.core.sqlite import connect
from retinue.store.core.tables import outcomes, tally
from retinue.store.open_store import open_inline_store

_insert = tally.insert()
_all = sa.select(tally).order_by(tally.c.day)
_raise = tally.update().where(tally.c.day == sa.bindparam("the_day")).values(accepted=tally.c.accepted + 1)


@pytest.fixture
def conn(monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.Connection]:
    monkeypatch.setattr(FastConnection, "_prepared", {})  # whatever other tests have asked before
    store = open_inline_store()
    yield store.connection
    store.connection.close()


def _row(day: int) -> dict[str, object]:
    return {"day": day, "source": "test", "accepted": 1, "purged": 0}


def test_rows_have_names_and_read_like_tuples(conn: sa.Connection) -> None:
    conn.execute(_insert, _row(1))
    row = conn.execute(_all).one()
    assert (row.day, row.source, row[2]) == (1, "test", 1)


def test_many_rows_are_written_at_once(conn: sa.Connection) -> None:
    conn.execute(_insert, [_row(1), _row(2), _row(3)])
    assert [row.day for row in conn.execute(_all)] == [1, 2, 3]


def test_an_update_says_how_many_rows_it_changed(conn: sa.Connection) -> None:
    conn.execute(_insert, _row(1))
    assert conn.execute(_raise, {"the_day": 1}).rowcount == 1
    assert conn.execute(_raise, {"the_day": 2}).rowcount == 0
    assert conn.execute(_all).one().accepted == 2


def test_what_was_written_last_does_not_keep_the_file_open(tmp_path: Path) -> None:
    conn = connect(tmp_path / "house.db", writable=True)
    tally.create(conn)
    conn.execute(_insert, [_row(1), _row(2)])
    conn.close()
    assert [file.name for file in tmp_path.iterdir()] == ["house.db"]  # the log is gone with the last who had it open


def test_booleans_come_back_as_booleans(conn: sa.Connection) -> None:
    values = {"envelope": "a" * 32, "outcome": "noted", "because": "", "answer": None, "silent": True, "at_ms": 1}
    conn.execute(outcomes.insert(), values)
    assert conn.execute(sa.select(outcomes)).one().silent is True


def test_a_forgotten_parameter_is_an_error_and_never_null(conn: sa.Connection) -> None:
    conn.execute(_insert, _row(1))
    with pytest.raises(exc.StatementError, match="purged"):
        conn.execute(_insert, {"day": 2, "source": "test", "accepted": 1})
    with pytest.raises(exc.StatementError, match="the_day"):
        conn.execute(_raise, {})


def test_statements_of_the_moment_do_not_keep_those_of_the_house_out(
    conn: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = conn._prepared  # pyright: ignore
    monkeypatch.setattr(fast_connection, "PREPARED_STATEMENTS_MAX", len(prepared) + 3)
    for day in range(10):
        conn.execute(sa.select(tally).where(tally.c.day == day))
        assert len(prepared) <= fast_connection.PREPARED_STATEMENTS_MAX
    conn.execute(_insert, _row(1))
    assert id(_insert) in prepared


def test_one_and_none_and_many_are_told_apart(conn: sa.Connection) -> None:
    assert conn.execute(_all).one_or_none() is None
    with pytest.raises(exc.NoResultFound):
        conn.execute(_all).one()
    conn.execute(_insert, [_row(1), _row(2)])
    with pytest.raises(exc.MultipleResultsFound):
        conn.execute(_all).one_or_none()
    assert conn.execute(_all).scalar() == 1
    assert conn.execute(sa.select(tally.c.day).order_by(tally.c.day)).scalars().all() == [1, 2]


def test_plain_text_goes_the_usual_way(conn: sa.Connection) -> None:
    conn.execute(_insert, _row(7))
    assert conn.execute(sa.text("SELECT day FROM tally WHERE source = :s"), {"s": "test"}).scalar_one() == 7
