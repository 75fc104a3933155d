"""What the story of a run says about its money: what it cost, how sure that is, and which calls came to nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from store.model_spending import Till, terms

from retinue.domain.ids import short_id
from retinue.domain.model import FREE_PRICE, ModelRef
from retinue.domain.money import ModelCallReservationRequest
from retinue.domain.record import Usage
from retinue.domain.run import Run
from retinue.domain.times import to_ms
from retinue.store.ledger import ledger
from retinue.store.maintenance import purge
from retinue.store.runs import runs
from retinue.store.runs.why import explain
from retinue.testing.local_instance import LocalInstance, LocalServer

ADA_SAYS = "Turn 1: scripted replied in 0 ms."


async def worked(house: LocalServer) -> Run:
    """A run that has ended."""
    envelope = (await house.send("what is on today?")).envelope
    assert await house.wait_for_answer(envelope) == "Lunch."
    found = await house.get_envelope(envelope)
    run = await house.store.read(lambda conn: runs.get(conn, found.run or ""))
    assert run is not None and run.ended_at is not None
    return run


async def told(house: LocalServer, run: Run) -> list[str]:
    found = await house.store.scan(partial(explain, id_text=run.id))
    return [line.partition("  ")[2] for line in found.format_lines(ZoneInfo("UTC"))]


@pytest.fixture(params=["sqlite", "postgres"])
def household(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    made = LocalInstance(tmp_path, url=url)
    made.model.will_reply("Lunch.")
    return made


async def test_calls_that_failed_are_told_before_the_one_that_replied(household: LocalInstance) -> None:
    async with household.run() as house:
        run, till = await worked(house), Till(house.store, at_ms=to_ms(household.clock.now()))
        await till.fail(run, terms(ref=ModelRef("anthropic", "claude")), unknown=False, attempt=7)
        await till.fail(run, terms(ref=ModelRef("openai", "mini")), unknown=False, attempt=8, error="")
        lines = await told(house, run)
    at = lines.index(ADA_SAYS)
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
async def test_the_end_of_a_run_says_what_it_cost_and_how_sure_that_is(
    household: LocalInstance, asked: ModelCallReservationRequest, usage: Usage, cost: str
) -> None:
    async with household.run() as house:
        run, till = await worked(house), Till(house.store, at_ms=to_ms(household.clock.now()))
        await till.settle(run, asked, usage, attempt=7)
        lines = await told(house, run)
    assert f"Run {short_id(run.id)} completed after 1 turn and 0 ms{cost}." in lines


async def test_of_a_purged_run_the_money_stays(household: LocalInstance) -> None:
    async with household.run() as house:
        run, till = await worked(house), Till(house.store, at_ms=to_ms(household.clock.now()))
        await till.settle(run, terms(), Usage(input_tokens=900, output_tokens=100), attempt=7)
        before = await till.rows("SELECT * FROM money"), await till.rows("SELECT * FROM spending")
        purged = partial(purge.purge_runs, ids=[run.id], before_ms=2**50, now_ms=1)
        assert await house.store.write(purged, point="purge") == 1
        assert (await till.rows("SELECT * FROM money"), await till.rows("SELECT * FROM spending")) == before
        assert (await house.store.scan(partial(ledger.check_ledger, now_ms=2**50))).is_ok
