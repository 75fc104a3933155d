"""Whom an agent sees, writes to and sends out. Each refusal names the setting that makes it."""

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


def ada(*, allow: tuple[str, ...] = ("*",), deny: tuple[str, ...] = (), spawns: tuple[str, ...] = ()) -> Agent:
    return Agent(name="ada", delegation=DelegationRules(allow=allow, deny=deny), subagents=SubagentRules(allow=spawns))


STAFF = [ada(), BO, CLERK, GHOST, NIGHT]


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
def test_an_agent_sees_whom_its_globs_allow_and_nobody_hidden(
    allow: tuple[str, ...], deny: tuple[str, ...], seen: list[str]
) -> None:
    asker = ada(allow=allow, deny=deny)
    assert [agent.name for agent in list_visible_agents(asker, STAFF)] == seen
    assert [agent.name for agent in STAFF if may_message(asker, agent).is_allowed] == seen


@pytest.mark.parametrize(
    ("asker", "target", "key"),
    [
        (ada(deny=("b*",)), BO, "agents.ada.delegation.deny"),
        (ada(allow=()), BO, "agents.ada.delegation.allow"),
        (ada(), GHOST, "agents.ghost.visible"),
        (ada(allow=(), deny=("*",)), GHOST, "agents.ghost.visible"),
        (ada(), ada(), ""),
    ],
)
def test_a_refusal_to_write_names_the_setting(asker: Agent, target: Agent, key: str) -> None:
    decision = may_message(asker, target)
    assert decision.is_denied
    assert decision.setting_key == key
    assert key in decision.because and target.name in decision.because


@pytest.mark.parametrize(
    ("asker", "target", "key"),
    [
        (ada(), ada(), None),
        (ada(), Agent(name="ADA"), None),
        (ada(), BO, "agents.ada.subagents.allow"),
        (ada(spawns=("clerk",)), BO, "agents.ada.subagents.allow"),
        (ada(spawns=("b*",)), BO, None),
        (ada(spawns=("*",)), NIGHT, None),
        (ada(spawns=("*",)), GHOST, "agents.ghost.visible"),
        (ada(spawns=("*",), deny=("bo",)), BO, "agents.ada.delegation.deny"),
    ],
)
def test_an_agent_sends_out_itself_and_whom_it_is_allowed(asker: Agent, target: Agent, key: str | None) -> None:
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
        (SandboxSettings(sessions=SandboxVisibleSessions.ALL), False, SessionVisibility.OWN),
    ],
)
def test_a_sandboxed_session_sees_only_those_it_has_sent_out(
    sandbox: SandboxSettings, main: bool, sight: SessionVisibility
) -> None:
    assert decide_session_visibility(ada(), sandbox, is_main=main) is sight
    wide = Agent(name="ada", delegation=DelegationRules(histories=True))
    assert decide_session_visibility(wide, sandbox, is_main=main) is (
        SessionVisibility.SPAWNED if sight is SessionVisibility.SPAWNED else SessionVisibility.ALL
    )


@pytest.mark.parametrize(
    ("sight", "target", "spawned", "key"),
    [
        (SessionVisibility.SPAWNED, BO, True, None),
        (SessionVisibility.SPAWNED, ada(), False, "sandbox.sessions"),
        (SessionVisibility.SPAWNED, BO, False, "sandbox.sessions"),
        (SessionVisibility.OWN, ada(), False, None),
        (SessionVisibility.OWN, BO, True, None),
        (SessionVisibility.OWN, BO, False, "agents.ada.delegation.histories"),
        (SessionVisibility.ALL, BO, False, None),
        (SessionVisibility.ALL, CLERK, False, "agents.ada.delegation.deny"),
    ],
)
def test_a_session_is_seen_as_far_as_the_sight_goes(
    sight: SessionVisibility, target: Agent, spawned: bool, key: str | None
) -> None:
    decision = may_see_session(ada(deny=("clerk",)), sight, target, is_spawned=spawned)
    assert decision.is_allowed is (key is None)
    assert decision.setting_key == (key or "")
    assert (key or "") in decision.because
