"""Lists of approvals for people, open and past, newest first, with keyset pagination."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain.approval import Approval
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.keyset_pagination import KeysetPosition, paginate
from retinue.store.core.row_visibility import VisibilityScope, principal_parameters, visibility_scope
from retinue.store.runs.approvals import approval_from_row

APPROVALS_SCANNED_MAX = 5_000  # approvals, for one page

_b = sa.bindparam
_a = t.approvals
_is_after_position = sa.and_(_a.c.asked_ms <= _b("at"), sa.or_(_a.c.asked_ms < _b("at"), _a.c.id < _b("id")))
_newest_first = (_a.c.asked_ms.desc(), _a.c.id.desc())
_open = row_visibility.PerScope(
    lambda scope: (
        sa.select(_a)
        .where(_a.c.state == t.sql_literal("'open'"), _is_after_position, row_visibility.visible_approvals(scope))
        .order_by(*_newest_first)
        .limit(_b("limit"))
    )
)
_past_ids = (
    sa.select(_a.c.id, _a.c.asked_ms)
    .where(_a.c.state != t.sql_literal("'open'"), _is_after_position)
    .order_by(*_newest_first)
)
_floor = _past_ids.limit(1).offset(_b("width"))


def _select_past_page(scope: VisibilityScope) -> sa.Select[Any]:
    walked = _past_ids.limit(_b("width")).subquery("walked")
    return (
        sa.select(_a)
        .join_from(walked, _a, walked.c.id == _a.c.id)
        .where(row_visibility.visible_approvals(scope))
        .order_by(walked.c.asked_ms.desc(), walked.c.id.desc())
        .limit(_b("limit"))
    )


_past = row_visibility.PerScope(_select_past_page)


def list_page(
    conn: sa.Connection, *, past: bool, after: KeysetPosition, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> tuple[list[Approval], KeysetPosition | None]:
    """List open or past approvals. Also returns where the next page begins, if there may be one."""
    scope, who = visibility_scope(seen_by), principal_parameters(seen_by)

    def window(place: KeysetPosition, width: int, most: int) -> tuple[list[Approval], KeysetPosition | None]:
        where = {"at": place.ms, "id": place.id}
        size = {"width": width} if past else {}
        rows = conn.execute((_past if past else _open)[scope], {**where, **size, "limit": most + 1, **who}).all()
        last = rows[most - 1] if len(rows) > most else None
        if last is None and past:
            last = conn.execute(_floor, {**where, "width": width - 1}).first()
        return [approval_from_row(row) for row in rows[:most]], KeysetPosition(
            last.asked_ms, last.id
        ) if last is not None else None

    return paginate(window, after=after, limit=limit, scanned_max=APPROVALS_SCANNED_MAX)
