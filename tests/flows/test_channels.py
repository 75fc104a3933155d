"""A message in a channel is answered in that channel."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from faults import CrashAt, advancing_clock, poll_until

from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.models.base import ModelPrompt
from retinue.store.channels import deliveries
from retinue.store.channels.deliveries import DeliveryState
from retinue.store.envelopes.dead_letters import load_dead_letters
from retinue.testing.fake_connector import FakeConnector, OfferedMessage
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply

ACCEPT_AND_FINISH_POINTS = tuple(
    f"{commit}.{side}-commit" for commit in ("accept", "finish") for side in ("before", "after")
)
DELIVERY_POINTS = (
    "deliver-claim.before-commit",
    "deliver-claim.after-commit",
    "deliver.before",
    "deliver.after",
    "deliver-done.before-commit",
    "deliver-done.after-commit",
)
UNKNOWN_DELIVERY_POINTS = (
    "deliver-claim.after-commit",
    "deliver.before",
    "deliver.after",
    "deliver-done.before-commit",
)


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    instance = LocalInstance(tmp_path)
    instance.model.rule = echo
    return instance


def add_fake_connector(instance: LocalInstance, *, repeats_safely: bool = True) -> FakeConnector:
    connector = FakeConnector(instance.clock, repeats_safely=repeats_safely)
    instance.connectors["quiet"] = connector
    return connector


def echo(prompt: ModelPrompt) -> ScriptedReply:
    """Reply with the last line of the message."""
    heard = [record.body.text for record in prompt.records if isinstance(record.body, UserTurn)]
    lines = [line for line in heard[-1].splitlines() if line and line != "---"]
    return text_reply(f"You said: {lines[-1]}")


async def wait_until_all_settled(server: LocalServer) -> None:
    def settled(conn: sa.Connection) -> bool:
        return conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE status <> 'done'")).scalar_one() == 0

    await server.wait_for(settled, what="every envelope to settle")


async def test_an_answer_is_delivered_to_the_channel_of_its_question(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance)
    async with instance.run() as server:
        for room in ("kitchen", "cellar", "kitchen"):
            asked = await connector.send_inbound(f"who is in the {room}?", channel=room)
            assert asked is not None
            settled = await server.wait_for_outcome(asked.envelope)
            assert settled.answer is not None
            assert (await server.wait_for_outcome(settled.answer)).outcome is Outcome.DELIVERED

    assert connector.list_texts("kitchen") == ["You said: who is in the kitchen?"] * 2
    assert connector.list_texts("cellar") == ["You said: who is in the cellar?"]


@pytest.mark.spec("D77")
async def test_a_connector_replaced_during_a_run_delivers_the_answer_to_its_channel(instance: LocalInstance) -> None:
    old = add_fake_connector(instance)
    instance.model.will_reply(text_reply("Good morning.", after_s=60.0))
    async with instance.run() as server:
        asked = await old.send_inbound("hello")
        assert asked is not None
        await poll_until(lambda: len(instance.model.prompts) == 1, "the model is called")
        [stored] = await server.execute_sql("SELECT * FROM envelopes WHERE id = :id", id=asked.envelope)
        new = add_fake_connector(instance)
        async with advancing_clock(instance):
            settled = await server.wait_for_outcome(asked.envelope)
            assert settled.answer is not None
            await server.wait_for_outcome(settled.answer)

    assert stored.text == "hello"
    assert "platform_id" in stored.context, "the envelope keeps the context of its message"
    assert old.list_texts("42") == []
    assert new.list_texts("42") == ["Good morning."]


@pytest.mark.spec("D77")
async def test_a_connector_replaced_while_the_server_was_stopped_delivers_the_answer_to_its_channel(
    instance: LocalInstance,
) -> None:
    old = add_fake_connector(instance)
    instance.model.will_reply(text_reply("never heard", after_s=3600.0))
    async with instance.run() as server:
        assert await old.send_inbound("hello") is not None
        await poll_until(lambda: len(instance.model.prompts) == 1, "the model is called")
        server.crash()
    new = add_fake_connector(instance, repeats_safely=False)
    async with instance.run() as server:
        await wait_until_all_settled(server)

    assert old.list_texts("42") == []
    assert new.list_texts("42") == ["You said: hello"]


@pytest.mark.parametrize("point", [*ACCEPT_AND_FINISH_POINTS, *DELIVERY_POINTS])
async def test_a_channel_message_is_answered_once_wherever_the_server_crashes(
    instance: LocalInstance, point: str
) -> None:
    connector = add_fake_connector(instance, repeats_safely=True)
    said = await crash_during_conversation(instance, connector, point)
    async with instance.run() as server, advancing_clock(server):
        assert await said.confirmed is not None
        await wait_until_all_settled(server)

    assert connector.list_texts("42") == ["You said: hello"]


@pytest.mark.parametrize("point", DELIVERY_POINTS)
async def test_an_answer_to_a_channel_that_cannot_be_resent_is_never_duplicated_and_a_lost_one_is_reported(
    instance: LocalInstance, point: str
) -> None:
    connector = add_fake_connector(instance, repeats_safely=False)
    await crash_during_conversation(instance, connector, point)
    async with instance.run() as server, advancing_clock(server):
        await wait_until_all_settled(server)
        dead_letters = await server.store.scan(partial(load_dead_letters, limit=10))
        if point in UNKNOWN_DELIVERY_POINTS:
            [dead_letter] = dead_letters
            assert dead_letter.settled.outcome is Outcome.INTERRUPTED
            [attempt] = await server.store.read(partial(deliveries.list_attempts, envelope=dead_letter.envelope.id))
            assert attempt.state is DeliveryState.UNKNOWN
            # The agent reads the notice in the same conversation, at the start of its next turn.
            assert await connector.send_inbound("did you get that?") is not None
            await wait_until_all_settled(server)
            heard = [r.body.text for r in instance.model.prompts[-1].records if isinstance(r.body, UserTurn)]
            assert any("may or may not have arrived" in text for text in heard)
        else:
            assert dead_letters == []

    arrived = [text for text in connector.list_texts("42") if text == "You said: hello"]
    assert len(arrived) == (0 if point in ("deliver-claim.after-commit", "deliver.before") else 1)


async def crash_during_conversation(instance: LocalInstance, connector: FakeConnector, point: str) -> OfferedMessage:
    faults = CrashAt(point)
    instance.crash_points = faults
    async with instance.run() as server:
        faults.watch(server)
        receipt = connector.offer_text("hello")
        await poll_until(lambda: server.is_crashed, "the server crashed")
    assert faults.happened
    return receipt
