"""What a channel receives during a run, and that it receives nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faults import CrashAt, advancing_clock, poll_until

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

FULL_CAPABILITIES = ConnectorCapabilities(
    text_max=4000, can_quote=True, can_edit=True, can_react=True, can_show_typing=True
)


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


def add_fake_connector(instance: LocalInstance, **how: Any) -> FakeConnector:
    connector = FakeConnector(instance.clock, capabilities=FULL_CAPABILITIES, **how)
    instance.connectors["quiet"] = connector
    return connector


def text_with_call(text: str, **kw: Any) -> ScriptedReply:
    return ScriptedReply(text=text, calls=(("append_line", {"text": "x"}),), **kw)


async def send_question(connector: FakeConnector, **kw: Any) -> Receipt:
    asked = await connector.send_inbound("What is on today?", **kw)
    assert asked is not None
    return asked


async def wait_until_delivered(server: LocalServer, asked: Receipt) -> None:
    settled = await server.wait_for_outcome(asked.envelope)
    if settled.answer is not None:
        await server.wait_for_outcome(settled.answer)
    await server.wait_until_idle()


@pytest.mark.spec("D19")
async def test_an_interim_reply_before_a_tool_call_is_delivered_while_the_run_continues(
    instance: LocalInstance,
) -> None:
    connector = add_fake_connector(instance)
    instance.model.will_reply(text_with_call("Let me look."), text_reply("Lunch with Noor.", after_s=60.0))
    async with instance.run() as server:
        asked = await send_question(connector)
        await poll_until(lambda: connector.list_texts("42") == ["Let me look."], "the message is sent during the run")
        async with advancing_clock(instance):
            await wait_until_delivered(server, asked)

    assert connector.list_texts("42") == ["Let me look.", "Lunch with Noor."]
    assert [bool(delivery_part.quoted_message_id) for delivery_part in connector.parts] == [False, True], (
        "only the answer quotes the question"
    )


@pytest.mark.spec("D19")
async def test_with_intermediate_off_the_answer_is_delivered_without_interim_replies(instance: LocalInstance) -> None:
    instance.reply_delivery = ReplyDelivery(interim=False)
    connector = add_fake_connector(instance)
    instance.model.will_reply(text_with_call("Let me look."), text_reply("Lunch with Noor."))
    async with instance.run() as server:
        await wait_until_delivered(server, await send_question(connector))

    assert connector.list_texts("42") == ["Lunch with Noor."]


async def test_a_person_outside_a_channel_gets_only_the_final_answer_and_no_interim_reply(
    instance: LocalInstance,
) -> None:
    instance.model.will_reply(text_with_call("Let me look."), text_reply("Lunch with Noor."))
    async with instance.run() as server:
        asked = await server.send("What is on today?", sender="person:owner", recipient="agent:ada")
        await server.wait_for_outcome(asked.envelope)
        await server.wait_until_idle()
        assert [mail.text for mail in await server.list_envelopes_to("owner")] == ["Lunch with Noor."]


@pytest.mark.spec("D19")
@pytest.mark.parametrize("point", ["step.after-commit", "tool.before", "tool.after", "finish.before-commit"])
async def test_no_interim_reply_is_delivered_twice_after_a_crash(instance: LocalInstance, point: str) -> None:
    connector = add_fake_connector(instance)
    instance.model.will_reply(text_with_call("Let me look."))
    instance.model.rule = lambda _prompt: text_reply("Lunch with Noor.")
    instance.crash_points = faults = CrashAt(point, nth=2 if point == "step.after-commit" else 1)
    async with instance.run() as server:
        faults.watch(server)
        await send_question(connector)
        await poll_until(lambda: server.is_crashed, "the server crashed")
    async with instance.run() as server:
        await poll_until(lambda: "Lunch with Noor." in connector.list_texts("42"), "the answer is stored")
        await server.wait_until_idle()

    assert sorted(connector.list_texts("42")) == ["Let me look.", "Lunch with Noor."]


@pytest.mark.spec("C81")
async def test_in_block_mode_short_interim_replies_are_joined_and_precede_the_answer(
    instance: LocalInstance,
) -> None:
    instance.reply_delivery = ReplyDelivery(stream=StreamMode.BLOCKS, block_idle_ms=1000)
    connector = add_fake_connector(instance)
    instance.model.will_reply(
        text_with_call("Let me look."), text_with_call("And there."), text_reply("Lunch with Noor.")
    )
    async with instance.run() as server:
        await wait_until_delivered(server, await send_question(connector))

    assert connector.list_texts("42") == ["Let me look.\n\nAnd there.", "Lunch with Noor."]


@pytest.mark.spec("C81")
async def test_in_block_mode_a_short_interim_reply_is_sent_after_the_idle_time(instance: LocalInstance) -> None:
    instance.reply_delivery = ReplyDelivery(stream=StreamMode.BLOCKS, block_idle_ms=1000)
    connector = add_fake_connector(instance)
    instance.model.will_reply(text_with_call("Let me look."), text_reply("Lunch with Noor.", after_s=60.0))
    async with instance.run() as server:
        asked = await send_question(connector)
        await poll_until(lambda: len(instance.model.prompts) == 2, "the tool is called")
        assert connector.list_texts("42") == []
        async with advancing_clock(server):  # it waits for the store, so the reply comes long after this delivery
            await poll_until(lambda: connector.list_texts("42") == ["Let me look."], "the typing indicator has ended")
            await wait_until_delivered(server, asked)


@pytest.mark.spec("C81")
async def test_in_block_mode_a_long_answer_is_sent_in_blocks(instance: LocalInstance) -> None:
    instance.reply_delivery = ReplyDelivery(stream=StreamMode.BLOCKS, block_min=100, block_max=200)
    connector = add_fake_connector(instance)
    instance.model.will_reply(" ".join(f"Sentence number {n}." for n in range(40)))
    async with instance.run() as server:
        await wait_until_delivered(server, await send_question(connector))

    assert len(connector.list_texts("42")) > 3
    assert all(100 <= len(text) <= 200 for text in connector.list_texts("42")[:-1])


@pytest.mark.spec("C83")
def test_repeated_text_that_an_interim_reply_already_sent_is_removed_from_the_answer() -> None:
    assert remove_repeated_text("I have told them.", ["Dinner is at eight."]) == "I have told them."
    assert remove_repeated_text("Dinner is  at eight.", ["Dinner is at eight."]) == ""
    assert remove_repeated_text("dinner is at eight", ["Listen: Dinner is at eight. Bring wine."]) == ""
    assert remove_repeated_text("Dinner is at eight.\n\nBring wine.", ["Dinner is at eight."]) == "Bring wine."
    assert remove_repeated_text("Yes. We do.", ["Yes."]) == "Yes. We do.", "short texts may be repeated"
    assert remove_repeated_text("", ["Dinner is at eight."]) == ""


@pytest.mark.spec("C83")
@pytest.mark.parametrize(
    ("channel", "final", "heard"),
    [
        ("42", "Dinner is at eight.", ["Dinner is at eight."]),
        ("42", "Dinner is at eight. Bring wine.", ["Dinner is at eight.", "Bring wine."]),
        ("43", "Dinner is at eight.", ["Dinner is at eight."]),
    ],
)
async def test_text_sent_by_the_message_tool_is_not_repeated_in_the_answer_to_that_channel(
    instance: LocalInstance, channel: str, final: str, heard: list[str]
) -> None:
    class IntakeProxy:
        """Passes the envelopes of the message tool to the running server."""

        server: LocalServer

        async def accept(self, draft: EnvelopeDraft) -> Receipt:
            return await self.server.intake.accept(draft)

    intake_proxy = IntakeProxy()
    instance.create_tools = lambda store, asks: [MessageTool(intake_proxy, None, None)]  # type: ignore[arg-type]
    connector = add_fake_connector(instance)
    sent = ScriptedReply(calls=(("message", {"to": f"channel:quiet:{channel}", "text": "Dinner is at eight."}),))
    instance.model.will_reply(sent, text_reply(final))
    async with instance.run() as server:
        intake_proxy.server = server
        asked = await send_question(connector)
        settled = await server.wait_for_outcome(asked.envelope)
        await wait_until_delivered(server, asked)
        await poll_until(lambda: bool(connector.list_texts(channel)), "the message was sent")

    assert settled.outcome is Outcome.ANSWERED
    assert connector.list_texts("42") == heard


# --- progress messages ---


@pytest.mark.spec("D19")
@pytest.mark.spec("C82")
async def test_typing_is_shown_throughout_the_run_and_not_afterwards(instance: LocalInstance) -> None:
    connector = add_fake_connector(instance)
    instance.model.will_reply(text_reply("Lunch with Noor.", after_s=60.0))
    async with instance.run() as server:
        asked = await send_question(connector)
        await poll_until(lambda: bool(connector.typing_channels), "the preview is sent at once")
        async with advancing_clock(instance):
            await poll_until(lambda: len(connector.typing_channels) > 5, "the preview is updated")
            await wait_until_delivered(server, asked)
        shown = len(connector.typing_channels)
        await instance.clock.advance(60.0)

    assert len(connector.typing_channels) == shown
    assert set(connector.typing_channels) == {"42"}


@pytest.mark.spec("C82")
async def test_typing_is_not_shown_if_the_setting_is_never(instance: LocalInstance) -> None:
    instance.reply_delivery = ReplyDelivery(typing=TypingMode.NEVER)
    connector = add_fake_connector(instance)
    instance.model.will_reply("Lunch with Noor.")
    async with instance.run() as server:
        await wait_until_delivered(server, await send_question(connector))

    assert connector.typing_channels == []


def start_progress_display(connector: FakeConnector, words: ReplyDelivery, **asked: Any) -> Any:
    displays = ProgressDisplays(connector.clock, {"quiet": connector})
    room = address.parse_address("channel:quiet:42")
    made = displays.create(RunId("1" * 32), AnsweredMessage(channel=room, message_id="17", **asked), words)
    assert made is not None
    made.start()
    return made


async def run_ready_tasks() -> None:
    """Everything here happens in memory, so it needs turns of the event loop and no time."""
    for _ in range(100):
        await asyncio.sleep(0)


def delta(text: str, *, kind: DeltaKind = DeltaKind.TEXT, offset: int = 0, turn: int = 0) -> Delta:
    return Delta(
        session=SessionId("2" * 32), run=RunId("1" * 32), turn=turn, attempt=1, offset=offset, kind=kind, text=text
    )


@pytest.mark.spec("C82")
async def test_typing_starts_with_thinking_or_with_visible_text_according_to_the_mode() -> None:
    for mode, thought, silent, word in (
        (TypingMode.THINKING, True, True, True),
        (TypingMode.MESSAGE, False, False, True),
    ):
        connector = FakeConnector(FakeClock(), capabilities=FULL_CAPABILITIES)
        made = start_progress_display(connector, ReplyDelivery(typing=mode))
        seen: list[bool] = []
        for piece in (delta("hm", kind=DeltaKind.THINKING), delta("NO_RE"), delta("ally?", offset=5)):
            made.delta(piece)
            await run_ready_tasks()
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
async def test_a_message_is_acknowledged_by_a_reaction_in_the_configured_chats(
    scope: AckScope, chat: ChatType, marked: bool
) -> None:
    connector = FakeConnector(FakeClock(), capabilities=FULL_CAPABILITIES)
    made = start_progress_display(connector, ReplyDelivery(ack="👀", ack_scope=scope, remove_ack=True), chat_type=chat)
    await run_ready_tasks()
    assert connector.reactions == ([("42", "17", "👀")] if marked else [])
    made.end()
    await run_ready_tasks()
    assert connector.reactions[1:] == ([("42", "17", "")] if marked else [])


@pytest.mark.spec("C81")
async def test_a_preview_grows_by_complete_redacted_words_and_is_removed_at_the_end() -> None:
    clock = FakeClock()
    connector = FakeConnector(clock, capabilities=FULL_CAPABILITIES)
    masked = RedactedConnector(connector, lambda text: text.replace("s3cret-key", "[masked]"))
    displays = ProgressDisplays(clock, {"quiet": masked})
    room = address.parse_address("channel:quiet:42")
    made = displays.create(RunId("1" * 32), AnsweredMessage(channel=room), ReplyDelivery(stream=StreamMode.PREVIEW))
    assert made is not None
    made.start()
    for offset, piece in ((0, "The key is s3cret"), (17, "-key and"), (25, " no other ")):
        made.delta(delta(piece, offset=offset))
        await run_ready_tasks()
        await clock.advance(2.0)
        await run_ready_tasks()

    assert connector.preview_texts == ["The key is", "The key is [masked]", "The key is [masked] and no other"]
    assert len(connector.previews) == 1, "one message that is edited"
    made.end()
    await run_ready_tasks()
    assert connector.previews == {}
    assert connector.parts == [], "a preview is no delivery"


async def test_a_failing_typing_or_reaction_call_does_not_delay_the_answer(instance: LocalInstance) -> None:
    class FailingConnector(FakeConnector):
        async def show_typing(self, channel: str) -> None:
            raise ConnectionError("no")

        async def react(self, channel: str, message_id: str, emoji: str) -> None:
            await asyncio.Event().wait()

    instance.reply_delivery = ReplyDelivery(ack="👀", ack_scope=AckScope.ALL)
    connector = FailingConnector(instance.clock, capabilities=FULL_CAPABILITIES)
    instance.connectors["quiet"] = connector
    instance.model.will_reply("Lunch with Noor.")
    async with instance.run() as server:
        await wait_until_delivered(server, await send_question(connector, context=EnvelopeContext()))

    assert connector.list_texts("42") == ["Lunch with Noor."]
