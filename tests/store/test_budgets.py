"""Money in the store: what is reserved, what a call cost, and which budget refuses it, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.model_spending import AT_MS, CLAUDE, PRICE, TODAY, TOMORROW, SpendingStore, run_of, terms
from stores import POSTGRES, SQLITE, create_store_location

from retinue.domain.budget import BudgetLimits, BudgetSpent, PriceUnknown
from retinue.domain.model import FREE_PRICE, ModelRef, Price
from retinue.domain.record import NO_USAGE, Usage
from retinue.store.core import tables as t
from retinue.store.maintenance import erase_person
from retinue.store.runs import budget_reservations

MONEY_ROWS_QUERY = (
    "SELECT reserved_microusd, settled_microusd, released_microusd, held_microusd"
    " FROM model_calls ORDER BY turn, attempt"
)
SPENDING_SUMS_QUERY = "SELECT calls, settled_microusd, held_microusd, input_tokens, output_tokens FROM spending"
RESERVED_MICROUSD = 33_000  # what 1,000 tokens in and 2,000 out may cost
USAGE = Usage(input_tokens=900, output_tokens=100)  # 4,200


@pytest.fixture(params=[SQLITE, POSTGRES])
async def spending_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SpendingStore]:
    async with create_store_location(request.param, request, tmp_path).open() as store:
        yield SpendingStore(store)


# One call


@pytest.mark.spec("D21")
async def test_a_budget_holds_the_maximum_cost_of_a_model_call_until_the_call_is_settled(
    spending_store: SpendingStore,
) -> None:
    ada, asked = run_of("a"), terms()
    granted = await spending_store.reserve(ada, asked)
    assert (granted.output_tokens_max, granted.reserved_microusd, granted.warnings) == (2_000, RESERVED_MICROUSD, ())
    assert await spending_store.rows(MONEY_ROWS_QUERY) == [(RESERVED_MICROUSD, 0, 0, RESERVED_MICROUSD)]
    assert await spending_store.rows(SPENDING_SUMS_QUERY) == [(1, 0, RESERVED_MICROUSD, 0, 0)]

    assert await spending_store.settle(ada, asked, USAGE) == 4_200

    assert await spending_store.rows(MONEY_ROWS_QUERY) == [(RESERVED_MICROUSD, 4_200, RESERVED_MICROUSD - 4_200, 0)]
    assert await spending_store.rows(SPENDING_SUMS_QUERY) == [(1, 4_200, 0, 900, 100)]
    assert await spending_store.rows("SELECT day, agent, person, provider, model FROM spending") == [
        (TODAY.day, "ada", "maria", "anthropic", "claude")
    ]
    assert await spending_store.store.read(partial(budget_reservations.get_spent_microusd, run=ada.id)) == 4_200
    assert await spending_store.ledger_findings() == []


async def test_the_store_records_the_cost_of_a_model_call_that_the_provider_reports(
    spending_store: SpendingStore,
) -> None:
    ada, asked = run_of("a"), terms()
    await spending_store.reserve(ada, asked)
    assert await spending_store.settle(ada, asked, Usage(input_tokens=900, output_tokens=100, cost_microusd=77)) == 77
    assert await spending_store.rows(MONEY_ROWS_QUERY) == [(RESERVED_MICROUSD, 77, RESERVED_MICROUSD - 77, 0)]


@pytest.mark.spec("D21")
@pytest.mark.parametrize("usage", [NO_USAGE, Usage(input_tokens=900, output_tokens=100, estimated=True)])
async def test_a_model_call_without_exact_usage_spends_its_whole_budget_reservation_and_counts_no_tokens(
    spending_store: SpendingStore, usage: Usage
) -> None:
    ada, asked = run_of("a"), terms()
    await spending_store.reserve(ada, asked)
    assert await spending_store.settle(ada, asked, usage) == RESERVED_MICROUSD
    assert await spending_store.rows(SPENDING_SUMS_QUERY) == [(1, RESERVED_MICROUSD, 0, 0, 0)]
    [(unknown, estimated, tokens)] = await spending_store.rows(
        "SELECT cost_unknown, estimated, input_tokens FROM model_calls"
    )
    assert (unknown, estimated, tokens) == (True, usage.estimated, usage.input_tokens)
    assert await spending_store.ledger_findings() == []


async def test_a_model_call_cost_over_its_budget_reservation_is_recorded_and_the_next_call_is_refused(
    spending_store: SpendingStore,
) -> None:
    ada, asked = run_of("a"), terms(caps=BudgetLimits(run_microusd=50_000))
    await spending_store.reserve(ada, asked)
    await spending_store.settle(ada, asked, Usage(input_tokens=20_000, output_tokens=2_000))
    assert await spending_store.rows(MONEY_ROWS_QUERY) == [(RESERVED_MICROUSD, 90_000, RESERVED_MICROUSD - 90_000, 0)]
    assert await spending_store.ledger_findings() == []
    with pytest.raises(BudgetSpent) as refused:
        await spending_store.reserve(ada, asked, turn=1)
    assert refused.value.because.startswith("$0.09 of $0.05 is spent, and the next call may cost ")
    assert len(await spending_store.rows(MONEY_ROWS_QUERY)) == 1


@pytest.mark.spec("D21")
async def test_a_free_model_call_reserves_no_budget_and_counts_its_tokens(spending_store: SpendingStore) -> None:
    ada, asked = run_of("a"), terms(price=FREE_PRICE, caps=BudgetLimits(run_microusd=0))
    granted = await spending_store.reserve(ada, asked)
    assert (granted.output_tokens_max, granted.reserved_microusd) == (2_000, 0)
    assert await spending_store.rows(MONEY_ROWS_QUERY) == []
    assert await spending_store.settle(ada, asked, USAGE) == 0
    assert await spending_store.rows(MONEY_ROWS_QUERY) == [(0, 0, 0, 0)]
    assert await spending_store.rows(SPENDING_SUMS_QUERY) == [(1, 0, 0, 900, 100)]
    assert await spending_store.rows("SELECT count(*) FROM model_calls WHERE cost_unknown") == [(0,)]
    assert await spending_store.ledger_findings() == []


async def test_a_model_call_without_a_known_price_is_refused_if_there_is_a_budget(
    spending_store: SpendingStore,
) -> None:
    ada = run_of("a")
    with pytest.raises(PriceUnknown):
        await spending_store.reserve(ada, terms(price=None, caps=BudgetLimits(instance_month_microusd=10**9)))
    asked = terms(price=None)
    assert (await spending_store.reserve(ada, asked)).output_tokens_max == 2_000
    assert await spending_store.settle(ada, asked, USAGE) == 0
    assert await spending_store.rows("SELECT settled_microusd, cost_unknown FROM model_calls") == [(0, True)]
    assert await spending_store.settle(ada, asked, Usage(input_tokens=1, cost_microusd=9), turn=1) == 9
    assert await spending_store.ledger_findings() == []


async def test_a_failed_model_call_releases_its_budget_reservation_unless_its_cost_is_unknown(
    spending_store: SpendingStore,
) -> None:
    ada, asked = run_of("a"), terms()
    await spending_store.reserve(ada, asked)
    await spending_store.fail(ada, asked, unknown=False)
    await spending_store.reserve(ada, asked, attempt=2)
    await spending_store.fail(ada, asked, attempt=2, unknown=True, error="x" * 5_000)
    await spending_store.fail(ada, terms(price=FREE_PRICE), attempt=3, unknown=True)
    assert await spending_store.rows(MONEY_ROWS_QUERY) == [
        (RESERVED_MICROUSD, 0, RESERVED_MICROUSD, 0),
        (RESERVED_MICROUSD, RESERVED_MICROUSD, 0, 0),
        (0, 0, 0, 0),
    ]
    assert await spending_store.rows(SPENDING_SUMS_QUERY) == [(3, RESERVED_MICROUSD, 0, 0, 0)]
    query = "SELECT failure, next_action, length(error), cost_unknown, ended_ms FROM model_calls ORDER BY attempt"
    assert await spending_store.rows(query) == [
        ("overloaded", "retry", 10, False, AT_MS),
        ("overloaded", "retry", budget_reservations.ERROR_CHARS_MAX, True, AT_MS),
        ("overloaded", "retry", 10, False, AT_MS),
    ]
    assert await spending_store.ledger_findings() == []


async def test_model_calls_interrupted_by_a_crash_are_charged_to_the_budget_once(spending_store: SpendingStore) -> None:
    ada, bo, asked = run_of("a"), run_of("b"), terms()
    await spending_store.reserve(ada, asked)
    await spending_store.settle(ada, asked, USAGE)
    await spending_store.reserve(ada, asked, turn=1)
    await spending_store.reserve(bo, asked)
    for _ in range(2):
        await spending_store.write(partial(budget_reservations.charge_interrupted_calls, run=ada.id))
    assert await spending_store.rows(SPENDING_SUMS_QUERY) == [
        (3, 4_200 + RESERVED_MICROUSD, RESERVED_MICROUSD, 900, 100)
    ]
    assert await spending_store.rows(
        "SELECT turn, cost_unknown FROM model_calls WHERE held_microusd = 0 ORDER BY turn"
    ) == [
        (0, False),
        (1, True),
    ]
    assert await spending_store.ledger_findings() == []


async def test_a_model_call_settled_twice_is_counted_once_in_the_stored_spending(spending_store: SpendingStore) -> None:
    ada, asked = run_of("a"), terms()
    await spending_store.reserve(ada, asked)
    await spending_store.write(partial(budget_reservations.charge_interrupted_calls, run=ada.id))
    for _ in range(2):
        await spending_store.settle(ada, asked, USAGE)
    assert await spending_store.rows(SPENDING_SUMS_QUERY) == [(1, 4_200, 0, 900, 100)]
    assert await spending_store.ledger_findings() == []


async def test_the_cost_of_a_model_call_over_midnight_belongs_to_the_budget_of_the_day_it_started(
    spending_store: SpendingStore,
) -> None:
    ada, asked = run_of("a"), terms(caps=BudgetLimits(instance_day_microusd=40_000))
    await spending_store.reserve(ada, asked)
    spending_store.days = TOMORROW
    await spending_store.reserve(run_of("b"), asked)
    await spending_store.settle(ada, asked, USAGE)
    assert await spending_store.rows("SELECT day, settled_microusd, held_microusd FROM spending ORDER BY day") == [
        (TODAY.day, 4_200, 0),
        (TOMORROW.day, 0, RESERVED_MICROUSD),
    ]


# Budgets

BUDGET_CASES = [
    # the budget, a run that also counts for it, and one that does not
    ("run_microusd", {"name": "a"}, {"name": "b"}),
    ("tree_microusd", {"name": "b", "root": "a"}, {"name": "c"}),
    ("agent_day_microusd", {"name": "b"}, {"name": "b", "agent": "bo"}),
    ("agent_month_microusd", {"name": "b"}, {"name": "b", "agent": "bo"}),
    ("person_day_microusd", {"name": "b", "agent": "bo"}, {"name": "b", "sender": "person:noor"}),
    ("person_month_microusd", {"name": "b", "agent": "bo"}, {"name": "b", "sender": "schedule:abcdef01"}),
    ("instance_day_microusd", {"name": "b", "agent": "bo", "sender": "person:noor"}, None),
    ("instance_month_microusd", {"name": "b", "agent": "bo", "sender": "person:noor"}, None),
]


@pytest.mark.parametrize(("cap", "counts", "does_not"), BUDGET_CASES, ids=[name for name, _, _ in BUDGET_CASES])
async def test_a_budget_counts_the_spent_and_held_amounts_of_its_scope_only(
    spending_store: SpendingStore, cap: str, counts: dict[str, str], does_not: dict[str, str] | None
) -> None:
    caps = BudgetLimits(**{cap: 2 * RESERVED_MICROUSD - 10_000})

    async def spend(who: dict[str, str] | None, *, turn: int) -> None:
        if who is None:
            return
        made = dict(who)
        root = made.pop("root", "")
        run = run_of(**made)  # type: ignore[arg-type]
        await spending_store.reserve(run, terms(), turn=turn, root=run_of(root).id if root else "")

    await spend(does_not, turn=7)
    asked = terms(caps=caps)
    assert (await spending_store.reserve(run_of("a"), asked)).output_tokens_max == 2_000
    await spending_store.settle(run_of("a"), asked, Usage(input_tokens=1_000, output_tokens=2_000))
    granted = await spending_store.reserve(run_of("a"), asked, turn=1)
    assert granted.output_tokens_max == 2_000 - 10_000 // 15 - 1, "lowered to the rest of the budget"
    await spending_store.settle(run_of("a"), asked, Usage(input_tokens=1, output_tokens=1), turn=1)
    await spend(counts, turn=2)
    with pytest.raises(BudgetSpent):
        await spending_store.reserve(run_of("a"), asked, turn=3)
    assert await spending_store.ledger_findings() == []


@pytest.mark.parametrize(("cap", "open_again"), [("instance_day_microusd", True), ("instance_month_microusd", False)])
async def test_a_daily_budget_resets_the_next_day_and_a_monthly_budget_does_not(
    spending_store: SpendingStore, cap: str, open_again: bool
) -> None:
    asked = terms(caps=BudgetLimits(**{cap: RESERVED_MICROUSD}))
    await spending_store.reserve(run_of("a"), asked)
    spending_store.days = TOMORROW
    if open_again:
        await spending_store.reserve(run_of("b"), asked)
    else:
        with pytest.raises(BudgetSpent):
            await spending_store.reserve(run_of("b"), asked)


async def test_each_attempt_has_its_own_reservation_and_a_budget_counts_all_attempts(
    spending_store: SpendingStore,
) -> None:
    ada = run_of("a")
    caps = BudgetLimits(run_microusd=RESERVED_MICROUSD + 19_000)
    await spending_store.reserve(ada, terms(caps=caps))
    await spending_store.fail(ada, terms(caps=caps), unknown=True)
    cheap = terms(price=Price(input=1_000_000, output=2_000_000), ref=ModelRef("openai", "mini"), caps=caps)
    assert (await spending_store.reserve(ada, cheap, attempt=2)).reserved_microusd == 5_000
    await spending_store.settle(ada, cheap, USAGE, attempt=2)
    with pytest.raises(BudgetSpent):
        await spending_store.reserve(ada, terms(caps=caps), turn=1)
    spent = "SELECT provider, settled_microusd FROM spending ORDER BY provider"
    assert await spending_store.rows(spent) == [("anthropic", RESERVED_MICROUSD), ("openai", 1_100)]


async def test_the_cost_of_a_subagent_counts_for_the_budget_of_the_person_of_the_root_run(
    spending_store: SpendingStore,
) -> None:
    def begin(conn: sa.Connection) -> None:
        row = dict.fromkeys(t.runs.c.keys()) | {"id": run_of("a").id, "session": "5" * 32, "agent": "ada"}
        row |= {"lane": "main", "epoch": 1, "status": "running", "sender": "person:maria", "envelopes": "[]"}
        conn.execute(t.runs.insert(), row | {"first_seq": 1, "attempt": 1, "started_ms": 1})

    await spending_store.write(lambda conn: conn.execute(t.agents.insert(), AGENT_ROW))
    await spending_store.write(lambda conn: conn.execute(t.sessions.insert(), SESSION_ROW))
    await spending_store.write(begin)
    helper = run_of("b", agent="bo", sender="agent:ada/55555555")
    caps = BudgetLimits(person_day_microusd=RESERVED_MICROUSD + 5_000)
    await spending_store.reserve(helper, terms(caps=caps), root=run_of("a").id)
    assert await spending_store.rows("SELECT agent, person FROM model_calls") == [("bo", "maria")]
    with pytest.raises(BudgetSpent) as refused:
        await spending_store.reserve(run_of("a"), terms(caps=caps))
    assert "'maria'" in refused.value.sentence


AGENT_ROW = {"name": "ada", "name_folded": "ada", "version": 1, "body": "{}", "source": "test", "created_ms": 1}
SESSION_ROW = dict.fromkeys(t.sessions.c.keys()) | {
    "id": "5" * 32,
    "agent": "ada",
    "origin_kind": "web",
    "origin_key": "person:maria",
    "name": "",
    "activity": "active",
    **dict.fromkeys(("queue", "attributes", "model_choice"), "{}"),
    **dict.fromkeys(
        ("epoch", "record_seq", "context_from", "revision", "compactions", "context_started_ms", "active_ms"), 0
    ),
    "snippet": "",
    "created_ms": 1,
    "updated_ms": 1,
}


# Warnings


async def test_a_budget_warns_once_per_period_when_its_warning_share_is_spent(spending_store: SpendingStore) -> None:
    caps = BudgetLimits(agent_day_microusd=100_000, instance_month_microusd=200_000)
    asked = terms(output_tokens=1_024, caps=caps)
    warnings: list[tuple[str, ...]] = []
    for n in range(4):
        run = run_of(f"{n}")
        for turn in range(5):  # 4,200 each: the twentieth reaches 84,000
            warnings.append((await spending_store.reserve(run, asked, turn=turn)).warnings)
            await spending_store.settle(run, asked, USAGE, turn=turn)
        days = spending_store.days
        ends = partial(budget_reservations.list_warnings, run=run, terms=asked, days=days, root=run.id)
        warnings.append(await spending_store.store.read(ends))
    warned = [text for texts in warnings for text in texts]
    assert warned == ["84% of the budget of agent 'ada' for today is spent: $0.0840 of $0.10"]
    assert warnings[-1] == tuple(warned), "it was the last call of its run"


async def test_a_budget_warning_during_a_run_comes_with_the_next_reservation(spending_store: SpendingStore) -> None:
    ada = run_of("a")
    asked = terms(output_tokens=1_024, caps=BudgetLimits(run_microusd=30_000, instance_day_microusd=33_000))
    warnings: list[tuple[str, ...]] = []
    for turn in range(3):
        warnings.append((await spending_store.reserve(ada, asked, turn=turn)).warnings)
        await spending_store.settle(ada, asked, Usage(cost_microusd=12_500), turn=turn)
        asked = terms(price=PRICE, input_tokens=10, output_tokens=100, caps=asked.limits)
    assert warnings == [
        (),
        (),
        ("83% of the budget of this run is spent: $0.0250 of $0.03",),
    ]


# Forgetting a person


async def test_erasing_a_person_keeps_the_stored_spending_without_the_name(spending_store: SpendingStore) -> None:
    for n, sender in enumerate(("person:maria", "person:noor", "schedule:abcdef01", "person:maria")):
        run, asked = run_of(f"{n}", sender=sender), terms(ref=CLAUDE if n < 3 else ModelRef("openai", "mini"))
        await spending_store.reserve(run, asked)
        await spending_store.fail(run, asked, unknown=True, error="maria wrote something terrible")
    await spending_store.reserve(run_of("9"), terms())

    await spending_store.store.write(partial(erase_person.erase_person, person="maria", now_ms=AT_MS), point="forget")

    sums = "SELECT person, provider, calls, settled_microusd, held_microusd FROM spending ORDER BY person, provider"
    assert await spending_store.rows(sums) == [
        ("", "anthropic", 3, 2 * RESERVED_MICROUSD, RESERVED_MICROUSD),
        ("", "openai", 1, RESERVED_MICROUSD, 0),
        ("noor", "anthropic", 1, RESERVED_MICROUSD, 0),
    ]
    assert await spending_store.rows("SELECT count(*) FROM model_calls WHERE person = 'maria'") == [(0,)]
    assert await spending_store.rows("SELECT count(*) FROM model_calls WHERE error IS NOT NULL AND person = ''") == [
        (1,)
    ]
    assert await spending_store.ledger_findings() == []
    await spending_store.settle(run_of("9"), terms(), USAGE)
    assert await spending_store.rows("SELECT count(*) FROM spending WHERE person = 'maria'") == [(0,)]
    assert await spending_store.ledger_findings() == []
