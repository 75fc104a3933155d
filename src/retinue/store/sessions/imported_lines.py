"""Records with the very line they were imported from, where we would write it another way ourselves.

Such a line lies in the record's own body, beside what we read from it: whoever reads the record does not see it, and
what forgets the one forgets the other. The first record of an imported session also holds its other two files.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.record import Record
from retinue.store.core import tables as t
from retinue.store.sessions import records
from retinue.store.sessions.records import Damage

_b = sa.bindparam
_between = (
    sa.select(t.records)
    .where(t.records.c.session == _b("session"), t.records.c.seq >= _b("first"), t.records.c.seq <= _b("last"))
    .order_by(t.records.c.seq)
)
_first = sa.select(t.records.c.body).where(t.records.c.session == _b("session"), t.records.c.seq == 1)
_insert = t.records.insert()
_encode = msgspec.json.Encoder().encode


class _Aside(msgspec.Struct):
    """What a body may hold beside the record."""

    line: str | None = None
    opening: Opening | None = None


class Opening(msgspec.Struct):
    """The files with which an imported session came, and how far its history went then."""

    descriptor: str
    state: str
    record_seq: int


_aside = msgspec.json.Decoder(_Aside)


class Kept(Struct, frozen=True):
    """A record, and the line it came from where that is not the one we would write."""

    record: Record
    line: str | None = None


def add(conn: sa.Connection, kept: Sequence[Kept], *, opening: Opening) -> None:
    """The records of an imported session, whose first one is its start marker."""
    conn.execute(
        _insert,
        [
            {
                "session": k.record.session,
                "seq": k.record.seq,
                "kind": k.record.kind.value,
                "body": _body(k, opening if k.record.seq == 1 else None),
                "run": None,
                "trust": k.record.trust.value,
                "at_ms": k.record.at_ms,
            }
            for k in kept
        ],
    )


def _body(kept: Kept, opening: Opening | None) -> str:
    body = msgspec.to_builtins(kept.record.body)
    if kept.line is not None:
        body["line"] = kept.line
    if opening is not None:
        body["opening"] = opening
    return _encode(body).decode()


def read(conn: sa.Connection, session: str, *, first: int, last: int) -> tuple[list[Kept], list[Damage]]:
    found: list[Kept] = []
    damaged: list[Damage] = []
    for row in conn.execute(_between, {"session": session, "first": first, "last": last}):
        try:
            aside = _aside.decode(row.body) if '"line":' in row.body else None
            found.append(Kept(records.record_of(*row), aside.line if aside else None))
        except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
            damaged.append(Damage(row.session, row.seq, str(error)))
    return found, damaged


def opening(conn: sa.Connection, session: str) -> Opening | None:
    """None for a session that began here."""
    body = conn.execute(_first, {"session": session}).scalar()
    if body is None or '"opening":' not in body:
        return None
    try:
        return _aside.decode(body).opening
    except msgspec.MsgspecError:
        return None
