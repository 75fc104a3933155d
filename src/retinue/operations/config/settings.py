"""Operations behind the settings form: list all settings with their values, and preview a change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec
from msgspec import Struct

from retinue.config import (
    InvalidSettings,
    SettingChange,
    SettingEffect,
    SettingFault,
    diff_configurations,
    examine_configuration,
    hash_settings_text,
)
from retinue.config.settings_form import (
    SettingControl,
    SettingField,
    SettingOrigin,
    SettingSection,
    build_settings_form,
)
from retinue.domain.agent import PermissionLevel
from retinue.domain.principal import Principal
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.config.configuration import FILE_BYTES_MAX
from retinue.operations.config.errors import (
    PreviewInputTwice,
    SettingsChangeNotPatchable,
    SettingsFileHasSecret,
    SettingsFileNotToml,
    SettingsTextTooLarge,
)
from retinue.operations.config_holder import ConfigHolder


class ConfigPreviewRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Preview a change to the settings file.

    Either `changes` contains the changes as in `config.patch`, or `text` is the complete new file.
    Without either, the current file is shown.
    """

    changes: Annotated[
        dict[str, Any] | None, msgspec.Meta(description="changes to preview, in the format of `config patch`")
    ] = None
    text: Annotated[
        str | None, msgspec.Meta(description="complete new text of the file, to preview instead of `changes`")
    ] = None


class SettingDetails(msgspec.Struct, frozen=True, rename={"origin": "from"}):
    """One setting.

    `location` is where the value is set. If `pending_restart` is true, the value takes effect after a restart.
    """

    path: list[str]
    help: str
    control: SettingControl
    choices: list[str]
    minimum: float | None
    maximum: float | None
    example: str
    effect: SettingEffect
    value: Any
    default: Any
    origin: SettingOrigin
    location: str
    pending_restart: bool


class SettingSectionDetails(msgspec.Struct, frozen=True):
    path: list[str]
    help: str
    settings: list[SettingDetails]


class ConfigFaultDetails(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """One error in a settings file. If the error is not about one key, `path` is empty and `line` is null."""

    path: str
    sentence: str
    line: int | None
    because: str
    try_this: str
    code: str


class ConfigFields(msgspec.Struct, frozen=True):
    """The settings file on disk, with all settings and their values.

    If the file has `faults`, the server does not use it, and keeps the settings that it read earlier.
    """

    file: str
    hash: str
    sections: list[SettingSectionDetails]
    faults: list[ConfigFaultDetails]
    pending_restart: list[str]


class ConfigPreview(msgspec.Struct, frozen=True):
    """The settings file before and after a change.

    To make the change, call `config.patch` with `patch` as `changes` and `hash` as `expected_hash`.
    """

    old: str
    new: str
    patch: dict[str, Any]
    changes: list[SettingChange]
    faults: list[ConfigFaultDetails]
    hash: str


async def list_config_fields(services: Services, caller: Principal, request: EmptyRequest) -> ConfigFields:
    holder = services.require_config_holder()
    examined = await asyncio.to_thread(examine_configuration, holder.environment)
    waiting = [change.path for change in holder.pending_changes]
    return ConfigFields(
        file=str(examined.configuration.file),
        hash=examined.configuration.hash,
        sections=[_to_section(each, waiting) for each in build_settings_form(examined, holder.environment)],
        faults=[_to_fault(services, each) for each in examined.faults],
        pending_restart=waiting,
    )


async def preview_config(services: Services, caller: Principal, request: ConfigPreviewRequest) -> ConfigPreview:
    if request.changes is not None and request.text is not None:
        raise PreviewInputTwice
    if request.text is not None and len(request.text.encode(errors="replace")) > FILE_BYTES_MAX:
        raise SettingsTextTooLarge(bytes_max=FILE_BYTES_MAX)
    found = await asyncio.to_thread(_preview_change, services.require_config_holder(), request, services)
    return ConfigPreview(
        old=services.redact(found.old),
        new=services.redact(found.new),
        patch=found.patch,
        changes=list(found.changes),
        faults=[_to_fault(services, each) for each in found.faults],
        hash=hash_settings_text(found.old),
    )


class PreviewedChange(Struct, frozen=True, kw_only=True):
    old: str
    new: str
    patch: dict[str, Any]
    changes: list[SettingChange]
    faults: tuple[SettingFault, ...]


def _preview_change(config_holder: ConfigHolder, request: ConfigPreviewRequest, services: Services) -> PreviewedChange:
    import tomllib

    from retinue.config.file_writer import read_current_text
    from retinue.config.toml_patch import patch_settings_text as patched  # lazy: tomlkit, which most servers never need

    old = read_current_text(config_holder.current.file)
    wanted = request.changes or {}
    if request.text is not None:
        if services.redact(old) != old:
            raise SettingsFileHasSecret
        faults = examine_configuration(config_holder.environment, text=request.text).faults
        if faults:
            return PreviewedChange(old=old, new=request.text, patch={}, changes=[], faults=faults)
        wanted = changes_between(_parse_toml(old), tomllib.loads(request.text))
    new = patched(old, wanted, expected_hash=hash_settings_text(old), validate=lambda _: None) if wanted else old
    if request.text is not None and tomllib.loads(new) != tomllib.loads(request.text):
        raise SettingsChangeNotPatchable
    before, after = (
        examine_configuration(config_holder.environment, text=old),
        examine_configuration(config_holder.environment, text=new),
    )
    changes = diff_configurations(
        (before.configuration.settings, before.configuration.declarations),
        (after.configuration.settings, after.configuration.declarations),
    )
    return PreviewedChange(old=old, new=new, patch=dict(wanted), changes=changes, faults=after.faults)


def _parse_toml(text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise SettingsFileNotToml from None


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `changes` for `config.patch` that turn the settings `old` into `new`. The value None removes a key."""
    found: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before: Any = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := changes_between(cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", value)):
                found[key] = inner
        elif key not in old or repr(cast(Any, before)) != repr(value):  # 1, 1.0 and true differ
            found[key] = value
    return found


def _to_section(section: SettingSection, pending_paths: list[str]) -> SettingSectionDetails:
    return SettingSectionDetails(
        path=list(section.path),
        help=section.description,
        settings=[_to_setting(each, pending_paths) for each in section.fields],
    )


def _to_setting(entry: SettingField, pending_paths: list[str]) -> SettingDetails:
    return SettingDetails(
        path=list(entry.path),
        help=entry.description,
        control=entry.control,
        choices=list(entry.choices),
        minimum=entry.minimum,
        maximum=entry.maximum,
        example=entry.example,
        effect=entry.effect,
        value=entry.value,
        default=entry.default,
        origin=entry.origin,
        location=entry.defined_at,
        pending_restart=entry.name in pending_paths,
    )


def _to_fault(services: Services, fault: SettingFault) -> ConfigFaultDetails:
    return ConfigFaultDetails(
        path=fault.path,
        sentence=services.redact(fault.sentence),
        line=fault.position.line,
        because=services.redact(fault.because),
        try_this=fault.try_this,
        code=fault.code or InvalidSettings.code,
    )


OPERATIONS = (
    Operation(
        name="config.fields",
        summary="List all settings, their values and where each value is set.",
        parameters=EmptyRequest,
        handler=list_config_fields,
        result=ConfigFields,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="config.preview",
        summary="Preview a change to the settings file without making it.",
        parameters=ConfigPreviewRequest,
        handler=preview_config,
        result=ConfigPreview,
        permission=PermissionLevel.BOSS,
    ),
)
