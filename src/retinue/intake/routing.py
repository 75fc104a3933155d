"""Decides which session an envelope belongs to, and where its answer goes."""

from __future__ import annotations

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.errors import Invalid
from retinue.domain.session import Origin, OriginKind

OWNER = address.person_address("owner")


def get_default_origin(sender: Address) -> Origin:
    """Return the default session for a sender's envelopes. Each sender has one."""
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
    """Return the address for the answer to `sender`, or None if no answer is expected.

    `requested` overrides it. A schedule cannot read answers, so they go to the address behind the
    session. An agent that sent a message (`kind` system) expects none. The answer goes to the
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
    """Return the address behind a session. It is the owner if there is none, or if the session's key is no address."""
    if origin.kind.is_foreground:
        # A person's sessions have a name after the address; a channel's address may contain a slash
        # itself.
        key = origin.key if origin.kind is OriginKind.CHAT else origin.key.partition("/")[0]
        try:
            return address.parse_address(key)
        except Invalid:
            return OWNER
    return OWNER
