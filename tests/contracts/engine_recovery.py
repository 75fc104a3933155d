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

from retinue.domain.agent import Delivery
from retinue.domain.envelope import Outcome, Status
from retinue.domain.errors import StoreError
from retinue.domain.event import NewsKind
from retinue.domain.record import RecordKind, Reply
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.models.base import Prompt
from retinue.schedules.alarm import TICK_MAX_S
from retinue.store.core.connection import NO_FAULTS
from retinue.store.open_store import open_store
from retinue.testing.local_instance import House, Household
from retinue.testing.scripted_model import Line, calls, says
from retinue.tools.base import Scene, schema_of

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
            name="look", description="Look.", parameters=schema_of(NoArguments), repeatable=True
        )
    )

    async def perform(self, arguments: NoArguments, scene: Scene) -> str:
        self.times.append(scene.call)
        return f"looked {len(self.times)}"


async def crash_at(household: Household, point: str, *, nth: int = 1, text: str = "do it") -> str:
    """Post something and lose the power at an effect of its run."""
    async with household.open() as house:
        household.faults = fault = CrashAt(point, nth, house)
        house.crash()
    async with household.open() as house:
        fault.house = house
        receipt = await house.post(text)
        await until(lambda: fault.reached, what="the power to go")
    household.faults = NO_FAULTS
    return receipt.envelope


@pytest.mark.spec("H1", "D11")
async def test_pending_mail_survives_a_restart_and_is_worked(any_household: Household, hands: Hands) -> None:
    household = any_household
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            receipt = await house.post("hello")
            await claim.reached.wait()
            power_goes(house)
    household.model.will_reply("good morning")
    async with opened(household) as house:
        assert await house.answer_to(receipt.envelope) == "good morning"
        assert (await house.envelope(receipt.envelope)).attempts == 1


async def test_an_open_model_call_is_asked_again_as_the_next_attempt(any_household: Household) -> None:
    household = any_household
    household.model.will_reply(says("never", after_s=100))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        house.crash()
    household.model.will_reply("at last")
    async with opened(household) as house:
        assert await house.answer_to(envelope) == "at last"
        assert await rows(house, "SELECT turn, idx, attempt, state FROM steps") == [(0, 0, 2, "closed")]
        assert await rows(house, "SELECT attempt, status FROM runs") == [(2, "completed")]
        assert (await house.envelope(envelope)).attempts == 2
        (resumed,) = await all_news(house, NewsKind.RUN_RESUMED)
        assert resumed.body["attempt"] == 2
        first, second = household.model.prompts
        assert first.records == second.records, "it reads the same, to the letter"


async def test_a_run_goes_on_from_its_last_closed_step(household: Household) -> None:
    household.model.will_reply(
        calls("append_line", text="one"), calls("append_line", text="two"), says("", after_s=100)
    )
    async with opened(household) as house:
        receipt = await house.post("do it")
        await until(lambda: len(household.model.prompts) == 3, what="the third turn")
        house.crash()
    household.model.will_reply("done")
    async with opened(household) as house:
        assert await house.answer_to(receipt.envelope) == "done"
        assert witness(household) == ["one", "two"]
        assert household.model.prompts[3].records == household.model.prompts[2].records


@pytest.mark.parametrize("point", ["tool.before", "tool.after"])
async def test_a_call_cut_off_is_not_made_again_and_the_model_reads_so(household: Household, point: str) -> None:
    household.model.will_reply(calls("append_line", text="once"), "I see")
    envelope = await crash_at(household, point)
    async with opened(household) as house:
        assert await house.answer_to(envelope) == "I see"
        assert witness(household) == (["once"] if point == "tool.after" else [])
        assert [result.output for result in results(household.model.prompts[1].records)] == [INTERRUPTED]
        assert await rows(house, "SELECT state FROM steps ORDER BY turn, idx") == [
            ("closed",),
            ("interrupted",),
            ("closed",),
        ]


async def test_a_repeatable_call_cut_off_is_simply_made_again(household: Household) -> None:
    look = Look()
    household.tools = (look,)
    household.model.will_reply(calls("look"), "I see")
    envelope = await crash_at(household, "tool.after")
    async with opened(household) as house:
        assert await house.answer_to(envelope) == "I see"
        assert [result.output for result in results(household.model.prompts[1].records)] == ["looked 2"]
        assert len(set(look.times)) == 1, "it is the same call"


@pytest.mark.parametrize("point", ["model.before", "model.after"])
async def test_a_crash_around_a_model_call_costs_one_more_reply(household: Household, point: str) -> None:
    household.model.rule = lambda prompt: says(f"reply {len(household.model.prompts)}")
    envelope = await crash_at(household, point)
    async with opened(household) as house:
        asked = 1 if point == "model.before" else 2
        assert await house.answer_to(envelope) == f"reply {asked}"


async def test_a_long_time_in_the_dark_is_not_the_runs_own(household: Household) -> None:
    household.agents = (ada(run_seconds_max=60.0),)
    household.model.will_reply(says("never", after_s=30))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        house.crash()
    await household.clock.advance(7200)
    household.model.will_reply("at last")
    async with opened(household) as house:
        assert await house.answer_to(envelope) == "at last"


@pytest.mark.spec("H3", "H36")
async def test_at_most_once_a_run_cut_off_is_closed_and_never_run_again(any_household: Household) -> None:
    household = any_household
    household.agents = (ada(delivery=Delivery.AT_MOST_ONCE, queue=FOLLOWUP),)
    household.model.will_reply(says("never", after_s=100))
    async with opened(household) as house:
        envelope, session = await thinking(household, house)
        behind = await house.post("behind it")
        house.crash()
    household.model.will_reply("for what was behind it")
    async with opened(household) as house:
        settled = await house.outcome(envelope)
        assert settled.outcome is Outcome.INTERRUPTED
        assert settled.because == "daemon-stopped"
        (told,) = await notices_to(house, "maria")
        assert told.startswith("The house stopped while I worked on this.")
        # Mail that no run had read yet is worked as ever.
        assert await house.answer_to(behind.envelope) == "for what was behind it"
        assert len(household.model.prompts) == 2
        assert await rows(house, "SELECT status, error FROM agent_runs ORDER BY started_at, id") == [
            ("failed", "daemon-stopped"),
            ("completed", None),
        ]
        house.crash()
    async with opened(household) as house:
        await a_moment(house)
        assert len(household.model.prompts) == 2
        assert (await house.envelope(envelope)).status is Status.DONE
        assert (await house.session(session)).wakefulness == "sleeping"


@pytest.mark.spec("H36")
async def test_a_run_left_open_by_a_crash_is_repaired_by_the_engine_when_it_starts_and_only_then(
    household: Household,
) -> None:
    household.agents = (ada(delivery=Delivery.AT_MOST_ONCE),)
    household.model.will_reply(says("never", after_s=100))
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
        await house.outcome(envelope)
        assert await rows(house, "SELECT status FROM runs") == [("failed",)]


async def test_a_run_cut_off_too_often_is_given_up_and_the_lane_goes_on(any_household: Household) -> None:
    household = any_household
    household.agents = (ada(attempts_max=3, queue=FOLLOWUP),)
    household.model.rule = lambda prompt: says("never", after_s=100)
    async with opened(household) as house:
        envelope, _ = await thinking(household, house, "the house dies of this")
        behind = await house.post("behind it")
        house.crash()
    for _ in range(2):
        asked = len(household.model.prompts)
        async with opened(household) as house:
            await until(lambda asked=asked: len(household.model.prompts) > asked, what="the next attempt")
            house.crash()
    household.model.rule = lambda prompt: says("alive")
    async with opened(household) as house:
        settled = await house.outcome(envelope)
        assert settled.outcome is Outcome.DEAD
        assert settled.because == "cut off 3 times"
        (told,) = await notices_to(house, "maria")
        assert told.startswith("I gave up on this")
        assert await house.answer_to(behind.envelope) == "alive"
        assert len(household.model.prompts) == 4


@pytest.mark.spec("D83")
async def test_with_a_replay_age_of_zero_mail_pending_at_a_stop_expires_and_its_sender_is_told(
    any_household: Household, hands: Hands
) -> None:
    household = any_household
    household.agents = (ada(replay_age_s=0),)
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            receipts = [await house.post(f"number {n}") for n in range(3)]
            await claim.reached.wait()
            power_goes(house)
    await household.clock.advance(1)
    household.model.will_reply("fresh")
    async with opened(household) as house:
        for receipt in receipts:
            settled = await house.outcome(receipt.envelope)
            assert settled.outcome is Outcome.EXPIRED
            assert "waited through a stop of the house" in settled.because
        assert len(await notices_to(house, "maria")) == 3
        assert household.model.prompts == []
        assert await house.answer_to((await house.post("new")).envelope) == "fresh"


async def test_a_replay_age_is_counted_back_from_the_start_of_the_house(household: Household, hands: Hands) -> None:
    household.agents = (ada(replay_age_s=60),)
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            old = await house.post("old")
            await claim.reached.wait()
            await household.clock.advance(50)
            young = await house.post("young")
            power_goes(house)
    await household.clock.advance(30)
    household.model.will_reply("you again")
    async with opened(household) as house:
        assert (await house.outcome(old.envelope)).outcome is Outcome.EXPIRED
        assert await house.answer_to(young.envelope) == "you again"


@pytest.mark.spec("C101")
async def test_a_stop_lets_runs_finish_and_leaves_the_rest_to_be_taken_up(any_household: Household) -> None:
    household = any_household
    household.agents = (ada(queue=FOLLOWUP),)
    household.model.will_reply(says("finished", after_s=1))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        behind = await house.post("behind it")
        stopping = asyncio.create_task(house.engine.stop(drain_s=10))
        await asyncio.sleep(0)
        late = await house.post("posted while it stops")
        await household.clock.advance(1)
        await stopping
        assert await house.answer_to(envelope) == "finished"
        assert await outcomes(house, [behind.envelope, late.envelope]) == [None, None]
        assert len(household.model.prompts) == 1
    household.model.will_reply("two", "three")
    async with opened(household) as house:
        assert await house.answer_to(behind.envelope) == "two"
        assert await house.answer_to(late.envelope) == "three"
        assert (await house.envelope(behind.envelope)).attempts == 1


@pytest.mark.spec("C101")
async def test_a_stop_that_cannot_wait_any_longer_leaves_the_run_to_be_taken_up(household: Household) -> None:
    household.model.will_reply(says("never", after_s=1000))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        await house.engine.stop(drain_s=0.01)
        assert (await house.envelope(envelope)).status is Status.CLAIMED
    household.model.will_reply("at last")
    async with opened(household) as house:
        assert await house.answer_to(envelope) == "at last"


# A power cut at every commit


def asks_for_a_line_each(prompt: Prompt) -> Line:
    """For every message one line, then an answer that names it."""
    turns = [place for place, record in enumerate(prompt.records) if record.kind is RecordKind.USER]
    done = any(isinstance(record.body, ToolResult) for record in prompt.records[turns[-1] :])
    return says(f"answer {len(turns)}") if done else calls("append_line", text=f"line {len(turns)}")


async def three_messages(house: House) -> None:
    ids = [(await house.post(f"message {n}", key=f"{n}")).envelope for n in range(3)]
    for id_ in ids:
        await house.outcome(id_)


@pytest.mark.parametrize("delivery", list(Delivery))
async def test_nothing_is_lost_or_doubled_by_a_power_cut_at_any_commit(
    new_household: Callable[[], Household], hands: Hands, delivery: Delivery
) -> None:
    def writing() -> Household:
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
        assert interrupted <= (1 if delivery is Delivery.AT_MOST_ONCE else 0)
        answers = await answers_to(house, "maria")
        assert len(answers) == 3 - interrupted and len(set(answers)) == len(answers)
        assert len(await notices_to(house, "maria")) == interrupted
        lines = witness(house.household)
        assert len(set(lines)) == len(lines), "no line twice"
        ((session,),) = await rows(house, "SELECT id FROM sessions")
        history = await house.records(session)
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
    household: Household, hands: Hands, point: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    household.model.rule = asks_for_a_line_each
    household.model.price_microusd = 1000
    async with opened(household) as house:
        hands.failing[point] = times
        receipt = await house.post("message")
        assert await as_time_goes_by(house, house.answer_to(receipt.envelope)) == "answer 1"
        assert hands.failing[point] == 0, "the store failed as often as it was to"
        assert witness(household) in (["line 1"], [])
        assert (await house.envelope(receipt.envelope)).attempts == 1
        assert await rows(house, "SELECT attempt, status FROM runs") == [(1, "completed")]
        assert await rows(house, "SELECT sum(held_microusd) FROM money") == [(0,)], "no reservation is left behind"
        assert any(record.message == "store failed, lane waits" for record in caplog.records)


async def test_a_full_disk_when_a_run_parks_or_fails_is_survived(household: Household, hands: Hands) -> None:
    household.model.will_reply(Line(fails="tired"), Line(fails="still tired"))
    async with opened(household) as house:
        hands.failing["fail"] = 1
        receipt = await house.post("hello")
        await until(lambda: hands.failing["fail"] == 0, what="the store to fail")
        await until_somebody_sleeps(house, seconds_max=1)
        await household.clock.advance(1)
        settled = await house.outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD and "still tired" in settled.because


async def test_new_mail_does_not_wait_for_the_retry(household: Household, hands: Hands) -> None:
    household.model.will_reply("both")
    async with opened(household) as house:
        # The engine's first look at the clock wakes whatever is due: it is to be over before anything is.
        await until_somebody_sleeps(house, seconds_max=TICK_MAX_S)
        await a_moment(house)
        hands.failing["claim"] = 1
        first = await house.post("first")
        await until(lambda: hands.failing["claim"] == 0, what="the store to fail")
        await a_moment(house)
        second = await house.post("second")
        assert await house.answer_to(first.envelope) == "both"
        assert await house.answer_to(second.envelope) == "both"


async def test_at_most_once_holds_also_when_the_store_fails(household: Household, hands: Hands) -> None:
    household.agents = (ada(delivery=Delivery.AT_MOST_ONCE),)
    household.model.will_reply("an answer that cannot be kept")
    async with opened(household) as house:
        hands.failing["finish"] = 1
        receipt = await house.post("hello")
        await until(lambda: hands.failing["finish"] == 0, what="the store to fail")
        await until_somebody_sleeps(house, seconds_max=1)
        await household.clock.advance(1)
        settled = await house.outcome(receipt.envelope)
        assert (settled.outcome, settled.because) == (Outcome.INTERRUPTED, "store-failed")
        assert len(household.model.prompts) == 1


async def test_at_most_once_holds_when_the_store_fails_right_after_a_crash(household: Household, hands: Hands) -> None:
    """That the repair itself failed does not make the run ours: it was cut off by whoever came before us."""
    household.agents = (ada(delivery=Delivery.AT_MOST_ONCE),)
    household.model.will_reply(says("never", after_s=100))
    async with opened(household) as house:
        envelope, _ = await thinking(household, house)
        house.crash()
    hands.failing["claim"] = 1
    async with opened(household) as house:
        await until(lambda: hands.failing["claim"] == 0, what="the store to fail")
        await until_somebody_sleeps(house, seconds_max=1)
        await household.clock.advance(1)
        settled = await house.outcome(envelope)
        assert (settled.outcome, settled.because) == (Outcome.INTERRUPTED, "daemon-stopped")
        assert len(household.model.prompts) == 1


async def test_a_post_that_cannot_be_stored_is_an_error_and_leaves_nothing(household: Household, hands: Hands) -> None:
    household.model.will_reply("hello")
    async with opened(household) as house:
        hands.failing["accept"] = 1
        with pytest.raises(StoreError):
            await house.post("hello", key="k")
        assert await rows(house, "SELECT count(*) FROM envelopes") == [(0,)]
        assert await house.answer_to((await house.post("hello", key="k")).envelope) == "hello"


# Records that cannot be read


async def damage(house: House, kind: RecordKind, *, body: str = '{"text": 5') -> None:
    """Spoil the newest record of a kind, from behind."""
    newest = "(SELECT max(seq) FROM records WHERE kind = :kind)"
    await house.sql(f"UPDATE records SET body = :body WHERE seq = {newest}", kind=kind.value, body=body)


@pytest.mark.spec("C47", "A13", "D10")
@pytest.mark.parametrize("body", ['{"text": 5', "", "[]", '{"no": "such field"}'])
async def test_a_damaged_record_is_left_out_and_reported_and_the_rest_is_read(
    household: Household, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    household.model.rule = lambda prompt: says("ok")
    async with household.open() as house:
        for n in range(3):
            receipt = await house.post(f"message {n}")
            await house.outcome(receipt.envelope)
            await house.quiet()
        await house.sql("UPDATE records SET body = :body WHERE seq = 4", body=body)  # the second message
        house.crash()
    async with household.open() as house:
        receipt = await house.post("message 3")
        assert await house.answer_to(receipt.envelope) == "ok"
        read = user_turns(household.model.prompts[-1].records)
        assert [n for n in range(4) for text in read if f"message {n}" in text] == [0, 2, 3]
        (said,) = [record for record in caplog.records if record.message == "record damaged, left out"]
        assert (vars(said)["session"], vars(said)["seq"]) == (receipt.session, 4)


@pytest.mark.spec("C47", "D10")
async def test_damage_before_the_last_marker_is_not_even_seen(household: Household) -> None:
    household.model.rule = lambda prompt: says("ok")
    async with household.open() as house:
        receipt = await house.post("before")
        await house.outcome(receipt.envelope)
        await house.quiet()
        await damage(house, RecordKind.ASSISTANT)
        assert receipt.session is not None
        await house.engine.reset(receipt.session, by="maria")
        house.crash()
    async with household.open() as house:
        assert await house.answer_to((await house.post("after")).envelope) == "ok"
        assert kinds(household.model.prompts[-1].records) == [RecordKind.RESET, RecordKind.USER]


@pytest.mark.spec("C47", "D27")
async def test_a_call_whose_result_is_damaged_is_closed_and_a_result_without_its_call_left_out(
    household: Household,
) -> None:
    household.model.rule = lambda prompt: says("ok")
    household.model.will_reply(calls("session_status"), "first", calls("session_status"), "second")
    async with household.open() as house:
        for n in range(2):
            await house.outcome((await house.post(f"message {n}")).envelope)
            await house.quiet()
        ((session,),) = await rows(house, "SELECT id FROM sessions")
        history = await house.records(session)
        asked = [record.seq for record in history if isinstance(record.body, Reply) and record.body.calls]
        await house.sql("UPDATE records SET body = 'x' WHERE seq = :seq", seq=asked[0] + 1)  # the first result
        await house.sql("UPDATE records SET body = 'x' WHERE seq = :seq", seq=asked[1])  # the second call
        house.crash()
    async with household.open() as house:
        assert await house.answer_to((await house.post("message 2")).envelope) == "ok"
        read = household.model.prompts[-1].records
        assert [(result.output, result.failed) for result in results(read)] == [("This result was lost.", True)]
        assert_paired(read)


@pytest.mark.spec("D27", "C47")
async def test_a_dangling_call_of_an_ended_run_is_closed_before_the_next_turn(household: Household) -> None:
    household.model.rule = lambda prompt: says("ok")
    household.model.will_reply(calls("session_status"), Line(fails="tired"))
    async with household.open() as house:
        receipt = await house.post("message 0")
        await house.outcome(receipt.envelope)
        await house.quiet()
        await damage(house, RecordKind.TOOL)
        house.crash()
    async with household.open() as house:
        assert await house.answer_to((await house.post("message 1")).envelope) == "ok"
        assert_paired(household.model.prompts[-1].records)


async def test_damage_in_the_middle_of_an_open_run_ends_it_with_a_word_to_its_sender(household: Household) -> None:
    """What it had done cannot be read back, so it cannot go on; it must not try forever either."""
    household.model.rule = lambda prompt: says("fresh")
    household.model.will_reply(calls("append_line", text="once"), says("never", after_s=100))
    async with household.open() as house:
        receipt = await house.post("do it")
        await until(lambda: len(household.model.prompts) == 2, what="the second turn")
        await damage(house, RecordKind.ASSISTANT)
        house.crash()
    async with household.open() as house:
        settled = await house.outcome(receipt.envelope)
        assert settled.outcome is Outcome.DEAD
        assert len(await notices_to(house, "maria")) == 1
        assert witness(household) == ["once"]
        assert await house.answer_to((await house.post("again")).envelope) == "fresh"


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
async def test_each_run_has_an_audit_row(any_household: Household) -> None:
    household = any_household
    household.model.will_reply("fine", Line(fails="tired"), says("never", after_s=100))
    async with opened(household) as house:
        ids: list[str] = []
        for text in ("one", "two"):
            ids.append((await house.post(text)).envelope)
            await house.outcome(ids[-1])
            await household.clock.advance(2)
        cancelled, session = await thinking(household, house, "three")
        await house.engine.cancel(session, by="maria", why="enough")
        await house.outcome(cancelled)
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
