"""Decides which agents an agent sees, may message and may spawn, and which sessions its tools show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings, SessionsSeen
from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, Verdict
from retinue.text.glob_match import matches_glob


class Sight(StrEnum):
    """Which sessions an agent's tools show it, from narrowest. Each level includes those before it."""

    SPAWNED = "spawned"  # the current session, and those it spawned
    OWN = "own"  # all sessions of the agent
    ALL = "all"  # sessions of every agent that it may message


def visible_to(agent: Agent, staff: Iterable[Agent]) -> list[Agent]:
    """Return the agents that an agent is shown: those it may message, in their order. It is not among them itself."""
    return [other for other in staff if may_message(agent, other).allowed]


def may_message(agent: Agent, target: Agent) -> Decision:
    """Decide whether an agent may message another.

    Hidden agents are hidden from all. Then deny wins, and `allow` must match.
    """
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
    """Decide whether an agent may spawn another.

    Itself: always. Others: if `subagents.allow` names them and it may message them.
    """
    if _same(agent, target):
        return Decision(Verdict.ALLOW, f"{agent.name} sends out itself")
    if _fitting(agent.subagents.allow, target) is None:
        key = f"agents.{agent.name}.subagents.allow"
        return Decision(Verdict.DENY, f"`{key}` does not name {target.name}", key)
    return may_message(agent, target)


def sessions_seen(agent: Agent, sandbox: SandboxSettings, *, main: bool) -> Sight:
    """Return which sessions an agent's tools show it.

    `sandbox` is the agent's own setting. `is_main`: the owner takes part in the session that asks.
    Others may write in a sandboxed session, so it is shown only the sessions that it spawned.
    """
    confined = sandbox.kind is not SandboxKind.OFF and sandbox.mode is not SandboxMode.OFF and not main
    if confined and sandbox.sessions is SessionsSeen.SPAWNED:
        return Sight.SPAWNED
    return Sight.ALL if agent.delegation.histories else Sight.OWN


def may_see(agent: Agent, sight: Sight, target: Agent, *, spawned: bool) -> Decision:
    """Decide whether a session of `target` may be read and written to.

    `is_spawned`: it is the session that asks, or was spawned by it.
    """
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
