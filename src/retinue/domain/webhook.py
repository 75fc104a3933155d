"""Webhooks: URLs to which the server sends a request when an envelope is done."""

from __future__ import annotations

from msgspec import Struct


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A URL to notify when an envelope is done, and the headers to send.

    `headers` may contain a secret, so no log, list or error shows them.
    """

    url: str
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Webhook(url={self.url!r}, {len(self.headers)} headers)"
