"""What an agent is told before anything is said to it: sections, in one order, each with the modes it is in. Pure.

A section is a function from a `Situation` to some words; one that has nothing to say is left out. Without a template of
the owner's, instructions are their sections in order. With one, the same sections and the same situation are what it
may name: `docs/reference/instructions.md` lists them all, made from the types below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from retinue.domain.agent import Agent
from retinue.domain.instruction_mode import InstructionMode as Mode
from retinue.domain.session import OriginKind

DESCRIPTION_CHARS_MAX = 200  # of a tool or a colleague, where it is one line of many


class FileState(StrEnum):
    THERE = "there"
    CUT = "cut"  # there, and told in parts
    EMPTY = "empty"
    MISSING = "missing"
    UNTRUSTED = "untrusted"  # left out: words from outside gain no authority by standing here
    UNREADABLE = "unreadable"  # too large, or no text


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
    """What a subagent was sent out with."""

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
    """Without its title and its content: these are whatever the panel shows, and no words of the house."""

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
    """Everything that a section or a template may know of the run that is to begin."""

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
        """Whether one of these is among its tools."""
        return any(tool.name in names for tool in self.tools)


def mode_of(agent: Agent, origin: OriginKind) -> Mode:
    """How much is told. A subagent is never told all: it is sent out for one thing, and is nobody's persona."""
    if origin is OriginKind.SUBAGENT and agent.instructions_mode is Mode.FULL:
        return Mode.MINIMAL
    return agent.instructions_mode


Tell = Callable[[Situation], str]


class Section(NamedTuple):
    name: str
    order: int
    modes: frozenset[Mode]
    text: Tell


class Part(NamedTuple):
    """One section as it is told."""

    name: str
    text: str


_EVERY = frozenset(Mode)
_REDUCED = frozenset({Mode.FULL, Mode.MINIMAL})
_FULL = frozenset({Mode.FULL})

# The one order of all sections, and in which modes each is. Those whose part of the house is still to come have their
# place here already, so that whoever builds it finds it kept.
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
    "plugins": _REDUCED,  # each says for itself whether it is in minimal ones
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
    """A section in the place that is kept for it."""
    return Section(name, _ORDER[name], PLACES[name], text)


def told(situation: Situation, sections: Sequence[Section]) -> tuple[Part, ...]:
    """Each section that is in this mode and has something to say, in order."""
    here = sorted((each for each in sections if situation.mode in each.modes), key=lambda each: each.order)
    return tuple(Part(each.name, text) for each in here if (text := each.text(situation).strip()))


def joined(parts: Sequence[Part]) -> str:
    return "\n\n".join(part.text for part in parts)


def one_line(text: str, chars_max: int = DESCRIPTION_CHARS_MAX) -> str:
    """Words of others as one line of ours, cut visibly."""
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"
