"""Statements on a fast connection return what SQLAlchemy's own connection returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from retinue.store.core import fast_connection
from retinue.store.core.fast_connection import FastConnection
from retinue.store.core.sqlite import connect
from retinue.store.core.tables import accepted_counts, outcomes
from retinue.store.open_store import open_inline_store

_insert_tally = accepted_counts.insert()
_select_tallies = sa.select(accepted_counts).order_by(accepted_counts.c.day)
_increment_accepted = (
    accepted_counts.update()
    .where(accepted_counts.c.day == sa.bindparam("the_day"))
    .values(accepted=accepted_counts.c.accepted + 1)
)


@pytest.fixture
def conn(monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.Connection]:
    monkeypatch.setattr(FastConnection, "_prepared", {})  # without the statements that other tests prepared
    store = open_inline_store()
    yield store.connection
    store.connection.close()


def _tally_row(day: int) -> dict[str, object]:
    return {"day": day, "source": "test", "accepted": 1, "purged": 0}


def test_a_fast_connection_returns_named_rows_that_work_like_tuples(conn: sa.Connection) -> None:
    conn.execute(_insert_tally, _tally_row(1))
    row = conn.execute(_select_tallies).one()
    assert (row.day, row.source, row[2]) == (1, "test", 1)


def test_a_fast_connection_inserts_many_rows_at_once(conn: sa.Connection) -> None:
    conn.execute(_insert_tally, [_tally_row(1), _tally_row(2), _tally_row(3)])
    assert [row.day for row in conn.execute(_select_tallies)] == [1, 2, 3]


def test_an_update_on_a_fast_connection_returns_the_number_of_changed_rows(conn: sa.Connection) -> None:
    conn.execute(_insert_tally, _tally_row(1))
    assert conn.execute(_increment_accepted, {"the_day": 1}).rowcount == 1
    assert conn.execute(_increment_accepted, {"the_day": 2}).rowcount == 0
    assert conn.execute(_select_tallies).one().accepted == 2


def test_closing_a_fast_connection_after_a_write_removes_the_wal(tmp_path: Path) -> None:
    conn = connect(tmp_path / "retinue.db", writable=True)
    accepted_counts.create(conn)
    conn.execute(_insert_tally, [_tally_row(1), _tally_row(2)])
    conn.close()
    assert [file.name for file in tmp_path.iterdir()] == ["retinue.db"]  # the last connection removes the WAL


def test_a_fast_connection_returns_booleans_as_booleans(conn: sa.Connection) -> None:
    values = {"envelope": "a" * 32, "outcome": "noted", "because": "", "answer": None, "silent": True, "at_ms": 1}
    conn.execute(outcomes.insert(), values)
    assert conn.execute(sa.select(outcomes)).one().silent is True


def test_a_missing_statement_parameter_is_an_error_on_a_fast_connection_and_never_null(conn: sa.Connection) -> None:
    conn.execute(_insert_tally, _tally_row(1))
    with pytest.raises(exc.StatementError, match="purged"):
        conn.execute(_insert_tally, {"day": 2, "source": "test", "accepted": 1})
    with pytest.raises(exc.StatementError, match="the_day"):
        conn.execute(_increment_accepted, {})


def test_one_time_statements_do_not_keep_others_out_of_the_prepared_cache_of_a_fast_connection(
    conn: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = conn._prepared  # pyright: ignore
    monkeypatch.setattr(fast_connection, "PREPARED_STATEMENTS_MAX", len(prepared) + 3)
    for day in range(10):
        conn.execute(sa.select(accepted_counts).where(accepted_counts.c.day == day))
        assert len(prepared) <= fast_connection.PREPARED_STATEMENTS_MAX
    conn.execute(_insert_tally, _tally_row(1))
    assert id(_insert_tally) in prepared


def test_a_fast_connection_distinguishes_no_row_one_row_and_many_rows(conn: sa.Connection) -> None:
    assert conn.execute(_select_tallies).one_or_none() is None
    with pytest.raises(exc.NoResultFound):
        conn.execute(_select_tallies).one()
    conn.execute(_insert_tally, [_tally_row(1), _tally_row(2)])
    with pytest.raises(exc.MultipleResultsFound):
        conn.execute(_select_tallies).one_or_none()
    assert conn.execute(_select_tallies).scalar() == 1
    assert conn.execute(sa.select(accepted_counts.c.day).order_by(accepted_counts.c.day)).scalars().all() == [1, 2]


def test_a_text_statement_works_on_a_fast_connection(conn: sa.Connection) -> None:
    conn.execute(_insert_tally, _tally_row(7))
    assert conn.execute(sa.text("SELECT day FROM accepted_counts WHERE source = :s"), {"s": "test"}).scalar_one() == 7
