"""The registry of parts that plugins add, by kind and name, each with its owner. Built-in parts can be registered too.

The entries of a plugin become visible together when its `load` has succeeded, and are removed
together on unload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from retinue.config import Settings
from retinue.config.connectors import check_connector_name, check_platform_name
from retinue.config.models import ProviderSettings
from retinue.config.tools import ToolListSettings
from retinue.connectors.base import Connector, Platform
from retinue.domain.agent import ToolLists, ToolRules
from retinue.domain.permission import Permission
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.models.base import Model
from retinue.operations.base import Operation
from retinue.plugins.base import SOURCE_PREFIX, PluginSection
from retinue.plugins.errors import PluginEntryInvalid, PluginNameTaken, PluginUnloaded
from retinue.runners.base import Runner
from retinue.tools.base import PermissionedTool, Tool, ToolContext, ToolOutput

ENTRIES_PER_OWNER_MAX = 500  # per owner
BUILT_IN_SOURCE = "built_in"

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPERATION_NAME = re.compile(r"[a-z][a-z0-9-]*\.[a-z][a-z0-9-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")


class EntryKind(StrEnum):
    """The kinds of parts that can be registered, such as tools and connectors."""

    TOOL = "tool"
    OPERATION = "operation"
    CONNECTOR = "connector"
    PLATFORM = "platform"
    MODEL = "model"
    PROVIDER = "provider"
    RUNNER = "runner"
    SECTION = "section"
    POLICY = "policy"
    SKILLS = "skills"


class RegistryEntry(Struct, frozen=True, kw_only=True):
    """One part in the registry, such as a tool or a connector platform, with its owner."""

    kind: EntryKind
    name: str
    owner: str
    part: Any


IsNameTaken = Callable[[EntryKind, str], bool]


class PluginRegistry:
    """Contains all registered parts, such as tools and connectors, by kind and name."""

    def __init__(self, *, is_taken: IsNameTaken = lambda _kind, _name: False) -> None:
        """Create an empty registry.

        `is_taken` returns whether a built-in part outside this registry has the given name.
        """
        self._entries: dict[tuple[EntryKind, str], RegistryEntry] = {}
        self._is_taken = is_taken
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever entries are added or removed."""
        self._listeners.append(listener)

    def add(self, entries: Sequence[RegistryEntry]) -> None:
        """Add all of these entries. If one of the names is taken, raise `PluginNameTaken` and add none."""
        for entry in entries:
            there = self._entries.get((entry.kind, entry.name))
            if there is not None or self._is_taken(entry.kind, entry.name):
                owner = there.owner if there is not None else BUILT_IN_SOURCE
                raise PluginNameTaken(entry.kind, entry.name, owner="" if owner == BUILT_IN_SOURCE else owner)
        self._entries |= {(entry.kind, entry.name): entry for entry in entries}
        if entries:
            self._notify_listeners()

    def remove(self, owner: str) -> tuple[RegistryEntry, ...]:
        """Remove all entries of an owner, and return them."""
        gone = tuple(entry for entry in self._entries.values() if entry.owner == owner)
        for entry in gone:
            del self._entries[entry.kind, entry.name]
        if gone:
            self._notify_listeners()
        return gone

    def names_by_kind(self, owner: str) -> dict[str, list[str]]:
        """Return the names of an owner's entries by kind."""
        found: dict[str, list[str]] = {}
        for entry in self._entries.values():
            if entry.owner == owner:
                found.setdefault(entry.kind.value, []).append(entry.name)
        return found

    def _notify_listeners(self) -> None:
        for call in self._listeners:
            call()

    def _values_of(self, kind: EntryKind) -> dict[str, Any]:
        return {entry.name: entry.part for entry in self._entries.values() if entry.kind is kind}

    def tools(self) -> list[Tool]:
        return list(self._values_of(EntryKind.TOOL).values())

    def operations(self) -> Mapping[str, Operation]:
        return self._values_of(EntryKind.OPERATION)

    def connectors(self) -> Mapping[str, Connector]:
        return self._values_of(EntryKind.CONNECTOR)

    def platforms(self) -> Mapping[str, Platform]:
        return self._values_of(EntryKind.PLATFORM)

    def models(self) -> list[Model]:
        return list(self._values_of(EntryKind.MODEL).values())

    def providers(self) -> Mapping[str, ProviderSettings]:
        return self._values_of(EntryKind.PROVIDER)

    def runners(self) -> Mapping[str, Runner]:
        return self._values_of(EntryKind.RUNNER)

    def sections(self) -> Sequence[RegistryEntry]:
        return [entry for entry in self._entries.values() if entry.kind is EntryKind.SECTION]

    def policies(self) -> Mapping[str, ToolRules]:
        return self._values_of(EntryKind.POLICY)

    def skill_folders(self) -> list[tuple[str, Path]]:
        return [(entry.owner, entry.part) for entry in self._entries.values() if entry.kind is EntryKind.SKILLS]


class SettingsWithPlugins:
    """The settings, merged with the model providers and tool policies of plugins.

    If the settings and a plugin define the same name, the settings win. The merged object stays the
    same until the settings or the plugins change, so callers can cache by identity.
    """

    def __init__(self, current: Callable[[], Settings], registry: PluginRegistry) -> None:
        self._current = current
        self._registry = registry
        self._cached: tuple[Settings, Settings] | None = None
        registry.on_change(self._clear_cache)

    def __call__(self) -> Settings:
        now = self._current()
        if self._cached is None or self._cached[0] is not now:
            self._cached = (now, self._merge(now))
        return self._cached[1]

    def _merge(self, now: Settings) -> Settings:
        sold, named = self._registry.providers(), self._registry.policies()
        if not sold and not named:
            return now
        lists = {name: _to_lists(rules) for name, rules in named.items()}
        tools = replace(now.tools, policies={**lists, **now.tools.policies})
        return replace(now, providers={**sold, **now.providers}, tools=tools)

    def _clear_cache(self) -> None:
        self._cached = None


def _to_lists(rules: ToolRules) -> ToolListSettings:
    return ToolListSettings(**{each.name: getattr(rules, each.name) for each in fields(ToolLists)})


class PendingEntries:
    """Checks and collects the entries of one owner until they are added to the registry together."""

    def __init__(self, owner: str, *, source: str = BUILT_IN_SOURCE) -> None:
        self.entries: list[RegistryEntry] = []
        self.is_loaded = True  # once it is false, the owner's tools refuse calls
        self._owner = owner
        self._source = source
        self._is_open = True

    def close(self) -> None:
        """Refuse further entries. A plugin that hangs may try to register something after the time limit."""
        self._is_open = False

    def tool(self, tool: Tool) -> None:
        spec: object = getattr(tool, "spec", None)
        if not isinstance(spec, ToolSpec) or not _TOOL_NAME.fullmatch(spec.name):
            raise PluginEntryInvalid("tool", because="its `spec` must have a name of 1 to 64 letters, digits, _ and -")
        arguments: object = getattr(tool, "arguments", None)
        if not (isinstance(arguments, type) and issubclass(arguments, msgspec.Struct)) or not _has_method(
            tool, "perform"
        ):
            raise PluginEntryInvalid(
                f"tool {spec.name}", because="it needs `arguments`, a msgspec Struct, and a method `perform`"
            )
        held = _ReachingPluginTool if isinstance(tool, PermissionedTool) else _PluginTool
        self._add(EntryKind.TOOL, spec.name, held(tool, source=self._source, registrar=self))

    def operation(self, operation: Operation) -> None:
        """Register an operation. It must be named PLUGIN.VERB, so that it cannot hide other operations."""
        if not isinstance(operation, Operation) or not _OPERATION_NAME.fullmatch(operation.name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PluginEntryInvalid("operation", because="it must be an Operation named NOUN.VERB")
        if self._source != BUILT_IN_SOURCE and operation.name.partition(".")[0] != self._owner:
            raise PluginEntryInvalid(f"operation {operation.name}", because=f"its name must be {self._owner}.VERB")
        self._add(EntryKind.OPERATION, operation.name, operation)

    def connector(self, connector: Connector) -> None:
        if not all(_has_method(connector, name) for name in ("listen", "deliver")):
            raise PluginEntryInvalid("connector", because="it needs the methods `listen` and `deliver`")
        instance = _text_attribute(connector, "name")
        if wrong := check_connector_name(instance):
            raise PluginEntryInvalid(f"connector {instance[:80]!r}", because=f"its name {wrong}")
        self._add(EntryKind.CONNECTOR, instance, connector)

    def platform(self, platform: Platform) -> None:
        """Register a platform. Any number of `[connectors.NAME]` tables can then use it."""
        platform = _require_type(platform, Platform, "platform")
        if wrong := check_platform_name(platform.name):
            raise PluginEntryInvalid(f"platform {platform.name[:80]!r}", because=f"its name {wrong}")
        if not is_dataclass(platform.settings):
            raise PluginEntryInvalid(f"platform {platform.name}", because="its `settings` must be a frozen dataclass")
        self._add(EntryKind.PLATFORM, platform.name, platform)

    def model(self, model: Model) -> None:
        if not _has_method(model, "reply"):
            raise PluginEntryInvalid("model", because="it needs a method `reply`")
        self._add(EntryKind.MODEL, _text_attribute(model, "name"), model)

    def provider(self, name: str, provider: ProviderSettings) -> None:
        """Register a model provider, like a table `[providers.NAME]` in the settings."""
        self._add(EntryKind.PROVIDER, name, _require_type(provider, ProviderSettings, "provider"))

    def runner(self, name: str, runner: Runner) -> None:
        if not _has_method(runner, "take_turns"):
            raise PluginEntryInvalid(f"runner {name}", because="it needs a method `take_turns`")
        self._add(EntryKind.RUNNER, name, runner)

    def section(self, section: PluginSection) -> None:
        self._add(EntryKind.SECTION, _text_attribute(section, "name"), _require_type(section, PluginSection, "section"))

    def policy(self, name: str, rules: ToolRules) -> None:
        """Register tool rules that can be assigned to an agent by name."""
        self._add(EntryKind.POLICY, name, _require_type(rules, ToolRules, "policy"))

    def skills(self, folder: Path) -> None:
        """Register a folder with skills."""
        if not folder.is_absolute() or not folder.is_dir():
            raise PluginEntryInvalid("skill folder", because="it must be the absolute path of an existing folder")
        self._add(EntryKind.SKILLS, f"{self._owner}/{len(self.entries)}", folder)

    def _add(self, kind: EntryKind, name: str, part: Any) -> None:
        if not self._is_open:
            raise PluginEntryInvalid(f"{kind} {name}", because="the plugin is no longer loading")
        if not _NAME.fullmatch(name):
            raise PluginEntryInvalid(
                f"{kind} {name[:80]!r}", because="its name must have 1 to 100 letters, digits and . _ : / -"
            )
        if len(self.entries) >= ENTRIES_PER_OWNER_MAX:
            raise PluginEntryInvalid(
                f"{kind} {name}", because=f"the limit is {ENTRIES_PER_OWNER_MAX} entries for each plugin"
            )
        if any(entry.kind is kind and entry.name == name for entry in self.entries):
            raise PluginEntryInvalid(f"{kind} {name}", because="it was registered twice")
        self.entries.append(RegistryEntry(kind=kind, name=name, owner=self._owner, part=part))


class _PluginTool:
    """A plugin's tool, with the plugin as its source.

    A run that started before the plugin was unloaded may still call the tool. The tool then refuses
    the call.
    """

    def __init__(self, tool: Tool, *, source: str, registrar: PendingEntries) -> None:
        self._tool = tool
        self._registrar = registrar
        self.spec: ToolSpec = replace(tool.spec, source=source)
        self.arguments: type[msgspec.Struct] = tool.arguments

    async def perform(self, arguments: Any, context: ToolContext) -> ToolOutput | str:
        if not self._registrar.is_loaded:
            raise PluginUnloaded(self.spec.name, source=self.spec.source)
        return await self._tool.perform(arguments, context)


class _ReachingPluginTool(_PluginTool):
    def required_permissions(self, arguments: Any, context: ToolContext) -> Sequence[Permission]:
        return cast(PermissionedTool, self._tool).required_permissions(arguments, context)


def plugin_source_of(plugin: str) -> str:
    return SOURCE_PREFIX + plugin


def _has_method(part: object, method: str) -> bool:
    return callable(getattr(part, method, None))


def _text_attribute(part: object, name: str) -> str:
    value: object = getattr(part, name, None)
    if not isinstance(value, str):
        raise PluginEntryInvalid(type(part).__name__, because=f"its `{name}` must be a string")
    return value


def _require_type(part: Any, kind: type[Any], what: str) -> Any:
    if not isinstance(part, kind):
        raise PluginEntryInvalid(what, because=f"it must be a {kind.__name__}")
    return part
