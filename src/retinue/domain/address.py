"""Addresses: the sender and recipient of an envelope. Parsed strictly at the edge, canonical
inside."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from retinue.domain.errors import Invalid
from retinue.domain.ids import SessionId, prefix

NAME_LENGTH_MAX = 64
CHANNEL_REST_LENGTH_MAX = 512
BACKGROUND = "background"
EXTERNAL = "external"  # names the connector, runner and reply provider of external agents

_NAME = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_INSTANCE = re.compile(r"[a-z][a-z0-9-]*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class AddressKind(StrEnum):
    AGENT = "agent"
    PERSON = "person"
    SCHEDULE = "schedule"
    CHANNEL = "channel"
    HOUSE = "house"


class Address(Struct, frozen=True):
    """`agent:NAME`, `agent:NAME/SESSION`, `person:NAME`, `schedule:ID`, `channel:CONNECTOR:CHANNEL`
    or `house` (the server)."""

    kind: AddressKind
    name: str
    rest: str = ""

    def __str__(self) -> str:
        match self.kind:
            case AddressKind.AGENT:
                return f"agent:{self.name}/{self.rest}" if self.rest else f"agent:{self.name}"
            case AddressKind.CHANNEL:
                return f"channel:{self.name}:{self.rest}"
            case AddressKind.HOUSE:
                return "house"
            case _:
                return f"{self.kind}:{self.name}"

    @property
    def session(self) -> SessionId | None:
        """Return the session that an agent address names, or None."""
        return SessionId(self.rest) if self.kind is AddressKind.AGENT and self.rest else None

    @property
    def room(self) -> str:
        """`CONNECTOR:CHANNEL` of a channel address; empty for any other kind."""
        return f"{self.name}:{self.rest}" if self.kind is AddressKind.CHANNEL else ""

    @property
    def is_external(self) -> bool:
        """Whether this is the address at which an external agent answers for one of its sessions."""
        return self.kind is AddressKind.CHANNEL and self.name == EXTERNAL


HOUSE = Address(AddressKind.HOUSE, "house")


def agent(name: str, session: str = "") -> Address:
    return Address(AddressKind.AGENT, name, session)


def external(session: str) -> Address:
    return Address(AddressKind.CHANNEL, EXTERNAL, session)


def person(name: str) -> Address:
    return Address(AddressKind.PERSON, name)


def valid_name(name: str, *, what: str) -> str:
    """Return `name`, or raise Invalid.

    A valid name consists of letters, digits and single inner hyphens, so it is safe in a path, an
    address and a prompt.
    """
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name[:NAME_LENGTH_MAX]!r} cannot be the name of {what}",
            because=f"a name is 1 to {NAME_LENGTH_MAX} letters and digits, with single hyphens between them",
            try_this="for example: ada, night-clerk, Ops2",
            code="name.invalid",
        )
    return name


def _valid_instance(instance: str) -> bool:
    return len(instance) <= NAME_LENGTH_MAX and _INSTANCE.fullmatch(instance) is not None


def _valid_room(room: str) -> bool:
    return 0 < len(room) <= CHANNEL_REST_LENGTH_MAX and _UNPRINTABLE.search(room) is None


def parse(text: str) -> Address:
    """Parse an address, or raise Invalid with a list of the valid forms."""
    kind, _, rest = text.partition(":")
    match kind:
        case "agent":
            name, slash, session = rest.partition("/")
            if slash:
                return Address(AddressKind.AGENT, valid_name(name, what="an agent"), prefix(session))
            return Address(AddressKind.AGENT, valid_name(name, what="an agent"))
        case "person":
            return Address(AddressKind.PERSON, valid_name(rest, what="a person"))
        case "schedule":
            return Address(AddressKind.SCHEDULE, prefix(rest))
        case "channel":
            instance, colon, room = rest.partition(":")
            if colon and _valid_instance(instance) and _valid_room(room):
                return Address(AddressKind.CHANNEL, instance, room)
        case "house" if not rest and text == "house":
            return HOUSE
        case _:
            pass
    raise Invalid(
        f"{text[:80]!r} is not an address",
        because="an address is agent:NAME, agent:NAME/SESSION, person:NAME, schedule:ID or channel:INSTANCE:ROOM",
        try_this="for example: agent:guide",
        code="address.invalid",
    )
