"""Whether a run may look into a session, or write into it. Pure: facts in, a decision out."""

from __future__ import annotations

from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, Verdict
from retinue.policy.access.agent_visibility import Sight, may_see


def may_reach(agent: Agent, target: Agent, *, confined: bool, came_of_it: bool, behalf_sees: bool) -> Decision:
    """`agent` runs, `target` has the session. `came_of_it`: the session is where the run is, or came of that one.

    `behalf_sees`: whoever the run works for in the end sees it themselves. Without that it is as if it were not there,
    whatever the agent itself may: a guest reads nothing through an agent that a guest may not.
    """
    if came_of_it:
        return may_see(agent, Sight.SPAWNED, target, spawned=True)
    if not behalf_sees:
        return Decision(Verdict.DENY, "it is not there for whom this run works for")
    widest = Sight.ALL if agent.delegation.histories else Sight.OWN
    return may_see(agent, Sight.SPAWNED if confined else widest, target, spawned=False)
