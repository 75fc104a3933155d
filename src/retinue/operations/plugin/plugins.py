"""Operations that list, show, configure, enable, disable and reload plugins.

The settings file says which plugins are loaded, and with which settings. The plugin first validates a
change to its settings. Then the change is written to the file and applied at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol, cast

import msgspec

from retinue.config import load_configuration
from retinue.config.secret import SecretReference
from retinue.config.settings_loader import find_data_directory, find_settings_file, read_settings_text
from retinue.config.skills import PluginSettings, check_plugin_name
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.doctor_registry import DoctorCheck, DoctorContext, DoctorFinding, build_problem, build_warning
from retinue.operations.plugin.errors import (
    PluginInstanceNameInvalid,
    PluginInstanceNotFound,
    PluginNotFound,
    PluginSettingsTooDeep,
    PluginSettingsUnwritable,
    PluginsUnavailable,
)

SETTINGS_DEPTH_MAX = 16


class PluginStatus(StrEnum):
    """Status of a plugin instance."""

    LOADED = "loaded"
    OFF = "off"  # disabled in the settings, or excluded by an exclusive plugin
    FAILED = "failed"
    INSTALLED = "installed"  # installed, but not named in the settings


class PluginDetails(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """One plugin instance, or a plugin that is installed but not used.

    `registers` has the names of everything that the plugin registers, by kind: tools, operations, ...
    """

    name: str
    plugin: str
    state: PluginStatus
    version: str = ""
    description: str = ""
    because: str = ""
    try_this: str = ""
    exclusive: bool = False
    folder: str = ""
    registers: dict[str, list[str]] = {}
    settings_schema: dict[str, Any] = {}


class PluginManager(Protocol):
    """The interface through which operations list, load and unload plugins."""

    async def list_plugins(self) -> Sequence[PluginDetails]: ...

    def operations(self) -> Mapping[str, Operation]: ...

    def skill_folders(self) -> Sequence[tuple[str, Path]]: ...

    def runners(self) -> Collection[str]:
        """Names of the runners that plugins add to the built-in runners."""
        ...

    async def check_settings(self, instance: str, settings: PluginSettings) -> None:
        """Raise an error if these settings are not valid for a plugin instance. Loads and changes nothing."""
        ...

    async def sync(self, wanted: Mapping[str, PluginSettings], *, reload: str = "") -> None:
        """Load and unload plugins until they match `wanted`.

        The instance named by `reload` is loaded again, even if it did not change.
        """
        ...


def get_plugin_manager(holder: object) -> PluginManager | None:
    """Return the plugin manager of a `Services` or `DoctorContext`, or None if there is no plugin support."""
    return cast("PluginManager | None", getattr(holder, "plugins", None))


def _require_plugin_manager(services: Services) -> PluginManager:
    manager = get_plugin_manager(services)
    if manager is None:
        raise PluginsUnavailable()
    return manager


PluginInstanceName = Annotated[str, msgspec.Meta(description="name of a plugin instance")]


class PluginInstanceRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: PluginInstanceName


class PluginEnableRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: PluginInstanceName
    plugin: Annotated[str, msgspec.Meta(description="name of the plugin; default: the name of the plugin instance")] = (
        ""
    )


class PluginSettingsRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: PluginInstanceName
    settings: Annotated[dict[str, Any], msgspec.Meta(description="settings of the plugin; null removes a setting")]


class PluginList(msgspec.Struct, frozen=True):
    plugins: list[PluginDetails]


class PluginSettingsDetails(msgspec.Struct, frozen=True):
    """The settings of a plugin instance. `schema` is their JSON schema."""

    name: str
    settings: dict[str, Any]
    schema: dict[str, Any]
    plugin: PluginDetails


async def list_plugins(services: Services, caller: Principal, request: EmptyRequest) -> PluginList:
    return PluginList(list(await _require_plugin_manager(services).list_plugins()))


async def show_plugin(services: Services, caller: Principal, request: PluginInstanceRequest) -> PluginDetails:
    return await _require_plugin(services, request.name)


async def show_plugin_settings(
    services: Services, caller: Principal, request: PluginInstanceRequest
) -> PluginSettingsDetails:
    return await _to_settings_details(services, request.name)


async def patch_plugin_settings(
    services: Services, caller: Principal, request: PluginSettingsRequest
) -> PluginSettingsDetails:
    """Merge changes into the settings of a plugin instance.

    Objects are merged recursively, null removes a value, and any other value replaces the old value.
    """
    held = _require_instance_settings(services, request.name)
    return await _save_settings(services, request.name, _merge_settings(held.settings, request.settings, depth=1))


async def replace_plugin_settings(
    services: Services, caller: Principal, request: PluginSettingsRequest
) -> PluginSettingsDetails:
    _require_instance_settings(services, request.name)
    return await _save_settings(services, request.name, _merge_settings({}, request.settings, depth=1))


async def enable_plugin(services: Services, caller: Principal, request: PluginEnableRequest) -> PluginDetails:
    if wrong := check_plugin_name(request.name):
        raise PluginInstanceNameInvalid(request.name, wrong=wrong)
    held = services.require_config_holder().current.settings.plugins.get(request.name, PluginSettings())
    wanted = PluginSettings(plugin=request.plugin or held.plugin, settings=held.settings)
    await _require_plugin_manager(services).check_settings(request.name, wanted)
    change: dict[str, Any] = {"enabled": True} | ({"plugin": request.plugin} if request.plugin else {})
    await _write_settings_file(services, {"plugins": {request.name: change}})
    return await _require_plugin(services, request.name)


async def disable_plugin(services: Services, caller: Principal, request: PluginInstanceRequest) -> PluginDetails:
    _require_instance_settings(services, request.name)
    await _write_settings_file(services, {"plugins": {request.name: {"enabled": False}}})
    return await _require_plugin(services, request.name)


async def reload_plugin(services: Services, caller: Principal, request: PluginInstanceRequest) -> PluginDetails:
    _require_instance_settings(services, request.name)
    await _require_plugin_manager(services).sync(
        services.require_config_holder().current.settings.plugins, reload=request.name
    )
    return await _require_plugin(services, request.name)


def _require_instance_settings(services: Services, name: str) -> PluginSettings:
    held = services.require_config_holder().current.settings.plugins.get(name)
    if held is None:
        raise PluginInstanceNotFound(name)
    return held


async def _require_plugin(services: Services, name: str) -> PluginDetails:
    for each in await _require_plugin_manager(services).list_plugins():
        if each.name == name:
            return each
    raise PluginNotFound(name)


async def _to_settings_details(services: Services, name: str) -> PluginSettingsDetails:
    guest = await _require_plugin(services, name)
    return PluginSettingsDetails(
        name, _replace_secrets(_require_instance_settings(services, name).settings), guest.settings_schema, guest
    )


async def _save_settings(services: Services, name: str, settings: dict[str, Any]) -> PluginSettingsDetails:
    """Have the plugin validate the settings, write them to the settings file and apply them."""
    held = _require_instance_settings(services, name)
    await _require_plugin_manager(services).check_settings(name, PluginSettings(plugin=held.plugin, settings=settings))
    changes = {"plugins": {name: {"settings": _diff_settings(held.settings, settings)}}}
    await asyncio.to_thread(_check_patched_file, services, name, changes, settings)
    await _write_settings_file(services, changes)
    return await _to_settings_details(services, name)


async def _write_settings_file(services: Services, changes: Mapping[str, Any]) -> None:
    holder = services.require_config_holder()
    from retinue.config.file_writer import patch_settings_file  # loads tomlkit, which most servers never need

    await asyncio.to_thread(patch_settings_file, holder.environment, changes, expected_hash=holder.current.hash)
    holder.reload()
    await _require_plugin_manager(services).sync(holder.current.settings.plugins)


def _check_patched_file(services: Services, name: str, changes: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise an error if the patched file would not contain exactly the wanted settings. Writes nothing.

    The file writer merges some lists by name, so the result can differ from the wanted settings.
    """
    from retinue.config.toml_patch import patch_settings_text as patched_text

    holder = services.require_config_holder()

    def validate(text: str) -> None:
        plugins = load_configuration(holder.environment, text=text).settings.plugins
        patched = plugins.get(name, PluginSettings()).settings
        if _replace_secrets(patched) != _replace_secrets(wanted):
            raise PluginSettingsUnwritable(name, file=str(holder.current.file))

    file = find_settings_file(holder.environment, find_data_directory(holder.environment))
    text = read_settings_text(file) if file.exists() else ""
    patched_text(text, changes, expected_hash=holder.current.hash, validate=validate)


def _merge_settings(current: Mapping[str, Any], changes: Mapping[str, Any], *, depth: int) -> dict[str, Any]:
    if depth > SETTINGS_DEPTH_MAX:
        raise PluginSettingsTooDeep(depth_max=SETTINGS_DEPTH_MAX)
    merged = dict(current)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            held = merged.get(key)
            inside = cast("dict[str, Any]", held) if isinstance(held, dict) else {}
            merged[key] = _merge_settings(inside, cast("dict[str, Any]", value), depth=depth + 1)
        else:
            merged[key] = value
    return merged


def _diff_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that turns one settings table into another, for the file writer.

    In the patch, the value None removes a key.
    """
    changes: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            changes[key] = _diff_settings(cast("dict[str, Any]", before), cast("dict[str, Any]", value))
        elif value != before:
            changes[key] = value
    return changes


def _replace_secrets(value: Any) -> Any:
    """Replace each secret with its source (environment variable or file), so that the settings can be shown."""
    match value:
        case SecretReference():
            return {"env": value.env} if value.env else {"file": str(value.file)}
        case dict():
            return {key: _replace_secrets(inner) for key, inner in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [_replace_secrets(inner) for inner in cast("Sequence[Any]", value)]
        case _:
            return value


# --- doctor check ---


async def _gather_plugins(context: DoctorContext) -> Sequence[PluginDetails] | None:
    manager = get_plugin_manager(context)
    return None if manager is None else await manager.list_plugins()


def _evaluate_plugins(plugins: Sequence[PluginDetails]) -> list[DoctorFinding]:
    found: list[DoctorFinding] = []
    for each in plugins:
        sentence = f"the plugin '{each.name}' is {each.state}"
        if each.state is PluginStatus.FAILED:
            found.append(build_problem(sentence, because=each.because, try_this=each.try_this))
        elif each.state is PluginStatus.OFF and each.try_this:  # it is off for a reason other than the owner's setting
            found.append(build_warning(sentence, because=each.because, try_this=each.try_this))
        elif each.state is PluginStatus.LOADED and each.because:
            found.append(
                build_warning(f"the plugin '{each.name}' has a problem", because=each.because, try_this=each.try_this)
            )
    return found


PLUGINS_CHECK = DoctorCheck(
    name="plugins",
    ok_message="every enabled plugin is loaded",
    gather=_gather_plugins,
    evaluate=_evaluate_plugins,
)


def _build_operation(
    name: str, summary: str, parameters: Any, handler: Any, result: Any, *, has_effect: bool = False
) -> Operation:
    level = PermissionLevel.BOSS if has_effect else PermissionLevel.PRIVILEGED
    return Operation(
        name=name,
        summary=summary,
        parameters=parameters,
        handler=handler,
        result=result,
        permission=level,
        has_effect=has_effect,
    )


OPERATIONS = (
    _build_operation("plugin.list", "List plugins and their status.", EmptyRequest, list_plugins, PluginList),
    _build_operation(
        "plugin.show", "Show one plugin and what it registers.", PluginInstanceRequest, show_plugin, PluginDetails
    ),
    _build_operation(
        "plugin.settings",
        "Show the settings of a plugin.",
        PluginInstanceRequest,
        show_plugin_settings,
        PluginSettingsDetails,
    ),
    _build_operation(
        "plugin.patch",
        "Change some settings of a plugin.",
        PluginSettingsRequest,
        patch_plugin_settings,
        PluginSettingsDetails,
        has_effect=True,
    ),
    _build_operation(
        "plugin.replace",
        "Replace all settings of a plugin.",
        PluginSettingsRequest,
        replace_plugin_settings,
        PluginSettingsDetails,
        has_effect=True,
    ),
    _build_operation(
        "plugin.enable",
        "Enable and load a plugin.",
        PluginEnableRequest,
        enable_plugin,
        PluginDetails,
        has_effect=True,
    ),
    _build_operation(
        "plugin.disable",
        "Disable and unload a plugin. Its data is kept.",
        PluginInstanceRequest,
        disable_plugin,
        PluginDetails,
        has_effect=True,
    ),
    _build_operation(
        "plugin.reload",
        "Unload a plugin and load it again.",
        PluginInstanceRequest,
        reload_plugin,
        PluginDetails,
        has_effect=True,
    ),
)
