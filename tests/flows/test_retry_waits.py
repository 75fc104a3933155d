"""While the house waits to ask again, nothing is held and nothing unwritten."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from faults import time_passing

from retinue.domain.model import ModelFailureKind
from retinue.domain.record import StopReason, Usage
from retinue.domain.times import to_ms
from retinue.store.ledger import ledger
from retinue.store.runs import model_calls
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply


async def test_a_stop_while_a_busy_provider_is_waited_for_leaves_no_money_held_and_knows_why(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    household.model.price_microusd = 1000
    household.model.will_reply(
        ScriptedReply(fails="slow down", failure=ModelFailureKind.OVERLOADED, retry_after_s=20.0)
    )
    async with household.run() as house:
        receipt = await house.send("hello")
        envelope = await house.get_envelope(receipt.envelope)
        assert envelope.run is not None and envelope.session is not None
        run = envelope.run

        def failed(conn: sa.Connection) -> bool:
            made = model_calls.list_of_run(conn, run)
            return bool(made) and made[0].failure is not None

        await house.wait_for(failed, what="the failure to be written down before the wait")
        await house.engine.cancel(envelope.session, by="person:maria", reason="enough")
        await house.wait_for_outcome(receipt.envelope)
        [made] = await house.store.scan(lambda conn: model_calls.list_of_run(conn, run))
        assert (made.failure, made.next_move, made.settled_microusd, made.unknown) == ("overloaded", "again", 0, False)
        now_ms = to_ms(household.clock.now())
        assert (await house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))).is_ok


async def test_an_empty_answer_costs_what_its_provider_says_and_no_more(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path)
    household.model.price_microusd = 1000
    usage = Usage(input_tokens=10, output_tokens=5, cost_microusd=300)
    household.model.will_reply(ScriptedReply(usage=usage, stop=StopReason.END), ScriptedReply(text="here", usage=usage))
    async with household.run() as house:
        receipt = await house.send("hello")
        async with time_passing(household):
            await house.wait_for_outcome(receipt.envelope)
        run = (await house.get_envelope(receipt.envelope)).run
        assert run is not None
        made = await house.store.scan(lambda conn: model_calls.list_of_run(conn, run))
        assert [(call.failure, call.settled_microusd, call.unknown) for call in made] == [
            ("malformed", 300, False),
            (None, 300, False),
        ]
