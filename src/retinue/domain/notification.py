"""Notifications: short messages to a person, who cannot answer them."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from retinue.domain.ids import NotificationId, SessionId
from retinue.domain.trust import Trust

NOTIFICATION_TITLE_LENGTH_MAX = 120
NOTIFICATION_TEXT_LENGTH_MAX = 2_000


class Notification(Struct, frozen=True, kw_only=True):
    """A short message to a person, who cannot answer it.

    `sender` is the address of the author. `trust` is the trust level of the text.
    """

    id: NotificationId
    person: str
    sender: str
    title: str
    text: str
    trust: Trust
    at: datetime
    session: SessionId | None = None
    read_at: datetime | None = None
