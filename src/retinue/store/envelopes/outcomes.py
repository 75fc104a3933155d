"""Settle envelopes with exactly one outcome each. If an envelope was an occurrence of a schedule, advance the schedule.

Every accepted envelope is settled here, so that the schedule is never forgotten.
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
) -> None:
    """Settle envelopes. The database rejects a second outcome for the same envelope."""
    envelopes.settle(tx.conn, ids, outcome, because=because, at_ms=tx.at_ms, answer=answer, silent=silent)
    schedules.record_outcomes(tx, ids, outcome, because=because)
