"""List the slash commands of a conversation, for clients that offer completion."""

from __future__ import annotations

import msgspec

from retinue.agents.agent_directory import home_of
from retinue.agents.skill_commands import skill_commands
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.domain.slash_command import DIRECTIVES, SUMMARIES
from retinue.operations.base import Desk, Operation
from retinue.operations.skill.skills import shelf
from retinue.store.agents import agents


class CommandList(msgspec.Struct, forbid_unknown_fields=True):
    """Includes the commands of an agent's skills if one is named."""

    agent: str = ""


class CommandShown(msgspec.Struct, frozen=True):
    """`form` is the syntax.

    A `directive` can also appear inside a message, and then applies to that message only.
    """

    name: str
    form: str
    summary: str
    directive: bool = False
    skill: str = ""


class CommandsListed(msgspec.Struct):
    commands: list[CommandShown]


async def listed(desk: Desk, caller: Principal, asked: CommandList) -> CommandsListed:
    """List slash commands.

    The list is the same for every caller; permission is checked when a command is used.
    """
    found = [
        CommandShown(name=name.value, form=form, summary=what, directive=name in DIRECTIVES)
        for name, (form, what) in SUMMARIES.items()
    ]
    agent = await desk.store.read(lambda conn: agents.find(conn, asked.agent)) if asked.agent else None
    if agent is not None:
        home = home_of(desk.home, agent.name)
        workspace = desk.defaults.workspace_of(agent, home)
        _, stood = await shelf(desk).look(agent=agent.name, agent_home=home, workspace=workspace)
        found += [
            CommandShown(name=each.name, form=f"/{each.name} [WORDS]", summary=each.description, skill=each.skill)
            for each in skill_commands(stood)
        ]
    return CommandsListed(found)


OPERATIONS = (
    Operation(
        name="command.list",
        summary="List what can be asked of the house in a conversation.",
        parameters=CommandList,
        handler=listed,
        result=CommandsListed,
        permission=PermissionLevel.RESTRICTED,
    ),
)
