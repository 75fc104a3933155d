"""Envelopes: messages as the server stores them, and the outcome of each."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from retinue.domain.address import Address
from retinue.domain.attachment import Attachment
from retinue.domain.delegation import AgentExchange, Lineage
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.run import RunRequest
from retinue.domain.session import Origin, WhenBusy
from retinue.domain.session_keys import ChatType
from retinue.domain.trust import Trust

ENVELOPE_TEXT_BYTES_MAX = 262_144
ATTACHMENTS_MAX = 32
IDEMPOTENCY_KEY_LENGTH_MAX = 256
INTERIM_KEY = "said"
"""First part of the idempotency keys of interim replies, from which their ids are derived.

The value must not change. Otherwise, a run that continues after an upgrade would send a reply twice.
"""


class EnvelopeKind(StrEnum):
    """The purpose of an envelope. Messages, delegations, system messages and decisions get an answer."""

    MESSAGE = "message"  # expects an answer
    DELEGATION = "delegation"  # work from another session; expects a result
    JOB = "job"  # a background job: the model reads only its text, and the result replies to its request
    SYSTEM = "system"  # from another part of the server; the model also reads who sent it
    ANSWER = "answer"  # answers another envelope and gets no answer
    NOTICE = "notice"  # a message from the server about an envelope, written without a model
    APPROVAL = "approval"  # a question put to a person
    DECISION = "decision"  # a person's yes or no; it is claimed before other envelopes of its lane


class EnvelopeStatus(StrEnum):
    PENDING = "pending"
    CLAIMED = "claimed"
    SUSPENDED = "suspended"
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


class EnvelopeContext(Struct, frozen=True, kw_only=True):
    """Facts about an envelope that the connector or the API sets. The text of a message cannot set them."""

    sender_name: str = ""
    username: str = ""
    chat_title: str = ""
    from_boss: bool = False
    person: str = ""  # the person who wrote in a channel, known by a linked platform id
    # The stable platform id of the sender. Stored under an older name.
    sender_id: str = field(default="", name="speaker")
    platform_id: str = ""
    chat_type: ChatType | None = None
    approval: str = ""  # the approval that a decision answers or a question asks
    verdict: str = ""
    questionnaire: str = ""  # the questionnaire that the envelope shows in a channel
    choices: tuple[str, ...] = ()  # options of a question that is answered with one of them
    request: RunRequest | None = None
    when_busy: WhenBusy | None = None  # None: the queue settings decide
    webhook: bool = False  # a URL is notified with the result
    lineage: Lineage | None = None  # lineage of the run that processes it, if the envelope defines one
    exchange: AgentExchange | None = None  # the position in an exchange between two sessions
    answer_to: str = ""  # where the answer goes: an address or `none`; empty: to the sender


NO_CONTEXT = EnvelopeContext()


class EnvelopeDraft(Struct, frozen=True, kw_only=True):
    """An envelope that is not yet accepted and stored."""

    id: EnvelopeId
    sender: Address
    recipient: Address
    text: str
    source: str
    idempotency_key: str
    kind: EnvelopeKind = EnvelopeKind.MESSAGE
    origin: Origin | None = None  # what its session belongs to; None if the recipient address determines it
    attachments: tuple[Attachment, ...] = ()
    context: EnvelopeContext = NO_CONTEXT
    reply_to: EnvelopeId | None = None
    trust: Trust = Trust.UNTRUSTED
    silent: bool = False
    deliver_at: datetime | None = None
    expires_at: datetime | None = None
    retry_of: EnvelopeId | None = None


class Envelope(Struct, frozen=True, kw_only=True):
    """One message from one address to another, as stored."""

    seq: int
    id: EnvelopeId
    sender: Address
    recipient: Address
    session: SessionId | None
    kind: EnvelopeKind
    text: str
    attachments: tuple[Attachment, ...]
    context: EnvelopeContext
    reply_to: EnvelopeId | None
    trust: Trust
    source: str
    idempotency_key: str
    silent: bool
    deliver_at: datetime | None
    expires_at: datetime | None
    due_at: datetime
    status: EnvelopeStatus
    attempts: int
    accepted_at: datetime
    claimed_at: datetime | None
    settled_at: datetime | None
    run: RunId | None
    steered_into: RunId | None  # the active run that read it early, while it waits for its own run
    retry_of: EnvelopeId | None


class SettledOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of an envelope, with the reason and the time. Each finished envelope has exactly one."""

    envelope: EnvelopeId
    outcome: Outcome
    because: str
    at: datetime
    answer: EnvelopeId | None = None


class Receipt(Struct, frozen=True, kw_only=True):
    """Proof that the server accepted an envelope. The envelope was stored before the receipt was returned."""

    envelope: EnvelopeId
    session: SessionId | None
    event_seq: int
    duplicate: bool = False
    outcome: Outcome | None = None  # set if the envelope was settled in the same commit
    because: str = ""


def needs_answer(kind: EnvelopeKind) -> bool:
    """Whether a run must answer an envelope of this kind.

    An answer must not be answered. Otherwise two agents would answer each other forever.
    """
    return kind in (EnvelopeKind.MESSAGE, EnvelopeKind.DELEGATION, EnvelopeKind.SYSTEM, EnvelopeKind.DECISION)
