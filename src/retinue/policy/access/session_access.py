"""Decides whether a run may read a session or write into it. Pure: facts in, a decision out."""

from __future__ import annotations

from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, Verdict
from retinue.policy.access.agent_visibility import Sight, may_see


def may_reach(agent: Agent, target: Agent, *, confined: bool, came_of_it: bool, behalf_sees: bool) -> Decision:
    """Decide whether a run of `agent` may access a session of `target`.

    `is_descendant`: it is the session of the run, or descends from it. `principal_can_see`: the run
    principal could see it directly. Without that, the session does not exist for the run, whatever
    the agent itself may do. So a guest cannot read through an agent what the guest may not read.
    """
    if came_of_it:
        return may_see(agent, Sight.SPAWNED, target, spawned=True)
    if not behalf_sees:
        return Decision(Verdict.DENY, "it is not there for whom this run works for")
    widest = Sight.ALL if agent.delegation.histories else Sight.OWN
    return may_see(agent, Sight.SPAWNED if confined else widest, target, spawned=False)
