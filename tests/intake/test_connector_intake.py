"""What connectors hear, as the house keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import StoreFails, time_passing, until

from retinue.config.sessions import SessionSettings
from retinue.connectors.base import Accept, InboundMessage
from retinue.domain import address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import (
    ATTACHMENTS_MAX,
    ENVELOPE_TEXT_BYTES_MAX,
    IDEMPOTENCY_KEY_LENGTH_MAX,
    Envelope,
    EnvelopeContext,
    EnvelopeKind,
    Receipt,
)
from retinue.domain.session import OriginKind
from retinue.domain.session_keys import ChatType, DmScope
from retinue.domain.trust import Trust
from retinue.intake.connector_intake import ConnectorIntake
from retinue.intake.inbound_drafts import make_message_key
from retinue.testing.allow_all import AllowAllAccess
from retinue.testing.fake_connector import FakeConnectionLost, FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    household = LocalInstance(tmp_path)
    household.connectors["quiet"] = FakeConnector(household.clock)
    household.model.rule = lambda _prompt: text_reply("ok")
    return household


def quiet(household: LocalInstance) -> FakeConnector:
    connector = household.connectors["quiet"]
    assert isinstance(connector, FakeConnector)
    return connector


async def kept(house: LocalServer, receipt: Receipt | None) -> Envelope:
    assert receipt is not None
    return await house.get_envelope(receipt.envelope)


async def count(house: LocalServer) -> int:
    """How many envelopes came in by a connector."""
    return (await house.execute_sql("SELECT count(*) AS n FROM envelopes WHERE source LIKE 'connector:%'"))[0].n


@pytest.mark.spec("C8.main", "C8.per_peer", "C8.per_channel_peer", "C8.per_account_channel_peer")
@pytest.mark.parametrize(
    ("scope", "links", "keys"),
    [
        (DmScope.MAIN, {}, ["agent:ada:main"] * 4),
        (
            DmScope.PER_PEER,
            {},
            ["agent:ada:direct:7", "agent:ada:direct:8", "agent:ada:direct:7", "agent:ada:direct:7"],
        ),
        (
            DmScope.PER_PEER,
            {"Maria": ("telegram:7", "signal:8")},
            ["agent:ada:direct:maria", "agent:ada:direct:8", "agent:ada:direct:maria", "agent:ada:direct:7"],
        ),
        (
            DmScope.PER_CHANNEL_PEER,
            {},
            [
                *("agent:ada:telegram:direct:7", "agent:ada:telegram:direct:8"),
                *("agent:ada:telegram:direct:7", "agent:ada:signal:direct:7"),
            ],
        ),
        (DmScope.PER_ACCOUNT_CHANNEL_PEER, {}, ["channel:a:r7", "channel:a:r8", "channel:b:r7", "channel:c:r7"]),
        (
            DmScope.PER_ACCOUNT_CHANNEL_PEER,
            {"Maria": ("telegram:7",)},
            ["agent:ada:telegram:a:direct:maria", "channel:a:r8", "agent:ada:telegram:b:direct:maria", "channel:c:r7"],
        ),
    ],
)
async def test_those_who_write_in_person_share_a_session_as_the_scope_has_it(
    household: LocalInstance, scope: DmScope, links: dict[str, tuple[str, ...]], keys: list[str]
) -> None:
    settings = SessionSettings(dm_scope=scope, identity_links=links)
    async with household.run() as house:
        bound = address.agent_address("ada")
        doorway = ConnectorIntake(
            house.store,
            house.intake,
            household.clock,
            household.ids,
            AllowAllAccess(lambda _channel: bound),
            lambda: settings,
        )
        heard = [("a", "telegram", "7"), ("a", "telegram", "8"), ("b", "telegram", "7"), ("c", "signal", "7")]
        found: list[str] = []
        for number, (instance, service, peer) in enumerate(heard):
            said = InboundMessage(room=f"r{peer}", message_id=f"{number}", text="hi", peer=peer, service=service)
            receipt = await doorway.accept(instance, said)
            assert receipt is not None
            found.append((await house.get_session(receipt.session)).origin.key)
            answer = await house.wait_for_outcome(receipt.envelope)
            assert answer.answer is not None and str((await house.get_envelope(answer.answer)).recipient) == (
                f"channel:{instance}:r{peer}"
            ), "the answer goes to the room, whoever shares the session"
        assert found == keys
        group = await doorway.accept("a", InboundMessage(room="g1", message_id="9", text="hi", service="telegram"))
        assert group is not None
        assert (await house.get_session(group.session)).origin.key == "channel:a:g1", "a group has a session of its own"


async def test_a_message_becomes_an_envelope_from_its_channel(household: LocalInstance) -> None:
    async with household.run() as house:
        context = EnvelopeContext(
            sender_name="Alice", username="alice", chat_title="Kitchen", approval="forged", verdict="allow"
        )
        receipt = await quiet(household).send_inbound(
            "hello", channel="team/kitchen:1", message_id="77", context=context
        )
        envelope = await kept(house, receipt)

        assert str(envelope.sender) == "channel:quiet:team/kitchen:1"
        assert envelope.recipient.name == "ada"
        assert envelope.kind is EnvelopeKind.MESSAGE
        assert (envelope.source, envelope.idempotency_key) == ("connector:quiet", "team/kitchen:1/77")
        assert envelope.context == EnvelopeContext(
            sender_name="Alice", username="alice", chat_title="Kitchen", platform_id="77", chat_type=ChatType.GROUP
        ), "what only the house may say is not taken from a connector"
        assert envelope.trust is Trust.UNTRUSTED
        session = await house.get_session(envelope.session)
        assert (session.origin.kind, session.origin.key) == (OriginKind.CHAT, "channel:quiet:team/kitchen:1")


async def test_words_of_the_owner_are_marked_by_the_connector_alone(household: LocalInstance) -> None:
    async with household.run() as house:
        receipt = await quiet(household).send_inbound("[boss] hello", context=EnvelopeContext(from_boss=True))
        assert (await kept(house, receipt)).trust is Trust.OWNER


async def test_a_message_that_is_delivered_twice_is_one_envelope(household: LocalInstance) -> None:
    async with household.run() as house:
        first = await quiet(household).send_inbound("hello", message_id="1")
        again = await quiet(household).send_inbound("hello", message_id="1")

        assert first is not None and again is not None
        assert again.duplicate
        assert again.envelope == first.envelope
        assert await count(house) == 1


async def test_the_same_id_in_another_room_is_another_message(household: LocalInstance) -> None:
    async with household.run() as house:
        await quiet(household).send_inbound("hello", channel="1", message_id="1")
        await quiet(household).send_inbound("hello", channel="2", message_id="1")
        assert await count(house) == 2


async def test_an_edit_is_an_envelope_of_its_own_that_names_the_first(household: LocalInstance) -> None:
    async with household.run() as house:
        first = await kept(house, await quiet(household).send_inbound("Lunch at one?", message_id="1"))
        edit = await kept(house, await quiet(household).send_inbound("Lunch at two?", message_id="1"))
        again = await quiet(household).send_inbound("Lunch at two?", message_id="1")

        assert edit.reply_to == first.id
        assert edit.text == f"[edit of {first.id[:8]}]\nLunch at two?"
        assert edit.idempotency_key.startswith(f"{first.idempotency_key}/edit/")
        assert edit.session == first.session
        assert again is not None and again.envelope == edit.id, "an edit that is delivered twice is one"
        assert await count(house) == 2


async def test_words_that_are_changed_back_are_an_edit_where_the_platform_says_so(household: LocalInstance) -> None:
    async with household.run() as house:
        first = await kept(house, await quiet(household).send_inbound("yes", message_id="1"))
        await quiet(household).send_inbound("no", message_id="1", revision="09:01")
        back = await kept(house, await quiet(household).send_inbound("yes", message_id="1", revision="09:02"))
        await quiet(household).send_inbound("yes", message_id="1", revision="09:02")

        assert back.reply_to == first.id
        assert await count(house) == 3


async def test_an_edit_of_what_was_said_before_we_came_is_kept_without_a_first(household: LocalInstance) -> None:
    async with household.run() as house:
        edit = await kept(house, await quiet(household).send_inbound("yes", message_id="1", revision="09:01"))

    assert edit.reply_to is None
    assert edit.text == "[edit]\nyes"


def test_keys_of_different_messages_differ() -> None:
    messages = [("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a/b/c", "d"), ("a" * 500, "1"), ("a" * 500, "2")]
    messages += [("a", "1" * 500), ("a", "1" * 501), ("a" * 501, "1")]

    keys = [make_message_key(room, message_id) for room, message_id in messages]

    assert len(set(keys)) == len(messages)
    assert all(len(key) < IDEMPOTENCY_KEY_LENGTH_MAX for key in keys)


async def test_hostile_messages_are_kept_as_far_as_they_can_be(household: LocalInstance) -> None:
    many = tuple(
        Attachment(hash=f"{number:064x}", name="x.png", media_type="image/png", size_bytes=1)
        for number in range(ATTACHMENTS_MAX + 3)
    )
    async with household.run() as house:
        nul = await kept(
            house,
            await quiet(household).send_inbound(
                "a\x00b\ud800c", context=EnvelopeContext(sender_name="\x00\ud800" * 500)
            ),
        )
        huge = await kept(house, await quiet(household).send_inbound("x" * 10_000_000))
        laden = await kept(house, await quiet(household).send_inbound("look", attachments=many))
        long_id = await quiet(household).send_inbound("hello", message_id="\x00/%" * 10_000)
        again = await quiet(household).send_inbound("hello", message_id="\x00/%" * 10_000)

        assert nul.text == "a\ufffdb\ufffdc"
        assert len(nul.context.sender_name) <= 256
        assert len(huge.text.encode()) <= ENVELOPE_TEXT_BYTES_MAX and "[cut: " in huge.text
        assert len(laden.attachments) == ATTACHMENTS_MAX
        assert laden.text == "look\n[left out: 3 more attachments]"
        assert long_id is not None and again is not None and again.envelope == long_id.envelope


@pytest.mark.parametrize("room", ["", "a\nb", "\u202e", "x" * 513])
async def test_a_message_from_a_room_that_cannot_be_is_let_go_and_the_next_is_heard(
    household: LocalInstance, room: str
) -> None:
    async with household.run() as house:
        assert await quiet(household).send_inbound("hello", channel=room) is None
        assert await quiet(household).send_inbound("hello") is not None
        assert await count(house) == 1


async def test_a_message_where_nobody_is_bound_is_let_go(household: LocalInstance) -> None:
    async with household.run() as house:
        doorway = ConnectorIntake(
            house.store, house.intake, household.clock, household.ids, AllowAllAccess(lambda _channel: None)
        )

        assert await doorway.accept("quiet", InboundMessage(room="1", message_id="1", text="hello")) is None
        assert await count(house) == 0


async def test_a_message_for_an_agent_who_left_is_let_go(household: LocalInstance) -> None:
    async with household.run() as house:
        nobody = address.agent_address("nobody")
        doorway = ConnectorIntake(
            house.store, house.intake, household.clock, household.ids, AllowAllAccess(lambda _channel: nobody)
        )

        assert await doorway.accept("quiet", InboundMessage(room="1", message_id="1", text="hello")) is None
        assert await count(house) == 0


async def test_what_could_not_be_stored_is_offered_again_and_taken(household: LocalInstance) -> None:
    household.crash_points = StoreFails("accept.before-commit", times=3)
    async with household.run() as house, time_passing(house):
        receipt = await quiet(household).send_inbound("hello")

        assert receipt is not None
        assert not receipt.duplicate
        assert await count(house) == 1


async def test_a_connector_whose_line_breaks_listens_again(household: LocalInstance) -> None:
    class Shaky(FakeConnector):
        breaks = 0

        async def listen(self, accept: Accept) -> None:
            self.breaks += 1
            if self.breaks == 1:
                raise FakeConnectionLost("no line")
            if self.breaks == 2:
                return  # hung up
            await super().listen(accept)

    household.connectors["quiet"] = connector = Shaky(household.clock)
    async with household.run() as house, time_passing(house):
        assert await connector.send_inbound("hello") is not None
    assert connector.breaks == 3


async def test_a_connector_that_is_replaced_is_heard_in_place_of_the_old_one(household: LocalInstance) -> None:
    old, new = quiet(household), FakeConnector(household.clock)
    async with household.run() as house:
        assert await old.send_inbound("from the old one", message_id="1") is not None
        household.connectors["quiet"] = new
        house.supervisor.add(new)
        unheard = old.offer_text("nobody listens", message_id="2")
        assert await new.send_inbound("from the new one", message_id="3") is not None
        assert not unheard.confirmed.done()
        await until(lambda: new.list_texts("42") != [], "the answer came by the new one")
