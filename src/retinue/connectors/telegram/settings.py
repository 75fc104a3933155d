"""Settings of a Telegram connector."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config import validators
from retinue.config.setting_metadata import setting

API_BASE = "https://api.telegram.org"
POLL_S_MAX = 50  # Telegram ends a longer poll


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSettings:
    """Settings of one Telegram bot."""

    token_env: str = setting("", "The variable of the environment that holds the bot's token.", example="FAMILY_BOT")
    token_file: str = setting("", "A file that holds the bot's token and nothing else, readable by you alone.")
    api_base: str = setting(
        API_BASE,
        "Where the Bot API is: another address for a Bot API server of your own.",
        check=validators.public_url,
        example="http://127.0.0.1:8081",
    )
    poll_s: int = setting(30, "How long one question for news stays open.", least=1, most=POLL_S_MAX)
    timeout_s: float = setting(
        15.0, "How long Telegram may be silent, beyond that, before the line is taken for lost.", least=0.1, most=300
    )
    clear_webhook: bool = setting(
        False, "Whether a webhook that stands in the way is removed. Another program may be using it."
    )
    link_previews: bool = setting(
        False,
        "Whether Telegram shows what is behind a link. For that it opens the link, whatever an agent wrote in it.",
    )
    command_menu: bool = setting(
        True, "Whether the commands of the house stand in the menu of the bot, where one talks to it alone."
    )
