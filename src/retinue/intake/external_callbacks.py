"""Accepts callbacks of external agents: the answer to delegated work, or an unsolicited message.

A callback becomes a normal envelope. So it survives a crash once accepted, and is deduplicated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.secret import Secret
from retinue.domain import address
from retinue.domain.address import EXTERNAL
from retinue.domain.agent import Agent
from retinue.domain.delegation import Delegation, DelegationKind, DelegationState
from retinue.domain.envelope import Draft, Kind
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError
from retinue.domain.ids import EnvelopeId, SessionId, derived
from retinue.domain.ports import Clock
from retinue.domain.session import Session
from retinue.domain.storable_text import is_storable
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.intake.accept import Entered, Wake, enter, purged_before, seen_before
from retinue.intake.delegations import end
from retinue.net.signatures import LETTER, SIGNATURE, TIMESTAMP, WINDOW_S, Purpose, is_recent, is_signed_by, signed
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.maintenance import purge
from retinue.store.runs import delegations
from retinue.store.sessions import external_keys, sessions

OPEN_LOOKED_AT_MAX = 100
UNREAD_MAX = 100  # unsolicited messages that may wait in one session
MESSAGE_ID_LENGTH_MAX = 128


class Unsigned(RetinueError):
    """The request is not signed by a known key."""

    code = "external.unsigned"


class Callback(Struct, frozen=True, kw_only=True):
    """One message of an external agent. `message` is its sender's id for it. `request` is the
    envelope that it answers, if given."""

    session: SessionId
    message: str
    text: str
    request: str = ""


class Came(Struct, frozen=True, kw_only=True):
    """A callback as received: nothing in it is trusted yet. `session` is from the URL."""

    session: str
    at: str
    signature: str
    message: str
    request: str
    body: bytes


class Heard(Struct, frozen=True):
    """The result of a callback. A repeated callback gets the same."""

    envelope: EnvelopeId
    answers: EnvelopeId | None


class Callbacks:
    """Accepts callbacks of external agents. Once `accept` returns, the message survives a crash."""

    def __init__(
        self, store: Store, clock: Clock, wake: Callable[[Wake], None], environment: Mapping[str, str]
    ) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._environment = environment

    async def take(self, came: Came) -> Heard:
        if not came.signature or not is_recent(came.at, now_s=self._clock.now().timestamp()):
            raise _unsigned(f"it has no {SIGNATURE}, or its {TIMESTAMP} is over {WINDOW_S} seconds from now")
        session, keys = await self._store.read(partial(_known, came=came))
        if not any(self._has_signed(reference, came) for reference in keys):
            raise _unsigned("its signature is not by the key of an agent who answers here")
        if session is None:
            raise _no_session(came.session)
        callback = Callback(session=session.id, message=came.message, text=_text(came.body), request=came.request)
        _check_message(callback.message)
        body = partial(hear, callback=callback, now_ms=to_ms(self._clock.now()))
        return (await self._store.write(body, point="callback", then=self._wake_all))[0]

    def _has_signed(self, reference: str, came: Came) -> bool:
        """Whether the callback is signed with this key. A key that cannot be read has signed
        nothing."""
        try:
            key = Secret.referred(reference).read(self._environment) if reference else ""
        except Invalid:
            return False
        expected = signed(
            key,
            Purpose.CALLBACK,
            at=came.at,
            session=came.session,
            letter=came.message,
            about=came.request,
            body=came.body,
        )
        return is_signed_by(key, came.signature, expected)

    def _wake_all(self, heard: tuple[Heard, tuple[Wake, ...]] | None) -> None:
        for wake in heard[1] if heard is not None else ():
            self._wake(wake)


def _known(conn: sa.Connection, *, came: Came) -> tuple[Session | None, list[str]]:
    """The session it is for, and references to the keys that may have signed it.

    If there is no such session, the key of any external agent is accepted for that error. So
    outsiders cannot find out which sessions exist.
    """
    session = external_keys.find_session(conn, came.session)
    agent = agents.find(conn, session.agent) if session is not None else None
    if session is not None and agent is not None and _answers_here(agent) and session.deleted_at is None:
        return session, [agent.external.secret]
    return None, [each.external.secret for each in agents.everyone(conn) if _answers_here(each)]


def _answers_here(agent: Agent) -> bool:
    return agent.runner == EXTERNAL


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not is_storable(text):
        raise Invalid(
            "this message is no text",
            because="it is not UTF-8, or holds NUL bytes",
            try_this="send plain text or Markdown, as UTF-8",
            code="text.unstorable",
        )
    if not text.strip():
        raise Invalid(
            "this message is empty",
            because="the text is the whole body of the request, and there is none",
            try_this="send some words, or nothing at all",
            code="external.empty",
        )
    return text


def _check_message(message: str) -> None:
    if not (0 < len(message) <= MESSAGE_ID_LENGTH_MAX and message.isascii() and message.isprintable()):
        raise Invalid(
            "this message has no usable id",
            because=f"{LETTER} has 1 to {MESSAGE_ID_LENGTH_MAX} printable characters of ASCII",
            try_this="send a random one, and the same one when you send it again",
            code="external.no-id",
        )


def _no_session(id_: str) -> NotFound:
    return NotFound(
        f"no session {id_[:40]!r}",
        because="none of that id is an agent's who runs elsewhere, or it was deleted",
        try_this="answer to the `callbackUrl` that came with the letter",
        code="session.not-found",
    )


def _unsigned(because: str) -> Unsigned:
    return Unsigned("this was not signed", because=because, try_this="see the guide on external agents for how")


def hear(conn: sa.Connection, *, callback: Callback, now_ms: int) -> tuple[Heard, tuple[Wake, ...]]:
    """The commit of a callback."""
    page = Page(conn, now_ms)
    session = sessions.get(conn, callback.session)
    if session is None or session.deleted_at is not None:  # changed since the lookup
        raise _no_session(callback.session)
    draft = Draft(
        id=EnvelopeId(derived(session.id, f"callback/{callback.message}")),
        sender=address.external(session.id),
        recipient=address.agent(session.agent, session.id),
        text=callback.text,
        source=f"{EXTERNAL}:{session.id}",
        key=callback.message,
        kind=Kind.ANSWER,
        trust=Trust.UNTRUSTED,
    )
    if (before := _before(page, draft)) is not None:
        seen = envelopes.get(conn, before.receipt.envelope)
        return Heard(before.receipt.envelope, seen.reply_to if seen is not None else None), ()
    asked = _asked(page, callback)
    if asked is None and envelopes.count_due(conn, session.id, page.at_ms) >= UNREAD_MAX:
        raise Conflict(
            "too much of what was said here waits to be read",
            because=f"{UNREAD_MAX} messages that nobody asked for may wait in a session",
            try_this="send it again in a while",
            code="external.too-much",
        )
    if asked is not None:
        draft = replace(draft, reply_to=asked.id)
    entered = enter(page, draft)
    if asked is not None:
        end(page, asked, DelegationState.DONE, because="", result=draft.id)
    page.close()
    return Heard(draft.id, asked.id if asked is not None else None), entered.wakes


def _before(page: Page, draft: Draft) -> Entered | None:
    """The earlier envelope of the same message, if any. Raises if the content differs."""
    if (seen := envelopes.by_key(page.conn, draft.source, draft.key)) is not None:
        return seen_before(page.conn, draft, seen)
    if (gone := purge.by_key(page.conn, draft.source, draft.key)) is not None:
        return purged_before(draft, gone)
    return None


def _asked(page: Page, callback: Callback) -> Delegation | None:
    """The delegation it answers: the one it names, or else the oldest open one. None if there is
    none."""
    session = callback.session
    if callback.request:
        named = delegations.get(page.conn, callback.request)
        if named is None or named.session != session or named.kind is not DelegationKind.EXTERNAL:
            raise NotFound(
                f"no letter {callback.request[:40]!r} was sent from this session",
                because="none of that id was handed to whoever answers here",
                try_this="name the `id` of the letter that is answered, or none",
                code="external.request-unknown",
            )
        return named if named.state.open else None
    waiting = delegations.open_of(page.conn, session, limit=OPEN_LOOKED_AT_MAX)
    return min(
        (each for each in waiting if each.kind is DelegationKind.EXTERNAL),
        key=lambda each: (each.created_at, each.id),
        default=None,
    )
