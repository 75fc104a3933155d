"""Accepts envelopes: checks them, finds their session or recipient, and stores them.

Every envelope takes this path: messages from people, agents and schedules, and the server's own
answers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import Agent
from retinue.domain.attachment import Attachment, safe_file_name
from retinue.domain.delegation import Delegation, DelegationState
from retinue.domain.envelope import (
    ATTACHMENTS_MAX,
    ENVELOPE_TEXT_BYTES_MAX,
    IDEMPOTENCY_KEY_LENGTH_MAX,
    NO_CONTEXT,
    Envelope,
    EnvelopeDraft,
    EnvelopeKind,
    Outcome,
    Receipt,
)
from retinue.domain.errors import RetinueError, StoreError
from retinue.domain.event import EventKind
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derive_id, short_id
from retinue.domain.ports import Clock
from retinue.domain.session import (
    SNIPPET_LENGTH_MAX,
    LaneKind,
    Origin,
    Overflow,
    Session,
    SessionActivity,
    lane_kind_of,
)
from retinue.domain.shared_errors import (
    AgentNotFound,
    KeyInvalid,
    KeyReused,
    PersonNotFound,
    SessionNotFound,
    TextUnstorable,
    TimeRangeInvalid,
    TooManyAttachments,
)
from retinue.domain.slash_command import COMMAND_TRUSTS, ParsedCommands, parse_number, unescape_slash
from retinue.domain.slash_command import parse_commands as read_command
from retinue.domain.storable_text import is_storable
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust, least_trust
from retinue.domain.ui_context import context_line, text_without_context
from retinue.intake import background_jobs
from retinue.intake.delegation_end import end_delegation, is_reported, is_silent
from retinue.intake.errors import (
    AttachmentInvalid,
    EnvelopeExpired,
    EnvelopeTextTooLarge,
    RecipientCannotReceive,
    SourceInvalid,
)
from retinue.intake.routing import get_default_origin
from retinue.intake.subagent_results import format_result
from retinue.store.agents import agents, file_trust
from retinue.store.core.connection import PERMANENT_ERROR_CODES, Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes, inbox, outcomes, webhooks
from retinue.store.maintenance import purge
from retinue.store.people import people
from retinue.store.runs import delegations, runs
from retinue.store.sessions import sessions
from retinue.text.quantity import format_quantity

log = logging.getLogger(__name__)

LEFT_OUT_CHARS_MAX = 160
COMPLETION_CONNECTOR = "completion"  # the internal connector that notifies webhooks when an envelope is done
LABEL_BYTES_MAX = 1024  # for a source or an origin's key: a PostgreSQL index entry has at most 2,704 bytes
DELIVERED_BATCH_MAX = 100
DELEGATION_KINDS = frozenset({EnvelopeKind.DELEGATION, EnvelopeKind.JOB})

_HASH = re.compile(r"[0-9a-f]{64}")
# purposes of notices about the end of an envelope
_FINAL_PURPOSES = frozenset({"overflow", *(outcome.value for outcome in Outcome)})


class LaneWake(Struct, frozen=True):
    """A signal to the lane of a session that it may have an envelope to process."""

    session: SessionId
    agent: str
    lane: LaneKind
    starts_run: bool = True  # false for a silent envelope: the lane only records it


class ChannelWake(Struct, frozen=True):
    """A signal to the outbox that an envelope must be delivered to this channel."""

    channel: str


class TimerWake(Struct, frozen=True):
    """A signal to the timer that an envelope may be due before the timer's next alarm."""

    at_ms: int = 0  # 0: unknown


Wake = LaneWake | ChannelWake | TimerWake


class SlotReservation(Protocol):
    """A slot (the right to execute one run) that is reserved for an envelope while it is being accepted.

    If the lane of its session is idle, the commit that stores the envelope also starts its run.
    """

    run_id: RunId

    def start_run(self, tx: Transaction, session: Session, agent: Agent, envelope: Envelope) -> object:
        """Start the run in the transaction that stores the envelope. The result is passed to `after_commit`."""
        ...

    def after_commit(self, started_run: object | None) -> None:
        """Execute the run that was started, or release the slot. Called on the event loop after the commit."""
        ...

    def recheck(self) -> None:
        """Check the store for a started run. Called if it is unknown whether the commit succeeded."""
        ...


def no_reservation(_agent: str, _lane: LaneKind) -> SlotReservation | None:
    """Reserve no slot. For callers whose runs always start in a separate commit."""
    return None


class AcceptResult(Struct, frozen=True):
    """The result of accepting one envelope."""

    receipt: Receipt
    wakes: tuple[Wake, ...] = ()
    started_run: object | None = None  # the result of `start_run`, if the run started in the same commit


class EnvelopeIntake:
    """Accepts envelopes. Once `accept` returns, the envelope survives a crash."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        wake: Callable[[Wake], None],
        reserve_slot: Callable[[str, LaneKind], SlotReservation | None] = no_reservation,
        command: Callable[[EnvelopeDraft, ParsedCommands], Awaitable[Receipt | EnvelopeDraft]] | None = None,
    ) -> None:
        """`command` executes slash commands. It returns a receipt, or a draft if text for the agent remains."""
        self._store = store
        self._clock = clock
        self._wake = wake
        self._reserve_slot = reserve_slot
        self._command = command

    async def accept(self, draft: EnvelopeDraft) -> Receipt:
        """Check an envelope, execute it if it is a slash command, and otherwise store it."""
        check_draft(draft)
        if self._command is not None and _may_command(draft):
            words = text_without_context(draft.text)
            asked = read_command(words)
            if asked is None and draft.sender.kind is AddressKind.CHANNEL:
                asked = parse_number(words)
            # A command at the beginning of untrusted text is refused. Elsewhere in the text it is
            # plain text.
            if asked is not None and (asked.has_leading_slash or draft.trust in COMMAND_TRUSTS):
                done = await self._command(draft, asked)
                if isinstance(done, Receipt):
                    return done
                draft = done
            elif words.startswith("//"):
                draft = replace(draft, text=context_line(draft.text) + unescape_slash(words))
        reservation = (
            self._reserve_slot(draft.recipient.name, _get_lane_kind(draft, _get_origin(draft)))
            if _may_start_run(draft)
            else None
        )
        if reservation is None:
            return await self._post(draft, None)
        try:
            return await self._post(draft, reservation)
        except Exception as error:
            if isinstance(error, RetinueError) and error.code not in PERMANENT_ERROR_CODES:
                if isinstance(error, StoreError):
                    reservation.recheck()
                raise
            # Accept the envelope even if its run could not start. The lane tries again and reports
            # the failure.
            log.warning("envelope accepted without starting a run", extra={"error": type(error).__name__})
            return await self._post(draft, None)

    async def _post(self, draft: EnvelopeDraft, reservation: SlotReservation | None) -> Receipt:
        """Store an envelope in one commit. If a slot is reserved, the commit can also start its run."""

        def accepted(entered: AcceptResult | None) -> None:
            if reservation is not None:
                reservation.after_commit(entered.started_run if entered else None)
            if entered is not None:
                for wake in entered.wakes:
                    self._wake(wake)

        body = partial(accept, draft=draft, now_ms=to_ms(self._clock.now()), reservation=reservation)
        # `then` is called even if the caller was cancelled, so that an accepted envelope is processed.
        return (await self._store.write(body, point="accept", then=accepted)).receipt


def _get_origin(draft: EnvelopeDraft) -> Origin:
    return draft.origin or get_default_origin(draft.sender)


def _get_lane_kind(draft: EnvelopeDraft, origin: Origin) -> LaneKind:
    asked = draft.context.request.lane if draft.context.request else None
    return asked or lane_kind_of(origin.kind)


def _may_command(draft: EnvelopeDraft) -> bool:
    """Whether a draft can be a command: an undelayed message from a person or channel to an agent."""
    return (
        draft.sender.kind in (AddressKind.PERSON, AddressKind.CHANNEL)
        and draft.recipient.kind is AddressKind.AGENT
        and draft.kind is EnvelopeKind.MESSAGE
        and not draft.silent
        and draft.deliver_at is None
        and not background_jobs.is_background(draft.recipient)
    )


def _may_start_run(draft: EnvelopeDraft) -> bool:
    """Whether a draft may start a run at once: an undelayed message to an agent, without a session in the address."""
    recipient = draft.recipient
    return (
        recipient.kind is AddressKind.AGENT
        and not recipient.rest
        and draft.kind is EnvelopeKind.MESSAGE
        and not draft.silent
        and draft.deliver_at is None
    )


def check_draft(draft: EnvelopeDraft) -> None:
    """Raise an error if a draft is too large, or has text, attachments or times that cannot be stored."""
    _check_text(draft.text)
    if not 0 < len(draft.idempotency_key) <= IDEMPOTENCY_KEY_LENGTH_MAX or not is_storable(draft.idempotency_key):
        raise KeyInvalid(chars_max=IDEMPOTENCY_KEY_LENGTH_MAX)
    for label in (draft.source, draft.origin.key if draft.origin else ""):
        if not is_storable(label) or len(label.encode()) > LABEL_BYTES_MAX:
            raise SourceInvalid(bytes_max=LABEL_BYTES_MAX)
    context = draft.context
    if context is not NO_CONTEXT and not all(
        is_storable(words) for words in (context.sender_name, context.username, context.chat_title, context.platform_id)
    ):
        raise TextUnstorable("the context of this envelope")
    if len(draft.attachments) > ATTACHMENTS_MAX:
        raise TooManyAttachments(len(draft.attachments), count_max=ATTACHMENTS_MAX)
    for attachment in draft.attachments:
        _check_attachment(attachment)
    if draft.expires_at and draft.deliver_at and draft.expires_at <= draft.deliver_at:
        raise TimeRangeInvalid("deliver_at", "expires_at")


def _check_text(text: str) -> None:
    # Count characters first: encoding text that is too long anyway would double its memory.
    size = len(text) if len(text) > ENVELOPE_TEXT_BYTES_MAX else len(text.encode(errors="surrogatepass"))
    if size > ENVELOPE_TEXT_BYTES_MAX:
        raise EnvelopeTextTooLarge(size, bytes_max=ENVELOPE_TEXT_BYTES_MAX)
    if not is_storable(text):
        raise TextUnstorable("the text of this envelope")


def _check_attachment(attachment: Attachment) -> None:
    """Raise an error unless the attachment has a safe file name, a well-formed hash and a valid size."""
    safe = safe_file_name(attachment.name)
    if attachment.name != safe or not _HASH.fullmatch(attachment.hash) or attachment.size_bytes < 0:
        raise AttachmentInvalid(safe)


def accept(
    conn: sa.Connection, *, draft: EnvelopeDraft, now_ms: int, reservation: SlotReservation | None = None
) -> AcceptResult:
    """Accept an envelope in one commit, which stores the envelope, its session and its events.

    If a slot is reserved and the lane is idle, the commit also starts the run.
    """
    seen = envelopes.get_by_key(conn, draft.source, draft.idempotency_key)
    if seen is not None:
        return resolve_duplicate(conn, draft, seen)
    tx = Transaction(conn, now_ms)
    # Look again inside the transaction: on PostgreSQL another process may have been faster.
    if (
        conn.dialect.name != "sqlite"
        and (seen := envelopes.get_by_key(conn, draft.source, draft.idempotency_key)) is not None
    ):
        return resolve_duplicate(conn, draft, seen)
    if (gone := purge.get_purged_key(conn, draft.source, draft.idempotency_key)) is not None:
        return resolve_purged_duplicate(draft, gone)
    if draft.expires_at is not None and to_ms(draft.expires_at) <= tx.at_ms:
        raise EnvelopeExpired
    entered = accept_in_transaction(tx, draft, strict=True, reservation=reservation)
    tx.close()
    return replace(entered, receipt=replace(entered.receipt, event_seq=tx.event_seq))


def resolve_duplicate(conn: sa.Connection, draft: EnvelopeDraft, seen: Envelope) -> AcceptResult:
    same = seen.text == draft.text and seen.sender == draft.sender and seen.kind is draft.kind
    if not same or seen.attachments != draft.attachments or not _is_same_recipient(seen.recipient, draft.recipient):
        raise KeyReused(
            draft.idempotency_key, because=f"envelope {short_id(seen.id)} has this key but different content"
        )
    ended = envelopes.get_outcome(conn, seen.id)
    receipt = Receipt(
        envelope=seen.id,
        session=seen.session,
        event_seq=0,
        duplicate=True,
        outcome=ended.outcome if ended else None,
        because=ended.because if ended else "",
    )
    return AcceptResult(receipt)


def resolve_purged_duplicate(draft: EnvelopeDraft, gone: purge.PurgedKey) -> AcceptResult:
    """Do the same as `resolve_duplicate` for a purged envelope, which has only its key and a hash left."""
    if gone.content_hash != purge.content_hash(draft) or not _is_same_recipient(gone.recipient, draft.recipient):
        raise KeyReused(
            draft.idempotency_key,
            because=f"envelope {short_id(gone.envelope)} had this key but different content, and has since been purged",
        )
    receipt = Receipt(
        envelope=gone.envelope,
        session=gone.session,
        event_seq=0,
        duplicate=True,
        outcome=gone.outcome,
        because="the envelope was purged",
    )
    return AcceptResult(receipt)


def _is_same_recipient(kept: Address, asked: Address) -> bool:
    """Whether a requested recipient and a stored recipient are the same.

    The stored name may differ in case, and a stored agent address includes the envelope's session.
    """
    if kept.kind is not asked.kind or kept.name.casefold() != asked.name.casefold():
        return False
    return kept.rest.startswith(asked.rest) if kept.kind is AddressKind.AGENT else kept.rest == asked.rest


def accept_in_transaction(
    tx: Transaction, draft: EnvelopeDraft, *, strict: bool = False, reservation: SlotReservation | None = None
) -> AcceptResult:
    """Accept one envelope within the caller's transaction.

    With `strict`, which the API and connectors use, an unknown recipient raises an error and nothing
    is stored. Otherwise the envelope is stored with the outcome `refused`, because the caller's
    commit must not fail.
    """
    match draft.recipient.kind:
        case AddressKind.AGENT if background_jobs.is_background(draft.recipient):
            work = background_jobs.open_job(tx, draft)
            return _refuse_unknown(tx, draft, because=work) if isinstance(work, str) else accept_job(tx, draft, work)
        case AddressKind.AGENT:
            return _to_agent(tx, draft, strict=strict, reservation=reservation)
        case AddressKind.PERSON:
            return _to_person(tx, draft, strict=strict)
        case AddressKind.CHANNEL:
            _insert(tx, draft, session=None, recipient=str(draft.recipient))
            return AcceptResult(_build_receipt(tx, draft), _build_wakes(tx, draft, ChannelWake(str(draft.recipient))))
        case AddressKind.SCHEDULE | AddressKind.SERVER:
            raise RecipientCannotReceive(str(draft.recipient))


def _build_receipt(
    tx: Transaction,
    draft: EnvelopeDraft,
    *,
    session: SessionId | None = None,
    outcome: Outcome | None = None,
    because: str = "",
) -> Receipt:
    return Receipt(envelope=draft.id, session=session, event_seq=tx.event_seq, outcome=outcome, because=because)


def _insert(
    tx: Transaction,
    draft: EnvelopeDraft,
    *,
    session: str | None,
    recipient: str,
    outcome: Outcome | None = None,
    because: str = "",
    run: RunId | None = None,
) -> int:
    seq = tx.next_envelope_seq()
    envelopes.add(
        tx.conn,
        draft,
        seq=seq,
        at_ms=tx.at_ms,
        session=session,
        recipient=recipient,
        outcome=outcome,
        because=because,
        run=run,
    )
    if draft.attachments and _is_from_outside(draft):
        # Copies of these bytes are no more trusted than the original. Empty files are not marked.
        hashes = [attachment.hash for attachment in draft.attachments if attachment.size_bytes]
        file_trust.mark_content(tx.conn, hashes, at_ms=tx.at_ms)
    tx.emit(EventKind.ENVELOPE_ACCEPTED, session=session or draft.sender.session, envelope=draft.id)
    return seq


def _is_from_outside(draft: EnvelopeDraft) -> bool:
    """Whether the attachments come from a person or channel, but not from the owner."""
    return draft.sender.kind in (AddressKind.PERSON, AddressKind.CHANNEL) and draft.trust is not Trust.OWNER


def _to_person(tx: Transaction, draft: EnvelopeDraft, *, strict: bool) -> AcceptResult:
    found = people.find(tx.conn, draft.recipient.name)
    if found is None:
        if strict:
            raise PersonNotFound(draft.recipient.name)
        return _refuse_unknown(tx, draft, because="person-not-found")
    recipient = str(address.person_address(found.name))
    if _is_future(tx, draft):
        _insert(tx, draft, session=None, recipient=recipient)
        return AcceptResult(_build_receipt(tx, draft), (TimerWake(),))
    # Stored in the sender's session, so that clients watching this session see the answer arrive.
    because = _make_delivered_reason(found.name)
    seq = _insert(
        tx,
        draft,
        session=draft.sender.session,
        recipient=recipient,
        outcome=Outcome.DELIVERED,
        because=because,
    )
    inbox.add(tx.conn, draft.id, person=found.name, seq=seq)
    return AcceptResult(_build_receipt(tx, draft, outcome=Outcome.DELIVERED, because=because))


def _make_delivered_reason(person: str) -> str:
    return f"in the inbox of {person}"


def deliver_due(tx: Transaction) -> None:
    """Put due envelopes for people into their inboxes, at most `DELIVERED_BATCH_MAX` per commit."""
    for envelope in envelopes.list_due_for_people(tx.conn, tx.at_ms, limit=DELIVERED_BATCH_MAX):
        session = envelope.sender.session
        envelopes.set_session(tx.conn, envelope.id, session)
        because = _make_delivered_reason(envelope.recipient.name)
        inbox.add(tx.conn, envelope.id, person=envelope.recipient.name, seq=envelope.seq)
        outcomes.settle(tx, [envelope.id], Outcome.DELIVERED, because=because)
        _emit_settled(tx, envelope.id, session, Outcome.DELIVERED, because)


def _refuse_unknown(tx: Transaction, draft: EnvelopeDraft, *, because: str) -> AcceptResult:
    _insert(tx, draft, session=None, recipient=str(draft.recipient), outcome=Outcome.REFUSED, because=because)
    _emit_settled(tx, draft.id, draft.sender.session, Outcome.REFUSED, because)
    return AcceptResult(_build_receipt(tx, draft, outcome=Outcome.REFUSED, because=because))


def accept_job(tx: Transaction, request: EnvelopeDraft, delegation: Delegation) -> AcceptResult:
    """Accept a request for a background job, and post the job. The request gets its outcome at once.

    The result of the job is sent later, as a reply to the request.
    """
    _insert(
        tx,
        request,
        session=delegation.session,
        recipient=str(background_jobs.BACKGROUND_ADDRESS),
        outcome=Outcome.NOTED,
        because=background_jobs.ACCEPTED_REASON,
    )
    _emit_settled(tx, request.id, delegation.session, Outcome.NOTED, background_jobs.ACCEPTED_REASON)
    wakes = accept_in_transaction(tx, background_jobs.build_job(request, delegation)).wakes
    receipt = _build_receipt(
        tx, request, session=delegation.session, outcome=Outcome.NOTED, because=background_jobs.ACCEPTED_REASON
    )
    return AcceptResult(receipt, wakes)


def store_command(tx: Transaction, draft: EnvelopeDraft) -> tuple[Session, Agent]:
    """Store a slash command as an envelope of its session. The caller sets its outcome in the same commit."""
    agent = agents.find(tx.conn, draft.recipient.name)
    if agent is None:
        raise AgentNotFound(draft.recipient.name)
    session = _find_or_start_session(tx, draft, agent)
    if session is None:
        raise _build_session_not_found(draft, agent)
    _insert(tx, draft, session=session.id, recipient=str(address.agent_address(agent.name, session.id)))
    return session, agent


def _build_session_not_found(draft: EnvelopeDraft, agent: Agent) -> SessionNotFound:
    return SessionNotFound(
        draft.recipient.rest,
        agent=agent.name,
        because="no session of this agent has an id that starts with these digits",
        try_this=f"send it to agent:{agent.name}",
    )


def _to_agent(
    tx: Transaction, draft: EnvelopeDraft, *, strict: bool, reservation: SlotReservation | None
) -> AcceptResult:
    agent = agents.find(tx.conn, draft.recipient.name)
    if agent is None:
        if strict:
            raise AgentNotFound(draft.recipient.name)
        return _refuse_unknown(tx, draft, because="agent-not-found")
    session = _find_or_start_session(tx, draft, agent)
    if session is None:
        if strict:
            raise _build_session_not_found(draft, agent)
        return _refuse_unknown(tx, draft, because="session-not-found")
    recipient = address.agent_address(agent.name, session.id)
    if session.archived_at is not None:
        sessions.set_archived(tx.conn, session.id, at_ms=None)
    if reservation is not None and _is_idle(tx, session, agent):
        seq = _insert(tx, draft, session=session.id, recipient=str(recipient), run=reservation.run_id)
        envelope = envelopes.build_accepted_envelope(
            draft, seq=seq, at_ms=tx.at_ms, session=session.id, recipient=recipient
        )
        begun = reservation.start_run(tx, session, agent, envelope)
        return AcceptResult(_build_receipt(tx, draft, session=session.id), started_run=begun)
    _insert(tx, draft, session=session.id, recipient=str(recipient))
    sessions.touch(
        tx.conn,
        session.id,
        wakefulness=session.activity if _is_future(tx, draft) else SessionActivity.ACTIVE,
        snippet=text_without_context(draft.text)[:SNIPPET_LENGTH_MAX] if not draft.silent else session.snippet,
        at_ms=tx.at_ms,
    )
    lane = _get_lane_kind(draft, session.origin)
    wake = _build_wakes(tx, draft, LaneWake(session.id, agent.name, lane, starts_run=not draft.silent))
    refused, wakes = _apply_queue_cap(tx, draft, agent, session)
    if refused:
        return AcceptResult(
            _build_receipt(tx, draft, session=session.id, outcome=Outcome.REFUSED, because=refused), (*wake, *wakes)
        )
    return AcceptResult(_build_receipt(tx, draft, session=session.id), (*wake, *wakes))


def _is_idle(tx: Transaction, session: Session, agent: Agent) -> bool:
    """Whether an envelope can start a run at once: its session has no open or suspended run and no due envelope."""
    return (
        session.activity is SessionActivity.SLEEPING
        and session.queue.apply_to(agent.queue).cap > 0
        and runs.get_open(tx.conn, session.id) is None
        and not envelopes.has_due(tx.conn, session.id, tx.at_ms)
    )


def _build_wakes(tx: Transaction, draft: EnvelopeDraft, due_now: Wake) -> tuple[Wake, ...]:
    if _is_future(tx, draft):
        return (TimerWake(),)
    return (due_now,) if draft.expires_at is None else (due_now, TimerWake())


def _is_future(tx: Transaction, draft: EnvelopeDraft) -> bool:
    return draft.deliver_at is not None and to_ms(draft.deliver_at) > tx.at_ms


def _find_or_start_session(tx: Transaction, draft: EnvelopeDraft, agent: Agent) -> Session | None:
    """Return the session of an envelope, and start one if there is none.

    Returns None if the recipient's address has a session id that does not exist.
    """
    session = find_session(tx.conn, draft, agent)
    if session is not None or draft.recipient.rest:
        return session
    id_ = SessionId(derive_id(draft.id, "session"))
    sessions.start(tx, id_, agent=agent.name, origin=_get_origin(draft), chat_type=draft.context.chat_type)
    return sessions.get(tx.conn, id_)


def find_session(conn: sa.Connection, draft: EnvelopeDraft, agent: Agent) -> Session | None:
    """Return the session of an envelope, or None if the session does not exist."""
    if draft.recipient.rest:
        found = sessions.find_id_by_prefix(conn, agent.name, draft.recipient.rest)
        return sessions.get(conn, found) if found else None
    return sessions.get_by_origin(conn, agent.name, _get_origin(draft))


def _apply_queue_cap(
    tx: Transaction, draft: EnvelopeDraft, agent: Agent, session: Session
) -> tuple[str, tuple[Wake, ...]]:
    """Apply the overflow rule of a session if its queue is too long after an envelope was added.

    The new or the oldest envelope gets the outcome `refused`, and its sender is notified. Answers and
    notices do not count: if an answer were refused, the agent that asked for it would keep waiting.
    Returns the reason if the new envelope was refused, and the signals to send after the commit.
    """
    queue = session.queue.apply_to(agent.queue)
    counted = draft.kind in (EnvelopeKind.MESSAGE, EnvelopeKind.DELEGATION, EnvelopeKind.SYSTEM) and not draft.silent
    if not counted or _is_future(tx, draft):
        return "", ()
    # Nothing else is waiting in a sleeping session, so this is the only envelope.
    asleep = session.activity is SessionActivity.SLEEPING
    waiting = 1 if asleep and queue.cap else envelopes.count_droppable(tx.conn, session.id, tx.at_ms)
    if waiting <= queue.cap:
        return "", ()
    because = f"queue full: {format_quantity(waiting - 1, 'envelope')} waiting in this session; its cap is {queue.cap}"
    if queue.overflow is Overflow.REFUSE:
        outcomes.settle(tx, [draft.id], Outcome.REFUSED, because=because)
        _emit_settled(tx, draft.id, session.id, Outcome.REFUSED, because)
        notified = notify_sender(
            tx, draft.sender, draft.id, draft.kind, "overflow", f"Not accepted: {because}.", session=session
        )
        return because, notified
    wakes: list[Wake] = []
    refused = ""
    for old in envelopes.list_oldest_droppable(tx.conn, session.id, tx.at_ms, limit=waiting - queue.cap):
        why = "queue full: dropped in favor of a newer message" if old.id != draft.id else because
        refused = because if old.id == draft.id else refused
        outcomes.settle(tx, [old.id], Outcome.REFUSED, because=why)
        _emit_settled(tx, old.id, session.id, Outcome.REFUSED, why)
        wakes += notify_sender(tx, old.sender, old.id, old.kind, "overflow", f"Not processed: {why}.", session=session)
        if queue.overflow is Overflow.SUMMARIZE:
            wakes += _add_left_out_note(tx, old, session)
    return refused, tuple(wakes)


def _add_left_out_note(tx: Transaction, left_out: Envelope, session: Session) -> tuple[Wake, ...]:
    """Add a line to the agent's context which says that an envelope was dropped, with the beginning of its text."""
    words = " ".join(text_without_context(left_out.text).split())
    line = words if len(words) <= LEFT_OUT_CHARS_MAX else words[: LEFT_OUT_CHARS_MAX - 1] + "…"
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(left_out.id, "left-out")),
        sender=address.SERVER_ADDRESS,
        recipient=address.agent_address(session.agent, session.id),
        text=f"Dropped while you were busy, from {left_out.sender}: {line}",
        source="server",
        idempotency_key=f"{left_out.id}/left-out",
        kind=EnvelopeKind.SYSTEM,
        silent=True,
        trust=left_out.trust,
    )
    return accept_in_transaction(tx, draft).wakes


def _emit_settled(tx: Transaction, envelope: str, session: str | None, outcome: Outcome, because: str) -> None:
    tx.emit(EventKind.ENVELOPE_SETTLED, session=session, envelope=envelope, outcome=outcome.value, because=because)


def notify_sender(
    tx: Transaction,
    to: Address,
    about: EnvelopeId,
    kind: EnvelopeKind,
    purpose: str,
    text: str,
    *,
    session: Session | None = None,
    silent: bool = False,
) -> tuple[Wake, ...]:
    """Post a notice to a sender, saying that its envelope is done. No model is called for the notice.

    If the envelope was delegated work, the notice is the result of that work. A notice or an answer
    never causes another notice.
    """
    if kind in (EnvelopeKind.NOTICE, EnvelopeKind.ANSWER) or to.kind in (AddressKind.SERVER, AddressKind.SCHEDULE):
        return ()
    rung = notify_webhook(tx, about) if purpose in _FINAL_PURPOSES else ()
    sender = address.agent_address(session.agent, session.id) if session else address.SERVER_ADDRESS
    if kind is EnvelopeKind.JOB and (job := envelopes.get(tx.conn, about)) is not None and job.reply_to is not None:
        about, sender, text = job.reply_to, background_jobs.BACKGROUND_ADDRESS, f"{background_jobs.FAILED_PREFIX}{text}"
    id_ = EnvelopeId(derive_id(about, purpose))
    # A notice about an agent message does not wake the agent that sent it. Otherwise two agents could
    # keep waking each other forever.
    silent = silent or (kind is EnvelopeKind.SYSTEM and to.kind is AddressKind.AGENT)
    wakes, trust = (), Trust.PRIVATE
    if kind in DELEGATION_KINDS and (delegation := delegations.get(tx.conn, about)) is not None:
        reported = is_reported(delegation)
        state = DelegationState.CANCELLED if purpose == Outcome.CANCELLED.value else DelegationState.FAILED
        archive_ms = end_delegation(tx, delegation, state, because=text, result=id_ if reported else None)
        wakes = (TimerWake(archive_ms),) if archive_ms is not None else ()
        if not reported:
            return (*wakes, *rung)
        silent = silent or is_silent(delegation)
        text = format_result(tx, delegation, state, text, trust=trust)
        subject = envelopes.get(tx.conn, about)
        trust = (
            least_trust((trust, subject.trust)) if subject is not None else trust
        )  # the notice also contains the task
    draft = EnvelopeDraft(
        id=id_,
        sender=sender,
        recipient=to,
        text=text,
        source="server",
        idempotency_key=f"{about}/{purpose}",
        kind=EnvelopeKind.NOTICE,
        reply_to=about,
        silent=silent,
        trust=trust,
    )
    return (*accept_in_transaction(tx, draft).wakes, *wakes, *rung)


def notify_webhook(tx: Transaction, about: EnvelopeId) -> tuple[Wake, ...]:
    """Queue a notification to the webhook of an envelope, if it has one.

    Called in the commit that sets the envelope's outcome.
    """
    if webhooks.get(tx.conn, about) is None:
        return ()
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(about, COMPLETION_CONNECTOR)),
        sender=address.SERVER_ADDRESS,
        recipient=Address(AddressKind.CHANNEL, COMPLETION_CONNECTOR, about),
        text=f"The outcome of envelope {short_id(about)}, for its webhook.",
        source="server",
        idempotency_key=f"{about}/{COMPLETION_CONNECTOR}",
        kind=EnvelopeKind.NOTICE,
        reply_to=about,
        trust=Trust.PRIVATE,
    )
    known = envelopes.get_by_key(tx.conn, draft.source, draft.idempotency_key)
    return accept_in_transaction(tx, draft).wakes if known is None else ()


def is_completion(envelope: Envelope) -> bool:
    """Whether the server created this envelope to notify a webhook."""
    ours = envelope.kind is EnvelopeKind.NOTICE and envelope.sender.kind is AddressKind.SERVER
    return ours and envelope.recipient.name == COMPLETION_CONNECTOR


def settle_and_notify(
    tx: Transaction,
    envelope: Envelope,
    outcome: Outcome,
    *,
    because: str,
    text: str,
    session: Session | None = None,
) -> tuple[Wake, ...]:
    """Set the outcome of an envelope that is not part of a run, and notify its sender."""
    outcomes.settle(tx, [envelope.id], outcome, because=because)
    _emit_settled(tx, envelope.id, envelope.session, outcome, because)
    if envelope.silent:
        return ()
    return notify_sender(tx, envelope.sender, envelope.id, envelope.kind, outcome.value, text, session=session)
