"""Loads and unloads the plugins named in the settings, and reports the status of each.

A plugin that cannot be imported, has invalid settings, raises or hangs is not loaded, and its
status has the reason. It never prevents the server from starting. The code of a plugin has all
rights of the server, so a plugin is loaded only if it is named in the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from retinue.config.skills import PluginSettings, check_plugin_name
from retinue.domain.errors import RetinueError
from retinue.domain.ports import Clock
from retinue.operations.base import Operation
from retinue.operations.plugin.errors import PluginInstanceNameInvalid
from retinue.operations.plugin.plugins import PluginDetails, PluginStatus
from retinue.plugins.base import Plugin, PluginHost, PluginSection, SectionContext
from retinue.plugins.discovery import (
    LOAD_TIMEOUT_S,
    UNLOAD_TIMEOUT_S,
    FindEntryPoints,
    PluginPackage,
    convert_settings,
    data_folder,
    import_plugin,
    installed_entry_points,
    list_packages,
    run_in_thread,
    settings_schema_of,
)
from retinue.plugins.errors import PluginFailed, PluginNotInstalled, PluginTimeout
from retinue.plugins.registry import PendingEntries, PluginRegistry, RegistryEntry, plugin_source_of

log = logging.getLogger(__name__)

SECTION_TIMEOUT_S = 2.0
SECTION_CHARS_MAX = 20_000


OnPluginChange = Callable[[str, str, str], None]
"""Called with the name of a plugin instance, its change (see `PluginLoader`) and the reason."""


def ignore_change(_instance: str, _change: str, _because: str) -> None: ...


class _LoadedInstance(Struct):
    """A plugin instance that is loaded."""

    plugin: Plugin
    settings: PluginSettings
    host: PluginHost
    registrar: PendingEntries
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    error: str = ""


class _UnloadedInstance(Struct, frozen=True):
    """A plugin instance that is not loaded, and the reason."""

    state: PluginStatus
    because: str
    try_this: str = ""


class PluginLoader:
    """Loads and unloads plugins, so that the loaded plugins are those named in the settings."""

    def __init__(
        self,
        data_dir: Path,
        registry: PluginRegistry,
        clock: Clock,
        *,
        find_entry_points: FindEntryPoints = installed_entry_points,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        unload_timeout_s: float = UNLOAD_TIMEOUT_S,
        section_timeout_s: float = SECTION_TIMEOUT_S,
        on_change: OnPluginChange = ignore_change,
    ) -> None:
        """Create a loader without loading any plugin.

        While the server is running, `on_change` is called when a plugin was `loaded` or `unloaded`,
        or has `failed` with a reason.
        """
        self.registry = registry
        self._data_dir = data_dir
        self._clock = clock
        self._find_entry_points = find_entry_points
        self._load_timeout_s = load_timeout_s
        self._unload_timeout_s = unload_timeout_s
        self._section_timeout_s = section_timeout_s
        self._on_change = on_change
        self._failed_imports: dict[str, RetinueError] = {}  # not imported again before a reload is requested
        self._imported: dict[str, Plugin] = {}
        self._wanted: Mapping[str, PluginSettings] = {}
        self._loaded: dict[str, _LoadedInstance] = {}
        self._unloaded: dict[str, _UnloadedInstance] = {}
        self._disabled_sections: set[tuple[str, str]] = (
            set()
        )  # sections that hung and are no longer rendered, by owner and name
        self._sync_lock = asyncio.Lock()
        self._pending_syncs: set[asyncio.Task[None]] = set()

    # --- for operations ---

    async def list_plugins(self) -> Sequence[PluginDetails]:
        """Return every instance named in the settings, then the other installed plugins."""
        known = await asyncio.to_thread(list_packages, self._find_entry_points)
        named = [self._details_of(instance, settings, known) for instance, settings in self._wanted.items()]
        used = {each.plugin for each in named}
        rest = [
            PluginDetails(
                name=id_,
                plugin=id_,
                state=PluginStatus.INSTALLED,
                version=package.version,
                description=package.description,
                because="the settings do not name it",
                try_this=f"retinue plugin enable {id_}",
            )
            for id_, package in known.items()
            if id_ not in used and id_ not in self._wanted
        ]
        return [*named, *rest]

    def operations(self) -> Mapping[str, Operation]:
        return self.registry.operations()

    def runners(self) -> Collection[str]:
        return self.registry.runners().keys()

    def skill_folders(self) -> Sequence[tuple[str, Path]]:
        return self.registry.skill_folders()

    async def check_settings(self, instance: str, settings: PluginSettings) -> None:
        self._failed_imports.pop(settings.plugin or instance, None)  # requested by a person: it may have been fixed
        plugin = await self._import(settings.plugin or instance)
        await run_in_thread(
            partial(convert_settings, plugin.manifest, settings.settings),
            timeout_s=self._load_timeout_s,
            what=f"checking the settings of '{instance}'",
        )

    # --- loading and unloading ---

    async def sync(self, wanted: Mapping[str, PluginSettings], *, reload: str = "") -> None:
        async with self._sync_lock:
            self._wanted = dict(wanted)
            self._unloaded.clear()
            if reload in wanted:
                self._failed_imports.pop(wanted[reload].plugin or reload, None)  # it may have been fixed
            alone = await self._find_exclusive(wanted)
            for instance, loaded in list(self._loaded.items()):
                stays = wanted.get(instance) == loaded.settings and instance != reload
                if not stays or alone not in ("", instance):
                    await self._unload(instance)
                    self._on_change(instance, "unloaded", "")
            for instance, settings in wanted.items():
                if instance in self._loaded:
                    continue
                if not settings.enabled:
                    self._unloaded[instance] = _UnloadedInstance(PluginStatus.OFF, "it is disabled in the settings")
                elif alone not in ("", instance):
                    self._unloaded[instance] = _UnloadedInstance(
                        PluginStatus.OFF, f"'{alone}' is exclusive", f"retinue plugin disable {alone}"
                    )
                else:
                    await self._try_load(instance, settings)

    def sync_soon(self, wanted: Mapping[str, PluginSettings]) -> None:
        """Schedule a call of `sync`, for callers that cannot wait."""
        task = asyncio.create_task(self.sync(wanted))
        self._pending_syncs.add(task)
        task.add_done_callback(self._pending_syncs.discard)

    async def close(self) -> None:
        """Unload all plugins, in the reverse order of their loading."""
        for task in self._pending_syncs:
            task.cancel()
        await asyncio.gather(*self._pending_syncs, return_exceptions=True)
        async with self._sync_lock:
            for instance in reversed(list(self._loaded)):
                await self._unload(instance)

    async def _find_exclusive(self, wanted: Mapping[str, PluginSettings]) -> str:
        """Return the first enabled instance of an exclusive plugin, or an empty string.

        That instance excludes all other plugins, even if it fails to load.
        """
        for instance, settings in wanted.items():
            if settings.enabled:
                try:
                    plugin = await self._import(settings.plugin or instance)
                except RetinueError:
                    continue
                if plugin.manifest.exclusive:
                    return instance
        return ""

    async def _try_load(self, instance: str, settings: PluginSettings) -> None:
        try:
            await self._load(instance, settings)
            self._on_change(instance, "loaded", "")
        except RetinueError as error:
            because = f"{error.sentence}: {error.because}" if error.because else error.sentence
            try_this = error.try_this or f"correct it, then: retinue plugin reload {instance}"
            self._unloaded[instance] = _UnloadedInstance(PluginStatus.FAILED, because, try_this)
            self._on_change(instance, "failed", because)
            log.error("plugin not loaded", extra={"plugin": instance, "because": because})
        except OSError as error:
            self._unloaded[instance] = _UnloadedInstance(
                PluginStatus.FAILED, f"cannot create its data folder ({error.strerror})"
            )
            log.error("plugin not loaded", extra={"plugin": instance, "because": str(error)})

    async def _load(self, instance: str, settings: PluginSettings) -> None:
        if wrong := check_plugin_name(instance):
            raise PluginInstanceNameInvalid(instance, wrong=wrong)
        plugin = await self._import(settings.plugin or instance)
        id_ = plugin.manifest.id
        registrar = PendingEntries(instance, source=plugin_source_of(id_))
        host = PluginHost(
            plugin=id_,
            instance=instance,
            folder=data_folder(self._data_dir, id_, instance),
            clock=self._clock,
            log=logging.getLogger(f"{__name__}.{instance}"),
            register=registrar,
        )

        def load() -> None:
            plugin.load(host, convert_settings(plugin.manifest, settings.settings))

        try:
            await run_in_thread(load, timeout_s=self._load_timeout_s, what=f"loading '{instance}'")
            registrar.close()
            self.registry.add(registrar.entries)
        except BaseException as error:
            registrar.close()
            registrar.is_loaded = False
            if isinstance(error, RetinueError):
                await self._run_unload_callbacks(instance, host)
            raise
        loaded = self._loaded[instance] = _LoadedInstance(plugin, settings, host, registrar)
        loaded.tasks = [
            asyncio.create_task(self._run_background_task(instance, loaded, work)) for work in host.background_work
        ]
        log.info("plugin loaded", extra={"plugin": instance, "version": plugin.manifest.version})

    async def _unload(self, instance: str) -> None:
        """Remove everything that an instance registered, even if its code fails or hangs. Its data folder is kept."""
        loaded = self._loaded.pop(instance)
        loaded.registrar.is_loaded = False
        self.registry.remove(instance)
        self._disabled_sections = {each for each in self._disabled_sections if each[0] != instance}
        for task in loaded.tasks:
            task.cancel()
        if loaded.tasks:
            _, left = await asyncio.wait(loaded.tasks, timeout=self._unload_timeout_s)
            if left:
                log.error("plugin tasks did not stop", extra={"plugin": instance, "tasks": len(left)})
        await self._run_unload_callbacks(instance, loaded.host)
        log.info("plugin unloaded", extra={"plugin": instance})

    async def _run_unload_callbacks(self, instance: str, host: PluginHost) -> None:
        for call in reversed(list(host.unload_callbacks)):
            try:
                await run_in_thread(call, timeout_s=self._unload_timeout_s, what=f"unloading '{instance}'")
            except PluginFailed as error:
                log.error("plugin unload callback failed", extra={"plugin": instance, "because": error.because})

    async def _run_background_task(
        self, instance: str, loaded: _LoadedInstance, work: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await work()
        except Exception as error:  # a failing background task must not stop the server
            loaded.error = f"its background task failed: {type(error).__name__}: {error}"[:500]
            log.exception("plugin background task failed", extra={"plugin": instance})

    # --- installed plugins ---

    async def _import(self, id_: str) -> Plugin:
        if id_ in self._imported:
            return self._imported[id_]
        if id_ in self._failed_imports:
            raise self._failed_imports[id_]
        known = await asyncio.to_thread(list_packages, self._find_entry_points)
        if id_ not in known:
            raise PluginNotInstalled(id_, installed=known)
        try:
            plugin = await run_in_thread(
                partial(import_plugin, known[id_]), timeout_s=self._load_timeout_s, what=f"importing '{id_}'"
            )
        except RetinueError as error:
            self._failed_imports[id_] = error
            raise
        self._imported[id_] = plugin
        return plugin

    def _details_of(
        self, instance: str, settings: PluginSettings, packages: Mapping[str, PluginPackage]
    ) -> PluginDetails:
        id_ = settings.plugin or instance
        loaded, absent = self._loaded.get(instance), self._unloaded.get(instance)
        plugin = loaded.plugin if loaded else self._imported.get(id_)
        package = packages.get(id_)
        manifest = plugin.manifest if plugin else None
        if loaded is not None:
            state, because, try_this = PluginStatus.LOADED, loaded.error, f"retinue plugin reload {instance}"
        elif absent is not None:
            state, because, try_this = absent.state, absent.because, absent.try_this
        else:
            state, because, try_this = PluginStatus.OFF, "it is loading", ""
        return PluginDetails(
            name=instance,
            plugin=id_,
            state=state,
            version=manifest.version if manifest else package.version if package else "",
            description=manifest.description if manifest else package.description if package else "",
            because=because,
            try_this=try_this if because else "",
            exclusive=manifest.exclusive if manifest else False,
            folder=str(loaded.host.folder) if loaded else "",
            registers=self.registry.names_by_kind(instance) if loaded else {},
            settings_schema=settings_schema_of(manifest) if manifest else {},
        )

    # --- prompt sections ---

    async def render_sections(self, context: SectionContext, *, minimal: bool = False) -> list[str]:
        """Return the sections that plugins add to a run's system prompt. A section that fails or hangs is left out."""
        texts: list[str] = []
        for entry in self.registry.sections():
            section: PluginSection = entry.part
            if (minimal and not section.in_minimal_mode) or (entry.owner, entry.name) in self._disabled_sections:
                continue
            if text := await self._render_section(entry, section, context):
                texts.append(text)
        return texts

    async def _render_section(self, entry: RegistryEntry, section: PluginSection, context: SectionContext) -> str:
        try:
            what = f"the section '{entry.name}' of '{entry.owner}'"
            return await run_in_thread(
                partial(_section_text, section, context), timeout_s=self._section_timeout_s, what=what
            )
        except PluginFailed as error:
            log.error("plugin section left out", extra={"plugin": entry.owner, "because": error.because})
            if isinstance(error, PluginTimeout):  # each call leaves a thread behind, so never call it again
                self._disabled_sections.add((entry.owner, entry.name))
                if (loaded := self._loaded.get(entry.owner)) is not None:
                    loaded.error = f"{error.sentence}: {error.because}; it is disabled until the plugin is reloaded"
            return ""


def _section_text(section: PluginSection, context: SectionContext) -> str:
    return str(section.render(context)).strip()[:SECTION_CHARS_MAX]
