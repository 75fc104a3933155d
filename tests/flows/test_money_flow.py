"""Money through a whole house: what each call came to, and caps that hold whatever providers, crashes and crowds do.

A token that is read costs a millionth of a dollar here, one that is written ten of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults import time_passing, until
from flows.fake_provider import (
    Answer,
    Asked,
    Provider,
    Said,
    calls,
    calls_made,
    household_of,
    provider,
    refuses,
    says,
    section,
    told,
)
from operations.operations_instance import DeskHouse, desk_house, person

from retinue.domain.agent import Agent
from retinue.domain.budget_caps import OUTPUT_TOKENS_MIN
from retinue.domain.envelope import Outcome
from retinue.domain.record import Reply
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.engine.lanes import SlotLimits
from retinue.store.ledger import ledger
from retinue.testing.local_instance import LocalInstance, LocalServer

OUTPUT_TOKENS_MAX = 2_000
WRITTEN_MICROUSD = 10
PRICED = f'[models.entries."mock/m1"]\ninput_usd = 1\noutput_usd = 10\noutput_tokens_max = {OUTPUT_TOKENS_MAX}\n'
CROWD = 200
ADA = Agent(name="ada", model="mock/m1", instructions="Be brief.")
OWNER = person("owner")


@pytest.fixture
async def server() -> AsyncGenerator[Provider]:
    async with provider() as made:
        yield made


def house_of(root: Path, server: Provider, *, caps: str = "", priced: str = PRICED, **kw: Any) -> LocalInstance:
    budgets = f"[budgets]\n{caps}\n" if caps else ""
    return household_of(root, section("mock", server.url) + priced + budgets, **{"agents": (ADA,), **kw})


async def answered(house: LocalServer, text: str = "hello", **kw: Any) -> str:
    return await house.wait_for_answer((await house.send(text, **kw)).envelope)


async def spent(house: LocalServer) -> int:
    """What has been spent or may have been, by the rows and by the sums of the day, which agree."""
    [rows] = await house.execute_sql(
        "SELECT coalesce(sum(settled_microusd + held_microusd), 0) AS all_of_it FROM money"
    )
    [sums] = await house.execute_sql(
        "SELECT coalesce(sum(settled_microusd + held_microusd), 0) AS all_of_it FROM spending"
    )
    assert rows.all_of_it == sums.all_of_it
    return rows.all_of_it


async def balances(house: LocalServer) -> None:
    now_ms = to_ms(house.instance.clock.now())
    checked = await house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()


def all_of_it(asked: Asked, *, input_tokens: int = 20) -> Said:
    """A reply as long as it may be."""
    return says("Long.", input_tokens=input_tokens, output_tokens=asked.output_tokens_max)


# What it came to


@pytest.mark.spec("D21")
async def test_what_a_call_took_is_known_by_step_run_session_agent_person_and_day(
    tmp_path: Path, server: Provider
) -> None:
    server.will(calls(("session_status", {}), input_tokens=100, output_tokens=10))
    server.will(says("Fine.", input_tokens=150, output_tokens=20), says("Hello.", input_tokens=50, output_tokens=5))
    household = house_of(tmp_path, server)
    async with desk_house(household) as desk:
        envelope, session = await desk.converse(person("maria"), "How is it?")
        household.clock.jump(timedelta(days=1))
        await desk.converse(person("noor"), "Hello?")
        replies = [r.body.usage for r in await desk.house.list_records(session) if isinstance(r.body, Reply)]
        [run] = await desk.house.execute_sql("SELECT run FROM envelopes WHERE id = :id", id=envelope)
        shown = await desk.ask(OWNER, "run.show", id=run.run)
        by = {name: await costs(desk, name) for name in ("run", "session", "agent", "person", "day", "model")}
        maria = await desk.ask(person("maria"), "usage.show", by="person")
        await balances(desk.house)
    assert [(usage.input_tokens, usage.output_tokens, usage.cost_microusd) for usage in replies] == [
        (100, 10, 200),
        (150, 20, 350),
    ]
    assert [call["cost-usd"] for call in shown["calls"]] == [0.0002, 0.00035]
    assert shown["cost-usd"] == 0.00055
    assert by["run"][run.run] == by["session"][session] == by["person"]["maria"] == by["day"]["2026-01-05"] == 550
    assert by["person"]["noor"] == by["day"]["2026-01-06"] == 100
    assert by["agent"] == {"ada": 650} and by["model"] == {"mock/m1": 650}
    assert [row["key"] for row in maria["rows"]] == ["maria"], "nobody reads what is spent for others"


async def costs(desk: DeskHouse, by: str) -> dict[str, int]:
    return {row["key"]: row["cost-microusd"] for row in (await desk.ask(OWNER, "usage.show", by=by))["rows"]}


async def test_each_try_is_paid_for_as_far_as_it_may_have_cost_something(tmp_path: Path, server: Provider) -> None:
    begun = Answer(body='data: {"choices": [{"index": 0, "delta": {"content": "Hal"}}]}\n\n', cut=True)
    server.will(refuses(500, "oops"), begun, says("Hello.", input_tokens=50, output_tokens=5))
    household = house_of(tmp_path, server)
    async with household.run() as house, time_passing(household):
        assert await answered(house) == "Hello."
        refused, cut, replied = await calls_made(house)
        await balances(house)
    assert (refused.settled_microusd, bool(refused.unknown)) == (0, False)
    assert (cut.settled_microusd, bool(cut.unknown)) == (cut.reserved_microusd, True)
    assert (replied.settled_microusd, bool(replied.unknown)) == (100, False)
    assert refused.reserved_microusd == cut.reserved_microusd == replied.reserved_microusd > 0


async def test_a_provider_who_does_not_tell_is_taken_to_have_used_all(tmp_path: Path, server: Provider) -> None:
    server.will(says("Hello.", tells=False))
    async with house_of(tmp_path, server).run() as house:
        assert await answered(house) == "Hello."
        [row] = await calls_made(house)
    assert (row.settled_microusd, bool(row.unknown)) == (row.reserved_microusd, True)


# Caps


CAPS = {
    "house_day_usd": ("this server for today", "wait until 2026-01-06, or raise `budgets.house_day_usd`"),
    "house_month_usd": ("this server for this month", "wait until 2026-02-01, or raise `budgets.house_month_usd`"),
    "person_day_usd": ("'maria' for today", "wait until 2026-01-06, or raise `budgets.person_day_usd`"),
    "person_month_usd": ("'maria' for this month", "wait until 2026-02-01, or raise `budgets.person_month_usd`"),
}


@pytest.mark.parametrize("cap", CAPS)
async def test_a_cap_warns_once_lowers_the_last_reply_and_then_refuses(
    tmp_path: Path, server: Provider, cap: str
) -> None:
    whose, try_this = CAPS[cap]
    server.rule = all_of_it
    household = house_of(tmp_path, server, caps=f"{cap} = 0.10")
    async with household.run() as house:
        texts = [await answered(house) for _ in range(5)]
        refused = await house.wait_for_outcome((await house.send("once more")).envelope)
        last = (await told(house))[-1]
        whole = await spent(house)
        await balances(house)
        household.clock.jump(timedelta(days=1 if cap.endswith("day_usd") else 31))
        assert await answered(house) == "Long.", "and begins anew"
    warning = f"80% of the budget of {whose} is spent: $0.080080 of $0.10"
    assert texts == ["Long."] * 3 + [f"Long.\n\n[{warning}]"] + ["Long."]
    lengths = [asked.output_tokens_max for asked in server.asked[:5]]
    assert lengths[:4] == [OUTPUT_TOKENS_MAX] * 4
    assert OUTPUT_TOKENS_MIN <= lengths[4] < OUTPUT_TOKENS_MAX, "as much as is left, and no more"
    assert refused.outcome is Outcome.DEAD
    head, because, said_try = last.split("\n")
    assert head == f"Something went wrong: the budget of {whose} is spent [budget.spent]"
    assert because.startswith("because: $0.0") and " of $0.10 is spent, and the next call may cost $0.0" in because
    assert said_try == f"try: {try_this}"
    assert len(server.asked) == 5 + 1, "nothing was sent for the one that was refused"
    assert whole <= 100_000


async def test_a_cap_reached_in_the_middle_of_a_run_keeps_what_was_said(tmp_path: Path, server: Provider) -> None:
    numbers = iter(range(100))

    def working(asked: Asked) -> Said:
        line = ("append_line", {"text": str(next(numbers))})
        return calls(line, text="Still at it.", output_tokens=asked.output_tokens_max)

    server.rule = working
    household = house_of(tmp_path, server, agents=(replace(ADA, cost_microusd_max=50_000),))
    async with household.run() as house:
        text = await answered(house)
        assert await spent(house) <= 50_000
    said, stopped = text.split("\n\n")
    assert said == "Still at it."
    assert stopped.startswith("[I had to stop: the budget of this run is spent ($0.0400") and stopped.endswith(").]")
    assert len(server.asked) == len(household.witness_file.read_text().splitlines()), (
        "what was asked for before was done"
    )


async def test_what_has_no_price_is_not_asked_where_a_cap_is_to_be_kept(tmp_path: Path, server: Provider) -> None:
    household = house_of(tmp_path, server, caps="house_day_usd = 1.0", priced="")
    async with household.run() as house:
        settled = await house.wait_for_outcome((await house.send("hello")).envelope)
        [text] = await told(house)
        assert await calls_made(house) == []
    assert settled.because == "model.price_unknown: the price of mock/m1 is unknown"
    assert text.split("\n") == [
        "Something went wrong: the price of mock/m1 is unknown [model.price_unknown]",
        "because: a budget applies, and without a price the cost cannot be limited",
        'try: set `input_usd` and `output_usd` under [models.entries."mock/m1"] in retinue.toml, or 0 for both',
    ]
    assert server.asked == []


async def test_more_than_was_held_is_told_and_only_that_one_call_is_over(tmp_path: Path, server: Provider) -> None:
    server.always(says("Oh.", input_tokens=100_000, output_tokens=5))
    async with house_of(tmp_path, server, caps="house_day_usd = 0.05").run() as house:
        text = await answered(house)
        await house.wait_for_outcome((await house.send("and again")).envelope)
        [row] = await calls_made(house)
        refused = (await told(house))[-1]
        await balances(house)
    assert text == "Oh.\n\n[200% of the budget of this server for today is spent: $0.100050 of $0.05]"
    assert row.settled_microusd == 100_050 and row.released_microusd == row.reserved_microusd - 100_050 < 0
    assert "the budget of this server for today is spent [budget.spent]" in refused
    assert len(server.asked) == 1


# Crowds and crashes


def crowd_of(root: Path, server: Provider, *, cap_usd: float, count: int = CROWD, **kw: Any) -> LocalInstance:
    """As many conversations as people, all at once. Their names are of one length, so that each call may cost the
    same."""
    return house_of(
        root,
        server,
        caps=f"house_day_usd = {cap_usd}",
        agents=(replace(ADA, concurrency=count, **kw),),
        people=[f"p{i:03}" for i in range(count)],
        slots=SlotLimits(main=count),
    )


async def all_settled(house: LocalServer) -> None:
    def settled(conn: sa.Connection) -> bool:
        return conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE status <> 'done'")).scalar_one() == 0

    await house.wait_for(settled, what="every envelope to settle")


async def input_bound(house: LocalServer) -> int:
    """What was held for the input of the first call: a token that is read costs one."""
    first = (await calls_made(house))[0]
    return first.reserved_microusd - OUTPUT_TOKENS_MAX * WRITTEN_MICROUSD


async def test_two_hundred_runs_at_once_do_not_pass_a_cap_though_each_uses_all_it_may(
    tmp_path: Path, server: Provider
) -> None:
    cap = 500_000
    go = asyncio.Event()
    bounds: list[int] = []

    def greedy(asked: Asked) -> Said:
        return replace(all_of_it(asked, input_tokens=bounds[0]), held=go)

    household = crowd_of(tmp_path, server, cap_usd=cap / 1e6)
    async with household.run() as house:
        server.rule = lambda asked: replace(all_of_it(asked), held=go)
        first = await house.send("hello", sender="person:p000")
        await until(lambda: len(server.asked) == 1, "the first is asked")
        bounds.append(await input_bound(house))
        server.rule = greedy
        asked = [await house.send("hello", sender=f"person:p{i:03}") for i in range(1, CROWD)]
        each = bounds[0] + OUTPUT_TOKENS_MAX * WRITTEN_MICROUSD
        fitting = cap // each
        await until(lambda: len(server.asked) >= fitting, "as many are under way as fit")
        assert await spent(house) <= cap, "held before anything is spent"
        go.set()
        await all_settled(house)
        outcomes = [(await house.wait_for_outcome(receipt.envelope)).outcome for receipt in (first, *asked)]
        whole = await spent(house)
        refusals = [text for i in range(CROWD) for text in await told(house, f"p{i:03}") if "[budget.spent]" in text]
        rows = await calls_made(house)
        await balances(house)
    answers = outcomes.count(Outcome.ANSWERED)
    assert answers == len(server.asked) == len(rows) in (fitting, fitting + 1)
    assert answers + len(refusals) == CROWD, "and everyone who was refused read why"
    assert cap - each < whole <= cap
    assert not any(row.unknown or row.held_microusd for row in rows)
    assert min(request.output_tokens_max for request in server.asked) >= OUTPUT_TOKENS_MIN


async def test_calls_cut_off_by_crashes_are_counted_and_never_pass_a_cap(tmp_path: Path, server: Provider) -> None:
    cap, count = 300_000, 4
    never = asyncio.Event()
    server.rule = lambda asked: replace(all_of_it(asked), held=never)
    household = crowd_of(tmp_path, server, cap_usd=cap / 1e6, count=count, attempts_max=10)
    async with household.run() as house:
        for i in range(count):
            await house.send("hello", sender=f"person:p{i:03}")
        await until(lambda: len(server.asked) == count, "all are asked")
        each = (await calls_made(house))[0].reserved_microusd
        house.crash()
    for lost in range(count, cap // each - count + 1, count):
        async with household.run() as house:
            await until(lambda lost=lost: len(server.asked) == lost + count, "all are asked again")
            assert await spent(house) == (lost + count) * each <= cap
            assert sum(bool(row.unknown) for row in await calls_made(house)) == lost
            house.crash()
    lost = len(server.asked)
    server.rule = all_of_it
    async with household.run() as house:
        await all_settled(house)
        whole, rows = await spent(house), await calls_made(house)
        refusals = [text for i in range(count) for text in await told(house, f"p{i:03}") if "[budget.spent]" in text]
        await balances(house)
    assert lost > 2 * count and refusals, "there was more than one crash, and not enough for everyone in the end"
    assert whole <= cap
    assert sum(row.settled_microusd for row in rows if row.unknown) == lost * each
    assert not any(row.held_microusd for row in rows)
