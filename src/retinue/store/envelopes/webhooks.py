"""Store the webhook to call when an envelope is done."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.webhook import Webhook
from retinue.store.core import tables as t

_b = sa.bindparam
_w = t.webhooks
_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str])
_get = sa.select(_w).where(_w.c.envelope == _b("envelope"))
_insert = _w.insert()
_clear_headers = _w.update().where(_w.c.envelope == _b("the_letter")).values(headers="{}")


def add(conn: sa.Connection, envelope: str, webhook: Webhook, *, at_ms: int) -> None:
    headers = _encode(webhook.headers).decode()
    conn.execute(_insert, {"envelope": envelope, "url": webhook.url, "headers": headers, "at_ms": at_ms})


def get(conn: sa.Connection, envelope: str) -> Webhook | None:
    row = conn.execute(_get, {"envelope": envelope}).one_or_none()
    return Webhook(url=row.url, headers=_headers.decode(row.headers)) if row is not None else None


def clear_headers(conn: sa.Connection, envelope: str) -> None:
    """Delete the stored headers of a webhook, which may be secret. Call this after the webhook has been called."""
    conn.execute(_clear_headers, {"the_letter": envelope})
