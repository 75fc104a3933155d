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

    token_env: str = setting("", "Environment variable with the token of the bot.", example="FAMILY_BOT")
    token_file: str = setting("", "File with only the token of the bot, readable only by you.")
    api_base: str = setting(
        API_BASE,
        "URL of the Bot API. Change it for a Bot API server that you run.",
        check=validators.check_public_url,
        example="http://127.0.0.1:8081",
    )
    poll_s: int = setting(30, "Time that one long poll stays open, in seconds.", least=1, most=POLL_S_MAX)
    timeout_s: float = setting(
        15.0,
        "Time without an answer after which the connection counts as lost, in seconds, in addition to `poll_s`.",
        least=0.1,
        most=300,
    )
    clear_webhook: bool = setting(
        False, "Whether to remove a webhook of the bot that prevents polling. Another program may be using the webhook."
    )
    link_previews: bool = setting(
        False,
        "Whether Telegram shows link previews. For a preview, Telegram opens every link that an agent writes.",
    )
    command_menu: bool = setting(True, "Whether the bot's menu lists the slash commands in private chats.")
