"""Chunks return exactly what their records hold, and nothing that was changed or removed since."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from stores import add_agents_and_people

from retinue.domain.attachment import Attachment
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.record import (
    Note,
    Record,
    RecordBody,
    Reply,
    StopReason,
    TextRecord,
    Usage,
    UserTurn,
    body_kind,
    least_trust_in,
)
from retinue.domain.session import Origin, OriginKind
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.sqlite import connect
from retinue.store.core.transaction import Transaction
from retinue.store.maintenance import erase_person
from retinue.store.open_store import prepare_sqlite
from retinue.store.sessions import record_chunks, records, sessions
from retinue.store.sessions.record_chunks import CHUNK_RECORDS

FILE = Attachment(hash="a" * 64, name="a.png", media_type="image/png", size_bytes=5)
SESSION = SessionId("5e" * 16)
RECORD_COUNT = 3 * CHUNK_RECORDS
SECRET = "text to remove"


@pytest.fixture
def conn(tmp_path: Path) -> Generator[sa.Connection]:
    prepare_sqlite(tmp_path / "retinue.db")
    with closing(connect(tmp_path / "retinue.db", writable=True)) as conn:
        conn.connection.cursor().execute("BEGIN")  # one transaction: these tests are not about commits
        yield conn


def _start_session(conn: sa.Connection) -> SessionId:
    """Start a session of Maria with its first record."""
    add_agents_and_people("ada")(conn)
    tx = Transaction(conn, 1)
    sessions.start(tx, SESSION, agent="ada", origin=Origin(OriginKind.WEB, "person:maria"))
    tx.close()
    return SESSION


def _make_records(session: SessionId, count: int) -> list[Record]:
    """Make text records for the most part, and some with other content."""
    others: list[RecordBody] = [
        Reply(
            text="",
            thinking="hm",
            calls=(Call(id="1", tool="look", arguments={"a": [1, None]}),),
            stop=StopReason.CALLS,
        ),
        ToolResult(call="1", tool="look", output="there", trust=Trust.UNTRUSTED),
        Note(text="by the way"),
        UserTurn(text="see", attachments=(FILE,)),
        UserTurn(text=""),
    ]
    bodies = [
        others[seq // 50 % len(others)]
        if seq % 50 == 0
        else Reply(text=f'Ja, "{seq}"\n世界', usage=Usage(input_tokens=seq), model="p/m", provider="p")
        if seq % 2
        else UserTurn(text=f"What of {seq}? {SECRET}", envelopes=(EnvelopeId(f"{seq:032x}"),))
        for seq in range(2, count + 2)
    ]
    return [
        Record(
            session=session,
            seq=seq,
            kind=body_kind(body),
            body=body,
            at_ms=1000 + seq,
            run=RunId(f"{seq // 2:032x}") if seq % 7 else None,
            trust=Trust.OWNER if seq % 2 else Trust.AGENT,
        )
        for seq, body in enumerate(bodies, start=2)
    ]


def _write(conn: sa.Connection, talk: Sequence[Record]) -> None:
    """Add a few records at a time, as a server does."""
    for at in range(0, len(talk), 3):
        records.add(conn, talk[at : at + 3])


def _chunk_numbers(conn: sa.Connection) -> list[int]:
    return [row.number for row in conn.execute(sa.select(t.record_chunks.c.number).order_by(t.record_chunks.c.number))]


def _write_session(conn: sa.Connection, count: int = RECORD_COUNT) -> tuple[SessionId, list[Record]]:
    session = _start_session(conn)
    talk = _make_records(session, count)
    _write(conn, talk)
    start = records.get(conn, session, 1)
    assert start is not None
    return session, [start, *talk]


@pytest.mark.parametrize("first", [0, 1, 2, CHUNK_RECORDS - 1, CHUNK_RECORDS, CHUNK_RECORDS + 1, RECORD_COUNT])
@pytest.mark.parametrize(
    "last", [1, CHUNK_RECORDS - 2, CHUNK_RECORDS - 1, CHUNK_RECORDS, RECORD_COUNT, RECORD_COUNT + 1]
)
def test_records_read_from_record_chunks_equal_those_read_without_chunks(
    conn: sa.Connection, first: int, last: int
) -> None:
    session, written = _write_session(conn)
    assert _chunk_numbers(conn) == [0, 1, 2]
    expected = [record for record in written if first <= record.seq <= last]
    assert records.read_range(conn, session, first=first, last=last) == (expected, [])
    record_chunks.delete_chunks(conn, session)
    assert not _chunk_numbers(conn)
    assert records.read_range(conn, session, first=first, last=last) == (expected, [])


def test_text_records_read_from_a_record_chunk_have_no_body_until_it_is_accessed(conn: sa.Connection) -> None:
    session, written = _write_session(conn)
    found, _ = records.read_range(conn, session, first=1, last=CHUNK_RECORDS - 1)
    plain = [record for record in found if isinstance(record, TextRecord)]
    assert len(plain) > CHUNK_RECORDS * 0.9
    assert not any("body" in vars(record) for record in plain)
    assert [record.body for record in found] == [record.body for record in written[: CHUNK_RECORDS - 1]]


def test_records_keep_their_trust_when_read_from_a_record_chunk(conn: sa.Connection) -> None:
    """A restart raises the trust of no record: neither of texts nor of files of others."""
    session = _start_session(conn)
    talk = _make_records(session, 2 * CHUNK_RECORDS)
    clean = [record for record in talk if not isinstance(record.body, ToolResult | Note)]
    clean = [record._replace(body=UserTurn(text="hello"), seq=seq) for seq, record in enumerate(clean, start=2)]
    outside = clean[9]._replace(trust=Trust.UNTRUSTED)
    with_file = clean[9]._replace(body=UserTurn(text="see", attachments=(FILE,)), trust=Trust.AGENT)
    for tenth, expected in ((clean[9], Trust.AGENT), (outside, Trust.UNTRUSTED), (with_file, Trust.UNTRUSTED)):
        conn.execute(t.records.delete().where(t.records.c.seq > 1))
        written = [record._replace(kind=body_kind(record.body)) for record in (*clean[:9], tenth, *clean[10:])]
        _write(conn, written)
        assert _chunk_numbers(conn)[0] == 0
        found, _ = records.read_range(conn, session, first=2, last=10**6)
        chaptered, _ = records.read_range(conn, session, first=1, last=10**6)
        assert [record.trust for record in chaptered[1:]] == [record.trust for record in written]
        assert least_trust_in(found) is least_trust_in(chaptered[1:]) is least_trust_in(written) is expected


def test_an_unreadable_chunk_is_replaced_by_its_records(conn: sa.Connection) -> None:
    session, written = _write_session(conn)
    (whole,) = conn.execute(sa.select(t.record_chunks.c.body).where(t.record_chunks.c.number == 1)).one()
    for broken in (b"", b"\xc1", whole[:-1], whole[: len(whole) // 2], whole + b"\x00"):
        conn.execute(t.record_chunks.update().where(t.record_chunks.c.number == 1).values(body=broken))
        assert records.read_range(conn, session, first=1, last=RECORD_COUNT + 1) == (written, [])


def test_a_damaged_record_in_a_record_chunk_is_reported_and_its_neighbors_are_read(conn: sa.Connection) -> None:
    session = _start_session(conn)
    talk = _make_records(session, RECORD_COUNT)
    _write(conn, talk[:20])
    conn.execute(t.records.update().where(t.records.c.seq == 9).values(body='{"text":'))
    conn.execute(t.records.update().where(t.records.c.seq == 10).values(trust="blind"))
    _write(conn, talk[20:])
    found, damaged = records.read_range(conn, session, first=2, last=RECORD_COUNT + 1)
    assert found == [record for record in talk if record.seq not in (9, 10)]
    assert [damage.seq for damage in damaged] == [9, 10]


def test_record_chunks_before_the_start_of_the_context_are_deleted(conn: sa.Connection) -> None:
    session = _start_session(conn)
    talk = _make_records(session, RECORD_COUNT)
    _write(conn, talk[: 2 * CHUNK_RECORDS])
    assert _chunk_numbers(conn) == [0, 1]
    conn.execute(t.sessions.update().values(context_from=CHUNK_RECORDS + 5))
    _write(conn, talk[2 * CHUNK_RECORDS :])
    assert _chunk_numbers(conn) == [1, 2]
    found, _ = records.read_range(conn, session, first=CHUNK_RECORDS + 5, last=RECORD_COUNT + 1)
    assert found == talk[CHUNK_RECORDS + 3 :]


def test_erasing_a_person_deletes_the_record_chunks_with_their_text(conn: sa.Connection) -> None:
    session, _ = _write_session(conn)
    assert any(SECRET.encode() in row.body for row in conn.execute(sa.select(t.record_chunks.c.body)))
    erase_person.erase_person(conn, person="maria", now_ms=10_000)
    assert not _chunk_numbers(conn)
    found, _ = records.read_range(conn, session, first=1, last=RECORD_COUNT + 1)
    assert len(found) == RECORD_COUNT + 1
    assert SECRET not in repr(found)
