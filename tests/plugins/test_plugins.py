"""Test plugins with real packages and real imports: a plugin never stops the server, and unloading removes all its
parts."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flows.fake_provider import provider
from flows.fake_provider import says as provider_says
from flows.tools_instance import open_scripted_server
from operations.operations_instance import open_operations_server, person

from retinue.agents.agent_directory import agent_directory_of
from retinue.api.event_feed import EventFeed
from retinue.config import InvalidSettings, load_configuration
from retinue.config.secret import SecretReference
from retinue.config.skills import PluginSettings
from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel, ToolRules
from retinue.domain.envelope import EnvelopeDraft
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.permission import WEB_PERMISSION, AgentRights
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import field_names
from retinue.domain.tool import Call, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Operation, Services, perform_operation
from retinue.operations.config_holder import ConfigHolder
from retinue.operations.doctor_registry import DoctorContext as HealthScene
from retinue.operations.doctor_registry import DoctorHealth, run_checks
from retinue.operations.plugin import plugins as operations
from retinue.operations.plugin.plugins import PluginStatus
from retinue.operations.skill import skills as skill_operations
from retinue.operations.skill.skills import build_skill_loader
from retinue.plugins.base import ENTRY_POINT_GROUP, PluginManifest, SectionContext
from retinue.plugins.discovery import convert_settings, installed_entry_points, list_packages, settings_schema_of
from retinue.plugins.lifecycle import PluginLoader
from retinue.plugins.registry import EntryKind, PendingEntries, PluginRegistry, plugin_source_of
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import LocalInstance
from retinue.testing.loop_time import skip_loop_time_on_increase
from retinue.testing.scripted_model import tool_call_reply as tool_call
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until
from retinue.tools import base as tools
from retinue.tools.base import PermissionedTool
from retinue.tools.toolbox import Toolbox

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
HANG_TIMEOUT_S = 0.3  # for code that hangs
LONG_TIMEOUT_S = 600.0  # for code that does not hang, on a busy machine
OPERATIONS = {operation.name: operation for operation in (*operations.OPERATIONS, *skill_operations.OPERATIONS)}

MODULE_HEAD = """
import asyncio, json, sys, threading, time
from pathlib import Path
import msgspec
from retinue.config.models import ProviderSettings
from retinue.domain.agent import PermissionLevel, ToolRules
from retinue.domain.tool import ToolSpec
from retinue.operations.base import Operation
from retinue.plugins import Plugin, PluginHost, PluginManifest, PluginSection

class Settings(msgspec.Struct, forbid_unknown_fields=True):
    word: str = "hello"
    numbers: list[int] = []
    deep: dict[str, int] = {}

class Nothing(msgspec.Struct):
    pass

class Tool:
    arguments = Nothing
    def __init__(self, name, word="hello"):
        self.word = word
        self.spec = ToolSpec(name=name, description="Says a word.", parameters={})
    async def perform(self, arguments, scene):
        return self.word
"""
ONE_TOOL_BODY = """
def load(host, settings):
    host.register.tool(Tool(f"{host.plugin}_" + host.qualify_name("say"), settings.word))
    (host.folder / "kept").write_text(settings.word)
"""


class PluginServices(Services, frozen=True, kw_only=True):
    plugins: PluginLoader | None = None


class PluginPackages:
    """Plugin packages on disk that can be imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[EntryPoint] = []

    def add(self, id_: str, body: str = ONE_TOOL_BODY, *, exclusive: bool = False, manifest: str = "") -> None:
        manifest = manifest or (
            f"PluginManifest(id={id_!r}, version='1', description='For tests.', "
            f"exclusive={exclusive}, settings=Settings)"
        )
        module = f"plugin_for_tests_{id_.replace('-', '_')}_{len(self.entries)}"
        source = MODULE_HEAD + textwrap.dedent(body) + f"\nPLUGIN = Plugin(manifest={manifest}, load=load)\n"
        (self.folder / f"{module}.py").write_text(source)
        self.entries.append(EntryPoint(id_, f"{module}:PLUGIN", ENTRY_POINT_GROUP))
        importlib.invalidate_caches()

    def find(self) -> list[EntryPoint]:
        return self.entries


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginPackages]:
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield PluginPackages(folder)
    for name in [name for name in sys.modules if name.startswith("plugin_for_tests_")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _long_default_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give plugins long limits in the servers of these tests, too. Tests of code that hangs set their own."""
    defaults = PluginLoader.__init__.__kwdefaults__
    assert defaults is not None
    for name in ("load_timeout_s", "unload_timeout_s", "section_timeout_s"):
        assert name in defaults
        monkeypatch.setitem(defaults, name, LONG_TIMEOUT_S)


@pytest.fixture
async def loader(packages: PluginPackages, tmp_path: Path) -> AsyncGenerator[PluginLoader]:
    home = tmp_path / "home"
    home.mkdir()
    made = PluginLoader(
        home,
        PluginRegistry(),
        FakeClock(),
        find_entry_points=packages.find,
        load_timeout_s=LONG_TIMEOUT_S,
        unload_timeout_s=LONG_TIMEOUT_S,
        section_timeout_s=LONG_TIMEOUT_S,
    )
    yield made
    await made.close()


@pytest.fixture
async def impatient_loader(packages: PluginPackages, tmp_path: Path) -> AsyncGenerator[PluginLoader]:
    """Return a loader with a short limit for unloading."""
    home = tmp_path / "home"
    home.mkdir()
    made = PluginLoader(
        home,
        PluginRegistry(),
        FakeClock(),
        find_entry_points=packages.find,
        load_timeout_s=LONG_TIMEOUT_S,
        unload_timeout_s=HANG_TIMEOUT_S,
        section_timeout_s=LONG_TIMEOUT_S,
    )
    yield made
    await made.close()


def make_plugin_settings(*names: str, **settings: Any) -> dict[str, PluginSettings]:
    return {name: PluginSettings(settings=settings) for name in names}


async def list_states(loader: PluginLoader) -> dict[str, str]:
    return {pending.name: pending.state.value for pending in await loader.list_plugins()}


async def wait_until_true(condition: Callable[[], object]) -> None:
    await wait_until(condition, "the condition is true")


async def because(loader: PluginLoader, instance: str) -> str:
    return next(pending.because for pending in await loader.list_plugins() if pending.name == instance)


def make_tool_context() -> tools.ToolContext:
    return tools.ToolContext(
        agent=Agent(name="ada"),
        session=SessionId("5" * 32),
        run=RunId("6" * 32),
        call="c1",
        agent_directory=Path("/"),
        rights=AgentRights(workspace=Path("/")),
    )


async def call_tool(box: Toolbox, tool: str, **arguments: object) -> str:
    return (await box.perform(Call(id="c1", tool=tool, arguments=dict(arguments)), make_tool_context())).output


ALL_ENTRIES_BODY = """
from dataclasses import dataclass
from retinue.connectors.base import Platform
@dataclass(frozen=True)
class Loft:
    birds: int = 1
class Connector:
    name, repeats_safely = "pigeons", True
    async def listen(self, accept): ...
    async def deliver(self, part): ...
class Model:
    name, facts = "abacus", None
    def reply(self, prompt, *, key=""): ...
class Runner:
    async def take_turns(self, *words): ...
def note(host, word):
    with (host.folder / "log").open("a") as log:
        log.write(word + "\\n")
def load(host, settings):
    async def handler(services, caller, parameters):
        return {"word": settings.word}
    async def forever():
        note(host, "begun")
        try:
            await asyncio.sleep(3600)
        finally:
            note(host, "ended")
    host.register.tool(Tool("say"))
    host.register.operation(Operation(name=f"{host.instance}.say", summary="Says it.", parameters=Nothing,
                                      handler=handler, permission=PermissionLevel.STANDARD))
    host.register.connector(Connector())
    host.register.platform(Platform(name="pigeon", title="x", settings=Loft, make_connector=lambda *_: Connector()))
    host.register.model(Model())
    host.register.provider("acme", ProviderSettings(url="https://acme.example/v1"))
    host.register.runner("walk", Runner())
    host.register.section(PluginSection(name="about", render=lambda scene: f"About {scene.agent.name}."))
    host.register.policy("quiet", ToolRules(allow=()))
    host.register.skills(Path(__file__).parent)
    host.add_background_task(forever)
    host.on_unload(lambda: note(host, "first registered, last called"))
    host.on_unload(lambda: note(host, "farewell"))
"""


@pytest.mark.spec("D61")
async def test_loading_registers_and_unloading_removes_all_entries_of_a_plugin_instance(
    packages: PluginPackages, loader: PluginLoader
) -> None:
    packages.add("all", ALL_ENTRIES_BODY)
    packages.add("other")
    changes: list[int] = []
    loader.registry.on_change(lambda: changes.append(1))
    await loader.sync(make_plugin_settings("all", "other"))
    log = get_data_dir(loader) / "plugins" / "all" / "all" / "log"
    await wait_until_true(log.exists)  # its background task has begun
    found = next(pending for pending in await loader.list_plugins() if pending.name == "all")
    assert found.state is PluginStatus.LOADED
    assert {kind: len(names) for kind, names in found.registers.items()} == dict.fromkeys(map(str, EntryKind), 1)
    registry = loader.registry
    assert list(registry.operations()) == ["all.say"] and list(registry.connectors()) == ["pigeons"]
    assert list(registry.platforms()) == ["pigeon"]
    assert [model.name for model in registry.models()] == ["abacus"] and list(registry.runners()) == ["walk"]
    assert list(registry.providers()) == ["acme"] and registry.policies() == {"quiet": ToolRules(allow=())}
    assert registry.skill_folders() == [("all", packages.folder)]
    assert [(tool.spec.name, tool.spec.source) for tool in registry.tools()] == [
        ("say", "plugin:all"),
        ("other_say", "plugin:other"),
    ]
    assert len(changes) == 2  # all parts of a plugin appear at once
    assert await loader.render_sections(make_section_context()) == ["About ada."]
    held = Toolbox(registry.tools())
    assert await call_tool(held, "say") == "hello"

    await loader.sync(make_plugin_settings("other"))
    assert [tool.spec.name for tool in registry.tools()] == ["other_say"]
    for kind in (registry.operations, registry.connectors, registry.models, registry.providers, registry.runners):
        assert not kind()
    assert not registry.policies() and not registry.skill_folders() and not registry.sections()
    assert await loader.render_sections(make_section_context()) == [] and registry.names_by_kind("all") == {}
    output = await call_tool(held, "say")  # a run that still holds the tool
    assert "is no longer available" in output and "hello" not in output
    assert log.read_text().split("\n") == ["begun", "ended", "farewell", "first registered, last called", ""]
    await loader.sync(make_plugin_settings("all", "other"))
    assert (await list_states(loader))["all"] == "loaded"


def get_data_dir(loader: PluginLoader) -> Path:
    return loader._data_dir


def make_section_context() -> SectionContext:
    return SectionContext(
        agent=Agent(name="ada"), session="5" * 32, agent_directory=Path("/"), origin=OriginKind.TERMINAL
    )


@pytest.mark.spec("D61")
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"word": 5}, "Expected `str`, got `int` - at `$.word`"),
        ({"numbers": ["x"]}, "$.numbers[0]"),
        ({"wrod": "x"}, "`wrod` is not one of deep, numbers, word"),
    ],
)
async def test_invalid_plugin_settings_fail_only_that_plugin(
    packages: PluginPackages, loader: PluginLoader, settings: dict[str, Any], why: str
) -> None:
    packages.add("choosy")
    packages.add("other")
    await loader.sync({"choosy": PluginSettings(settings=settings), "other": PluginSettings()})
    assert await list_states(loader) == {"choosy": "failed", "other": "loaded"}
    assert why in await because(loader, "choosy")
    await loader.sync(make_plugin_settings("choosy", "other", word="fine"))
    assert await list_states(loader) == {"choosy": "loaded", "other": "loaded"}


BROKEN_BODIES = {
    "raises-at-import": ("raise RuntimeError('no such luck')", "RuntimeError: no such luck"),
    "not-python": ("def load(host settings): pass", "SyntaxError"),
    "ends-the-process": ("def load(host, settings): sys.exit(3)", "SystemExit: 3"),
    "raises": ("def load(host, settings):\n    host.register.tool(Tool('half'))\n    1 / 0", "ZeroDivisionError"),
    "registers-nonsense": ("def load(host, settings): host.register.tool(object())", "its `spec` must have"),
    "registers-twice": (
        "def load(host, settings):\n    host.register.tool(Tool('half'))\n    host.register.tool(Tool('half'))",
        "it was registered twice",
    ),
    "stands-before": (
        "def load(host, settings): host.register.operation(Operation(name='config.patch', summary='', "
        "parameters=Nothing, handler=None, permission=PermissionLevel.RESTRICTED))",
        "name must be stands-before.VERB",
    ),
    "takes-a-name": ("def load(host, settings): host.register.tool(Tool('fine_say'))", "it belongs to plugin 'fine'"),
    "hangs": ("def load(host, settings):\n    host.register.tool(Tool('half'))\n    time.sleep(SOON)", "within"),
    "hangs-at-import": ("time.sleep(SOON)\ndef load(host, settings): pass", "within"),
    "forever-in-import": ("import threading\nthreading.Event().wait(SOON)\ndef load(h, s): pass", "within"),
}


@pytest.mark.parametrize("kind", BROKEN_BODIES)
async def test_a_plugin_that_fails_in_any_way_does_not_affect_the_others(
    packages: PluginPackages, tmp_path: Path, kind: str
) -> None:
    body, why = BROKEN_BODIES[kind]
    packages.add("fine")
    packages.add(kind, body.replace("SOON", str(LONG_TIMEOUT_S)))
    (tmp_path / "home").mkdir()
    loader = PluginLoader(
        tmp_path / "home", PluginRegistry(), FakeClock(), find_entry_points=packages.find, load_timeout_s=LONG_TIMEOUT_S
    )
    await loader.sync(make_plugin_settings("fine"))
    if "hangs" in kind or "forever" in kind:
        loader._load_timeout_s = HANG_TIMEOUT_S  # pyright: ignore[reportPrivateUsage]
    try:
        await loader.sync(make_plugin_settings("fine", kind))
        assert await list_states(loader) == {"fine": "loaded", kind: "failed"}
        assert why in await because(loader, kind)
        assert [tool.spec.name for tool in loader.registry.tools()] == ["fine_say"]
        assert not loader.registry.operations()
    finally:
        await loader.close()


async def test_a_plugin_that_finishes_loading_after_its_timeout_cannot_register(
    packages: PluginPackages, tmp_path: Path
) -> None:
    packages.add(
        "late",
        """
        GO, SAID = threading.Event(), []
        def load(host, settings):
            GO.wait(60)
            try:
                host.register.tool(Tool("late"))
            except Exception as error:
                SAID.append(error)
        """,
    )
    (tmp_path / "home").mkdir()
    loader = PluginLoader(tmp_path / "home", PluginRegistry(), FakeClock(), find_entry_points=packages.find)
    await loader.check_settings("late", PluginSettings())  # imports it, which may take long on a busy machine
    loader._load_timeout_s = HANG_TIMEOUT_S  # pyright: ignore[reportPrivateUsage]
    await loader.sync(make_plugin_settings("late"))
    module = sys.modules[packages.entries[0].module]
    module.GO.set()
    await wait_until_true(lambda: module.SAID)
    [error] = module.SAID
    assert "no longer loading" in error.because and not loader.registry.tools()


COUNTING_BODY = """
with (Path(__file__).parent / "count").open("a") as count:
    count.write("x")
raise RuntimeError("again")
"""


async def test_a_failed_plugin_is_imported_again_only_on_reload(packages: PluginPackages, tmp_path: Path) -> None:
    packages.add("broken", COUNTING_BODY)
    (tmp_path / "home").mkdir()
    loader = PluginLoader(tmp_path / "home", PluginRegistry(), FakeClock(), find_entry_points=packages.find)
    for _ in range(3):
        await loader.sync(make_plugin_settings("broken"))
    assert (packages.folder / "count").read_text() == "x"
    await loader.sync(make_plugin_settings("broken"), reload="broken")
    assert (packages.folder / "count").read_text() == "xx"


async def test_sync_soon_applies_the_latest_plugin_settings(packages: PluginPackages, loader: PluginLoader) -> None:
    packages.add("diary")
    loader.sync_soon(make_plugin_settings("diary", word="first"))
    loader.sync_soon(make_plugin_settings("diary", word="last"))

    async def says_last() -> bool:
        tools = loader.registry.tools()
        return bool(tools) and await call_tool(Toolbox(tools), "diary_say") == "last"

    await wait_until(says_last, "the last settings are in use")


async def test_an_installed_plugin_is_not_imported_until_it_is_enabled(
    packages: PluginPackages, loader: PluginLoader
) -> None:
    packages.add("shy", "raise SystemExit('imported')")
    await loader.sync({})
    [shy] = await loader.list_plugins()
    assert (shy.state, shy.try_this) == (PluginStatus.INSTALLED, "retinue plugin enable shy")
    assert packages.entries[0].module not in sys.modules
    await loader.sync({"shy": PluginSettings(enabled=False)})
    assert await list_states(loader) == {"shy": "off"} and packages.entries[0].module not in sys.modules


async def test_missing_duplicate_and_invalid_plugins_fail_with_a_reason(
    packages: PluginPackages, loader: PluginLoader
) -> None:
    packages.add("twice")
    packages.add("twice")
    packages.add("other", manifest="PluginManifest(id='another', version='1', description='', settings=Settings)")
    packages.add("bare", manifest="PluginManifest(id='bare', version='1', description='', settings=dict)")
    packages.entries.append(EntryPoint("json", "json:dumps", ENTRY_POINT_GROUP))
    await loader.sync(make_plugin_settings("absent", "twice", "other", "bare", "json", "Not_A-Name"))
    assert set((await list_states(loader)).values()) == {"failed"}
    for instance, why in (
        ("absent", "no plugin named 'absent' is installed: installed plugins: bare, json, other, twice"),
        ("twice", "2 installed packages have a plugin named 'twice'"),
        ("other", "its id is 'another'"),
        ("bare", "neither a msgspec Struct nor a dataclass"),
        ("json", "'json' is not a plugin"),
        ("Not_A-Name", "lowercase letters"),
    ):
        assert why in await because(loader, instance), instance


@pytest.mark.spec("D62")
async def test_an_exclusive_plugin_turns_off_the_others(packages: PluginPackages, loader: PluginLoader) -> None:
    packages.add("one")
    packages.add("lonely", exclusive=True)
    packages.add("two")
    await loader.sync(make_plugin_settings("one", "two"))
    assert await list_states(loader) == {"one": "loaded", "two": "loaded", "lonely": "installed"}
    await loader.sync(make_plugin_settings("one", "lonely", "two"))
    assert await list_states(loader) == {"one": "off", "lonely": "loaded", "two": "off"}
    assert await because(loader, "two") == "'lonely' is exclusive"
    assert [tool.spec.name for tool in loader.registry.tools()] == ["lonely_say"]
    await loader.sync({**make_plugin_settings("one", "two"), "lonely": PluginSettings(enabled=False)})
    assert await list_states(loader) == {"one": "loaded", "two": "loaded", "lonely": "off"}
    await loader.sync(
        make_plugin_settings("one", "lonely", word=7)
    )  # a failure also counts: no other change can come in between
    assert await list_states(loader) == {"one": "off", "lonely": "failed", "two": "installed"}


@pytest.mark.spec("A47")
async def test_instances_of_one_plugin_have_separate_data_and_tool_names(
    packages: PluginPackages, loader: PluginLoader
) -> None:
    packages.add("diary")
    home = get_data_dir(loader)
    both = {
        "diary": PluginSettings(settings={"word": "mine"}),
        "at-work": PluginSettings(plugin="diary", settings={"word": "theirs"}),
    }
    await loader.sync(both)
    assert await list_states(loader) == {"diary": "loaded", "at-work": "loaded"}
    kept = {name: (home / "plugins" / "diary" / name / "kept").read_text() for name in both}
    assert kept == {"diary": "mine", "at-work": "theirs"}
    assert (home / "plugins" / "diary" / "at-work").stat().st_mode & 0o777 == 0o700
    box = Toolbox(loader.registry.tools())
    assert (await call_tool(box, "diary_say"), await call_tool(box, "diary_at_work_say")) == ("mine", "theirs")
    assert {tool.spec.source for tool in loader.registry.tools()} == {"plugin:diary"}
    await loader.sync({"at-work": both["at-work"]})
    assert [tool.spec.name for tool in loader.registry.tools()] == ["diary_at_work_say"]
    assert (home / "plugins" / "diary" / "diary" / "kept").exists()  # its stored data outlives it


@pytest.mark.spec("A47")
async def test_a_plugin_data_directory_that_is_a_symlink_is_refused(
    packages: PluginPackages, loader: PluginLoader
) -> None:
    packages.add("diary")
    elsewhere = get_data_dir(loader) / "elsewhere"
    elsewhere.mkdir()
    (get_data_dir(loader) / "plugins").mkdir()
    (get_data_dir(loader) / "plugins" / "diary").symlink_to(elsewhere)
    await loader.sync(make_plugin_settings("diary"))
    assert await list_states(loader) == {"diary": "failed"} and not list(elsewhere.iterdir())


async def test_a_plugin_background_task_that_fails_is_reported_and_a_task_that_does_not_end_is_abandoned(
    packages: PluginPackages, impatient_loader: PluginLoader
) -> None:
    packages.add(
        "busy",
        """
        def load(host, settings):
            async def fails():
                raise ValueError("out of paper")
            async def stubborn():
                for _ in range(200):
                    try:
                        await asyncio.sleep(0.01)
                    except asyncio.CancelledError:
                        pass
            host.add_background_task(fails)
            host.add_background_task(stubborn)
            host.on_unload(lambda: time.sleep(60))
            host.on_unload(lambda: 1 / 0)
        """,
    )
    await impatient_loader.sync(make_plugin_settings("busy"))

    async def is_reported() -> bool:
        return "ValueError: out of paper" in await because(impatient_loader, "busy")

    await wait_until(is_reported, "the failure is reported")
    await impatient_loader.sync({})
    assert await list_states(impatient_loader) == {"busy": "installed"}


async def test_failing_or_hanging_plugin_sections_are_left_out_and_minimal_mode_is_respected(
    packages: PluginPackages, loader: PluginLoader
) -> None:
    packages.add(
        "words",
        """
        CALLS = []
        def hang(scene):
            CALLS.append(1)
            time.sleep(60)
        def load(host, settings):
            host.register.section(PluginSection(name="a", render=lambda scene: 1 / 0))
            host.register.section(PluginSection(name="b", render=hang))
            host.register.section(PluginSection(name="c", render=lambda scene: " for all "))
            host.register.section(PluginSection(name="d", render=lambda scene: "even then", in_minimal_mode=True))
            host.register.section(PluginSection(name="e", render=lambda scene: ""))
            host.register.section(PluginSection(name="f", render=lambda scene: "x" * 30_000))
        """,
    )
    await loader.sync(make_plugin_settings("words"))
    hung_calls = sys.modules[packages.entries[0].module].CALLS
    async with skip_loop_time_on_increase(LONG_TIMEOUT_S, count=lambda: len(hung_calls)):
        sections = await loader.render_sections(make_section_context())
    assert sections[:2] == ["for all", "even then"] and len(sections) == 3 and len(sections[2]) == 20_000
    assert await loader.render_sections(make_section_context(), minimal=True) == ["even then"]
    await loader.render_sections(make_section_context())
    assert len(hung_calls) == 1  # a plugin that hung once is not asked again
    assert "is disabled until the plugin is reloaded" in await because(loader, "words")


# The registry


class ReachTool:
    spec = ToolSpec(name="reach", description="Reaches out.", parameters={}, source="built_in")
    arguments = msgspec.defstruct("Nothing", [])

    async def perform(self, arguments: Any, context: tools.ToolContext) -> str:
        return "reached"

    def required_permissions(self, arguments: Any, context: tools.ToolContext) -> tuple[Any, ...]:
        return (WEB_PERMISSION,)


def test_a_plugin_tool_gets_its_source_from_the_plugin_and_keeps_its_permissions() -> None:
    registry, registrar = PluginRegistry(), PendingEntries("maps", source=plugin_source_of("maps"))
    registrar.tool(ReachTool())
    registry.add(registrar.entries)
    [tool] = registry.tools()
    assert tool.spec.source == "plugin:maps"
    assert isinstance(tool, PermissionedTool) and list(tool.required_permissions(None, make_tool_context())) == [
        WEB_PERMISSION
    ]


def test_built_in_entries_use_the_plugin_registry_and_cannot_be_replaced() -> None:
    registry, own = PluginRegistry(), PendingEntries("built_in")
    own.tool(ReachTool())
    own.operation(OPERATIONS["skill.list"])
    registry.add(own.entries)
    assert registry.tools()[0].spec.source == "built_in" and list(registry.operations()) == ["skill.list"]
    pending = PendingEntries("maps", source=plugin_source_of("maps"))
    pending.tool(ReachTool())
    with pytest.raises(Conflict) as refused:
        registry.add(pending.entries)
    assert refused.value.because == "it is built in"


def test_a_plugin_entry_with_a_taken_name_is_refused_with_all_its_entries() -> None:
    registry = PluginRegistry(is_taken=lambda kind, name: (kind, name) == (EntryKind.TOOL, "reach"))
    pending = PendingEntries("maps", source=plugin_source_of("maps"))
    pending.policy("fine", ToolRules())
    pending.tool(ReachTool())
    with pytest.raises(Conflict):
        registry.add(pending.entries)
    assert not registry.policies()  # all or nothing


@pytest.mark.parametrize(
    "register",
    [
        lambda r: r.tool(type("T", (), {"spec": ToolSpec(name="a b", description="", parameters={})})()),
        lambda r: r.tool(
            type("T", (), {"spec": ToolSpec(name="a", description="", parameters={}), "arguments": dict})()
        ),
        lambda r: r.operation(object()),
        lambda r: r.connector(object()),
        lambda r: r.model(object()),
        lambda r: r.provider("acme", {}),
        lambda r: r.runner("walk", object()),
        lambda r: r.section("words"),
        lambda r: r.policy("quiet", {}),
        lambda r: r.policy("no name", ToolRules()),
        lambda r: r.skills(Path("relative")),
        lambda r: r.skills(Path("/not/there")),
    ],
)
def test_an_invalid_plugin_entry_is_refused(register: Any) -> None:
    registrar = PendingEntries("maps", source=plugin_source_of("maps"))
    with pytest.raises(Invalid) as refused:
        register(registrar)
    assert refused.value.code == "plugin.entry_invalid" and not registrar.entries


@dataclass(frozen=True)
class Keyed:
    key: SecretReference
    folder: Path
    api_key: SecretReference | None = None


def test_plugin_settings_may_be_a_dataclass_with_secret_references() -> None:
    manifest = PluginManifest(id="maps", version="1", description="", settings=Keyed)
    given = {"key": {"env": "MAPS"}, "api_key": SecretReference(file=Path("/keys/maps")), "folder": "/maps"}
    assert convert_settings(manifest, given) == Keyed(
        key=SecretReference(env="MAPS"), api_key=SecretReference(file=Path("/keys/maps")), folder=Path("/maps")
    )
    assert set(settings_schema_of(manifest)["$defs"]["Keyed"]["properties"]) == {"key", "api_key", "folder"}
    for wrong in ({"key": "plain"}, {"more": 1}, {"folder": 5}, {"api_key": {"env": 7}}):
        with pytest.raises(Invalid):
            convert_settings(manifest, given | wrong)


# Operations for the owner


@asynccontextmanager
async def open_services(tmp_path: Path, text: str, **kw: Any) -> AsyncGenerator[tuple[PluginServices, Path]]:
    file = tmp_path / "retinue.toml"
    file.write_text(text)
    environment = {"RETINUE_HOME": str(tmp_path)}
    async with open_operations_server(LocalInstance(tmp_path)) as server:
        keeper = ConfigHolder(load_configuration(environment), environment)
        loader = PluginLoader(tmp_path, PluginRegistry(), FakeClock(), **kw)
        held = {name: getattr(server.services, name) for name in field_names(server.services)}
        held["permission_policy"] = {
            **server.services.permission_policy,
            **{name: each.permission for name, each in OPERATIONS.items()},
        }
        services = PluginServices(**{**held, "config_holder": keeper, "plugins": loader})
        await loader.sync(keeper.current.settings.plugins)
        try:
            yield services, file
        finally:
            await loader.close()


async def ask(services: Services, operation: str | Operation, /, who: str = "owner", **asked: Any) -> Any:
    found = OPERATIONS[operation] if isinstance(operation, str) else operation
    return json.loads(await perform_operation(services, person(who), found, json.dumps(asked).encode()))


SETTINGS_TEXT = """# my server
[plugins.diary]
settings = { word = "hello", deep = { a = 1, b = 2 } } # first value

[plugins.other]
enabled = true
"""


@pytest.mark.spec("A47")
async def test_plugin_settings_are_read_patched_and_replaced_at_once(packages: PluginPackages, tmp_path: Path) -> None:
    packages.add("diary")
    packages.add("other")
    async with open_services(tmp_path, SETTINGS_TEXT, find_entry_points=packages.find) as (services, file):
        assert services.plugins is not None
        registry = services.plugins.registry

        async def says() -> str:
            return await call_tool(Toolbox(registry.tools()), "diary_say")

        read = await ask(services, "plugin.settings", name="diary")
        assert read["settings"] == {"word": "hello", "deep": {"a": 1, "b": 2}}
        assert "numbers" in json.dumps(read["schema"])
        assert await says() == "hello"

        patched = await ask(
            services, "plugin.patch", name="diary", settings={"word": "bye", "deep": {"a": None, "c": 3}}
        )
        assert patched["settings"] == {"word": "bye", "deep": {"b": 2, "c": 3}}
        assert (patched["plugin"]["state"], await says()) == ("loaded", "bye")  # at once
        assert file.read_text().startswith("# my server\n") and "# first value" in file.read_text()

        replaced = await ask(services, "plugin.replace", name="diary", settings={"numbers": [1, 2]})
        assert replaced["settings"] == {"numbers": [1, 2]} and await says() == "hello"
        assert load_configuration({"RETINUE_HOME": str(tmp_path)}).settings.plugins["diary"].settings == {
            "numbers": [1, 2]
        }
        assert (await ask(services, "plugin.replace", name="diary", settings={}))["settings"] == {}
        assert load_configuration({"RETINUE_HOME": str(tmp_path)}).settings.plugins["other"].enabled


@pytest.mark.spec("A47")
@pytest.mark.parametrize("operation", ["plugin.patch", "plugin.replace"])
@pytest.mark.parametrize(
    "settings",
    [
        {"word": 5},
        {"wrod": "x"},
        {"deep": {"a": "x"}},
        {"numbers": [None]},
        {"deep": {"a": {"a": {}}}},
    ],
)
async def test_invalid_plugin_settings_change_neither_the_file_nor_the_loaded_plugin(
    packages: PluginPackages, tmp_path: Path, operation: str, settings: dict[str, Any]
) -> None:
    packages.add("diary")
    packages.add("other")
    async with open_services(tmp_path, SETTINGS_TEXT, find_entry_points=packages.find) as (services, file):
        before = services.plugins.registry.tools() if services.plugins else []
        with pytest.raises(RetinueError) as refused:
            await ask(services, operation, name="diary", settings=settings)
        assert refused.value.code == "plugin.settings_invalid"
        assert file.read_text() == SETTINGS_TEXT
        assert services.plugins is not None and services.plugins.registry.tools() == before  # not even loaded again


async def test_a_plugin_operation_does_not_overwrite_a_settings_file_changed_by_hand(
    packages: PluginPackages, tmp_path: Path
) -> None:
    packages.add("diary")
    packages.add("other")
    async with open_services(tmp_path, SETTINGS_TEXT, find_entry_points=packages.find) as (services, file):
        file.write_text(SETTINGS_TEXT + "\n# by hand\n")
        with pytest.raises(Conflict):
            await ask(services, "plugin.patch", name="diary", settings={"word": "bye"})
        assert file.read_text() == SETTINGS_TEXT + "\n# by hand\n"


async def test_enabling_and_disabling_a_plugin_changes_the_file_and_takes_effect_at_once(
    packages: PluginPackages, tmp_path: Path
) -> None:
    packages.add("diary")
    async with open_services(tmp_path, "# empty\n", find_entry_points=packages.find) as (services, file):
        assert [each["state"] for each in (await ask(services, "plugin.list"))["plugins"]] == ["installed"]
        assert (await ask(services, "plugin.enable", name="diary"))["state"] == "loaded"
        assert (await ask(services, "plugin.enable", name="work", plugin="diary"))["registers"] == {
            "tool": ["diary_work_say"]
        }
        assert (await ask(services, "plugin.disable", name="diary"))["state"] == "off"
        assert (await ask(services, "plugin.show", name="work"))["state"] == "loaded"
        settings = load_configuration({"RETINUE_HOME": str(tmp_path)}).settings.plugins
        assert (settings["diary"].enabled, settings["work"].plugin) == (False, "diary")
        assert (await ask(services, "plugin.reload", name="work"))["state"] == "loaded"
        before = file.read_text()
        for operation, asked, error in (
            ("plugin.enable", {"name": "absent"}, NotFound),
            ("plugin.enable", {"name": "../up"}, Invalid),
            ("plugin.show", {"name": "absent"}, NotFound),
            ("plugin.settings", {"name": "absent"}, NotFound),
            ("plugin.disable", {"name": "absent"}, NotFound),
        ):
            with pytest.raises(error):
                await ask(services, operation, **asked)
        assert file.read_text() == before


async def test_a_member_may_not_use_plugin_operations(packages: PluginPackages, tmp_path: Path) -> None:
    async with open_services(tmp_path, "", find_entry_points=packages.find) as (services, _):
        for name in (name for name in OPERATIONS if name.startswith("plugin.")):
            with pytest.raises(NotAllowed):
                await ask(services, name, who="maria", name="diary", settings={})


async def test_the_doctor_reports_why_a_plugin_is_off_or_failed(packages: PluginPackages, tmp_path: Path) -> None:
    packages.add("broken", "raise RuntimeError('no such luck')")
    packages.add("lonely", exclusive=True)
    packages.add("meek")

    class DoctorContextWithPlugins(HealthScene, frozen=True, kw_only=True):
        plugins: PluginLoader | None = None

    text = "[plugins.broken]\n[plugins.lonely]\n[plugins.meek]\n"
    async with open_services(tmp_path, text, find_entry_points=packages.find) as (services, _):
        doctor_context = DoctorContextWithPlugins(
            data_dir=tmp_path, environment={}, now=services.clock.now(), plugins=services.plugins
        )
        [made] = await run_checks(doctor_context, [operations.PLUGINS_CHECK])
        assert [(found.health, found.sentence) for found in made.findings] == [
            (DoctorHealth.WARNING, "the plugin 'broken' is off"),
            (DoctorHealth.WARNING, "the plugin 'meek' is off"),
        ]
        await ask(services, "plugin.disable", name="lonely")
        doctor_context = DoctorContextWithPlugins(
            data_dir=tmp_path, environment={}, now=services.clock.now(), plugins=services.plugins
        )
        [made] = await run_checks(doctor_context, [operations.PLUGINS_CHECK])
        [found] = made.findings
        assert (found.health, found.sentence) == (DoctorHealth.PROBLEM, "the plugin 'broken' is failed")
        assert "no such luck" in found.because


# The example plugin


@pytest.fixture(scope="module")
def installed_example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example plugin, installed with pip as a user would."""
    target = tmp_path_factory.mktemp("site")
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *words, "--no-cache-dir", "--target", str(target), str(EXAMPLE)],
        check=True,
        timeout=WAIT_LIMIT_S,
        env={"PATH": "/usr/bin:/bin", "PIP_NO_INPUT": "1", "TMPDIR": str(tmp_path_factory.mktemp("tmp"))},
    )
    sys.path.insert(0, str(target))
    yield target
    sys.path.remove(str(target))
    sys.modules.pop("retinue_diary", None)


async def test_the_example_plugin_installs_and_provides_its_tools_operations_and_sections(
    installed_example: Path, tmp_path: Path
) -> None:
    package = list_packages(installed_entry_points)["diary"]
    assert package.version == "1.0.0" and package.description.startswith("A diary that agents write")
    text = '[plugins.diary]\n[plugins.work]\nplugin = "diary"\nsettings = { greeting = "Dear work", lines_max = 2 }\n'
    async with open_services(tmp_path, text, find_entry_points=installed_entry_points) as (services, file):
        assert services.plugins is not None
        diary = await ask(services, "plugin.show", name="diary")
        assert diary["state"] == "loaded" and diary["description"].startswith("A diary")
        assert diary["registers"] == {
            "tool": ["diary_write"],
            "operation": ["diary.read"],
            "section": ["diary"],
            "policy": ["diary-only"],
            "runner": ["diary-reader"],
            "skills": ["diary/5"],
        }
        box = Toolbox(services.plugins.registry.tools())
        assert await call_tool(box, "diary_write", line="Lunch  with Noor.") == "Dear diary: line 1 was written."
        for line in ("one", "two", "three"):
            output = await call_tool(box, "work_diary_write", line=line)
        assert output == "Dear work: line 2 was written."
        assert "1 to 500" in await call_tool(box, "diary_write", line="x" * 501)
        read = services.plugins.operations()
        assert [line.split(": ")[1] for line in (await ask(services, read["diary.read"], last=5))["lines"]] == [
            "Lunch with Noor."
        ]
        assert [line[-3:] for line in (await ask(services, read["work.read"]))["lines"]] == ["two", "ree"]
        assert await services.plugins.render_sections(make_section_context(), minimal=True) == []
        assert (await services.plugins.render_sections(make_section_context()))[0].startswith(
            "There is a diary with 1 lines."
        )
        kit = await build_skill_loader(services).load("ada", agent_directory=agent_directory_of(tmp_path, "ada"))
        assert "<name>keep-a-diary</name>" in kit.section
        made = await ask(services, "skill.export", name="diary", to=str(tmp_path / "out"))
        assert made["commands"] == ["read"]

        with pytest.raises(RetinueError) as refused:
            await ask(services, "plugin.patch", name="work", settings={"lines_max": 0})
        assert "from 1 to 100000" in refused.value.because and file.read_text() == text


@pytest.mark.spec("C124")
async def test_an_agent_can_use_the_runner_of_the_example_plugin(
    installed_example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '[plugins.diary]\n[agents.rita]\nrunner = "diary-reader"'
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    async with open_scripted_server(tmp_path / "home", config=config) as server:
        applied = await server.ask("config.apply")
        assert ("rita", "add") in [(each["name"], each["step"]) for each in applied["agents"]]
        await server.turn("Write.", tool_call("diary_write", line="Lunch with Noor."), "Done.")
        receipt = await server.post("What was yesterday?", to="agent:rita")
        await server.rest()
        [answer] = [mail for mail in await server.mail("person:owner") if mail.reply_to == receipt.envelope]
        assert answer.text.endswith("ada: Lunch with Noor.") and answer.trust is Trust.UNTRUSTED
        await server.ask("agent.register", name="bert", runner="diary-reader")
        found = await server.ask("server.doctor", quick=True)
        assert "its runner is" not in str(found), "its type is known here"

        await server.ask("plugin.disable", name="diary")
        with pytest.raises(Invalid):
            await server.ask("agent.register", name="carl", runner="diary-reader")
        receipt = await server.post("And today?", to="agent:rita")
        await server.rest()
        assert any("[runner.not_found]" in mail.text for mail in await server.mail("person:owner"))


@pytest.mark.spec("D65")
async def test_the_event_feed_sends_the_current_state_first_and_then_every_event(
    installed_example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports sessions, runs, schedules, heartbeats, grants and plugins."""
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    async with open_scripted_server(tmp_path / "home", config="[plugins.diary]") as server:
        feed = EventFeed(server.server.services, person("owner"))
        feed.follow_all()
        [hello] = await feed.open(None)
        assert hello.name == "hello" and hello.data["partials"] == []
        assert hello.data["cursor"] >= 0  # before it, if the plugin's own start is already stored
        received_events: dict[str, list[dict[str, Any]]] = {}

        async def wait_until_true(kind: str, **fields: Any) -> None:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while not any(fields.items() <= body.items() for body in received_events.get(kind, [])):
                    for event in await feed.next_messages() or []:
                        if event.name == "event":
                            data = msgspec.json.decode(msgspec.json.encode(event.data))
                            received_events.setdefault(data["event"], []).append(data)

        server.model.will_reply("Good morning.")
        await server.post("Good morning.")
        for kind in ("session.started", "run.started", "run.ended"):
            await wait_until_true(kind)
        server.model.will_reply("Watered.")
        made = await server.ask("schedule.add", name="plants", to="agent:ada", text="Water them.", every="1d")
        await wait_until_true("schedule.changed", schedule=made["id"], change="added")
        await server.ask("schedule.run", schedule="plants")
        await wait_until_true("schedule.changed", schedule=made["id"], change="ran")
        server.model.will_reply("HEARTBEAT_OK")
        await server.ask("heartbeat.add", agent="ada", id="window", text="Is it shut?")
        await wait_until_true("heartbeat.changed", agent="ada", change="added")
        await server.ask("heartbeat.run", agent="ada", ids=["window"])
        await wait_until_true("heartbeat.changed", agent="ada", change="beat", indicator="ok")
        await wait_until_true("heartbeat.changed", agent="ada", change="ran")
        await server.ask("grant.add", agent="ada", permission="web", because="it asked")
        await wait_until_true("grant.changed")
        await server.ask("plugin.disable", name="diary")
        await wait_until_true("plugin.changed", plugin="diary", change="unloaded")
        await server.ask("plugin.enable", name="diary")
        await wait_until_true("plugin.changed", plugin="diary", change="loaded")
        await server.ask("session.reset", session=received_events["session.started"][0]["session"])
        await wait_until_true("session.reset")
        feed.close()


async def test_config_apply_refuses_a_runner_that_no_plugin_provides(
    installed_example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '[plugins.diary]\n[agents.rita]\nrunner = "diary-raeder"'
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    async with open_scripted_server(tmp_path / "home", config=config) as server:
        with pytest.raises(Invalid) as refused:
            await server.ask("config.apply")
        assert refused.value.code == "agent.runner_unknown" and "diary-reader" in refused.value.because
    with pytest.raises(InvalidSettings):  # and at once where no plugin could deliver it
        load_configuration(
            {"RETINUE_HOME": str(tmp_path / "none"), "RETINUE_CONFIG": ""}, text='[agents.rita]\nrunner = "raeder"'
        )


@pytest.mark.spec("C124")
async def test_the_model_provider_of_the_example_plugin_gets_requests_with_its_own_key_header(
    installed_example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHED_KEY", "sk-shed-0123456789")
    async with provider(provider_says("From the shed.")) as shed:
        config = f"""
        [plugins.diary]
        settings = {{ models_url = "{shed.url}", models_key = {{ env = "SHED_KEY" }} }}
        [models.entries."shed/small"]
        alias = "small"
        """
        async with open_scripted_server(tmp_path / "home", config=config) as server:
            listed = (await server.ask("model.list"))["models"]
            [small] = [each for each in listed if each["model"] == "shed/small"]
            assert (small["provider_name"], "missing" in small) == ("The shed", False)
            await server.ask("agent.set", name="ada", model="shed/small")
            await server.post("Hello?")
            await server.rest()
            assert [mail.text for mail in await server.mail("person:owner")] == ["From the shed."]
        [asked] = shed.asked
        assert asked.headers["x-api-key"] == "sk-shed-0123456789" and "authorization" not in asked.headers
        assert asked.model == "small"


@pytest.mark.spec("C124")
async def test_the_policy_and_section_of_the_example_plugin_reach_an_agent_but_not_its_subagents(
    installed_example: Path, tmp_path: Path
) -> None:
    async with open_scripted_server(tmp_path / "home", config="[plugins.diary]") as server:
        await server.ask("agent.set", name="ada", tools_policy="diary-only")
        await server.turn("Look.", "I see.")
        assert {tool.name for tool in server.model.prompts[-1].tools} == {"diary_write", "session_status"}
        assert "There is a diary with 0 lines." in server.model.prompts[-1].instructions
        await server.turn("Look.", "I see.", to="agent:bo")
        assert len(server.model.prompts[-1].tools) > 1
        draft = EnvelopeDraft(
            id=EnvelopeId(server.server.services.ids.new()),
            sender=address.person_address("owner"),
            recipient=address.agent_address("bo"),
            text="Look.",
            source="person:owner",
            idempotency_key="errand",
            origin=Origin(OriginKind.SUBAGENT, "errand"),
        )
        server.model.will_reply("I see.")
        await server.server.services.intake.accept(draft)
        await server.rest()
        assert "There is a diary" not in server.model.prompts[-1].instructions


def test_the_operation_of_the_example_plugin_needs_only_standard_level_and_has_no_effect(
    installed_example: Path,
) -> None:
    import retinue_diary  # pyright: ignore[reportMissingImports]

    operation = retinue_diary.read_operation(type("H", (), {"instance": "diary"})(), None)
    assert operation.permission is PermissionLevel.STANDARD and not operation.has_effect


def test_plugin_threads_are_daemon_threads() -> None:
    """Threads of plugins that hang in tests above still exist. Python must not wait for them when it exits."""
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("plugin "))
