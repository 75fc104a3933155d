"""Doors: who may talk to the house from outside, and what becomes of what they say."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.trust import Trust

EVERYONE = "*"


class DmPolicy(StrEnum):
    """Who may write in person."""

    CLOSED = "closed"  # people of the house, by their linked ids, and nobody else
    PAIRING = "pairing"  # these, who is on the list, and whoever the owner lets in by a code
    ALLOWLIST = "allowlist"  # these, and who is on the list
    OPEN = "open"  # everyone


class GroupPolicy(StrEnum):
    """In which rooms with several speakers the house listens at all."""

    CLOSED = "closed"
    ALLOWLIST = "allowlist"  # in those on the list, to those on the list
    OPEN = "open"  # to everyone there


class Activation(StrEnum):
    """What in a group is said to the agent."""

    MENTION = "mention"  # what names it, quotes it or commands it
    ALWAYS = "always"


class Entry(StrEnum):
    """What becomes of a message at the door."""

    ADMIT = "admit"
    OVERHEAR = "overhear"  # said by somebody who may talk, and not to us
    PAIR = "pair"  # not known, and may ask to be
    REFUSE = "refuse"


class Verdict(Struct, frozen=True, kw_only=True):
    """`key` is the setting that decided. `trust` and `may_command` count only for those who are let in."""

    entry: Entry
    because: str
    key: str = ""
    trust: Trust = Trust.UNTRUSTED
    may_command: bool = False


class Identity(Struct, frozen=True, kw_only=True):
    """That whoever bears this id in a service is this person."""

    service: str
    id: str
    person: str
    made_by: str = ""
    at: datetime | None = None


LOCAL_IDS = frozenset({"irc"})
"""Services of which there are many, each with ids of its own: who is `maria` on one network is anybody on another."""


def id_space(service: str, instance: str) -> str:
    """Under what name ids are linked: that of the service, where an id is one person all over it, and else that of the
    one connector."""
    return instance if service in LOCAL_IDS else service


class PairingState(StrEnum):
    WAITING = "waiting"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    EXPIRED = "expired"


class Pairing(Struct, frozen=True, kw_only=True):
    """Somebody who asked to be let in. `name` is what they call themselves, and proves nothing."""

    id: str
    instance: str
    service: str
    speaker: str
    name: str
    code: str
    state: PairingState
    asked_at: datetime
    expires_at: datetime
    decided_by: str = ""
    decided_at: datetime | None = None


class SetAsideState(StrEnum):
    WAITING = "waiting"
    DONE = "done"
    DROPPED = "dropped"


class SetAside(Struct, frozen=True, kw_only=True):
    """What was heard and could not be taken in, however often it was tried."""

    id: str
    instance: str
    room: str
    message_id: str
    body: str
    because: str
    tries: int
    state: SetAsideState
    at: datetime


class Overheard(Struct, frozen=True, kw_only=True):
    """Something said in a room, and not to us."""

    seq: int
    message_id: str
    speaker: str
    name: str
    text: str
    at: datetime


class Refusal(Struct, frozen=True, kw_only=True):
    """Whom a door has turned away, and how often since the house was opened. In memory alone."""

    instance: str
    speaker: str
    name: str
    because: str
    count: int
    last_at: datetime
