"""Test questionnaires in chats: sent where the person writes, and answered by a press if one answer is enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from connector_instance import ChatInstance, inbound_message, link
from flows.approval_instance import follow_instruction, rows, tool_instruction

from retinue.connectors.base import ConnectorCapabilities, DeliveryPart, InboundKind, InboundMessage
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import EnvelopeDraft, Receipt
from retinue.engine.button_presses import NOT_ALLOWED, UNKNOWN_BUTTON
from retinue.testing.local_instance import LocalServer
from retinue.tools.questions import AskQuestionsTool

OWNER, MARIA, STRANGER = "9", "7", "8"


@dataclass
class LateIntake:
    """Gives a tool access to the intake, which is created after the tool."""

    server: LocalServer | None = None

    async def accept(self, draft: EnvelopeDraft) -> Receipt:
        assert self.server is not None
        return await self.server.intake.accept(draft)


@pytest.fixture
def late_intake() -> LateIntake:
    return LateIntake()


@pytest.fixture
def chat(tmp_path: Path, late_intake: LateIntake) -> ChatInstance:
    chat = ChatInstance.at(tmp_path, dm_policy=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)
    instance = chat.instance
    instance.create_tools = lambda store, _ways: [AskQuestionsTool(store, instance.clock, post=late_intake)]
    instance.model.rule = follow_instruction
    instance.handle_press = None
    chat.quiet_connector.capabilities = ConnectorCapabilities(can_show_buttons=True)
    return chat


def make_field(kind: str, *options: str, name: str = "lunch") -> dict[str, Any]:
    return {"name": name, "label": "What for lunch?", "kind": kind, "options": list(options)}


async def ask_questions(
    server: LocalServer, chat: ChatInstance, *fields: dict[str, Any], by: str = MARIA
) -> DeliveryPart | None:
    """Have an agent ask questions, and return the delivered part if there is one."""
    await server.connector_intake.accept(
        "quiet", inbound_message(tool_instruction("ask_questions", title="Lunch", fields=list(fields)), by=by)
    )
    await server.wait_until_idle()
    return next(
        (each for each in chat.quiet_connector.parts if each.channel == f"dm-{by}" and "Lunch" in each.text), None
    )


def make_press(data: str, *, by: str = MARIA, channel: str = "", id_: str = "p1") -> InboundMessage:
    return inbound_message(data, by=by, channel=channel or f"dm-{by}", id_=id_, kind=InboundKind.PRESS)


async def press_and_read_reply(server: LocalServer, chat: ChatInstance, incoming: InboundMessage) -> str:
    before = len(chat.quiet_connector.press_answers)
    await server.connector_intake.accept("quiet", incoming)
    await server.wait_for(lambda _: len(chat.quiet_connector.press_answers) > before, what="an answer to the press")
    return chat.quiet_connector.press_answers[-1][1]


@pytest.mark.parametrize(
    ("field", "labels", "answer"),
    [
        (make_field("choice", "Soup", "Salad"), ["Soup", "Salad"], "lunch: Soup"),
        (make_field("yes-no"), ["Yes", "No"], "lunch: yes"),
    ],
)
async def test_a_button_press_answers_a_questionnaire_and_the_agent_replies_in_the_same_channel(
    chat: ChatInstance, late_intake: LateIntake, field: dict[str, Any], labels: list[str], answer: str
) -> None:
    async with chat.instance.run() as server:
        late_intake.server = server
        await link(server, "maria", id_=MARIA)
        asked = await ask_questions(server, chat, field)
        assert asked is not None
        assert [button.label for row in asked.buttons for button in row] == labels
        before = len(chat.quiet_connector.list_texts(asked.channel))
        assert await press_and_read_reply(server, chat, make_press(asked.buttons[0][0].data)) == f"{labels[0]}."
        await server.wait_until_idle()
        assert chat.quiet_connector.list_texts(asked.channel)[before:] == ["ok"], "the agent's answer to it"
        assert answer in str(chat.instance.model.prompts[-1].records[-1].body)
        again = await press_and_read_reply(server, chat, make_press(asked.buttons[1][0].data, id_="p2"))
        assert "is answered (it was answered by person:maria)" in again
        [(state,)] = await rows(server, "SELECT state FROM questionnaires")
        assert state == "answered"


async def test_a_press_by_another_person_or_in_another_channel_does_not_answer_a_questionnaire(
    chat: ChatInstance, late_intake: LateIntake
) -> None:
    async with chat.instance.run() as server:
        late_intake.server = server
        await link(server, "owner", id_=OWNER)
        await link(server, "maria", id_=MARIA)
        asked = await ask_questions(server, chat, make_field("yes-no"), by=OWNER)
        assert asked is not None
        data = asked.buttons[0][0].data
        assert (
            await press_and_read_reply(server, chat, make_press(data, by=MARIA, channel=asked.channel)) == NOT_ALLOWED
        )
        assert (
            await press_and_read_reply(server, chat, make_press(data, by=STRANGER, channel=asked.channel, id_="p2"))
            == NOT_ALLOWED
        )
        assert await press_and_read_reply(server, chat, make_press(data, by=MARIA, id_="p3")) == UNKNOWN_BUTTON
        [(state,)] = await rows(server, "SELECT state FROM questionnaires")
        assert state == "open"


async def test_a_questionnaire_with_several_fields_is_shown_in_a_chat_as_text_without_buttons(
    chat: ChatInstance, late_intake: LateIntake
) -> None:
    async with chat.instance.run() as server:
        late_intake.server = server
        await link(server, "maria", id_=MARIA)
        two = (make_field("choice", "Soup", "Salad"), make_field("text", name="else"))
        asked = await ask_questions(server, chat, *two)
        assert asked is not None
        assert asked.buttons == ()
        assert asked.text == "Lunch\n- What for lunch?\n    1. Soup\n    2. Salad\n- What for lunch?"


async def test_a_stranger_in_a_chat_gets_no_questionnaire(chat: ChatInstance, late_intake: LateIntake) -> None:
    async with chat.instance.run() as server:
        late_intake.server = server
        assert await ask_questions(server, chat, make_field("yes-no"), by=STRANGER) is None
        assert await rows(server, "SELECT state FROM questionnaires") == []
