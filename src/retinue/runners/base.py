"""How an agent takes its turns: a small protocol with room for loops, child processes and callers elsewhere."""

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
    """Who is to work, where, and which stored calls come first because a person has just allowed them."""

    agent: Agent
    session: Session
    home: Path
    place: Path | None = None  # where it works, if that is not its home
    senders: tuple[Agent, ...] = ()  # whose rules hold beside its agent's: it is a subagent of theirs
    speakers: tuple[Address, ...] = ()  # who spoke, where they did so in a room that may be several people's
    requesters: tuple[Requester, ...] = ()  # the people on whose behalf it works
    acting: Agent | None = None  # as whom it acts, if that is not its agent
    ground: Path | None = None  # their home: what its hands are bound to
    told_from: Path | None = None  # where its own instructions lie, if that is not where it works
    stored: tuple[Call, ...] = ()
    request: RunRequest = NO_REQUEST
    manner: Manner = PLAIN

    @property
    def workspace(self) -> Path:
        """Where it works: at its place, unless it was asked to work elsewhere."""
        return Path(self.request.workspace) if self.request.workspace else self.place or self.reach

    @property
    def reach(self) -> Path:
        """The home that its tools know."""
        return self.ground or self.home


class Finished(Struct, frozen=True, kw_only=True):
    """The end of a run that came to an answer. A silent one is recorded and not sent.

    `remarks` are the house's own words on how it came about: who answered instead of whom, what is nearly spent. They
    go with an answer, and only with one. `reset`: what the context was is set aside; the next run begins afresh.
    `trust` is that of what it knew when it answered.
    """

    text: str
    context_length: int | None = None
    remarks: tuple[str, ...] = ()
    reset: bool = False
    trust: Trust = Trust.AGENT
    voice: Attachment | None = None  # the same, spoken

    @property
    def silent(self) -> bool:
        return self.text.strip() in SILENT_TOKENS

    @property
    def answer(self) -> str:
        return "\n\n".join((self.text, *(f"[{remark}]" for remark in self.remarks))).strip()


def is_silent(body: Body) -> bool:
    """A last reply that says nothing on purpose: kept, and neither sent nor read again."""
    return isinstance(body, Reply) and not body.calls and body.text.strip() in SILENT_TOKENS


class Parked(Exception):
    """Not an error: the run waits for a person, or for work that it handed out, and holds nothing meanwhile. It is
    taken up again where it was. `calls` are those that a person is asked about; `waits` are those that wait for work,
    the first of them at the longest `until` then."""

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
        self.gives = gives  # what they reach for and nobody has granted
        self.would_grant = would_grant  # by a yes for longer than once
        self.waits = waits
        self.until = until


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a run has beside its tools, taken when it begins: what is told of its skills and what plug-ins want said,
    folders it may read, variables for its commands and no others', and tools that are told of as skills instead."""

    skills: str = ""
    plugins: tuple[str, ...] = ()
    readable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    hidden: tuple[str, ...] = ()
    read_only: bool = False  # its workspace is not to be written
    browser: bool = True  # whether the rules of its sandbox let it have one


NO_EQUIPMENT = Equipment()
Equip = Callable[[Assignment], Awaitable[Equipment]]
Brief = Callable[[Assignment, Equipment, ModelFacts, Sequence[ToolSpec]], Awaitable[str]]
"""What a run is told before this model is asked with these tools."""


class Runner(Protocol):
    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished: ...
