"""A diary that agents write and people read: an example of a plug-in, whole and in one file."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec

from retinue.config import Secret, validators
from retinue.config.models import Auth, ProviderSettings
from retinue.domain.agent import PermissionLevel, ToolRules
from retinue.domain.ports import Ask, Journal, Tell
from retinue.domain.principal import Principal
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, Operation
from retinue.plugins import Host, Manifest, Plugin, Section
from retinue.plugins import Scene as SectionScene
from retinue.runners.base import Assignment, Finished
from retinue.tools.base import Scene, ToolFailed, schema_of

LINE_CHARS_MAX = 500
READ_LINES = 10


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What can be told to it under `[plugins.diary.settings]`. What does not fit keeps it from being loaded."""

    greeting: str = "Dear diary"
    lines_max: int = 1_000
    models_url: str = ""  # where a server of ours has models; empty: nowhere
    models_key: Secret | None = None

    def __post_init__(self) -> None:
        if self.models_url and validators.public_url(self.models_url):
            raise ValueError("models_url is an http or https address")
        if not 1 <= self.lines_max <= 100_000:
            raise ValueError("lines_max is from 1 to 100000")


class Diary:
    """Lines in a file of the instance's own folder."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._file = folder / "diary.txt"
        self._settings = settings

    def lines(self) -> list[str]:
        try:
            return self._file.read_text().splitlines()
        except FileNotFoundError:
            return []

    def write(self, at: datetime, who: str, line: str) -> int:
        """Whole or not at all; the oldest lines make room."""
        lines = [*self.lines(), f"{at:%Y-%m-%d %H:%M} {who}: {line}"][-self._settings.lines_max :]
        beside = self._file.with_suffix(".new")
        beside.write_text("\n".join(lines) + "\n")
        os.replace(beside, self._file)
        return len(lines)


# A tool: something an agent can do


class Write(msgspec.Struct, forbid_unknown_fields=True):
    line: str


class WriteTool:
    arguments = Write

    def __init__(self, host: Host, diary: Diary, greeting: str) -> None:
        self._clock = host.clock
        self._diary = diary
        self._greeting = greeting
        self.spec = ToolSpec(
            name=host.named("diary_write"),
            description="Write one line into the diary.",
            parameters=schema_of(Write),
            effects=frozenset({Effect.WRITES}),
            capabilities=frozenset({"diary.write"}),
        )

    async def perform(self, arguments: Write, scene: Scene) -> str:
        line = " ".join(arguments.line.split())
        if not 0 < len(line) <= LINE_CHARS_MAX:
            raise ToolFailed(
                "this is no line for a diary",
                because=f"a line has 1 to {LINE_CHARS_MAX} characters",
                try_this="make it shorter",
                code="diary.line-invalid",
            )
        count = self._diary.write(self._clock.now(), scene.agent.name, line)
        return f"{self._greeting}: line {count} is written."


# An operation: something that can be asked of the house, on every door


class Read(msgspec.Struct, forbid_unknown_fields=True):
    last: int = 10


class DiaryRead(msgspec.Struct, frozen=True):
    lines: list[str]


def read_operation(host: Host, diary: Diary) -> Operation:
    async def read(desk: Desk, caller: Principal, asked: Read) -> DiaryRead:
        return DiaryRead(diary.lines()[-asked.last :] if asked.last > 0 else [])

    return Operation(
        name=f"{host.instance}.read",  # the noun of an instance's operations is its name
        summary="Read the last lines of the diary.",
        parameters=Read,
        handler=read,
        result=DiaryRead,
        permission=PermissionLevel.STANDARD,
    )


# A runner: how an agent of a new type takes its turns


class Reader:
    """An agent that has no model at all: whatever it is asked, it answers with the last lines of the diary."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished:
        lines = self._diary.lines()[-READ_LINES:]
        # Anyone may have had a line written: who reads this has no reason to obey it.
        return Finished(text="\n".join(lines) or "The diary is empty.", trust=Trust.UNTRUSTED)


# A provider: someone who sells models, or a server of one's own


def shed(settings: Settings) -> ProviderSettings:
    return ProviderSettings(name="The shed", url=settings.models_url, auth=Auth.API_KEY, key=settings.models_key)


def load(host: Host, settings: Settings) -> None:
    """Register everything. Called in a thread; once it returns, all of it is there at once."""
    diary = Diary(host.folder, settings)

    def about(scene: SectionScene) -> str:
        """The house's own words only: a line may have come from anywhere, and must not turn into an instruction."""
        return f"There is a diary with {len(diary.lines())} lines. `{host.named('diary_write')}` adds one."

    register = host.register
    register.tool(WriteTool(host, diary, settings.greeting))
    register.operation(read_operation(host, diary))
    register.section(Section(name=host.named("diary"), text=about))
    # With a tool of the house's own: a list that names nothing but tools of plug-ins hides none of the others.
    register.policy(host.named("diary-only"), ToolRules(allow=(host.named("diary_write"), "session_status")))
    register.runner(host.named("diary-reader"), Reader(diary))
    if settings.models_url:
        register.provider(host.named("shed"), shed(settings))
    if host.instance == host.plugin:  # one copy of the words is enough
        register.skills(Path(__file__).parent / "skills")
    host.on_unload(lambda: host.log.info("the diary is closed"))


PLUGIN = Plugin(
    manifest=Manifest(
        id="diary",
        version="1.0.0",
        description="A diary that agents write and people read.",
        settings=Settings,
    ),
    load=load,
)
