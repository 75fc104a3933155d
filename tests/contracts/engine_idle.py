"""The engine's contract for idle sessions: they sleep until there is work, and silent envelopes wake no session."""

from __future__ import annotations

import asyncio

import pytest
from contracts.engine_cancel import send_and_wait_for_model_call
from contracts.engine_instance import (
    StoreControl,
    ada,
    let_tasks_settle,
    list_events,
    newest_user_text,
    query_rows,
    record_kinds,
    run_with_ledger_check,
    user_turns,
    wait_until_true,
)

from retinue.domain.envelope import EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.event import EventKind
from retinue.domain.record import RecordKind
from retinue.domain.session import QueueMode, QueuePolicy, SessionActivity
from retinue.models.base import ModelPrompt
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply

FOLLOWUP = QueuePolicy(mode=QueueMode.FOLLOWUP)


async def send_silent_note(server: LocalServer, session: str | None, text: str) -> str:
    """Send a silent envelope to a session."""
    here = f"agent:ada/{session}"
    return (await server.send(text, kind=EnvelopeKind.SYSTEM, silent=True, sender="agent:ada", recipient=here)).envelope


@pytest.mark.spec("D2")
async def test_a_session_and_its_start_are_stored_before_its_first_message_is_handled(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    instance.model.will_reply(text_reply("hello", after_s=1))
    async with run_with_ledger_check(instance) as server:
        _, session = await send_and_wait_for_model_call(instance, server)
        found = await query_rows(server, "SELECT agent, origin_kind, origin_key, activity FROM sessions")
        assert found == [("ada", "web", "person:maria", "active")]
        assert record_kinds(await server.list_records(session)) == [RecordKind.START, RecordKind.USER]
        (started,) = await list_events(server, EventKind.SESSION_STARTED)
        assert started.session == session
        await instance.clock.advance(1)


@pytest.mark.spec("D12")
async def test_an_idle_session_is_stored_as_sleeping_and_woken_by_the_next_message(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("hello")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        assert (await server.get_session(first.session)).activity is SessionActivity.SLEEPING
        second = await server.send("hello again")
        assert second.session == first.session
        assert await server.wait_for_answer(second.envelope) == "ok"
        await server.wait_until_idle()
        assert (await server.get_session(first.session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D12")
async def test_sleeping_sessions_are_not_touched_when_the_server_starts(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.people = ("maria", "owner", *(f"p{n}" for n in range(20)))
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        for n in range(20):
            await server.wait_for_outcome((await server.send("hello", sender=f"person:p{n}")).envelope)
        await server.wait_until_idle()
        instance.model.rule = lambda prompt: text_reply("never", after_s=100)
        envelope, session = await send_and_wait_for_model_call(instance, server)
        server.crash()
    instance.model.rule = lambda prompt: text_reply("ok")
    seen = len(store_control.commit_points)
    before = "SELECT id, epoch, updated_ms, record_seq, activity FROM sessions WHERE activity = 'sleeping'"
    async with run_with_ledger_check(instance) as server:
        asleep = await query_rows(server, before)
        assert await server.wait_for_answer(envelope) == "ok"
        await server.wait_until_idle()
        assert len(asleep) == 20
        after = {row.id: row for row in await query_rows(server, before)}
        assert [after[row.id] for row in asleep] == asleep, "idle sessions are unchanged"
        assert store_control.commit_points[seen:].count("claim") <= 2, (
            "one claim for the active session, and one check after it"
        )
        assert (await server.get_session(session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D13")
@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
async def test_an_envelope_sent_around_the_finish_commit_is_not_lost(
    any_instance: LocalInstance, store_control: StoreControl, committed: bool
) -> None:
    """The same commit makes the session idle when it finds no more work."""
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish", committed=committed) as finish:
            first = await server.send("first")
            await finish.reached.wait()
            second = await server.send("second")
        assert await server.wait_for_answer(first.envelope) == "ok"
        assert await server.wait_for_answer(second.envelope) == "ok"
        await server.wait_until_idle()
        assert (await server.get_session(first.session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D13")
@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
async def test_an_envelope_sent_around_the_commit_that_puts_its_session_to_sleep_is_not_lost(
    instance: LocalInstance, store_control: StoreControl, committed: bool
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("first")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        with store_control.hold_commits("claim", committed=committed) as claim:
            # A silent envelope wakes the lane only to be recorded: the claim finds no work.
            await server.send(
                "note",
                kind=EnvelopeKind.SYSTEM,
                silent=True,
                sender="agent:ada",
                recipient=f"agent:ada/{first.session}",
            )
            await claim.reached.wait()
            second = await server.send("second")
        assert await server.wait_for_answer(second.envelope) == "ok"
        await server.wait_until_idle()
        assert (await server.get_session(first.session)).activity is SessionActivity.SLEEPING


@pytest.mark.spec("D13")
async def test_an_envelope_with_a_slow_commit_wakes_a_session_that_fell_asleep_meanwhile(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish") as finish:
            first = await server.send("first")
            await finish.reached.wait()
            with store_control.hold_commits("accept") as accept:
                posting = asyncio.create_task(server.send("second"))
                await accept.reached.wait()
                store_control.release("finish")
                await server.wait_for_outcome(first.envelope)
                await server.wait_until_idle()
                assert (await server.get_session(first.session)).activity is SessionActivity.SLEEPING
        assert await server.wait_for_answer((await posting).envelope) == "ok"


async def test_an_envelope_is_processed_even_if_its_sender_disconnects_before_the_receipt(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    """The envelope was stored, but its wake hint was lost. The alarm finds it at its next check."""
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("accept") as accept:
            posting = asyncio.create_task(server.send("are you there?"))
            await accept.reached.wait()
            posting.cancel()
        statement = "SELECT id FROM envelopes WHERE kind = 'message'"
        id_ = await server.wait_for(lambda conn: conn.exec_driver_sql(statement).scalar(), what="the envelope")
        await let_tasks_settle(server)
        await instance.clock.advance(60)
        assert await server.wait_for_answer(id_) == "ok"


async def test_every_message_sent_concurrently_to_one_session_is_processed(instance: LocalInstance) -> None:
    """Senders race with a session that repeatedly becomes active and idle."""
    instance.agents = (ada(queue=QueuePolicy(cap=1000)),)
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:

        async def write(n: int) -> list[str]:
            ids: list[str] = []
            for k in range(20):
                ids.append((await server.send(f"{n} {k}")).envelope)
                if (n + k) % 5 == 0:
                    await server.wait_for_outcome(ids[-1])
                for _ in range(n):
                    await asyncio.sleep(0)
            return ids

        for ids in await asyncio.gather(*(write(n) for n in range(8))):
            for id_ in ids:
                assert (await server.wait_for_outcome(id_)).outcome is Outcome.ANSWERED
        read = "\n".join(user_turns(instance.model.prompts[-1].records)).split("\n")
        assert sorted(line for line in read if line.count(" ") == 1 and line[0].isdigit()) == sorted(
            f"{n} {k}" for n in range(8) for k in range(20)
        )


# System envelopes


@pytest.mark.spec("D4", "D78")
async def test_a_system_message_is_wrapped_with_its_origin_recorded_and_answered(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.model.will_reply("first", "understood")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("hello")
        await server.wait_for_outcome(first.envelope)
        system = await server.send(
            "the heating is off", kind=EnvelopeKind.SYSTEM, sender="agent:ada", recipient=f"agent:ada/{first.session}"
        )
        assert (await server.wait_for_outcome(system.envelope)).outcome is Outcome.ANSWERED
        wrapped = '<system_message origin="agent:ada">the heating is off</system_message>'
        assert wrapped in newest_user_text(instance.model.prompts[1]).split("\n")
        history = await server.list_records(first.session)
        assert wrapped in user_turns(history)[-1]
        assert record_kinds(history)[-2:] == [RecordKind.USER, RecordKind.ASSISTANT]


@pytest.mark.spec("D5", "D78", "C21")
async def test_a_silent_system_message_starts_no_run_and_is_read_in_the_next_one(
    any_instance: LocalInstance,
) -> None:
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok")
    wrapped = '<system_message origin="agent:ada">the heating is off</system_message>'
    async with run_with_ledger_check(instance) as server:
        first = await server.send("hello")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        silent = await send_silent_note(server, first.session, "the heating is off")
        assert (await server.wait_for_outcome(silent)).outcome is Outcome.NOTED
        await server.wait_until_idle()
        assert len(instance.model.prompts) == 1
        assert len(await list_events(server, EventKind.RUN_STARTED)) == 1
        assert (await server.get_session(first.session)).activity is SessionActivity.SLEEPING
        history = await server.list_records(first.session)
        assert record_kinds(history)[-1] is RecordKind.USER and user_turns(history)[-1] == wrapped
        server.crash()
    async with run_with_ledger_check(instance) as server:
        for _ in range(2):
            assert await server.wait_for_answer((await server.send("is it cold?")).envelope) == "ok"
            await server.wait_until_idle()
        for prompt in instance.model.prompts[1:]:
            assert user_turns(prompt.records).count(wrapped) == 1, "once, and still there after a restart"


@pytest.mark.spec("D5")
async def test_a_silent_message_can_create_its_session_without_a_run(instance: LocalInstance) -> None:
    async with run_with_ledger_check(instance) as server:
        silent = await server.send("remember this", kind=EnvelopeKind.SYSTEM, silent=True)
        assert (await server.wait_for_outcome(silent.envelope)).outcome is Outcome.NOTED
        await server.wait_until_idle()
        assert instance.model.prompts == []
        assert record_kinds(await server.list_records(silent.session)) == [RecordKind.START, RecordKind.USER]


@pytest.mark.spec("D5", "C21")
async def test_silent_envelopes_during_a_run_are_recorded_after_it(
    instance: LocalInstance,
) -> None:
    instance.model.will_reply(
        ScriptedReply(calls=(("session_status", {}),), after_s=1), text_reply("first", after_s=1), "second"
    )
    async with run_with_ledger_check(instance) as server:
        first, session = await send_and_wait_for_model_call(instance, server)
        notes = [await send_silent_note(server, session, "one")]
        await instance.clock.advance(1)
        await wait_until_true(lambda: len(instance.model.prompts) == 2, what="the second turn")
        notes.append(await send_silent_note(server, session, "two"))
        await let_tasks_settle(server)
        assert [(await server.get_envelope(id_)).status for id_ in notes] == [
            EnvelopeStatus.PENDING,
            EnvelopeStatus.PENDING,
        ]
        await instance.clock.advance(1)
        assert await server.wait_for_answer(first) == "first"
        for id_ in notes:
            assert (await server.wait_for_outcome(id_)).outcome is Outcome.NOTED
        await server.wait_until_idle()
        assert len(instance.model.prompts) == 2, "it started no run"
        assert record_kinds(await server.list_records(session)) == [
            RecordKind.START,
            RecordKind.USER,
            RecordKind.ASSISTANT,
            RecordKind.TOOL,
            RecordKind.ASSISTANT,
            RecordKind.USER,
            RecordKind.USER,
        ]
        await server.wait_for_outcome((await server.send("and now?")).envelope)
        assert list_notes_in(instance.model.prompts[2]) == ["one", "two"]


def list_notes_in(prompt: ModelPrompt) -> list[str]:
    opening, closing = '<system_message origin="agent:ada">', "</system_message>"
    return [
        text.removeprefix(opening).removesuffix(closing)
        for text in user_turns(prompt.records)
        if text.startswith(opening)
    ]


async def test_more_silent_envelopes_than_one_claim_takes_are_all_recorded(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.model.will_reply("hello", "I have read it")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("hello")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        with store_control.hold_commits("claim") as claim:
            notes = [
                await server.send(
                    f"{n}",
                    kind=EnvelopeKind.SYSTEM,
                    silent=True,
                    sender="agent:ada",
                    recipient=f"agent:ada/{first.session}",
                )
                for n in range(120)
            ]
            await claim.reached.wait()
        for receipt in notes:
            assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.NOTED
        await server.wait_for_outcome((await server.send("and now?")).envelope)
        assert list_notes_in(instance.model.prompts[1]) == [f"{n}" for n in range(120)]
