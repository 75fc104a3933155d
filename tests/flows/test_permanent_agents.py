"""Permanent agents that are created by an agent."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from flows.tools_instance import ADA, BO, OWNER, ScriptedServer, open_scripted_server
from operations.operations_instance import agent as principal

from retinue.domain.agent import Agent, PermissionLevel, SandboxRules, ToolRules
from retinue.domain.errors import Invalid, NotAllowed
from retinue.domain.sandbox import SandboxMode
from retinue.domain.structs import replace
from retinue.operations.agent.permanent_agents import TOOL_NAME
from retinue.store.agents import agents
from retinue.testing.scripted_model import tool_call_reply

CREATOR = replace(
    ADA,
    permission_level=PermissionLevel.PRIVILEGED,
    tools=ToolRules(also_allow=(TOOL_NAME,), deny=("web_*",)),
    sandbox=SandboxRules(mode=SandboxMode.ALL),
    day_microusd_max=7_000_000,
    turns_max=9,
)
AGENT_FIELDS = {"name": "Night Clerk", "description": "Keeps watch.", "system_prompt": "Watch the gate."}
ADA_PRINCIPAL = principal("ada", PermissionLevel.PRIVILEGED)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ScriptedServer]:
    async with open_scripted_server(tmp_path / "home", staff=[CREATOR, BO]) as made:
        yield made


async def find_agent(server: ScriptedServer, name: str) -> Agent | None:
    return await server.server.store.read(lambda conn: agents.find(conn, name))


@pytest.mark.spec("D15")
async def test_creating_a_permanent_agent_needs_approval_and_it_works_inside_its_creators_workspace(
    server: ScriptedServer,
) -> None:
    await server.turn("Get help for the night.", tool_call_reply(TOOL_NAME, **AGENT_FIELDS))
    assert await find_agent(server, "night-clerk") is None
    [asked] = await server.asked()
    assert [(call.tool, call.arguments["name"]) for call in asked.calls] == [(TOOL_NAME, "Night Clerk")]

    server.model.will_reply("Done.")
    await server.answer(asked)

    clerk = await find_agent(server, "NIGHT-CLERK")
    assert clerk is not None
    place = server.home("ada").resolve() / "staff" / "night-clerk"
    assert (clerk.name, clerk.label, clerk.instructions) == ("night-clerk", "Night Clerk", "Watch the gate.")
    assert Path(clerk.workspace) == place and place.is_dir()
    # It has the limits of its creator and no higher level than other agents.
    assert (clerk.tools, clerk.sandbox, clerk.day_microusd_max) == (CREATOR.tools, CREATOR.sandbox, 7_000_000)
    assert clerk.permission_level is PermissionLevel.STANDARD
    session = await server.turn(
        "Note it.",
        tool_call_reply("write", path="log.txt", content="quiet"),
        tool_call_reply("exec", command="cat log.txt"),
        tool_call_reply("read", path="../../SOUL.md"),
        "Noted.",
        to="agent:night-clerk",
        sender="person:maria",
    )
    assert (place / "log.txt").read_text() == "quiet"
    _, told, refused = [result.output for result in await server.results(session)]
    assert "quiet" in told
    assert "you cannot access '../../SOUL.md'" in refused, "it cannot read the directory of its creator"


@pytest.mark.spec("D15")
async def test_a_permanent_agent_is_changed_by_name_or_id_and_only_by_its_creator(server: ScriptedServer) -> None:
    made = await server.ask("agent.create_permanent", who=ADA_PRINCIPAL, **AGENT_FIELDS)
    assert (made["name"], made["created"], made["version"]) == ("night-clerk", True, 1)

    by_name = await server.ask(
        "agent.create_permanent", who=ADA_PRINCIPAL, **{**AGENT_FIELDS, "description": "Sleeps."}
    )
    assert (by_name["created"], by_name["changed"], by_name["version"]) == (False, ["description"], 2)
    by_id = await server.ask(
        "agent.create_permanent",
        who=ADA_PRINCIPAL,
        **{**AGENT_FIELDS, "name": "Day Clerk", "agent_id": "Night-Clerk", "workspace_dir": "staff/day"},
    )
    assert (by_id["name"], by_id["display_name"], by_id["version"]) == ("night-clerk", "Day Clerk", 3)
    assert by_id["workspace"].endswith("/ada/staff/day")
    again = await server.ask(
        "agent.create_permanent", who=ADA_PRINCIPAL, **{**AGENT_FIELDS, "name": "Day Clerk", "agent_id": "night-clerk"}
    )
    assert (again["changed"], again["version"]) == ([], 3)

    await server.ask("agent.set", name="night-clerk", turns_max=3)
    with pytest.raises(NotAllowed):  # the owner has changed it
        await server.ask("agent.create_permanent", who=ADA_PRINCIPAL, **{**AGENT_FIELDS, "description": "Mine."})
    await server.ask("agent.create_permanent", who=ADA_PRINCIPAL, **{**AGENT_FIELDS, "name": "Cook"})
    await server.ask("agent.delete", name="cook")
    await server.ask("agent.register", name="cook", instructions="The owner's.")
    for name in ("cook", "ada"):  # an agent that the owner created later, and itself
        with pytest.raises(NotAllowed):
            await server.ask("agent.create_permanent", who=ADA_PRINCIPAL, **{**AGENT_FIELDS, "name": name})
    with pytest.raises(NotAllowed) as others:
        await server.ask("agent.create_permanent", who=ADA_PRINCIPAL, **{**AGENT_FIELDS, "name": "bo"})
    assert others.value.code == "agent.created_by_other"
    with pytest.raises(NotAllowed):
        await server.ask("agent.create_permanent", who=principal("bo", PermissionLevel.PRIVILEGED), **AGENT_FIELDS)
    with pytest.raises(NotAllowed) as level:
        await server.ask("agent.create_permanent", who=principal("ada", PermissionLevel.STANDARD), **AGENT_FIELDS)
    assert level.value.code == "permission.denied"
    with pytest.raises(NotAllowed) as person:
        await server.ask("agent.create_permanent", who=OWNER, **AGENT_FIELDS)
    assert person.value.code == "agent.caller_not_agent"


@pytest.mark.spec("D15")
@pytest.mark.parametrize("folder", ["../bo", "/etc", "staff", ".", "internal_space", "staff/../../bo", "staff/out/x"])
async def test_a_permanent_agent_gets_no_workspace_outside_the_directory_of_its_creator(
    server: ScriptedServer, folder: str
) -> None:
    (server.home("ada") / "staff").mkdir(parents=True)
    (server.home("ada") / "staff" / "out").symlink_to(server.home("bo"))
    with pytest.raises(Invalid) as refused:
        await server.ask("agent.create_permanent", who=ADA_PRINCIPAL, **AGENT_FIELDS, workspace_dir=folder)
    assert refused.value.code == "agent.workspace_outside"
    assert await find_agent(server, "night-clerk") is None


async def test_the_workspace_of_a_permanent_agent_is_not_used_after_its_creator_replaced_it_by_a_link(
    server: ScriptedServer, tmp_path: Path
) -> None:
    made = await server.ask("agent.create_permanent", who=ADA_PRINCIPAL, **AGENT_FIELDS)
    place, outside = Path(made["workspace"]), tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(place)
    place.symlink_to(outside)

    await server.turn(
        "Note it.",
        tool_call_reply("write", path="log.txt", content="x"),
        tool_call_reply("exec", command="touch b.txt"),
        "Done.",
        to="agent:night-clerk",
        sender="person:maria",
    )
    for asked in await server.asked():
        server.model.will_reply("Done.")
        await server.answer(asked, allow=False)
    assert list(outside.iterdir()) == []
