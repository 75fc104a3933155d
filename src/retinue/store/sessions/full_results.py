"""Find the full output of a tool result that was truncated."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.ids import SessionId
from retinue.domain.record import Note, RecordKind
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.store.core import tables as t

ROWS_PER_BATCH_MAX = 500

_b = sa.bindparam
_r = t.records.c
# The result of a call that was performed after its turn had ended is stored as a note.
_is_result = _r.kind.in_([t.sql_literal(f"'{RecordKind.TOOL}'"), t.sql_literal(f"'{RecordKind.NOTE}'")])
# In a body, quotes inside a string are escaped, so no output can contain text that these patterns match.
_has_full_output = sa.and_(_r.body.like('%"whole":"%'), _r.body.not_like('%"whole":""%'))
_has_attachments = _r.body.like('%"attachments":[{%')
_by_prefix = (
    sa.select(_r.kind, _r.body)
    .where(_r.session == _b("the_session"), _is_result, _r.body.like(_b("named")))
    .order_by(sa.case((_r.body.like(f'%"trust":"{Trust.UNTRUSTED}"%'), 0), else_=1), _r.seq.desc())
    .limit(1)
)
_with_files = (
    sa.select(_r.session, _r.seq, _r.kind, _r.body)
    .where(
        sa.or_(_r.session > _b("session"), sa.and_(_r.session == _b("session"), _r.seq > _b("seq"))),
        _is_result,
        sa.or_(_has_full_output, _has_attachments),
    )
    .order_by(_r.session, _r.seq)
    .limit(ROWS_PER_BATCH_MAX)
)


def find_by_hash(conn: sa.Connection, session: SessionId, prefix: str) -> ToolResult | None:
    """Find the tool result of this session whose full output has a hash that starts with `prefix`.

    If several results match, an untrusted one is preferred, then the newest. Returns None if none
    matches. `prefix` must contain only hex digits.
    """
    row = conn.execute(_by_prefix, {"the_session": session, "named": f'%"whole":"{prefix}%'}).first()
    result = _decode_result(row.kind, row.body) if row is not None else None
    return result if result is not None and result.whole.startswith(prefix) else None


def list_file_hashes(conn: sa.Connection) -> set[str]:
    """Return the hashes of all files that tool results refer to: full outputs and attachments."""
    named: set[str] = set()
    session, seq = "", 0
    while rows := conn.execute(_with_files, {"session": session, "seq": seq}).all():
        for row in rows:
            result = _decode_result(row.kind, row.body)
            if result is not None:
                named |= {attachment.hash for attachment in result.attachments} | ({result.whole} - {""})
        session, seq = rows[-1].session, rows[-1].seq
    return named


_result = msgspec.json.Decoder(ToolResult)
_note = msgspec.json.Decoder(Note)


def _decode_result(kind: str, body: Any) -> ToolResult | None:
    try:
        if kind == RecordKind.TOOL:
            return _result.decode(body)
        note = _note.decode(body)
        return ToolResult(
            call=note.call,
            tool="",
            output=note.text,
            trust=note.trust,
            whole=note.whole,
            attachments=note.attachments,
        )
    except msgspec.MsgspecError:  # `records.list_damaged` reports it
        return None
