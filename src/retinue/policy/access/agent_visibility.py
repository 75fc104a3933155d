"""Decides which other agents an agent may see, message and start, and which sessions its tools show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings, SandboxVisibleSessions
from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, DecisionKind
from retinue.text.glob_match import matches_glob


class SessionVisibility(StrEnum):
    """Which sessions an agent's tools show, from the narrowest level to the widest.

    Each level includes the sessions of the levels before it.
    """

    SPAWNED = "spawned"  # the current session, and the sessions that it started
    OWN = "own"  # all sessions of the agent
    ALL = "all"  # sessions of every agent that it may message


def list_visible_agents(agent: Agent, agents: Iterable[Agent]) -> list[Agent]:
    """Return the agents that an agent sees: those that it may message, in the given order.

    The agent itself is not included.
    """
    return [other for other in agents if may_message(agent, other).is_allowed]


def may_message(agent: Agent, target: Agent) -> Decision:
    """Decide whether an agent may message another.

    No agent may message a hidden agent. The name of any other agent must match `allow` and must not
    match `deny`.
    """
    if _is_same_agent(agent, target):
        return Decision(DecisionKind.DENY, f"{target.name} cannot write to itself")
    if not target.visible:
        key = f"agents.{target.name}.visible"
        return Decision(DecisionKind.DENY, f"{target.name} is hidden by `{key}`", key)
    rules = agent.delegation
    if (denied := _find_matching_glob(rules.deny, target)) is not None:
        key = f"agents.{agent.name}.delegation.deny"
        return Decision(DecisionKind.DENY, f"`{key}` has {denied}, which matches {target.name}", key)
    if _find_matching_glob(rules.allow, target) is None:
        key = f"agents.{agent.name}.delegation.allow"
        return Decision(DecisionKind.DENY, f"`{key}` does not name {target.name}", key)
    return Decision(DecisionKind.ALLOW, f"{agent.name} may write to {target.name}")


def may_spawn(agent: Agent, target: Agent) -> Decision:
    """Decide whether an agent may start another as a subagent.

    An agent may always start itself. It may start another agent if it may message that agent and
    `subagents.allow` matches the name of that agent.
    """
    if _is_same_agent(agent, target):
        return Decision(DecisionKind.ALLOW, f"{agent.name} may start itself as a subagent")
    if _find_matching_glob(agent.subagents.allow, target) is None:
        key = f"agents.{agent.name}.subagents.allow"
        return Decision(DecisionKind.DENY, f"`{key}` does not name {target.name}", key)
    return may_message(agent, target)


def decide_session_visibility(agent: Agent, sandbox: SandboxSettings, *, is_main: bool) -> SessionVisibility:
    """Return which sessions an agent's tools show.

    `sandbox` has the merged settings of the agent. `is_main` means that only the owner writes in the current session.
    If others may write in a sandboxed session, its tools show only the sessions that it started, unless the settings
    say otherwise.
    """
    confined = sandbox.kind is not SandboxKind.OFF and sandbox.mode is not SandboxMode.OFF and not is_main
    if confined and sandbox.visible_sessions is SandboxVisibleSessions.SPAWNED:
        return SessionVisibility.SPAWNED
    return SessionVisibility.ALL if agent.delegation.other_sessions else SessionVisibility.OWN


def may_see_session(agent: Agent, visibility: SessionVisibility, target: Agent, *, is_spawned: bool) -> Decision:
    """Decide whether a session of `target` may be read and written to.

    `is_spawned` means that it is the current session, or that the current session started it.
    """
    if is_spawned:
        return Decision(DecisionKind.ALLOW, "it was started from this session")
    if visibility is SessionVisibility.SPAWNED:
        key = "sandbox.visible_sessions"
        return Decision(
            DecisionKind.DENY, f"with `{key}`, a sandboxed session sees only the sessions that it started", key
        )
    if _is_same_agent(agent, target):
        return Decision(DecisionKind.ALLOW, f"it is another session of {agent.name}")
    if visibility is SessionVisibility.OWN:
        key = f"agents.{agent.name}.delegation.other_sessions"
        return Decision(DecisionKind.DENY, f"it is a session of another agent, and `{key}` is not set", key)
    return may_message(agent, target)


def _is_same_agent(agent: Agent, target: Agent) -> bool:
    return agent.name.casefold() == target.name.casefold()


def _find_matching_glob(globs: Sequence[str], target: Agent) -> str | None:
    return next((glob for glob in globs if matches_glob(glob, target.name)), None)
