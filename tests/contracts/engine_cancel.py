"""The engine's contract: what is stopped stays stopped, says by whom and why, and takes nothing else with it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    all_news,
    answers_to,
    kinds,
    lane_tasks,
    notices_to,
    open_approval,
    opened,
    outcomes,
    parked,
    questions_to,
    results,
    rows,
    shown,
    until,
    user_turns,
    witness,
)

from retinue.domain.agent import ToolRules
from retinue.domain.envelope import EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.event import EventKind
from retinue.domain.ids import SessionId
from retinue.domain.ports import Clock
from retinue.domain.record import ContextStart, Note, RecordKind, Reply, StopReason
from retinue.domain.session import Origin, OriginKind, QueueMode, QueuePolicy
from retinue.domain.tool import ToolSpec
from retinue.engine.lanes import SlotLimits
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.base import ToolContext, schema_of

FOLLOWUP = QueuePolicy(mode=QueueMode.FOLLOWUP)


class WaitArguments(msgspec.Struct, forbid_unknown_fields=True):
    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A tool that takes its time, and knows whether it was let finish."""

    clock: Clock
    log: list[str] = field(default_factory=list[str])
    arguments: type[msgspec.Struct] = WaitArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(name="wait", description="Wait.", parameters=schema_of(WaitArguments))
    )

    async def perform(self, arguments: WaitArguments, context: ToolContext) -> str:
        self.log.append("began")
        await self.clock.sleep(arguments.seconds)
        self.log.append("ended")
        return "waited"


async def thinking(
    household: LocalInstance, house: LocalServer, text: str = "think", **kw: object
) -> tuple[str, SessionId]:
    """Post something and wait until the model thinks about it."""
    asked = len(household.model.prompts)
    receipt = await house.send(text, **kw)  # type: ignore[arg-type]
    await until(lambda: len(household.model.prompts) > asked, what="the model to be asked")
    assert receipt.session is not None
    return receipt.envelope, receipt.session


@pytest.mark.spec("D27")
async def test_a_cancel_stops_the_model_and_records_who_and_why(any_household: LocalInstance) -> None:
    household = any_household
    household.model.will_reply(text_reply("too late", after_s=100), "fresh")
    async with opened(household) as house:
        envelope, session = await thinking(household, house)
        done = await house.engine.cancel(session, by="maria", reason="I found it myself")
        assert len(done.runs) == 1 and done.sessions == (session,)
        await house.wait_until_idle()
        await household.clock.advance(200)
        assert lane_tasks() == []
        settled = await house.wait_for_outcome(envelope)
        assert settled.outcome is Outcome.CANCELLED
        assert settled.because == "cancelled by maria: I found it myself"
        ((status, error, ended),) = await rows(house, "SELECT status, error, ended_ms FROM runs")
        assert (status, error) == ("cancelled", "cancelled by maria: I found it myself")
        assert ended is not None
        history = await house.list_records(session)
        assert isinstance(history[-1].body, Note)
        assert history[-1].body.text == "This run was cancelled by maria: I found it myself."
        assert not any(isinstance(record.body, Reply) for record in history), "a late reply is not recorded"
        assert await notices_to(house, "maria") == ["Stopped: I found it myself."]
        (ended_news,) = await all_news(house, EventKind.RUN_ENDED)
        assert ended_news.body["because"] == "cancelled by maria: I found it myself"
        # The next turn is told, and the session works as before.
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"
        told = [record.body.text for record in household.model.prompts[-1].records if isinstance(record.body, Note)]
        assert told == ["This run was cancelled by maria: I found it myself."]


@pytest.mark.spec("D27")
async def test_a_cancel_closes_the_open_call_as_interrupted(household: LocalInstance) -> None:
    tool = Wait(household.clock)
    household.tools = (tool,)
    household.model.will_reply(
        ScriptedReply(calls=(("session_status", {}), ("wait", {"seconds": 100}), ("wait", {"seconds": 1})))
    )
    async with opened(household) as house:
        receipt = await house.send("wait")
        await until(lambda: tool.log == ["began"], what="the tool to begin")
        # What was said and done so far is stored as it happens.
        history = await house.list_records(receipt.session)
        assert kinds(history)[-2:] == [RecordKind.ASSISTANT, RecordKind.TOOL]
        assert receipt.session is not None
        await house.engine.cancel(receipt.session, by="maria", reason="enough")
        await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()
        await household.clock.advance(200)
        assert tool.log == ["began"]
        closed = [(result.tool, result.failed) for result in results(await house.list_records(receipt.session))]
        assert closed == [("session_status", False), ("wait", True), ("wait", True)]
        states = await rows(house, "SELECT state FROM steps ORDER BY turn, idx")
        assert states == [("closed",), ("closed",), ("interrupted",)]


@pytest.mark.spec("D27")
async def test_a_cancel_reaches_the_sessions_below(any_household: LocalInstance) -> None:
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok", after_s=100)
    async with opened(household) as house:
        parent, session = await thinking(household, house, "the parent")
        child, below = await thinking(
            household,
            house,
            "the child",
            sender=f"agent:ada/{session}",
            origin=Origin(OriginKind.SUBAGENT, "one", parent=session),
        )
        grandchild, _ = await thinking(
            household,
            house,
            "the grandchild",
            sender=f"agent:ada/{below}",
            origin=Origin(OriginKind.SUBAGENT, "two", parent=below),
        )
        other, _ = await thinking(household, house, "someone else", sender="person:owner")
        done = await house.engine.cancel(session, by="maria", reason="all of it")
        assert len(done.runs) == 3
        for id_ in (parent, child, grandchild):
            settled = await house.wait_for_outcome(id_)
            assert settled.outcome is Outcome.CANCELLED
            assert settled.because == "cancelled by maria: all of it"
        await household.clock.advance(100)
        assert await house.wait_for_answer(other) == "ok"


@pytest.mark.spec("H38")
async def test_a_cancel_leaves_mail_that_waits_alone_unless_it_is_told_to_clear_it(
    any_household: LocalInstance,
) -> None:
    household = any_household
    household.agents = (ada(queue=FOLLOWUP),)
    household.model.rule = lambda prompt: text_reply("ok")
    household.model.will_reply(text_reply("never", after_s=100), text_reply("never", after_s=100))
    async with opened(household) as house:
        _, session = await thinking(household, house)
        here = f"agent:ada/{session}"
        soon = household.clock.now() + timedelta(hours=1)
        waiting = await house.send("waiting")
        done = await house.engine.cancel(session, by="maria", reason="first")
        assert done.cleared_envelopes == 0
        await until(lambda: len(household.model.prompts) == 2, what="the run over what waited")
        tick = await house.send("a schedule's", sender="schedule:0123456789abcdef", recipient=here)
        future = await house.send("for later", deliver_at=soon)
        delayed = await house.send("was for later", deliver_at=household.clock.now() - timedelta(hours=1))
        note = await house.send("silent", kind=EnvelopeKind.SYSTEM, silent=True, sender="agent:ada", recipient=here)
        cleared = [(await house.send(f"due {n}")).envelope for n in range(3)]
        done = await house.engine.cancel(session, by="maria", reason="all of it", clear_due=True)
        assert done.cleared_envelopes == 3
        assert await outcomes(house, [waiting.envelope, *cleared]) == [Outcome.CANCELLED] * 4
        assert (await notices_to(house, "maria"))[-3:] == ["Stopped before it was processed: all of it."] * 3
        # Scheduled mail, mail with a time of its own and silent notes are untouched: they are worked.
        for receipt in (tick, delayed):
            assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED
        assert (await house.wait_for_outcome(note.envelope)).outcome is Outcome.NOTED
        assert (await house.get_envelope(future.envelope)).status is EnvelopeStatus.PENDING


async def test_a_cancel_where_nothing_runs_does_nothing(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        receipt = await house.send("hello")
        await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()
        assert receipt.session is not None
        before = await house.get_session(receipt.session)
        for session in (receipt.session, SessionId("0" * 32)):
            done = await house.engine.cancel(session, by="maria", reason="just so")
            assert (done.runs, done.sessions, done.cleared_envelopes) == ((), (), 0)
        assert await house.get_session(receipt.session) == before


async def test_a_cancelled_run_gives_its_slot_to_the_next(household: LocalInstance) -> None:
    household.slots = SlotLimits(main=1)
    household.model.will_reply(text_reply("never", after_s=1000), "next")
    async with opened(household) as house:
        _, session = await thinking(household, house)
        other = await house.send("me too", sender="person:owner")
        await house.engine.cancel(session, by="maria", reason="enough")
        assert await house.wait_for_answer(other.envelope) == "next"


# Races. Whoever commits first has happened; the other sees it and draws back.


async def test_a_cancel_before_the_end_of_a_run_wins(any_household: LocalInstance, hands: Hands) -> None:
    household = any_household
    household.model.will_reply("too late", "fresh")
    async with opened(household) as house:
        with hands.holding("finish") as finish:
            receipt = await house.send("hello")
            await finish.reached.wait()
            assert receipt.session is not None
            await house.engine.cancel(receipt.session, by="maria", reason="enough")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await a_moment(house)
        assert await answers_to(house, "maria") == []
        # What had been said is kept as such, and is no answer.
        replies = [
            record.body for record in await house.list_records(receipt.session) if isinstance(record.body, Reply)
        ]
        assert all(reply.stop is StopReason.CUT_OFF for reply in replies)
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"


async def test_a_cancel_after_the_end_of_a_run_is_too_late(any_household: LocalInstance, hands: Hands) -> None:
    household = any_household
    household.model.will_reply("in time", "fresh")
    async with opened(household) as house:
        with hands.holding("finish", committed=True) as finish:
            receipt = await house.send("hello")
            await finish.reached.wait()
            assert receipt.session is not None
            done = await house.engine.cancel(receipt.session, by="maria", reason="enough")
            assert done.runs == ()
        assert await house.wait_for_answer(receipt.envelope) == "in time"
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"


async def test_a_cancel_reaches_the_run_that_was_claimed_with_the_end_of_the_one_before(
    household: LocalInstance, hands: Hands
) -> None:
    """The worker has not even heard yet that it has something new to do."""
    household.agents = (ada(queue=FOLLOWUP),)
    household.model.will_reply("first", "third")
    async with opened(household) as house:
        with hands.holding("finish") as before:
            first = await house.send("first")
            await before.reached.wait()
            second = await house.send("second")
            third = await house.send("third")
            assert first.session is not None
            with hands.holding("finish", committed=True) as after:
                hands.release("finish")
                await after.reached.wait()
                done = await house.engine.cancel(first.session, by="maria", reason="not that one")
                assert len(done.runs) == 1
        assert await house.wait_for_answer(first.envelope) == "first"
        assert (await house.wait_for_outcome(second.envelope)).outcome is Outcome.CANCELLED
        assert await house.wait_for_answer(third.envelope) == "third"
        assert not any(shown(prompt).count("second") for prompt in household.model.prompts), "the model was not asked"


async def test_a_cancel_right_after_a_claim_stops_the_run_before_it_begins(
    household: LocalInstance, hands: Hands
) -> None:
    household.model.will_reply("fresh")
    async with opened(household) as house:
        with hands.holding("claim", committed=True) as claim:
            receipt = await house.send("hello")
            await claim.reached.wait()
            assert receipt.session is not None
            done = await house.engine.cancel(receipt.session, by="maria", reason="enough")
            assert len(done.runs) == 1
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await house.wait_until_idle()
        assert household.model.prompts == []
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"


async def test_a_cancel_right_before_a_claim_finds_nothing_to_stop(household: LocalInstance, hands: Hands) -> None:
    household.model.will_reply("hello")
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            receipt = await house.send("hello")
            await claim.reached.wait()
            assert receipt.session is not None
            done = await house.engine.cancel(receipt.session, by="maria", reason="enough")
            assert done.runs == ()
        assert await house.wait_for_answer(receipt.envelope) == "hello"


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
async def test_a_cancel_around_the_commit_that_parks_leaves_no_question_open(
    household: LocalInstance, hands: Hands, committed: bool
) -> None:
    household.agents = (ada(tools=ToolRules(ask=("append_line",))),)
    household.model.will_reply(tool_call_reply("append_line", text="never"), "fresh")
    async with opened(household) as house:
        with hands.holding("park", committed=committed) as park:
            receipt = await house.send("write it down")
            await park.reached.wait()
            assert receipt.session is not None
            await house.engine.cancel(receipt.session, by="maria", reason="enough")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await a_moment(house)
        assert await rows(house, "SELECT state FROM approvals") == ([("closed",)] if committed else [])
        assert len(await questions_to(house, "maria")) == int(committed)
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"
        assert witness(household) == []


async def test_a_cancel_before_the_intent_of_a_call_means_that_it_is_never_made(
    household: LocalInstance, hands: Hands
) -> None:
    household.model.will_reply(tool_call_reply("append_line", text="never"), "fresh")
    async with opened(household) as house:
        with hands.holding("step") as step:
            receipt = await house.send("write it down")
            await step.reached.wait()
            assert receipt.session is not None
            await house.engine.cancel(receipt.session, by="maria", reason="enough")
        assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"
        assert witness(household) == []


async def test_a_slow_cancel_does_not_stop_the_run_after_the_one_it_ended(
    household: LocalInstance, hands: Hands
) -> None:
    """The worker noticed by itself and went on to the next mail before the canceller came to stop it."""
    household.agents = (ada(queue=FOLLOWUP),)
    household.model.will_reply(tool_call_reply("session_status"), text_reply("second", after_s=1))
    async with opened(household) as house:
        with hands.holding("step") as step, hands.holding("cancel", committed=True) as cancel:
            first = await house.send("first")
            await step.reached.wait()
            second = await house.send("second")
            assert first.session is not None
            cancelling = asyncio.create_task(house.engine.cancel(first.session, by="maria", reason="enough"))
            await cancel.reached.wait()
            hands.release("step")  # stale by now
            await until(lambda: len(household.model.prompts) == 2, what="the run over the second")
        assert len((await cancelling).runs) == 1
        await a_moment(house)
        await household.clock.advance(1)
        assert (await house.wait_for_outcome(first.envelope)).outcome is Outcome.CANCELLED
        assert await house.wait_for_answer(second.envelope) == "second"
        assert (await house.get_envelope(second.envelope)).attempts == 1


async def test_a_cancel_whose_caller_hung_up_stops_the_run_all_the_same(household: LocalInstance, hands: Hands) -> None:
    household.model.will_reply(text_reply("never", after_s=1000), "fresh")
    async with opened(household) as house:
        envelope, session = await thinking(household, house)
        with hands.holding("cancel") as cancel:
            cancelling = asyncio.create_task(house.engine.cancel(session, by="maria", reason="enough"))
            await cancel.reached.wait()
            cancelling.cancel()
        assert (await house.wait_for_outcome(envelope)).outcome is Outcome.CANCELLED
        # It does not sit in the lane until the model has come to its end.
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"
        assert cancelling.cancelled()


async def test_a_decision_whose_giver_hung_up_counts_all_the_same(household: LocalInstance, hands: Hands) -> None:
    household.agents = (ada(tools=ToolRules(ask=("append_line",))),)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "done")
    async with opened(household) as house:
        receipt = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        with hands.holding("decide") as decide:
            deciding = asyncio.create_task(
                house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
            )
            await decide.reached.wait()
            deciding.cancel()
        assert await house.wait_for_answer(receipt.envelope) == "done"
        assert witness(household) == ["once"]


# Reset


@pytest.mark.spec("D9")
async def test_a_reset_keeps_the_session_and_starts_its_context_afresh(any_household: LocalInstance) -> None:
    household = any_household
    household.model.will_reply("nice to meet you", "who are you?")
    async with opened(household) as house:
        first = await house.send("my name is Maria")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        assert first.session is not None
        await house.engine.reset(first.session, by="maria", message="She is called Maria.")
        second = await house.send("do you know me?")
        assert second.session == first.session
        assert await house.wait_for_answer(second.envelope) == "who are you?"
        read = household.model.prompts[1].records
        assert kinds(read) == [RecordKind.RESET, RecordKind.USER]
        assert read[0].body == ContextStart(
            text="She is called Maria.", because="requested by maria: the session was reset"
        )
        assert not any("my name is Maria" in text for text in user_turns(read))
        # Nothing is taken away: the history is still there, with a marker in it.
        assert kinds(await house.list_records(first.session)) == [
            RecordKind.START,
            RecordKind.USER,
            RecordKind.ASSISTANT,
            RecordKind.RESET,
            RecordKind.USER,
            RecordKind.ASSISTANT,
        ]
        assert len(await all_news(house, EventKind.SESSION_RESET)) == 1


@pytest.mark.spec("D9")
async def test_a_reset_stops_the_run_and_nothing_of_it_is_heard_again(
    any_household: LocalInstance, hands: Hands
) -> None:
    household = any_household
    household.model.will_reply("too late", "fresh")
    async with opened(household) as house:
        with hands.holding("finish") as finish:
            receipt = await house.send("hello")
            await finish.reached.wait()
            assert receipt.session is not None
            await house.engine.reset(receipt.session, by="maria")
        settled = await house.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.CANCELLED
        assert settled.because == "cancelled by maria: the session was reset"
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"
        assert await answers_to(house, "maria") == ["fresh"]
        assert kinds(household.model.prompts[1].records) == [RecordKind.RESET, RecordKind.USER]


async def test_a_reset_survives_a_restart(household: LocalInstance) -> None:
    household.model.will_reply("nice to meet you", "who are you?")
    async with opened(household) as house:
        receipt = await house.send("my name is Maria")
        await house.wait_for_outcome(receipt.envelope)
        assert receipt.session is not None
        await house.engine.reset(receipt.session, by="maria", message="Fresh.")
        house.crash()
    async with opened(household) as house:
        assert await house.wait_for_answer((await house.send("do you know me?")).envelope) == "who are you?"
        assert kinds(household.model.prompts[1].records) == [RecordKind.RESET, RecordKind.USER]
