"""Operations that send, show, cancel and retry envelopes, and show reply threads and dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.attachment import Attachment, safe_file_name
from retinue.domain.delegation import DelegationKind, Lineage
from retinue.domain.envelope import (
    ATTACHMENTS_MAX,
    NO_CONTEXT,
    Envelope,
    EnvelopeContext,
    EnvelopeDraft,
    EnvelopeKind,
    EnvelopeStatus,
    Outcome,
    SettledOutcome,
)
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, SessionId, parse_id_prefix, short_id
from retinue.domain.principal import Principal
from retinue.domain.run import NO_RUN_REQUEST, RunRequest
from retinue.domain.session import LaneKind, Origin, OriginKind, WhenBusy
from retinue.domain.shared_errors import DelegationRefused, TooManyAttachments
from retinue.domain.structs import replace
from retinue.domain.times import format_time, parse_time, to_ms
from retinue.domain.trust import Trust
from retinue.domain.webhook import Webhook
from retinue.intake.accept import AcceptResult, Wake, settle_and_notify
from retinue.operations.base import Operation, Services
from retinue.operations.envelope.errors import (
    AttachmentGivenTwice,
    EnvelopeNotWaiting,
    ExtraSystemPromptTooLarge,
    NoSessionYet,
    RunModelMissing,
    RunRequestNotAllowed,
    RunWorkspaceRelative,
    SessionNamedTwice,
    SessionOfOtherAgent,
    WebhookNotAllowed,
    WebhookRecipientInvalid,
)
from retinue.operations.session.sessions import check_owner
from retinue.outbox.dead_letter_retry import requeue_dead_letter
from retinue.policy.access.webhooks import check_webhook as check_webhook
from retinue.policy.tools.delegations import build_child_lineage
from retinue.store.agents import agents
from retinue.store.channels import deliveries
from retinue.store.channels.deliveries import DeliveryAttempt, DeliveryState
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, outcomes, webhooks
from retinue.store.envelopes.attachment_files import safe_media_type
from retinue.store.envelopes.dead_letters import DeadLetter, load_dead_letters
from retinue.store.envelopes.reply_threads import get_reply_thread
from retinue.store.sessions import sessions
from retinue.text.quantity import format_quantity

LISTED_MAX = 50
QUEUE_POSITION_MAX = 1_000
CONVERSATION_CHARS_MAX = 64
EXTRA_PROMPT_CHARS_MAX = 20_000
LATEST_SESSION = "latest"


class AttachmentUpload(msgspec.Struct, forbid_unknown_fields=True):
    """An attachment of a new envelope: its bytes, or the hash of a file that was uploaded before."""

    name: str
    data: bytes = b""
    hash: str = ""
    media_type: str = "application/octet-stream"


class EnvelopeSendRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Send an envelope. Sender, sender name and trust are not parameters: they follow from the caller's token."""

    to: str = ""
    text: str
    key: str = ""
    conversation: str = ""  # name of a separate session
    session: str = ""  # session id or `latest`; default: the latest session, or a new one if there is none
    deliver_at: str = ""
    expires_at: str = ""
    reply_to: str = ""
    attachments: list[AttachmentUpload] = []
    # Options of the run. They default to the settings of the agent.
    model: str = ""
    provider: str = ""
    lane: LaneKind | None = None
    workspace: str = ""
    extra_system_prompt: str = ""
    when_busy: Annotated[
        WhenBusy | None,
        msgspec.Meta(description="if a run is active, steer it or wait for its end; default: the session's queue mode"),
    ] = None
    webhook: Annotated[
        Webhook | None,
        msgspec.Meta(description="object with the `url` to notify when the envelope is done, and optional `headers`"),
    ] = None


class EnvelopeReceipt(msgspec.Struct):
    envelope: str
    session: str | None
    cursor: int
    duplicate: bool
    outcome: Outcome | None
    because: str


class EnvelopeIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class DeadLetterListRequest(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10
    before: str = ""  # the last id of the previous page


class AttachmentDetails(msgspec.Struct):
    name: str
    hash: str
    media_type: str
    size_bytes: int


class DeliveryAttemptDetails(msgspec.Struct):
    """One delivery attempt and the platform's response."""

    attempt: int
    state: DeliveryState
    receipt: str | None
    error_kind: str | None
    error: str | None


class EnvelopeDetails(msgspec.Struct):
    """One envelope, with its deliveries and outcome. Fields that do not apply are omitted."""

    id: str
    short: str
    sender: str = msgspec.field(name="from")
    recipient: str = msgspec.field(name="to")
    kind: EnvelopeKind
    status: EnvelopeStatus
    accepted_at: str
    text: str
    reply_to: str | msgspec.UnsetType = msgspec.UNSET
    deliver_at: str | msgspec.UnsetType = msgspec.UNSET
    attachments: list[AttachmentDetails] | msgspec.UnsetType = msgspec.UNSET
    # If the envelope is done:
    outcome: Outcome | msgspec.UnsetType = msgspec.UNSET
    because: str | msgspec.UnsetType = msgspec.UNSET
    answer: str | msgspec.UnsetType | None = msgspec.UNSET
    retry: str | msgspec.UnsetType = msgspec.UNSET  # the newest retry of this envelope
    when_busy: WhenBusy | msgspec.UnsetType = msgspec.UNSET
    # Only for a single envelope, or for the queue of a session:
    position: int | msgspec.UnsetType = msgspec.UNSET
    deliveries: list[DeliveryAttemptDetails] | msgspec.UnsetType = msgspec.UNSET


class ReplyThreadDetails(msgspec.Struct):
    envelopes: list[EnvelopeDetails]
    omitted_count: int
    total: int
    purged: bool


class DeadLetterList(msgspec.Struct):
    dead_letters: list[EnvelopeDetails]


class EnvelopeCancelled(msgspec.Struct):
    envelope: str
    outcome: Outcome


async def send_envelope(services: Services, caller: Principal, request: EnvelopeSendRequest) -> EnvelopeReceipt:
    """Accept an envelope. The response is sent only after the envelope is stored on disk."""
    now = services.clock.now()
    reply_to = (
        await services.store.read(partial(envelopes.resolve_id, text=request.reply_to, seen_by=caller))
        if request.reply_to
        else None
    )
    id_ = EnvelopeId(services.ids.new())
    recipient, origin = await _resolve_session(services, caller, request, reply_to)
    draft = EnvelopeDraft(
        id=id_,
        sender=caller.address,
        recipient=recipient,
        text=request.text,
        source=str(caller.address),
        idempotency_key=request.key or id_,
        origin=origin,
        attachments=_store_attachments(services, caller, request.attachments),
        context=_build_context(services, caller, request),
        reply_to=reply_to,
        trust=caller.trust,
        deliver_at=parse_time(request.deliver_at, now=now, zone=services.zone) if request.deliver_at else None,
        expires_at=parse_time(request.expires_at, now=now, zone=services.zone) if request.expires_at else None,
    )
    if request.webhook is not None:
        draft = await _store_webhook(services, caller, draft, request.webhook)
    if caller.lineage is not None and recipient.kind is AddressKind.AGENT:
        lineage = await services.store.read(
            partial(_build_lineage, caller=caller, lineage=caller.lineage, to=recipient)
        )
        context = msgspec.structs.replace(draft.context, lineage=lineage)
        draft = msgspec.structs.replace(draft, context=context)
    receipt = await services.intake.accept(draft)
    return EnvelopeReceipt(
        envelope=receipt.envelope,
        session=receipt.session,
        cursor=receipt.event_seq,
        duplicate=receipt.duplicate,
        outcome=receipt.outcome,
        because=receipt.because,
    )


def _build_lineage(conn: sa.Connection, *, caller: Principal, lineage: Lineage, to: Address) -> Lineage:
    """Return the lineage of an envelope that a run sends to another agent: who the work is for, and its limits.

    As in a delegation, the work stays attributed to its first sender. The work of a background job is
    attributed to the sending agent.
    """
    asker, target = agents.find(conn, caller.address.name), agents.find(conn, to.name)
    if asker is None or target is None:
        return lineage
    if lineage.depth >= asker.delegation.depth_max:
        key = f"agents.{asker.name}.delegation.depth_max"
        raise DelegationRefused(
            asker.name,
            target.name,
            because=f"this work was already delegated {format_quantity(lineage.depth, 'time')}, "
            f"which is the limit `{key}`",
            setting=key,
        )
    return build_child_lineage(lineage, asker, target, DelegationKind.MESSAGE)


async def _store_webhook(
    services: Services, caller: Principal, draft: EnvelopeDraft, webhook: Webhook
) -> EnvelopeDraft:
    """Store the webhook of an envelope, and return the envelope's draft, marked as having a webhook.

    The webhook is stored before the envelope. If the envelope is not accepted, the webhook is never called.
    """
    if caller.address.kind is not AddressKind.PERSON or not (caller.sees_everything or _is_member(caller)):
        raise WebhookNotAllowed
    if draft.recipient.kind is not AddressKind.AGENT:
        raise WebhookRecipientInvalid(str(draft.recipient))
    check_webhook(services.require_config_holder().current.settings.external, webhook)
    keep = partial(webhooks.add, envelope=draft.id, webhook=webhook, at_ms=to_ms(services.clock.now()))
    await services.store.write(keep, point="webhook")
    return msgspec.structs.replace(draft, context=msgspec.structs.replace(draft.context, webhook=True))


def _build_context(services: Services, caller: Principal, send_request: EnvelopeSendRequest) -> EnvelopeContext:
    request = RunRequest(
        model=send_request.model or None,
        provider=send_request.provider or None,
        lane=send_request.lane,
        workspace=send_request.workspace or None,
        extra_system_prompt=send_request.extra_system_prompt,
    )
    if request == NO_RUN_REQUEST:
        return EnvelopeContext(when_busy=send_request.when_busy) if send_request.when_busy is not None else NO_CONTEXT
    plain = msgspec.structs.replace(request, lane=None, workspace=None, extra_system_prompt="") == request
    entitled = caller.sees_everything or (plain and caller.trust is Trust.PERSON and _is_member(caller))
    if not entitled:
        raise RunRequestNotAllowed
    if request.provider and not request.model:
        raise RunModelMissing
    if request.workspace and not PurePosixPath(request.workspace).is_absolute():
        raise RunWorkspaceRelative(request.workspace)
    if len(request.extra_system_prompt) > EXTRA_PROMPT_CHARS_MAX:
        raise ExtraSystemPromptTooLarge(chars_max=EXTRA_PROMPT_CHARS_MAX)
    if request.model_reference and services.catalog is not None:
        services.catalog().parse_selection(request.model_reference)  # raises if it does not exist or is not allowed
    return EnvelopeContext(request=request, when_busy=send_request.when_busy)


def _is_member(caller: Principal) -> bool:
    return caller.address.kind is AddressKind.PERSON and caller.level is not PermissionLevel.RESTRICTED


async def _resolve_session(
    services: Services, caller: Principal, request: EnvelopeSendRequest, reply_to: EnvelopeId | None
) -> tuple[Address, Origin]:
    """Return the recipient and origin of the given session, the named conversation, or the caller's latest session.

    The latest session is returned as its origin. When the envelope is accepted, the session is looked up by
    this origin, and created if it no longer exists.
    """
    to = (
        address.parse_address(request.to)
        if request.to
        else address.agent_address(await services.store.read(services.default_agent))
    )
    name = request.conversation.casefold()[:CONVERSATION_CHARS_MAX]
    own = Origin(OriginKind.TERMINAL, f"{caller.address}/{name}" if name else str(caller.address))
    wanted = to.rest or request.session
    if (name and request.session) or (to.rest and request.session not in ("", to.rest)):
        raise SessionNamedTwice
    if to.kind is not AddressKind.AGENT or (name and not wanted):
        return to, own
    if wanted not in ("", LATEST_SESSION):
        session = await services.store.read(
            partial(_require_session, text=wanted, to=to, caller=caller, reply_to=reply_to)
        )
        return address.agent_address(to.name, session), own
    latest = await services.store.read(partial(sessions.get_latest_origin, agent=to.name, principal=caller))
    if latest is None and wanted == LATEST_SESSION:
        raise NoSessionYet(to.name)
    return to, latest or own


def _require_session(
    conn: sa.Connection, *, text: str, to: Address, caller: Principal, reply_to: EnvelopeId | None
) -> SessionId:
    """Return the id of a session. Raise an error unless the caller may see it or replies to an envelope from it."""
    replied = envelopes.get(conn, reply_to) if reply_to else None
    if replied is not None and replied.sender.kind is AddressKind.AGENT and replied.sender.rest:
        there = replied.sender
        if there.name.casefold() == to.name.casefold() and there.rest.startswith(parse_id_prefix(text)):
            return SessionId(there.rest)
    session = sessions.get_by_short_id(conn, text, seen_by=caller)
    if session.agent.casefold() != to.name.casefold():
        raise SessionOfOtherAgent(short_id(session.id), recipient=to.name, agent=session.agent)
    return session.id


def _store_attachments(
    services: Services, caller: Principal, uploads: list[AttachmentUpload]
) -> tuple[Attachment, ...]:
    """Store the attachments. Files are written to disk before the commit that refers to them."""
    if len(uploads) > ATTACHMENTS_MAX:
        raise TooManyAttachments(len(uploads), count_max=ATTACHMENTS_MAX)
    return tuple(_store_attachment(services, caller, upload) for upload in uploads)


def _store_attachment(services: Services, caller: Principal, upload: AttachmentUpload) -> Attachment:
    if not upload.hash:
        return services.attachment_files.store([upload.data], name=upload.name, media_type=upload.media_type)
    if upload.data:
        raise AttachmentGivenTwice(safe_file_name(upload.name))
    uploaded = services.uploads.use(str(caller.address), upload.hash)
    return replace(uploaded, name=safe_file_name(upload.name), media_type=safe_media_type(upload.media_type))


async def show_envelope(services: Services, caller: Principal, request: EnvelopeIdRequest) -> EnvelopeDetails:
    def body(conn: sa.Connection) -> EnvelopeDetails:
        id_ = envelopes.resolve_id(conn, request.id, seen_by=caller)
        envelope = envelopes.get(conn, id_)
        assert envelope is not None  # resolved in the same snapshot
        details = to_envelope_details(services, envelope, envelopes.get_outcome(conn, id_))
        position = _find_queue_position(conn, envelope, to_ms(services.clock.now()))
        if position is not None:
            details.position = position
        if attempts := deliveries.list_attempts(conn, id_):
            details.deliveries = [_to_attempt_details(attempt) for attempt in attempts]
        return details

    return await services.store.scan(body)


def _to_attempt_details(attempt: DeliveryAttempt) -> DeliveryAttemptDetails:
    return DeliveryAttemptDetails(
        attempt=attempt.attempt,
        state=attempt.state,
        receipt=attempt.receipt,
        error_kind=attempt.error_kind,
        error=attempt.error,
    )


def _find_queue_position(conn: sa.Connection, envelope: Envelope, now_ms: int) -> int | None:
    """Return the envelope's position among the due envelopes of its session, from 1, or None if it is not due."""
    if envelope.session is None or envelope.status is not EnvelopeStatus.PENDING:
        return None
    waiting = [each.id for each in envelopes.list_due(conn, envelope.session, now_ms, limit=QUEUE_POSITION_MAX)]
    return waiting.index(envelope.id) + 1 if envelope.id in waiting else None


def to_envelope_details(
    services: Services, envelope: Envelope, settled: SettledOutcome | None = None
) -> EnvelopeDetails:
    details = EnvelopeDetails(
        id=envelope.id,
        short=short_id(envelope.id),
        sender=str(envelope.sender),
        recipient=str(envelope.recipient),
        kind=envelope.kind,
        status=envelope.status,
        accepted_at=format_time(envelope.accepted_at, services.zone),
        text=envelope.text,
    )
    if envelope.reply_to:
        details.reply_to = envelope.reply_to
    if envelope.context.when_busy is not None:
        details.when_busy = envelope.context.when_busy
    if envelope.deliver_at:
        details.deliver_at = format_time(envelope.deliver_at, services.zone)
    if envelope.attachments:
        details.attachments = to_attachment_details(envelope.attachments)
    if settled:
        details.outcome, details.because, details.answer = settled.outcome, settled.because, settled.answer
    return details


def to_attachment_details(attachments: Iterable[Attachment]) -> list[AttachmentDetails]:
    return [
        AttachmentDetails(name=a.name, hash=a.hash, media_type=a.media_type, size_bytes=a.size_bytes)
        for a in attachments
    ]


async def show_thread(services: Services, caller: Principal, request: EnvelopeIdRequest) -> ReplyThreadDetails:
    found = await services.store.scan(partial(get_reply_thread, id_text=request.id, seen_by=caller))
    return ReplyThreadDetails(
        envelopes=[to_envelope_details(services, envelope) for envelope in found.envelopes],
        omitted_count=found.left_out,
        total=found.total,
        purged=found.purged,
    )


async def list_dead_letters(services: Services, caller: Principal, request: DeadLetterListRequest) -> DeadLetterList:
    limit = max(1, min(request.limit, LISTED_MAX))
    found = await services.store.scan(
        partial(load_dead_letters, limit=limit, before=request.before or None, seen_by=caller)
    )
    return DeadLetterList([_to_dead_letter_details(services, each) for each in found])


def _to_dead_letter_details(services: Services, dead_letter: DeadLetter) -> EnvelopeDetails:
    details = to_envelope_details(services, dead_letter.envelope, dead_letter.settled)
    if (
        dead_letter.retry is not None and dead_letter.retry.id != dead_letter.envelope.id
    ):  # a failed retry is listed too
        details.retry = dead_letter.retry.id
    return details


async def cancel_envelope(services: Services, caller: Principal, request: EnvelopeIdRequest) -> EnvelopeCancelled:
    """Cancel a waiting envelope.

    Only its sender and the callers that `check_owner` accepts for its session may cancel it.
    """

    def body(conn: sa.Connection) -> tuple[Envelope, tuple[Wake, ...]]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        id_ = envelopes.resolve_id(conn, request.id, seen_by=caller)
        envelope = envelopes.get(conn, id_)
        assert envelope is not None  # resolved in the same commit
        by_sender = (envelope.sender.kind, envelope.sender.name) == (caller.address.kind, caller.address.name)
        session = sessions.get(conn, envelope.session) if envelope.session else None
        if not by_sender and not caller.sees_everything:
            check_owner(caller, session)
        if envelope.status is not EnvelopeStatus.PENDING or envelope.steered_into is not None:
            raise EnvelopeNotWaiting(
                short_id(id_), status="" if envelope.steered_into is not None else envelope.status.value
            )
        because = f"cancelled by {caller.address}"
        wakes: tuple[Wake, ...] = ()
        if by_sender:  # a sender who cancels needs no notification
            outcomes.settle(tx, [id_], Outcome.CANCELLED, because=because)
            tx.emit(
                EventKind.ENVELOPE_SETTLED,
                session=envelope.session,
                envelope=id_,
                outcome=Outcome.CANCELLED.value,
                because=because,
            )
        else:
            text = f"Not read: {because}."
            wakes = settle_and_notify(tx, envelope, Outcome.CANCELLED, because=because, text=text, session=session)
        tx.close()
        return envelope, wakes

    def on_commit(done: tuple[Envelope, tuple[Wake, ...]] | None) -> None:
        for wake in done[1] if done else ():
            services.engine.wake(wake)

    envelope, _ = await services.store.write(body, point="cancel", then=on_commit)
    return EnvelopeCancelled(envelope=envelope.id, outcome=Outcome.CANCELLED)


async def retry_dead_letter(services: Services, caller: Principal, request: EnvelopeIdRequest) -> EnvelopeReceipt:
    id_ = await services.store.read(partial(envelopes.resolve_id, text=request.id, seen_by=caller))
    body = partial(
        requeue_dead_letter, id_text=id_, new_id=EnvelopeId(services.ids.new()), now_ms=to_ms(services.clock.now())
    )

    def on_commit(entered: AcceptResult | None) -> None:
        for wake in entered.wakes if entered else ():
            services.engine.wake(wake)

    receipt = (await services.store.write(body, point="retry", then=on_commit)).receipt
    return EnvelopeReceipt(
        envelope=receipt.envelope,
        session=receipt.session,
        cursor=receipt.event_seq,
        duplicate=False,
        outcome=receipt.outcome,
        because=receipt.because,
    )


OPERATIONS = (
    Operation(
        name="envelope.send",
        summary="Send an envelope.",
        parameters=EnvelopeSendRequest,
        handler=send_envelope,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=EnvelopeReceipt,
    ),
    Operation(
        name="envelope.show",
        summary="Show an envelope.",
        parameters=EnvelopeIdRequest,
        handler=show_envelope,
        permission=PermissionLevel.RESTRICTED,
        result=EnvelopeDetails,
    ),
    Operation(
        name="envelope.thread",
        summary="Show the reply thread of an envelope.",
        parameters=EnvelopeIdRequest,
        handler=show_thread,
        permission=PermissionLevel.RESTRICTED,
        result=ReplyThreadDetails,
    ),
    Operation(
        name="envelope.dead",
        summary="List dead letters.",
        parameters=DeadLetterListRequest,
        handler=list_dead_letters,
        permission=PermissionLevel.RESTRICTED,
        result=DeadLetterList,
    ),
    Operation(
        name="envelope.cancel",
        summary="Cancel a waiting envelope.",
        parameters=EnvelopeIdRequest,
        handler=cancel_envelope,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=EnvelopeCancelled,
    ),
    Operation(
        name="envelope.retry",
        summary="Retry a dead letter.",
        parameters=EnvelopeIdRequest,
        handler=retry_dead_letter,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=EnvelopeReceipt,
    ),
)
