"""End envelopes with exactly one outcome each, and advance the schedule of an envelope that was an occurrence.

Every accepted envelope ends here, so that no way of ending can forget the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.envelope import Outcome
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.schedules import schedules


def settle(
    page: Page,
    ids: Sequence[str],
    outcome: Outcome,
    *,
    because: str,
    answer: str | None = None,
    silent: bool = False,
) -> None:
    """Settle envelopes. A second outcome for one of them violates a constraint."""
    envelopes.settle(page.conn, ids, outcome, because=because, at_ms=page.at_ms, answer=answer, silent=silent)
    schedules.settled(page, ids, outcome, because=because)
