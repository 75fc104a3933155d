"""Read a conversation as people see it: records with the original texts of their envelopes, newest page first."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.delegation import DelegationKind
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import Record, RecordKind, UserTurn
from retinue.domain.times import show
from retinue.domain.trust import Trust
from retinue.intake.subagent_results import outcome_of
from retinue.operations.base import Desk, Operation
from retinue.operations.envelope.envelopes import AttachmentShown, attachments_form
from retinue.operations.session.sessions import (
    PartialShown,
    RecordDamaged,
    RunShown,
    damaged_form,
    partial_form,
    shown,
)
from retinue.store.core import events
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, runs
from retinue.store.sessions import records, sessions

LINES_DEFAULT, LINES_MAX = 100, 500


class Transcript(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    before: Annotated[int | None, msgspec.Meta(description="only lines before this one")] = None
    after: Annotated[int | None, msgspec.Meta(description="only lines after this one")] = None
    limit: int = LINES_DEFAULT


class WorkRead(msgspec.Struct, frozen=True, rename="kebab"):
    """A delegation. `outcome` is open, ok, error, timeout or stopped."""

    id: str
    kind: DelegationKind
    label: str
    target: str
    outcome: str


class MailRead(msgspec.Struct, frozen=True, rename="kebab"):
    """An envelope as written, without what was added for the model.

    `work` is the delegation that it requests, or whose result it carries.
    """

    envelope: str
    sender: str = msgspec.field(name="from")
    kind: Kind
    text: str
    at: str
    attachments: list[AttachmentShown]
    work: WorkRead | None


class Line(msgspec.Struct, frozen=True, rename="kebab"):
    """A record.

    `mail` has the envelopes that were read with it. If they were purged, `body` has what the model
    read.
    """

    seq: int
    kind: RecordKind
    at: str
    run: str | None
    trust: Trust
    body: Any
    mail: list[MailRead]


class TranscriptRead(msgspec.Struct, rename="kebab"):
    """`lines` are in order.

    The first page has only records of the current context, which starts at `begins`. The model no
    longer reads earlier ones. `earlier`: there are more records before these.
    """

    cursor: int
    session: str
    agent: str
    revision: int
    run: RunShown | None
    begins: int
    earlier: bool
    lines: list[Line]
    damaged: list[RecordDamaged]
    partials: list[PartialShown]


async def transcript(desk: Desk, caller: Principal, asked: Transcript) -> TranscriptRead:
    limit = max(1, min(asked.limit, LINES_MAX))

    def body(conn: sa.Connection) -> TranscriptRead:
        session = sessions.resolve(conn, asked.session, seen_by=caller)
        begins = records.begun(conn, session.id, before=session.record_seq + 1)
        last = session.record_seq
        if asked.before is not None:
            last = max(0, min(last, asked.before - 1))
        first = max(1, last - limit + 1, (asked.after or 0) + 1)
        if last >= begins:
            first = max(first, begins)
        found, damaged = records.read(conn, session.id, first=first, last=last)
        run = runs.open_in(conn, session.id)
        return TranscriptRead(
            cursor=events.newest(conn),
            session=session.id,
            agent=session.agent,
            revision=session.revision,
            run=RunShown(id=run.id, status=run.status, attempt=run.attempt) if run else None,
            begins=begins,
            earlier=first > max(1, (asked.after or 0) + 1),
            lines=[_line(desk, conn, record) for record in found],
            damaged=damaged_form(damaged),
            partials=[],
        )

    found = await desk.store.scan(body)
    found.partials = [partial_form(said) for said in desk.live.partials(SessionId(found.session))]
    return found


def _line(desk: Desk, conn: sa.Connection, record: Record) -> Line:
    read = record.body.envelopes if isinstance(record.body, UserTurn) else ()
    mail = [_mail(desk, conn, envelope) for id_ in read if (envelope := envelopes.get(conn, id_)) is not None]
    return Line(
        seq=record.seq,
        kind=record.kind,
        at=record.at.astimezone(desk.zone).isoformat(timespec="milliseconds"),  # clients distinguish calls by time
        run=record.run,
        trust=record.trust,
        body=shown(record.body),
        mail=mail,
    )


def _mail(desk: Desk, conn: sa.Connection, envelope: Envelope) -> MailRead:
    return MailRead(
        envelope=envelope.id,
        sender=str(envelope.sender),
        kind=envelope.kind,
        text=envelope.text,
        at=show(envelope.accepted_at, desk.zone),
        attachments=attachments_form(envelope.attachments),
        work=_work(conn, envelope),
    )


def _work(conn: sa.Connection, envelope: Envelope) -> WorkRead | None:
    """Return the delegation of an envelope, if its kind can have one.

    Most envelopes are from people.
    """
    if envelope.kind is Kind.DELEGATION:
        found = delegations.get(conn, envelope.id)
    elif envelope.kind in (Kind.ANSWER, Kind.NOTICE):
        found = delegations.by_result(conn, envelope.id)
    else:
        return None
    if found is None:
        return None
    return WorkRead(found.id, found.kind, found.label, found.target, outcome_of(conn, found, found.state))


OPERATIONS = (
    Operation(
        name="session.transcript",
        summary="Read a conversation, newest first.",
        parameters=Transcript,
        handler=transcript,
        permission=PermissionLevel.RESTRICTED,
        result=TranscriptRead,
    ),
)
