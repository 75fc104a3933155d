"""Webhooks: an address elsewhere that is told once what came of a letter."""

from __future__ import annotations

from msgspec import Struct


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`headers` go with the request, and may hold a secret: they are in no log, no list and no error."""

    url: str
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Webhook(url={self.url!r}, {len(self.headers)} headers)"
