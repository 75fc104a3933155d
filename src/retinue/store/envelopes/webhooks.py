"""Webhooks to call when an envelope is done."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.webhook import Webhook
from retinue.store.core import tables as t

_b = sa.bindparam
_w = t.webhooks
_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str])
_get = sa.select(_w).where(_w.c.letter == _b("letter"))
_insert = _w.insert()
_blank = _w.update().where(_w.c.letter == _b("the_letter")).values(headers="{}")


def add(conn: sa.Connection, letter: str, webhook: Webhook, *, at_ms: int) -> None:
    headers = _encode(webhook.headers).decode()
    conn.execute(_insert, {"letter": letter, "url": webhook.url, "headers": headers, "at_ms": at_ms})


def get(conn: sa.Connection, letter: str) -> Webhook | None:
    row = conn.execute(_get, {"letter": letter}).one_or_none()
    return Webhook(url=row.url, headers=_headers.decode(row.headers)) if row is not None else None


def blank(conn: sa.Connection, letter: str) -> None:
    """Clear the headers, which may be secret, once the webhook was called."""
    conn.execute(_blank, {"the_letter": letter})
