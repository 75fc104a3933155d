"""Whose own words a run works on, where they came by a channel."""

from __future__ import annotations

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.run import Run
from retinue.domain.trust import Trust
from retinue.store import envelopes

OWNER = address.person("owner")


def who_wrote(conn: sa.Connection, run: Run) -> Address | None:
    """The owner, or the one person of the house whose linked id it was. None where several wrote, or nobody we know."""
    held = [envelope for id_ in run.envelopes if (envelope := envelopes.get(conn, id_)) is not None]
    asks = [envelope for envelope in held if not envelope.silent]  # what was only told beside it asks for nothing
    wrote = {
        OWNER if each.trust is Trust.OWNER else address.person(each.context.person) if each.context.person else None
        for each in asks
    }
    return wrote.pop() if len(wrote) == 1 else None
