"""Where `exec` runs under the sandbox settings."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tools.shell_tools import ToolSetup, open_shell_tools, shared_sandbox

from retinue.config.sandbox import (
    DockerSettings,
    SandboxKind,
    SandboxMode,
    SandboxSettings,
    SecretRule,
    WorkspaceAccess,
)
from retinue.config.secret import SecretReference
from retinue.domain.decision import DecisionKind
from retinue.domain.permission import WEB_PERMISSION, add_permissions
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.policy.tools.exec_placement import CommandLocation, ExecPolicy
from retinue.sandbox.base import Confinement, NetworkAccess, Sandbox, SandboxProbe
from retinue.sandbox.host import HostSandbox
from retinue.tools.base import ToolFailed
from retinue.tools.shell.exec_tool import ExecArguments, ExecRules, ExecTool
from retinue.tools.shell.sandbox_choice import SandboxChooser


@dataclass
class SandboxedServer:
    setup: ToolSetup
    settings: SandboxSettings = field(default_factory=SandboxSettings)
    owner: bool = True
    scopes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.sandbox_chooser = SandboxChooser(
            settings=lambda: self.settings,
            host=HostSandbox(),
            bubblewrap=shared_sandbox(),
            container=self.container,
            agents_directory=self.setup.folder / "homes",
            is_owner=lambda _: self.owner,
            environment={"ACME_TOKEN": "canary-4711"},
        )
        rules = ExecRules(
            policy=lambda tool_context: self.sandbox_chooser.adapt_policy(tool_context, self.setup.policy),
            gates=lambda _: self.setup.gates,
            sandbox_works=self.sandbox_chooser.has_sandbox,
        )
        self.setup.exec = ExecTool(
            jobs=self.setup.jobs,
            store=self.setup.store,
            clock=self.setup.clock,
            place_command=self.sandbox_chooser,
            rules=rules,
            withheld=self.setup.withheld,
        )

    def container(self, key: str, docker: DockerSettings | None) -> Sandbox:
        self.scopes.append(key)
        return shared_sandbox()

    def decision_kind(self, command: str, **tool_context: object) -> DecisionKind:
        return self.setup.exec.decide_sandbox(
            ExecArguments(command=command), self.setup.tool_context(**tool_context)
        ).kind


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[SandboxedServer]:
    async with open_shell_tools(tmp_path) as setup:
        server = SandboxedServer(setup)
        await server.sandbox_chooser.probe()
        yield server


async def test_exec_runs_in_the_configured_sandbox(server: SandboxedServer) -> None:
    canary = server.setup.folder / "canary"
    canary.write_text("seen")

    assert "seen" not in (await server.setup.run(f"cat {canary}; echo end")).text
    server.settings = SandboxSettings(kind=SandboxKind.DOCKER)
    await server.sandbox_chooser.probe()
    await server.setup.run("true")
    assert server.scopes[-1].startswith(("session:", "agent:", "shared"))


async def test_exec_without_a_sandbox_by_settings_follows_the_host_rules(server: SandboxedServer) -> None:
    assert server.decision_kind("ls") is DecisionKind.ALLOW
    server.settings = SandboxSettings(kind=SandboxKind.OFF)
    assert server.decision_kind("ls") is DecisionKind.ASK
    server.settings = SandboxSettings(mode=SandboxMode.NON_MAIN)
    assert server.decision_kind("ls") is DecisionKind.ASK
    assert server.decision_kind("ls", origin=OriginKind.CHAT) is DecisionKind.ALLOW
    server.owner = False
    assert server.decision_kind("ls") is DecisionKind.ALLOW


@pytest.mark.spec("C60")
async def test_a_sandbox_that_was_not_probed_does_not_count_as_a_sandbox_for_exec(server: SandboxedServer) -> None:
    server.settings = SandboxSettings(kind=SandboxKind.DOCKER)
    assert server.decision_kind("ls") is DecisionKind.ASK
    await server.sandbox_chooser.probe()
    assert server.decision_kind("ls") is DecisionKind.ALLOW


async def test_exec_follows_the_configured_workspace_access(server: SandboxedServer) -> None:
    command = "touch made && ls -a"
    server.settings = SandboxSettings(workspace=WorkspaceAccess.READ)
    assert (await server.setup.run(command)).failed
    server.settings = SandboxSettings(workspace=WorkspaceAccess.NONE)
    assert (await server.setup.run("pwd")).text.endswith("/tmp\n")
    assert not (server.setup.workspace / "made").exists()
    server.settings = SandboxSettings()
    assert not (await server.setup.run(command)).failed
    assert (server.setup.workspace / "made").exists()


async def test_exec_in_a_sandbox_refuses_a_host_that_is_not_in_the_settings(server: SandboxedServer) -> None:
    rights = add_permissions(server.setup.tool_context().rights, [WEB_PERMISSION])
    with pytest.raises(ToolFailed, match=r"sandbox\.host_not_allowed"):
        await server.setup.run("true", hosts=["example.com"], tool_context=server.setup.tool_context(rights=rights))
    server.settings = SandboxSettings(hosts=("example.com",))

    assert not (
        await server.setup.run("true", hosts=["example.com"], tool_context=server.setup.tool_context(rights=rights))
    ).failed


async def test_a_secret_variable_in_the_sandbox_of_exec_is_set_only_for_the_program_named_by_its_rule(
    server: SandboxedServer,
) -> None:
    rule = SecretRule(secret=SecretReference(env="ACME_TOKEN"), variable="ACME", commands=("/usr/bin/env",))
    server.settings = SandboxSettings(secrets={"acme": rule})

    assert "ACME=canary-4711" in (await server.setup.run("env")).text
    assert "ACME=canary-4711" in (await server.setup.run("env", env={"ACME": "mine"})).text
    assert "canary" not in (await server.setup.run("env | cat")).text
    assert "canary" not in (await server.setup.run("printenv")).text
    server.settings = SandboxSettings(secrets={"acme": replace(rule, secret=SecretReference(env="GONE"))})
    with pytest.raises(ToolFailed, match=r"config\.secret_missing"):
        await server.setup.run("env")


async def test_a_secret_header_for_a_host_is_given_to_the_proxy_for_any_command(server: SandboxedServer) -> None:
    rule = SecretRule(secret=SecretReference(env="ACME_TOKEN"), header="Authorization", hosts=("example.com",))
    server.settings = SandboxSettings(hosts=("example.com",), secrets={"acme": rule})
    tool_context = server.setup.tool_context(
        rights=add_permissions(server.setup.tool_context().rights, [WEB_PERMISSION])
    )
    asked = Confinement(folder=server.setup.workspace, network=NetworkAccess(hosts=("example.com",)))
    placed = await server.sandbox_chooser(tool_context, asked, CommandLocation.SANDBOX, "")
    bare = await server.sandbox_chooser(tool_context, asked, CommandLocation.HOST, "")

    assert placed.confinement.network is not None
    assert placed.confinement.network.injected == {"example.com": {"Authorization": "canary-4711"}}
    assert placed.confinement.environment == {} and bare.confinement.network is None


async def test_exec_is_refused_if_the_sandbox_fails_after_the_decision(server: SandboxedServer) -> None:
    tool_context, asked = server.setup.tool_context(), ExecArguments(command="touch made")
    assert server.setup.exec.decide_sandbox(asked, tool_context).is_allowed
    server.sandbox_chooser._probes[SandboxKind.BUBBLEWRAP] = SandboxProbe(False, "it broke")
    with pytest.raises(ToolFailed, match=r"command\.rules_changed"):
        await server.setup.exec.perform(asked, tool_context)
    assert server.setup.exec.decide_sandbox(asked, server.setup.tool_context()).kind is DecisionKind.ASK
    assert replace(ExecPolicy(), host=CommandLocation.HOST) != server.sandbox_chooser.adapt_policy(
        tool_context, ExecPolicy()
    )
