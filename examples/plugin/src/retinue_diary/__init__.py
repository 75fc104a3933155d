"""A diary that agents write and people read: a complete example plugin in one file."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec

from retinue.config import SecretReference, validators
from retinue.config.models import ProviderAuth, ProviderSettings
from retinue.domain.agent import PermissionLevel, ToolRules
from retinue.domain.ports import Journal, RunApprovals, RunObserver
from retinue.domain.principal import Principal
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Operation, Services
from retinue.plugins import Plugin, PluginHost, PluginManifest, PluginSection, SectionContext
from retinue.runners.base import RunAnswer, RunAssignment
from retinue.tools.base import ToolContext, ToolFailed, schema_of

LINE_CHARS_MAX = 500
READ_LINES = 10


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The section `[plugins.diary.settings]`. If a value is invalid, the plugin is not loaded."""

    greeting: str = "Dear diary"
    lines_max: int = 1_000
    models_url: str = ""  # URL of a model server; empty: none
    models_key: SecretReference | None = None

    def __post_init__(self) -> None:
        if self.models_url and validators.check_public_url(self.models_url):
            raise ValueError("models_url must be an http or https URL")
        if not 1 <= self.lines_max <= 100_000:
            raise ValueError("lines_max must be from 1 to 100000")


class Diary:
    """Lines in a file in the plugin's own folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._file = folder / "diary.txt"
        self._settings = settings

    def lines(self) -> list[str]:
        try:
            return self._file.read_text().splitlines()
        except FileNotFoundError:
            return []

    def write(self, at: datetime, who: str, line: str) -> int:
        """Add a line, and remove the oldest lines beyond `lines_max`. The file is replaced atomically."""
        lines = [*self.lines(), f"{at:%Y-%m-%d %H:%M} {who}: {line}"][-self._settings.lines_max :]
        new_file = self._file.with_suffix(".new")
        new_file.write_text("\n".join(lines) + "\n")
        os.replace(new_file, self._file)
        return len(lines)


# A tool, for agents


class Write(msgspec.Struct, forbid_unknown_fields=True):
    line: str


class DiaryLineInvalid(ToolFailed):
    """The line is empty or too long."""

    code = "diary.line_invalid"

    def __init__(self) -> None:
        super().__init__(
            "invalid diary line",
            because=f"a line must have 1 to {LINE_CHARS_MAX} characters",
            try_this="write a shorter line",
        )


class WriteTool:
    arguments = Write

    def __init__(self, host: PluginHost, diary: Diary, greeting: str) -> None:
        self._clock = host.clock
        self._diary = diary
        self._greeting = greeting
        self.spec = ToolSpec(
            name=host.qualify_name("diary_write"),
            description="Write one line into the diary.",
            parameters=schema_of(Write),
            effects=frozenset({ToolEffect.WRITES}),
            capabilities=frozenset({"diary.write"}),
        )

    async def perform(self, arguments: Write, context: ToolContext) -> str:
        line = " ".join(arguments.line.split())
        if not 0 < len(line) <= LINE_CHARS_MAX:
            raise DiaryLineInvalid
        count = self._diary.write(self._clock.now(), context.agent.name, line)
        return f"{self._greeting}: line {count} was written."


# An operation: an API call, over HTTP and as a command


class Read(msgspec.Struct, forbid_unknown_fields=True):
    last: int = 10


class DiaryRead(msgspec.Struct, frozen=True):
    lines: list[str]


def read_operation(host: PluginHost, diary: Diary) -> Operation:
    async def read(services: Services, caller: Principal, request: Read) -> DiaryRead:
        return DiaryRead(diary.lines()[-request.last :] if request.last > 0 else [])

    return Operation(
        name=f"{host.instance}.read",  # the noun of an instance's operations is its name
        summary="Read the last lines of the diary.",
        parameters=Read,
        handler=read,
        result=DiaryRead,
        permission=PermissionLevel.STANDARD,
    )


# A runner: how an agent takes its turns


class Reader:
    """Runs an agent without a model: every answer is the last lines of the diary."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer:
        lines = self._diary.lines()[-READ_LINES:]
        # Anyone may have caused a line to be written, so the reader must not follow instructions in it.
        return RunAnswer(text="\n".join(lines) or "The diary is empty.", trust=Trust.UNTRUSTED)


# A model provider, such as your own model server


def build_provider(settings: Settings) -> ProviderSettings:
    return ProviderSettings(
        name="The shed", url=settings.models_url, auth=ProviderAuth.API_KEY, key=settings.models_key
    )


def load(host: PluginHost, settings: Settings) -> None:
    """Register all parts. Called in a thread; the parts become available together when it returns."""
    diary = Diary(host.folder, settings)

    def render_section(context: SectionContext) -> str:
        """Contains no diary lines: text from outside must not become an instruction."""
        return f"There is a diary with {len(diary.lines())} lines. `{host.qualify_name('diary_write')}` adds one."

    register = host.register
    register.tool(WriteTool(host, diary, settings.greeting))
    register.operation(read_operation(host, diary))
    register.section(PluginSection(name=host.qualify_name("diary"), render=render_section))
    # It also names a built-in tool, because a list of plugin tools only would not hide the other tools.
    register.policy(
        host.qualify_name("diary-only"), ToolRules(allow=(host.qualify_name("diary_write"), "session_status"))
    )
    register.runner(host.qualify_name("diary-reader"), Reader(diary))
    if settings.models_url:
        register.provider(host.qualify_name("shed"), build_provider(settings))
    if host.instance == host.plugin:  # one copy of the skill is enough
        register.skills(Path(__file__).parent / "skills")
    host.on_unload(lambda: host.log.info("diary unloaded"))


PLUGIN = Plugin(
    manifest=PluginManifest(
        id="diary",
        version="1.0.0",
        description="A diary that agents write and people read.",
        settings=Settings,
    ),
    load=load,
)
