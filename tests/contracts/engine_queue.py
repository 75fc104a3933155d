"""The engine's contract: what becomes of mail that arrives while a run is active."""

from __future__ import annotations

import pytest
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    all_news,
    answers_to,
    notices_to,
    opened,
    outcomes,
    parked,
    results,
    rows,
    set_queue,
    shown,
    until,
    user_turns,
    witness,
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


async def run_batches(house: LocalServer) -> list[tuple[str, ...]]:
    return [tuple(piece.body["envelopes"]) for piece in await all_news(house, EventKind.RUN_STARTED)]


async def busy(household: LocalInstance, house: LocalServer, text: str = "first", **kw: object) -> str:
    """Post something and wait until the model thinks about it. The script's next line must take its time."""
    asked = len(household.model.prompts)
    receipt = await house.send(text, **kw)  # type: ignore[arg-type]
    await until(lambda: len(household.model.prompts) > asked, what="the model to be asked")
    return receipt.envelope


@pytest.mark.spec("C23")
async def test_collect_reads_what_arrived_meanwhile_in_one_run(any_household: LocalInstance) -> None:
    household = any_household
    household.model.will_reply(text_reply("one", after_s=1), "the rest")
    async with opened(household) as house:
        first = await busy(household, house)
        later = [(await house.send(f"later {n}")).envelope for n in range(3)]
        await household.clock.advance(1)
        assert await house.wait_for_answer(later[-1]) == "the rest"
        assert await run_batches(house) == [(first,), tuple(later)]
        assert all(f"later {n}" in shown(household.model.prompts[1]) for n in range(3))


@pytest.mark.spec("C23")
async def test_followup_gives_each_envelope_a_run_of_its_own(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.FOLLOWUP)),)
    household.model.will_reply(text_reply("one", after_s=1), "two", "three", "four")
    async with opened(household) as house:
        first = await busy(household, house)
        later = [(await house.send(f"later {n}")).envelope for n in range(3)]
        await household.clock.advance(1)
        assert [await house.wait_for_answer(id_) for id_ in (first, *later)] == ["one", "two", "three", "four"]
        assert await run_batches(house) == [(first,), *((id_,) for id_ in later)]


@pytest.mark.spec("C23")
async def test_steer_joins_the_run_at_its_next_turn_in_one_commit(any_household: LocalInstance, hands: Hands) -> None:
    household = any_household
    household.agents = (ada(queue=mode(QueueMode.STEER)),)
    household.model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), "as you wish")
    async with opened(household) as house:
        first = await busy(household, house)
        second = (await house.send("make it short")).envelope
        steps = hands.points.count("step")
        await household.clock.advance(1)
        assert await house.wait_for_answer(second) == "as you wish"
        assert (await house.wait_for_outcome(first)).answer == (await house.wait_for_outcome(second)).answer
        assert await run_batches(house) == [(first,)], "it has no run of its own"
        (joined,) = await all_news(house, EventKind.RUN_JOINED)
        assert joined.body["envelopes"] == [second]
        # Reply, look, joined words and the next intent are one commit.
        assert hands.points.count("step") == steps + 1
        prompt = household.model.prompts[1]
        assert [record.kind for record in prompt.records][-3:] == [
            RecordKind.ASSISTANT,
            RecordKind.TOOL,
            RecordKind.USER,
        ]
        assert "make it short" in shown(prompt)


@pytest.mark.spec("C23")
async def test_only_the_runs_own_sender_and_the_owner_may_steer(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.STEER)),)
    household.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1), "for alice and the owner", "for bob"
    )
    async with opened(household) as house:
        first = await busy(household, house, "from alice", context=ALICE)
        session = (await house.get_envelope(first)).session
        bob = await house.send("from bob", context=BOB)
        owner = await house.send("from the owner", sender="person:owner", recipient=f"agent:ada/{session}")
        alice = await house.send("from alice again", context=ALICE)
        await household.clock.advance(1)
        assert await house.wait_for_answer(bob.envelope) == "for bob"
        assert await house.wait_for_answer(alice.envelope) == "for alice and the owner"
        assert (await house.wait_for_outcome(owner.envelope)).outcome is Outcome.ANSWERED
        assert await run_batches(house) == [(first,), (bob.envelope,)]
        joined = shown(household.model.prompts[1])
        assert "from the owner" in joined and "from alice again" in joined and "from bob" not in joined


async def test_an_answer_to_a_steered_run_replies_to_its_own_sender(household: LocalInstance) -> None:
    """The owner joined in last, but it is maria who is answered."""
    household.agents = (ada(queue=mode(QueueMode.STEER)),)
    household.model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), "done")
    async with opened(household) as house:
        first = await busy(household, house)
        session = (await house.get_envelope(first)).session
        owner = await house.send("be kind", sender="person:owner", recipient=f"agent:ada/{session}")
        await household.clock.advance(1)
        settled = await house.wait_for_outcome(owner.envelope)
        assert settled.answer is not None
        answer = await house.get_envelope(settled.answer)
        assert str(answer.recipient) == "person:maria"
        assert answer.reply_to == first


async def test_when_a_steered_run_fails_everyone_who_joined_is_told(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.STEER)),)
    household.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1), ScriptedReply(fails="no more words")
    )
    async with opened(household) as house:
        first = await busy(household, house)
        session = (await house.get_envelope(first)).session
        owner = await house.send("be kind", sender="person:owner", recipient=f"agent:ada/{session}")
        await household.clock.advance(1)
        assert await settled_as(house, first, owner.envelope) == [Outcome.DEAD, Outcome.DEAD]
        assert len(await notices_to(house, "maria")) == 1
        assert len(await notices_to(house, "owner")) == 1


async def settled_as(house: LocalServer, *ids: str) -> list[Outcome]:
    return [(await house.wait_for_outcome(id_)).outcome for id_ in ids]


@pytest.mark.spec("C23")
async def test_what_joined_a_run_survives_a_crash_right_after(household: LocalInstance, hands: Hands) -> None:
    household.agents = (ada(queue=mode(QueueMode.STEER)),)
    household.model.will_reply(ScriptedReply(calls=(("append_line", {"text": "once"}),), after_s=1))
    async with opened(household) as house:
        first = await busy(household, house)
        second = (await house.send("make it short")).envelope
        with hands.holding("step", committed=True) as intent:
            await household.clock.advance(1)
            await intent.reached.wait()
            hands.cut_at = (1, True)  # the commit with the result and whoever joins
        await house.wait_for(lambda _: len(hands.points) and hands.cut_at == (0, True), what="the power to go")
        house.crash()
    hands.cut_at = None
    household.model.will_reply("short")
    async with opened(household) as house:
        assert await house.wait_for_answer(first) == "short"
        assert await house.wait_for_answer(second) == "short"
        assert await run_batches(house) == [(first,)]
        prompt = household.model.prompts[-1]
        assert sum("make it short" in text for text in user_turns(prompt.records)) == 1
        assert [result.output for result in results(prompt.records)] == ["appended"]
        assert witness(household) == ["once"]


async def test_mail_that_came_while_the_house_was_down_joins_the_run_that_is_taken_up(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.STEER)),)
    household.model.will_reply(text_reply("never", after_s=1000))
    async with opened(household) as house:
        first = await busy(household, house)
        second = (await house.send("make it short")).envelope
        house.crash()
    household.model.will_reply(tool_call_reply("session_status"), "short")
    async with opened(household) as house:
        assert await house.wait_for_answer(second) == "short"
        assert await house.wait_for_answer(first) == "short"
        assert await run_batches(house) == [(first,)]


@pytest.mark.spec("C23")
async def test_steer_backlog_reads_it_on_the_side_and_still_gives_it_its_own_run(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.STEER_BACKLOG)),)
    household.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1),
        tool_call_reply("session_status"),
        "first answer",
        "second answer",
    )
    async with opened(household) as house:
        first = await busy(household, house)
        second = (await house.send("by the way")).envelope
        await household.clock.advance(1)
        assert await house.wait_for_answer(first) == "first answer"
        assert await house.wait_for_answer(second) == "second answer"
        assert await run_batches(house) == [(first,), (second,)]
        read = [user_turns(prompt.records) for prompt in household.model.prompts]
        assert [sum("by the way" in text for text in texts) for texts in read] == [0, 1, 1, 2]
        assert len(await all_news(house, EventKind.RUN_JOINED)) == 1, "on the side it is read once, not at every turn"
        assert (await house.get_envelope(second)).attempts == 1


@pytest.mark.spec("C23")
async def test_interrupt_gives_up_the_run_for_newer_mail(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (ada(queue=mode(QueueMode.INTERRUPT)),)
    household.model.will_reply(text_reply("too late", after_s=1000), "about the newer")
    async with opened(household) as house:
        first = await busy(household, house)
        second = await house.send("newer")
        assert await house.wait_for_answer(second.envelope) == "about the newer"
        settled = await house.wait_for_outcome(first)
        assert settled.outcome is Outcome.CANCELLED
        assert settled.because == "cancelled by house: a newer message arrived"
        assert await notices_to(house, "maria") == ["Stopped: a newer message arrived."]
        assert await answers_to(house, "maria") == ["about the newer"]


@pytest.mark.spec("C23")
@pytest.mark.parametrize(
    ("text", "kw"),
    [
        ("a silent note", {"kind": EnvelopeKind.SYSTEM, "silent": True, "sender": "agent:ada"}),
        ("someone's answer", {"kind": EnvelopeKind.ANSWER, "sender": "agent:ada"}),
        ("a notice", {"kind": EnvelopeKind.NOTICE, "sender": "house"}),
    ],
)
async def test_a_run_is_not_given_up_for_what_asks_for_nothing(
    household: LocalInstance, text: str, kw: dict[str, object]
) -> None:
    household.agents = (ada(queue=mode(QueueMode.INTERRUPT)),)
    household.model.will_reply(text_reply("in peace", after_s=1), "noted")
    async with opened(household) as house:
        first = await busy(household, house)
        session = (await house.get_envelope(first)).session
        await house.send(text, recipient=f"agent:ada/{session}", **kw)  # type: ignore[arg-type]
        await a_moment(house)
        await household.clock.advance(1)
        assert await house.wait_for_answer(first) == "in peace"


@pytest.mark.spec("C23")
async def test_a_run_is_not_given_up_for_mail_that_was_there_before_it_began(household: LocalInstance) -> None:
    """Not for the very mail that woke it, nor for older mail of others, however often somebody looks at the lane."""
    household.slots = SlotLimits(main=1)
    household.agents = (ada(queue=mode(QueueMode.INTERRUPT)),)
    household.model.rule = lambda prompt: text_reply("done", after_s=100)
    async with opened(household) as house:
        await busy(household, house, "keeps the slot", sender="person:owner")
        alice = await house.send("from alice", context=ALICE)
        bob = await house.send("from bob", context=BOB)
        assert alice.session is not None
        await household.clock.advance(100)
        await until(lambda: len(household.model.prompts) == 2, what="alice's run")
        for _ in range(3):  # the alarm rings meanwhile, and hints come from anywhere
            await household.clock.advance(30)
            house.engine.wake(LaneWake(alice.session, "ada", LaneKind.MAIN))
            await a_moment(house)
        await household.clock.advance(10)
        assert await house.wait_for_answer(alice.envelope) == "done"
        await until(lambda: len(household.model.prompts) == 3, what="bob's run")
        await household.clock.advance(100)
        assert await house.wait_for_answer(bob.envelope) == "done"


async def test_newer_mail_interrupts_also_a_run_that_waits_for_a_person(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.INTERRUPT), tools=ToolRules(ask=("append_line",))),)
    household.model.will_reply(tool_call_reply("append_line", text="never"), "about the newer")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        second = await house.send("newer")
        assert await house.wait_for_answer(second.envelope) == "about the newer"
        assert (await house.wait_for_outcome(first.envelope)).outcome is Outcome.CANCELLED
        assert witness(household) == []


@pytest.mark.spec("C24")
async def test_over_the_cap_new_mail_is_refused_and_its_sender_told(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (ada(queue=mode(QueueMode.COLLECT, cap=2)),)
    household.model.will_reply(text_reply("one", after_s=1), "two")
    async with opened(household) as house:
        await busy(household, house)
        kept = [await house.send(f"kept {n}") for n in range(2)]
        receipt = await house.send("too much")
        assert receipt.outcome is Outcome.REFUSED
        await household.clock.advance(1)
        for other in kept:
            assert await house.wait_for_answer(other.envelope) == "two"
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.REFUSED
        (told,) = await notices_to(house, "maria")
        assert "queue full" in told
        assert not any("too much" in shown(prompt) for prompt in household.model.prompts)


@pytest.mark.spec("C24")
async def test_over_the_cap_the_oldest_gives_way(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.COLLECT, cap=2, overflow=Overflow.OLDEST)),)
    household.model.will_reply(text_reply("one", after_s=1), "two")
    async with opened(household) as house:
        await busy(household, house)
        posted = [(await house.send(f"number {n}")).envelope for n in range(4)]
        await household.clock.advance(1)
        await house.wait_for_outcome(posted[-1])
        assert await outcomes(house, posted) == [Outcome.REFUSED, Outcome.REFUSED, Outcome.ANSWERED, Outcome.ANSWERED]
        assert len(await notices_to(house, "maria")) == 2
        assert "number 0" not in shown(household.model.prompts[1])


@pytest.mark.spec("C24")
async def test_over_the_cap_the_agent_reads_a_line_of_what_was_left_out(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.COLLECT, cap=2, overflow=Overflow.SUMMARIZE)),)
    household.model.will_reply(text_reply("one", after_s=1), "two")
    async with opened(household) as house:
        await busy(household, house)
        posted = [(await house.send(f"number {n}")).envelope for n in range(4)]
        await household.clock.advance(1)
        await house.wait_for_outcome(posted[-1])
        assert await outcomes(house, posted) == [Outcome.REFUSED, Outcome.REFUSED, Outcome.ANSWERED, Outcome.ANSWERED]
        read = user_turns(household.model.prompts[1].records)
        assert ["number 0" in text for text in read] == [False, True, False, False]
        assert ["number 1" in text for text in read] == [False, False, True, False]


@pytest.mark.spec("C26")
async def test_a_session_may_have_its_own_queue_mode_until_it_is_reset(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with opened(household) as house:
        first = await busy(household, house)
        session = str((await house.get_envelope(first)).session)
        # In the middle of a run: the mail that waits behind it is already read by the new rule.
        await set_queue(house, session, QueueOverride(mode=QueueMode.FOLLOWUP, cap=3))
        one_by_one = [await house.send(f"number {n}") for n in range(4)]
        assert one_by_one[-1].outcome is Outcome.REFUSED
        for n in range(3):
            await until(lambda n=n: len(household.model.prompts) == n + 1, what=f"run {n}")
            await household.clock.advance(1)
        await until(lambda: len(household.model.prompts) == 4, what="the last one by itself")
        await set_queue(house, session, QueueOverride())
        together = [await house.send(f"after the reset {n}") for n in range(4)]
        await household.clock.advance(1)
        await until(lambda: len(household.model.prompts) == 5, what="the last run")
        await household.clock.advance(1)
        await house.wait_for_outcome(together[-1].envelope)
        assert await run_batches(house) == [
            (first,),
            *((receipt.envelope,) for receipt in one_by_one[:3]),
            tuple(receipt.envelope for receipt in together),
        ]


async def test_a_run_over_the_next_batch_goes_by_the_rules_of_now(household: LocalInstance) -> None:
    """Mail that is claimed with the end of a run is worked by the agent as it is, not as it was."""
    from contracts.engine_instance import change_agent

    household.model.will_reply(
        text_reply("one", after_s=1), tool_call_reply("append_line", text="forbidden"), "so be it"
    )
    async with opened(household) as house:
        await busy(household, house)
        second = await house.send("second")
        await change_agent(house, ada(tools=ToolRules(deny=("append_line",))))
        await household.clock.advance(1)
        assert await house.wait_for_answer(second.envelope) == "so be it"
        assert witness(household) == []


async def test_steering_mail_is_held_by_the_run_it_joined(household: LocalInstance) -> None:
    household.agents = (ada(queue=mode(QueueMode.STEER)),)
    household.model.will_reply(ScriptedReply(calls=(("session_status", {}),), after_s=1), text_reply("done", after_s=1))
    async with opened(household) as house:
        first = await busy(household, house)
        second = (await house.send("make it short")).envelope
        await household.clock.advance(1)
        await until(lambda: len(household.model.prompts) == 2, what="the second turn")
        held = await house.get_envelope(second)
        assert held.status is EnvelopeStatus.CLAIMED
        assert held.run == (await house.get_envelope(first)).run
        ((ids,),) = await rows(house, "SELECT envelopes FROM runs")
        assert first in ids and second in ids
        await household.clock.advance(1)
        await house.wait_for_outcome(second)
