"""Connects to Telegram as a bot in private chats and groups, using long polling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.connectors.base import Connector, ConnectorContext, Platform, SettingQuestion
from retinue.connectors.telegram.settings import TelegramSettings

if TYPE_CHECKING:
    from retinue.connectors.telegram.connector import TelegramConnector

__all__ = ["PLATFORM", "TelegramSettings"]


def make_connector(settings: TelegramSettings, context: ConnectorContext) -> Connector:
    # imported with the first connector, not with the settings
    from retinue.connectors.telegram.connector import TelegramConnector

    made: TelegramConnector = TelegramConnector(settings, context)
    return made


PLATFORM = Platform(
    name="telegram",
    title="Telegram",
    settings=TelegramSettings,
    make_connector=make_connector,
    questions=(
        SettingQuestion(
            key="token",
            ask="Bot token",
            secret=True,
            help="In Telegram, send /newbot to @BotFather and answer its two questions. It replies with a token such "
            "as 123456789:AAE.... Keep it secret: it gives full control of the bot.",
        ),
    ),
    next_steps=(
        "Send a message to the bot. A bot cannot send the first message.",
        "For a group: add the bot to it, and set `group_policy` and `groups` (docs/guides/telegram.md).",
    ),
)
