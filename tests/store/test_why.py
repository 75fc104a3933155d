"""Why: the causal chain of anything that has an id, in plain sentences, from a house that really did these things."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.envelope import Outcome
from retinue.domain.errors import AmbiguousId, Invalid, NotFound
from retinue.domain.ids import EnvelopeId, SessionId, short_id
from retinue.domain.session import QueuePolicy
from retinue.domain.times import to_ms
from retinue.outbox.dead_letter_retry import requeue_dead_letter
from retinue.store.envelopes import envelopes
from retinue.store.runs import approvals
from retinue.store.runs.timeline import FACTS_MAX, format_duration
from retinue.store.runs.why import Explanation, explain
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply

UTC = ZoneInfo("UTC")
AGENTS = (
    Agent(name="ada", model="scripted", tools=ToolRules(deny=("read",))),
    Agent(name="careful", model="scripted", tools=ToolRules(ask=("append_line",))),
    Agent(name="small", model="scripted", queue=QueuePolicy(cap=1)),
    Agent(name="tireless", model="scripted"),
)
FAILS = text_reply("", fails="the model is out of order")


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return made(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def either_household(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    return made(tmp_path, request.getfixturevalue("postgres_url") if request.param == "postgres" else None)


def made(root: Path, url: str | None = None) -> LocalInstance:
    household = LocalInstance(root, url=url, agents=AGENTS)
    household.connectors["quiet"] = FakeConnector(household.clock)
    return household


async def ask(house: LocalServer, id_: str) -> Explanation:
    return await house.store.scan(partial(explain, id_text=id_))


async def told(house: LocalServer, id_: str) -> list[str]:
    """What is told, without the times."""
    return [line.partition("  ")[2] or line for line in (await ask(house, id_)).format_lines(UTC)]


async def approval_of(house: LocalServer, session: str | None) -> str:
    def body(conn: sa.Connection) -> str | None:
        return next((a.id for a in approvals.list_open(conn, limit=10) if a.session == session), None)

    return await house.wait_for(body, what="an approval")


async def asked(house: LocalServer, times: int) -> None:
    await house.wait_for(lambda _: len(house.instance.model.prompts) >= times, what="the model to be asked")


async def test_an_answered_question_tells_its_whole_way(either_household: LocalInstance) -> None:
    household = either_household
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="x"), text_reply("done", cost_microusd=700))
        household.model.price_microusd = 1000
        id_ = (await house.send("do it", key="k1")).envelope
        settled = await house.wait_for_outcome(id_)
        envelope = await house.get_envelope(id_)
        assert envelope.run and settled.answer and envelope.session
        run, answer, session = short_id(envelope.run), short_id(settled.answer), short_id(envelope.session)
        assert await told(house, id_[:8]) == [
            f"message {short_id(id_)} from person:maria to agent:ada/{session}, ended answered.",
            f"Accepted from person:maria for agent:ada/{session}, through person:maria.",
            f"Run {run} of ada claimed it, which had waited 0 ms.",
            f"Run {run} of ada started with envelope {short_id(id_)} from person:maria.",
            "Turn 1: scripted replied in 0 ms, calling append_line.",
            "Turn 1: append_line (no rule denies it) returned in 0 ms.",
            "Turn 2: scripted replied in 0 ms.",
            f"Run {run} completed after 2 turns and 0 ms, for $0.001700.",
            "It ended answered.",
            f"The answer is {answer} to person:maria, ended delivered: in the inbox of maria.",
        ]
        assert await told(house, settled.answer) == [
            f"answer {answer} from agent:ada/{session} to person:maria, ended delivered: in the inbox of maria.",
            f"Accepted from agent:ada/{session} for person:maria, by a run.",
            f"It answers message {short_id(id_)} from person:maria, ended answered.",
            f"It was written by run {run} of ada in session {session}, completed.",
            "It ended delivered: in the inbox of maria.",
        ]


async def test_times_are_told_in_the_zone_of_whoever_reads_them_newest_last(household: LocalInstance) -> None:
    async with household.run() as house:
        later = household.clock.now().replace(hour=11)
        id_ = (await house.send("later", deliver_at=later, expires_at=later.replace(hour=20))).envelope
        assert (await ask(house, id_)).format_lines(ZoneInfo("Asia/Shanghai")) == [
            f"message {short_id(id_)} from person:maria to agent:ada/{short_id(await session_of(house, id_))}, "
            "waits, due 2026-01-05T19:00:00+08:00.",
            f"2026-01-05T17:00:00+08:00  Accepted from person:maria for agent:ada/"
            f"{short_id(await session_of(house, id_))}, through person:maria.",
            "2026-01-05T17:00:00+08:00  It was to be delivered at 2026-01-05T19:00:00+08:00.",
            "2026-01-05T17:00:00+08:00  It expires at 2026-01-06T04:00:00+08:00.",
        ]
        household.model.will_reply("here")
        for _ in range(200):
            if await house.store.scan(partial(envelopes.get_outcome, id_=id_)):
                break
            await household.clock.advance(60)
            await house.store.write(lambda conn: None, point="test")  # what the clock woke has gone on
        found = await ask(house, id_)
        assert [fact.at for fact in found.facts] == sorted(fact.at for fact in found.facts)
        assert found.facts[-1].at >= later


async def session_of(house: LocalServer, id_: str) -> SessionId:
    session = (await house.get_envelope(id_)).session
    assert session is not None
    return session


async def test_a_failure_tells_what_failed_who_was_told_and_what_was_tried_again(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(FAILS)
        id_ = (await house.send("do it")).envelope
        await house.wait_for_outcome(id_)
        household.model.will_reply("fine")
        now_ms = to_ms(household.clock.now())
        entered = await house.store.write(
            partial(requeue_dead_letter, id_text=id_, new_id=EnvelopeId(household.ids.new()), now_ms=now_ms),
            point="retry",
        )
        for wake in entered.wakes:
            house.engine.wake(wake)
        retried = entered.receipt.envelope
        await house.wait_for_outcome(retried)
        lines = await told(house, id_)
        assert "Turn 1: scripted was interrupted after 0 ms." in lines
        assert "It ended dead: model.scripted: the model is out of order." in lines
        [notice] = [line for line in lines if line.startswith("person:maria was notified in notice ")]
        assert "Something went wrong: the model is out of order" in notice
        assert lines[-1] == f"It was retried as message {short_id(retried)} from person:maria, ended answered."
        dead = "ended dead: model.scripted: the model is out of order."
        assert f"It retries message {short_id(id_)} from person:maria, {dead}" in await told(house, retried)


async def test_a_refusal_tells_its_because(household: LocalInstance) -> None:
    async with household.run(drain_s=0) as house:
        household.model.rule = lambda _: text_reply("busy", after_s=60)
        letters = [(await house.send(f"{n}", recipient="agent:small")).envelope for n in range(1)]
        await asked(house, 1)
        letters += [(await house.send(f"{n}", recipient="agent:small")).envelope for n in range(2)]
        lines = await told(house, letters[-1])
        because = "queue full: 1 envelopes already wait in this session, its cap is 1"
        assert lines[0].endswith(f"ended refused: {because}.")
        assert lines[-1].startswith("person:maria was notified in notice ") and because in lines[-1]
        waits = await told(house, letters[1])
        run = (await house.get_envelope(letters[0])).run
        assert run and waits[0].endswith(f", behind run {short_id(run)}, which is running.")
        assert (await told(house, letters[0]))[-1] == "Turn 1: scripted was called and has not replied yet."


async def test_a_call_that_policy_refused_is_told_with_the_rule(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("read", path="x"), tool_call_reply("no_such_tool"), "I could not")
        id_ = (await house.send("read it")).envelope
        await house.wait_for_outcome(id_)
        lines = await told(house, id_)
        assert any("The call read was not made: Not allowed: the agent ada denies 'read'" in line for line in lines)
        assert any(line.startswith("The call no_such_tool was not made: No tool named") for line in lines)


async def test_an_approval_tells_who_was_asked_and_who_decided(either_household: LocalInstance) -> None:
    household = either_household
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="x"), "done")
        id_ = (await house.send("do it", recipient="agent:careful")).envelope
        session = await session_of(house, id_)
        approval = await approval_of(house, session)
        question = f"person:maria was asked about append_line (approval {short_id(approval)}), because"
        assert (await told(house, id_))[0].endswith("is suspended: its run waits for a person.")
        assert (await told(house, approval))[
            0
        ] == f"approval {short_id(approval)} in session {short_id(session)}, open."
        await household.clock.advance(5)
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await house.wait_for_outcome(id_)
        for name in (id_, approval):
            lines = await told(house, name)
            decided = lines.index(f"Approval {short_id(approval)} was allowed by maria.")
            assert any(line.startswith(question) for line in lines[:decided])
            assert f"Turn 1: append_line (approval {short_id(approval)} allows it) returned in 0 ms." in lines[decided:]
            assert any("was resumed after a decision." in line for line in lines)
        assert (
            f"approval {short_id(approval)} in session {short_id(session)}, allowed by maria."
            == (await told(house, approval))[0]
        )


async def test_a_late_decision_tells_that_the_run_had_gone_on(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="x"), "without it", "the other", "with it")
        id_ = (await house.send("do it", recipient="agent:careful")).envelope
        approval = await approval_of(house, await session_of(house, id_))
        other = (await house.send("something else", recipient="agent:careful")).envelope
        await house.wait_for_outcome(other)
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await house.wait_for(lambda _: household.witness_file.exists(), what="the call to be made")
        await house.wait_until_idle()
        lines = await told(house, id_)
        assert f"Approval {short_id(approval)} was allowed by maria, after its run had continued without it." in lines
        assert any(line.startswith("The call append_line was not made: Waiting for approval") for line in lines)
        done = f"Late: append_line (approval {short_id(approval)} allows it) returned in 0 ms."
        assert done in await told(house, approval)


async def test_a_run_that_was_cut_off_tells_of_the_stop_and_of_the_call_nobody_saw_the_end_of(
    either_household: LocalInstance,
) -> None:
    household = either_household
    async with household.run() as house:
        household.model.will_reply(text_reply("never", after_s=3600))
        first = (await house.send("a slow one")).envelope
        await asked(house, 1)
        run = (await house.get_envelope(first)).run
        house.crash()
    await household.clock.advance(7)
    household.model.will_reply("at last")
    async with household.run() as house:
        await house.wait_for_outcome(first)
        assert run is not None
        lines = await told(house, run)
        assert f"Run {short_id(run)} was resumed after a stop, attempt 2." in lines
        assert "Turn 1: scripted (attempt 2) replied in 7.0 s." in lines
        assert lines[0].startswith(f"run {short_id(run)} of ada in session ") and lines[0].endswith(", completed.")
        assert f"Accepted message {short_id(first)} from person:maria, through person:maria." in lines


async def test_a_cancelled_run_tells_who_cancelled_it_and_why(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(text_reply("never", after_s=3600))
        id_ = (await house.send("a slow one")).envelope
        await asked(house, 1)
        await house.engine.cancel(await session_of(house, id_), by="person:maria", reason="changed my mind")
        await house.wait_for_outcome(id_)
        lines = await told(house, id_)
        assert "It ended cancelled: cancelled by person:maria: changed my mind." in lines
        assert any(line.startswith("Run ") and "was cancelled after 0 turns" in line for line in lines)


async def test_deliveries_are_told_with_each_error(either_household: LocalInstance) -> None:
    household = either_household
    quiet = household.connectors["quiet"]
    assert isinstance(quiet, FakeConnector)
    async with household.run() as house:
        quiet.will_fail(sentence="the place is closed")
        household.model.will_reply("hello")
        said = await quiet.send_inbound("anybody there?")
        assert said is not None
        settled = await house.wait_for_outcome(said.envelope)
        assert settled.answer is not None
        for _ in range(200):
            if await house.store.scan(partial(envelopes.get_outcome, id_=settled.answer)):
                break
            await household.clock.advance(1)
            await house.store.write(lambda conn: None, point="test")  # what the clock woke has gone on
        lines = await told(house, said.envelope)
        name = f"Delivery of {short_id(settled.answer)}"
        assert f"{name}, attempt 1: failed, send-failed: the place is closed." in lines
        assert f"{name}, attempt 2: sent, accepted as quiet-{short_id(settled.answer)}." in lines
        assert any("through connector:quiet." in line for line in lines)


async def test_every_letter_of_a_batch_is_told_who_heard_of_its_end(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(text_reply("slow", after_s=60), FAILS)
        await house.send("first")
        await asked(house, 1)
        batch = [(await house.send(f"{n}")).envelope for n in range(3)]
        await household.clock.advance(60)
        for id_ in batch:
            assert (await house.wait_for_outcome(id_)).outcome is Outcome.DEAD
            lines = await told(house, id_)
            assert sum(line.startswith("person:maria was notified in notice ") for line in lines) == 1
            assert any(
                f"with envelopes {', '.join(map(short_id, batch[:2]))} and {short_id(batch[2])}" in s for s in lines
            )


async def test_a_session_tells_its_runs_and_what_waits(household: LocalInstance) -> None:
    async with household.run(drain_s=0) as house:
        household.model.will_reply("one", FAILS, text_reply("three", after_s=60))
        first = (await house.send("1")).envelope
        await house.wait_for_outcome(first)
        await house.wait_for_outcome((await house.send("2")).envelope)
        third = (await house.send("3")).envelope
        await asked(house, 3)
        await house.send("4")
        session = await session_of(house, first)
        lines = await told(house, session)
        run = (await house.get_envelope(third)).run
        assert run and lines[0] == (
            f"session {short_id(session)} of ada for web person:maria, active: "
            f"run {short_id(run)} is running, 1 envelopes wait."
        )
        assert lines[1] == f"Session {short_id(session)} of ada was opened for web person:maria."
        assert [line.split()[2] for line in lines[2:]] == ["started", "completed.", "started", "failed:", "started"]


async def test_a_run_of_very_many_steps_shows_its_beginning_and_its_end(household: LocalInstance) -> None:
    turns = 99

    def rule(prompt: Any) -> ScriptedReply:
        replies = sum(record.kind == "assistant" for record in prompt.records)
        if replies >= turns:
            return text_reply("enough")
        return ScriptedReply(calls=tuple(("append_line", {"text": f"{replies}.{n}"}) for n in range(2)))

    async with household.run() as house:
        household.model.rule = rule
        id_ = (await house.send("count", recipient="agent:tireless")).envelope
        assert await house.wait_for_answer(id_) == "enough"
        found = await ask(house, id_)
        lines = await told(house, id_)
        assert len(found.facts) == FACTS_MAX and found.left_out > 100
        assert f"({found.left_out} more in between)" in lines
        assert lines[1].startswith("Accepted from") and lines[-1].startswith("The answer is ")


async def test_a_damaged_record_hides_no_other_fact(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="x"), "done")
        id_ = (await house.send("do it")).envelope
        await house.wait_for_outcome(id_)
        await house.wait_until_idle()
        await house.execute_sql("UPDATE records SET body = '{' WHERE kind = 'tool'")
        lines = await told(house, id_)
        assert "Turn 1: append_line (no rule denies it) ended with an unreadable result in 0 ms." in lines
        assert "Turn 2: scripted replied in 0 ms." in lines


@pytest.mark.spec("H20")
async def test_every_kind_of_thing_is_found_by_8_digits_or_more_and_shown_by_8(either_household: LocalInstance) -> None:
    household = either_household
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="x"))
        id_ = (await house.send("do it", recipient="agent:careful")).envelope
        session = await session_of(house, id_)
        approval = await approval_of(house, session)
        run = (await house.get_envelope(id_)).run
        assert run is not None
        for kind, name in (("envelope", id_), ("run", run), ("approval", approval), ("session", session)):
            uuid = f"{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:]}"
            for text in (name[:8], name[:12], name, uuid, uuid.upper()):
                found = await ask(house, text)
                assert (found.kind, found.id) == (kind, name)
                shown = " ".join(found.format_lines(UTC))
                assert short_id(name) in shown and name not in shown


@pytest.mark.spec("H21")
async def test_an_id_that_fits_several_things_lists_each_with_its_kind(either_household: LocalInstance) -> None:
    household = either_household
    async with household.run() as house:
        household.model.will_reply("fine")
        id_ = (await house.send("hello")).envelope
        await house.wait_for_outcome(id_)
        await house.wait_until_idle()
        run = (await house.get_envelope(id_)).run
        alike = {name: f"0abc0123{n}" + "0" * 23 for n, name in enumerate(("envelope", "other", "approval"))}
        await house.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=alike["envelope"], old=id_)
        other = (await house.send("to you", recipient="person:owner")).envelope
        await house.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=alike["other"], old=other)
        await house.execute_sql(
            "INSERT INTO approvals (id, session, run, turn, calls, because, state, released, decided_by, asked_ms,"
            " expires_ms, needs, scope, asked_of, words, agent) VALUES (:id, :run, :run, 0, '[]', 'a test', 'open',"
            " false, '', 0, 0, '[]', '', '[]', '', '')",
            id=alike["approval"],
            run=run,
        )
        with pytest.raises(AmbiguousId) as ambiguous:
            await ask(house, "0abc0123")
        assert ambiguous.value.candidates == ("envelope 0abc01230", "envelope 0abc01231", "approval 0abc01232")
        assert ambiguous.value.matches == 3
        assert "envelope 0abc01230, envelope 0abc01231, approval 0abc01232" in str(ambiguous.value)
        for candidate in ambiguous.value.candidates:
            kind, _, longer = candidate.partition(" ")
            assert (await ask(house, longer)).kind == kind


@pytest.mark.spec("H21")
async def test_of_very_many_candidates_some_are_listed_and_all_are_counted(household: LocalInstance) -> None:
    async with household.run() as house:
        for n in range(30):
            id_ = (await house.send("to you", recipient="person:owner")).envelope
            await house.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=f"0abc0123{n:024d}", old=id_)
        with pytest.raises(AmbiguousId) as ambiguous:
            await ask(house, "0abc0123")
        assert ambiguous.value.matches == 30
        assert len(set(ambiguous.value.candidates)) == 20
        assert "and 10 more" in str(ambiguous.value)


async def test_what_nothing_is_called_is_not_found_and_what_is_no_id_is_refused(household: LocalInstance) -> None:
    async with household.run() as house:
        with pytest.raises(NotFound) as nothing:
            await ask(house, "0" * 8)
        assert nothing.value.code == "id.not_found"
        with pytest.raises(Invalid):
            await ask(house, "hello")


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (-5, "0 ms"),
        (99, "99 ms"),
        (100, "0.1 s"),
        (9_940, "9.9 s"),
        (59_000, "59 s"),
        (3_600_000, "60 min"),
        (90_000_000, "25 h"),
        (900_000_000, "10 days"),
    ],
)
def test_a_span_is_told_as_people_say_it(ms: int, said: str) -> None:
    assert format_duration(ms) == said
