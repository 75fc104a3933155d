"""The protocol of runners. A runner executes a run's turns: in a model loop, a child process or an external agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.agent import Agent
from retinue.domain.attachment import Attachment
from retinue.domain.display_options import NO_DISPLAY_OPTIONS, DisplayOptions
from retinue.domain.model import ModelFacts
from retinue.domain.permission import Permission
from retinue.domain.person import Requester
from retinue.domain.ports import Journal, RunApprovals, RunObserver
from retinue.domain.record import RecordBody, Reply
from retinue.domain.run import NO_RUN_REQUEST, RunRequest
from retinue.domain.session import Session
from retinue.domain.tool import Call, ToolSpec
from retinue.domain.trust import Trust

SILENT_TOKENS = frozenset({"NO_REPLY", "[[SILENT_REPLY]]"})


class RunAssignment(Struct, frozen=True, kw_only=True):
    """Everything a runner needs for one run: agent, directories, request, and approved calls to perform first."""

    agent: Agent
    session: Session
    agent_directory: Path
    workspace_directory: Path | None = None  # the workspace, if it is not the agent directory
    delegating_agents: tuple[Agent, ...] = ()  # agents that delegated this run; their rules apply too
    speakers: tuple[Address, ...] = ()  # message authors, if the channel may be shared by several people
    requesters: tuple[Requester, ...] = ()  # the people for whom the run acts
    acting_agent: Agent | None = None  # the agent as which the run acts, if it is not `agent`
    acting_directory: Path | None = None  # directory of that agent, to which the tools are limited
    instructions_directory: Path | None = None  # where the agent's instructions are, if not in the workspace
    stored_calls: tuple[Call, ...] = ()
    request: RunRequest = NO_RUN_REQUEST
    display: DisplayOptions = NO_DISPLAY_OPTIONS

    @property
    def workspace(self) -> Path:
        """The directory in which the run works: the requested one, or the agent's workspace."""
        return (
            Path(self.request.workspace) if self.request.workspace else self.workspace_directory or self.tools_directory
        )

    @property
    def tools_directory(self) -> Path:
        """The agent directory that the tools of the run may use."""
        return self.acting_directory or self.agent_directory


class RunAnswer(Struct, frozen=True, kw_only=True):
    """The answer with which a run ends. A silent answer is stored but not sent.

    `remarks` are notes by the server, for example that a fallback model answered or a budget is
    nearly used up. They are sent only together with an answer. `resets_context` means that the next
    run starts with a new context. `trust` is the trust of the context in which the answer was
    written.
    """

    text: str
    context_length: int | None = None
    remarks: tuple[str, ...] = ()
    resets_context: bool = False
    trust: Trust = Trust.AGENT
    voice_message: Attachment | None = None  # the answer as a voice message

    @property
    def is_silent(self) -> bool:
        return self.text.strip() in SILENT_TOKENS

    @property
    def text_with_remarks(self) -> str:
        return "\n\n".join((self.text, *(f"[{remark}]" for remark in self.remarks))).strip()


def is_silent(body: RecordBody) -> bool:
    """Whether a record is a final reply in which the agent chose to say nothing.

    Such a reply is stored, but it is not sent and not part of the context.
    """
    return isinstance(body, Reply) and not body.calls and body.text.strip() in SILENT_TOKENS


class Suspended(Exception):
    """Raised to suspend a run until a person decides or delegated work is done. It is not an error.

    A suspended run holds no slot and resumes where it stopped. A person must decide about `calls`.
    `waiting_calls` wait for delegated work. `until` is the time at which the first of these waits ends.
    """

    def __init__(
        self,
        calls: tuple[Call, ...],
        *,
        turn: int,
        because: str,
        gives: tuple[Permission, ...] = (),
        would_grant: tuple[Permission, ...] = (),
        waiting_calls: tuple[str, ...] = (),
        until: datetime | None = None,
    ) -> None:
        super().__init__(f"waiting for {', '.join((*(call.tool for call in calls), *waiting_calls))}")
        self.calls = calls
        self.turn = turn
        self.because = because
        self.gives = gives  # permissions that the calls need and that are not granted
        self.would_grant = would_grant  # what a decision for longer than once would grant
        self.waiting_calls = waiting_calls
        self.until = until


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResources:
    """Resources of a run besides its tools, loaded when it starts.

    These are prompt texts of skills and plugins, readable directories, and environment variables
    for commands. `hidden_tools` are not offered to the model, because a skill has replaced them.
    """

    skills: str = ""
    plugins: tuple[str, ...] = ()
    readable_directories: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    hidden_tools: tuple[str, ...] = ()
    is_read_only: bool = False  # the workspace is read-only
    has_browser: bool = True  # whether the sandbox allows a browser


NO_RUN_RESOURCES = RunResources()
LoadRunResources = Callable[[RunAssignment], Awaitable[RunResources]]
BuildSystemPrompt = Callable[[RunAssignment, RunResources, ModelFacts, Sequence[ToolSpec]], Awaitable[str]]
"""Builds the system prompt of a run for a model and its tools."""


class Runner(Protocol):
    """Executes the turns of a run until there is an answer, or raises `Suspended`."""

    async def take_turns(
        self, assignment: RunAssignment, journal: Journal, approvals: RunApprovals, observer: RunObserver
    ) -> RunAnswer: ...
