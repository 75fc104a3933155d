"""Defines the sections of the system prompt: their order, their modes and the context that they are rendered from.

A section is a function from a `PromptContext` to a string. It has no side effects. A section with
empty text is left out. If the owner has no template, the prompt is the sections in order. A template can use the same
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


class InstructionFileState(StrEnum):
    """Whether a file is included in the prompt, and if not, why."""

    THERE = "there"
    CUT = "cut"  # included, but shortened
    EMPTY = "empty"
    MISSING = "missing"
    UNTRUSTED = "untrusted"  # left out: untrusted text must not gain authority in the prompt
    UNREADABLE = "unreadable"  # too large, or not text


class PromptAgent(Struct, frozen=True, kw_only=True):
    name: str
    display_name: Annotated[str, Meta(description="display name; if empty, `name` is shown")] = ""
    description: str = ""
    instructions: Annotated[str, Meta(description="instructions in the agent's definition; may be empty")] = ""
    level: Annotated[str, Meta(description="permission level of the agent")] = "standard"


class PromptInstance(Struct, frozen=True, kw_only=True):
    version: str = ""
    owner: Annotated[str, Meta(description="the owner's name, as in `person:NAME`")] = "owner"
    zone: Annotated[str, Meta(description="the owner's time zone")] = "UTC"
    documentation: Annotated[str, Meta(description="folder of the server's documentation; empty if there is none")] = ""
    commands: Annotated[bool, Meta(description="whether the agent's commands can call `retinue`")] = False


class SubagentTask(Struct, frozen=True, kw_only=True):
    """The task of a subagent, and who started it."""

    task: str = ""
    label: str = ""
    requester: Annotated[str, Meta(description="agent that started the subagent")] = ""
    requester_session: Annotated[str, Meta(description="session that started the subagent")] = ""
    requester_channel: Annotated[str, Meta(description="channel of that session, such as `web` or `telegram`")] = ""
    session: Annotated[str, Meta(description="session of the subagent")] = ""


class PromptWorkspace(Struct, frozen=True, kw_only=True):
    path: Annotated[str, Meta(description="path of the workspace")] = ""
    agent_directory: Annotated[str, Meta(description="path of the agent directory")] = ""
    read_only: Annotated[bool, Meta(description="whether the workspace is read-only")] = False
    sandbox: Annotated[str, Meta(description="sandbox in which the agent's commands run; empty if there is none")] = ""


class PromptRuntime(Struct, frozen=True, kw_only=True):
    host: str = ""
    os: str = ""
    arch: str = ""
    interpreter: Annotated[str, Meta(description="such as `python 3.11.9`")] = ""
    model: str = ""
    channel: Annotated[str, Meta(description="channel of the conversation, such as `web` or `telegram`")] = ""
    capabilities: Annotated[
        tuple[str, ...], Meta(description="`images` if the model can read images, otherwise empty")
    ] = ()
    effort: Annotated[str, Meta(description="reasoning effort")] = ""
    reasoning: Annotated[str, Meta(description="whether the model's thinking is shown: `off`, `on`, `stream`")] = "off"
    needs_reasoning_tags: Annotated[bool, Meta(description="whether the model must put its thinking between tags")] = (
        False
    )


class PromptTool(Struct, frozen=True):
    name: str
    description: Annotated[str, Meta(description="first sentence of the tool's description")]


class VisibleAgent(Struct, frozen=True):
    name: Annotated[str, Meta(description="name of the agent")]
    display_name: Annotated[str, Meta(description="display name")]
    description: str = ""


class PromptPanel(Struct, frozen=True, kw_only=True):
    """One open panel of the web app. Its title and content are omitted, because they may be untrusted."""

    id: str
    type: str
    item_type: Annotated[str, Meta(description="type of the active item; empty if there is none")] = ""
    item_id: str = ""


class ModelAlias(Struct, frozen=True):
    name: str
    model: str


class InstructionFile(Struct, frozen=True, kw_only=True):
    name: str
    path: str = ""
    text: str = ""
    state: InstructionFileState = InstructionFileState.THERE


class PromptMemory(Struct, frozen=True, kw_only=True):
    longterm: Annotated[InstructionFile, Meta(description="internal_space/MEMORY.md")] = InstructionFile(
        name="MEMORY.md", state=InstructionFileState.MISSING
    )
    days: Annotated[tuple[InstructionFile, ...], Meta(description="the newest daily memory files, newest first")] = ()


class PromptContext(Struct, frozen=True, kw_only=True):
    """Everything that sections and templates can use: the facts about one run."""

    mode: Annotated[Mode, Meta(description="how much the prompt contains: `full`, `minimal` or `none`")] = Mode.FULL
    agent: PromptAgent
    instance: PromptInstance = PromptInstance()
    subagent_task: Annotated[SubagentTask | None, Meta(description="task of a subagent; none for other agents")] = None
    workspace: PromptWorkspace = PromptWorkspace()
    runtime: PromptRuntime = PromptRuntime()
    tools: Annotated[tuple[PromptTool, ...], Meta(description="tools that the agent can call, except `system_*`")] = ()
    skills: Annotated[str, Meta(description="text about the agent's skills")] = ""
    aliases: Annotated[tuple[ModelAlias, ...], Meta(description="aliases of models")] = ()
    agents: Annotated[tuple[VisibleAgent, ...], Meta(description="agents that the agent can see and write to")] = ()
    panels: Annotated[
        tuple[PromptPanel, ...],
        Meta(description="open panels of the person on whose behalf the agent works"),
    ] = ()
    plugins: Annotated[tuple[str, ...], Meta(description="texts that plugins add")] = ()
    extra: Annotated[str, Meta(description="extra text that was sent with the message, for this run only")] = ""
    files: Annotated[
        tuple[InstructionFile, ...], Meta(description="instruction files with fixed names, such as `SOUL.md`")
    ] = ()
    context_files: Annotated[
        tuple[InstructionFile, ...], Meta(description="files named in the agent's field `context_files`")
    ] = ()
    memory: PromptMemory = PromptMemory()

    def may_call(self, *names: str) -> bool:
        """Whether the run can call at least one of these tools."""
        return any(tool.name in names for tool in self.tools)


def instruction_mode_of(agent: Agent, origin: OriginKind) -> Mode:
    """Return the mode of the system prompt, which decides what sections it has.

    A subagent gets a shorter prompt, for one task and without a persona.
    """
    if origin is OriginKind.SUBAGENT and agent.instructions_mode is Mode.FULL:
        return Mode.MINIMAL
    return agent.instructions_mode


RenderSection = Callable[[PromptContext], str]


class InstructionSection(NamedTuple):
    """One section: its name, its position and the modes that include it."""

    name: str
    order: int
    modes: frozenset[Mode]
    render: RenderSection


class RenderedSection(NamedTuple):
    """The name of one section, and its text."""

    name: str
    text: str


_ALL_MODES = frozenset(Mode)
_FULL_AND_MINIMAL = frozenset({Mode.FULL, Mode.MINIMAL})
_FULL_ONLY = frozenset({Mode.FULL})

# The order of all sections, and the modes that each is in. Sections for planned features already have their position.
SECTION_MODES: Mapping[str, frozenset[Mode]] = {
    "identity": _ALL_MODES,
    "instance": _FULL_AND_MINIMAL,
    "subagent": _FULL_AND_MINIMAL,
    "tools": _FULL_AND_MINIMAL,
    "call_style": _FULL_AND_MINIMAL,
    "commands": _FULL_AND_MINIMAL,
    "skills": _FULL_ONLY,
    "memory_recall": _FULL_ONLY,
    "model_aliases": _FULL_ONLY,
    "workspace": _FULL_AND_MINIMAL,
    "documentation": _FULL_ONLY,
    "sandbox": _FULL_AND_MINIMAL,
    "user_identity": _FULL_ONLY,
    "time": _FULL_AND_MINIMAL,
    "reply_tags": _FULL_ONLY,
    "messaging": _FULL_ONLY,
    "voice": _FULL_ONLY,
    "artifacts": _FULL_ONLY,
    "message_context": _FULL_ONLY,
    "panels": _FULL_ONLY,
    "agents": _FULL_ONLY,
    "plugins": _FULL_AND_MINIMAL,  # each plugin section declares whether it is in the minimal mode
    "context": _FULL_AND_MINIMAL,
    "reactions": _FULL_ONLY,
    "reasoning_format": _FULL_AND_MINIMAL,
    "files": _FULL_AND_MINIMAL,
    "context_files": _FULL_AND_MINIMAL,
    "memory": _FULL_AND_MINIMAL,
    "silent_replies": _FULL_ONLY,
    "heartbeats": _FULL_ONLY,
    "runtime": _FULL_AND_MINIMAL,
}
_SECTION_ORDER = {name: order for order, name in enumerate(SECTION_MODES)}


def make_section(name: str, render: RenderSection) -> InstructionSection:
    """Create a section. `SECTION_MODES` defines its position and the modes that include it."""
    return InstructionSection(name, _SECTION_ORDER[name], SECTION_MODES[name], render)


def render_sections(context: PromptContext, sections: Sequence[InstructionSection]) -> tuple[RenderedSection, ...]:
    """Render the sections that this mode includes, in order. Sections without text are left out."""
    here = sorted((each for each in sections if context.mode in each.modes), key=lambda each: each.order)
    return tuple(RenderedSection(each.name, text) for each in here if (text := each.render(context).strip()))


def join_sections(parts: Sequence[RenderedSection]) -> str:
    return "\n\n".join(part.text for part in parts)


def to_one_line(text: str, chars_max: int = DESCRIPTION_CHARS_MAX) -> str:
    """Return text on one line. Long text is shortened with a visible mark."""
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"
