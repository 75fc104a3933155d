"""What a room hears of a run while it goes on, and that it hears nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faults import CrashAt, time_passing, until

from retinue.connectors.base import Abilities
from retinue.connectors.redacted_connector import Masked
from retinue.domain import address
from retinue.domain.envelope import Context, Draft, Outcome, Receipt
from retinue.domain.event import Delta, DeltaKind
from retinue.domain.ids import RunId, SessionId
from retinue.domain.reply_delivery import AckScope, Stream, Typing, Words
from retinue.domain.session_keys import ChatType
from retinue.outbox.typing_and_previews import Asked, Presence
from retinue.testing.fake_clock import FakeClock
from retinue.testing.fake_connector import QuietConnector
from retinue.testing.local_instance import House, Household
from retinue.testing.scripted_model import Line, says
from retinue.text.answer_dedupe import unsaid
from retinue.tools.message_tool import Message

ABLE = Abilities(text_max=4000, quotes=True, edits=True, reacts=True, types=True)


@pytest.fixture
def household(tmp_path: Path) -> Household:
    return Household(tmp_path)


def quiet(household: Household, **how: Any) -> QuietConnector:
    connector = QuietConnector(household.clock, abilities=ABLE, **how)
    household.connectors["quiet"] = connector
    return connector


def looks(text: str, **kw: Any) -> Line:
    return Line(text=text, calls=(("append_line", {"text": "x"}),), **kw)


async def ask(connector: QuietConnector, **kw: Any) -> Receipt:
    asked = await connector.say("What is on today?", **kw)
    assert asked is not None
    return asked


async def all_said(house: House, asked: Receipt) -> None:
    settled = await house.outcome(asked.envelope)
    if settled.answer is not None:
        await house.outcome(settled.answer)
    await house.quiet()


@pytest.mark.spec("D19")
async def test_what_is_said_between_two_calls_is_delivered_while_the_agent_works_on(household: Household) -> None:
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), says("Lunch with Noor.", after_s=60.0))
    async with household.open() as house:
        asked = await ask(connector)
        await until(lambda: connector.texts("42") == ["Let me look."], "it is said while the run goes on")
        async with time_passing(household):
            await all_said(house, asked)

    assert connector.texts("42") == ["Let me look.", "Lunch with Noor."]
    assert [bool(parcel.quote) for parcel in connector.parcels] == [False, True], "only the answer quotes"


@pytest.mark.spec("D19")
async def test_what_is_said_in_between_stays_in_the_house_where_it_is_set_so(household: Household) -> None:
    household.words = Words(intermediate=False)
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), says("Lunch with Noor."))
    async with household.open() as house:
        await all_said(house, await ask(connector))

    assert connector.texts("42") == ["Lunch with Noor."]


async def test_someone_at_the_desk_gets_one_answer_as_ever(household: Household) -> None:
    household.model.will_reply(looks("Let me look."), says("Lunch with Noor."))
    async with household.open() as house:
        asked = await house.post("What is on today?", sender="person:owner", recipient="agent:ada")
        await house.outcome(asked.envelope)
        await house.quiet()
        assert [mail.text for mail in await house.mail_for("owner")] == ["Lunch with Noor."]


@pytest.mark.spec("D19")
@pytest.mark.parametrize("point", ["step.after-commit", "tool.before", "tool.after", "finish.before-commit"])
async def test_after_a_crash_nothing_is_said_twice(household: Household, point: str) -> None:
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."))
    household.model.rule = lambda _prompt: says("Lunch with Noor.")
    household.faults = faults = CrashAt(point, nth=2 if point == "step.after-commit" else 1)
    async with household.open() as house:
        faults.guard(house)
        await ask(connector)
        await until(lambda: house.crashed, "the house crashed")
    async with household.open() as house:
        await until(lambda: "Lunch with Noor." in connector.texts("42"), "the answer is there")
        await house.quiet()

    assert sorted(connector.texts("42")) == ["Let me look.", "Lunch with Noor."]


@pytest.mark.spec("C81")
async def test_short_words_in_one_breath_are_one_message_and_the_answer_comes_after_them(household: Household) -> None:
    household.words = Words(stream=Stream.BLOCKS, block_idle_ms=1000)
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), looks("And there."), says("Lunch with Noor."))
    async with household.open() as house:
        await all_said(house, await ask(connector))

    assert connector.texts("42") == ["Let me look.\n\nAnd there.", "Lunch with Noor."]


@pytest.mark.spec("C81")
async def test_short_words_after_which_nothing_follows_leave_when_the_moment_is_over(household: Household) -> None:
    household.words = Words(stream=Stream.BLOCKS, block_idle_ms=1000)
    connector = quiet(household)
    household.model.will_reply(looks("Let me look."), says("Lunch with Noor.", after_s=600.0))
    async with household.open() as house:
        asked = await ask(connector)
        await until(lambda: len(household.model.prompts) == 2, "it looks")
        assert connector.texts("42") == []
        async with time_passing(household):
            await until(lambda: connector.texts("42") == ["Let me look."], "the moment is over")
            await all_said(house, asked)


@pytest.mark.spec("C81")
async def test_a_long_answer_comes_in_blocks(household: Household) -> None:
    household.words = Words(stream=Stream.BLOCKS, block_min=100, block_max=200)
    connector = quiet(household)
    household.model.will_reply(" ".join(f"Sentence number {n}." for n in range(40)))
    async with household.open() as house:
        await all_said(house, await ask(connector))

    assert len(connector.texts("42")) > 3
    assert all(100 <= len(text) <= 200 for text in connector.texts("42")[:-1])


@pytest.mark.spec("C83")
def test_of_an_answer_only_what_was_not_said_before_is_left() -> None:
    assert unsaid("I have told them.", ["Dinner is at eight."]) == "I have told them."
    assert unsaid("Dinner is  at eight.", ["Dinner is at eight."]) == ""
    assert unsaid("dinner is at eight", ["Listen: Dinner is at eight. Bring wine."]) == ""
    assert unsaid("Dinner is at eight.\n\nBring wine.", ["Dinner is at eight."]) == "Bring wine."
    assert unsaid("Yes. We do.", ["Yes."]) == "Yes. We do.", "short words may be said twice"
    assert unsaid("", ["Dinner is at eight."]) == ""


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
    household: Household, room: str, final: str, heard: list[str]
) -> None:
    class Posting:
        """What the message tool sends by: the house it is in."""

        house: House

        async def post(self, draft: Draft) -> Receipt:
            return await self.house.inbox.post(draft)

    posting = Posting()
    household.furnishing = lambda store, asks: [Message(posting, None, None)]  # type: ignore[arg-type]
    connector = quiet(household)
    sent = Line(calls=(("message", {"to": f"channel:quiet:{room}", "text": "Dinner is at eight."}),))
    household.model.will_reply(sent, says(final))
    async with household.open() as house:
        posting.house = house
        asked = await ask(connector)
        settled = await house.outcome(asked.envelope)
        await all_said(house, asked)
        await until(lambda: bool(connector.texts(room)), "it was sent")

    assert settled.outcome is Outcome.ANSWERED
    assert connector.texts("42") == heard


# For the eye


@pytest.mark.spec("D19")
@pytest.mark.spec("C82")
async def test_someone_is_seen_to_write_through_the_run_and_no_longer(household: Household) -> None:
    connector = quiet(household)
    household.model.will_reply(says("Lunch with Noor.", after_s=60.0))
    async with household.open() as house:
        asked = await ask(connector)
        await until(lambda: bool(connector.typed), "it is shown at once")
        async with time_passing(household):
            await until(lambda: len(connector.typed) > 5, "it is shown again and again")
            await all_said(house, asked)
        shown = len(connector.typed)
        await household.clock.advance(60.0)

    assert len(connector.typed) == shown
    assert set(connector.typed) == {"42"}


@pytest.mark.spec("C82")
async def test_nobody_is_seen_to_write_where_it_is_set_so(household: Household) -> None:
    household.words = Words(typing=Typing.NEVER)
    connector = quiet(household)
    household.model.will_reply("Lunch with Noor.")
    async with household.open() as house:
        await all_said(house, await ask(connector))

    assert connector.typed == []


def attended(connector: QuietConnector, words: Words, **asked: Any) -> Any:
    presence = Presence(connector.clock, {"quiet": connector})
    room = address.parse("channel:quiet:42")
    made = presence.attend(RunId("1" * 32), Asked(room=room, message_id="17", **asked), words)
    assert made is not None
    made.begin()
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
        (Typing.THINKING, True, True, True),
        (Typing.MESSAGE, False, False, True),
    ):
        connector = QuietConnector(FakeClock(), abilities=ABLE)
        made = attended(connector, Words(typing=mode))
        seen: list[bool] = []
        for piece in (delta("hm", kind=DeltaKind.THINKING), delta("NO_RE"), delta("ally?", offset=5)):
            made.delta(piece)
            await all_that_is_ready()
            seen.append(bool(connector.typed))
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
    connector = QuietConnector(FakeClock(), abilities=ABLE)
    made = attended(connector, Words(ack="👀", ack_scope=scope, ack_removed=True), chat_type=chat)
    await all_that_is_ready()
    assert connector.reactions == ([("42", "17", "👀")] if marked else [])
    made.end()
    await all_that_is_ready()
    assert connector.reactions[1:] == ([("42", "17", "")] if marked else [])


@pytest.mark.spec("C81")
async def test_a_preview_grows_without_its_last_word_and_goes_when_the_answer_comes() -> None:
    clock = FakeClock()
    connector = QuietConnector(clock, abilities=ABLE)
    masked = Masked(connector, lambda text: text.replace("s3cret-key", "[masked]"))
    presence = Presence(clock, {"quiet": masked})
    room = address.parse("channel:quiet:42")
    made = presence.attend(RunId("1" * 32), Asked(room=room), Words(stream=Stream.PREVIEW))
    assert made is not None
    made.begin()
    for offset, piece in ((0, "The key is s3cret"), (17, "-key and"), (25, " no other ")):
        made.delta(delta(piece, offset=offset))
        await all_that_is_ready()
        await clock.advance(2.0)
        await all_that_is_ready()

    assert connector.shown == ["The key is", "The key is [masked]", "The key is [masked] and no other"]
    assert len(connector.previews) == 1, "one message that grows"
    made.end()
    await all_that_is_ready()
    assert connector.previews == {}
    assert connector.parcels == [], "nothing of it is a delivery"


async def test_a_connector_that_fails_at_a_courtesy_does_not_hold_up_the_answer(household: Household) -> None:
    class Rude(QuietConnector):
        async def type_in(self, room: str) -> None:
            raise ConnectionError("no")

        async def react(self, room: str, message_id: str, emoji: str) -> None:
            await asyncio.Event().wait()

    household.words = Words(ack="👀", ack_scope=AckScope.ALL)
    connector = Rude(household.clock, abilities=ABLE)
    household.connectors["quiet"] = connector
    household.model.will_reply("Lunch with Noor.")
    async with household.open() as house:
        await all_said(house, await ask(connector, context=Context()))

    assert connector.texts("42") == ["Lunch with Noor."]
