"""Operations as tools of agents have the same effects as over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights
from retinue.domain.structs import replace
from retinue.domain.tool import Call
from retinue.operations.catalog import OPERATIONS
from retinue.operations.operation_tools import build_operation_tools, tool_name
from retinue.policy.access.operation_permissions import is_at_least
from retinue.policy.tools.tool_policy import ToolPolicyContext
from retinue.testing.local_instance import LocalInstance
from retinue.tools.base import ToolContext
from retinue.tools.toolbox import Toolbox

MARIA = person("maria")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[OperationsServer]:
    async with open_operations_server(LocalInstance(tmp_path)) as made:
        yield made


def make_toolbox(server: OperationsServer) -> Toolbox:
    return Toolbox(build_operation_tools(OPERATIONS.values(), lambda: server.services))


def ada(level: PermissionLevel = PermissionLevel.STANDARD, allow: tuple[str, ...] = ("*",)) -> Agent:
    return Agent(name="ada", model="scripted", permission_level=level, tools=ToolRules(allow=allow))


async def call_tool(
    server: OperationsServer, tool: str, *, who: Agent | None = None, call: str = "c1", **arguments: object
) -> str:
    scene = ToolContext(
        agent=who or ada(),
        session=SessionId("5" * 32),
        run=RunId("6" * 32),
        call=call,
        agent_directory=Path("/"),
        rights=AgentRights(workspace=Path("/")),
    )
    result = await make_toolbox(server).perform(Call(id=call, tool=tool, arguments=dict(arguments)), scene)
    return ("failed: " if result.failed else "") + result.output


@pytest.mark.spec("A45")
async def test_every_operation_is_a_tool_with_the_same_parameters(server: OperationsServer) -> None:
    for operation in OPERATIONS.values():
        spec = make_toolbox(server).spec(tool_name(operation))
        assert spec is not None and spec.description == operation.summary
        assert set(spec.parameters["properties"]) == set(operation.parameters.__struct_encode_fields__)
        assert spec.is_repeatable is not operation.has_effect
        json.dumps(spec.parameters)


@pytest.mark.spec("A45")
async def test_an_operation_tool_returns_the_same_answers_and_errors_as_the_operation(server: OperationsServer) -> None:
    _, session = await server.converse(MARIA, "hello")
    by_tool = json.loads(await call_tool(server, "session_state", session=session))
    assert by_tool == await server.ask(agent("ada"), "session.state", session=session)
    assert "no session 'ffffffff'" in await call_tool(server, "session_state", session="ffffffff")
    refused = await call_tool(server, "session_state", session=1)
    assert refused.startswith("failed: Invalid arguments for")
    assert "needs boss" in await call_tool(server, "person_invite", name="zoe")


async def test_an_operation_tool_is_refused_below_the_required_permission_level(server: OperationsServer) -> None:
    for operation in OPERATIONS.values():
        if not is_at_least(PermissionLevel.STANDARD, operation.permission):
            output = await call_tool(server, tool_name(operation))
            assert output.startswith("failed:"), operation.name


async def test_a_repeated_call_of_an_operation_tool_has_its_effect_once(server: OperationsServer) -> None:
    first = json.loads(await call_tool(server, "token_create", call="c7", label="mine"))
    again = json.loads(await call_tool(server, "token_create", call="c7", label="mine"))
    assert (again["id"], "token" in again) == (first["id"], False)
    assert len(json.loads(await call_tool(server, "token_list"))["tokens"]) == 1
    assert json.loads(await call_tool(server, "token_create", call="c8", label="mine"))["id"] != first["id"]


async def test_an_operation_tool_does_not_show_one_time_secrets_to_a_model(server: OperationsServer) -> None:
    """The secret would stay in the record and be sent with every later prompt."""
    boss = ada(PermissionLevel.BOSS)
    asked: dict[str, dict[str, object]] = {
        "token.create": {"label": "mine"},
        "person.invite": {"name": "zoe"},
        "agent.register": {"name": "dora", "token": True},
    }
    for name, arguments in asked.items():
        response = json.loads(await call_tool(server, tool_name(OPERATIONS[name]), who=boss, call=name, **arguments))
        [secret] = OPERATIONS[name].secret_fields
        assert secret not in response and response["shown_once"] == [secret]
    shown = await server.ask(MARIA, "token.create", label="hers")
    assert shown["token"] and "shown_once" not in shown, "a person who asks for themselves sees it once"


def test_an_allow_rule_of_a_single_star_does_not_offer_operation_tools(tmp_path: Path) -> None:
    tools = Toolbox(build_operation_tools(OPERATIONS.values(), lambda: pytest.fail("no operation is performed")))  # type: ignore[arg-type]
    assert tools.offered_specs(ada(), ToolPolicyContext()) == []
    assert [spec.name for spec in tools.offered_specs(ada(allow=("*", "session_list")), ToolPolicyContext())] == [
        "session_list"
    ]
    named = {spec.name for spec in tools.offered_specs(ada(allow=("session_*",)), ToolPolicyContext())}
    assert "session_list" in named and all(name.startswith("session_") for name in named)
    denied = replace(ada(allow=("session_*",)), tools=ToolRules(allow=("session_*",), deny=("*",)))
    assert tools.offered_specs(denied, ToolPolicyContext()) == []
