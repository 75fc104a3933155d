"""Spending never exceeds a budget, whatever runs reserve at once and however their calls end, on both databases."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store.model_spending import AT_MS, TODAY, SpendingStore, ledger_findings, run_of
from stores import POSTGRES, SQLITE, create_store_location

from retinue.domain.budget import BudgetLimits, BudgetPeriod, BudgetSpent, ModelCallReservationRequest
from retinue.domain.budget_reservation import OUTPUT_TOKENS_MIN
from retinue.domain.model import ModelRef, Price
from retinue.domain.record import NO_USAGE, Usage
from retinue.domain.run import Run
from retinue.store.core import sqlite
from retinue.store.core.connection import TransactionBody
from retinue.store.core.transaction import Transaction
from retinue.store.open_store import prepare_sqlite
from retinue.store.runs import budget_reservations

T = TypeVar("T")

RUNS = {SQLITE: 400, POSTGRES: 200}
AGENTS, PEOPLE, TREES = ("ada", "bo", "cy"), ("maria", "noor"), 20
CAPS = BudgetLimits(
    run_microusd=200_000,
    tree_microusd=1_200_000,
    agent_day_microusd=4_500_000,
    agent_month_microusd=4_600_000,
    person_day_microusd=5_500_000,
    person_month_microusd=5_600_000,
    instance_day_microusd=10_000_000,
    instance_month_microusd=10_100_000,
)
PRICES = (
    (ModelRef("anthropic", "claude"), Price(input=3_000_000, output=15_000_000, cache_write=3_750_000)),
    (ModelRef("openai", "mini"), Price(input=250_000, output=2_000_000, cache_read=25_000)),
    (ModelRef("other", "dear"), Price(input=15_000_000, output=75_000_000, call=500)),
)
SCOPES = {
    "run": ("run", CAPS.run_microusd),
    "tree": ("root_run", CAPS.tree_microusd),
    "agent": ("agent", CAPS.agent_day_microusd),
    "person": ("person", CAPS.person_day_microusd),
    "server": ("'server'", CAPS.instance_day_microusd),
}


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A model call that has not ended yet."""

    run: Run
    root: str
    turn: int
    attempt: int
    terms: ModelCallReservationRequest
    output_tokens: int
    days: BudgetPeriod

    def row_key(self) -> dict[str, Any]:
        key: dict[str, Any] = {"turn": self.turn, "index": 0, "attempt": self.attempt}
        return key | {"days": self.days, "root": self.root, "at_ms": AT_MS}

    def ends(self, how: str, share: float) -> TransactionBody[Any]:
        """Return the body that writes the end of the call."""
        about: dict[str, Any] = {"run": self.run, "terms": self.terms, **self.row_key()}
        failed = {"failure": "server", "next_action": "next_model", "error": "it broke"}
        bound, used = self.terms.input_tokens_max, int(self.output_tokens * share)
        match how:
            case "all of it":
                cached = int(bound * share)
                usage = Usage(input_tokens=bound, output_tokens=self.output_tokens, cache_write_tokens=cached)
            case "some of it":
                usage = Usage(input_tokens=int(bound * share), output_tokens=used)
            case "estimated":
                usage = Usage(input_tokens=1, output_tokens=1, estimated=True)
            case "unreported":
                usage = NO_USAGE
            case "beyond":
                usage = Usage(input_tokens=bound * 3, output_tokens=used)
            case "failed":
                return partial(budget_reservations.fail, unknown=False, **failed, **about)
            case "broken off":
                return partial(budget_reservations.fail, unknown=True, **failed, **about)
            case _:  # a crash, or a cancellation
                return partial(budget_reservations.charge_interrupted_calls, run=self.run.id)
        return partial(budget_reservations.settle, usage=usage, **about)


CALL_ENDINGS = ("all of it", "some of it", "estimated", "unreported", "failed", "broken off", "crash")


def exceeded_budgets(conn: sa.Connection, days: BudgetPeriod = TODAY) -> list[tuple[str, int]]:
    """Return the scopes that spent or hold more than their budget plus what calls cost beyond their reservation."""
    found: list[tuple[str, int]] = []
    for name, (column, cap) in SCOPES.items():
        asked = sa.text(
            f"SELECT {column}, sum(settled_microusd + held_microusd), "
            "sum(CASE WHEN settled_microusd > reserved_microusd THEN settled_microusd - reserved_microusd ELSE 0 END) "
            f"FROM model_calls WHERE day = {days.day} GROUP BY 1"
        )
        assert cap is not None
        found += [(f"{name} {who}", spent - cap) for who, spent, excess in conn.execute(asked) if spent > cap + excess]
    return found


# Many at once


@dataclass
class ConcurrentRuns:
    """Runs that spend from the same budgets, each in its own task."""

    spending_store: SpendingStore
    chance: random.Random
    ends: tuple[str, ...] = CALL_ENDINGS
    refused: int = 0
    reduced: int = 0
    made: int = 0
    exceeded_budgets: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def run_turns(self, n: int) -> None:
        """Take a few turns. Each is tried until a model replies or the budget is used up."""
        agent, person = self.chance.choice(AGENTS), self.chance.choice(PEOPLE)
        run, root = run_of(f"{n:x}", agent=agent, sender=f"person:{person}"), run_of(f"{n % TREES:x}").id
        for turn in range(self.chance.randint(1, 4)):
            for attempt in range(1, self.chance.randint(2, 4)):
                how = self.chance.choice(self.ends)
                if not await self.call(run, root, turn, attempt, how):
                    return
                if how not in ("failed", "broken off", "crash"):
                    break

    async def call(self, run: Run, root: str, turn: int, attempt: int, how: str) -> bool:
        ref, price = self.chance.choice(PRICES)
        asked = ModelCallReservationRequest(
            ref=ref,
            price=price,
            input_tokens_max=self.chance.randint(1, 4_000),
            output_tokens_max=self.chance.choice((500, 2_000, 8_192)),
            limits=CAPS,
        )
        made = OpenCall(run, root, turn, attempt, asked, asked.output_tokens_max, TODAY)
        try:
            granted = await self.spending_store.write(
                partial(budget_reservations.reserve, run=run, terms=asked, **made.row_key())
            )
        except BudgetSpent:
            self.refused += 1
            return False
        assert granted.output_tokens_max >= min(OUTPUT_TOKENS_MIN, asked.output_tokens_max)
        self.reduced += granted.output_tokens_max < asked.output_tokens_max
        self.made += 1
        for _ in range(self.chance.randint(0, 3)):
            await asyncio.sleep(0)
        made = OpenCall(run, root, turn, attempt, asked, granted.output_tokens_max, TODAY)
        await self.spending_store.write(made.ends(how, self.chance.random()))
        if self.made % 50 == 0:
            self.exceeded_budgets += await self.spending_store.store.scan(exceeded_budgets)
        return True


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
@pytest.mark.parametrize("seed", [1, 2])
async def test_hundreds_of_concurrent_runs_never_exceed_any_budget(
    kind: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with create_store_location(kind, request, tmp_path).open() as store:
        concurrent_runs = ConcurrentRuns(SpendingStore(store), random.Random(seed))
        await asyncio.gather(*(concurrent_runs.run_turns(n) for n in range(RUNS[kind])))
        assert concurrent_runs.exceeded_budgets == [] == await store.scan(exceeded_budgets)
        assert await store.scan(ledger_findings) == []
        [(settled, held)] = await concurrent_runs.spending_store.rows(
            "SELECT sum(settled_microusd), sum(held_microusd) FROM spending"
        )
        [(beyond,)] = await concurrent_runs.spending_store.rows(
            "SELECT count(*) FROM model_calls WHERE released_microusd < 0"
        )
    assert held == 0
    assert beyond == 0, "no call within its limits cost more than its reservation"
    cap = CAPS.instance_day_microusd
    assert cap is not None
    assert cap * 0.9 < settled <= cap, "the budget was reached, otherwise this proves nothing"
    assert concurrent_runs.refused > 20 and concurrent_runs.reduced > 5 and concurrent_runs.made > 100, (
        "both happened often"
    )


async def test_the_cost_of_a_call_over_its_budget_reservation_is_recorded_and_later_calls_are_refused(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with create_store_location(SQLITE, request, tmp_path).open() as store:
        concurrent_runs = ConcurrentRuns(SpendingStore(store), random.Random(3), ends=("beyond", "all of it", "crash"))
        await asyncio.gather(*(concurrent_runs.run_turns(n) for n in range(RUNS[SQLITE])))
        assert concurrent_runs.exceeded_budgets == [] == await store.scan(exceeded_budgets)
        assert await store.scan(ledger_findings) == []
        [(beyond,)] = await concurrent_runs.spending_store.rows(
            "SELECT count(*) FROM model_calls WHERE released_microusd < 0"
        )
        assert beyond > 5

        price, caps = Price(input=1_000_000), BudgetLimits(person_day_microusd=50_000)
        asked = ModelCallReservationRequest(ref=ModelRef("", "x"), price=price, input_tokens_max=10_000, limits=caps)
        runs = [run_of(f"b{n}", sender="person:gus") for n in range(5)]
        await asyncio.gather(*(concurrent_runs.spending_store.reserve(run, asked) for run in runs))
        await concurrent_runs.spending_store.settle(runs[0], asked, Usage(input_tokens=30_000))
        for run in runs[1:]:
            await concurrent_runs.spending_store.settle(run, asked, Usage(input_tokens=10_000))
        [(settled,)] = await concurrent_runs.spending_store.rows(
            "SELECT sum(settled_microusd) FROM spending WHERE person = 'gus'"
        )
        assert settled == 70_000, "one call's excess, and no more"
        with pytest.raises(BudgetSpent):
            await concurrent_runs.spending_store.reserve(run_of("c", sender="person:gus"), asked)


async def test_simultaneous_reservations_are_granted_only_up_to_the_budget(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """SQLite commits all of these in one group: each must see what the earlier ones in the group hold."""
    price = Price(call=1_000)
    asked = ModelCallReservationRequest(
        ref=ModelRef("", "x"), price=price, limits=BudgetLimits(instance_day_microusd=37_500)
    )
    async with create_store_location(SQLITE, request, tmp_path).open() as store:
        spending_store = SpendingStore(store)
        ends = await asyncio.gather(
            *(spending_store.reserve(run_of(f"{n}"), asked) for n in range(300)), return_exceptions=True
        )
    assert sum(isinstance(end, BudgetSpent) for end in ends) == 300 - 37


# Any calls in any order


@pytest.fixture(scope="module")
def conn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Connection]:
    path = tmp_path_factory.mktemp("property") / "retinue.db"
    prepare_sqlite(path)
    with closing(sqlite.connect(path, writable=True)) as made:
        yield made


acts = st.lists(
    st.tuples(
        st.integers(0, 5),  # which run
        st.integers(0, 2),  # which model
        st.integers(0, 6_000),  # its input
        st.integers(0, 10_000),  # its output
        st.sampled_from((*CALL_ENDINGS, "beyond", "later", "later")),
        st.floats(0, 1),
    ),
    max_size=60,
)
limit_strategies = st.none() | st.integers(0, 1_500_000)
day_numbers = count(1)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    acts=acts,
    run=limit_strategies,
    tree=limit_strategies,
    agent=limit_strategies,
    person=limit_strategies,
    server=limit_strategies,
)
def test_in_any_order_of_calls_every_budget_holds_except_for_cost_over_a_reservation(
    conn: sa.Connection,
    acts: list[tuple[int, int, int, int, str, float]],
    run: int | None,
    tree: int | None,
    agent: int | None,
    person: int | None,
    server: int | None,
) -> None:
    day = next(day_numbers)  # a day for each example, so that examples do not affect each other
    days = BudgetPeriod(day=day, month_first_day=day, month_last_day=day)
    caps = BudgetLimits(
        run_microusd=run,
        tree_microusd=tree,
        agent_day_microusd=agent,
        person_month_microusd=person,
        instance_day_microusd=server,
    )
    runs = [run_of(f"{day:x}{n:x}", agent=f"a{n % 2}", sender=f"person:p{n % 3}") for n in range(6)]
    open_calls: list[tuple[OpenCall, float]] = []
    turns = count()
    for which, model, input_tokens, output_tokens, how, share in acts:
        ref, price = PRICES[model]
        asked = ModelCallReservationRequest(
            ref=ref, price=price, input_tokens_max=input_tokens, output_tokens_max=output_tokens, limits=caps
        )
        root = runs[which % 2].id
        made = OpenCall(runs[which], root, next(turns), 1, asked, output_tokens, days)
        left = smallest_remaining_budget(conn, made, caps)
        try:
            granted = commit(conn, partial(budget_reservations.reserve, run=made.run, terms=asked, **made.row_key()))
        except BudgetSpent:
            pass
        else:
            assert left is None or granted.reserved_microusd <= left, "no more than the rest is reserved"
            made = OpenCall(made.run, root, made.turn, 1, asked, granted.output_tokens_max, days)
            if how == "later":
                open_calls.append((made, share))
            elif how == "crash":  # ends all other open calls of this run, too
                commit(conn, made.ends(how, share))
                open_calls = [each for each in open_calls if each[0].run.id != made.run.id]
            else:
                commit(conn, made.ends(how, share))
        if open_calls and share > 0.5:
            late, other = open_calls.pop(0)
            commit(conn, late.ends("all of it", other))
    for late, share in open_calls:
        commit(conn, late.ends("some of it", share))
    assert ledger_findings(conn) == []


def smallest_remaining_budget(conn: sa.Connection, made: OpenCall, caps: BudgetLimits) -> int | None:
    """Return the least that any budget has left, counted from the calls themselves."""
    scopes = (
        ("run", made.run.id, caps.run_microusd),
        ("root_run", made.root, caps.tree_microusd),
        ("agent", made.run.agent, caps.agent_day_microusd),
        ("person", made.run.sender.name, caps.person_month_microusd),
        ("day", made.days.day, caps.instance_day_microusd),
    )
    left: list[int] = []
    for column, value, cap in scopes:
        if cap is not None:
            asked = sa.text(
                "SELECT coalesce(sum(settled_microusd + held_microusd), 0) FROM model_calls "
                f"WHERE day = :day AND {column} = :value"
            )
            left.append(cap - conn.execute(asked, {"day": made.days.day, "value": value}).scalar_one())
    return min(left, default=None)


def commit(conn: sa.Connection, body: TransactionBody[T]) -> T:
    raw: Any = conn.connection.dbapi_connection
    raw.execute("BEGIN")
    try:
        tx = Transaction(conn, AT_MS)
        done = body(conn)
        tx.close()
    except BaseException:
        raw.execute("ROLLBACK")
        raise
    raw.execute("COMMIT")
    return done
