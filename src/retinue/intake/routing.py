"""Decides which session an envelope belongs to, and where its answer goes."""

from __future__ import annotations

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.errors import Invalid
from retinue.domain.session import Origin, OriginKind

OWNER = address.person_address("owner")


def get_default_origin(sender: Address) -> Origin:
    """Return the origin of a sender's default session, in which its envelopes are processed."""
    match sender.kind:
        case AddressKind.AGENT:
            return Origin(OriginKind.AGENT, str(sender))
        case AddressKind.CHANNEL:
            return Origin(OriginKind.CHAT, str(sender))
        case AddressKind.SCHEDULE:
            return Origin(OriginKind.SCHEDULE, str(sender))
        case AddressKind.PERSON:
            return Origin(OriginKind.WEB, str(sender))
        case AddressKind.SERVER:
            return Origin(OriginKind.EXTERNAL, str(sender))


NO_ANSWER = "none"


def get_answer_address(
    sender: Address, *, origin: Origin, kind: EnvelopeKind = EnvelopeKind.MESSAGE, requested: str = ""
) -> Address | None:
    """Return the address for the answer to `sender`, or None if the sender expects no answer.

    `requested` overrides the address; `none` means no answer. A schedule cannot read answers, so they
    go to the person or channel of the session. An agent that sent a message of kind `system` expects
    no answer. The answer then goes to the person or channel of the session, if it has one.
    """
    if requested:
        return None if requested == NO_ANSWER else address.parse_address(requested)
    match sender.kind:
        case AddressKind.SCHEDULE:
            return get_session_address(origin)
        case AddressKind.SERVER:
            return None
        case AddressKind.AGENT if kind is EnvelopeKind.SYSTEM:
            return get_session_address(origin) if origin.kind.is_foreground else None
        case _:
            return sender


def get_session_address(origin: Origin) -> Address:
    """Return the address of the person or channel that a session belongs to, or else the owner's address."""
    if origin.kind.is_foreground:
        # The key of a person's session may be ADDRESS/NAME. The address of a channel may itself
        # contain a slash.
        key = origin.key if origin.kind is OriginKind.CHAT else origin.key.partition("/")[0]
        try:
            return address.parse_address(key)
        except Invalid:
            return OWNER
    return OWNER
