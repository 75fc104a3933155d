"""Accepts callbacks from external agents: the answer to delegated work, or an unsolicited message.

An accepted callback is stored as an envelope, so it survives a crash. A repeated callback is stored
only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.secret import SecretReference
from retinue.domain import address
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent
from retinue.domain.delegation import Delegation, DelegationKind, DelegationState
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind
from retinue.domain.errors import Invalid
from retinue.domain.ids import EnvelopeId, SessionId, derive_id
from retinue.domain.ports import Clock
from retinue.domain.session import Session
from retinue.domain.shared_errors import SessionNotFound, TextUnstorable
from retinue.domain.storable_text import is_storable
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.accept import AcceptResult, Wake, accept_in_transaction, resolve_duplicate, resolve_purged_duplicate
from retinue.intake.delegation_end import end_delegation
from retinue.intake.errors import (
    CallbackEmpty,
    CallbackIdInvalid,
    CallbackRequestNotFound,
    CallbackUnsigned,
    TooManyUnreadCallbacks,
)
from retinue.net.signatures import (
    MESSAGE_ID_HEADER,
    SIGNATURE_AGE_MAX_S,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    SignaturePurpose,
    is_recent,
    sign_message,
    signatures_match,
)
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.maintenance import purge
from retinue.store.runs import delegations
from retinue.store.sessions import external_keys, sessions

OPEN_REQUESTS_MAX = 100
UNREAD_MAX = 100  # unsolicited messages that may wait in one session
MESSAGE_ID_LENGTH_MAX = 128


class Callback(Struct, frozen=True, kw_only=True):
    """A verified message from an external agent. `message` is the id that the agent gave it.

    `request` is the id of the envelope that it answers, or empty if the agent gave none.
    """

    session: SessionId
    message: str
    text: str
    request: str = ""


class RawCallback(Struct, frozen=True, kw_only=True):
    """A callback as received, before its signature is verified. `session` is from the URL."""

    session: str
    at: str
    signature: str
    message: str
    request: str
    body: bytes


class CallbackReceipt(Struct, frozen=True):
    """The result of accepting a callback. A repeated callback gets the same result."""

    envelope: EnvelopeId
    answered_envelope: EnvelopeId | None


class CallbackIntake:
    """Accepts callbacks from external agents. Once `accept` returns, the message survives a crash."""

    def __init__(
        self, store: Store, clock: Clock, wake: Callable[[Wake], None], environment: Mapping[str, str]
    ) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._environment = environment

    async def accept(self, raw: RawCallback) -> CallbackReceipt:
        if not raw.signature or not is_recent(raw.at, now_s=self._clock.now().timestamp()):
            raise CallbackUnsigned(
                because=f"it has no {SIGNATURE_HEADER}, or its {TIMESTAMP_HEADER} differs "
                f"from the current time by more than {SIGNATURE_AGE_MAX_S} seconds"
            )
        session, keys = await self._store.read(partial(_find_session_and_keys, raw=raw))
        if not any(self._is_signed_with(reference, raw) for reference in keys):
            raise CallbackUnsigned(because="it is not signed with the key of an agent of this session")
        if session is None:
            raise _build_session_not_found(raw.session)
        callback = Callback(session=session.id, message=raw.message, text=_decode_text(raw.body), request=raw.request)
        _check_message_id(callback.message)
        body = partial(accept_callback, callback=callback, now_ms=to_ms(self._clock.now()))
        return (await self._store.write(body, point="callback", then=self._wake_all))[0]

    def _is_signed_with(self, reference: str, raw: RawCallback) -> bool:
        """Whether the callback is signed with this key. Returns False if the key cannot be read."""
        try:
            key = SecretReference.from_text(reference).read(self._environment) if reference else ""
        except Invalid:
            return False
        expected = sign_message(
            key,
            SignaturePurpose.CALLBACK,
            timestamp=raw.at,
            session=raw.session,
            message_id=raw.message,
            request_id=raw.request,
            body=raw.body,
        )
        return signatures_match(key, raw.signature, expected)

    def _wake_all(self, result: tuple[CallbackReceipt, tuple[Wake, ...]] | None) -> None:
        for wake in result[1] if result is not None else ():
            self._wake(wake)


def _find_session_and_keys(conn: sa.Connection, *, raw: RawCallback) -> tuple[Session | None, list[str]]:
    """Return the session of a callback, and references to the keys that may have signed the callback.

    If the session does not exist, these are the keys of all external agents. Thus only an external
    agent gets the error that the session does not exist. Other callers get a signature error, and
    cannot find out which sessions exist.
    """
    session = external_keys.find_session(conn, raw.session)
    agent = agents.find(conn, session.agent) if session is not None else None
    if session is not None and agent is not None and _is_external(agent) and session.deleted_at is None:
        return session, [agent.external.secret]
    return None, [each.external.secret for each in agents.list_all(conn) if _is_external(each)]


def _is_external(agent: Agent) -> bool:
    return agent.runner == EXTERNAL


def _decode_text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not is_storable(text):
        raise TextUnstorable("the callback")
    if not text.strip():
        raise CallbackEmpty
    return text


def _check_message_id(message: str) -> None:
    if not (0 < len(message) <= MESSAGE_ID_LENGTH_MAX and message.isascii() and message.isprintable()):
        raise CallbackIdInvalid(header=MESSAGE_ID_HEADER, chars_max=MESSAGE_ID_LENGTH_MAX)


def _build_session_not_found(id_: str) -> SessionNotFound:
    return SessionNotFound(
        id_,
        because="no session of an external agent has this id, or the session was deleted",
        try_this="use the `callbackUrl` of the message that you are answering",
    )


def accept_callback(
    conn: sa.Connection, *, callback: Callback, now_ms: int
) -> tuple[CallbackReceipt, tuple[Wake, ...]]:
    """Store a callback as an envelope and end the delegation that it answers, in one commit."""
    tx = Transaction(conn, now_ms)
    session = sessions.get(conn, callback.session)
    if session is None or session.deleted_at is not None:  # changed since the lookup
        raise _build_session_not_found(callback.session)
    draft = EnvelopeDraft(
        id=EnvelopeId(derive_id(session.id, f"callback/{callback.message}")),
        sender=address.external_address(session.id),
        recipient=address.agent_address(session.agent, session.id),
        text=callback.text,
        source=f"{EXTERNAL}:{session.id}",
        idempotency_key=callback.message,
        kind=EnvelopeKind.ANSWER,
        trust=Trust.UNTRUSTED,
    )
    if (before := _find_duplicate(tx, draft)) is not None:
        seen = envelopes.get(conn, before.receipt.envelope)
        return CallbackReceipt(before.receipt.envelope, seen.reply_to if seen is not None else None), ()
    asked = _find_request(tx, callback)
    if asked is None and envelopes.count_due(conn, session.id, tx.at_ms) >= UNREAD_MAX:
        raise TooManyUnreadCallbacks(count_max=UNREAD_MAX)
    if asked is not None:
        draft = replace(draft, reply_to=asked.id)
    entered = accept_in_transaction(tx, draft)
    if asked is not None:
        end_delegation(tx, asked, DelegationState.DONE, because="", result=draft.id)
    tx.close()
    return CallbackReceipt(draft.id, asked.id if asked is not None else None), entered.wakes


def _find_duplicate(tx: Transaction, draft: EnvelopeDraft) -> AcceptResult | None:
    """Return the result for a message that was accepted before, or None.

    Raises an error if the message id was used with different content.
    """
    if (seen := envelopes.get_by_key(tx.conn, draft.source, draft.idempotency_key)) is not None:
        return resolve_duplicate(tx.conn, draft, seen)
    if (gone := purge.get_purged_key(tx.conn, draft.source, draft.idempotency_key)) is not None:
        return resolve_purged_duplicate(draft, gone)
    return None


def _find_request(tx: Transaction, callback: Callback) -> Delegation | None:
    """Return the delegation that a callback answers, or None.

    It is the delegation that the callback names, or else the oldest open delegation of the session.
    """
    session = callback.session
    if callback.request:
        named = delegations.get(tx.conn, callback.request)
        if named is None or named.session != session or named.kind is not DelegationKind.EXTERNAL:
            raise CallbackRequestNotFound(callback.request)
        return named if named.state.is_open else None
    waiting = delegations.list_open(tx.conn, session, limit=OPEN_REQUESTS_MAX)
    return min(
        (each for each in waiting if each.kind is DelegationKind.EXTERNAL),
        key=lambda each: (each.created_at, each.id),
        default=None,
    )
