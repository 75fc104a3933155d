"""Whose own words a run works on, where they came by a channel; also where it works for another run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from msgspec.structs import replace

from retinue.domain import address
from retinue.domain.address import Address, AddressKind
from retinue.domain.delegation import Lineage
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.run import Run
from retinue.domain.trust import Trust
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals, runs

OWNER = address.person("owner")


def who_wrote(conn: sa.Connection, run: Run) -> Address | None:
    """The owner, or the one person of the house whose linked id it was. None where several wrote, or nobody we know."""
    # What was only told beside it asks for nothing.
    asks = [letter for letter in letters_of(conn, run) if not letter.silent]
    wrote = {
        OWNER if each.trust is Trust.OWNER else address.person(each.context.person) if each.context.person else None
        for each in asks
    }
    return wrote.pop() if len(wrote) == 1 else None


def speakers(conn: sa.Connection, sender: Address, letters: Iterable[Envelope]) -> tuple[Address, ...]:
    """Whoever spoke in a room: as the person they are here, or else by the address at which they alone are met."""
    if sender.kind is not AddressKind.CHANNEL:
        return ()
    spoke = (who_spoke(each, connector=sender.name) for each in said(conn, letters))
    return tuple(dict.fromkeys(each for each in spoke if each is not None))


def who_spoke(letter: Envelope, *, connector: str = "") -> Address | None:
    """The person whose linked id it was, or else the address of the speaker alone. None where neither is known."""
    if letter.context.person:
        return address.person(letter.context.person)
    if letter.context.speaker:
        return Address(AddressKind.CHANNEL, connector or letter.sender.name, letter.context.speaker)
    return None


def said(conn: sa.Connection, letters: Iterable[Envelope]) -> Iterator[Envelope]:
    """The letters themselves; of a decision, those of the run that asked for it: a late yes goes on with their work."""
    waiting, seen = list(letters), set[str]()
    while waiting:
        letter = waiting.pop(0)
        if letter.id in seen:
            continue
        seen.add(letter.id)
        if letter.kind is not Kind.DECISION:
            yield letter
            continue
        approval = approvals.get(conn, letter.context.approval)
        asked = runs.get(conn, approval.run) if approval is not None else None
        waiting += letters_of(conn, asked) if asked is not None else ()


def letters_of(conn: sa.Connection, run: Run) -> list[Envelope]:
    return [letter for id_ in run.envelopes if (letter := envelopes.get(conn, id_)) is not None]


def descent(conn: sa.Connection, run: Run) -> Lineage:
    """What bounds whoever a run hands work to, with those who spoke."""
    if run.lineage is not None:
        return run.lineage
    return replace(run.descent, speakers=speakers(conn, run.sender, letters_of(conn, run)))
