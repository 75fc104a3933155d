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
from retinue.config.secret import Secret
from retinue.domain.decision import Verdict
from retinue.domain.permission import WEB, with_granted
from retinue.domain.session import OriginKind
from retinue.domain.structs import replace
from retinue.policy.tools.exec_placement import ExecPolicy, Where
from retinue.sandbox.base import Confinement, Network, Probe, Sandbox
from retinue.sandbox.host import Host
from retinue.tools.base import ToolFailed
from retinue.tools.shell.exec_tool import Exec, ExecArguments, Rules
from retinue.tools.shell.sandbox_choice import Confining


@dataclass
class House:
    desk: Desk
    settings: SandboxSettings = field(default_factory=SandboxSettings)
    owner: bool = True
    scopes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.confining = Confining(
            settings=lambda: self.settings,
            host=Host(),
            bubblewrap=walls(),
            container=self.container,
            homes=self.desk.folder / "homes",
            is_owner=lambda _: self.owner,
            environment={"ACME_TOKEN": "canary-4711"},
        )
        rules = Rules(
            policy=lambda scene: self.confining.policy(scene, self.desk.policy),
            gates=lambda _: self.desk.gates,
            sandbox_works=self.confining.works,
        )
        self.desk.exec = Exec(
            jobs=self.desk.jobs,
            store=self.desk.store,
            clock=self.desk.clock,
            confine=self.confining,
            rules=rules,
            withheld=self.desk.withheld,
        )

    def container(self, key: str, docker: DockerSettings | None) -> Sandbox:
        self.scopes.append(key)
        return walls()

    def verdict(self, command: str, **scene: object) -> Verdict:
        return self.desk.exec.sandbox(ExecArguments(command=command), self.desk.scene(**scene)).verdict


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
    assert house.verdict("ls") is Verdict.ALLOW
    house.settings = SandboxSettings(kind=SandboxKind.OFF)
    assert house.verdict("ls") is Verdict.ASK
    house.settings = SandboxSettings(mode=SandboxMode.NON_MAIN)
    assert house.verdict("ls") is Verdict.ASK
    assert house.verdict("ls", origin=OriginKind.CHAT) is Verdict.ALLOW
    house.owner = False
    assert house.verdict("ls") is Verdict.ALLOW


@pytest.mark.spec("C60")
async def test_a_sandbox_that_was_not_seen_to_hold_is_none(house: House) -> None:
    house.settings = SandboxSettings(kind=SandboxKind.DOCKER)
    assert house.verdict("ls") is Verdict.ASK
    await house.confining.probe()
    assert house.verdict("ls") is Verdict.ALLOW


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
    rights = with_granted(house.desk.scene().rights, [WEB])
    with pytest.raises(ToolFailed, match=r"sandbox\.host-not-allowed"):
        await house.desk.run("true", hosts=["example.com"], scene=house.desk.scene(rights=rights))
    house.settings = SandboxSettings(hosts=("example.com",))

    assert not (await house.desk.run("true", hosts=["example.com"], scene=house.desk.scene(rights=rights))).failed


async def test_a_secret_is_for_the_program_that_a_rule_names_and_no_shell(house: House) -> None:
    rule = SecretRule(secret=Secret(env="ACME_TOKEN"), variable="ACME", commands=("/usr/bin/env",))
    house.settings = SandboxSettings(secrets={"acme": rule})

    assert "ACME=canary-4711" in (await house.desk.run("env")).text
    assert "ACME=canary-4711" in (await house.desk.run("env", env={"ACME": "mine"})).text
    assert "canary" not in (await house.desk.run("env | cat")).text
    assert "canary" not in (await house.desk.run("printenv")).text
    house.settings = SandboxSettings(secrets={"acme": replace(rule, secret=Secret(env="GONE"))})
    with pytest.raises(ToolFailed, match=r"config\.secret-missing"):
        await house.desk.run("env")


async def test_a_secret_for_a_host_goes_to_the_proxy_whatever_runs(house: House) -> None:
    rule = SecretRule(secret=Secret(env="ACME_TOKEN"), header="Authorization", hosts=("example.com",))
    house.settings = SandboxSettings(hosts=("example.com",), secrets={"acme": rule})
    scene = house.desk.scene(rights=with_granted(house.desk.scene().rights, [WEB]))
    asked = Confinement(folder=house.desk.workspace, network=Network(hosts=("example.com",)))
    placed = await house.confining(scene, asked, Where.SANDBOX, "")
    bare = await house.confining(scene, asked, Where.HOST, "")

    assert placed.confinement.network is not None
    assert placed.confinement.network.injected == {"example.com": {"Authorization": "canary-4711"}}
    assert placed.confinement.environment == {} and bare.confinement.network is None


async def test_fail_closed_where_the_sandbox_is_gone_when_it_comes_to_it(house: House) -> None:
    scene, asked = house.desk.scene(), ExecArguments(command="touch made")
    assert house.desk.exec.sandbox(asked, scene).allowed
    house.confining._probes[SandboxKind.BUBBLEWRAP] = Probe(False, "it broke")
    with pytest.raises(ToolFailed, match=r"command\.changed"):
        await house.desk.exec.perform(asked, scene)
    assert house.desk.exec.sandbox(asked, house.desk.scene()).verdict is Verdict.ASK
    assert replace(ExecPolicy(), host=Where.HOST) != house.confining.policy(scene, ExecPolicy())
