"""Events as they happen: news from a cursor on, and deltas, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.event import News
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.engine.live import Watcher
from retinue.operations.base import Desk
from retinue.operations.sessions import partial_form
from retinue.store import news
from retinue.store.sight import sees_session

NEWS_AT_ONCE_MAX = 200
KEEP_ALIVE_S = 15.0
TOGETHER_S = 0.002
SESSIONS_REMEMBERED_MAX = 1_000

_encode = msgspec.json.Encoder().encode


def _event(name: str, data: Any, *, id_: int | None = None) -> bytes:
    head = f"event: {name}\n" + (f"id: {id_}\n" if id_ is not None else "")
    return head.encode() + b"data: " + _encode(data) + b"\n\n"


def _bounds(conn: sa.Connection) -> tuple[int, int]:
    return news.oldest(conn) or 1, news.newest(conn)


async def news_stream(
    desk: Desk, caller: Principal, *, after: int | None, session: str | None
) -> AsyncGenerator[bytes]:
    """`hello` first; then `delta` and `news` as they come. `reset` says: your cursor is not ours, ask for the state."""
    watched = SessionId(session) if session else None
    watcher = desk.live.watch(watched)
    try:
        oldest, newest = await desk.store.read(_bounds)
        cursor = newest if after is None else after
        hello = b""
        if cursor > newest or cursor < oldest - 1:
            cursor = newest
            hello = _event("reset", {"cursor": cursor, "because": "this cursor is unknown here"})
        seen = _Seen(desk, caller)
        yield hello + _event("hello", {"cursor": cursor, "partials": await _partials(desk, watched, seen)})
        idle = False
        while not watcher.closed:
            watcher.changed.clear()
            pieces = await _deltas(desk, watcher, seen)
            for piece in await _news(desk, caller, watcher, cursor):
                cursor = piece.seq
                form = {**piece.body, "seq": piece.seq, "news": piece.kind, "session": piece.session, "at": piece.at}
                pieces.append(_event("news", form, id_=piece.seq))
            if pieces:
                yield b"".join(pieces)
                # What happens within a moment of this leaves together: a turn makes a handful of events.
                await asyncio.sleep(TOGETHER_S)
            elif idle:
                yield b": still here\n\n"
            idle = await _changed(watcher)
    finally:
        desk.live.unwatch(watcher)


async def _news(desk: Desk, caller: Principal, watcher: Watcher, cursor: int) -> list[News]:
    """What was committed since the cursor, if anything was. More than fits is looked for again at once."""
    if not watcher.news:
        return []
    watcher.news = False
    look = partial(news.after, cursor=cursor, limit=NEWS_AT_ONCE_MAX, session=watcher.session, seen_by=caller)
    found = await desk.store.read(look)
    if len(found) == NEWS_AT_ONCE_MAX:
        watcher.news = True
        watcher.changed.set()
    return found


async def _changed(watcher: Watcher) -> bool:
    """Wait for something to tell. Whether it has been quiet for so long that we should say that we are still here."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    timer = loop.call_later(KEEP_ALIVE_S, watcher.changed.set)
    try:
        await watcher.changed.wait()
    finally:
        timer.cancel()
    return loop.time() - began >= KEEP_ALIVE_S


async def _deltas(desk: Desk, watcher: Watcher, seen: _Seen) -> list[bytes]:
    if watcher.missed:
        watcher.missed = False
        watcher.deltas.clear()
        return [_event("partials", {"partials": await _partials(desk, watcher.session, seen)})]
    deltas, watcher.deltas = watcher.deltas, []
    return [_event("delta", delta) for delta in deltas if await seen.session(delta.session)]


async def _partials(desk: Desk, session: SessionId | None, seen: _Seen) -> list[dict[str, Any]]:
    return [partial_form(p) for p in desk.live.partials(session) if await seen.session(p.session)]


class _Seen:
    """Which sessions a watcher sees, remembered for a moment: a model says many words in one of them."""

    def __init__(self, desk: Desk, caller: Principal) -> None:
        self._desk = desk
        self._caller = caller
        self._known: dict[SessionId, bool] = {}

    async def session(self, id_: SessionId) -> bool:
        if self._caller.sees_all:
            return True
        if id_ not in self._known:
            if len(self._known) >= SESSIONS_REMEMBERED_MAX:
                self._known.clear()
            look = partial(sees_session, principal=self._caller, id_=id_)
            self._known[id_] = await self._desk.store.read(look)
        return self._known[id_]
