"""Agents that an agent takes on for good."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from flows.tools_instance import ADA, BO, OWNER, HandsHouse, hands_house
from operations.operations_instance import agent as principal

from retinue.domain.agent import Agent, PermissionLevel, SandboxRules, ToolRules
from retinue.domain.errors import Invalid, NotAllowed
from retinue.domain.sandbox import SandboxMode
from retinue.domain.structs import replace
from retinue.operations.agent.permanent_agents import TOOL_NAME
from retinue.store.agents import agents
from retinue.testing.scripted_model import tool_call_reply

MAKER = replace(
    ADA,
    permission_level=PermissionLevel.PRIVILEGED,
    tools=ToolRules(also_allow=(TOOL_NAME,), deny=("web_*",)),
    sandbox=SandboxRules(mode=SandboxMode.ALL),
    day_microusd_max=7_000_000,
    turns_max=9,
)
ASKED = {"name": "Night Clerk", "description": "Keeps watch.", "system_prompt": "Watch the door."}
AS_ADA = principal("ada", PermissionLevel.PRIVILEGED)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[HandsHouse]:
    async with hands_house(tmp_path / "home", staff=[MAKER, BO]) as made:
        yield made


async def found(house: HandsHouse, name: str) -> Agent | None:
    return await house.house.store.read(lambda conn: agents.find(conn, name))


@pytest.mark.spec("D15")
async def test_a_person_is_asked_before_an_agent_takes_one_on_and_it_works_inside_its_workspace(
    house: HandsHouse,
) -> None:
    await house.turn("Get help for the night.", tool_call_reply(TOOL_NAME, **ASKED))
    assert await found(house, "night-clerk") is None
    [asked] = await house.asked()
    assert [(call.tool, call.arguments["name"]) for call in asked.calls] == [(TOOL_NAME, "Night Clerk")]

    house.model.will_reply("Done.")
    await house.answer(asked)

    clerk = await found(house, "NIGHT-CLERK")
    assert clerk is not None
    place = house.home("ada").resolve() / "staff" / "night-clerk"
    assert (clerk.name, clerk.label, clerk.instructions) == ("night-clerk", "Night Clerk", "Watch the door.")
    assert Path(clerk.workspace) == place and place.is_dir()
    # It has its maker's bounds, and no more than the level of any other.
    assert (clerk.tools, clerk.sandbox, clerk.day_microusd_max) == (MAKER.tools, MAKER.sandbox, 7_000_000)
    assert clerk.permission_level is PermissionLevel.STANDARD
    session = await house.turn(
        "Note it.",
        tool_call_reply("write", path="log.txt", content="quiet"),
        tool_call_reply("exec", command="cat log.txt"),
        tool_call_reply("read", path="../../SOUL.md"),
        "Noted.",
        to="agent:night-clerk",
        sender="person:maria",
    )
    assert (place / "log.txt").read_text() == "quiet"
    _, told, refused = [result.output for result in await house.results(session)]
    assert "quiet" in told
    assert "you cannot access '../../SOUL.md'" in refused, "its maker's directory is not its own"


@pytest.mark.spec("D15")
async def test_it_is_changed_by_name_or_by_id_and_only_by_who_took_it_on(house: HandsHouse) -> None:
    made = await house.ask("agent.permanent", who=AS_ADA, **ASKED)
    assert (made["name"], made["created"], made["version"]) == ("night-clerk", True, 1)

    by_name = await house.ask("agent.permanent", who=AS_ADA, **{**ASKED, "description": "Sleeps."})
    assert (by_name["created"], by_name["changed"], by_name["version"]) == (False, ["description"], 2)
    by_id = await house.ask(
        "agent.permanent",
        who=AS_ADA,
        **{**ASKED, "name": "Day Clerk", "agent_id": "Night-Clerk", "workspace_dir": "staff/day"},
    )
    assert (by_id["name"], by_id["display_name"], by_id["version"]) == ("night-clerk", "Day Clerk", 3)
    assert by_id["workspace"].endswith("/ada/staff/day")
    again = await house.ask("agent.permanent", who=AS_ADA, **{**ASKED, "name": "Day Clerk", "agent_id": "night-clerk"})
    assert (again["changed"], again["version"]) == ([], 3)

    await house.ask("agent.set", name="night-clerk", turns_max=3)
    with pytest.raises(NotAllowed):  # the owner has had a word on it
        await house.ask("agent.permanent", who=AS_ADA, **{**ASKED, "description": "Mine."})
    await house.ask("agent.permanent", who=AS_ADA, **{**ASKED, "name": "Cook"})
    await house.ask("agent.delete", name="cook")
    await house.ask("agent.register", name="cook", instructions="The owner's.")
    for name in ("cook", "ada"):  # one that the owner took on since, and itself
        with pytest.raises(NotAllowed):
            await house.ask("agent.permanent", who=AS_ADA, **{**ASKED, "name": name})
    with pytest.raises(NotAllowed) as others:
        await house.ask("agent.permanent", who=AS_ADA, **{**ASKED, "name": "bo"})
    assert others.value.code == "agent.created_by_other"
    with pytest.raises(NotAllowed):
        await house.ask("agent.permanent", who=principal("bo", PermissionLevel.PRIVILEGED), **ASKED)
    with pytest.raises(NotAllowed) as level:
        await house.ask("agent.permanent", who=principal("ada", PermissionLevel.STANDARD), **ASKED)
    assert level.value.code == "permission.denied"
    with pytest.raises(NotAllowed) as person:
        await house.ask("agent.permanent", who=OWNER, **ASKED)
    assert person.value.code == "agent.caller_not_agent"


@pytest.mark.spec("D15")
@pytest.mark.parametrize("folder", ["../bo", "/etc", "staff", ".", "internal_space", "staff/../../bo", "staff/out/x"])
async def test_a_workspace_outside_is_refused_and_nothing_is_changed(house: HandsHouse, folder: str) -> None:
    (house.home("ada") / "staff").mkdir(parents=True)
    (house.home("ada") / "staff" / "out").symlink_to(house.home("bo"))
    with pytest.raises(Invalid) as refused:
        await house.ask("agent.permanent", who=AS_ADA, **ASKED, workspace_dir=folder)
    assert refused.value.code == "agent.workspace_outside"
    assert await found(house, "night-clerk") is None


async def test_a_workspace_that_its_maker_turns_into_a_link_is_one_no_more(house: HandsHouse, tmp_path: Path) -> None:
    made = await house.ask("agent.permanent", who=AS_ADA, **ASKED)
    place, outside = Path(made["workspace"]), tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(place)
    place.symlink_to(outside)

    await house.turn(
        "Note it.",
        tool_call_reply("write", path="log.txt", content="x"),
        tool_call_reply("exec", command="touch b.txt"),
        "Done.",
        to="agent:night-clerk",
        sender="person:maria",
    )
    for asked in await house.asked():
        house.model.will_reply("Done.")
        await house.answer(asked, allow=False)
    assert list(outside.iterdir()) == []
