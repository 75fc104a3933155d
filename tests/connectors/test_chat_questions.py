"""Questionnaires in chats: put where whoever is asked writes, and answered by a press where one answer is enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from connector_instance import Street, link, said
from flows.approval_instance import do, does, rows

from retinue.connectors.base import ConnectorCapabilities, DeliveryPart, InboundKind, InboundMessage
from retinue.domain.access import DmPolicy, GroupPolicy
from retinue.domain.envelope import EnvelopeDraft, Receipt
from retinue.engine.button_presses import NOT_ALLOWED, UNKNOWN_BUTTON
from retinue.testing.local_instance import LocalServer
from retinue.tools.questions import AskQuestionsTool

OWNER, MARIA, STRANGER = "9", "7", "8"


@dataclass
class Late:
    """A way to the inbox, for a tool that is made before there is one."""

    house: LocalServer | None = None

    async def accept(self, draft: EnvelopeDraft) -> Receipt:
        assert self.house is not None
        return await self.house.intake.accept(draft)


@pytest.fixture
def late() -> Late:
    return Late()


@pytest.fixture
def street(tmp_path: Path, late: Late) -> Street:
    street = Street.at(tmp_path, dm=DmPolicy.OPEN, group_policy=GroupPolicy.OPEN)
    household = street.household
    household.create_tools = lambda store, _ways: [AskQuestionsTool(store, household.clock, post=late)]
    household.model.rule = does
    household.handle_press = None
    street.place.capabilities = ConnectorCapabilities(can_show_buttons=True)
    return street


def question(kind: str, *options: str, name: str = "lunch") -> dict[str, Any]:
    return {"name": name, "label": "What for lunch?", "kind": kind, "options": list(options)}


async def ask(house: LocalServer, street: Street, *fields: dict[str, Any], by: str = MARIA) -> DeliveryPart | None:
    """Have an agent ask, and give what stands in the room then."""
    await house.connector_intake.accept("quiet", said(do("ask_questions", title="Lunch", fields=list(fields)), by=by))
    await house.wait_until_idle()
    return next((each for each in street.place.parts if each.channel == f"dm-{by}" and "Lunch" in each.text), None)


def press(data: str, *, by: str = MARIA, room: str = "", id_: str = "p1") -> InboundMessage:
    return said(data, by=by, room=room or f"dm-{by}", id_=id_, kind=InboundKind.PRESS)


async def pressed(house: LocalServer, street: Street, incoming: InboundMessage) -> str:
    before = len(street.place.press_answers)
    await house.connector_intake.accept("quiet", incoming)
    await house.wait_for(lambda _: len(street.place.press_answers) > before, what="an answer to the press")
    return street.place.press_answers[-1][1]


@pytest.mark.parametrize(
    ("field", "labels", "answer"),
    [
        (question("choice", "Soup", "Salad"), ["Soup", "Salad"], "lunch: Soup"),
        (question("yes-no"), ["Yes", "No"], "lunch: yes"),
    ],
)
async def test_one_press_answers_and_the_agent_goes_on_in_the_same_room(
    street: Street, late: Late, field: dict[str, Any], labels: list[str], answer: str
) -> None:
    async with street.household.run() as house:
        late.house = house
        await link(house, "maria", id_=MARIA)
        asked = await ask(house, street, field)
        assert asked is not None
        assert [button.label for row in asked.buttons for button in row] == labels
        before = len(street.place.list_texts(asked.channel))
        assert await pressed(house, street, press(asked.buttons[0][0].data)) == f"{labels[0]}."
        await house.wait_until_idle()
        assert street.place.list_texts(asked.channel)[before:] == ["ok"], "the agent's answer to it"
        assert answer in str(street.household.model.prompts[-1].records[-1].body)
        again = await pressed(house, street, press(asked.buttons[1][0].data, id_="p2"))
        assert "is answered (it was answered by person:maria)" in again
        [(state,)] = await rows(house, "SELECT state FROM questionnaires")
        assert state == "answered"


async def test_a_press_of_somebody_else_and_in_another_room_answers_nothing(street: Street, late: Late) -> None:
    async with street.household.run() as house:
        late.house = house
        await link(house, "owner", id_=OWNER)
        await link(house, "maria", id_=MARIA)
        asked = await ask(house, street, question("yes-no"), by=OWNER)
        assert asked is not None
        data = asked.buttons[0][0].data
        assert await pressed(house, street, press(data, by=MARIA, room=asked.channel)) == NOT_ALLOWED
        assert await pressed(house, street, press(data, by=STRANGER, room=asked.channel, id_="p2")) == NOT_ALLOWED
        assert await pressed(house, street, press(data, by=MARIA, id_="p3")) == UNKNOWN_BUTTON
        [(state,)] = await rows(house, "SELECT state FROM questionnaires")
        assert state == "open"


async def test_several_questions_are_shown_without_buttons_and_answered_in_words(street: Street, late: Late) -> None:
    async with street.household.run() as house:
        late.house = house
        await link(house, "maria", id_=MARIA)
        two = (question("choice", "Soup", "Salad"), question("text", name="else"))
        asked = await ask(house, street, *two)
        assert asked is not None
        assert asked.buttons == ()
        assert asked.text == "Lunch\n- What for lunch?\n    1. Soup\n    2. Salad\n- What for lunch?"


async def test_nobody_is_asked_in_a_room_of_strangers(street: Street, late: Late) -> None:
    async with street.household.run() as house:
        late.house = house
        assert await ask(house, street, question("yes-no"), by=STRANGER) is None
        assert await rows(house, "SELECT state FROM questionnaires") == []
