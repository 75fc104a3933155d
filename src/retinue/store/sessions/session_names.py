"""Find the session that an agent refers to by an id, an address, a session key or a label."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain import address, session_keys
from retinue.domain.address import AddressKind
from retinue.domain.errors import AmbiguousId, Invalid, NotFound
from retinue.domain.ids import parse_id_prefix
from retinue.domain.principal import Principal
from retinue.domain.session import Origin, OriginKind, Session
from retinue.domain.session_keys import KeyKind, SessionKey
from retinue.store.agents import agents
from retinue.store.sessions import sessions

OWNER = "owner"


def session_key(session: Session) -> str:
    """Return the session key of a session. If the session has no key, return its address."""
    origin = session.origin
    match origin.kind:
        case OriginKind.SUBAGENT:
            return str(session_keys.subagent_key(session.agent, session.id))
        case OriginKind.SCHEDULE:
            return str(session_keys.cron_key(session.agent, origin.key.removeprefix("schedule:")))
        case _:
            return str(address.agent_address(session.agent, session.id))


def find_session(conn: sa.Connection, text: str, *, agent: str, principal: Principal | None) -> Session | None:
    """Return the session that `agent` refers to, or None if there is none or it was deleted.

    `text` may be an id, an address or a session key. `main` is the latest conversation with
    `principal`.
    """
    found = _find_any(conn, text.strip(), agent, principal)
    return found if found is not None and found.deleted_at is None else None


def find_by_label(conn: sa.Connection, label: str, *, agent: str) -> Session | None:
    """Return the agent's session with this label, or None. The label is the session's name."""
    known = agents.find(conn, agent)
    found = sessions.find_by_name(conn, known.name, label.strip()) if known is not None else None
    return sessions.get(conn, found) if found is not None else None


def _find_any(conn: sa.Connection, text: str, agent: str, principal: Principal | None) -> Session | None:
    if text.casefold() == session_keys.MAIN:
        return _find_main(conn, agent, principal)
    try:
        digits = parse_id_prefix(text)
    except Invalid:
        return _find_by_key_text(conn, text, principal)
    try:
        return sessions.get_by_short_id(conn, digits)
    except (NotFound, AmbiguousId):
        return None


def _find_by_key_text(conn: sa.Connection, text: str, principal: Principal | None) -> Session | None:
    try:
        ours = address.parse_address(text)
        if ours.kind is AddressKind.AGENT and ours.rest:
            return _find_by_prefix(conn, ours.name, ours.rest)
    except Invalid:
        pass
    try:
        key = session_keys.parse_session_key(text)
    except Invalid:
        return None
    known = agents.find(conn, key.agent) if key.agent else None
    return _find_by_key(conn, known.name, key, principal) if known is not None else None


def _find_by_key(conn: sa.Connection, agent: str, key: SessionKey, principal: Principal | None) -> Session | None:
    match key.kind:
        case KeyKind.MAIN:
            return _find_main(conn, agent, principal)
        case KeyKind.SUBAGENT:
            return _find_by_prefix(conn, agent, key.id) or sessions.get_by_origin(
                conn, agent, Origin(OriginKind.SUBAGENT, key.id)
            )
        case KeyKind.CRON:
            return sessions.get_by_origin(conn, agent, Origin(OriginKind.SCHEDULE, f"schedule:{key.id}"))
        case KeyKind.DIRECT if not key.platform:
            return _find_latest_with(conn, agent, f"person:{key.id}")
        case KeyKind.HOOK:
            return None
        case _:
            return sessions.get_by_origin(conn, agent, Origin(OriginKind.CHAT, str(key))) or (
                sessions.get_by_origin(conn, agent, Origin(OriginKind.CHAT, f"channel:{key.platform}:{key.id}"))
            )


def _find_by_prefix(conn: sa.Connection, agent: str, digits: str) -> Session | None:
    found = sessions.find_id_by_prefix(conn, agent, digits)
    return sessions.get(conn, found) if found is not None else None


def _find_main(conn: sa.Connection, agent: str, principal: Principal | None) -> Session | None:
    """Return the agent's latest conversation with this person. If the principal is not a person, use the owner."""
    person = (
        principal.address
        if principal is not None and principal.address.kind is AddressKind.PERSON
        else address.person_address(OWNER)
    )
    return _find_latest_with(conn, agent, str(person))


def _find_latest_with(conn: sa.Connection, agent: str, person: str) -> Session | None:
    kinds = (OriginKind.TERMINAL, OriginKind.WEB)
    found = (sessions.get_latest_by_origin(conn, agent, Origin(kind, person)) for kind in kinds)
    return max(filter(None, found), key=lambda session: session.updated_at, default=None)
