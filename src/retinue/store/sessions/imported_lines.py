"""Store the records of imported sessions. If an export would write a record differently, its line
from the import file is stored too.

The line is stored in the body of the record, next to the decoded content, so both are deleted
together. Readers of the record do not see it. The first record of an imported session also holds
the other two files of the import.
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
    """The fields that the body of an imported record may contain in addition to the record."""

    line: str | None = None
    opening: ImportedFiles | None = None


class ImportedFiles(msgspec.Struct):
    """The two other files of an imported session, and the length of its history when it was imported."""

    descriptor: str
    state: str
    record_seq: int


_import_fields_decoder = msgspec.json.Decoder(_ImportFields)


class ImportedRecord(Struct, frozen=True):
    """A record of an imported session. `line` is its line from the import file, if an export would
    write a different one."""

    record: Record
    line: str | None = None


def add(conn: sa.Connection, imported: Sequence[ImportedRecord], *, files: ImportedFiles) -> None:
    """Insert the records of an imported session. The first record is its start marker."""
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
    """Return the files of an imported session. None for a session that was not imported."""
    body = conn.execute(_first, {"session": session}).scalar()
    if body is None or '"opening":' not in body:
        return None
    try:
        return _import_fields_decoder.decode(body).opening
    except msgspec.MsgspecError:
        return None
