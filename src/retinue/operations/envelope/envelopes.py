"""Operations on envelopes: send, show, reply thread, dead letters, cancel and retry."""

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
from retinue.domain.attachment import Attachment, safe_name
from retinue.domain.delegation import DelegationKind, Lineage
from retinue.domain.envelope import (
    ATTACHMENTS_MAX,
    NO_CONTEXT,
    Context,
    Draft,
    Envelope,
    Kind,
    Outcome,
    Settled,
    Status,
)
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, TooLarge
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, SessionId, prefix, short
from retinue.domain.principal import Principal
from retinue.domain.run import NO_REQUEST, RunRequest
from retinue.domain.session import LaneKind, Origin, OriginKind, WhenBusy
from retinue.domain.structs import replace
from retinue.domain.times import parse_when, show, to_ms
from retinue.domain.trust import Trust
from retinue.domain.webhook import Webhook
from retinue.intake.accept import Entered, Wake, settle_and_tell
from retinue.operations.base import Desk, Operation
from retinue.operations.session.sessions import check_own
from retinue.outbox.dead_letter_retry import retry
from retinue.policy.access.webhooks import check as check_webhook
from retinue.policy.tools.delegations import descends
from retinue.store.agents import agents
from retinue.store.channels import deliveries
from retinue.store.channels.deliveries import Attempt, DeliveryState
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes, webhooks
from retinue.store.envelopes.attachment_files import safe_media_type
from retinue.store.envelopes.dead_letters import DeadLetter, dead
from retinue.store.envelopes.reply_threads import thread
from retinue.store.sessions import sessions

LISTED_MAX = 50
WAITING_LOOKED_AT_MAX = 1_000
CONVERSATION_LENGTH_MAX = 64
EXTRA_PROMPT_LENGTH_MAX = 20_000
LATEST = "latest"


class Upload(msgspec.Struct, forbid_unknown_fields=True):
    """An attachment: its bytes, or the hash of a file uploaded before."""

    name: str
    data: bytes = b""
    hash: str = ""
    media_type: str = "application/octet-stream"


class Send(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sender, sender name and trust are not parameters: they follow from the caller's token."""

    to: str = ""
    text: str
    key: str = ""
    conversation: str = ""  # by name: a separate session
    session: str = ""  # an id, or `latest`; without both: the latest, or else a new one
    deliver_at: str = ""
    expires_at: str = ""
    reply_to: str = ""
    attachments: list[Upload] = []
    # Requests for the run. Omitted fields are as the agent has them.
    model: str = ""
    provider: str = ""
    lane: LaneKind | None = None
    workspace: str = ""
    extra_system_prompt: str = ""
    when_busy: Annotated[
        WhenBusy | None,
        msgspec.Meta(description="where a run is active: steer it, or wait for its end; left out, as the queue has it"),
    ] = None
    webhook: Annotated[
        Webhook | None, msgspec.Meta(description="an address outside that is told what came of it, and headers for it")
    ] = None


class Sent(msgspec.Struct):
    envelope: str
    session: str | None
    cursor: int
    duplicate: bool
    outcome: Outcome | None
    because: str


class ById(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10
    before: str = ""  # the last id of the previous page


class AttachmentShown(msgspec.Struct, rename="kebab"):
    name: str
    hash: str
    media_type: str
    size_bytes: int


class DeliveryShown(msgspec.Struct, rename="kebab"):
    """One delivery attempt and the platform's response."""

    attempt: int
    state: DeliveryState
    receipt: str | None
    error_kind: str | None
    error: str | None


class EnvelopeShown(msgspec.Struct, rename="kebab"):
    """One envelope. Fields that do not apply are omitted."""

    id: str
    short: str
    sender: str = msgspec.field(name="from")
    recipient: str = msgspec.field(name="to")
    kind: Kind
    status: Status
    accepted_at: str
    text: str
    reply_to: str | msgspec.UnsetType = msgspec.UNSET
    deliver_at: str | msgspec.UnsetType = msgspec.UNSET
    attachments: list[AttachmentShown] | msgspec.UnsetType = msgspec.UNSET
    # If the envelope is done:
    outcome: Outcome | msgspec.UnsetType = msgspec.UNSET
    because: str | msgspec.UnsetType = msgspec.UNSET
    answer: str | msgspec.UnsetType | None = msgspec.UNSET
    retry: str | msgspec.UnsetType = msgspec.UNSET  # the newest retry of this envelope
    when_busy: WhenBusy | msgspec.UnsetType = msgspec.UNSET
    # Only for a single envelope, or for the queue of a session:
    position: int | msgspec.UnsetType = msgspec.UNSET
    deliveries: list[DeliveryShown] | msgspec.UnsetType = msgspec.UNSET


class ThreadShown(msgspec.Struct, rename="kebab"):
    envelopes: list[EnvelopeShown]
    left_out: int
    total: int
    purged: bool


class DeadLetters(msgspec.Struct):
    letters: list[EnvelopeShown]


class EnvelopeCancelled(msgspec.Struct):
    envelope: str
    outcome: Outcome


async def send(desk: Desk, caller: Principal, asked: Send) -> Sent:
    """Accept an envelope. The response is sent after it is stored on disk."""
    now = desk.clock.now()
    reply_to = (
        await desk.store.read(partial(envelopes.resolve, text=asked.reply_to, seen_by=caller))
        if asked.reply_to
        else None
    )
    id_ = EnvelopeId(desk.ids.new())
    recipient, origin = await _conversation(desk, caller, asked, reply_to)
    draft = Draft(
        id=id_,
        sender=caller.address,
        recipient=recipient,
        text=asked.text,
        source=str(caller.address),
        key=asked.key or id_,
        origin=origin,
        attachments=_keep(desk, caller, asked.attachments),
        context=_context(desk, caller, asked),
        reply_to=reply_to,
        trust=caller.trust,
        deliver_at=parse_when(asked.deliver_at, now=now, zone=desk.zone) if asked.deliver_at else None,
        expires_at=parse_when(asked.expires_at, now=now, zone=desk.zone) if asked.expires_at else None,
    )
    if asked.webhook is not None:
        draft = await _with_webhook(desk, caller, draft, asked.webhook)
    if caller.descent is not None and recipient.kind is AddressKind.AGENT:
        lineage = await desk.store.read(partial(_lineage, caller=caller, descent=caller.descent, to=recipient))
        context = msgspec.structs.replace(draft.context, lineage=lineage)
        draft = msgspec.structs.replace(draft, context=context)
    receipt = await desk.post.post(draft)
    return Sent(
        envelope=receipt.envelope,
        session=receipt.session,
        cursor=receipt.news_seq,
        duplicate=receipt.duplicate,
        outcome=receipt.outcome,
        because=receipt.because,
    )


def _lineage(conn: sa.Connection, *, caller: Principal, descent: Lineage, to: Address) -> Lineage:
    """Return the lineage of an envelope that a run sends to another agent, as for a delegation.

    The work stays attributed to its first sender. A background job belongs to the sending agent itself.
    """
    asker, target = agents.find(conn, caller.address.name), agents.find(conn, to.name)
    if asker is None or target is None:
        return descent
    if descent.depth >= asker.delegation.depth_max:
        key = f"agents.{asker.name}.delegation.depth_max"
        raise NotAllowed(
            f"{asker.name} cannot send this to {target.name}",
            because=f"this work was handed on {descent.depth} times already, and `{key}` is its limit",
            try_this=f"ask the owner to change `{key}`, or do it yourself",
            code="delegation.refused",
        )
    return descends(descent, asker, target, DelegationKind.MESSAGE)


async def _with_webhook(desk: Desk, caller: Principal, draft: Draft, webhook: Webhook) -> Draft:
    """Store the webhook before its envelope. If the envelope is not accepted, the webhook is never called."""
    if caller.address.kind is not AddressKind.PERSON or not (caller.sees_all or _is_member(caller)):
        raise NotAllowed(
            "you may not have anyone told elsewhere",
            because="members of the house may, about what they write themselves",
            try_this="leave out `webhook`",
            code="webhook.not-allowed",
        )
    if draft.recipient.kind is not AddressKind.AGENT:
        raise Invalid(
            f"nothing comes of a letter to {draft.recipient}",
            because="only agents answer",
            try_this="leave out `webhook`",
            code="webhook.invalid",
        )
    check_webhook(desk.keeper().current.settings.external, webhook)
    keep = partial(webhooks.add, letter=draft.id, webhook=webhook, at_ms=to_ms(desk.clock.now()))
    await desk.store.write(keep, point="webhook")
    return msgspec.structs.replace(draft, context=msgspec.structs.replace(draft.context, webhook=True))


def _context(desk: Desk, caller: Principal, asked: Send) -> Context:
    request = RunRequest(
        model=asked.model or None,
        provider=asked.provider or None,
        lane=asked.lane,
        workspace=asked.workspace or None,
        extra_system_prompt=asked.extra_system_prompt,
    )
    if request == NO_REQUEST:
        return Context(when_busy=asked.when_busy) if asked.when_busy is not None else NO_CONTEXT
    plain = msgspec.structs.replace(request, lane=None, workspace=None, extra_system_prompt="") == request
    entitled = caller.sees_all or (plain and caller.trust is Trust.PERSON and _is_member(caller))
    if not entitled:
        raise NotAllowed(
            "you may not say how this run is to be made",
            because="the owner may; members choose a model; others are answered as the agent would have it",
            try_this="leave out what your envelope asks of the run",
            code="run.request-not-allowed",
        )
    if request.provider and not request.model:
        raise Invalid(
            "this names a provider and no model",
            because="a provider sells several",
            try_this="name the model too",
            code="run.request-invalid",
        )
    if request.workspace and not PurePosixPath(request.workspace).is_absolute():
        raise Invalid(
            "this workspace is no absolute path",
            because="a run has no folder from which a relative one could begin",
            try_this="for example: /home/maria/garden",
            code="run.request-invalid",
        )
    if len(request.extra_system_prompt) > EXTRA_PROMPT_LENGTH_MAX:
        raise TooLarge(
            "this extra system prompt is too long",
            because=f"it may have {EXTRA_PROMPT_LENGTH_MAX:,} characters",
            try_this="put what belongs to the agent into its instructions",
            code="run.request-too-large",
        )
    if request.reference and desk.catalog is not None:
        desk.catalog().choose(request.reference)  # raises if it does not exist or is not allowed
    return Context(request=request, when_busy=asked.when_busy)


def _is_member(caller: Principal) -> bool:
    return caller.address.kind is AddressKind.PERSON and caller.level is not PermissionLevel.RESTRICTED


async def _conversation(
    desk: Desk, caller: Principal, asked: Send, reply_to: EnvelopeId | None
) -> tuple[Address, Origin]:
    """Return recipient and origin: of the given session, of the named conversation, or of the caller's latest session.

    The latest session is given by its origin, so the usual lookup finds it, or creates a new one if it is
    gone by then.
    """
    to = address.parse(asked.to) if asked.to else address.agent(await desk.store.read(desk.default_agent))
    name = asked.conversation.casefold()[:CONVERSATION_LENGTH_MAX]
    own = Origin(OriginKind.TERMINAL, f"{caller.address}/{name}" if name else str(caller.address))
    wanted = to.rest or asked.session
    if (name and asked.session) or (to.rest and asked.session not in ("", to.rest)):
        raise Invalid(
            "this names two sessions at once",
            because="a session, a conversation and a recipient with a session each name one",
            try_this="give one of them",
            code="session.named-twice",
        )
    if to.kind is not AddressKind.AGENT or (name and not wanted):
        return to, own
    if wanted not in ("", LATEST):
        session = await desk.store.read(partial(_named, text=wanted, to=to, caller=caller, reply_to=reply_to))
        return address.agent(to.name, session), own
    latest = await desk.store.read(partial(sessions.latest, agent=to.name, whose=caller))
    if latest is None and wanted == LATEST:
        raise NotFound(
            f"you have no session with {to.name}",
            because="none has begun, or the last one was deleted",
            try_this="leave `session` out, and one begins",
            code="session.none-yet",
        )
    return to, latest or own


def _named(conn: sa.Connection, *, text: str, to: Address, caller: Principal, reply_to: EnvelopeId | None) -> SessionId:
    """Return the session of this id, if the caller may see it or replies to an envelope from it."""
    replied = envelopes.get(conn, reply_to) if reply_to else None
    if replied is not None and replied.sender.kind is AddressKind.AGENT and replied.sender.rest:
        there = replied.sender
        if there.name.casefold() == to.name.casefold() and there.rest.startswith(prefix(text)):
            return SessionId(there.rest)
    session = sessions.resolve(conn, text, seen_by=caller)
    if session.agent.casefold() != to.name.casefold():
        raise Invalid(
            f"session {short(session.id)} is not one of {to.name}'s",
            because=f"it is one of {session.agent}'s",
            try_this=f"write to agent:{session.agent}, or to another session",
            code="session.of-another-agent",
        )
    return session.id


def _keep(desk: Desk, caller: Principal, uploads: list[Upload]) -> tuple[Attachment, ...]:
    """Store the attachments. Files are on disk before the commit that refers to them."""
    if len(uploads) > ATTACHMENTS_MAX:
        raise TooLarge(
            f"this envelope has {len(uploads)} attachments",
            because=f"it may carry {ATTACHMENTS_MAX}",
            try_this="send several envelopes",
            code="attachments.too-many",
        )
    return tuple(_kept(desk, caller, upload) for upload in uploads)


def _kept(desk: Desk, caller: Principal, upload: Upload) -> Attachment:
    if not upload.hash:
        return desk.files.keep([upload.data], name=upload.name, media_type=upload.media_type)
    if upload.data:
        raise Invalid(
            f"the attachment '{safe_name(upload.name)}' is given twice",
            because="it has its bytes and the hash of a file that was sent ahead",
            try_this="give one of them",
            code="attachment.given-twice",
        )
    ahead = desk.uploads.name(str(caller.address), upload.hash)
    return replace(ahead, name=safe_name(upload.name), media_type=safe_media_type(upload.media_type))


async def show_envelope(desk: Desk, caller: Principal, asked: ById) -> EnvelopeShown:
    def body(conn: sa.Connection) -> EnvelopeShown:
        id_ = envelopes.resolve(conn, asked.id, seen_by=caller)
        envelope = envelopes.get(conn, id_)
        assert envelope is not None  # resolved in the same snapshot
        form = envelope_form(desk, envelope, envelopes.settled(conn, id_))
        position = _position(conn, envelope, to_ms(desk.clock.now()))
        if position is not None:
            form.position = position
        if attempts := deliveries.of(conn, id_):
            form.deliveries = [_delivery_form(attempt) for attempt in attempts]
        return form

    return await desk.store.scan(body)


def _delivery_form(attempt: Attempt) -> DeliveryShown:
    return DeliveryShown(
        attempt=attempt.attempt,
        state=attempt.state,
        receipt=attempt.receipt,
        error_kind=attempt.error_kind,
        error=attempt.error,
    )


def _position(conn: sa.Connection, envelope: Envelope, now_ms: int) -> int | None:
    """Return the position among the envelopes due for the session's next run, or None. 1 is next."""
    if envelope.session is None or envelope.status is not Status.PENDING:
        return None
    waiting = [each.id for each in envelopes.due(conn, envelope.session, now_ms, limit=WAITING_LOOKED_AT_MAX)]
    return waiting.index(envelope.id) + 1 if envelope.id in waiting else None


def envelope_form(desk: Desk, envelope: Envelope, settled: Settled | None = None) -> EnvelopeShown:
    form = EnvelopeShown(
        id=envelope.id,
        short=short(envelope.id),
        sender=str(envelope.sender),
        recipient=str(envelope.recipient),
        kind=envelope.kind,
        status=envelope.status,
        accepted_at=show(envelope.accepted_at, desk.zone),
        text=envelope.text,
    )
    if envelope.reply_to:
        form.reply_to = envelope.reply_to
    if envelope.context.when_busy is not None:
        form.when_busy = envelope.context.when_busy
    if envelope.deliver_at:
        form.deliver_at = show(envelope.deliver_at, desk.zone)
    if envelope.attachments:
        form.attachments = attachments_form(envelope.attachments)
    if settled:
        form.outcome, form.because, form.answer = settled.outcome, settled.because, settled.answer
    return form


def attachments_form(attachments: Iterable[Attachment]) -> list[AttachmentShown]:
    return [
        AttachmentShown(name=a.name, hash=a.hash, media_type=a.media_type, size_bytes=a.size_bytes) for a in attachments
    ]


async def show_thread(desk: Desk, caller: Principal, asked: ById) -> ThreadShown:
    found = await desk.store.scan(partial(thread, id_text=asked.id, seen_by=caller))
    return ThreadShown(
        envelopes=[envelope_form(desk, envelope) for envelope in found.envelopes],
        left_out=found.left_out,
        total=found.total,
        purged=found.purged,
    )


async def list_dead(desk: Desk, caller: Principal, asked: Listing) -> DeadLetters:
    limit = max(1, min(asked.limit, LISTED_MAX))
    letters = await desk.store.scan(partial(dead, limit=limit, before=asked.before or None, seen_by=caller))
    return DeadLetters([_dead_form(desk, letter) for letter in letters])


def _dead_form(desk: Desk, letter: DeadLetter) -> EnvelopeShown:
    form = envelope_form(desk, letter.envelope, letter.settled)
    if letter.retry is not None and letter.retry.id != letter.envelope.id:  # a failed retry is listed too
        form.retry = letter.retry.id
    return form


async def cancel(desk: Desk, caller: Principal, asked: ById) -> EnvelopeCancelled:
    """Cancel a waiting envelope. Its sender and the owner of its session may."""

    def body(conn: sa.Connection) -> tuple[Envelope, tuple[Wake, ...]]:
        page = Page(conn, to_ms(desk.clock.now()))
        id_ = envelopes.resolve(conn, asked.id, seen_by=caller)
        envelope = envelopes.get(conn, id_)
        assert envelope is not None  # resolved in the same commit
        by_sender = (envelope.sender.kind, envelope.sender.name) == (caller.address.kind, caller.address.name)
        session = sessions.get(conn, envelope.session) if envelope.session else None
        if not by_sender and not caller.sees_all:
            check_own(caller, session)
        if envelope.status is not Status.PENDING or envelope.steered_into is not None:
            raise Conflict(
                f"envelope {short(id_)} does not wait any more",
                because=f"it is {envelope.status}" if envelope.steered_into is None else "a run has read it already",
                try_this="stop the session, if its run is to end",
                code="envelope.not-waiting",
            )
        because = f"taken back by {caller.address}"
        wakes: tuple[Wake, ...] = ()
        if by_sender:  # the sender knows and is not notified
            outcomes.settle(page, [id_], Outcome.CANCELLED, because=because)
            page.tell(
                NewsKind.ENVELOPE_SETTLED,
                session=envelope.session,
                envelope=id_,
                outcome=Outcome.CANCELLED.value,
                because=because,
            )
        else:
            text = f"Not read: {because}."
            wakes = settle_and_tell(page, envelope, Outcome.CANCELLED, because=because, text=text, session=session)
        page.close()
        return envelope, wakes

    def told(done: tuple[Envelope, tuple[Wake, ...]] | None) -> None:
        for wake in done[1] if done else ():
            desk.engine.wake(wake)

    envelope, _ = await desk.store.write(body, point="cancel", then=told)
    return EnvelopeCancelled(envelope=envelope.id, outcome=Outcome.CANCELLED)


async def retry_dead(desk: Desk, caller: Principal, asked: ById) -> Sent:
    id_ = await desk.store.read(partial(envelopes.resolve, text=asked.id, seen_by=caller))
    body = partial(retry, id_text=id_, new_id=EnvelopeId(desk.ids.new()), now_ms=to_ms(desk.clock.now()))

    def posted(entered: Entered | None) -> None:
        for wake in entered.wakes if entered else ():
            desk.engine.wake(wake)

    receipt = (await desk.store.write(body, point="retry", then=posted)).receipt
    return Sent(
        envelope=receipt.envelope,
        session=receipt.session,
        cursor=receipt.news_seq,
        duplicate=False,
        outcome=receipt.outcome,
        because=receipt.because,
    )


OPERATIONS = (
    Operation(
        name="envelope.send",
        summary="Send an envelope.",
        parameters=Send,
        handler=send,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=Sent,
    ),
    Operation(
        name="envelope.show",
        summary="Show one envelope.",
        parameters=ById,
        handler=show_envelope,
        permission=PermissionLevel.RESTRICTED,
        result=EnvelopeShown,
    ),
    Operation(
        name="envelope.thread",
        summary="Show what an envelope replies to.",
        parameters=ById,
        handler=show_thread,
        permission=PermissionLevel.RESTRICTED,
        result=ThreadShown,
    ),
    Operation(
        name="envelope.dead",
        summary="List dead letters.",
        parameters=Listing,
        handler=list_dead,
        permission=PermissionLevel.RESTRICTED,
        result=DeadLetters,
    ),
    Operation(
        name="envelope.cancel",
        summary="Take back an envelope that still waits.",
        parameters=ById,
        handler=cancel,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=EnvelopeCancelled,
    ),
    Operation(
        name="envelope.retry",
        summary="Send a dead letter once more.",
        parameters=ById,
        handler=retry_dead,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=Sent,
    ),
)
