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

from retinue.config.settings import Retention
from retinue.domain import address
from retinue.domain.agent import Agent, Delivery, ToolRules
from retinue.domain.attachment import Attachment
from retinue.domain.errors import Conflict, Invalid, NotAllowed, NotFound, RetinueError
from retinue.domain.ids import EnvelopeId, TokenId
from retinue.domain.session import QueueMode, QueuePolicy
from retinue.domain.times import to_ms
from retinue.domain.token import Token, TokenKind
from retinue.operations.server.maintenance import TIDY_EVERY_S, TIDY_FIRST_S, purge_house, tidy_forever, would_purge
from retinue.outbox.dead_letter_retry import retry
from retinue.store.agents import file_trust
from retinue.store.core import events, idempotency
from retinue.store.core.connection import Body, Store, Then
from retinue.store.envelopes import dead_letters, envelope_lists
from retinue.store.envelopes.attachment_files import Files
from retinue.store.envelopes.reply_threads import thread
from retinue.store.ledger import ledger
from retinue.store.maintenance import purge
from retinue.store.maintenance.purge import Horizon
from retinue.store.people import tokens
from retinue.store.runs import approvals
from retinue.store.runs.why import why
from retinue.testing.fake_connector import QuietConnector
from retinue.testing.local_instance import House, Household, boss
from retinue.testing.waiting import wait_until

T = TypeVar("T")

AGENTS = (
    Agent(name="ada", model="scripted"),
    Agent(name="careful", model="scripted", tools=ToolRules(ask=("append_line",))),
    Agent(name="once", model="scripted", delivery=Delivery.AT_MOST_ONCE),
    Agent(name="quick", model="scripted", queue=QueuePolicy(mode=QueueMode.STEER)),
)
TEXTS = ("hello", "use a tool", "fail", "hush", "be slow")


@dataclass
class Watched:
    """A store whose ledger is drawn up after each commit of a purge."""

    store: Store
    wrong: list[str] = field(default_factory=list[str])
    purges: int = 0

    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        result = await self.store.write(body, point=point, then=then)
        if point == "purge":
            self.purges += 1
            checked = await self.store.scan(partial(ledger.check, now_ms=0))
            self.wrong += [line for each in checked.equations if not each.ok for line in each.lines()]
        return result

    async def read(self, body: Body[T]) -> T:
        return await self.store.read(body)

    async def scan(self, body: Body[T]) -> T:
        return await self.store.scan(body)

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        self.store.on_commit(call, *tables)

    async def close(self) -> None:
        await self.store.close()


@pytest.fixture
def household(tmp_path: Path) -> Household:
    return furnished(tmp_path)


def furnished(root: Path, url: str | None = None) -> Household:
    household = Household(root, url=url, agents=AGENTS, people=("maria", "noor", "owner"))
    household.connectors["quiet"] = QuietConnector(household.clock)
    household.model.rule = script
    household.model.price_microusd = 1000
    return household


def days(house: House, number: float) -> int:
    return to_ms(house.household.clock.now() - timedelta(days=number))


async def everything(house: House, *, unread: bool = True) -> dict[str, int]:
    """Purge all that can go, of what is older than a day."""
    ms = days(house, 1)
    horizon = Horizon(envelopes_ms=ms, news_ms=ms, runs_ms=ms, unread=unread)
    files = Files(house.household.root / "files")
    return dict((await purge_house(house.store, files, horizon, clock=house.household.clock)).counts)


async def holds(house: House) -> None:
    checked = await house.store.scan(partial(ledger.check, now_ms=to_ms(house.household.clock.now())))
    assert checked.holds, checked.lines()


async def rows(house: House, table: str) -> int:
    return (await house.sql(f"SELECT count(*) FROM {table}"))[0][0]


async def a_week_passes(house: House) -> None:
    await house.quiet()
    house.household.clock.jump(timedelta(days=7))


async def test_what_is_long_done_goes_and_the_ledger_holds(household: Household) -> None:
    async with household.open() as house:
        old = await house.post("hello")
        await house.answer_to(old.envelope)
        await a_week_passes(house)
        new = await house.post("hello again")
        await house.answer_to(new.envelope)
        await house.quiet()
        went = await everything(house)
        assert (went["envelopes"], went["runs"]) == (2, 1)
        await holds(house)
        assert await rows(house, "envelopes") == 2
        assert await rows(house, "runs") == 1
        assert len(await house.records(new.session)) > 4  # what was said is still there for the agent
        assert (await everything(house))["envelopes"] == 0


async def test_the_newest_envelope_and_the_newest_news_stay(household: Household) -> None:
    async with household.open() as house:
        for _ in range(3):
            await house.answer_to((await house.post("hello")).envelope)
        await a_week_passes(house)
        newest = await house.store.scan(events.newest)
        await everything(house)
        await holds(house)
        assert await rows(house, "envelopes") >= 1
        assert await house.store.scan(events.oldest) == newest
        receipt = await house.post("and on we go")
        assert await house.answer_to(receipt.envelope) == "very well"
        await holds(house)


async def test_a_key_outlives_its_envelope_by_thirty_days(household: Household) -> None:
    async with household.open() as house:
        first = await house.post("hello", key="k1")
        await house.answer_to(first.envelope)
        await house.answer_to((await house.post("hello", key="k2")).envelope)
        await a_week_passes(house)
        await everything(house)
        again = await house.post("hello", key="k1")
        assert (again.envelope, again.duplicate, again.session) == (first.envelope, True, first.session)
        assert again.outcome == "answered"
        with pytest.raises(Conflict) as conflict:
            await house.post("something else", key="k1")
        assert conflict.value.code == "key.reused"
        household.clock.jump(timedelta(days=31))
        assert (await everything(house))["keys"] > 0
        assert not (await house.post("something else", key="k1")).duplicate
        await holds(house)


async def test_an_edited_message_of_a_purged_one_is_still_an_edit(household: Household) -> None:
    quiet = household.connectors["quiet"]
    assert isinstance(quiet, QuietConnector)
    async with household.open() as house:
        said = await quiet.say("is anybody there?", message_id="7")
        assert said is not None
        await house.outcome(said.envelope)
        await quiet.say("anything else?", message_id="8")
        await a_week_passes(house)
        await everything(house)
        again = await quiet.say("is anybody there?", message_id="7")
        assert again is not None
        assert (again.envelope, again.duplicate) == (said.envelope, True)
        edited = await quiet.say("is everybody there?", message_id="7")
        assert edited is not None
        assert not edited.duplicate
        assert "[edit" in (await house.envelope(edited.envelope)).text


async def test_unread_mail_stays_until_it_is_asked_for_by_name(household: Household) -> None:
    async with household.open() as house:
        note = await house.post("a word for you", recipient="person:noor")
        await house.answer_to((await house.post("hello")).envelope)
        await a_week_passes(house)
        await everything(house, unread=False)
        assert (await house.envelope(note.envelope)).text == "a word for you"
        await house.store.write(
            partial(envelope_lists.mark_read, ids=[note.envelope], person="noor", at_ms=1), point="test"
        )
        assert (await everything(house, unread=False))["envelopes"] == 1
        await holds(house)


async def test_what_waits_or_is_worked_on_stays_however_old_it_is(household: Household) -> None:
    async with household.open() as house:
        slow = await house.post("be slow")
        await house.eventually(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        later = await house.post("later", deliver_at=household.clock.now() + timedelta(days=30))
        household.clock.jump(timedelta(days=7))
        await everything(house)
        for id_ in (slow.envelope, later.envelope):
            assert (await house.envelope(id_)).status != "done"
        await holds(house)
        house.crash()


async def test_the_letters_of_one_run_go_together(household: Household) -> None:
    async with household.open() as house:
        await house.post("be slow")
        first = [await house.post(f"letter {number}") for number in range(3)]
        await house.eventually(lambda _: len(household.model.prompts) == 1, what="the model to be asked")
        await household.clock.advance(700)
        answers_ = {(await house.outcome(each.envelope)).answer for each in first}
        assert len(answers_) == 1
        await a_week_passes(house)
        await house.sql("UPDATE envelopes SET settled_ms = :now WHERE id = :id", now=2**41, id=first[0].envelope)
        await everything(house)
        for each in first:
            await house.envelope(each.envelope)
        await holds(house)


async def test_dead_letters_go_together_with_their_retries(household: Household) -> None:
    async with household.open() as house:
        failed = await house.post("fail")
        await house.outcome(failed.envelope)
        await a_week_passes(house)
        retried = await try_again(house, failed.envelope)
        await house.outcome(retried)
        await house.quiet()
        await everything(house)
        await house.envelope(failed.envelope)  # its retry is not old enough
        await a_week_passes(house)
        await house.answer_to((await house.post("hello")).envelope)
        await everything(house)
        with pytest.raises(NotFound):
            await try_again(house, retried)
        await holds(house)


async def test_threads_and_why_say_that_something_was_purged(household: Household) -> None:
    async with household.open() as house:
        first = await house.post("hello")
        await house.outcome(first.envelope)
        await a_week_passes(house)
        second = await house.post("and?", reply_to=first.envelope)
        await house.outcome(second.envelope)
        tool = await house.post("use a tool")
        await house.outcome(tool.envelope)
        await house.quiet()
        await everything(house)
        found = await house.store.scan(partial(thread, id_text=second.envelope))
        assert (found.total, found.whole, found.purged) == (1, False, True)
        told = "\n".join((await house.store.scan(partial(why, id_text=second.envelope))).lines(household.zone))
        assert "which was purged since" in told
        with pytest.raises(NotFound) as gone:
            await house.store.scan(partial(why, id_text=first.envelope))
        assert gone.value.code == "envelope.purged"
        # Steps go before their letters where only runs are purged: nothing untrue may be said of them.
        horizon = Horizon(runs_ms=to_ms(household.clock.now()) + 1)
        await purge_house(house.store, Files(household.root / "files"), horizon, clock=household.clock)
        told = "\n".join((await house.store.scan(partial(why, id_text=tool.envelope))).lines(household.zone))
        assert "Its steps were purged since" in told
        assert "was not made" not in told
        await holds(house)


async def test_a_dry_run_counts_what_would_go_and_changes_nothing(household: Household) -> None:
    async with household.open() as house:
        for text in ("hello", "use a tool", "fail", "hush"):
            await house.outcome((await house.post(text)).envelope)
        await a_week_passes(house)
        await house.outcome((await house.post("hello")).envelope)
        await house.quiet()
        ms = days(house, 1)
        horizon = Horizon(envelopes_ms=ms, runs_ms=ms, unread=True)
        files = Files(household.root / "files")
        before = await rows(house, "envelopes")
        would = await would_purge(house.store, files, horizon, now=household.clock.now())
        assert await rows(house, "envelopes") == before
        assert would.counts["envelopes"] > 4
        went = await purge_house(house.store, files, horizon, clock=household.clock)
        assert dict(went.counts) == dict(would.counts)


async def test_files_that_no_envelope_names_go_and_those_just_handed_in_stay(household: Household) -> None:
    files = Files(household.root / "files")
    named, unnamed, young = (files.keep([name], name="a", media_type="text/plain") for name in (b"1", b"2", b"3"))
    elsewhere = Files(household.root / "files")  # as after a restart: what was being handed in then never arrived
    for each in (named, unnamed):
        os.utime(elsewhere.path(each.hash), (1, 1))
    async with household.open() as house:
        await house.post("see this", attachments=(named,))
        await house.quiet()
        went = await purge_house(house.store, elsewhere, Horizon(), clock=household.clock)
        assert went.counts["files"] == 1
        assert [elsewhere.verify(each.hash) for each in (named, unnamed, young)] == [True, False, True]
        os.utime(elsewhere.path(young.hash), (1, 1))
        again = elsewhere.keep([b"3"], name="a", media_type="text/plain")
        assert again.hash == young.hash
        await purge_house(house.store, elsewhere, Horizon(), clock=household.clock)
        assert elsewhere.verify(young.hash)


async def test_files_go_with_the_last_envelope_that_names_them(household: Household) -> None:
    files = Files(household.root / "files")
    kept: Attachment = files.keep([b"1"], name="a", media_type="text/plain")
    os.utime(files.path(kept.hash), (1, 1))
    async with household.open() as house:
        await house.outcome((await house.post("see this", attachments=(kept,))).envelope)
        await a_week_passes(house)
        await house.outcome((await house.post("hello")).envelope)
        await house.quiet()
        assert (await everything(house))["files"] == 1


async def test_labels_go_with_the_files_they_are_about_and_stay_with_those_that_are_here(household: Household) -> None:
    files = Files(household.root / "files")
    gone, here = (files.keep([each], name="a", media_type="text/plain") for each in (b"1", b"2"))
    paths = [str(household.root / name) for name in ("gone.txt", "here.txt")]
    Path(paths[1]).touch()
    async with household.open() as house:
        now_ms = to_ms(household.clock.now())
        await house.store.write(partial(file_trust.mark_untrusted, paths=paths, at_ms=now_ms, run=None), point="test")
        await house.outcome((await house.post("see this", attachments=(gone,))).envelope)
        assert await rows(house, "file_labels") == 3
        await purge_house(house.store, files, Horizon(), clock=household.clock)
        assert await rows(house, "file_labels") == 3, "a label is made before its file: a young one waits"
        await a_week_passes(house)
        await house.outcome((await house.post("and this", attachments=(here,))).envelope)
        await house.quiet()
        os.utime(files.path(gone.hash), (1, 1))
        assert (await everything(house))["files"] == 1
        left = {row.path for row in await house.sql("SELECT path FROM file_labels")}
        assert left == {paths[1], f"sha256:{here.hash}"}


async def test_old_answers_and_expired_tokens_go_and_revoked_ones_stay_known(household: Household) -> None:
    async with household.open() as house:
        now = household.clock.now()

        def settle_in(conn: Any) -> None:
            for key, body in (("k", "{}"), ("cut off", idempotency.CLAIMED)):
                answer = idempotency.Answer("x.y", "hash", body, to_ms(now))
                idempotency.keep(conn, principal="person:maria", key=key, answer=answer)
            for number, expires in enumerate((timedelta(days=1), None)):
                token = Token(
                    id=TokenId(f"{number:032x}"),
                    kind=TokenKind.TOKEN,
                    principal=address.person("maria"),
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


async def try_again(house: House, id_: str) -> EnvelopeId:
    body = partial(
        retry,
        id_text=id_,
        new_id=EnvelopeId(house.household.ids.new()),
        now_ms=to_ms(house.household.clock.now()),
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

    async def live(self, house: House, steps: int) -> None:
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

    async def post(self, house: House) -> None:
        self.numbers += 1
        sender = self.random.choice(("person:maria", "person:noor"))
        agent, text = self.random.choice(AGENTS).name, self.random.choice(TEXTS)
        key = f"key-{self.numbers}"
        earlier = list(self.sent)
        reply_to = EnvelopeId(self.random.choice(earlier)) if earlier and self.random.random() < 0.3 else None
        silent = self.random.random() < 0.1
        receipt = await house.post(
            text, sender=sender, recipient=f"agent:{agent}", key=key, reply_to=reply_to, silent=silent
        )
        self.sent[receipt.envelope] = (text, sender, f"agent:{agent}", key)
        if self.random.random() < 0.7:
            await self.rest(house)

    async def channel(self, house: House) -> None:
        quiet = house.household.connectors["quiet"]
        assert isinstance(quiet, QuietConnector)
        if self.random.random() < 0.5:
            quiet.will_fail(room="42", permanent=True)
        await house.post("to the world", sender="agent:ada", recipient="channel:quiet:42")
        await self.rest(house)

    async def retry(self, house: House) -> None:
        letters = await house.store.scan(partial(dead_letters.dead, limit=20))
        if letters:
            try:
                await try_again(house, self.random.choice(letters).envelope.id)
            except RetinueError as refused:
                assert refused.code.startswith("dead.")
        await self.rest(house)

    async def decide(self, house: House) -> None:
        waiting = await house.store.scan(partial(approvals.listed, limit=20))
        if waiting:
            approval, allow = self.random.choice(waiting).id, self.random.random() < 0.5
            try:
                await house.engine.answer(approval, allow=allow, by=boss("maria"))
            except RetinueError as refused:  # its time is over, and the clock has not been looked at yet
                assert refused.code == "approval.not-open"
        await self.rest(house)

    async def read(self, house: House) -> None:
        person = self.random.choice(("maria", "noor"))
        found = await house.store.scan(partial(envelope_lists.unread, person=person, limit=5))
        if found:
            ids = [each.id for each in found]
            await house.store.write(
                partial(envelope_lists.mark_read, ids=list(ids), person=person, at_ms=1), point="test"
            )

    async def days(self, house: House) -> None:
        await house.household.clock.advance(self.random.choice((60, 700, 86_400, 200_000)))
        await self.rest(house)

    async def rest(self, house: House) -> None:
        for _ in range(20):
            await asyncio.sleep(0.002)  # sleep: some room for what goes on; what is checked holds at any moment
            if not (house.engine.active or house.outbox.active):
                return

    async def purge(self, house: House) -> None:
        envelopes_ms, news_ms, runs_ms = (
            days(house, self.random.choice((0, 1, 3))) if self.random.random() < 0.6 else None for _ in range(3)
        )
        horizon = Horizon(
            envelopes_ms=envelopes_ms, news_ms=news_ms, runs_ms=runs_ms, unread=self.random.random() < 0.5
        )
        await purge_house(house.store, Files(house.household.root / "files"), horizon, clock=house.household.clock)
        assert isinstance(house.store, Watched)
        assert house.store.wrong == []
        if self.sent:
            await self.comes_again(house, self.random.choice(list(self.sent)))

    async def comes_again(self, house: House, id_: str) -> None:
        text, sender, recipient, key = self.sent[id_]
        again = await house.post(text, sender=sender, recipient=recipient, key=key)
        assert (again.envelope, again.duplicate) == (id_, True)
        with pytest.raises(Conflict):
            await house.post(f"{text}!", sender=sender, recipient=recipient, key=key)

    async def everything_can_be_asked_about(self, house: House) -> None:
        for id_ in [row[0] for row in await house.sql("SELECT id FROM envelopes UNION ALL SELECT id FROM runs")]:
            (await house.store.scan(partial(why, id_text=id_))).lines(house.household.zone)
        for id_ in self.sent:
            try:
                await house.store.scan(partial(thread, id_text=id_))
                await house.store.scan(partial(why, id_text=id_))
            except NotFound as gone:
                assert gone.code == "envelope.purged"
        await house.store.scan(partial(dead_letters.dead, limit=100))
        await house.store.scan(partial(events.after, cursor=0, limit=10_000))


@pytest.mark.parametrize("seed", range(int(os.environ.get("RETINUE_PURGE_SEEDS", "4"))))
async def test_the_ledger_holds_and_keys_are_known_whatever_happens_between_purges(seed: int, tmp_path: Path) -> None:
    household = furnished(tmp_path)
    household.through = Watched
    life = Life(seed)
    async with household.open() as house:
        await life.live(house, 60)
        house.crash()
    async with household.open() as house:
        await life.live(house, 40)
        assert isinstance(house.store, Watched)
        household.clock.jump(timedelta(days=3))
        await everything(house)
        assert house.store.wrong == []
        assert (await house.sql("SELECT sum(purged) FROM tally"))[0][0] > 10
        await holds(house)
        house.crash()


async def test_the_same_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    household = furnished(tmp_path, postgres_url)
    household.through = Watched
    async with household.open(drain_s=0) as house:
        await Life(7).live(house, 40)
        await holds(house)


async def test_a_purge_is_made_of_short_commits(household: Household) -> None:
    household.through = Watched
    async with household.open() as house:
        for number in range(purge.LOOKED_AT_ONCE_MAX + 20):
            await house.post(f"note {number}", recipient="person:noor")
        await a_week_passes(house)
        went = await everything(house)
        assert went["envelopes"] == purge.LOOKED_AT_ONCE_MAX + 19
        assert isinstance(house.store, Watched)
        assert house.store.purges >= 5
        assert house.store.wrong == []


async def test_the_house_tidies_itself_as_its_settings_say(household: Household) -> None:
    async with desk_house(household) as desk:
        await desk.converse(person("owner"), "hello")
        await a_week_passes(desk.house)
        await desk.converse(person("owner"), "hello again")
        await desk.house.quiet()
        before = await rows(desk.house, "envelopes")
        wanted = Retention()
        tidying = asyncio.create_task(tidy_forever(desk.desk, lambda: wanted))
        await asyncio.sleep(0)
        await household.clock.advance(TIDY_FIRST_S)
        await wait_until(lambda: TIDY_EVERY_S in household.clock.wakes_in(), "it has looked and waits again")
        assert await rows(desk.house, "envelopes") == before  # nothing is set: nothing goes
        wanted = Retention(done_days=3)
        await household.clock.advance(TIDY_EVERY_S)
        await desk.house.eventually(
            lambda conn: conn.execute(sa.text("SELECT count(*) FROM envelopes")).scalar_one() < before, what="a purge"
        )
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)
        await holds(desk.house)


async def test_only_the_owner_purges_and_days_are_bounded(household: Household) -> None:
    async with desk_house(household) as desk:
        with pytest.raises(NotAllowed):
            await desk.ask(person("maria"), "house.purge")
        for number in (0, -1, 10**9):
            with pytest.raises(Invalid):
                await desk.ask(person("owner"), "house.purge", done_days=number)
        assert (await desk.ask(person("owner"), "house.purge", done_days=1))["envelopes"] == 0
