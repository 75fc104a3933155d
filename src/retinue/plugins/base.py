"""What a plug-in is, and what it is handed. An entry point of the group `retinue.plugins` names a `Plugin`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from retinue.domain.agent import Agent
from retinue.domain.errors import RetinueError
from retinue.domain.ports import Clock
from retinue.domain.session import OriginKind

GROUP = "retinue.plugins"
BACKGROUND_MAX = 16  # pieces of work that one instance may have going

PREFIX = "plugin:"


class PluginFailed(RetinueError):
    """A plug-in is not loaded. The house goes on without it."""

    code = "plugin.failed"


class NoSettings(msgspec.Struct, forbid_unknown_fields=True):
    """A plug-in that can be told nothing."""


class Manifest(Struct, frozen=True, kw_only=True):
    """What a plug-in says of itself.

    `settings` is a msgspec Struct or a dataclass: what stands in the settings file is converted to it, strictly, before
    the plug-in sees it. An `exclusive` one is loaded alone: all others are off while it is enabled.
    """

    id: str
    version: str
    description: str
    exclusive: bool = False
    settings: type[Any] = NoSettings


class Scene(Struct, frozen=True, kw_only=True):
    """What a prompt section may know of the run it is for."""

    agent: Agent
    session: str
    home: Path
    origin: OriginKind


class Section(Struct, frozen=True, kw_only=True):
    """Some words for the instructions of every run. In minimal mode it is left out, unless it says otherwise.

    `text` is asked when a run begins, in a thread of its own, and may give an empty text.
    """

    name: str
    text: Callable[[Scene], str]
    minimal: bool = False


class Register(Protocol):
    """Where a plug-in puts what it brings, while it is loaded. A name that is taken is refused."""

    def tool(self, tool: Any) -> None: ...
    def operation(self, operation: Any) -> None: ...
    def connector(self, connector: Any) -> None: ...
    def connector_kind(self, kind: Any) -> None: ...
    def model(self, model: Any) -> None: ...
    def provider(self, name: str, provider: Any) -> None: ...
    def runner(self, name: str, runner: Any) -> None: ...
    def section(self, section: Section) -> None: ...
    def policy(self, name: str, rules: Any) -> None: ...
    def skills(self, folder: Path) -> None: ...


class Host(Struct, frozen=True, kw_only=True):
    """What the house hands to one instance of a plug-in. `folder` is its own, and outlives it."""

    plugin: str
    instance: str
    folder: Path
    clock: Clock
    log: logging.Logger
    register: Register
    work: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])
    farewells: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def named(self, name: str) -> str:
        """A name of this instance's own: as it is for the first, after the instance's for others."""
        return name if self.instance == self.plugin else f"{self.instance.replace('-', '_')}_{name}"

    def background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Have this going while the instance is loaded; it is cancelled when it is unloaded."""
        if len(self.work) >= BACKGROUND_MAX:
            raise PluginFailed(
                "too much work in the background",
                because=f"an instance may have {BACKGROUND_MAX} pieces of it",
                try_this="put several into one",
            )
        self.work.append(work)

    def on_unload(self, call: Callable[[], None]) -> None:
        """Have this called, in a thread, after all else of the instance is gone; the last one first."""
        self.farewells.append(call)


class Plugin(Struct, frozen=True, kw_only=True):
    """`load` registers what the instance brings. It is called in a thread, so that a slow one holds up nobody."""

    manifest: Manifest
    load: Callable[[Host, Any], None]
