"""Telegram: a bot in private chats and groups, by long polling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.connectors.base import Connector, ConnectorKind, Question, Surroundings
from retinue.connectors.telegram.settings import TelegramSettings

if TYPE_CHECKING:
    from retinue.connectors.telegram.connector import TelegramConnector

__all__ = ["KIND", "TelegramSettings"]


def _make(settings: TelegramSettings, surroundings: Surroundings) -> Connector:
    # imported with the first connector, not with the settings
    from retinue.connectors.telegram.connector import TelegramConnector

    made: TelegramConnector = TelegramConnector(settings, surroundings)
    return made


KIND = ConnectorKind(
    name="telegram",
    title="Telegram",
    settings=TelegramSettings,
    make=_make,
    questions=(
        Question(
            key="token",
            ask="The bot's token",
            secret=True,
            help="In Telegram, write /newbot to @BotFather and answer its two questions. It gives you a token such as "
            "123456789:AAE...; whoever has it speaks as the bot.",
        ),
    ),
    next_steps=(
        "Write something to the bot: a bot cannot write first.",
        "For a group: add the bot there, and set `group_policy` and `groups` (docs/guides/telegram.md).",
    ),
)
