"""Lists of delegations for people: all that were made from visible sessions, newest first."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.delegation import Delegation
from retinue.domain.errors import Ambiguous, NotFound
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, distinguish, prefix
from retinue.domain.principal import HOUSE, Principal
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, Scope, me, scope_of
from retinue.store.runs.delegations import delegation_of
from retinue.store.runs.subagents import Place

COUNTED_MAX = 1_000

_b = sa.bindparam
_d = t.delegations
_is_open = _d.c.state == t.word("'open'")


def _listed(scope: Scope, *which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    behind = sa.or_(_d.c.created_ms < _b("created"), sa.and_(_d.c.created_ms == _b("created"), _d.c.id < _b("id")))
    return (
        sa.select(_d)
        .where(_d.c.created_ms <= _b("created"), behind, row_visibility.in_sessions(scope, _d.c.session), *which)
        .order_by(_d.c.created_ms.desc(), _d.c.id.desc())
        .limit(_b("limit"))
    )


def _counted(scope: Scope) -> sa.Select[Any]:
    found = (
        sa.select(_d.c.id)
        .where(_is_open, row_visibility.in_sessions(scope, _d.c.session))
        .limit(_b("limit"))
        .subquery()
    )
    return sa.select(sa.func.count()).select_from(found)


def _named(scope: Scope) -> sa.Select[Any]:
    begins = sa.and_(_d.c.id >= _b("low"), _d.c.id < _b("high"))
    seen = row_visibility.in_sessions(scope, _d.c.session)
    return sa.select(_d).where(begins, seen).order_by(_d.c.id).limit(CANDIDATES_SHOWN_MAX + 1)


_all = PerScope(_listed)
_open = PerScope(lambda scope: _listed(scope, _is_open))
_of_session = PerScope(lambda scope: _listed(scope, _d.c.session == _b("session")))
_open_of_session = PerScope(lambda scope: _listed(scope, _d.c.session == _b("session"), _is_open))
_count_open = PerScope(_counted)
_by_id = PerScope(_named)


def listed(
    conn: sa.Connection,
    *,
    after: Place,
    limit: int,
    session: str = "",
    only_open: bool = False,
    seen_by: Principal = HOUSE,
) -> list[Delegation]:
    """List the delegations made by a session, or by all visible ones."""
    which = (_open_of_session if only_open else _of_session) if session else (_open if only_open else _all)
    values = {"created": after.created_ms, "id": after.id, "limit": limit, **me(seen_by)}
    rows = conn.execute(which[scope_of(seen_by)], {**values, "session": session} if session else values)
    return [delegation_of(row) for row in rows]


def count_open(conn: sa.Connection, *, seen_by: Principal = HOUSE) -> int:
    """Count open delegations, up to `COUNTED_MAX`."""
    return conn.execute(_count_open[scope_of(seen_by)], {"limit": COUNTED_MAX, **me(seen_by)}).scalar_one()


def resolve(conn: sa.Connection, text: str, *, seen_by: Principal = HOUSE) -> Delegation:
    """Return the one delegation that a short id names."""
    digits = prefix(text)
    bounds = {"low": digits, "high": digits + "g", **me(seen_by)}
    found = [delegation_of(row) for row in conn.execute(_by_id[scope_of(seen_by)], bounds)]
    if not found:
        raise NotFound(
            f"no work {digits} was handed on",
            because="none that you see has an id that begins so",
            try_this="copy it from `retinue delegation list`",
            code="delegation.not-found",
        )
    if len(found) > 1:
        raise Ambiguous(digits, distinguish([each.id for each in found])[:CANDIDATES_SHOWN_MAX], matches=len(found))
    return found[0]
