"""Decides which session an envelope belongs to, and where its answer goes."""

from __future__ import annotations

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.errors import Invalid
from retinue.domain.session import Origin, OriginKind

OWNER = address.person_address("owner")


def get_default_origin(sender: Address) -> Origin:
    """Return what the default session of a sender's envelopes belongs to. Each sender has one default session."""
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

    If `requested` is set, it overrides this. A schedule cannot read answers, so they go to the address behind the
    session. An agent that sent a message of kind `system` expects no answer. In that case, the answer goes to the
    person of that session, or nowhere.
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
    """Return the address of the person or channel that a session belongs to.

    If it has no such address, return the owner.
    """
    if origin.kind.is_foreground:
        # A person's sessions have a name after the address; a channel's address may contain a slash
        # itself.
        key = origin.key if origin.kind is OriginKind.CHAT else origin.key.partition("/")[0]
        try:
            return address.parse_address(key)
        except Invalid:
            return OWNER
    return OWNER
