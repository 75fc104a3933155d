"""Spend never exceeds a cap: whatever many runs ask for at once, however their calls end, on either database."""

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
from store.model_spending import AT_MS, TODAY, Till, run_of, wrong
from stores import POSTGRES, SQLITE, place_of

from retinue.domain.budget_caps import OUTPUT_TOKENS_MIN
from retinue.domain.model import ModelRef, Price
from retinue.domain.money import BudgetLimits, BudgetPeriod, BudgetSpent, ModelCallReservationRequest
from retinue.domain.record import NO_USAGE, Usage
from retinue.domain.run import Run
from retinue.store.core import sqlite
from retinue.store.core.connection import TransactionBody
from retinue.store.core.transaction import Transaction
from retinue.store.open_store import prepare_sqlite
from retinue.store.runs import money

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
    "tree": ("root", CAPS.tree_microusd),
    "agent": ("agent", CAPS.agent_day_microusd),
    "person": ("person", CAPS.person_day_microusd),
    "house": ("'house'", CAPS.instance_day_microusd),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A call under way."""

    run: Run
    root: str
    turn: int
    attempt: int
    terms: ModelCallReservationRequest
    output_tokens: int
    days: BudgetPeriod

    def where(self) -> dict[str, Any]:
        key: dict[str, Any] = {"turn": self.turn, "index": 0, "attempt": self.attempt}
        return key | {"days": self.days, "root": self.root, "at_ms": AT_MS}

    def ends(self, how: str, share: float) -> TransactionBody[Any]:
        """What writes its end."""
        about: dict[str, Any] = {"run": self.run, "terms": self.terms, **self.where()}
        failed = {"failure": "server", "next_move": "next-model", "error": "it broke"}
        bound, used = self.terms.input_tokens_max, int(self.output_tokens * share)
        match how:
            case "all of it":
                cached = int(bound * share)
                usage = Usage(input_tokens=bound, output_tokens=self.output_tokens, cache_write_tokens=cached)
            case "some of it":
                usage = Usage(input_tokens=int(bound * share), output_tokens=used)
            case "estimated":
                usage = Usage(input_tokens=1, output_tokens=1, estimated=True)
            case "untold":
                usage = NO_USAGE
            case "beyond":
                usage = Usage(input_tokens=bound * 3, output_tokens=used)
            case "failed":
                return partial(money.fail, unknown=False, **failed, **about)
            case "broken off":
                return partial(money.fail, unknown=True, **failed, **about)
            case _:  # a crash, or a cancel
                return partial(money.charge_interrupted_calls, run=self.run.id)
        return partial(money.settle, usage=usage, **about)


ENDS = ("all of it", "some of it", "estimated", "untold", "failed", "broken off", "crash")


def over(conn: sa.Connection, days: BudgetPeriod = TODAY) -> list[tuple[str, int]]:
    """Whatever has more spent or held under it than its cap, and than what calls took beyond their reservation."""
    found: list[tuple[str, int]] = []
    for name, (column, cap) in SCOPES.items():
        asked = sa.text(
            f"SELECT {column}, sum(settled_microusd + held_microusd), "
            "sum(CASE WHEN settled_microusd > reserved_microusd THEN settled_microusd - reserved_microusd ELSE 0 END) "
            f"FROM money WHERE day = {days.day} GROUP BY 1"
        )
        assert cap is not None
        found += [(f"{name} {who}", spent - cap) for who, spent, excess in conn.execute(asked) if spent > cap + excess]
    return found


# Many at once


@dataclass
class Crowd:
    """Runs that spend from the same caps, each in a task of its own."""

    till: Till
    chance: random.Random
    ends: tuple[str, ...] = ENDS
    refused: int = 0
    lowered: int = 0
    made: int = 0
    over: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def live(self, n: int) -> None:
        """A few turns, each asked until somebody answers or the money is gone."""
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
        made = Made(run, root, turn, attempt, asked, asked.output_tokens_max, TODAY)
        try:
            granted = await self.till.write(partial(money.reserve, run=run, terms=asked, **made.where()))
        except BudgetSpent:
            self.refused += 1
            return False
        assert granted.output_tokens_max >= min(OUTPUT_TOKENS_MIN, asked.output_tokens_max)
        self.lowered += granted.output_tokens_max < asked.output_tokens_max
        self.made += 1
        for _ in range(self.chance.randint(0, 3)):
            await asyncio.sleep(0)
        made = Made(run, root, turn, attempt, asked, granted.output_tokens_max, TODAY)
        await self.till.write(made.ends(how, self.chance.random()))
        if self.made % 50 == 0:
            self.over += await self.till.store.scan(over)
        return True


@pytest.mark.parametrize("kind", [SQLITE, POSTGRES])
@pytest.mark.parametrize("seed", [1, 2])
async def test_hundreds_of_runs_at_once_never_spend_more_than_any_cap(
    kind: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with place_of(kind, request, tmp_path).open() as store:
        crowd = Crowd(Till(store), random.Random(seed))
        await asyncio.gather(*(crowd.live(n) for n in range(RUNS[kind])))
        assert crowd.over == [] == await store.scan(over)
        assert await store.scan(wrong) == []
        [(settled, held)] = await crowd.till.rows("SELECT sum(settled_microusd), sum(held_microusd) FROM spending")
        [(beyond,)] = await crowd.till.rows("SELECT count(*) FROM money WHERE released_microusd < 0")
    assert held == 0
    assert beyond == 0, "no call within its bounds took more than was held for it"
    cap = CAPS.instance_day_microusd
    assert cap is not None
    assert cap * 0.9 < settled <= cap, "the cap was reached, or this shows nothing"
    assert crowd.refused > 20 and crowd.lowered > 5 and crowd.made > 100, "both happened, and often"


async def test_what_calls_take_beyond_their_bound_is_recorded_and_nothing_is_given_after_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with place_of(SQLITE, request, tmp_path).open() as store:
        crowd = Crowd(Till(store), random.Random(3), ends=("beyond", "all of it", "crash"))
        await asyncio.gather(*(crowd.live(n) for n in range(RUNS[SQLITE])))
        assert crowd.over == [] == await store.scan(over)
        assert await store.scan(wrong) == []
        [(beyond,)] = await crowd.till.rows("SELECT count(*) FROM money WHERE released_microusd < 0")
        assert beyond > 5

        price, caps = Price(input=1_000_000), BudgetLimits(person_day_microusd=50_000)
        asked = ModelCallReservationRequest(ref=ModelRef("", "x"), price=price, input_tokens_max=10_000, limits=caps)
        runs = [run_of(f"b{n}", sender="person:gus") for n in range(5)]
        await asyncio.gather(*(crowd.till.reserve(run, asked) for run in runs))
        await crowd.till.settle(runs[0], asked, Usage(input_tokens=30_000))
        for run in runs[1:]:
            await crowd.till.settle(run, asked, Usage(input_tokens=10_000))
        [(settled,)] = await crowd.till.rows("SELECT sum(settled_microusd) FROM spending WHERE person = 'gus'")
        assert settled == 70_000, "one call's excess, and no more"
        with pytest.raises(BudgetSpent):
            await crowd.till.reserve(run_of("c", sender="person:gus"), asked)


async def test_calls_that_begin_at_one_moment_are_let_through_only_as_far_as_they_fit_together(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All of these commits are one group for SQLite: each must see what those before it in the group hold."""
    price = Price(call=1_000)
    asked = ModelCallReservationRequest(
        ref=ModelRef("", "x"), price=price, limits=BudgetLimits(instance_day_microusd=37_500)
    )
    async with place_of(SQLITE, request, tmp_path).open() as store:
        till = Till(store)
        ends = await asyncio.gather(*(till.reserve(run_of(f"{n}"), asked) for n in range(300)), return_exceptions=True)
    assert sum(isinstance(end, BudgetSpent) for end in ends) == 300 - 37


# Anything at all, in any order


@pytest.fixture(scope="module")
def conn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Connection]:
    path = tmp_path_factory.mktemp("property") / "house.db"
    prepare_sqlite(path)
    with closing(sqlite.connect(path, writable=True)) as made:
        yield made


acts = st.lists(
    st.tuples(
        st.integers(0, 5),  # which run
        st.integers(0, 2),  # which model
        st.integers(0, 6_000),  # its input
        st.integers(0, 10_000),  # its output
        st.sampled_from((*ENDS, "beyond", "later", "later")),
        st.floats(0, 1),
    ),
    max_size=60,
)
amounts = st.none() | st.integers(0, 1_500_000)
numbers = count(1)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=acts, run=amounts, tree=amounts, agent=amounts, person=amounts, house=amounts)
def test_in_any_order_of_calls_and_endings_every_cap_holds_but_for_what_one_call_took_beyond_its_bound(
    conn: sa.Connection,
    acts: list[tuple[int, int, int, int, str, float]],
    run: int | None,
    tree: int | None,
    agent: int | None,
    person: int | None,
    house: int | None,
) -> None:
    day = next(numbers)  # of its own, so that examples do not see each other
    days = BudgetPeriod(day=day, month_first_day=day, month_last_day=day)
    caps = BudgetLimits(
        run_microusd=run,
        tree_microusd=tree,
        agent_day_microusd=agent,
        person_month_microusd=person,
        instance_day_microusd=house,
    )
    runs = [run_of(f"{day:x}{n:x}", agent=f"a{n % 2}", sender=f"person:p{n % 3}") for n in range(6)]
    open_calls: list[tuple[Made, float]] = []
    turns = count()
    for which, model, input_tokens, output_tokens, how, share in acts:
        ref, price = PRICES[model]
        asked = ModelCallReservationRequest(
            ref=ref, price=price, input_tokens_max=input_tokens, output_tokens_max=output_tokens, limits=caps
        )
        root = runs[which % 2].id
        made = Made(runs[which], root, next(turns), 1, asked, output_tokens, days)
        left = _left(conn, made, caps)
        try:
            granted = commit(conn, partial(money.reserve, run=made.run, terms=asked, **made.where()))
        except BudgetSpent:
            pass
        else:
            assert left is None or granted.reserved_microusd <= left, "what is not there is not given"
            made = Made(made.run, root, made.turn, 1, asked, granted.output_tokens_max, days)
            if how == "later":
                open_calls.append((made, share))
            elif how == "crash":  # takes with it whatever else of this run was under way
                commit(conn, made.ends(how, share))
                open_calls = [each for each in open_calls if each[0].run.id != made.run.id]
            else:
                commit(conn, made.ends(how, share))
        if open_calls and share > 0.5:
            late, other = open_calls.pop(0)
            commit(conn, late.ends("all of it", other))
    for late, share in open_calls:
        commit(conn, late.ends("some of it", share))
    assert wrong(conn) == []


def _left(conn: sa.Connection, made: Made, caps: BudgetLimits) -> int | None:
    """The least that any cap leaves, counted from the calls themselves."""
    scopes = (
        ("run", made.run.id, caps.run_microusd),
        ("root", made.root, caps.tree_microusd),
        ("agent", made.run.agent, caps.agent_day_microusd),
        ("person", made.run.sender.name, caps.person_month_microusd),
        ("day", made.days.day, caps.instance_day_microusd),
    )
    left: list[int] = []
    for column, value, cap in scopes:
        if cap is not None:
            asked = sa.text(
                "SELECT coalesce(sum(settled_microusd + held_microusd), 0) FROM money "
                f"WHERE day = :day AND {column} = :value"
            )
            left.append(cap - conn.execute(asked, {"day": made.days.day, "value": value}).scalar_one())
    return min(left, default=None)


def commit(conn: sa.Connection, body: TransactionBody[T]) -> T:
    raw: Any = conn.connection.dbapi_connection
    raw.execute("BEGIN")
    try:
        page = Transaction(conn, AT_MS)
        done = body(conn)
        page.close()
    except BaseException:
        raw.execute("ROLLBACK")
        raise
    raw.execute("COMMIT")
    return done
