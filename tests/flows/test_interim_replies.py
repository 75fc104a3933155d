"""What a room hears of a run while it goes on, and that it hears nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faults import CrashAt, time_passing, until

from retinue.connectors.base import ConnectorCapabilities
from retinue.connectors.redacted_connector import RedactedConnector
from retinue.domain import address
from retinue.domain.envelope import EnvelopeContext, EnvelopeDraft, Outcome, Receipt
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId, SessionId
from retinue.domain.reply_delivery import AckScope, ReplyDelivery, StreamMode, TypingMode
from retinue.domain.session_keys import ChatType
from retinue.outbox.typing_and_previews import AnsweredMessage, ProgressDisplays
from retinue.testing.fake_clock import FakeClock
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import ScriptedReply, text_reply
from retinue.text.answer_dedupe import remove_repeated_text
from retinue.tools.message_tool import MessageTool

ABLE = ConnectorCapabilities(text_max=4000, can_quote=True, can_edit=True, can_react=True, can_show_typing=True)


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


def quiet(household: LocalInstance, **how: Any) -> FakeConnector:
    connector = FakeConnector(household.clock, capabilities=ABLE, **how)
    household.connectors["quiet"] = connector
    return connector


def looks(text: str, **kw: Any) -> ScriptedReply:
    return ScriptedReply(text=text, calls=(("append_line", {"text": "x"}),), **kw)


async def ask(connector: FakeConnector, **kw: Any) -> Receipt:
    asked = await connector.send_inbound("What is on today?", **kw)
    assert asked is not None
    return asked


async def all_said(house: LocalServer, asked: Receipt) -> None:
    settled = await house.wait_for_outcome(asked.envelope)
    if settled.answer is not None:
        await house.wait_for_outcome(settled.answer)
    await house.wait_until_idle()


@pytest.mark.spec("D19")
async def test_what_is_said_between_two_calls_is_delivered_while_the_agent_works_on(household: LocalInstance) -> None:
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), text_reply("Lunch with Noor.", after_s=60.0))
    async with household.run() as house:
        asked = await ask(connector)
        await until(lambda: connector.list_texts("42") == ["Let me look."], "it is said while the run goes on")
        async with time_passing(household):
            await all_said(house, asked)

    assert connector.list_texts("42") == ["Let me look.", "Lunch with Noor."]
    assert [bool(parcel.quoted_message_id) for parcel in connector.parts] == [False, True], "only the answer quotes"


@pytest.mark.spec("D19")
async def test_what_is_said_in_between_stays_in_the_house_where_it_is_set_so(household: LocalInstance) -> None:
    household.reply_delivery = ReplyDelivery(intermediate=False)
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), text_reply("Lunch with Noor."))
    async with household.run() as house:
        await all_said(house, await ask(connector))

    assert connector.list_texts("42") == ["Lunch with Noor."]


async def test_someone_at_the_desk_gets_one_answer_as_ever(household: LocalInstance) -> None:
    household.model.will_reply(looks("Let me look."), text_reply("Lunch with Noor."))
    async with household.run() as house:
        asked = await house.send("What is on today?", sender="person:owner", recipient="agent:ada")
        await house.wait_for_outcome(asked.envelope)
        await house.wait_until_idle()
        assert [mail.text for mail in await house.list_envelopes_to("owner")] == ["Lunch with Noor."]


@pytest.mark.spec("D19")
@pytest.mark.parametrize("point", ["step.after-commit", "tool.before", "tool.after", "finish.before-commit"])
async def test_after_a_crash_nothing_is_said_twice(household: LocalInstance, point: str) -> None:
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."))
    household.model.rule = lambda _prompt: text_reply("Lunch with Noor.")
    household.crash_points = faults = CrashAt(point, nth=2 if point == "step.after-commit" else 1)
    async with household.run() as house:
        faults.guard(house)
        await ask(connector)
        await until(lambda: house.is_crashed, "the house crashed")
    async with household.run() as house:
        await until(lambda: "Lunch with Noor." in connector.list_texts("42"), "the answer is there")
        await house.wait_until_idle()

    assert sorted(connector.list_texts("42")) == ["Let me look.", "Lunch with Noor."]


@pytest.mark.spec("C81")
async def test_short_words_in_one_breath_are_one_message_and_the_answer_comes_after_them(
    household: LocalInstance,
) -> None:
    household.reply_delivery = ReplyDelivery(stream=StreamMode.BLOCKS, block_idle_ms=1000)
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), looks("And there."), text_reply("Lunch with Noor."))
    async with household.run() as house:
        await all_said(house, await ask(connector))

    assert connector.list_texts("42") == ["Let me look.\n\nAnd there.", "Lunch with Noor."]


@pytest.mark.spec("C81")
async def test_short_words_after_which_nothing_follows_leave_when_the_moment_is_over(household: LocalInstance) -> None:
    household.reply_delivery = ReplyDelivery(stream=StreamMode.BLOCKS, block_idle_ms=1000)
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), text_reply("Lunch with Noor.", after_s=600.0))
    async with household.run() as house:
        asked = await ask(connector)
        await until(lambda: len(household.model.prompts) == 2, "it looks")
        assert connector.list_texts("42") == []
        async with time_passing(household):
            await until(lambda: connector.list_texts("42") == ["Let me look."], "the moment is over")
            await all_said(house, asked)


@pytest.mark.spec("C81")
async def test_a_long_answer_comes_in_blocks(household: LocalInstance) -> None:
    household.reply_delivery = ReplyDelivery(stream=StreamMode.BLOCKS, block_min=100, block_max=200)
    connector = quiet(household)
    household.model.will_reply(" ".join(f"Sentence number {n}." for n in range(40)))
    async with household.run() as house:
        await all_said(house, await ask(connector))

    assert len(connector.list_texts("42")) > 3
    assert all(100 <= len(text) <= 200 for text in connector.list_texts("42")[:-1])


@pytest.mark.spec("C83")
def test_of_an_answer_only_what_was_not_said_before_is_left() -> None:
    assert remove_repeated_text("I have told them.", ["Dinner is at eight."]) == "I have told them."
    assert remove_repeated_text("Dinner is  at eight.", ["Dinner is at eight."]) == ""
    assert remove_repeated_text("dinner is at eight", ["Listen: Dinner is at eight. Bring wine."]) == ""
    assert remove_repeated_text("Dinner is at eight.\n\nBring wine.", ["Dinner is at eight."]) == "Bring wine."
    assert remove_repeated_text("Yes. We do.", ["Yes."]) == "Yes. We do.", "short words may be said twice"
    assert remove_repeated_text("", ["Dinner is at eight."]) == ""


@pytest.mark.spec("C83")
@pytest.mark.parametrize(
    ("room", "final", "heard"),
    [
        ("42", "Dinner is at eight.", ["Dinner is at eight."]),
        ("42", "Dinner is at eight. Bring wine.", ["Dinner is at eight.", "Bring wine."]),
        ("43", "Dinner is at eight.", ["Dinner is at eight."]),
    ],
)
async def test_words_sent_by_the_message_tool_are_not_repeated_in_the_answer_to_the_same_room(
    household: LocalInstance, room: str, final: str, heard: list[str]
) -> None:
    class Posting:
        """What the message tool sends by: the house it is in."""

        house: LocalServer

        async def accept(self, draft: EnvelopeDraft) -> Receipt:
            return await self.house.intake.accept(draft)

    posting = Posting()
    household.create_tools = lambda store, asks: [MessageTool(posting, None, None)]  # type: ignore[arg-type]
    connector = quiet(household)
    sent = ScriptedReply(calls=(("message", {"to": f"channel:quiet:{room}", "text": "Dinner is at eight."}),))
    household.model.will_reply(sent, text_reply(final))
    async with household.run() as house:
        posting.house = house
        asked = await ask(connector)
        settled = await house.wait_for_outcome(asked.envelope)
        await all_said(house, asked)
        await until(lambda: bool(connector.list_texts(room)), "it was sent")

    assert settled.outcome is Outcome.ANSWERED
    assert connector.list_texts("42") == heard


# For the eye


@pytest.mark.spec("D19")
@pytest.mark.spec("C82")
async def test_someone_is_seen_to_write_through_the_run_and_no_longer(household: LocalInstance) -> None:
    connector = quiet(household)
    household.model.will_reply(text_reply("Lunch with Noor.", after_s=60.0))
    async with household.run() as house:
        asked = await ask(connector)
        await until(lambda: bool(connector.typing_channels), "it is shown at once")
        async with time_passing(household):
            await until(lambda: len(connector.typing_channels) > 5, "it is shown again and again")
            await all_said(house, asked)
        shown = len(connector.typing_channels)
        await household.clock.advance(60.0)

    assert len(connector.typing_channels) == shown
    assert set(connector.typing_channels) == {"42"}


@pytest.mark.spec("C82")
async def test_nobody_is_seen_to_write_where_it_is_set_so(household: LocalInstance) -> None:
    household.reply_delivery = ReplyDelivery(typing=TypingMode.NEVER)
    connector = quiet(household)
    household.model.will_reply("Lunch with Noor.")
    async with household.run() as house:
        await all_said(house, await ask(connector))

    assert connector.typing_channels == []


def attended(connector: FakeConnector, words: ReplyDelivery, **asked: Any) -> Any:
    presence = ProgressDisplays(connector.clock, {"quiet": connector})
    room = address.parse_address("channel:quiet:42")
    made = presence.create(RunId("1" * 32), AnsweredMessage(channel=room, message_id="17", **asked), words)
    assert made is not None
    made.start()
    return made


async def all_that_is_ready() -> None:
    """Everything here happens in memory, so it needs turns of the loop and no time."""
    for _ in range(100):
        await asyncio.sleep(0)


def delta(text: str, *, kind: DeltaKind = DeltaKind.TEXT, offset: int = 0, turn: int = 0) -> Delta:
    return Delta(
        session=SessionId("2" * 32), run=RunId("1" * 32), turn=turn, attempt=1, offset=offset, kind=kind, text=text
    )


@pytest.mark.spec("C82")
async def test_typing_begins_with_a_thought_or_with_a_word_and_never_for_silence() -> None:
    for mode, thought, silent, word in (
        (TypingMode.THINKING, True, True, True),
        (TypingMode.MESSAGE, False, False, True),
    ):
        connector = FakeConnector(FakeClock(), capabilities=ABLE)
        made = attended(connector, ReplyDelivery(typing=mode))
        seen: list[bool] = []
        for piece in (delta("hm", kind=DeltaKind.THINKING), delta("NO_RE"), delta("ally?", offset=5)):
            made.delta(piece)
            await all_that_is_ready()
            seen.append(bool(connector.typing_channels))
        made.end()
        assert seen == [thought, silent, word]


@pytest.mark.spec("C82")
@pytest.mark.parametrize(
    ("scope", "chat", "marked"),
    [
        (AckScope.OFF, ChatType.DIRECT, False),
        (AckScope.DIRECT, ChatType.DIRECT, True),
        (AckScope.DIRECT, ChatType.GROUP, False),
        (AckScope.GROUP_MENTIONS, ChatType.DIRECT, False),
        (AckScope.GROUP_ALL, ChatType.GROUP, True),
        (AckScope.ALL, ChatType.DIRECT, True),
    ],
)
async def test_a_message_is_marked_as_seen_in_the_chats_that_are_named(
    scope: AckScope, chat: ChatType, marked: bool
) -> None:
    connector = FakeConnector(FakeClock(), capabilities=ABLE)
    made = attended(connector, ReplyDelivery(ack="👀", ack_scope=scope, ack_removed=True), chat_type=chat)
    await all_that_is_ready()
    assert connector.reactions == ([("42", "17", "👀")] if marked else [])
    made.end()
    await all_that_is_ready()
    assert connector.reactions[1:] == ([("42", "17", "")] if marked else [])


@pytest.mark.spec("C81")
async def test_a_preview_grows_without_its_last_word_and_goes_when_the_answer_comes() -> None:
    clock = FakeClock()
    connector = FakeConnector(clock, capabilities=ABLE)
    masked = RedactedConnector(connector, lambda text: text.replace("s3cret-key", "[masked]"))
    presence = ProgressDisplays(clock, {"quiet": masked})
    room = address.parse_address("channel:quiet:42")
    made = presence.create(RunId("1" * 32), AnsweredMessage(channel=room), ReplyDelivery(stream=StreamMode.PREVIEW))
    assert made is not None
    made.start()
    for offset, piece in ((0, "The key is s3cret"), (17, "-key and"), (25, " no other ")):
        made.delta(delta(piece, offset=offset))
        await all_that_is_ready()
        await clock.advance(2.0)
        await all_that_is_ready()

    assert connector.preview_texts == ["The key is", "The key is [masked]", "The key is [masked] and no other"]
    assert len(connector.previews) == 1, "one message that grows"
    made.end()
    await all_that_is_ready()
    assert connector.previews == {}
    assert connector.parts == [], "nothing of it is a delivery"


async def test_a_connector_that_fails_at_a_courtesy_does_not_hold_up_the_answer(household: LocalInstance) -> None:
    class Rude(FakeConnector):
        async def show_typing(self, channel: str) -> None:
            raise ConnectionError("no")

        async def react(self, channel: str, message_id: str, emoji: str) -> None:
            await asyncio.Event().wait()

    household.reply_delivery = ReplyDelivery(ack="👀", ack_scope=AckScope.ALL)
    connector = Rude(household.clock, capabilities=ABLE)
    household.connectors["quiet"] = connector
    household.model.will_reply("Lunch with Noor.")
    async with household.run() as house:
        await all_said(house, await ask(connector, context=EnvelopeContext()))

    assert connector.list_texts("42") == ["Lunch with Noor."]
