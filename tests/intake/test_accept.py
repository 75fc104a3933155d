"""Test accepting envelopes on both databases: once, in order, and within the limits on their content."""

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
from stores import POSTGRES, SQLITE, StoreLocation, add_agents_and_people, advance_until_settled, create_store_location

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

ATTACHMENT = Attachment(hash="0f" * 32, name="notes.txt", media_type="text/plain", size_bytes=12)


@pytest.fixture(params=[SQLITE, POSTGRES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return create_store_location(request.param, request, tmp_path)


@pytest.fixture
def sqlite_place(tmp_path: Path) -> StoreLocation:
    """For requests that are refused before the store is used."""
    return StoreLocation(SQLITE, str(tmp_path / "retinue.db"))


@dataclass(slots=True)
class IntakeSetup:
    """An intake on a real store, with a manual clock and without an engine."""

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

    async def stored(self) -> list[Envelope]:
        statement = sa.select(t.envelopes).order_by(t.envelopes.c.seq)
        return await self.store.scan(lambda conn: [envelopes.envelope_from_row(row) for row in conn.execute(statement)])

    async def get(self, receipt: Receipt) -> Envelope:
        found = await self.store.read(lambda conn: envelopes.get(conn, receipt.envelope))
        assert found is not None
        return found

    async def outcome(self, id_: str) -> tuple[Outcome, str] | None:
        settled = await self.store.read(lambda conn: envelopes.get_outcome(conn, id_))
        return (settled.outcome, settled.because) if settled else None

    async def is_empty(self) -> bool:
        """Return whether the store is as it was before its first envelope."""
        tables = (t.envelopes, t.outcomes, t.inbox, t.accepted_counts, t.sessions, t.records, t.events)
        rows = [await self.store.read(lambda conn, t=table: conn.execute(sa.select(t)).all()) for table in tables]
        counters = await self.store.read(lambda conn: conn.execute(sa.select(t.counters)).one())
        return not any(rows) and (counters.event_seq, counters.envelope_seq) == (0, 0)


@asynccontextmanager
async def open_intake(place: StoreLocation, *names: str, **changes: Any) -> AsyncGenerator[IntakeSetup]:
    async with place.open() as store:
        await store.write(add_agents_and_people(*names, **changes), point="setup")
        yield IntakeSetup(store)


# Idempotency


async def test_accepting_the_same_key_with_the_same_content_gives_the_same_envelope(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        first = await setup.post("hello", key="k", attachments=(ATTACHMENT,))
        again = await setup.post("hello", key="k", attachments=(ATTACHMENT,), recipient="agent:ADA")

        assert (first.duplicate, again.duplicate) == (False, True)
        assert (again.envelope, again.session) == (first.envelope, first.session)
        assert len(await setup.stored()) == 1
        assert len(setup.wakes) == 1
        assert (await setup.post("hello", key="k", source="elsewhere")).duplicate is False


CONFLICTING_CHANGES: list[dict[str, Any]] = [
    {"text": "goodbye"},
    {"kind": EnvelopeKind.SYSTEM},
    {"attachments": (ATTACHMENT,)},
    {"sender": "person:owner"},
    {"recipient": "agent:bob"},
    {"recipient": "person:owner"},
    {"recipient": "channel:quiet:1"},
]


async def test_accepting_the_same_key_with_different_content_is_a_conflict(place: StoreLocation) -> None:
    async with open_intake(place, "ada", "bob") as setup:
        await setup.post("hello", key="k")
        for other in CONFLICTING_CHANGES:
            with pytest.raises(Conflict) as refused:
                await setup.post(**({"text": "hello", "key": "k"} | other))
            assert refused.value.code == "key.reused"
            assert refused.value.because and "new key" in refused.value.try_this
        assert len(await setup.stored()) == 1


async def test_an_envelope_to_a_session_that_is_accepted_again_is_a_duplicate(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        session = (await setup.post("hello")).session
        first = await setup.post("more", key="k", recipient=f"agent:ada/{session}")
        assert (await setup.post("more", key="k", recipient=f"agent:Ada/{str(session)[:8]}")).duplicate
        with pytest.raises(Conflict):
            await setup.post("more", key="k", recipient="agent:ada/ffffffff")
        assert first.session == session


async def test_of_twenty_concurrent_sends_with_one_key_one_envelope_is_accepted(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        receipts = await asyncio.gather(*(setup.post("hello", key="k") for _ in range(20)))

        assert sum(not receipt.duplicate for receipt in receipts) == 1
        assert {receipt.envelope for receipt in receipts} == {(await setup.stored())[0].id}
        assert len(await setup.stored()) == 1
        assert await setup.store.read(
            lambda conn: conn.execute(sa.select(t.accepted_counts.c.accepted)).scalars().all()
        ) == [1]


async def test_of_twenty_concurrent_sends_with_one_key_and_different_texts_one_envelope_is_accepted(
    place: StoreLocation,
) -> None:
    async with open_intake(place) as setup:
        results = await asyncio.gather(*(setup.post(f"number {n}", key="k") for n in range(20)), return_exceptions=True)

        assert sum(isinstance(result, Receipt) for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 19
        assert len(await setup.stored()) == 1


async def test_concurrent_sends_through_two_stores_with_the_same_keys_accept_each_envelope_once(
    place: StoreLocation,
) -> None:
    async with open_intake(place) as setup, place.open() as other:
        there = IntakeSetup(other, ids=SequentialIds(7))
        posts = [who.post("hello", key=f"k{n}") for n in range(20) for who in (setup, there)]
        receipts = await asyncio.gather(*posts)

        assert sum(not receipt.duplicate for receipt in receipts) == 20
        assert [e.seq for e in await setup.stored()] == list(range(1, 21))


async def test_the_receipt_of_an_envelope_that_was_accepted_before_contains_its_outcome(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        first = await setup.post("hello", key="k", recipient="person:owner")
        again = await setup.post("hello", key="k", recipient="person:owner")
        assert (first.outcome, again.outcome) == (Outcome.DELIVERED, Outcome.DELIVERED)
        assert again.because == "in the inbox of owner"


# Recipients


UNKNOWN_RECIPIENTS = {
    "agent:nobody": "agent.not_found",
    "person:nobody": "person.not_found",
    "agent:ada/deadbeef": "session.not_found",
}


@pytest.mark.spec("H5")
async def test_an_envelope_to_an_unknown_recipient_is_refused_and_not_stored(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        for recipient, code in UNKNOWN_RECIPIENTS.items():
            with pytest.raises(NotFound) as refused:
                await setup.post(recipient=recipient)
            assert refused.value.code == code
            assert re.split("[:/]", recipient)[-1] in refused.value.sentence and refused.value.try_this
            assert await setup.is_empty()
        assert setup.wakes == []


@pytest.mark.spec("H5")
async def test_an_envelope_to_a_removed_agent_is_refused_and_not_stored(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        await setup.store.write(lambda conn: agents.remove(conn, "Ada", at_ms=1), point="test")
        with pytest.raises(NotFound):
            await setup.post()
        assert await setup.is_empty()


@pytest.mark.parametrize("recipient", ["schedule:deadbeef", "server"])
async def test_an_address_that_cannot_receive_is_refused(sqlite_place: StoreLocation, recipient: str) -> None:
    async with open_intake(sqlite_place) as setup:
        with pytest.raises(Invalid) as refused:
            await setup.post(recipient=recipient)
        assert refused.value.code == "address.cannot_receive"
        assert await setup.is_empty()


@pytest.mark.spec("H6")
async def test_recipient_names_match_in_any_case_and_are_stored_as_registered(place: StoreLocation) -> None:
    async with open_intake(place, "Night-Clerk") as setup:
        receipts = [
            await setup.post(recipient=f"agent:{name}") for name in ("night-clerk", "NIGHT-CLERK", "Night-Clerk")
        ]

        assert len({receipt.session for receipt in receipts}) == 1
        session = receipts[0].session
        assert {str((await setup.get(receipt)).recipient) for receipt in receipts} == {f"agent:Night-Clerk/{session}"}
        to_person = await setup.post(recipient="person:MARIA")
        assert str((await setup.get(to_person)).recipient) == "person:maria"


async def test_agents_and_people_cannot_have_names_that_differ_only_in_case(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        changed = await setup.store.write(
            lambda conn: agents.upsert(conn, Agent(name="ADA"), source="test", at_ms=2), point="test"
        )
        assert (changed.name, changed.version) == ("ada", 2)
        with pytest.raises(StoreError):
            await setup.store.write(
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
    "server:",
    "server:x",
    "mailto:ada@example.org",
]


@pytest.mark.spec("H7")
@pytest.mark.parametrize("text", MALFORMED, ids=ascii)
def test_a_malformed_address_is_refused_as_an_invalid_parameter(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        address.parse_address(text)
    assert refused.value.code in ("address.invalid", "name.invalid", "id.invalid")
    assert refused.value.because and refused.value.try_this
    str(refused.value).encode()  # the refusal itself can be encoded for any client


NAMES = st.from_regex(r"[A-Za-z0-9]{1,8}(-[A-Za-z0-9]{1,8}){0,3}", fullmatch=True)
IDS = st.text("0123456789abcdef", min_size=8, max_size=32)
ROOMS = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1, max_size=60)
ADDRESSES = st.one_of(
    st.just("server"),
    NAMES.map("agent:{}".format),
    NAMES.map("person:{}".format),
    IDS.map("schedule:{}".format),
    st.tuples(NAMES, IDS).map(lambda pair: f"agent:{pair[0]}/{pair[1]}"),
    st.tuples(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True), ROOMS).map(lambda p: f"channel:{p[0]}:{p[1]}"),
)


@pytest.mark.spec("H7")
@given(ADDRESSES)
def test_a_valid_address_is_formatted_as_it_was_parsed(text: str) -> None:
    assert str(address.parse_address(text)) == text


@pytest.mark.spec("H7")
def test_the_former_name_of_the_server_address_is_parsed_as_server() -> None:
    assert str(address.parse_address("house")) == "server"


@pytest.mark.spec("H7")
@given(
    st.one_of(
        st.text(max_size=80),
        st.tuples(
            st.sampled_from(["agent:", "person:", "schedule:", "channel:x:", "server"]), st.text(max_size=60)
        ).map("".join),
    )
)
def test_arbitrary_text_is_refused_or_parsed_into_an_address_that_round_trips(text: str) -> None:
    try:
        found = address.parse_address(text)
    except Invalid as refused:
        assert refused.code in ("address.invalid", "name.invalid", "id.invalid")
        return
    assert address.parse_address(str(found)) == found
    assert str(address.parse_address(str(found))) == str(found)
    assert set(found.name) <= set(string.ascii_letters + string.digits + "-")
    assert str(found).isprintable() or found.rest


# Delivery time


@pytest.mark.spec("H11")
@pytest.mark.parametrize("recipient", ["agent:ada", "person:maria", "channel:quiet:1"])
async def test_an_accepted_envelope_with_a_future_deliver_at_waits_and_a_past_one_is_due_now(
    place: StoreLocation, recipient: str
) -> None:
    async with open_intake(place) as setup:
        now = setup.clock.now()
        later = await setup.post("later", recipient=recipient, deliver_at=now + timedelta(hours=1))
        assert setup.wakes == [TimerWake()]
        list_waiting_texts = await setup.get(later)
        assert (list_waiting_texts.status, list_waiting_texts.due_at) == (
            EnvelopeStatus.PENDING,
            now + timedelta(hours=1),
        )
        assert later.outcome is None

        setup.wakes.clear()
        earlier = await setup.post("earlier", recipient=recipient, deliver_at=now - timedelta(hours=1))
        found = await setup.get(earlier)
        assert found.due_at == now
        assert found.deliver_at == now - timedelta(hours=1)
        if recipient == "person:maria":
            assert earlier.outcome is Outcome.DELIVERED
        else:
            assert isinstance(setup.wakes[0], LaneWake | ChannelWake)


async def test_due_envelopes_for_people_are_not_listed_as_due_channels(place: StoreLocation) -> None:
    """A delayed envelope for a person is released by the clock, never by a connector."""
    async with open_intake(place) as setup:
        soon = setup.clock.now() + timedelta(seconds=1)
        for recipient in ("person:maria", "channel:quiet:1", "agent:ada"):
            await setup.post(recipient=recipient, deliver_at=soon)
        at_ms = to_ms(soon)

        assert await setup.store.read(lambda conn: envelopes.list_due_channels(conn, at_ms, limit=9)) == [
            "channel:quiet:1"
        ]
        channels = await setup.store.read(lambda conn: deliveries.list_due_channels(conn, at_ms, after="", limit=9))
        assert channels == ["channel:quiet:1"]
        people_due = await setup.store.read(lambda conn: envelopes.list_due_for_people(conn, at_ms, limit=9))
        assert [str(e.recipient) for e in people_due] == ["person:maria"]


@pytest.mark.spec("H11")
async def test_a_running_server_delivers_accepted_envelopes_at_deliver_at_and_past_ones_at_once(
    place: StoreLocation, tmp_path: Path
) -> None:
    instance = LocalInstance(tmp_path, url=place.url)
    async with instance.run() as server:
        now = instance.clock.now()
        instance.model.rule = lambda prompt: text_reply("read")
        later = await server.send("later", deliver_at=now + timedelta(days=2))
        reminder = await server.send("reminder", deliver_at=now + timedelta(days=1), recipient="person:maria")
        earlier = await server.send("earlier", deliver_at=now - timedelta(days=400))
        assert await server.wait_for_answer(earlier.envelope) == "read"
        assert (await server.get_envelope(later.envelope)).status is EnvelopeStatus.PENDING
        assert "reminder" not in {
            envelope.text for envelope in await server.list_envelopes_to("maria") if envelope.settled_at
        }

        ended = await advance_until_settled(server, reminder.envelope, later.envelope, step_s=3600)

        assert [settled.outcome for settled in ended] == [Outcome.DELIVERED, Outcome.ANSWERED]
        assert ended[0].at >= now + timedelta(days=1)
        assert ended[1].at >= now + timedelta(days=2)
        inbox = await server.execute_sql("SELECT person FROM inbox WHERE envelope = :id", id=reminder.envelope)
        assert [row.person for row in inbox] == ["maria"]


@pytest.mark.spec("H15")
async def test_waiting_envelopes_are_ordered_by_due_time_and_then_by_acceptance(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        now = setup.clock.now()
        hour = timedelta(hours=1)
        texts = [("third", hour), ("first", None), ("fourth", hour), ("second", None), ("fifth", 2 * hour)]
        posted = [await setup.post(text, deliver_at=now + wait if wait else None) for text, wait in texts]
        session = posted[0].session
        assert session is not None
        at_ms = 4 * 10**12

        due = await setup.store.read(lambda conn: envelopes.list_due(conn, session, at_ms, limit=10))

        assert [e.text for e in due] == ["first", "second", "third", "fourth", "fifth"]


@pytest.mark.spec("H15")
async def test_acceptance_times_and_order_do_not_go_back_with_the_clock(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        receipts: list[Receipt] = []
        for jump in (0, 3600, -7200, -86_400, 10):
            setup.clock.jump(timedelta(seconds=jump))
            receipts.append(await setup.post(f"after {jump}"))
        found = [await setup.get(receipt) for receipt in receipts]

        assert [e.accepted_at for e in found] == sorted(e.accepted_at for e in found)
        assert [e.seq for e in found] == [1, 2, 3, 4, 5]
        session = receipts[0].session
        assert session is not None
        due = await setup.store.read(lambda conn: envelopes.list_due(conn, session, 4 * 10**12, limit=10))
        assert [e.text for e in due] == [e.text for e in found]


INVALID_TIMES = [(None, -1, "time.past"), (None, 0, "time.past"), (2, 2, "time.inverted"), (2, 1, "time.inverted")]


async def test_an_envelope_that_expires_before_it_can_be_delivered_is_not_accepted(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        now = setup.clock.now()
        for deliver, expires, code in INVALID_TIMES:
            with pytest.raises(Invalid) as refused:
                await setup.post(
                    deliver_at=now + timedelta(hours=deliver) if deliver is not None else None,
                    expires_at=now + timedelta(hours=expires),
                )
            assert refused.value.code == code
            assert refused.value.because and refused.value.try_this
        assert await setup.is_empty()


# Content


@pytest.mark.parametrize("key", ["", "k" * (IDEMPOTENCY_KEY_LENGTH_MAX + 1), "a\x00b", "\ud800"], ids=ascii)
async def test_an_envelope_with_an_invalid_idempotency_key_is_not_accepted(
    sqlite_place: StoreLocation, key: str
) -> None:
    async with open_intake(sqlite_place) as setup:
        with pytest.raises(Invalid) as refused:
            await setup.post(key=key)
        assert refused.value.code == "key.invalid"
        assert await setup.is_empty()


async def test_accepted_sources_keys_and_origins_fit_every_index_and_longer_ones_are_refused(
    place: StoreLocation,
) -> None:
    """A PostgreSQL index entry holds at most 2,704 bytes, so these values must fit in any script."""
    async with open_intake(place) as setup:
        room = "\U00020000" * 250
        origin = Origin(OriginKind.CHAT, f"channel:x:{room}")
        for n, source in enumerate(("s" * 1024, "\U00020000" * 256)):
            receipt = await setup.post(
                source=source, key="\U00020000" * IDEMPOTENCY_KEY_LENGTH_MAX, origin=origin, text=str(n)
            )
            assert (await setup.get(receipt)).source == source
        await setup.post(recipient="channel:" + "x" * 64 + ":" + "\U00020000" * 512)
        wrongs: list[dict[str, Any]] = [
            {"source": "s" * 1025},
            {"source": "\x00"},
            {"origin": Origin(OriginKind.CHAT, "o" * 1025)},
        ]
        for wrong in wrongs:
            with pytest.raises(Invalid) as refused:
                await setup.post(**wrong)
            assert refused.value.code == "source.invalid"


async def test_an_envelope_with_unstorable_text_in_its_context_is_not_accepted(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        with pytest.raises(Invalid) as refused:
            await setup.post(context=EnvelopeContext(sender_name="\ud83d"))
        assert refused.value.code == "text.unstorable"
        receipt = await setup.post(
            context=EnvelopeContext(sender_name="Zoë \u202e", chat_title="'; --", from_boss=True)
        )
        assert (await setup.get(receipt)).context == EnvelopeContext(
            sender_name="Zoë \u202e", chat_title="'; --", from_boss=True
        )


async def test_an_envelope_with_more_than_the_maximum_number_of_attachments_is_not_accepted(
    place: StoreLocation,
) -> None:
    async with open_intake(place) as setup:
        receipt = await setup.post(attachments=(ATTACHMENT,) * ATTACHMENTS_MAX)
        assert (await setup.get(receipt)).attachments == (ATTACHMENT,) * ATTACHMENTS_MAX
        with pytest.raises(TooLarge) as refused:
            await setup.post(attachments=(ATTACHMENT,) * (ATTACHMENTS_MAX + 1))
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


def draft_with_attachment(**changes: Any) -> EnvelopeDraft:
    stored: dict[str, Any] = {
        "hash": ATTACHMENT.hash,
        "name": ATTACHMENT.name,
        "media_type": "text/plain",
        "size_bytes": 1,
    }
    return EnvelopeDraft(
        id=EnvelopeId("0" * 32),
        sender=address.person_address("maria"),
        recipient=address.agent_address("ada"),
        text="look",
        source="test",
        idempotency_key="k",
        attachments=(Attachment(**(stored | changes)),),
    )


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_an_attachment_with_an_unsafe_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_draft(draft_with_attachment(name=name))
    assert refused.value.code == "attachment.invalid"
    str(refused.value).encode()


@given(st.text(max_size=300))
def test_safe_file_name_is_safe_and_idempotent_for_any_text(name: str) -> None:
    safe = safe_file_name(name)
    assert safe == safe_file_name(safe)
    assert 0 < len(safe) <= 120
    assert not set(safe) & set("/\\\x00\n") and not safe.startswith(".")
    check_draft(draft_with_attachment(name=safe))


@pytest.mark.parametrize(
    "wrong", [{"hash": "0f" * 31}, {"hash": "../" + "0" * 61}, {"hash": "0F" * 32}, {"size_bytes": -1}]
)
def test_an_attachment_with_an_invalid_hash_or_size_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        check_draft(draft_with_attachment(**wrong))
    assert refused.value.code == "attachment.invalid"


async def test_an_envelope_with_an_oversized_text_is_not_accepted_and_the_longest_allowed_text_is_stored(
    place: StoreLocation,
) -> None:
    async with open_intake(place) as setup:
        for text in ("x" * 10_000_000, "x" * (ENVELOPE_TEXT_BYTES_MAX + 1), "ü" * (ENVELOPE_TEXT_BYTES_MAX // 2 + 1)):
            with pytest.raises(TooLarge) as refused:
                await setup.post(text)
            assert refused.value.code == "text.too_large"
            assert f"{ENVELOPE_TEXT_BYTES_MAX:,}" in refused.value.because and "attachment" in refused.value.try_this
        assert await setup.is_empty()
        longest = "ü" * (ENVELOPE_TEXT_BYTES_MAX // 2)
        assert (await setup.get(await setup.post(longest))).text == longest


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "ok \udfff", "\x00"], ids=ascii)
async def test_an_envelope_text_with_nul_or_surrogates_is_not_accepted_and_the_reason_is_given(
    sqlite_place: StoreLocation, text: str
) -> None:
    async with open_intake(sqlite_place) as setup:
        with pytest.raises(Invalid) as refused:
            await setup.post(text)
        assert refused.value.code == "text.unstorable"
        assert "surrogates" in refused.value.because and refused.value.try_this
        assert await setup.is_empty()


async def test_accepted_bidi_text_is_stored_unchanged_and_rendered_without_bidi_characters(
    place: StoreLocation,
) -> None:
    trick = "pay \u202e000,1\u202c euro \u2066hidden\u2069"
    async with open_intake(place) as setup:
        receipt = await setup.post(trick, context=EnvelopeContext(sender_name="Ma\u202eria"))
        found = await setup.get(receipt)
        assert found.text == trick
        shown = turn_input.render_turn([found], now=setup.clock.now(), zone=ZoneInfo("UTC"))
        assert not any(sign in shown for sign in "\u202e\u202c\u2066\u2069")
        assert "000,1" in shown


FIFTY_CLIENTS = """
import asyncio, json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from stores import add_agents_and_people
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
    await store.write(add_agents_and_people("ada"), point="setup")
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


def test_memory_stays_bounded_while_the_intake_gets_ten_megabytes_from_each_of_fifty_clients(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIFTY_CLIENTS, tmp_path / "retinue.db", Path(__file__).parent.parent],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    counts = json.loads(done.stdout)
    assert (counts["refused"], counts["kept"]) == (100, 100)
    assert counts["after"] - counts["before"] < 60, counts  # one such text needs 7 MB, a hundred 700 MB


# Limits


def small_queue(overflow: Overflow, cap: int = 2) -> dict[str, Any]:
    return {"queue": QueuePolicy(cap=cap, overflow=overflow)}


async def list_waiting_texts(setup: IntakeSetup, session: SessionId | None) -> list[str]:
    assert session is not None
    due = await setup.store.read(lambda conn: envelopes.list_due(conn, session, 4 * 10**12, limit=50))
    return [e.text for e in due if not e.silent]


async def list_notice_texts(setup: IntakeSetup, person: str = "maria") -> list[str]:
    return [
        e.text for e in await setup.stored() if str(e.recipient) == f"person:{person}" and e.kind is EnvelopeKind.NOTICE
    ]


@pytest.mark.spec("C24")
async def test_overflow_refuse_accepts_nothing_beyond_the_queue_cap_and_notifies_the_late_sender(
    place: StoreLocation,
) -> None:
    async with open_intake(place, **small_queue(Overflow.REFUSE)) as setup:
        stored = [await setup.post(f"number {n}") for n in range(2)]
        late = await setup.post("number 2")

        assert late.outcome is Outcome.REFUSED
        assert late.because == "queue full: 2 envelopes waiting in this session; its cap is 2"
        assert await setup.outcome(late.envelope) == (Outcome.REFUSED, late.because)
        assert await list_waiting_texts(setup, late.session) == ["number 0", "number 1"]
        assert all(receipt.outcome is None for receipt in stored)
        assert await list_notice_texts(setup) == [f"Not accepted: {late.because}."]
        notices = [e for e in await setup.stored() if e.kind is EnvelopeKind.NOTICE]
        assert notices[0].reply_to == late.envelope


@pytest.mark.spec("C24")
async def test_overflow_oldest_drops_the_oldest_envelopes_for_accepted_ones_beyond_the_queue_cap(
    place: StoreLocation,
) -> None:
    async with open_intake(place, **small_queue(Overflow.OLDEST)) as setup:
        receipts = [await setup.post(f"number {n}") for n in range(5)]

        assert [receipt.outcome for receipt in receipts] == [None] * 5
        assert await list_waiting_texts(setup, receipts[0].session) == ["number 3", "number 4"]
        ended = [await setup.outcome(receipt.envelope) for receipt in receipts]
        assert ended[3:] == [None, None]
        assert all(end == (Outcome.REFUSED, "queue full: dropped in favor of a newer message") for end in ended[:3])
        assert len(await list_notice_texts(setup)) == 3


@pytest.mark.spec("C24")
async def test_overflow_summarize_leaves_a_line_for_envelopes_dropped_for_accepted_ones(place: StoreLocation) -> None:
    async with open_intake(place, **small_queue(Overflow.SUMMARIZE)) as setup:
        await setup.post("first\nwords " + "x" * 500)
        receipts = [await setup.post(f"number {n}") for n in range(2)]

        assert await list_waiting_texts(setup, receipts[0].session) == ["number 0", "number 1"]
        (line,) = [e for e in await setup.stored() if e.silent]
        assert line.text.startswith("Dropped while you were busy, from person:maria: first words xxx")
        assert len(line.text) < 250 and line.text.endswith("…")
        assert (line.kind, line.session) == (EnvelopeKind.SYSTEM, receipts[0].session)
        assert len(await list_notice_texts(setup)) == 1


async def test_with_a_queue_cap_of_zero_no_message_is_accepted(place: StoreLocation) -> None:
    async with open_intake(place, **small_queue(Overflow.OLDEST, cap=0)) as setup:
        receipt = await setup.post("no room")
        assert receipt.outcome is Outcome.REFUSED
        assert await setup.outcome(receipt.envelope) == (Outcome.REFUSED, receipt.because)
        assert await list_waiting_texts(setup, receipt.session) == []


async def test_accepted_answers_notices_and_silent_envelopes_do_not_count_against_the_queue_cap(
    place: StoreLocation,
) -> None:
    async with open_intake(place, "ada", "bob", **small_queue(Overflow.OLDEST)) as setup:
        session = (await setup.post("number 0")).session
        assert session is not None
        await setup.post("an answer", recipient=f"agent:ada/{session}", sender="agent:bob", kind=EnvelopeKind.ANSWER)
        await setup.post("a notice", recipient=f"agent:ada/{session}", sender="agent:bob", kind=EnvelopeKind.NOTICE)
        await setup.post("for later", deliver_at=setup.clock.now() + timedelta(days=1))
        await setup.post("silent", silent=True, kind=EnvelopeKind.SYSTEM)
        await setup.post("number 1")
        assert await list_notice_texts(setup) == []
        await setup.post("number 2")
        assert await list_waiting_texts(setup, session) == [
            "an answer",
            "a notice",
            "number 1",
            "number 2",
            "for later",
        ]


@pytest.mark.spec("C26")
async def test_a_session_queue_override_changes_the_cap_until_it_is_removed(place: StoreLocation) -> None:
    async with open_intake(place, **small_queue(Overflow.REFUSE, cap=3)) as setup:
        mine = (await setup.post("a", origin=Origin(OriginKind.WEB, "mine"))).session
        other = Origin(OriginKind.WEB, "other")
        assert mine is not None

        async def set_queue(queue: QueueOverride) -> None:
            await setup.store.write(lambda conn: sessions.set_queue(conn, mine, queue, at_ms=1), point="test")

        async def post() -> Outcome | None:
            return (await setup.post("more", origin=Origin(OriginKind.WEB, "mine"))).outcome

        await set_queue(QueueOverride(cap=1, mode=QueueMode.FOLLOWUP))
        assert await post() is Outcome.REFUSED
        assert (await setup.post("b", origin=other)).outcome is None
        assert (await setup.post("c", origin=other)).outcome is None
        await set_queue(QueueOverride(cap=1, overflow=Overflow.OLDEST))
        assert await post() is None
        assert await list_waiting_texts(setup, mine) == ["more"]
        await set_queue(QueueOverride())
        assert [await post() for _ in range(3)] == [None, None, Outcome.REFUSED]


# Internal envelopes


async def test_an_internal_envelope_to_an_unknown_recipient_is_stored_as_refused(place: StoreLocation) -> None:
    """The commit that it belongs to, such as the end of a run, must not fail because of it."""
    async with open_intake(place) as setup:
        drafts = [setup.draft(recipient=to) for to in ("agent:nobody", "person:nobody", "agent:ada/deadbeef")]

        def body(conn: sa.Connection) -> list[Outcome | None]:
            tx = Transaction(conn, 1)
            outcomes = [accept_in_transaction(tx, draft).receipt.outcome for draft in drafts]
            tx.close()
            return outcomes

        assert await setup.store.write(body, point="test") == [Outcome.REFUSED] * 3
        ended = [await setup.outcome(draft.id) for draft in drafts]
        assert ended == [
            (Outcome.REFUSED, "agent-not-found"),
            (Outcome.REFUSED, "person-not-found"),
            (Outcome.REFUSED, "session-not-found"),
        ]


async def test_a_receipt_contains_the_event_number_of_the_accepted_envelope(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        receipt = await setup.post("hello")
        stored_events = await setup.store.read(lambda conn: events.list_after(conn, 0, limit=10))
        assert [piece.kind.value for piece in stored_events] == ["session.started", "envelope.accepted"]
        assert stored_events[-1].seq == receipt.event_seq
        assert stored_events[-1].body["text"] == "hello"
        assert setup.wakes == [LaneWake(receipt.session, "ada", LaneKind.MAIN)]  # type: ignore[arg-type]


async def test_concurrently_accepted_envelopes_from_fifty_senders_get_consecutive_numbers(place: StoreLocation) -> None:
    async with open_intake(place) as setup:
        posts = [setup.post(f"number {n}", sender=f"channel:quiet:{n}") for n in range(50)]
        receipts = await asyncio.gather(*posts)

        assert len({receipt.session for receipt in receipts}) == 50
        stored = await setup.stored()
        assert [e.seq for e in stored] == list(range(1, 51))
        tally = await setup.store.read(
            lambda conn: conn.execute(sa.select(t.accepted_counts.c.accepted)).scalars().all()
        )
        assert tally == [50]
