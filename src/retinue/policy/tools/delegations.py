"""Decides whether work may be delegated, and which limits apply to the delegated run."""

from __future__ import annotations

from retinue.domain.agent import Agent
from retinue.domain.budget import BudgetLimits
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.delegation import DelegationKind, Lineage
from retinue.policy.access.agent_visibility import may_message, may_spawn
from retinue.text.quantity import format_quantity

SUBAGENT_DELEGATIONS = frozenset({DelegationKind.SPAWN, DelegationKind.BACKGROUND})


def may_delegate(asker: Agent, target: Agent, kind: DelegationKind, *, lineage: Lineage, open_count: int) -> Decision:
    """Decide whether work may be delegated.

    `lineage` is the chain of runs that led to the delegating run. A denial names the setting that causes it.
    """
    seen = may_spawn(asker, target) if kind in SUBAGENT_DELEGATIONS else may_message(asker, target)
    if kind is not DelegationKind.SEND and not seen.is_allowed:  # `session_access` decides about existing sessions
        return seen
    rules = asker.delegation
    if lineage.depth >= rules.depth_max:
        key = f"agents.{asker.name}.delegation.depth_max"
        times = format_quantity(lineage.depth, "time")
        return _deny(f"this work was already delegated {times}, and `{key}` is {rules.depth_max}", key)
    circle = [name for name in lineage.agents[:-1] if name.casefold() == target.name.casefold()]
    if circle and kind not in SUBAGENT_DELEGATIONS and not rules.allow_cycles:
        key = f"agents.{asker.name}.delegation.allow_cycles"
        way = " -> ".join((*lineage.agents, target.name))
        return _deny(f"the work came from {target.name} ({way}), and `{key}` is off", key)
    if open_count >= rules.open_max:
        key = f"agents.{asker.name}.delegation.open_max"
        existing = format_quantity(open_count, "open delegation")
        return _deny(f"this session already has {existing}, the limit set by `{key}`", key)
    return Decision(DecisionKind.ALLOW, seen.because)


def _deny(because: str, key: str) -> Decision:
    return Decision(DecisionKind.DENY, because, key)


def build_child_lineage(lineage: Lineage, asker: Agent, target: Agent, kind: DelegationKind) -> Lineage:
    """Return the lineage of the delegated run. Its limits are at most those of the delegating agent."""
    began = len(lineage.agents) == 1
    return Lineage(
        root=lineage.root,
        behalf=lineage.behalf,
        agents=(*lineage.agents, target.name),
        speakers=lineage.speakers,
        sent_by=(*lineage.sent_by, asker.name) if kind in SUBAGENT_DELEGATIONS else lineage.sent_by,
        run_microusd_max=_minimum(lineage.run_microusd_max, asker.cost_microusd_max),
        tree_microusd_max=_minimum(
            lineage.tree_microusd_max,
            asker.tree_microusd_max,
            # The budget of the first run also limits all runs that descend from it.
            asker.cost_microusd_max if began else None,
        ),
    )


def limit_spending(caps: BudgetLimits, lineage: Lineage) -> tuple[int | None, int | None]:
    """Return the maximum cost of a run, and of its whole tree of runs.

    Each is the lower of the limit in `caps` and the limit inherited from `lineage`.
    """
    return (
        _minimum(caps.run_microusd, lineage.run_microusd_max),
        _minimum(caps.tree_microusd, lineage.tree_microusd_max),
    )


def _minimum(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)
