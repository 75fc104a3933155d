"""The actions after a failed model call. Each has a kind, a delay, and a credential failure to record."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from retinue.domain.credential import Credential, Mark
from retinue.domain.model import ModelFailed, ModelRef


class Move(StrEnum):
    """What was done about a failure; stored with the failed call."""

    AGAIN = "again"
    NEXT_CREDENTIAL = "next-credential"
    NEXT_MODEL = "next-model"
    COMPACTION = "compaction"
    GIVE_UP = "give-up"


class Candidate(Struct, frozen=True, kw_only=True):
    """The model and credential to call, the delay before it, and the reason for the choice."""

    ref: ModelRef
    credential: Credential | None
    because: str
    wait_s: float = 0.0


class Again(Struct, frozen=True, kw_only=True):
    """Repeat the same call after a delay."""

    next_move: ClassVar[Move] = Move.AGAIN
    after_s: float
    mark: Mark | None = None


class NextCredential(Struct, frozen=True, kw_only=True):
    next_move: ClassVar[Move] = Move.NEXT_CREDENTIAL
    candidate: Candidate
    mark: Mark | None = None

    @property
    def after_s(self) -> float:
        return self.candidate.wait_s


class NextModel(Struct, frozen=True, kw_only=True):
    next_move: ClassVar[Move] = Move.NEXT_MODEL
    candidate: Candidate
    mark: Mark | None = None

    @property
    def after_s(self) -> float:
        return self.candidate.wait_s


class Compact(Struct, frozen=True, kw_only=True):
    """Repeat the same call with a shorter context."""

    next_move: ClassVar[Move] = Move.COMPACTION
    after_s: ClassVar[float] = 0.0
    mark: Mark | None = None


class GiveUp(Struct, frozen=True, kw_only=True):
    next_move: ClassVar[Move] = Move.GIVE_UP
    after_s: ClassVar[float] = 0.0
    error: ModelFailed
    mark: Mark | None = None


Verdict = Again | NextCredential | NextModel | Compact | GiveUp
