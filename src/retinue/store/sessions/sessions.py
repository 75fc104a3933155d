"""Store sessions. Every commit of a run calls `update_fenced`, which fails if the session has been claimed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import StaleEpoch
from retinue.domain.event import EventKind
from retinue.domain.ids import SessionId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.record import ContextStart, Record, RecordKind
from retinue.domain.session import Origin, OriginKind, QueueOverride, Session, SessionActivity, SessionOptions
from retinue.domain.session_keys import ChatType
from retinue.domain.times import from_ms
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.lookup import IdKind, find_by_short_id
from retinue.store.core.row_visibility import PerScope, principal_parameters, visibility_scope
from retinue.store.core.transaction import Transaction
from retinue.store.sessions import records

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_queue_decoder = msgspec.json.Decoder(QueueOverride)
_attributes_decoder = msgspec.json.Decoder(dict[str, Any])
_model_choice_decoder = msgspec.json.Decoder(SessionOptions)
NO_MODEL_CHOICE = "{}"
NO_QUEUE_OVERRIDE = _encode(QueueOverride()).decode()

_is_not_deleted = t.sessions.c.deleted_ms.is_(None)
_by_id = sa.select(t.sessions).where(t.sessions.c.id == _b("id"))
_by_prefix = (
    sa.select(t.sessions.c.id)
    .where(
        t.sessions.c.id >= _b("low"), t.sessions.c.id < _b("high"), t.sessions.c.agent == _b("agent"), _is_not_deleted
    )
    .limit(2)
)
_by_origin = sa.select(t.sessions).where(
    t.sessions.c.agent == _b("agent"),
    t.sessions.c.origin_kind == _b("kind"),
    t.sessions.c.origin_key == _b("key"),
    _is_not_deleted,
)
_by_name = sa.select(t.sessions.c.id).where(
    t.sessions.c.agent == _b("agent"), t.sessions.c.name_folded == _b("name_folded")
)
_insert = t.sessions.insert()
_touch = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(activity=_b("wake"), updated_ms=_b("now"), snippet=_b("words"))
)
_update_fenced = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"), t.sessions.c.epoch == _b("the_epoch"))
    .values(
        epoch=_b("new_epoch"),
        record_seq=_b("seq"),
        activity=_b("wake"),
        updated_ms=_b("now"),
        active_ms=sa.func.coalesce(_b("active", type_=sa.BigInteger), t.sessions.c.active_ms),
    )
)
_update_fenced_with_snippet = _update_fenced.values(snippet=_b("words"))
# This does not set `activity`: the column is in an index, and setting it writes to the index even without a change.
_update_step_fenced = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"), t.sessions.c.epoch == _b("the_epoch"))
    .values(record_seq=_b("seq"), updated_ms=_b("now"))
)
_reset_context = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(
        record_seq=_b("seq"),
        context_from=_b("seq"),
        revision=t.sessions.c.revision + 1,
        compactions=0,
        updated_ms=_b("now"),
        context_started_ms=_b("now"),
        pending_reset=None,
    )
)
_request_reset = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(pending_reset=_b("reasons"))
_replace_context = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(
        record_seq=_b("seq"),
        context_from=_b("marker"),
        revision=t.sessions.c.revision + 1,
        compactions=_b("summaries"),
        snippet=_b("words"),
        updated_ms=_b("now"),
    )
)
_set_queue = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(queue=_b("body"), updated_ms=_b("now"))
_rename = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(name=_b("new_name"), name_folded=_b("new_folded"), updated_ms=_b("now"))
)
_pin = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(pinned_ms=_b("pinned"), updated_ms=_b("now"))
_set_model_choice = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(model_choice=_b("body"))
_compact = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(
        context_from=_b("marker"),
        revision=t.sessions.c.revision + 1,
        compactions=t.sessions.c.compactions + 1,
        updated_ms=_b("now"),
    )
)
_set_attributes = (
    t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(attributes=_b("body"), updated_ms=_b("now"))
)
_set_history = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(record_seq=_b("seq"), context_from=_b("marker"), snippet=_b("words"), updated_ms=_b("now"))
)
_clear_snippet = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(snippet="", updated_ms=_b("now"))
# After a deletion, another session can use the name and the origin.
_delete = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"), _is_not_deleted)
    .values(deleted_ms=_b("now"), name_folded=None, pinned_ms=None)
)
_archive = t.sessions.update().where(t.sessions.c.id == _b("the_id")).values(archived_ms=_b("archived"))
_restore = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_id"))
    .values(
        deleted_ms=None,
        name=_b("new_name"),
        name_folded=_b("new_folded"),
        origin_kind=_b("kind"),
        origin_key=_b("key"),
        updated_ms=_b("now"),
    )
)
_active = (
    sa.select(t.sessions.c.id, t.sessions.c.agent, t.sessions.c.origin_kind)
    .where(t.sessions.c.activity == t.sql_literal("'active'"))
    .order_by(t.sessions.c.updated_ms, t.sessions.c.id)
    .limit(_b("limit"))
)
_FOREGROUND = (t.sql_literal("'chat'"), t.sql_literal("'web'"), t.sql_literal("'terminal'"))
_latest_foreground = (
    sa.select(t.sessions)
    .where(_is_not_deleted, t.sessions.c.origin_kind.in_(_FOREGROUND))
    .order_by(t.sessions.c.updated_ms.desc(), t.sessions.c.id)
    .limit(_b("limit"))
)
_latest_of_kind = (
    sa.select(t.sessions)
    .where(_is_not_deleted, t.sessions.c.origin_kind == _b("kind"))
    .order_by(t.sessions.c.updated_ms.desc(), t.sessions.c.id)
    .limit(_b("limit"))
)
_latest_by_origin = (
    sa.select(t.sessions)
    .where(
        t.sessions.c.agent == _b("agent"),
        t.sessions.c.origin_kind == _b("kind"),
        sa.or_(
            t.sessions.c.origin_key == _b("key"),
            sa.and_(t.sessions.c.origin_key >= _b("below"), t.sessions.c.origin_key < _b("beyond")),
        ),
        _is_not_deleted,
    )
    .order_by(t.sessions.c.updated_ms.desc(), t.sessions.c.id)
    .limit(1)
)
# Sessions that may be working come first: a sleeping one has nothing to do, unless its run is suspended.
_is_working = sa.or_(
    t.sessions.c.activity == t.sql_literal("'active'"),
    sa.exists().where(t.runs.c.session == t.sessions.c.id, t.runs.c.status == t.sql_literal("'suspended'")),
)
_children = (
    sa.select(t.sessions)
    .where(t.sessions.c.parent == _b("parent"), _is_not_deleted, t.sessions.c.archived_ms.is_(None))
    .order_by(sa.case((_is_working, 0), else_=1), t.sessions.c.id)
    .limit(_b("limit"))
)
_recent = PerScope(
    lambda scope: (
        sa.select(t.sessions)
        .where(
            t.sessions.c.deleted_ms.is_(None),
            t.sessions.c.archived_ms.is_(None),
            row_visibility.visible_sessions(scope),
        )
        .order_by(t.sessions.c.updated_ms.desc(), t.sessions.c.id)
        .limit(_b("limit"))
    )
)


_latest = (
    sa.select(t.sessions.c.origin_kind, t.sessions.c.origin_key)
    .where(
        t.sessions.c.agent
        == sa.select(t.agents.c.name).where(t.agents.c.name_folded == _b("name_folded")).scalar_subquery(),
        _is_not_deleted,
        row_visibility.origin_is_own(t.sessions),
        # Redundant, but with this range the index finds the sessions of one person.
        t.sessions.c.origin_key >= _b("me"),
        t.sessions.c.origin_key < _b("me_to"),
    )
    .order_by(t.sessions.c.updated_ms.desc(), t.sessions.c.id)
    .limit(1)
)
_pinned = sa.func.coalesce(t.sessions.c.pinned_ms, -1)
_any_agent = sa.bindparam("agent", type_=sa.String)
_archived = sa.bindparam("archived", type_=sa.Boolean)


def _select_list(scope: row_visibility.VisibilityScope) -> sa.Select[Any]:
    same_pin = sa.and_(_pinned == _b("pinned"), t.sessions.c.updated_ms == _b("updated"))
    beyond = sa.or_(
        _pinned < _b("pinned"),
        sa.and_(_pinned == _b("pinned"), t.sessions.c.updated_ms < _b("updated")),
        sa.and_(same_pin, t.sessions.c.id > _b("id")),
    )
    return (
        sa.select(t.sessions)
        .where(
            _is_not_deleted,
            row_visibility.visible_sessions(scope),
            sa.or_(_any_agent == t.sql_literal("''"), t.sessions.c.agent == _any_agent),
        )
        .where(sa.or_(_archived == sa.true(), t.sessions.c.archived_ms.is_(None)))
        .where(beyond)
        .order_by(_pinned.desc(), t.sessions.c.updated_ms.desc(), t.sessions.c.id)
        .limit(_b("limit"))
    )


_list = PerScope(_select_list)
_deleted = PerScope(
    lambda scope: (
        sa.select(t.sessions)
        .where(
            t.sessions.c.id >= _b("low"),
            t.sessions.c.id < _b("high"),
            t.sessions.c.deleted_ms >= _b("since"),
            row_visibility.visible_sessions(scope),
        )
        .order_by(t.sessions.c.deleted_ms.desc(), t.sessions.c.id)
        .limit(_b("limit"))
    )
)
_all_ids = sa.select(t.sessions.c.id).where(t.sessions.c.id > _b("after")).order_by(t.sessions.c.id).limit(_b("limit"))


class SessionListPosition(Struct, frozen=True):
    """Keyset position: resume after (pin time, update time, id)."""

    pinned_ms: int = 2**62
    updated_ms: int = 2**62
    id: str = ""


def session_from_row(row: sa.Row[Any]) -> Session:
    return Session(
        id=SessionId(row.id),
        agent=row.agent,
        origin=Origin(OriginKind(row.origin_kind), row.origin_key, SessionId(row.parent) if row.parent else None),
        name=row.name,
        activity=SessionActivity(row.activity),
        queue=_queue_decoder.decode(row.queue),
        epoch=row.epoch,
        record_seq=row.record_seq,
        context_start_seq=row.context_from,
        revision=row.revision,
        created_at=from_ms(row.created_ms),
        updated_at=from_ms(row.updated_ms),
        snippet=row.snippet,
        pinned_at=from_ms(row.pinned_ms) if row.pinned_ms is not None else None,
        attributes=_attributes_decoder.decode(row.attributes) if row.attributes != "{}" else {},
        options=_model_choice_decoder.decode(row.model_choice)
        if row.model_choice != NO_MODEL_CHOICE
        else SessionOptions(),
        compactions=row.compactions,
        deleted_at=from_ms(row.deleted_ms) if row.deleted_ms is not None else None,
        archived_at=from_ms(row.archived_ms) if row.archived_ms is not None else None,
        context_started_ms=row.context_started_ms,
        last_active_ms=row.active_ms,
        reset_because=row.pending_reset,
        chat_type=ChatType(row.chat_type) if row.chat_type is not None else None,
    )


def get(conn: sa.Connection, id_: str) -> Session | None:
    row = conn.execute(_by_id, {"id": id_}).one_or_none()
    return session_from_row(row) if row else None


def find_id_by_prefix(conn: sa.Connection, agent: str, digits: str) -> SessionId | None:
    """Return the id of the agent's only session with this id prefix, or None if there is none or more than one."""
    found = conn.execute(_by_prefix, {"low": digits, "high": digits + "g", "agent": agent}).all()
    return SessionId(found[0].id) if len(found) == 1 else None


def get_by_origin(conn: sa.Connection, agent: str, origin: Origin) -> Session | None:
    row = conn.execute(_by_origin, {"agent": agent, "kind": origin.kind.value, "key": origin.key}).one_or_none()
    return session_from_row(row) if row else None


def get_latest_by_origin(conn: sa.Connection, agent: str, origin: Origin) -> Session | None:
    """Return the agent's most recently updated session with this origin, or with an origin below it.

    An origin is below another one if its key starts with the other key and a `/`.
    """
    below = {"below": f"{origin.key}/", "beyond": f"{origin.key}0"}  # `0` comes right after `/`
    row = conn.execute(
        _latest_by_origin, {"agent": agent, "kind": origin.kind.value, "key": origin.key, **below}
    ).first()
    return session_from_row(row) if row else None


def start(
    tx: Transaction,
    id_: SessionId,
    *,
    agent: str,
    origin: Origin,
    name: str = "",
    unique: bool = True,
    attributes: Mapping[str, Any] | None = None,
    chat_type: ChatType | None = None,
) -> None:
    """Insert a session with its start marker, and emit an event.

    If `unique` is false, the name is only displayed: other sessions may have the same name, and the
    session cannot be found by it.
    """
    add(
        tx.conn,
        id_,
        agent=agent,
        origin=origin,
        name=name,
        at_ms=tx.at_ms,
        unique=unique,
        attributes=attributes,
        chat_type=chat_type,
    )
    records.add(tx.conn, [Record(session=id_, seq=1, kind=RecordKind.START, body=ContextStart(), at_ms=tx.at_ms)])
    tx.emit(EventKind.SESSION_STARTED, session=id_, agent=agent, origin=f"{origin.kind}:{origin.key}")


def add(
    conn: sa.Connection,
    id_: str,
    *,
    agent: str,
    origin: Origin,
    name: str,
    at_ms: int,
    unique: bool = True,
    attributes: Mapping[str, Any] | None = None,
    chat_type: ChatType | None = None,
) -> None:
    """Insert a session. In the same transaction, the caller must add its first record, the start marker."""
    conn.execute(
        _insert,
        {
            "id": id_,
            "agent": agent,
            "origin_kind": origin.kind.value,
            "origin_key": origin.key,
            "parent": origin.parent,
            "name": name,
            "activity": SessionActivity.SLEEPING.value,
            "queue": NO_QUEUE_OVERRIDE,
            "attributes": _encode(attributes).decode() if attributes else "{}",
            "model_choice": NO_MODEL_CHOICE,
            "compactions": 0,
            "epoch": 0,
            "record_seq": 1,
            "context_from": 1,
            "revision": 0,
            "snippet": "",
            "created_ms": at_ms,
            "updated_ms": at_ms,
            "pinned_ms": None,
            "name_folded": (name.casefold() or None) if unique else None,
            "deleted_ms": None,
            "archived_ms": None,
            "context_started_ms": at_ms,
            "active_ms": at_ms,
            "pending_reset": None,
            "chat_type": chat_type,
        },
    )


def touch(conn: sa.Connection, id_: str, *, wakefulness: SessionActivity, snippet: str, at_ms: int) -> None:
    conn.execute(_touch, {"the_id": id_, "wake": wakefulness.value, "now": at_ms, "words": snippet})


def update_fenced(
    conn: sa.Connection,
    id_: str,
    *,
    epoch: int,
    record_seq: int,
    wakefulness: SessionActivity,
    at_ms: int,
    new_epoch: int | None = None,
    snippet: str | None = None,
    active_ms: int | None = None,
) -> None:
    """Update a session if its epoch is unchanged. Otherwise raise `StaleEpoch`.

    This is the first write in every commit of a run. Pass `active_ms` if the commit counts as
    activity; see policy/limits/reset_policy.
    """
    values = {
        "the_id": id_,
        "the_epoch": epoch,
        "new_epoch": epoch if new_epoch is None else new_epoch,
        "seq": record_seq,
        "wake": wakefulness.value,
        "now": at_ms,
        "active": active_ms,
    }
    statement = _update_fenced
    if snippet is not None:
        statement, values["words"] = _update_fenced_with_snippet, snippet
    if conn.execute(statement, values).rowcount != 1:
        raise StaleEpoch(id_, epoch)


def update_step_fenced(conn: sa.Connection, id_: str, *, epoch: int, record_seq: int, at_ms: int) -> None:
    """Update a session like `update_fenced`, for a commit in the middle of a run.

    The column `activity` is not written, because it does not change there.
    """
    values = {"the_id": id_, "the_epoch": epoch, "seq": record_seq, "now": at_ms}
    if conn.execute(_update_step_fenced, values).rowcount != 1:
        raise StaleEpoch(id_, epoch)


def reset_context(conn: sa.Connection, id_: str, seq: int, *, at_ms: int) -> None:
    """Make the context start at the marker record `seq`. Clients that show the old context must reload it."""
    conn.execute(_reset_context, {"the_id": id_, "seq": seq, "now": at_ms})


def request_reset(conn: sa.Connection, id_: str, reasons: str) -> None:
    """Store that the next run must start with a reset of the context, and why. The current run is not affected."""
    conn.execute(_request_reset, {"the_id": id_, "reasons": reasons})


def set_queue(conn: sa.Connection, id_: str, queue: QueueOverride, *, at_ms: int) -> None:
    conn.execute(_set_queue, {"the_id": id_, "body": _encode(queue).decode(), "now": at_ms})


def set_model_choice(conn: sa.Connection, id_: str, mind: SessionOptions) -> None:
    """Store the model choice of a session. The session does not move up in lists: its update time does not change."""
    conn.execute(_set_model_choice, {"the_id": id_, "body": _encode(mind).decode()})


def compact(conn: sa.Connection, id_: str, *, kept_from: int, at_ms: int) -> None:
    """Make the context start at the record `kept_from`, after a compaction. Earlier records stay in the history."""
    conn.execute(_compact, {"the_id": id_, "marker": kept_from, "now": at_ms})


def find_by_name(conn: sa.Connection, agent: str, name: str) -> SessionId | None:
    """Return the id of the agent's session with this name (case-insensitive), or None."""
    found = conn.execute(_by_name, {"agent": agent, "name_folded": name.casefold()}).scalar()
    return SessionId(found) if found else None


def rename(conn: sa.Connection, id_: str, name: str, *, at_ms: int) -> None:
    conn.execute(_rename, {"the_id": id_, "new_name": name, "new_folded": name.casefold() or None, "now": at_ms})


def set_pinned(conn: sa.Connection, id_: str, *, pinned: bool, at_ms: int) -> None:
    conn.execute(_pin, {"the_id": id_, "pinned": at_ms if pinned else None, "now": at_ms})


def set_attributes(conn: sa.Connection, id_: str, attributes: Mapping[str, Any], *, at_ms: int) -> None:
    conn.execute(_set_attributes, {"the_id": id_, "body": _encode(attributes).decode(), "now": at_ms})


def set_history(conn: sa.Connection, id_: str, *, record_seq: int, context_from: int, snippet: str, at_ms: int) -> None:
    """Set the record counter, context start and snippet of a session that was imported with its history."""
    conn.execute(
        _set_history, {"the_id": id_, "seq": record_seq, "marker": context_from, "words": snippet, "now": at_ms}
    )


def replace_context(
    conn: sa.Connection, id_: str, *, record_seq: int, context_from: int, compactions: int, snippet: str, at_ms: int
) -> None:
    """Replace the context with new records that were derived from it.

    The caller has added these records at the end of the history. Clients that show the old context
    must reload it.
    """
    values = {"seq": record_seq, "marker": context_from, "summaries": compactions, "words": snippet, "now": at_ms}
    conn.execute(_replace_context, {"the_id": id_, **values})


def clear_snippet(conn: sa.Connection, id_: str, *, at_ms: int) -> None:
    conn.execute(_clear_snippet, {"the_id": id_, "now": at_ms})


def delete(conn: sa.Connection, id_: str, *, at_ms: int) -> None:
    """Mark a session as deleted, so that no list shows it. Its records are kept, because other rows refer to them."""
    conn.execute(_delete, {"the_id": id_, "now": at_ms})


def set_archived(conn: sa.Connection, id_: str, *, at_ms: int | None) -> None:
    """Archive a session, or unarchive it if the time is None. An archived session can still be found by its id."""
    conn.execute(_archive, {"the_id": id_, "archived": at_ms})


def restore(conn: sa.Connection, id_: str, *, name: str, origin: Origin, at_ms: int) -> None:
    """Restore a deleted session. The caller has checked that no other session uses its name or origin."""
    values = {"new_name": name, "new_folded": name.casefold() or None, "kind": origin.kind.value, "key": origin.key}
    conn.execute(_restore, {"the_id": id_, **values, "now": at_ms})


def list_deleted(
    conn: sa.Connection, *, since_ms: int, limit: int, digits: str = "", seen_by: Principal = SERVER_PRINCIPAL
) -> list[Session]:
    """List the sessions deleted since `since_ms` whose ids start with `digits`, the latest deletion first."""
    values = {"low": digits, "high": digits + "g", "since": since_ms, "limit": limit}
    rows = conn.execute(_deleted[visibility_scope(seen_by)], {**values, **principal_parameters(seen_by)})
    return [session_from_row(row) for row in rows]


def get_latest_origin(conn: sa.Connection, agent: str, *, principal: Principal) -> Origin | None:
    """Return the origin of this person's most recently updated session with an agent, or None."""
    asker = replace(principal, level=PermissionLevel.RESTRICTED)  # only the sessions that belong to the principal
    row = conn.execute(_latest, {"name_folded": agent.casefold(), **principal_parameters(asker)}).first()
    return Origin(OriginKind(row.origin_kind), row.origin_key) if row else None


def list_sessions(
    conn: sa.Connection,
    *,
    after: SessionListPosition,
    limit: int,
    agent: str = "",
    archived: bool = False,
    seen_by: Principal = SERVER_PRINCIPAL,
) -> list[Session]:
    """List sessions: first the pinned ones by pin time, then all others by update time, newest first.

    With `archived`, archived sessions are included.
    """
    bounds = {"pinned": after.pinned_ms, "updated": after.updated_ms, "id": after.id, "agent": agent, "limit": limit}
    values = {**bounds, "archived": archived, **principal_parameters(seen_by)}
    return [session_from_row(row) for row in conn.execute(_list[visibility_scope(seen_by)], values)]


def list_all_ids(conn: sa.Connection, *, after: str, limit: int) -> list[SessionId]:
    """List the ids of all sessions, including deleted ones, in ascending order, starting after the id `after`."""
    return [SessionId(id_) for id_ in conn.execute(_all_ids, {"after": after, "limit": limit}).scalars()]


def list_active(conn: sa.Connection, *, limit: int) -> list[tuple[SessionId, str, OriginKind]]:
    """List the sessions that may have work to do. All other sessions are asleep and need not be loaded."""
    return [(SessionId(r.id), r.agent, OriginKind(r.origin_kind)) for r in conn.execute(_active, {"limit": limit})]


def list_latest_foreground(conn: sa.Connection, *, limit: int) -> list[Session]:
    """List the most recently updated sessions that people use directly: in a channel, the web app or a terminal."""
    return [session_from_row(row) for row in conn.execute(_latest_foreground, {"limit": limit})]


def list_latest_of_kind(conn: sa.Connection, kind: OriginKind, *, limit: int) -> list[Session]:
    """List the most recently updated sessions with this kind of origin, of any agent."""
    return [session_from_row(row) for row in conn.execute(_latest_of_kind, {"kind": kind.value, "limit": limit})]


def list_children(conn: sa.Connection, parent: str, *, limit: int) -> list[Session]:
    """List the child sessions of a session, without archived ones. Those that may be working come first."""
    return [session_from_row(row) for row in conn.execute(_children, {"parent": parent, "limit": limit})]


def get_by_short_id(conn: sa.Connection, text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> Session:
    """Return the only session whose id starts with this short id."""
    session = get(conn, find_by_short_id(conn, text, (IdKind.SESSION,), seen_by=seen_by)[1])
    assert session is not None  # found by its id, in the same snapshot
    return session


def list_recent(conn: sa.Connection, *, limit: int, seen_by: Principal = SERVER_PRINCIPAL) -> list[Session]:
    rows = conn.execute(_recent[visibility_scope(seen_by)], {"limit": limit, **principal_parameters(seen_by)})
    return [session_from_row(row) for row in rows]
