"""Authors of the messages that a run works on, also through a channel or a parent run."""

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
    """Return the owner, or the one person with a linked id who wrote. None for several or unknown authors."""
    # A silent message asks for nothing.
    asks = [letter for letter in letters_of(conn, run) if not letter.silent]
    wrote = {
        OWNER if each.trust is Trust.OWNER else address.person(each.context.person) if each.context.person else None
        for each in asks
    }
    return wrote.pop() if len(wrote) == 1 else None


def speakers(conn: sa.Connection, sender: Address, letters: Iterable[Envelope]) -> tuple[Address, ...]:
    """List the speakers in a channel: as linked people, or else by their own channel address."""
    if sender.kind is not AddressKind.CHANNEL:
        return ()
    spoke = (who_spoke(each, connector=sender.name) for each in said(conn, letters))
    return tuple(dict.fromkeys(each for each in spoke if each is not None))


def who_spoke(letter: Envelope, *, connector: str = "") -> Address | None:
    """Return the person with the linked id, or else the address of the speaker, or None if neither is known."""
    if letter.context.person:
        return address.person(letter.context.person)
    if letter.context.speaker:
        return Address(AddressKind.CHANNEL, connector or letter.sender.name, letter.context.speaker)
    return None


def said(conn: sa.Connection, letters: Iterable[Envelope]) -> Iterator[Envelope]:
    """Yield the envelopes.

    A decision is replaced by those of the run that asked, because a late approval continues its
    work.
    """
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
    """Return the lineage for delegations of a run, including the speakers."""
    if run.lineage is not None:
        return run.lineage
    return replace(run.descent, speakers=speakers(conn, run.sender, letters_of(conn, run)))
