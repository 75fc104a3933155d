"""Find an object by a short id: any prefix of its id that is unambiguous among the objects that the caller can see."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import sqlalchemy as sa

from retinue.domain.errors import AmbiguousId, NotFound
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, parse_id_prefix, short_id, shortest_unique_prefixes
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.shared_errors import SessionNotFound
from retinue.domain.times import from_ms
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.errors import ApprovalNotFound, EnvelopeNotFound, EnvelopePurged, IdNotFound, RunNotFound
from retinue.store.core.row_visibility import PerScope, VisibilityScope, principal_parameters, visibility_scope

_b = sa.bindparam


class IdKind(StrEnum):
    ENVELOPE = "envelope"
    RUN = "run"
    APPROVAL = "approval"
    SESSION = "session"


_TABLES: dict[IdKind, Any] = {
    IdKind.ENVELOPE: t.envelopes,
    IdKind.RUN: t.runs,
    IdKind.APPROVAL: t.approvals,
    IdKind.SESSION: t.sessions,
}


def _is_visible(kind: IdKind, scope: VisibilityScope) -> sa.ColumnElement[bool]:
    match kind:
        case IdKind.ENVELOPE:
            return row_visibility.visible_envelopes(scope)
        case IdKind.RUN:
            return row_visibility.in_visible_session(scope, t.runs.c.session)
        case IdKind.APPROVAL:
            return row_visibility.visible_approvals(scope)
        case IdKind.SESSION:
            return sa.and_(row_visibility.visible_sessions(scope), t.sessions.c.deleted_ms.is_(None))


def _has_prefix(kind: IdKind, scope: VisibilityScope) -> sa.ColumnElement[bool]:
    id_ = _TABLES[kind].c.id
    return sa.and_(id_ >= _b("low"), id_ < _b("high"), _is_visible(kind, scope))


def _select_ids(kind: IdKind, scope: VisibilityScope) -> sa.Select[str]:
    id_ = _TABLES[kind].c.id
    return sa.select(id_).where(_has_prefix(kind, scope)).order_by(id_).limit(CANDIDATES_SHOWN_MAX + 1)


def _select_count(kind: IdKind, scope: VisibilityScope) -> sa.Select[int]:
    return sa.select(sa.func.count()).select_from(_TABLES[kind]).where(_has_prefix(kind, scope))


_by_prefix = {noun: PerScope(partial(_select_ids, noun)) for noun in IdKind}
_count = {noun: PerScope(partial(_select_count, noun)) for noun in IdKind}

_purged = (
    sa.select(t.purged_envelopes.c.envelope, t.purged_envelopes.c.outcome, t.purged_envelopes.c.purged_ms)
    .where(t.purged_envelopes.c.envelope >= _b("low"), t.purged_envelopes.c.envelope < _b("high"))
    .limit(1)
)


def find_by_short_id(
    conn: sa.Connection, text: str, kinds: Sequence[IdKind] = tuple(IdKind), *, seen_by: Principal = SERVER_PRINCIPAL
) -> tuple[IdKind, str]:
    """Return the kind and the id of the only object whose id starts with this short id.

    Raises a `NotFound` error if there is none, and `AmbiguousId` with the candidates if there
    are several.
    """
    digits = parse_id_prefix(text)
    scope = visibility_scope(seen_by)
    bounds = {"low": digits, "high": digits + "g", **principal_parameters(seen_by)}
    found = [(row.id, noun) for noun in kinds for row in conn.execute(_by_prefix[noun][scope], bounds)]
    if len(found) == 1:
        [(id_, noun)] = found
        return noun, id_
    if not found:
        gone = (
            conn.execute(_purged, bounds).first() if scope is VisibilityScope.ALL and IdKind.ENVELOPE in kinds else None
        )
        if gone is not None:
            raise EnvelopePurged(
                short_id(gone.envelope), outcome=gone.outcome, purged_on=from_ms(gone.purged_ms).date()
            )
        raise _build_not_found(digits, kinds)
    matches = sum(conn.execute(_count[noun][scope], bounds).scalar_one() for noun in kinds)
    found.sort()
    shown = dict(
        zip(sorted({id_ for id_, _ in found}), shortest_unique_prefixes([id_ for id_, _ in found]), strict=True)
    )
    candidates = tuple(
        shown[id_] if len(kinds) == 1 else f"{noun} {shown[id_]}" for id_, noun in found[:CANDIDATES_SHOWN_MAX]
    )
    raise AmbiguousId(digits, candidates, matches=matches)


def _build_not_found(digits: str, kinds: Sequence[IdKind]) -> NotFound:
    if len(kinds) > 1:
        return IdNotFound(digits)
    match kinds[0]:
        case IdKind.ENVELOPE:
            return EnvelopeNotFound(digits)
        case IdKind.RUN:
            return RunNotFound(digits)
        case IdKind.APPROVAL:
            return ApprovalNotFound(digits)
        case IdKind.SESSION:
            return SessionNotFound(
                digits, because="no session that you can see has an id that starts with these digits"
            )
