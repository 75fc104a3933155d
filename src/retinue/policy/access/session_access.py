"""Decides whether a run may read a session or write to it."""

from __future__ import annotations

from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, DecisionKind
from retinue.policy.access.agent_visibility import SessionVisibility, may_see_session


def may_access_session(
    agent: Agent, target: Agent, *, is_confined: bool, is_descendant: bool, principal_can_see: bool
) -> Decision:
    """Decide whether a run of `agent` may access a session of `target`.

    `is_descendant` means that the session is the run's session, or descends from it.
    `principal_can_see` means that the run principal can see the session. If it is false, the run cannot
    access any session except a descendant, even if the agent may. A guest therefore cannot use
    an agent to read what the guest may not read. `is_confined` means that the run is sandboxed. A sandboxed run
    may access descendants only.
    """
    if is_descendant:
        return may_see_session(agent, SessionVisibility.SPAWNED, target, is_spawned=True)
    if not principal_can_see:
        return Decision(DecisionKind.DENY, "the person that this run works for cannot see this session")
    widest = SessionVisibility.ALL if agent.delegation.other_sessions else SessionVisibility.OWN
    return may_see_session(agent, SessionVisibility.SPAWNED if is_confined else widest, target, is_spawned=False)
