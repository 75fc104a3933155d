"""Find the principal (a person or an agent) that signs in with a token."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.person import Role
from retinue.domain.principal import LEVEL_BY_ROLE, TRUST_BY_ROLE, Principal
from retinue.domain.token import TokenKind
from retinue.domain.trust import Trust
from retinue.store.agents import agents
from retinue.store.core import tables as t
from retinue.store.people.tokens import IS_VALID

SIGN_IN_KINDS = (TokenKind.TOKEN, TokenKind.WEB)
SOURCE_TABLES = (t.tokens, t.people, t.agents)  # the tables that a principal depends on

_b = sa.bindparam
_PERSON = f"{AddressKind.PERSON}:"
# If the principal is a person, their role comes from the same query, because every request runs it.
_by_hash = (
    sa.select(t.tokens.c.id, t.tokens.c.kind, t.tokens.c.principal, t.people.c.role)
    .outerjoin_from(
        t.tokens,
        t.people,
        sa.and_(
            t.people.c.name == sa.func.substr(t.tokens.c.principal, len(_PERSON) + 1), t.people.c.erased_ms.is_(None)
        ),
    )
    .where(t.tokens.c.hash == _b("hash"), IS_VALID)
)


def find_principal(conn: sa.Connection, token_hash: str, *, now_ms: int) -> tuple[Principal, TokenKind] | None:
    """Return the principal of a token, and the kind of token.

    Returns None if the token is unknown, expired, revoked or not for signing in. Also returns None
    if its person was erased or its agent was removed.
    """
    row = conn.execute(_by_hash, {"hash": token_hash, "now": now_ms}).one_or_none()
    if row is None or (kind := TokenKind(row.kind)) not in SIGN_IN_KINDS:
        return None
    who = address.parse_address(row.principal)
    if who.kind is AddressKind.PERSON:
        if row.role is None:
            return None
        role = Role(row.role)
        level, trust = LEVEL_BY_ROLE[role], TRUST_BY_ROLE[role]
    else:
        agent = agents.find(conn, who.name)
        if agent is None:
            return None
        level, trust = agent.permission_level, Trust.AGENT
    return Principal(address=who, level=level, trust=trust, token_id=row.id), kind
