"""Events as they happen: news from a cursor on, and deltas, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.ids import SessionId
from retinue.operations.base import Desk
from retinue.operations.sessions import partial_form
from retinue.store import news

NEWS_AT_ONCE_MAX = 200
KEEP_ALIVE_S = 15.0

_encode = msgspec.json.Encoder().encode


def _event(name: str, data: Any, *, id_: int | None = None) -> bytes:
    head = f"event: {name}\n" + (f"id: {id_}\n" if id_ is not None else "")
    return head.encode() + b"data: " + _encode(data) + b"\n\n"


def _bounds(conn: sa.Connection) -> tuple[int, int]:
    return news.oldest(conn) or 1, news.newest(conn)


async def news_stream(desk: Desk, *, after: int | None, session: str | None) -> AsyncGenerator[bytes]:
    """`hello` first; then `delta` and `news` as they come. `reset` says: your cursor is not ours, ask for the state."""
    watched = SessionId(session) if session else None
    watcher = desk.live.watch(watched)
    try:
        oldest, newest = await desk.store.read(_bounds)
        cursor = newest if after is None else after
        partials = [partial_form(p) for p in desk.live.partials(watched)]
        if cursor > newest or cursor < oldest - 1:
            cursor = newest
            yield _event("reset", {"cursor": cursor, "because": "this cursor is unknown here"})
        yield _event("hello", {"cursor": cursor, "partials": partials})
        while True:
            watcher.changed.clear()
            if watcher.missed:
                watcher.missed = False
                watcher.deltas.clear()
                partials = [partial_form(p) for p in desk.live.partials(watched)]
                yield _event("partials", {"partials": partials})
            deltas, watcher.deltas = watcher.deltas, []
            for delta in deltas:
                yield _event("delta", delta)
            found = await desk.store.read(partial(news.after, cursor=cursor, limit=NEWS_AT_ONCE_MAX, session=watched))
            for piece in found:
                cursor = piece.seq
                form = {**piece.body, "seq": piece.seq, "news": piece.kind, "session": piece.session, "at": piece.at}
                yield _event("news", form, id_=piece.seq)
            if not found and not watcher.changed.is_set():
                try:
                    await asyncio.wait_for(watcher.changed.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"
    finally:
        desk.live.unwatch(watcher)
