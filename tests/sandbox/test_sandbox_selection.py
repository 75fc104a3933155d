"""Which sandbox a command runs in, and what it may access there."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.sandbox import (
    CommandLimitSettings,
    SandboxKind,
    SandboxMode,
    SandboxScope,
    SandboxSettings,
    WorkspaceAccess,
)
from retinue.domain.decision import DecisionKind
from retinue.domain.permission import AgentRights
from retinue.domain.session import OriginKind
from retinue.sandbox.base import MIB, Confinement, NetworkAccess, ResourceLimits, SandboxFailed, SandboxProbe
from retinue.sandbox.confinement import CommandFacts, RequestedConfinement, build_confinement, tighten_confinement
from retinue.sandbox.sandbox_selection import choose_sandbox

AGENTS_DIRECTORY = Path("/data/agents")
WORKSPACE = AGENTS_DIRECTORY / "ada/workspace"
WORKING_PROBES = {SandboxKind.BUBBLEWRAP: SandboxProbe(True), SandboxKind.DOCKER: SandboxProbe(True)}


def make_facts(**changed: object) -> CommandFacts:
    parts: dict[str, object] = {
        "agent": "ada",
        "session": "s1",
        "origin": OriginKind.TERMINAL,
        "is_for_owner": True,
        "rights": AgentRights(workspace=WORKSPACE),
        "agent_directory": AGENTS_DIRECTORY / "ada",
        "agents_directory": AGENTS_DIRECTORY,
    }
    return CommandFacts(**(parts | changed))  # pyright: ignore[reportArgumentType]


@pytest.mark.spec("C63", "C114.sandbox")
@pytest.mark.parametrize(
    ("mode", "origin", "owner", "confined"),
    [
        (SandboxMode.ALL, OriginKind.TERMINAL, True, True),
        (SandboxMode.ALL, OriginKind.CHAT, False, True),
        (SandboxMode.NON_MAIN, OriginKind.TERMINAL, True, False),
        (SandboxMode.NON_MAIN, OriginKind.WEB, True, False),
        (SandboxMode.NON_MAIN, OriginKind.TERMINAL, False, True),
        (SandboxMode.NON_MAIN, OriginKind.CHAT, True, True),
        (SandboxMode.NON_MAIN, OriginKind.SUBAGENT, True, True),
        (SandboxMode.NON_MAIN, OriginKind.SCHEDULE, True, True),
        (SandboxMode.OFF, OriginKind.SUBAGENT, False, False),
    ],
)
def test_the_sandbox_mode_decides_which_commands_are_confined(
    mode: SandboxMode, origin: OriginKind, owner: bool, confined: bool
) -> None:
    choice = choose_sandbox(SandboxSettings(mode=mode), make_facts(origin=origin, is_for_owner=owner), WORKING_PROBES)
    assert (choice.kind is SandboxKind.BUBBLEWRAP) is confined
    assert choice.decision.kind is DecisionKind.ALLOW
    assert choice.decision.because


def test_without_a_working_sandbox_a_command_needs_approval_to_run_unconfined() -> None:
    for probes in ({}, {SandboxKind.BUBBLEWRAP: SandboxProbe(False, "no user namespaces")}):
        choice = choose_sandbox(SandboxSettings(), make_facts(), probes)
        assert choice.decision.kind is DecisionKind.ASK
        assert choice.kind is SandboxKind.OFF
    bare = choose_sandbox(SandboxSettings(kind=SandboxKind.OFF), make_facts(), {})
    assert bare.decision.kind is DecisionKind.ALLOW  # an explicit setting
    assert "off" in bare.decision.because


def test_a_sandbox_that_does_not_work_is_not_replaced_by_another_kind() -> None:
    choice = choose_sandbox(
        SandboxSettings(kind=SandboxKind.DOCKER), make_facts(), {SandboxKind.BUBBLEWRAP: SandboxProbe(True)}
    )
    assert choice.decision.kind is DecisionKind.ASK


@pytest.mark.spec("C63", "C113.sandbox_scope")
def test_the_sandbox_scope_decides_who_shares_a_container() -> None:
    keys = {
        scope: choose_sandbox(SandboxSettings(scope=scope), make_facts(), WORKING_PROBES).key for scope in SandboxScope
    }
    assert keys == {SandboxScope.SESSION: "session:s1", SandboxScope.AGENT: "agent:ada", SandboxScope.SHARED: "shared"}


@pytest.mark.spec("C63")
@pytest.mark.parametrize("configured", WorkspaceAccess)
@pytest.mark.parametrize("asked", [None, *WorkspaceAccess])
def test_a_sandboxed_command_gets_the_stricter_of_configured_and_requested_workspace_access(
    configured: WorkspaceAccess, asked: WorkspaceAccess | None
) -> None:
    made = build_confinement(SandboxSettings(workspace=configured), make_facts(), RequestedConfinement(workspace=asked))
    both = {configured, asked or configured}
    if WorkspaceAccess.NONE in both:
        assert WORKSPACE not in (*made.writable, *made.readable)
        assert made.folder == Path("/tmp")
    elif WorkspaceAccess.READ in both:
        assert WORKSPACE in made.readable and WORKSPACE not in made.writable
    else:
        assert WORKSPACE in made.writable


def test_a_folder_right_inside_the_workspace_does_not_widen_workspace_access_in_the_sandbox() -> None:
    rights = AgentRights(workspace=WORKSPACE, write=(WORKSPACE / "sub", Path("/data")), read=(WORKSPACE / "more",))
    shut = build_confinement(
        SandboxSettings(workspace=WorkspaceAccess.NONE), make_facts(rights=rights), RequestedConfinement()
    )
    assert shut.writable == (Path("/data"),) and shut.readable == ()
    read = build_confinement(
        SandboxSettings(workspace=WorkspaceAccess.READ), make_facts(rights=rights), RequestedConfinement()
    )
    assert read.writable == (Path("/data"),) and read.readable == (WORKSPACE,)


def test_the_sandbox_refuses_the_directory_of_another_agent_even_if_it_was_granted() -> None:
    for rights in (
        AgentRights(workspace=WORKSPACE, read=(AGENTS_DIRECTORY / "ben",)),
        AgentRights(workspace=WORKSPACE, write=(AGENTS_DIRECTORY / "ben/workspace",)),
        AgentRights(workspace=AGENTS_DIRECTORY / "ben/workspace"),
        AgentRights(workspace=WORKSPACE, read=(AGENTS_DIRECTORY,)),
    ):
        with pytest.raises(SandboxFailed):
            build_confinement(SandboxSettings(), make_facts(rights=rights), RequestedConfinement())
    build_confinement(
        SandboxSettings(),
        make_facts(rights=AgentRights(workspace=WORKSPACE, read=(AGENTS_DIRECTORY / "ada/SOUL.md",))),
        RequestedConfinement(),
    )


@pytest.mark.spec("D50.exec")
def test_network_access_in_the_sandbox_needs_host_rules_and_the_web_right() -> None:
    settings = SandboxSettings(hosts=("pypi.org", "*.example.com"), private_hosts=("nas.lan",))
    web = AgentRights(workspace=WORKSPACE, web=True)
    assert build_confinement(settings, make_facts(), RequestedConfinement()).network is None
    assert build_confinement(SandboxSettings(), make_facts(rights=web), RequestedConfinement()).network is None
    network = build_confinement(settings, make_facts(rights=web), RequestedConfinement()).network
    assert network is not None and network.hosts == settings.hosts
    narrowed = build_confinement(
        settings,
        make_facts(rights=web),
        RequestedConfinement(hosts=("pypi.org:443", "a.example.com", "evil.org", "*.com", "pypi.org:22")),
    ).network
    assert narrowed is not None and narrowed.hosts == ("pypi.org:443", "a.example.com")
    assert build_confinement(settings, make_facts(rights=web), RequestedConfinement(hosts=())).network is None


def test_a_call_can_shorten_and_not_extend_the_time_limit_of_its_sandbox() -> None:
    settings = SandboxSettings(limits=CommandLimitSettings(seconds=100, memory_mib=64))
    assert build_confinement(settings, make_facts(), RequestedConfinement(seconds=5)).limits.seconds == 5
    assert build_confinement(settings, make_facts(), RequestedConfinement(seconds=500)).limits.seconds == 100
    assert build_confinement(settings, make_facts(), RequestedConfinement()).limits.memory_bytes == 64 * MIB


@pytest.mark.parametrize("access", WorkspaceAccess)
def test_a_given_sandbox_confinement_is_tightened_to_what_the_settings_allow(access: WorkspaceAccess) -> None:
    settings = SandboxSettings(
        workspace=access, hosts=("pypi.org",), limits=CommandLimitSettings(seconds=100, memory_mib=64, processes=50)
    )
    asked = Confinement(
        folder=WORKSPACE / "sub",
        writable=(WORKSPACE, Path("/data")),
        readable=(Path("/books"),),
        network=NetworkAccess(hosts=("pypi.org", "evil.org")),
        limits=ResourceLimits(seconds=5, processes=500),
    )
    made = tighten_confinement(settings, make_facts(rights=AgentRights(workspace=WORKSPACE, web=True)), asked)
    assert Path("/data") in made.writable and Path("/books") in made.readable
    assert (WORKSPACE in made.writable) is (access is WorkspaceAccess.WRITE)
    assert (WORKSPACE in made.readable) is (access is WorkspaceAccess.READ)
    assert made.folder == (Path("/tmp") if access is WorkspaceAccess.NONE else WORKSPACE / "sub")
    assert made.network is not None and made.network.hosts == ("pypi.org",)
    assert (made.limits.seconds, made.limits.processes, made.limits.memory_bytes) == (5, 50, 64 * MIB)
    assert tighten_confinement(settings, make_facts(), asked).network is None  # no permission for the web
    with pytest.raises(SandboxFailed):
        tighten_confinement(settings, make_facts(), Confinement(folder=WORKSPACE, readable=(AGENTS_DIRECTORY / "ben",)))
