"""Operations in an agent's hand: the same as over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from operations.operations_instance import DeskHouse, agent, desk_house, person

from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.ids import RunId, SessionId
from retinue.domain.permission import AgentRights
from retinue.domain.structs import replace
from retinue.domain.tool import Call
from retinue.operations.catalog import OPERATIONS
from retinue.operations.operation_tools import build_operation_tools, tool_name
from retinue.policy.access.permissions import is_at_least
from retinue.policy.tools.tools import ToolPolicyContext
from retinue.testing.local_instance import LocalInstance
from retinue.tools.base import ToolContext
from retinue.tools.toolbox import Toolbox

MARIA = person("maria")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[DeskHouse]:
    async with desk_house(LocalInstance(tmp_path)) as made:
        yield made


def box(house: DeskHouse) -> Toolbox:
    return Toolbox(build_operation_tools(OPERATIONS.values(), lambda: house.desk))


def ada(level: PermissionLevel = PermissionLevel.STANDARD, allow: tuple[str, ...] = ("*",)) -> Agent:
    return Agent(name="ada", model="scripted", permission_level=level, tools=ToolRules(allow=allow))


async def use(house: DeskHouse, tool: str, *, who: Agent | None = None, call: str = "c1", **arguments: object) -> str:
    scene = ToolContext(
        agent=who or ada(),
        session=SessionId("5" * 32),
        run=RunId("6" * 32),
        call=call,
        agent_directory=Path("/"),
        rights=AgentRights(workspace=Path("/")),
    )
    result = await box(house).perform(Call(id=call, tool=tool, arguments=dict(arguments)), scene)
    return ("failed: " if result.failed else "") + result.output


@pytest.mark.spec("A45")
async def test_every_operation_is_a_tool_with_the_same_parameters(house: DeskHouse) -> None:
    for operation in OPERATIONS.values():
        spec = box(house).spec(tool_name(operation))
        assert spec is not None and spec.description == operation.summary
        assert set(spec.parameters["properties"]) == set(operation.parameters.__struct_encode_fields__)
        assert spec.is_repeatable is not operation.has_effect
        json.dumps(spec.parameters)


@pytest.mark.spec("A45")
async def test_a_tool_and_a_request_give_the_same_answer_and_the_same_refusals(house: DeskHouse) -> None:
    _, session = await house.converse(MARIA, "hello")
    by_tool = json.loads(await use(house, "session_state", session=session))
    assert by_tool == await house.ask(agent("ada"), "session.state", session=session)
    assert "no session 'ffffffff'" in await use(house, "session_state", session="ffffffff")
    refused = await use(house, "session_state", session=1)
    assert refused.startswith("failed: Invalid arguments for")
    assert "needs boss" in await use(house, "person_invite", name="zoe")


async def test_an_agent_does_no_more_by_a_tool_than_its_level_lets_it(house: DeskHouse) -> None:
    for operation in OPERATIONS.values():
        if not is_at_least(PermissionLevel.STANDARD, operation.permission):
            told = await use(house, tool_name(operation))
            assert told.startswith("failed:"), operation.name


async def test_a_call_that_is_made_again_has_its_effect_once(house: DeskHouse) -> None:
    first = json.loads(await use(house, "token_create", call="c7", label="mine"))
    again = json.loads(await use(house, "token_create", call="c7", label="mine"))
    assert (again["id"], "token" in again) == (first["id"], False)
    assert len(json.loads(await use(house, "token_list"))["tokens"]) == 1
    assert json.loads(await use(house, "token_create", call="c8", label="mine"))["id"] != first["id"]


async def test_a_secret_that_is_shown_once_is_not_shown_to_a_model(house: DeskHouse) -> None:
    """It would stay in the record, and be sent with every prompt after it."""
    boss = ada(PermissionLevel.BOSS)
    asked: dict[str, dict[str, object]] = {
        "token.create": {"label": "mine"},
        "person.invite": {"name": "zoe"},
        "agent.register": {"name": "dora", "token": True},
    }
    for name, arguments in asked.items():
        told = json.loads(await use(house, tool_name(OPERATIONS[name]), who=boss, call=name, **arguments))
        [secret] = OPERATIONS[name].secret_fields
        assert secret not in told and told["shown-once"] == [secret]
    shown = await house.ask(MARIA, "token.create", label="hers")
    assert shown["token"] and "shown-once" not in shown, "whoever asks for themselves is told, once"


def test_a_bare_star_does_not_hand_out_the_keys_of_the_house(tmp_path: Path) -> None:
    tools = Toolbox(build_operation_tools(OPERATIONS.values(), lambda: pytest.fail("nobody asks")))  # type: ignore[arg-type]
    assert tools.offered_specs(ada(), ToolPolicyContext()) == []
    assert [spec.name for spec in tools.offered_specs(ada(allow=("*", "session_list")), ToolPolicyContext())] == [
        "session_list"
    ]
    named = {spec.name for spec in tools.offered_specs(ada(allow=("session_*",)), ToolPolicyContext())}
    assert "session_list" in named and all(name.startswith("session_") for name in named)
    denied = replace(ada(allow=("session_*",)), tools=ToolRules(allow=("session_*",), deny=("*",)))
    assert tools.offered_specs(denied, ToolPolicyContext()) == []
