"""Whose rules hold beside an agent's own: those who sent it out as a subagent of theirs."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.delegation import Lineage
from retinue.domain.session import OriginKind, Session
from retinue.store.agents import agents
from retinue.store.runs import delegations

NOTHING = ToolRules(allow=())


def of(conn: sa.Connection, lineage: Lineage | None, *, agent: str) -> tuple[Agent, ...]:
    """Who sent it out first of all comes first. One who was let go since lets nothing more be done."""
    if lineage is None:
        return ()
    names = (name for name in lineage.sent_by if name != agent)
    return tuple(agents.find(conn, name) or _gone(name) for name in names)


def in_session(conn: sa.Connection, session: Session) -> tuple[Agent, ...]:
    """Of whatever is done in it, by a run or outside of one."""
    if session.origin.kind is not OriginKind.SUBAGENT:
        return ()
    sent = delegations.get(conn, session.origin.key)
    return of(conn, sent.lineage if sent is not None else None, agent=session.agent)


def _gone(name: str) -> Agent:
    return Agent(name=name, tools=NOTHING, permission_level=PermissionLevel.RESTRICTED)
