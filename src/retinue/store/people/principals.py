"""Who a secret belongs to: the one place where a token becomes a principal."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.person import Role
from retinue.domain.principal import LEVEL_OF, TRUST_OF, Principal
from retinue.domain.token import TokenKind
from retinue.domain.trust import Trust
from retinue.store.agents import agents
from retinue.store.core import tables as t
from retinue.store.people.tokens import VALID

SIGNS_IN = (TokenKind.TOKEN, TokenKind.WEB)
READ = (t.tokens, t.people, t.agents)  # what a principal is made of

_b = sa.bindparam
_PERSON = f"{AddressKind.PERSON}:"
# With the person, if it is one, in the same look: every request asks this.
_by_hash = (
    sa.select(t.tokens.c.id, t.tokens.c.kind, t.tokens.c.principal, t.people.c.role)
    .outerjoin_from(
        t.tokens,
        t.people,
        sa.and_(
            t.people.c.name == sa.func.substr(t.tokens.c.principal, len(_PERSON) + 1), t.people.c.forgotten_ms.is_(None)
        ),
    )
    .where(t.tokens.c.hash == _b("hash"), VALID)
)


def by_secret(conn: sa.Connection, token_hash: str, *, now_ms: int) -> tuple[Principal, TokenKind] | None:
    """Who this is, with what they came: None where nobody knows this secret, or its owner is no longer here."""
    row = conn.execute(_by_hash, {"hash": token_hash, "now": now_ms}).one_or_none()
    if row is None or (kind := TokenKind(row.kind)) not in SIGNS_IN:
        return None
    who = address.parse(row.principal)
    if who.kind is AddressKind.PERSON:
        if row.role is None:
            return None
        role = Role(row.role)
        level, trust = LEVEL_OF[role], TRUST_OF[role]
    else:
        agent = agents.find(conn, who.name)
        if agent is None:
            return None
        level, trust = agent.permission_level, Trust.AGENT
    return Principal(address=who, level=level, trust=trust, key=row.id), kind
