"""Sessions in the store. Every write of a run goes through `guard`, which an outdated worker cannot pass."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.errors import Stale
from retinue.domain.ids import SessionId
from retinue.domain.principal import HOUSE, Principal
from retinue.domain.session import Origin, OriginKind, QueueOverride, Session, Wakefulness
from retinue.domain.times import from_ms
from retinue.store import sight
from retinue.store import tables as t
from retinue.store.lookup import Noun, find
from retinue.store.sight import me, per_scope, scope_of

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_queue = msgspec.json.Decoder(QueueOverride)
_attributes = msgspec.json.Decoder(dict[str, str])
NO_OVERRIDE = _encode(QueueOverride()).decode()

_by_id = sa.select(t.sessions).where(t.sessions.c.id == _b("id"))
_by_prefix = (
    sa.select(t.sessions.c.id)
    .where(t.sessions.c.id >= _b("low"), t.sessions.c.id < _b("high"), t.sessions.c.agent == _b("agent"))
    .limit(2)
)
_by_origin = sa.select(t.sessions).where(
    t.sessions.c.agent == _b("agent"), t.sessions.c.origin_kind == _b("kind"), t.sessions.c.origin_key == _b("key")
)
_insert = t.sessions.insert()
_touch = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(wakefulness=_b("wake"), updated_ms=_b("now"), snippet=_b("words"))
)
_guard = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"), t.sessions.c.epoch == _b("the_epoch"))
    .values(epoch=_b("new_epoch"), record_seq=_b("seq"), wakefulness=_b("wake"), updated_ms=_b("now"))
)
_guard_with_snippet = _guard.values(snippet=_b("words"))
_append = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(record_seq=_b("seq"), updated_ms=_b("now"))
_reset = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(record_seq=_b("seq"), context_from=_b("seq"), updated_ms=_b("now"))
)
_set_queue = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(queue=_b("body"), updated_ms=_b("now"))
_active = (
    sa.select(t.sessions.c.id, t.sessions.c.agent, t.sessions.c.origin_kind)
    .where(t.sessions.c.wakefulness == t.word("'active'"))
    .order_by(t.sessions.c.updated_ms, t.sessions.c.id)
    .limit(_b("limit"))
)
_children = sa.select(t.sessions).where(t.sessions.c.parent == _b("parent")).limit(_b("limit"))
_recent = per_scope(
    lambda scope: (
        sa.select(t.sessions)
        .where(t.sessions.c.deleted_ms.is_(None), sight.sessions(scope))
        .order_by(t.sessions.c.updated_ms.desc(), t.sessions.c.id)
        .limit(_b("limit"))
    )
)


def session_of(row: sa.Row[Any]) -> Session:
    return Session(
        id=SessionId(row.id),
        agent=row.agent,
        origin=Origin(OriginKind(row.origin_kind), row.origin_key, SessionId(row.parent) if row.parent else None),
        name=row.name,
        wakefulness=Wakefulness(row.wakefulness),
        queue=_queue.decode(row.queue),
        epoch=row.epoch,
        record_seq=row.record_seq,
        context_from=row.context_from,
        revision=row.revision,
        created_at=from_ms(row.created_ms),
        updated_at=from_ms(row.updated_ms),
        snippet=row.snippet,
        pinned_at=from_ms(row.pinned_ms) if row.pinned_ms is not None else None,
        attributes=_attributes.decode(row.attributes),
    )


def get(conn: sa.Connection, id_: str) -> Session | None:
    row = conn.execute(_by_id, {"id": id_}).one_or_none()
    return session_of(row) if row else None


def by_prefix(conn: sa.Connection, agent: str, digits: str) -> SessionId | None:
    """The one session of this agent whose id begins so; None where there is none or more than one."""
    found = conn.execute(_by_prefix, {"low": digits, "high": digits + "g", "agent": agent}).all()
    return SessionId(found[0].id) if len(found) == 1 else None


def by_origin(conn: sa.Connection, agent: str, origin: Origin) -> Session | None:
    row = conn.execute(_by_origin, {"agent": agent, "kind": origin.kind.value, "key": origin.key}).one_or_none()
    return session_of(row) if row else None


def add(conn: sa.Connection, id_: str, *, agent: str, origin: Origin, name: str, at_ms: int) -> None:
    """A new session, whose first record (the start marker) the caller adds in the same commit."""
    conn.execute(
        _insert,
        {
            "id": id_,
            "agent": agent,
            "origin_kind": origin.kind.value,
            "origin_key": origin.key,
            "parent": origin.parent,
            "name": name,
            "wakefulness": Wakefulness.SLEEPING.value,
            "queue": NO_OVERRIDE,
            "attributes": "{}",
            "epoch": 0,
            "record_seq": 1,
            "context_from": 1,
            "revision": 0,
            "snippet": "",
            "created_ms": at_ms,
            "updated_ms": at_ms,
            "pinned_ms": None,
            "folded": None,
            "deleted_ms": None,
        },
    )


def touch(conn: sa.Connection, id_: str, *, wakefulness: Wakefulness, snippet: str, at_ms: int) -> None:
    conn.execute(_touch, {"the_id": id_, "wake": wakefulness.value, "now": at_ms, "words": snippet})


def guard(
    conn: sa.Connection,
    id_: str,
    *,
    epoch: int,
    record_seq: int,
    wakefulness: Wakefulness,
    at_ms: int,
    new_epoch: int | None = None,
    snippet: str | None = None,
) -> None:
    """Go on only if this session is still ours: the first write of every commit of a run."""
    values = {
        "the_id": id_,
        "the_epoch": epoch,
        "new_epoch": epoch if new_epoch is None else new_epoch,
        "seq": record_seq,
        "wake": wakefulness.value,
        "now": at_ms,
    }
    statement = _guard
    if snippet is not None:
        statement, values["words"] = _guard_with_snippet, snippet
    if conn.execute(statement, values).rowcount != 1:
        raise Stale(id_, epoch)


def set_record_seq(conn: sa.Connection, id_: str, seq: int, *, at_ms: int) -> None:
    conn.execute(_append, {"the_id": id_, "seq": seq, "now": at_ms})


def set_context_from(conn: sa.Connection, id_: str, seq: int, *, at_ms: int) -> None:
    """The record `seq` is a marker: the context begins there from now on."""
    conn.execute(_reset, {"the_id": id_, "seq": seq, "now": at_ms})


def set_queue(conn: sa.Connection, id_: str, queue: QueueOverride, *, at_ms: int) -> None:
    conn.execute(_set_queue, {"the_id": id_, "body": _encode(queue).decode(), "now": at_ms})


def active(conn: sa.Connection, *, limit: int) -> list[tuple[SessionId, str, OriginKind]]:
    """The sessions that have something to do; all others sleep and are not loaded."""
    return [(SessionId(r.id), r.agent, OriginKind(r.origin_kind)) for r in conn.execute(_active, {"limit": limit})]


def children(conn: sa.Connection, parent: str, *, limit: int) -> list[Session]:
    return [session_of(row) for row in conn.execute(_children, {"parent": parent, "limit": limit})]


def resolve(conn: sa.Connection, text: str, *, seen_by: Principal = HOUSE) -> Session:
    """The one session a short id names."""
    session = get(conn, find(conn, text, (Noun.SESSION,), seen_by=seen_by)[1])
    assert session is not None  # found by its id, in the same picture of the store
    return session


def recent(conn: sa.Connection, *, limit: int, seen_by: Principal = HOUSE) -> list[Session]:
    rows = conn.execute(_recent[scope_of(seen_by)], {"limit": limit, **me(seen_by)})
    return [session_of(row) for row in rows]
