"""Model calls for tests of spending: runs, prices and days, and each step of a call in its own commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.budget import (
    NO_BUDGET_LIMITS,
    BudgetLimits,
    BudgetPeriod,
    ModelCallReservation,
    ModelCallReservationRequest,
)
from retinue.domain.ids import RunId, SessionId
from retinue.domain.model import ModelRef, Price
from retinue.domain.record import Usage
from retinue.domain.run import Run, RunStatus
from retinue.domain.session import LaneKind
from retinue.domain.times import from_ms
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.ledger.ledger_checks import RULES, LedgerFinding
from retinue.store.runs import budget_reservations

T = TypeVar("T")

CLAUDE = ModelRef("anthropic", "claude")
PRICE = Price(input=3_000_000, output=15_000_000)  # 3 and 15 millionths per token
TODAY = BudgetPeriod(day=20_772, month_first_day=20_758, month_last_day=20_787)
TOMORROW = BudgetPeriod(day=20_773, month_first_day=20_758, month_last_day=20_787)
AT_MS = 1_794_700_000_000

_, (_unbalanced_calls, _, _find_wrong_sums) = next(
    (rule.name, rule.violations) for rule in RULES if rule.name == "charged"
)


def run_of(name: str, *, agent: str = "ada", sender: str = "person:maria") -> Run:
    return Run(
        id=RunId(name.rjust(32, "0")),
        session=SessionId("5" * 32),
        agent=agent,
        lane=LaneKind.MAIN,
        epoch=1,
        status=RunStatus.RUNNING,
        sender=address.parse_address(sender),
        envelopes=(),
        first_seq=1,
        attempt=1,
        started_at=from_ms(AT_MS),
    )


def terms(
    *,
    price: Price | None = PRICE,
    input_tokens: int = 1_000,
    output_tokens: int = 2_000,
    caps: BudgetLimits = NO_BUDGET_LIMITS,
    ref: ModelRef = CLAUDE,
) -> ModelCallReservationRequest:
    return ModelCallReservationRequest(
        ref=ref, price=price, input_tokens_max=input_tokens, output_tokens_max=output_tokens, limits=caps
    )


@dataclass
class SpendingStore:
    """A store with the operations on money that the tests need."""

    store: Store
    days: BudgetPeriod = TODAY
    at_ms: int = AT_MS

    async def write(self, body: Callable[[sa.Connection], T]) -> T:
        def in_transaction(conn: sa.Connection) -> T:
            tx = Transaction(conn, self.at_ms)
            done = body(conn)
            tx.close()
            return done

        return await self.store.write(in_transaction, point="test")

    async def reserve(
        self, run: Run, asked: ModelCallReservationRequest, *, turn: int = 0, attempt: int = 1, root: str = ""
    ) -> ModelCallReservation:
        return await self.write(
            partial(budget_reservations.reserve, run=run, terms=asked, **self._row_key(run, turn, attempt, root))
        )

    async def settle(
        self,
        run: Run,
        asked: ModelCallReservationRequest,
        usage: Usage,
        *,
        turn: int = 0,
        attempt: int = 1,
        root: str = "",
    ) -> int:
        where = self._row_key(run, turn, attempt, root)
        return await self.write(partial(budget_reservations.settle, run=run, terms=asked, usage=usage, **where))

    async def fail(
        self,
        run: Run,
        asked: ModelCallReservationRequest,
        *,
        unknown: bool,
        turn: int = 0,
        attempt: int = 1,
        error: str = "it is busy",
    ) -> None:
        failure = {"failure": "overloaded", "next_action": "retry", "error": error, "unknown": unknown}
        where = self._row_key(run, turn, attempt, "")
        await self.write(partial(budget_reservations.fail, run=run, terms=asked, **failure, **where))

    def _row_key(self, run: Run, turn: int, attempt: int, root: str) -> dict[str, Any]:
        key = {"turn": turn, "index": 0, "attempt": attempt}
        return key | {"days": self.days, "root": root or run.id, "at_ms": self.at_ms}

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return await self.store.scan(lambda conn: [tuple(row) for row in conn.execute(sa.text(sql))])

    async def ledger_findings(self) -> list[LedgerFinding]:
        return await self.store.scan(ledger_findings)


def ledger_findings(conn: sa.Connection) -> list[LedgerFinding]:
    """Return the findings of the ledger about money."""
    assert isinstance(_unbalanced_calls, sa.Select) and callable(_find_wrong_sums)
    found = [LedgerFinding(row.id, row.because) for row in conn.execute(_unbalanced_calls)]
    return [*found, *_find_wrong_sums(conn)]
