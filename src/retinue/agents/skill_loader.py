"""Loads the skills of a run: reads skill folders and approvals, and passes them to `skill_selection`."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from retinue.agents.operation_exposure import ExposedOperations, select_exposure
from retinue.agents.skill_discovery import FoundSkills, find_skills, skill_roots_of
from retinue.agents.skill_selection import (
    EMPTY_SELECTION,
    EvaluatedSkill,
    SkillEnvironment,
    SkillSelection,
    build_environment,
    evaluate_skills,
    render_skills_section,
    select_skills,
    skill_lists_for,
)
from retinue.agents.skills import HostFacts
from retinue.config.settings import Settings
from retinue.domain.structs import field_names
from retinue.store.agents import content_approvals
from retinue.store.core.connection import Store

APPROVAL_KIND = "skill"  # in the table of approved hashes

ListPluginFolders = Callable[[], Sequence[tuple[str, Path]]]


class RunSkills(Struct, frozen=True, kw_only=True):
    """The skills of one run, selected when it starts.

    `section` is added to the system prompt, and `environment` to the environment of the run's commands. The tools in
    `exposed.hidden` are not offered to the model. The run may read the folders in `selection.folders`.
    """

    selection: SkillSelection = EMPTY_SELECTION
    exposed: ExposedOperations = ExposedOperations(frozenset(), ())
    section: str = ""
    environment: SkillEnvironment = SkillEnvironment()


class SkillLoader:
    """Reads skills from disk on each call, so changes on disk or in the settings apply from the next run."""

    def __init__(
        self,
        data_dir: Path,
        store: Store,
        *,
        settings: Callable[[], Settings],
        environment: Mapping[str, str],
        plugin_folders: ListPluginFolders = tuple,
    ) -> None:
        self._data_dir = data_dir
        self._store = store
        self._settings = settings
        self._environment = environment
        self._plugin_folders = plugin_folders

    async def find_skills(
        self,
        *,
        agent: str = "",
        agent_directory: Path | None = None,
        workspace: Path | None = None,
        with_contents: bool = False,
    ) -> tuple[FoundSkills, tuple[EvaluatedSkill, ...]]:
        """Return every skill that an agent could have, with its state.

        Without an agent, return the skills of the instance.
        """
        settings = self._settings()
        roots = skill_roots_of(
            self._data_dir,
            agent=agent,
            agent_directory=agent_directory,
            workspace=workspace,
            plugins=self._plugin_folders(),
            extra=settings.skills.folders,
        )
        if not any(root.path.exists() for root in roots):  # called in every run, and usually there are none
            return FoundSkills(), ()
        found = await asyncio.to_thread(find_skills, roots, with_contents=with_contents)
        good = await self._store.read(partial(content_approvals.get_hashes, kind=APPROVAL_KIND)) if found.skills else {}
        here = gather_host_facts(settings, self._environment)
        return found, evaluate_skills(found.skills, good, here, settings=settings.skills, agent=agent)

    async def load(
        self,
        agent: str,
        *,
        agent_directory: Path,
        workspace: Path | None = None,
        subset: Sequence[str] | None = None,
        bundle_by_tool: Mapping[str, str] | None = None,
        requested_skill: str = "",
    ) -> RunSkills:
        """Return the skills of a run of this agent.

        `bundle_by_tool` maps each tool that performs an operation to the skill bundle that contains
        the operation. `requested_skill` is the skill that a person called with a slash command.
        """
        settings = self._settings().skills
        _, stood = await self.find_skills(agent=agent, agent_directory=agent_directory, workspace=workspace)
        lists = skill_lists_for(settings, agent)
        selected = select_skills(
            stood, lists=lists, subset=subset
        ).skills  # an agent that does not have a bundle keeps its tools
        exposed = select_exposure(lists.display_lists.exposure, bundle_by_tool or {}, selected, lists)
        choice = select_skills(
            stood, lists=lists, subset=subset, bundles=exposed.bundles, requested_skill=requested_skill
        )
        scoped = SkillEnvironment()
        if choice.skills:
            scoped = await asyncio.to_thread(build_environment, choice, settings, self._environment)
        return RunSkills(selection=choice, exposed=exposed, section=render_skills_section(choice), environment=scoped)


def gather_host_facts(settings: Settings, environment: Mapping[str, str]) -> HostFacts:
    """Return the facts for checking skill requirements: operating system, environment variables and settings."""
    path = environment.get("PATH", "")
    return HostFacts(
        os=sys.platform,
        has_bin=lambda name: shutil.which(name, path=path) is not None,
        has_env=lambda name: bool(environment.get(name)),
        has_config=lambda dotted: _is_setting_on(settings, dotted),
    )


def _is_setting_on(settings: Settings, dotted: str) -> bool:
    """Whether a setting, given by its path in the settings file, is neither empty nor false."""
    value: Any = settings
    # `house` was the name of the section `server`, and skills may still use it.
    for word in dotted.removeprefix("server.").removeprefix("house.").split("."):
        if word in field_names(value):
            value = getattr(value, word)
        elif isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(word)
        else:
            return False
    return bool(value)
