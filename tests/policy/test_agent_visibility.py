"""Whom an agent sees, writes to and sends out. Each refusal names the setting that makes it."""

from __future__ import annotations

import pytest

from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings, SessionsSeen
from retinue.domain.agent import Agent, DelegationRules, SubagentRules
from retinue.policy.access.agent_visibility import Sight, may_message, may_see, may_spawn, sessions_seen, visible_to

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
    assert [agent.name for agent in visible_to(asker, STAFF)] == seen
    assert [agent.name for agent in STAFF if may_message(asker, agent).allowed] == seen


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
    assert decision.denied
    assert decision.key == key
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
    assert decision.allowed is (key is None)
    assert decision.key == (key or "")
    assert (key or "") in decision.because


@pytest.mark.parametrize(
    ("sandbox", "main", "sight"),
    [
        (SandboxSettings(), False, Sight.SPAWNED),
        (SandboxSettings(mode=SandboxMode.NON_MAIN), False, Sight.SPAWNED),
        (SandboxSettings(mode=SandboxMode.NON_MAIN), True, Sight.OWN),
        (SandboxSettings(), True, Sight.OWN),
        (SandboxSettings(mode=SandboxMode.OFF), False, Sight.OWN),
        (SandboxSettings(kind=SandboxKind.OFF), False, Sight.OWN),
        (SandboxSettings(sessions=SessionsSeen.ALL), False, Sight.OWN),
    ],
)
def test_a_sandboxed_session_sees_only_those_it_has_sent_out(
    sandbox: SandboxSettings, main: bool, sight: Sight
) -> None:
    assert sessions_seen(ada(), sandbox, main=main) is sight
    wide = Agent(name="ada", delegation=DelegationRules(histories=True))
    assert sessions_seen(wide, sandbox, main=main) is (Sight.SPAWNED if sight is Sight.SPAWNED else Sight.ALL)


@pytest.mark.parametrize(
    ("sight", "target", "spawned", "key"),
    [
        (Sight.SPAWNED, BO, True, None),
        (Sight.SPAWNED, ada(), False, "sandbox.sessions"),
        (Sight.SPAWNED, BO, False, "sandbox.sessions"),
        (Sight.OWN, ada(), False, None),
        (Sight.OWN, BO, True, None),
        (Sight.OWN, BO, False, "agents.ada.delegation.histories"),
        (Sight.ALL, BO, False, None),
        (Sight.ALL, CLERK, False, "agents.ada.delegation.deny"),
    ],
)
def test_a_session_is_seen_as_far_as_the_sight_goes(
    sight: Sight, target: Agent, spawned: bool, key: str | None
) -> None:
    decision = may_see(ada(deny=("clerk",)), sight, target, spawned=spawned)
    assert decision.allowed is (key is None)
    assert decision.key == (key or "")
    assert (key or "") in decision.because
