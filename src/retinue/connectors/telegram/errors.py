"""Maps errors of the Bot API to delivery failures and lost connections."""

from __future__ import annotations

from random import Random

from retinue.connectors.base import ConnectionLost, DeliveryFailed, FailureKind
from retinue.connectors.telegram.bot_api import (
    RETRY_AFTER_S_MAX,
    TelegramNoAnswer,
    TelegramRefused,
    TelegramUnreachable,
)

CONFLICT_S_FIRST = 2.0
CONFLICT_GROWTH = 1.8
CONFLICT_S_MAX = 30.0
CONFLICT_JITTER = 0.25  # added or subtracted, so that two servers with the same bot do not retry at the same time

_UNKNOWN_CHAT_TEXTS = ("chat not found", "thread not found", "topic_closed", "topic_deleted", "peer_id_invalid")
_TOO_LARGE_TEXTS = ("too long", "too big", "too large")


class TelegramTokenRejected(ConnectionLost):
    """Telegram refused the bot's token, or the configured value is not a token."""

    code = "connector.token_rejected"

    def __init__(self, because: str) -> None:
        super().__init__(
            "Telegram refused the token of the bot",
            because=because,
            try_this="get the token from @BotFather (/token), then: retinue connector add telegram",
            needs_owner=True,
        )


class TelegramWebhookSet(ConnectionLost):
    """A webhook is set for the bot, so polling is refused."""

    code = "telegram.webhook_set"

    def __init__(self) -> None:
        super().__init__(
            "Telegram sends the updates of this bot to a webhook",
            because="another program may have set it",
            try_this="stop that program, or set `clear_webhook = true` for this connector",
            needs_owner=True,
        )


class TelegramBotInUse(ConnectionLost):
    """Another program with the same token is receiving the bot's updates."""

    code = "telegram.bot_in_use"

    def __init__(self, *, retry_after_s: float) -> None:
        super().__init__(
            "another program receives the updates of this bot",
            because="Telegram sends each update to one program, and another server or program uses the same token",
            try_this="stop the other program, or get a new token from @BotFather, which revokes the old one",
            retry_after_s=retry_after_s,
        )


def build_delivery_refused(refused: TelegramRefused) -> DeliveryFailed:
    """Return the delivery failure for a refusal by Telegram, which means that the part was certainly not accepted."""
    kind, permanent, try_this = _classify_refusal(refused)
    return DeliveryFailed(
        "Telegram did not accept the message",
        kind=kind,
        permanent=permanent,
        retry_after_s=_get_retry_after_s(refused),
        because=refused.because,
        try_this=try_this,
    )


def build_not_sent(error: TelegramUnreachable) -> DeliveryFailed:
    return DeliveryFailed(error.sentence, because=error.because, try_this=error.try_this)


def _classify_refusal(refused: TelegramRefused) -> tuple[FailureKind, bool, str]:
    """Return the kind of failure, whether it is permanent, and what a person can do."""
    description = refused.description.casefold()
    match refused.status:
        case 401 | 404:
            return (
                FailureKind.INVALID_SENDER,
                False,
                "get a new token from @BotFather, then: retinue connector test NAME",
            )
        case 403:
            return (
                FailureKind.INVALID_SENDER,
                True,
                "ask the recipient to write to the bot first, or to add it to the group",
            )
        case 413:
            return FailureKind.TOO_LARGE, True, "send less in one message"
        case 429:
            return FailureKind.THROTTLED, False, "wait for the automatic retry"
        case _ if any(each in description for each in _UNKNOWN_CHAT_TEXTS):
            return FailureKind.INVALID_ADDRESS, True, "check the id of the channel, and that the bot is a member"
        case _ if any(each in description for each in _TOO_LARGE_TEXTS):
            return FailureKind.TOO_LARGE, True, "send less in one message"
        case _:
            return FailureKind.SEND_FAILED, 400 <= refused.status < 500 and refused.status != 409, ""


def build_connection_lost(
    error: TelegramRefused | TelegramUnreachable | TelegramNoAnswer, *, conflicts: int, random: Random
) -> ConnectionLost:
    """Return the error for a lost polling connection.

    `conflicts` counts consecutive polls that another program with the same token interrupted.
    """
    if not isinstance(error, TelegramRefused):
        return ConnectionLost(error.sentence, because=error.because, try_this=error.try_this)
    match error.status:
        case 401 | 404:
            return TelegramTokenRejected("it was revoked, or copied with a character missing")
        case 409 if "webhook" in error.description.casefold():
            return TelegramWebhookSet()
        case 409:
            return TelegramBotInUse(retry_after_s=conflict_delay_s(conflicts, random))
        case _:
            return ConnectionLost(
                "Telegram refused to send updates", because=error.because, retry_after_s=_get_retry_after_s(error)
            )


def conflict_delay_s(conflicts: int, random: Random) -> float:
    waited = min(CONFLICT_S_MAX, CONFLICT_S_FIRST * CONFLICT_GROWTH ** min(conflicts, 20))
    return waited * (1 + CONFLICT_JITTER * (2 * random.random() - 1))


def _get_retry_after_s(refused: TelegramRefused) -> float | None:
    if refused.retry_after_s is None:
        return None
    return min(max(refused.retry_after_s, 0.0), RETRY_AFTER_S_MAX)
