"""Store delegations. A delegation is work given to another agent, with its state and result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.delegation import (
    Delegation,
    DelegationKind,
    DelegationState,
    Lineage,
    NotifyMode,
    SubagentCleanup,
)
from retinue.domain.errors import AmbiguousId
from retinue.domain.ids import (
    CANDIDATES_SHOWN_MAX,
    EnvelopeId,
    RunId,
    SessionId,
    parse_id_prefix,
    shortest_unique_prefixes,
)
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.times import from_ms, to_ms
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, VisibilityScope, principal_parameters, visibility_scope
from retinue.store.runs.errors import DelegationNotFound

OPEN_COUNTED_MAX = 1_000  # open delegations

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_lineage_decoder = msgspec.json.Decoder(Lineage)
_d = t.delegations
_is_open = _d.c.state == t.sql_literal("'open'")

_insert = _d.insert()
_get = sa.select(_d).where(_d.c.id == _b("id"))
_awaited = sa.select(_d).where(_d.c.run == _b("run"), _d.c.wait_ms.is_not(None)).order_by(_d.c.created_ms, _d.c.id)
_release_of_run = _d.update().where(_d.c.run == _b("the_run"), _d.c.wait_ms.is_not(None)).values(wait_ms=None)
_silence_run = (
    _d.update()
    .where(_d.c.run == _b("the_run"), _is_open)
    .values(notify=sa.case((_d.c.notify == t.sql_literal("'wake'"), t.sql_literal("'note'")), else_=_d.c.notify))
)
_silence_session = (
    _d.update()
    .where(_d.c.target_session == _b("the_child"), _is_open)
    .values(
        wait_ms=None,
        notify=sa.case((_d.c.notify == t.sql_literal("'wake'"), t.sql_literal("'note'")), else_=_d.c.notify),
    )
)
_release_delegation = _d.update().where(_d.c.id == _b("the_id")).values(wait_ms=None)
_mark_started = (
    _d.update()
    .where(_d.c.id == _b("the_id"))
    .values(target_run=_b("the_run"), started_ms=sa.func.coalesce(_d.c.started_ms, _b("now")))
)
_end = (
    _d.update()
    .where(_d.c.id == _b("the_id"), _is_open)
    .values(
        state=_b("new_state"),
        because=_b("why"),
        result=_b("the_result"),
        ended_ms=_b("now"),
        archive_ms=_b("archive"),
    )
)
_count_open = sa.select(sa.func.count()).where(_d.c.session == _b("session"), _is_open)
_open_by_session = sa.select(_d).where(_d.c.session == _b("session"), _is_open).order_by(_d.c.id).limit(_b("limit"))
_of_session = (
    sa.select(_d).where(_d.c.session == _b("session")).order_by(_d.c.created_ms.desc(), _d.c.id).limit(_b("limit"))
)
_by_child = (
    sa.select(_d)
    .where(_d.c.target_session == _b("target_session"))
    .order_by(_d.c.created_ms.desc(), _d.c.id)
    .limit(_b("limit"))
)
_by_result = sa.select(_d).where(_d.c.result == _b("result"))
_to_archive = (
    sa.select(_d)
    .where(_d.c.archive_ms.is_not(None), _d.c.archived_ms.is_(None), _d.c.archive_ms <= _b("now"))
    .order_by(_d.c.archive_ms, _d.c.id)
    .limit(_b("limit"))
)
_next_archive = sa.select(sa.func.min(_d.c.archive_ms)).where(_d.c.archive_ms.is_not(None), _d.c.archived_ms.is_(None))
_set_archive_time = _d.update().where(_d.c.id == _b("the_id")).values(archive_ms=_b("then"))
_mark_archived = _d.update().where(_d.c.id == _b("the_id")).values(archived_ms=_b("now"))


def delegation_from_row(row: sa.Row[Any]) -> Delegation:
    return Delegation(
        id=EnvelopeId(row.id),
        kind=DelegationKind(row.kind),
        run=RunId(row.run),
        call=row.call,
        agent=row.agent,
        session=SessionId(row.session),
        target=row.target,
        target_session=SessionId(row.target_session) if row.target_session else None,
        task=row.task,
        parent_lineage=_lineage_decoder.decode(row.parent_lineage),
        lineage=_lineage_decoder.decode(row.lineage),
        notify=NotifyMode(row.notify),
        wait_until=from_ms(row.wait_ms) if row.wait_ms is not None else None,
        label=row.label,
        cleanup=SubagentCleanup(row.cleanup),
        state=DelegationState(row.state),
        because=row.because,
        result=EnvelopeId(row.result) if row.result else None,
        worker_run=RunId(row.target_run) if row.target_run else None,
        created_at=from_ms(row.created_ms),
        started_at=from_ms(row.started_ms) if row.started_ms is not None else None,
        ended_at=from_ms(row.ended_ms) if row.ended_ms is not None else None,
        archive_after_s=row.archive_after_ms / 1000 if row.archive_after_ms is not None else None,
        archive_at=from_ms(row.archive_ms) if row.archive_ms is not None else None,
        archived_at=from_ms(row.archived_ms) if row.archived_ms is not None else None,
    )


def add(conn: sa.Connection, delegation: Delegation) -> None:
    conn.execute(
        _insert,
        {
            "id": delegation.id,
            "kind": delegation.kind.value,
            "run": delegation.run,
            "call": delegation.call,
            "agent": delegation.agent,
            "session": delegation.session,
            "target": delegation.target,
            "target_session": delegation.target_session,
            "task": delegation.task,
            "parent_lineage": _encode(delegation.parent_lineage).decode(),
            "lineage": _encode(delegation.lineage).decode(),
            "notify": delegation.notify.value,
            "wait_ms": to_ms(delegation.wait_until) if delegation.wait_until else None,
            "label": delegation.label,
            "cleanup": delegation.cleanup.value,
            "state": delegation.state.value,
            "because": delegation.because,
            "result": delegation.result,
            "target_run": delegation.worker_run,
            "created_ms": to_ms(delegation.created_at),
            "started_ms": None,
            "ended_ms": to_ms(delegation.ended_at) if delegation.ended_at else None,
            "archive_after_ms": round(delegation.archive_after_s * 1000)
            if delegation.archive_after_s is not None
            else None,
            "archive_ms": None,
            "archived_ms": None,
        },
    )


def get(conn: sa.Connection, id_: str) -> Delegation | None:
    row = conn.execute(_get, {"id": id_}).one_or_none()
    return delegation_from_row(row) if row else None


def list_awaited(conn: sa.Connection, run: str) -> list[Delegation]:
    """List the delegations that this run is waiting for."""
    return [delegation_from_row(row) for row in conn.execute(_awaited, {"run": run})]


def release_of_run(conn: sa.Connection, run: str) -> None:
    """Record that a run no longer waits for its delegations. Later results arrive as envelopes."""
    conn.execute(_release_of_run, {"the_run": run})


def silence_run(conn: sa.Connection, run: str) -> None:
    """Prevent the results of a stopped run's open delegations from starting a run. They are kept for the next turn."""
    conn.execute(_silence_run, {"the_run": run})


def silence_session(conn: sa.Connection, session: str) -> None:
    """Prevent the results of the open delegations given to this session from starting a run.

    The session and its parent were stopped. The results are stored for the parent's next turn.
    """
    conn.execute(_silence_session, {"the_child": session})


def release_delegation(conn: sa.Connection, id_: str) -> None:
    conn.execute(_release_delegation, {"the_id": id_})


def mark_started(conn: sa.Connection, id_: str, *, run: str, at_ms: int) -> None:
    """Record which run is working on a delegation."""
    conn.execute(_mark_started, {"the_id": id_, "the_run": run, "now": at_ms})


def end(
    conn: sa.Connection,
    id_: str,
    state: DelegationState,
    *,
    because: str,
    result: str | None,
    at_ms: int,
    archive_ms: int | None,
) -> bool:
    """End a delegation. Returns False, without a change, if it has already ended."""
    values = {"new_state": state.value, "why": because, "the_result": result, "now": at_ms, "archive": archive_ms}
    return conn.execute(_end, {"the_id": id_, **values}).rowcount == 1


def count_open(conn: sa.Connection, session: str) -> int:
    return conn.execute(_count_open, {"session": session}).scalar_one()


def list_open(conn: sa.Connection, session: str, *, limit: int) -> list[Delegation]:
    return [delegation_from_row(row) for row in conn.execute(_open_by_session, {"session": session, "limit": limit})]


def list_of_session(conn: sa.Connection, session: str, *, limit: int) -> list[Delegation]:
    """List the delegations made by a session, latest first."""
    return [delegation_from_row(row) for row in conn.execute(_of_session, {"session": session, "limit": limit})]


def list_into_session(conn: sa.Connection, session: str, *, limit: int) -> list[Delegation]:
    """List the delegations given to a session, latest first."""
    return [delegation_from_row(row) for row in conn.execute(_by_child, {"target_session": session, "limit": limit})]


def get_by_result(conn: sa.Connection, envelope: str) -> Delegation | None:
    """Return the delegation whose result is this envelope, or None."""
    row = conn.execute(_by_result, {"result": envelope}).one_or_none()
    return delegation_from_row(row) if row else None


def list_to_archive(conn: sa.Connection, now_ms: int, *, limit: int) -> Sequence[Delegation]:
    return [delegation_from_row(row) for row in conn.execute(_to_archive, {"now": now_ms, "limit": limit})]


def next_archive_ms(conn: sa.Connection) -> int | None:
    return conn.execute(_next_archive).scalar()


def set_archive_time(conn: sa.Connection, id_: str, *, at_ms: int) -> None:
    conn.execute(_set_archive_time, {"the_id": id_, "then": at_ms})


def mark_archived(conn: sa.Connection, id_: str, *, at_ms: int) -> None:
    conn.execute(_mark_archived, {"the_id": id_, "now": at_ms})


# --- lists for people: the delegations of visible sessions, newest first ---


class DelegationPosition(Struct, frozen=True):
    """Keyset position: resume after (timestamp, id)."""

    created_ms: int = 2**62
    id: str = ""


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


_visible = PerScope(_select_list)
_visible_open = PerScope(lambda scope: _select_list(scope, _is_open))
_visible_of_session = PerScope(lambda scope: _select_list(scope, _d.c.session == _b("session")))
_visible_open_of_session = PerScope(lambda scope: _select_list(scope, _d.c.session == _b("session"), _is_open))
_count_visible_open = PerScope(_select_open_count)
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
    """List the delegations made in one session, or in all visible sessions, newest first."""
    which = (
        (_visible_open_of_session if only_open else _visible_of_session)
        if session
        else (_visible_open if only_open else _visible)
    )
    values = {"created": after.created_ms, "id": after.id, "limit": limit, **principal_parameters(seen_by)}
    rows = conn.execute(which[visibility_scope(seen_by)], {**values, "session": session} if session else values)
    return [delegation_from_row(row) for row in rows]


def count_visible_open(conn: sa.Connection, *, seen_by: Principal = SERVER_PRINCIPAL) -> int:
    """Count the open delegations that the caller can see, up to `OPEN_COUNTED_MAX`."""
    return conn.execute(
        _count_visible_open[visibility_scope(seen_by)], {"limit": OPEN_COUNTED_MAX, **principal_parameters(seen_by)}
    ).scalar_one()


def get_by_short_id(conn: sa.Connection, text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> Delegation:
    """Return the only delegation whose id starts with this short id."""
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
