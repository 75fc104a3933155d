"""Accepts envelopes. All take this one path: from people, agents, schedules, and the server's own
answers."""

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
from retinue.domain.attachment import Attachment, safe_name
from retinue.domain.delegation import Delegation, DelegationState
from retinue.domain.envelope import (
    ATTACHMENTS_MAX,
    KEY_LENGTH_MAX,
    NO_CONTEXT,
    TEXT_BYTES_MAX,
    Draft,
    Envelope,
    Kind,
    Outcome,
    Receipt,
)
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, StoreError, TooLarge
from retinue.domain.event import NewsKind
from retinue.domain.ids import EnvelopeId, RunId, SessionId, derived, short
from retinue.domain.ports import Clock
from retinue.domain.session import SNIPPET_LENGTH_MAX, LaneKind, Origin, Overflow, Session, Wakefulness, lane_kind
from retinue.domain.slash_command import ENTITLED, Asked, read_number, unescaped
from retinue.domain.slash_command import read as read_command
from retinue.domain.storable_text import is_storable, unstorable
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust, least
from retinue.domain.ui_context import line_of, words_of
from retinue.intake import background_jobs
from retinue.intake.delegations import end, is_silent, is_told
from retinue.intake.routing import origin_of
from retinue.intake.subagent_results import announced
from retinue.store.agents import agents, file_trust
from retinue.store.core.connection import HOPELESS, Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes, outcomes, webhooks
from retinue.store.maintenance import purge
from retinue.store.people import people
from retinue.store.runs import delegations, runs
from retinue.store.sessions import sessions

log = logging.getLogger(__name__)

LEFT_OUT_CHARS_MAX = 160
COMPLETION = "completion"  # the internal connector that notifies webhooks when an envelope is done
LABEL_BYTES_MAX = 1024  # of a source or an origin's key: a PostgreSQL index entry holds 2,704 bytes in all
DELIVERED_AT_ONCE_MAX = 100
HANDED_ON = frozenset({Kind.DELEGATION, Kind.JOB})

_HASH = re.compile(r"[0-9a-f]{64}")
# purposes of notices about the end of an envelope
_ENDS = frozenset({"overflow", *(outcome.value for outcome in Outcome)})


class LaneWake(Struct, frozen=True):
    """A session has something to do."""

    session: SessionId
    agent: str
    lane: LaneKind
    loud: bool = True  # a silent envelope wakes a lane only to be recorded


class RoomWake(Struct, frozen=True):
    """An envelope waits to be delivered to a channel."""

    channel: str


class ClockWake(Struct, frozen=True):
    """An envelope waits for a time: the timer may have to fire earlier than planned."""

    at_ms: int = 0  # 0: unknown


Wake = LaneWake | RoomWake | ClockWake


class Seat(Protocol):
    """A reserved slot for an envelope on its way in. If its lane is idle, its run starts in the
    accepting commit."""

    run_id: RunId

    def begin(self, page: Page, session: Session, agent: Agent, envelope: Envelope) -> object:
        """Start the run, within the accepting commit. The return value is passed to `after_commit`."""
        ...

    def settle(self, begun: object | None) -> None:
        """On the event loop, after the commit: work on the started run, or release the slot."""
        ...

    def doubt(self) -> None:
        """The result of the commit is unknown: look for a run that may have started."""
        ...


def no_seat(_agent: str, _lane: LaneKind) -> Seat | None:
    """For callers whose runs always start in a separate commit."""
    return None


class Entered(Struct, frozen=True):
    """The result of accepting an envelope."""

    receipt: Receipt
    wakes: tuple[Wake, ...] = ()
    begun: object | None = None  # its run, if it started in the same commit


class Inbox:
    """Accepts envelopes. Once `accept` returns, the envelope survives a crash."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        wake: Callable[[Wake], None],
        seat: Callable[[str, LaneKind], Seat | None] = no_seat,
        command: Callable[[Draft, Asked], Awaitable[Receipt | Draft]] | None = None,
    ) -> None:
        """`command` handles slash commands. It returns a receipt if it carried the command out, or
        a draft that goes on to the agent."""
        self._store = store
        self._clock = clock
        self._wake = wake
        self._seat = seat
        self._command = command

    async def post(self, draft: Draft) -> Receipt:
        check(draft)
        if self._command is not None and _may_command(draft):
            words = words_of(draft.text)
            asked = read_command(words)
            if asked is None and draft.sender.kind is AddressKind.CHANNEL:
                asked = read_number(words)
            # A slash in the middle of an untrusted text is plain text; at the beginning it is
            # refused.
            if asked is not None and (asked.begins or draft.trust in ENTITLED):
                done = await self._command(draft, asked)
                if isinstance(done, Receipt):
                    return done
                draft = done
            elif words.startswith("//"):
                draft = replace(draft, text=line_of(draft.text) + unescaped(words))
        seat = self._seat(draft.recipient.name, _lane(draft, _origin(draft))) if _may_begin(draft) else None
        if seat is None:
            return await self._post(draft, None)
        try:
            return await self._post(draft, seat)
        except Exception as error:
            if isinstance(error, RetinueError) and error.code not in HOPELESS:
                if isinstance(error, StoreError):
                    seat.doubt()
                raise
            # An envelope is not refused because a run could not start: the lane finds that out and
            # reports it.
            log.warning("mail kept without beginning a run", extra={"error": type(error).__name__})
            return await self._post(draft, None)

    async def _post(self, draft: Draft, seat: Seat | None) -> Receipt:
        def accepted(entered: Entered | None) -> None:
            if seat is not None:
                seat.settle(entered.begun if entered else None)
            if entered is not None:
                for wake in entered.wakes:
                    self._wake(wake)

        body = partial(accept, draft=draft, now_ms=to_ms(self._clock.now()), seat=seat)
        # Also if the caller was cancelled: an accepted envelope is processed.
        return (await self._store.write(body, point="accept", then=accepted)).receipt


def _origin(draft: Draft) -> Origin:
    return draft.origin or origin_of(draft.sender)


def _lane(draft: Draft, origin: Origin) -> LaneKind:
    asked = draft.context.request.lane if draft.context.request else None
    return asked or lane_kind(origin.kind)


def _may_command(draft: Draft) -> bool:
    """Whether it was sent by a person or channel to an agent, for now: only then can it be a
    command."""
    return (
        draft.sender.kind in (AddressKind.PERSON, AddressKind.CHANNEL)
        and draft.recipient.kind is AddressKind.AGENT
        and draft.kind is Kind.MESSAGE
        and not draft.silent
        and draft.deliver_at is None
        and not background_jobs.is_for(draft.recipient)
    )


def _may_begin(draft: Draft) -> bool:
    """Whether it is a normal message, for now, to an agent's session of this origin."""
    recipient = draft.recipient
    return (
        recipient.kind is AddressKind.AGENT
        and not recipient.rest
        and draft.kind is Kind.MESSAGE
        and not draft.silent
        and draft.deliver_at is None
    )


def check(draft: Draft) -> None:
    """Refuse what the store cannot or should not keep, before it is called."""
    _check_text(draft.text)
    if not 0 < len(draft.key) <= KEY_LENGTH_MAX or not is_storable(draft.key):
        raise Invalid(
            "this envelope has no usable key",
            because=f"a key has 1 to {KEY_LENGTH_MAX} characters, and no NUL or lone surrogate among them",
            try_this="send a random one, and the same one when you send again",
            code="key.invalid",
        )
    for label in (draft.source, draft.origin.key if draft.origin else ""):
        if not is_storable(label) or len(label.encode()) > LABEL_BYTES_MAX:
            raise Invalid(
                "this envelope does not say in a usable way where it comes from",
                because=f"its source, or its conversation's name, is no text or has over {LABEL_BYTES_MAX} bytes",
                try_this="this is a fault of the door it came through",
                code="source.invalid",
            )
    context = draft.context
    if context is not NO_CONTEXT and not all(
        is_storable(words) for words in (context.sender_name, context.username, context.chat_title, context.platform_id)
    ):
        raise unstorable("what its door says about this envelope")
    if len(draft.attachments) > ATTACHMENTS_MAX:
        raise TooLarge(
            f"this envelope has {len(draft.attachments)} attachments",
            because=f"it may carry {ATTACHMENTS_MAX}",
            try_this="send several envelopes",
            code="attachments.too-many",
        )
    for attachment in draft.attachments:
        _check_attachment(attachment)
    if draft.expires_at and draft.deliver_at and draft.expires_at <= draft.deliver_at:
        raise Invalid(
            "this envelope would expire before it may be delivered",
            because="expires-at is not after deliver-at",
            try_this="choose a later expires-at",
            code="time.inverted",
        )


def _check_text(text: str) -> None:
    # Count characters first: encoding a text that is too long anyway would double its memory.
    size = len(text) if len(text) > TEXT_BYTES_MAX else len(text.encode(errors="surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise TooLarge(
            f"this text has {size:,} bytes or more",
            because=f"an envelope carries at most {TEXT_BYTES_MAX:,}",
            try_this="send it as an attachment",
            code="text.too-large",
        )
    if not is_storable(text):
        raise unstorable("this text")


def _check_attachment(attachment: Attachment) -> None:
    """Allow only attachments as the file store creates them: a safe name, and the hash of stored
    bytes."""
    safe = safe_name(attachment.name)
    if attachment.name != safe or not _HASH.fullmatch(attachment.hash) or attachment.size_bytes < 0:
        raise Invalid(
            f"'{safe}' is no attachment of this house",
            because="its name, its hash or its size is not as the house gives them",
            try_this="hand in the file first, and send what you get for it",
            code="attachment.invalid",
        )


def accept(conn: sa.Connection, *, draft: Draft, now_ms: int, seat: Seat | None = None) -> Entered:
    """The accept commit: the envelope, its count, its session and its events, or nothing at all.

    With a reserved slot and an idle lane it also starts the run.
    """
    seen = envelopes.by_key(conn, draft.source, draft.key)
    if seen is not None:
        return seen_before(conn, draft, seen)
    page = Page(conn, now_ms)
    # Look again inside the transaction: on PostgreSQL another process may have been faster.
    if conn.dialect.name != "sqlite" and (seen := envelopes.by_key(conn, draft.source, draft.key)) is not None:
        return seen_before(conn, draft, seen)
    if (gone := purge.by_key(conn, draft.source, draft.key)) is not None:
        return purged_before(draft, gone)
    if draft.expires_at is not None and to_ms(draft.expires_at) <= page.at_ms:
        raise Invalid(
            "this envelope has already expired",
            because="expires-at lies in the past",
            try_this="leave it out, or choose a later time",
            code="time.past",
        )
    entered = enter(page, draft, strict=True, seat=seat)
    page.close()
    return replace(entered, receipt=replace(entered.receipt, news_seq=page.news_seq))


def seen_before(conn: sa.Connection, draft: Draft, seen: Envelope) -> Entered:
    same = seen.text == draft.text and seen.sender == draft.sender and seen.kind is draft.kind
    if not same or seen.attachments != draft.attachments or not _same_recipient(seen.recipient, draft.recipient):
        raise Conflict(
            f"the key '{draft.key[:64]}' was already used for another envelope",
            because=f"envelope {short(seen.id)} has it, with other content",
            try_this="use a new key for a new envelope",
            code="key.reused",
        )
    ended = envelopes.settled(conn, seen.id)
    receipt = Receipt(
        envelope=seen.id,
        session=seen.session,
        news_seq=0,
        duplicate=True,
        outcome=ended.outcome if ended else None,
        because=ended.because if ended else "",
    )
    return Entered(receipt)


def purged_before(draft: Draft, gone: purge.Key) -> Entered:
    """As `resolve_duplicate`, for an envelope of which only its key is left."""
    if gone.content_hash != purge.content_hash(draft) or not _same_recipient(gone.recipient, draft.recipient):
        raise Conflict(
            f"the key '{draft.key[:64]}' was already used for another envelope",
            because=f"envelope {short(gone.envelope)} had it, with other content; it was purged since",
            try_this="use a new key for a new envelope",
            code="key.reused",
        )
    receipt = Receipt(
        envelope=gone.envelope,
        session=gone.session,
        news_seq=0,
        duplicate=True,
        outcome=gone.outcome,
        because="it was purged since",
    )
    return Entered(receipt)


def _same_recipient(kept: Address, asked: Address) -> bool:
    """Names are stored in their original spelling, and an agent's address with the session of the
    envelope."""
    if kept.kind is not asked.kind or kept.name.casefold() != asked.name.casefold():
        return False
    return kept.rest.startswith(asked.rest) if kept.kind is AddressKind.AGENT else kept.rest == asked.rest


def enter(page: Page, draft: Draft, *, strict: bool = False, seat: Seat | None = None) -> Entered:
    """Accept one envelope within the transaction of the caller.

    `strict` is for the API and connectors: an unknown recipient raises, and nothing is stored.
    Otherwise the envelope is stored and ends `refused`, because the surrounding commit must not
    fail.
    """
    match draft.recipient.kind:
        case AddressKind.AGENT if background_jobs.is_for(draft.recipient):
            work = background_jobs.take_up(page, draft)
            return _refuse_unknown(page, draft, because=work) if isinstance(work, str) else take_job(page, draft, work)
        case AddressKind.AGENT:
            return _to_agent(page, draft, strict=strict, seat=seat)
        case AddressKind.PERSON:
            return _to_person(page, draft, strict=strict)
        case AddressKind.CHANNEL:
            _add(page, draft, session=None, recipient=str(draft.recipient))
            return Entered(_receipt(page, draft), _wakes(page, draft, RoomWake(str(draft.recipient))))
        case AddressKind.SCHEDULE | AddressKind.HOUSE:
            raise Invalid(
                f"nobody reads mail at {draft.recipient}",
                because="only agents, people and channels do",
                try_this="write to agent:NAME or person:NAME",
                code="address.no-reader",
            )


def _receipt(
    page: Page,
    draft: Draft,
    *,
    session: SessionId | None = None,
    outcome: Outcome | None = None,
    because: str = "",
) -> Receipt:
    return Receipt(envelope=draft.id, session=session, news_seq=page.news_seq, outcome=outcome, because=because)


def _add(
    page: Page,
    draft: Draft,
    *,
    session: str | None,
    recipient: str,
    outcome: Outcome | None = None,
    because: str = "",
    run: RunId | None = None,
) -> int:
    seq = page.next_envelope_seq()
    envelopes.add(
        page.conn,
        draft,
        seq=seq,
        at_ms=page.at_ms,
        session=session,
        recipient=recipient,
        outcome=outcome,
        because=because,
        run=run,
    )
    if draft.attachments and _is_from_outside(draft):
        # Copies of these bytes are no more trusted than the original. Empty files carry no content.
        hashes = [attachment.hash for attachment in draft.attachments if attachment.size_bytes]
        file_trust.mark_content(page.conn, hashes, at_ms=page.at_ms)
    page.tell(NewsKind.ENVELOPE_ACCEPTED, session=session or draft.sender.session, envelope=draft.id)
    return seq


def _is_from_outside(draft: Draft) -> bool:
    """Whether its files are not from the owner. Files of agents and of the server are stored
    already, with their trust."""
    return draft.sender.kind in (AddressKind.PERSON, AddressKind.CHANNEL) and draft.trust is not Trust.OWNER


def _to_person(page: Page, draft: Draft, *, strict: bool) -> Entered:
    found = people.find(page.conn, draft.recipient.name)
    if found is None:
        if strict:
            raise NotFound(
                f"there is no person '{draft.recipient.name}' in this house",
                because="nobody of that name was added",
                try_this="look at `retinue status` for who is here",
                code="person.not-found",
            )
        return _refuse_unknown(page, draft, because="person-not-found")
    recipient = str(address.person(found.name))
    if _is_future(page, draft):
        _add(page, draft, session=None, recipient=recipient)
        return Entered(_receipt(page, draft), (ClockWake(),))
    # The session is the sender's, so that its watchers see the answers arrive.
    because = _delivered(found.name)
    seq = _add(
        page,
        draft,
        session=draft.sender.session,
        recipient=recipient,
        outcome=Outcome.DELIVERED,
        because=because,
    )
    envelopes.into_inbox(page.conn, draft.id, person=found.name, seq=seq)
    return Entered(_receipt(page, draft, outcome=Outcome.DELIVERED, because=because))


def _delivered(person: str) -> str:
    return f"in the inbox of {person}"


def hand_over_due(page: Page) -> None:
    """Deliver envelopes for people whose time has come, a limited number at once."""
    for envelope in envelopes.due_for_people(page.conn, page.at_ms, limit=DELIVERED_AT_ONCE_MAX):
        session = envelope.sender.session
        envelopes.set_session(page.conn, envelope.id, session)
        because = _delivered(envelope.recipient.name)
        envelopes.into_inbox(page.conn, envelope.id, person=envelope.recipient.name, seq=envelope.seq)
        outcomes.settle(page, [envelope.id], Outcome.DELIVERED, because=because)
        _tell_settled(page, envelope.id, session, Outcome.DELIVERED, because)


def _refuse_unknown(page: Page, draft: Draft, *, because: str) -> Entered:
    _add(page, draft, session=None, recipient=str(draft.recipient), outcome=Outcome.REFUSED, because=because)
    _tell_settled(page, draft.id, draft.sender.session, Outcome.REFUSED, because)
    return Entered(_receipt(page, draft, outcome=Outcome.REFUSED, because=because))


def take_job(page: Page, request: Draft, work: Delegation) -> Entered:
    """The request is settled when it is accepted. Its result is reported by the job, once."""
    _add(
        page,
        request,
        session=work.session,
        recipient=str(background_jobs.HERE),
        outcome=Outcome.NOTED,
        because=background_jobs.TAKEN,
    )
    _tell_settled(page, request.id, work.session, Outcome.NOTED, background_jobs.TAKEN)
    wakes = enter(page, background_jobs.job_of(request, work)).wakes
    receipt = _receipt(page, request, session=work.session, outcome=Outcome.NOTED, because=background_jobs.TAKEN)
    return Entered(receipt, wakes)


def keep_command(page: Page, draft: Draft) -> tuple[Session, Agent]:
    """Store a command as an envelope of its session. The caller settles it in the same commit."""
    agent = agents.find(page.conn, draft.recipient.name)
    if agent is None:
        raise _no_agent(draft)
    session = _find_session(page, draft, agent)
    if session is None:
        raise _no_session(draft, agent)
    _add(page, draft, session=session.id, recipient=str(address.agent(agent.name, session.id)))
    return session, agent


def _no_agent(draft: Draft) -> NotFound:
    return NotFound(
        f"there is no agent '{draft.recipient.name}' in this house",
        because="no agent of that name is registered",
        try_this="look at `retinue status` for who is here",
        code="agent.not-found",
    )


def _no_session(draft: Draft, agent: Agent) -> NotFound:
    return NotFound(
        f"{agent.name} has no session {draft.recipient.rest}",
        because="none of this agent's sessions has an id that begins so",
        try_this=f"write to agent:{agent.name}",
        code="session.not-found",
    )


def _to_agent(page: Page, draft: Draft, *, strict: bool, seat: Seat | None) -> Entered:
    agent = agents.find(page.conn, draft.recipient.name)
    if agent is None:
        if strict:
            raise _no_agent(draft)
        return _refuse_unknown(page, draft, because="agent-not-found")
    session = _find_session(page, draft, agent)
    if session is None:
        if strict:
            raise _no_session(draft, agent)
        return _refuse_unknown(page, draft, because="session-not-found")
    recipient = address.agent(agent.name, session.id)
    if session.archived_at is not None:
        sessions.archive(page.conn, session.id, at_ms=None)
    if seat is not None and _is_idle(page, session, agent):
        seq = _add(page, draft, session=session.id, recipient=str(recipient), run=seat.run_id)
        envelope = envelopes.as_accepted(draft, seq=seq, at_ms=page.at_ms, session=session.id, recipient=recipient)
        begun = seat.begin(page, session, agent, envelope)
        return Entered(_receipt(page, draft, session=session.id), begun=begun)
    _add(page, draft, session=session.id, recipient=str(recipient))
    sessions.touch(
        page.conn,
        session.id,
        wakefulness=session.wakefulness if _is_future(page, draft) else Wakefulness.ACTIVE,
        snippet=words_of(draft.text)[:SNIPPET_LENGTH_MAX] if not draft.silent else session.snippet,
        at_ms=page.at_ms,
    )
    lane = _lane(draft, session.origin)
    wake = _wakes(page, draft, LaneWake(session.id, agent.name, lane, loud=not draft.silent))
    refused, wakes = _keep_within_cap(page, draft, agent, session)
    if refused:
        return Entered(
            _receipt(page, draft, session=session.id, outcome=Outcome.REFUSED, because=refused), (*wake, *wakes)
        )
    return Entered(_receipt(page, draft, session=session.id), (*wake, *wakes))


def _is_idle(page: Page, session: Session, agent: Agent) -> bool:
    """Whether nothing comes before an envelope that arrives now: no open or suspended run, and
    nothing due."""
    return (
        session.wakefulness is Wakefulness.SLEEPING
        and session.queue.over(agent.queue).cap > 0
        and runs.open_in(page.conn, session.id) is None
        and not envelopes.any_due(page.conn, session.id, page.at_ms)
    )


def _wakes(page: Page, draft: Draft, due_now: Wake) -> tuple[Wake, ...]:
    if _is_future(page, draft):
        return (ClockWake(),)
    return (due_now,) if draft.expires_at is None else (due_now, ClockWake())


def _is_future(page: Page, draft: Draft) -> bool:
    return draft.deliver_at is not None and to_ms(draft.deliver_at) > page.at_ms


def _find_session(page: Page, draft: Draft, agent: Agent) -> Session | None:
    """The session of this envelope. A new one is started, with its start marker, before its first
    envelope is handled."""
    session = known_session(page.conn, draft, agent)
    if session is not None or draft.recipient.rest:
        return session
    id_ = SessionId(derived(draft.id, "session"))
    sessions.start(page, id_, agent=agent.name, origin=_origin(draft), chat_type=draft.context.chat_type)
    return sessions.get(page.conn, id_)


def known_session(conn: sa.Connection, draft: Draft, agent: Agent) -> Session | None:
    """The session of this envelope, if it exists."""
    if draft.recipient.rest:
        found = sessions.by_prefix(conn, agent.name, draft.recipient.rest)
        return sessions.get(conn, found) if found else None
    return sessions.by_origin(conn, agent.name, _origin(draft))


def _keep_within_cap(page: Page, draft: Draft, agent: Agent, session: Session) -> tuple[str, tuple[Wake, ...]]:
    """Apply the overflow rule. Nothing is dropped: an envelope that does not fit ends `refused`,
    and its sender is notified.

    Answers and notices are exempt. Requests limit their number, and refusing one would strand its
    requester.
    """
    queue = session.queue.over(agent.queue)
    counted = draft.kind in (Kind.MESSAGE, Kind.DELEGATION, Kind.SYSTEM) and not draft.silent
    if not counted or _is_future(page, draft):
        return "", ()
    # Nothing waits in a sleeping session, so this is the only envelope.
    asleep = session.wakefulness is Wakefulness.SLEEPING
    waiting = 1 if asleep and queue.cap else envelopes.count_asking(page.conn, session.id, page.at_ms)
    if waiting <= queue.cap:
        return "", ()
    because = f"queue full: {waiting - 1} envelopes already wait in this session, its cap is {queue.cap}"
    if queue.overflow is Overflow.REFUSE:
        outcomes.settle(page, [draft.id], Outcome.REFUSED, because=because)
        _tell_settled(page, draft.id, session.id, Outcome.REFUSED, because)
        told = notify(page, draft.sender, draft.id, draft.kind, "overflow", f"Not taken: {because}.", session=session)
        return because, told
    wakes: list[Wake] = []
    refused = ""
    for old in envelopes.oldest_asking(page.conn, session.id, page.at_ms, limit=waiting - queue.cap):
        why = "queue full: newer mail took its place" if old.id != draft.id else because
        refused = because if old.id == draft.id else refused
        outcomes.settle(page, [old.id], Outcome.REFUSED, because=why)
        _tell_settled(page, old.id, session.id, Outcome.REFUSED, why)
        wakes += notify(page, old.sender, old.id, old.kind, "overflow", f"Not read: {why}.", session=session)
        if queue.overflow is Overflow.SUMMARIZE:
            wakes += _summarize(page, old, session)
    return refused, tuple(wakes)


def _summarize(page: Page, left_out: Envelope, session: Session) -> tuple[Wake, ...]:
    """Give the agent one line about an envelope that it will not read."""
    words = " ".join(words_of(left_out.text).split())
    line = words if len(words) <= LEFT_OUT_CHARS_MAX else words[: LEFT_OUT_CHARS_MAX - 1] + "…"
    draft = Draft(
        id=EnvelopeId(derived(left_out.id, "left-out")),
        sender=address.HOUSE,
        recipient=address.agent(session.agent, session.id),
        text=f"Left out while you were busy, from {left_out.sender}: {line}",
        source="house",
        key=f"{left_out.id}/left-out",
        kind=Kind.SYSTEM,
        silent=True,
        trust=left_out.trust,
    )
    return enter(page, draft).wakes


def _tell_settled(page: Page, envelope: str, session: str | None, outcome: Outcome, because: str) -> None:
    page.tell(NewsKind.ENVELOPE_SETTLED, session=session, envelope=envelope, outcome=outcome.value, because=because)


def notify(
    page: Page,
    to: Address,
    about: EnvelopeId,
    kind: Kind,
    purpose: str,
    text: str,
    *,
    session: Session | None = None,
    silent: bool = False,
) -> tuple[Wake, ...]:
    """Notify a sender of the end of an envelope. Needs no model. A notice never causes another.

    If the envelope was delegated work, the notice is its result.
    """
    if kind in (Kind.NOTICE, Kind.ANSWER) or to.kind in (AddressKind.HOUSE, AddressKind.SCHEDULE):
        return ()
    rung = ring(page, about) if purpose in _ENDS else ()
    sender = address.agent(session.agent, session.id) if session else address.HOUSE
    if kind is Kind.JOB and (job := envelopes.get(page.conn, about)) is not None and job.reply_to is not None:
        about, sender, text = job.reply_to, background_jobs.HERE, f"{background_jobs.FAILED}{text}"
    id_ = EnvelopeId(derived(about, purpose))
    # An agent that sent a message to another is not woken by its result: the two would never stop.
    silent = silent or (kind is Kind.SYSTEM and to.kind is AddressKind.AGENT)
    wakes, trust = (), Trust.PRIVATE
    if kind in HANDED_ON and (delegation := delegations.get(page.conn, about)) is not None:
        told = is_told(delegation)
        state = DelegationState.CANCELLED if purpose == Outcome.CANCELLED.value else DelegationState.FAILED
        archive_ms = end(page, delegation, state, because=text, result=id_ if told else None)
        wakes = (ClockWake(archive_ms),) if archive_ms is not None else ()
        if not told:
            return (*wakes, *rung)
        silent = silent or is_silent(delegation)
        text = announced(page, delegation, state, text, trust=trust)
        letter = envelopes.get(page.conn, about)
        trust = least((trust, letter.trust)) if letter is not None else trust  # the notice contains its task, too
    draft = Draft(
        id=id_,
        sender=sender,
        recipient=to,
        text=text,
        source="house",
        key=f"{about}/{purpose}",
        kind=Kind.NOTICE,
        reply_to=about,
        silent=silent,
        trust=trust,
    )
    return (*enter(page, draft).wakes, *wakes, *rung)


def ring(page: Page, about: EnvelopeId) -> tuple[Wake, ...]:
    """Notify the webhook of an envelope, if it has one, in the commit that ends it."""
    if webhooks.get(page.conn, about) is None:
        return ()
    draft = Draft(
        id=EnvelopeId(derived(about, COMPLETION)),
        sender=address.HOUSE,
        recipient=Address(AddressKind.CHANNEL, COMPLETION, about),
        text=f"What came of {short(about)}, for whoever asked to be told.",
        source="house",
        key=f"{about}/{COMPLETION}",
        kind=Kind.NOTICE,
        reply_to=about,
        trust=Trust.PRIVATE,
    )
    known = envelopes.by_key(page.conn, draft.source, draft.key)
    return enter(page, draft).wakes if known is None else ()


def is_completion(envelope: Envelope) -> bool:
    """Whether the server created it to notify a webhook."""
    ours = envelope.kind is Kind.NOTICE and envelope.sender.kind is AddressKind.HOUSE
    return ours and envelope.recipient.name == COMPLETION


def settle_and_tell(
    page: Page,
    envelope: Envelope,
    outcome: Outcome,
    *,
    because: str,
    text: str,
    session: Session | None = None,
) -> tuple[Wake, ...]:
    """End one envelope outside any run, and notify its sender."""
    outcomes.settle(page, [envelope.id], outcome, because=because)
    _tell_settled(page, envelope.id, envelope.session, outcome, because)
    if envelope.silent:
        return ()
    return notify(page, envelope.sender, envelope.id, envelope.kind, outcome.value, text, session=session)
