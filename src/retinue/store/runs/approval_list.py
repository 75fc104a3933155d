"""Lists of approvals for people, open and past, newest first, with keyset pagination."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.approval import Approval
from retinue.domain.principal import HOUSE, Principal
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.keyset_pagination import Place, walk
from retinue.store.core.row_visibility import Scope, me, scope_of
from retinue.store.runs.approvals import approval_of

LOOKED_AT_MAX = 5_000  # approvals, for one page

_b = sa.bindparam
_a = t.approvals
_behind = sa.and_(_a.c.asked_ms <= _b("at"), sa.or_(_a.c.asked_ms < _b("at"), _a.c.id < _b("id")))
_newest = (_a.c.asked_ms.desc(), _a.c.id.desc())
_open = row_visibility.PerScope(
    lambda scope: (
        sa.select(_a)
        .where(_a.c.state == t.word("'open'"), _behind, row_visibility.approvals(scope))
        .order_by(*_newest)
        .limit(_b("limit"))
    )
)
_walk = sa.select(_a.c.id, _a.c.asked_ms).where(_a.c.state != t.word("'open'"), _behind).order_by(*_newest)
_floor = _walk.limit(1).offset(_b("width"))


def _page(scope: Scope) -> sa.Select[Any]:
    walked = _walk.limit(_b("width")).subquery("walked")
    return (
        sa.select(_a)
        .join_from(walked, _a, walked.c.id == _a.c.id)
        .where(row_visibility.approvals(scope))
        .order_by(walked.c.asked_ms.desc(), walked.c.id.desc())
        .limit(_b("limit"))
    )


_past = row_visibility.PerScope(_page)


def page(
    conn: sa.Connection, *, past: bool, after: Place, limit: int, seen_by: Principal = HOUSE
) -> tuple[list[Approval], Place | None]:
    """List open or past approvals. Also returns where the next page begins, if there may be one."""
    scope, who = scope_of(seen_by), me(seen_by)

    def window(place: Place, width: int, most: int) -> tuple[list[Approval], Place | None]:
        where = {"at": place.ms, "id": place.id}
        size = {"width": width} if past else {}
        rows = conn.execute((_past if past else _open)[scope], {**where, **size, "limit": most + 1, **who}).all()
        last = rows[most - 1] if len(rows) > most else None
        if last is None and past:
            last = conn.execute(_floor, {**where, "width": width - 1}).first()
        return [approval_of(row) for row in rows[:most]], Place(last.asked_ms, last.id) if last is not None else None

    return walk(window, after=after, limit=limit, looked_at_max=LOOKED_AT_MAX)
