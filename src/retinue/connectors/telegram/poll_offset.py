"""The stored position in a bot's updates.

The position is valid for one bot and for about a week: after that, Telegram may restart its
numbering, and an old offset could skip updates. Without an offset, Telegram sends every unconfirmed
update, so a lost offset loses no updates.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from msgspec import Struct

KEY = "offset"
DAMAGED_KEY = "offset-damaged"
DAMAGED_LENGTH_MAX = 200  # characters of a damaged offset that are kept for diagnosis
VALID_FOR = timedelta(days=6)
_FORMAT = re.compile(r"(\d{1,18}) (\d{1,18}) (\d{1,11})", re.ASCII)


class PollOffset(Struct, frozen=True, kw_only=True):
    """The first unconfirmed update of a bot, and the time when it was recorded."""

    bot: int
    update_id: int
    at: datetime

    def __str__(self) -> str:
        return f"{self.bot} {self.update_id} {int(self.at.timestamp())}"

    def is_valid(self, *, bot: int, now: datetime) -> bool:
        return self.bot == bot and abs(now - self.at) < VALID_FOR


def parse_offset(text: str) -> PollOffset | None:
    """Parse a stored offset. Returns None if the stored text is damaged."""
    if (found := _FORMAT.fullmatch(text)) is None:
        return None
    bot, update_id, seconds = map(int, found.groups())
    try:
        return PollOffset(bot=bot, update_id=update_id, at=datetime.fromtimestamp(seconds, UTC))
    except (OverflowError, ValueError, OSError):
        return None
