"""Erase a person: remove their texts from the store so that its sums still hold and their name stays reserved."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import Body, Mark, Note, Reply, Summary, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.store.channels import ambient_messages, identities, pairings
from retinue.store.core import row_visibility
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import Scope, me
from retinue.store.core.transaction import Page
from retinue.store.people import people, tokens
from retinue.store.runs import spend_report
from retinue.store.sessions import instructions, record_chunks
from retinue.store.sessions.record_codec import read_body

FORGOTTEN = "(forgotten)"

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_calls = msgspec.json.Decoder(tuple[Call, ...])
_parent = t.sessions.alias("parent")
_sent_out_there = sa.exists().where(_parent.c.id == t.sessions.c.parent, row_visibility.origin_is(_parent))
_own = sa.select(t.sessions.c.id).where(sa.or_(row_visibility.origin_is(t.sessions), _sent_out_there))
_records = sa.select(t.records).where(t.records.c.session == _b("session"))
_blank_record = (
    t.records.update()
    .where(t.records.c.session == _b("the_session"), t.records.c.seq == _b("the_seq"))
    .values(body=_b("new_body"))
)
_blank_session = (
    t.sessions.update()
    .where(t.sessions.c.id == _b("the_session"))
    .values(snippet="", name="", folded=None, attributes="{}", refresh=None, deleted_ms=_b("now"), updated_ms=_b("now"))
)
_blank_runs = t.runs.update().where(t.runs.c.session == _b("the_session")).values(final_text=FORGOTTEN)
_blank_steps = (
    t.steps.update()
    .where(t.steps.c.run.in_(sa.select(t.runs.c.id).where(t.runs.c.session == _b("the_session"))))
    .values(call=None)
)
_blank_news = t.news.update().where(t.news.c.session.in_(_own)).values(body=None)
_approvals = sa.select(t.approvals.c.id, t.approvals.c.calls).where(t.approvals.c.session == _b("session"))
_blank_approval = (
    t.approvals.update().where(t.approvals.c.id == _b("the_id")).values(calls=_b("new_calls"), because=FORGOTTEN)
)
_blank_mail = (
    t.envelopes.update()
    .where(row_visibility.envelopes(Scope.PERSON), t.envelopes.c.text != FORGOTTEN)
    .values(text=FORGOTTEN, attachments=None, context=None)
)
_unhook = t.webhooks.delete().where(
    t.webhooks.c.letter.in_(sa.select(t.envelopes.c.id).where(row_visibility.envelopes(Scope.PERSON)))
)
_theirs = tuple(
    table.delete().where(table.c.person == _b("the_person"))
    for table in (t.notifications, t.questionnaires, t.preferences)
)
_blank_delegations = (
    t.delegations.update()
    .where(sa.or_(t.delegations.c.session == _b("the_session"), t.delegations.c.child == _b("the_session")))
    .values(task=FORGOTTEN, label="", because="")
)
_unname = t.external_keys.delete().where(t.external_keys.c.session == _b("the_session"))
_asked_in = t.questionnaires.delete().where(t.questionnaires.c.session == _b("the_session"))
_unshare = t.shares.delete().where(t.shares.c.person == _b("my_name"))


class Forgotten(Struct, frozen=True):
    sessions: int
    envelopes: int
    records: int


def _as(person: str) -> dict[str, Any]:
    return me(Principal(address=address.person(person), level=PermissionLevel.RESTRICTED, trust=Trust.PERSON))


def own_sessions(conn: sa.Connection, person: str) -> list[SessionId]:
    """List the sessions whose origin is this person, and the sessions of subagents spawned there.

    Sessions that others shared with them are not included.
    """
    return [SessionId(row.id) for row in conn.execute(_own, _as(person))]


def forget(conn: sa.Connection, *, person: str, now_ms: int) -> Forgotten:
    page = Page(conn, now_ms)
    # Shares first: messages in another person's sessions belong to that person.
    conn.execute(_unshare, {"my_name": person})
    sessions = own_sessions(conn, person)
    conn.execute(_unhook, _as(person))
    envelopes = conn.execute(_blank_mail, _as(person)).rowcount
    conn.execute(_blank_news, _as(person))
    records = sum(_blank(conn, session, page.at_ms) for session in sessions)
    tokens.revoke_all(conn, str(address.person(person)), at_ms=page.at_ms)
    for statement in _theirs:
        conn.execute(statement, {"the_person": person})
    for identity in identities.forget(conn, person):
        # In every connector where this id spoke: the same id on another platform may be affected too.
        ambient_messages.forget(conn, ambient_messages.where_heard(conn, identity.id), identity.id)
        pairings.forget(conn, identity.service, identity.id)
    spend_report.forget_person(conn, person)
    people.forget(conn, person, at_ms=page.at_ms)
    page.close()
    return Forgotten(len(sessions), envelopes, records)


def _blank(conn: sa.Connection, session: SessionId, at_ms: int) -> int:
    record_chunks.forget(conn, session)
    instructions.forget(conn, session)
    rows = conn.execute(_records, {"session": session}).all()
    for row in rows:
        body = _encode(_without_words(row)).decode()
        conn.execute(_blank_record, {"the_session": session, "the_seq": row.seq, "new_body": body})
    for row in conn.execute(_approvals, {"session": session}).all():
        calls = tuple(replace(call, arguments={}) for call in _calls.decode(row.calls))
        conn.execute(_blank_approval, {"the_id": row.id, "new_calls": _encode(calls).decode()})
    for statement in (_blank_runs, _blank_steps, _blank_delegations, _asked_in, _unname):
        conn.execute(statement, {"the_session": session})
    conn.execute(_blank_session, {"the_session": session, "now": at_ms})
    return len(rows)


def _without_words(row: sa.Row[Any]) -> Body:
    """Return the same kind of record without its texts."""
    match read_body(row.kind, row.body):
        case UserTurn(envelopes=envelopes):
            return UserTurn(text=FORGOTTEN, envelopes=envelopes)
        case Reply() as reply:
            calls = tuple(replace(call, arguments={}) for call in reply.calls)
            return replace(reply, text=FORGOTTEN, thinking="", calls=calls, pieces=())
        case ToolResult() as result:
            return replace(result, output=FORGOTTEN)
        case Note() as note:
            return replace(note, text=FORGOTTEN)
        case Summary() as summary:
            return replace(summary, text=FORGOTTEN)
        case Mark():
            return Mark()
