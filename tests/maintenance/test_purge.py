"""Purging: old and done data is deleted, the ledger holds after every commit, and duplicates are recognized."""

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
from operations.operations_instance import open_operations_server, person

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
from retinue.store.envelopes import dead_letters, inbox
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.envelopes.reply_threads import get_reply_thread
from retinue.store.ledger import ledger
from retinue.store.maintenance import purge
from retinue.store.maintenance.purge import PurgeHorizon
from retinue.store.people import tokens
from retinue.store.runs import approvals
from retinue.store.runs.explanations import explain
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.wait_conditions import wait_until

T = TypeVar("T")

AGENTS = (
    Agent(name="ada", model="scripted"),
    Agent(name="careful", model="scripted", tools=ToolRules(ask=("append_line",))),
    Agent(name="once", model="scripted", crash_policy=CrashPolicy.AT_MOST_ONCE),
    Agent(name="quick", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER)),
)
TEXTS = ("hello", "use a tool", "fail", "hush", "be slow")


@dataclass
class LedgerCheckingStore:
    """A store that checks the ledger after each commit of a purge."""

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
def instance(tmp_path: Path) -> LocalInstance:
    return make_instance(tmp_path)


def make_instance(root: Path, url: str | None = None) -> LocalInstance:
    instance = LocalInstance(root, url=url, agents=AGENTS, people=("maria", "noor", "owner"))
    instance.connectors["quiet"] = FakeConnector(instance.clock)
    instance.model.rule = script
    instance.model.price_microusd = 1000
    return instance


def days(server: LocalServer, number: float) -> int:
    return to_ms(server.instance.clock.now() - timedelta(days=number))


async def purge_everything(server: LocalServer, *, unread: bool = True) -> dict[str, int]:
    """Purge everything that can be purged and is older than a day."""
    ms = days(server, 1)
    horizon = PurgeHorizon(envelopes_ms=ms, events_ms=ms, runs_ms=ms, include_unread=unread)
    files = AttachmentFiles(server.instance.root / "files")
    return dict((await run_purge(server.store, files, horizon, clock=server.instance.clock)).counts)


async def assert_ledger_holds(server: LocalServer) -> None:
    checked = await server.store.scan(partial(ledger.check_ledger, now_ms=to_ms(server.instance.clock.now())))
    assert checked.is_ok, checked.lines()


async def rows(server: LocalServer, table: str) -> int:
    return (await server.execute_sql(f"SELECT count(*) FROM {table}"))[0][0]


async def pass_a_week(server: LocalServer) -> None:
    await server.wait_until_idle()
    server.instance.clock.jump(timedelta(days=7))


async def test_a_purge_removes_old_done_envelopes_and_runs_and_the_ledger_holds(instance: LocalInstance) -> None:
    async with instance.run() as server:
        old = await server.send("hello")
        await server.wait_for_answer(old.envelope)
        await pass_a_week(server)
        new = await server.send("hello again")
        await server.wait_for_answer(new.envelope)
        await server.wait_until_idle()
        went = await purge_everything(server)
        assert (went["envelopes"], went["runs"]) == (2, 1)
        await assert_ledger_holds(server)
        assert await rows(server, "envelopes") == 2
        assert await rows(server, "runs") == 1
        assert len(await server.list_records(new.session)) > 4  # the conversation stays for the agent
        assert (await purge_everything(server))["envelopes"] == 0


async def test_a_purge_keeps_the_newest_envelope_and_the_newest_event(instance: LocalInstance) -> None:
    async with instance.run() as server:
        for _ in range(3):
            await server.wait_for_answer((await server.send("hello")).envelope)
        await pass_a_week(server)
        newest = await server.store.scan(events.newest_seq)
        await purge_everything(server)
        await assert_ledger_holds(server)
        assert await rows(server, "envelopes") >= 1
        assert await server.store.scan(events.oldest_seq) == newest
        receipt = await server.send("and on we go")
        assert await server.wait_for_answer(receipt.envelope) == "very well"
        await assert_ledger_holds(server)


async def test_an_idempotency_key_is_kept_thirty_days_longer_than_its_purged_envelope(instance: LocalInstance) -> None:
    async with instance.run() as server:
        first = await server.send("hello", key="k1")
        await server.wait_for_answer(first.envelope)
        await server.wait_for_answer((await server.send("hello", key="k2")).envelope)
        await pass_a_week(server)
        await purge_everything(server)
        again = await server.send("hello", key="k1")
        assert (again.envelope, again.duplicate, again.session) == (first.envelope, True, first.session)
        assert again.outcome == "answered"
        with pytest.raises(Conflict) as conflict:
            await server.send("something else", key="k1")
        assert conflict.value.code == "key.reused"
        instance.clock.jump(timedelta(days=31))
        assert (await purge_everything(server))["idempotency_keys"] > 0
        assert not (await server.send("something else", key="k1")).duplicate
        await assert_ledger_holds(server)


async def test_an_edit_of_a_purged_message_is_recognized_as_an_edit(instance: LocalInstance) -> None:
    quiet = instance.connectors["quiet"]
    assert isinstance(quiet, FakeConnector)
    async with instance.run() as server:
        inbound = await quiet.send_inbound("is anybody there?", message_id="7")
        assert inbound is not None
        await server.wait_for_outcome(inbound.envelope)
        await quiet.send_inbound("anything else?", message_id="8")
        await pass_a_week(server)
        await purge_everything(server)
        again = await quiet.send_inbound("is anybody there?", message_id="7")
        assert again is not None
        assert (again.envelope, again.duplicate) == (inbound.envelope, True)
        edited = await quiet.send_inbound("is everybody there?", message_id="7")
        assert edited is not None
        assert not edited.duplicate
        assert "[edit" in (await server.get_envelope(edited.envelope)).text


async def test_a_purge_keeps_unread_envelopes_unless_include_unread_is_set(instance: LocalInstance) -> None:
    async with instance.run() as server:
        note = await server.send("a note for you", recipient="person:noor")
        await server.wait_for_answer((await server.send("hello")).envelope)
        await pass_a_week(server)
        await purge_everything(server, unread=False)
        assert (await server.get_envelope(note.envelope)).text == "a note for you"
        await server.store.write(partial(inbox.mark_read, ids=[note.envelope], person="noor", at_ms=1), point="test")
        assert (await purge_everything(server, unread=False))["envelopes"] == 1
        await assert_ledger_holds(server)


async def test_a_purge_keeps_pending_and_claimed_envelopes_of_any_age(instance: LocalInstance) -> None:
    async with instance.run() as server:
        slow = await server.send("be slow")
        await server.wait_for(lambda _: len(instance.model.prompts) == 1, what="the model to be asked")
        later = await server.send("later", deliver_at=instance.clock.now() + timedelta(days=30))
        instance.clock.jump(timedelta(days=7))
        await purge_everything(server)
        for id_ in (slow.envelope, later.envelope):
            assert (await server.get_envelope(id_)).status != "done"
        await assert_ledger_holds(server)
        server.crash()


async def test_envelopes_of_one_run_are_purged_only_together(instance: LocalInstance) -> None:
    async with instance.run() as server:
        await server.send("be slow")
        first = [await server.send(f"message {number}") for number in range(3)]
        await server.wait_for(lambda _: len(instance.model.prompts) == 1, what="the model to be asked")
        await instance.clock.advance(700)
        answers_ = {(await server.wait_for_outcome(each.envelope)).answer for each in first}
        assert len(answers_) == 1
        await pass_a_week(server)
        await server.execute_sql(
            "UPDATE envelopes SET settled_ms = :now WHERE id = :id", now=2**41, id=first[0].envelope
        )
        await purge_everything(server)
        for each in first:
            await server.get_envelope(each.envelope)
        await assert_ledger_holds(server)


async def test_dead_letters_are_purged_only_together_with_their_retries(instance: LocalInstance) -> None:
    async with instance.run() as server:
        failed = await server.send("fail")
        await server.wait_for_outcome(failed.envelope)
        await pass_a_week(server)
        retried = await retry_dead_letter(server, failed.envelope)
        await server.wait_for_outcome(retried)
        await server.wait_until_idle()
        await purge_everything(server)
        await server.get_envelope(failed.envelope)  # kept, because its retry is not old enough
        await pass_a_week(server)
        await server.wait_for_answer((await server.send("hello")).envelope)
        await purge_everything(server)
        with pytest.raises(NotFound):
            await retry_dead_letter(server, retried)
        await assert_ledger_holds(server)


async def test_reply_threads_and_explanations_report_that_an_envelope_was_purged(instance: LocalInstance) -> None:
    async with instance.run() as server:
        first = await server.send("hello")
        await server.wait_for_outcome(first.envelope)
        await pass_a_week(server)
        second = await server.send("and?", reply_to=first.envelope)
        await server.wait_for_outcome(second.envelope)
        tool = await server.send("use a tool")
        await server.wait_for_outcome(tool.envelope)
        await server.wait_until_idle()
        await purge_everything(server)
        found = await server.store.scan(partial(get_reply_thread, id_text=second.envelope))
        assert (found.total, found.whole, found.purged) == (1, False, True)
        explanation = "\n".join(
            (await server.store.scan(partial(explain, id_text=second.envelope))).format_lines(instance.zone)
        )
        assert "which was purged." in explanation
        with pytest.raises(NotFound) as gone:
            await server.store.scan(partial(explain, id_text=first.envelope))
        assert gone.value.code == "envelope.purged"
        # If only runs are purged, their steps go before their envelopes: the explanation must stay true.
        horizon = PurgeHorizon(runs_ms=to_ms(instance.clock.now()) + 1)
        await run_purge(server.store, AttachmentFiles(instance.root / "files"), horizon, clock=instance.clock)
        explanation = "\n".join(
            (await server.store.scan(partial(explain, id_text=tool.envelope))).format_lines(instance.zone)
        )
        assert "Its steps were purged;" in explanation
        assert "was not made" not in explanation
        await assert_ledger_holds(server)


async def test_a_purge_dry_run_counts_and_changes_nothing(instance: LocalInstance) -> None:
    async with instance.run() as server:
        for text in ("hello", "use a tool", "fail", "hush"):
            await server.wait_for_outcome((await server.send(text)).envelope)
        await pass_a_week(server)
        await server.wait_for_outcome((await server.send("hello")).envelope)
        await server.wait_until_idle()
        ms = days(server, 1)
        horizon = PurgeHorizon(envelopes_ms=ms, runs_ms=ms, include_unread=True)
        files = AttachmentFiles(instance.root / "files")
        before = await rows(server, "envelopes")
        would = await count_purgeable(server.store, files, horizon, now=instance.clock.now())
        assert await rows(server, "envelopes") == before
        assert would.counts["envelopes"] > 4
        went = await run_purge(server.store, files, horizon, clock=instance.clock)
        assert dict(went.counts) == dict(would.counts)


async def test_a_purge_removes_unreferenced_files_except_recent_uploads(instance: LocalInstance) -> None:
    files = AttachmentFiles(instance.root / "files")
    named, unnamed, young = (files.store([name], name="a", media_type="text/plain") for name in (b"1", b"2", b"3"))
    elsewhere = AttachmentFiles(instance.root / "files")  # as after a restart: the upload that was in progress is lost
    for each in (named, unnamed):
        os.utime(elsewhere.path(each.hash), (1, 1))
    async with instance.run() as server:
        await server.send("see this", attachments=(named,))
        await server.wait_until_idle()
        went = await run_purge(server.store, elsewhere, PurgeHorizon(), clock=instance.clock)
        assert went.counts["files"] == 1
        assert [elsewhere.verify(each.hash) for each in (named, unnamed, young)] == [True, False, True]
        os.utime(elsewhere.path(young.hash), (1, 1))
        again = elsewhere.store([b"3"], name="a", media_type="text/plain")
        assert again.hash == young.hash
        await run_purge(server.store, elsewhere, PurgeHorizon(), clock=instance.clock)
        assert elsewhere.verify(young.hash)


async def test_a_file_is_purged_with_the_last_envelope_that_references_it(instance: LocalInstance) -> None:
    files = AttachmentFiles(instance.root / "files")
    kept: Attachment = files.store([b"1"], name="a", media_type="text/plain")
    os.utime(files.path(kept.hash), (1, 1))
    async with instance.run() as server:
        await server.wait_for_outcome((await server.send("see this", attachments=(kept,))).envelope)
        await pass_a_week(server)
        await server.wait_for_outcome((await server.send("hello")).envelope)
        await server.wait_until_idle()
        assert (await purge_everything(server))["files"] == 1


async def test_a_purge_removes_trust_labels_of_missing_files_only(
    instance: LocalInstance,
) -> None:
    files = AttachmentFiles(instance.root / "files")
    gone, here = (files.store([each], name="a", media_type="text/plain") for each in (b"1", b"2"))
    paths = [str(instance.root / name) for name in ("gone.txt", "here.txt")]
    Path(paths[1]).touch()
    async with instance.run() as server:
        now_ms = to_ms(instance.clock.now())
        await server.store.write(partial(file_trust.mark_untrusted, paths=paths, at_ms=now_ms, run=None), point="test")
        await server.wait_for_outcome((await server.send("see this", attachments=(gone,))).envelope)
        assert await rows(server, "file_trust") == 3
        await run_purge(server.store, files, PurgeHorizon(), clock=instance.clock)
        assert await rows(server, "file_trust") == 3, "a label is made before its file, so a new one stays"
        await pass_a_week(server)
        await server.wait_for_outcome((await server.send("and this", attachments=(here,))).envelope)
        await server.wait_until_idle()
        os.utime(files.path(gone.hash), (1, 1))
        assert (await purge_everything(server))["files"] == 1
        left = {row.path for row in await server.execute_sql("SELECT path FROM file_trust")}
        assert left == {paths[1], f"sha256:{here.hash}"}


async def test_a_purge_removes_old_stored_answers_and_expired_tokens_and_keeps_revoked_ones(
    instance: LocalInstance,
) -> None:
    async with instance.run() as server:
        now = instance.clock.now()

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

        await server.store.write(settle_in, point="test")
        instance.clock.jump(timedelta(days=40))
        went = await purge_everything(server)
        assert (went["stored_answers"], went["tokens"]) == (2, 1)
        assert await server.store.scan(partial(tokens.is_known, token_hash="hash-1"))


async def retry_dead_letter(server: LocalServer, id_: str) -> EnvelopeId:
    body = partial(
        requeue_dead_letter,
        id_text=id_,
        new_id=EnvelopeId(server.instance.ids.new()),
        now_ms=to_ms(server.instance.clock.now()),
    )
    entered = await server.store.write(body, point="retry")
    for wake in entered.wakes:
        server.engine.wake(wake)
    return entered.receipt.envelope


class RandomTraffic:
    """An instance with random traffic and random purges."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent: dict[str, tuple[str, str, str, str]] = {}
        self.numbers = 0

    async def perform_random_acts(self, server: LocalServer, steps: int) -> None:
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
            await self.random.choice(acts)(server)
        await self.purge(server)
        await self.explain_everything(server)

    async def post(self, server: LocalServer) -> None:
        self.numbers += 1
        sender = self.random.choice(("person:maria", "person:noor"))
        agent, text = self.random.choice(AGENTS).name, self.random.choice(TEXTS)
        key = f"key-{self.numbers}"
        earlier = list(self.sent)
        reply_to = EnvelopeId(self.random.choice(earlier)) if earlier and self.random.random() < 0.3 else None
        silent = self.random.random() < 0.1
        receipt = await server.send(
            text, sender=sender, recipient=f"agent:{agent}", key=key, reply_to=reply_to, silent=silent
        )
        self.sent[receipt.envelope] = (text, sender, f"agent:{agent}", key)
        if self.random.random() < 0.7:
            await self.wait_for_all_runs(server)

    async def channel(self, server: LocalServer) -> None:
        quiet = server.instance.connectors["quiet"]
        assert isinstance(quiet, FakeConnector)
        if self.random.random() < 0.5:
            quiet.will_fail(channel="42", permanent=True)
        await server.send("to the world", sender="agent:ada", recipient="channel:quiet:42")
        await self.wait_for_all_runs(server)

    async def retry(self, server: LocalServer) -> None:
        dead = await server.store.scan(partial(dead_letters.load_dead_letters, limit=20))
        if dead:
            try:
                await retry_dead_letter(server, self.random.choice(dead).envelope.id)
            except RetinueError as refused:
                assert refused.code.startswith("dead.")
        await self.wait_for_all_runs(server)

    async def decide(self, server: LocalServer) -> None:
        waiting = await server.store.scan(partial(approvals.list_open, limit=20))
        if waiting:
            approval, allow = self.random.choice(waiting).id, self.random.random() < 0.5
            try:
                await server.engine.answer_approval(approval, allow=allow, by=boss_principal("maria"))
            except RetinueError as refused:  # it has expired, but the clock has not been checked yet
                assert refused.code == "approval.not_open"
        await self.wait_for_all_runs(server)

    async def read(self, server: LocalServer) -> None:
        person = self.random.choice(("maria", "noor"))
        found = await server.store.scan(partial(inbox.list_unread, person=person, limit=5))
        if found:
            ids = [each.id for each in found]
            await server.store.write(partial(inbox.mark_read, ids=list(ids), person=person, at_ms=1), point="test")

    async def days(self, server: LocalServer) -> None:
        await server.instance.clock.advance(self.random.choice((60, 700, 86_400, 200_000)))
        await self.wait_for_all_runs(server)

    async def wait_for_all_runs(self, server: LocalServer) -> None:
        for _ in range(20):
            await asyncio.sleep(0.002)  # sleep: lets other tasks run; the check holds at any moment
            if not (server.engine.active_lanes or server.outbox.active_count):
                return

    async def purge(self, server: LocalServer) -> None:
        envelopes_ms, news_ms, runs_ms = (
            days(server, self.random.choice((0, 1, 3))) if self.random.random() < 0.6 else None for _ in range(3)
        )
        horizon = PurgeHorizon(
            envelopes_ms=envelopes_ms, events_ms=news_ms, runs_ms=runs_ms, include_unread=self.random.random() < 0.5
        )
        await run_purge(
            server.store, AttachmentFiles(server.instance.root / "files"), horizon, clock=server.instance.clock
        )
        assert isinstance(server.store, LedgerCheckingStore)
        assert server.store.wrong == []
        if self.sent:
            await self.send_again(server, self.random.choice(list(self.sent)))

    async def send_again(self, server: LocalServer, id_: str) -> None:
        text, sender, recipient, key = self.sent[id_]
        again = await server.send(text, sender=sender, recipient=recipient, key=key)
        assert (again.envelope, again.duplicate) == (id_, True)
        with pytest.raises(Conflict):
            await server.send(f"{text}!", sender=sender, recipient=recipient, key=key)

    async def explain_everything(self, server: LocalServer) -> None:
        for id_ in [
            row[0] for row in await server.execute_sql("SELECT id FROM envelopes UNION ALL SELECT id FROM runs")
        ]:
            (await server.store.scan(partial(explain, id_text=id_))).format_lines(server.instance.zone)
        for id_ in self.sent:
            try:
                await server.store.scan(partial(get_reply_thread, id_text=id_))
                await server.store.scan(partial(explain, id_text=id_))
            except NotFound as gone:
                assert gone.code == "envelope.purged"
        await server.store.scan(partial(dead_letters.load_dead_letters, limit=100))
        await server.store.scan(partial(events.list_after, cursor=0, limit=10_000))


@pytest.mark.parametrize("seed", range(int(os.environ.get("RETINUE_PURGE_SEEDS", "4"))))
async def test_with_random_traffic_between_purges_the_ledger_holds_and_idempotency_keys_stay_known(
    seed: int, tmp_path: Path
) -> None:
    instance = make_instance(tmp_path)
    instance.wrap_store = LedgerCheckingStore
    traffic = RandomTraffic(seed)
    async with instance.run() as server:
        await traffic.perform_random_acts(server, 60)
        server.crash()
    async with instance.run() as server:
        await traffic.perform_random_acts(server, 40)
        assert isinstance(server.store, LedgerCheckingStore)
        instance.clock.jump(timedelta(days=3))
        await purge_everything(server)
        assert server.store.wrong == []
        assert (await server.execute_sql("SELECT sum(purged) FROM accepted_counts"))[0][0] > 10
        await assert_ledger_holds(server)
        server.crash()


async def test_random_traffic_and_purges_keep_the_ledger_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    instance = make_instance(tmp_path, postgres_url)
    instance.wrap_store = LedgerCheckingStore
    async with instance.run(drain_s=0) as server:
        await RandomTraffic(7).perform_random_acts(server, 40)
        await assert_ledger_holds(server)


async def test_a_purge_commits_in_batches(instance: LocalInstance) -> None:
    instance.wrap_store = LedgerCheckingStore
    async with instance.run() as server:
        for number in range(purge.SCANNED_PER_BATCH_MAX + 20):
            await server.send(f"note {number}", recipient="person:noor")
        await pass_a_week(server)
        went = await purge_everything(server)
        assert went["envelopes"] == purge.SCANNED_PER_BATCH_MAX + 19
        assert isinstance(server.store, LedgerCheckingStore)
        assert server.store.purges >= 5
        assert server.store.wrong == []


async def test_the_daily_purge_follows_the_retention_settings(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        await operations.converse(person("owner"), "hello")
        await pass_a_week(operations.server)
        await operations.converse(person("owner"), "hello again")
        await operations.server.wait_until_idle()
        before = await rows(operations.server, "envelopes")
        wanted = RetentionSettings()
        tidying = asyncio.create_task(purge_daily(operations.services, lambda: wanted))
        await asyncio.sleep(0)
        await instance.clock.advance(FIRST_PURGE_S)
        await wait_until(lambda: PURGE_INTERVAL_S in instance.clock.remaining_sleeps(), "it purged and waits again")
        assert await rows(operations.server, "envelopes") == before  # no retention is set, so nothing is purged
        wanted = RetentionSettings(done_days=3)
        await instance.clock.advance(PURGE_INTERVAL_S)
        await operations.server.wait_for(
            lambda conn: conn.execute(sa.text("SELECT count(*) FROM envelopes")).scalar_one() < before, what="a purge"
        )
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)
        await assert_ledger_holds(operations.server)


async def test_only_the_owner_can_purge_and_an_invalid_number_of_days_is_refused(instance: LocalInstance) -> None:
    async with open_operations_server(instance) as operations:
        with pytest.raises(NotAllowed):
            await operations.ask(person("maria"), "server.purge")
        for number in (0, -1, 10**9):
            with pytest.raises(Invalid):
                await operations.ask(person("owner"), "server.purge", done_days=number)
        assert (await operations.ask(person("owner"), "server.purge", done_days=1))["envelopes"] == 0
