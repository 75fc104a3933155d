"""Settings of a Telegram connector."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.config import validators
from retinue.config.setting_metadata import setting

API_BASE = "https://api.telegram.org"
POLL_S_MAX = 50  # Telegram ends a longer poll


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSettings:
    """A Telegram bot."""

    token_env: str = setting(
        "", "Name of the environment variable that contains the token of the bot.", example="FAMILY_BOT"
    )
    token_file: str = setting(
        "", "File that contains only the token of the bot. No other user may have access to the file."
    )
    api_base: str = setting(
        API_BASE,
        "URL of the Bot API. Change it only if you run a Bot API server.",
        check=validators.check_public_url,
        example="http://127.0.0.1:8081",
    )
    poll_s: int = setting(
        30, "Maximum duration of one long poll for new messages, in seconds.", least=1, most=POLL_S_MAX
    )
    timeout_s: float = setting(
        15.0,
        "Maximum time to wait for an answer from Telegram, in seconds. For a long poll, `poll_s` is added.",
        least=0.1,
        most=300,
    )
    clear_webhook: bool = setting(
        False,
        "Whether to remove the bot's webhook if one is set, because a webhook prevents polling. Another program may be "
        "using the webhook.",
    )
    link_previews: bool = setting(
        False,
        "Whether Telegram shows previews of links. To create a preview, Telegram opens each link that an agent writes.",
    )
    command_menu: bool = setting(True, "Whether the menu of the bot lists the slash commands, in private chats.")
