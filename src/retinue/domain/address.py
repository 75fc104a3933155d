"""Addresses: the sender and recipient of an envelope.

`parse_address` validates an address and returns it in canonical form.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from retinue.domain.ids import SessionId, parse_id_prefix
from retinue.domain.value_errors import AddressInvalid, NameInvalid

NAME_LENGTH_MAX = 64
CHANNEL_LENGTH_MAX = 512
BACKGROUND = "background"
FORMER_SERVER = "house"  # the address of the server before 1.0
EXTERNAL = "external"  # names the connector, runner and reply provider of external agents

_NAME = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_CONNECTOR_NAME = re.compile(r"[a-z][a-z0-9-]*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class AddressKind(StrEnum):
    AGENT = "agent"
    PERSON = "person"
    SCHEDULE = "schedule"
    CHANNEL = "channel"
    SERVER = "server"

    @classmethod
    def _missing_(cls, value: object) -> AddressKind | None:
        return cls.SERVER if value == FORMER_SERVER else None  # in JSON that versions before 1.0 stored


class Address(Struct, frozen=True):
    """The sender or recipient of an envelope.

    The forms are `agent:NAME`, `agent:NAME/SESSION`, `person:NAME`, `schedule:ID`, `channel:CONNECTOR:CHANNEL` and
    `server`.
    """

    kind: AddressKind
    name: str
    rest: str = ""

    def __str__(self) -> str:
        match self.kind:
            case AddressKind.AGENT:
                return f"agent:{self.name}/{self.rest}" if self.rest else f"agent:{self.name}"
            case AddressKind.CHANNEL:
                return f"channel:{self.name}:{self.rest}"
            case AddressKind.SERVER:
                return "server"
            case _:
                return f"{self.kind}:{self.name}"

    @property
    def session(self) -> SessionId | None:
        """The session that an agent address names, or None."""
        return SessionId(self.rest) if self.kind is AddressKind.AGENT and self.rest else None

    @property
    def channel(self) -> str:
        """The part `CONNECTOR:CHANNEL` of a channel address. Empty for any other address."""
        return f"{self.name}:{self.rest}" if self.kind is AddressKind.CHANNEL else ""

    @property
    def is_external(self) -> bool:
        """Whether this address belongs to a session of an external agent."""
        return self.kind is AddressKind.CHANNEL and self.name == EXTERNAL


# The name is still the former one, because this address must equal the one in stored JSON. It is never shown.
SERVER_ADDRESS = Address(AddressKind.SERVER, FORMER_SERVER)


def agent_address(name: str, session: str = "") -> Address:
    return Address(AddressKind.AGENT, name, session)


def external_address(session: str) -> Address:
    return Address(AddressKind.CHANNEL, EXTERNAL, session)


def person_address(name: str) -> Address:
    return Address(AddressKind.PERSON, name)


def validate_name(name: str, *, what: str) -> str:
    """Return `name` if it is valid, or raise Invalid.

    A valid name consists of letters, digits and single inner hyphens, so it is safe in a path, an address and a prompt.
    """
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise NameInvalid(name, kind=what, chars_max=NAME_LENGTH_MAX)
    return name


def _is_connector_name(name: str) -> bool:
    return len(name) <= NAME_LENGTH_MAX and _CONNECTOR_NAME.fullmatch(name) is not None


def _is_channel(channel: str) -> bool:
    return 0 < len(channel) <= CHANNEL_LENGTH_MAX and _UNPRINTABLE.search(channel) is None


def parse_address(text: str) -> Address:
    """Parse an address, or raise Invalid with a list of the valid forms."""
    kind, _, rest = text.partition(":")
    match kind:
        case "agent":
            name, slash, session = rest.partition("/")
            if slash:
                return Address(AddressKind.AGENT, validate_name(name, what="an agent"), parse_id_prefix(session))
            return Address(AddressKind.AGENT, validate_name(name, what="an agent"))
        case "person":
            return Address(AddressKind.PERSON, validate_name(rest, what="a person"))
        case "schedule":
            return Address(AddressKind.SCHEDULE, parse_id_prefix(rest))
        case "channel":
            connector, colon, channel = rest.partition(":")
            if colon and _is_connector_name(connector) and _is_channel(channel):
                return Address(AddressKind.CHANNEL, connector, channel)
        case "server" | "house" if not rest and text == kind:
            return SERVER_ADDRESS
        case _:
            pass
    raise AddressInvalid(text)
