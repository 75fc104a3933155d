"""Dead letters: listed newest first, and retried as new envelopes. What is done stays done."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from retinue.domain.agent import Agent, CrashPolicy, ToolRules
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Envelope, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.errors import Conflict, NotFound, StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.times import to_ms
from retinue.intake.accept import AcceptResult
from retinue.outbox import dead_letter_retry as retrying
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.dead_letters import DeadLetter, load_dead_letters
from retinue.store.ledger import ledger
from retinue.store.runs import approvals
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.scripted_model import text_reply, tool_call_reply

AGENTS = (
    Agent(name="ada", model="scripted"),
    Agent(name="once", model="scripted", crash_policy=CrashPolicy.AT_MOST_ONCE),
    Agent(name="careful", model="scripted", tools=ToolRules(ask=("append_line",))),
)
FAILING_REPLY = text_reply("", fails="the model is out of order")


@pytest.fixture(params=["sqlite", "postgres"])
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    instance = LocalInstance(tmp_path, url=url, agents=AGENTS)
    instance.connectors["quiet"] = FakeConnector(instance.clock)
    return instance


async def make_dead_letter(server: LocalServer, text: str = "do it", **kw: object) -> EnvelopeId:
    """Send an envelope that fails for good."""
    server.instance.model.will_reply(FAILING_REPLY)
    receipt = await server.send(text, **kw)  # type: ignore[arg-type]
    assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
    await server.wait_until_idle()
    return receipt.envelope


async def retry(server: LocalServer, id_: str) -> AcceptResult:
    instance = server.instance
    new_id, now_ms = EnvelopeId(instance.ids.new()), to_ms(instance.clock.now())
    entered = await server.store.write(
        partial(retrying.requeue_dead_letter, id_text=id_, new_id=new_id, now_ms=now_ms), point="retry"
    )
    for wake in entered.wakes:
        server.engine.wake(wake)
    return entered


async def list_dead_letters(server: LocalServer, *, limit: int = 50, before: str | None = None) -> list[DeadLetter]:
    return await server.store.scan(partial(load_dead_letters, limit=limit, before=before))


async def ledger_holds(server: LocalServer) -> bool:
    now_ms = to_ms(server.instance.clock.now())
    return (await server.store.scan(partial(ledger.check_ledger, now_ms=now_ms))).is_ok


async def test_dead_letters_are_listed_newest_first_with_their_reasons(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply("fine")
        await server.wait_for_answer((await server.send("all is well")).envelope)
        first = await make_dead_letter(server, "first")
        await instance.clock.advance(1)
        second = await make_dead_letter(server, "second")
        [newest, oldest] = await list_dead_letters(server)
        assert [newest.envelope.id, oldest.envelope.id] == [second, first]
        assert newest.settled.because == "model.scripted: the model is out of order"
        assert newest.envelope.text == "second" and newest.retry is None


async def test_an_interrupted_envelope_is_listed_as_a_dead_letter(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(text_reply("too late", after_s=3600))
        cut_off = (await server.send("once", recipient="agent:once")).envelope
        await server.wait_for(lambda _: len(instance.model.prompts) == 1, what="the model to be asked")
        server.crash()
    async with instance.run() as server:
        assert (await server.wait_for_outcome(cut_off)).outcome is Outcome.INTERRUPTED
        assert [dead.envelope.id for dead in await list_dead_letters(server)] == [cut_off]


async def test_dead_letter_pages_have_no_gaps_or_duplicates(instance: LocalInstance) -> None:
    async with instance.run() as server:
        dead = [await make_dead_letter(server, f"{n}") for n in range(7)]  # all at the same time
        pages: list[str] = []
        before = None
        while page := await list_dead_letters(server, limit=3, before=before):
            pages += [each.envelope.id for each in page]
            before = page[-1].envelope.id
        assert pages == dead[::-1]


@pytest.mark.spec("H2")
async def test_a_retry_of_a_dead_letter_is_a_new_envelope_and_the_dead_letter_stays_unchanged(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        question = (await server.send("before", recipient="person:owner")).envelope
        attachment = Attachment(hash="a" * 64, name="list.txt", media_type="text/plain", size_bytes=3)
        id_ = await make_dead_letter(server, reply_to=question, attachments=(attachment,))
        was = await server.get_envelope(id_), await server.store.read(partial(envelopes.get_outcome, id_=id_))
        instance.model.will_reply("now it works")
        entered = await retry(server, id_[:8])
        assert await server.wait_for_answer(entered.receipt.envelope) == "now it works"

        retried = await server.get_envelope(entered.receipt.envelope)
        assert (await server.get_envelope(id_), await server.store.read(partial(envelopes.get_outcome, id_=id_))) == was
        assert was[0].status is EnvelopeStatus.DONE and retried.retry_of == id_ and retried.id != id_
        for name in ("sender", "recipient", "session", "text", "kind", "trust", "reply_to", "attachments", "context"):
            assert getattr(retried, name) == getattr(was[0], name), name
        [dead] = await list_dead_letters(server)
        assert dead.retry is not None and dead.retry.id == retried.id
        assert await ledger_holds(server)


async def test_a_retry_of_a_dead_letter_drops_the_delivery_and_expiry_times(instance: LocalInstance) -> None:
    async with instance.run() as server:
        now = instance.clock.now()
        id_ = await make_dead_letter(server, deliver_at=now, expires_at=now.replace(year=now.year + 1))
        instance.model.will_reply("yes")
        retried = await server.get_envelope((await retry(server, id_)).receipt.envelope)
        assert retried.deliver_at is None and retried.expires_at is None
        assert await server.wait_for_answer(retried.id) == "yes"


@pytest.mark.spec("H2")
async def test_only_a_dead_letter_can_be_retried(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply("fine")
        answered = (await server.send("all is well")).envelope
        await server.wait_for_answer(answered)
        later = instance.clock.now().replace(year=2030)
        pending = (await server.send("not yet", deliver_at=later)).envelope
        for id_, because in ((answered, "its outcome is answered"), (pending, "it is still pending")):
            with pytest.raises(Conflict) as refused:
                await retry(server, id_)
            assert (refused.value.code, refused.value.because) == ("dead.not_dead", because)
        with pytest.raises(NotFound):
            await retry(server, "0" * 32)
        rows = await server.execute_sql("SELECT count(*) FROM envelopes WHERE retry_of IS NOT NULL")
        assert rows[0][0] == 0 and await ledger_holds(server)


async def test_a_second_retry_of_a_dead_letter_is_refused_unless_the_first_retry_failed_too(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        id_ = await make_dead_letter(server)
        instance.model.will_reply(text_reply("at last", after_s=60))
        first = (await retry(server, id_)).receipt.envelope
        with pytest.raises(Conflict) as refused:
            await retry(server, id_)
        assert refused.value.code == "dead.already_retried" and first[:8] in refused.value.because
        await server.wait_for(lambda _: len(instance.model.prompts) == 2, what="the model to be asked")
        await instance.clock.advance(60)
        assert await server.wait_for_answer(first) == "at last"
        with pytest.raises(Conflict, match="already retried"):
            await retry(server, id_)


async def test_a_failed_retry_of_a_dead_letter_can_be_retried_by_its_own_id_or_the_original_id(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        id_ = await make_dead_letter(server)
        instance.model.will_reply(FAILING_REPLY, FAILING_REPLY, "third time lucky")
        first = (await retry(server, id_)).receipt.envelope
        await server.wait_for_outcome(first)
        second = (await retry(server, id_)).receipt.envelope
        await server.wait_for_outcome(second)
        third = (await retry(server, first)).receipt.envelope
        assert await server.wait_for_answer(third) == "third time lucky"
        assert (await server.get_envelope(third)).retry_of == first
        for old in (id_, first, second):
            with pytest.raises(Conflict) as refused:
                await retry(server, old)
            assert refused.value.code == "dead.already_retried"
        assert {each.retry.id for each in await list_dead_letters(server) if each.retry} == {third}


async def test_two_simultaneous_retries_of_a_dead_letter_make_one_envelope(instance: LocalInstance) -> None:
    async with instance.run() as server:
        id_ = await make_dead_letter(server)
        instance.model.will_reply("done")
        came = await asyncio.gather(retry(server, id_), retry(server, id_), return_exceptions=True)
        [entered] = [each for each in came if isinstance(each, AcceptResult)]
        [refused] = [each for each in came if isinstance(each, Conflict)]
        assert refused.code == "dead.already_retried"
        assert await server.wait_for_answer(entered.receipt.envelope) == "done"


async def test_a_dead_letter_to_a_channel_is_delivered_by_a_retry(instance: LocalInstance) -> None:
    async with instance.run() as server:
        quiet = instance.connectors["quiet"]
        assert isinstance(quiet, FakeConnector)
        quiet.will_fail(permanent=True)
        id_ = (await server.send("hello", sender="agent:ada", recipient="channel:quiet:42")).envelope
        assert (await server.wait_for_outcome(id_)).outcome is Outcome.DEAD
        retried = (await retry(server, id_)).receipt.envelope
        assert (await server.wait_for_outcome(retried)).outcome is Outcome.DELIVERED
        assert quiet.list_texts("42") == ["hello"] and await ledger_holds(server)


async def test_an_approval_decision_that_became_a_dead_letter_cannot_be_retried(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="once"), "I went on", "I hurry")
        asked = (await server.send("do it", recipient="agent:careful")).envelope
        approval = await server.wait_for(
            lambda conn: next(iter(approvals.list_open(conn, limit=1)), None), what="an approval"
        )
        # With a new message, the run continues without the approval.
        hurried = (await server.send("hurry", recipient="agent:careful")).envelope
        assert await server.wait_for_answer(asked) == "I went on" and await server.wait_for_answer(hurried) == "I hurry"
        instance.model.will_reply(FAILING_REPLY)
        await server.engine.answer_approval(approval.id, allow=True, by=boss_principal("maria"))
        [dead] = await server.wait_for(lambda conn: load_dead_letters(conn, limit=5) or None, what="a dead letter")
        assert dead.envelope.kind is EnvelopeKind.DECISION
        with pytest.raises(Conflict) as refused:
            await retry(server, dead.envelope.id)
        assert refused.value.code == "dead.decision"
        assert instance.witness_file.read_text().count("once") == 1


async def test_a_retry_of_a_dead_letter_to_a_deleted_agent_is_refused_and_stores_nothing(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        id_ = await make_dead_letter(server)
        await server.execute_sql("UPDATE agents SET removed_ms = 1 WHERE name = 'ada'")
        with pytest.raises(NotFound):
            await retry(server, id_)
        assert await ledger_holds(server)
        assert (await list_dead_letters(server))[0].retry is None


@pytest.mark.spec("H2")
async def test_no_store_function_changes_a_done_envelope(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply("fine")
        id_ = (await server.send("all is well")).envelope
        await server.wait_for_answer(id_)
        await server.wait_until_idle()
        was = await server.get_envelope(id_)
        run = was.run
        assert was.status is EnvelopeStatus.DONE and run is not None

        def try_all(conn: sa.Connection) -> Envelope | None:
            envelopes.claim(conn, [id_], run="f" * 32, now_ms=1)
            envelopes.suspend(conn, run)
            envelopes.resume(conn, run)
            envelopes.increment_attempts(conn, run)
            envelopes.return_to_pending(conn, id_, due_ms=1)
            return envelopes.get(conn, id_)

        assert await server.store.write(try_all, point="test") == was
        with pytest.raises(StoreError) as refused:
            await server.store.write(
                partial(envelopes.settle, ids=[id_], outcome=Outcome.DEAD, because="again", at_ms=1), point="test"
            )
        assert refused.value.code == "store.constraint_violated"
        assert await server.get_envelope(id_) == was


@pytest.mark.spec("H2")
async def test_an_unknown_envelope_status_cannot_be_stored(instance: LocalInstance) -> None:
    async with instance.run() as server:
        await server.send("a line", recipient="person:maria")
        assert {str(status) for status in EnvelopeStatus} == {"pending", "claimed", "suspended", "done"}
        with pytest.raises(StoreError) as refused:
            await server.execute_sql("UPDATE envelopes SET status = 'reading'")
        assert refused.value.code == "store.constraint_violated"


@pytest.mark.spec("H2")
async def test_a_done_envelope_stays_done_through_crashes_cancels_suspensions_and_retries(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, agents=AGENTS)
    async with instance.run() as server:
        await server.execute_sql(
            "CREATE TRIGGER done_is_done BEFORE UPDATE ON envelopes"
            " WHEN OLD.status = 'done' AND NEW.status <> 'done'"
            " BEGIN SELECT RAISE(ABORT, 'done reverted'); END"
        )
        dead_letter = await make_dead_letter(server)
        instance.model.will_reply(tool_call_reply("append_line", text="x"), "ok", text_reply("never", after_s=3600))
        asked = (await server.send("do it", recipient="agent:careful")).envelope
        approval = await server.wait_for(
            lambda conn: next(iter(approvals.list_open(conn, limit=1)), None), what="an approval"
        )
        await server.engine.answer_approval(approval.id, allow=True, by=boss_principal("maria"))
        assert await server.wait_for_answer(asked) == "ok"
        stopped = (await server.send("be slow")).envelope
        await server.wait_for(lambda _: len(instance.model.prompts) == 4, what="the model to be asked")
        session = (await server.get_envelope(stopped)).session
        assert session is not None
        await server.engine.cancel(session, by="maria", reason="enough")
        assert (await server.wait_for_outcome(stopped)).outcome is Outcome.CANCELLED
        instance.model.will_reply(text_reply("never", after_s=3600))
        cut_off = (await retry(server, dead_letter)).receipt.envelope
        await server.wait_for(lambda _: len(instance.model.prompts) == 5, what="the model to be asked")
        server.crash()
    instance.model.will_reply("at last")
    async with instance.run() as server:
        assert await server.wait_for_answer(cut_off) == "at last"
        assert (await server.wait_for_outcome(dead_letter)).outcome is Outcome.DEAD
        assert await ledger_holds(server)
