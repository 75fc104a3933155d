"""The protocol of runners, which take an agent's turns: a model loop, a child process or an external agent."""

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
from retinue.domain.display_options import PLAIN, Manner
from retinue.domain.model import ModelFacts
from retinue.domain.permission import Permission
from retinue.domain.person import Requester
from retinue.domain.ports import Ask, Journal, Tell
from retinue.domain.record import Body, Reply
from retinue.domain.run import NO_REQUEST, RunRequest
from retinue.domain.session import Session
from retinue.domain.tool import Call, ToolSpec
from retinue.domain.trust import Trust

SILENT_TOKENS = frozenset({"NO_REPLY", "[[SILENT_REPLY]]"})


class Assignment(Struct, frozen=True, kw_only=True):
    """What a runner needs for one run: the agent, its directories, the request and stored calls that come first."""

    agent: Agent
    session: Session
    home: Path
    place: Path | None = None  # the workspace, if it is not the agent directory
    senders: tuple[Agent, ...] = ()  # agents that delegated this run; their rules apply too
    speakers: tuple[Address, ...] = ()  # message authors, if the channel may be shared by several people
    requesters: tuple[Requester, ...] = ()  # the people for whom the run acts
    acting: Agent | None = None  # the agent as which it acts, if another
    ground: Path | None = None  # directory of that agent, to which the tools are limited
    told_from: Path | None = None  # where its own instructions are, if not in the workspace
    stored: tuple[Call, ...] = ()
    request: RunRequest = NO_REQUEST
    manner: Manner = PLAIN

    @property
    def workspace(self) -> Path:
        """The directory in which it works: the requested one, or the agent's workspace."""
        return Path(self.request.workspace) if self.request.workspace else self.place or self.reach

    @property
    def reach(self) -> Path:
        """The agent directory that its tools may use."""
        return self.ground or self.home


class Finished(Struct, frozen=True, kw_only=True):
    """The end of a run that has an answer. A silent answer is stored and not sent.

    `remarks` are notes by the server, such as a fallback model or a nearly spent budget. They are
    sent only with an answer. `resets_context`: the next run starts with a new context. `trust` is
    the trust of the context in which it was written.
    """

    text: str
    context_length: int | None = None
    remarks: tuple[str, ...] = ()
    reset: bool = False
    trust: Trust = Trust.AGENT
    voice: Attachment | None = None  # the answer as a voice message

    @property
    def silent(self) -> bool:
        return self.text.strip() in SILENT_TOKENS

    @property
    def answer(self) -> str:
        return "\n\n".join((self.text, *(f"[{remark}]" for remark in self.remarks))).strip()


def is_silent(body: Body) -> bool:
    """Whether a body is a final reply that is silent on purpose: stored, but not sent or read again."""
    return isinstance(body, Reply) and not body.calls and body.text.strip() in SILENT_TOKENS


class Parked(Exception):
    """Raised to suspend a run until a person answers or delegated work is done. Not an error.

    A suspended run holds nothing and resumes where it stopped. `calls` need a decision;
    `waiting_calls` wait for delegated work, until `until` at the latest.
    """

    def __init__(
        self,
        calls: tuple[Call, ...],
        *,
        turn: int,
        because: str,
        gives: tuple[Permission, ...] = (),
        would_grant: tuple[Permission, ...] = (),
        waits: tuple[str, ...] = (),
        until: datetime | None = None,
    ) -> None:
        super().__init__(f"waiting about {', '.join((*(call.tool for call in calls), *waits))}")
        self.calls = calls
        self.turn = turn
        self.because = because
        self.gives = gives  # permissions that the calls need and that are not granted
        self.would_grant = would_grant  # what a decision for longer than once would grant
        self.waits = waits
        self.until = until


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a run has besides its tools, loaded when it starts.

    Texts about skills and from plugins, readable directories, environment variables for its
    commands, and tools that are presented as skills instead.
    """

    skills: str = ""
    plugins: tuple[str, ...] = ()
    readable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    hidden: tuple[str, ...] = ()
    read_only: bool = False  # the workspace is read-only
    browser: bool = True  # whether its sandbox allows a browser


NO_EQUIPMENT = Equipment()
Equip = Callable[[Assignment], Awaitable[Equipment]]
Brief = Callable[[Assignment, Equipment, ModelFacts, Sequence[ToolSpec]], Awaitable[str]]
"""What a run is told before this model is asked with these tools."""


class Runner(Protocol):
    """Takes the turns of a run until it has an answer, or suspends it."""

    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished: ...
