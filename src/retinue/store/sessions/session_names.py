"""Find a session by a name that an agent uses: an id, an address, or a session key."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain import address, session_keys
from retinue.domain.address import AddressKind
from retinue.domain.errors import Ambiguous, Invalid, NotFound
from retinue.domain.ids import prefix
from retinue.domain.principal import Principal
from retinue.domain.session import Origin, OriginKind, Session
from retinue.domain.session_keys import KeyKind, SessionKey
from retinue.store.agents import agents
from retinue.store.sessions import sessions

OWNER = "owner"


def key_of(session: Session) -> str:
    """Return the session's key in the format that others know, if there is one, and otherwise its address."""
    origin = session.origin
    match origin.kind:
        case OriginKind.SUBAGENT:
            return str(session_keys.subagent(session.agent, session.id))
        case OriginKind.SCHEDULE:
            return str(session_keys.cron(session.agent, origin.key.removeprefix("schedule:")))
        case _:
            return str(address.agent(session.agent, session.id))


def named(conn: sa.Connection, text: str, *, agent: str, whose: Principal | None) -> Session | None:
    """Return the session that `agent` means by this text, unless it is deleted.

    `main` is the latest conversation of `principal`.
    """
    found = _found(conn, text.strip(), agent, whose)
    return found if found is not None and found.deleted_at is None else None


def labelled(conn: sa.Connection, label: str, *, agent: str) -> Session | None:
    """Return the agent's session with this name."""
    known = agents.find(conn, agent)
    found = sessions.by_name(conn, known.name, label.strip()) if known is not None else None
    return sessions.get(conn, found) if found is not None else None


def _found(conn: sa.Connection, text: str, agent: str, whose: Principal | None) -> Session | None:
    if text.casefold() == session_keys.MAIN:
        return _main(conn, agent, whose)
    try:
        digits = prefix(text)
    except Invalid:
        return _by_key(conn, text, whose)
    try:
        return sessions.resolve(conn, digits)
    except (NotFound, Ambiguous):
        return None


def _by_key(conn: sa.Connection, text: str, whose: Principal | None) -> Session | None:
    try:
        ours = address.parse(text)
        if ours.kind is AddressKind.AGENT and ours.rest:
            return _of(conn, ours.name, ours.rest)
    except Invalid:
        pass
    try:
        key = session_keys.parse(text)
    except Invalid:
        return None
    known = agents.find(conn, key.agent) if key.agent else None
    return _keyed(conn, known.name, key, whose) if known is not None else None


def _keyed(conn: sa.Connection, agent: str, key: SessionKey, whose: Principal | None) -> Session | None:
    match key.kind:
        case KeyKind.MAIN:
            return _main(conn, agent, whose)
        case KeyKind.SUBAGENT:
            return _of(conn, agent, key.id) or sessions.by_origin(conn, agent, Origin(OriginKind.SUBAGENT, key.id))
        case KeyKind.CRON:
            return sessions.by_origin(conn, agent, Origin(OriginKind.SCHEDULE, f"schedule:{key.id}"))
        case KeyKind.DIRECT if not key.channel:
            return _latest_with(conn, agent, f"person:{key.id}")
        case KeyKind.HOOK:
            return None
        case _:
            return sessions.by_origin(conn, agent, Origin(OriginKind.CHAT, str(key))) or (
                sessions.by_origin(conn, agent, Origin(OriginKind.CHAT, f"channel:{key.channel}:{key.id}"))
            )


def _of(conn: sa.Connection, agent: str, digits: str) -> Session | None:
    found = sessions.by_prefix(conn, agent, digits)
    return sessions.get(conn, found) if found is not None else None


def _main(conn: sa.Connection, agent: str, whose: Principal | None) -> Session | None:
    """Return the agent's latest conversation with this person, or with the owner if no person is given."""
    person = whose.address if whose is not None and whose.address.kind is AddressKind.PERSON else address.person(OWNER)
    return _latest_with(conn, agent, str(person))


def _latest_with(conn: sa.Connection, agent: str, person: str) -> Session | None:
    kinds = (OriginKind.TERMINAL, OriginKind.WEB)
    found = (sessions.latest_of(conn, agent, Origin(kind, person)) for kind in kinds)
    return max(filter(None, found), key=lambda session: session.updated_at, default=None)
