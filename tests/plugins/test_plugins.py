"""Plug-ins: real packages, really imported. Whatever one does, the house goes on, and nothing of it stays behind."""

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
from flows.tools_instance import hands_house
from operations.operations_instance import desk_house, person

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
from retinue.testing.scripted_model import tool_call_reply as tool_call
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until
from retinue.tools import base as tools
from retinue.tools.base import PermissionedTool
from retinue.tools.toolbox import Toolbox

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
SOON_S = 0.3  # for what hangs
PATIENCE_S = 600.0  # for what does not: on a busy machine it may take its time
OPERATIONS = {operation.name: operation for operation in (*operations.OPERATIONS, *skill_operations.OPERATIONS)}

HEAD = """
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
PLAIN = """
def load(host, settings):
    host.register.tool(Tool(f"{host.plugin}_" + host.qualify_name("say"), settings.word))
    (host.folder / "kept").write_text(settings.word)
"""


class GuestDesk(Services, frozen=True, kw_only=True):
    plugins: PluginLoader | None = None


class Packages:
    """Plug-ins on disk, to be imported from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[EntryPoint] = []

    def add(self, id_: str, body: str = PLAIN, *, exclusive: bool = False, manifest: str = "") -> None:
        manifest = manifest or (
            f"PluginManifest(id={id_!r}, version='1', description='For tests.', "
            f"exclusive={exclusive}, settings=Settings)"
        )
        module = f"plugin_for_tests_{id_.replace('-', '_')}_{len(self.entries)}"
        source = HEAD + textwrap.dedent(body) + f"\nPLUGIN = Plugin(manifest={manifest}, load=load)\n"
        (self.folder / f"{module}.py").write_text(source)
        self.entries.append(EntryPoint(id_, f"{module}:PLUGIN", ENTRY_POINT_GROUP))
        importlib.invalidate_caches()

    def find(self) -> list[EntryPoint]:
        return self.entries


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Packages(folder)
    for name in [name for name in sys.modules if name.startswith("plugin_for_tests_")]:
        del sys.modules[name]


@pytest.fixture
async def guests(offered: Packages, tmp_path: Path) -> AsyncGenerator[PluginLoader]:
    home = tmp_path / "home"
    home.mkdir()
    made = PluginLoader(
        home,
        PluginRegistry(),
        FakeClock(),
        find_entry_points=offered.find,
        load_timeout_s=PATIENCE_S,
        unload_timeout_s=PATIENCE_S,
        section_timeout_s=PATIENCE_S,
    )
    yield made
    await made.close()


@pytest.fixture
async def impatient(offered: Packages, tmp_path: Path) -> AsyncGenerator[PluginLoader]:
    """For plugins that hang when they are unloaded or asked for a section; a section that does not has two seconds."""
    home = tmp_path / "home"
    home.mkdir()
    made = PluginLoader(
        home,
        PluginRegistry(),
        FakeClock(),
        find_entry_points=offered.find,
        load_timeout_s=PATIENCE_S,
        unload_timeout_s=SOON_S,
        section_timeout_s=2.0,
    )
    yield made
    await made.close()


def wanted(*names: str, **settings: Any) -> dict[str, PluginSettings]:
    return {name: PluginSettings(settings=settings) for name in names}


async def states(guests: PluginLoader) -> dict[str, str]:
    return {guest.instance: guest.state.value for guest in await guests.list_plugins()}


async def until(holds: Callable[[], object]) -> None:
    await wait_until(holds, "it is so")


async def because(guests: PluginLoader, instance: str) -> str:
    return next(guest.because for guest in await guests.list_plugins() if guest.instance == instance)


def scene() -> tools.ToolContext:
    return tools.ToolContext(
        agent=Agent(name="ada"),
        session=SessionId("5" * 32),
        run=RunId("6" * 32),
        call="c1",
        agent_directory=Path("/"),
        rights=AgentRights(workspace=Path("/")),
    )


async def use(box: Toolbox, tool: str, **arguments: object) -> str:
    return (await box.perform(Call(id="c1", tool=tool, arguments=dict(arguments)), scene())).output


EVERYTHING = """
from dataclasses import dataclass
from retinue.connectors.base import Platform
@dataclass(frozen=True)
class Loft:
    birds: int = 1
class Connector:
    name, repeats_safely = "pigeons", True
    async def listen(self, accept): ...
    async def deliver(self, parcel): ...
class Model:
    name, facts = "abacus", None
    def reply(self, prompt, *, key=""): ...
class Runner:
    async def take_turns(self, *words): ...
def note(host, word):
    with (host.folder / "log").open("a") as log:
        log.write(word + "\\n")
def load(host, settings):
    async def handler(desk, caller, asked):
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
async def test_load_registers_and_unload_removes_everything_of_the_instance(
    offered: Packages, guests: PluginLoader
) -> None:
    offered.add("all", EVERYTHING)
    offered.add("other")
    changes: list[int] = []
    guests.registry.on_change(lambda: changes.append(1))
    await guests.sync(wanted("all", "other"))
    log = guests_home(guests) / "plugins" / "all" / "all" / "log"
    await until(log.exists)  # what runs beside it has begun
    found = next(guest for guest in await guests.list_plugins() if guest.instance == "all")
    assert found.state is PluginStatus.LOADED
    assert {kind: len(names) for kind, names in found.brings.items()} == dict.fromkeys(map(str, EntryKind), 1)
    registry = guests.registry
    assert list(registry.operations()) == ["all.say"] and list(registry.connectors()) == ["pigeons"]
    assert list(registry.platforms()) == ["pigeon"]
    assert [model.name for model in registry.models()] == ["abacus"] and list(registry.runners()) == ["walk"]
    assert list(registry.providers()) == ["acme"] and registry.policies() == {"quiet": ToolRules(allow=())}
    assert registry.skill_folders() == [("all", offered.folder)]
    assert [(tool.spec.name, tool.spec.source) for tool in registry.tools()] == [
        ("say", "plugin:all"),
        ("other_say", "plugin:other"),
    ]
    assert len(changes) == 2  # all of an instance comes at once
    assert await guests.render_sections(section_scene()) == ["About ada."]
    held = Toolbox(registry.tools())
    assert await use(held, "say") == "hello"

    await guests.sync(wanted("other"))
    assert [tool.spec.name for tool in registry.tools()] == ["other_say"]
    for kind in (registry.operations, registry.connectors, registry.models, registry.providers, registry.runners):
        assert not kind()
    assert not registry.policies() and not registry.skill_folders() and not registry.sections()
    assert await guests.render_sections(section_scene()) == [] and registry.names_by_kind("all") == {}
    said = await use(held, "say")  # a run that still has it in its hand
    assert "is no longer available" in said and "hello" not in said
    assert log.read_text().split("\n") == ["begun", "ended", "farewell", "first registered, last called", ""]
    await guests.sync(wanted("all", "other"))
    assert (await states(guests))["all"] == "loaded"


def guests_home(guests: PluginLoader) -> Path:
    return guests._data_dir


def section_scene() -> SectionContext:
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
async def test_settings_that_do_not_fit_keep_one_plugin_out_and_nothing_else(
    offered: Packages, guests: PluginLoader, settings: dict[str, Any], why: str
) -> None:
    offered.add("choosy")
    offered.add("other")
    await guests.sync({"choosy": PluginSettings(settings=settings), "other": PluginSettings()})
    assert await states(guests) == {"choosy": "failed", "other": "loaded"}
    assert why in await because(guests, "choosy")
    await guests.sync(wanted("choosy", "other", word="fine"))
    assert await states(guests) == {"choosy": "loaded", "other": "loaded"}


BROKEN = {
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


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_plugin_that_fails_in_whatever_way_is_not_here_and_the_others_are(
    offered: Packages, tmp_path: Path, kind: str
) -> None:
    body, why = BROKEN[kind]
    offered.add("fine")
    offered.add(kind, body.replace("SOON", str(SOON_S * 10)))
    (tmp_path / "home").mkdir()
    guests = PluginLoader(
        tmp_path / "home", PluginRegistry(), FakeClock(), find_entry_points=offered.find, load_timeout_s=PATIENCE_S
    )
    await guests.sync(wanted("fine"))
    if "hangs" in kind or "forever" in kind:
        guests._load_timeout_s = SOON_S  # pyright: ignore[reportPrivateUsage]
    try:
        await guests.sync(wanted("fine", kind))
        assert await states(guests) == {"fine": "loaded", kind: "failed"}
        assert why in await because(guests, kind)
        assert [tool.spec.name for tool in guests.registry.tools()] == ["fine_say"]
        assert not guests.registry.operations()
    finally:
        await guests.close()


async def test_a_plugin_that_comes_back_late_registers_nothing_any_more(offered: Packages, tmp_path: Path) -> None:
    offered.add(
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
    guests = PluginLoader(
        tmp_path / "home", PluginRegistry(), FakeClock(), find_entry_points=offered.find, load_timeout_s=SOON_S
    )
    await guests.sync(wanted("late"))
    module = sys.modules[offered.entries[0].module]
    module.GO.set()
    await until(lambda: module.SAID)
    [error] = module.SAID
    assert "no longer loading" in error.because and not guests.registry.tools()


COUNTED = """
with (Path(__file__).parent / "count").open("a") as count:
    count.write("x")
raise RuntimeError("again")
"""


async def test_what_failed_once_is_imported_again_only_when_asked_for(offered: Packages, tmp_path: Path) -> None:
    offered.add("broken", COUNTED)
    (tmp_path / "home").mkdir()
    guests = PluginLoader(tmp_path / "home", PluginRegistry(), FakeClock(), find_entry_points=offered.find)
    for _ in range(3):
        await guests.sync(wanted("broken"))
    assert (offered.folder / "count").read_text() == "x"
    await guests.sync(wanted("broken"), reload="broken")
    assert (offered.folder / "count").read_text() == "xx"


async def test_changed_settings_are_taken_up_soon_for_whoever_cannot_wait(
    offered: Packages, guests: PluginLoader
) -> None:
    offered.add("diary")
    guests.sync_soon(wanted("diary", word="first"))
    guests.sync_soon(wanted("diary", word="last"))

    async def says_last() -> bool:
        tools = guests.registry.tools()
        return bool(tools) and await use(Toolbox(tools), "diary_say") == "last"

    await wait_until(says_last, "the last settings are taken up")


async def test_to_be_installed_is_not_to_be_loaded_nor_even_imported(offered: Packages, guests: PluginLoader) -> None:
    offered.add("shy", "raise SystemExit('imported')")
    await guests.sync({})
    [shy] = await guests.list_plugins()
    assert (shy.state, shy.try_this) == (PluginStatus.INSTALLED, "retinue plugin enable shy")
    assert offered.entries[0].module not in sys.modules
    await guests.sync({"shy": PluginSettings(enabled=False)})
    assert await states(guests) == {"shy": "off"} and offered.entries[0].module not in sys.modules


async def test_what_is_not_installed_or_no_plugin_is_said(offered: Packages, guests: PluginLoader) -> None:
    offered.add("twice")
    offered.add("twice")
    offered.add("other", manifest="PluginManifest(id='another', version='1', description='', settings=Settings)")
    offered.add("bare", manifest="PluginManifest(id='bare', version='1', description='', settings=dict)")
    offered.entries.append(EntryPoint("json", "json:dumps", ENTRY_POINT_GROUP))
    await guests.sync(wanted("absent", "twice", "other", "bare", "json", "Not_A-Name"))
    assert set((await states(guests)).values()) == {"failed"}
    for instance, why in (
        ("absent", "no plugin named 'absent' is installed: installed plugins: bare, json, other, twice"),
        ("twice", "2 installed packages have a plugin named 'twice'"),
        ("other", "its id is 'another'"),
        ("bare", "neither a msgspec Struct nor a dataclass"),
        ("json", "'json' is not a plugin"),
        ("Not_A-Name", "lowercase letters"),
    ):
        assert why in await because(guests, instance), instance


@pytest.mark.spec("D62")
async def test_an_exclusive_plugin_disables_the_others(offered: Packages, guests: PluginLoader) -> None:
    offered.add("one")
    offered.add("lonely", exclusive=True)
    offered.add("two")
    await guests.sync(wanted("one", "two"))
    assert await states(guests) == {"one": "loaded", "two": "loaded", "lonely": "installed"}
    await guests.sync(wanted("one", "lonely", "two"))
    assert await states(guests) == {"one": "off", "lonely": "loaded", "two": "off"}
    assert await because(guests, "two") == "'lonely' is exclusive"
    assert [tool.spec.name for tool in guests.registry.tools()] == ["lonely_say"]
    await guests.sync({**wanted("one", "two"), "lonely": PluginSettings(enabled=False)})
    assert await states(guests) == {"one": "loaded", "two": "loaded", "lonely": "off"}
    await guests.sync(wanted("one", "lonely", word=7))  # it counts also where it fails: nobody slips in beside it
    assert await states(guests) == {"one": "off", "lonely": "failed", "two": "installed"}


@pytest.mark.spec("A47")
async def test_instances_of_one_plugin_keep_their_data_and_names_apart(offered: Packages, guests: PluginLoader) -> None:
    offered.add("diary")
    home = guests_home(guests)
    both = {
        "diary": PluginSettings(settings={"word": "mine"}),
        "at-work": PluginSettings(plugin="diary", settings={"word": "theirs"}),
    }
    await guests.sync(both)
    assert await states(guests) == {"diary": "loaded", "at-work": "loaded"}
    kept = {name: (home / "plugins" / "diary" / name / "kept").read_text() for name in both}
    assert kept == {"diary": "mine", "at-work": "theirs"}
    assert (home / "plugins" / "diary" / "at-work").stat().st_mode & 0o777 == 0o700
    box = Toolbox(guests.registry.tools())
    assert (await use(box, "diary_say"), await use(box, "diary_at_work_say")) == ("mine", "theirs")
    assert {tool.spec.source for tool in guests.registry.tools()} == {"plugin:diary"}
    await guests.sync({"at-work": both["at-work"]})
    assert [tool.spec.name for tool in guests.registry.tools()] == ["diary_at_work_say"]
    assert (home / "plugins" / "diary" / "diary" / "kept").exists()  # what it keeps outlives it


@pytest.mark.spec("A47")
async def test_a_folder_of_data_that_leads_elsewhere_is_not_used(offered: Packages, guests: PluginLoader) -> None:
    offered.add("diary")
    elsewhere = guests_home(guests) / "elsewhere"
    elsewhere.mkdir()
    (guests_home(guests) / "plugins").mkdir()
    (guests_home(guests) / "plugins" / "diary").symlink_to(elsewhere)
    await guests.sync(wanted("diary"))
    assert await states(guests) == {"diary": "failed"} and not list(elsewhere.iterdir())


async def test_work_in_the_background_that_fails_is_told_and_one_that_will_not_end_is_left(
    offered: Packages, impatient: PluginLoader
) -> None:
    offered.add(
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
    await impatient.sync(wanted("busy"))

    async def is_told() -> bool:
        return "ValueError: out of paper" in await because(impatient, "busy")

    await wait_until(is_told, "the failure is told")
    await impatient.sync({})
    assert await states(impatient) == {"busy": "installed"}


async def test_a_section_that_fails_or_hangs_is_left_out_and_minimal_mode_leaves_out_the_rest(
    offered: Packages, impatient: PluginLoader
) -> None:
    offered.add(
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
    await impatient.sync(wanted("words"))
    told = await impatient.render_sections(section_scene())
    assert told[:2] == ["for all", "even then"] and len(told) == 3 and len(told[2]) == 20_000
    assert await impatient.render_sections(section_scene(), minimal=True) == ["even then"]
    await impatient.render_sections(section_scene())
    assert len(sys.modules[offered.entries[0].module].CALLS) == 1  # who hung once is not asked again
    assert "is disabled until the plugin is reloaded" in await because(impatient, "words")


# The registry


class Reaches:
    spec = ToolSpec(name="reach", description="Reaches out.", parameters={}, source="house")
    arguments = msgspec.defstruct("Nothing", [])

    async def perform(self, arguments: Any, context: tools.ToolContext) -> str:
        return "reached"

    def required_permissions(self, arguments: Any, context: tools.ToolContext) -> tuple[Any, ...]:
        return (WEB_PERMISSION,)


def test_a_tool_cannot_say_where_it_comes_from_and_what_it_needs_is_still_asked_for() -> None:
    registry, registrar = PluginRegistry(), PendingEntries("maps", source=plugin_source_of("maps"))
    registrar.tool(Reaches())
    registry.add(registrar.entries)
    [tool] = registry.tools()
    assert tool.spec.source == "plugin:maps"
    assert isinstance(tool, PermissionedTool) and list(tool.required_permissions(None, scene())) == [WEB_PERMISSION]


def test_the_houses_own_can_come_by_the_same_door() -> None:
    registry, own = PluginRegistry(), PendingEntries("house")
    own.tool(Reaches())
    own.operation(OPERATIONS["skill.list"])
    registry.add(own.entries)
    assert registry.tools()[0].spec.source == "house" and list(registry.operations()) == ["skill.list"]
    guest = PendingEntries("maps", source=plugin_source_of("maps"))
    guest.tool(Reaches())
    with pytest.raises(Conflict) as refused:
        registry.add(guest.entries)
    assert refused.value.because == "it is built in"


def test_names_that_the_house_has_by_another_door_are_taken() -> None:
    registry = PluginRegistry(is_taken=lambda kind, name: (kind, name) == (EntryKind.TOOL, "reach"))
    guest = PendingEntries("maps", source=plugin_source_of("maps"))
    guest.policy("fine", ToolRules())
    guest.tool(Reaches())
    with pytest.raises(Conflict):
        registry.add(guest.entries)
    assert not registry.policies()  # all, or nothing


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
def test_what_is_not_what_it_should_be_is_refused(register: Any) -> None:
    registrar = PendingEntries("maps", source=plugin_source_of("maps"))
    with pytest.raises(Invalid) as refused:
        register(registrar)
    assert refused.value.code == "plugin.entry_invalid" and not registrar.entries


@dataclass(frozen=True)
class Keyed:
    key: SecretReference
    folder: Path
    api_key: SecretReference | None = None


def test_settings_may_be_a_dataclass_and_say_where_a_secret_is() -> None:
    manifest = PluginManifest(id="maps", version="1", description="", settings=Keyed)
    told = {"key": {"env": "MAPS"}, "api_key": SecretReference(file=Path("/keys/maps")), "folder": "/maps"}
    assert convert_settings(manifest, told) == Keyed(
        key=SecretReference(env="MAPS"), api_key=SecretReference(file=Path("/keys/maps")), folder=Path("/maps")
    )
    assert set(settings_schema_of(manifest)["$defs"]["Keyed"]["properties"]) == {"key", "api_key", "folder"}
    for wrong in ({"key": "plain"}, {"more": 1}, {"folder": 5}, {"api_key": {"env": 7}}):
        with pytest.raises(Invalid):
            convert_settings(manifest, told | wrong)


# What the owner can ask


@asynccontextmanager
async def opened(tmp_path: Path, text: str, **kw: Any) -> AsyncGenerator[tuple[GuestDesk, Path]]:
    file = tmp_path / "retinue.toml"
    file.write_text(text)
    environment = {"RETINUE_HOME": str(tmp_path)}
    async with desk_house(LocalInstance(tmp_path)) as house:
        keeper = ConfigHolder(load_configuration(environment), environment)
        guests = PluginLoader(tmp_path, PluginRegistry(), FakeClock(), **kw)
        held = {name: getattr(house.desk, name) for name in field_names(house.desk)}
        held["permission_policy"] = {
            **house.desk.permission_policy,
            **{name: each.permission for name, each in OPERATIONS.items()},
        }
        desk = GuestDesk(**{**held, "config_holder": keeper, "plugins": guests})
        await guests.sync(keeper.current.settings.plugins)
        try:
            yield desk, file
        finally:
            await guests.close()


async def ask(desk: Services, operation: str | Operation, /, who: str = "owner", **asked: Any) -> Any:
    found = OPERATIONS[operation] if isinstance(operation, str) else operation
    return json.loads(await perform_operation(desk, person(who), found, json.dumps(asked).encode()))


TEXT = """# the house
[plugins.diary]
settings = { word = "hello", deep = { a = 1, b = 2 } } # said first

[plugins.other]
enabled = true
"""


@pytest.mark.spec("A47")
async def test_settings_of_a_plugin_are_read_patched_and_replaced(offered: Packages, tmp_path: Path) -> None:
    offered.add("diary")
    offered.add("other")
    async with opened(tmp_path, TEXT, find_entry_points=offered.find) as (desk, file):
        assert desk.plugins is not None
        registry = desk.plugins.registry

        async def says() -> str:
            return await use(Toolbox(registry.tools()), "diary_say")

        read = await ask(desk, "plugin.settings", name="diary")
        assert read["settings"] == {"word": "hello", "deep": {"a": 1, "b": 2}}
        assert "numbers" in json.dumps(read["schema"])
        assert await says() == "hello"

        patched = await ask(desk, "plugin.patch", name="diary", settings={"word": "bye", "deep": {"a": None, "c": 3}})
        assert patched["settings"] == {"word": "bye", "deep": {"b": 2, "c": 3}}
        assert (patched["plugin"]["state"], await says()) == ("loaded", "bye")  # at once
        assert file.read_text().startswith("# the house\n") and "# said first" in file.read_text()

        replaced = await ask(desk, "plugin.replace", name="diary", settings={"numbers": [1, 2]})
        assert replaced["settings"] == {"numbers": [1, 2]} and await says() == "hello"
        assert load_configuration({"RETINUE_HOME": str(tmp_path)}).settings.plugins["diary"].settings == {
            "numbers": [1, 2]
        }
        assert (await ask(desk, "plugin.replace", name="diary", settings={}))["settings"] == {}
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
async def test_settings_that_do_not_fit_change_nothing(
    offered: Packages, tmp_path: Path, operation: str, settings: dict[str, Any]
) -> None:
    offered.add("diary")
    offered.add("other")
    async with opened(tmp_path, TEXT, find_entry_points=offered.find) as (desk, file):
        before = desk.plugins.registry.tools() if desk.plugins else []
        with pytest.raises(RetinueError) as refused:
            await ask(desk, operation, name="diary", settings=settings)
        assert refused.value.code == "plugin.settings_invalid"
        assert file.read_text() == TEXT
        assert desk.plugins is not None and desk.plugins.registry.tools() == before  # not even loaded anew


async def test_a_file_that_someone_else_has_changed_is_not_written_over(offered: Packages, tmp_path: Path) -> None:
    offered.add("diary")
    offered.add("other")
    async with opened(tmp_path, TEXT, find_entry_points=offered.find) as (desk, file):
        file.write_text(TEXT + "\n# by hand\n")
        with pytest.raises(Conflict):
            await ask(desk, "plugin.patch", name="diary", settings={"word": "bye"})
        assert file.read_text() == TEXT + "\n# by hand\n"


async def test_plugins_are_turned_on_and_off_in_the_file_and_at_once(offered: Packages, tmp_path: Path) -> None:
    offered.add("diary")
    async with opened(tmp_path, "# empty\n", find_entry_points=offered.find) as (desk, file):
        assert [each["state"] for each in (await ask(desk, "plugin.list"))["plugins"]] == ["installed"]
        assert (await ask(desk, "plugin.enable", name="diary"))["state"] == "loaded"
        assert (await ask(desk, "plugin.enable", name="work", plugin="diary"))["brings"] == {"tool": ["diary_work_say"]}
        assert (await ask(desk, "plugin.disable", name="diary"))["state"] == "off"
        assert (await ask(desk, "plugin.show", name="work"))["state"] == "loaded"
        settings = load_configuration({"RETINUE_HOME": str(tmp_path)}).settings.plugins
        assert (settings["diary"].enabled, settings["work"].plugin) == (False, "diary")
        assert (await ask(desk, "plugin.reload", name="work"))["state"] == "loaded"
        before = file.read_text()
        for operation, asked, error in (
            ("plugin.enable", {"name": "absent"}, NotFound),
            ("plugin.enable", {"name": "../up"}, Invalid),
            ("plugin.show", {"name": "absent"}, NotFound),
            ("plugin.settings", {"name": "absent"}, NotFound),
            ("plugin.disable", {"name": "absent"}, NotFound),
        ):
            with pytest.raises(error):
                await ask(desk, operation, **asked)
        assert file.read_text() == before


async def test_who_may_not_is_refused(offered: Packages, tmp_path: Path) -> None:
    async with opened(tmp_path, "", find_entry_points=offered.find) as (desk, _):
        for name in (name for name in OPERATIONS if name.startswith("plugin.")):
            with pytest.raises(NotAllowed):
                await ask(desk, name, who="maria", name="diary", settings={})


async def test_the_doctor_says_why_a_plugin_is_not_here(offered: Packages, tmp_path: Path) -> None:
    offered.add("broken", "raise RuntimeError('no such luck')")
    offered.add("lonely", exclusive=True)
    offered.add("meek")

    class WithPlugins(HealthScene, frozen=True, kw_only=True):
        plugins: PluginLoader | None = None

    text = "[plugins.broken]\n[plugins.lonely]\n[plugins.meek]\n"
    async with opened(tmp_path, text, find_entry_points=offered.find) as (desk, _):
        seen = WithPlugins(data_dir=tmp_path, environment={}, now=desk.clock.now(), plugins=desk.plugins)
        [made] = await run_checks(seen, [operations.PLUGINS_CHECK])
        assert [(found.health, found.sentence) for found in made.findings] == [
            (DoctorHealth.WARNING, "the plugin 'broken' is off"),
            (DoctorHealth.WARNING, "the plugin 'meek' is off"),
        ]
        await ask(desk, "plugin.disable", name="lonely")
        seen = WithPlugins(data_dir=tmp_path, environment={}, now=desk.clock.now(), plugins=desk.plugins)
        [made] = await run_checks(seen, [operations.PLUGINS_CHECK])
        [found] = made.findings
        assert (found.health, found.sentence) == (DoctorHealth.PROBLEM, "the plugin 'broken' is failed")
        assert "no such luck" in found.because


# The example


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example, installed by pip as anybody would."""
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


async def test_the_example_is_installed_found_and_does_what_it_says(installed: Path, tmp_path: Path) -> None:
    package = list_packages(installed_entry_points)["diary"]
    assert package.version == "1.0.0" and package.description.startswith("A diary that agents write")
    text = '[plugins.diary]\n[plugins.work]\nplugin = "diary"\nsettings = { greeting = "Dear work", lines_max = 2 }\n'
    async with opened(tmp_path, text, find_entry_points=installed_entry_points) as (desk, file):
        assert desk.plugins is not None
        diary = await ask(desk, "plugin.show", name="diary")
        assert diary["state"] == "loaded" and diary["description"].startswith("A diary")
        assert diary["brings"] == {
            "tool": ["diary_write"],
            "operation": ["diary.read"],
            "section": ["diary"],
            "policy": ["diary-only"],
            "runner": ["diary-reader"],
            "skills": ["diary/5"],
        }
        box = Toolbox(desk.plugins.registry.tools())
        assert await use(box, "diary_write", line="Lunch  with Noor.") == "Dear diary: line 1 was written."
        for line in ("one", "two", "three"):
            said = await use(box, "work_diary_write", line=line)
        assert said == "Dear work: line 2 was written."
        assert "1 to 500" in await use(box, "diary_write", line="x" * 501)
        read = desk.plugins.operations()
        assert [line.split(": ")[1] for line in (await ask(desk, read["diary.read"], last=5))["lines"]] == [
            "Lunch with Noor."
        ]
        assert [line[-3:] for line in (await ask(desk, read["work.read"]))["lines"]] == ["two", "ree"]
        assert await desk.plugins.render_sections(section_scene(), minimal=True) == []
        assert (await desk.plugins.render_sections(section_scene()))[0].startswith("There is a diary with 1 lines.")
        kit = await build_skill_loader(desk).load("ada", agent_directory=agent_directory_of(tmp_path, "ada"))
        assert "<name>keep-a-diary</name>" in kit.section
        made = await ask(desk, "skill.export", name="diary", to=str(tmp_path / "out"))
        assert made["commands"] == ["read"]

        with pytest.raises(RetinueError) as refused:
            await ask(desk, "plugin.patch", name="work", settings={"lines_max": 0})
        assert "from 1 to 100000" in refused.value.because and file.read_text() == text


@pytest.mark.spec("C124")
async def test_an_agent_of_the_type_that_the_example_brings_takes_its_turns_by_it(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '[plugins.diary]\n[agents.rita]\nrunner = "diary-reader"'
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    async with hands_house(tmp_path / "home", config=config) as house:
        applied = await house.ask("config.apply")
        assert ("rita", "add") in [(each["name"], each["step"]) for each in applied["agents"]]
        await house.turn("Write.", tool_call("diary_write", line="Lunch with Noor."), "Done.")
        receipt = await house.post("What was yesterday?", to="agent:rita")
        await house.rest()
        [answer] = [mail for mail in await house.mail("person:owner") if mail.reply_to == receipt.envelope]
        assert answer.text.endswith("ada: Lunch with Noor.") and answer.trust is Trust.UNTRUSTED
        await house.ask("agent.register", name="bert", runner="diary-reader")
        found = await house.ask("house.doctor", quick=True)
        assert "its runner is" not in str(found), "its type is known here"

        await house.ask("plugin.disable", name="diary")
        with pytest.raises(Invalid):
            await house.ask("agent.register", name="carl", runner="diary-reader")
        receipt = await house.post("And today?", to="agent:rita")
        await house.rest()
        assert any("[runner.not_found]" in mail.text for mail in await house.mail("person:owner"))


@pytest.mark.spec("D65")
async def test_whoever_follows_is_told_first_how_things_are_and_then_all_that_happens(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of conversations and runs, of schedules, of heartbeats, of what is permitted, and of plug-ins."""
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    async with hands_house(tmp_path / "home", config="[plugins.diary]") as house:
        feed = EventFeed(house.house.services, person("owner"))
        feed.follow_all()
        [hello] = await feed.open(None)
        assert hello.name == "hello" and hello.data["partials"] == []
        assert hello.data["cursor"] >= 0  # above it, if the plugin's own start is stored by now
        heard: dict[str, list[dict[str, Any]]] = {}

        async def until(kind: str, **fields: Any) -> None:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while not any(fields.items() <= body.items() for body in heard.get(kind, [])):
                    for event in await feed.next_messages() or []:
                        if event.name == "news":
                            told = msgspec.json.decode(msgspec.json.encode(event.data))
                            heard.setdefault(told["news"], []).append(told)

        house.model.will_reply("Good morning.")
        await house.post("Good morning.")
        for kind in ("session.started", "run.started", "run.ended"):
            await until(kind)
        house.model.will_reply("Watered.")
        made = await house.ask("schedule.add", name="plants", to="agent:ada", text="Water them.", every="1d")
        await until("schedule.changed", schedule=made["id"], change="added")
        await house.ask("schedule.run", schedule="plants")
        await until("schedule.changed", schedule=made["id"], change="ran")
        house.model.will_reply("HEARTBEAT_OK")
        await house.ask("heartbeat.add", agent="ada", id="door", text="Is it shut?")
        await until("heartbeat.changed", agent="ada", change="added")
        await house.ask("heartbeat.run", agent="ada", ids=["door"])
        await until("heartbeat.changed", agent="ada", change="beat", indicator="ok")
        await until("heartbeat.changed", agent="ada", change="ran")
        await house.ask("grant.add", agent="ada", permission="web", because="it asked")
        await until("grant.changed")
        await house.ask("plugin.disable", name="diary")
        await until("plugin.changed", plugin="diary", change="unloaded")
        await house.ask("plugin.enable", name="diary")
        await until("plugin.changed", plugin="diary", change="loaded")
        await house.ask("session.reset", session=heard["session.started"][0]["session"])
        await until("session.reset")
        feed.close()


async def test_a_runner_that_no_plugin_brings_is_refused_when_it_is_applied(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '[plugins.diary]\n[agents.rita]\nrunner = "diary-raeder"'
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "home"))
    async with hands_house(tmp_path / "home", config=config) as house:
        with pytest.raises(Invalid) as refused:
            await house.ask("config.apply")
        assert refused.value.code == "agent.runner_unknown" and "diary-reader" in refused.value.because
    with pytest.raises(InvalidSettings):  # and at once where no plug-in could bring it
        load_configuration(
            {"RETINUE_HOME": str(tmp_path / "none"), "RETINUE_CONFIG": ""}, text='[agents.rita]\nrunner = "raeder"'
        )


@pytest.mark.spec("C124")
async def test_whoever_sells_models_by_the_example_can_be_chosen_and_is_shown_its_key_in_its_way(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHED_KEY", "sk-shed-0123456789")
    async with provider(provider_says("From the shed.")) as shed:
        config = f"""
        [plugins.diary]
        settings = {{ models_url = "{shed.url}", models_key = {{ env = "SHED_KEY" }} }}
        [models.entries."shed/small"]
        alias = "small"
        """
        async with hands_house(tmp_path / "home", config=config) as house:
            listed = (await house.ask("model.list"))["models"]
            [small] = [each for each in listed if each["model"] == "shed/small"]
            assert (small["sold-by"], "missing" in small) == ("The shed", False)
            await house.ask("agent.set", name="ada", model="shed/small")
            await house.post("Hello?")
            await house.rest()
            assert [mail.text for mail in await house.mail("person:owner")] == ["From the shed."]
        [asked] = shed.asked
        assert asked.headers["x-api-key"] == "sk-shed-0123456789" and "authorization" not in asked.headers
        assert asked.model == "small"


@pytest.mark.spec("C124")
async def test_the_policy_and_the_section_of_the_example_reach_an_agent_and_not_its_subagents(
    installed: Path, tmp_path: Path
) -> None:
    async with hands_house(tmp_path / "home", config="[plugins.diary]") as house:
        await house.ask("agent.set", name="ada", tools_policy="diary-only")
        await house.turn("Look.", "I see.")
        assert {tool.name for tool in house.model.prompts[-1].tools} == {"diary_write", "session_status"}
        assert "There is a diary with 0 lines." in house.model.prompts[-1].instructions
        await house.turn("Look.", "I see.", to="agent:bo")
        assert len(house.model.prompts[-1].tools) > 1
        draft = EnvelopeDraft(
            id=EnvelopeId(house.house.services.ids.new()),
            sender=address.person_address("owner"),
            recipient=address.agent_address("bo"),
            text="Look.",
            source="person:owner",
            idempotency_key="errand",
            origin=Origin(OriginKind.SUBAGENT, "errand"),
        )
        house.model.will_reply("I see.")
        await house.house.services.intake.accept(draft)
        await house.rest()
        assert "There is a diary" not in house.model.prompts[-1].instructions


def test_a_member_may_read_the_example_and_nobody_reaches_the_house_by_it(installed: Path) -> None:
    import retinue_diary  # pyright: ignore[reportMissingImports]

    operation = retinue_diary.read_operation(type("H", (), {"instance": "diary"})(), None)
    assert operation.permission is PermissionLevel.STANDARD and not operation.has_effect


def test_no_thread_of_a_plugin_keeps_the_house_from_closing() -> None:
    """Those that hang in tests above are still there, and none of them is waited for at the end."""
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("plug-in "))
