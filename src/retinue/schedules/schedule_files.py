"""Keeps `schedules/NAME.md` in the data directory in sync with the schedules that have a name.

The store is authoritative, but people can change a schedule by editing its file. An edited file is
applied within moments. A change made elsewhere, for example in the web app, is written to the file.
An invalid file changes nothing, and the problem is reported with its line.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import address
from retinue.domain.address import validate_name
from retinue.domain.errors import RetinueError
from retinue.domain.ids import ScheduleId
from retinue.domain.ports import Clock, IdSource
from retinue.domain.schedule import EveryTrigger, Schedule, ScheduleKind
from retinue.domain.shared_errors import AgentNotFound
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.schedules import schedule_parser
from retinue.schedules.errors import ScheduleFileCopied, ScheduleFileIdMismatch
from retinue.schedules.file_watcher import DebouncedTask, DirectoryWatcher
from retinue.schedules.schedule_front_matter import (
    SCHEDULE_FILE_BYTES_MAX,
    MissingScheduleId,
    ScheduleFile,
    parse_schedule_file,
    render_schedule_file,
)
from retinue.schedules.schedule_parser import ScheduleContext
from retinue.store.agents import agents
from retinue.store.core import tables
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.core.untrusted_files import open_untrusted
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule

log = logging.getLogger(__name__)

DIRECTORY = "schedules"
FILES_MAX = 10_000
READ_PER_QUERY_MAX = 500
PROBLEMS_MAX = 100
OWNER = address.person_address("owner")
UTC = ZoneInfo("UTC")


class _FoundFile(Struct, frozen=True):
    """The content and modification time of a schedule file."""

    text: str
    mtime_ms: int


class _ScheduleFolder(Struct, frozen=True):
    """The schedule files, by schedule name: their content, or the reason why they cannot be read."""

    files: dict[str, _FoundFile]
    unreadable: dict[str, str]


class _SyncedState(Struct, frozen=True):
    """The file's text and the stored schedule's version, as of the last time when both had the same content."""

    text: str
    updated_ms: int


class ScheduleFileSync:
    """Keeps schedule files and the store in sync in the background: see `sync`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdSource,
        data_directory: Path,
        zone: ZoneInfo,
        *,
        run_blocking: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """`run_blocking` runs a function with blocking disk access, by default in a thread."""
        self._run_blocking = run_blocking
        self._store = store
        self._clock = clock
        self._ids = ids
        self._directory = data_directory / DIRECTORY
        self._zone = zone
        self._synced: dict[str, _SyncedState] = {}
        self._problems: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._sync_task = DebouncedTask(self.sync, clock, name="schedule files")
        self._watcher = DirectoryWatcher(self._directory, clock, self._sync_task.trigger)

    async def start(self) -> None:
        await self.sync()
        self._watcher.start()
        self._store.on_commit(self._sync_task.trigger, tables.schedules)
        self._sync_task.start()

    async def stop(self) -> None:
        self._watcher.stop()
        await self._sync_task.stop()

    def problems(self) -> list[str]:
        """Return one line of text for each schedule file that cannot be applied, with the reason."""
        return [f"{name}.md: {why}" for name, why in sorted(self._problems.items())]

    async def sync(self) -> None:
        """Apply changed files to the store, and write changed schedules to their files.

        If a file was removed, its schedule is deleted. If the whole folder is gone, all files are
        written again. A file that cannot be read changes nothing.
        """
        async with self._lock:
            if await self._run_blocking(self._create_directory):
                # A missing file deletes its schedule. A missing folder was lost: write all files again.
                await self._write_store(schedules.forget_files)
                self._synced.clear()
            await self._remove_deleted()
            folder = await self._run_blocking(self._read_all)
            found = folder.files
            kept = await self._read_stored()
            problems = dict(folder.unreadable)
            unreadable = {name.casefold() for name in folder.unreadable}
            by_name = {each.schedule.name.casefold(): each for each in kept}
            folded = {name.casefold(): name for name in found}
            may_be_renamed = not unreadable.issubset(by_name)  # the id in an unreadable file is unknown
            for each in kept:
                name = folded.get(each.schedule.name.casefold())
                if name is None and each.filed and (may_be_renamed or each.schedule.name.casefold() in unreadable):
                    continue
                await self._sync_schedule(each, name, found, problems)
            for name, file in found.items():
                if name.casefold() not in by_name:
                    await self._import_file(name, file, kept, folded, problems)
            self._report_problems(problems)

    # --- one schedule and its file ---

    async def _sync_schedule(
        self, stored: StoredSchedule, name: str | None, found: dict[str, _FoundFile], problems: dict[str, str]
    ) -> None:
        schedule = stored.schedule
        if name is None:
            if stored.filed and schedule.id not in self._ids_in(found):
                await self._write_store(partial(_delete_schedule, stored=stored))
                self._synced.pop(schedule.name, None)
                await self._remove_deleted()
            elif not stored.filed:
                await self._write_file(stored)
            return
        file, agreed = found[name], self._synced.get(schedule.name)
        same_file = agreed is not None and agreed.text == file.text
        same_store = agreed is not None and agreed.updated_ms == stored.updated_ms
        if same_file and same_store:
            return
        try:
            filed = parse_schedule_file(file.text)
            if filed.id != schedule.id:
                raise ScheduleFileIdMismatch(schedule.name, id_=schedule.id)
            says_the_same = self._is_same(filed, stored)
            file_is_newer = not same_file if agreed is not None else file.mtime_ms > stored.updated_ms
            if says_the_same:
                await self._mark_synced(stored, file.text)
            elif file_is_newer:
                await self._apply_file(stored, filed, file.text)
            else:
                await self._write_file(stored)
        except MissingScheduleId:
            problems[name] = f"line 2: the id is missing; add the id of this schedule: `id: {schedule.id}`"
        except RetinueError as error:
            if same_file:  # the file was invalid all along, and the store has changed since
                await self._write_file(stored)
            else:
                problems[name] = _format_error(error)

    def _is_same(self, file: ScheduleFile, stored: StoredSchedule) -> bool:
        if file.is_enabled is not stored.enabled:
            return False
        own = schedule_parser.schedule_to_form(stored.schedule, ZoneInfo(stored.zone))
        return self._normalize(file.form, stored) == self._normalize(own, stored)

    def _normalize(self, form: schedule_parser.ScheduleForm, stored: StoredSchedule) -> schedule_parser.ScheduleForm:
        """Return the form of a schedule in canonical spelling, so that equal schedules have equal forms."""
        zone = ZoneInfo(stored.zone)
        if form.every:
            form = msgspec.structs.replace(form, every=str(schedule_parser.parse_span_s(form.every)))
        if form.at:
            form = msgspec.structs.replace(
                form, at=str(schedule_parser.parse_when_fields(at=form.at, now=self._clock.now(), zone=zone))
            )
        session = None if form.session is schedule_parser.ScheduleSession.FRESH else form.session
        return msgspec.structs.replace(
            form, session=session, text=form.text.strip("\n"), cron=" ".join(form.cron.split())
        )

    async def _apply_file(self, stored: StoredSchedule, file: ScheduleFile, text: str) -> None:
        was = stored.schedule
        own = schedule_parser.schedule_to_form(was, ZoneInfo(stored.zone))
        reworded = (file.form.text.strip("\n"), file.form.gate) != (own.text, own.gate)
        by = ScheduleContext(
            id=was.id,
            name=was.name,
            owner=was.owner,
            trust=Trust.OWNER if reworded else was.trust,
            now=self._clock.now(),
            zone=self._zone,
            kind=was.kind,
            source="file",
            start=was.when.start if isinstance(was.when, EveryTrigger) and file.form.every == own.every else None,
        )
        is_over = not file.is_enabled and self._normalize(file.form, stored) == self._normalize(own, stored)
        schedule = was if is_over else schedule_parser.parse_form(file.form, by)
        changed = await self._write_store(
            partial(_change_schedule, stored=stored, schedule=schedule, enabled=file.is_enabled, zone=self._zone)
        )
        log.info("schedule changed from file", extra={"schedule": was.id, "file": was.name})
        await self._mark_synced(changed, text)

    async def _import_file(
        self,
        name: str,
        file: _FoundFile,
        stored: list[StoredSchedule],
        folded: dict[str, str],
        problems: dict[str, str],
    ) -> None:
        """Import a file with a name that no stored schedule has.

        If its id belongs to a stored schedule, that schedule is renamed. Otherwise the file is a
        new schedule.
        """
        try:
            validate_name(name, what="a schedule")
            filed = parse_schedule_file(file.text)
            other = next((each for each in stored if each.id == filed.id), None)
            if other is not None and other.schedule.name.casefold() in folded:
                raise ScheduleFileCopied(other.schedule.name, new_id=self._ids.new())
            was = other.schedule if other is not None else None
            by = ScheduleContext(
                id=filed.id,
                name=name,
                owner=was.owner if was is not None else OWNER,
                trust=Trust.OWNER,
                now=self._clock.now(),
                zone=self._zone,
                source="file",
                start=was.when.start if was is not None and isinstance(was.when, EveryTrigger) else None,
            )
            schedule = schedule_parser.parse_form(filed.form, by)
            if other is not None:
                act = partial(
                    _change_schedule, stored=other, schedule=schedule, enabled=filed.is_enabled, zone=self._zone
                )
            else:
                act = partial(_add_schedule, schedule=schedule, enabled=filed.is_enabled, zone=self._zone)
            made = await self._write_store(act)
            log.info("schedule added from file", extra={"schedule": made.id, "file": name})
            await self._mark_synced(made, file.text)
        except MissingScheduleId:
            problems[name] = (
                f"line 2: the id is missing, so the file is ignored; add a new one: `id: {self._ids.new()}`"
            )
        except RetinueError as error:
            problems[name] = _format_error(error)

    async def _remove_deleted(self) -> None:
        while found := await self._store.scan(partial(schedules.list_deleted, limit=READ_PER_QUERY_MAX)):
            for kept in found:
                await self._run_blocking(_unlink, self._path(kept.schedule.name), kept.id)
                self._synced.pop(kept.schedule.name, None)
                await self._write_store(partial(schedules.remove_row, id_=kept.id))

    # --- disk and store ---

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.md"

    def _create_directory(self) -> bool:
        """Create the folder of the schedule files. Returns False if it already existed."""
        try:
            self._directory.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            return False
        return True

    def _read_all(self) -> _ScheduleFolder:
        """Read all schedule files. Links and files that are too large count as unreadable."""
        files: dict[str, _FoundFile] = {}
        unreadable: dict[str, str] = {}
        names = sorted(name for name in os.listdir(self._directory) if name.endswith(".md") and name[0] != ".")
        for name in names:
            stem = name.removesuffix(".md")
            if len(files) == FILES_MAX:
                unreadable[stem] = f"there are more than {FILES_MAX} schedule files"
                continue
            try:
                files[stem] = _read_file(self._directory / name)
            except _UnreadableFile as error:
                unreadable[stem] = str(error)
        return _ScheduleFolder(files, unreadable)

    def _ids_in(self, found: dict[str, _FoundFile]) -> set[ScheduleId]:
        """Return the schedule ids in all files. A renamed file still has its id, so it does not count as removed."""
        ids: set[ScheduleId] = set()
        for file in found.values():
            try:
                ids.add(parse_schedule_file(file.text).id)
            except (MissingScheduleId, RetinueError):
                continue
        return ids

    async def _write_file(self, stored: StoredSchedule) -> None:
        schedule = stored.schedule
        owner = "" if schedule.owner == OWNER else str(schedule.owner)
        form = schedule_parser.schedule_to_form(schedule, ZoneInfo(stored.zone))
        text = render_schedule_file(schedule.id, form, enabled=stored.enabled, owner=owner)
        await self._run_blocking(_write_atomically, self._path(schedule.name), text, self._clock.now())
        await self._mark_synced(stored, text)

    async def _mark_synced(self, stored: StoredSchedule, text: str) -> None:
        if not stored.filed:
            await self._write_store(partial(_mark_filed, stored=stored))
        self._synced[stored.schedule.name] = _SyncedState(text, stored.updated_ms)

    async def _read_stored(self) -> list[StoredSchedule]:
        kept: list[StoredSchedule] = []
        after = ""
        while True:
            body = partial(schedules.list_all, after=after, limit=READ_PER_QUERY_MAX)
            rows = await self._store.scan(body)
            kept += [each for each in rows if each.schedule.name and each.schedule.kind is ScheduleKind.SCHEDULE]
            if len(rows) < READ_PER_QUERY_MAX:
                return kept
            after = rows[-1].id

    async def _write_store(self, act: Any) -> Any:
        now_ms = to_ms(self._clock.now())

        def body(conn: sa.Connection) -> Any:
            tx = Transaction(conn, now_ms)
            done = act(tx)
            tx.close()
            return done

        return await self._store.write(body, point="schedule")

    def _report_problems(self, problems: dict[str, str]) -> None:
        for name, why in problems.items():
            if self._problems.get(name) != why:
                log.warning("schedule file invalid", extra={"file": f"{DIRECTORY}/{name}.md", "because": why})
        self._problems = dict(list(problems.items())[:PROBLEMS_MAX])


def _add_schedule(tx: Transaction, *, schedule: Schedule, enabled: bool, zone: ZoneInfo) -> StoredSchedule:
    _check_agent(tx, schedule)
    kept = schedules.add(
        tx, schedule, zone=zone, enabled=enabled, because="" if enabled else "it is disabled in its file"
    )
    return schedules.mark_filed(tx, kept.id)


def _change_schedule(
    tx: Transaction, *, stored: StoredSchedule, schedule: Schedule, enabled: bool, zone: ZoneInfo
) -> StoredSchedule:
    _check_agent(tx, schedule)
    changed = schedules.change(tx, stored, schedule, zone=zone, because="its file was changed")
    if enabled and not stored.enabled:
        changed = schedules.enable(tx, changed)
    elif not enabled and changed.enabled:
        changed = schedules.disable(tx, changed, because="it is disabled in its file")
    return changed


def _check_agent(tx: Transaction, schedule: Schedule) -> None:
    if schedule.to.kind is address.AddressKind.AGENT and agents.find(tx.conn, schedule.to.name) is None:
        raise AgentNotFound(schedule.to.name)


def _delete_schedule(tx: Transaction, *, stored: StoredSchedule) -> None:
    schedules.delete(tx, stored, because="its file was removed")


def _mark_filed(tx: Transaction, *, stored: StoredSchedule) -> None:
    schedules.mark_filed(tx, stored.id)


class _UnreadableFile(Exception):
    """A schedule file cannot be read. The message is the reason."""


def _read_file(path: Path) -> _FoundFile:
    try:
        with open_untrusted(path) as file:
            status = os.fstat(file.fileno())
            data = file.read(SCHEDULE_FILE_BYTES_MAX + 1)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _UnreadableFile("it is a link; replace it with a copy of the file that it points to") from None
        raise _UnreadableFile(f"it cannot be read: {error.strerror}") from None
    if len(data) > SCHEDULE_FILE_BYTES_MAX:
        raise _UnreadableFile(f"it is too large; the limit is {SCHEDULE_FILE_BYTES_MAX} bytes")
    return _FoundFile(data.decode(errors="replace"), status.st_mtime_ns // 1_000_000)


def _write_atomically(path: Path, text: str, now: datetime) -> None:
    """Write a file atomically, with a modification time from the server's clock."""
    beside = path.with_name(f".{path.name}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.utime(beside, (now.timestamp(), now.timestamp()))
    os.replace(beside, path)


def _unlink(path: Path, id_: str) -> None:
    """Delete the file of a schedule, unless the file now has the id of another schedule."""
    try:
        if parse_schedule_file(path.read_text(errors="replace")).id != id_:
            return
    except FileNotFoundError:
        return
    except (MissingScheduleId, RetinueError):
        pass
    path.unlink(missing_ok=True)


def _format_error(error: RetinueError) -> str:
    return f"{error.sentence}: {error.because}" if error.because else error.sentence
