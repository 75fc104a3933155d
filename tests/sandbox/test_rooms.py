"""The sandboxes of a house together: a command is put where its settings say, with what it may use, or nowhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sandbox.support import Grounds, make_grounds, shell

from retinue.config.sandbox import SandboxKind, SandboxMode, SandboxSettings, SecretRule
from retinue.config.secret import Secret
from retinue.domain.permission import Rights
from retinue.domain.session import OriginKind
from retinue.sandbox.base import Network, SandboxFailed
from retinue.sandbox.choosing import Facts
from retinue.sandbox.rooms import Rooms
from retinue.testing.fake_clock import FakeClock

TOLD = SandboxSettings(
    hosts=("api.example.com",),
    secrets={
        "api": SecretRule(secret=Secret(env="API"), hosts=("api.example.com",), header="X-Key"),
        "sh": SecretRule(secret=Secret(env="SH"), variable="SH_TOKEN", commands=("/bin/sh",)),
    },
)


@pytest.fixture
def grounds(tmp_path: Path) -> Grounds:
    return make_grounds(tmp_path)


def rooms(grounds: Grounds, settings: SandboxSettings, **parts: object) -> Rooms:
    return Rooms(
        lambda: settings,
        state=grounds.state,
        homes=grounds.state / "agents",
        user_home=grounds.user_home,
        clock=FakeClock(),
        environment={"API": "api-s3cret", "SH": "sh-s3cret"},
        **parts,  # pyright: ignore[reportArgumentType]
    )


def facts(grounds: Grounds) -> Facts:
    return Facts(
        agent="ada",
        session="s1",
        origin=OriginKind.TERMINAL,
        owner=True,
        rights=Rights(workspace=grounds.workspace, web=True),
        home=grounds.state / "agents/ada",
        homes=grounds.state / "agents",
    )


async def test_a_command_runs_confined_with_just_the_secrets_it_may_have(grounds: Grounds) -> None:
    house = rooms(grounds, TOLD)
    asked = grounds.confinement(readable=(), network=Network(hosts=("api.example.com", "evil.example")))
    room = await house.place(facts(grounds), asked, program=Path("/bin/sh"))
    assert room.confined and room.sandbox.name == "bubblewrap"
    network = room.confinement.network
    assert network is not None and network.hosts == ("api.example.com",)
    assert network.injected == {"api.example.com": {"X-Key": "api-s3cret"}}
    said = await shell(room.sandbox, "env; cat /proc/*/environ", room.confinement)
    assert "sh-s3cret" in said.text  # it was told this one
    assert "api-s3cret" not in said.text  # and uses that one without ever having it
    other = await house.place(facts(grounds), asked, program=Path("/bin/cat"))
    assert "SH_TOKEN" not in other.confinement.environment


async def test_where_no_sandbox_holds_nothing_runs_bare_by_itself(grounds: Grounds) -> None:
    house = rooms(grounds, SandboxSettings(), bubblewrap=grounds.bubblewrap(program="/nowhere/bwrap"))
    assert not (await house.probe()).works
    assert not house.works(facts(grounds))
    with pytest.raises(SandboxFailed):
        await house.place(facts(grounds), grounds.confinement(), program=None)
    room = await house.place(facts(grounds), grounds.confinement(), program=None, bare=True)  # someone said so
    assert not room.confined and room.sandbox.name == "off"
    assert (await shell(room.sandbox, "echo ran", room.confinement)).text == "ran\n"


@pytest.mark.parametrize(
    "named", [{"kind": SandboxKind.OFF}, {"mode": SandboxMode.OFF}, {"mode": SandboxMode.NON_MAIN}]
)
async def test_off_is_a_choice_that_is_named(grounds: Grounds, named: dict[str, object]) -> None:
    house = rooms(grounds, replace(SandboxSettings(), **named))  # pyright: ignore[reportArgumentType]
    room = await house.place(facts(grounds), grounds.confinement(), program=None)
    assert not room.confined
    assert next(iter(named)) in room.because
    confined = await rooms(grounds, SandboxSettings()).place(facts(grounds), grounds.confinement(), program=None)
    assert confined.confined


async def test_a_bare_command_has_no_secret_of_the_proxy(grounds: Grounds) -> None:
    house = rooms(grounds, replace(TOLD, kind=SandboxKind.OFF))
    asked = grounds.confinement(network=Network(hosts=("api.example.com",)))
    room = await house.place(facts(grounds), asked, program=Path("/bin/cat"))
    assert room.confinement.network is None and room.confinement.environment == {}
    await house.close()
    assert await house.prune() == ()
