"""Decides which skills people can call with a slash command, and the name of each command."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from retinue.agents.skill_selection import EvaluatedSkill, SkillState
from retinue.agents.skills import Skill
from retinue.domain.slash_command import COMMAND_LENGTH_MAX, COMMANDS_BY_WORD, SkillCommand

COMMANDS_MAX = 100  # skill commands per conversation

_INVALID_CHARS = re.compile(r"[^a-z0-9_]+")


def build_skill_commands(
    evaluated: Sequence[EvaluatedSkill], *, subset: Sequence[str] | None = None
) -> tuple[SkillCommand, ...]:
    """Return the slash commands that people may use, and the skill of each.

    Only a skill that is ready has a command. `subset` contains the skills selected for the session,
    or None for all.
    """
    ready = [
        each.skill
        for each in evaluated
        if each.state is SkillState.READY
        and each.skill.front_matter.is_for_people
        and (subset is None or each.skill.name in subset)
    ]
    taken = set(COMMANDS_BY_WORD)
    commands: list[SkillCommand] = []
    for skill in sorted(ready, key=lambda each: each.name)[:COMMANDS_MAX]:
        name = _free_command_name(skill.name, taken)
        taken.add(name)
        commands.append(_build_command(skill, name))
    return tuple(commands)


def _build_command(skill: Skill, name: str) -> SkillCommand:
    front = skill.front_matter
    return SkillCommand(
        name=name,
        skill=skill.name,
        description=front.description,
        tool=front.command_tool,
        argument=front.command_argument,
    )


def _free_command_name(name: str, taken: Collection[str]) -> str:
    """Return a command name that is not taken: a letter, followed by a-z, 0-9 and _.

    A number is appended if the skill's own name is taken.
    """
    plain = _INVALID_CHARS.sub("_", name.casefold()).strip("_")
    if not plain[:1].isalpha():
        plain = f"skill_{plain}"
    first = plain[:COMMAND_LENGTH_MAX]
    if first not in taken:
        return first
    number = 2
    while (numbered := f"{plain[: COMMAND_LENGTH_MAX - len(f'_{number}')]}_{number}") in taken:
        number += 1
    return numbered
