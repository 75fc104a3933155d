"""The classes that a plugin defines, and the interfaces that the server passes to it.

A package declares its `Plugin` as an entry point of the group `retinue.plugins`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from retinue.domain.agent import Agent
from retinue.domain.ports import Clock
from retinue.domain.session import OriginKind
from retinue.plugins.errors import TooManyBackgroundTasks

ENTRY_POINT_GROUP = "retinue.plugins"
BACKGROUND_TASKS_MAX = 16  # background tasks per instance

SOURCE_PREFIX = "plugin:"


class NoPluginSettings(msgspec.Struct, forbid_unknown_fields=True):
    """The settings type of a plugin that has no settings."""


class PluginManifest(Struct, frozen=True, kw_only=True):
    """What a plugin declares about itself: its name, its version and the type of its settings.

    `settings` is a msgspec Struct or a dataclass. The plugin's table in the settings file is
    strictly converted to this type before `load` is called. While an `exclusive` plugin is enabled,
    no other plugin is loaded.
    """

    id: str
    version: str
    description: str
    exclusive: bool = False
    settings: type[Any] = NoPluginSettings


class SectionContext(Struct, frozen=True, kw_only=True):
    """The run for which a plugin's prompt section is rendered."""

    agent: Agent
    session: str
    agent_directory: Path
    origin: OriginKind


class PluginSection(Struct, frozen=True, kw_only=True):
    """A section that a plugin adds to the system prompt of every run.

    Minimal prompts contain the section only if `in_minimal_mode` is set. `render` is called in a
    thread when a run starts. If it returns an empty string, the section is left out.
    """

    name: str
    render: Callable[[SectionContext], str]
    in_minimal_mode: bool = False


class PluginRegistrar(Protocol):
    """Registers the parts of a plugin while the plugin is being loaded.

    If a part of the same kind and name already exists, the plugin is not loaded.
    """

    def tool(self, tool: Any) -> None: ...
    def operation(self, operation: Any) -> None: ...
    def connector(self, connector: Any) -> None: ...
    def platform(self, platform: Any) -> None: ...
    def model(self, model: Any) -> None: ...
    def provider(self, name: str, provider: Any) -> None: ...
    def runner(self, name: str, runner: Any) -> None: ...
    def section(self, section: PluginSection) -> None: ...
    def policy(self, name: str, rules: Any) -> None: ...
    def skills(self, folder: Path) -> None: ...


class PluginHost(Struct, frozen=True, kw_only=True):
    """What the server offers to one instance of a plugin: a data folder, background tasks and callbacks.

    `folder` is the data folder of the instance. It is kept when the instance is unloaded.
    """

    plugin: str
    instance: str
    folder: Path
    clock: Clock
    log: logging.Logger
    register: PluginRegistrar
    background_work: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])
    unload_callbacks: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def qualify_name(self, name: str) -> str:
        """Return a name that no other instance of the plugin uses.

        The name gets the name of the instance as a prefix, unless the instance is named like the
        plugin.
        """
        return name if self.instance == self.plugin else f"{self.instance.replace('-', '_')}_{name}"

    def add_background_task(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task while the instance is loaded. The task is cancelled on unload."""
        if len(self.background_work) >= BACKGROUND_TASKS_MAX:
            raise TooManyBackgroundTasks(tasks_max=BACKGROUND_TASKS_MAX)
        self.background_work.append(work)

    def on_unload(self, callback: Callable[[], None]) -> None:
        """Call a function in a thread when the instance is unloaded, after its background tasks have stopped.

        If there are several functions, the one that was added last is called first.
        """
        self.unload_callbacks.append(callback)


class Plugin(Struct, frozen=True, kw_only=True):
    """A plugin: its manifest, and `load`, which registers the parts of an instance.

    `load` is called in a thread, so that a slow plugin does not block the server.
    """

    manifest: PluginManifest
    load: Callable[[PluginHost, Any], None]
