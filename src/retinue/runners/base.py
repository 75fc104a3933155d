"""How an agent takes its turns: a small protocol with room for loops, child processes and callers elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retinue.domain.agent import Agent
from retinue.domain.ports import Ask, Journal, Tell
from retinue.domain.session import Session
from retinue.domain.tool import Call

SILENT_TOKENS = frozenset({"NO_REPLY", "[[SILENT_REPLY]]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who is to work, where, and which stored calls come first because a person has just allowed them."""

    agent: Agent
    session: Session
    home: Path
    stored: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a run that came to an answer. A silent one is recorded and not sent."""

    text: str
    context_length: int | None = None

    @property
    def silent(self) -> bool:
        return self.text.strip() in SILENT_TOKENS


class Parked(Exception):
    """Not an error: the run waits for a person and holds nothing meanwhile. It is taken up again where it was."""

    def __init__(self, calls: tuple[Call, ...], *, turn: int, because: str) -> None:
        super().__init__(f"waiting for a person to decide about {', '.join(c.tool for c in calls)}")
        self.calls = calls
        self.turn = turn
        self.because = because


class Runner(Protocol):
    async def work(self, assignment: Assignment, journal: Journal, ask: Ask, tell: Tell) -> Finished: ...
