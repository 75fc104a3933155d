"""Operation that reads the records of a conversation with the original text of their envelopes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.delegation import DelegationKind
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import Record, RecordKind, UserTurn
from retinue.domain.times import format_time
from retinue.domain.trust import Trust
from retinue.intake.subagent_results import describe_outcome
from retinue.operations.base import Operation, Services
from retinue.operations.envelope.envelopes import AttachmentDetails, to_attachment_details
from retinue.operations.session.session_history import DamagedRecordRow, to_damaged_record_rows
from retinue.operations.session.session_state import (
    PartialReplyDetails,
    to_partial_reply_details,
    without_provider_pieces,
)
from retinue.operations.session.sessions import OpenRun
from retinue.store.core import events
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations, runs
from retinue.store.sessions import records, sessions

RECORDS_DEFAULT, RECORDS_MAX = 100, 500


class TranscriptRequest(msgspec.Struct, forbid_unknown_fields=True):
    session: str
    before: Annotated[int | None, msgspec.Meta(description="only records before this number")] = None
    after: Annotated[int | None, msgspec.Meta(description="only records after this number")] = None
    limit: int = RECORDS_DEFAULT


class TranscriptDelegation(msgspec.Struct, frozen=True):
    """A delegation, as shown in a transcript. `outcome` is open, ok, error, timeout or stopped."""

    id: str
    kind: DelegationKind
    label: str
    target: str
    outcome: str


class TranscriptEnvelope(msgspec.Struct, frozen=True):
    """An envelope with its original text, without the additions for the model.

    `delegation` is the delegation that the envelope requests, or whose result it contains.
    """

    envelope: str
    sender: str = msgspec.field(name="from")
    kind: EnvelopeKind
    text: str
    at: str
    attachments: list[AttachmentDetails]
    delegation: TranscriptDelegation | None


class TranscriptRecord(msgspec.Struct, frozen=True):
    """One record of a session, with the messages that belong to it.

    `envelopes` are the envelopes that a run read with this record. If they were purged, `body` contains
    the text that the model read.
    """

    seq: int
    kind: RecordKind
    at: str
    run: str | None
    trust: Trust
    body: Any
    envelopes: list[TranscriptEnvelope]


class SessionTranscript(msgspec.Struct):
    """One page of a conversation. `records` are ordered from oldest to newest.

    The first page has only records of the current context, which starts with the record `context_start`.
    The model no longer reads records before it. If `has_earlier` is true, there are records before those
    of this page.
    """

    cursor: int
    session: str
    agent: str
    revision: int
    run: OpenRun | None
    context_start: int
    has_earlier: bool
    records: list[TranscriptRecord]
    damaged: list[DamagedRecordRow]
    partials: list[PartialReplyDetails]


async def read_transcript(services: Services, caller: Principal, request: TranscriptRequest) -> SessionTranscript:
    limit = max(1, min(request.limit, RECORDS_MAX))

    def body(conn: sa.Connection) -> SessionTranscript:
        session = sessions.get_by_short_id(conn, request.session, seen_by=caller)
        begins = records.context_start_seq(conn, session.id, before=session.record_seq + 1)
        last = session.record_seq
        if request.before is not None:
            last = max(0, min(last, request.before - 1))
        first = max(1, last - limit + 1, (request.after or 0) + 1)
        if last >= begins:
            first = max(first, begins)
        found, damaged = records.read_range(conn, session.id, first=first, last=last)
        run = runs.get_open(conn, session.id)
        return SessionTranscript(
            cursor=events.newest_seq(conn),
            session=session.id,
            agent=session.agent,
            revision=session.revision,
            run=OpenRun(id=run.id, status=run.status, attempt=run.attempt) if run else None,
            context_start=begins,
            has_earlier=first > max(1, (request.after or 0) + 1),
            records=[_to_transcript_record(services, conn, record) for record in found],
            damaged=to_damaged_record_rows(damaged),
            partials=[],
        )

    found = await services.store.scan(body)
    found.partials = [
        to_partial_reply_details(reply) for reply in services.event_broadcast.partial_replies(SessionId(found.session))
    ]
    return found


def _to_transcript_record(services: Services, conn: sa.Connection, record: Record) -> TranscriptRecord:
    read = record.body.envelopes if isinstance(record.body, UserTurn) else ()
    read_envelopes = [
        _to_transcript_envelope(services, conn, envelope)
        for id_ in read
        if (envelope := envelopes.get(conn, id_)) is not None
    ]
    return TranscriptRecord(
        seq=record.seq,
        kind=record.kind,
        at=record.at.astimezone(services.zone).isoformat(timespec="milliseconds"),  # clients distinguish calls by time
        run=record.run,
        trust=record.trust,
        body=without_provider_pieces(record.body),
        envelopes=read_envelopes,
    )


def _to_transcript_envelope(services: Services, conn: sa.Connection, envelope: Envelope) -> TranscriptEnvelope:
    return TranscriptEnvelope(
        envelope=envelope.id,
        sender=str(envelope.sender),
        kind=envelope.kind,
        text=envelope.text,
        at=format_time(envelope.accepted_at, services.zone),
        attachments=to_attachment_details(envelope.attachments),
        delegation=_find_delegation(conn, envelope),
    )


def _find_delegation(conn: sa.Connection, envelope: Envelope) -> TranscriptDelegation | None:
    """Return the delegation that an envelope belongs to, or None.

    Most envelopes are messages from people, which belong to no delegation. They need no query.
    """
    if envelope.kind is EnvelopeKind.DELEGATION:
        found = delegations.get(conn, envelope.id)
    elif envelope.kind in (EnvelopeKind.ANSWER, EnvelopeKind.NOTICE):
        found = delegations.get_by_result(conn, envelope.id)
    else:
        return None
    if found is None:
        return None
    return TranscriptDelegation(
        found.id, found.kind, found.label, found.target, describe_outcome(conn, found, found.state)
    )


OPERATIONS = (
    Operation(
        name="session.transcript",
        summary="Read a conversation with the original text of its messages, newest page first.",
        parameters=TranscriptRequest,
        handler=read_transcript,
        permission=PermissionLevel.RESTRICTED,
        result=SessionTranscript,
    ),
)
