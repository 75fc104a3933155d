"""Decides whether work may be delegated, and which limits apply to the delegate. Pure: facts in, a decision out."""

from __future__ import annotations

from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, Verdict
from retinue.domain.delegation import DelegationKind, Lineage
from retinue.domain.money import Caps
from retinue.policy.access.agent_visibility import may_message, may_spawn

SENT_OUT = frozenset({DelegationKind.SPAWN, DelegationKind.BACKGROUND})


def may_hand_over(asker: Agent, target: Agent, kind: DelegationKind, *, descent: Lineage, open_count: int) -> Decision:
    """Decide whether work may be delegated. `lineage` is that of the asking run. A refusal names its setting."""
    seen = may_spawn(asker, target) if kind in SENT_OUT else may_message(asker, target)
    if kind is not DelegationKind.SEND and not seen.allowed:  # messages into existing sessions are decided elsewhere
        return seen
    rules = asker.delegation
    if descent.depth >= rules.depth_max:
        key = f"agents.{asker.name}.delegation.depth_max"
        return _no(f"this work was handed on {descent.depth} times already, and `{key}` is {rules.depth_max}", key)
    circle = [name for name in descent.agents[:-1] if name.casefold() == target.name.casefold()]
    if circle and kind not in SENT_OUT and not rules.circles:
        key = f"agents.{asker.name}.delegation.circles"
        way = " -> ".join((*descent.agents, target.name))
        return _no(f"the work came from {target.name} in the first place ({way}), and `{key}` is off", key)
    if open_count >= rules.open_max:
        key = f"agents.{asker.name}.delegation.open_max"
        return _no(f"{open_count} of what this session has handed out is still open, and `{key}` is its limit", key)
    return Decision(Verdict.ALLOW, seen.because)


def _no(because: str, key: str) -> Decision:
    return Decision(Verdict.DENY, because, key)


def descends(descent: Lineage, asker: Agent, target: Agent, kind: DelegationKind) -> Lineage:
    """Return the lineage of the delegate. None of its limits is wider than the asker's."""
    began = len(descent.agents) == 1
    return Lineage(
        root=descent.root,
        behalf=descent.behalf,
        agents=(*descent.agents, target.name),
        speakers=descent.speakers,
        sent_by=(*descent.sent_by, asker.name) if kind in SENT_OUT else descent.sent_by,
        run_microusd_max=_least(descent.run_microusd_max, asker.cost_microusd_max),
        tree_microusd_max=_least(
            descent.tree_microusd_max,
            asker.tree_microusd_max,
            # The budget of the first run covers everything that descends from it.
            asker.cost_microusd_max if began else None,
        ),
    )


def within(caps: Caps, lineage: Lineage) -> tuple[int | None, int | None]:
    """Return what a run, and the tree below it, may spend: at most what the delegating run may."""
    return (
        _least(caps.run_microusd, lineage.run_microusd_max),
        _least(caps.tree_microusd, lineage.tree_microusd_max),
    )


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)
