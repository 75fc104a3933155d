"""Maps errors of the Bot API to delivery failures and lost connections."""

from __future__ import annotations

from random import Random

from retinue.connectors.base import DeliveryFailed, FailureKind, LineLost
from retinue.connectors.telegram.bot_api import RETRY_AFTER_S_MAX, NoAnswer, NotReached, Refused

CONFLICT_S_FIRST = 2.0
CONFLICT_GROWTH = 1.8
CONFLICT_S_MAX = 30.0
CONFLICT_JITTER = 0.25  # in both directions: two servers that compete for one bot should not stay in step

_NO_ROOM = ("chat not found", "thread not found", "topic_closed", "topic_deleted", "peer_id_invalid")
_TOO_LARGE = ("too long", "too big", "too large")


def undelivered(refused: Refused) -> DeliveryFailed:
    """Telegram refused a delivery part, so it did not accept it."""
    kind, permanent, try_this = _judged(refused)
    return DeliveryFailed(
        "Telegram did not take it",
        kind=kind,
        permanent=permanent,
        retry_after_s=_patience(refused),
        because=refused.because,
        try_this=try_this,
    )


def not_sent(error: NotReached) -> DeliveryFailed:
    return DeliveryFailed(error.sentence, because=error.because, try_this=error.try_this)


def _judged(refused: Refused) -> tuple[FailureKind, bool, str]:
    """The kind of failure, whether it is permanent, and what helps."""
    said = refused.description.casefold()
    match refused.status:
        case 401 | 404:
            return FailureKind.INVALID_SENDER, False, "retinue connector test, and a new token from @BotFather"
        case 403:
            return FailureKind.INVALID_SENDER, True, "they have to write to the bot, or let it into the group, first"
        case 413:
            return FailureKind.TOO_LARGE, True, "send less at once"
        case 429:
            return FailureKind.THROTTLED, False, "wait: it is sent again by itself"
        case _ if any(each in said for each in _NO_ROOM):
            return FailureKind.INVALID_ADDRESS, True, "look at the room's id, and whether the bot is still there"
        case _ if any(each in said for each in _TOO_LARGE):
            return FailureKind.TOO_LARGE, True, "send less at once"
        case _:
            return FailureKind.SEND_FAILED, 400 <= refused.status < 500 and refused.status != 409, ""


def line_lost(error: Refused | NotReached | NoAnswer, *, conflicts: int, chance: Random) -> LineLost:
    """The polling connection is lost. `conflicts` counts consecutive polls that another listener
    interrupted."""
    if not isinstance(error, Refused):
        return LineLost(error.sentence, because=error.because, try_this=error.try_this)
    match error.status:
        case 401 | 404:
            return token_rejected("it was revoked, or copied with a character missing")
        case 409 if "webhook" in error.description.casefold():
            return LineLost(
                "Telegram sends what this bot hears somewhere else",
                because="a webhook is set for it, perhaps by another program",
                try_this="stop that program, or set `clear_webhook = true` for this connector",
                needs_owner=True,
                code="connector.conflict",
            )
        case 409:
            return LineLost(
                "somebody else listens as this bot",
                because="Telegram tells each thing to one listener: another house, or another program, has its token",
                try_this="stop the other one, or get a new token from @BotFather: the old one then ends",
                retry_after_s=conflict_wait_s(conflicts, chance),
                code="connector.conflict",
            )
        case _:
            return LineLost(
                "Telegram would not tell us the news", because=error.because, retry_after_s=_patience(error)
            )


def token_rejected(because: str) -> LineLost:
    return LineLost(
        "Telegram refused the bot's token",
        because=because,
        try_this="ask @BotFather for the token (/token), and give it to `retinue connector add telegram`",
        needs_owner=True,
        code="connector.token-rejected",
    )


def conflict_wait_s(conflicts: int, chance: Random) -> float:
    waited = min(CONFLICT_S_MAX, CONFLICT_S_FIRST * CONFLICT_GROWTH ** min(conflicts, 20))
    return waited * (1 + CONFLICT_JITTER * (2 * chance.random() - 1))


def _patience(refused: Refused) -> float | None:
    if refused.retry_after_s is None:
        return None
    return min(max(refused.retry_after_s, 0.0), RETRY_AFTER_S_MAX)
