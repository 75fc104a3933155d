"""Types that describe what to do after a failed model call: what to try next, when, and what to record."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from retinue.domain.credential import Credential, CredentialFailureRecord
from retinue.domain.model import ModelFailed, ModelRef


class FallbackKind(StrEnum):
    """What the server does after a failed model call. Stored with that call."""

    RETRY = "retry"
    NEXT_CREDENTIAL = "next_credential"
    NEXT_MODEL = "next_model"
    COMPACTION = "compaction"
    GIVE_UP = "give_up"


class ModelCandidate(Struct, frozen=True, kw_only=True):
    """The model to call and its credential, the delay before the call, and the reason for the choice."""

    ref: ModelRef
    credential: Credential | None
    because: str
    wait_s: float = 0.0


class RetryAction(Struct, frozen=True, kw_only=True):
    """Action: retry the same model call after a delay."""

    kind: ClassVar[FallbackKind] = FallbackKind.RETRY
    delay_s: float
    mark: CredentialFailureRecord | None = None


class NextCredentialAction(Struct, frozen=True, kw_only=True):
    kind: ClassVar[FallbackKind] = FallbackKind.NEXT_CREDENTIAL
    candidate: ModelCandidate
    mark: CredentialFailureRecord | None = None

    @property
    def delay_s(self) -> float:
        return self.candidate.wait_s


class NextModelAction(Struct, frozen=True, kw_only=True):
    kind: ClassVar[FallbackKind] = FallbackKind.NEXT_MODEL
    candidate: ModelCandidate
    mark: CredentialFailureRecord | None = None

    @property
    def delay_s(self) -> float:
        return self.candidate.wait_s


class CompactAction(Struct, frozen=True, kw_only=True):
    """Action: compact the context, then retry the same model call."""

    kind: ClassVar[FallbackKind] = FallbackKind.COMPACTION
    delay_s: ClassVar[float] = 0.0
    mark: CredentialFailureRecord | None = None


class GiveUpAction(Struct, frozen=True, kw_only=True):
    kind: ClassVar[FallbackKind] = FallbackKind.GIVE_UP
    delay_s: ClassVar[float] = 0.0
    error: ModelFailed
    mark: CredentialFailureRecord | None = None


FallbackAction = RetryAction | NextCredentialAction | NextModelAction | CompactAction | GiveUpAction
