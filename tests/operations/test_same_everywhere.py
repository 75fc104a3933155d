"""A session is kept the same way from every door: as a tool, over HTTP and in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.server_process import HouseProcess
from operations.operations_instance import DeskHouse, agent, desk_house, person

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


def plain(answer: dict[str, Any], session: str) -> dict[str, Any]:
    """An answer without what is never the same twice: the id, and the hour."""
    text = json.dumps(answer).replace(session, "ID")
    return {key: bool(value) if key.endswith(("At", "-until")) else value for key, value in json.loads(text).items()}


def walked(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    session = answers[0]["sessionId"]
    return [plain(answer, session) for answer in answers]


async def by_operation(house: DeskHouse, who: Principal) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for name, parameters in STEPS:
        more = {"session": answers[0]["sessionId"]} if answers else {}
        answers.append(await house.ask(who, name, **more, **parameters))
    return answers


async def by_tool(house: DeskHouse) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    for name, parameters in STEPS:
        more = {"session": answers[0]["sessionId"]} if answers else {}
        house.house.instance.model.will_reply(tool_call_reply(name.replace(".", "_"), **more, **parameters), "done")
        receipt = await house.house.send("do it", sender="person:owner")
        await house.house.wait_for_outcome(receipt.envelope)
        found = await house.house.list_records(receipt.session)
        answers.append(json.loads(next(r.body.output for r in reversed(found) if r.kind == "tool")))  # type: ignore[union-attr]
    return answers


async def as_expected(folder: Path, who: Principal) -> list[dict[str, Any]]:
    folder.mkdir()
    async with desk_house(LocalInstance(folder)) as house:
        return walked(await by_operation(house, who))


@pytest.mark.spec("A5")
async def test_a_tool_gives_what_the_operation_gives(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    desks: list[Services] = []
    wanted = [OPERATIONS[f"session.{verb}"] for verb in SESSION_OPERATIONS]
    household = LocalInstance(
        tmp_path / "one",
        agents=[Agent(name="ada", model="scripted", tools=ToolRules(allow=("*", "session_*")))],
        tools=build_operation_tools(wanted, lambda: desks[0]),
    )
    async with desk_house(household) as house:
        desks.append(house.desk)
        told = walked(await by_tool(house))

    assert told == await as_expected(tmp_path / "two", agent("ada"))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[HouseProcess]:
    made = HouseProcess(tmp_path / "home")
    made.open()
    yield made
    made.close()


@pytest.mark.spec("A5")
async def test_http_and_the_terminal_give_what_the_operation_gives(process: HouseProcess, tmp_path: Path) -> None:
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

    assert walked(over_http) == walked(in_terminal) == await as_expected(tmp_path / "two", person("owner"))
