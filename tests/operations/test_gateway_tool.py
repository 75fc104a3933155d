"""The `gateway` tool: managing the server in runs on behalf of the owner."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from operations.operations_instance import OperationsServer, open_operations_server

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
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as server:
        yield server


async def call_gateway(server: OperationsServer, sender: str, **arguments: object) -> tuple[bool, str]:
    scene = ToolContext(
        agent=Agent(name="ada"),
        session=SessionId("5" * 32),
        run=RunId("6" * 32),
        call="c1",
        agent_directory=Path("/"),
        rights=AgentRights(workspace=Path("/")),
        sender=address.parse_address(sender),
    )
    box = Toolbox([GatewayTool(lambda: server.services, OPERATIONS)])
    result = await box.perform(Call(id="c1", tool="gateway", arguments=dict(arguments)), scene)
    return not result.failed, result.output


@pytest.mark.spec("C122.gateway")
async def test_the_gateway_tool_works_in_runs_on_behalf_of_the_owner(server: OperationsServer) -> None:
    done, output = await call_gateway(server, "person:owner", action="status")
    assert done and {agent["name"] for agent in json.loads(output)["agents"]} >= {"ada", "bo"}


@pytest.mark.spec("C122.gateway")
@pytest.mark.parametrize("sender", ["person:maria", "agent:bo", "channel:irc:home"])
async def test_the_gateway_tool_is_refused_in_runs_on_behalf_of_others(server: OperationsServer, sender: str) -> None:
    done, output = await call_gateway(server, sender, action="status")
    assert not done and "only in runs on behalf of the owner" in output


async def test_the_gateway_tool_returns_refusals_with_their_reason(server: OperationsServer) -> None:
    done, output = await call_gateway(server, "person:owner", action="config_patch", parameters={"changes": {}})
    assert not done and "invalid parameters" in output
    done, output = await call_gateway(server, "person:owner", action="config_show")
    assert not done and "this server has no settings file" in output  # the test builds it without a file
    done, output = await call_gateway(server, "person:owner", action="burn_down")
    assert not done and "Invalid arguments for" in output


def test_every_action_of_the_gateway_tool_is_an_operation() -> None:
    assert set(ACTION_OPERATIONS.values()) <= set(OPERATIONS)
