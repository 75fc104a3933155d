"""Test which agents an agent can see, write to and start. Each refusal names the setting that caused it."""

from __future__ import annotations

import pytest

from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings, SandboxVisibleSessions
from retinue.domain.agent import Agent, DelegationRules, SubagentRules
from retinue.policy.access.agent_visibility import (
    SessionVisibility,
    decide_session_visibility,
    list_visible_agents,
    may_message,
    may_see_session,
    may_spawn,
)

BO, CLERK, NIGHT = Agent(name="bo"), Agent(name="clerk"), Agent(name="night-clerk")
GHOST = Agent(name="ghost", visible=False)


def make_ada(*, allow: tuple[str, ...] = ("*",), deny: tuple[str, ...] = (), spawns: tuple[str, ...] = ()) -> Agent:
    return Agent(name="ada", delegation=DelegationRules(allow=allow, deny=deny), subagents=SubagentRules(allow=spawns))


AGENTS = [make_ada(), BO, CLERK, GHOST, NIGHT]


@pytest.mark.parametrize(
    ("allow", "deny", "seen"),
    [
        (("*",), (), ["bo", "clerk", "night-clerk"]),
        ((), (), []),
        (("bo",), (), ["bo"]),
        (("BO",), (), ["bo"]),
        (("*clerk",), (), ["clerk", "night-clerk"]),
        (("*",), ("*clerk",), ["bo"]),
        (("bo",), ("b*",), []),
        (("b?",), (), []),  # only * is special
        (("ghost", "ada"), (), []),
    ],
)
def test_an_agent_sees_the_agents_its_globs_allow_except_hidden_ones(
    allow: tuple[str, ...], deny: tuple[str, ...], seen: list[str]
) -> None:
    asker = make_ada(allow=allow, deny=deny)
    assert [agent.name for agent in list_visible_agents(asker, AGENTS)] == seen
    assert [agent.name for agent in AGENTS if may_message(asker, agent).is_allowed] == seen


@pytest.mark.parametrize(
    ("asker", "target", "key"),
    [
        (make_ada(deny=("b*",)), BO, "agents.ada.delegation.deny"),
        (make_ada(allow=()), BO, "agents.ada.delegation.allow"),
        (make_ada(), GHOST, "agents.ghost.visible"),
        (make_ada(allow=(), deny=("*",)), GHOST, "agents.ghost.visible"),
        (make_ada(), make_ada(), ""),
    ],
)
def test_agent_visibility_names_the_setting_that_denies_an_agent_message(asker: Agent, target: Agent, key: str) -> None:
    decision = may_message(asker, target)
    assert decision.is_denied
    assert decision.setting_key == key
    assert key in decision.because and target.name in decision.because


@pytest.mark.parametrize(
    ("asker", "target", "key"),
    [
        (make_ada(), make_ada(), None),
        (make_ada(), Agent(name="ADA"), None),
        (make_ada(), BO, "agents.ada.subagents.allow"),
        (make_ada(spawns=("clerk",)), BO, "agents.ada.subagents.allow"),
        (make_ada(spawns=("b*",)), BO, None),
        (make_ada(spawns=("*",)), NIGHT, None),
        (make_ada(spawns=("*",)), GHOST, "agents.ghost.visible"),
        (make_ada(spawns=("*",), deny=("bo",)), BO, "agents.ada.delegation.deny"),
    ],
)
def test_agent_visibility_lets_an_agent_spawn_itself_and_the_allowed_agents(
    asker: Agent, target: Agent, key: str | None
) -> None:
    decision = may_spawn(asker, target)
    assert decision.is_allowed is (key is None)
    assert decision.setting_key == (key or "")
    assert (key or "") in decision.because


@pytest.mark.parametrize(
    ("sandbox", "main", "sight"),
    [
        (SandboxSettings(), False, SessionVisibility.SPAWNED),
        (SandboxSettings(mode=SandboxMode.NON_MAIN), False, SessionVisibility.SPAWNED),
        (SandboxSettings(mode=SandboxMode.NON_MAIN), True, SessionVisibility.OWN),
        (SandboxSettings(), True, SessionVisibility.OWN),
        (SandboxSettings(mode=SandboxMode.OFF), False, SessionVisibility.OWN),
        (SandboxSettings(kind=SandboxKind.OFF), False, SessionVisibility.OWN),
        (SandboxSettings(visible_sessions=SandboxVisibleSessions.ALL), False, SessionVisibility.OWN),
    ],
)
def test_a_sandboxed_session_sees_only_the_sessions_it_spawned(
    sandbox: SandboxSettings, main: bool, sight: SessionVisibility
) -> None:
    assert decide_session_visibility(make_ada(), sandbox, is_main=main) is sight
    wide = Agent(name="ada", delegation=DelegationRules(other_sessions=True))
    assert decide_session_visibility(wide, sandbox, is_main=main) is (
        SessionVisibility.SPAWNED if sight is SessionVisibility.SPAWNED else SessionVisibility.ALL
    )


@pytest.mark.parametrize(
    ("sight", "target", "spawned", "key"),
    [
        (SessionVisibility.SPAWNED, BO, True, None),
        (SessionVisibility.SPAWNED, make_ada(), False, "sandbox.visible_sessions"),
        (SessionVisibility.SPAWNED, BO, False, "sandbox.visible_sessions"),
        (SessionVisibility.OWN, make_ada(), False, None),
        (SessionVisibility.OWN, BO, True, None),
        (SessionVisibility.OWN, BO, False, "agents.ada.delegation.other_sessions"),
        (SessionVisibility.ALL, BO, False, None),
        (SessionVisibility.ALL, CLERK, False, "agents.ada.delegation.deny"),
    ],
)
def test_session_visibility_decides_which_sessions_an_agent_may_see(
    sight: SessionVisibility, target: Agent, spawned: bool, key: str | None
) -> None:
    decision = may_see_session(make_ada(deny=("clerk",)), sight, target, is_spawned=spawned)
    assert decision.is_allowed is (key is None)
    assert decision.setting_key == (key or "")
    assert (key or "") in decision.because
