"""Defines the sections of the system prompt: their order, their modes and the context that they are
rendered from. Pure.

A section is a function from a `PromptContext` to a text; a section with an empty text is left out.
Without an owner's template, the prompt is the sections in order. A template can use the same
sections and the same context. `docs/reference/instructions.md` lists them all and is generated from
the types below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from retinue.domain.agent import Agent
from retinue.domain.instruction_mode import InstructionMode as Mode
from retinue.domain.session import OriginKind

DESCRIPTION_CHARS_MAX = 200  # of a tool or another agent, in a list


class FileState(StrEnum):
    """Whether a file is in the prompt, and why not."""

    THERE = "there"
    CUT = "cut"  # there, and shortened
    EMPTY = "empty"
    MISSING = "missing"
    UNTRUSTED = "untrusted"  # left out: untrusted text must not gain authority in the prompt
    UNREADABLE = "unreadable"  # too large, or not text


class TheAgent(Struct, frozen=True, kw_only=True):
    name: str
    called: Annotated[str, Meta(description="what people call it; empty: its name")] = ""
    description: str = ""
    instructions: Annotated[str, Meta(description="what its definition tells it; may be empty")] = ""
    level: Annotated[str, Meta(description="its permission level")] = "standard"


class TheHouse(Struct, frozen=True, kw_only=True):
    version: str = ""
    owner: Annotated[str, Meta(description="the owner's name, as in `person:NAME`")] = "owner"
    zone: Annotated[str, Meta(description="the owner's time zone")] = "UTC"
    documentation: Annotated[str, Meta(description="folder of the house's documentation; empty where it is not")] = ""
    commands: Annotated[bool, Meta(description="whether `retinue` can be called by its commands")] = False


class Errand(Struct, frozen=True, kw_only=True):
    """The task of a subagent, and who started it."""

    task: str = ""
    label: str = ""
    requester: Annotated[str, Meta(description="the agent that sent it out")] = ""
    requester_session: Annotated[str, Meta(description="the session it was sent out from")] = ""
    requester_channel: Annotated[str, Meta(description="where that session is: `web`, `telegram`")] = ""
    session: Annotated[str, Meta(description="its own session")] = ""


class Where(Struct, frozen=True, kw_only=True):
    workspace: Annotated[str, Meta(description="folder it works in")] = ""
    home: Annotated[str, Meta(description="folder that is its own")] = ""
    read_only: Annotated[bool, Meta(description="whether the workspace cannot be written")] = False
    sandbox: Annotated[str, Meta(description="what its commands run in; empty where in nothing")] = ""


class Runtime(Struct, frozen=True, kw_only=True):
    host: str = ""
    os: str = ""
    arch: str = ""
    interpreter: Annotated[str, Meta(description="such as `python=3.11.9`")] = ""
    model: str = ""
    channel: Annotated[str, Meta(description="where the conversation is: `web`, `telegram`")] = ""
    capabilities: Annotated[tuple[str, ...], Meta(description="what can be shown and seen there")] = ()
    thinking: Annotated[str, Meta(description="how hard the model is to think")] = ""
    reasoning: Annotated[str, Meta(description="who is shown its thoughts: `off`, `on`, `stream`")] = "off"
    tags: Annotated[bool, Meta(description="whether it must put its thoughts between tags itself")] = False


class ToolTold(Struct, frozen=True):
    name: str
    description: Annotated[str, Meta(description="its first sentence")]


class Colleague(Struct, frozen=True):
    name: Annotated[str, Meta(description="what it is written to by")]
    called: Annotated[str, Meta(description="what people call it")]
    description: str = ""


class PanelTold(Struct, frozen=True, kw_only=True):
    """A panel of the web app, without title and content: these come from outside and are not trusted here."""

    id: str
    type: str
    item_type: Annotated[str, Meta(description="what is active in it; empty where nothing is")] = ""
    item_id: str = ""


class Alias(Struct, frozen=True):
    name: str
    model: str


class FileTold(Struct, frozen=True, kw_only=True):
    name: str
    path: str = ""
    text: str = ""
    state: FileState = FileState.THERE


class Memory(Struct, frozen=True, kw_only=True):
    longterm: Annotated[FileTold, Meta(description="internal_space/MEMORY.md")] = FileTold(
        name="MEMORY.md", state=FileState.MISSING
    )
    days: Annotated[tuple[FileTold, ...], Meta(description="its newest daily files, the newest first")] = ()


class Situation(Struct, frozen=True, kw_only=True):
    """Everything that a section or a template can know about a run."""

    mode: Annotated[Mode, Meta(description="how much is told: `full`, `minimal` or `none`")] = Mode.FULL
    agent: TheAgent
    house: TheHouse = TheHouse()
    errand: Annotated[Errand | None, Meta(description="of a subagent; none elsewhere")] = None
    where: Where = Where()
    runtime: Runtime = Runtime()
    tools: Annotated[tuple[ToolTold, ...], Meta(description="what it may call, without `system_*`")] = ()
    skills: Annotated[str, Meta(description="what is told of its skills")] = ""
    aliases: Annotated[tuple[Alias, ...], Meta(description="other names of models")] = ()
    agents: Annotated[tuple[Colleague, ...], Meta(description="whom it sees and may write to")] = ()
    panels: Annotated[tuple[PanelTold, ...], Meta(description="open before the person it works for")] = ()
    plugins: Annotated[tuple[str, ...], Meta(description="what plug-ins want said")] = ()
    extra: Annotated[str, Meta(description="what was sent along with the envelope, for this run alone")] = ""
    files: Annotated[tuple[FileTold, ...], Meta(description="files of home and workspace, by their fixed names")] = ()
    context_files: Annotated[tuple[FileTold, ...], Meta(description="those that `context_files` names")] = ()
    memory: Memory = Memory()

    def may_call(self, *names: str) -> bool:
        """Whether at least one of these tools is available."""
        return any(tool.name in names for tool in self.tools)


def mode_of(agent: Agent, origin: OriginKind) -> Mode:
    """Return how much an agent gets in its prompt.

    A subagent never gets the full prompt: it has one task and no persona.
    """
    if origin is OriginKind.SUBAGENT and agent.instructions_mode is Mode.FULL:
        return Mode.MINIMAL
    return agent.instructions_mode


Tell = Callable[[Situation], str]


class Section(NamedTuple):
    """One section: its name, its position and the modes that it is in."""

    name: str
    order: int
    modes: frozenset[Mode]
    text: Tell


class Part(NamedTuple):
    """One section as rendered text."""

    name: str
    text: str


_EVERY = frozenset(Mode)
_REDUCED = frozenset({Mode.FULL, Mode.MINIMAL})
_FULL = frozenset({Mode.FULL})

# The order of all sections, and the modes that each is in. Sections for planned features already have their position.
PLACES: Mapping[str, frozenset[Mode]] = {
    "identity": _EVERY,
    "house": _REDUCED,
    "subagent": _REDUCED,
    "tools": _REDUCED,
    "call-style": _REDUCED,
    "commands": _REDUCED,
    "skills": _FULL,
    "memory-recall": _FULL,
    "model-aliases": _FULL,
    "workspace": _REDUCED,
    "documentation": _FULL,
    "sandbox": _REDUCED,
    "user-identity": _FULL,
    "time": _REDUCED,
    "reply-tags": _FULL,
    "messaging": _FULL,
    "voice": _FULL,
    "artifacts": _FULL,
    "message-context": _FULL,
    "panels": _FULL,
    "agents": _FULL,
    "plugins": _REDUCED,  # each plugin section declares whether it is in the minimal mode
    "context": _REDUCED,
    "reactions": _FULL,
    "reasoning-format": _REDUCED,
    "files": _REDUCED,
    "context-files": _REDUCED,
    "memory": _REDUCED,
    "silent-replies": _FULL,
    "heartbeats": _FULL,
    "runtime": _REDUCED,
}
_ORDER = {name: order for order, name in enumerate(PLACES)}


def section(name: str, text: Tell) -> Section:
    """Create a section at its position in `SECTION_MODES`."""
    return Section(name, _ORDER[name], PLACES[name], text)


def told(situation: Situation, sections: Sequence[Section]) -> tuple[Part, ...]:
    """Render each section that is in this mode and has a text, in order."""
    here = sorted((each for each in sections if situation.mode in each.modes), key=lambda each: each.order)
    return tuple(Part(each.name, text) for each in here if (text := each.text(situation).strip()))


def joined(parts: Sequence[Part]) -> str:
    return "\n\n".join(part.text for part in parts)


def one_line(text: str, chars_max: int = DESCRIPTION_CHARS_MAX) -> str:
    """Return a text on one line, shortened with a visible mark."""
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"
