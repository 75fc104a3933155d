"""A word from one session to another, beside all work: nothing is asked with it, and nothing comes back."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.trust import Trust


class Strategy(StrEnum):
    """How a session is found that nobody names: the last one of its sort."""

    MOST_RECENT_FOREGROUND = "most-recent-foreground"  # a person sits before it
    HEARTBEAT = "heartbeat"


class Word(Struct, frozen=True, kw_only=True):
    """What a call wants to be said, and to whom: an agent by its name, or a session by its id or its key.

    Where it names nobody, it is for whoever sent the caller out, and else for the last conversation of the person whom
    the run works for. `confined`: only sessions that came of the caller's own may be named.
    """

    run: RunId
    call: str
    text: str
    trust: Trust  # of the least trusted words that the caller knows
    to: str = ""
    strategy: str = ""
    silent: bool = False  # written down for the next turn there, and nothing else
    confined: bool = False
    switches: bool = False  # the person who sits here goes on there: with who is named, or `back` where they came from


class Heard(Struct, frozen=True, kw_only=True):
    """Where it went. `refused` says why it was not taken, where it was not."""

    envelope: EnvelopeId
    agent: str
    session: SessionId
    refused: str = ""


class PassOn(Protocol):
    """Passes a word on, once for each call."""

    async def __call__(self, word: Word) -> Heard: ...
