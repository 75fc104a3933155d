"""The engine's contract for recovery: after a crash, a stop, a failing store or a damaged record, work continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from contracts.engine_cancel import send_and_wait_for_model_call
from contracts.engine_instance import (
    StoreControl,
    ada,
    advance_clock_until_done,
    cut_power,
    let_tasks_settle,
    list_answers_to,
    list_events,
    list_notices_to,
    list_outcomes,
    list_tool_results,
    query_rows,
    read_witness_file,
    record_kinds,
    run_with_ledger_check,
    run_with_power_cuts,
    user_turns,
    wait_until_clock_sleep,
    wait_until_true,
)
from contracts.engine_suspension import CrashAt

from retinue.domain.agent import CrashPolicy
from retinue.domain.envelope import EnvelopeStatus, Outcome
from retinue.domain.errors import StoreError
from retinue.domain.event import EventKind
from retinue.domain.record import RecordKind, Reply
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.models.base import ModelPrompt
from retinue.schedules.alarm import TICK_MAX_S
from retinue.store.core.connection import NO_FAULTS
from retinue.store.open_store import open_store
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.testing.wait_conditions import WAIT_LIMIT_S
from retinue.tools.base import ToolContext, schema_of

FOLLOWUP = QueuePolicy(mode=QueueMode.FOLLOWUP)
INTERRUPTED = "Interrupted: this call may or may not have taken effect. Check before you repeat it."


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class LookTool:
    """A tool that is safe to repeat."""

    times: list[str] = field(default_factory=list[str])
    arguments: type[msgspec.Struct] = NoArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="look", description="Look.", parameters=schema_of(NoArguments), is_repeatable=True
        )
    )

    async def perform(self, arguments: NoArguments, context: ToolContext) -> str:
        self.times.append(context.call)
        return f"looked {len(self.times)}"


async def send_and_crash_at(instance: LocalInstance, point: str, *, nth: int = 1, text: str = "do it") -> str:
    """Send a message and crash the server at an effect of its run."""
    async with instance.run() as server:
        instance.crash_points = fault = CrashAt(point, nth, server)
        server.crash()
    async with instance.run() as server:
        fault.server = server
        receipt = await server.send(text)
        await wait_until_true(lambda: fault.reached, what="the power cut")
    instance.crash_points = NO_FAULTS
    return receipt.envelope


@pytest.mark.spec("H1", "D11")
async def test_a_pending_envelope_survives_a_restart_and_is_answered(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim") as claim:
            receipt = await server.send("hello")
            await claim.reached.wait()
            cut_power(server)
    instance.model.will_reply("good morning")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(receipt.envelope) == "good morning"
        assert (await server.get_envelope(receipt.envelope)).attempts == 1


async def test_an_interrupted_model_call_is_repeated_as_the_next_attempt(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.will_reply(text_reply("never", after_s=100))
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        server.crash()
    instance.model.will_reply("at last")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(envelope) == "at last"
        assert await query_rows(server, "SELECT turn, call_index, attempt, state FROM steps") == [(0, 0, 2, "closed")]
        assert await query_rows(server, "SELECT attempt, status FROM runs") == [(2, "completed")]
        assert (await server.get_envelope(envelope)).attempts == 2
        (resumed,) = await list_events(server, EventKind.RUN_RESUMED)
        assert resumed.body["attempt"] == 2
        first, second = instance.model.prompts
        assert first.records == second.records, "the text is identical"


async def test_a_run_resumes_after_its_last_closed_step(instance: LocalInstance) -> None:
    instance.model.will_reply(
        tool_call_reply("append_line", text="one"),
        tool_call_reply("append_line", text="two"),
        text_reply("", after_s=100),
    )
    async with run_with_ledger_check(instance) as server:
        receipt = await server.send("do it")
        await wait_until_true(lambda: len(instance.model.prompts) == 3, what="the third turn")
        server.crash()
    instance.model.will_reply("done")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(receipt.envelope) == "done"
        assert read_witness_file(instance) == ["one", "two"]
        assert instance.model.prompts[3].records == instance.model.prompts[2].records


@pytest.mark.parametrize("point", ["tool.before", "tool.after"])
async def test_an_interrupted_tool_call_is_not_repeated_and_the_model_reads_an_interrupted_result(
    instance: LocalInstance, point: str
) -> None:
    instance.model.will_reply(tool_call_reply("append_line", text="once"), "I see")
    envelope = await send_and_crash_at(instance, point)
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(envelope) == "I see"
        assert read_witness_file(instance) == (["once"] if point == "tool.after" else [])
        assert [result.output for result in list_tool_results(instance.model.prompts[1].records)] == [INTERRUPTED]
        assert await query_rows(server, "SELECT state FROM steps ORDER BY turn, call_index") == [
            ("closed",),
            ("interrupted",),
            ("closed",),
        ]


async def test_an_interrupted_repeatable_tool_call_is_repeated(instance: LocalInstance) -> None:
    look = LookTool()
    instance.tools = (look,)
    instance.model.will_reply(tool_call_reply("look"), "I see")
    envelope = await send_and_crash_at(instance, "tool.after")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(envelope) == "I see"
        assert [result.output for result in list_tool_results(instance.model.prompts[1].records)] == ["looked 2"]
        assert len(set(look.times)) == 1, "it is the same call"


@pytest.mark.parametrize("point", ["model.before", "model.after"])
async def test_a_crash_after_a_model_call_costs_one_more_reply_and_one_before_it_none(
    instance: LocalInstance, point: str
) -> None:
    instance.model.rule = lambda prompt: text_reply(f"reply {len(instance.model.prompts)}")
    envelope = await send_and_crash_at(instance, point)
    async with run_with_ledger_check(instance) as server:
        asked = 1 if point == "model.before" else 2
        assert await server.wait_for_answer(envelope) == f"reply {asked}"


async def test_downtime_does_not_count_against_the_run_time_limit(instance: LocalInstance) -> None:
    instance.agents = (ada(run_seconds_max=60.0),)
    instance.model.will_reply(text_reply("never", after_s=30))
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        server.crash()
    await instance.clock.advance(7200)
    instance.model.will_reply("at last")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(envelope) == "at last"


@pytest.mark.spec("H3", "H36")
async def test_an_interrupted_at_most_once_run_is_closed_and_never_repeated(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.agents = (ada(crash_policy=CrashPolicy.AT_MOST_ONCE, queue=FOLLOWUP),)
    instance.model.will_reply(text_reply("never", after_s=100))
    async with run_with_ledger_check(instance) as server:
        envelope, session = await send_and_wait_for_model_call(instance, server)
        behind = await server.send("behind it")
        server.crash()
    instance.model.will_reply("for what was behind it")
    async with run_with_ledger_check(instance) as server:
        settled = await server.wait_for_outcome(envelope)
        assert settled.outcome is Outcome.INTERRUPTED
        assert settled.because == "daemon-stopped"
        (notice,) = await list_notices_to(server, "maria")
        assert notice.startswith("The server stopped while I was working on this.")
        # Messages that no run had read are processed as usual.
        assert await server.wait_for_answer(behind.envelope) == "for what was behind it"
        assert len(instance.model.prompts) == 2
        assert await query_rows(server, "SELECT status, error FROM agent_runs ORDER BY started_at, id") == [
            ("failed", "daemon-stopped"),
            ("completed", None),
        ]
        server.crash()
    async with run_with_ledger_check(instance) as server:
        await let_tasks_settle(server)
        assert len(instance.model.prompts) == 2
        assert (await server.get_envelope(envelope)).status is EnvelopeStatus.DONE
        assert (await server.get_session(session)).activity == "sleeping"


@pytest.mark.spec("H36")
async def test_a_run_left_open_by_a_crash_is_repaired_only_when_the_engine_starts(
    instance: LocalInstance,
) -> None:
    instance.agents = (ada(crash_policy=CrashPolicy.AT_MOST_ONCE),)
    instance.model.will_reply(text_reply("never", after_s=100))
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        server.crash()
    store = await open_store(instance.url or instance.root / "retinue.db")
    try:  # another process that opens the store sees the run as it was left
        for _ in range(2):
            assert await store.scan(lambda conn: conn.exec_driver_sql("SELECT status FROM runs").scalar()) == "running"
    finally:
        await store.close()
    async with run_with_ledger_check(instance) as server:
        await server.wait_for_outcome(envelope)
        assert await query_rows(server, "SELECT status FROM runs") == [("failed",)]


async def test_a_run_interrupted_too_often_becomes_dead_and_the_lane_continues(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.agents = (ada(attempts_max=3, queue=FOLLOWUP),)
    instance.model.rule = lambda prompt: text_reply("never", after_s=100)
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server, "this crashes the server")
        behind = await server.send("behind it")
        server.crash()
    for _ in range(2):
        asked = len(instance.model.prompts)
        async with run_with_ledger_check(instance) as server:
            await wait_until_true(lambda asked=asked: len(instance.model.prompts) > asked, what="the next attempt")
            server.crash()
    instance.model.rule = lambda prompt: text_reply("alive")
    async with run_with_ledger_check(instance) as server:
        settled = await server.wait_for_outcome(envelope)
        assert settled.outcome is Outcome.DEAD
        assert settled.because == "interrupted 3 times"
        (notice,) = await list_notices_to(server, "maria")
        assert notice.startswith("I gave up on this")
        assert await server.wait_for_answer(behind.envelope) == "alive"
        assert len(instance.model.prompts) == 4


@pytest.mark.spec("D83")
async def test_a_replay_age_of_zero_expires_envelopes_pending_at_a_stop_and_notifies_the_sender(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    instance.agents = (ada(replay_age_s=0),)
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim") as claim:
            receipts = [await server.send(f"number {n}") for n in range(3)]
            await claim.reached.wait()
            cut_power(server)
    await instance.clock.advance(1)
    instance.model.will_reply("fresh")
    async with run_with_ledger_check(instance) as server:
        for receipt in receipts:
            settled = await server.wait_for_outcome(receipt.envelope)
            assert settled.outcome is Outcome.EXPIRED
            assert "waited while the server was stopped" in settled.because
        assert len(await list_notices_to(server, "maria")) == 3
        assert instance.model.prompts == []
        assert await server.wait_for_answer((await server.send("new")).envelope) == "fresh"


async def test_the_replay_age_is_measured_at_server_start(instance: LocalInstance, store_control: StoreControl) -> None:
    instance.agents = (ada(replay_age_s=60),)
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim") as claim:
            old = await server.send("old")
            await claim.reached.wait()
            await instance.clock.advance(50)
            young = await server.send("young")
            cut_power(server)
    await instance.clock.advance(30)
    instance.model.will_reply("you again")
    async with run_with_ledger_check(instance) as server:
        assert (await server.wait_for_outcome(old.envelope)).outcome is Outcome.EXPIRED
        assert await server.wait_for_answer(young.envelope) == "you again"


@pytest.mark.spec("C101")
async def test_a_stop_lets_active_runs_finish_and_leaves_waiting_envelopes_for_the_next_start(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    instance.agents = (ada(queue=FOLLOWUP),)
    instance.model.will_reply(text_reply("finished", after_s=1))
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        behind = await server.send("behind it")
        stopping = asyncio.create_task(server.engine.stop(drain_s=WAIT_LIMIT_S))
        await asyncio.sleep(0)
        late = await server.send("posted while it stops")
        await instance.clock.advance(1)
        await stopping
        assert await server.wait_for_answer(envelope) == "finished"
        assert await list_outcomes(server, [behind.envelope, late.envelope]) == [None, None]
        assert len(instance.model.prompts) == 1
    instance.model.will_reply("two", "three")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(behind.envelope) == "two"
        assert await server.wait_for_answer(late.envelope) == "three"
        assert (await server.get_envelope(behind.envelope)).attempts == 1


@pytest.mark.spec("C101")
async def test_a_run_that_outlasts_the_drain_time_is_resumed_at_the_next_start(instance: LocalInstance) -> None:
    instance.model.will_reply(text_reply("never", after_s=1000))
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        await server.engine.stop(drain_s=0.01)
        assert (await server.get_envelope(envelope)).status is EnvelopeStatus.CLAIMED
    instance.model.will_reply("at last")
    async with run_with_ledger_check(instance) as server:
        assert await server.wait_for_answer(envelope) == "at last"


# Power cuts at every commit


def append_one_line_per_message(prompt: ModelPrompt) -> ScriptedReply:
    """Write one line for each message, then name it in an answer."""
    turns = [place for place, record in enumerate(prompt.records) if record.kind is RecordKind.USER]
    done = any(isinstance(record.body, ToolResult) for record in prompt.records[turns[-1] :])
    return text_reply(f"answer {len(turns)}") if done else tool_call_reply("append_line", text=f"line {len(turns)}")


async def send_three_messages(server: LocalServer) -> None:
    ids = [(await server.send(f"message {n}", key=f"{n}")).envelope for n in range(3)]
    for id_ in ids:
        await server.wait_for_outcome(id_)


@pytest.mark.parametrize("delivery", list(CrashPolicy))
async def test_a_power_cut_at_any_commit_loses_and_duplicates_nothing(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl, delivery: CrashPolicy
) -> None:
    def make_writing_instance() -> LocalInstance:
        instance = new_instance()
        instance.agents = (ada(crash_policy=delivery, queue=FOLLOWUP),)
        instance.model.rule = append_one_line_per_message
        return instance

    scenario_count = 0
    async for server in run_with_power_cuts(make_writing_instance, store_control, send_three_messages):
        scenario_count += 1
        messages = "SELECT outcome FROM outcomes JOIN envelopes ON envelope = id WHERE kind = 'message'"
        settled = await query_rows(server, messages)
        interrupted = settled.count(("interrupted",))
        assert len(settled) == 3
        assert settled.count(("answered",)) + interrupted == 3
        assert interrupted <= (1 if delivery is CrashPolicy.AT_MOST_ONCE else 0)
        answers = await list_answers_to(server, "maria")
        assert len(answers) == 3 - interrupted and len(set(answers)) == len(answers)
        assert len(await list_notices_to(server, "maria")) == interrupted
        lines = read_witness_file(server.instance)
        assert len(set(lines)) == len(lines), "no line twice"
        ((session,),) = await query_rows(server, "SELECT id FROM sessions")
        history = await server.list_records(session)
        doubtful = [result for result in list_tool_results(history) if result.output == INTERRUPTED]
        assert len(lines) + len(doubtful) >= 3 - interrupted and len(doubtful) <= 1
        read = [text for text in user_turns(history) if "message" in text]
        assert ["message 0" in read[0], "message 1" in read[1], "message 2" in read[2]] == [True] * 3
        assert len(read) == 3
    assert scenario_count > 20


# A failing store


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("point", ["claim", "step", "finish"])
async def test_a_lane_continues_without_help_when_the_store_works_again(
    instance: LocalInstance, store_control: StoreControl, point: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    instance.model.rule = append_one_line_per_message
    instance.model.price_microusd = 1000
    async with run_with_ledger_check(instance) as server:
        store_control.failing[point] = times
        receipt = await server.send("message")
        assert await advance_clock_until_done(server, server.wait_for_answer(receipt.envelope)) == "answer 1"
        assert store_control.failing[point] == 0, "the store failed as often as scripted"
        assert read_witness_file(instance) in (["line 1"], [])
        assert (await server.get_envelope(receipt.envelope)).attempts == 1
        assert await query_rows(server, "SELECT attempt, status FROM runs") == [(1, "completed")]
        assert await query_rows(server, "SELECT sum(held_microusd) FROM model_calls") == [(0,)], (
            "no reservation is left behind"
        )
        assert any(record.message == "store failed, lane waits" for record in caplog.records)


async def test_a_full_disk_while_a_failed_run_is_stored_is_retried(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply(ScriptedReply(fails="tired"), ScriptedReply(fails="still tired"))
    async with run_with_ledger_check(instance) as server:
        store_control.failing["fail"] = 1
        receipt = await server.send("hello")
        await wait_until_true(lambda: store_control.failing["fail"] == 0, what="the store to fail")
        await wait_until_clock_sleep(server, seconds_max=1)
        await instance.clock.advance(1)
        settled = await server.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD and "still tired" in settled.because


async def test_a_new_message_wakes_a_lane_that_waits_to_retry_the_store(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply("both")
    async with run_with_ledger_check(instance) as server:
        # Wait until the engine's first check for due envelopes is over, before any is due.
        await wait_until_clock_sleep(server, seconds_max=TICK_MAX_S)
        await let_tasks_settle(server)
        store_control.failing["claim"] = 1
        first = await server.send("first")
        await wait_until_true(lambda: store_control.failing["claim"] == 0, what="the store to fail")
        await let_tasks_settle(server)
        second = await server.send("second")
        assert await server.wait_for_answer(first.envelope) == "both"
        assert await server.wait_for_answer(second.envelope) == "both"


async def test_an_at_most_once_run_is_not_repeated_after_a_store_failure(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.agents = (ada(crash_policy=CrashPolicy.AT_MOST_ONCE),)
    instance.model.will_reply("an answer that cannot be kept")
    async with run_with_ledger_check(instance) as server:
        store_control.failing["finish"] = 1
        receipt = await server.send("hello")
        await wait_until_true(lambda: store_control.failing["finish"] == 0, what="the store to fail")
        await wait_until_clock_sleep(server, seconds_max=1)
        await instance.clock.advance(1)
        settled = await server.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.because) == (Outcome.INTERRUPTED, "store-failed")
        assert len(instance.model.prompts) == 1


async def test_an_at_most_once_run_is_not_repeated_if_the_store_fails_right_after_a_crash(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """A failed repair does not make the run our own: the previous process had been interrupted in it."""
    instance.agents = (ada(crash_policy=CrashPolicy.AT_MOST_ONCE),)
    instance.model.will_reply(text_reply("never", after_s=100))
    async with run_with_ledger_check(instance) as server:
        envelope, _ = await send_and_wait_for_model_call(instance, server)
        server.crash()
    store_control.failing["claim"] = 1
    async with run_with_ledger_check(instance) as server:
        await wait_until_true(lambda: store_control.failing["claim"] == 0, what="the store to fail")
        await wait_until_clock_sleep(server, seconds_max=1)
        await instance.clock.advance(1)
        settled = await server.wait_for_outcome(envelope)
        assert (settled.outcome, settled.because) == (Outcome.INTERRUPTED, "daemon-stopped")
        assert len(instance.model.prompts) == 1


async def test_a_send_that_cannot_be_stored_raises_an_error_and_stores_nothing(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply("hello")
    async with run_with_ledger_check(instance) as server:
        store_control.failing["accept"] = 1
        with pytest.raises(StoreError):
            await server.send("hello", key="k")
        assert await query_rows(server, "SELECT count(*) FROM envelopes") == [(0,)]
        assert await server.wait_for_answer((await server.send("hello", key="k")).envelope) == "hello"


# Unreadable records


async def damage_newest_record(server: LocalServer, kind: RecordKind, *, body: str = '{"text": 5') -> None:
    """Damage the newest record of a kind, directly in the store."""
    newest = "(SELECT max(seq) FROM records WHERE kind = :kind)"
    await server.execute_sql(f"UPDATE records SET body = :body WHERE seq = {newest}", kind=kind.value, body=body)


@pytest.mark.spec("C47", "A13", "D10")
@pytest.mark.parametrize("body", ['{"text": 5', "", "[]", '{"no": "such field"}'])
async def test_a_damaged_record_is_skipped_and_logged_and_the_rest_is_read(
    instance: LocalInstance, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        for n in range(3):
            receipt = await server.send(f"message {n}")
            await server.wait_for_outcome(receipt.envelope)
            await server.wait_until_idle()
        await server.execute_sql("UPDATE records SET body = :body WHERE seq = 4", body=body)  # the second message
        server.crash()
    async with instance.run() as server:
        receipt = await server.send("message 3")
        assert await server.wait_for_answer(receipt.envelope) == "ok"
        read = user_turns(instance.model.prompts[-1].records)
        assert [n for n in range(4) for text in read if f"message {n}" in text] == [0, 2, 3]
        (log_record,) = [record for record in caplog.records if record.message == "damaged record skipped"]
        assert (vars(log_record)["session"], vars(log_record)["seq"]) == (receipt.session, 4)


@pytest.mark.spec("C47", "D10")
async def test_a_damaged_record_before_the_last_reset_is_never_read(instance: LocalInstance) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        receipt = await server.send("before")
        await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()
        await damage_newest_record(server, RecordKind.ASSISTANT)
        assert receipt.session is not None
        await server.engine.reset(receipt.session, by="maria")
        server.crash()
    async with instance.run() as server:
        assert await server.wait_for_answer((await server.send("after")).envelope) == "ok"
        assert record_kinds(instance.model.prompts[-1].records) == [RecordKind.RESET, RecordKind.USER]


@pytest.mark.spec("C47", "D27")
async def test_a_call_with_a_damaged_result_is_closed_and_a_result_without_its_call_is_left_out(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    instance.model.will_reply(tool_call_reply("session_status"), "first", tool_call_reply("session_status"), "second")
    async with instance.run() as server:
        for n in range(2):
            await server.wait_for_outcome((await server.send(f"message {n}")).envelope)
            await server.wait_until_idle()
        ((session,),) = await query_rows(server, "SELECT id FROM sessions")
        history = await server.list_records(session)
        asked = [record.seq for record in history if isinstance(record.body, Reply) and record.body.calls]
        await server.execute_sql("UPDATE records SET body = 'x' WHERE seq = :seq", seq=asked[0] + 1)  # the first result
        await server.execute_sql("UPDATE records SET body = 'x' WHERE seq = :seq", seq=asked[1])  # the second call
        server.crash()
    async with instance.run() as server:
        assert await server.wait_for_answer((await server.send("message 2")).envelope) == "ok"
        read = instance.model.prompts[-1].records
        assert [(result.output, result.failed) for result in list_tool_results(read)] == [
            ("This result was lost.", True)
        ]
        assert_calls_have_results(read)


@pytest.mark.spec("D27", "C47")
async def test_a_call_without_a_result_from_an_ended_run_is_closed_before_the_next_turn(
    instance: LocalInstance,
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    instance.model.will_reply(tool_call_reply("session_status"), ScriptedReply(fails="tired"))
    async with instance.run() as server:
        receipt = await server.send("message 0")
        await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()
        await damage_newest_record(server, RecordKind.TOOL)
        server.crash()
    async with instance.run() as server:
        assert await server.wait_for_answer((await server.send("message 1")).envelope) == "ok"
        assert_calls_have_results(instance.model.prompts[-1].records)


async def test_a_damaged_record_of_an_open_run_ends_the_run_and_notifies_its_sender(instance: LocalInstance) -> None:
    """Its steps cannot be read back, so it cannot resume; it must not be tried forever either."""
    instance.model.rule = lambda prompt: text_reply("fresh")
    instance.model.will_reply(tool_call_reply("append_line", text="once"), text_reply("never", after_s=100))
    async with instance.run() as server:
        receipt = await server.send("do it")
        await wait_until_true(lambda: len(instance.model.prompts) == 2, what="the second turn")
        await damage_newest_record(server, RecordKind.ASSISTANT)
        server.crash()
    async with instance.run() as server:
        settled = await server.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD
        assert len(await list_notices_to(server, "maria")) == 1
        assert read_witness_file(instance) == ["once"]
        assert await server.wait_for_answer((await server.send("again")).envelope) == "fresh"


def assert_calls_have_results(records: object) -> None:
    """Assert that each call is directly followed by one result, and that each result has a call."""
    expected: list[str] = []
    for record in list(records):  # type: ignore[call-overload]
        body = record.body
        if isinstance(body, ToolResult):
            assert expected and body.call == expected.pop(0)
            continue
        assert not expected, f"{expected} have no result"
        expected = [call.id for call in body.calls] if isinstance(body, Reply) else []
    assert not expected


# The audit log


@pytest.mark.spec("H35", "H85")
async def test_each_run_has_an_audit_row(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.will_reply("fine", ScriptedReply(fails="tired"), text_reply("never", after_s=100))
    async with run_with_ledger_check(instance) as server:
        ids: list[str] = []
        for text in ("one", "two"):
            ids.append((await server.send(text)).envelope)
            await server.wait_for_outcome(ids[-1])
            await instance.clock.advance(2)
        cancelled, session = await send_and_wait_for_model_call(instance, server, "three")
        await server.engine.cancel(session, by="maria", reason="enough")
        await server.wait_for_outcome(cancelled)
        await instance.clock.advance(2)
        audit = await query_rows(server, "SELECT * FROM agent_runs ORDER BY started_at")
        assert list(audit[0]._fields) == [
            "id",
            "agent_name",
            "started_at",
            "completed_at",
            "envelope_ids",
            "final_response",
            "context_length",
            "status",
            "error",
        ]
        assert [row.agent_name for row in audit] == ["ada"] * 3
        assert [msgspec.json.decode(row.envelope_ids) for row in audit] == [[ids[0]], [ids[1]], [cancelled]]
        assert [row.status for row in audit] == ["completed", "failed", "cancelled"]
        assert [row.final_response for row in audit] == ["fine", None, None]
        assert [row.context_length for row in audit] == [15, None, None]
        assert [row.error for row in audit] == [
            None,
            "model.scripted: tired",
            "cancelled by maria: enough",
        ]
        for row in audit:
            assert row.started_at <= row.completed_at
        assert audit[1].started_at - audit[0].started_at == timedelta(seconds=2) // timedelta(milliseconds=1)
