"""Finds, imports and checks plugins. Their code runs in threads with a time limit, so none can
block the server.
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

from retinue.config.secret import Secret
from retinue.config.skills import plugin_name
from retinue.domain.errors import Invalid, RetinueError
from retinue.plugins.base import GROUP, Manifest, Plugin, PluginFailed

LOAD_S = 10.0  # for the import of a plugin, and again for its `load`
UNLOAD_S = 5.0
REASON_CHARS_MAX = 500
DESCRIPTION_LENGTH_MAX = 1024
VERSION_LENGTH_MAX = 64

T = TypeVar("T")

Find = Callable[[], Iterable[EntryPoint]]


class Package(Struct, frozen=True):
    """An installed plugin, before any of its code has run."""

    id: str
    entries: tuple[EntryPoint, ...]

    @property
    def version(self) -> str:
        dist = self.entries[0].dist
        return dist.version if dist is not None else ""

    @property
    def description(self) -> str:
        dist = self.entries[0].dist
        summary: object = dist.metadata.json.get("summary", "") if dist is not None else ""
        return str(summary)[:DESCRIPTION_LENGTH_MAX]


def installed_entries() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


def packages(find: Find) -> dict[str, Package]:
    """Return the installed plugins by id. None is imported: only the settings enable a plugin."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in find():
        same = found.setdefault(entry.name, [])
        if all(entry.value != other.value for other in same):
            same.append(entry)
    return {id_: Package(id_, tuple(entries)) for id_, entries in sorted(found.items()) if not plugin_name(id_)}


async def aside(call: Callable[[], T], *, seconds: float, what: str) -> T:
    """Call a function in a thread, and wait at most this long. Raises `PluginFailed` if it raises or hangs.

    The thread of a call that hangs stays behind. It can register nothing any more, and does not
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

    threading.Thread(target=work, name=f"plug-in {what}", daemon=True).start()
    try:
        result, trouble = await asyncio.wait_for(done, seconds)
    except TimeoutError:
        raise PluginFailed(
            f"{what} hangs",
            because=f"it did not come back within {seconds:g} s",
            try_this="look for what it waits for, then `retinue plugin reload`",
            code="plugin.hangs",
        ) from None
    if trouble is not None:
        raise _failure(what, trouble) from trouble
    return cast(T, result)


def _failure(what: str, error: BaseException) -> PluginFailed:
    if isinstance(error, RetinueError):
        because = f"{error.sentence}: {error.because}" if error.because else error.sentence
        return PluginFailed(
            f"{what} failed", because=because[:REASON_CHARS_MAX], try_this=error.try_this, code=error.code
        )
    first = str(error).strip().partition("\n")[0]
    because = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return PluginFailed(
        f"{what} failed", because=because[:REASON_CHARS_MAX], try_this="see the log of the house, or its author"
    )


def bring(package: Package) -> Plugin:
    """Import a plugin and check that it is one. May take long: call it with `run_in_thread`."""
    first, *others = package.entries
    if others:
        raise PluginFailed(
            f"there are {len(package.entries)} plug-ins '{package.id}'",
            because=", ".join(entry.value for entry in package.entries),
            try_this="uninstall one of the packages that bring them",
        )
    found: object = first.load()
    if not isinstance(found, Plugin):
        raise PluginFailed(
            f"'{package.id}' is no plug-in",
            because="its entry point names something else than a Plugin",
            try_this="its author can mend that",
        )
    _check(found.manifest, package.id)
    return found


def _check(manifest: Manifest, id_: str) -> None:
    wrong = ""
    if manifest.id != id_:
        wrong = f"it calls itself '{manifest.id}', and its entry point '{id_}'"
    elif not (0 < len(manifest.version) <= VERSION_LENGTH_MAX and len(manifest.description) <= DESCRIPTION_LENGTH_MAX):
        wrong = "it has no version, or one or a description that is too long"
    elif not _is_settings(manifest.settings):
        wrong = "its settings are neither a msgspec Struct nor a dataclass"
    if wrong:
        raise PluginFailed(f"the manifest of '{id_}' does not fit", because=wrong, try_this="its author can mend that")


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(cast(Any, kind)))


def settings_from(manifest: Manifest, told: Mapping[str, Any]) -> Any:
    """Convert the settings of a plugin to the type that it declares. An unknown key is refused."""
    try:
        known = set(_fields(manifest.settings))
        unknown = sorted(told.keys() - known)
        if unknown:
            raise msgspec.ValidationError(f"`{unknown[0]}` is not among {', '.join(sorted(known)) or 'its settings'}")
        return msgspec.convert(_plain(told), manifest.settings, dec_hook=_path)
    except (msgspec.ValidationError, ValueError, TypeError, NotImplementedError) as error:
        raise Invalid(
            f"the settings of '{manifest.id}' do not fit",
            because=str(error)[:REASON_CHARS_MAX],
            try_this=f"see `retinue plugin settings`, or [plugins.{manifest.id}.settings] of the settings file",
            code="plugin.settings-invalid",
        ) from None


def _path(kind: type[Any], value: Any) -> Any:
    """Convert a text to a `Path`, the only type that we add to those of msgspec."""
    if kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    raise NotImplementedError(f"a setting of the type {kind.__name__} cannot be read")


def _fields(kind: type[Any]) -> Sequence[str]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_encode_fields__
    return list(kind.__dataclass_fields__)


def _plain(value: Any) -> Any:
    """Return values with each secret as it is written in the file, for fields of the type `Secret`."""
    match value:
        case Secret():
            return {"env": value.env} if value.env else {"file": str(value.file)}
        case dict():
            return {key: _plain(inner) for key, inner in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [_plain(inner) for inner in cast("Sequence[Any]", value)]
        case _:
            return value


def schema_of(manifest: Manifest) -> dict[str, Any]:
    """Return the JSON schema of a plugin's settings; empty if its types have none."""
    try:
        schema = msgspec.json.schema(manifest.settings, schema_hook=lambda _kind: {"type": "string"})
        json.dumps(schema)
        return schema
    except (TypeError, ValueError):
        return {}


def data_folder(home: Path, plugin: str, instance: str) -> Path:
    """Return `data_dir`/plugins/PLUGIN/INSTANCE, readable for our user only.

    Both names are validated, so the path never leaves the data directory.
    """
    folder = home
    for name in ("plugins", plugin, instance):
        folder /= name
        folder.mkdir(exist_ok=True, mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PluginFailed(
                f"{folder} is no folder of ours",
                because="what a plug-in keeps must not lead elsewhere",
                try_this="move it away",
            )
    return folder
