"""Access rules: who may write to the server from a channel, and what happens to their messages."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.trust import Trust

EVERYONE = "*"


class DmPolicy(StrEnum):
    """Who may send direct messages."""

    CLOSED = "closed"  # only people of this instance, by their linked platform ids
    PAIRING = "pairing"  # like ALLOWLIST, plus senders whose pairing request the owner accepted
    ALLOWLIST = "allowlist"  # like CLOSED, plus listed senders
    OPEN = "open"


class GroupPolicy(StrEnum):
    """From which groups, and from which senders in them, a connector accepts messages."""

    CLOSED = "closed"
    ALLOWLIST = "allowlist"  # in listed groups; listed senders, paired senders and people of this instance
    OPEN = "open"  # in listed groups, or in all groups if none is listed; every sender


class Activation(StrEnum):
    """Which messages in a group count as addressed to the agent."""

    MENTION = "mention"  # messages that mention the agent, reply to it or are a command
    ALWAYS = "always"


class AccessAction(StrEnum):
    """What the server does with an inbound message."""

    ADMIT = "admit"
    AMBIENT = "overhear"  # the sender is allowed, but the message is not addressed to the agent
    PAIR = "pair"  # the sender is unknown and may request access by pairing
    REFUSE = "refuse"


class AccessDecision(Struct, frozen=True, kw_only=True):
    """Whether an inbound message is admitted, and why.

    `setting_key` names the setting that decided. `trust` and `may_command` are set only if the
    message is admitted.
    """

    action: AccessAction
    because: str
    setting_key: str = ""
    trust: Trust = Trust.UNTRUSTED
    may_command: bool = False


class Identity(Struct, frozen=True, kw_only=True):
    """A link from a platform id, such as a Telegram user id, to a person of this instance."""

    service: str
    id: str
    person: str
    made_by: str = ""
    at: datetime | None = None


PLATFORMS_WITH_LOCAL_IDS = frozenset({"irc"})
"""Platforms on which an id is valid within one network only: `maria` on another network may be another person."""


def id_namespace(platform: str, connector: str) -> str:
    """Return the name of the platform or connector within which a platform id is unique.

    It is the platform if an id means the same person everywhere on that platform. Otherwise it is
    the connector. Identities, which link ids to people, are stored under this name.
    """
    return connector if platform in PLATFORMS_WITH_LOCAL_IDS else platform


class PairingState(StrEnum):
    WAITING = "waiting"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    EXPIRED = "expired"


class Pairing(Struct, frozen=True, kw_only=True):
    """A request for access from an unknown sender. The sender chooses `name`, so a name is no proof of identity."""

    id: str
    connector: str
    platform: str
    sender_id: str
    name: str
    code: str
    state: PairingState
    requested_at: datetime
    expires_at: datetime
    decided_by: str = ""
    decided_at: datetime | None = None


class PoisonMessageState(StrEnum):
    WAITING = "waiting"
    DONE = "done"
    DROPPED = "dropped"


class PoisonMessage(Struct, frozen=True, kw_only=True):
    """An inbound message that raised an error on every attempt. It is kept until a person retries or drops it."""

    id: str
    connector: str
    channel: str
    message_id: str
    body: str
    because: str
    attempts: int
    state: PoisonMessageState
    at: datetime


class AmbientMessage(Struct, frozen=True, kw_only=True):
    """A message that was sent in a group but is not addressed to the agent."""

    seq: int
    message_id: str
    sender_id: str
    sender_name: str
    text: str
    at: datetime


class RefusedSender(Struct, frozen=True, kw_only=True):
    """A refused sender, and the number of refusals since the server started. Kept only in memory."""

    connector: str
    sender_id: str
    name: str
    because: str
    count: int
    last_at: datetime
