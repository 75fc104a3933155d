"""Decides how an agent can call operations: as tools, or through the command line of a skill bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from retinue.agents.skill_selection import AgentSkillLists
from retinue.agents.skills import Skill
from retinue.config.skills import OperationExposure


class ExposedOperations(Struct, frozen=True):
    """The operation tools that are hidden because a command line replaces them, and the skill bundles to list."""

    hidden: frozenset[str]
    bundles: tuple[str, ...]


def select_exposure(
    exposure: OperationExposure, bundle_by_tool: Mapping[str, str], available: Iterable[Skill], lists: AgentSkillLists
) -> ExposedOperations:
    """Return which operation tools to hide and which skill bundles to list.

    `bundle_by_tool` maps each tool that performs an operation to the skill bundle that contains the
    operation. `available` are the usable skills.

    With `tools`, every operation is a tool and no bundle is listed. With `skills`, no operation is
    a tool. With `mixed`, an operation is a tool unless the agent has its bundle. Other tools are
    never hidden.
    """
    if exposure is OperationExposure.TOOLS:
        return ExposedOperations(frozenset(), ())
    known = frozenset(bundle_by_tool.values())
    bundles = tuple(
        dict.fromkeys(
            skill.front_matter.bundle
            for skill in available
            if skill.front_matter.bundle in known
            and skill.front_matter.is_for_models
            and not lists.denied_because(skill.name)
        )
    )
    if exposure is OperationExposure.SKILLS:
        return ExposedOperations(frozenset(bundle_by_tool), bundles)
    return ExposedOperations(frozenset(tool for tool, bundle in bundle_by_tool.items() if bundle in bundles), bundles)
