"""Where envelopes come in: once, in order, with what they may carry and no more. On both databases."""

from __future__ import annotations

import asyncio
import json
import re
import string
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from stores import POSTGRES, SQLITE, Place, place_of, settle_in, turn_the_clock_until_settled

from retinue.domain import address
from retinue.domain.agent import Agent
from retinue.domain.attachment import Attachment, safe_file_name
from retinue.domain.envelope import (
    ATTACHMENTS_MAX,
    ENVELOPE_TEXT_BYTES_MAX,
    IDEMPOTENCY_KEY_LENGTH_MAX,
    Envelope,
    EnvelopeContext,
    EnvelopeDraft,
    EnvelopeKind,
    EnvelopeStatus,
    Outcome,
    Receipt,
)
from retinue.domain.errors import Conflict, Invalid, NotFound, StoreError, TooLarge
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.domain.person import Person, Role
from retinue.domain.session import LaneKind, Origin, OriginKind, Overflow, QueueMode, QueueOverride, QueuePolicy
from retinue.domain.times import to_ms
from retinue.intake.accept import (
    ChannelWake,
    EnvelopeIntake,
    LaneWake,
    TimerWake,
    Wake,
    accept_in_transaction,
    check_draft,
)
from retinue.runners import turn_input
from retinue.store.agents import agents
from retinue.store.channels import deliveries
from retinue.store.core import events
from retinue.store.core import tables as t
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.people import people
from retinue.store.sessions import sessions
from retinue.testing.fake_clock import FakeClock
from retinue.testing.local_instance import LocalInstance, SequentialIds
from retinue.testing.scripted_model import text_reply

KEPT = Attachment(hash="0f" * 32, name="notes.txt", media_type="text/plain", size_bytes=12)


@pytest.fixture(params=[SQLITE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def on_disk(tmp_path: Path) -> Place:
    """For what is refused before any store is asked."""
    return Place(SQLITE, str(tmp_path / "house.db"))


@dataclass(slots=True)
class Desk:
    """An inbox on a real store, with a clock to turn, and no engine behind it."""

    store: Store
    clock: FakeClock = field(default_factory=FakeClock)
    ids: SequentialIds = field(default_factory=SequentialIds)
    wakes: list[Wake] = field(default_factory=list[Wake])

    async def post(self, text: str = "hello", **kw: Any) -> Receipt:
        return await EnvelopeIntake(self.store, self.clock, self.wakes.append).accept(self.draft(text, **kw))

    def draft(self, text: str = "hello", **kw: Any) -> EnvelopeDraft:
        id_ = EnvelopeId(self.ids.new())
        sender = address.parse_address(kw.pop("sender", "person:maria"))
        recipient = address.parse_address(kw.pop("recipient", "agent:ada"))
        return EnvelopeDraft(
            id=id_,
            sender=sender,
            recipient=recipient,
            text=text,
            source=kw.pop("source", "test"),
            idempotency_key=kw.pop("key", id_),
            **kw,
        )

    async def kept(self) -> list[Envelope]:
        statement = sa.select(t.envelopes).order_by(t.envelopes.c.seq)
        return await self.store.scan(lambda conn: [envelopes.envelope_from_row(row) for row in conn.execute(statement)])

    async def get(self, receipt: Receipt) -> Envelope:
        found = await self.store.read(lambda conn: envelopes.get(conn, receipt.envelope))
        assert found is not None
        return found

    async def outcome(self, id_: str) -> tuple[Outcome, str] | None:
        settled = await self.store.read(lambda conn: envelopes.get_outcome(conn, id_))
        return (settled.outcome, settled.because) if settled else None

    async def untouched(self) -> bool:
        """Whether the house is as it was before its first envelope."""
        tables = (t.envelopes, t.outcomes, t.inbox, t.tally, t.sessions, t.records, t.news)
        rows = [await self.store.read(lambda conn, t=table: conn.execute(sa.select(t)).all()) for table in tables]
        counters = await self.store.read(lambda conn: conn.execute(sa.select(t.house)).one())
        return not any(rows) and (counters.news_seq, counters.envelope_seq) == (0, 0)


@asynccontextmanager
async def desk_at(place: Place, *names: str, **changes: Any) -> AsyncGenerator[Desk]:
    async with place.open() as store:
        await store.write(settle_in(*names, **changes), point="setup")
        yield Desk(store)


# Once


async def test_the_same_key_with_the_same_words_is_the_same_envelope(place: Place) -> None:
    async with desk_at(place) as desk:
        first = await desk.post("hello", key="k", attachments=(KEPT,))
        again = await desk.post("hello", key="k", attachments=(KEPT,), recipient="agent:ADA")

        assert (first.duplicate, again.duplicate) == (False, True)
        assert (again.envelope, again.session) == (first.envelope, first.session)
        assert len(await desk.kept()) == 1
        assert len(desk.wakes) == 1
        assert (await desk.post("hello", key="k", source="elsewhere")).duplicate is False


OTHERWISE: list[dict[str, Any]] = [
    {"text": "goodbye"},
    {"kind": EnvelopeKind.SYSTEM},
    {"attachments": (KEPT,)},
    {"sender": "person:owner"},
    {"recipient": "agent:bob"},
    {"recipient": "person:owner"},
    {"recipient": "channel:quiet:1"},
]


async def test_the_same_key_with_anything_else_in_it_is_a_conflict(place: Place) -> None:
    async with desk_at(place, "ada", "bob") as desk:
        await desk.post("hello", key="k")
        for other in OTHERWISE:
            with pytest.raises(Conflict) as refused:
                await desk.post(**({"text": "hello", "key": "k"} | other))
            assert refused.value.code == "key.reused"
            assert refused.value.because and "new key" in refused.value.try_this
        assert len(await desk.kept()) == 1


async def test_a_letter_to_a_session_that_is_sent_again_is_recognised(place: Place) -> None:
    async with desk_at(place) as desk:
        session = (await desk.post("hello")).session
        first = await desk.post("more", key="k", recipient=f"agent:ada/{session}")
        assert (await desk.post("more", key="k", recipient=f"agent:Ada/{str(session)[:8]}")).duplicate
        with pytest.raises(Conflict):
            await desk.post("more", key="k", recipient="agent:ada/ffffffff")
        assert first.session == session


async def test_twenty_at_once_with_one_key_are_one_envelope(place: Place) -> None:
    async with desk_at(place) as desk:
        receipts = await asyncio.gather(*(desk.post("hello", key="k") for _ in range(20)))

        assert sum(not receipt.duplicate for receipt in receipts) == 1
        assert {receipt.envelope for receipt in receipts} == {(await desk.kept())[0].id}
        assert len(await desk.kept()) == 1
        assert await desk.store.read(lambda conn: conn.execute(sa.select(t.tally.c.accepted)).scalars().all()) == [1]


async def test_of_twenty_at_once_with_one_key_and_other_words_one_is_kept(place: Place) -> None:
    async with desk_at(place) as desk:
        results = await asyncio.gather(*(desk.post(f"number {n}", key="k") for n in range(20)), return_exceptions=True)

        assert sum(isinstance(result, Receipt) for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 19
        assert len(await desk.kept()) == 1


async def test_two_processes_with_one_key_at_once_keep_one_envelope(place: Place) -> None:
    async with desk_at(place) as desk, place.open() as other:
        there = Desk(other, ids=SequentialIds(7))
        posts = [who.post("hello", key=f"k{n}") for n in range(20) for who in (desk, there)]
        receipts = await asyncio.gather(*posts)

        assert sum(not receipt.duplicate for receipt in receipts) == 20
        assert [e.seq for e in await desk.kept()] == list(range(1, 21))


async def test_sent_again_after_it_ended_the_receipt_says_how(place: Place) -> None:
    async with desk_at(place) as desk:
        first = await desk.post("hello", key="k", recipient="person:owner")
        again = await desk.post("hello", key="k", recipient="person:owner")
        assert (first.outcome, again.outcome) == (Outcome.DELIVERED, Outcome.DELIVERED)
        assert again.because == "in the inbox of owner"


# To whom


NOBODY = {
    "agent:nobody": "agent.not_found",
    "person:nobody": "person.not_found",
    "agent:ada/deadbeef": "session.not_found",
}


@pytest.mark.spec("H5")
async def test_a_letter_to_nobody_is_refused_at_once_and_nothing_is_stored(place: Place) -> None:
    async with desk_at(place) as desk:
        for recipient, code in NOBODY.items():
            with pytest.raises(NotFound) as refused:
                await desk.post(recipient=recipient)
            assert refused.value.code == code
            assert re.split("[:/]", recipient)[-1] in refused.value.sentence and refused.value.try_this
            assert await desk.untouched()
        assert desk.wakes == []


@pytest.mark.spec("H5")
async def test_a_letter_to_an_agent_who_left_is_refused_and_stores_nothing(place: Place) -> None:
    async with desk_at(place) as desk:
        await desk.store.write(lambda conn: agents.remove(conn, "Ada", at_ms=1), point="test")
        with pytest.raises(NotFound):
            await desk.post()
        assert await desk.untouched()


@pytest.mark.parametrize("recipient", ["schedule:deadbeef", "house"])
async def test_where_nobody_reads_nothing_is_accepted(on_disk: Place, recipient: str) -> None:
    async with desk_at(on_disk) as desk:
        with pytest.raises(Invalid) as refused:
            await desk.post(recipient=recipient)
        assert refused.value.code == "address.cannot_receive"
        assert await desk.untouched()


@pytest.mark.spec("H6")
async def test_names_match_in_any_case_and_are_stored_as_they_were_given(place: Place) -> None:
    async with desk_at(place, "Night-Clerk") as desk:
        receipts = [
            await desk.post(recipient=f"agent:{name}") for name in ("night-clerk", "NIGHT-CLERK", "Night-Clerk")
        ]

        assert len({receipt.session for receipt in receipts}) == 1
        session = receipts[0].session
        assert {str((await desk.get(receipt)).recipient) for receipt in receipts} == {f"agent:Night-Clerk/{session}"}
        to_person = await desk.post(recipient="person:MARIA")
        assert str((await desk.get(to_person)).recipient) == "person:maria"


async def test_two_agents_or_people_whose_names_differ_only_in_case_cannot_be(place: Place) -> None:
    async with desk_at(place) as desk:
        changed = await desk.store.write(
            lambda conn: agents.upsert(conn, Agent(name="ADA"), source="test", at_ms=2), point="test"
        )
        assert (changed.name, changed.version) == ("ada", 2)
        with pytest.raises(StoreError):
            await desk.store.write(
                lambda conn: people.add(conn, Person(name="Maria", role=Role.GUEST), at_ms=1), point="test"
            )


MALFORMED = [
    "",
    "ada",
    "agent",
    "agent:",
    "agent:-ada",
    "agent:ada-",
    "agent:a--b",
    "agent:ada bob",
    "agent:ada/",
    "agent:ada/xyz",
    "agent:ada/1234567",
    "agent:" + "a" * 65,
    "Agent:ada",
    "agent:ädä",
    "agent:ada\n",
    "agent:ada\x00",
    "agent:../etc",
    "person:",
    "person:a/b",
    "schedule:",
    "schedule:zzzzzzzz",
    "channel:telegram",
    "channel:telegram:",
    "channel:Telegram:1",
    "channel::1",
    "channel:tele gram:1",
    "channel:telegram:1\n2",
    "channel:telegram:\u202e1",
    "channel:telegram:\ud800",
    "channel:telegram:" + "1" * 513,
    "house:",
    "house:x",
    "mailto:ada@example.org",
]


@pytest.mark.spec("H7")
@pytest.mark.parametrize("text", MALFORMED, ids=ascii)
def test_a_malformed_address_is_refused_as_an_invalid_parameter(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        address.parse_address(text)
    assert refused.value.code in ("address.invalid", "name.invalid", "id.invalid")
    assert refused.value.because and refused.value.try_this
    str(refused.value).encode()  # and the refusal itself can be sent to anyone


NAMES = st.from_regex(r"[A-Za-z0-9]{1,8}(-[A-Za-z0-9]{1,8}){0,3}", fullmatch=True)
IDS = st.text("0123456789abcdef", min_size=8, max_size=32)
ROOMS = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1, max_size=60)
ADDRESSES = st.one_of(
    st.just("house"),
    NAMES.map("agent:{}".format),
    NAMES.map("person:{}".format),
    IDS.map("schedule:{}".format),
    st.tuples(NAMES, IDS).map(lambda pair: f"agent:{pair[0]}/{pair[1]}"),
    st.tuples(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), ROOMS).map(lambda p: f"channel:{p[0]}:{p[1]}"),
)


@pytest.mark.spec("H7")
@given(ADDRESSES)
def test_a_well_formed_address_is_written_as_it_was_read(text: str) -> None:
    assert str(address.parse_address(text)) == text


@pytest.mark.spec("H7")
@given(
    st.one_of(
        st.text(max_size=80),
        st.tuples(st.sampled_from(["agent:", "person:", "schedule:", "channel:x:", "house"]), st.text(max_size=60)).map(
            "".join
        ),
    )
)
def test_any_text_is_an_address_that_reads_back_the_same_or_is_refused(text: str) -> None:
    try:
        found = address.parse_address(text)
    except Invalid as refused:
        assert refused.code in ("address.invalid", "name.invalid", "id.invalid")
        return
    assert address.parse_address(str(found)) == found
    assert str(address.parse_address(str(found))) == str(found)
    assert set(found.name) <= set(string.ascii_letters + string.digits + "-")
    assert str(found).isprintable() or found.rest


# When


@pytest.mark.spec("H11")
@pytest.mark.parametrize("recipient", ["agent:ada", "person:maria", "channel:quiet:1"])
async def test_a_letter_for_later_waits_and_one_for_earlier_is_due_now(place: Place, recipient: str) -> None:
    async with desk_at(place) as desk:
        now = desk.clock.now()
        later = await desk.post("later", recipient=recipient, deliver_at=now + timedelta(hours=1))
        assert desk.wakes == [TimerWake()]
        waiting = await desk.get(later)
        assert (waiting.status, waiting.due_at) == (EnvelopeStatus.PENDING, now + timedelta(hours=1))
        assert later.outcome is None

        desk.wakes.clear()
        earlier = await desk.post("earlier", recipient=recipient, deliver_at=now - timedelta(hours=1))
        found = await desk.get(earlier)
        assert found.due_at == now
        assert found.deliver_at == now - timedelta(hours=1)
        if recipient == "person:maria":
            assert earlier.outcome is Outcome.DELIVERED
        else:
            assert isinstance(desk.wakes[0], LaneWake | ChannelWake)


async def test_people_are_no_rooms_however_late_their_mail(place: Place) -> None:
    """What waits for its time on the way to a person is handed over by the clock, never by a connector."""
    async with desk_at(place) as desk:
        soon = desk.clock.now() + timedelta(seconds=1)
        for recipient in ("person:maria", "channel:quiet:1", "agent:ada"):
            await desk.post(recipient=recipient, deliver_at=soon)
        at_ms = to_ms(soon)

        assert await desk.store.read(lambda conn: envelopes.list_due_channels(conn, at_ms, limit=9)) == [
            "channel:quiet:1"
        ]
        rooms = await desk.store.read(lambda conn: deliveries.list_due_channels(conn, at_ms, after="", limit=9))
        assert rooms == ["channel:quiet:1"]
        people_due = await desk.store.read(lambda conn: envelopes.list_due_for_people(conn, at_ms, limit=9))
        assert [str(e.recipient) for e in people_due] == ["person:maria"]


@pytest.mark.spec("H11")
async def test_in_a_house_a_letter_for_later_is_read_in_its_time_and_one_for_earlier_now(
    place: Place, tmp_path: Path
) -> None:
    household = LocalInstance(tmp_path, url=place.url)
    async with household.run() as house:
        now = household.clock.now()
        household.model.rule = lambda prompt: text_reply("read")
        later = await house.send("later", deliver_at=now + timedelta(days=2))
        reminder = await house.send("reminder", deliver_at=now + timedelta(days=1), recipient="person:maria")
        earlier = await house.send("earlier", deliver_at=now - timedelta(days=400))
        assert await house.wait_for_answer(earlier.envelope) == "read"
        assert (await house.get_envelope(later.envelope)).status is EnvelopeStatus.PENDING
        assert "reminder" not in {letter.text for letter in await house.list_envelopes_to("maria") if letter.settled_at}

        ended = await turn_the_clock_until_settled(house, reminder.envelope, later.envelope, step_s=3600)

        assert [settled.outcome for settled in ended] == [Outcome.DELIVERED, Outcome.ANSWERED]
        assert ended[0].at >= now + timedelta(days=1)
        assert ended[1].at >= now + timedelta(days=2)
        inbox = await house.execute_sql("SELECT person FROM inbox WHERE envelope = :id", id=reminder.envelope)
        assert [row.person for row in inbox] == ["maria"]


@pytest.mark.spec("H15")
async def test_what_waits_is_worked_by_due_time_and_then_in_the_order_it_came(place: Place) -> None:
    async with desk_at(place) as desk:
        now = desk.clock.now()
        hour = timedelta(hours=1)
        texts = [("third", hour), ("first", None), ("fourth", hour), ("second", None), ("fifth", 2 * hour)]
        posted = [await desk.post(text, deliver_at=now + wait if wait else None) for text, wait in texts]
        session = posted[0].session
        assert session is not None
        at_ms = 4 * 10**12

        due = await desk.store.read(lambda conn: envelopes.list_due(conn, session, at_ms, limit=10))

        assert [e.text for e in due] == ["first", "second", "third", "fourth", "fifth"]


@pytest.mark.spec("H15")
async def test_when_the_clock_is_set_back_the_time_of_acceptance_and_the_order_are_not(place: Place) -> None:
    async with desk_at(place) as desk:
        receipts: list[Receipt] = []
        for jump in (0, 3600, -7200, -86_400, 10):
            desk.clock.jump(timedelta(seconds=jump))
            receipts.append(await desk.post(f"after {jump}"))
        found = [await desk.get(receipt) for receipt in receipts]

        assert [e.accepted_at for e in found] == sorted(e.accepted_at for e in found)
        assert [e.seq for e in found] == [1, 2, 3, 4, 5]
        session = receipts[0].session
        assert session is not None
        due = await desk.store.read(lambda conn: envelopes.list_due(conn, session, 4 * 10**12, limit=10))
        assert [e.text for e in due] == [e.text for e in found]


NEVER_IN_TIME = [(None, -1, "time.past"), (None, 0, "time.past"), (2, 2, "time.inverted"), (2, 1, "time.inverted")]


async def test_a_letter_that_could_never_be_read_in_time_is_refused(place: Place) -> None:
    async with desk_at(place) as desk:
        now = desk.clock.now()
        for deliver, expires, code in NEVER_IN_TIME:
            with pytest.raises(Invalid) as refused:
                await desk.post(
                    deliver_at=now + timedelta(hours=deliver) if deliver is not None else None,
                    expires_at=now + timedelta(hours=expires),
                )
            assert refused.value.code == code
            assert refused.value.because and refused.value.try_this
        assert await desk.untouched()


# What it may carry


@pytest.mark.parametrize("key", ["", "k" * (IDEMPOTENCY_KEY_LENGTH_MAX + 1), "a\x00b", "\ud800"], ids=ascii)
async def test_a_key_has_its_bounds(on_disk: Place, key: str) -> None:
    async with desk_at(on_disk) as desk:
        with pytest.raises(Invalid) as refused:
            await desk.post(key=key)
        assert refused.value.code == "key.invalid"
        assert await desk.untouched()


async def test_the_longest_labels_fit_every_index(place: Place) -> None:
    """An index of PostgreSQL holds 2,704 bytes: what a door may say has to fit, whatever the script."""
    async with desk_at(place) as desk:
        room = "\U00020000" * 250
        origin = Origin(OriginKind.CHAT, f"channel:x:{room}")
        for n, source in enumerate(("s" * 1024, "\U00020000" * 256)):
            receipt = await desk.post(
                source=source, key="\U00020000" * IDEMPOTENCY_KEY_LENGTH_MAX, origin=origin, text=str(n)
            )
            assert (await desk.get(receipt)).source == source
        await desk.post(recipient="channel:" + "x" * 64 + ":" + "\U00020000" * 512)
        wrongs: list[dict[str, Any]] = [
            {"source": "s" * 1025},
            {"source": "\x00"},
            {"origin": Origin(OriginKind.CHAT, "o" * 1025)},
        ]
        for wrong in wrongs:
            with pytest.raises(Invalid) as refused:
                await desk.post(**wrong)
            assert refused.value.code == "source.invalid"


async def test_what_a_door_says_must_be_text(place: Place) -> None:
    async with desk_at(place) as desk:
        with pytest.raises(Invalid) as refused:
            await desk.post(context=EnvelopeContext(sender_name="\ud83d"))
        assert refused.value.code == "text.unstorable"
        receipt = await desk.post(context=EnvelopeContext(sender_name="Zoë \u202e", chat_title="'; --", from_boss=True))
        assert (await desk.get(receipt)).context == EnvelopeContext(
            sender_name="Zoë \u202e", chat_title="'; --", from_boss=True
        )


async def test_so_many_attachments_and_no_more(place: Place) -> None:
    async with desk_at(place) as desk:
        receipt = await desk.post(attachments=(KEPT,) * ATTACHMENTS_MAX)
        assert (await desk.get(receipt)).attachments == (KEPT,) * ATTACHMENTS_MAX
        with pytest.raises(TooLarge) as refused:
            await desk.post(attachments=(KEPT,) * (ATTACHMENTS_MAX + 1))
        assert refused.value.code == "attachments.too_many"


HOSTILE_NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".ssh",
    "a/b",
    "a\\b",
    "a\x00b",
    "a\nb",
    "\u202egpj.exe",
    "a" * 121,
    "",
    " ",
    "\ud800",
    "$(reboot)",
    "a;b",
    "|",
]


def attaching(**changes: Any) -> EnvelopeDraft:
    kept: dict[str, Any] = {"hash": KEPT.hash, "name": KEPT.name, "media_type": "text/plain", "size_bytes": 1}
    return EnvelopeDraft(
        id=EnvelopeId("0" * 32),
        sender=address.person_address("maria"),
        recipient=address.agent_address("ada"),
        text="look",
        source="test",
        idempotency_key="k",
        attachments=(Attachment(**(kept | changes)),),
    )


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_an_attachment_with_a_name_to_aim_with_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_draft(attaching(name=name))
    assert refused.value.code == "attachment.invalid"
    str(refused.value).encode()


@given(st.text(max_size=300))
def test_the_safe_name_of_anything_is_safe_and_stays_as_it_is(name: str) -> None:
    safe = safe_file_name(name)
    assert safe == safe_file_name(safe)
    assert 0 < len(safe) <= 120
    assert not set(safe) & set("/\\\x00\n") and not safe.startswith(".")
    check_draft(attaching(name=safe))


@pytest.mark.parametrize(
    "wrong", [{"hash": "0f" * 31}, {"hash": "../" + "0" * 61}, {"hash": "0F" * 32}, {"size_bytes": -1}]
)
def test_an_attachment_that_was_never_handed_in_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        check_draft(attaching(**wrong))
    assert refused.value.code == "attachment.invalid"


async def test_a_text_of_ten_megabytes_is_refused_and_the_longest_is_kept(place: Place) -> None:
    async with desk_at(place) as desk:
        for text in ("x" * 10_000_000, "x" * (ENVELOPE_TEXT_BYTES_MAX + 1), "ü" * (ENVELOPE_TEXT_BYTES_MAX // 2 + 1)):
            with pytest.raises(TooLarge) as refused:
                await desk.post(text)
            assert refused.value.code == "text.too_large"
            assert f"{ENVELOPE_TEXT_BYTES_MAX:,}" in refused.value.because and "attachment" in refused.value.try_this
        assert await desk.untouched()
        longest = "ü" * (ENVELOPE_TEXT_BYTES_MAX // 2)
        assert (await desk.get(await desk.post(longest))).text == longest


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "ok \udfff", "\x00"], ids=ascii)
async def test_what_is_no_text_is_refused_in_words(on_disk: Place, text: str) -> None:
    async with desk_at(on_disk) as desk:
        with pytest.raises(Invalid) as refused:
            await desk.post(text)
        assert refused.value.code == "text.unstorable"
        assert "surrogates" in refused.value.because and refused.value.try_this
        assert await desk.untouched()


async def test_text_that_runs_backwards_is_kept_as_it_is_and_shown_with_its_turns_spelled_out(place: Place) -> None:
    trick = "pay \u202e000,1\u202c euro \u2066hidden\u2069"
    async with desk_at(place) as desk:
        receipt = await desk.post(trick, context=EnvelopeContext(sender_name="Ma\u202eria"))
        found = await desk.get(receipt)
        assert found.text == trick
        shown = turn_input.render_turn([found], now=desk.clock.now(), zone=ZoneInfo("UTC"))
        assert not any(sign in shown for sign in "\u202e\u202c\u2066\u2069")
        assert "000,1" in shown


FIFTY_CLIENTS = """
import asyncio, json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stores import settle_in
from retinue.domain import address
from retinue.domain.envelope import EnvelopeDraft
from retinue.domain.errors import TooLarge
from retinue.domain.ids import EnvelopeId
from retinue.domain.times import to_ms
from retinue.intake.accept import EnvelopeIntake
from retinue.store.open_store import open_store
from retinue.testing.fake_clock import FakeClock

def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

async def main() -> None:
    store = await open_store(Path(sys.argv[1]))
    await store.write(settle_in("ada"), point="setup")
    inbox = EnvelopeIntake(store, FakeClock(), lambda wake: None)
    refused = kept = 0
    async def client(n: int) -> None:
        nonlocal refused, kept
        for m in range(4):
            text = chr(0x4e00 + n) * 3_500_000 if m % 2 else "small"  # 10 MB of UTF-8
            draft = EnvelopeDraft(
                id=EnvelopeId(f"{n:016x}{m:016x}"),
                sender=address.person_address("maria"), recipient=address.agent_address("ada"),
                text=text, source="test", idempotency_key=f"{n}/{m}", silent=True,
            )
            try:
                await inbox.accept(draft)
                kept += 1
            except TooLarge:
                refused += 1
            del text, draft
            await asyncio.sleep(0)
    before = peak_mb()
    await asyncio.gather(*(client(n) for n in range(50)))
    print(json.dumps({"before": before, "after": peak_mb(), "refused": refused, "kept": kept}))
    await store.close()

asyncio.run(main())
"""


def test_memory_stays_bounded_while_fifty_clients_post_ten_megabytes_each(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIFTY_CLIENTS, tmp_path / "house.db", Path(__file__).parent.parent],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told = json.loads(done.stdout)
    assert (told["refused"], told["kept"]) == (100, 100)
    assert told["after"] - told["before"] < 60, told  # one such text is 7 MB in memory; a hundred would be 700


# Too much of it


def crowded(overflow: Overflow, cap: int = 2) -> dict[str, Any]:
    return {"queue": QueuePolicy(cap=cap, overflow=overflow)}


async def waiting(desk: Desk, session: SessionId | None) -> list[str]:
    assert session is not None
    due = await desk.store.read(lambda conn: envelopes.list_due(conn, session, 4 * 10**12, limit=50))
    return [e.text for e in due if not e.silent]


async def notices(desk: Desk, person: str = "maria") -> list[str]:
    return [
        e.text for e in await desk.kept() if str(e.recipient) == f"person:{person}" and e.kind is EnvelopeKind.NOTICE
    ]


@pytest.mark.spec("C24")
async def test_refuse_keeps_what_waits_and_tells_the_sender_of_what_came_late(place: Place) -> None:
    async with desk_at(place, **crowded(Overflow.REFUSE)) as desk:
        kept = [await desk.post(f"number {n}") for n in range(2)]
        late = await desk.post("number 2")

        assert late.outcome is Outcome.REFUSED
        assert late.because == "queue full: 2 envelopes already wait in this session, its cap is 2"
        assert await desk.outcome(late.envelope) == (Outcome.REFUSED, late.because)
        assert await waiting(desk, late.session) == ["number 0", "number 1"]
        assert all(receipt.outcome is None for receipt in kept)
        assert await notices(desk) == [f"Not accepted: {late.because}."]
        told = [e for e in await desk.kept() if e.kind is EnvelopeKind.NOTICE]
        assert told[0].reply_to == late.envelope


@pytest.mark.spec("C24")
async def test_oldest_makes_room_for_what_is_new(place: Place) -> None:
    async with desk_at(place, **crowded(Overflow.OLDEST)) as desk:
        receipts = [await desk.post(f"number {n}") for n in range(5)]

        assert [receipt.outcome for receipt in receipts] == [None] * 5
        assert await waiting(desk, receipts[0].session) == ["number 3", "number 4"]
        ended = [await desk.outcome(receipt.envelope) for receipt in receipts]
        assert ended[3:] == [None, None]
        assert all(end == (Outcome.REFUSED, "queue full: dropped for a newer message") for end in ended[:3])
        assert len(await notices(desk)) == 3


@pytest.mark.spec("C24")
async def test_summarize_leaves_the_agent_a_line_of_what_gave_way(place: Place) -> None:
    async with desk_at(place, **crowded(Overflow.SUMMARIZE)) as desk:
        await desk.post("first\nwords " + "x" * 500)
        receipts = [await desk.post(f"number {n}") for n in range(2)]

        assert await waiting(desk, receipts[0].session) == ["number 0", "number 1"]
        (line,) = [e for e in await desk.kept() if e.silent]
        assert line.text.startswith("Dropped while you were busy, from person:maria: first words xxx")
        assert len(line.text) < 250 and line.text.endswith("…")
        assert (line.kind, line.session) == (EnvelopeKind.SYSTEM, receipts[0].session)
        assert len(await notices(desk)) == 1


async def test_a_cap_of_nothing_refuses_whatever_the_rule(place: Place) -> None:
    async with desk_at(place, **crowded(Overflow.OLDEST, cap=0)) as desk:
        receipt = await desk.post("no room")
        assert receipt.outcome is Outcome.REFUSED
        assert await desk.outcome(receipt.envelope) == (Outcome.REFUSED, receipt.because)
        assert await waiting(desk, receipt.session) == []


async def test_answers_and_notices_are_neither_counted_nor_made_to_give_way(place: Place) -> None:
    async with desk_at(place, "ada", "bob", **crowded(Overflow.OLDEST)) as desk:
        session = (await desk.post("number 0")).session
        assert session is not None
        await desk.post("an answer", recipient=f"agent:ada/{session}", sender="agent:bob", kind=EnvelopeKind.ANSWER)
        await desk.post("a notice", recipient=f"agent:ada/{session}", sender="agent:bob", kind=EnvelopeKind.NOTICE)
        await desk.post("for later", deliver_at=desk.clock.now() + timedelta(days=1))
        await desk.post("silent", silent=True, kind=EnvelopeKind.SYSTEM)
        await desk.post("number 1")
        assert await notices(desk) == []
        await desk.post("number 2")
        assert await waiting(desk, session) == ["an answer", "a notice", "number 1", "number 2", "for later"]


@pytest.mark.spec("C26")
async def test_a_session_has_its_own_word_on_its_queue_until_that_is_taken_back(place: Place) -> None:
    async with desk_at(place, **crowded(Overflow.REFUSE, cap=3)) as desk:
        mine = (await desk.post("a", origin=Origin(OriginKind.WEB, "mine"))).session
        other = Origin(OriginKind.WEB, "other")
        assert mine is not None

        async def set_queue(queue: QueueOverride) -> None:
            await desk.store.write(lambda conn: sessions.set_queue(conn, mine, queue, at_ms=1), point="test")

        async def post() -> Outcome | None:
            return (await desk.post("more", origin=Origin(OriginKind.WEB, "mine"))).outcome

        await set_queue(QueueOverride(cap=1, mode=QueueMode.FOLLOWUP))
        assert await post() is Outcome.REFUSED
        assert (await desk.post("b", origin=other)).outcome is None
        assert (await desk.post("c", origin=other)).outcome is None
        await set_queue(QueueOverride(cap=1, overflow=Overflow.OLDEST))
        assert await post() is None
        assert await waiting(desk, mine) == ["more"]
        await set_queue(QueueOverride())
        assert [await post() for _ in range(3)] == [None, None, Outcome.REFUSED]


# Inside the house


async def test_inside_the_house_a_letter_to_nobody_is_kept_and_ends_refused(place: Place) -> None:
    """The commit it belongs to, a run's end perhaps, must not fail for it."""
    async with desk_at(place) as desk:
        drafts = [desk.draft(recipient=to) for to in ("agent:nobody", "person:nobody", "agent:ada/deadbeef")]

        def body(conn: sa.Connection) -> list[Outcome | None]:
            page = Transaction(conn, 1)
            outcomes = [accept_in_transaction(page, draft).receipt.outcome for draft in drafts]
            page.close()
            return outcomes

        assert await desk.store.write(body, point="test") == [Outcome.REFUSED] * 3
        ended = [await desk.outcome(draft.id) for draft in drafts]
        assert ended == [
            (Outcome.REFUSED, "agent-not-found"),
            (Outcome.REFUSED, "person-not-found"),
            (Outcome.REFUSED, "session-not-found"),
        ]


async def test_a_receipt_says_how_far_the_news_had_come_and_the_news_tells_of_the_letter(place: Place) -> None:
    async with desk_at(place) as desk:
        receipt = await desk.post("hello")
        told = await desk.store.read(lambda conn: events.list_after(conn, 0, limit=10))
        assert [piece.kind.value for piece in told] == ["session.started", "envelope.accepted"]
        assert told[-1].seq == receipt.event_seq
        assert told[-1].body["text"] == "hello"
        assert desk.wakes == [LaneWake(receipt.session, "ada", LaneKind.MAIN)]  # type: ignore[arg-type]


async def test_letters_from_fifty_senders_at_once_are_all_kept_in_one_line(place: Place) -> None:
    async with desk_at(place) as desk:
        posts = [desk.post(f"number {n}", sender=f"channel:quiet:{n}") for n in range(50)]
        receipts = await asyncio.gather(*posts)

        assert len({receipt.session for receipt in receipts}) == 50
        kept = await desk.kept()
        assert [e.seq for e in kept] == list(range(1, 51))
        tally = await desk.store.read(lambda conn: conn.execute(sa.select(t.tally.c.accepted)).scalars().all())
        assert tally == [50]
