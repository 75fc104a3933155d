"""On whose behalf a run works: the people behind the envelopes it answers, and behind the run that started it."""

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
from retinue.store.runs.message_authors import OWNER, letters_of, said, who_spoke
from retinue.store.schedules import schedules
from retinue.store.sessions import sessions


def requesters(
    conn: sa.Connection, session: Session, letters: Iterable[Envelope], lineage: Lineage | None
) -> tuple[Requester, ...]:
    """Empty where no person asked for it: an agent on its own, or the server itself."""
    root = _at_the_root(conn, lineage) if lineage is not None else ()
    behind = (each for letter in said(conn, letters) for each in _behind(conn, session, letter, lineage))
    return requesters_at(conn, chain(root, behind))


def requesters_at(conn: sa.Connection, addresses: Iterable[Address | Requester]) -> tuple[Requester, ...]:
    """The people at these addresses, each once. One that is known already is taken as it is."""
    found: dict[Address, Requester] = {}
    for who in addresses:
        if isinstance(who, Requester):
            found.setdefault(who.address, who)
        elif who not in found and who.kind is AddressKind.PERSON:
            found[who] = Requester(who, Role.OWNER if who == OWNER else _role(conn, who.name))
        elif who not in found and who.kind is AddressKind.CHANNEL and not who.is_external:
            found[who] = Requester(who)
    return tuple(found.values())


def requesters_in(conn: sa.Connection, session: Session) -> tuple[Requester, ...]:
    """Who spoke last in a session."""
    return requesters_at(conn, _last_asked(conn, session))


def _at_the_root(conn: sa.Connection, lineage: Lineage) -> Iterable[Address | Requester]:
    """The people behind the run with which a tree began. Where a schedule, an agent or the server wrote to that one,
    its envelopes say for whom."""
    if lineage.behalf.kind in (AddressKind.PERSON, AddressKind.CHANNEL):
        return lineage.speakers or (lineage.behalf,)
    root = runs.get(conn, lineage.root)
    session = sessions.get(conn, root.session) if root is not None else None
    if root is None or session is None:  # purged since: not the owner, for all we know
        return (Requester(lineage.behalf, Role.MEMBER),)
    return requesters(conn, session, letters_of(conn, root), None)


def _behind(
    conn: sa.Connection, session: Session, letter: Envelope, lineage: Lineage | None
) -> Iterator[Address | Requester]:
    sender = letter.sender
    match sender.kind:
        case AddressKind.PERSON:
            yield sender
        case AddressKind.CHANNEL:
            yield who_spoke(letter) or sender
        case AddressKind.SCHEDULE:
            kept = schedules.get(conn, sender.name)
            if kept is not None and kept.schedule.owner.kind is AddressKind.PERSON:
                yield kept.schedule.owner
                return
            if letter.trust is Trust.PERSON:  # an agent set it for a person who is not the owner
                yield Requester(sender, Role.MEMBER)
            yield from _last_asked(conn, session)
        case AddressKind.HOUSE if lineage is None:
            begun_by = _of_command(conn, letter)
            if begun_by is None:
                yield from _last_asked(conn, session)
            else:
                yield from requesters(conn, session, letters_of(conn, begun_by), begun_by.lineage)
        case AddressKind.AGENT if lineage is None:  # by its token, outside of any run: for whom, nobody can tell
            yield Requester(sender, Role.MEMBER)
        case AddressKind.AGENT | AddressKind.HOUSE:  # for whom the run that wrote it worked is in the lineage
            return


def _of_command(conn: sa.Connection, letter: Envelope) -> Run | None:
    """The run that began the command whose end a letter tells; None for any other letter."""
    id_ = processes.told_by(letter.source, letter.key)
    process = processes.get(conn, id_) if id_ else None
    return runs.get(conn, process.run) if process is not None else None


def _last_asked(conn: sa.Connection, session: Session) -> Iterator[Address | Requester]:
    """Who spoke last in a session: what the server or the clock writes there goes on with their work."""
    run = runs.latest_for_people(conn, session.id)
    letters = letters_of(conn, run) if run is not None else []
    if not letters and session.origin.kind is OriginKind.CHAT:  # purged since: it was someone outside, for all we know
        yield Requester(address.HOUSE)
    for letter in said(conn, letters):
        if letter.sender.kind in (AddressKind.PERSON, AddressKind.CHANNEL):
            yield who_spoke(letter) or letter.sender


def _role(conn: sa.Connection, name: str) -> Role | None:
    person = people.find(conn, name)
    return person.role if person is not None else None
