"""What the owner asks of the house to keep it well: purge, back up, look after its health."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Invalid
from retinue.domain.ports import Clock
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Operation
from retinue.store import purge as store_purge
from retinue.store.connection import Store
from retinue.store.files import Files
from retinue.store.purge import KEYS_OUTLIVE_MS, Horizon

DAYS_MAX = 36_500
FILES_REST_H = 24  # a file that nobody names may belong to a letter that is just being accepted


class Purge(msgspec.Struct, forbid_unknown_fields=True):
    """What is not given is kept. Nothing goes unless `dry_run` is false."""

    done_days: int | None = None  # envelopes, so many days after their outcome; with them news of that time
    news_days: int | None = None
    runs_days: int | None = None  # the steps of ended runs, and runs of which no envelope is left
    unread: bool = False  # also mail that its reader has not marked as read
    dry_run: bool = True


@dataclass(frozen=True, slots=True)
class Went:
    """What a purge took away, or would."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    def __add__(self, other: Went) -> Went:
        names = dict.fromkeys([*self.counts, *other.counts])
        return Went({name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in names})


NOTHING = Went(dict.fromkeys(("envelopes", "news", "runs", "keys", "answers", "tokens", "files"), 0))


async def purge(desk: Desk, caller: Principal, asked: Purge) -> dict[str, Any]:
    now = desk.clock.now()
    horizon = Horizon(
        envelopes_ms=_before(now, asked.done_days, "done_days"),
        news_ms=_before(now, asked.news_days, "news_days"),
        runs_ms=_before(now, asked.runs_days, "runs_days"),
        unread=asked.unread,
    )
    if asked.dry_run:
        went = await would_purge(desk.store, desk.files, horizon, now=now)
    else:
        went = await purge_house(desk.store, desk.files, horizon, clock=desk.clock)
    return {"dry-run": asked.dry_run, **went.counts}


def _before(now: datetime, days: int | None, name: str) -> int | None:
    if days is None:
        return None
    if not 1 <= days <= DAYS_MAX:
        raise Invalid(
            f"{name} cannot be {days}",
            because=f"it is 1 to {DAYS_MAX:,} days",
            try_this="leave it out to keep what it is about",
            code="purge.days-invalid",
        )
    return to_ms(now - timedelta(days=days))


async def would_purge(store: Store, files: Files, horizon: Horizon, *, now: datetime) -> Went:
    """The counts of a purge, with nothing changed. Files of letters that would go are not among them."""

    def body(conn: sa.Connection) -> Went:
        counts = dict(NOTHING.counts)
        if horizon.told_ms is not None:
            counts["news"] = store_purge.count_news(conn, before_ms=horizon.told_ms)
        if horizon.envelopes_ms is not None:
            counts["envelopes"] = _count_envelopes(conn, horizon, horizon.envelopes_ms)
        if horizon.runs_ms is not None:
            counts["runs"] = store_purge.count_runs(conn, before_ms=horizon.runs_ms)
        return Went(counts | store_purge.count_past(conn, before_ms=to_ms(now) - KEYS_OUTLIVE_MS))

    went = await store.scan(body)
    named = await store.scan(store_purge.named_attachments)
    look = partial(files.unwanted, keep=named.__contains__, before=now - timedelta(hours=FILES_REST_H))
    return went + Went({"files": len(await asyncio.to_thread(look))})


def _count_envelopes(conn: sa.Connection, horizon: Horizon, before_ms: int) -> int:
    going: set[str] = set()
    after = 0
    while found := store_purge.old_envelopes(conn, after=after, before_ms=before_ms):
        going |= store_purge.may_go(conn, [id_ for _, id_ in found], horizon).keys()
        after = found[-1][0]
    return len(going)


async def purge_house(store: Store, files: Files, horizon: Horizon, *, clock: Clock) -> Went:
    """Take away what the horizon leaves behind, in many short commits: mail is accepted in between."""
    went = NOTHING
    # News first, for it may not outlive the letters it tells of; runs last, for they tell what goes together.
    if horizon.told_ms is not None:
        went += await _purge_news(store, horizon.told_ms, clock)
    if horizon.envelopes_ms is not None:
        went += await _purge_envelopes(store, horizon, horizon.envelopes_ms, clock)
    if horizon.runs_ms is not None:
        went += await _purge_runs(store, horizon.runs_ms, clock)
    went += await _purge_past(store, clock)
    named = await store.scan(store_purge.named_attachments)
    before = clock.now() - timedelta(hours=FILES_REST_H)
    swept = await asyncio.to_thread(partial(files.sweep, keep=named.__contains__, before=before))
    return went + Went({"files": swept})


async def _purge_news(store: Store, before_ms: int, clock: Clock) -> Went:
    total = 0
    while True:
        body = partial(store_purge.purge_news, before_ms=before_ms, now_ms=to_ms(clock.now()))
        gone = await store.write(body, point="purge")
        total += gone
        if not gone:
            return Went({"news": total})


async def _purge_envelopes(store: Store, horizon: Horizon, before_ms: int, clock: Clock) -> Went:
    total = after = 0
    while found := await store.scan(partial(store_purge.old_envelopes, after=after, before_ms=before_ms)):
        ids = [id_ for _, id_ in found]
        body = partial(store_purge.purge_envelopes, ids=ids, horizon=horizon, now_ms=to_ms(clock.now()))
        total += await store.write(body, point="purge")
        after = found[-1][0]
    return Went({"envelopes": total})


async def _purge_runs(store: Store, before_ms: int, clock: Clock) -> Went:
    total, after = 0, ""
    while found := await store.scan(partial(store_purge.old_runs, after=after, before_ms=before_ms)):
        body = partial(store_purge.purge_runs, ids=found, before_ms=before_ms, now_ms=to_ms(clock.now()))
        total += await store.write(body, point="purge")
        after = found[-1]
    return Went({"runs": total})


async def _purge_past(store: Store, clock: Clock) -> Went:
    went = Went()
    while True:
        now_ms = to_ms(clock.now())
        body = partial(store_purge.purge_past, before_ms=now_ms - KEYS_OUTLIVE_MS, now_ms=now_ms)
        gone = await store.write(body, point="purge")
        went += Went(gone)
        if not any(gone.values()):
            return went


OPERATIONS = (
    Operation(
        name="house.purge",
        summary="Take away what is long done. Without `dry_run` set to false it only counts.",
        parameters=Purge,
        handler=purge,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
