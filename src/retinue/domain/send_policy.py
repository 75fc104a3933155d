"""Send policy: rules that decide whether an agent's replies are sent to a channel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from retinue.domain.session_keys import ChatType


class SendAction(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRule:
    """A rule that applies if all conditions that it sets match. A condition that is not set matches everything."""

    action: SendAction = SendAction.DENY
    channel: str | None = None  # the connector
    chat_type: ChatType | None = None
    key_prefix: str | None = None  # prefix of the session key
