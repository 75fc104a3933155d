"""Operations that purge old data and back up the instance, and the daily purge."""

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

from retinue.config.settings import RetentionSettings
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import RetinueError
from retinue.domain.ports import Clock
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import format_time, to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.server.errors import (
    BackupPathInvalid,
    BackupPathNotAllowed,
    BackupVerificationFailed,
    MaintenanceInProgress,
    PurgeDaysInvalid,
)
from retinue.store.agents import file_trust
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.maintenance import purge as store_purge
from retinue.store.maintenance.purge import PURGED_KEYS_RETENTION_MS, PurgeHorizon

log = logging.getLogger(__name__)

BACKUPS_DIRECTORY = "backups"
FOLDER_NAME_BYTES_MAX = 200
FIRST_PURGE_S = 600.0
PURGE_INTERVAL_S = 86_400.0
DAYS_MAX = 36_500
UNREFERENCED_FILE_AGE_H = 24  # an unreferenced file may belong to an envelope that is being accepted


class PurgeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Delete old data. By default, this is a dry run: data is deleted only if `dry_run` is false.

    Each period is the minimum age in days of the data to delete. If a period is omitted, its data is kept.
    """

    done_days: int | None = None  # envelopes, this many days after their outcome; also events of that age
    events_days: int | None = None
    runs_days: int | None = None  # steps of ended runs, and runs without remaining envelopes
    unread: bool = False  # also envelopes that their reader has not marked as read
    dry_run: bool = True


class PurgeCounts(Struct, frozen=True):
    """Number of items that a purge deleted or would delete, for each kind of data."""

    counts: Mapping[str, int] = field(default_factory=dict[str, int])

    def __add__(self, other: PurgeCounts) -> PurgeCounts:
        names = dict.fromkeys([*self.counts, *other.counts])
        return PurgeCounts({name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in names})


class BackupRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Back up the instance to a new folder in `RETINUE_HOME/backups`, or to a path that the owner gives."""

    to: str = ""  # absolute path that does not exist yet
    verify: bool = False  # read the backup again, and check the ledger of the copied database


class PurgeResult(msgspec.Struct, frozen=True):
    """Number of deleted items of each kind. In a dry run, the number that would be deleted."""

    dry_run: bool
    envelopes: int
    events: int
    runs: int
    idempotency_keys: int
    stored_answers: int
    tokens: int
    notifications: int
    questionnaires: int
    files: int


class BackupResult(msgspec.Struct, frozen=True):
    folder: str
    parts: int
    size_bytes: int
    missing: list[str]
    verified: bool


_COUNT_NAMES = tuple(name for name in PurgeResult.__struct_fields__ if name != "dry_run")
ZERO_COUNTS = PurgeCounts(dict.fromkeys(_COUNT_NAMES, 0))


async def purge_data(services: Services, caller: Principal, request: PurgeRequest) -> PurgeResult:
    now = services.clock.now()
    horizon = PurgeHorizon(
        envelopes_ms=_cutoff_ms(now, request.done_days, "done_days"),
        events_ms=_cutoff_ms(now, request.events_days, "events_days"),
        runs_ms=_cutoff_ms(now, request.runs_days, "runs_days"),
        include_unread=request.unread,
    )
    with _exclusive_maintenance(services):
        if request.dry_run:
            purged = await count_purgeable(services.store, services.attachment_files, horizon, now=now)
        else:
            purged = await run_purge(services.store, services.attachment_files, horizon, clock=services.clock)
    return PurgeResult(dry_run=request.dry_run, **purged.counts)


@contextmanager
def _exclusive_maintenance(services: Services) -> Generator[None]:
    """Allow one purge or backup at a time, because a purge could delete files that a backup is about to copy."""
    mark = ("server", "maintenance")
    if mark in services.keys_in_progress:
        raise MaintenanceInProgress()
    services.keys_in_progress.add(mark)
    try:
        yield
    finally:
        services.keys_in_progress.discard(mark)


def _cutoff_ms(now: datetime, days: int | None, name: str) -> int | None:
    if days is None:
        return None
    if not 1 <= days <= DAYS_MAX:
        raise PurgeDaysInvalid(name, days, days_max=DAYS_MAX)
    return to_ms(now - timedelta(days=days))


async def count_purgeable(store: Store, files: AttachmentFiles, horizon: PurgeHorizon, *, now: datetime) -> PurgeCounts:
    """Count what a purge would delete.

    The attachment files of envelopes that would be deleted are not counted.
    """

    def body(conn: sa.Connection) -> PurgeCounts:
        counts = dict(ZERO_COUNTS.counts)
        if horizon.events_horizon_ms is not None:
            counts["events"] = store_purge.count_events(conn, before_ms=horizon.events_horizon_ms)
        if horizon.envelopes_ms is not None:
            counts["envelopes"] = _count_envelopes(conn, horizon, horizon.envelopes_ms)
        if horizon.runs_ms is not None:
            counts["runs"] = store_purge.count_runs(conn, before_ms=horizon.runs_ms)
        return PurgeCounts(counts | store_purge.count_expired(conn, before_ms=to_ms(now) - PURGED_KEYS_RETENTION_MS))

    purged = await store.scan(body)
    named = await store.scan(store_purge.list_attachment_hashes)
    look = partial(files.list_unwanted, keep=named.__contains__, before=now - timedelta(hours=UNREFERENCED_FILE_AGE_H))
    return purged + PurgeCounts({"files": len(await asyncio.to_thread(look))})


def _count_envelopes(conn: sa.Connection, horizon: PurgeHorizon, before_ms: int) -> int:
    going: set[str] = set()
    after = 0
    while found := store_purge.list_old_envelopes(conn, after=after, before_ms=before_ms):
        going |= store_purge.list_purgeable(conn, [id_ for _, id_ in found], horizon).keys()
        after = found[-1][0]
    return len(going)


async def run_purge(store: Store, files: AttachmentFiles, horizon: PurgeHorizon, *, clock: Clock) -> PurgeCounts:
    """Delete data that is older than `horizon` allows, in short transactions between which messages are accepted."""
    purged = ZERO_COUNTS
    # Events first: they must not outlive their envelopes. Runs last: they link the envelopes of a batch.
    if horizon.events_horizon_ms is not None:
        purged += await _purge_events(store, horizon.events_horizon_ms, clock)
    if horizon.envelopes_ms is not None:
        purged += await _purge_envelopes(store, horizon, horizon.envelopes_ms, clock)
    if horizon.runs_ms is not None:
        purged += await _purge_runs(store, horizon.runs_ms, clock)
    purged += await _purge_expired(store, clock)
    named = await store.scan(store_purge.list_attachment_hashes)
    before = clock.now() - timedelta(hours=UNREFERENCED_FILE_AGE_H)
    swept = await asyncio.to_thread(partial(files.sweep, keep=named.__contains__, before=before))
    # Delete trust entries of missing files. They are not user data, so they are not counted.
    await file_trust.sweep(
        store, now_ms=to_ms(clock.now()), is_named=lambda hash_: hash_ in named or files.path(hash_).exists()
    )
    return purged + PurgeCounts({"files": swept})


async def _purge_events(store: Store, before_ms: int, clock: Clock) -> PurgeCounts:
    total = 0
    while True:
        body = partial(store_purge.purge_events, before_ms=before_ms, now_ms=to_ms(clock.now()))
        gone = await store.write(body, point="purge")
        total += gone
        if not gone:
            return PurgeCounts({"events": total})


async def _purge_envelopes(store: Store, horizon: PurgeHorizon, before_ms: int, clock: Clock) -> PurgeCounts:
    total = after = 0
    while found := await store.scan(partial(store_purge.list_old_envelopes, after=after, before_ms=before_ms)):
        ids = [id_ for _, id_ in found]
        body = partial(store_purge.purge_envelopes, ids=ids, horizon=horizon, now_ms=to_ms(clock.now()))
        total += await store.write(body, point="purge")
        after = found[-1][0]
    return PurgeCounts({"envelopes": total})


async def _purge_runs(store: Store, before_ms: int, clock: Clock) -> PurgeCounts:
    total, after = 0, ""
    while found := await store.scan(partial(store_purge.list_old_runs, after=after, before_ms=before_ms)):
        body = partial(store_purge.purge_runs, ids=found, before_ms=before_ms, now_ms=to_ms(clock.now()))
        total += await store.write(body, point="purge")
        after = found[-1]
    return PurgeCounts({"runs": total})


async def _purge_expired(store: Store, clock: Clock) -> PurgeCounts:
    purged = PurgeCounts()
    while True:
        now_ms = to_ms(clock.now())
        body = partial(store_purge.purge_expired, before_ms=now_ms - PURGED_KEYS_RETENTION_MS, now_ms=now_ms)
        gone = await store.write(body, point="purge")
        purged += PurgeCounts(gone)
        if not any(gone.values()):
            return purged


async def purge_daily(services: Services, retention: Callable[[], RetentionSettings]) -> None:
    """Purge old data according to the settings, soon after startup and then daily.

    Expired rows are deleted even if the settings say that data is kept.
    """
    wait_s = FIRST_PURGE_S
    while True:
        await services.clock.sleep(wait_s)
        wait_s = PURGE_INTERVAL_S
        now, wanted = services.clock.now(), retention()
        horizon = PurgeHorizon(
            envelopes_ms=_cutoff_ms(now, wanted.done_days, "done_days"),
            events_ms=_cutoff_ms(now, wanted.events_days, "events_days"),
            runs_ms=_cutoff_ms(now, wanted.runs_days, "runs_days"),
        )
        try:
            with _exclusive_maintenance(services):
                purged = await run_purge(services.store, services.attachment_files, horizon, clock=services.clock)
            log.info("old data purged", extra=dict(purged.counts))
        except RetinueError as error:  # full disk, or a backup in progress: retry tomorrow
            log.warning("purge failed", extra={"code": error.code})


async def back_up_instance(services: Services, caller: Principal, request: BackupRequest) -> BackupResult:
    from retinue.store.maintenance import backup as store_backup  # used at most daily: import on first use

    now = services.clock.now()
    with _exclusive_maintenance(services):
        folder = _choose_backup_folder(services, caller, request.to, now)
        place = await services.store.scan(_database_file)
        await asyncio.to_thread(store_backup.check_free_space, services.data_dir, place, folder.parent)
        with store_backup.create_folder(folder) as new:
            named = await services.store.scan(partial(store_backup.copy_store, target=new / store_backup.STORE))
            copy = partial(store_backup.copy_files, services.data_dir, new, named)
            manifest = await asyncio.to_thread(copy, made_at=format_time(now, services.zone), version=services.version)
            if request.verify:
                await asyncio.to_thread(_verify_backup, new, now_ms=to_ms(now))
    return BackupResult(
        folder=str(folder),
        parts=len(manifest.parts),
        size_bytes=manifest.size_bytes,
        missing=list(manifest.missing),
        verified=request.verify,
    )


def _database_file(conn: sa.Connection) -> Path | None:
    """Return the path of the SQLite file, or None for another database."""
    if conn.dialect.name != "sqlite":
        return None
    raw: Any = conn.connection.dbapi_connection
    return next((Path(file) for _, name, file in raw.execute("PRAGMA database_list") if name == "main" and file), None)


def _choose_backup_folder(services: Services, caller: Principal, to: str, now: datetime) -> Path:
    if not to:
        folder = services.data_dir / BACKUPS_DIRECTORY
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"{now:%Y-%m-%dT%H-%M-%S}Z"
    # Only the owner chooses a path on the machine, not an agent, even with the highest permission level.
    if not (caller.sees_everything and caller.address.kind is AddressKind.PERSON):
        raise BackupPathNotAllowed()
    folder = Path(to)
    usable = is_storable(to) and 0 < len(folder.name.encode(errors="replace")) <= FOLDER_NAME_BYTES_MAX
    if not usable or not folder.is_absolute() or not os.access(folder.parent, os.W_OK | os.X_OK):
        raise BackupPathInvalid(to)
    return folder


def _verify_backup(folder: Path, *, now_ms: int) -> None:
    from retinue.store.maintenance import backup as store_backup

    found = store_backup.verify(folder, now_ms=now_ms)
    if not found.is_ok:
        raise BackupVerificationFailed(found.problems)


OPERATIONS = (
    Operation(
        name="server.backup",
        summary="Back up all data to a new folder while the server is running.",
        parameters=BackupRequest,
        handler=back_up_instance,
        result=BackupResult,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="server.purge",
        summary="Delete old data. By default, the data is only counted.",
        parameters=PurgeRequest,
        handler=purge_data,
        result=PurgeResult,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
