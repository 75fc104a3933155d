"""Who a secret belongs to: the one place where a token becomes a principal."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.envelope import Trust
from retinue.domain.principal import LEVEL_OF, TRUST_OF, Principal
from retinue.domain.token import TokenKind
from retinue.store import agents, people, tokens

SIGNS_IN = (TokenKind.TOKEN, TokenKind.WEB)


def by_secret(conn: sa.Connection, token_hash: str, *, now_ms: int) -> tuple[Principal, TokenKind] | None:
    """Who this is, with what they came: None where nobody knows this secret, or its owner is no longer here."""
    token = tokens.by_hash(conn, token_hash, now_ms=now_ms)
    if token is None or token.kind not in SIGNS_IN:
        return None
    if token.principal.kind is AddressKind.PERSON:
        person = people.find(conn, token.principal.name)
        if person is None:
            return None
        level, trust = LEVEL_OF[person.role], TRUST_OF[person.role]
    else:
        agent = agents.find(conn, token.principal.name)
        if agent is None:
            return None
        level, trust = agent.permission_level, Trust.AGENT
    return Principal(address=token.principal, level=level, trust=trust, key=token.id), token.kind
