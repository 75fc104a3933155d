"""Skills that a person calls by command: `/skill NAME [TEXT]` or `/NAME [TEXT]`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.domain.slash_command import Command, CommandName, SkillCommand
from retinue.domain.tool import Call

NAME_SHOWN_MAX = 40


class Called(Struct, frozen=True, kw_only=True):
    """What a skill command asks of the run: to use a skill with this text, or to make one call only."""

    skill: str
    text: str = ""
    call: Call | None = None


def called(commands: Sequence[Command], skills: Sequence[SkillCommand]) -> Called | None:
    """Return the skill request of a message, or None if it names no available skill."""
    first = commands[0]
    if first.name is CommandName.SKILL:
        name, _, words = first.rest.partition(" ")
        found = find(name.removeprefix("/"), skills)
    elif first.name is None:
        words = first.rest
        found = next((each for each in skills if each.name == first.word), None)
    else:
        return None
    if found is None:
        return None
    words = words.strip()
    if found.tool:
        return Called(skill=found.skill, call=Call(id="", tool=found.tool, arguments={found.argument: words}))
    told = f"\n\n{words}" if words else ""
    return Called(skill=found.skill, text=f"Use the skill `{found.skill}` for this.{told}")


def find(name: str, skills: Sequence[SkillCommand]) -> SkillCommand | None:
    """Find a skill by its command name or its own name."""
    name = name.casefold()
    return next((each for each in skills if name in (each.name, each.skill)), None)


def no_such_skill(rest: str, skills: Sequence[SkillCommand]) -> str:
    name = rest.split(" ", 1)[0][:NAME_SHOWN_MAX]
    if not skills:
        return "No skill can be called for here."
    listed = [f"/skill {each.skill}: {each.line}" for each in skills]
    if not name:
        return "\n".join(["Which one? /skill NAME [WORDS]", *listed])
    from difflib import get_close_matches  # imported only for a mistyped name

    near = get_close_matches(name.casefold(), [each.skill for each in skills], n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return "\n".join([f"There is no skill '{name}' to call for here.{hint}", *listed])
