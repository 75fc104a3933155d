"""Loads and unloads the plugins that the settings name, and reports the status of each.

A plugin that cannot be imported, has invalid settings, raises or hangs is not loaded, and its
status has the reason. It never prevents the server from starting. Plugin code is as trusted as our
own, so it is only loaded if the settings name it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from retinue.config.skills import PluginSettings, plugin_name
from retinue.domain.errors import NotFound, RetinueError
from retinue.domain.ports import Clock
from retinue.operations.base import Operation
from retinue.operations.plugin.plugins import Guest, GuestState
from retinue.plugins.base import Host, Plugin, PluginFailed, Scene, Section
from retinue.plugins.discovery import (
    LOAD_S,
    UNLOAD_S,
    Find,
    Package,
    aside,
    bring,
    data_folder,
    installed_entries,
    packages,
    schema_of,
    settings_from,
)
from retinue.plugins.registry import Entry, Registrar, Registry, source_of

log = logging.getLogger(__name__)

SECTION_S = 2.0
SECTION_CHARS_MAX = 20_000


Told = Callable[[str, str, str], None]
"""Hears of an instance, of what became of it, and of why."""


def tell_nobody(_instance: str, _change: str, _because: str) -> None: ...


class _Loaded(Struct):
    """One loaded instance."""

    plugin: Plugin
    settings: PluginSettings
    host: Host
    registrar: Registrar
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    trouble: str = ""


class _Absent(Struct, frozen=True):
    """One instance that is not loaded, and why."""

    state: GuestState
    because: str
    try_this: str = ""


class Plugins:
    """Keeps the loaded plugins in line with the settings."""

    def __init__(
        self,
        home: Path,
        registry: Registry,
        clock: Clock,
        *,
        find: Find = installed_entries,
        load_s: float = LOAD_S,
        unload_s: float = UNLOAD_S,
        section_s: float = SECTION_S,
        told: Told = tell_nobody,
    ) -> None:
        """`on_change` is called while the server runs: with `loaded`, `unloaded`, or `failed` and why."""
        self.registry = registry
        self._home = home
        self._clock = clock
        self._find = find
        self._load_s = load_s
        self._unload_s = unload_s
        self._section_s = section_s
        self._told = told
        self._unbringable: dict[str, RetinueError] = {}  # not imported again before a reload is requested
        self._brought: dict[str, Plugin] = {}
        self._wanted: Mapping[str, PluginSettings] = {}
        self._loaded: dict[str, _Loaded] = {}
        self._absent: dict[str, _Absent] = {}
        self._silenced: set[tuple[str, str]] = set()  # disabled sections that hung, by owner and name
        self._fitting = asyncio.Lock()
        self._soon: set[asyncio.Task[None]] = set()

    # --- for operations ---

    async def everyone(self) -> Sequence[Guest]:
        """Return every instance that the settings name, then the other installed plugins."""
        known = await asyncio.to_thread(packages, self._find)
        named = [self._guest(instance, settings, known) for instance, settings in self._wanted.items()]
        used = {guest.plugin for guest in named}
        rest = [
            Guest(
                instance=id_,
                plugin=id_,
                state=GuestState.INSTALLED,
                version=package.version,
                description=package.description,
                because="no setting names it",
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

    async def valid(self, instance: str, settings: PluginSettings) -> None:
        self._unbringable.pop(settings.plugin or instance, None)  # requested by a person: it may have been fixed
        plugin = await self._bring(settings.plugin or instance)
        await aside(
            partial(settings_from, plugin.manifest, settings.settings),
            seconds=self._load_s,
            what=f"checking the settings of '{instance}'",
        )

    # --- loading and unloading ---

    async def fit(self, wanted: Mapping[str, PluginSettings], *, again: str = "") -> None:
        async with self._fitting:
            self._wanted = dict(wanted)
            self._absent.clear()
            if again in wanted:
                self._unbringable.pop(wanted[again].plugin or again, None)  # it may have been fixed
            alone = await self._exclusive(wanted)
            for instance, loaded in list(self._loaded.items()):
                stays = wanted.get(instance) == loaded.settings and instance != again
                if not stays or alone not in ("", instance):
                    await self._unload(instance)
                    self._told(instance, "unloaded", "")
            for instance, settings in wanted.items():
                if instance in self._loaded:
                    continue
                if not settings.enabled:
                    self._absent[instance] = _Absent(GuestState.OFF, "the settings turn it off")
                elif alone not in ("", instance):
                    self._absent[instance] = _Absent(
                        GuestState.OFF, f"'{alone}' is exclusive", f"retinue plugin disable {alone}"
                    )
                else:
                    await self._try(instance, settings)

    def take_up(self, wanted: Mapping[str, PluginSettings]) -> None:
        """Schedule a `sync`, for callers that cannot wait."""
        task = asyncio.create_task(self.fit(wanted))
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    async def close(self) -> None:
        """Unload all plugins, the last one first."""
        for task in self._soon:
            task.cancel()
        await asyncio.gather(*self._soon, return_exceptions=True)
        async with self._fitting:
            for instance in reversed(list(self._loaded)):
                await self._unload(instance)

    async def _exclusive(self, wanted: Mapping[str, PluginSettings]) -> str:
        """Return the first exclusive instance. It excludes the others even if it fails to load."""
        for instance, settings in wanted.items():
            if settings.enabled:
                try:
                    plugin = await self._bring(settings.plugin or instance)
                except RetinueError:
                    continue
                if plugin.manifest.exclusive:
                    return instance
        return ""

    async def _try(self, instance: str, settings: PluginSettings) -> None:
        try:
            await self._load(instance, settings)
            self._told(instance, "loaded", "")
        except RetinueError as error:
            because = f"{error.sentence}: {error.because}" if error.because else error.sentence
            try_this = error.try_this or f"mend it, then `retinue plugin reload {instance}`"
            self._absent[instance] = _Absent(GuestState.FAILED, because, try_this)
            self._told(instance, "failed", because)
            log.error("plug-in not loaded", extra={"plugin": instance, "because": because})
        except OSError as error:
            self._absent[instance] = _Absent(GuestState.FAILED, f"its folder cannot be made ({error.strerror})")
            log.error("plug-in not loaded", extra={"plugin": instance, "because": str(error)})

    async def _load(self, instance: str, settings: PluginSettings) -> None:
        if wrong := plugin_name(instance):
            raise PluginFailed(
                f"'{instance[:80]}' cannot be the name of an instance",
                because=f"it {wrong}",
                try_this="give it another name in the settings file",
            )
        plugin = await self._bring(settings.plugin or instance)
        id_ = plugin.manifest.id
        registrar = Registrar(instance, source=source_of(id_))
        host = Host(
            plugin=id_,
            instance=instance,
            folder=data_folder(self._home, id_, instance),
            clock=self._clock,
            log=logging.getLogger(f"{__name__}.{instance}"),
            register=registrar,
        )

        def load() -> None:
            plugin.load(host, settings_from(plugin.manifest, settings.settings))

        try:
            await aside(load, seconds=self._load_s, what=f"loading '{instance}'")
            registrar.close()
            self.registry.add(registrar.entries)
        except BaseException as error:
            registrar.close()
            registrar.alive = False
            if isinstance(error, RetinueError):
                await self._say_farewell(instance, host)
            raise
        loaded = self._loaded[instance] = _Loaded(plugin, settings, host, registrar)
        loaded.tasks = [asyncio.create_task(self._watch(instance, loaded, work)) for work in host.work]
        log.info("plug-in loaded", extra={"plugin": instance, "version": plugin.manifest.version})

    async def _unload(self, instance: str) -> None:
        """Remove everything of an instance, even if it does not cooperate. Its data folder is kept."""
        loaded = self._loaded.pop(instance)
        loaded.registrar.alive = False
        self.registry.remove(instance)
        self._silenced = {each for each in self._silenced if each[0] != instance}
        for task in loaded.tasks:
            task.cancel()
        if loaded.tasks:
            _, left = await asyncio.wait(loaded.tasks, timeout=self._unload_s)
            if left:
                log.error("plug-in does not end its work", extra={"plugin": instance, "tasks": len(left)})
        await self._say_farewell(instance, loaded.host)
        log.info("plug-in unloaded", extra={"plugin": instance})

    async def _say_farewell(self, instance: str, host: Host) -> None:
        for call in reversed(list(host.farewells)):
            try:
                await aside(call, seconds=self._unload_s, what=f"unloading '{instance}'")
            except PluginFailed as error:
                log.error("plug-in not unloaded well", extra={"plugin": instance, "because": error.because})

    async def _watch(self, instance: str, loaded: _Loaded, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # a failing background task must not stop the server
            loaded.trouble = f"its work in the background ended: {type(error).__name__}: {error}"[:500]
            log.exception("plug-in's work ended", extra={"plugin": instance})

    # --- installed plugins ---

    async def _bring(self, id_: str) -> Plugin:
        if id_ in self._brought:
            return self._brought[id_]
        if id_ in self._unbringable:
            raise self._unbringable[id_]
        known = await asyncio.to_thread(packages, self._find)
        if id_ not in known:
            raise NotFound(
                f"no plug-in '{id_[:64]}' is installed",
                because=f"installed are: {', '.join(known) or 'none'}",
                try_this="install the package that brings it into the house's environment, then restart",
                code="plugin.not-installed",
            )
        try:
            plugin = await aside(partial(bring, known[id_]), seconds=self._load_s, what=f"importing '{id_}'")
        except RetinueError as error:
            self._unbringable[id_] = error
            raise
        self._brought[id_] = plugin
        return plugin

    def _guest(self, instance: str, settings: PluginSettings, known: Mapping[str, Package]) -> Guest:
        id_ = settings.plugin or instance
        loaded, absent = self._loaded.get(instance), self._absent.get(instance)
        plugin = loaded.plugin if loaded else self._brought.get(id_)
        package = known.get(id_)
        manifest = plugin.manifest if plugin else None
        if loaded is not None:
            state, because, try_this = GuestState.LOADED, loaded.trouble, f"retinue plugin reload {instance}"
        elif absent is not None:
            state, because, try_this = absent.state, absent.because, absent.try_this
        else:
            state, because, try_this = GuestState.OFF, "it is being loaded", ""
        return Guest(
            instance=instance,
            plugin=id_,
            state=state,
            version=manifest.version if manifest else package.version if package else "",
            description=manifest.description if manifest else package.description if package else "",
            because=because,
            try_this=try_this if because else "",
            exclusive=manifest.exclusive if manifest else False,
            folder=str(loaded.host.folder) if loaded else "",
            brings=self.registry.brought_by(instance) if loaded else {},
            settings_schema=schema_of(manifest) if manifest else {},
        )

    # --- prompt sections ---

    async def sections(self, scene: Scene, *, minimal: bool = False) -> list[str]:
        """Return the texts of plugins for a run's system prompt. One that fails or hangs is left out."""
        told: list[str] = []
        for entry in self.registry.sections():
            section: Section = entry.thing
            if (minimal and not section.minimal) or (entry.owner, entry.name) in self._silenced:
                continue
            if text := await self._asked(entry, section, scene):
                told.append(text)
        return told

    async def _asked(self, entry: Entry, section: Section, scene: Scene) -> str:
        try:
            what = f"the section '{entry.name}' of '{entry.owner}'"
            return await aside(partial(_text, section, scene), seconds=self._section_s, what=what)
        except PluginFailed as error:
            log.error("plug-in's section left out", extra={"plugin": entry.owner, "because": error.because})
            if error.code == "plugin.hangs":  # each call leaves a thread behind, so never call it again
                self._silenced.add((entry.owner, entry.name))
                if (loaded := self._loaded.get(entry.owner)) is not None:
                    loaded.trouble = f"{error.sentence}: {error.because}; it is not asked any more"
            return ""


def _text(section: Section, scene: Scene) -> str:
    return str(section.text(scene)).strip()[:SECTION_CHARS_MAX]
