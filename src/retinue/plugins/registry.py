"""The registry of what plugins add, by kind and name, with its owner. Built-in parts can be registered too.

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
from retinue.config.connectors import connector_name, kind_name
from retinue.config.models import ProviderSettings
from retinue.config.tools import Lists
from retinue.connectors.base import Connector, ConnectorKind
from retinue.domain.agent import ToolLists, ToolRules
from retinue.domain.errors import Conflict, Invalid
from retinue.domain.permission import Permission
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.models.base import Model
from retinue.operations.base import Operation
from retinue.plugins.base import PREFIX, Section
from retinue.runners.base import Runner
from retinue.tools.base import Output, Reaching, Scene, Tool, ToolFailed

ENTRIES_MAX = 500  # per owner
HOUSE = "house"

_TOOL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPERATION = re.compile(r"[a-z][a-z0-9-]*\.[a-z][a-z0-9-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}")


class Kind(StrEnum):
    """The kinds of parts that can be registered."""

    TOOL = "tool"
    OPERATION = "operation"
    CONNECTOR = "connector"
    CONNECTOR_KIND = "connector-kind"
    MODEL = "model"
    PROVIDER = "provider"
    RUNNER = "runner"
    SECTION = "section"
    POLICY = "policy"
    SKILLS = "skills"


class Entry(Struct, frozen=True, kw_only=True):
    """One registered part."""

    kind: Kind
    name: str
    owner: str
    thing: Any


Taken = Callable[[Kind, str], bool]


class Registry:
    """All registered parts."""

    def __init__(self, *, taken: Taken = lambda _kind, _name: False) -> None:
        """`is_taken` says whether a built-in part that is not registered here has this name."""
        self._entries: dict[tuple[Kind, str], Entry] = {}
        self._taken = taken
        self._told: list[Callable[[], None]] = []

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this whenever entries were added or removed."""
        self._told.append(call)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add all entries, or none if one name is taken."""
        for entry in entries:
            there = self._entries.get((entry.kind, entry.name))
            if there is not None or self._taken(entry.kind, entry.name):
                raise Conflict(
                    f"there is a {entry.kind} '{entry.name}' already",
                    because=f"{there.owner if there else 'the house'} has it",
                    try_this="unload one of them, or name the instance differently",
                    code="plugin.name-taken",
                )
        self._entries |= {(entry.kind, entry.name): entry for entry in entries}
        if entries:
            self._tell()

    def remove(self, owner: str) -> tuple[Entry, ...]:
        """Remove all entries of an owner."""
        gone = tuple(entry for entry in self._entries.values() if entry.owner == owner)
        for entry in gone:
            del self._entries[entry.kind, entry.name]
        if gone:
            self._tell()
        return gone

    def brought_by(self, owner: str) -> dict[str, list[str]]:
        """Return the names of an owner's entries by kind."""
        found: dict[str, list[str]] = {}
        for entry in self._entries.values():
            if entry.owner == owner:
                found.setdefault(entry.kind.value, []).append(entry.name)
        return found

    def _tell(self) -> None:
        for call in self._told:
            call()

    def _of(self, kind: Kind) -> dict[str, Any]:
        return {entry.name: entry.thing for entry in self._entries.values() if entry.kind is kind}

    def tools(self) -> list[Tool]:
        return list(self._of(Kind.TOOL).values())

    def operations(self) -> Mapping[str, Operation]:
        return self._of(Kind.OPERATION)

    def connectors(self) -> Mapping[str, Connector]:
        return self._of(Kind.CONNECTOR)

    def connector_kinds(self) -> Mapping[str, ConnectorKind]:
        return self._of(Kind.CONNECTOR_KIND)

    def models(self) -> list[Model]:
        return list(self._of(Kind.MODEL).values())

    def providers(self) -> Mapping[str, ProviderSettings]:
        return self._of(Kind.PROVIDER)

    def runners(self) -> Mapping[str, Runner]:
        return self._of(Kind.RUNNER)

    def sections(self) -> Sequence[Entry]:
        return [entry for entry in self._entries.values() if entry.kind is Kind.SECTION]

    def policies(self) -> Mapping[str, ToolRules]:
        return self._of(Kind.POLICY)

    def skill_folders(self) -> list[tuple[str, Path]]:
        return [(entry.owner, entry.thing) for entry in self._entries.values() if entry.kind is Kind.SKILLS]


class Furnished:
    """The settings, merged with the model providers and tool policies of plugins. The settings win.

    It returns the same object until one of the two changes, so callers can cache by identity.
    """

    def __init__(self, current: Callable[[], Settings], registry: Registry) -> None:
        self._current = current
        self._registry = registry
        self._made: tuple[Settings, Settings] | None = None
        registry.on_change(self._forget)

    def __call__(self) -> Settings:
        now = self._current()
        if self._made is None or self._made[0] is not now:
            self._made = (now, self._with_guests(now))
        return self._made[1]

    def _with_guests(self, now: Settings) -> Settings:
        sold, named = self._registry.providers(), self._registry.policies()
        if not sold and not named:
            return now
        lists = {name: _lists(rules) for name, rules in named.items()}
        tools = replace(now.tools, policies={**lists, **now.tools.policies})
        return replace(now, providers={**sold, **now.providers}, tools=tools)

    def _forget(self) -> None:
        self._made = None


def _lists(rules: ToolRules) -> Lists:
    return Lists(**{each.name: getattr(rules, each.name) for each in fields(ToolLists)})


class Registrar:
    """Checks and collects the entries of one owner until they are added to the registry together."""

    def __init__(self, owner: str, *, source: str = HOUSE) -> None:
        self.entries: list[Entry] = []
        self.alive = True  # once it is false, the owner's tools refuse calls
        self._owner = owner
        self._source = source
        self._open = True

    def close(self) -> None:
        """Refuse further entries: a plugin that hangs may register something after the time limit."""
        self._open = False

    def tool(self, tool: Tool) -> None:
        spec: object = getattr(tool, "spec", None)
        if not isinstance(spec, ToolSpec) or not _TOOL.fullmatch(spec.name):
            raise _unfit("tool", "it has a `spec`, whose name has at most 64 letters, digits, _ and -")
        arguments: object = getattr(tool, "arguments", None)
        if not (isinstance(arguments, type) and issubclass(arguments, msgspec.Struct)) or not _has(tool, "perform"):
            raise _unfit(f"tool {spec.name}", "it has `arguments`, a msgspec Struct, and a method `perform`")
        held = _ReachingOnLoan if isinstance(tool, Reaching) else _OnLoan
        self._add(Kind.TOOL, spec.name, held(tool, source=self._source, registrar=self))

    def operation(self, operation: Operation) -> None:
        """Register an operation. A plugin's noun is its own name, so it cannot hide other operations."""
        if not isinstance(operation, Operation) or not _OPERATION.fullmatch(operation.name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _unfit("operation", "it is an Operation, named NOUN.VERB")
        if self._source != HOUSE and operation.name.partition(".")[0] != self._owner:
            raise _unfit(f"operation {operation.name}", f"an operation of '{self._owner}' is named {self._owner}.VERB")
        self._add(Kind.OPERATION, operation.name, operation)

    def connector(self, connector: Connector) -> None:
        if not all(_has(connector, name) for name in ("listen", "deliver")):
            raise _unfit("connector", "it has the methods `listen` and `deliver`")
        instance = _text(connector, "instance")
        if wrong := connector_name(instance):
            raise _unfit(f"connector {instance[:80]!r}", f"its instance {wrong}")
        self._add(Kind.CONNECTOR, instance, connector)

    def connector_kind(self, kind: ConnectorKind) -> None:
        """Register a platform, which any number of `[connectors.NAME]` tables can use."""
        kind = _is(kind, ConnectorKind, "kind of connector")
        if wrong := kind_name(kind.name):
            raise _unfit(f"kind of connector {kind.name[:80]!r}", f"its name {wrong}")
        if not is_dataclass(kind.settings):
            raise _unfit(f"kind of connector {kind.name}", "its `settings` are a frozen dataclass of settings")
        self._add(Kind.CONNECTOR_KIND, kind.name, kind)

    def model(self, model: Model) -> None:
        if not _has(model, "reply"):
            raise _unfit("model", "it has a method `reply`")
        self._add(Kind.MODEL, _text(model, "name"), model)

    def provider(self, name: str, provider: ProviderSettings) -> None:
        """Register a model provider, as `[providers.NAME]` of the settings would declare it."""
        self._add(Kind.PROVIDER, name, _is(provider, ProviderSettings, "provider"))

    def runner(self, name: str, runner: Runner) -> None:
        if not _has(runner, "work"):
            raise _unfit(f"runner {name}", "it has a method `work`")
        self._add(Kind.RUNNER, name, runner)

    def section(self, section: Section) -> None:
        self._add(Kind.SECTION, _text(section, "name"), _is(section, Section, "section"))

    def policy(self, name: str, rules: ToolRules) -> None:
        """Register tool rules that can be assigned to an agent by name."""
        self._add(Kind.POLICY, name, _is(rules, ToolRules, "policy"))

    def skills(self, folder: Path) -> None:
        """Register a folder with skills."""
        if not folder.is_absolute() or not folder.is_dir():
            raise _unfit("folder of skills", "it is an absolute path of a folder that is there")
        self._add(Kind.SKILLS, f"{self._owner}/{len(self.entries)}", folder)

    def _add(self, kind: Kind, name: str, thing: Any) -> None:
        if not self._open:
            raise _unfit(f"{kind} {name}", "it came too late: the plug-in is not being loaded any more")
        if not _NAME.fullmatch(name):
            raise _unfit(f"{kind} {name[:80]!r}", "its name has at most 100 letters, digits and . _ : / -")
        if len(self.entries) >= ENTRIES_MAX:
            raise _unfit(f"{kind} {name}", f"one plug-in brings at most {ENTRIES_MAX} things")
        if any(entry.kind is kind and entry.name == name for entry in self.entries):
            raise _unfit(f"{kind} {name}", "it was registered twice")
        self.entries.append(Entry(kind=kind, name=name, owner=self._owner, thing=thing))


class _OnLoan:
    """A plugin's tool, marked with its source. After the unload it refuses calls of runs that still have it."""

    def __init__(self, tool: Tool, *, source: str, registrar: Registrar) -> None:
        self._tool = tool
        self._registrar = registrar
        self.spec: ToolSpec = replace(tool.spec, source=source)
        self.arguments: type[msgspec.Struct] = tool.arguments

    async def perform(self, arguments: Any, scene: Scene) -> Output | str:
        if not self._registrar.alive:
            raise ToolFailed(
                f"'{self.spec.name}' is not here any more",
                because=f"{self.spec.source} was unloaded",
                try_this="go on without it",
                code="plugin.unloaded",
            )
        return await self._tool.perform(arguments, scene)


class _ReachingOnLoan(_OnLoan):
    def needs(self, arguments: Any, scene: Scene) -> Sequence[Permission]:
        return cast(Reaching, self._tool).needs(arguments, scene)


def source_of(plugin: str) -> str:
    return PREFIX + plugin


def _has(thing: object, method: str) -> bool:
    return callable(getattr(thing, method, None))


def _text(thing: object, name: str) -> str:
    value: object = getattr(thing, name, None)
    if not isinstance(value, str):
        raise _unfit(type(thing).__name__, f"its `{name}` is a text")
    return value


def _is(thing: Any, kind: type[Any], what: str) -> Any:
    if not isinstance(thing, kind):
        raise _unfit(what, f"it is a {kind.__name__}")
    return thing


def _unfit(what: str, because: str) -> Invalid:
    return Invalid(
        f"this {what} cannot be registered",
        because=because,
        try_this="the plug-in's author can mend that",
        code="plugin.unfit",
    )
