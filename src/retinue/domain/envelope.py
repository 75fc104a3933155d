"""Envelopes: every message in the house, and how each one ends."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.attachment import Attachment
from retinue.domain.delegation import Exchange, Lineage
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.run import RunRequest
from retinue.domain.session import Origin, WhenBusy
from retinue.domain.session_keys import ChatType
from retinue.domain.trust import Trust

TEXT_BYTES_MAX = 262_144
ATTACHMENTS_MAX = 32
KEY_LENGTH_MAX = 256


class Kind(StrEnum):
    """What an envelope is for. Messages, delegations, what the house says to an agent and decisions are answered."""

    MESSAGE = "message"  # asks for an answer
    DELEGATION = "delegation"  # work from another session: asks for one answer of its own
    JOB = "job"  # work in the background: its words are all that is read, and what comes of it replies to its request
    SYSTEM = "system"  # from another part of the house, read by the model with its origin
    ANSWER = "answer"  # answers another envelope, and is itself not answered
    NOTICE = "notice"  # plain words from the house about an envelope: no model was needed for them
    APPROVAL = "approval"  # a question put to a person
    DECISION = "decision"  # a person's yes or no, at the head of its lane


class Status(StrEnum):
    PENDING = "pending"
    CLAIMED = "claimed"
    PARKED = "parked"
    DONE = "done"


class Outcome(StrEnum):
    ANSWERED = "answered"
    DELIVERED = "delivered"
    NOTED = "noted"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    DEAD = "dead"


class Context(Struct, frozen=True, kw_only=True):
    """What a door knows about an envelope beyond its words. Set by the door, never by the sender."""

    sender_name: str = ""
    username: str = ""
    chat_title: str = ""
    from_boss: bool = False
    person: str = ""  # of this house, who spoke in a channel: by an id that was linked to them
    speaker: str = ""  # who spoke in a channel, by the id that stays theirs there
    platform_id: str = ""
    chat_type: ChatType | None = None
    approval: str = ""  # which approval a decision decides, or a question asks
    verdict: str = ""  # "allow" or "deny", on a decision
    questionnaire: str = ""  # which questionnaire it puts to a room
    choices: tuple[str, ...] = ()  # of which one answers it, where one of them does
    request: RunRequest | None = None
    when_busy: WhenBusy | None = None  # None: as the queue has it
    webhook: bool = False  # somebody elsewhere is told what came of it
    lineage: Lineage | None = None  # of a run over it, where the letter itself says so
    exchange: Exchange | None = None  # where two sessions answer each other: which of these answers it is
    answer_to: str = ""  # where its answer goes: an address, or `none`; empty: to its sender


NO_CONTEXT = Context()


class Draft(Struct, frozen=True, kw_only=True):
    """An envelope as a door hands it in: parsed, not yet accepted."""

    id: EnvelopeId
    sender: Address
    recipient: Address
    text: str
    source: str
    key: str
    kind: Kind = Kind.MESSAGE
    origin: Origin | None = None  # which conversation it belongs to; None where the recipient says it all
    attachments: tuple[Attachment, ...] = ()
    context: Context = NO_CONTEXT
    reply_to: EnvelopeId | None = None
    trust: Trust = Trust.UNTRUSTED
    silent: bool = False
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    retry_of: EnvelopeId | None = None


class Envelope(Struct, frozen=True, kw_only=True):
    """One message from one address to another, just as it is kept."""

    seq: int
    id: EnvelopeId
    sender: Address
    recipient: Address
    session: SessionId | None
    kind: Kind
    text: str
    attachments: tuple[Attachment, ...]
    context: Context
    reply_to: EnvelopeId | None
    trust: Trust
    source: str
    key: str
    silent: bool
    deliver_at: datetime | None
    expires_at: datetime | None
    due_at: datetime
    status: Status
    attempts: int
    accepted_at: datetime
    claimed_at: datetime | None
    settled_at: datetime | None
    run: RunId | None
    steered_into: RunId | None  # the run that read it on the side, while it still waits for its own
    retry_of: EnvelopeId | None


class Settled(Struct, frozen=True, kw_only=True):
    """How an envelope ended: exactly one of these for each done envelope."""

    envelope: EnvelopeId
    outcome: Outcome
    because: str
    at: datetime
    answer: EnvelopeId | None = None


class Receipt(Struct, frozen=True, kw_only=True):
    """Proof that we accepted: once a door hands this out, the envelope outlives us."""

    envelope: EnvelopeId
    session: SessionId | None
    news_seq: int
    duplicate: bool = False
    outcome: Outcome | None = None  # set where the envelope was settled in the same commit
    because: str = ""


def answerable(kind: Kind) -> bool:
    """Whether a run over it owes an answer. An answer is not answered: two agents would never stop."""
    return kind in (Kind.MESSAGE, Kind.DELEGATION, Kind.SYSTEM, Kind.DECISION)
