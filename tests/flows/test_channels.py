"""Someone speaks in a room outside, and the answer comes back to that room."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from faults import CrashAt, time_passing, until

from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.models.base import ModelPrompt
from retinue.store.channels import deliveries
from retinue.store.channels.deliveries import DeliveryState
from retinue.store.envelopes.dead_letters import load_dead_letters
from retinue.testing.fake_connector import FakeConnector, OfferedMessage
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply

ACCEPT_AND_ANSWER = tuple(f"{commit}.{side}-commit" for commit in ("accept", "finish") for side in ("before", "after"))
SENDING = (
    "deliver-claim.before-commit",
    "deliver-claim.after-commit",
    "deliver.before",
    "deliver.after",
    "deliver-done.before-commit",
    "deliver-done.after-commit",
)
NOBODY_KNOWS = ("deliver-claim.after-commit", "deliver.before", "deliver.after", "deliver-done.before-commit")


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    household = LocalInstance(tmp_path)
    household.model.rule = echo
    return household


def quiet(household: LocalInstance, *, repeats_safely: bool = True) -> FakeConnector:
    connector = FakeConnector(household.clock, repeats_safely=repeats_safely)
    household.connectors["quiet"] = connector
    return connector


def echo(prompt: ModelPrompt) -> ScriptedReply:
    """Answers with the last line of what was said."""
    heard = [record.body.text for record in prompt.records if isinstance(record.body, UserTurn)]
    lines = [line for line in heard[-1].splitlines() if line and line != "---"]
    return text_reply(f"You said: {lines[-1]}")


async def all_settled(house: LocalServer) -> None:
    def settled(conn: sa.Connection) -> bool:
        return conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE status <> 'done'")).scalar_one() == 0

    await house.wait_for(settled, what="every envelope to settle")


async def test_an_answer_comes_back_to_the_room_it_was_asked_in(household: LocalInstance) -> None:
    connector = quiet(household)
    async with household.run() as house:
        for room in ("kitchen", "cellar", "kitchen"):
            asked = await connector.send_inbound(f"who is in the {room}?", channel=room)
            assert asked is not None
            settled = await house.wait_for_outcome(asked.envelope)
            assert settled.answer is not None
            assert (await house.wait_for_outcome(settled.answer)).outcome is Outcome.DELIVERED

    assert connector.list_texts("kitchen") == ["You said: who is in the kitchen?"] * 2
    assert connector.list_texts("cellar") == ["You said: who is in the cellar?"]


@pytest.mark.spec("D77")
async def test_a_connector_replaced_while_the_agent_thinks_delivers_the_answer(household: LocalInstance) -> None:
    old = quiet(household)
    household.model.will_reply(text_reply("Good morning.", after_s=60.0))
    async with household.run() as house:
        asked = await old.send_inbound("hello")
        assert asked is not None
        await until(lambda: len(household.model.prompts) == 1, "the agent thinks")
        [stored] = await house.execute_sql("SELECT * FROM envelopes WHERE id = :id", id=asked.envelope)
        new = quiet(household)
        async with time_passing(household):
            settled = await house.wait_for_outcome(asked.envelope)
            assert settled.answer is not None
            await house.wait_for_outcome(settled.answer)

    assert stored.text == "hello"
    assert "platform_id" in stored.context, "message-level context is kept with the envelope, and nothing else is"
    assert old.list_texts("42") == []
    assert new.list_texts("42") == ["Good morning."]


@pytest.mark.spec("D77")
async def test_a_connector_replaced_while_the_house_was_closed_delivers_the_answer(household: LocalInstance) -> None:
    old = quiet(household)
    household.model.will_reply(text_reply("never heard", after_s=3600.0))
    async with household.run() as house:
        assert await old.send_inbound("hello") is not None
        await until(lambda: len(household.model.prompts) == 1, "the agent thinks")
        house.crash()
    new = quiet(household, repeats_safely=False)
    async with household.run() as house:
        await all_settled(house)

    assert old.list_texts("42") == []
    assert new.list_texts("42") == ["You said: hello"]


@pytest.mark.parametrize("point", [*ACCEPT_AND_ANSWER, *SENDING])
async def test_a_question_is_answered_once_wherever_the_house_crashes(household: LocalInstance, point: str) -> None:
    connector = quiet(household, repeats_safely=True)
    said = await crash_in_mid_conversation(household, connector, point)
    async with household.run() as house, time_passing(household):
        assert await said.confirmed is not None
        await all_settled(house)

    assert connector.list_texts("42") == ["You said: hello"]


@pytest.mark.parametrize("point", SENDING)
async def test_an_answer_that_cannot_be_repeated_is_never_doubled_and_its_end_is_told(
    household: LocalInstance, point: str
) -> None:
    connector = quiet(household, repeats_safely=False)
    await crash_in_mid_conversation(household, connector, point)
    async with household.run() as house, time_passing(household):
        await all_settled(house)
        letters = await house.store.scan(partial(load_dead_letters, limit=10))
        if point in NOBODY_KNOWS:
            [letter] = letters
            assert letter.settled.outcome is Outcome.INTERRUPTED
            [attempt] = await house.store.read(partial(deliveries.list_attempts, envelope=letter.envelope.id))
            assert attempt.state is DeliveryState.UNKNOWN
            # The agent was told, in the conversation it belongs to, and reads it when it next has a turn.
            assert await connector.send_inbound("did you get that?") is not None
            await all_settled(house)
            heard = [r.body.text for r in household.model.prompts[-1].records if isinstance(r.body, UserTurn)]
            assert any("may or may not have arrived" in text for text in heard)
        else:
            assert letters == []

    arrived = [text for text in connector.list_texts("42") if text == "You said: hello"]
    assert len(arrived) == (0 if point in ("deliver-claim.after-commit", "deliver.before") else 1)


async def crash_in_mid_conversation(household: LocalInstance, connector: FakeConnector, point: str) -> OfferedMessage:
    faults = CrashAt(point)
    household.crash_points = faults
    async with household.run() as house:
        faults.guard(house)
        said = connector.offer_text("hello")
        await until(lambda: house.is_crashed, "the house crashed")
    assert faults.happened
    return said
