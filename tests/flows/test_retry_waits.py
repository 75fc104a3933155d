"""While the server waits to retry, it holds no slot and everything is stored."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from faults import advancing_clock

from retinue.domain.model import ModelFailureKind
from retinue.domain.record import StopReason, Usage
from retinue.domain.times import to_ms
from retinue.store.ledger import ledger
from retinue.store.runs import model_calls
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import ScriptedReply


async def test_stopping_a_run_that_waits_to_retry_leaves_no_reserved_money_and_records_the_failure(
    tmp_path: Path,
) -> None:
    instance = LocalInstance(tmp_path)
    instance.model.price_microusd = 1000
    instance.model.will_reply(ScriptedReply(fails="slow down", failure=ModelFailureKind.OVERLOADED, retry_after_s=20.0))
    async with instance.run() as server:
        receipt = await server.send("hello")
        envelope = await server.get_envelope(receipt.envelope)
        assert envelope.run is not None and envelope.session is not None
        run = envelope.run

        def is_failure_recorded(conn: sa.Connection) -> bool:
            made = model_calls.list_of_run(conn, run)
            return bool(made) and made[0].failure is not None

        await server.wait_for(is_failure_recorded, what="the failure to be stored before the wait")
        await server.engine.cancel(envelope.session, by="person:maria", reason="enough")
        await server.wait_for_outcome(receipt.envelope)
        [made] = await server.store.scan(lambda conn: model_calls.list_of_run(conn, run))
        assert (made.failure, made.next_action, made.settled_microusd, made.cost_unknown) == (
            "overloaded",
            "retry",
            0,
            False,
        )
        now_ms = to_ms(instance.clock.now())
        assert (await server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))).is_ok


async def test_an_empty_reply_before_a_retry_is_charged_exactly_as_reported(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path)
    instance.model.price_microusd = 1000
    usage = Usage(input_tokens=10, output_tokens=5, cost_microusd=300)
    instance.model.will_reply(ScriptedReply(usage=usage, stop=StopReason.END), ScriptedReply(text="here", usage=usage))
    async with instance.run() as server:
        receipt = await server.send("hello")
        async with advancing_clock(server):
            await server.wait_for_outcome(receipt.envelope)
        run = (await server.get_envelope(receipt.envelope)).run
        assert run is not None
        made = await server.store.scan(lambda conn: model_calls.list_of_run(conn, run))
        assert [(call.failure, call.settled_microusd, call.cost_unknown) for call in made] == [
            ("malformed", 300, False),
            (None, 300, False),
        ]
