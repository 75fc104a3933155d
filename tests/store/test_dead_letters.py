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
    Agent(name="once", model="scripted", delivery=CrashPolicy.AT_MOST_ONCE),
    Agent(name="careful", model="scripted", tools=ToolRules(ask=("append_line",))),
)
FAILS = text_reply("", fails="the model is out of order")


@pytest.fixture(params=["sqlite", "postgres"])
def household(request: pytest.FixtureRequest, tmp_path: Path) -> LocalInstance:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    household = LocalInstance(tmp_path, url=url, agents=AGENTS)
    household.connectors["quiet"] = FakeConnector(household.clock)
    return household


async def die(house: LocalServer, text: str = "do it", **kw: object) -> EnvelopeId:
    """A letter that the model fails over."""
    house.instance.model.will_reply(FAILS)
    receipt = await house.send(text, **kw)  # type: ignore[arg-type]
    assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.DEAD
    await house.wait_until_idle()
    return receipt.envelope


async def retry(house: LocalServer, id_: str) -> AcceptResult:
    household = house.instance
    new_id, now_ms = EnvelopeId(household.ids.new()), to_ms(household.clock.now())
    entered = await house.store.write(
        partial(retrying.requeue_dead_letter, id_text=id_, new_id=new_id, now_ms=now_ms), point="retry"
    )
    for wake in entered.wakes:
        house.engine.wake(wake)
    return entered


async def listed(house: LocalServer, *, limit: int = 50, before: str | None = None) -> list[DeadLetter]:
    return await house.store.scan(partial(load_dead_letters, limit=limit, before=before))


async def holds(house: LocalServer) -> bool:
    now_ms = to_ms(house.instance.clock.now())
    return (await house.store.scan(partial(ledger.check_ledger, now_ms=now_ms))).is_ok


async def test_dead_letters_are_listed_newest_first_with_what_became_of_them(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply("fine")
        await house.wait_for_answer((await house.send("all is well")).envelope)
        first = await die(house, "first")
        await household.clock.advance(1)
        second = await die(house, "second")
        [newest, oldest] = await listed(house)
        assert [newest.envelope.id, oldest.envelope.id] == [second, first]
        assert newest.settled.because == "model.scripted: the model is out of order"
        assert newest.envelope.text == "second" and newest.retry is None


async def test_an_interrupted_letter_is_listed_too(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(text_reply("too late", after_s=3600))
        cut_off = (await house.send("once", recipient="agent:once")).envelope
        await house.wait_for(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        house.crash()
    async with household.run() as house:
        assert (await house.wait_for_outcome(cut_off)).outcome is Outcome.INTERRUPTED
        assert [letter.envelope.id for letter in await listed(house)] == [cut_off]


async def test_a_long_list_is_read_page_by_page_with_none_left_out_or_shown_twice(household: LocalInstance) -> None:
    async with household.run() as house:
        letters = [await die(house, f"{n}") for n in range(7)]  # all within one moment of the clock
        pages: list[str] = []
        before = None
        while page := await listed(house, limit=3, before=before):
            pages += [letter.envelope.id for letter in page]
            before = page[-1].envelope.id
        assert pages == letters[::-1]


@pytest.mark.spec("H2")
async def test_a_retry_is_a_new_envelope_and_the_dead_one_stays_as_it_was(household: LocalInstance) -> None:
    async with household.run() as house:
        question = (await house.send("before", recipient="person:owner")).envelope
        attachment = Attachment(hash="a" * 64, name="list.txt", media_type="text/plain", size_bytes=3)
        id_ = await die(house, reply_to=question, attachments=(attachment,))
        was = await house.get_envelope(id_), await house.store.read(partial(envelopes.get_outcome, id_=id_))
        household.model.will_reply("now it works")
        entered = await retry(house, id_[:8])
        assert await house.wait_for_answer(entered.receipt.envelope) == "now it works"

        retried = await house.get_envelope(entered.receipt.envelope)
        assert (await house.get_envelope(id_), await house.store.read(partial(envelopes.get_outcome, id_=id_))) == was
        assert was[0].status is EnvelopeStatus.DONE and retried.retry_of == id_ and retried.id != id_
        for name in ("sender", "recipient", "session", "text", "kind", "trust", "reply_to", "attachments", "context"):
            assert getattr(retried, name) == getattr(was[0], name), name
        [letter] = await listed(house)
        assert letter.retry is not None and letter.retry.id == retried.id
        assert await holds(house)


async def test_a_retry_does_not_wait_for_a_time_that_has_passed_nor_expire_at_one(household: LocalInstance) -> None:
    async with household.run() as house:
        now = household.clock.now()
        id_ = await die(house, deliver_at=now, expires_at=now.replace(year=now.year + 1))
        household.model.will_reply("yes")
        retried = await house.get_envelope((await retry(house, id_)).receipt.envelope)
        assert retried.deliver_at is None and retried.expires_at is None
        assert await house.wait_for_answer(retried.id) == "yes"


@pytest.mark.spec("H2")
async def test_only_a_dead_letter_is_retried(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply("fine")
        answered = (await house.send("all is well")).envelope
        await house.wait_for_answer(answered)
        later = household.clock.now().replace(year=2030)
        pending = (await house.send("not yet", deliver_at=later)).envelope
        for id_, because in ((answered, "it ended answered: answered"), (pending, "it is still pending")):
            with pytest.raises(Conflict) as refused:
                await retry(house, id_)
            assert (refused.value.code, refused.value.because) == ("dead.not_dead", because)
        with pytest.raises(NotFound):
            await retry(house, "0" * 32)
        rows = await house.execute_sql("SELECT count(*) FROM envelopes WHERE retry_of IS NOT NULL")
        assert rows[0][0] == 0 and await holds(house)


async def test_a_second_retry_waits_until_the_first_is_dead_itself(household: LocalInstance) -> None:
    async with household.run() as house:
        id_ = await die(house)
        household.model.will_reply(text_reply("at last", after_s=60))
        first = (await retry(house, id_)).receipt.envelope
        with pytest.raises(Conflict) as refused:
            await retry(house, id_)
        assert refused.value.code == "dead.already_retried" and first[:8] in refused.value.because
        await house.wait_for(lambda _: len(household.model.prompts) == 2, what="the model to be asked")
        await household.clock.advance(60)
        assert await house.wait_for_answer(first) == "at last"
        with pytest.raises(Conflict, match="already retried"):
            await retry(house, id_)


async def test_a_letter_whose_retry_died_may_be_retried_again_by_either_name(household: LocalInstance) -> None:
    async with household.run() as house:
        id_ = await die(house)
        household.model.will_reply(FAILS, FAILS, "third time lucky")
        first = (await retry(house, id_)).receipt.envelope
        await house.wait_for_outcome(first)
        second = (await retry(house, id_)).receipt.envelope
        await house.wait_for_outcome(second)
        third = (await retry(house, first)).receipt.envelope
        assert await house.wait_for_answer(third) == "third time lucky"
        assert (await house.get_envelope(third)).retry_of == first
        for old in (id_, first, second):
            with pytest.raises(Conflict) as refused:
                await retry(house, old)
            assert refused.value.code == "dead.already_retried"
        assert {letter.retry.id for letter in await listed(house) if letter.retry} == {third}


async def test_two_who_retry_at_once_make_one_retry(household: LocalInstance) -> None:
    async with household.run() as house:
        id_ = await die(house)
        household.model.will_reply("done")
        came = await asyncio.gather(retry(house, id_), retry(house, id_), return_exceptions=True)
        [entered] = [each for each in came if isinstance(each, AcceptResult)]
        [refused] = [each for each in came if isinstance(each, Conflict)]
        assert refused.code == "dead.already_retried"
        assert await house.wait_for_answer(entered.receipt.envelope) == "done"


async def test_a_letter_to_a_channel_is_sent_once_more(household: LocalInstance) -> None:
    async with household.run() as house:
        quiet = household.connectors["quiet"]
        assert isinstance(quiet, FakeConnector)
        quiet.will_fail(permanent=True)
        id_ = (await house.send("hello", sender="agent:ada", recipient="channel:quiet:42")).envelope
        assert (await house.wait_for_outcome(id_)).outcome is Outcome.DEAD
        retried = (await retry(house, id_)).receipt.envelope
        assert (await house.wait_for_outcome(retried)).outcome is Outcome.DELIVERED
        assert quiet.list_texts("42") == ["hello"] and await holds(house)


async def test_a_decision_is_not_repeated(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="once"), "I went on", "I hurry")
        asked = (await house.send("do it", recipient="agent:careful")).envelope
        approval = await house.wait_for(
            lambda conn: next(iter(approvals.list_open(conn, limit=1)), None), what="an approval"
        )
        hurried = (await house.send("hurry", recipient="agent:careful")).envelope  # so it goes on without the answer
        assert await house.wait_for_answer(asked) == "I went on" and await house.wait_for_answer(hurried) == "I hurry"
        household.model.will_reply(FAILS)
        await house.engine.answer_approval(approval.id, allow=True, by=boss_principal("maria"))
        [letter] = await house.wait_for(
            lambda conn: load_dead_letters(conn, limit=5) or None, what="the decision to die"
        )
        assert letter.envelope.kind is EnvelopeKind.DECISION
        with pytest.raises(Conflict) as refused:
            await retry(house, letter.envelope.id)
        assert refused.value.code == "dead.decision"
        assert household.witness_file.read_text().count("once") == 1


async def test_a_letter_to_an_agent_who_was_let_go_is_refused_and_nothing_is_stored(household: LocalInstance) -> None:
    async with household.run() as house:
        id_ = await die(house)
        await house.execute_sql("UPDATE agents SET removed_ms = 1 WHERE name = 'ada'")
        with pytest.raises(NotFound):
            await retry(house, id_)
        assert await holds(house)
        assert (await listed(house))[0].retry is None


@pytest.mark.spec("H2")
async def test_nothing_the_house_does_to_a_done_envelope_changes_it(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply("fine")
        id_ = (await house.send("all is well")).envelope
        await house.wait_for_answer(id_)
        await house.wait_until_idle()
        was = await house.get_envelope(id_)
        run = was.run
        assert was.status is EnvelopeStatus.DONE and run is not None

        def try_all(conn: sa.Connection) -> Envelope | None:
            envelopes.claim(conn, [id_], run="f" * 32, now_ms=1)
            envelopes.suspend(conn, run)
            envelopes.resume(conn, run)
            envelopes.increment_attempts(conn, run)
            envelopes.return_to_pending(conn, id_, due_ms=1)
            return envelopes.get(conn, id_)

        assert await house.store.write(try_all, point="test") == was
        with pytest.raises(StoreError) as refused:
            await house.store.write(
                partial(envelopes.settle, ids=[id_], outcome=Outcome.DEAD, because="again", at_ms=1), point="test"
            )
        assert refused.value.code == "store.constraint_violated"
        assert await house.get_envelope(id_) == was


@pytest.mark.spec("H2")
async def test_no_other_status_can_be_stored(household: LocalInstance) -> None:
    async with household.run() as house:
        await house.send("a line", recipient="person:maria")
        assert {str(status) for status in EnvelopeStatus} == {"pending", "claimed", "parked", "done"}
        with pytest.raises(StoreError) as refused:
            await house.execute_sql("UPDATE envelopes SET status = 'reading'")
        assert refused.value.code == "store.constraint_violated"


@pytest.mark.spec("H2")
async def test_done_never_reverts_through_crashes_cancels_parking_and_retries(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, agents=AGENTS)
    async with household.run() as house:
        await house.execute_sql(
            "CREATE TRIGGER done_is_done BEFORE UPDATE ON envelopes"
            " WHEN OLD.status = 'done' AND NEW.status <> 'done'"
            " BEGIN SELECT RAISE(ABORT, 'done reverted'); END"
        )
        dead_letter = await die(house)
        household.model.will_reply(tool_call_reply("append_line", text="x"), "ok", text_reply("never", after_s=3600))
        asked = (await house.send("do it", recipient="agent:careful")).envelope
        approval = await house.wait_for(
            lambda conn: next(iter(approvals.list_open(conn, limit=1)), None), what="an approval"
        )
        await house.engine.answer_approval(approval.id, allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(asked) == "ok"
        stopped = (await house.send("be slow")).envelope
        await house.wait_for(lambda _: len(household.model.prompts) == 4, what="the model to be asked")
        session = (await house.get_envelope(stopped)).session
        assert session is not None
        await house.engine.cancel(session, by="maria", reason="enough")
        assert (await house.wait_for_outcome(stopped)).outcome is Outcome.CANCELLED
        household.model.will_reply(text_reply("never", after_s=3600))
        cut_off = (await retry(house, dead_letter)).receipt.envelope
        await house.wait_for(lambda _: len(household.model.prompts) == 5, what="the model to be asked")
        house.crash()
    household.model.will_reply("at last")
    async with household.run() as house:
        assert await house.wait_for_answer(cut_off) == "at last"
        assert (await house.wait_for_outcome(dead_letter)).outcome is Outcome.DEAD
        assert await holds(house)
