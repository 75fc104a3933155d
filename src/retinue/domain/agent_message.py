"""Agent messages: messages from an agent's session to another session, for which no result is expected."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.trust import Trust


class RecipientStrategy(StrEnum):
    """How to choose a recipient if the sender names none: the most recent session of this kind."""

    MOST_RECENT_FOREGROUND = "most-recent-foreground"  # a session that a person opened
    HEARTBEAT = "heartbeat"


class AgentMessage(Struct, frozen=True, kw_only=True):
    """An agent message to send. `recipient` is an agent name, a session id, a session key or empty.

    A message without a recipient goes to the session that started the sender's session. If there is
    no such session, it goes to the run principal's latest session, or else to the latest session
    that the run principal may see. With `own_sessions_only`, the recipient must be a session that the
    sender's session started, or the session that started the sender's session.
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
    """Where an agent message was sent. `refused_because` is the reason if the message was not accepted."""

    envelope: EnvelopeId
    agent: str
    session: SessionId
    refused_because: str = ""


class DeliverAgentMessage(Protocol):
    """Sends an agent message. If the same tool call is repeated, the message is not sent again."""

    async def __call__(self, message: AgentMessage) -> AgentMessageReceipt: ...
