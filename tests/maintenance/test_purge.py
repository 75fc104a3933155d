"""Purging: what is long done goes, the ledger holds after every commit of it, and what comes again is recognised."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from busy_model import script
from operations.operations_instance import desk_house, person

from retinue.config.settings import RetentionSettings
from retinue.domain import address
from retinue.domain.agent import Agent, CrashPolicy, ToolRules
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError
from retinue.domain.ids import EnvelopeId, TokenId
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind
from retinue.operations.server.maintenance import (
    FIRST_PURGE_S,
    PURGE_INTERVAL_S,
    count_purgeable,
    purge_daily,
    run_purge,
)
from retinue.outbox.dead_letter_retry import requeue_dead_letter
from retinue.store.agents import file_trust
from retinue.store.core import events, idempotency
from retinue.store.core.connection import AfterCommit, Store, TransactionBody
from retinue.store.envelopes import dead_letters, envelope_lists
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.envelopes.reply_threads import get_reply_thread
from retinue.store.ledger import ledger
from retinue.store.maintenance import purge
from retinue.store.maintenance.purge import PurgeHorizon
from retinue.store.people import tokens
from retinue.store.runs import approvals
from retinue.store.runs.why import explain
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.wait_conditions import wait_until

T = TypeVar("T")

AGENTS = (
    Agent(name="ada", model="scripted"),
    Agent(name="careful", model="scripted", tools=ToolRules(ask=("append_line",))),
    Agent(name="once", model="scripted", delivery=CrashPolicy.AT_MOST_ONCE),
    Agent(name="quick", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER)),
)
TEXTS = ("hello", "use a tool", "fail", "hush", "be slow")


@dataclass
class Watched:
    """A store whose ledger is drawn up after each commit of a purge."""

    store: Store
    wrong: list[str] = field(default_factory=list[str])
    purges: int = 0

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        result = await self.store.write(body, point=point, then=then)
        if point == "purge":
            self.purges += 1
            checked = await self.store.scan(partial(ledger.check_ledger, now_ms=0))
            self.wrong += [line for each in checked.equations if not each.is_ok for line in each.lines()]
        return result

    async def read(self, body: TransactionBody[T]) -> T:
        return await self.store.read(body)

    async def scan(self, body: TransactionBody[T]) -> T:
        return await self.store.scan(body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self.store.on_commit(call, *tables)

    async def close(self) -> None:
        await self.store.close()


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return furnished(tmp_path)


def furnished(root: Path, url: str | None = None) -> LocalInstance:
    household = LocalInstance(root, url=url, agents=AGENTS, people=("maria", "noor", "owner"))
    household.connectors["quiet"] = FakeConnector(household.clock)
    household.model.rule = script
    household.model.price_microusd = 1000
    return household


def days(house: LocalServer, number: float) -> int:
    return to_ms(house.instance.clock.now() - timedelta(days=number))


async def everything(house: LocalServer, *, unread: bool = True) -> dict[str, int]:
    """Purge all that can go, of what is older than a day."""
    ms = days(house, 1)
    horizon = PurgeHorizon(envelopes_ms=ms, events_ms=ms, runs_ms=ms, include_unread=unread)
    files = AttachmentFiles(house.instance.root / "files")
    return dict((await run_purge(house.store, files, horizon, clock=house.instance.clock)).counts)


async def holds(house: LocalServer) -> None:
    checked = await house.store.scan(partial(ledger.check_ledger, now_ms=to_ms(house.instance.clock.now())))
    assert checked.is_ok, checked.lines()


async def rows(house: LocalServer, table: str) -> int:
    return (await house.execute_sql(f"SELECT count(*) FROM {table}"))[0][0]


async def a_week_passes(house: LocalServer) -> None:
    await house.wait_until_idle()
    house.instance.clock.jump(timedelta(days=7))


async def test_what_is_long_done_goes_and_the_ledger_holds(household: LocalInstance) -> None:
    async with household.run() as house:
        old = await house.send("hello")
        await house.wait_for_answer(old.envelope)
        await a_week_passes(house)
        new = await house.send("hello again")
        await house.wait_for_answer(new.envelope)
        await house.wait_until_idle()
        went = await everything(house)
        assert (went["envelopes"], went["runs"]) == (2, 1)
        await holds(house)
        assert await rows(house, "envelopes") == 2
        assert await rows(house, "runs") == 1
        assert len(await house.list_records(new.session)) > 4  # what was said is still there for the agent
        assert (await everything(house))["envelopes"] == 0


async def test_the_newest_envelope_and_the_newest_news_stay(household: LocalInstance) -> None:
    async with household.run() as house:
        for _ in range(3):
            await house.wait_for_answer((await house.send("hello")).envelope)
        await a_week_passes(house)
        newest = await house.store.scan(events.newest_seq)
        await everything(house)
        await holds(house)
        assert await rows(house, "envelopes") >= 1
        assert await house.store.scan(events.oldest_seq) == newest
        receipt = await house.send("and on we go")
        assert await house.wait_for_answer(receipt.envelope) == "very well"
        await holds(house)


async def test_a_key_outlives_its_envelope_by_thirty_days(household: LocalInstance) -> None:
    async with household.run() as house:
        first = await house.send("hello", key="k1")
        await house.wait_for_answer(first.envelope)
        await house.wait_for_answer((await house.send("hello", key="k2")).envelope)
        await a_week_passes(house)
        await everything(house)
        again = await house.send("hello", key="k1")
        assert (again.envelope, again.duplicate, again.session) == (first.envelope, True, first.session)
        assert again.outcome == "answered"
        with pytest.raises(Conflict) as conflict:
            await house.send("something else", key="k1")
        assert conflict.value.code == "key.reused"
        household.clock.jump(timedelta(days=31))
        assert (await everything(house))["keys"] > 0
        assert not (await house.send("something else", key="k1")).duplicate
        await holds(house)


async def test_an_edited_message_of_a_purged_one_is_still_an_edit(household: LocalInstance) -> None:
    quiet = household.connectors["quiet"]
    assert isinstance(quiet, FakeConnector)
    async with household.run() as house:
        said = await quiet.send_inbound("is anybody there?", message_id="7")
        assert said is not None
        await house.wait_for_outcome(said.envelope)
        await quiet.send_inbound("anything else?", message_id="8")
        await a_week_passes(house)
        await everything(house)
        again = await quiet.send_inbound("is anybody there?", message_id="7")
        assert again is not None
        assert (again.envelope, again.duplicate) == (said.envelope, True)
        edited = await quiet.send_inbound("is everybody there?", message_id="7")
        assert edited is not None
        assert not edited.duplicate
        assert "[edit" in (await house.get_envelope(edited.envelope)).text


async def test_unread_mail_stays_until_it_is_asked_for_by_name(household: LocalInstance) -> None:
    async with household.run() as house:
        note = await house.send("a word for you", recipient="person:noor")
        await house.wait_for_answer((await house.send("hello")).envelope)
        await a_week_passes(house)
        await everything(house, unread=False)
        assert (await house.get_envelope(note.envelope)).text == "a word for you"
        await house.store.write(
            partial(envelope_lists.mark_read, ids=[note.envelope], person="noor", at_ms=1), point="test"
        )
        assert (await everything(house, unread=False))["envelopes"] == 1
        await holds(house)


async def test_what_waits_or_is_worked_on_stays_however_old_it_is(household: LocalInstance) -> None:
    async with household.run() as house:
        slow = await house.send("be slow")
        await house.wait_for(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        later = await house.send("later", deliver_at=household.clock.now() + timedelta(days=30))
        household.clock.jump(timedelta(days=7))
        await everything(house)
        for id_ in (slow.envelope, later.envelope):
            assert (await house.get_envelope(id_)).status != "done"
        await holds(house)
        house.crash()


async def test_the_letters_of_one_run_go_together(household: LocalInstance) -> None:
    async with household.run() as house:
        await house.send("be slow")
        first = [await house.send(f"letter {number}") for number in range(3)]
        await house.wait_for(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        await household.clock.advance(700)
        answers_ = {(await house.wait_for_outcome(each.envelope)).answer for each in first}
        assert len(answers_) == 1
        await a_week_passes(house)
        await house.execute_sql(
            "UPDATE envelopes SET settled_ms = :now WHERE id = :id", now=2**41, id=first[0].envelope
        )
        await everything(house)
        for each in first:
            await house.get_envelope(each.envelope)
        await holds(house)


async def test_dead_letters_go_together_with_their_retries(household: LocalInstance) -> None:
    async with household.run() as house:
        failed = await house.send("fail")
        await house.wait_for_outcome(failed.envelope)
        await a_week_passes(house)
        retried = await try_again(house, failed.envelope)
        await house.wait_for_outcome(retried)
        await house.wait_until_idle()
        await everything(house)
        await house.get_envelope(failed.envelope)  # its retry is not old enough
        await a_week_passes(house)
        await house.wait_for_answer((await house.send("hello")).envelope)
        await everything(house)
        with pytest.raises(NotFound):
            await try_again(house, retried)
        await holds(house)


async def test_threads_and_why_say_that_something_was_purged(household: LocalInstance) -> None:
    async with household.run() as house:
        first = await house.send("hello")
        await house.wait_for_outcome(first.envelope)
        await a_week_passes(house)
        second = await house.send("and?", reply_to=first.envelope)
        await house.wait_for_outcome(second.envelope)
        tool = await house.send("use a tool")
        await house.wait_for_outcome(tool.envelope)
        await house.wait_until_idle()
        await everything(house)
        found = await house.store.scan(partial(get_reply_thread, id_text=second.envelope))
        assert (found.total, found.whole, found.purged) == (1, False, True)
        told = "\n".join(
            (await house.store.scan(partial(explain, id_text=second.envelope))).format_lines(household.zone)
        )
        assert "which was purged." in told
        with pytest.raises(NotFound) as gone:
            await house.store.scan(partial(explain, id_text=first.envelope))
        assert gone.value.code == "envelope.purged"
        # Steps go before their letters where only runs are purged: nothing untrue may be said of them.
        horizon = PurgeHorizon(runs_ms=to_ms(household.clock.now()) + 1)
        await run_purge(house.store, AttachmentFiles(household.root / "files"), horizon, clock=household.clock)
        told = "\n".join((await house.store.scan(partial(explain, id_text=tool.envelope))).format_lines(household.zone))
        assert "Its steps were purged;" in told
        assert "was not made" not in told
        await holds(house)


async def test_a_dry_run_counts_what_would_go_and_changes_nothing(household: LocalInstance) -> None:
    async with household.run() as house:
        for text in ("hello", "use a tool", "fail", "hush"):
            await house.wait_for_outcome((await house.send(text)).envelope)
        await a_week_passes(house)
        await house.wait_for_outcome((await house.send("hello")).envelope)
        await house.wait_until_idle()
        ms = days(house, 1)
        horizon = PurgeHorizon(envelopes_ms=ms, runs_ms=ms, include_unread=True)
        files = AttachmentFiles(household.root / "files")
        before = await rows(house, "envelopes")
        would = await count_purgeable(house.store, files, horizon, now=household.clock.now())
        assert await rows(house, "envelopes") == before
        assert would.counts["envelopes"] > 4
        went = await run_purge(house.store, files, horizon, clock=household.clock)
        assert dict(went.counts) == dict(would.counts)


async def test_files_that_no_envelope_names_go_and_those_just_handed_in_stay(household: LocalInstance) -> None:
    files = AttachmentFiles(household.root / "files")
    named, unnamed, young = (files.store([name], name="a", media_type="text/plain") for name in (b"1", b"2", b"3"))
    elsewhere = AttachmentFiles(
        household.root / "files"
    )  # as after a restart: what was being handed in then never arrived
    for each in (named, unnamed):
        os.utime(elsewhere.path(each.hash), (1, 1))
    async with household.run() as house:
        await house.send("see this", attachments=(named,))
        await house.wait_until_idle()
        went = await run_purge(house.store, elsewhere, PurgeHorizon(), clock=household.clock)
        assert went.counts["files"] == 1
        assert [elsewhere.verify(each.hash) for each in (named, unnamed, young)] == [True, False, True]
        os.utime(elsewhere.path(young.hash), (1, 1))
        again = elsewhere.store([b"3"], name="a", media_type="text/plain")
        assert again.hash == young.hash
        await run_purge(house.store, elsewhere, PurgeHorizon(), clock=household.clock)
        assert elsewhere.verify(young.hash)


async def test_files_go_with_the_last_envelope_that_names_them(household: LocalInstance) -> None:
    files = AttachmentFiles(household.root / "files")
    kept: Attachment = files.store([b"1"], name="a", media_type="text/plain")
    os.utime(files.path(kept.hash), (1, 1))
    async with household.run() as house:
        await house.wait_for_outcome((await house.send("see this", attachments=(kept,))).envelope)
        await a_week_passes(house)
        await house.wait_for_outcome((await house.send("hello")).envelope)
        await house.wait_until_idle()
        assert (await everything(house))["files"] == 1


async def test_labels_go_with_the_files_they_are_about_and_stay_with_those_that_are_here(
    household: LocalInstance,
) -> None:
    files = AttachmentFiles(household.root / "files")
    gone, here = (files.store([each], name="a", media_type="text/plain") for each in (b"1", b"2"))
    paths = [str(household.root / name) for name in ("gone.txt", "here.txt")]
    Path(paths[1]).touch()
    async with household.run() as house:
        now_ms = to_ms(household.clock.now())
        await house.store.write(partial(file_trust.mark_untrusted, paths=paths, at_ms=now_ms, run=None), point="test")
        await house.wait_for_outcome((await house.send("see this", attachments=(gone,))).envelope)
        assert await rows(house, "file_labels") == 3
        await run_purge(house.store, files, PurgeHorizon(), clock=household.clock)
        assert await rows(house, "file_labels") == 3, "a label is made before its file: a young one waits"
        await a_week_passes(house)
        await house.wait_for_outcome((await house.send("and this", attachments=(here,))).envelope)
        await house.wait_until_idle()
        os.utime(files.path(gone.hash), (1, 1))
        assert (await everything(house))["files"] == 1
        left = {row.path for row in await house.execute_sql("SELECT path FROM file_labels")}
        assert left == {paths[1], f"sha256:{here.hash}"}


async def test_old_answers_and_expired_tokens_go_and_revoked_ones_stay_known(household: LocalInstance) -> None:
    async with household.run() as house:
        now = household.clock.now()

        def settle_in(conn: Any) -> None:
            for key, body in (("k", "{}"), ("cut off", idempotency.CLAIMED)):
                answer = idempotency.StoredResponse("x.y", "hash", body, to_ms(now))
                idempotency.insert(conn, principal="person:maria", key=key, response=answer)
            for number, expires in enumerate((timedelta(days=1), None)):
                token = Token(
                    id=TokenId(f"{number:032x}"),
                    kind=TokenKind.TOKEN,
                    principal=address.person_address("maria"),
                    label="",
                    created_at=now,
                    expires_at=now + expires if expires else None,
                )
                tokens.add(conn, token, f"hash-{number}")
                tokens.revoke(conn, token.id, at_ms=to_ms(now))

        await house.store.write(settle_in, point="test")
        household.clock.jump(timedelta(days=40))
        went = await everything(house)
        assert (went["answers"], went["tokens"]) == (2, 1)
        assert await house.store.scan(partial(tokens.is_known, token_hash="hash-1"))


async def try_again(house: LocalServer, id_: str) -> EnvelopeId:
    body = partial(
        requeue_dead_letter,
        id_text=id_,
        new_id=EnvelopeId(house.instance.ids.new()),
        now_ms=to_ms(house.instance.clock.now()),
    )
    entered = await house.store.write(body, point="retry")
    for wake in entered.wakes:
        house.engine.wake(wake)
    return entered.receipt.envelope


class Life:
    """A house in which anything happens in any order, purges among it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent: dict[str, tuple[str, str, str, str]] = {}
        self.numbers = 0

    async def live(self, house: LocalServer, steps: int) -> None:
        acts = (
            self.post,
            self.post,
            self.post,
            self.channel,
            self.retry,
            self.decide,
            self.read,
            self.days,
            self.purge,
        )
        for _ in range(steps):
            await self.random.choice(acts)(house)
        await self.purge(house)
        await self.everything_can_be_asked_about(house)

    async def post(self, house: LocalServer) -> None:
        self.numbers += 1
        sender = self.random.choice(("person:maria", "person:noor"))
        agent, text = self.random.choice(AGENTS).name, self.random.choice(TEXTS)
        key = f"key-{self.numbers}"
        earlier = list(self.sent)
        reply_to = EnvelopeId(self.random.choice(earlier)) if earlier and self.random.random() < 0.3 else None
        silent = self.random.random() < 0.1
        receipt = await house.send(
            text, sender=sender, recipient=f"agent:{agent}", key=key, reply_to=reply_to, silent=silent
        )
        self.sent[receipt.envelope] = (text, sender, f"agent:{agent}", key)
        if self.random.random() < 0.7:
            await self.rest(house)

    async def channel(self, house: LocalServer) -> None:
        quiet = house.instance.connectors["quiet"]
        assert isinstance(quiet, FakeConnector)
        if self.random.random() < 0.5:
            quiet.will_fail(channel="42", permanent=True)
        await house.send("to the world", sender="agent:ada", recipient="channel:quiet:42")
        await self.rest(house)

    async def retry(self, house: LocalServer) -> None:
        letters = await house.store.scan(partial(dead_letters.load_dead_letters, limit=20))
        if letters:
            try:
                await try_again(house, self.random.choice(letters).envelope.id)
            except RetinueError as refused:
                assert refused.code.startswith("dead.")
        await self.rest(house)

    async def decide(self, house: LocalServer) -> None:
        waiting = await house.store.scan(partial(approvals.list_open, limit=20))
        if waiting:
            approval, allow = self.random.choice(waiting).id, self.random.random() < 0.5
            try:
                await house.engine.answer_approval(approval, allow=allow, by=boss_principal("maria"))
            except RetinueError as refused:  # its time is over, and the clock has not been looked at yet
                assert refused.code == "approval.not_open"
        await self.rest(house)

    async def read(self, house: LocalServer) -> None:
        person = self.random.choice(("maria", "noor"))
        found = await house.store.scan(partial(envelope_lists.list_unread, person=person, limit=5))
        if found:
            ids = [each.id for each in found]
            await house.store.write(
                partial(envelope_lists.mark_read, ids=list(ids), person=person, at_ms=1), point="test"
            )

    async def days(self, house: LocalServer) -> None:
        await house.instance.clock.advance(self.random.choice((60, 700, 86_400, 200_000)))
        await self.rest(house)

    async def rest(self, house: LocalServer) -> None:
        for _ in range(20):
            await asyncio.sleep(0.002)  # sleep: some room for what goes on; what is checked holds at any moment
            if not (house.engine.active_lanes or house.outbox.active_count):
                return

    async def purge(self, house: LocalServer) -> None:
        envelopes_ms, news_ms, runs_ms = (
            days(house, self.random.choice((0, 1, 3))) if self.random.random() < 0.6 else None for _ in range(3)
        )
        horizon = PurgeHorizon(
            envelopes_ms=envelopes_ms, events_ms=news_ms, runs_ms=runs_ms, include_unread=self.random.random() < 0.5
        )
        await run_purge(
            house.store, AttachmentFiles(house.instance.root / "files"), horizon, clock=house.instance.clock
        )
        assert isinstance(house.store, Watched)
        assert house.store.wrong == []
        if self.sent:
            await self.comes_again(house, self.random.choice(list(self.sent)))

    async def comes_again(self, house: LocalServer, id_: str) -> None:
        text, sender, recipient, key = self.sent[id_]
        again = await house.send(text, sender=sender, recipient=recipient, key=key)
        assert (again.envelope, again.duplicate) == (id_, True)
        with pytest.raises(Conflict):
            await house.send(f"{text}!", sender=sender, recipient=recipient, key=key)

    async def everything_can_be_asked_about(self, house: LocalServer) -> None:
        for id_ in [
            row[0] for row in await house.execute_sql("SELECT id FROM envelopes UNION ALL SELECT id FROM runs")
        ]:
            (await house.store.scan(partial(explain, id_text=id_))).format_lines(house.instance.zone)
        for id_ in self.sent:
            try:
                await house.store.scan(partial(get_reply_thread, id_text=id_))
                await house.store.scan(partial(explain, id_text=id_))
            except NotFound as gone:
                assert gone.code == "envelope.purged"
        await house.store.scan(partial(dead_letters.load_dead_letters, limit=100))
        await house.store.scan(partial(events.list_after, cursor=0, limit=10_000))


@pytest.mark.parametrize("seed", range(int(os.environ.get("RETINUE_PURGE_SEEDS", "4"))))
async def test_the_ledger_holds_and_keys_are_known_whatever_happens_between_purges(seed: int, tmp_path: Path) -> None:
    household = furnished(tmp_path)
    household.wrap_store = Watched
    life = Life(seed)
    async with household.run() as house:
        await life.live(house, 60)
        house.crash()
    async with household.run() as house:
        await life.live(house, 40)
        assert isinstance(house.store, Watched)
        household.clock.jump(timedelta(days=3))
        await everything(house)
        assert house.store.wrong == []
        assert (await house.execute_sql("SELECT sum(purged) FROM tally"))[0][0] > 10
        await holds(house)
        house.crash()


async def test_the_same_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    household = furnished(tmp_path, postgres_url)
    household.wrap_store = Watched
    async with household.run(drain_s=0) as house:
        await Life(7).live(house, 40)
        await holds(house)


async def test_a_purge_is_made_of_short_commits(household: LocalInstance) -> None:
    household.wrap_store = Watched
    async with household.run() as house:
        for number in range(purge.SCANNED_PER_BATCH_MAX + 20):
            await house.send(f"note {number}", recipient="person:noor")
        await a_week_passes(house)
        went = await everything(house)
        assert went["envelopes"] == purge.SCANNED_PER_BATCH_MAX + 19
        assert isinstance(house.store, Watched)
        assert house.store.purges >= 5
        assert house.store.wrong == []


async def test_the_house_tidies_itself_as_its_settings_say(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        await desk.converse(person("owner"), "hello")
        await a_week_passes(desk.house)
        await desk.converse(person("owner"), "hello again")
        await desk.house.wait_until_idle()
        before = await rows(desk.house, "envelopes")
        wanted = RetentionSettings()
        tidying = asyncio.create_task(purge_daily(desk.desk, lambda: wanted))
        await asyncio.sleep(0)
        await household.clock.advance(FIRST_PURGE_S)
        await wait_until(lambda: PURGE_INTERVAL_S in household.clock.remaining_sleeps(), "it purged and waits again")
        assert await rows(desk.house, "envelopes") == before  # nothing is set: nothing goes
        wanted = RetentionSettings(done_days=3)
        await household.clock.advance(PURGE_INTERVAL_S)
        await desk.house.wait_for(
            lambda conn: conn.execute(sa.text("SELECT count(*) FROM envelopes")).scalar_one() < before, what="a purge"
        )
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)
        await holds(desk.house)


async def test_only_the_owner_purges_and_days_are_bounded(household: LocalInstance) -> None:
    async with desk_house(household) as desk:
        with pytest.raises(NotAllowed):
            await desk.ask(person("maria"), "house.purge")
        for number in (0, -1, 10**9):
            with pytest.raises(Invalid):
                await desk.ask(person("owner"), "house.purge", done_days=number)
        assert (await desk.ask(person("owner"), "house.purge", done_days=1))["envelopes"] == 0
