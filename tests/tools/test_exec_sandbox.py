"""Where `exec` runs by the settings of the sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tools.shell_tools import Desk, desk_in, walls

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
class House:
    desk: Desk
    settings: SandboxSettings = field(default_factory=SandboxSettings)
    owner: bool = True
    scopes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.confining = SandboxChooser(
            settings=lambda: self.settings,
            host=HostSandbox(),
            bubblewrap=walls(),
            container=self.container,
            agents_directory=self.desk.folder / "homes",
            is_owner=lambda _: self.owner,
            environment={"ACME_TOKEN": "canary-4711"},
        )
        rules = ExecRules(
            policy=lambda scene: self.confining.adapt_policy(scene, self.desk.policy),
            gates=lambda _: self.desk.gates,
            sandbox_works=self.confining.has_sandbox,
        )
        self.desk.exec = ExecTool(
            jobs=self.desk.jobs,
            store=self.desk.store,
            clock=self.desk.clock,
            place_command=self.confining,
            rules=rules,
            withheld=self.desk.withheld,
        )

    def container(self, key: str, docker: DockerSettings | None) -> Sandbox:
        self.scopes.append(key)
        return walls()

    def verdict(self, command: str, **scene: object) -> DecisionKind:
        return self.desk.exec.decide_sandbox(ExecArguments(command=command), self.desk.scene(**scene)).kind


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[House]:
    async with desk_in(tmp_path) as desk:
        house = House(desk)
        await house.confining.probe()
        yield house


async def test_a_command_runs_in_the_sandbox_that_is_configured(house: House) -> None:
    canary = house.desk.folder / "canary"
    canary.write_text("seen")

    assert "seen" not in (await house.desk.run(f"cat {canary}; echo end")).text
    house.settings = SandboxSettings(kind=SandboxKind.DOCKER)
    await house.confining.probe()
    await house.desk.run("true")
    assert house.scopes[-1].startswith(("session:", "agent:", "shared"))


async def test_without_a_sandbox_by_choice_the_rules_of_the_host_hold(house: House) -> None:
    assert house.verdict("ls") is DecisionKind.ALLOW
    house.settings = SandboxSettings(kind=SandboxKind.OFF)
    assert house.verdict("ls") is DecisionKind.ASK
    house.settings = SandboxSettings(mode=SandboxMode.NON_MAIN)
    assert house.verdict("ls") is DecisionKind.ASK
    assert house.verdict("ls", origin=OriginKind.CHAT) is DecisionKind.ALLOW
    house.owner = False
    assert house.verdict("ls") is DecisionKind.ALLOW


@pytest.mark.spec("C60")
async def test_a_sandbox_that_was_not_seen_to_hold_is_none(house: House) -> None:
    house.settings = SandboxSettings(kind=SandboxKind.DOCKER)
    assert house.verdict("ls") is DecisionKind.ASK
    await house.confining.probe()
    assert house.verdict("ls") is DecisionKind.ALLOW


async def test_the_workspace_is_shared_as_it_is_set(house: House) -> None:
    command = "touch made && ls -a"
    house.settings = SandboxSettings(workspace=WorkspaceAccess.READ)
    assert (await house.desk.run(command)).failed
    house.settings = SandboxSettings(workspace=WorkspaceAccess.NONE)
    assert (await house.desk.run("pwd")).text.endswith("/tmp\n")
    assert not (house.desk.workspace / "made").exists()
    house.settings = SandboxSettings()
    assert not (await house.desk.run(command)).failed
    assert (house.desk.workspace / "made").exists()


async def test_a_host_that_the_owner_does_not_name_is_refused_by_name(house: House) -> None:
    rights = add_permissions(house.desk.scene().rights, [WEB_PERMISSION])
    with pytest.raises(ToolFailed, match=r"sandbox\.host_not_allowed"):
        await house.desk.run("true", hosts=["example.com"], scene=house.desk.scene(rights=rights))
    house.settings = SandboxSettings(hosts=("example.com",))

    assert not (await house.desk.run("true", hosts=["example.com"], scene=house.desk.scene(rights=rights))).failed


async def test_a_secret_is_for_the_program_that_a_rule_names_and_no_shell(house: House) -> None:
    rule = SecretRule(secret=SecretReference(env="ACME_TOKEN"), variable="ACME", commands=("/usr/bin/env",))
    house.settings = SandboxSettings(secrets={"acme": rule})

    assert "ACME=canary-4711" in (await house.desk.run("env")).text
    assert "ACME=canary-4711" in (await house.desk.run("env", env={"ACME": "mine"})).text
    assert "canary" not in (await house.desk.run("env | cat")).text
    assert "canary" not in (await house.desk.run("printenv")).text
    house.settings = SandboxSettings(secrets={"acme": replace(rule, secret=SecretReference(env="GONE"))})
    with pytest.raises(ToolFailed, match=r"config\.secret_missing"):
        await house.desk.run("env")


async def test_a_secret_for_a_host_goes_to_the_proxy_whatever_runs(house: House) -> None:
    rule = SecretRule(secret=SecretReference(env="ACME_TOKEN"), header="Authorization", hosts=("example.com",))
    house.settings = SandboxSettings(hosts=("example.com",), secrets={"acme": rule})
    scene = house.desk.scene(rights=add_permissions(house.desk.scene().rights, [WEB_PERMISSION]))
    asked = Confinement(folder=house.desk.workspace, network=NetworkAccess(hosts=("example.com",)))
    placed = await house.confining(scene, asked, CommandLocation.SANDBOX, "")
    bare = await house.confining(scene, asked, CommandLocation.HOST, "")

    assert placed.confinement.network is not None
    assert placed.confinement.network.injected == {"example.com": {"Authorization": "canary-4711"}}
    assert placed.confinement.environment == {} and bare.confinement.network is None


async def test_fail_closed_where_the_sandbox_is_gone_when_it_comes_to_it(house: House) -> None:
    scene, asked = house.desk.scene(), ExecArguments(command="touch made")
    assert house.desk.exec.decide_sandbox(asked, scene).is_allowed
    house.confining._probes[SandboxKind.BUBBLEWRAP] = SandboxProbe(False, "it broke")
    with pytest.raises(ToolFailed, match=r"command\.rules_changed"):
        await house.desk.exec.perform(asked, scene)
    assert house.desk.exec.decide_sandbox(asked, house.desk.scene()).kind is DecisionKind.ASK
    assert replace(ExecPolicy(), host=CommandLocation.HOST) != house.confining.adapt_policy(scene, ExecPolicy())
