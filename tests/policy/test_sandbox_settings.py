"""Test that an agent's sandbox settings apply only where they are stricter than the server's."""

from __future__ import annotations

import pytest

from retinue.config.sandbox import DockerSettings, SandboxKind, SandboxSettings
from retinue.domain.agent import Agent, SandboxRules
from retinue.domain.sandbox import SandboxMode, SandboxScope, SandboxVisibleSessions, WorkspaceAccess
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace
from retinue.policy.tools.sandbox_settings import is_confined, is_main_session, merge_sandbox_settings

LOOSE = SandboxSettings(
    mode=SandboxMode.OFF,
    scope=SandboxScope.SHARED,
    workspace=WorkspaceAccess.WRITE,
    visible_sessions=SandboxVisibleSessions.ALL,
    docker=DockerSettings(cpus=4.0, idle_hours=24.0, age_days=7.0),
)
STRICT = replace(
    LOOSE,
    mode=SandboxMode.ALL,
    scope=SandboxScope.SESSION,
    workspace=WorkspaceAccess.NONE,
    visible_sessions=SandboxVisibleSessions.SPAWNED,
    browser=False,
    docker=DockerSettings(cpus=0.5, idle_hours=1.0, age_days=1.0),
)
STRICT_RULES = SandboxRules(
    mode=SandboxMode.ALL,
    scope=SandboxScope.SESSION,
    workspace=WorkspaceAccess.NONE,
    visible_sessions=SandboxVisibleSessions.SPAWNED,
    browser=False,
    cpus=0.5,
    idle_hours=1.0,
    age_days=1.0,
)
LOOSE_RULES = SandboxRules(
    mode=SandboxMode.OFF,
    scope=SandboxScope.SHARED,
    workspace=WorkspaceAccess.WRITE,
    visible_sessions=SandboxVisibleSessions.ALL,
    browser=True,
    cpus=4.0,
    idle_hours=24.0,
    age_days=7.0,
)


@pytest.mark.spec(
    "C113.sandbox_mode", "C113.sandbox_scope", "C113.sandbox_sessions", "C113.sandbox_docker", "C113.sandbox_prune"
)
@pytest.mark.parametrize(
    ("server", "own", "holds"),
    [
        (LOOSE, STRICT_RULES, STRICT),
        (STRICT, LOOSE_RULES, STRICT),
        (LOOSE, LOOSE_RULES, LOOSE),
        (LOOSE, SandboxRules(), LOOSE),
        (STRICT, SandboxRules(), STRICT),
        (LOOSE, SandboxRules(mode=SandboxMode.NON_MAIN), replace(LOOSE, mode=SandboxMode.NON_MAIN)),
    ],
)
def test_the_stricter_of_server_and_agent_sandbox_settings_applies(
    server: SandboxSettings, own: SandboxRules, holds: SandboxSettings
) -> None:
    assert merge_sandbox_settings(server, Agent(name="ada", sandbox=own)) == holds


def test_the_sandbox_image_of_the_agent_overrides_the_server_image() -> None:
    assert (
        merge_sandbox_settings(STRICT, Agent(name="ada", sandbox=SandboxRules(image="own:1"))).docker.image == "own:1"
    )
    assert (
        merge_sandbox_settings(STRICT, Agent(name="ada", sandbox=SandboxRules(cpus=0.1))).docker.image
        == STRICT.docker.image
    )


def test_only_the_owners_terminal_session_is_outside_the_sandbox_in_non_main_mode() -> None:
    assert is_main_session(Origin(OriginKind.TERMINAL, "person:owner/work"), "person:owner")
    assert not is_main_session(Origin(OriginKind.TERMINAL, "person:maria"), "person:owner")
    assert not is_main_session(Origin(OriginKind.CHAT, "channel:quiet:1"), "person:owner")
    non_main = replace(LOOSE, mode=SandboxMode.NON_MAIN)
    assert [is_confined(non_main, is_main=main) for main in (True, False)] == [False, True]
    assert [is_confined(STRICT, is_main=main) for main in (True, False)] == [True, True]
    assert not is_confined(LOOSE, is_main=False)
    assert not is_confined(replace(STRICT, kind=SandboxKind.OFF), is_main=False)


def test_a_subagent_gets_the_stricter_sandbox_of_itself_and_its_parent() -> None:
    loose, strict = Agent(name="bo", sandbox=LOOSE_RULES), Agent(name="ada", sandbox=STRICT_RULES)
    assert merge_sandbox_settings(LOOSE, loose, strict) == STRICT
    assert merge_sandbox_settings(LOOSE, strict, loose) == STRICT
    assert merge_sandbox_settings(LOOSE, loose) == LOOSE
