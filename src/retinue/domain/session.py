"""Sessions: the ongoing conversations of an agent, and what each belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, cast

from msgspec import Struct, field

from retinue.domain.display_options import NO_DISPLAY_OPTIONS, DisplayOptions
from retinue.domain.ids import SessionId
from retinue.domain.session_keys import ChatType
from retinue.domain.storable_text import is_storable
from retinue.domain.value_errors import SessionAttributesTooDeep, SessionFolderNotAbsolute, SessionNameInvalid

QUEUE_CAP = 20
QUEUE_CAP_MAX = 1_000
DEBOUNCE_S_MAX = 60.0
BATCH_MAX = 10
SNIPPET_LENGTH_MAX = 120
SESSION_NAME_LENGTH_MAX = 100
ATTRIBUTES_DEPTH_MAX = 16


class OriginKind(StrEnum):
    CHAT = "chat"
    WEB = "web"
    TERMINAL = "terminal"
    AGENT = "agent"
    EXTERNAL = "external"
    SCHEDULE = "schedule"
    HEARTBEAT = "heartbeat"
    SUBAGENT = "subagent"
    BACKGROUND = "background"  # one background job

    @property
    def is_foreground(self) -> bool:
        """Whether a person uses sessions of this origin directly."""
        return self in (OriginKind.CHAT, OriginKind.WEB, OriginKind.TERMINAL)


SPAWNED_ORIGINS = frozenset({OriginKind.SUBAGENT, OriginKind.BACKGROUND})
"""Origins of sessions that the run of an agent starts for a single task."""


class LaneKind(StrEnum):
    MAIN = "main"
    SCHEDULE = "schedule"
    SUBAGENT = "subagent"
    BACKGROUND = "background"


def lane_kind_of(origin: OriginKind) -> LaneKind:
    match origin:
        case OriginKind.SCHEDULE | OriginKind.HEARTBEAT:
            return LaneKind.SCHEDULE
        case OriginKind.SUBAGENT:
            return LaneKind.SUBAGENT
        case OriginKind.BACKGROUND:
            return LaneKind.BACKGROUND
        case _:
            return LaneKind.MAIN


class Origin(Struct, frozen=True):
    """What a session belongs to, such as a chat or a schedule. An agent has at most one session per origin."""

    kind: OriginKind
    key: str
    parent: SessionId | None = None

    @property
    def channel(self) -> str:
        """The channel of the session as `CONNECTOR:CHANNEL` if it belongs to a chat. Empty for any other origin."""
        return self.key.removeprefix("channel:") if self.kind is OriginKind.CHAT else ""

    def belongs_to(self, address: str) -> bool:
        """Whether the person with this address opened the session in a terminal or the web app."""
        own = self.key == address or self.key.startswith(f"{address}/")
        return own and self.kind in (OriginKind.TERMINAL, OriginKind.WEB)


class QueueMode(StrEnum):
    COLLECT = "collect"
    FOLLOWUP = "followup"
    STEER = "steer"
    STEER_BACKLOG = "steer-backlog"
    INTERRUPT = "interrupt"


class WhenBusy(StrEnum):
    """What happens to an envelope that arrives while a run is active. The sender's choice overrides the queue mode."""

    STEER = "steer"  # the active run reads it at its next turn
    COLLECT = "collect"  # it waits until the run ends


class Overflow(StrEnum):
    REFUSE = "refuse"
    OLDEST = "oldest"
    SUMMARIZE = "summarize"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How the envelopes of a session are queued: what happens to those that arrive during a run, and how many may wait.

    Waiting envelopes are claimed once no envelope has arrived for `debounce_s` seconds.
    """

    mode: QueueMode = QueueMode.COLLECT
    cap: int = QUEUE_CAP
    overflow: Overflow = Overflow.REFUSE
    debounce_s: float = 0.0


class QueueOverride(Struct, frozen=True, kw_only=True):
    """Queue settings of a session. None means the agent's value."""

    mode: QueueMode | None = None
    cap: int | None = None
    overflow: Overflow | None = None
    debounce_s: float | None = None

    def apply_to(self, policy: QueuePolicy) -> QueuePolicy:
        """Return `policy` with these overrides."""
        return QueuePolicy(
            mode=self.mode or policy.mode,
            cap=policy.cap if self.cap is None else self.cap,
            overflow=self.overflow or policy.overflow,
            debounce_s=policy.debounce_s if self.debounce_s is None else self.debounce_s,
        )


class SessionOptions(Struct, frozen=True, kw_only=True):
    """Model and display options of a session. None means the agent's value.

    `credential` is the credential used last. The session keeps using it because the provider caches per credential. A
    credential that a person chose (`pinned`) is never replaced. `send` says whether replies are sent to channels. If it
    is None, the send policy decides.
    """

    model: str | None = None
    effort: str | None = None
    credential: str | None = None
    pinned: bool = False
    manner: DisplayOptions = NO_DISPLAY_OPTIONS
    send: bool | None = None


class SessionActivity(StrEnum):
    """Whether a session has work to do. When the server starts, it loads only the active sessions."""

    ACTIVE = "active"
    SLEEPING = "sleeping"


class Session(Struct, frozen=True, kw_only=True):
    id: SessionId
    agent: str
    origin: Origin
    name: str
    activity: SessionActivity
    queue: QueueOverride
    epoch: int
    record_seq: int
    context_start_seq: int  # seq at which the context begins: a start, a reset, or the first record after a summary
    revision: int
    created_at: datetime
    updated_at: datetime
    snippet: str
    pinned_at: datetime | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: SessionOptions = SessionOptions()
    compactions: int = 0  # in the current context
    deleted_at: datetime | None = None
    archived_at: datetime | None = None  # archived: listed only on request, and restored by its next envelope
    context_started_ms: int = 0  # when the current context began: with the session or its last reset
    last_active_ms: int = 0  # start or end of the last run that was not scheduled: see policy/limits/reset_policy
    reset_because: str | None = None  # why the next run starts with a new context, if that was requested
    chat_type: ChatType | None = None  # of a chat, if its connector reports it


def validate_session_name(name: str) -> str:
    """Return the name without surrounding whitespace. Raises Invalid if it is not one line of printable characters."""
    name = name.strip()
    if not 0 < len(name) <= SESSION_NAME_LENGTH_MAX or not name.isprintable() or not is_storable(name):
        raise SessionNameInvalid(name, chars_max=SESSION_NAME_LENGTH_MAX)
    return name


def patch_attributes(attributes: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a patch to a session's attributes: objects are merged, null deletes a key, anything else is replaced."""
    merged = _merge_attributes(attributes, patch, depth=1)
    core = merged.get("core")
    folder = cast(dict[str, Any], core).get("workingDir") if isinstance(core, dict) else None
    if folder is not None and not (isinstance(folder, str) and PurePosixPath(folder).is_absolute()):
        raise SessionFolderNotAbsolute
    return merged


def _merge_attributes(into: Mapping[str, Any], patch: Mapping[str, Any], *, depth: int) -> dict[str, Any]:
    if depth > ATTRIBUTES_DEPTH_MAX:
        raise SessionAttributesTooDeep(depth_max=ATTRIBUTES_DEPTH_MAX)
    merged = dict(into)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            held = merged.get(key)
            inside = cast(dict[str, Any], held) if isinstance(held, dict) else {}
            merged[key] = _merge_attributes(inside, cast(dict[str, Any], value), depth=depth + 1)
        else:
            merged[key] = value
    return merged
