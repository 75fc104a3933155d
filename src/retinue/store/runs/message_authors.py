"""Find the authors of the messages that a run works on, including messages from channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.delegation import Lineage
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.run import Run
from retinue.domain.trust import Trust
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, runs

OWNER = address.person_address("owner")


def get_author(conn: sa.Connection, run: Run) -> Address | None:
    """Return the one person who wrote all messages of a run, or None.

    Only the owner and people with a linked platform id are recognized. Silent messages are ignored.
    """
    # A silent message does not ask for work, so its author does not count.
    asks = [envelope for envelope in list_envelopes(conn, run) if not envelope.silent]
    wrote = {
        OWNER
        if each.trust is Trust.OWNER
        else address.person_address(each.context.person)
        if each.context.person
        else None
        for each in asks
    }
    return wrote.pop() if len(wrote) == 1 else None


def list_speakers(conn: sa.Connection, sender: Address, batch: Iterable[Envelope]) -> tuple[Address, ...]:
    """List the authors of the messages in a batch that came from a channel, without duplicates.

    An author is a linked person or, without a link, an address on the connector.
    """
    if sender.kind is not AddressKind.CHANNEL:
        return ()
    spoke = (get_channel_author(each, connector=sender.name) for each in expand_decisions(conn, batch))
    return tuple(dict.fromkeys(each for each in spoke if each is not None))


def get_channel_author(envelope: Envelope, *, connector: str = "") -> Address | None:
    """Return the author of a message from a channel.

    This is the person who is linked to the sender's platform id. Without a link, it is the sender's
    address on the connector, or None if the sender is not known.
    """
    if envelope.context.person:
        return address.person_address(envelope.context.person)
    if envelope.context.sender_id:
        return Address(AddressKind.CHANNEL, connector or envelope.sender.name, envelope.context.sender_id)
    return None


def expand_decisions(conn: sa.Connection, batch: Iterable[Envelope]) -> Iterator[Envelope]:
    """Yield the envelopes, but replace each decision on an approval.

    It is replaced by the envelopes of the run that asked for the approval. The run that reads the
    decision continues the work on these envelopes.
    """
    waiting, seen = list(batch), set[str]()
    while waiting:
        envelope = waiting.pop(0)
        if envelope.id in seen:
            continue
        seen.add(envelope.id)
        if envelope.kind is not EnvelopeKind.DECISION:
            yield envelope
            continue
        approval = approvals.get(conn, envelope.context.approval)
        asked = runs.get(conn, approval.run) if approval is not None else None
        waiting += list_envelopes(conn, asked) if asked is not None else ()


def list_envelopes(conn: sa.Connection, run: Run) -> list[Envelope]:
    return [envelope for id_ in run.envelopes if (envelope := envelopes.get(conn, id_)) is not None]


def get_lineage(conn: sa.Connection, run: Run) -> Lineage:
    """Return the lineage to store with the delegations of a run, including the people who wrote in its channel."""
    if run.lineage is not None:
        return run.lineage
    return replace(run.effective_lineage, speakers=list_speakers(conn, run.sender, list_envelopes(conn, run)))
