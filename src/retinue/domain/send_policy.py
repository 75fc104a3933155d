"""Sending: rules on whether what an agent says in a conversation leaves the house."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retinue.domain.session_keys import ChatType


class SendAction(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRule:
    """Fits where all that it names does. What it does not name fits everywhere."""

    action: SendAction = SendAction.DENY
    channel: str | None = None  # the connector by which it would leave
    chat_type: ChatType | None = None
    key_prefix: str | None = None  # how the key of the conversation begins
