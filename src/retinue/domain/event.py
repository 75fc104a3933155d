"""Events and deltas, from which clients learn what has changed.

An event is stored with a sequence number, in the same commit as the change that it describes. A delta is a piece of
streamed text. Deltas are kept in memory only, and are never replayed.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from retinue.domain.ids import RunId, SessionId


class EventKind(StrEnum):
    ENVELOPE_ACCEPTED = "envelope.accepted"
    ENVELOPE_SETTLED = "envelope.settled"
    SESSION_STARTED = "session.started"
    SESSION_RESET = "session.reset"
    SESSION_COMPACTED = "session.compacted"
    SESSION_CHANGED = "session.changed"
    SESSION_TRIMMED = "session.trimmed"
    SESSION_DELETED = "session.deleted"
    SESSION_RESTORED = "session.restored"
    SESSION_SWITCHED = "session.switched"
    AGENT_CHANGED = "agent.changed"
    GRANT_CHANGED = "grant.changed"
    RUN_STARTED = "run.started"
    RUN_RESUMED = "run.resumed"
    RUN_JOINED = "run.joined"
    RUN_SUSPENDED = "run.suspended"
    RUN_ENDED = "run.ended"
    STEP_OPENED = "step.opened"
    STEP_CLOSED = "step.closed"
    APPROVAL_CREATED = "approval.created"
    APPROVAL_DECIDED = "approval.decided"
    NOTIFICATION_CHANGED = "notification.changed"
    QUESTIONNAIRE_CHANGED = "questionnaire.changed"
    PREFERENCE_CHANGED = "preference.changed"
    DELEGATION_OPENED = "delegation.opened"
    DELEGATION_ENDED = "delegation.ended"
    SCHEDULE_CHANGED = "schedule.changed"
    HEARTBEAT_CHANGED = "heartbeat.changed"
    PLUGIN_CHANGED = "plugin.changed"


class StoredEvent(Struct, frozen=True, kw_only=True):
    seq: int
    kind: EventKind
    session: SessionId | None
    at: datetime
    body: dict[str, Any]


class DeltaKind(StrEnum):
    TEXT = "text"
    THINKING = "thinking"


class NestedActivityKind(StrEnum):
    TEXT = "text"
    CALL = "call"


class NestedActivity(Struct, frozen=True, kw_only=True):
    """What a subagent or another agent is doing while a tool call waits for it. Clients show it below that call.

    `session` and `call` identify the waiting call. `text` is a piece of text, or the name of the called tool.
    `offset` is the position of the piece; a new text begins at offset 0.
    """

    session: SessionId
    call: str
    agent: str
    run: RunId
    kind: NestedActivityKind
    text: str
    offset: int = 0


class Delta(Struct, frozen=True, kw_only=True):
    """A piece of a streamed reply.

    `offset` is its position, in characters, in the text of this kind in this run, turn and attempt.
    """

    session: SessionId
    run: RunId
    turn: int
    attempt: int
    kind: DeltaKind
    offset: int
    text: str
