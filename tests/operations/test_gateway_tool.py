"""`gateway`: the house in an agent's hand, while it works for the owner."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from operations.operations_instance import DeskHouse, desk_house

from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights
from retinue.domain.tool import Call
from retinue.operations.catalog import OPERATIONS
from retinue.operations.config.gateway_tool import ACTION_OPERATIONS, GatewayTool
from retinue.testing.local_instance import LocalInstance
from retinue.tools.base import ToolContext
from retinue.tools.toolbox import Toolbox


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as house:
        yield house


async def use(house: DeskHouse, sender: str, **arguments: object) -> tuple[bool, str]:
    scene = ToolContext(
        agent=Agent(name="ada"),
        session=SessionId("5" * 32),
        run=RunId("6" * 32),
        call="c1",
        agent_directory=Path("/"),
        rights=AgentRights(workspace=Path("/")),
        sender=address.parse_address(sender),
    )
    box = Toolbox([GatewayTool(lambda: house.desk, OPERATIONS)])
    result = await box.perform(Call(id="c1", tool="gateway", arguments=dict(arguments)), scene)
    return not result.failed, result.output


@pytest.mark.spec("C122.gateway")
async def test_who_works_for_the_owner_sees_the_house(house: DeskHouse) -> None:
    done, told = await use(house, "person:owner", action="status")
    assert done and {agent["name"] for agent in json.loads(told)["agents"]} >= {"ada", "bo"}


@pytest.mark.spec("C122.gateway")
@pytest.mark.parametrize("sender", ["person:maria", "agent:bo", "channel:irc:home"])
async def test_who_works_for_anyone_else_does_not(house: DeskHouse, sender: str) -> None:
    done, told = await use(house, sender, action="status")
    assert not done and "only in runs on behalf of the owner" in told


async def test_what_the_house_refuses_is_told_with_its_reason(house: DeskHouse) -> None:
    done, told = await use(house, "person:owner", action="config_patch", parameters={"changes": {}})
    assert not done and "invalid parameters" in told
    done, told = await use(house, "person:owner", action="config_show")
    assert not done and "this server has no settings file" in told  # it was furnished by hand
    done, told = await use(house, "person:owner", action="burn_down")
    assert not done and "Invalid arguments for" in told


def test_every_action_is_an_operation_and_none_replaces_all_settings() -> None:
    assert set(ACTION_OPERATIONS.values()) <= set(OPERATIONS)
