"""Whom of the staff an agent sees, may write to and may send out, and which sessions its tools tell it of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings, SessionsSeen
from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, Verdict
from retinue.text.glob_match import matches_glob


class Sight(StrEnum):
    """Which sessions an agent's tools tell it of, from narrowest. Each has those before it."""

    SPAWNED = "spawned"  # this one, and those that were sent out from it
    OWN = "own"  # the agent's
    ALL = "all"  # every agent's that it may write to


def visible_to(agent: Agent, staff: Iterable[Agent]) -> list[Agent]:
    """Whom an agent is told of: those it may write to, in the order of the staff. Itself is not among them."""
    return [other for other in staff if may_message(agent, other).allowed]


def may_message(agent: Agent, target: Agent) -> Decision:
    """What is hidden stays hidden from all; then deny wins, and what `allow` does not name is not written to."""
    if _same(agent, target):
        return Decision(Verdict.DENY, f"{target.name} is who asks, and nobody writes to itself")
    if not target.visible:
        key = f"agents.{target.name}.visible"
        return Decision(Verdict.DENY, f"{target.name} is hidden by `{key}`", key)
    rules = agent.delegation
    if (denied := _fitting(rules.deny, target)) is not None:
        key = f"agents.{agent.name}.delegation.deny"
        return Decision(Verdict.DENY, f"`{key}` has {denied}, which fits {target.name}", key)
    if _fitting(rules.allow, target) is None:
        key = f"agents.{agent.name}.delegation.allow"
        return Decision(Verdict.DENY, f"`{key}` does not name {target.name}", key)
    return Decision(Verdict.ALLOW, f"{agent.name} may write to {target.name}")


def may_spawn(agent: Agent, target: Agent) -> Decision:
    """Everyone may send out themselves. Of others, those in `subagents.allow` whom one may write to as well."""
    if _same(agent, target):
        return Decision(Verdict.ALLOW, f"{agent.name} sends out itself")
    if _fitting(agent.subagents.allow, target) is None:
        key = f"agents.{agent.name}.subagents.allow"
        return Decision(Verdict.DENY, f"`{key}` does not name {target.name}", key)
    return may_message(agent, target)


def sessions_seen(agent: Agent, sandbox: SandboxSettings, *, main: bool) -> Sight:
    """`sandbox` is the agent's own, `main` whether the owner sits before the session that asks.

    In a sandboxed session others may speak, so it is told only of what it has sent out itself.
    """
    confined = sandbox.kind is not SandboxKind.OFF and sandbox.mode is not SandboxMode.OFF and not main
    if confined and sandbox.sessions is SessionsSeen.SPAWNED:
        return Sight.SPAWNED
    return Sight.ALL if agent.delegation.histories else Sight.OWN


def may_see(agent: Agent, sight: Sight, target: Agent, *, spawned: bool) -> Decision:
    """Whether a session of `target` may be looked into and written to. `spawned`: it is the one that asks, or was sent
    out from it."""
    if spawned:
        return Decision(Verdict.ALLOW, "it was sent out from this session")
    if sight is Sight.SPAWNED:
        key = "sandbox.sessions"
        return Decision(Verdict.DENY, f"a sandboxed session sees only those it has sent out, by `{key}`", key)
    if _same(agent, target):
        return Decision(Verdict.ALLOW, f"it is a session of {agent.name}'s own")
    if sight is Sight.OWN:
        key = f"agents.{agent.name}.delegation.histories"
        return Decision(Verdict.DENY, f"it is a session of another agent, and `{key}` is not set", key)
    return may_message(agent, target)


def _same(agent: Agent, target: Agent) -> bool:
    return agent.name.casefold() == target.name.casefold()


def _fitting(globs: Sequence[str], target: Agent) -> str | None:
    return next((glob for glob in globs if matches_glob(glob, target.name)), None)
