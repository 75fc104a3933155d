"""Webhooks: a URL that is notified once when an envelope is done."""

from __future__ import annotations

from msgspec import Struct


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`headers` are sent with the request. They may contain a secret, so no log, list or error shows them."""

    url: str
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Webhook(url={self.url!r}, {len(self.headers)} headers)"
