"""Applying the `[bindings.*]` tables of the settings file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from operations.operations_instance import OperationsServer, open_operations_server, person

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
extra_agents = ["bo"]
connector = "telegram"
peer_kind = "group"
peer = "-100"
"""


@pytest.fixture
async def services(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    staff = (Agent(name="ada", model="scripted"), Agent(name="bo", model="scripted"))
    async with open_operations_server(LocalInstance(tmp_path, agents=staff)) as made:
        yield made


@pytest.fixture
def file(services: OperationsServer, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    environment = {"RETINUE_HOME": str(home)}
    services.services = replace(
        services.services, config_holder=ConfigHolder(load_configuration(environment), environment)
    )
    written = home / "retinue.toml"
    written.write_text(DECLARED)
    return written


async def apply_settings(services: OperationsServer, **asked: Any) -> dict[str, str]:
    done = await services.ask(OWNER, "config.apply", **asked)
    return {each["name"]: each["step"] for each in done["bindings"]}


async def bound_agents(services: OperationsServer) -> dict[str, tuple[str, ...]]:
    return {each.match.peer: each.agents for each in await services.services.store.scan(bindings.list_all)}


@pytest.mark.spec("C123")
async def test_declared_bindings_are_added_changed_kept_or_reported_as_undeclared(
    services: OperationsServer, file: Path
) -> None:
    assert await apply_settings(services, dry_run=True) == {"everywhere": "add", "kitchen": "add"}
    assert await bound_agents(services) == {}
    assert await apply_settings(services) == {"everywhere": "add", "kitchen": "add"}
    assert await bound_agents(services) == {"": ("ada",), "-100": ("ada", "bo")}
    assert await apply_settings(services) == {"everywhere": "keep", "kitchen": "keep"}

    file.write_text(DECLARED.replace('extra_agents = ["bo"]\n', ""))
    assert await apply_settings(services) == {"everywhere": "keep", "kitchen": "change"}
    assert await bound_agents(services) == {"": ("ada",), "-100": ("ada",)}
    file.write_text("")
    assert sorted((await apply_settings(services)).values()) == ["undeclared", "undeclared"]
    assert await bound_agents(services) == {"": ("ada",), "-100": ("ada",)}, "bindings that are not in the file stay"


async def test_a_declared_binding_that_was_changed_is_drift_and_kept_unless_overwrite_is_set(
    services: OperationsServer, file: Path
) -> None:
    await apply_settings(services)
    mine = Binding(id="m" * 32, agent="bo", match=BindingMatch(connector="telegram"), created_by="person:owner")
    await services.services.store.write(partial(bindings.replace, binding=mine, at_ms=1), point="test")
    assert (await apply_settings(services))["everywhere"] == "drift"
    assert (await bound_agents(services))[""] == ("bo",)
    assert (await apply_settings(services, overwrite=True))["everywhere"] == "change"
    assert (await bound_agents(services))[""] == ("ada",)


@pytest.mark.spec("H91.bindings")
async def test_config_reset_clears_all_bindings_and_adds_the_declared_ones(
    services: OperationsServer, file: Path
) -> None:
    mine = Binding(id="m" * 32, agent="bo", match=BindingMatch(connector="irc", peer="#x"), created_by="person:owner")
    await services.services.store.write(partial(bindings.replace, binding=mine, at_ms=1), point="test")
    assert await apply_settings(services, reset=True) == {"everywhere": "add", "kitchen": "add"}
    assert set(await bound_agents(services)) == {"", "-100"}


async def test_a_declared_binding_to_an_unknown_agent_is_refused_and_changes_nothing(
    services: OperationsServer, file: Path
) -> None:
    file.write_text(DECLARED.replace('"ada"\nconnector', '"nobody"\nconnector'))
    with pytest.raises(NotFound):
        await services.ask(OWNER, "config.apply")
    assert await bound_agents(services) == {}


async def test_deleting_an_agent_removes_it_from_the_declared_bindings(services: OperationsServer, file: Path) -> None:
    await apply_settings(services)
    await services.ask(OWNER, "agent.delete", name="ada")
    assert await bound_agents(services) == {"-100": ("bo",)}
