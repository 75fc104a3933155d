"""Keeps `schedules/NAME.md` in the data directory in sync with the named schedules.

The store is authoritative, and a file is an equal way to change it. An edited file is applied
within moments, and a change made elsewhere is written to the file. An invalid file changes nothing
and is reported with its line.
"""

from __future__ import annotations

import asyncio
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
from retinue.domain.address import valid_name
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.ids import ScheduleId
from retinue.domain.ports import Clock, Ids
from retinue.domain.schedule import Every, Kind, Schedule
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.schedules import schedule_parser
from retinue.schedules.file_watcher import Looking, Watcher
from retinue.schedules.schedule_front_matter import FILE_BYTES_MAX, Filed, NoId, parse, render
from retinue.schedules.schedule_parser import Setting
from retinue.store.agents import agents
from retinue.store.core import tables
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept

log = logging.getLogger(__name__)

FOLDER = "schedules"
FILES_MAX = 10_000
READ_AT_ONCE_MAX = 500
PROBLEMS_MAX = 100
OWNER = address.person("owner")
UTC = ZoneInfo("UTC")


class _Found(Struct, frozen=True):
    """A schedule file as found on disk."""

    text: str
    mtime_ms: int


class _Agreed(Struct, frozen=True):
    """File text and store version when both last had the same content."""

    text: str
    updated_ms: int


class ScheduleFiles:
    """Keeps schedule files and the store in sync in the background."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: Ids,
        home: Path,
        zone: ZoneInfo,
        *,
        aside: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """`run_blocking` runs blocking disk access in the background."""
        self._aside = aside
        self._store = store
        self._clock = clock
        self._ids = ids
        self._folder = home / FOLDER
        self._zone = zone
        self._agreed: dict[str, _Agreed] = {}
        self._problems: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._looking = Looking(self.look, clock, what="files of schedules")
        self._watcher = Watcher(self._folder, clock, self._looking.poke)

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self.look()
        self._watcher.start()
        self._store.on_commit(self._looking.poke, tables.schedules)
        self._looking.start()

    async def stop(self) -> None:
        self._watcher.stop()
        await self._looking.stop()

    def problems(self) -> list[str]:
        """Return which files could not be read, and why."""
        return [f"{name}.md: {why}" for name, why in sorted(self._problems.items())]

    async def look(self) -> None:
        """Sync files and store."""
        async with self._lock:
            await self._remove_gone()
            found = await self._aside(self._read_all)
            kept = await self._all_kept()
            problems: dict[str, str] = {}
            by_name = {each.schedule.name.casefold(): each for each in kept}
            folded = {name.casefold(): name for name in found}
            for each in kept:
                name = folded.get(each.schedule.name.casefold())
                await self._bring_in_line(each, name, found, problems)
            for name, file in found.items():
                if name.casefold() not in by_name:
                    await self._take_in(name, file, kept, folded, problems)
            self._tell(problems)

    # --- one schedule and its file ---

    async def _bring_in_line(
        self, kept: Kept, name: str | None, found: dict[str, _Found], problems: dict[str, str]
    ) -> None:
        schedule = kept.schedule
        if name is None:
            if kept.filed and schedule.id not in self._ids_in(found):
                await self._write(partial(_delete, kept=kept))
                self._agreed.pop(schedule.name, None)
                await self._remove_gone()
            elif not kept.filed:
                await self._write_file(kept)
            return
        file, agreed = found[name], self._agreed.get(schedule.name)
        same_file = agreed is not None and agreed.text == file.text
        same_store = agreed is not None and agreed.updated_ms == kept.updated_ms
        if same_file and same_store:
            return
        try:
            filed = parse(file.text)
            if filed.id != schedule.id:
                raise Invalid(
                    "this file is for another schedule",
                    because=f"line 2: its id is not that of the schedule '{schedule.name}', {schedule.id}",
                )
            says_the_same = self._says_the_same(filed, kept)
            file_is_newer = not same_file if agreed is not None else file.mtime_ms > kept.updated_ms
            if says_the_same:
                await self._agree(kept, file.text)
            elif file_is_newer:
                await self._set(kept, filed, file.text)
            else:
                await self._write_file(kept)
        except NoId:
            problems[name] = f"line 2: it has no id; this one is its own: `id: {schedule.id}`"
        except RetinueError as error:
            if same_file:  # the file was invalid all along, and the store has changed since
                await self._write_file(kept)
            else:
                problems[name] = _told(error)

    def _says_the_same(self, filed: Filed, kept: Kept) -> bool:
        if filed.enabled is not kept.enabled:
            return False
        own = schedule_parser.write(kept.schedule, ZoneInfo(kept.zone))
        return self._plain(filed.form, kept) == self._plain(own, kept)

    def _plain(self, form: schedule_parser.Form, kept: Kept) -> schedule_parser.Form:
        """Return the form in a canonical spelling, so that equal schedules compare equal."""
        zone = ZoneInfo(kept.zone)
        if form.every:
            form = msgspec.structs.replace(form, every=str(schedule_parser.span_s(form.every)))
        if form.at:
            form = msgspec.structs.replace(
                form, at=str(schedule_parser.read_when(at=form.at, now=self._clock.now(), zone=zone))
            )
        place = None if form.place is schedule_parser.Place.FRESH else form.place
        return msgspec.structs.replace(form, place=place, text=form.text.strip("\n"), cron=" ".join(form.cron.split()))

    async def _set(self, kept: Kept, filed: Filed, text: str) -> None:
        was = kept.schedule
        own = schedule_parser.write(was, ZoneInfo(kept.zone))
        reworded = (filed.form.text.strip("\n"), filed.form.gate) != (own.text, own.gate)
        by = Setting(
            id=was.id,
            name=was.name,
            owner=was.owner,
            trust=Trust.OWNER if reworded else was.trust,
            now=self._clock.now(),
            zone=self._zone,
            kind=was.kind,
            source="file",
            start=was.when.start if isinstance(was.when, Every) and filed.form.every == own.every else None,
        )
        is_over = not filed.enabled and self._plain(filed.form, kept) == self._plain(own, kept)
        schedule = was if is_over else schedule_parser.read(filed.form, by)
        changed = await self._write(
            partial(_change, kept=kept, schedule=schedule, enabled=filed.enabled, zone=self._zone)
        )
        log.info("schedule set by its file", extra={"schedule": was.id, "file": was.name})
        await self._agree(changed, text)

    async def _take_in(
        self, name: str, file: _Found, kept: list[Kept], folded: dict[str, str], problems: dict[str, str]
    ) -> None:
        """Import a file without a schedule of its name: a new schedule, or a renamed one."""
        try:
            valid_name(name, what="a schedule")
            filed = parse(file.text)
            other = next((each for each in kept if each.id == filed.id), None)
            if other is not None and other.schedule.name.casefold() in folded:
                raise Invalid(
                    "this file is a copy",
                    because=f"line 2: {other.schedule.name}.md has the same id",
                    try_this=f"give it one of its own: {self._ids.new()}",
                )
            was = other.schedule if other is not None else None
            by = Setting(
                id=filed.id,
                name=name,
                owner=was.owner if was is not None else OWNER,
                trust=Trust.OWNER,
                now=self._clock.now(),
                zone=self._zone,
                source="file",
                start=was.when.start if was is not None and isinstance(was.when, Every) else None,
            )
            schedule = schedule_parser.read(filed.form, by)
            if other is not None:
                act = partial(_change, kept=other, schedule=schedule, enabled=filed.enabled, zone=self._zone)
            else:
                act = partial(_add, schedule=schedule, enabled=filed.enabled, zone=self._zone)
            made = await self._write(act)
            log.info("schedule taken from its file", extra={"schedule": made.id, "file": name})
            await self._agree(made, file.text)
        except NoId:
            problems[name] = f"line 2: it has no id, and is left alone; this one is free: `id: {self._ids.new()}`"
        except RetinueError as error:
            problems[name] = _told(error)

    async def _remove_gone(self) -> None:
        while found := await self._store.scan(partial(schedules.gone, limit=READ_AT_ONCE_MAX)):
            for kept in found:
                await self._aside(_unlink, self._path(kept.schedule.name), kept.id)
                self._agreed.pop(kept.schedule.name, None)
                await self._write(partial(schedules.forget, id_=kept.id))

    # --- disk and store ---

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.md"

    def _read_all(self) -> dict[str, _Found]:
        """Read every file, by schedule name. Links and files that are too large are ignored."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found: dict[str, _Found] = {}
        for path in sorted(self._folder.glob("*.md"))[:FILES_MAX]:
            try:
                with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                    status = os.fstat(file.fileno())
                    data = file.read(FILE_BYTES_MAX + 1)
            except OSError:
                continue
            if len(data) <= FILE_BYTES_MAX:
                found[path.stem] = _Found(data.decode(errors="replace"), status.st_mtime_ns // 1_000_000)
        return found

    def _ids_in(self, found: dict[str, _Found]) -> set[ScheduleId]:
        """Return the ids in all files, whatever their names: a renamed file is not a removed one."""
        ids: set[ScheduleId] = set()
        for file in found.values():
            try:
                ids.add(parse(file.text).id)
            except (NoId, RetinueError):
                continue
        return ids

    async def _write_file(self, kept: Kept) -> None:
        schedule = kept.schedule
        owner = "" if schedule.owner == OWNER else str(schedule.owner)
        form = schedule_parser.write(schedule, ZoneInfo(kept.zone))
        text = render(schedule.id, form, enabled=kept.enabled, owner=owner)
        await self._aside(_put, self._path(schedule.name), text, self._clock.now())
        await self._agree(kept, text)

    async def _agree(self, kept: Kept, text: str) -> None:
        if not kept.filed:
            await self._write(partial(_mark, kept=kept))
        self._agreed[kept.schedule.name] = _Agreed(text, kept.updated_ms)

    async def _all_kept(self) -> list[Kept]:
        kept: list[Kept] = []
        after = ""
        while True:
            body = partial(schedules.everyone, after=after, limit=READ_AT_ONCE_MAX)
            rows = await self._store.scan(body)
            kept += [each for each in rows if each.schedule.name and each.schedule.kind is Kind.SCHEDULE]
            if len(rows) < READ_AT_ONCE_MAX:
                return kept
            after = rows[-1].id

    async def _write(self, act: Any) -> Any:
        now_ms = to_ms(self._clock.now())

        def body(conn: sa.Connection) -> Any:
            page = Page(conn, now_ms)
            done = act(page)
            page.close()
            return done

        return await self._store.write(body, point="schedule")

    def _tell(self, problems: dict[str, str]) -> None:
        for name, why in problems.items():
            if self._problems.get(name) != why:
                log.warning("file of a schedule not read", extra={"file": f"{FOLDER}/{name}.md", "because": why})
        self._problems = dict(list(problems.items())[:PROBLEMS_MAX])


def _add(page: Page, *, schedule: Schedule, enabled: bool, zone: ZoneInfo) -> Kept:
    _check_agent(page, schedule)
    kept = schedules.add(page, schedule, zone=zone, enabled=enabled, because="" if enabled else "so says its file")
    return schedules.mark_filed(page, kept.id)


def _change(page: Page, *, kept: Kept, schedule: Schedule, enabled: bool, zone: ZoneInfo) -> Kept:
    _check_agent(page, schedule)
    changed = schedules.change(page, kept, schedule, zone=zone, because="its file was changed")
    if enabled and not kept.enabled:
        changed = schedules.enable(page, changed)
    elif not enabled and changed.enabled:
        changed = schedules.disable(page, changed, because="so says its file")
    return changed


def _check_agent(page: Page, schedule: Schedule) -> None:
    if schedule.to.kind is address.AddressKind.AGENT and agents.find(page.conn, schedule.to.name) is None:
        raise Invalid(
            f"there is no agent '{schedule.to.name}' in this house",
            because="no agent of that name is registered",
            code="agent.not-found",
        )


def _delete(page: Page, *, kept: Kept) -> None:
    schedules.delete(page, kept, because="its file was removed")


def _mark(page: Page, *, kept: Kept) -> None:
    schedules.mark_filed(page, kept.id)


def _put(path: Path, text: str, now: datetime) -> None:
    """Write a file atomically, with a modification time from the server's clock."""
    beside = path.with_name(f".{path.name}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.utime(beside, (now.timestamp(), now.timestamp()))
    os.replace(beside, path)


def _unlink(path: Path, id_: str) -> None:
    """Delete the file of a schedule, unless it now belongs to another schedule."""
    try:
        if parse(path.read_text(errors="replace")).id != id_:
            return
    except FileNotFoundError:
        return
    except (NoId, RetinueError):
        pass
    path.unlink(missing_ok=True)


def _told(error: RetinueError) -> str:
    return f"{error.sentence}: {error.because}" if error.because else error.sentence
