"""Agent messages: a message from one session to another that expects no result."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.trust import Trust


class RecipientStrategy(StrEnum):
    """How to find the recipient session if none is named: which kind of session to take the most recent of."""

    MOST_RECENT_FOREGROUND = "most-recent-foreground"  # a session that a person opened
    HEARTBEAT = "heartbeat"


class AgentMessage(Struct, frozen=True, kw_only=True):
    """An agent message to send. `recipient` is an agent name, a session id, a session key or empty.

    A message without a recipient goes to the session that started the caller. If there is none, it
    goes to the last session of the run principal. `own_sessions_only`: the recipient must be a
    session that the caller's session started, or the one that started it.
    """

    run: RunId
    call: str
    text: str
    trust: Trust  # the least trust of anything in the caller's context
    recipient: str = ""
    strategy: str = ""
    silent: bool = False  # stored for the recipient's next turn, without starting a run
    own_sessions_only: bool = False
    is_switch: bool = False  # move the person to the named agent, or `back` to the previous one


class AgentMessageReceipt(Struct, frozen=True, kw_only=True):
    """Where an agent message went. `refused_because` is the reason if it was not accepted."""

    envelope: EnvelopeId
    agent: str
    session: SessionId
    refused_because: str = ""


class DeliverAgentMessage(Protocol):
    """Sends an agent message. A repeated tool call does not send it again."""

    async def __call__(self, message: AgentMessage) -> AgentMessageReceipt: ...
