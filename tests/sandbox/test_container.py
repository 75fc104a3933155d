"""Containers, shown with a `docker` that records what it is asked: no engine has to run here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sandbox.support import PYTHON, Grounds, make_grounds, run, sleepers, until

from retinue.config.sandbox import DockerSettings
from retinue.domain.structs import replace
from retinue.sandbox.base import NetworkAccess, ResourceLimits, SandboxFailed
from retinue.sandbox.container import ContainerEngine, ContainerPool
from retinue.testing.fake_clock import FakeClock

STAND_IN = Path(__file__).with_name("docker_stand_in.py")


class Harbour:
    """Containers of a house, and the engine that keeps them."""

    def __init__(self, root: Path) -> None:
        self.grounds: Grounds = make_grounds(root / "grounds")
        self.engine = (root / "engine").resolve()
        self.engine.mkdir()
        (self.engine / "images").write_text("debian:stable-slim other:1")
        self.program = root / "docker"
        self.program.write_text(f'#!/bin/sh\nexec {PYTHON} -I -S {STAND_IN} "$@"\n')
        self.program.chmod(0o755)
        self.clock = FakeClock()
        self.made: list[ContainerPool] = []

    def containers(self, **settings: Any) -> ContainerPool:
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

    def created(self) -> list[str]:
        (words,) = self.calls("create")
        return words

    def names(self) -> list[str]:
        return sorted(path.name for path in self.engine.glob("retinue-*"))


@pytest.fixture
async def harbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harbour]:
    made = Harbour(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", str(made.engine))
    monkeypatch.setenv("OUR_API_KEY", "s3cret")
    yield made
    for containers in made.made:
        await containers.wait_for_kills()


def _pairs(words: list[str], option: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == option]


@pytest.mark.spec("C63")
async def test_a_container_is_a_small_closed_room_without_a_setting(harbour: Harbour) -> None:
    box = harbour.containers().for_scope("agent:ada")
    limits = ResourceLimits(memory_bytes=2**30, processes=99)
    said = await run(box, ["/bin/echo", "hi"], harbour.grounds.confinement(limits=limits))
    assert said.text == "hi\n"
    words = harbour.created()
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
async def test_the_folders_of_a_container_are_those_of_the_confinement(harbour: Harbour) -> None:
    grounds = harbour.grounds
    await run(harbour.containers().for_scope("agent:ada"), ["/bin/true"], grounds.confinement())
    mounts = _pairs(harbour.created(), "--mount")
    assert mounts == [
        f"type=bind,source={grounds.readable},target={grounds.readable},readonly",
        f"type=bind,source={grounds.workspace},target={grounds.workspace}",
    ]


@pytest.mark.spec("C63", "D53")
async def test_who_may_touch_something_else_is_in_another_container(harbour: Harbour) -> None:
    """Two sessions of an agent in one scope, but one has been granted more."""
    containers = harbour.containers()
    wide, narrow = harbour.grounds.confinement(), harbour.grounds.confinement(readable=())
    box = containers.for_scope("agent:ada")
    for confinement in (wide, narrow, wide):
        await run(box, ["/bin/true"], confinement)
    await run(containers.for_scope("agent:ben"), ["/bin/true"], narrow)
    assert len(harbour.names()) == 3
    assert len(harbour.calls("create")) == 3
    used = [words[-2] for words in harbour.calls("exec") if words[-1] == "/bin/true"]
    assert used[0] == used[2] != used[1] != used[3]


async def test_a_command_is_told_what_was_said_for_it_and_not_by_its_arguments(harbour: Harbour) -> None:
    box = harbour.containers().for_scope("agent:ada")
    said = await run(
        box, ["/usr/bin/env"], harbour.grounds.confinement(environment={"TOKEN": "t0ken", "LD_PRELOAD": "x"})
    )
    assert "TOKEN=t0ken" in said.text
    assert "OUR_API_KEY" not in said.text
    asked = (harbour.engine / "calls.jsonl").read_text()
    assert "t0ken" not in asked and "s3cret" not in asked and "LD_PRELOAD" not in asked
    with pytest.raises(SandboxFailed):
        await box.start(["/bin/true"], harbour.grounds.confinement(environment={"TWO": "li\nnes"}))


@pytest.mark.spec("C64")
async def test_changed_settings_make_a_new_container_once_the_old_one_rests(harbour: Harbour) -> None:
    confinement = harbour.grounds.confinement()
    await run(harbour.containers().for_scope("agent:ada"), ["/bin/true"], confinement)
    same = harbour.containers()
    await run(same.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert len(harbour.calls("create")) == 1 and not same.warnings

    changed = harbour.containers(image="other:1")
    await run(changed.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert len(harbour.calls("create")) == 1  # used in the last five minutes: only warned about
    assert len(changed.warnings) == 1

    await harbour.clock.advance(timedelta(minutes=6).total_seconds())
    await run(changed.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert len(harbour.calls("create")) == 2
    assert len(harbour.calls("rm")) == 1
    assert harbour.calls("create")[1][-3] == "other:1"
    assert len(harbour.names()) == 1


@pytest.mark.spec("C64")
async def test_other_limits_are_changed_settings_too(harbour: Harbour) -> None:
    confinement = harbour.grounds.confinement()
    box = harbour.containers().for_scope("agent:ada")
    await run(box, ["/bin/true"], confinement)
    await harbour.clock.advance(timedelta(minutes=6).total_seconds())
    await run(box, ["/bin/true"], replace(confinement, limits=replace(confinement.limits, processes=7)))
    assert [_pairs(words, "--pids-limit") for words in harbour.calls("create")] == [["256"], ["7"]]


@pytest.mark.spec("C64")
async def test_containers_are_removed_that_rest_too_long_or_are_too_old(harbour: Harbour) -> None:
    containers = harbour.containers(idle_hours=24, age_days=7)
    confinement = harbour.grounds.confinement()
    for key in ("agent:ada", "agent:ben"):
        await run(containers.for_scope(key), ["/bin/true"], confinement)
    ada, ben = harbour.names()
    await harbour.clock.advance(timedelta(hours=23).total_seconds())
    assert await containers.prune() == []
    await run(containers.for_scope("agent:ada"), ["/bin/true"], confinement)
    await harbour.clock.advance(timedelta(hours=2).total_seconds())
    assert await containers.prune() == [ben]  # it rested for 25 hours
    for _ in range(7):
        await harbour.clock.advance(timedelta(hours=23).total_seconds())
        await run(containers.for_scope("agent:ada"), ["/bin/true"], confinement)
    assert await containers.prune() == []  # old, but used just now
    await harbour.clock.advance(timedelta(minutes=6).total_seconds())
    assert await containers.prune() == [ada]
    assert harbour.names() == []


@pytest.mark.spec("C113.sandbox_docker", "C113.sandbox_prune")
async def test_a_container_is_made_and_removed_as_its_agent_has_it(harbour: Harbour) -> None:
    containers = harbour.containers(idle_hours=24, age_days=7, cpus=2)
    confinement = harbour.grounds.confinement()
    own = replace(containers.settings, image="other:1", cpus=0.5, idle_hours=1.0)
    await run(containers.for_scope("agent:ada", own), ["/bin/true"], confinement)
    await run(containers.for_scope("agent:ben"), ["/bin/true"], confinement)
    assert [words[-3] for words in harbour.calls("create")] == ["other:1", "debian:stable-slim"]
    assert [_pairs(words, "--cpus") for words in harbour.calls("create")] == [["0.5"], ["2"]]
    ada, ben = harbour.names()
    await harbour.clock.advance(timedelta(hours=2).total_seconds())
    assert await containers.prune() == [ada]
    assert harbour.names() == [ben]


async def test_a_stopped_container_is_started_and_a_new_one_is_set_up_once(harbour: Harbour) -> None:
    containers = harbour.containers(setup="echo set up")
    await run(containers.for_scope("shared"), ["/bin/true"], harbour.grounds.confinement())
    (name,) = harbour.names()
    held = json.loads((harbour.engine / name).read_text())
    (harbour.engine / name).write_text(json.dumps({**held, "running": False}))
    await run(containers.for_scope("shared"), ["/bin/true"], harbour.grounds.confinement())
    assert len(harbour.calls("start")) == 2
    assert len([words for words in harbour.calls("exec") if "echo set up" in words]) == 1


async def test_a_set_up_that_fails_leaves_no_container(harbour: Harbour) -> None:
    box = harbour.containers(setup="exit 3").for_scope("shared")
    with pytest.raises(SandboxFailed):
        await box.start(["/bin/true"], harbour.grounds.confinement())
    assert harbour.names() == []


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
async def test_a_dangerous_bind_is_refused(harbour: Harbour, bind: str) -> None:
    grounds = harbour.grounds
    (grounds.root / "docker.sock").touch()
    text = bind.format(root=grounds.root, home=grounds.user_home, state=grounds.state)
    with pytest.raises(SandboxFailed) as failed:
        await harbour.containers(binds=(text,)).for_scope("shared").start(["/bin/true"], grounds.confinement())
    assert failed.value.code == "sandbox.folder_refused"
    assert not (harbour.engine / "calls.jsonl").exists() or not harbour.calls("create")


async def test_a_harmless_bind_is_made(harbour: Harbour) -> None:
    text = f"{harbour.grounds.readable}:/data:ro"
    box = harbour.containers(binds=(text,)).for_scope("shared")
    await run(box, ["/bin/true"], harbour.grounds.confinement(readable=()))
    assert f"type=bind,source={harbour.grounds.readable},target=/data,readonly" in harbour.created()


async def test_a_folder_with_something_hidden_in_it_is_not_shown_whole(harbour: Harbour) -> None:
    grounds = harbour.grounds
    box = harbour.containers().for_scope("shared")
    for folder in (grounds.root, grounds.user_home):
        with pytest.raises(SandboxFailed):
            await box.start(["/bin/true"], grounds.confinement(readable=(folder,)))


async def test_a_network_with_rules_cannot_be_had_and_so_nothing_runs(harbour: Harbour) -> None:
    box = harbour.containers().for_scope("shared")
    with pytest.raises(SandboxFailed):
        await box.start(["/bin/true"], harbour.grounds.confinement(network=NetworkAccess(hosts=("example.com",))))
    assert harbour.names() == []


async def test_killed_it_is_ended_where_it_runs(harbour: Harbour) -> None:
    containers = harbour.containers()
    box = containers.for_scope("shared")
    script = "setsid sleep 92.7 & sleep 92.7"
    child = await box.start(["/bin/sh", "-c", script], harbour.grounds.confinement())
    await until(lambda: len(sleepers("92.7")) == 2)
    await child.kill()
    await containers.wait_for_kills()
    await until(lambda: not sleepers("92.7"))


@pytest.mark.parametrize("missing", ["engine", "image", "walls"])
async def test_without_an_engine_that_holds_nothing_runs(harbour: Harbour, missing: str) -> None:
    match missing:
        case "engine":
            (harbour.engine / "down").touch()
        case "image":
            (harbour.engine / "images").write_text("")
        case _:
            (harbour.engine / "canary").write_text("read-a-file-outside stands")
    containers = harbour.containers()
    probe = await containers.probe()
    assert not probe.works and probe.because and probe.try_this
    with pytest.raises(SandboxFailed):
        await containers.for_scope("shared").start(["/bin/true"], harbour.grounds.confinement())
    assert not harbour.calls("create")
