"""Lists of subagents for people: those spawned from visible sessions, newest first."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.delegation import Delegation
from retinue.domain.errors import Ambiguous, NotFound
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, distinguish, prefix
from retinue.domain.principal import HOUSE, Principal
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, Scope, me, scope_of
from retinue.store.runs.delegations import delegation_of

_b = sa.bindparam
_d = t.delegations
_spawned = _d.c.kind == t.word("'spawn'")
_session = sa.bindparam("session", type_=sa.String)
_all = sa.bindparam("all", type_=sa.Boolean)


class Place(Struct, frozen=True):
    """Keyset position: resume after (timestamp, id)."""

    created_ms: int = 2**62
    id: str = ""


def _listed(scope: Scope) -> sa.Select[Any]:
    behind = sa.or_(_d.c.created_ms < _b("created"), sa.and_(_d.c.created_ms == _b("created"), _d.c.id < _b("id")))
    return (
        sa.select(_d)
        .where(
            _spawned,
            _d.c.created_ms <= _b("created"),
            behind,
            sa.or_(_session == t.word("''"), _d.c.session == _session),
            sa.or_(_all == sa.true(), _d.c.archived_ms.is_(None)),
            row_visibility.in_sessions(scope, _d.c.session),
        )
        .order_by(_d.c.created_ms.desc(), _d.c.id.desc())
        .limit(_b("limit"))
    )


def _named(column: sa.Column[Any], scope: Scope) -> sa.Select[Any]:
    seen = row_visibility.in_sessions(scope, _d.c.session)
    begins = sa.and_(column >= _b("low"), column < _b("high"))
    return sa.select(_d).where(begins, _spawned, seen).order_by(_d.c.id).limit(CANDIDATES_SHOWN_MAX + 1)


_open_of = (
    sa.select(_d)
    .where(_d.c.session == _b("session"), _d.c.state == t.word("'open'"), _spawned)
    .order_by(_d.c.id)
    .limit(_b("limit"))
)
_listing = PerScope(_listed)
_by_id = PerScope(lambda scope: _named(_d.c.id, scope))
_by_child = PerScope(lambda scope: _named(_d.c.child, scope))


def listed(
    conn: sa.Connection,
    *,
    after: Place,
    limit: int,
    session: str = "",
    everyone: bool = False,
    seen_by: Principal = HOUSE,
) -> list[Delegation]:
    """List subagents whose session exists. `include_archived` adds archived and deleted ones."""
    values = {"created": after.created_ms, "id": after.id, "session": session, "all": everyone, "limit": limit}
    rows = conn.execute(_listing[scope_of(seen_by)], {**values, **me(seen_by)})
    return [delegation_of(row) for row in rows]


def open_of(conn: sa.Connection, session: str, *, limit: int) -> list[Delegation]:
    return [delegation_of(row) for row in conn.execute(_open_of, {"session": session, "limit": limit})]


def resolve(conn: sa.Connection, text: str, *, seen_by: Principal = HOUSE) -> Delegation:
    """Return the one subagent that a short id names: its own, or that of its session."""
    digits, scope = prefix(text.rpartition(":")[2]), scope_of(seen_by)
    bounds = {"low": digits, "high": digits + "g", **me(seen_by)}
    rows = [row for named in (_by_child, _by_id) for row in conn.execute(named[scope], bounds)]
    found = {row.id: delegation_of(row) for row in rows}
    if not found:
        raise NotFound(
            f"no subagent {digits}",
            because="none that you see has an id, or a session, that begins so",
            try_this="copy it from `retinue subagent list`",
            code="subagent.not-found",
        )
    if len(found) > 1:
        raise Ambiguous(digits, distinguish(list(found))[:CANDIDATES_SHOWN_MAX], matches=len(found))
    return next(iter(found.values()))
