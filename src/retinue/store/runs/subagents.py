"""List subagents for people: those that visible sessions have started, newest first."""

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
from retinue.store.runs.delegations import DelegationPosition, delegation_from_row
from retinue.store.runs.errors import SubagentNotFound

_b = sa.bindparam
_d = t.delegations
_is_spawned = _d.c.kind == t.sql_literal("'spawn'")
_session = sa.bindparam("session", type_=sa.String)
_include_archived = sa.bindparam("all", type_=sa.Boolean)


def _select_list(scope: VisibilityScope) -> sa.Select[Any]:
    behind = sa.or_(_d.c.created_ms < _b("created"), sa.and_(_d.c.created_ms == _b("created"), _d.c.id < _b("id")))
    return (
        sa.select(_d)
        .where(
            _is_spawned,
            _d.c.created_ms <= _b("created"),
            behind,
            sa.or_(_session == t.sql_literal("''"), _d.c.session == _session),
            sa.or_(_include_archived == sa.true(), _d.c.archived_ms.is_(None)),
            row_visibility.in_visible_session(scope, _d.c.session),
        )
        .order_by(_d.c.created_ms.desc(), _d.c.id.desc())
        .limit(_b("limit"))
    )


def _select_by_prefix(column: sa.Column[Any], scope: VisibilityScope) -> sa.Select[Any]:
    seen = row_visibility.in_visible_session(scope, _d.c.session)
    begins = sa.and_(column >= _b("low"), column < _b("high"))
    return sa.select(_d).where(begins, _is_spawned, seen).order_by(_d.c.id).limit(CANDIDATES_SHOWN_MAX + 1)


_open_by_session = (
    sa.select(_d)
    .where(_d.c.session == _b("session"), _d.c.state == t.sql_literal("'open'"), _is_spawned)
    .order_by(_d.c.id)
    .limit(_b("limit"))
)
_list = PerScope(_select_list)
_by_id = PerScope(lambda scope: _select_by_prefix(_d.c.id, scope))
_by_child = PerScope(lambda scope: _select_by_prefix(_d.c.target_session, scope))


def list_subagents(
    conn: sa.Connection,
    *,
    after: DelegationPosition,
    limit: int,
    session: str = "",
    include_archived: bool = False,
    seen_by: Principal = SERVER_PRINCIPAL,
) -> list[Delegation]:
    """List subagents. Without `include_archived`, those whose session was archived or deleted are left out."""
    values = {"created": after.created_ms, "id": after.id, "session": session, "all": include_archived, "limit": limit}
    rows = conn.execute(_list[visibility_scope(seen_by)], {**values, **principal_parameters(seen_by)})
    return [delegation_from_row(row) for row in rows]


def list_open(conn: sa.Connection, session: str, *, limit: int) -> list[Delegation]:
    return [delegation_from_row(row) for row in conn.execute(_open_by_session, {"session": session, "limit": limit})]


def get_by_short_id(conn: sa.Connection, text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> Delegation:
    """Return the only subagent whose id, or whose session's id, starts with this short id."""
    digits, scope = parse_id_prefix(text.rpartition(":")[2]), visibility_scope(seen_by)
    bounds = {"low": digits, "high": digits + "g", **principal_parameters(seen_by)}
    rows = [row for named in (_by_child, _by_id) for row in conn.execute(named[scope], bounds)]
    found = {row.id: delegation_from_row(row) for row in rows}
    if not found:
        raise SubagentNotFound(digits)
    if len(found) > 1:
        raise AmbiguousId(digits, shortest_unique_prefixes(list(found))[:CANDIDATES_SHOWN_MAX], matches=len(found))
    return next(iter(found.values()))
