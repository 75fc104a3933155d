"""Store approvals, and list the open and decided approvals for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain import address, permission
from retinue.domain.address import Address
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ApprovalId, RunId, SessionId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.times import from_ms, to_ms
from retinue.domain.tool import Call
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.keyset_pagination import KeysetPosition, paginate
from retinue.store.core.lookup import IdKind, find_by_short_id
from retinue.store.core.row_visibility import PerScope, VisibilityScope, principal_parameters, visibility_scope


class _StoredPermissions(msgspec.Struct):
    """The permissions in the row of an approval: those of its calls, and those that a grant would add."""

    gives: list[str] = []
    would_grant: list[str] = []


APPROVALS_SCANNED_MAX = 5_000  # approvals read for one page

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_calls_decoder = msgspec.json.Decoder(tuple[Call, ...])
_texts_decoder = msgspec.json.Decoder(list[str])
_permissions_decoder = msgspec.json.Decoder(_StoredPermissions)
_OPEN = t.sql_literal("'open'")

_insert = t.approvals.insert()
_get = sa.select(t.approvals).where(t.approvals.c.id == _b("id"))
_of_run = (
    sa.select(t.approvals).where(t.approvals.c.run == _b("run")).order_by(t.approvals.c.asked_ms, t.approvals.c.id)
)
_decide = (
    t.approvals.update()
    .where(t.approvals.c.id == _b("the_id"), t.approvals.c.state == _OPEN)
    .values(
        state=_b("new_state"),
        decided_by=_b("who"),
        decided_ms=_b("now"),
        scope=_b("new_scope"),
        comment=_b("new_words"),
    )
)
_release_of_run = t.approvals.update().where(t.approvals.c.run == _b("the_run")).values(run_continued=True)
_close_of_run = (
    t.approvals.update()
    .where(t.approvals.c.run == _b("the_run"), t.approvals.c.state == _OPEN)
    .values(state="closed", decided_ms=_b("now"))
)
_close_in_session = (
    t.approvals.update()
    .where(t.approvals.c.session == _b("the_session"), t.approvals.c.state == _OPEN)
    .values(state="closed", decided_ms=_b("now"))
)
_open_in_session = (
    sa.select(t.approvals)
    .where(t.approvals.c.session == _b("session"), t.approvals.c.state == _OPEN)
    .order_by(t.approvals.c.asked_ms, t.approvals.c.id)
    .limit(_b("limit"))
)
_release_approval = t.approvals.update().where(t.approvals.c.id == _b("the_id")).values(run_continued=True)
_expiring = (
    sa.select(t.approvals)
    .where(t.approvals.c.state == _OPEN, t.approvals.c.expires_ms <= _b("now"))
    .order_by(t.approvals.c.expires_ms)
    .limit(_b("limit"))
)
_to_escalate = (
    sa.select(t.approvals)
    .where(t.approvals.c.state == _OPEN, t.approvals.c.escalate_ms <= _b("now"))
    .order_by(t.approvals.c.escalate_ms)
    .limit(_b("limit"))
)
_set_asked = (
    t.approvals.update()
    .where(t.approvals.c.id == _b("the_id"))
    .values(asked=_b("addresses"), escalate_ms=_b("next_ms"))
)
_next_expiry = sa.select(sa.func.min(t.approvals.c.expires_ms), sa.func.min(t.approvals.c.escalate_ms)).where(
    t.approvals.c.state == _OPEN
)
_visible_open = PerScope(
    lambda scope: (
        sa.select(t.approvals)
        .where(t.approvals.c.state == _OPEN, row_visibility.visible_approvals(scope))
        .order_by(t.approvals.c.asked_ms)
        .limit(_b("limit"))
    )
)


def approval_from_row(row: sa.Row[Any]) -> Approval:
    reach = (
        _permissions_decoder.decode(row.permissions)
        if row.permissions.startswith("{")
        else _StoredPermissions(would_grant=_texts_decoder.decode(row.permissions))
    )
    return Approval(
        id=ApprovalId(row.id),
        session=SessionId(row.session),
        run=RunId(row.run),
        calls=_calls_decoder.decode(row.calls),
        because=row.because,
        state=ApprovalState(row.state),
        requested_at=from_ms(row.asked_ms),
        expires_at=from_ms(row.expires_ms),
        decided_by=row.decided_by,
        decided_at=from_ms(row.decided_ms) if row.decided_ms is not None else None,
        is_released=row.run_continued,
        call_permissions=tuple(permission.parse_permission(tag) for tag in reach.gives),
        grant_permissions=tuple(permission.parse_permission(tag) for tag in reach.would_grant),
        recipients=tuple(address.parse_address(text) for text in _texts_decoder.decode(row.asked)),
        scope=GrantScope(row.scope) if row.scope else None,
        comment=row.comment,
        agent=row.agent,
        escalate_at=from_ms(row.escalate_ms) if row.escalate_ms is not None else None,
    )


def add(conn: sa.Connection, approval: Approval, *, turn: int) -> None:
    conn.execute(
        _insert,
        {
            "id": approval.id,
            "session": approval.session,
            "run": approval.run,
            "turn": turn,
            "calls": _encode(approval.calls).decode(),
            "because": approval.because,
            "state": approval.state.value,
            "run_continued": False,
            "decided_by": "",
            "asked_ms": to_ms(approval.requested_at),
            "expires_ms": to_ms(approval.expires_at),
            "decided_ms": None,
            "permissions": _encode(
                _StoredPermissions(
                    [str(each) for each in approval.call_permissions],
                    [str(each) for each in approval.grant_permissions],
                )
            ).decode(),
            "scope": "",
            "asked": _encode([str(each) for each in approval.recipients]).decode(),
            "escalate_ms": to_ms(approval.escalate_at) if approval.escalate_at is not None else None,
            "comment": "",
            "agent": approval.agent,
        },
    )


def get(conn: sa.Connection, id_: str) -> Approval | None:
    row = conn.execute(_get, {"id": id_}).one_or_none()
    return approval_from_row(row) if row else None


def get_by_short_id(conn: sa.Connection, text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> Approval:
    """Return the only approval whose id starts with this short id."""
    approval = get(conn, find_by_short_id(conn, text, (IdKind.APPROVAL,), seen_by=seen_by)[1])
    assert approval is not None  # found by its id, in the same snapshot
    return approval


def list_of_run(conn: sa.Connection, run: str) -> list[Approval]:
    return [approval_from_row(row) for row in conn.execute(_of_run, {"run": run})]


def decide(
    conn: sa.Connection,
    id_: str,
    state: ApprovalState,
    *,
    by: str,
    at_ms: int,
    scope: GrantScope | None = None,
    comment: str = "",
) -> bool:
    """Store the decision on an approval. Returns False if the approval was no longer open."""
    said = {"new_state": state.value, "who": by, "new_scope": scope.value if scope else "", "new_words": comment}
    return conn.execute(_decide, {"the_id": id_, "now": at_ms, **said}).rowcount == 1


def release_of_run(conn: sa.Connection, run: str) -> None:
    """Record that a run no longer waits for its approvals, because it continued without a decision."""
    conn.execute(_release_of_run, {"the_run": run})


def close_of_run(conn: sa.Connection, run: str, *, at_ms: int) -> None:
    conn.execute(_close_of_run, {"the_run": run, "now": at_ms})


def close_in_session(conn: sa.Connection, session: str, *, at_ms: int) -> None:
    """Close the open approvals of a session, because no run is waiting for them any more."""
    conn.execute(_close_in_session, {"the_session": session, "now": at_ms})


def list_open_in_session(conn: sa.Connection, session: str, *, limit: int) -> list[Approval]:
    return [approval_from_row(row) for row in conn.execute(_open_in_session, {"session": session, "limit": limit})]


def release_approval(conn: sa.Connection, id_: str) -> None:
    conn.execute(_release_approval, {"the_id": id_})


def list_expired(conn: sa.Connection, now_ms: int, *, limit: int) -> list[Approval]:
    return [approval_from_row(row) for row in conn.execute(_expiring, {"now": now_ms, "limit": limit})]


def list_to_escalate(conn: sa.Connection, now_ms: int, *, limit: int) -> list[Approval]:
    """List open approvals that have waited so long that the next person must be asked."""
    return [approval_from_row(row) for row in conn.execute(_to_escalate, {"now": now_ms, "limit": limit})]


def set_asked(conn: sa.Connection, id_: str, asked: Sequence[Address], *, escalate_ms: int | None) -> None:
    addresses = _encode([str(each) for each in asked]).decode()
    conn.execute(_set_asked, {"the_id": id_, "addresses": addresses, "next_ms": escalate_ms})


def next_expiry_or_escalation_ms(conn: sa.Connection) -> int | None:
    """Return the next time at which an open approval expires or is due for escalation, or None if there is none."""
    row = conn.execute(_next_expiry).one()
    return min((ms for ms in row if ms is not None), default=None)


def list_open(conn: sa.Connection, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL) -> list[Approval]:
    """List the open approvals that the caller can see."""
    rows = conn.execute(_visible_open[visibility_scope(seen_by)], {"limit": limit, **principal_parameters(seen_by)})
    return [approval_from_row(row) for row in rows]


# --- pages, newest first ---

_a = t.approvals
_is_after_position = sa.and_(_a.c.asked_ms <= _b("at"), sa.or_(_a.c.asked_ms < _b("at"), _a.c.id < _b("id")))
_newest_first = (_a.c.asked_ms.desc(), _a.c.id.desc())
_open_page = PerScope(
    lambda scope: (
        sa.select(_a)
        .where(_a.c.state == _OPEN, _is_after_position, row_visibility.visible_approvals(scope))
        .order_by(*_newest_first)
        .limit(_b("limit"))
    )
)
_past_ids = sa.select(_a.c.id, _a.c.asked_ms).where(_a.c.state != _OPEN, _is_after_position).order_by(*_newest_first)
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


_past_page = PerScope(_select_past_page)


def list_page(
    conn: sa.Connection, *, past: bool, after: KeysetPosition, limit: int, seen_by: Principal = SERVER_PRINCIPAL
) -> tuple[list[Approval], KeysetPosition | None]:
    """Return a page of approvals, either open or past, and the position of the next page or None."""
    scope, who = visibility_scope(seen_by), principal_parameters(seen_by)

    def window(place: KeysetPosition, width: int, most: int) -> tuple[list[Approval], KeysetPosition | None]:
        where = {"at": place.ms, "id": place.id}
        size = {"width": width} if past else {}
        rows = conn.execute(
            (_past_page if past else _open_page)[scope], {**where, **size, "limit": most + 1, **who}
        ).all()
        last = rows[most - 1] if len(rows) > most else None
        if last is None and past:
            last = conn.execute(_floor, {**where, "width": width - 1}).first()
        return [approval_from_row(row) for row in rows[:most]], KeysetPosition(
            last.asked_ms, last.id
        ) if last is not None else None

    return paginate(window, after=after, limit=limit, scanned_max=APPROVALS_SCANNED_MAX)
