"""List, inspect, configure, enable and reload plugins.

The settings file decides which plugins are loaded, and with which settings. The plugin validates a
change first; then it is written to the file and applied immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import msgspec

from retinue.config import load
from retinue.config.loader import file_from, home_from, read_text
from retinue.config.secret import Secret
from retinue.config.skills import PluginSettings, plugin_name
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.principal import Principal
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.doctor_registry import Check, Found, Scene, problem, warning

SETTINGS_DEPTH_MAX = 16


class GuestState(StrEnum):
    """Status of a plugin instance."""

    LOADED = "loaded"
    OFF = "off"  # disabled in the settings, or excluded by an exclusive plugin
    FAILED = "failed"
    INSTALLED = "installed"  # but not named in the settings


class Guest(msgspec.Struct, frozen=True, rename={"try_this": "try", "settings_schema": "settings-schema"}):
    """One plugin instance, or a plugin that is installed but not used.

    `brings` maps a kind to the names that the plugin registers.
    """

    instance: str
    plugin: str
    state: GuestState
    version: str = ""
    description: str = ""
    because: str = ""
    try_this: str = ""
    exclusive: bool = False
    folder: str = ""
    brings: dict[str, list[str]] = {}
    settings_schema: dict[str, Any] = {}


class Guests(Protocol):
    """The loaded plugins, as operations need them."""

    async def everyone(self) -> Sequence[Guest]: ...

    def operations(self) -> Mapping[str, Operation]: ...

    def skill_folders(self) -> Sequence[tuple[str, Path]]: ...

    def runners(self) -> Collection[str]:
        """Names of the runners that plugins add to the built-in ones."""
        ...

    async def valid(self, instance: str, settings: PluginSettings) -> None:
        """Raise an error if an instance cannot use these settings. Loads and changes nothing."""
        ...

    async def fit(self, wanted: Mapping[str, PluginSettings], *, again: str = "") -> None:
        """Load and unload plugins until they match `wanted`.

        Load `reload` again even if it did not change.
        """
        ...


def guests_of(holder: object) -> Guests | None:
    """Return the plugins of a `Services` or `DoctorContext`, or None if there is no plugin support."""
    return cast("Guests | None", getattr(holder, "plugins", None))


def _guests(desk: Desk) -> Guests:
    guests = guests_of(desk)
    if guests is None:
        raise NotFound(
            "this house has no plug-ins",
            because="it was opened without any",
            try_this="open it with `retinue run`",
            code="plugin.none",
        )
    return guests


Instance = Annotated[str, msgspec.Meta(description="an instance of a plug-in by name")]


class One(msgspec.Struct, forbid_unknown_fields=True):
    name: Instance


class Enable(msgspec.Struct, forbid_unknown_fields=True):
    name: Instance
    plugin: Annotated[str, msgspec.Meta(description="which plug-in it is; left out, the one of this name")] = ""


class Change(msgspec.Struct, forbid_unknown_fields=True):
    name: Instance
    settings: Annotated[dict[str, Any], msgspec.Meta(description="its settings; null takes one out")]


class PluginsListed(msgspec.Struct, frozen=True):
    plugins: list[Guest]


class PluginSettingsShown(msgspec.Struct, frozen=True):
    """`schema` is the JSON schema of the settings."""

    name: str
    settings: dict[str, Any]
    schema: dict[str, Any]
    plugin: Guest


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> PluginsListed:
    return PluginsListed(list(await _guests(desk).everyone()))


async def show(desk: Desk, caller: Principal, asked: One) -> Guest:
    return await _one(desk, asked.name)


async def settings_of(desk: Desk, caller: Principal, asked: One) -> PluginSettingsShown:
    return await _shown(desk, asked.name)


async def patch(desk: Desk, caller: Principal, asked: Change) -> PluginSettingsShown:
    """Merge settings: objects merge recursively, null removes a value, any other value replaces the old one."""
    held = _held(desk, asked.name)
    return await _become(desk, asked.name, _merged(held.settings, asked.settings, depth=1))


async def replace(desk: Desk, caller: Principal, asked: Change) -> PluginSettingsShown:
    _held(desk, asked.name)
    return await _become(desk, asked.name, _merged({}, asked.settings, depth=1))


async def enable(desk: Desk, caller: Principal, asked: Enable) -> Guest:
    if wrong := plugin_name(asked.name):
        raise Invalid(
            f"'{asked.name[:80]}' cannot be the name of a plug-in's instance",
            because=f"it {wrong}",
            try_this="for example diary-work",
            code="plugin.name-invalid",
        )
    held = desk.keeper().current.settings.plugins.get(asked.name, PluginSettings())
    wanted = PluginSettings(plugin=asked.plugin or held.plugin, settings=held.settings)
    await _guests(desk).valid(asked.name, wanted)
    change: dict[str, Any] = {"enabled": True} | ({"plugin": asked.plugin} if asked.plugin else {})
    await _write(desk, {"plugins": {asked.name: change}})
    return await _one(desk, asked.name)


async def disable(desk: Desk, caller: Principal, asked: One) -> Guest:
    _held(desk, asked.name)
    await _write(desk, {"plugins": {asked.name: {"enabled": False}}})
    return await _one(desk, asked.name)


async def load_again(desk: Desk, caller: Principal, asked: One) -> Guest:
    _held(desk, asked.name)
    await _guests(desk).fit(desk.keeper().current.settings.plugins, again=asked.name)
    return await _one(desk, asked.name)


def _held(desk: Desk, name: str) -> PluginSettings:
    held = desk.keeper().current.settings.plugins.get(name)
    if held is None:
        raise NotFound(
            f"there is no instance '{name[:64]}' of any plug-in",
            because="no [plugins.NAME] of the settings is called so",
            try_this=f"retinue plugin enable {name[:64]}",
            code="plugin.not-found",
        )
    return held


async def _one(desk: Desk, name: str) -> Guest:
    for each in await _guests(desk).everyone():
        if each.instance == name:
            return each
    raise NotFound(
        f"there is no plug-in '{name[:64]}'",
        because="none is installed under that name, and no setting names one",
        try_this="look at `retinue plugin list`",
        code="plugin.not-found",
    )


async def _shown(desk: Desk, name: str) -> PluginSettingsShown:
    guest = await _one(desk, name)
    return PluginSettingsShown(name, _told(_held(desk, name).settings), guest.settings_schema, guest)


async def _become(desk: Desk, name: str, settings: dict[str, Any]) -> PluginSettingsShown:
    """Let the plugin validate the settings, write them to the settings file, then apply them."""
    held = _held(desk, name)
    await _guests(desk).valid(name, PluginSettings(plugin=held.plugin, settings=settings))
    changes = {"plugins": {name: {"settings": _changes(held.settings, settings)}}}
    await asyncio.to_thread(_see_that_it_says, desk, name, changes, settings)
    await _write(desk, changes)
    return await _shown(desk, name)


async def _write(desk: Desk, changes: Mapping[str, Any]) -> None:
    keeper = desk.keeper()
    from retinue.config.file_writer import change_file  # loads tomlkit, which most servers never need

    await asyncio.to_thread(change_file, keeper.environment, changes, expected_hash=keeper.current.hash)
    keeper.reload()
    await _guests(desk).fit(keeper.current.settings.plugins)


def _see_that_it_says(desk: Desk, name: str, changes: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise an error if the patched file would not contain exactly the wanted settings.

    The file writer merges some lists by name, so the result can differ. Nothing is written then.
    """
    from retinue.config.toml_patch import patch as patched_text

    keeper = desk.keeper()

    def validate(text: str) -> None:
        said = load(keeper.environment, text=text).settings.plugins.get(name, PluginSettings()).settings
        if _told(said) != _told(wanted):
            raise Conflict(
                "these settings cannot be written to the file as they stand",
                because="a list of tables with an `id` or a `name` is merged there, not replaced",
                try_this=f"edit [plugins.{name}.settings] in {keeper.current.file}",
                code="plugin.settings-unwritable",
            )

    file = file_from(keeper.environment, home_from(keeper.environment))
    text = read_text(file) if file.exists() else ""
    patched_text(text, changes, expected_hash=keeper.current.hash, validate=validate)


def _merged(into: Mapping[str, Any], change: Mapping[str, Any], *, depth: int) -> dict[str, Any]:
    if depth > SETTINGS_DEPTH_MAX:
        raise Invalid(
            "these settings are nested too deeply",
            because=f"tables may lie in each other {SETTINGS_DEPTH_MAX} deep",
            try_this="keep them flat",
            code="plugin.settings-invalid",
        )
    merged = dict(into)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            held = merged.get(key)
            inside = cast("dict[str, Any]", held) if isinstance(held, dict) else {}
            merged[key] = _merged(inside, cast("dict[str, Any]", value), depth=depth + 1)
        else:
            merged[key] = value
    return merged


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that turns one table into another, as the file writer takes it.

    None removes a key.
    """
    changes: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            changes[key] = _changes(cast("dict[str, Any]", before), cast("dict[str, Any]", value))
        elif value != before:
            changes[key] = value
    return changes


def _told(value: Any) -> Any:
    """Replace each secret with its source (environment variable or file), so that the settings can be shown."""
    match value:
        case Secret():
            return {"env": value.env} if value.env else {"file": str(value.file)}
        case dict():
            return {key: _told(inner) for key, inner in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [_told(inner) for inner in cast("Sequence[Any]", value)]
        case _:
            return value


# --- doctor check ---


async def _facts(scene: Scene) -> Sequence[Guest] | None:
    guests = guests_of(scene)
    return None if guests is None else await guests.everyone()


def _judge(guests: Sequence[Guest]) -> list[Found]:
    found: list[Found] = []
    for each in guests:
        sentence = f"the plug-in '{each.instance}' is {each.state}"
        if each.state is GuestState.FAILED:
            found.append(problem(sentence, because=each.because, try_this=each.try_this))
        elif each.state is GuestState.OFF and each.try_this:  # it is off for another reason than the owner's setting
            found.append(warning(sentence, because=each.because, try_this=each.try_this))
        elif each.state is GuestState.LOADED and each.because:
            found.append(
                warning(f"the plug-in '{each.instance}' is not well", because=each.because, try_this=each.try_this)
            )
    return found


PLUGINS_LOADED = Check(name="plugins", looks_at="every plug-in that should be is loaded", gather=_facts, judge=_judge)


def _operation(
    name: str, summary: str, parameters: Any, handler: Any, result: Any, *, effect: bool = False
) -> Operation:
    level = PermissionLevel.BOSS if effect else PermissionLevel.PRIVILEGED
    return Operation(
        name=name,
        summary=summary,
        parameters=parameters,
        handler=handler,
        result=result,
        permission=level,
        effect=effect,
    )


OPERATIONS = (
    _operation("plugin.list", "List plug-ins, and how they fare.", Nothing, listed, PluginsListed),
    _operation("plugin.show", "Show one plug-in and what it brings.", One, show, Guest),
    _operation("plugin.settings", "Show what a plug-in is told.", One, settings_of, PluginSettingsShown),
    _operation("plugin.patch", "Change some settings of a plug-in.", Change, patch, PluginSettingsShown, effect=True),
    _operation("plugin.replace", "Give a plug-in other settings.", Change, replace, PluginSettingsShown, effect=True),
    _operation("plugin.enable", "Load a plug-in, from now on.", Enable, enable, Guest, effect=True),
    _operation("plugin.disable", "Unload a plug-in. Its data stays.", One, disable, Guest, effect=True),
    _operation("plugin.reload", "Unload a plug-in and load it again.", One, load_again, Guest, effect=True),
)
