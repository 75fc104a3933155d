"""Decides how an agent reaches operations: as tools, or with the command line of a skill bundle. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from retinue.agents.skill_selection import Lists
from retinue.agents.skills import Skill
from retinue.config.skills import Exposure


class Exposed(Struct, frozen=True):
    """The tools that are not offered because a command line replaces them, and the bundles that are listed."""

    hidden: frozenset[str]
    bundles: tuple[str, ...]


def expose(exposure: Exposure, tools: Mapping[str, str], present: Iterable[Skill], lists: Lists) -> Exposed:
    """Return which operation tools to hide and which bundles to list.

    `bundle_by_tool` has the bundle of every tool that is made from an operation. `available` are
    usable skills.

    With `tools`, every operation is a tool and no bundle is listed. With `skills`, no operation is
    a tool. With `mixed`, an operation is a tool unless the agent has its bundle. Other tools are
    never hidden.
    """
    if exposure is Exposure.TOOLS:
        return Exposed(frozenset(), ())
    known = frozenset(tools.values())
    bundles = tuple(
        dict.fromkeys(
            skill.front.bundle
            for skill in present
            if skill.front.bundle in known and skill.front.for_models and not lists.permits(skill.name)
        )
    )
    if exposure is Exposure.SKILLS:
        return Exposed(frozenset(tools), bundles)
    return Exposed(frozenset(tool for tool, bundle in tools.items() if bundle in bundles), bundles)
