"""Find the agents that started a subagent. Their rules also apply to the subagent."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.delegation import Lineage
from retinue.domain.session import OriginKind, Session
from retinue.store.agents import agents
from retinue.store.runs import delegations

NO_TOOLS = ToolRules(allow=())


def list_delegating_agents(conn: sa.Connection, lineage: Lineage | None, *, agent: str) -> tuple[Agent, ...]:
    """List the agents that started `agent` as a subagent, directly or through other subagents, the root first.

    An agent that was removed is returned with rules that permit nothing.
    """
    if lineage is None:
        return ()
    names = (name for name in lineage.sent_by if name != agent)
    return tuple(agents.find(conn, name) or _removed_agent(name) for name in names)


def list_for_session(conn: sa.Connection, session: Session) -> tuple[Agent, ...]:
    """List the agents that started the subagent of this session, directly or indirectly. Empty for other sessions."""
    if session.origin.kind is not OriginKind.SUBAGENT:
        return ()
    sent = delegations.get(conn, session.origin.key)
    return list_delegating_agents(conn, sent.lineage if sent is not None else None, agent=session.agent)


def _removed_agent(name: str) -> Agent:
    return Agent(name=name, tools=NO_TOOLS, permission_level=PermissionLevel.RESTRICTED)
