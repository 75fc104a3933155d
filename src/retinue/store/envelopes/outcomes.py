"""Settle envelopes with exactly one outcome each, and advance the schedules that sent them.

Every accepted envelope must be settled here. Otherwise, the schedule that sent it would not continue.
"""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.envelope import Outcome
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.schedules import schedules


def settle(
    tx: Transaction,
    ids: Sequence[str],
    outcome: Outcome,
    *,
    because: str,
    answer: str | None = None,
    silent: bool = False,
    by_schedule: bool = True,
) -> None:
    """Settle envelopes, and create the next occurrences of their schedules.

    The database rejects a second outcome for the same envelope. `by_schedule` is false if the caller
    knows that no schedule sent any of them, which saves a query for each.
    """
    envelopes.settle(tx.conn, ids, outcome, because=because, at_ms=tx.at_ms, answer=answer, silent=silent)
    if by_schedule:
        schedules.record_outcomes(tx, ids, outcome, because=because)
