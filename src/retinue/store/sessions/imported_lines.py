"""Store the records of imported sessions, so that an export writes the same lines that were imported.

If an export would write a record differently, the record's line from the import file is stored too.
It is stored in the body of the record, so both are deleted together. Other code that reads the
record does not see the line. The first record also contains the other two files of the import, the
descriptor and the state.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.record import Record
from retinue.store.core import tables as t
from retinue.store.sessions import records
from retinue.store.sessions.records import DamagedRecord

_b = sa.bindparam
_range = (
    sa.select(t.records)
    .where(t.records.c.session == _b("session"), t.records.c.seq >= _b("first"), t.records.c.seq <= _b("last"))
    .order_by(t.records.c.seq)
)
_first = sa.select(t.records.c.body).where(t.records.c.session == _b("session"), t.records.c.seq == 1)
_insert = t.records.insert()
_encode = msgspec.json.Encoder().encode


class _ImportFields(msgspec.Struct):
    """Fields that the stored body of an imported record may have in addition to the fields of the record."""

    line: str | None = None
    opening: ImportedFiles | None = None


class ImportedFiles(msgspec.Struct):
    """The descriptor and the state of an imported session, and the number of its records at the time of the import."""

    descriptor: str
    state: str
    record_seq: int


_import_fields_decoder = msgspec.json.Decoder(_ImportFields)


class ImportedRecord(Struct, frozen=True):
    """A record of an imported session.

    `line` is its line in the import file. It is None if an export would write the same line anyway.
    """

    record: Record
    line: str | None = None


def add(conn: sa.Connection, imported: Sequence[ImportedRecord], *, files: ImportedFiles) -> None:
    """Insert the records of an imported session. The first record must be the start marker."""
    conn.execute(
        _insert,
        [
            {
                "session": k.record.session,
                "seq": k.record.seq,
                "kind": k.record.kind.value,
                "body": _encode_body(k, files if k.record.seq == 1 else None),
                "run": None,
                "trust": k.record.trust.value,
                "at_ms": k.record.at_ms,
            }
            for k in imported
        ],
    )


def _encode_body(imported: ImportedRecord, files: ImportedFiles | None) -> str:
    body = msgspec.to_builtins(imported.record.body)
    if imported.line is not None:
        body["line"] = imported.line
    if files is not None:
        body["opening"] = files
    return _encode(body).decode()


def read(
    conn: sa.Connection, session: str, *, first: int, last: int
) -> tuple[list[ImportedRecord], list[DamagedRecord]]:
    found: list[ImportedRecord] = []
    damaged: list[DamagedRecord] = []
    for row in conn.execute(_range, {"session": session, "first": first, "last": last}):
        try:
            aside = _import_fields_decoder.decode(row.body) if '"line":' in row.body else None
            found.append(ImportedRecord(records.record_from_row(*row), aside.line if aside else None))
        except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
            damaged.append(DamagedRecord(row.session, row.seq, str(error)))
    return found, damaged


def get_imported_files(conn: sa.Connection, session: str) -> ImportedFiles | None:
    """Return the descriptor and the state of an imported session, or None if the session was not imported."""
    body = conn.execute(_first, {"session": session}).scalar()
    if body is None or '"opening":' not in body:
        return None
    try:
        return _import_fields_decoder.decode(body).opening
    except msgspec.MsgspecError:
        return None
