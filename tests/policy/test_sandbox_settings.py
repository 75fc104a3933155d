"""An agent's own word on its sandbox counts where it is stricter than the house's, and never where it is looser."""

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
    sessions=SandboxVisibleSessions.ALL,
    docker=DockerSettings(cpus=4.0, idle_hours=24.0, age_days=7.0),
)
STRICT = replace(
    LOOSE,
    mode=SandboxMode.ALL,
    scope=SandboxScope.SESSION,
    workspace=WorkspaceAccess.NONE,
    sessions=SandboxVisibleSessions.SPAWNED,
    browser=False,
    docker=DockerSettings(cpus=0.5, idle_hours=1.0, age_days=1.0),
)
AS_STRICT = SandboxRules(
    mode=SandboxMode.ALL,
    scope=SandboxScope.SESSION,
    workspace=WorkspaceAccess.NONE,
    sessions=SandboxVisibleSessions.SPAWNED,
    browser=False,
    cpus=0.5,
    idle_hours=1.0,
    age_days=1.0,
)
AS_LOOSE = SandboxRules(
    mode=SandboxMode.OFF,
    scope=SandboxScope.SHARED,
    workspace=WorkspaceAccess.WRITE,
    sessions=SandboxVisibleSessions.ALL,
    browser=True,
    cpus=4.0,
    idle_hours=24.0,
    age_days=7.0,
)


@pytest.mark.spec(
    "C113.sandbox_mode", "C113.sandbox_scope", "C113.sandbox_sessions", "C113.sandbox_docker", "C113.sandbox_prune"
)
@pytest.mark.parametrize(
    ("house", "own", "holds"),
    [
        (LOOSE, AS_STRICT, STRICT),
        (STRICT, AS_LOOSE, STRICT),
        (LOOSE, AS_LOOSE, LOOSE),
        (LOOSE, SandboxRules(), LOOSE),
        (STRICT, SandboxRules(), STRICT),
        (LOOSE, SandboxRules(mode=SandboxMode.NON_MAIN), replace(LOOSE, mode=SandboxMode.NON_MAIN)),
    ],
)
def test_of_two_words_the_stricter_holds(house: SandboxSettings, own: SandboxRules, holds: SandboxSettings) -> None:
    assert merge_sandbox_settings(house, Agent(name="ada", sandbox=own)) == holds


def test_an_image_is_neither_stricter_nor_looser_and_the_agents_is_taken() -> None:
    assert (
        merge_sandbox_settings(STRICT, Agent(name="ada", sandbox=SandboxRules(image="own:1"))).docker.image == "own:1"
    )
    assert (
        merge_sandbox_settings(STRICT, Agent(name="ada", sandbox=SandboxRules(cpus=0.1))).docker.image
        == STRICT.docker.image
    )


def test_who_sits_before_a_session_says_whether_it_is_confined() -> None:
    assert is_main_session(Origin(OriginKind.TERMINAL, "person:owner/work"), "person:owner")
    assert not is_main_session(Origin(OriginKind.TERMINAL, "person:maria"), "person:owner")
    assert not is_main_session(Origin(OriginKind.CHAT, "channel:quiet:1"), "person:owner")
    non_main = replace(LOOSE, mode=SandboxMode.NON_MAIN)
    assert [is_confined(non_main, is_main=main) for main in (True, False)] == [False, True]
    assert [is_confined(STRICT, is_main=main) for main in (True, False)] == [True, True]
    assert not is_confined(LOOSE, is_main=False)
    assert not is_confined(replace(STRICT, kind=SandboxKind.OFF), is_main=False)


def test_one_who_was_sent_out_is_as_confined_as_whoever_sent_it() -> None:
    loose, strict = Agent(name="bo", sandbox=AS_LOOSE), Agent(name="ada", sandbox=AS_STRICT)
    assert merge_sandbox_settings(LOOSE, loose, strict) == STRICT
    assert merge_sandbox_settings(LOOSE, strict, loose) == STRICT
    assert merge_sandbox_settings(LOOSE, loose) == LOOSE
