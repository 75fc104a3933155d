"""Costs in a complete server: the cost of each call, and budgets that hold during failures, crashes and parallel runs.

An input token costs a millionth of a dollar here, an output token ten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults import advancing_clock, poll_until
from flows.fake_provider import (
    Answer,
    Asked,
    FakeReply,
    Provider,
    build_instance,
    calls,
    calls_made,
    error_answer,
    list_texts_to,
    provider,
    provider_section,
    says,
)
from operations.operations_instance import OperationsServer, open_operations_server, person

from retinue.domain.agent import Agent
from retinue.domain.budget_reservation import OUTPUT_TOKENS_MIN
from retinue.domain.envelope import Outcome
from retinue.domain.record import Reply
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.engine.lanes import SlotLimits
from retinue.store.ledger import ledger
from retinue.testing.local_instance import LocalInstance, LocalServer

OUTPUT_TOKENS_MAX = 2_000
WRITTEN_MICROUSD = 10
PRICES_TOML = f'[models.entries."mock/m1"]\ninput_usd = 1\noutput_usd = 10\noutput_tokens_max = {OUTPUT_TOKENS_MAX}\n'
RUN_COUNT = 200
ADA = Agent(name="ada", model="mock/m1", instructions="Be brief.")
OWNER = person("owner")


@pytest.fixture
async def provider_server() -> AsyncGenerator[Provider]:
    async with provider() as made:
        yield made


def build_provider_instance(
    root: Path, provider_server: Provider, *, caps: str = "", priced: str = PRICES_TOML, **kw: Any
) -> LocalInstance:
    budgets = f"[budgets]\n{caps}\n" if caps else ""
    return build_instance(
        root, provider_section("mock", provider_server.url) + priced + budgets, **{"agents": (ADA,), **kw}
    )


async def send_and_wait_for_answer(server: LocalServer, text: str = "hello", **kw: Any) -> str:
    return await server.wait_for_answer((await server.send(text, **kw)).envelope)


async def read_total_spent(server: LocalServer) -> int:
    """The total spent and reserved, which must be the same in the rows and in the sums of the day."""
    [rows] = await server.execute_sql(
        "SELECT coalesce(sum(settled_microusd + held_microusd), 0) AS all_of_it FROM model_calls"
    )
    [sums] = await server.execute_sql(
        "SELECT coalesce(sum(settled_microusd + held_microusd), 0) AS all_of_it FROM spending"
    )
    assert rows.all_of_it == sums.all_of_it
    return rows.all_of_it


async def assert_ledger_is_ok(server: LocalServer) -> None:
    now_ms = to_ms(server.instance.clock.now())
    checked = await server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()


def all_of_it(asked: Asked, *, input_tokens: int = 20) -> FakeReply:
    """A reply of the maximum length."""
    return says("Long.", input_tokens=input_tokens, output_tokens=asked.output_tokens_max)


# --- cost of calls ---


@pytest.mark.spec("D21")
async def test_the_money_a_model_call_costs_is_recorded_by_run_session_agent_person_day_and_model(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.add_replies(calls(("session_status", {}), input_tokens=100, output_tokens=10))
    provider_server.add_replies(
        says("Fine.", input_tokens=150, output_tokens=20), says("Hello.", input_tokens=50, output_tokens=5)
    )
    instance = build_provider_instance(tmp_path, provider_server)
    async with open_operations_server(instance) as operations:
        envelope, session = await operations.converse(person("maria"), "How is it?")
        instance.clock.jump(timedelta(days=1))
        await operations.converse(person("noor"), "Hello?")
        replies = [r.body.usage for r in await operations.server.list_records(session) if isinstance(r.body, Reply)]
        [run] = await operations.server.execute_sql("SELECT run FROM envelopes WHERE id = :id", id=envelope)
        shown = await operations.ask(OWNER, "run.show", id=run.run)
        by = {name: await costs(operations, name) for name in ("run", "session", "agent", "person", "day", "model")}
        maria = await operations.ask(person("maria"), "usage.show", by="person")
        await assert_ledger_is_ok(operations.server)
    assert [(usage.input_tokens, usage.output_tokens, usage.cost_microusd) for usage in replies] == [
        (100, 10, 200),
        (150, 20, 350),
    ]
    assert [call["cost_usd"] for call in shown["calls"]] == [0.0002, 0.00035]
    assert shown["cost_usd"] == 0.00055
    assert by["run"][run.run] == by["session"][session] == by["person"]["maria"] == by["day"]["2026-01-05"] == 550
    assert by["person"]["noor"] == by["day"]["2026-01-06"] == 100
    assert by["agent"] == {"ada": 650} and by["model"] == {"mock/m1": 650}
    assert [row["key"] for row in maria["rows"]] == ["maria"], "a person sees only their own spending"


async def costs(operations: OperationsServer, by: str) -> dict[str, int]:
    return {row["key"]: row["cost_microusd"] for row in (await operations.ask(OWNER, "usage.show", by=by))["rows"]}


async def test_a_failed_model_call_is_charged_only_if_it_may_have_cost_money(
    tmp_path: Path, provider_server: Provider
) -> None:
    begun = Answer(body='data: {"choices": [{"index": 0, "delta": {"content": "Hal"}}]}\n\n', cut=True)
    provider_server.add_replies(error_answer(500, "oops"), begun, says("Hello.", input_tokens=50, output_tokens=5))
    instance = build_provider_instance(tmp_path, provider_server)
    async with instance.run() as server, advancing_clock(server):
        assert await send_and_wait_for_answer(server) == "Hello."
        refused, cut, replied = await calls_made(server)
        await assert_ledger_is_ok(server)
    assert (refused.settled_microusd, bool(refused.cost_unknown)) == (0, False)
    assert (cut.settled_microusd, bool(cut.cost_unknown)) == (cut.reserved_microusd, True)
    assert (replied.settled_microusd, bool(replied.cost_unknown)) == (100, False)
    assert refused.reserved_microusd == cut.reserved_microusd == replied.reserved_microusd > 0


async def test_a_model_reply_without_usage_is_charged_all_the_money_reserved_for_it(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.add_replies(says("Hello.", reports_usage=False))
    async with build_provider_instance(tmp_path, provider_server).run() as server:
        assert await send_and_wait_for_answer(server) == "Hello."
        [row] = await calls_made(server)
    assert (row.settled_microusd, bool(row.cost_unknown)) == (row.reserved_microusd, True)


# --- budgets ---


BUDGETS = {
    "instance_day_usd": ("this server for today", "wait until 2026-01-06, or raise `budgets.instance_day_usd`"),
    "instance_month_usd": (
        "this server for this month",
        "wait until 2026-02-01, or raise `budgets.instance_month_usd`",
    ),
    "person_day_usd": ("'maria' for today", "wait until 2026-01-06, or raise `budgets.person_day_usd`"),
    "person_month_usd": ("'maria' for this month", "wait until 2026-02-01, or raise `budgets.person_month_usd`"),
}


@pytest.mark.parametrize("cap", BUDGETS)
async def test_a_budget_warns_once_limits_the_last_reply_and_then_refuses(
    tmp_path: Path, provider_server: Provider, cap: str
) -> None:
    whose, try_this = BUDGETS[cap]
    provider_server.rule = all_of_it
    instance = build_provider_instance(tmp_path, provider_server, caps=f"{cap} = 0.10")
    async with instance.run() as server:
        texts = [await send_and_wait_for_answer(server) for _ in range(5)]
        refused = await server.wait_for_outcome((await server.send("once more")).envelope)
        last = (await list_texts_to(server))[-1]
        total_spent = await read_total_spent(server)
        await assert_ledger_is_ok(server)
        instance.clock.jump(timedelta(days=1 if cap.endswith("day_usd") else 31))
        assert await send_and_wait_for_answer(server) == "Long.", "the next day has its own budget"
    warning = f"80% of the budget of {whose} is spent: $0.080080 of $0.10"
    assert texts == ["Long."] * 3 + [f"Long.\n\n[{warning}]"] + ["Long."]
    lengths = [asked.output_tokens_max for asked in provider_server.asked[:5]]
    assert lengths[:4] == [OUTPUT_TOKENS_MAX] * 4
    assert OUTPUT_TOKENS_MIN <= lengths[4] < OUTPUT_TOKENS_MAX, "the output limit is what the budget still allows"
    assert refused.outcome is Outcome.DEAD
    head, because, said_try = last.split("\n")
    assert head == f"Something went wrong: the budget of {whose} does not cover the next model call [budget.spent]"
    assert because.startswith("because: $0.0") and " of $0.10 is spent, and the next call may cost $0.0" in because
    assert said_try == f"try: {try_this}"
    assert len(provider_server.asked) == 5 + 1, "the refused call was not sent"
    assert total_spent <= 100_000


async def test_a_run_budget_reached_midway_keeps_the_text_so_far(tmp_path: Path, provider_server: Provider) -> None:
    numbers = iter(range(100))

    def reply_with_call(asked: Asked) -> FakeReply:
        line = ("append_line", {"text": str(next(numbers))})
        return calls(line, text="Still at it.", output_tokens=asked.output_tokens_max)

    provider_server.rule = reply_with_call
    instance = build_provider_instance(tmp_path, provider_server, agents=(replace(ADA, cost_microusd_max=50_000),))
    async with instance.run() as server:
        text = await send_and_wait_for_answer(server)
        assert await read_total_spent(server) <= 50_000
    said, stopped = text.split("\n\n")
    assert said == "Still at it."
    assert stopped.startswith("[I had to stop: the budget of this run does not cover the next model call ($0.0400")
    assert stopped.endswith(").]")
    assert len(provider_server.asked) == len(instance.witness_file.read_text().splitlines()), (
        "the calls of earlier replies were performed"
    )


async def test_a_model_without_a_price_is_not_called_if_a_budget_applies(
    tmp_path: Path, provider_server: Provider
) -> None:
    instance = build_provider_instance(tmp_path, provider_server, caps="instance_day_usd = 1.0", priced="")
    async with instance.run() as server:
        settled = await server.wait_for_outcome((await server.send("hello")).envelope)
        [text] = await list_texts_to(server)
        assert await calls_made(server) == []
    assert settled.because == (
        "model.price_unknown: mock/m1 cannot be used under a budget, because its price is unknown"
    )
    assert text.split("\n") == [
        "Something went wrong: mock/m1 cannot be used under a budget, because its price is unknown "
        "[model.price_unknown]",
        "because: without a price, the server cannot limit the cost of a call",
        'try: set `input_usd` and `output_usd` under [models.entries."mock/m1"] in retinue.toml; 0 means free',
    ]
    assert provider_server.asked == []


async def test_a_model_call_that_costs_more_money_than_reserved_is_reported_and_blocks_the_next_call(
    tmp_path: Path, provider_server: Provider
) -> None:
    provider_server.always(says("Oh.", input_tokens=100_000, output_tokens=5))
    async with build_provider_instance(tmp_path, provider_server, caps="instance_day_usd = 0.05").run() as server:
        text = await send_and_wait_for_answer(server)
        await server.wait_for_outcome((await server.send("and again")).envelope)
        [row] = await calls_made(server)
        refused = (await list_texts_to(server))[-1]
        await assert_ledger_is_ok(server)
    assert text == "Oh.\n\n[200% of the budget of this server for today is spent: $0.100050 of $0.05]"
    assert row.settled_microusd == 100_050 and row.released_microusd == row.reserved_microusd - 100_050 < 0
    assert "the budget of this server for today does not cover the next model call [budget.spent]" in refused
    assert len(provider_server.asked) == 1


# --- parallel runs and crashes ---


def create_crowded_instance(
    root: Path, provider_server: Provider, *, cap_usd: float, count: int = RUN_COUNT, **kw: Any
) -> LocalInstance:
    """One conversation for each person, all at once. Their names have one length, so that each call costs the same."""
    return build_provider_instance(
        root,
        provider_server,
        caps=f"instance_day_usd = {cap_usd}",
        agents=(replace(ADA, concurrency=count, **kw),),
        people=[f"p{i:03}" for i in range(count)],
        slots=SlotLimits(main=count),
    )


async def wait_until_all_settled(server: LocalServer) -> None:
    def settled(conn: sa.Connection) -> bool:
        return conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE status <> 'done'")).scalar_one() == 0

    await server.wait_for(settled, what="every envelope to settle")


async def read_input_reservation(server: LocalServer) -> int:
    """The amount reserved for the input of the first call: an input token costs one."""
    first = (await calls_made(server))[0]
    return first.reserved_microusd - OUTPUT_TOKENS_MAX * WRITTEN_MICROUSD


async def test_two_hundred_concurrent_runs_do_not_exceed_a_budget(tmp_path: Path, provider_server: Provider) -> None:
    cap = 500_000
    go = asyncio.Event()
    bounds: list[int] = []

    def longest_reply_when_released(asked: Asked) -> FakeReply:
        return replace(all_of_it(asked, input_tokens=bounds[0]), held=go)

    instance = create_crowded_instance(tmp_path, provider_server, cap_usd=cap / 1e6)
    async with instance.run() as server:
        provider_server.rule = lambda asked: replace(all_of_it(asked), held=go)
        first = await server.send("hello", sender="person:p000")
        await poll_until(lambda: len(provider_server.asked) == 1, "the first call is sent")
        bounds.append(await read_input_reservation(server))
        provider_server.rule = longest_reply_when_released
        asked = [await server.send("hello", sender=f"person:p{i:03}") for i in range(1, RUN_COUNT)]
        each = bounds[0] + OUTPUT_TOKENS_MAX * WRITTEN_MICROUSD
        fitting = cap // each
        await poll_until(lambda: len(provider_server.asked) >= fitting, "as many calls are active as the budget allows")
        assert await read_total_spent(server) <= cap, "reserved before anything is spent"
        go.set()
        await wait_until_all_settled(server)
        outcomes = [(await server.wait_for_outcome(receipt.envelope)).outcome for receipt in (first, *asked)]
        total_spent = await read_total_spent(server)
        refusals = [
            text
            for i in range(RUN_COUNT)
            for text in await list_texts_to(server, f"p{i:03}")
            if "[budget.spent]" in text
        ]
        rows = await calls_made(server)
        await assert_ledger_is_ok(server)
    answers = outcomes.count(Outcome.ANSWERED)
    assert answers == len(provider_server.asked) == len(rows) in (fitting, fitting + 1)
    assert answers + len(refusals) == RUN_COUNT, "every refused person received the reason"
    assert cap - each < total_spent <= cap
    assert not any(row.cost_unknown or row.held_microusd for row in rows)
    assert min(request.output_tokens_max for request in provider_server.asked) >= OUTPUT_TOKENS_MIN


async def test_calls_interrupted_by_crashes_are_charged_and_never_exceed_a_budget(
    tmp_path: Path, provider_server: Provider
) -> None:
    cap, count = 300_000, 4
    never = asyncio.Event()
    provider_server.rule = lambda asked: replace(all_of_it(asked), held=never)
    instance = create_crowded_instance(tmp_path, provider_server, cap_usd=cap / 1e6, count=count, attempts_max=10)
    async with instance.run() as server:
        for i in range(count):
            await server.send("hello", sender=f"person:p{i:03}")
        await poll_until(lambda: len(provider_server.asked) == count, "every run has called the model")
        each = (await calls_made(server))[0].reserved_microusd
        server.crash()
    for lost in range(count, cap // each - count + 1, count):
        async with instance.run() as server:
            await poll_until(
                lambda lost=lost: len(provider_server.asked) == lost + count, "every run has called the model again"
            )
            assert await read_total_spent(server) == (lost + count) * each <= cap
            assert sum(bool(row.cost_unknown) for row in await calls_made(server)) == lost
            server.crash()
    lost = len(provider_server.asked)
    provider_server.rule = all_of_it
    async with instance.run() as server:
        await wait_until_all_settled(server)
        total_spent, rows = await read_total_spent(server), await calls_made(server)
        refusals = [
            text for i in range(count) for text in await list_texts_to(server, f"p{i:03}") if "[budget.spent]" in text
        ]
        await assert_ledger_is_ok(server)
    assert lost > 2 * count and refusals, "more than one crash, and the budget was too small for all runs"
    assert total_spent <= cap
    assert sum(row.settled_microusd for row in rows if row.cost_unknown) == lost * each
    assert not any(row.held_microusd for row in rows)
