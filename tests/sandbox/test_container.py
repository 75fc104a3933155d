"""Containers, with a `docker` stand-in that records its calls: no container engine is needed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sandbox.support import (
    PYTHON,
    SandboxDirectories,
    find_sleep_processes,
    make_sandbox_directories,
    run,
    unique_sleep_time,
    until,
)

from retinue.config.sandbox import DockerSettings
from retinue.domain.structs import replace
from retinue.sandbox.base import NetworkAccess, ResourceLimits, SandboxFailed
from retinue.sandbox.container import ContainerEngine, ContainerPool
from retinue.testing.fake_clock import FakeClock

STAND_IN = Path(__file__).with_name("docker_stand_in.py")


class DockerSetup:
    """The container pool of an instance, and its engine."""

    def __init__(self, root: Path) -> None:
        self.grounds: SandboxDirectories = make_sandbox_directories(root / "grounds")
        self.engine = (root / "engine").resolve()
        self.engine.mkdir()
        (self.engine / "images").write_text("debian:stable-slim other:1")
        self.program = root / "docker"
        self.program.write_text(f'#!/bin/sh\nexec {PYTHON} -I -S {STAND_IN} "$@"\n')
        self.program.chmod(0o755)
        self.clock = FakeClock()
        self.made: list[ContainerPool] = []

    def container_pool(self, **settings: Any) -> ContainerPool:
        made = ContainerPool(
            DockerSettings(**settings),
            folder=self.grounds.state / "sandbox",
            clock=self.clock,
            private_paths=(self.grounds.state,),
            shareable_parents=(self.grounds.state / "agents",),
            user_home=self.grounds.user_home,
            engine=ContainerEngine(str(self.program)),
        )
        self.made.append(made)
        return made

    def calls(self, verb: str) -> list[list[str]]:
        lines = (self.engine / "calls.jsonl").read_text().splitlines()
        return [words for line in lines if (words := json.loads(line)["words"])[0] == verb]

    def create_arguments(self) -> list[str]:
        (words,) = self.calls("create")
        return words

    def container_names(self) -> list[str]:
        return sorted(path.name for path in self.engine.glob("retinue-*"))


@pytest.fixture
async def harbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DockerSetup]:
    made = DockerSetup(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", str(made.engine))
    monkeypatch.setenv("OUR_API_KEY", "s3cret")
    yield made
    for container_pool in made.made:
        await container_pool.wait_for_kills()


def _pairs(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


@pytest.mark.spec("C63")
async def test_a_container_is_limited_and_without_network_by_default(harbour: DockerSetup) -> None:
    box = harbour.container_pool().for_scope("agent:ada")
    limits = ResourceLimits(memory_bytes=2**30, processes=99)
    output = await run(box, ["/bin/echo", "hi"], harbour.grounds.confinement(limits=limits))
    assert output.text == "hi\n"
    words = harbour.create_arguments()
    for flag in ("--read-only", "--init"):
        assert flag in words
    for option, value in {
        "--network": "none",
        "--cap-drop": "ALL",
        "--security-opt": "no-new-privileges",
        "--pids-limit": "99",
        "--memory": str(2**30),
        "--memory-swap": str(2**30),
        "--cpus": "1",
        "--pull": "never",
    }.items():
        assert _pairs(words, option) == [value], option
    assert {text.partition(":")[0] for text in _pairs(words, "--tmpfs")} == {"/tmp", "/var/tmp", "/run"}
    assert {text.partition("=")[0] for text in _pairs(words, "--ulimit")} == {"fsize", "core", "nofile"}
    assert "--privileged" not in words
    assert words[-3:] == ["debian:stable-slim", "sleep", "infinity"]


@pytest.mark.spec("C63")
async def test_a_container_mounts_the_folders_of_the_confinement(harbour: DockerSetup) -> None:
    grounds = harbour.grounds
    await run(harbour.container_pool().for_scope("agent:ada"), ["/bin/true"], grounds.confinement())
    mounts = _pairs(harbour.create_arguments(), "--mount")
    assert mounts == [
        f"type=bind,source={grounds.readable},target={grounds.readable},readonly",
        f"type=bind,source={grounds.workspace},target={grounds.workspace}",
    ]


@pytest.mark.spec("C63", "D53")
async def test_commands_with_other_folders_or_another_scope_use_another_container(harbour: DockerSetup) -> None:
    """Two sessions of an agent in one scope, but one of them has more permissions."""
    container_pool = harbour.container_pool()
    wide, narrow = harbour.grounds.confinement(), harbour.grounds.confinement(readable=())
    box = container_pool.for_scope("agent:ada")
    for confinement in (wide, narrow, wide):
        await run(box, ["/bin/true"], confinement)
    await run(container_pool.for_scope("agent:ben"), ["/bin/true"], narrow)
    assert len(harbour.container_names()) == 3
    assert len(harbour.calls("create")) == 3
    used = [words[-2] for words in harbour.calls("exec") if words[-1] == "/bin/true"]
    assert used[0] == used[2] != used[1] != used[3]


async def test_a_command_in_a_container_gets_its_environment_but_not_through_arguments(harbour: DockerSetup) -> None:
    box = harbour.container_pool().for_scope("agent:ada")
    output = await run(
        box, ["/usr/bin/env"], harbour.grounds.confinement(environment={"TOKEN": "t0ken", "LD_PRELOAD": "x"})
    )
    assert "TOKEN=t0ken" in output.text
    assert "OUR_API_KEY" not in output.text
    asked = (harbour.engine / "calls.jsonl").read_text()
    assert "t0ken" not in asked and "s3cret" not in asked and "LD_PRELOAD" not in asked
    with pytest.raises(SandboxFailed):
        await box.start(["/bin/true"], harbour.grounds.confinement(environment={"TWO": "li\nnes"}))


@pytest.mark.spec("C64")
async def test_changed_settings_replace_a_container_once_it_is_idle(harbour: DockerSetup) -> None:
    confinement = harbour.grounds.confinement()
    await run(harbour.container_pool().for_scope("agent:ada"), ["/bin/true"], confinement)
    same = harbour.container_pool()
    await run(same.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert len(harbour.calls("create")) == 1 and not same.warnings

    changed = harbour.container_pool(image="other:1")
    await run(changed.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert len(harbour.calls("create")) == 1  # used in the last five minutes: only a warning
    assert len(changed.warnings) == 1

    await harbour.clock.advance(timedelta(minutes=6).total_seconds())
    await run(changed.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert len(harbour.calls("create")) == 2
    assert len(harbour.calls("rm")) == 1
    assert harbour.calls("create")[1][-3] == "other:1"
    assert len(harbour.container_names()) == 1


@pytest.mark.spec("C64")
async def test_changed_limits_replace_an_idle_container(harbour: DockerSetup) -> None:
    confinement = harbour.grounds.confinement()
    box = harbour.container_pool().for_scope("agent:ada")
    await run(box, ["/bin/true"], confinement)
    await harbour.clock.advance(timedelta(minutes=6).total_seconds())
    await run(box, ["/bin/true"], replace(confinement, limits=replace(confinement.limits, processes=7)))
    assert [_pairs(words, "--pids-limit") for words in harbour.calls("create")] == [["256"], ["7"]]


@pytest.mark.spec("C64")
async def test_containers_that_are_idle_too_long_or_too_old_are_pruned(harbour: DockerSetup) -> None:
    container_pool = harbour.container_pool(idle_hours=24, age_days=7)
    confinement = harbour.grounds.confinement()
    for key in ("agent:ada", "agent:ben"):
        await run(container_pool.for_scope(key), ["/bin/true"], confinement)
    ada, ben = harbour.container_names()
    await harbour.clock.advance(timedelta(hours=23).total_seconds())
    assert await container_pool.prune() == []
    await run(container_pool.for_scope("agent:ada"), ["/bin/true"], confinement)
    await harbour.clock.advance(timedelta(hours=2).total_seconds())
    assert await container_pool.prune() == [ben]  # it was unused for 25 hours
    for _ in range(7):
        await harbour.clock.advance(timedelta(hours=23).total_seconds())
        await run(container_pool.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert await container_pool.prune() == []  # old, but used just now
    await harbour.clock.advance(timedelta(minutes=6).total_seconds())
    assert await container_pool.prune() == [ada]
    assert harbour.container_names() == []


@pytest.mark.spec("C113.sandbox_docker", "C113.sandbox_prune")
async def test_a_container_is_created_and_pruned_with_the_settings_of_its_agent(harbour: DockerSetup) -> None:
    container_pool = harbour.container_pool(idle_hours=24, age_days=7, cpus=2)
    confinement = harbour.grounds.confinement()
    own = replace(container_pool.settings, image="other:1", cpus=0.5, idle_hours=1.0)
    await run(container_pool.for_scope("agent:ada", own), ["/bin/true"], confinement)
    await run(container_pool.for_scope("agent:ben"), ["/bin/true"], confinement)
    assert [words[-3] for words in harbour.calls("create")] == ["other:1", "debian:stable-slim"]
    assert [_pairs(words, "--cpus") for words in harbour.calls("create")] == [["0.5"], ["2"]]
    ada, ben = harbour.container_names()
    await harbour.clock.advance(timedelta(hours=2).total_seconds())
    assert await container_pool.prune() == [ada]
    assert harbour.container_names() == [ben]


async def test_a_stopped_container_is_started_again_without_a_second_setup(harbour: DockerSetup) -> None:
    container_pool = harbour.container_pool(setup="echo set up")
    await run(container_pool.for_scope("shared"), ["/bin/true"], harbour.grounds.confinement())
    (name,) = harbour.container_names()
    container_file = json.loads((harbour.engine / name).read_text())
    (harbour.engine / name).write_text(json.dumps({**container_file, "running": False}))
    await run(container_pool.for_scope("shared"), ["/bin/true"], harbour.grounds.confinement())
    assert len(harbour.calls("start")) == 2
    assert len([words for words in harbour.calls("exec") if "echo set up" in words]) == 1


async def test_a_failed_setup_leaves_no_container(harbour: DockerSetup) -> None:
    box = harbour.container_pool(setup="exit 3").for_scope("shared")
    with pytest.raises(SandboxFailed):
        await box.start(["/bin/true"], harbour.grounds.confinement())
    assert harbour.container_names() == []


@pytest.mark.parametrize(
    "bind",
    [
        "/:/host",
        "/var/run:/run2",
        "{root}/docker.sock:/s",
        "{home}:/home",
        "{home}/..:/up",
        "{root}:/all",
        "{state}:/state:ro",
        "{state}/owner-token:/t:ro",
        "{state}/agents/ben:/ben",
        "/etc:/etc2:ro",
        "/proc:/p",
        "relative:/x",
        "/srv",
        "/srv:/x:rwx",
        "{root}/gone:/x",
    ],
)
async def test_a_dangerous_bind_is_refused_in_a_container(harbour: DockerSetup, bind: str) -> None:
    grounds = harbour.grounds
    (grounds.root / "docker.sock").touch()
    text = bind.format(root=grounds.root, home=grounds.user_home, state=grounds.state)
    with pytest.raises(SandboxFailed) as failed:
        await harbour.container_pool(binds=(text,)).for_scope("shared").start(["/bin/true"], grounds.confinement())
    assert failed.value.code == "sandbox.folder_refused"
    assert not (harbour.engine / "calls.jsonl").exists() or not harbour.calls("create")


async def test_a_harmless_bind_is_mounted_in_a_container(harbour: DockerSetup) -> None:
    text = f"{harbour.grounds.readable}:/data:ro"
    box = harbour.container_pool(binds=(text,)).for_scope("shared")
    await run(box, ["/bin/true"], harbour.grounds.confinement(readable=()))
    assert f"type=bind,source={harbour.grounds.readable},target=/data,readonly" in harbour.create_arguments()


async def test_a_folder_that_contains_hidden_folders_is_not_mounted_in_a_container(harbour: DockerSetup) -> None:
    grounds = harbour.grounds
    box = harbour.container_pool().for_scope("shared")
    for folder in (grounds.root, grounds.user_home):
        with pytest.raises(SandboxFailed):
            await box.start(["/bin/true"], grounds.confinement(readable=(folder,)))


async def test_a_command_with_network_rules_is_refused_in_a_container(harbour: DockerSetup) -> None:
    box = harbour.container_pool().for_scope("shared")
    with pytest.raises(SandboxFailed):
        await box.start(["/bin/true"], harbour.grounds.confinement(network=NetworkAccess(hosts=("example.com",))))
    assert harbour.container_names() == []


async def test_killing_a_command_in_a_container_ends_its_processes(harbour: DockerSetup) -> None:
    container_pool = harbour.container_pool()
    box = container_pool.for_scope("shared")
    time = unique_sleep_time()
    script = f"setsid sleep {time} & sleep {time}"
    child = await box.start(["/bin/sh", "-c", script], harbour.grounds.confinement())
    await until(lambda: len(find_sleep_processes(time)) == 2)
    await child.kill()
    await container_pool.wait_for_kills()
    await until(lambda: not find_sleep_processes(time))


@pytest.mark.parametrize("missing", ["engine", "image", "protection"])
async def test_no_command_runs_if_the_container_engine_fails_its_probe(harbour: DockerSetup, missing: str) -> None:
    match missing:
        case "engine":
            (harbour.engine / "down").touch()
        case "image":
            (harbour.engine / "images").write_text("")
        case _:
            (harbour.engine / "canary").write_text("read-a-file-outside stands")
    container_pool = harbour.container_pool()
    probe = await container_pool.probe()
    assert not probe.works and probe.because and probe.try_this
    with pytest.raises(SandboxFailed):
        await container_pool.for_scope("shared").start(["/bin/true"], harbour.grounds.confinement())
    assert not harbour.calls("create")
