"""Session operations have the same results as tools, over HTTP and in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import ServerProcess
from operations.operations_instance import OperationsServer, agent, open_operations_server, person

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.principal import Principal
from retinue.operations.base import Services
from retinue.operations.catalog import OPERATIONS
from retinue.operations.operation_tools import build_operation_tools
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import tool_call_reply

STEPS: list[tuple[str, dict[str, Any]]] = [
    ("session.create", {"agent": "ada", "name": "Garden", "attributes": {"a": 1}}),
    ("session.rename", {"name": "orchard"}),
    ("session.pin", {}),
    ("session.clear", {}),
    ("session.rename", {"name": None}),
    ("session.unpin", {}),
    ("session.delete", {}),
]
SESSION_OPERATIONS = ("create", "rename", "pin", "unpin", "clear", "delete")


def without_id_and_times(answer: dict[str, Any], session: str) -> dict[str, Any]:
    """Return the response without the values that differ each time: the id and the times."""
    text = json.dumps(answer).replace(session, "ID")
    return {key: bool(value) if key.endswith(("At", "_until")) else value for key, value in json.loads(text).items()}


def comparable_answers(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    session = answers[0]["sessionId"]
    return [without_id_and_times(answer, session) for answer in answers]


async def answers_of_operations(server: OperationsServer, who: Principal) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for name, parameters in STEPS:
        more = {"session": answers[0]["sessionId"]} if answers else {}
        answers.append(await server.ask(who, name, **more, **parameters))
    return answers


async def answers_of_tools(server: OperationsServer) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for name, parameters in STEPS:
        more = {"session": answers[0]["sessionId"]} if answers else {}
        server.server.instance.model.will_reply(tool_call_reply(name.replace(".", "_"), **more, **parameters), "done")
        receipt = await server.server.send("do it", sender="person:owner")
        await server.server.wait_for_outcome(receipt.envelope)
        found = await server.server.list_records(receipt.session)
        answers.append(json.loads(next(r.body.output for r in reversed(found) if r.kind == "tool")))  # type: ignore[union-attr]
    return answers


async def expected_answers(folder: Path, who: Principal) -> list[dict[str, Any]]:
    folder.mkdir()
    async with open_operations_server(LocalInstance(folder)) as server:
        return comparable_answers(await answers_of_operations(server, who))


@pytest.mark.spec("A5")
async def test_session_operations_return_the_same_answers_everywhere_as_operations_and_as_tools(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    all_services: list[Services] = []
    wanted = [OPERATIONS[f"session.{verb}"] for verb in SESSION_OPERATIONS]
    instance = LocalInstance(
        tmp_path / "one",
        agents=[Agent(name="ada", model="scripted", tools=ToolRules(allow=("*", "session_*")))],
        tools=build_operation_tools(wanted, lambda: all_services[0]),
    )
    async with open_operations_server(instance) as server:
        all_services.append(server.services)
        tool_answers = comparable_answers(await answers_of_tools(server))

    assert tool_answers == await expected_answers(tmp_path / "two", agent("ada"))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(tmp_path / "home")
    made.open()
    yield made
    made.close()


@pytest.mark.spec("A5")
async def test_session_operations_return_the_same_answers_everywhere_over_http_and_in_the_cli(
    process: ServerProcess, tmp_path: Path
) -> None:
    process.call("agent.register", name="ada")
    over_http: list[dict[str, Any]] = []
    in_terminal: list[dict[str, Any]] = []
    for name, parameters in STEPS:
        more = {"session": over_http[0]["sessionId"]} if over_http else {}
        over_http.append(process.call(name, **more, **parameters))
    for name, parameters in STEPS:
        words = [in_terminal[0]["sessionId"]] if in_terminal else [parameters["agent"]]
        if "name" in parameters:
            words += ["--name", parameters["name"]] if parameters["name"] else ["--no-name"]
        if "attributes" in parameters:
            words += ["--attributes", json.dumps(parameters["attributes"])]
        in_terminal.append(process.json(*name.split("."), *words))

    assert (
        comparable_answers(over_http)
        == comparable_answers(in_terminal)
        == await expected_answers(tmp_path / "two", person("owner"))
    )
