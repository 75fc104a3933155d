"""Where a run gets its skills, and people look at them: reads folders and pins, and lets the pure part choose."""

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

KIND = "skill"  # among the pins

PluginFolders = Callable[[], Sequence[tuple[str, Path]]]


class Kit(Struct, frozen=True, kw_only=True):
    """What one run has of skills, taken when it begins.

    `section` goes into its instructions, `scoped` into the environment of its commands, `exposed.hidden` are tools it
    is not offered, and `choice.folders` it may read.
    """

    choice: Choice = NOTHING
    exposed: Exposed = Exposed(frozenset(), ())
    section: str = ""
    scoped: Scoped = Scoped()


class Shelf:
    """Reads anew each time it is asked: what changed on disk or in the settings counts from the next run on."""

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
        """Every skill that an agent could have, and how it stands; without one, those of the house."""
        settings = self._settings()
        roots = roots_of(
            self._home,
            agent=agent,
            agent_home=agent_home,
            workspace=workspace,
            plugins=self._plugins(),
            extra=settings.skills.folders,
        )
        if not any(root.path.exists() for root in roots):  # asked at every run, and most often the answer
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
        """What a run of this agent gets. `tools` has the bundle of every tool that is made from an operation, `called`
        is the skill that a person has called for."""
        settings = self._settings().skills
        _, stood = await self.look(agent=agent, agent_home=agent_home, workspace=workspace)
        lists = lists_for(settings, agent)
        told = choose(stood, lists=lists, subset=subset).skills  # who is not told of a bundle keeps the tools
        exposed = expose(lists.telling.exposure, tools or {}, told, lists)
        choice = choose(stood, lists=lists, subset=subset, bundles=exposed.bundles, called=called)
        scoped = Scoped()
        if choice.skills:
            scoped = await asyncio.to_thread(environment_of, choice, settings, self._environment)
        return Kit(choice=choice, exposed=exposed, section=section(choice), scoped=scoped)


def surroundings(settings: Settings, environment: Mapping[str, str]) -> Surroundings:
    """What gates are held against: this machine, the house's own environment and its settings."""
    path = environment.get("PATH", "")
    return Surroundings(
        os=sys.platform,
        has_bin=lambda name: shutil.which(name, path=path) is not None,
        has_env=lambda name: bool(environment.get(name)),
        has_config=lambda dotted: _is_on(settings, dotted),
    )


def _is_on(settings: Settings, dotted: str) -> bool:
    """Whether a setting, named by its path in the file, is there and says something."""
    value: Any = settings
    for word in dotted.removeprefix("house.").split("."):
        if word in names(value):
            value = getattr(value, word)
        elif isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(word)
        else:
            return False
    return bool(value)
