"""Operations behind the settings form: list all settings with their values, and preview a change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec
from msgspec import Struct

from retinue.config import BadConfig, Change, Effect, Fault, diff, examine, text_hash
from retinue.config.settings_form import Entry, Origin, Section, Shape, form_of
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid
from retinue.domain.principal import Principal
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.config.configuration import FILE_BYTES_MAX
from retinue.operations.config_holder import Keeper

OTHERWISE = "make this change with an editor, then read the file again"


class Preview(msgspec.Struct, forbid_unknown_fields=True):
    """Preview `changes` as for config.patch, or a complete new `text`. Without either, the current file."""

    changes: Annotated[
        dict[str, Any] | None, msgspec.Meta(description="what config.patch would be asked to merge in")
    ] = None
    text: Annotated[str | None, msgspec.Meta(description="the whole file as it should become")] = None


class SettingShown(msgspec.Struct, frozen=True, rename={"origin": "from"}):
    """One setting. `place` is where its value is set. `waiting`: it takes effect after a restart."""

    path: list[str]
    says: str
    shape: Shape
    choices: list[str]
    least: float | None
    most: float | None
    example: str
    effect: Effect
    value: Any
    default: Any
    origin: Origin
    place: str
    waiting: bool


class SectionShown(msgspec.Struct, frozen=True):
    path: list[str]
    says: str
    settings: list[SettingShown]


class FaultShown(msgspec.Struct, frozen=True, rename={"try_this": "try"}):
    """One error in the file. `path` is empty and `line` null if it concerns no key."""

    path: str
    sentence: str
    line: int | None
    because: str
    try_this: str
    code: str


class ConfigFields(msgspec.Struct, frozen=True, rename="kebab"):
    """The file on disk. With `faults` it is not used: the server keeps the settings it read before."""

    file: str
    hash: str
    sections: list[SectionShown]
    faults: list[FaultShown]
    waiting_for_a_restart: list[str]


class ConfigPreview(msgspec.Struct, frozen=True):
    """The file before and after. `patch` and `hash` are what config.patch needs to make this change."""

    old: str
    new: str
    patch: dict[str, Any]
    changes: list[Change]
    faults: list[FaultShown]
    hash: str


async def show_fields(desk: Desk, caller: Principal, asked: Nothing) -> ConfigFields:
    keeper = desk.keeper()
    examined = await asyncio.to_thread(examine, keeper.environment)
    waiting = [change.path for change in keeper.waiting]
    return ConfigFields(
        file=str(examined.configuration.file),
        hash=examined.configuration.hash,
        sections=[_section(each, waiting) for each in form_of(examined, keeper.environment)],
        faults=[_fault(desk, each) for each in examined.faults],
        waiting_for_a_restart=waiting,
    )


async def preview(desk: Desk, caller: Principal, asked: Preview) -> ConfigPreview:
    if asked.changes is not None and asked.text is not None:
        raise _unclear("`changes` and `text` are two ways to say the same", "send one of them")
    if asked.text is not None and len(asked.text.encode(errors="replace")) > FILE_BYTES_MAX:
        raise _unclear(f"a settings file has at most {FILE_BYTES_MAX:,} bytes", OTHERWISE)
    found = await asyncio.to_thread(_look_ahead, desk.keeper(), asked, desk)
    return ConfigPreview(
        old=desk.mask(found.old),
        new=desk.mask(found.new),
        patch=found.patch,
        changes=list(found.changes),
        faults=[_fault(desk, each) for each in found.faults],
        hash=text_hash(found.old),
    )


class Ahead(Struct, frozen=True, kw_only=True):
    old: str
    new: str
    patch: dict[str, Any]
    changes: list[Change]
    faults: tuple[Fault, ...]


def _look_ahead(keeper: Keeper, asked: Preview, desk: Desk) -> Ahead:
    import tomllib

    from retinue.config.file_writer import text_of
    from retinue.config.toml_patch import patch as patched  # lazy: tomlkit, which most servers never need

    old = text_of(keeper.current.file)
    wanted = asked.changes or {}
    if asked.text is not None:
        if desk.mask(old) != old:
            raise _unclear("the file holds a secret, which is not shown here and so cannot be kept", OTHERWISE)
        faults = examine(keeper.environment, text=asked.text).faults
        if faults:
            return Ahead(old=old, new=asked.text, patch={}, changes=[], faults=faults)
        wanted = changes_between(_tables(old), tomllib.loads(asked.text))
    new = patched(old, wanted, expected_hash=text_hash(old), validate=lambda _: None) if wanted else old
    if asked.text is not None and tomllib.loads(new) != tomllib.loads(asked.text):
        raise _unclear("this cannot be said key by key: something is taken out of a list of tables", OTHERWISE)
    before, after = examine(keeper.environment, text=old), examine(keeper.environment, text=new)
    told = diff(
        (before.configuration.settings, before.configuration.staff),
        (after.configuration.settings, after.configuration.staff),
    )
    return Ahead(old=old, new=new, patch=dict(wanted), changes=told, faults=after.faults)


def _tables(text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise _unclear("the file that is there is not TOML, so nothing can be kept of it", OTHERWISE) from None


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that `config.patch` must merge into `old` to get `new`: null removes a key."""
    found: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before: Any = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := changes_between(cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", value)):
                found[key] = inner
        elif key not in old or repr(cast(Any, before)) != repr(value):  # 1, 1.0 and true differ
            found[key] = value
    return found


def _unclear(because: str, try_this: str) -> Invalid:
    return Invalid("this change cannot be looked at", because=because, try_this=try_this, code="config.unclear")


def _section(section: Section, waiting: list[str]) -> SectionShown:
    return SectionShown(
        path=list(section.path), says=section.says, settings=[_setting(each, waiting) for each in section.entries]
    )


def _setting(entry: Entry, waiting: list[str]) -> SettingShown:
    return SettingShown(
        path=list(entry.path),
        says=entry.says,
        shape=entry.shape,
        choices=list(entry.choices),
        least=entry.least,
        most=entry.most,
        example=entry.example,
        effect=entry.effect,
        value=entry.value,
        default=entry.default,
        origin=entry.origin,
        place=entry.place,
        waiting=entry.name in waiting,
    )


def _fault(desk: Desk, fault: Fault) -> FaultShown:
    return FaultShown(
        path=fault.path,
        sentence=desk.mask(fault.sentence),
        line=fault.place.line,
        because=desk.mask(fault.because),
        try_this=fault.try_this,
        code=fault.code or BadConfig.code,
    )


OPERATIONS = (
    Operation(
        name="config.fields",
        summary="Say what can be set, what it is now, and where that comes from.",
        parameters=Nothing,
        handler=show_fields,
        result=ConfigFields,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="config.preview",
        summary="Show what a change of the settings file would do. Nothing is changed.",
        parameters=Preview,
        handler=preview,
        result=ConfigPreview,
        permission=PermissionLevel.BOSS,
    ),
)
