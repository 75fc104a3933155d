"""Find the requesters of a run: the people for whom it works.

They are found through the envelopes that the run answers, and through the run that started it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.delegation import Lineage
from retinue.domain.envelope import Envelope
from retinue.domain.person import Requester, Role
from retinue.domain.run import Run
from retinue.domain.session import OriginKind, Session
from retinue.domain.trust import Trust
from retinue.store.people import people
from retinue.store.runs import processes, runs
from retinue.store.runs.message_authors import OWNER, expand_decisions, get_channel_author, list_envelopes
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions


def get_requesters(
    conn: sa.Connection, session: Session, batch: Iterable[Envelope], lineage: Lineage | None
) -> tuple[Requester, ...]:
    """Return the people for whom a run works.

    If a person is not known, the result contains another address, such as that of the agent that
    sent the message. The result may be empty.
    """
    root = _get_root_requesters(conn, lineage) if lineage is not None else ()
    behind = (
        each for envelope in expand_decisions(conn, batch) for each in _requesters_of(conn, session, envelope, lineage)
    )
    return get_requesters_at(conn, chain(root, behind))


def get_requesters_at(conn: sa.Connection, addresses: Iterable[Address | Requester]) -> tuple[Requester, ...]:
    """Return the people with these addresses as requesters, without duplicates. A `Requester` is kept as it is."""
    found: dict[Address, Requester] = {}
    for who in addresses:
        if isinstance(who, Requester):
            found.setdefault(who.address, who)
        elif who not in found and who.kind is AddressKind.PERSON:
            found[who] = Requester(who, Role.OWNER if who == OWNER else _role(conn, who.name))
        elif who not in found and who.kind is AddressKind.CHANNEL and not who.is_external:
            found[who] = Requester(who)
    return tuple(found.values())


def get_last_requesters(conn: sa.Connection, session: Session) -> tuple[Requester, ...]:
    """Return the authors of the messages in a session's latest run. Only runs started by people or channels count."""
    return get_requesters_at(conn, _last_requesters(conn, session))


def _get_root_requesters(conn: sa.Connection, lineage: Lineage) -> Iterable[Address | Requester]:
    """Return the people for whom the root run of a lineage works.

    If a schedule, an agent or the server wrote to the root run, the people are found through the
    envelopes of the root run.
    """
    if lineage.behalf.kind in (AddressKind.PERSON, AddressKind.CHANNEL):
        return lineage.speakers or (lineage.behalf,)
    root = runs.get(conn, lineage.root)
    session = sessions.get(conn, root.session) if root is not None else None
    if root is None or session is None:  # purged: assume that it was not the owner
        return (Requester(lineage.behalf, Role.MEMBER),)
    return get_requesters(conn, session, list_envelopes(conn, root), None)


def _requesters_of(
    conn: sa.Connection, session: Session, envelope: Envelope, lineage: Lineage | None
) -> Iterator[Address | Requester]:
    sender = envelope.sender
    match sender.kind:
        case AddressKind.PERSON:
            yield sender
        case AddressKind.CHANNEL:
            yield get_channel_author(envelope) or sender
        case AddressKind.SCHEDULE:
            kept = schedules.get(conn, sender.name)
            if kept is not None and kept.schedule.owner.kind is AddressKind.PERSON:
                yield kept.schedule.owner
                return
            if envelope.trust is Trust.PERSON:  # an agent set it for a person who is not the owner
                yield Requester(sender, Role.MEMBER)
            yield from _last_requesters(conn, session)
        case AddressKind.SERVER if lineage is None:
            begun_by = _get_run_of_command(conn, envelope)
            if begun_by is None:
                yield from _last_requesters(conn, session)
            else:
                yield from get_requesters(conn, session, list_envelopes(conn, begun_by), begun_by.lineage)
        case AddressKind.AGENT if lineage is None:  # the agent used its token outside a run: the person is unknown
            yield Requester(sender, Role.MEMBER)
        case AddressKind.AGENT | AddressKind.SERVER:  # the lineage names the person for whom the sending run acted
            return


def _get_run_of_command(conn: sa.Connection, envelope: Envelope) -> Run | None:
    """Return the run that started the command whose end this envelope reports, or None for any other envelope."""
    id_ = processes.reported_process_id(envelope.source, envelope.idempotency_key)
    process = processes.get(conn, id_) if id_ else None
    return runs.get(conn, process.run) if process is not None else None


def _last_requesters(conn: sa.Connection, session: Session) -> Iterator[Address | Requester]:
    """Yield the authors of the messages in a session's latest run. Only runs started by people or channels count.

    A message from the server or a schedule is assumed to continue the work of these people.
    """
    run = runs.get_latest_for_people(conn, session.id)
    batch = list_envelopes(conn, run) if run is not None else []
    if not batch and session.origin.kind is OriginKind.CHAT:  # purged: assume that it came from outside
        yield Requester(address.SERVER_ADDRESS)
    for envelope in expand_decisions(conn, batch):
        if envelope.sender.kind in (AddressKind.PERSON, AddressKind.CHANNEL):
            yield get_channel_author(envelope) or envelope.sender


def _role(conn: sa.Connection, name: str) -> Role | None:
    person = people.find(conn, name)
    return person.role if person is not None else None
