"""The engine's contract for cancelling: a cancelled run stays cancelled, names who did it and why, and stops nothing
else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from contracts.engine_instance import (
    StoreControl,
    ada,
    let_tasks_settle,
    list_answers_to,
    list_approval_questions_to,
    list_events,
    list_lane_tasks,
    list_notices_to,
    list_outcomes,
    list_tool_results,
    newest_user_text,
    query_rows,
    read_witness_file,
    record_kinds,
    run_with_ledger_check,
    user_turns,
    wait_for_open_approval,
    wait_until_suspended,
    wait_until_true,
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
class WaitTool:
    """A tool that takes time, and records whether it was allowed to finish."""

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


async def send_and_wait_for_model_call(
    instance: LocalInstance, server: LocalServer, text: str = "think", **kw: object
) -> tuple[str, SessionId]:
    """Send a message and wait until the model is called for it."""
    asked = len(instance.model.prompts)
    receipt = await server.send(text, **kw)  # type: ignore[arg-type]
    await wait_until_true(lambda: len(instance.model.prompts) > asked, what="the model call")
    assert receipt.session is not None
    return receipt.envelope, receipt.session


@pytest.mark.spec("D27")
async def test_a_cancel_stops_the_model_and_records_who_and_why(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.will_reply(text_reply("too late", after_s=100), "fresh")
    async with run_with_ledger_check(instance) as server:
        envelope, session = await send_and_wait_for_model_call(instance, server)
        done = await server.engine.cancel(session, by="maria", reason="I found it myself")
        assert len(done.runs) == 1 and done.sessions == (session,)
        await server.wait_until_idle()
        await instance.clock.advance(200)
        assert list_lane_tasks() == []
        settled = await server.wait_for_outcome(envelope)
        assert settled.outcome is Outcome.CANCELLED
        assert settled.because == "cancelled by maria: I found it myself"
        ((status, error, ended),) = await query_rows(server, "SELECT status, error, ended_ms FROM runs")
        assert (status, error) == ("cancelled", "cancelled by maria: I found it myself")
        assert ended is not None
        history = await server.list_records(session)
        assert isinstance(history[-1].body, Note)
        assert history[-1].body.text == "This run was cancelled by maria: I found it myself."
        assert not any(isinstance(record.body, Reply) for record in history), "a late reply is not recorded"
        assert await list_notices_to(server, "maria") == ["Stopped: I found it myself."]
        (ended_event,) = await list_events(server, EventKind.RUN_ENDED)
        assert ended_event.body["because"] == "cancelled by maria: I found it myself"
        # The next turn sees a note about it, and the session works as before.
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"
        notes = [record.body.text for record in instance.model.prompts[-1].records if isinstance(record.body, Note)]
        assert notes == ["This run was cancelled by maria: I found it myself."]


@pytest.mark.spec("D27")
async def test_a_cancel_closes_the_open_call_as_interrupted(instance: LocalInstance) -> None:
    tool = WaitTool(instance.clock)
    instance.tools = (tool,)
    instance.model.will_reply(
        ScriptedReply(calls=(("session_status", {}), ("wait", {"seconds": 100}), ("wait", {"seconds": 1})))
    )
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("wait")
        await wait_until_true(lambda: tool.log == ["began"], what="the tool to begin")
        # Records of the run so far are stored at once.
        history = await server.list_records(receipt.session)
        assert record_kinds(history)[-2:] == [RecordKind.ASSISTANT, RecordKind.TOOL]
        assert receipt.session is not None
        await server.engine.cancel(receipt.session, by="maria", reason="enough")
        await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()
        await instance.clock.advance(200)
        assert tool.log == ["began"]
        closed = [
            (result.tool, result.failed) for result in list_tool_results(await server.list_records(receipt.session))
        ]
        assert closed == [("session_status", False), ("wait", True), ("wait", True)]
        states = await query_rows(server, "SELECT state FROM steps ORDER BY turn, call_index")
        assert states == [("closed",), ("closed",), ("interrupted",)]


@pytest.mark.spec("D27")
async def test_a_cancel_also_stops_subagent_sessions(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok", after_s=100)
    async with run_with_ledger_check(instance) as server:
        parent, session = await send_and_wait_for_model_call(instance, server, "the parent")
        child, below = await send_and_wait_for_model_call(
            instance,
            server,
            "the child",
            sender=f"agent:ada/{session}",
            origin=Origin(OriginKind.SUBAGENT, "one", parent=session),
        )
        grandchild, _ = await send_and_wait_for_model_call(
            instance,
            server,
            "the grandchild",
            sender=f"agent:ada/{below}",
            origin=Origin(OriginKind.SUBAGENT, "two", parent=below),
        )
        other, _ = await send_and_wait_for_model_call(instance, server, "someone else", sender="person:owner")
        done = await server.engine.cancel(session, by="maria", reason="all of it")
        assert len(done.runs) == 3
        for id_ in (parent, child, grandchild):
            settled = await server.wait_for_outcome(id_)
            assert settled.outcome is Outcome.CANCELLED
            assert settled.because == "cancelled by maria: all of it"
        await instance.clock.advance(100)
        assert await server.wait_for_answer(other) == "ok"


@pytest.mark.spec("H38")
async def test_a_cancel_keeps_waiting_envelopes_unless_clear_due_is_set(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    instance.agents = (ada(queue=FOLLOWUP),)
    instance.model.rule = lambda prompt: text_reply("ok")
    instance.model.will_reply(text_reply("never", after_s=100), text_reply("never", after_s=100))
    async with run_with_ledger_check(instance) as server:
        _, session = await send_and_wait_for_model_call(instance, server)
        here = f"agent:ada/{session}"
        soon = instance.clock.now() + timedelta(hours=1)
        waiting = await server.send("waiting")
        done = await server.engine.cancel(session, by="maria", reason="first")
        assert done.cleared_envelopes == 0
        await wait_until_true(lambda: len(instance.model.prompts) == 2, what="the run over what waited")
        tick = await server.send("a schedule's", sender="schedule:0123456789abcdef", recipient=here)
        future = await server.send("for later", deliver_at=soon)
        delayed = await server.send("was for later", deliver_at=instance.clock.now() - timedelta(hours=1))
        note = await server.send("silent", kind=EnvelopeKind.SYSTEM, silent=True, sender="agent:ada", recipient=here)
        cleared = [(await server.send(f"due {n}")).envelope for n in range(3)]
        done = await server.engine.cancel(session, by="maria", reason="all of it", clear_due=True)
        assert done.cleared_envelopes == 3
        assert await list_outcomes(server, [waiting.envelope, *cleared]) == [Outcome.CANCELLED] * 4
        assert (await list_notices_to(server, "maria"))[-3:] == ["Stopped before it was processed: all of it."] * 3
        # Scheduled, delayed and silent envelopes are not cancelled: they are processed.
        for receipt in (tick, delayed):
            assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED
        assert (await server.wait_for_outcome(note.envelope)).outcome is Outcome.NOTED
        assert (await server.get_envelope(future.envelope)).status is EnvelopeStatus.PENDING


async def test_a_cancel_of_an_idle_or_unknown_session_does_nothing(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("hello")
        await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()
        assert receipt.session is not None
        before = await server.get_session(receipt.session)
        for session in (receipt.session, SessionId("0" * 32)):
            done = await server.engine.cancel(session, by="maria", reason="just so")
            assert (done.runs, done.sessions, done.cleared_envelopes) == ((), (), 0)
        assert await server.get_session(receipt.session) == before


async def test_a_cancelled_run_frees_its_slot_for_the_next_run(instance: LocalInstance) -> None:
    instance.slots = SlotLimits(main=1)
    instance.model.will_reply(text_reply("never", after_s=1000), "next")
    async with run_with_ledger_check(instance) as server:
        _, session = await send_and_wait_for_model_call(instance, server)
        other = await server.send("me too", sender="person:owner")
        await server.engine.cancel(session, by="maria", reason="enough")
        assert await server.wait_for_answer(other.envelope) == "next"


# Races. The first commit wins; the other side sees it and gives up.


async def test_a_cancel_committed_before_the_run_finishes_wins(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    instance.model.will_reply("too late", "fresh")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish") as finish:
            receipt = await server.send("hello")
            await finish.reached.wait()
            assert receipt.session is not None
            await server.engine.cancel(receipt.session, by="maria", reason="enough")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await let_tasks_settle(server)
        assert await list_answers_to(server, "maria") == []
        # The text streamed so far is kept as such and is not an answer.
        replies = [
            record.body for record in await server.list_records(receipt.session) if isinstance(record.body, Reply)
        ]
        assert all(reply.stop is StopReason.CUT_OFF for reply in replies)
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"


async def test_a_cancel_after_the_run_finished_has_no_effect(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    instance.model.will_reply("in time", "fresh")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish", committed=True) as finish:
            receipt = await server.send("hello")
            await finish.reached.wait()
            assert receipt.session is not None
            done = await server.engine.cancel(receipt.session, by="maria", reason="enough")
            assert done.runs == ()
        assert await server.wait_for_answer(receipt.envelope) == "in time"
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"


async def test_a_cancel_stops_the_run_claimed_in_the_finish_commit_of_the_previous_run(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """The worker has not yet been notified of its new run."""
    instance.agents = (ada(queue=FOLLOWUP),)
    instance.model.will_reply("first", "third")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish") as before:
            first = await server.send("first")
            await before.reached.wait()
            second = await server.send("second")
            third = await server.send("third")
            assert first.session is not None
            with store_control.hold_commits("finish", committed=True) as after:
                store_control.release("finish")
                await after.reached.wait()
                done = await server.engine.cancel(first.session, by="maria", reason="not that one")
                assert len(done.runs) == 1
        assert await server.wait_for_answer(first.envelope) == "first"
        assert (await server.wait_for_outcome(second.envelope)).outcome is Outcome.CANCELLED
        assert await server.wait_for_answer(third.envelope) == "third"
        assert not any(newest_user_text(prompt).count("second") for prompt in instance.model.prompts), (
            "the model was not asked"
        )


async def test_a_cancel_right_after_a_claim_stops_the_run_before_it_begins(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply("fresh")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim", committed=True) as claim:
            receipt = await server.send("hello")
            await claim.reached.wait()
            assert receipt.session is not None
            done = await server.engine.cancel(receipt.session, by="maria", reason="enough")
            assert len(done.runs) == 1
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await server.wait_until_idle()
        assert instance.model.prompts == []
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"


async def test_a_cancel_right_before_a_claim_finds_nothing_to_stop(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply("hello")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim") as claim:
            receipt = await server.send("hello")
            await claim.reached.wait()
            assert receipt.session is not None
            done = await server.engine.cancel(receipt.session, by="maria", reason="enough")
            assert done.runs == ()
        assert await server.wait_for_answer(receipt.envelope) == "hello"


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
async def test_a_cancel_around_the_suspend_commit_leaves_no_approval_open(
    instance: LocalInstance, store_control: StoreControl, committed: bool
) -> None:
    instance.agents = (ada(tools=ToolRules(ask=("append_line",))),)
    instance.model.will_reply(tool_call_reply("append_line", text="never"), "fresh")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("park", committed=committed) as park:
            receipt = await server.send("write it down")
            await park.reached.wait()
            assert receipt.session is not None
            await server.engine.cancel(receipt.session, by="maria", reason="enough")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        await let_tasks_settle(server)
        assert await query_rows(server, "SELECT state FROM approvals") == ([("closed",)] if committed else [])
        assert len(await list_approval_questions_to(server, "maria")) == int(committed)
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"
        assert read_witness_file(instance) == []


async def test_a_cancel_before_a_tool_call_is_stored_prevents_the_call(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply(tool_call_reply("append_line", text="never"), "fresh")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("step") as step:
            receipt = await server.send("write it down")
            await step.reached.wait()
            assert receipt.session is not None
            await server.engine.cancel(receipt.session, by="maria", reason="enough")
        assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.CANCELLED
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"
        assert read_witness_file(instance) == []


async def test_a_slow_cancel_does_not_stop_the_next_run(instance: LocalInstance, store_control: StoreControl) -> None:
    """The worker saw the cancel itself and took the next envelope before the canceller came to stop it."""
    instance.agents = (ada(queue=FOLLOWUP),)
    instance.model.will_reply(tool_call_reply("session_status"), text_reply("second", after_s=1))
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("step") as step, store_control.hold_commits("cancel", committed=True) as cancel:
            first = await server.send("first")
            await step.reached.wait()
            second = await server.send("second")
            assert first.session is not None
            cancelling = asyncio.create_task(server.engine.cancel(first.session, by="maria", reason="enough"))
            await cancel.reached.wait()
            store_control.release("step")  # stale by now
            await wait_until_true(lambda: len(instance.model.prompts) == 2, what="the run over the second")
        assert len((await cancelling).runs) == 1
        await let_tasks_settle(server)
        await instance.clock.advance(1)
        assert (await server.wait_for_outcome(first.envelope)).outcome is Outcome.CANCELLED
        assert await server.wait_for_answer(second.envelope) == "second"
        assert (await server.get_envelope(second.envelope)).attempts == 1


async def test_a_cancel_stops_the_run_even_if_its_caller_disconnects(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply(text_reply("never", after_s=1000), "fresh")
    async with run_with_ledger_check(instance) as server:
        envelope, session = await send_and_wait_for_model_call(instance, server)
        with store_control.hold_commits("cancel") as cancel:
            cancelling = asyncio.create_task(server.engine.cancel(session, by="maria", reason="enough"))
            await cancel.reached.wait()
            cancelling.cancel()
        assert (await server.wait_for_outcome(envelope)).outcome is Outcome.CANCELLED
        # The lane does not wait until the model call ends.
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"
        assert cancelling.cancelled()


async def test_an_approval_decision_counts_even_if_its_caller_disconnects(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.agents = (ada(tools=ToolRules(ask=("append_line",))),)
    instance.model.will_reply(tool_call_reply("append_line", text="once"), "done")
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("write it down")
        await wait_until_suspended(server)
        approval = await wait_for_open_approval(server)
        with store_control.hold_commits("decide") as decide:
            deciding = asyncio.create_task(
                server.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
            )
            await decide.reached.wait()
            deciding.cancel()
        assert await server.wait_for_answer(receipt.envelope) == "done"
        assert read_witness_file(instance) == ["once"]


# Reset


@pytest.mark.spec("D9")
async def test_a_reset_keeps_the_session_and_starts_a_new_context(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.will_reply("nice to meet you", "who are you?")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("my name is Maria")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        assert first.session is not None
        await server.engine.reset(first.session, by="maria", message="She is called Maria.")
        second = await server.send("do you know me?")
        assert second.session == first.session
        assert await server.wait_for_answer(second.envelope) == "who are you?"
        read = instance.model.prompts[1].records
        assert record_kinds(read) == [RecordKind.RESET, RecordKind.USER]
        assert read[0].body == ContextStart(
            text="She is called Maria.", because="requested by maria: the session was reset"
        )
        assert not any("my name is Maria" in text for text in user_turns(read))
        # Nothing is removed: the history is still there, with a marker in it.
        assert record_kinds(await server.list_records(first.session)) == [
            RecordKind.START,
            RecordKind.USER,
            RecordKind.ASSISTANT,
            RecordKind.RESET,
            RecordKind.USER,
            RecordKind.ASSISTANT,
        ]
        assert len(await list_events(server, EventKind.SESSION_RESET)) == 1


@pytest.mark.spec("D9")
async def test_a_reset_cancels_the_active_run_and_discards_its_answer(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    instance.model.will_reply("too late", "fresh")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish") as finish:
            receipt = await server.send("hello")
            await finish.reached.wait()
            assert receipt.session is not None
            await server.engine.reset(receipt.session, by="maria")
        settled = await server.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.CANCELLED
        assert settled.because == "cancelled by maria: the session was reset"
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"
        assert await list_answers_to(server, "maria") == ["fresh"]
        assert record_kinds(instance.model.prompts[1].records) == [RecordKind.RESET, RecordKind.USER]


async def test_a_reset_survives_a_restart(instance: LocalInstance) -> None:
    instance.model.will_reply("nice to meet you", "who are you?")
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("my name is Maria")
        await server.wait_for_outcome(receipt.envelope)
        assert receipt.session is not None
        await server.engine.reset(receipt.session, by="maria", message="Fresh.")
        server.crash()
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer((await server.send("do you know me?")).envelope) == "who are you?"
        assert record_kinds(instance.model.prompts[1].records) == [RecordKind.RESET, RecordKind.USER]
