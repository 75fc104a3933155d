"""Erase a person: remove their messages and other personal data from the store.

The equations of the ledger still hold afterwards. The person's name stays reserved.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import ContextStart, Note, RecordBody, Reply, Summary, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.store.channels import ambient_messages, identities, pairings, poison_messages
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import VisibilityScope, principal_parameters
from retinue.store.core.transaction import Transaction
from retinue.store.people import people, tokens
from retinue.store.runs import spend_report
from retinue.store.schedules import schedules
from retinue.store.sessions import instructions, record_chunks
from retinue.store.sessions.record_codec import decode_body

ERASED = "(forgotten)"

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_calls_decoder = msgspec.json.Decoder(tuple[Call, ...])
_parent = t.sessions.alias("parent")
_is_spawned_from_own = sa.exists().where(_parent.c.id == t.sessions.c.parent, row_visibility.origin_is_own(_parent))
_own_sessions = sa.select(t.sessions.c.id).where(sa.or_(row_visibility.origin_is_own(t.sessions), _is_spawned_from_own))
_own_schedules = sa.select(t.schedules.c.id).where(t.schedules.c.owner == _b("owner"))
_schedule_sessions = sa.select(t.sessions.c.id).where(
    t.sessions.c.origin_kind == t.sql_literal("'schedule'"), t.sessions.c.origin_key == _b("address")
)
_erase_schedule_envelopes = (
    t.envelopes.update()
    .where(
        sa.or_(t.envelopes.c.source == _b("address"), t.envelopes.c.session.in_(_schedule_sessions)),
        t.envelopes.c.text != ERASED,
    )
    .values(text=ERASED, attachments=None, context=None)
)
_erase_schedule_events = t.events.update().where(t.events.c.session.in_(_schedule_sessions)).values(body=None)
_records_of_session = sa.select(t.records).where(t.records.c.session == _b("session"))
_erase_record = (
    t.records.update()
    .where(t.records.c.session == _b("the_session"), t.records.c.seq == _b("the_seq"))
    .values(body=_b("new_body"))
)
_erase_session_row = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_session"))
    .values(
        snippet="",
        name="",
        name_folded=None,
        attributes="{}",
        pending_reset=None,
        deleted_ms=_b("now"),
        updated_ms=_b("now"),
    )
)
_erase_runs = t.runs.update().where(t.runs.c.session == _b("the_session")).values(final_text=ERASED)
_erase_steps = (
    t.steps.update()
    .where(t.steps.c.run.in_(sa.select(t.runs.c.id).where(t.runs.c.session == _b("the_session"))))
    .values(call=None)
)
_erase_events = t.events.update().where(t.events.c.session.in_(_own_sessions)).values(body=None)
_approvals_of_session = sa.select(t.approvals.c.id, t.approvals.c.calls).where(t.approvals.c.session == _b("session"))
_erase_approval = (
    t.approvals.update().where(t.approvals.c.id == _b("the_id")).values(calls=_b("new_calls"), because=ERASED)
)
_erase_envelopes = (
    t.envelopes.update()
    .where(row_visibility.visible_envelopes(VisibilityScope.PERSON), t.envelopes.c.text != ERASED)
    .values(text=ERASED, attachments=None, context=None)
)
_delete_webhooks = t.webhooks.delete().where(
    t.webhooks.c.envelope.in_(
        sa.select(t.envelopes.c.id).where(row_visibility.visible_envelopes(VisibilityScope.PERSON))
    )
)
_delete_of_person = tuple(
    table.delete().where(table.c.person == _b("the_person"))
    for table in (t.notifications, t.questionnaires, t.preferences)
)
_erase_delegations = (
    t.delegations.update()
    .where(sa.or_(t.delegations.c.session == _b("the_session"), t.delegations.c.target_session == _b("the_session")))
    .values(task=ERASED, label="", because="")
)
_erase_processes = t.processes.update().where(t.processes.c.session == _b("the_session")).values(command=ERASED)
_delete_external_keys = t.external_keys.delete().where(t.external_keys.c.session == _b("the_session"))
_delete_questionnaires = t.questionnaires.delete().where(t.questionnaires.c.session == _b("the_session"))
_delete_shares = t.session_shares.delete().where(t.session_shares.c.person == _b("my_name"))


class ErasureResult(Struct, frozen=True):
    sessions: int
    envelopes: int
    records: int


def _person_parameters(person: str) -> dict[str, Any]:
    return principal_parameters(
        Principal(address=address.person_address(person), level=PermissionLevel.RESTRICTED, trust=Trust.PERSON)
    )


def list_own_sessions(conn: sa.Connection, person: str) -> list[SessionId]:
    """List the sessions that belong to this person.

    These are the sessions that they started, the sessions of subagents started from those, and the
    sessions of their schedules. Sessions that others shared with them are not included.
    """
    own = conn.execute(_own_sessions, _person_parameters(person)).scalars().all()
    of_schedules = [
        session
        for schedule in _list_schedules(conn, person)
        for session in conn.execute(_schedule_sessions, {"address": schedule}).scalars()
    ]
    return [SessionId(session) for session in (*own, *of_schedules)]


def _list_schedules(conn: sa.Connection, person: str) -> list[str]:
    """Return the addresses of the schedules that the person owns."""
    found = conn.execute(_own_schedules, {"owner": str(address.person_address(person))}).scalars()
    return [f"schedule:{schedule}" for schedule in found]


def erase_person(conn: sa.Connection, *, person: str, now_ms: int) -> ErasureResult:
    tx = Transaction(conn, now_ms)
    # Shares first: messages in another person's sessions belong to that person.
    conn.execute(_delete_shares, {"my_name": person})
    sessions = list_own_sessions(conn, person)
    conn.execute(_delete_webhooks, _person_parameters(person))
    envelopes = conn.execute(_erase_envelopes, _person_parameters(person)).rowcount
    conn.execute(_erase_events, _person_parameters(person))
    for schedule in _list_schedules(conn, person):
        envelopes += conn.execute(_erase_schedule_envelopes, {"address": schedule}).rowcount
        conn.execute(_erase_schedule_events, {"address": schedule})
    schedules.delete_of_owner(tx, address.person_address(person), because=f"{person} is forgotten")
    records = sum(_erase_session(conn, session, tx.at_ms) for session in sessions)
    tokens.revoke_all(conn, str(address.person_address(person)), at_ms=tx.at_ms)
    for statement in _delete_of_person:
        conn.execute(statement, {"the_person": person})
    for identity in identities.unlink_all(conn, person):
        # In every connector where this id wrote: the same id on another platform may be affected too.
        ambient_messages.delete_of_sender(conn, ambient_messages.list_connectors(conn, identity.id), identity.id)
        pairings.delete_of_sender(conn, identity.service, identity.id)
        poison_messages.delete_of_sender(conn, identity.service, identity.id)
    spend_report.anonymize_person(conn, person)
    people.mark_erased(conn, person, at_ms=tx.at_ms)
    tx.close()
    return ErasureResult(len(sessions), envelopes, records)


def _erase_session(conn: sa.Connection, session: SessionId, at_ms: int) -> int:
    record_chunks.delete_chunks(conn, session)
    instructions.delete(conn, session)
    rows = conn.execute(_records_of_session, {"session": session}).all()
    for row in rows:
        body = _encode(_erase_body(row)).decode()
        conn.execute(_erase_record, {"the_session": session, "the_seq": row.seq, "new_body": body})
    for row in conn.execute(_approvals_of_session, {"session": session}).all():
        calls = tuple(replace(call, arguments={}) for call in _calls_decoder.decode(row.calls))
        conn.execute(_erase_approval, {"the_id": row.id, "new_calls": _encode(calls).decode()})
    for statement in (
        _erase_runs,
        _erase_steps,
        _erase_processes,
        _erase_delegations,
        _delete_questionnaires,
        _delete_external_keys,
    ):
        conn.execute(statement, {"the_session": session})
    conn.execute(_erase_session_row, {"the_session": session, "now": at_ms})
    return len(rows)


def _erase_body(row: sa.Row[Any]) -> RecordBody:
    """Return the body of a record with its texts replaced and its files removed. The kind of record stays the same.

    The next purge deletes the files, because no record refers to them any more.
    """
    match decode_body(row.kind, row.body):
        case UserTurn(envelopes=envelopes):
            return UserTurn(text=ERASED, envelopes=envelopes)
        case Reply() as reply:
            calls = tuple(replace(call, arguments={}) for call in reply.calls)
            return replace(reply, text=ERASED, thinking="", calls=calls, pieces=())
        case ToolResult() as result:
            return replace(result, output=ERASED, whole="", attachments=())
        case Note() as note:
            return replace(note, text=ERASED, whole="", attachments=())
        case Summary() as summary:
            return replace(summary, text=ERASED)
        case ContextStart():
            return ContextStart()
