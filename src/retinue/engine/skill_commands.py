"""Finds the skills that a person calls by command: `/skill NAME [TEXT]` or `/NAME [TEXT]`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.domain.slash_command import CommandName, SkillCommand, SlashCommand
from retinue.domain.tool import Call

NAME_SHOWN_MAX = 40


class SkillCommandRequest(Struct, frozen=True, kw_only=True):
    """What a skill command requests: a run that uses the skill with this text, or a single tool call."""

    skill: str
    text: str = ""
    call: Call | None = None


def find_skill_request(commands: Sequence[SlashCommand], skills: Sequence[SkillCommand]) -> SkillCommandRequest | None:
    """Return the skill request of a message, or None if it names no available skill."""
    first = commands[0]
    if first.name is CommandName.SKILL:
        name, _, words = first.arguments.partition(" ")
        found = find_skill(name.removeprefix("/"), skills)
    elif first.name is None:
        words = first.arguments
        found = next((each for each in skills if each.name == first.word), None)
    else:
        return None
    if found is None:
        return None
    words = words.strip()
    if found.tool:
        return SkillCommandRequest(
            skill=found.skill, call=Call(id="", tool=found.tool, arguments={found.argument: words})
        )
    suffix = f"\n\n{words}" if words else ""
    return SkillCommandRequest(skill=found.skill, text=f"Use the skill `{found.skill}` for this.{suffix}")


def find_skill(name: str, skills: Sequence[SkillCommand]) -> SkillCommand | None:
    """Find a skill by its name or by the name of its command."""
    name = name.casefold()
    return next((each for each in skills if name in (each.name, each.skill)), None)


def skill_not_found_text(arguments: str, skills: Sequence[SkillCommand]) -> str:
    name = arguments.split(" ", 1)[0][:NAME_SHOWN_MAX]
    if not skills:
        return "There are no skills to call here."
    listed = [f"/skill {each.skill}: {each.short_description}" for each in skills]
    if not name:
        return "\n".join(["Choose one: /skill NAME [TEXT]", *listed])
    from difflib import get_close_matches  # imported only for a mistyped name

    near = get_close_matches(name.casefold(), [each.skill for each in skills], n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return "\n".join([f"No skill named '{name}' that can be called here.{hint}", *listed])
