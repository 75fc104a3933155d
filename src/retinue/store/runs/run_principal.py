"""Find the run principal, and check which sessions the run principal can see.

The run principal is the person on whose behalf a run acts. An agent can see all its sessions, but
the tools of a run see only what the run principal can see. A person therefore cannot read the data
of others through an agent.
"""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import LEVEL_BY_ROLE, SERVER_PRINCIPAL, TRUST_BY_ROLE, Principal
from retinue.domain.run import Run
from retinue.domain.session import OriginKind, Session
from retinue.domain.trust import Trust
from retinue.store.core.row_visibility import can_see_session
from retinue.store.envelopes import envelopes
from retinue.store.people import people
from retinue.store.runs import runs
from retinue.store.sessions import sessions

ANCESTORS_MAX = 16


def get_run_principal(conn: sa.Connection, run: Run) -> Principal | None:
    """Return the principal on whose behalf a run acts.

    This is a person, or the channel of an unknown sender. Returns None if the run acts for a
    schedule, for the server, or for an agent without a person.
    """
    if _is_from_owner(conn, run):
        return SERVER_PRINCIPAL
    behalf = run.effective_lineage.behalf
    match behalf.kind:
        case AddressKind.PERSON:
            known = people.find(conn, behalf.name)
            level = LEVEL_BY_ROLE[known.role] if known is not None else PermissionLevel.RESTRICTED
            return Principal(
                address=behalf, level=level, trust=TRUST_BY_ROLE[known.role] if known is not None else Trust.UNTRUSTED
            )
        case AddressKind.CHANNEL:
            return Principal(address=behalf, level=PermissionLevel.RESTRICTED, trust=Trust.UNTRUSTED)
        case _:
            return None


def _is_from_owner(conn: sa.Connection, run: Run) -> bool:
    """Whether all messages of the root run are from the owner, even if they came through a channel."""
    began = run if run.lineage is None else runs.get(conn, run.root_run)
    read = [envelopes.get(conn, id_) for id_ in began.envelopes] if began is not None else []
    return bool(read) and all(envelope is not None and envelope.trust is Trust.OWNER for envelope in read)


def can_see(conn: sa.Connection, principal: Principal | None, session: Session) -> bool:
    """Whether a principal can see a session. If `principal` is None, all sessions are visible.

    A principal that is a channel can see the sessions of this channel.
    """
    if principal is None or principal.sees_everything:
        return True
    if principal.address.kind is AddressKind.CHANNEL:
        return session.origin.kind is OriginKind.CHAT and session.origin.key == str(principal.address)
    return can_see_session(conn, principal, session.id)


def is_descendant(conn: sa.Connection, other: Session, session: Session) -> bool:
    """Whether `other` is the same session as `session`, or was started from it.

    A session was started from `session` if `session` spawned it, or if it was created for messages
    from `session` to another agent. Both may be indirect, through other sessions.
    """
    ours = str(address.agent_address(session.agent, session.id))
    at: Session | None = other
    for _ in range(ANCESTORS_MAX):
        if at is None:
            return False
        origin = at.origin
        if at.id == session.id:
            return True
        if origin.kind is OriginKind.AGENT and (origin.key == ours or origin.key.startswith(f"{ours}/")):
            return True
        at = sessions.get(conn, origin.parent) if origin.parent is not None else None
    return False
