"""Operation that lists the slash commands of a conversation, for clients that autocomplete them."""

from __future__ import annotations

import msgspec

from retinue.agents.agent_directory import agent_directory_of
from retinue.agents.skill_commands import build_skill_commands
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.slash_command import DIRECTIVES, SUMMARIES
from retinue.operations.base import Operation, Services
from retinue.operations.skill.skills import build_skill_loader
from retinue.store.agents import agents


class SlashCommandListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List slash commands. With `agent`, the list includes the commands of that agent's skills."""

    agent: str = ""


class SlashCommandRow(msgspec.Struct, frozen=True):
    """One slash command. `syntax` is the command with its arguments, as people type it.

    If `directive` is true, the command can also be part of a message. It then applies only to that message.
    """

    name: str
    syntax: str
    summary: str
    directive: bool = False
    skill: str = ""


class SlashCommandList(msgspec.Struct):
    commands: list[SlashCommandRow]


async def list_slash_commands(
    services: Services, caller: Principal, request: SlashCommandListRequest
) -> SlashCommandList:
    """List slash commands.

    The list is the same for every caller; permission is checked when a command is used.
    """
    found = [
        SlashCommandRow(name=name.value, syntax=form, summary=what, directive=name in DIRECTIVES)
        for name, (form, what) in SUMMARIES.items()
    ]
    agent = await services.store.read(lambda conn: agents.find(conn, request.agent)) if request.agent else None
    if agent is not None:
        home = agent_directory_of(services.data_dir, agent.name)
        workspace = services.defaults.workspace_of(agent, home)
        _, stood = await build_skill_loader(services).find_skills(
            agent=agent.name, agent_directory=home, workspace=workspace
        )
        found += [
            SlashCommandRow(name=each.name, syntax=f"/{each.name} [TEXT]", summary=each.description, skill=each.skill)
            for each in build_skill_commands(stood)
        ]
    return SlashCommandList(found)


OPERATIONS = (
    Operation(
        name="slash_command.list",
        summary="List the slash commands of a conversation.",
        parameters=SlashCommandListRequest,
        handler=list_slash_commands,
        result=SlashCommandList,
        permission=PermissionLevel.RESTRICTED,
    ),
)
