"""Why: the causal chain of anything that has an id, in plain sentences, from a server with real runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from stores import advance_until_settled

from retinue.domain.agent import Agent, ToolRules
from retinue.domain.envelope import Outcome
from retinue.domain.errors import AmbiguousId, Invalid, NotFound
from retinue.domain.ids import EnvelopeId, SessionId, short_id
from retinue.domain.session import QueuePolicy
from retinue.domain.times import to_ms
from retinue.outbox.dead_letter_retry import requeue_dead_letter
from retinue.store.runs import approvals
from retinue.store.runs.explanation_facts import FACTS_MAX, format_duration
from retinue.store.runs.explanations import Explanation, explain
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
FAILING_REPLY = text_reply("", fails="the model is out of order")


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return make_instance(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def either_instance(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    return make_instance(tmp_path, request.getfixturevalue("postgres_url") if request.param == "postgres" else None)


def make_instance(root: Path, url: str | None = None) -> LocalInstance:
    instance = LocalInstance(root, url=url, agents=AGENTS)
    instance.connectors["quiet"] = FakeConnector(instance.clock)
    return instance


async def ask(server: LocalServer, id_: str) -> Explanation:
    return await server.store.scan(partial(explain, id_text=id_))


async def explanation_lines(server: LocalServer, id_: str) -> list[str]:
    """Return the lines of the explanation without their times."""
    return [line.partition("  ")[2] or line for line in (await ask(server, id_)).format_lines(UTC)]


async def approval_of(server: LocalServer, session: str | None) -> str:
    def body(conn: sa.Connection) -> str | None:
        return next((a.id for a in approvals.list_open(conn, limit=10) if a.session == session), None)

    return await server.wait_for(body, what="an approval")


async def wait_for_prompts(server: LocalServer, times: int) -> None:
    await server.wait_for(lambda _: len(server.instance.model.prompts) >= times, what="the model to be asked")


async def test_why_explains_an_answered_envelope_from_accept_to_answer(either_instance: LocalInstance) -> None:
    instance = either_instance
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="x"), text_reply("done", cost_microusd=700))
        instance.model.price_microusd = 1000
        id_ = (await server.send("do it", key="k1")).envelope
        settled = await server.wait_for_outcome(id_)
        envelope = await server.get_envelope(id_)
        assert envelope.run and settled.answer and envelope.session
        run, answer, session = short_id(envelope.run), short_id(settled.answer), short_id(envelope.session)
        assert await explanation_lines(server, id_[:8]) == [
            f"message {short_id(id_)} from person:maria to agent:ada/{session}, answered.",
            f"Accepted from person:maria for agent:ada/{session}.",
            f"Run {run} of ada claimed it after it had waited 0 ms.",
            f"Run {run} of ada started with envelope {short_id(id_)} from person:maria.",
            "Turn 1: scripted replied in 0 ms, calling append_line.",
            "Turn 1: append_line (no rule denies it) returned in 0 ms.",
            "Turn 2: scripted replied in 0 ms.",
            f"Run {run} completed after 2 turns and 0 ms, for $0.001700.",
            "Outcome: answered.",
            f"Its answer {answer} to person:maria: delivered (in the inbox of maria).",
        ]
        assert await explanation_lines(server, settled.answer) == [
            f"answer {answer} from agent:ada/{session} to person:maria, delivered (in the inbox of maria).",
            f"Accepted from agent:ada/{session} for person:maria, by a run.",
            f"It answers message {short_id(id_)} from person:maria, answered.",
            f"It was written by run {run} of ada in session {session}, completed.",
            "Outcome: delivered (in the inbox of maria).",
        ]


async def test_why_shows_times_in_the_readers_time_zone_oldest_first(instance: LocalInstance) -> None:
    async with instance.run() as server:
        later = instance.clock.now().replace(hour=11)
        id_ = (await server.send("later", deliver_at=later, expires_at=later.replace(hour=20))).envelope
        assert (await ask(server, id_)).format_lines(ZoneInfo("Asia/Shanghai")) == [
            f"message {short_id(id_)} from person:maria to agent:ada/{short_id(await session_of(server, id_))}, "
            "waiting, due 2026-01-05T19:00:00+08:00.",
            f"2026-01-05T17:00:00+08:00  Accepted from person:maria for agent:ada/"
            f"{short_id(await session_of(server, id_))}.",
            "2026-01-05T17:00:00+08:00  It was to be delivered at 2026-01-05T19:00:00+08:00.",
            "2026-01-05T17:00:00+08:00  It expires at 2026-01-06T04:00:00+08:00.",
        ]
        instance.model.will_reply("here")
        await advance_until_settled(server, id_)
        found = await ask(server, id_)
        assert [fact.at for fact in found.facts] == sorted(fact.at for fact in found.facts)
        assert found.facts[-1].at >= later


async def session_of(server: LocalServer, id_: str) -> SessionId:
    session = (await server.get_envelope(id_)).session
    assert session is not None
    return session


async def test_why_explains_a_failure_its_notification_and_its_retry(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(FAILING_REPLY)
        id_ = (await server.send("do it")).envelope
        await server.wait_for_outcome(id_)
        instance.model.will_reply("fine")
        now_ms = to_ms(instance.clock.now())
        entered = await server.store.write(
            partial(requeue_dead_letter, id_text=id_, new_id=EnvelopeId(instance.ids.new()), now_ms=now_ms),
            point="retry",
        )
        for wake in entered.wakes:
            server.engine.wake(wake)
        retried = entered.receipt.envelope
        await server.wait_for_outcome(retried)
        lines = await explanation_lines(server, id_)
        assert "Turn 1: scripted was interrupted after 0 ms." in lines
        assert "Outcome: dead (model.scripted: the model is out of order)." in lines
        [notice] = [line for line in lines if line.startswith("person:maria was notified in notice ")]
        assert "Something went wrong: the model is out of order" in notice
        assert lines[-1] == f"It was retried as message {short_id(retried)} from person:maria, answered."
        dead = "dead (model.scripted: the model is out of order)."
        assert f"It retries message {short_id(id_)} from person:maria, {dead}" in await explanation_lines(
            server, retried
        )


async def test_why_explains_a_refusal_with_its_reason(instance: LocalInstance) -> None:
    async with instance.run(drain_s=0) as server:
        instance.model.rule = lambda _: text_reply("busy", after_s=60)
        sent = [(await server.send(f"{n}", recipient="agent:small")).envelope for n in range(1)]
        await wait_for_prompts(server, 1)
        sent += [(await server.send(f"{n}", recipient="agent:small")).envelope for n in range(2)]
        lines = await explanation_lines(server, sent[-1])
        because = "queue full: 1 envelope waiting in this session; its cap is 1"
        assert lines[0].endswith(f", refused ({because}).")
        assert lines[-1].startswith("person:maria was notified in notice ") and because in lines[-1]
        waits = await explanation_lines(server, sent[1])
        run = (await server.get_envelope(sent[0])).run
        assert run and waits[0].endswith(f", behind run {short_id(run)}, which is running.")
        assert (await explanation_lines(server, sent[0]))[-1] == "Turn 1: scripted was called and has not replied yet."


async def test_why_explains_a_tool_call_refused_by_policy_with_the_rule(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("read", path="x"), tool_call_reply("no_such_tool"), "I could not")
        id_ = (await server.send("read it")).envelope
        await server.wait_for_outcome(id_)
        lines = await explanation_lines(server, id_)
        assert any("The call read was not made: Not allowed: the agent ada denies 'read'" in line for line in lines)
        assert any(line.startswith("The call no_such_tool was not made: No tool named") for line in lines)


async def test_why_explains_who_was_asked_for_an_approval_and_who_decided(either_instance: LocalInstance) -> None:
    instance = either_instance
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="x"), "done")
        id_ = (await server.send("do it", recipient="agent:careful")).envelope
        session = await session_of(server, id_)
        approval = await approval_of(server, session)
        question = f"person:maria was asked about append_line (approval {short_id(approval)}), because"
        assert (await explanation_lines(server, id_))[0].endswith(", suspended (its run is waiting for a person).")
        assert (await explanation_lines(server, approval))[
            0
        ] == f"approval {short_id(approval)} in session {short_id(session)}, open."
        await instance.clock.advance(5)
        await server.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await server.wait_for_outcome(id_)
        for name in (id_, approval):
            lines = await explanation_lines(server, name)
            decided = lines.index(f"Approval {short_id(approval)} was allowed by maria.")
            assert any(line.startswith(question) for line in lines[:decided])
            assert f"Turn 1: append_line (approval {short_id(approval)} allows it) returned in 0 ms." in lines[decided:]
            assert any("was resumed after a decision." in line for line in lines)
        assert (
            f"approval {short_id(approval)} in session {short_id(session)}, allowed by maria."
            == (await explanation_lines(server, approval))[0]
        )


async def test_why_explains_an_approval_that_was_decided_after_its_run_continued(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="x"), "without it", "the other", "with it")
        id_ = (await server.send("do it", recipient="agent:careful")).envelope
        approval = await approval_of(server, await session_of(server, id_))
        other = (await server.send("something else", recipient="agent:careful")).envelope
        await server.wait_for_outcome(other)
        await server.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await server.wait_for(lambda _: instance.witness_file.exists(), what="the call to be made")
        await server.wait_until_idle()
        lines = await explanation_lines(server, id_)
        assert f"Approval {short_id(approval)} was allowed by maria, after its run had continued without it." in lines
        assert any(line.startswith("The call append_line was not made: Waiting for approval") for line in lines)
        done = f"Late: append_line (approval {short_id(approval)} allows it) returned in 0 ms."
        assert done in await explanation_lines(server, approval)


async def test_why_explains_a_run_resumed_after_a_crash_and_its_interrupted_call(
    either_instance: LocalInstance,
) -> None:
    instance = either_instance
    async with instance.run() as server:
        instance.model.will_reply(text_reply("never", after_s=3600))
        first = (await server.send("a slow one")).envelope
        await wait_for_prompts(server, 1)
        run = (await server.get_envelope(first)).run
        server.crash()
    await instance.clock.advance(7)
    instance.model.will_reply("at last")
    async with instance.run() as server:
        await server.wait_for_outcome(first)
        assert run is not None
        lines = await explanation_lines(server, run)
        assert f"Run {short_id(run)} was resumed after a stop, attempt 2." in lines
        assert "Turn 1: scripted (attempt 2) replied in 7.0 s." in lines
        assert lines[0].startswith(f"run {short_id(run)} of ada in session ") and lines[0].endswith(", completed.")
        assert f"Accepted message {short_id(first)} from person:maria." in lines


async def test_why_explains_who_cancelled_a_run_and_the_reason(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(text_reply("never", after_s=3600))
        id_ = (await server.send("a slow one")).envelope
        await wait_for_prompts(server, 1)
        await server.engine.cancel(await session_of(server, id_), by="person:maria", reason="changed my mind")
        await server.wait_for_outcome(id_)
        lines = await explanation_lines(server, id_)
        assert "Outcome: cancelled (cancelled by person:maria: changed my mind)." in lines
        assert any(line.startswith("Run ") and "was cancelled after 0 turns" in line for line in lines)


async def test_why_lists_delivery_attempts_with_each_error(either_instance: LocalInstance) -> None:
    instance = either_instance
    quiet = instance.connectors["quiet"]
    assert isinstance(quiet, FakeConnector)
    async with instance.run() as server:
        quiet.will_fail(sentence="the channel is closed")
        instance.model.will_reply("hello")
        inbound = await quiet.send_inbound("anybody there?")
        assert inbound is not None
        settled = await server.wait_for_outcome(inbound.envelope)
        assert settled.answer is not None
        await advance_until_settled(server, settled.answer, step_s=1)
        lines = await explanation_lines(server, inbound.envelope)
        name = f"Delivery of {short_id(settled.answer)}"
        assert f"{name}, attempt 1: failed, send_failed: the channel is closed." in lines
        assert f"{name}, attempt 2: sent, accepted as quiet-{short_id(settled.answer)}." in lines
        assert any("through connector:quiet." in line for line in lines)


async def test_why_explains_the_notification_for_every_envelope_of_a_failed_batch(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(text_reply("slow", after_s=60), FAILING_REPLY)
        await server.send("first")
        await wait_for_prompts(server, 1)
        batch = [(await server.send(f"{n}")).envelope for n in range(3)]
        await instance.clock.advance(60)
        for id_ in batch:
            assert (await server.wait_for_outcome(id_)).outcome is Outcome.DEAD
            lines = await explanation_lines(server, id_)
            assert sum(line.startswith("person:maria was notified in notice ") for line in lines) == 1
            assert any(
                f"with envelopes {', '.join(map(short_id, batch[:2]))} and {short_id(batch[2])}" in s for s in lines
            )


async def test_why_explains_the_runs_and_waiting_envelopes_of_a_session(instance: LocalInstance) -> None:
    async with instance.run(drain_s=0) as server:
        instance.model.will_reply("one", FAILING_REPLY, text_reply("three", after_s=60))
        first = (await server.send("1")).envelope
        await server.wait_for_outcome(first)
        await server.wait_for_outcome((await server.send("2")).envelope)
        third = (await server.send("3")).envelope
        await wait_for_prompts(server, 3)
        await server.send("4")
        session = await session_of(server, first)
        lines = await explanation_lines(server, session)
        run = (await server.get_envelope(third)).run
        assert run and lines[0] == (
            f"session {short_id(session)} of ada for web person:maria, active: "
            f"run {short_id(run)} is running, 1 envelope waiting."
        )
        assert lines[1] == f"Session {short_id(session)} of ada was opened for web person:maria."
        assert [line.split()[2] for line in lines[2:]] == ["started", "completed.", "started", "failed:", "started"]


async def test_why_shows_the_start_and_end_of_a_run_with_many_steps(instance: LocalInstance) -> None:
    turns = 99

    def rule(prompt: Any) -> ScriptedReply:
        replies = sum(record.kind == "assistant" for record in prompt.records)
        if replies >= turns:
            return text_reply("enough")
        return ScriptedReply(calls=tuple(("append_line", {"text": f"{replies}.{n}"}) for n in range(2)))

    async with instance.run() as server:
        instance.model.rule = rule
        id_ = (await server.send("count", recipient="agent:tireless")).envelope
        assert await server.wait_for_answer(id_) == "enough"
        found = await ask(server, id_)
        lines = await explanation_lines(server, id_)
        assert len(found.facts) == FACTS_MAX and found.left_out > 100
        assert f"({found.left_out} more in between)" in lines
        assert lines[1].startswith("Accepted from") and lines[-1].startswith("Its answer ")


async def test_why_shows_the_other_facts_despite_a_damaged_record(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="x"), "done")
        id_ = (await server.send("do it")).envelope
        await server.wait_for_outcome(id_)
        await server.wait_until_idle()
        await server.execute_sql("UPDATE records SET body = '{' WHERE kind = 'tool'")
        lines = await explanation_lines(server, id_)
        assert "Turn 1: append_line (no rule denies it) ended with an unreadable result in 0 ms." in lines
        assert "Turn 2: scripted replied in 0 ms." in lines


@pytest.mark.spec("H20")
async def test_why_finds_envelopes_runs_approvals_and_sessions_by_8_or_more_digits(
    either_instance: LocalInstance,
) -> None:
    instance = either_instance
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="x"))
        id_ = (await server.send("do it", recipient="agent:careful")).envelope
        session = await session_of(server, id_)
        approval = await approval_of(server, session)
        run = (await server.get_envelope(id_)).run
        assert run is not None
        for kind, name in (("envelope", id_), ("run", run), ("approval", approval), ("session", session)):
            uuid = f"{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:]}"
            for text in (name[:8], name[:12], name, uuid, uuid.upper()):
                found = await ask(server, text)
                assert (found.kind, found.id) == (kind, name)
                shown = " ".join(found.format_lines(UTC))
                assert short_id(name) in shown and name not in shown


@pytest.mark.spec("H21")
async def test_why_lists_the_candidates_of_an_ambiguous_id_with_their_kind(either_instance: LocalInstance) -> None:
    instance = either_instance
    async with instance.run() as server:
        instance.model.will_reply("fine")
        id_ = (await server.send("hello")).envelope
        await server.wait_for_outcome(id_)
        await server.wait_until_idle()
        run = (await server.get_envelope(id_)).run
        alike = {name: f"0abc0123{n}" + "0" * 23 for n, name in enumerate(("envelope", "other", "approval"))}
        await server.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=alike["envelope"], old=id_)
        other = (await server.send("to you", recipient="person:owner")).envelope
        await server.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=alike["other"], old=other)
        await server.execute_sql(
            "INSERT INTO approvals (id, session, run, turn, calls, because, state, run_continued, decided_by, asked_ms,"
            " expires_ms, permissions, scope, asked, comment, agent) VALUES (:id, :run, :run, 0, '[]', 'a test',"
            " 'open',"
            " false, '', 0, 0, '[]', '', '[]', '', '')",
            id=alike["approval"],
            run=run,
        )
        with pytest.raises(AmbiguousId) as ambiguous:
            await ask(server, "0abc0123")
        assert ambiguous.value.candidates == ("envelope 0abc01230", "envelope 0abc01231", "approval 0abc01232")
        assert ambiguous.value.matches == 3
        assert "envelope 0abc01230, envelope 0abc01231, approval 0abc01232" in str(ambiguous.value)
        for candidate in ambiguous.value.candidates:
            kind, _, longer = candidate.partition(" ")
            assert (await ask(server, longer)).kind == kind


@pytest.mark.spec("H21")
async def test_why_lists_some_of_many_candidates_and_counts_all(instance: LocalInstance) -> None:
    async with instance.run() as server:
        for n in range(30):
            id_ = (await server.send("to you", recipient="person:owner")).envelope
            await server.execute_sql("UPDATE envelopes SET id = :new WHERE id = :old", new=f"0abc0123{n:024d}", old=id_)
        with pytest.raises(AmbiguousId) as ambiguous:
            await ask(server, "0abc0123")
        assert ambiguous.value.matches == 30
        assert len(set(ambiguous.value.candidates)) == 20
        assert "and 10 more" in str(ambiguous.value)


async def test_why_of_an_unknown_id_is_not_found_and_of_an_invalid_id_refused(instance: LocalInstance) -> None:
    async with instance.run() as server:
        with pytest.raises(NotFound) as nothing:
            await ask(server, "0" * 8)
        assert nothing.value.code == "id.not_found"
        with pytest.raises(Invalid):
            await ask(server, "hello")


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
def test_why_formats_durations_for_people(ms: int, said: str) -> None:
    assert format_duration(ms) == said
