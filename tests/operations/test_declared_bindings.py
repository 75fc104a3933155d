"""`[bindings.*]` of the settings file, applied."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.config import load_configuration
from retinue.domain.agent import Agent
from retinue.domain.binding import Binding, BindingMatch
from retinue.domain.errors import NotFound
from retinue.domain.structs import replace
from retinue.operations.config_holder import ConfigHolder
from retinue.store.channels import bindings
from retinue.testing.local_instance import LocalInstance

OWNER = person("owner")
DECLARED = """
[bindings.everywhere]
agent = "ada"
connector = "telegram"

[bindings.kitchen]
agent = "ada"
also = ["bo"]
connector = "telegram"
peer_kind = "group"
peer = "-100"
"""


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    staff = (Agent(name="ada", model="scripted"), Agent(name="bo", model="scripted"))
    async with desk_house(LocalInstance(tmp_path, agents=staff)) as made:
        yield made


@pytest.fixture
def file(desk: DeskHouse, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"RETINUE_HOME": str(home)}
    desk.desk = replace(desk.desk, config_holder=ConfigHolder(load_configuration(environment), environment))
    written = home / "retinue.toml"
    written.write_text(DECLARED)
    return written


async def applied(desk: DeskHouse, **asked: Any) -> dict[str, str]:
    done = await desk.ask(OWNER, "config.apply", **asked)
    assert done["not-yet"] == []
    return {each["name"]: each["step"] for each in done["bindings"]}


async def bound(desk: DeskHouse) -> dict[str, tuple[str, ...]]:
    return {each.match.peer: each.agents for each in await desk.desk.store.scan(bindings.list_all)}


@pytest.mark.spec("C123")
async def test_bindings_of_the_file_are_applied_changed_and_left_alone(desk: DeskHouse, file: Path) -> None:
    assert await applied(desk, dry_run=True) == {"everywhere": "add", "kitchen": "add"}
    assert await bound(desk) == {}
    assert await applied(desk) == {"everywhere": "add", "kitchen": "add"}
    assert await bound(desk) == {"": ("ada",), "-100": ("ada", "bo")}
    assert await applied(desk) == {"everywhere": "keep", "kitchen": "keep"}

    file.write_text(DECLARED.replace('also = ["bo"]\n', ""))
    assert await applied(desk) == {"everywhere": "keep", "kitchen": "change"}
    assert await bound(desk) == {"": ("ada",), "-100": ("ada",)}
    file.write_text("")
    assert sorted((await applied(desk)).values()) == ["undeclared", "undeclared"]
    assert await bound(desk) == {"": ("ada",), "-100": ("ada",)}, "what the file does not speak of stays"


async def test_what_somebody_has_bound_since_is_overwritten_only_when_the_file_is_taken(
    desk: DeskHouse, file: Path
) -> None:
    await applied(desk)
    mine = Binding(id="m" * 32, agent="bo", match=BindingMatch(connector="telegram"), created_by="person:owner")
    await desk.desk.store.write(partial(bindings.replace, binding=mine, at_ms=1), point="test")
    assert (await applied(desk))["everywhere"] == "drift"
    assert (await bound(desk))[""] == ("bo",)
    assert (await applied(desk, take="file"))["everywhere"] == "change"
    assert (await bound(desk))[""] == ("ada",)


@pytest.mark.spec("H91.bindings")
async def test_a_reset_clears_every_binding_and_sets_those_of_the_file(desk: DeskHouse, file: Path) -> None:
    mine = Binding(id="m" * 32, agent="bo", match=BindingMatch(connector="irc", peer="#x"), created_by="person:owner")
    await desk.desk.store.write(partial(bindings.replace, binding=mine, at_ms=1), point="test")
    assert await applied(desk, reset=True) == {"everywhere": "add", "kitchen": "add"}
    assert set(await bound(desk)) == {"", "-100"}


async def test_a_binding_to_nobody_on_the_staff_leaves_everything_as_it_was(desk: DeskHouse, file: Path) -> None:
    file.write_text(DECLARED.replace('"ada"\nconnector', '"nobody"\nconnector'))
    with pytest.raises(NotFound):
        await desk.ask(OWNER, "config.apply")
    assert await bound(desk) == {}


async def test_somebody_who_is_let_go_answers_nowhere(desk: DeskHouse, file: Path) -> None:
    await applied(desk)
    await desk.ask(OWNER, "agent.delete", name="ada")
    assert await bound(desk) == {"-100": ("bo",)}
