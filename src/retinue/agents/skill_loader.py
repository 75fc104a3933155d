"""Loads the skills of a run: reads folders and approved hashes, and passes them to the pure selection."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from retinue.agents.operation_exposure import Exposed, expose
from retinue.agents.skill_discovery import Found, find, roots_of
from retinue.agents.skill_selection import (
    NOTHING,
    Choice,
    Scoped,
    Standing,
    choose,
    environment_of,
    lists_for,
    section,
    standing,
)
from retinue.agents.skills import Surroundings
from retinue.config.settings import Settings
from retinue.domain.structs import names
from retinue.store.agents import approved_hashes
from retinue.store.core.connection import Store

KIND = "skill"  # in the table of approved hashes

PluginFolders = Callable[[], Sequence[tuple[str, Path]]]


class Kit(Struct, frozen=True, kw_only=True):
    """The skills of one run, selected when it starts.

    `section` goes into its system prompt and `environment` into that of its commands. The tools in
    `exposed.hidden` are not offered. The run may read the folders in `selection.folders`.
    """

    choice: Choice = NOTHING
    exposed: Exposed = Exposed(frozenset(), ())
    section: str = ""
    scoped: Scoped = Scoped()


class Shelf:
    """Reads skills on each call: changes on disk or in the settings apply from the next run on."""

    def __init__(
        self,
        home: Path,
        store: Store,
        *,
        settings: Callable[[], Settings],
        environment: Mapping[str, str],
        plugins: PluginFolders = tuple,
    ) -> None:
        self._home = home
        self._store = store
        self._settings = settings
        self._environment = environment
        self._plugins = plugins

    async def look(
        self,
        *,
        agent: str = "",
        agent_home: Path | None = None,
        workspace: Path | None = None,
        contents: bool = False,
    ) -> tuple[Found, tuple[Standing, ...]]:
        """Return every skill that an agent could have, with its state; without an agent, those of the instance."""
        settings = self._settings()
        roots = roots_of(
            self._home,
            agent=agent,
            agent_home=agent_home,
            workspace=workspace,
            plugins=self._plugins(),
            extra=settings.skills.folders,
        )
        if not any(root.path.exists() for root in roots):  # called in every run, and usually there are none
            return Found(), ()
        found = await asyncio.to_thread(find, roots, contents=contents)
        good = await self._store.read(partial(approved_hashes.hashes, kind=KIND)) if found.skills else {}
        here = surroundings(settings, self._environment)
        return found, standing(found.skills, good, here, settings=settings.skills, agent=agent)

    async def kit(
        self,
        agent: str,
        *,
        agent_home: Path,
        workspace: Path | None = None,
        subset: Sequence[str] | None = None,
        tools: Mapping[str, str] | None = None,
        called: str = "",
    ) -> Kit:
        """Return the skills of a run of this agent.

        `bundle_by_tool` has the bundle of every tool that is made from an operation.
        `requested_skill` is the skill that a person called with a command.
        """
        settings = self._settings().skills
        _, stood = await self.look(agent=agent, agent_home=agent_home, workspace=workspace)
        lists = lists_for(settings, agent)
        told = choose(stood, lists=lists, subset=subset).skills  # an agent that does not have a bundle keeps its tools
        exposed = expose(lists.telling.exposure, tools or {}, told, lists)
        choice = choose(stood, lists=lists, subset=subset, bundles=exposed.bundles, called=called)
        scoped = Scoped()
        if choice.skills:
            scoped = await asyncio.to_thread(environment_of, choice, settings, self._environment)
        return Kit(choice=choice, exposed=exposed, section=section(choice), scoped=scoped)


def surroundings(settings: Settings, environment: Mapping[str, str]) -> Surroundings:
    """Return the facts that requirements are checked against: this machine, its environment, the settings."""
    path = environment.get("PATH", "")
    return Surroundings(
        os=sys.platform,
        has_bin=lambda name: shutil.which(name, path=path) is not None,
        has_env=lambda name: bool(environment.get(name)),
        has_config=lambda dotted: _is_on(settings, dotted),
    )


def _is_on(settings: Settings, dotted: str) -> bool:
    """Whether a setting, given by its path in the file, exists and is not empty or false."""
    value: Any = settings
    for word in dotted.removeprefix("house.").split("."):
        if word in names(value):
            value = getattr(value, word)
        elif isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(word)
        else:
            return False
    return bool(value)
