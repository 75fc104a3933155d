"""Records: a session's history, append-only, and the bodies each kind carries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from retinue.domain.envelope import Trust
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.tool import Call, ToolResult


class RecordKind(StrEnum):
    START = "start"
    RESET = "reset"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SUMMARY = "summary"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where a context begins. A reset may carry words into the next one."""

    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """What a run was given to read, byte for byte as the model read it."""

    text: str
    envelopes: tuple[EnvelopeId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0


NO_USAGE = Usage()


class Stop(StrEnum):
    """Why a model stopped replying."""

    END = "end"
    CALLS = "calls"
    LENGTH = "length"
    CUT_OFF = "cut-off"  # by us, in the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a model said in one turn, and what it asked for."""

    text: str
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    stop: Stop = Stop.END
    model: str = ""
    usage: Usage = NO_USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Words of the house that the model reads like mail: the end of a cancelled run, mail that was left out.

    `call` names the stored call whose result this is, where one was performed after its turn had gone by.
    """

    text: str
    call: str = ""


Body = Mark | UserTurn | Reply | ToolResult | Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of a session's history."""

    session: SessionId
    seq: int
    kind: RecordKind
    body: Body
    at: datetime
    run: RunId | None = None
    trust: Trust = Trust.PRIVATE


def kind_of(body: Body) -> RecordKind:
    match body:
        case UserTurn():
            return RecordKind.USER
        case Reply():
            return RecordKind.ASSISTANT
        case ToolResult():
            return RecordKind.TOOL
        case Note():
            return RecordKind.NOTE
        case Mark():
            return RecordKind.RESET
