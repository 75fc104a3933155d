"""The engine's contract for queue modes: what happens to a message that arrives during a run."""

from __future__ import annotations

import pytest
from contracts.engine_instance import (
    StoreControl,
    ada,
    let_tasks_settle,
    list_answers_to,
    list_events,
    list_notices_to,
    list_outcomes,
    list_tool_results,
    newest_user_text,
    query_rows,
    read_witness_file,
    run_with_ledger_check,
    set_queue,
    user_turns,
    wait_until_suspended,
    wait_until_true,
)

from retinue.domain.agent import ToolRules
from retinue.domain.envelope import EnvelopeContext, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.event import EventKind
from retinue.domain.record import RecordKind
from retinue.domain.session import LaneKind, Overflow, QueueMode, QueueOverride, QueuePolicy
from retinue.engine.lanes import SlotLimits
from retinue.intake.accept import LaneWake
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply

ALICE = EnvelopeContext(sender_name="Alice", username="alice")
BOB = EnvelopeContext(sender_name="Bob", username="bob")


def mode(mode: QueueMode, **kw: int | Overflow) -> QueuePolicy:
    return QueuePolicy(mode=mode, **kw)  # type: ignore[arg-type]


async def run_batches(server: LocalServer) -> list[tuple[str, ...]]:
    return [tuple(piece.body["envelopes"]) for piece in await list_events(server, EventKind.RUN_STARTED)]


async def send_and_wait_until_busy(
    instance: LocalInstance, server: LocalServer, text: str = "first", **kw: object
) -> str:
    """Send a message and wait until the model is called for it. The next scripted reply must take some time."""
    asked = len(instance.model.prompts)
    receipt = await server.send(text, **kw)  # type: ignore[arg-type]
    await wait_until_true(lambda: len(instance.model.prompts) > asked, what="the model call")
    return receipt.envelope


@pytest.mark.spec("C23")
async def test_collect_mode_handles_messages_that_arrived_during_a_run_in_one_run(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.will_reply(text_reply("one", after_s=1), "the rest")
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        later = [(await server.send(f"later {n}")).envelope for n in range(3)]
        await instance.clock.advance(1)
        assert await server.wait_for_answer(later[-1]) == "the rest"
        assert await run_batches(server) == [(first,), tuple(later)]
        assert all(f"later {n}" in newest_user_text(instance.model.prompts[1]) for n in range(3))


@pytest.mark.spec("C23")
async def test_followup_mode_gives_each_envelope_its_own_run(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.FOLLOWUP)),)
    instance.model.will_reply(text_reply("one", after_s=1), "two", "three", "four")
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        later = [(await server.send(f"later {n}")).envelope for n in range(3)]
        await instance.clock.advance(1)
        assert [await server.wait_for_answer(id_) for id_ in (first, *later)] == ["one", "two", "three", "four"]
        assert await run_batches(server) == [(first,), *((id_,) for id_ in later)]


@pytest.mark.spec("C23")
async def test_steer_mode_adds_a_message_to_the_current_run_at_its_next_turn_in_one_commit(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    instance.agents = (ada(queue=mode(QueueMode.STEER)),)
    instance.model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), "as you wish")
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        second = (await server.send("make it short")).envelope
        steps = store_control.commit_points.count("step")
        await instance.clock.advance(1)
        assert await server.wait_for_answer(second) == "as you wish"
        assert (await server.wait_for_outcome(first)).answer == (await server.wait_for_outcome(second)).answer
        assert await run_batches(server) == [(first,)], "it has no separate run"
        (joined,) = await list_events(server, EventKind.RUN_JOINED)
        assert joined.body["envelopes"] == [second]
        # The reply, the inbox check, the steered messages and the next intent are one commit.
        assert store_control.commit_points.count("step") == steps + 1
        prompt = instance.model.prompts[1]
        assert [record.kind for record in prompt.records][-3:] == [
            RecordKind.ASSISTANT,
            RecordKind.TOOL,
            RecordKind.USER,
        ]
        assert "make it short" in newest_user_text(prompt)


@pytest.mark.spec("C23")
async def test_only_the_sender_of_a_run_and_the_owner_may_steer_it(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.STEER)),)
    instance.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1), "for alice and the owner", "for bob"
    )
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server, "from alice", context=ALICE)
        session = (await server.get_envelope(first)).session
        bob = await server.send("from bob", context=BOB)
        owner = await server.send("from the owner", sender="person:owner", recipient=f"agent:ada/{session}")
        alice = await server.send("from alice again", context=ALICE)
        await instance.clock.advance(1)
        assert await server.wait_for_answer(bob.envelope) == "for bob"
        assert await server.wait_for_answer(alice.envelope) == "for alice and the owner"
        assert (await server.wait_for_outcome(owner.envelope)).outcome is Outcome.ANSWERED
        assert await run_batches(server) == [(first,), (bob.envelope,)]
        joined = newest_user_text(instance.model.prompts[1])
        assert "from the owner" in joined and "from alice again" in joined and "from bob" not in joined


async def test_the_answer_of_a_steered_run_goes_to_its_first_sender(instance: LocalInstance) -> None:
    """The owner steered the run last, but maria gets the answer."""
    instance.agents = (ada(queue=mode(QueueMode.STEER)),)
    instance.model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), "done")
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        session = (await server.get_envelope(first)).session
        owner = await server.send("be kind", sender="person:owner", recipient=f"agent:ada/{session}")
        await instance.clock.advance(1)
        settled = await server.wait_for_outcome(owner.envelope)
        assert settled.answer is not None
        answer = await server.get_envelope(settled.answer)
        assert str(answer.recipient) == "person:maria"
        assert answer.reply_to == first


async def test_a_failed_steered_run_notifies_every_sender_that_joined(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.STEER)),)
    instance.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1), ScriptedReply(fails="no more words")
    )
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        session = (await server.get_envelope(first)).session
        owner = await server.send("be kind", sender="person:owner", recipient=f"agent:ada/{session}")
        await instance.clock.advance(1)
        assert await wait_for_outcomes(server, first, owner.envelope) == [Outcome.DEAD, Outcome.DEAD]
        assert len(await list_notices_to(server, "maria")) == 1
        assert len(await list_notices_to(server, "owner")) == 1


async def wait_for_outcomes(server: LocalServer, *ids: str) -> list[Outcome]:
    return [(await server.wait_for_outcome(id_)).outcome for id_ in ids]


@pytest.mark.spec("C23")
async def test_a_steering_message_survives_a_crash_right_after_it_joined_the_run(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.agents = (ada(queue=mode(QueueMode.STEER)),)
    instance.model.will_reply(ScriptedReply(calls=(("append_line", {"text": "once"}),), after_s=1))
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        second = (await server.send("make it short")).envelope
        with store_control.hold_commits("step", committed=True) as intent:
            await instance.clock.advance(1)
            await intent.reached.wait()
            store_control.cut_at = (1, True)  # the commit with the result and the steered message
        await server.wait_for(
            lambda _: len(store_control.commit_points) and store_control.cut_at == (0, True), what="the power cut"
        )
        server.crash()
    store_control.cut_at = None
    instance.model.will_reply("short")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(first) == "short"
        assert await server.wait_for_answer(second) == "short"
        assert await run_batches(server) == [(first,)]
        prompt = instance.model.prompts[-1]
        assert sum("make it short" in text for text in user_turns(prompt.records)) == 1
        assert [result.output for result in list_tool_results(prompt.records)] == ["appended"]
        assert read_witness_file(instance) == ["once"]


async def test_a_steering_message_pending_at_a_crash_joins_the_resumed_run(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.STEER)),)
    instance.model.will_reply(text_reply("never", after_s=1000))
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        second = (await server.send("make it short")).envelope
        server.crash()
    instance.model.will_reply(tool_call_reply("session_status"), "short")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(second) == "short"
        assert await server.wait_for_answer(first) == "short"
        assert await run_batches(server) == [(first,)]


@pytest.mark.spec("C23")
async def test_steer_backlog_mode_adds_a_message_to_the_run_and_gives_it_its_own_run_too(
    instance: LocalInstance,
) -> None:
    instance.agents = (ada(queue=mode(QueueMode.STEER_BACKLOG)),)
    instance.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1),
        tool_call_reply("session_status"),
        "first answer",
        "second answer",
    )
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        second = (await server.send("by the way")).envelope
        await instance.clock.advance(1)
        assert await server.wait_for_answer(first) == "first answer"
        assert await server.wait_for_answer(second) == "second answer"
        assert await run_batches(server) == [(first,), (second,)]
        read = [user_turns(prompt.records) for prompt in instance.model.prompts]
        assert [sum("by the way" in text for text in texts) for texts in read] == [0, 1, 1, 2]
        assert len(await list_events(server, EventKind.RUN_JOINED)) == 1, (
            "a message for the next run is read once, not at every turn"
        )
        assert (await server.get_envelope(second)).attempts == 1


@pytest.mark.spec("C23")
async def test_interrupt_mode_cancels_the_run_for_a_newer_message(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.agents = (ada(queue=mode(QueueMode.INTERRUPT)),)
    instance.model.will_reply(text_reply("too late", after_s=1000), "about the newer")
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        second = await server.send("newer")
        assert await server.wait_for_answer(second.envelope) == "about the newer"
        settled = await server.wait_for_outcome(first)
        assert settled.outcome is Outcome.CANCELLED
        assert settled.because == "cancelled by server: a newer message arrived"
        assert await list_notices_to(server, "maria") == ["Stopped: a newer message arrived."]
        assert await list_answers_to(server, "maria") == ["about the newer"]


@pytest.mark.spec("C23")
@pytest.mark.parametrize(
    ("text", "kw"),
    [
        ("a silent note", {"kind": EnvelopeKind.SYSTEM, "silent": True, "sender": "agent:ada"}),
        ("someone's answer", {"kind": EnvelopeKind.ANSWER, "sender": "agent:ada"}),
        ("a notice", {"kind": EnvelopeKind.NOTICE, "sender": "server"}),
    ],
)
async def test_interrupt_mode_keeps_the_run_for_envelopes_that_need_no_answer(
    instance: LocalInstance, text: str, kw: dict[str, object]
) -> None:
    instance.agents = (ada(queue=mode(QueueMode.INTERRUPT)),)
    instance.model.will_reply(text_reply("in peace", after_s=1), "noted")
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        session = (await server.get_envelope(first)).session
        await server.send(text, recipient=f"agent:ada/{session}", **kw)  # type: ignore[arg-type]
        await let_tasks_settle(server)
        await instance.clock.advance(1)
        assert await server.wait_for_answer(first) == "in peace"


@pytest.mark.spec("C23")
async def test_interrupt_mode_keeps_the_run_for_messages_older_than_the_run(instance: LocalInstance) -> None:
    """Messages that the run took, and older ones of others, do not interrupt it, however often the lane is checked."""
    instance.slots = SlotLimits(main=1)
    instance.agents = (ada(queue=mode(QueueMode.INTERRUPT)),)
    instance.model.rule = lambda prompt: text_reply("done", after_s=100)
    async with run_with_ledger_check(instance) as server:
        await send_and_wait_until_busy(instance, server, "keeps the slot", sender="person:owner")
        alice = await server.send("from alice", context=ALICE)
        bob = await server.send("from bob", context=BOB)
        assert alice.session is not None
        await instance.clock.advance(100)
        await wait_until_true(lambda: len(instance.model.prompts) == 2, what="alice's run")
        for _ in range(3):  # meanwhile the alarm fires, and wake hints arrive
            await instance.clock.advance(30)
            server.engine.wake(LaneWake(alice.session, "ada", LaneKind.MAIN))
            await let_tasks_settle(server)
        await instance.clock.advance(10)
        assert await server.wait_for_answer(alice.envelope) == "done"
        await wait_until_true(lambda: len(instance.model.prompts) == 3, what="bob's run")
        await instance.clock.advance(100)
        assert await server.wait_for_answer(bob.envelope) == "done"


async def test_interrupt_mode_cancels_a_run_suspended_for_an_approval(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.INTERRUPT), tools=ToolRules(ask=("append_line",))),)
    instance.model.will_reply(tool_call_reply("append_line", text="never"), "about the newer")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("write it down")
        await wait_until_suspended(server)
        second = await server.send("newer")
        assert await server.wait_for_answer(second.envelope) == "about the newer"
        assert (await server.wait_for_outcome(first.envelope)).outcome is Outcome.CANCELLED
        assert read_witness_file(instance) == []


@pytest.mark.spec("C24")
async def test_a_message_above_the_queue_cap_is_refused_and_its_sender_is_notified(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.agents = (ada(queue=mode(QueueMode.COLLECT, cap=2)),)
    instance.model.will_reply(text_reply("one", after_s=1), "two")
    async with run_with_ledger_check(instance) as server:
        await send_and_wait_until_busy(instance, server)
        kept = [await server.send(f"kept {n}") for n in range(2)]
        receipt = await server.send("too much")
        assert receipt.outcome is Outcome.REFUSED
        await instance.clock.advance(1)
        for other in kept:
            assert await server.wait_for_answer(other.envelope) == "two"
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.REFUSED
        (notice,) = await list_notices_to(server, "maria")
        assert "queue full" in notice
        assert not any("too much" in newest_user_text(prompt) for prompt in instance.model.prompts)


@pytest.mark.spec("C24")
async def test_overflow_oldest_refuses_the_oldest_waiting_messages(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.COLLECT, cap=2, overflow=Overflow.OLDEST)),)
    instance.model.will_reply(text_reply("one", after_s=1), "two")
    async with run_with_ledger_check(instance) as server:
        await send_and_wait_until_busy(instance, server)
        posted = [(await server.send(f"number {n}")).envelope for n in range(4)]
        await instance.clock.advance(1)
        await server.wait_for_outcome(posted[-1])
        assert await list_outcomes(server, posted) == [
            Outcome.REFUSED,
            Outcome.REFUSED,
            Outcome.ANSWERED,
            Outcome.ANSWERED,
        ]
        assert len(await list_notices_to(server, "maria")) == 2
        assert "number 0" not in newest_user_text(instance.model.prompts[1])


@pytest.mark.spec("C24")
async def test_overflow_summarize_shows_the_agent_a_line_for_each_refused_message(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.COLLECT, cap=2, overflow=Overflow.SUMMARIZE)),)
    instance.model.will_reply(text_reply("one", after_s=1), "two")
    async with run_with_ledger_check(instance) as server:
        await send_and_wait_until_busy(instance, server)
        posted = [(await server.send(f"number {n}")).envelope for n in range(4)]
        await instance.clock.advance(1)
        await server.wait_for_outcome(posted[-1])
        assert await list_outcomes(server, posted) == [
            Outcome.REFUSED,
            Outcome.REFUSED,
            Outcome.ANSWERED,
            Outcome.ANSWERED,
        ]
        read = user_turns(instance.model.prompts[1].records)
        assert ["number 0" in text for text in read] == [False, True, False, False]
        assert ["number 1" in text for text in read] == [False, False, True, False]


@pytest.mark.spec("C26")
async def test_a_session_queue_override_applies_until_it_is_removed(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        session = str((await server.get_envelope(first)).session)
        # During a run: the message that waits behind it already follows the new setting.
        await set_queue(server, session, QueueOverride(mode=QueueMode.FOLLOWUP, cap=3))
        one_by_one = [await server.send(f"number {n}") for n in range(4)]
        assert one_by_one[-1].outcome is Outcome.REFUSED
        for n in range(3):
            await wait_until_true(lambda n=n: len(instance.model.prompts) == n + 1, what=f"run {n}")
            await instance.clock.advance(1)
        await wait_until_true(lambda: len(instance.model.prompts) == 4, what="the last one by itself")
        await set_queue(server, session, QueueOverride())
        together = [await server.send(f"after the reset {n}") for n in range(4)]
        await instance.clock.advance(1)
        await wait_until_true(lambda: len(instance.model.prompts) == 5, what="the last run")
        await instance.clock.advance(1)
        await server.wait_for_outcome(together[-1].envelope)
        assert await run_batches(server) == [
            (first,),
            *((receipt.envelope,) for receipt in one_by_one[:3]),
            tuple(receipt.envelope for receipt in together),
        ]


async def test_a_run_of_the_next_batch_uses_the_current_agent_definition(instance: LocalInstance) -> None:
    """Envelopes claimed in the finish commit of the previous run are processed by the current version of the agent."""
    from contracts.engine_instance import change_agent

    instance.model.will_reply(
        text_reply("one", after_s=1), tool_call_reply("append_line", text="forbidden"), "so be it"
    )
    async with run_with_ledger_check(instance) as server:
        await send_and_wait_until_busy(instance, server)
        second = await server.send("second")
        await change_agent(server, ada(tools=ToolRules(deny=("append_line",))))
        await instance.clock.advance(1)
        assert await server.wait_for_answer(second.envelope) == "so be it"
        assert read_witness_file(instance) == []


async def test_a_steering_message_is_claimed_by_the_run_it_joined(instance: LocalInstance) -> None:
    instance.agents = (ada(queue=mode(QueueMode.STEER)),)
    instance.model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), text_reply("done", after_s=1))
    async with run_with_ledger_check(instance) as server:
        first = await send_and_wait_until_busy(instance, server)
        second = (await server.send("make it short")).envelope
        await instance.clock.advance(1)
        await wait_until_true(lambda: len(instance.model.prompts) == 2, what="the second turn")
        held = await server.get_envelope(second)
        assert held.status is EnvelopeStatus.CLAIMED
        assert held.run == (await server.get_envelope(first)).run
        ((ids,),) = await query_rows(server, "SELECT envelopes FROM runs")
        assert first in ids and second in ids
        await instance.clock.advance(1)
        await server.wait_for_outcome(second)
