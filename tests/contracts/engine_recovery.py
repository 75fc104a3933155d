"""The engine's contract: how it goes on after a crash, a stop, a failing store or a damaged record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest
from contracts.engine_cancel import thinking
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    all_news,
    answers_to,
    as_time_goes_by,
    kinds,
    notices_to,
    opened,
    outcomes,
    power_cuts,
    power_goes,
    results,
    rows,
    until,
    until_somebody_sleeps,
    user_turns,
    witness,
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
from retinue.tools.base import ToolContext, schema_of

FOLLOWUP = QueuePolicy(mode=QueueMode.FOLLOWUP)
INTERRUPTED = "Interrupted: this call may or may not have taken effect. Check before you repeat it."


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """A tool that may simply be used again."""

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


async def crash_at(household: LocalInstance, point: str, *, nth: int = 1, text: str = "do it") -> str:
    """Post something and lose the power at an effect of its run."""
    async with household.run() as house:
        household.crash_points = fault = CrashAt(point, nth, house)
        house.crash()
    async with household.run() as house:
        fault.house = house
        receipt = await house.send(text)
        await until(lambda: fault.reached, what="the power to go")
    household.crash_points = NO_FAULTS
    return receipt.envelope


@pytest.mark.spec("H1", "D11")
async def test_pending_mail_survives_a_restart_and_is_worked(any_household: LocalInstance, hands: Hands) -> None:
    household = any_household
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            receipt = await house.send("hello")
            await claim.reached.wait()
            power_goes(house)
    household.model.will_reply("good morning")
    async with opened(household) as house:
        assert await house.wait_for_answer(receipt.envelope) == "good morning"
        assert (await house.get_envelope(receipt.envelope)).attempts == 1


async def test_an_open_model_call_is_asked_again_as_the_next_attempt(any_household: LocalInstance) -> None:
    household = any_household
    household.model.will_reply(text_reply("never", after_s=100))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        house.crash()
    household.model.will_reply("at last")
    async with opened(household) as house:
        assert await house.wait_for_answer(envelope) == "at last"
        assert await rows(house, "SELECT turn, idx, attempt, state FROM steps") == [(0, 0, 2, "closed")]
        assert await rows(house, "SELECT attempt, status FROM runs") == [(2, "completed")]
        assert (await house.get_envelope(envelope)).attempts == 2
        (resumed,) = await all_news(house, EventKind.RUN_RESUMED)
        assert resumed.body["attempt"] == 2
        first, second = household.model.prompts
        assert first.records == second.records, "it reads the same, to the letter"


async def test_a_run_goes_on_from_its_last_closed_step(household: LocalInstance) -> None:
    household.model.will_reply(
        tool_call_reply("append_line", text="one"),
        tool_call_reply("append_line", text="two"),
        text_reply("", after_s=100),
    )
    async with opened(household) as house:
        receipt = await house.send("do it")
        await until(lambda: len(household.model.prompts) == 3, what="the third turn")
        house.crash()
    household.model.will_reply("done")
    async with opened(household) as house:
        assert await house.wait_for_answer(receipt.envelope) == "done"
        assert witness(household) == ["one", "two"]
        assert household.model.prompts[3].records == household.model.prompts[2].records


@pytest.mark.parametrize("point", ["tool.before", "tool.after"])
async def test_a_call_cut_off_is_not_made_again_and_the_model_reads_so(household: LocalInstance, point: str) -> None:
    household.model.will_reply(tool_call_reply("append_line", text="once"), "I see")
    envelope = await crash_at(household, point)
    async with opened(household) as house:
        assert await house.wait_for_answer(envelope) == "I see"
        assert witness(household) == (["once"] if point == "tool.after" else [])
        assert [result.output for result in results(household.model.prompts[1].records)] == [INTERRUPTED]
        assert await rows(house, "SELECT state FROM steps ORDER BY turn, idx") == [
            ("closed",),
            ("interrupted",),
            ("closed",),
        ]


async def test_a_repeatable_call_cut_off_is_simply_made_again(household: LocalInstance) -> None:
    look = Look()
    household.tools = (look,)
    household.model.will_reply(tool_call_reply("look"), "I see")
    envelope = await crash_at(household, "tool.after")
    async with opened(household) as house:
        assert await house.wait_for_answer(envelope) == "I see"
        assert [result.output for result in results(household.model.prompts[1].records)] == ["looked 2"]
        assert len(set(look.times)) == 1, "it is the same call"


@pytest.mark.parametrize("point", ["model.before", "model.after"])
async def test_a_crash_around_a_model_call_costs_one_more_reply(household: LocalInstance, point: str) -> None:
    household.model.rule = lambda prompt: text_reply(f"reply {len(household.model.prompts)}")
    envelope = await crash_at(household, point)
    async with opened(household) as house:
        asked = 1 if point == "model.before" else 2
        assert await house.wait_for_answer(envelope) == f"reply {asked}"


async def test_a_long_time_in_the_dark_is_not_the_runs_own(household: LocalInstance) -> None:
    household.agents = (ada(run_seconds_max=60.0),)
    household.model.will_reply(text_reply("never", after_s=30))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        house.crash()
    await household.clock.advance(7200)
    household.model.will_reply("at last")
    async with opened(household) as house:
        assert await house.wait_for_answer(envelope) == "at last"


@pytest.mark.spec("H3", "H36")
async def test_at_most_once_a_run_cut_off_is_closed_and_never_run_again(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (ada(delivery=CrashPolicy.AT_MOST_ONCE, queue=FOLLOWUP),)
    household.model.will_reply(text_reply("never", after_s=100))
    async with opened(household) as house:
        envelope, session = await thinking(household, house)
        behind = await house.send("behind it")
        house.crash()
    household.model.will_reply("for what was behind it")
    async with opened(household) as house:
        settled = await house.wait_for_outcome(envelope)
        assert settled.outcome is Outcome.INTERRUPTED
        assert settled.because == "daemon-stopped"
        (told,) = await notices_to(house, "maria")
        assert told.startswith("The server stopped while I worked on this.")
        # Mail that no run had read yet is worked as ever.
        assert await house.wait_for_answer(behind.envelope) == "for what was behind it"
        assert len(household.model.prompts) == 2
        assert await rows(house, "SELECT status, error FROM agent_runs ORDER BY started_at, id") == [
            ("failed", "daemon-stopped"),
            ("completed", None),
        ]
        house.crash()
    async with opened(household) as house:
        await a_moment(house)
        assert len(household.model.prompts) == 2
        assert (await house.get_envelope(envelope)).status is EnvelopeStatus.DONE
        assert (await house.get_session(session)).activity == "sleeping"


@pytest.mark.spec("H36")
async def test_a_run_left_open_by_a_crash_is_repaired_by_the_engine_when_it_starts_and_only_then(
    household: LocalInstance,
) -> None:
    household.agents = (ada(delivery=CrashPolicy.AT_MOST_ONCE),)
    household.model.will_reply(text_reply("never", after_s=100))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        house.crash()
    store = await open_store(household.url or household.root / "house.db")
    try:  # whoever else opens the store sees the run as it was left
        for _ in range(2):
            assert await store.scan(lambda conn: conn.exec_driver_sql("SELECT status FROM runs").scalar()) == "running"
    finally:
        await store.close()
    async with opened(household) as house:
        await house.wait_for_outcome(envelope)
        assert await rows(house, "SELECT status FROM runs") == [("failed",)]


async def test_a_run_cut_off_too_often_is_given_up_and_the_lane_goes_on(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (ada(attempts_max=3, queue=FOLLOWUP),)
    household.model.rule = lambda prompt: text_reply("never", after_s=100)
    async with opened(household) as house:
        envelope, _ = await thinking(household, house, "the house dies of this")
        behind = await house.send("behind it")
        house.crash()
    for _ in range(2):
        asked = len(household.model.prompts)
        async with opened(household) as house:
            await until(lambda asked=asked: len(household.model.prompts) > asked, what="the next attempt")
            house.crash()
    household.model.rule = lambda prompt: text_reply("alive")
    async with opened(household) as house:
        settled = await house.wait_for_outcome(envelope)
        assert settled.outcome is Outcome.DEAD
        assert settled.because == "interrupted 3 times"
        (told,) = await notices_to(house, "maria")
        assert told.startswith("I gave up on this")
        assert await house.wait_for_answer(behind.envelope) == "alive"
        assert len(household.model.prompts) == 4


@pytest.mark.spec("D83")
async def test_with_a_replay_age_of_zero_mail_pending_at_a_stop_expires_and_its_sender_is_told(
    any_household: LocalInstance, hands: Hands
) -> None:
    household = any_household
    household.agents = (ada(replay_age_s=0),)
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            receipts = [await house.send(f"number {n}") for n in range(3)]
            await claim.reached.wait()
            power_goes(house)
    await household.clock.advance(1)
    household.model.will_reply("fresh")
    async with opened(household) as house:
        for receipt in receipts:
            settled = await house.wait_for_outcome(receipt.envelope)
            assert settled.outcome is Outcome.EXPIRED
            assert "waited while the server was stopped" in settled.because
        assert len(await notices_to(house, "maria")) == 3
        assert household.model.prompts == []
        assert await house.wait_for_answer((await house.send("new")).envelope) == "fresh"


async def test_a_replay_age_is_counted_back_from_the_start_of_the_house(household: LocalInstance, hands: Hands) -> None:
    household.agents = (ada(replay_age_s=60),)
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            old = await house.send("old")
            await claim.reached.wait()
            await household.clock.advance(50)
            young = await house.send("young")
            power_goes(house)
    await household.clock.advance(30)
    household.model.will_reply("you again")
    async with opened(household) as house:
        assert (await house.wait_for_outcome(old.envelope)).outcome is Outcome.EXPIRED
        assert await house.wait_for_answer(young.envelope) == "you again"


@pytest.mark.spec("C101")
async def test_a_stop_lets_runs_finish_and_leaves_the_rest_to_be_taken_up(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (ada(queue=FOLLOWUP),)
    household.model.will_reply(text_reply("finished", after_s=1))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        behind = await house.send("behind it")
        stopping = asyncio.create_task(house.engine.stop(drain_s=10))
        await asyncio.sleep(0)
        late = await house.send("posted while it stops")
        await household.clock.advance(1)
        await stopping
        assert await house.wait_for_answer(envelope) == "finished"
        assert await outcomes(house, [behind.envelope, late.envelope]) == [None, None]
        assert len(household.model.prompts) == 1
    household.model.will_reply("two", "three")
    async with opened(household) as house:
        assert await house.wait_for_answer(behind.envelope) == "two"
        assert await house.wait_for_answer(late.envelope) == "three"
        assert (await house.get_envelope(behind.envelope)).attempts == 1


@pytest.mark.spec("C101")
async def test_a_stop_that_cannot_wait_any_longer_leaves_the_run_to_be_taken_up(household: LocalInstance) -> None:
    household.model.will_reply(text_reply("never", after_s=1000))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        await house.engine.stop(drain_s=0.01)
        assert (await house.get_envelope(envelope)).status is EnvelopeStatus.CLAIMED
    household.model.will_reply("at last")
    async with opened(household) as house:
        assert await house.wait_for_answer(envelope) == "at last"


# A power cut at every commit


def asks_for_a_line_each(prompt: ModelPrompt) -> ScriptedReply:
    """For every message one line, then an answer that names it."""
    turns = [place for place, record in enumerate(prompt.records) if record.kind is RecordKind.USER]
    done = any(isinstance(record.body, ToolResult) for record in prompt.records[turns[-1] :])
    return text_reply(f"answer {len(turns)}") if done else tool_call_reply("append_line", text=f"line {len(turns)}")


async def three_messages(house: LocalServer) -> None:
    ids = [(await house.send(f"message {n}", key=f"{n}")).envelope for n in range(3)]
    for id_ in ids:
        await house.wait_for_outcome(id_)


@pytest.mark.parametrize("delivery", list(CrashPolicy))
async def test_nothing_is_lost_or_doubled_by_a_power_cut_at_any_commit(
    new_household: Callable[[], LocalInstance], hands: Hands, delivery: CrashPolicy
) -> None:
    def writing() -> LocalInstance:
        household = new_household()
        household.agents = (ada(delivery=delivery, queue=FOLLOWUP),)
        household.model.rule = asks_for_a_line_each
        return household

    lived = 0
    async for house in power_cuts(writing, hands, three_messages):
        lived += 1
        messages = "SELECT outcome FROM outcomes JOIN envelopes ON envelope = id WHERE kind = 'message'"
        settled = await rows(house, messages)
        interrupted = settled.count(("interrupted",))
        assert len(settled) == 3
        assert settled.count(("answered",)) + interrupted == 3
        assert interrupted <= (1 if delivery is CrashPolicy.AT_MOST_ONCE else 0)
        answers = await answers_to(house, "maria")
        assert len(answers) == 3 - interrupted and len(set(answers)) == len(answers)
        assert len(await notices_to(house, "maria")) == interrupted
        lines = witness(house.instance)
        assert len(set(lines)) == len(lines), "no line twice"
        ((session,),) = await rows(house, "SELECT id FROM sessions")
        history = await house.list_records(session)
        doubtful = [result for result in results(history) if result.output == INTERRUPTED]
        assert len(lines) + len(doubtful) >= 3 - interrupted and len(doubtful) <= 1
        read = [text for text in user_turns(history) if "message" in text]
        assert ["message 0" in read[0], "message 1" in read[1], "message 2" in read[2]] == [True] * 3
        assert len(read) == 3
    assert lived > 20


# A store that fails


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("point", ["claim", "step", "finish"])
async def test_a_lane_goes_on_by_itself_when_the_store_works_again(
    household: LocalInstance, hands: Hands, point: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    household.model.rule = asks_for_a_line_each
    household.model.price_microusd = 1000
    async with opened(household) as house:
        hands.failing[point] = times
        receipt = await house.send("message")
        assert await as_time_goes_by(house, house.wait_for_answer(receipt.envelope)) == "answer 1"
        assert hands.failing[point] == 0, "the store failed as often as it was to"
        assert witness(household) in (["line 1"], [])
        assert (await house.get_envelope(receipt.envelope)).attempts == 1
        assert await rows(house, "SELECT attempt, status FROM runs") == [(1, "completed")]
        assert await rows(house, "SELECT sum(held_microusd) FROM money") == [(0,)], "no reservation is left behind"
        assert any(record.message == "store failed, lane waits" for record in caplog.records)


async def test_a_full_disk_when_a_run_parks_or_fails_is_survived(household: LocalInstance, hands: Hands) -> None:
    household.model.will_reply(ScriptedReply(fails="tired"), ScriptedReply(fails="still tired"))
    async with opened(household) as house:
        hands.failing["fail"] = 1
        receipt = await house.send("hello")
        await until(lambda: hands.failing["fail"] == 0, what="the store to fail")
        await until_somebody_sleeps(house, seconds_max=1)
        await household.clock.advance(1)
        settled = await house.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD and "still tired" in settled.because


async def test_new_mail_does_not_wait_for_the_retry(household: LocalInstance, hands: Hands) -> None:
    household.model.will_reply("both")
    async with opened(household) as house:
        # The engine's first look at the clock wakes whatever is due: it is to be over before anything is.
        await until_somebody_sleeps(house, seconds_max=TICK_MAX_S)
        await a_moment(house)
        hands.failing["claim"] = 1
        first = await house.send("first")
        await until(lambda: hands.failing["claim"] == 0, what="the store to fail")
        await a_moment(house)
        second = await house.send("second")
        assert await house.wait_for_answer(first.envelope) == "both"
        assert await house.wait_for_answer(second.envelope) == "both"


async def test_at_most_once_holds_also_when_the_store_fails(household: LocalInstance, hands: Hands) -> None:
    household.agents = (ada(delivery=CrashPolicy.AT_MOST_ONCE),)
    household.model.will_reply("an answer that cannot be kept")
    async with opened(household) as house:
        hands.failing["finish"] = 1
        receipt = await house.send("hello")
        await until(lambda: hands.failing["finish"] == 0, what="the store to fail")
        await until_somebody_sleeps(house, seconds_max=1)
        await household.clock.advance(1)
        settled = await house.wait_for_outcome(receipt.envelope)
        assert (settled.outcome, settled.because) == (Outcome.INTERRUPTED, "store-failed")
        assert len(household.model.prompts) == 1


async def test_at_most_once_holds_when_the_store_fails_right_after_a_crash(
    household: LocalInstance, hands: Hands
) -> None:
    """That the repair itself failed does not make the run ours: it was cut off by whoever came before us."""
    household.agents = (ada(delivery=CrashPolicy.AT_MOST_ONCE),)
    household.model.will_reply(text_reply("never", after_s=100))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        house.crash()
    hands.failing["claim"] = 1
    async with opened(household) as house:
        await until(lambda: hands.failing["claim"] == 0, what="the store to fail")
        await until_somebody_sleeps(house, seconds_max=1)
        await household.clock.advance(1)
        settled = await house.wait_for_outcome(envelope)
        assert (settled.outcome, settled.because) == (Outcome.INTERRUPTED, "daemon-stopped")
        assert len(household.model.prompts) == 1


async def test_a_post_that_cannot_be_stored_is_an_error_and_leaves_nothing(
    household: LocalInstance, hands: Hands
) -> None:
    household.model.will_reply("hello")
    async with opened(household) as house:
        hands.failing["accept"] = 1
        with pytest.raises(StoreError):
            await house.send("hello", key="k")
        assert await rows(house, "SELECT count(*) FROM envelopes") == [(0,)]
        assert await house.wait_for_answer((await house.send("hello", key="k")).envelope) == "hello"


# Records that cannot be read


async def damage(house: LocalServer, kind: RecordKind, *, body: str = '{"text": 5') -> None:
    """Spoil the newest record of a kind, from behind."""
    newest = "(SELECT max(seq) FROM records WHERE kind = :kind)"
    await house.execute_sql(f"UPDATE records SET body = :body WHERE seq = {newest}", kind=kind.value, body=body)


@pytest.mark.spec("C47", "A13", "D10")
@pytest.mark.parametrize("body", ['{"text": 5', "", "[]", '{"no": "such field"}'])
async def test_a_damaged_record_is_left_out_and_reported_and_the_rest_is_read(
    household: LocalInstance, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        for n in range(3):
            receipt = await house.send(f"message {n}")
            await house.wait_for_outcome(receipt.envelope)
            await house.wait_until_idle()
        await house.execute_sql("UPDATE records SET body = :body WHERE seq = 4", body=body)  # the second message
        house.crash()
    async with household.run() as house:
        receipt = await house.send("message 3")
        assert await house.wait_for_answer(receipt.envelope) == "ok"
        read = user_turns(household.model.prompts[-1].records)
        assert [n for n in range(4) for text in read if f"message {n}" in text] == [0, 2, 3]
        (said,) = [record for record in caplog.records if record.message == "damaged record skipped"]
        assert (vars(said)["session"], vars(said)["seq"]) == (receipt.session, 4)


@pytest.mark.spec("C47", "D10")
async def test_damage_before_the_last_marker_is_not_even_seen(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        receipt = await house.send("before")
        await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()
        await damage(house, RecordKind.ASSISTANT)
        assert receipt.session is not None
        await house.engine.reset(receipt.session, by="maria")
        house.crash()
    async with household.run() as house:
        assert await house.wait_for_answer((await house.send("after")).envelope) == "ok"
        assert kinds(household.model.prompts[-1].records) == [RecordKind.RESET, RecordKind.USER]


@pytest.mark.spec("C47", "D27")
async def test_a_call_whose_result_is_damaged_is_closed_and_a_result_without_its_call_left_out(
    household: LocalInstance,
) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    household.model.will_reply(tool_call_reply("session_status"), "first", tool_call_reply("session_status"), "second")
    async with household.run() as house:
        for n in range(2):
            await house.wait_for_outcome((await house.send(f"message {n}")).envelope)
            await house.wait_until_idle()
        ((session,),) = await rows(house, "SELECT id FROM sessions")
        history = await house.list_records(session)
        asked = [record.seq for record in history if isinstance(record.body, Reply) and record.body.calls]
        await house.execute_sql("UPDATE records SET body = 'x' WHERE seq = :seq", seq=asked[0] + 1)  # the first result
        await house.execute_sql("UPDATE records SET body = 'x' WHERE seq = :seq", seq=asked[1])  # the second call
        house.crash()
    async with household.run() as house:
        assert await house.wait_for_answer((await house.send("message 2")).envelope) == "ok"
        read = household.model.prompts[-1].records
        assert [(result.output, result.failed) for result in results(read)] == [("This result was lost.", True)]
        assert_paired(read)


@pytest.mark.spec("D27", "C47")
async def test_a_dangling_call_of_an_ended_run_is_closed_before_the_next_turn(household: LocalInstance) -> None:
    household.model.rule = lambda prompt: text_reply("ok")
    household.model.will_reply(tool_call_reply("session_status"), ScriptedReply(fails="tired"))
    async with household.run() as house:
        receipt = await house.send("message 0")
        await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()
        await damage(house, RecordKind.TOOL)
        house.crash()
    async with household.run() as house:
        assert await house.wait_for_answer((await house.send("message 1")).envelope) == "ok"
        assert_paired(household.model.prompts[-1].records)


async def test_damage_in_the_middle_of_an_open_run_ends_it_with_a_word_to_its_sender(household: LocalInstance) -> None:
    """What it had done cannot be read back, so it cannot go on; it must not try forever either."""
    household.model.rule = lambda prompt: text_reply("fresh")
    household.model.will_reply(tool_call_reply("append_line", text="once"), text_reply("never", after_s=100))
    async with household.run() as house:
        receipt = await house.send("do it")
        await until(lambda: len(household.model.prompts) == 2, what="the second turn")
        await damage(house, RecordKind.ASSISTANT)
        house.crash()
    async with household.run() as house:
        settled = await house.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD
        assert len(await notices_to(house, "maria")) == 1
        assert witness(household) == ["once"]
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"


def assert_paired(records: object) -> None:
    """Every call has one result right behind it, and every result a call before it."""
    expected: list[str] = []
    for record in list(records):  # type: ignore[call-overload]
        body = record.body
        if isinstance(body, ToolResult):
            assert expected and body.call == expected.pop(0)
            continue
        assert not expected, f"{expected} have no result"
        expected = [call.id for call in body.calls] if isinstance(body, Reply) else []
    assert not expected


# The audit


@pytest.mark.spec("H35", "H85")
async def test_each_run_has_an_audit_row(any_household: LocalInstance) -> None:
    household = any_household
    household.model.will_reply("fine", ScriptedReply(fails="tired"), text_reply("never", after_s=100))
    async with opened(household) as house:
        ids: list[str] = []
        for text in ("one", "two"):
            ids.append((await house.send(text)).envelope)
            await house.wait_for_outcome(ids[-1])
            await household.clock.advance(2)
        cancelled, session = await thinking(household, house, "three")
        await house.engine.cancel(session, by="maria", reason="enough")
        await house.wait_for_outcome(cancelled)
        await household.clock.advance(2)
        audit = await rows(house, "SELECT * FROM agent_runs ORDER BY started_at")
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
