"""Lists of delegations for people: all that were made from visible sessions, newest first."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.delegation import Delegation
from retinue.domain.errors import AmbiguousId
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, parse_id_prefix, shortest_unique_prefixes
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, VisibilityScope, principal_parameters, visibility_scope
from retinue.store.runs.delegations import delegation_from_row
from retinue.store.runs.errors import DelegationNotFound
from retinue.store.runs.subagents import DelegationPosition

COUNTED_MAX = 1_000

_b = sa.bindparam
_d = t.delegations
_is_open = _d.c.state == t.sql_literal("'open'")


def _select_list(scope: VisibilityScope, *which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    behind = sa.or_(_d.c.created_ms < _b("created"), sa.and_(_d.c.created_ms == _b("created"), _d.c.id < _b("id")))
    return (
        sa.select(_d)
        .where(_d.c.created_ms <= _b("created"), behind, row_visibility.in_visible_session(scope, _d.c.session), *which)
        .order_by(_d.c.created_ms.desc(), _d.c.id.desc())
        .limit(_b("limit"))
    )


def _select_open_count(scope: VisibilityScope) -> sa.Select[Any]:
    found = (
        sa.select(_d.c.id)
        .where(_is_open, row_visibility.in_visible_session(scope, _d.c.session))
        .limit(_b("limit"))
        .subquery()
    )
    return sa.select(sa.func.count()).select_from(found)


def _select_by_prefix(scope: VisibilityScope) -> sa.Select[Any]:
    begins = sa.and_(_d.c.id >= _b("low"), _d.c.id < _b("high"))
    seen = row_visibility.in_visible_session(scope, _d.c.session)
    return sa.select(_d).where(begins, seen).order_by(_d.c.id).limit(CANDIDATES_SHOWN_MAX + 1)


_all = PerScope(_select_list)
_open = PerScope(lambda scope: _select_list(scope, _is_open))
_of_session = PerScope(lambda scope: _select_list(scope, _d.c.session == _b("session")))
_open_of_session = PerScope(lambda scope: _select_list(scope, _d.c.session == _b("session"), _is_open))
_count_open = PerScope(_select_open_count)
_by_id = PerScope(_select_by_prefix)


def list_delegations(
    conn: sa.Connection,
    *,
    after: DelegationPosition,
    limit: int,
    session: str = "",
    only_open: bool = False,
    seen_by: Principal = SERVER_PRINCIPAL,
) -> list[Delegation]:
    """List the delegations made by a session, or by all visible ones."""
    which = (_open_of_session if only_open else _of_session) if session else (_open if only_open else _all)
    values = {"created": after.created_ms, "id": after.id, "limit": limit, **principal_parameters(seen_by)}
    rows = conn.execute(which[visibility_scope(seen_by)], {**values, "session": session} if session else values)
    return [delegation_from_row(row) for row in rows]


def count_open(conn: sa.Connection, *, seen_by: Principal = SERVER_PRINCIPAL) -> int:
    """Count open delegations, up to `COUNTED_MAX`."""
    return conn.execute(
        _count_open[visibility_scope(seen_by)], {"limit": COUNTED_MAX, **principal_parameters(seen_by)}
    ).scalar_one()


def get_by_short_id(conn: sa.Connection, text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> Delegation:
    """Return the one delegation that a short id names."""
    digits = parse_id_prefix(text)
    bounds = {"low": digits, "high": digits + "g", **principal_parameters(seen_by)}
    found = [delegation_from_row(row) for row in conn.execute(_by_id[visibility_scope(seen_by)], bounds)]
    if not found:
        raise DelegationNotFound(digits)
    if len(found) > 1:
        raise AmbiguousId(
            digits, shortest_unique_prefixes([each.id for each in found])[:CANDIDATES_SHOWN_MAX], matches=len(found)
        )
    return found[0]
