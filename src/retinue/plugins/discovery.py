"""Finds, imports and checks plugins.

The code of plugins runs in threads with a time limit, so that it cannot block the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from retinue.config.secret import SecretReference
from retinue.config.skills import check_plugin_name
from retinue.domain.errors import RetinueError
from retinue.plugins.base import ENTRY_POINT_GROUP, Plugin, PluginManifest
from retinue.plugins.errors import (
    PluginAmbiguous,
    PluginCallFailed,
    PluginEntryPointInvalid,
    PluginFailed,
    PluginFolderUnsafe,
    PluginManifestInvalid,
    PluginSettingsRejected,
    PluginTimeout,
)

LOAD_TIMEOUT_S = 10.0  # for the import of a plugin, and again for its `load`
UNLOAD_TIMEOUT_S = 5.0
REASON_CHARS_MAX = 500
DESCRIPTION_LENGTH_MAX = 1024
VERSION_LENGTH_MAX = 64

T = TypeVar("T")

FindEntryPoints = Callable[[], Iterable[EntryPoint]]


class PluginPackage(Struct, frozen=True):
    """An installed plugin, before any of its code has run."""

    id: str
    entry_points: tuple[EntryPoint, ...]

    @property
    def version(self) -> str:
        dist = self.entry_points[0].dist
        return dist.version if dist is not None else ""

    @property
    def description(self) -> str:
        dist = self.entry_points[0].dist
        summary: object = dist.metadata.json.get("summary", "") if dist is not None else ""
        return str(summary)[:DESCRIPTION_LENGTH_MAX]


def installed_entry_points() -> Iterable[EntryPoint]:
    return entry_points(group=ENTRY_POINT_GROUP)


def list_packages(find_entry_points: FindEntryPoints) -> dict[str, PluginPackage]:
    """Return the installed plugins by id, without importing any of them.

    Later, only plugins that the settings enable are imported.
    """
    found: dict[str, list[EntryPoint]] = {}
    for entry in find_entry_points():
        same = found.setdefault(entry.name, [])
        if all(entry.value != other.value for other in same):
            same.append(entry)
    return {
        id_: PluginPackage(id_, tuple(entries)) for id_, entries in sorted(found.items()) if not check_plugin_name(id_)
    }


async def run_in_thread(call: Callable[[], T], *, timeout_s: float, what: str) -> T:
    """Call a function in a thread, and wait up to a time limit. Raises `PluginFailed` if it raises or hangs.

    If the call hangs, its thread continues. It can no longer register anything, and it does not
    prevent the server from stopping.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((result, error))

    def work() -> None:
        result: T | None = None
        trouble: BaseException | None = None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - also SystemExit: a plugin must not stop the server
            trouble = error
        try:
            loop.call_soon_threadsafe(settle, result, trouble)
        except RuntimeError:
            pass  # the server has stopped meanwhile

    threading.Thread(target=work, name=f"plugin {what}", daemon=True).start()
    try:
        result, trouble = await asyncio.wait_for(done, timeout_s)
    except TimeoutError:
        raise PluginTimeout(what, timeout_s=timeout_s) from None
    if trouble is not None:
        raise _to_plugin_failed(what, trouble) from trouble
    return cast(T, result)


def _to_plugin_failed(what: str, error: BaseException) -> PluginFailed:
    if isinstance(error, RetinueError):
        because = f"{error.sentence}: {error.because}" if error.because else error.sentence
        return PluginCallFailed(what, because=because[:REASON_CHARS_MAX], try_this=error.try_this, code=error.code)
    first = str(error).strip().partition("\n")[0]
    because = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return PluginCallFailed(what, because=because[:REASON_CHARS_MAX])


def import_plugin(package: PluginPackage) -> Plugin:
    """Import a plugin, and check its type and its manifest.

    This may take long: call it with `run_in_thread`.
    """
    first, *others = package.entry_points
    if others:
        raise PluginAmbiguous(package.id, entry_points=[entry.value for entry in package.entry_points])
    found: object = first.load()
    if not isinstance(found, Plugin):
        raise PluginEntryPointInvalid(package.id)
    _check_manifest(found.manifest, package.id)
    return found


def _check_manifest(manifest: PluginManifest, id_: str) -> None:
    wrong = ""
    if manifest.id != id_:
        wrong = f"its id is '{manifest.id}', but its entry point is named '{id_}'"
    elif not (0 < len(manifest.version) <= VERSION_LENGTH_MAX and len(manifest.description) <= DESCRIPTION_LENGTH_MAX):
        wrong = (
            f"its version must have 1 to {VERSION_LENGTH_MAX} characters, "
            f"its description at most {DESCRIPTION_LENGTH_MAX:,}"
        )
    elif not _is_settings_type(manifest.settings):
        wrong = "its settings are neither a msgspec Struct nor a dataclass"
    if wrong:
        raise PluginManifestInvalid(id_, because=wrong)


def _is_settings_type(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(cast(Any, kind)))


def convert_settings(manifest: PluginManifest, values: Mapping[str, Any]) -> Any:
    """Convert the settings of a plugin to the type that it declares. An unknown key is refused."""
    try:
        known = set(_field_names(manifest.settings))
        unknown = sorted(values.keys() - known)
        if unknown:
            raise msgspec.ValidationError(f"`{unknown[0]}` is not one of {', '.join(sorted(known)) or 'its settings'}")
        return msgspec.convert(_with_raw_secrets(values), manifest.settings, dec_hook=_decode_path)
    except (msgspec.ValidationError, ValueError, TypeError, NotImplementedError) as error:
        raise PluginSettingsRejected(manifest.id, because=str(error)[:REASON_CHARS_MAX]) from None


def _decode_path(kind: type[Any], value: Any) -> Any:
    """Convert a string to a `Path`. Any other type that msgspec does not support is refused."""
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise NotImplementedError(f"settings of the type {kind.__name__} are not supported")


def _field_names(kind: type[Any]) -> Sequence[str]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_encode_fields__
    return list(kind.__dataclass_fields__)


def _with_raw_secrets(value: Any) -> Any:
    """Return the settings with each secret reference converted back to its table in the settings file.

    A field of the type `Secret` in the plugin's settings is converted from this table.
    """
    match value:
        case SecretReference():
            return {"env": value.env} if value.env else {"file": str(value.file)}
        case dict():
            return {key: _with_raw_secrets(inner) for key, inner in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [_with_raw_secrets(inner) for inner in cast("Sequence[Any]", value)]
        case _:
            return value


def settings_schema_of(manifest: PluginManifest) -> dict[str, Any]:
    """Return the JSON schema of a plugin's settings, or an empty one if their types have no schema."""
    try:
        schema = msgspec.json.schema(manifest.settings, schema_hook=lambda _kind: {"type": "string"})
        json.dumps(schema)
        return schema
    except (TypeError, ValueError):
        return {}


def data_folder(data_dir: Path, plugin: str, instance: str) -> Path:
    """Create the folder `data_dir`/plugins/PLUGIN/INSTANCE, readable only by the server's user, and return it.

    The caller has validated both names, so the path never leaves the data directory.
    """
    folder = data_dir
    for name in ("plugins", plugin, instance):
        folder /= name
        folder.mkdir(exist_ok=True, mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PluginFolderUnsafe(folder)
    return folder
