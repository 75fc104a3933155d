"""Buttons over Telegram's own words: a question, a press, an answer to it alone, and a question that is closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from connector_instance import Street
from connectors.telegram_instance import until
from flows.approval_instance import asking_household, does, line, open_question, state_of, witness

from retinue.app.clock_and_ids import RealClock
from retinue.config.connectors import ConnectorSettings
from retinue.connectors.telegram import TelegramSettings
from retinue.domain.access import DmPolicy, Identity
from retinue.engine.button_presses import NOT_ALLOWED, UNKNOWN_BUTTON
from retinue.intake.access_control import PolicyAccessControl
from retinue.store.channels import identities
from retinue.testing.fake_telegram import MARIA
from retinue.testing.local_instance import LocalInstance
from retinue.testing.telegram_server import TOKEN, TelegramServer

NOOR = {"id": 77, "is_bot": False, "first_name": "Noor"}


@pytest.fixture
async def telegram() -> AsyncGenerator[TelegramServer]:
    async with TelegramServer() as server:
        yield server


@pytest.fixture
def household(tmp_path: Path, telegram: TelegramServer) -> LocalInstance:
    """Maria's account is the owner's here; Noor is nobody."""
    own = TelegramSettings(token_env="BOT", api_base=telegram.url, poll_s=5, timeout_s=60.0)
    asking = asking_household(tmp_path)
    household = LocalInstance(
        tmp_path,
        clock=RealClock(),
        environment={"BOT": TOKEN},
        connector_settings={"family": ConnectorSettings(kind="telegram", own=own)},
        agents=asking.agents,
        create_tools=asking.create_tools,
    )
    street = Street(household)
    street.set(dm=DmPolicy.OPEN, catch_up_hours=0)  # its dates are of long ago
    household.create_access_control = lambda store, inbox: PolicyAccessControl(
        store,
        household.clock,
        household.ids,
        lambda _instance: street.settings,
        lambda _instance: "telegram",
        post=inbox,
        get_default_agent=lambda: "ada",
    )
    household.model.rule = does
    return household


async def test_a_question_is_pressed_answered_and_closed_in_telegram(
    household: LocalInstance, telegram: TelegramServer
) -> None:
    identity = Identity(service="telegram", id=str(MARIA["id"]), person="owner", made_by="person:owner")
    async with household.run() as house:
        await house.store.write(partial(identities.link, identity=identity, at_ms=1), point="test")
        telegram.person_sends(line("one"))
        approval = await open_question(house)
        await until(lambda: bool(telegram.list_bot_messages()))
        question = telegram.list_bot_messages()[0]
        data = [button["callback_data"] for row in keyboard(question) for button in row]
        assert all(len(each.encode()) <= 64 and approval not in each for each in data), "as Telegram takes it"

        forged = telegram.person_presses(question["message_id"], "allow:" + "0" * 32)
        others = telegram.person_presses(question["message_id"], data[0], sender=NOOR)
        await until(lambda: bool(telegram.press_answers[forged] and telegram.press_answers[others]))
        assert (telegram.press_answers[forged], telegram.press_answers[others]) == (UNKNOWN_BUTTON, NOT_ALLOWED)
        assert await state_of(house, approval) == "open"

        mine = telegram.person_presses(question["message_id"], data[0])
        await until(lambda: bool(telegram.press_answers[mine]))
        assert telegram.press_answers[mine] == f"{approval[:8]} is allowed."
        await until(lambda: witness(household) == ["one"])
        await until(lambda: f"[{approval[:8]} is allowed by owner]" in shown(telegram, question))
        assert not keyboard(telegram.chats[42].messages[question["message_id"]])

        late = telegram.person_presses(question["message_id"], data[1])
        await until(lambda: bool(telegram.press_answers[late]))
        assert "no longer open (it is allowed by owner)" in telegram.press_answers[late]
        await house.wait_until_idle()
    assert witness(household) == ["one"]


def keyboard(message: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return message.get("reply_markup", {}).get("inline_keyboard", [])


def shown(telegram: TelegramServer, message: dict[str, Any]) -> str:
    return telegram.chats[42].messages[message["message_id"]]["text"]
