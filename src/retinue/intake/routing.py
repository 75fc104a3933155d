"""Where an envelope belongs: which conversation it opens or continues, and where its answer goes."""

from __future__ import annotations

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import Kind
from retinue.domain.errors import Invalid
from retinue.domain.session import Origin, OriginKind

OWNER = address.person("owner")


def origin_of(sender: Address) -> Origin:
    """The conversation a sender's mail belongs to where the door did not say: one for each sender."""
    match sender.kind:
        case AddressKind.AGENT:
            return Origin(OriginKind.AGENT, str(sender))
        case AddressKind.CHANNEL:
            return Origin(OriginKind.CHAT, str(sender))
        case AddressKind.SCHEDULE:
            return Origin(OriginKind.SCHEDULE, str(sender))
        case AddressKind.PERSON:
            return Origin(OriginKind.WEB, str(sender))
        case AddressKind.HOUSE:
            return Origin(OriginKind.EXTERNAL, str(sender))


NOWHERE = "none"


def answer_address(sender: Address, *, origin: Origin, kind: Kind = Kind.MESSAGE, asked: str = "") -> Address | None:
    """Where the answer to `sender` goes. None where nobody waits for one.

    A schedule has no ears of its own: what it set going is told where it `asked` for it, or else to whoever the session
    belongs to. An agent that told something (`kind` system) did not ask: what comes of it is for the person who sits
    there, or for nobody.
    """
    if asked:
        return None if asked == NOWHERE else address.parse(asked)
    match sender.kind:
        case AddressKind.SCHEDULE:
            return who_listens(origin)
        case AddressKind.HOUSE:
            return None
        case AddressKind.AGENT if kind is Kind.SYSTEM:
            return who_listens(origin) if origin.kind.foreground else None
        case _:
            return sender


def who_listens(origin: Origin) -> Address:
    """Whoever sits behind a session; the owner where nobody does, or where its door names its rooms in its own way."""
    if origin.kind.foreground:
        # A person's own conversations bear a name behind theirs; a room's address may hold a slash of its own.
        key = origin.key if origin.kind is OriginKind.CHAT else origin.key.partition("/")[0]
        try:
            return address.parse(key)
        except Invalid:
            return OWNER
    return OWNER
