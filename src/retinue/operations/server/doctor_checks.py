"""The doctor's standard checks: store, disk, files, agents, settings, clock and versions."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.config import Fault, Settings
from retinue.config import examine as examine_settings
from retinue.config.validators import is_loopback
from retinue.domain.agent import Agent
from retinue.domain.errors import RetinueError
from retinue.domain.session import Mind
from retinue.domain.times import from_ms, to_ms
from retinue.operations.doctor_registry import Check, Found, Scene, problem, warning
from retinue.store.agents import agents as staff
from retinue.store.core import tables as t
from retinue.store.envelopes import dead_letters as store_dead_letters
from retinue.store.ledger import ledger
from retinue.store.open_store import SCHEMA, stored_revision

PYTHON_LEAST = (3, 11)
SQLITE_LEAST = (3, 35, 0)
FREE_BYTES_LEAST = 1024**3
FREE_BYTES_ALARMING = 100 * 1024**2
LOG_BYTES_MAX = 512 * 1024**2
AHEAD_S_MAX = 60
WAITS_S_MAX = 3600
DEAD_SHOWN_MAX = 50
BACKUP_DAYS_MAX = 30
NAMES_SHOWN_MAX = 10
NETWORK_DISKS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"}
)
KEYS = frozenset({"owner-token", "house.db"})
PRIVATE = (
    "owner-token",
    "house.db",
    "house.db-wal",
    "house.db-shm",
    "lock",
    "retinue.sock",
    "logs",
    "logs/retinue.log",
    "files",
    "backups",
    "agents",
)


def _few(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - NAMES_SHOWN_MAX} more" if len(every) > NAMES_SHOWN_MAX else ""
    return ", ".join(every[:NAMES_SHOWN_MAX]) + more


# --- store ---

_due = (
    sa.select(t.sessions.c.agent, sa.func.count().label("n"), sa.func.min(t.envelopes.c.due_ms).label("since"))
    .join_from(t.envelopes, t.sessions, t.sessions.c.id == t.envelopes.c.session)
    .where(
        t.envelopes.c.status == t.PENDING,
        t.envelopes.c.due_ms < sa.bindparam("before"),
        t.envelopes.c.silent == sa.false(),
        ~sa.exists().where(t.runs.c.session == t.sessions.c.id, t.runs.c.status.in_(t.OPEN_RUN)),
    )
    .group_by(t.sessions.c.agent)
)
_latest = sa.select(t.house.c.latest_ms)


class StoreFacts(Struct, frozen=True, kw_only=True):
    dialect: str
    revision: str | None
    file: Path | None
    log_bytes: int
    house_ms: int
    now_ms: int
    staff: tuple[Agent, ...]
    waiting: tuple[tuple[str, int, int], ...]  # agent, count, oldest due time
    dead: int


class DeepFacts(Struct, frozen=True, kw_only=True):
    """Facts that take reading the whole store."""

    integrity: tuple[str, ...]
    strays: int  # rows with a dangling foreign key
    ledger: ledger.Ledger


async def store_facts(scene: Scene) -> StoreFacts | None:
    if scene.store is None:
        if scene.trouble is not None:
            raise scene.trouble
        return None
    return await scene.store.scan(partial(_look, now_ms=to_ms(scene.now)))


def _look(conn: sa.Connection, *, now_ms: int) -> StoreFacts:
    file = _file(conn)
    log = Path(f"{file}-wal") if file else None
    house_ms: int = conn.execute(_latest).scalar_one()
    due = conn.execute(_due, {"before": max(now_ms, house_ms) - WAITS_S_MAX * 1000})
    return StoreFacts(
        dialect=conn.dialect.name,
        revision=stored_revision(conn),
        file=file,
        log_bytes=log.stat().st_size if log is not None and log.exists() else 0,
        house_ms=house_ms,
        now_ms=now_ms,
        staff=tuple(staff.everyone(conn)),
        waiting=tuple((row.agent, row.n, row.since) for row in due),
        dead=sum(letter.retry is None for letter in store_dead_letters.dead(conn, limit=DEAD_SHOWN_MAX)),
    )


def _file(conn: sa.Connection) -> Path | None:
    if conn.dialect.name != "sqlite":
        return None
    raw: Any = conn.connection.dbapi_connection
    return next((Path(file) for _, name, file in raw.execute("PRAGMA database_list") if name == "main" and file), None)


async def deep_facts(scene: Scene) -> DeepFacts | None:
    if scene.store is None or scene.quick:
        return None
    return await scene.store.scan(partial(_look_deep, now_ms=to_ms(scene.now)))


def _look_deep(conn: sa.Connection, *, now_ms: int) -> DeepFacts:
    integrity: tuple[str, ...] = ()
    strays = 0
    if conn.dialect.name == "sqlite":
        raw: Any = conn.connection.dbapi_connection
        integrity = tuple(row[0] for row in raw.execute("PRAGMA integrity_check(5)") if row[0] != "ok")
        strays = len(raw.execute("PRAGMA foreign_key_check").fetchmany(100))
    return DeepFacts(integrity=integrity, strays=strays, ledger=ledger.check(conn, now_ms=now_ms))


def schema(facts: StoreFacts) -> Iterable[Found]:
    if facts.revision != SCHEMA.head:
        yield problem(
            f"the store's schema is {facts.revision}",
            because=f"this version works with {SCHEMA.head}",
            try_this="open the house once with `retinue up`: that brings it up to date",
        )


def integrity(facts: DeepFacts) -> Iterable[Found]:
    if facts.integrity:
        yield problem(
            "the store's file is damaged",
            because="; ".join(facts.integrity),
            try_this="stop the house, set the file aside together with its -wal and restore the latest backup",
        )
    if facts.strays:
        yield problem(
            "rows of the store point to others that are not there",
            because=f"{facts.strays} such rows were found",
            try_this="keep a copy of the house before anything else, and report it",
        )


def sums(facts: DeepFacts) -> Iterable[Found]:
    broken = [name for name in facts.ledger.broken if name != "readable"]
    if broken:
        yield problem(
            f"the ledger does not hold: {', '.join(broken)}",
            because="sums over the store do not come out",
            try_this="`retinue ledger` names what does not fit; keep a copy of the house, and report it",
        )


def damaged_records(facts: DeepFacts) -> Iterable[Found]:
    [readable] = [each for each in facts.ledger.equations if each.name == "readable"]
    if not readable.ok:
        sessions = {finding.id[:8] for finding in readable.findings}
        yield problem(
            f"{readable.count:,} records cannot be read back",
            because=f"they were damaged in session {_few(sessions)}; agents are told of the gap",
            try_this="reset those sessions, or restore a backup from before the damage",
        )


def clock(facts: StoreFacts) -> Iterable[Found]:
    ahead_s = (facts.house_ms - facts.now_ms) / 1000
    if ahead_s > AHEAD_S_MAX:
        yield problem(
            f"the house's time is {ahead_s:,.0f} s ahead of this machine's clock",
            because=f"its time never goes back; its last page bears {from_ms(facts.house_ms):%Y-%m-%d %H:%M} UTC",
            try_this="set the machine's clock by the network; the house goes on when the clock has caught up",
        )


def log_size(facts: StoreFacts) -> Iterable[Found]:
    if facts.log_bytes > LOG_BYTES_MAX:
        yield warning(
            f"the store's write-ahead log has {facts.log_bytes:,} bytes",
            because="something has been reading an old picture of the store for long",
            try_this="end exports or programs that hold the file open; stopping the house empties the log",
        )


def waiting(facts: StoreFacts) -> Iterable[Found]:
    for name, count, since in facts.waiting:
        yield problem(
            f"{count} letters for {name} wait, and nobody reads them",
            because=f"the oldest has been due since {from_ms(since):%Y-%m-%d %H:%M} UTC, and no run is open",
            try_this="open the house; if it is open, `retinue why ID` of one of them says what it waits for",
        )


def dead_letters(facts: StoreFacts) -> Iterable[Found]:
    if facts.dead:
        many = f"{facts.dead} or more" if facts.dead >= DEAD_SHOWN_MAX else str(facts.dead)
        yield warning(
            f"{many} letters ended without an answer",
            because="they were interrupted, or failed too often, and nobody has tried them again",
            try_this="`retinue dead` lists them, `retinue retry ID` tries one again",
        )


# --- agents ---


class StaffFacts(Struct, frozen=True, kw_only=True):
    staff: tuple[Agent, ...]
    homes: frozenset[str]
    wrong: Mapping[str, str]  # by agent: why its model cannot be used
    runners: frozenset[str] | None
    retired: Mapping[str, str] = {}  # by agent: its retired models and their replacements


async def staff_facts(scene: Scene) -> StaffFacts | None:
    if scene.store is None:
        return None
    found = await scene.store.scan(lambda conn: tuple(staff.everyone(conn)))
    folder = scene.home / "agents"
    homes = await asyncio.to_thread(
        lambda: (
            frozenset(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else frozenset[str]()
        )
    )
    wrong = {agent.name: why for agent in found if agent.runner == "loop" and (why := _wrong_model(scene, agent))}
    retired = {
        agent.name: ends for agent in found if agent.runner == "loop" and (ends := _retired_models(scene, agent))
    }
    return StaffFacts(staff=found, homes=homes, wrong=wrong, retired=retired, runners=scene.runners)


def _wrong_model(scene: Scene, agent: Agent) -> str:
    if scene.catalog is None:
        return ""
    try:
        first = scene.catalog.links(agent=agent, mind=Mind())[0].ref
    except RetinueError as error:
        return f"{error.sentence}: {error.because}" if error.because else error.sentence
    return "" if scene.catalog.has_key(first.provider) else scene.catalog.missing_key(first.provider)


def _retired_models(scene: Scene, agent: Agent) -> str:
    catalog = scene.catalog
    if catalog is None:
        return ""
    try:
        refs = [link.ref for link in catalog.links(agent=agent, mind=Mind())]
    except RetinueError:
        return ""  # another check reports it
    return "; ".join(f"{ref} {ends}" for ref in refs if (ends := catalog.retired(ref)))


def retired_models(facts: StaffFacts) -> Iterable[Found]:
    for agent in facts.staff:
        if ends := facts.retired.get(agent.name):
            yield warning(
                f"{agent.name} asks a model that its provider retires",
                because=ends,
                try_this=f"retinue agent set {agent.name} --model NAME, or set `models.default`",
            )


def unable(facts: StaffFacts) -> Iterable[Found]:
    """Report agents that cannot take a turn.

    Without a running server the runners are unknown, and nothing is reported about them.
    """
    for agent in facts.staff:
        if facts.runners is not None and agent.runner not in facts.runners:
            yield problem(
                f"{agent.name} cannot work: its runner is '{agent.runner}'",
                because=f"this house has {_few(facts.runners)}",
                try_this=f"retinue agent set {agent.name} --runner NAME",
            )
        elif why := facts.wrong.get(agent.name):
            yield problem(
                f"{agent.name} cannot work: its model is '{agent.model or 'as the house has it'}'",
                because=why,
                try_this=f"look at `retinue models`, or retinue agent set {agent.name} --model NAME",
            )


def orphaned_homes(facts: StaffFacts) -> Iterable[Found]:
    orphans = {home for home in facts.homes if home.casefold() not in {agent.name.casefold() for agent in facts.staff}}
    if orphans:
        yield warning(
            f"homes without an agent: {_few(orphans)}",
            because="their agents were let go, or the folders were put there by hand",
            try_this="look into them, and remove what nobody wants",
        )


# --- disk and files ---


class Private(Struct, frozen=True, kw_only=True):
    """A file or folder that only the owner may read."""

    path: Path
    mode: int
    uid: int
    is_link: bool = False


class DiskFacts(Struct, frozen=True, kw_only=True):
    home: Path
    uid: int
    private: tuple[Private, ...]
    free_bytes: int
    file_system: str
    logs_writable: bool | None  # None: no log folder yet
    newest_backup_ms: int | None
    holds_a_house: bool
    now_ms: int
    restore_under_way: str


async def disk_facts(scene: Scene) -> DiskFacts | None:
    return await asyncio.to_thread(_look_at_disk, scene.home, to_ms(scene.now)) if scene.home.is_dir() else None


def _look_at_disk(home: Path, now_ms: int) -> DiskFacts:
    from retinue.store.maintenance.backup import UNDER_WAY

    paths = [home, *(home / name for name in PRIVATE)]
    if (home / "socket").is_file():
        paths.append(Path((home / "socket").read_text().strip()))
    logs = home / "logs"
    marker = home / UNDER_WAY
    return DiskFacts(
        home=home,
        uid=os.getuid(),
        private=tuple(private for path in dict.fromkeys(paths) if (private := _private(path)) is not None),
        free_bytes=shutil.disk_usage(home).free,
        file_system=file_system(home, _mounts()),
        logs_writable=os.access(logs, os.W_OK | os.X_OK) if logs.exists() else None,
        newest_backup_ms=_newest_backup(home / "backups"),
        holds_a_house=(home / "house.db").exists(),
        now_ms=now_ms,
        restore_under_way=marker.read_text(errors="replace") if marker.is_file() else "",
    )


def _private(path: Path) -> Private | None:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            target = path.stat()
            return Private(path=path, mode=stat.S_IMODE(target.st_mode), uid=target.st_uid, is_link=True)
    except OSError:
        return None
    return Private(path=path, mode=stat.S_IMODE(found.st_mode), uid=found.st_uid)


def _newest_backup(folder: Path) -> int | None:
    made = [int(each.stat().st_mtime * 1000) for each in folder.glob("*/manifest.json")] if folder.is_dir() else []
    return max(made, default=None)


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:  # not Linux
        return ""


def file_system(path: Path, mounts: str) -> str:
    """Return the file system type of a path, by its longest mount point; empty if unknown."""
    best, kind = "", ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        place = words[1].replace("\\040", " ")
        if len(place) >= len(best) and path.resolve().is_relative_to(place):
            best, kind = place, words[2]
    return kind


def permissions(facts: DiskFacts) -> Iterable[Found]:
    """Report files that others can access.

    Inside a private data directory only the key files must be private themselves. Otherwise every
    file must.
    """
    closed = all(not each.mode & 0o077 for each in facts.private if each.path == facts.home)
    for each in facts.private:
        if closed and each.path.is_relative_to(facts.home) and each.path.name not in KEYS:
            continue
        if each.uid != facts.uid:
            yield problem(
                f"{each.path} belongs to someone else",
                because=f"its owner is user {each.uid}, and the house is looked at by user {facts.uid}",
                try_this=f"chown {facts.uid} {each.path}, once you know how that came about",
            )
        elif each.mode & 0o077:
            yield problem(
                f"others than you can reach {each.path}",
                because=f"its permissions are {each.mode:04o}",
                try_this=f"chmod go= {each.path}",
            )


def disk_space(facts: DiskFacts) -> Iterable[Found]:
    if facts.free_bytes < FREE_BYTES_LEAST:
        tell = problem if facts.free_bytes < FREE_BYTES_ALARMING else warning
        yield tell(
            f"{facts.free_bytes // 1024**2:,} MiB are free on the disk of the house",
            because="a house that cannot write accepts nothing more",
            try_this="free some space; `retinue house purge` says what of the house's own could go",
        )


def network_disk(facts: DiskFacts) -> Iterable[Found]:
    if facts.file_system in NETWORK_DISKS:
        yield problem(
            f"the house lies on a network disk ({facts.file_system})",
            because="such disks lose locks and commits that SQLite believes to be kept",
            try_this="move RETINUE_HOME to a disk of this machine, or the store to PostgreSQL",
        )


def log_folder(facts: DiskFacts) -> Iterable[Found]:
    if facts.logs_writable is False:
        yield warning(
            f"{facts.home / 'logs'} cannot be written",
            because="it is not ours, or no folder",
            try_this=f"remove {facts.home / 'logs'}, or give it back to you",
        )


def backups(facts: DiskFacts) -> Iterable[Found]:
    if facts.restore_under_way:
        yield problem(
            "a restore was begun and not finished",
            because=f"what was there before lies in {facts.restore_under_way}",
            try_this="restore the backup once more; a store and what belongs to it may not fit each other",
        )
    if not facts.holds_a_house:
        return
    if facts.newest_backup_ms is None:
        yield warning(
            "there is no backup here",
            because=f"{facts.home / 'backups'} holds none; one that was written elsewhere is not known",
            try_this="retinue backup",
        )
    elif facts.now_ms - facts.newest_backup_ms > BACKUP_DAYS_MAX * 86_400_000:
        yield warning(
            f"the newest backup here is {(facts.now_ms - facts.newest_backup_ms) // 86_400_000} days old",
            because=f"it is over {BACKUP_DAYS_MAX} days",
            try_this="retinue backup",
        )


# --- settings ---


class SettingFacts(Struct, frozen=True, kw_only=True):
    faults: tuple[Fault, ...]
    settings: Settings


async def setting_facts(scene: Scene) -> SettingFacts:
    examined = await asyncio.to_thread(examine_settings, scene.environment)
    return SettingFacts(faults=examined.faults, settings=examined.configuration.settings)


def settings(facts: SettingFacts) -> Iterable[Found]:
    for fault in facts.faults:
        yield problem(
            fault.sentence,
            because=f"{fault.because} ({fault.place})" if fault.because else str(fault.place),
            try_this=fault.try_this or "correct it; the house does not open before that",
        )


def exposure(facts: SettingFacts) -> Iterable[Found]:
    listen = facts.settings.listen
    if listen.enabled and not is_loopback(listen.host):
        yield warning(
            f"the house listens on {listen.host}, beyond this machine",
            because="house.listen.host says so",
            try_this='host = "127.0.0.1", unless a proxy on another machine needs it',
        )


def confined(facts: SettingFacts) -> Iterable[Found]:
    sandbox = facts.settings.sandbox
    off = [
        f'`sandbox.{name} = "off"`'
        for name, value in (("kind", sandbox.kind), ("mode", sandbox.mode))
        if value == "off"
    ]
    if off:
        yield warning(
            "commands of agents run without a sandbox",
            because=" and ".join(off),
            try_this='kind = "bubblewrap" and mode = "all" under [sandbox]; `retinue doctor --security` says more',
        )


# --- versions ---


class MachineFacts(Struct, frozen=True, kw_only=True):
    python: tuple[int, int]
    sqlite: tuple[int, int, int]


async def machine_facts(scene: Scene) -> MachineFacts:
    return MachineFacts(python=sys.version_info[:2], sqlite=sqlite3.sqlite_version_info)


def machine(facts: MachineFacts) -> Iterable[Found]:
    for name, found, least in (("Python", facts.python, PYTHON_LEAST), ("SQLite", facts.sqlite, SQLITE_LEAST)):
        if found < least:
            yield problem(
                f"{name} {'.'.join(map(str, found))} is too old",
                because=f"retinue needs {'.'.join(map(str, least))} or newer",
                try_this=f"run it with a newer {name}",
            )


EVERY_HOUSE: tuple[Check[Any], ...] = (
    Check(name="settings", looks_at="the settings can be used", gather=setting_facts, judge=settings),
    Check(name="exposure", looks_at="only this machine can reach it", gather=setting_facts, judge=exposure),
    Check(name="sandbox", looks_at="commands of agents are confined", gather=setting_facts, judge=confined),
    Check(name="machine", looks_at="Python and SQLite are new enough", gather=machine_facts, judge=machine),
    Check(name="permissions", looks_at="what is the owner's alone is so", gather=disk_facts, judge=permissions),
    Check(name="disk", looks_at="there is room on the disk", gather=disk_facts, judge=disk_space),
    Check(name="place", looks_at="it lies on a disk of this machine", gather=disk_facts, judge=network_disk),
    Check(name="logs", looks_at="the log can be written", gather=disk_facts, judge=log_folder),
    Check(name="backups", looks_at="there is a backup, and it is not old", gather=disk_facts, judge=backups),
    Check(name="schema", looks_at="the store's tables are current", gather=store_facts, judge=schema),
    Check(name="clock", looks_at="its time is not ahead of the clock", gather=store_facts, judge=clock),
    Check(name="log-size", looks_at="the write-ahead log is small", gather=store_facts, judge=log_size),
    Check(name="waiting", looks_at="no mail waits without a reader", gather=store_facts, judge=waiting),
    Check(name="dead", looks_at="no dead letters wait", gather=store_facts, judge=dead_letters),
    Check(name="staff", looks_at="every agent has its runner and model", gather=staff_facts, judge=unable),
    Check(name="models", looks_at="no agent asks a model that ends", gather=staff_facts, judge=retired_models),
    Check(name="homes", looks_at="every home has its agent", gather=staff_facts, judge=orphaned_homes),
    Check(name="integrity", looks_at="the store's file is sound", gather=deep_facts, judge=integrity),
    Check(name="ledger", looks_at="the ledger holds", gather=deep_facts, judge=sums),
    Check(name="records", looks_at="every record can be read", gather=deep_facts, judge=damaged_records),
)
