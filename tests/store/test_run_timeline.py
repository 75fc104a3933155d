"""The cost in a run timeline: the amount, whether it is an estimate, and which calls failed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from store.model_spending import SpendingStore, terms

from retinue.domain.budget import ModelCallReservationRequest
from retinue.domain.ids import short_id
from retinue.domain.model import FREE_PRICE, ModelRef
from retinue.domain.record import Usage
from retinue.domain.run import Run
from retinue.domain.times import to_ms
from retinue.store.ledger import ledger
from retinue.store.maintenance import purge
from retinue.store.runs import runs
from retinue.store.runs.explanations import explain
from retinue.testing.local_instance import LocalInstance, LocalServer

MODEL_REPLY_LINE = "Turn 1: scripted replied in 0 ms."


async def completed_run(server: LocalServer) -> Run:
    """Return the completed run of a message."""
    envelope = (await server.send("what is on today?")).envelope
    assert await server.wait_for_answer(envelope) == "Lunch."
    found = await server.get_envelope(envelope)
    run = await server.store.read(lambda conn: runs.get(conn, found.run or ""))
    assert run is not None and run.ended_at is not None
    return run


async def explanation_lines(server: LocalServer, run: Run) -> list[str]:
    found = await server.store.scan(partial(explain, id_text=run.id))
    return [line.partition("  ")[2] for line in found.format_lines(ZoneInfo("UTC"))]


@pytest.fixture(params=["sqlite", "postgres"])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    made = LocalInstance(tmp_path, url=url)
    made.model.will_reply("Lunch.")
    return made


async def test_the_run_timeline_lists_failed_model_calls_before_the_successful_call(instance: LocalInstance) -> None:
    async with instance.run() as server:
        run, spending_store = (
            await completed_run(server),
            SpendingStore(server.store, at_ms=to_ms(instance.clock.now())),
        )
        await spending_store.fail(run, terms(ref=ModelRef("anthropic", "claude")), unknown=False, attempt=7)
        await spending_store.fail(run, terms(ref=ModelRef("openai", "mini")), unknown=False, attempt=8, error="")
        lines = await explanation_lines(server, run)
    at = lines.index(MODEL_REPLY_LINE)
    assert lines[at - 2 : at] == [
        "Turn 1: anthropic/claude failed (overloaded: it is busy); it was retried.",
        "Turn 1: openai/mini failed (overloaded); it was retried.",
    ]


@pytest.mark.parametrize(
    ("asked", "usage", "cost"),
    [
        (terms(), Usage(input_tokens=900, output_tokens=100), ", for $0.004200"),
        (terms(), Usage(input_tokens=1, estimated=True), ", for $0.033000 at most"),
        (terms(price=None), Usage(input_tokens=900), ", at an unknown cost"),
        (terms(price=FREE_PRICE), Usage(input_tokens=900), ""),
    ],
)
async def test_the_run_timeline_ends_with_the_cost_of_the_run_and_whether_it_is_exact(
    instance: LocalInstance, asked: ModelCallReservationRequest, usage: Usage, cost: str
) -> None:
    async with instance.run() as server:
        run, spending_store = (
            await completed_run(server),
            SpendingStore(server.store, at_ms=to_ms(instance.clock.now())),
        )
        await spending_store.settle(run, asked, usage, attempt=7)
        lines = await explanation_lines(server, run)
    assert f"Run {short_id(run.id)} completed after 1 turn and 0 ms{cost}." in lines


async def test_purging_a_run_keeps_its_money_rows(instance: LocalInstance) -> None:
    async with instance.run() as server:
        run, spending_store = (
            await completed_run(server),
            SpendingStore(server.store, at_ms=to_ms(instance.clock.now())),
        )
        await spending_store.settle(run, terms(), Usage(input_tokens=900, output_tokens=100), attempt=7)
        before = (
            await spending_store.rows("SELECT * FROM model_calls"),
            await spending_store.rows("SELECT * FROM spending"),
        )
        purged = partial(purge.purge_runs, ids=[run.id], before_ms=2**50, now_ms=1)
        assert await server.store.write(purged, point="purge") == 1
        assert (
            await spending_store.rows("SELECT * FROM model_calls"),
            await spending_store.rows("SELECT * FROM spending"),
        ) == before
        assert (await server.store.scan(partial(ledger.check_ledger, now_ms=2**50))).is_ok
