"""Find an object by a short id: any unambiguous prefix of an id, among the objects that the caller can see."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import sqlalchemy as sa

from retinue.domain.errors import Ambiguous, NotFound
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, distinguish, prefix, short
from retinue.domain.principal import HOUSE, Principal
from retinue.domain.times import from_ms
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, Scope, me, scope_of

_b = sa.bindparam


class Noun(StrEnum):
    ENVELOPE = "envelope"
    RUN = "run"
    APPROVAL = "approval"
    SESSION = "session"


_TABLES: dict[Noun, Any] = {
    Noun.ENVELOPE: t.envelopes,
    Noun.RUN: t.runs,
    Noun.APPROVAL: t.approvals,
    Noun.SESSION: t.sessions,
}
_WHERE = {
    Noun.ENVELOPE: "copy it from an answer",
    Noun.RUN: "copy it from `retinue why`",
    Noun.APPROVAL: "look at `retinue status`",
    Noun.SESSION: "copy it from `retinue sessions`",
}


def _seen(noun: Noun, scope: Scope) -> sa.ColumnElement[bool]:
    match noun:
        case Noun.ENVELOPE:
            return row_visibility.envelopes(scope)
        case Noun.RUN:
            return row_visibility.in_sessions(scope, t.runs.c.session)
        case Noun.APPROVAL:
            return row_visibility.approvals(scope)
        case Noun.SESSION:
            return sa.and_(row_visibility.sessions(scope), t.sessions.c.deleted_ms.is_(None))


def _within(noun: Noun, scope: Scope) -> sa.ColumnElement[bool]:
    id_ = _TABLES[noun].c.id
    return sa.and_(id_ >= _b("low"), id_ < _b("high"), _seen(noun, scope))


def _ids(noun: Noun, scope: Scope) -> sa.Select[str]:
    id_ = _TABLES[noun].c.id
    return sa.select(id_).where(_within(noun, scope)).order_by(id_).limit(CANDIDATES_SHOWN_MAX + 1)


def _number(noun: Noun, scope: Scope) -> sa.Select[int]:
    return sa.select(sa.func.count()).select_from(_TABLES[noun]).where(_within(noun, scope))


_by_prefix = {noun: PerScope(partial(_ids, noun)) for noun in Noun}
_count = {noun: PerScope(partial(_number, noun)) for noun in Noun}

_purged = (
    sa.select(t.purged.c.envelope, t.purged.c.outcome, t.purged.c.purged_ms)
    .where(t.purged.c.envelope >= _b("low"), t.purged.c.envelope < _b("high"))
    .limit(1)
)


def find(
    conn: sa.Connection, text: str, nouns: Sequence[Noun] = tuple(Noun), *, seen_by: Principal = HOUSE
) -> tuple[Noun, str]:
    """Return the one object that a short id names, and its kind.

    Raises `Ambiguous` with the candidates if there are more.
    """
    digits = prefix(text)
    scope = scope_of(seen_by)
    bounds = {"low": digits, "high": digits + "g", **me(seen_by)}
    found = [(row.id, noun) for noun in nouns for row in conn.execute(_by_prefix[noun][scope], bounds)]
    if len(found) == 1:
        [(id_, noun)] = found
        return noun, id_
    if not found:
        gone = conn.execute(_purged, bounds).first() if scope is Scope.ALL and Noun.ENVELOPE in nouns else None
        raise _gone(gone) if gone is not None else _not_found(digits, nouns)
    matches = sum(conn.execute(_count[noun][scope], bounds).scalar_one() for noun in nouns)
    found.sort()
    shown = dict(zip(sorted({id_ for id_, _ in found}), distinguish([id_ for id_, _ in found]), strict=True))
    candidates = tuple(
        shown[id_] if len(nouns) == 1 else f"{noun} {shown[id_]}" for id_, noun in found[:CANDIDATES_SHOWN_MAX]
    )
    raise Ambiguous(digits, candidates, matches=matches)


def _gone(row: Any) -> NotFound:
    return NotFound(
        f"envelope {short(row.envelope)} is no longer here",
        because=f"it ended {row.outcome}, and was purged on {from_ms(row.purged_ms).date()}",
        try_this="look into a backup from before that day",
        code="envelope.purged",
    )


def _not_found(digits: str, nouns: Sequence[Noun]) -> NotFound:
    if len(nouns) > 1:
        return NotFound(
            f"nothing here is called {digits}",
            because="no envelope, run, approval or session has an id that begins so",
            try_this="copy it from a list or an answer",
            code="id.not-found",
        )
    [noun] = nouns
    return NotFound(
        f"no {noun} {digits}", because="none has an id that begins so", try_this=_WHERE[noun], code=f"{noun}.not-found"
    )
