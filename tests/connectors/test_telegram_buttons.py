"""Test buttons on Telegram: a question, a press, the reply to it, and a closed question."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from connector_instance import ChatInstance
from connectors.telegram_instance import wait_until_true
from flows.approval_instance import (
    append_line_instruction,
    asking_instance,
    follow_instruction,
    read_approval_state,
    read_witness_lines,
    wait_for_open_approval,
)

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
def instance(tmp_path: Path, telegram: TelegramServer) -> LocalInstance:
    """Maria's account is the owner's here; Noor is a stranger."""
    own = TelegramSettings(token_env="BOT", api_base=telegram.url, poll_s=5, timeout_s=60.0)
    asking = asking_instance(tmp_path)
    instance = LocalInstance(
        tmp_path,
        clock=RealClock(),
        environment={"BOT": TOKEN},
        connector_settings={"family": ConnectorSettings(platform="telegram", platform_settings=own)},
        agents=asking.agents,
        create_tools=asking.create_tools,
    )
    chat = ChatInstance(instance)
    chat.set(dm_policy=DmPolicy.OPEN, catch_up_hours=0)  # the test messages have old dates
    instance.create_access_control = lambda store, inbox: PolicyAccessControl(
        store,
        instance.clock,
        instance.ids,
        lambda _instance: chat.settings,
        lambda _instance: "telegram",
        post=inbox,
        get_default_agent=lambda: "ada",
    )
    instance.model.rule = follow_instruction
    return instance


async def test_an_approval_is_shown_pressed_and_closed_with_telegram_buttons(
    instance: LocalInstance, telegram: TelegramServer
) -> None:
    identity = Identity(service="telegram", id=str(MARIA["id"]), person="owner", made_by="person:owner")
    async with instance.run() as server:
        await server.store.write(partial(identities.link, identity=identity, at_ms=1), point="test")
        telegram.person_sends(append_line_instruction("one"))
        approval = await wait_for_open_approval(server)
        await wait_until_true(lambda: bool(telegram.list_bot_messages()))
        question = telegram.list_bot_messages()[0]
        data = [button["callback_data"] for row in keyboard(question) for button in row]
        assert all(len(each.encode()) <= 64 and approval not in each for each in data), "the form that Telegram accepts"

        forged = telegram.person_presses(question["message_id"], "allow:" + "0" * 32)
        others = telegram.person_presses(question["message_id"], data[0], sender=NOOR)
        await wait_until_true(lambda: bool(telegram.press_answers[forged] and telegram.press_answers[others]))
        assert (telegram.press_answers[forged], telegram.press_answers[others]) == (UNKNOWN_BUTTON, NOT_ALLOWED)
        assert await read_approval_state(server, approval) == "open"

        mine = telegram.person_presses(question["message_id"], data[0])
        await wait_until_true(lambda: bool(telegram.press_answers[mine]))
        assert telegram.press_answers[mine] == f"{approval[:8]} is allowed."
        await wait_until_true(lambda: read_witness_lines(instance) == ["one"])
        await wait_until_true(lambda: f"[{approval[:8]} is allowed by owner]" in current_text(telegram, question))
        assert not keyboard(telegram.chats[42].messages[question["message_id"]])

        late = telegram.person_presses(question["message_id"], data[1])
        await wait_until_true(lambda: bool(telegram.press_answers[late]))
        assert "no longer open (it is allowed by owner)" in telegram.press_answers[late]
        await server.wait_until_idle()
    assert read_witness_lines(instance) == ["one"]


def keyboard(message: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return message.get("reply_markup", {}).get("inline_keyboard", [])


def current_text(telegram: TelegramServer, message: dict[str, Any]) -> str:
    return telegram.chats[42].messages[message["message_id"]]["text"]
