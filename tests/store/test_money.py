"""Money in the store: what is set aside, what it came to, and which cap says no, on either database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from store.model_spending import AT_MS, CLAUDE, PRICE, TODAY, TOMORROW, Till, run_of, terms
from stores import POSTGRES, SQLITE, place_of

from retinue.domain.model import FREE_PRICE, ModelRef, Price
from retinue.domain.money import BudgetLimits, BudgetSpent, PriceUnknown
from retinue.domain.record import NO_USAGE, Usage
from retinue.store.core import tables as t
from retinue.store.maintenance import erase_person
from retinue.store.runs import money

ROW = "SELECT reserved_microusd, settled_microusd, released_microusd, held_microusd FROM money ORDER BY turn, attempt"
SUMS = "SELECT calls, settled_microusd, held_microusd, input_tokens, output_tokens FROM spending"
WHOLE = 33_000  # what 1,000 tokens in and 2,000 out may cost
USAGE = Usage(input_tokens=900, output_tokens=100)  # 4,200


@pytest.fixture(params=[SQLITE, POSTGRES])
async def till(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Till]:
    async with place_of(request.param, request, tmp_path).open() as store:
        yield Till(store)


# One call


@pytest.mark.spec("D21")
async def test_what_a_call_may_cost_is_held_until_it_is_known_and_the_sums_move_along(till: Till) -> None:
    ada, asked = run_of("a"), terms()
    granted = await till.reserve(ada, asked)
    assert (granted.output_tokens_max, granted.reserved_microusd, granted.warnings) == (2_000, WHOLE, ())
    assert await till.rows(ROW) == [(WHOLE, 0, 0, WHOLE)]
    assert await till.rows(SUMS) == [(1, 0, WHOLE, 0, 0)]

    assert await till.settle(ada, asked, USAGE) == 4_200

    assert await till.rows(ROW) == [(WHOLE, 4_200, WHOLE - 4_200, 0)]
    assert await till.rows(SUMS) == [(1, 4_200, 0, 900, 100)]
    assert await till.rows("SELECT day, agent, person, provider, model FROM spending") == [
        (TODAY.day, "ada", "maria", "anthropic", "claude")
    ]
    assert await till.store.read(partial(money.get_spent_microusd, run=ada.id)) == 4_200
    assert await till.wrong() == []


async def test_what_the_provider_says_it_cost_is_what_it_cost(till: Till) -> None:
    ada, asked = run_of("a"), terms()
    await till.reserve(ada, asked)
    assert await till.settle(ada, asked, Usage(input_tokens=900, output_tokens=100, cost_microusd=77)) == 77
    assert await till.rows(ROW) == [(WHOLE, 77, WHOLE - 77, 0)]


@pytest.mark.spec("D21")
@pytest.mark.parametrize("usage", [NO_USAGE, Usage(input_tokens=900, output_tokens=100, estimated=True)])
async def test_where_nobody_says_what_it_took_all_that_was_held_is_spent_and_no_token_counted(
    till: Till, usage: Usage
) -> None:
    ada, asked = run_of("a"), terms()
    await till.reserve(ada, asked)
    assert await till.settle(ada, asked, usage) == WHOLE
    assert await till.rows(SUMS) == [(1, WHOLE, 0, 0, 0)]
    [(unknown, estimated, tokens)] = await till.rows("SELECT unknown, estimated, input_tokens FROM money")
    assert (unknown, estimated, tokens) == (True, usage.estimated, usage.input_tokens)
    assert await till.wrong() == []


async def test_more_than_was_held_is_recorded_and_the_next_call_refused(till: Till) -> None:
    ada, asked = run_of("a"), terms(caps=BudgetLimits(run_microusd=50_000))
    await till.reserve(ada, asked)
    await till.settle(ada, asked, Usage(input_tokens=20_000, output_tokens=2_000))
    assert await till.rows(ROW) == [(WHOLE, 90_000, WHOLE - 90_000, 0)]
    assert await till.wrong() == []
    with pytest.raises(BudgetSpent) as refused:
        await till.reserve(ada, asked, turn=1)
    assert refused.value.because.startswith("$0.09 of $0.05 is spent, and the next call may cost ")
    assert len(await till.rows(ROW)) == 1


@pytest.mark.spec("D21")
async def test_what_costs_nothing_is_not_held_and_its_tokens_are_counted_all_the_same(till: Till) -> None:
    ada, asked = run_of("a"), terms(price=FREE_PRICE, caps=BudgetLimits(run_microusd=0))
    granted = await till.reserve(ada, asked)
    assert (granted.output_tokens_max, granted.reserved_microusd) == (2_000, 0)
    assert await till.rows(ROW) == []
    assert await till.settle(ada, asked, USAGE) == 0
    assert await till.rows(ROW) == [(0, 0, 0, 0)]
    assert await till.rows(SUMS) == [(1, 0, 0, 900, 100)]
    assert await till.rows("SELECT count(*) FROM money WHERE unknown") == [(0,)]
    assert await till.wrong() == []


async def test_without_a_price_a_call_is_made_only_where_there_is_no_cap(till: Till) -> None:
    ada = run_of("a")
    with pytest.raises(PriceUnknown):
        await till.reserve(ada, terms(price=None, caps=BudgetLimits(instance_month_microusd=10**9)))
    asked = terms(price=None)
    assert (await till.reserve(ada, asked)).output_tokens_max == 2_000
    assert await till.settle(ada, asked, USAGE) == 0
    assert await till.rows("SELECT settled_microusd, unknown FROM money") == [(0, True)]
    assert await till.settle(ada, asked, Usage(input_tokens=1, cost_microusd=9), turn=1) == 9
    assert await till.wrong() == []


async def test_a_failed_call_gives_back_what_was_held_unless_it_may_have_cost_it(till: Till) -> None:
    ada, asked = run_of("a"), terms()
    await till.reserve(ada, asked)
    await till.fail(ada, asked, unknown=False)
    await till.reserve(ada, asked, attempt=2)
    await till.fail(ada, asked, attempt=2, unknown=True, error="x" * 5_000)
    await till.fail(ada, terms(price=FREE_PRICE), attempt=3, unknown=True)
    assert await till.rows(ROW) == [(WHOLE, 0, WHOLE, 0), (WHOLE, WHOLE, 0, 0), (0, 0, 0, 0)]
    assert await till.rows(SUMS) == [(3, WHOLE, 0, 0, 0)]
    told = "SELECT failure, next_move, length(error), unknown, ended_ms FROM money ORDER BY attempt"
    assert await till.rows(told) == [
        ("overloaded", "again", 10, False, AT_MS),
        ("overloaded", "again", money.ERROR_CHARS_MAX, True, AT_MS),
        ("overloaded", "again", 10, False, AT_MS),
    ]
    assert await till.wrong() == []


async def test_what_a_crash_left_open_is_spent_once(till: Till) -> None:
    ada, bo, asked = run_of("a"), run_of("b"), terms()
    await till.reserve(ada, asked)
    await till.settle(ada, asked, USAGE)
    await till.reserve(ada, asked, turn=1)
    await till.reserve(bo, asked)
    for _ in range(2):
        await till.write(partial(money.charge_interrupted_calls, run=ada.id))
    assert await till.rows(SUMS) == [(3, 4_200 + WHOLE, WHOLE, 900, 100)]
    assert await till.rows("SELECT turn, unknown FROM money WHERE held_microusd = 0 ORDER BY turn") == [
        (0, False),
        (1, True),
    ]
    assert await till.wrong() == []


async def test_a_call_that_is_settled_twice_is_counted_once(till: Till) -> None:
    ada, asked = run_of("a"), terms()
    await till.reserve(ada, asked)
    await till.write(partial(money.charge_interrupted_calls, run=ada.id))
    for _ in range(2):
        await till.settle(ada, asked, USAGE)
    assert await till.rows(SUMS) == [(1, 4_200, 0, 900, 100)]
    assert await till.wrong() == []


async def test_a_call_over_midnight_belongs_to_the_day_on_which_it_began(till: Till) -> None:
    ada, asked = run_of("a"), terms(caps=BudgetLimits(instance_day_microusd=40_000))
    await till.reserve(ada, asked)
    till.days = TOMORROW
    await till.reserve(run_of("b"), asked)
    await till.settle(ada, asked, USAGE)
    assert await till.rows("SELECT day, settled_microusd, held_microusd FROM spending ORDER BY day") == [
        (TODAY.day, 4_200, 0),
        (TOMORROW.day, 0, WHOLE),
    ]


# Caps

CAPS = [
    # the cap, who else counts towards it, and who does not
    ("run_microusd", {"name": "a"}, {"name": "b"}),
    ("tree_microusd", {"name": "b", "root": "a"}, {"name": "c"}),
    ("agent_day_microusd", {"name": "b"}, {"name": "b", "agent": "bo"}),
    ("agent_month_microusd", {"name": "b"}, {"name": "b", "agent": "bo"}),
    ("person_day_microusd", {"name": "b", "agent": "bo"}, {"name": "b", "sender": "person:noor"}),
    ("person_month_microusd", {"name": "b", "agent": "bo"}, {"name": "b", "sender": "schedule:abcdef01"}),
    ("instance_day_microusd", {"name": "b", "agent": "bo", "sender": "person:noor"}, None),
    ("instance_month_microusd", {"name": "b", "agent": "bo", "sender": "person:noor"}, None),
]


@pytest.mark.parametrize(("cap", "counts", "does_not"), CAPS, ids=[name for name, _, _ in CAPS])
async def test_a_cap_counts_what_is_spent_and_held_under_it_and_nothing_else(
    till: Till, cap: str, counts: dict[str, str], does_not: dict[str, str] | None
) -> None:
    caps = BudgetLimits(**{cap: 2 * WHOLE - 10_000})

    async def spend(who: dict[str, str] | None, *, turn: int) -> None:
        if who is None:
            return
        made = dict(who)
        root = made.pop("root", "")
        run = run_of(**made)  # type: ignore[arg-type]
        await till.reserve(run, terms(), turn=turn, root=run_of(root).id if root else "")

    await spend(does_not, turn=7)
    asked = terms(caps=caps)
    assert (await till.reserve(run_of("a"), asked)).output_tokens_max == 2_000
    await till.settle(run_of("a"), asked, Usage(input_tokens=1_000, output_tokens=2_000))
    granted = await till.reserve(run_of("a"), asked, turn=1)
    assert granted.output_tokens_max == 2_000 - 10_000 // 15 - 1, "lowered to what is left"
    await till.settle(run_of("a"), asked, Usage(input_tokens=1, output_tokens=1), turn=1)
    await spend(counts, turn=2)
    with pytest.raises(BudgetSpent):
        await till.reserve(run_of("a"), asked, turn=3)
    assert await till.wrong() == []


@pytest.mark.parametrize(("cap", "open_again"), [("instance_day_microusd", True), ("instance_month_microusd", False)])
async def test_a_day_begins_anew_and_a_month_does_not_with_it(till: Till, cap: str, open_again: bool) -> None:
    asked = terms(caps=BudgetLimits(**{cap: WHOLE}))
    await till.reserve(run_of("a"), asked)
    till.days = TOMORROW
    if open_again:
        await till.reserve(run_of("b"), asked)
    else:
        with pytest.raises(BudgetSpent):
            await till.reserve(run_of("b"), asked)


async def test_each_attempt_holds_its_own_and_a_cap_counts_them_all(till: Till) -> None:
    ada = run_of("a")
    caps = BudgetLimits(run_microusd=WHOLE + 19_000)
    await till.reserve(ada, terms(caps=caps))
    await till.fail(ada, terms(caps=caps), unknown=True)
    cheap = terms(price=Price(input=1_000_000, output=2_000_000), ref=ModelRef("openai", "mini"), caps=caps)
    assert (await till.reserve(ada, cheap, attempt=2)).reserved_microusd == 5_000
    await till.settle(ada, cheap, USAGE, attempt=2)
    with pytest.raises(BudgetSpent):
        await till.reserve(ada, terms(caps=caps), turn=1)
    spent = "SELECT provider, settled_microusd FROM spending ORDER BY provider"
    assert await till.rows(spent) == [("anthropic", WHOLE), ("openai", 1_100)]


async def test_what_a_subagent_spends_is_spent_for_the_person_at_the_top(till: Till) -> None:
    def begin(conn: sa.Connection) -> None:
        row = dict.fromkeys(t.runs.c.keys()) | {"id": run_of("a").id, "session": "5" * 32, "agent": "ada"}
        row |= {"lane": "main", "epoch": 1, "status": "running", "sender": "person:maria", "envelopes": "[]"}
        conn.execute(t.runs.insert(), row | {"first_seq": 1, "attempt": 1, "started_ms": 1})

    await till.write(lambda conn: conn.execute(t.agents.insert(), AGENT))
    await till.write(lambda conn: conn.execute(t.sessions.insert(), SESSION))
    await till.write(begin)
    helper = run_of("b", agent="bo", sender="agent:ada/55555555")
    caps = BudgetLimits(person_day_microusd=WHOLE + 5_000)
    await till.reserve(helper, terms(caps=caps), root=run_of("a").id)
    assert await till.rows("SELECT agent, person FROM money") == [("bo", "maria")]
    with pytest.raises(BudgetSpent) as refused:
        await till.reserve(run_of("a"), terms(caps=caps))
    assert "'maria'" in refused.value.sentence


AGENT = {"name": "ada", "folded": "ada", "version": 1, "body": "{}", "source": "test", "created_ms": 1}
SESSION = dict.fromkeys(t.sessions.c.keys()) | {
    "id": "5" * 32,
    "agent": "ada",
    "origin_kind": "web",
    "origin_key": "person:maria",
    "name": "",
    "wakefulness": "active",
    **dict.fromkeys(("queue", "attributes", "mind"), "{}"),
    **dict.fromkeys(("epoch", "record_seq", "context_from", "revision", "compactions", "began_ms", "active_ms"), 0),
    "snippet": "",
    "created_ms": 1,
    "updated_ms": 1,
}


# Warnings


async def test_one_warning_for_each_cap_and_period_when_its_share_is_spent(till: Till) -> None:
    caps = BudgetLimits(agent_day_microusd=100_000, instance_month_microusd=200_000)
    asked = terms(output_tokens=1_024, caps=caps)
    said: list[tuple[str, ...]] = []
    for n in range(4):
        run = run_of(f"{n}")
        for turn in range(5):  # each of 4,200: the twentieth is the 84,000th
            said.append((await till.reserve(run, asked, turn=turn)).warnings)
            await till.settle(run, asked, USAGE, turn=turn)
        days = till.days
        ends = partial(money.list_warnings, run=run, terms=asked, days=days, root=run.id)
        said.append(await till.store.read(ends))
    warned = [text for texts in said for text in texts]
    assert warned == ["84% of the budget of agent 'ada' for today is spent: $0.0840 of $0.10"]
    assert said[-1] == tuple(warned), "it was the last call of its run"


async def test_a_warning_in_the_middle_of_a_run_comes_with_the_next_reservation(till: Till) -> None:
    ada = run_of("a")
    asked = terms(output_tokens=1_024, caps=BudgetLimits(run_microusd=30_000, instance_day_microusd=33_000))
    said: list[tuple[str, ...]] = []
    for turn in range(3):
        said.append((await till.reserve(ada, asked, turn=turn)).warnings)
        await till.settle(ada, asked, Usage(cost_microusd=12_500), turn=turn)
        asked = terms(price=PRICE, input_tokens=10, output_tokens=100, caps=asked.limits)
    assert said == [
        (),
        (),
        ("83% of the budget of this run is spent: $0.0250 of $0.03",),
    ]


# Forgetting


async def test_of_a_forgotten_person_the_sums_stay_and_the_name_goes(till: Till) -> None:
    for n, sender in enumerate(("person:maria", "person:noor", "schedule:abcdef01", "person:maria")):
        run, asked = run_of(f"{n}", sender=sender), terms(ref=CLAUDE if n < 3 else ModelRef("openai", "mini"))
        await till.reserve(run, asked)
        await till.fail(run, asked, unknown=True, error="maria wrote something terrible")
    await till.reserve(run_of("9"), terms())

    await till.store.write(partial(erase_person.erase_person, person="maria", now_ms=AT_MS), point="forget")

    sums = "SELECT person, provider, calls, settled_microusd, held_microusd FROM spending ORDER BY person, provider"
    assert await till.rows(sums) == [
        ("", "anthropic", 3, 2 * WHOLE, WHOLE),
        ("", "openai", 1, WHOLE, 0),
        ("noor", "anthropic", 1, WHOLE, 0),
    ]
    assert await till.rows("SELECT count(*) FROM money WHERE person = 'maria'") == [(0,)]
    assert await till.rows("SELECT count(*) FROM money WHERE error IS NOT NULL AND person = ''") == [(1,)]
    assert await till.wrong() == []
    await till.settle(run_of("9"), terms(), USAGE)
    assert await till.rows("SELECT count(*) FROM spending WHERE person = 'maria'") == [(0,)]
    assert await till.wrong() == []
