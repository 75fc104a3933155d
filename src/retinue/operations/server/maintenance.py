"""Purge old data and back up the instance, on request and daily."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.config.settings import Retention
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotAllowed, RetinueError, StoreError
from retinue.domain.ports import Clock
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import show, to_ms
from retinue.operations.base import Desk, Operation
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import Files
from retinue.store.maintenance import purge as store_purge
from retinue.store.maintenance.purge import KEYS_OUTLIVE_MS, Horizon

log = logging.getLogger(__name__)

BACKUPS = "backups"
FOLDER_NAME_BYTES_MAX = 200
TIDY_FIRST_S = 600.0
TIDY_EVERY_S = 86_400.0
DAYS_MAX = 36_500
FILES_REST_H = 24  # an unreferenced file may belong to an envelope that is being accepted


class Purge(msgspec.Struct, forbid_unknown_fields=True):
    """A period that is not given keeps that data. Nothing is deleted unless `dry_run` is false."""

    done_days: int | None = None  # envelopes, this many days after their outcome; also the events of that time
    news_days: int | None = None
    runs_days: int | None = None  # steps of ended runs, and runs without remaining envelopes
    unread: bool = False  # also envelopes that their reader has not marked as read
    dry_run: bool = True


class Went(Struct, frozen=True):
    """Counts of what a purge deleted or would delete."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    def __add__(self, other: Went) -> Went:
        names = dict.fromkeys([*self.counts, *other.counts])
        return Went({name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in names})


class Backup(msgspec.Struct, forbid_unknown_fields=True):
    """Write to a new folder in `RETINUE_HOME/backups`, or to a path that the owner names."""

    to: str = ""  # absolute path that does not exist yet
    verify: bool = False  # read everything back and check the copy's ledger


class HousePurged(msgspec.Struct, frozen=True, rename="kebab"):
    """Number of deleted items per kind; in a dry run, the number that would be deleted."""

    dry_run: bool
    envelopes: int
    news: int
    runs: int
    keys: int
    answers: int
    tokens: int
    notifications: int
    questionnaires: int
    files: int


class HouseBackedUp(msgspec.Struct, frozen=True, rename="kebab"):
    folder: str
    parts: int
    size_bytes: int
    missing: list[str]
    verified: bool


_KINDS = ("envelopes", "news", "runs", "keys", "answers", "tokens", "notifications", "questionnaires", "files")
NOTHING = Went(dict.fromkeys(_KINDS, 0))


async def purge(desk: Desk, caller: Principal, asked: Purge) -> HousePurged:
    now = desk.clock.now()
    horizon = Horizon(
        envelopes_ms=_before(now, asked.done_days, "done_days"),
        news_ms=_before(now, asked.news_days, "news_days"),
        runs_ms=_before(now, asked.runs_days, "runs_days"),
        unread=asked.unread,
    )
    with _alone(desk):
        if asked.dry_run:
            went = await would_purge(desk.store, desk.files, horizon, now=now)
        else:
            went = await purge_house(desk.store, desk.files, horizon, clock=desk.clock)
    return HousePurged(dry_run=asked.dry_run, **went.counts)


@contextmanager
def _alone(desk: Desk) -> Generator[None]:
    """Allow one purge or backup at a time: a purge deletes files that a backup is about to copy."""
    mark = ("house", "keeping")
    if mark in desk.in_progress:
        raise Conflict(
            "the house is being purged or backed up",
            because="one such thing is done at a time",
            try_this="wait until it is done, then ask again",
            code="house.keeping",
        )
    desk.in_progress.add(mark)
    try:
        yield
    finally:
        desk.in_progress.discard(mark)


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
    """Count what a purge would delete.

    Excludes attachment files of envelopes that would be deleted.
    """

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
    """Delete what the horizon allows, in many short commits, so that messages are accepted in between."""
    went = NOTHING
    # Events first: they must not outlive their envelopes. Runs last: they link the envelopes of a batch.
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
    # Delete trust entries of missing files. They are not user data, so they are not counted.
    await file_trust.sweep(
        store, now_ms=to_ms(clock.now()), named=lambda hash_: hash_ in named or files.path(hash_).exists()
    )
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


async def tidy_forever(desk: Desk, retention: Callable[[], Retention]) -> None:
    """Purge according to the settings soon after startup, then daily.

    Expired rows are always deleted.
    """
    wait_s = TIDY_FIRST_S
    while True:
        await desk.clock.sleep(wait_s)
        wait_s = TIDY_EVERY_S
        now, wanted = desk.clock.now(), retention()
        horizon = Horizon(
            envelopes_ms=_before(now, wanted.done_days, "done_days"),
            news_ms=_before(now, wanted.news_days, "news_days"),
            runs_ms=_before(now, wanted.runs_days, "runs_days"),
        )
        try:
            with _alone(desk):
                went = await purge_house(desk.store, desk.files, horizon, clock=desk.clock)
            log.info("house tidied", extra=dict(went.counts))
        except RetinueError as error:  # full disk, or a backup in progress: retry tomorrow
            log.warning("house not tidied", extra={"code": error.code})


async def back_up(desk: Desk, caller: Principal, asked: Backup) -> HouseBackedUp:
    from retinue.store.maintenance import backup as store_backup  # used at most daily: import on first use

    now = desk.clock.now()
    with _alone(desk):
        folder = _folder(desk, caller, asked.to, now)
        place = await desk.store.scan(_place)
        await asyncio.to_thread(store_backup.room_for, desk.home, place, folder.parent)
        with store_backup.new_folder(folder) as new:
            named = await desk.store.scan(partial(store_backup.copy_store, target=new / store_backup.STORE))
            copy = partial(store_backup.copy_rest, desk.home, new, named)
            manifest = await asyncio.to_thread(copy, made_at=show(now, desk.zone), version=desk.version)
            if asked.verify:
                await asyncio.to_thread(_see_that_it_is_sound, new, now_ms=to_ms(now))
    return HouseBackedUp(
        folder=str(folder),
        parts=len(manifest.parts),
        size_bytes=manifest.size_bytes,
        missing=list(manifest.missing),
        verified=asked.verify,
    )


def _place(conn: sa.Connection) -> Path | None:
    """Return the path of the SQLite file, or None for another database."""
    if conn.dialect.name != "sqlite":
        return None
    raw: Any = conn.connection.dbapi_connection
    return next((Path(file) for _, name, file in raw.execute("PRAGMA database_list") if name == "main" and file), None)


def _folder(desk: Desk, caller: Principal, to: str, now: datetime) -> Path:
    if not to:
        folder = desk.home / BACKUPS
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{now:%Y-%m-%dT%H-%M-%S}Z"
    # Only the owner chooses a path on the machine, not an agent, even with the highest permission level.
    if not (caller.sees_all and caller.address.kind is AddressKind.PERSON):
        raise NotAllowed(
            "you may not say where a backup goes",
            because="only the owner chooses places outside the home",
            try_this="leave `to` out",
            code="backup.place-not-allowed",
        )
    folder = Path(to)
    usable = is_storable(to) and 0 < len(folder.name.encode(errors="replace")) <= FOLDER_NAME_BYTES_MAX
    if not usable or not folder.is_absolute() or not os.access(folder.parent, os.W_OK | os.X_OK):
        raise Invalid(
            f"a backup cannot be written to {to[:200]!r}",
            because="it is not an absolute path in a folder that is there and that the house may write to",
            try_this="/path/to/an/existing/folder/NAME",
            code="backup.place-invalid",
        )
    return folder


def _see_that_it_is_sound(folder: Path, *, now_ms: int) -> None:
    from retinue.store.maintenance import backup as store_backup

    found = store_backup.verify(folder, now_ms=now_ms)
    if not found.ok:
        raise StoreError(
            "the backup is not sound, so it was not kept",
            because="; ".join(found.problems),
            try_this="run `retinue doctor`, and look after the disk",
            code="backup.unsound",
        )


OPERATIONS = (
    Operation(
        name="house.backup",
        summary="Copy everything the house keeps into a new folder, while it goes on.",
        parameters=Backup,
        handler=back_up,
        result=HouseBackedUp,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="house.purge",
        summary="Take away what is long done. Without `dry_run` set to false it only counts.",
        parameters=Purge,
        handler=purge,
        result=HousePurged,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
