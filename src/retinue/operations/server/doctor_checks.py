"""The standard checks of `retinue doctor`: store, disk, files, agents, settings, clock and versions."""

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

from retinue.config import SettingFault, Settings
from retinue.config import examine_configuration as examine_settings
from retinue.config.validators import is_loopback
from retinue.domain.agent import Agent
from retinue.domain.errors import RetinueError
from retinue.domain.session import SessionOptions
from retinue.domain.times import from_ms, to_ms
from retinue.operations.doctor_registry import DoctorCheck, DoctorContext, DoctorFinding, build_problem, build_warning
from retinue.store.agents import agents as store_agents
from retinue.store.core import tables as t
from retinue.store.core.database_rename import FORMER_NAME, STORE_NAME
from retinue.store.envelopes import dead_letters as store_dead_letters
from retinue.store.ledger import ledger
from retinue.store.open_store import SCHEMA, stored_revision
from retinue.text.quantity import format_quantity

PYTHON_VERSION_MIN = (3, 11)
SQLITE_VERSION_MIN = (3, 35, 0)
FREE_BYTES_MIN = 1024**3
FREE_BYTES_CRITICAL = 100 * 1024**2
WAL_BYTES_MAX = 512 * 1024**2
CLOCK_AHEAD_S_MAX = 60
WAITING_S_MAX = 3600
DEAD_LETTERS_COUNTED_MAX = 50
BACKUP_AGE_DAYS_MAX = 30
NAMES_LISTED_MAX = 10
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs"}
    | {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"}
)
KEY_FILES = frozenset({"owner-token", STORE_NAME, FORMER_NAME})
PRIVATE_PATHS = (
    "owner-token",
    *(f"{name}{suffix}" for name in (STORE_NAME, FORMER_NAME) for suffix in ("", "-wal", "-shm")),
    "lock",
    "retinue.sock",
    "logs",
    "logs/retinue.log",
    "files",
    "backups",
    "agents",
)


def _join_names(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - NAMES_LISTED_MAX} more" if len(every) > NAMES_LISTED_MAX else ""
    return ", ".join(every[:NAMES_LISTED_MAX]) + more


# --- store ---

_select_due = (
    sa.select(t.sessions.c.agent, sa.func.count().label("n"), sa.func.min(t.envelopes.c.due_ms).label("since"))
    .join_from(t.envelopes, t.sessions, t.sessions.c.id == t.envelopes.c.session)
    .where(
        t.envelopes.c.status == t.PENDING,
        t.envelopes.c.due_ms < sa.bindparam("before"),
        t.envelopes.c.silent == sa.false(),
        ~sa.exists().where(t.runs.c.session == t.sessions.c.id, t.runs.c.status.in_(t.OPEN_RUN_STATUSES)),
    )
    .group_by(t.sessions.c.agent)
)
_select_latest_ms = sa.select(t.counters.c.latest_ms)


class StoreFacts(Struct, frozen=True, kw_only=True):
    dialect: str
    revision: str | None
    file: Path | None
    wal_bytes: int
    latest_ms: int
    now_ms: int
    agents: tuple[Agent, ...]
    waiting: tuple[tuple[str, int, int], ...]  # agent, count, oldest due time
    dead_letters: int


class IntegrityFacts(Struct, frozen=True, kw_only=True):
    """Facts that require reading the whole store."""

    integrity: tuple[str, ...]
    dangling_rows: int  # rows with a dangling foreign key
    ledger: ledger.LedgerReport


async def gather_store_facts(context: DoctorContext) -> StoreFacts | None:
    if context.store is None:
        if context.store_error is not None:
            raise context.store_error
        return None
    return await context.store.scan(partial(_read_store_facts, now_ms=to_ms(context.now)))


def _read_store_facts(conn: sa.Connection, *, now_ms: int) -> StoreFacts:
    file = _database_file(conn)
    log = Path(f"{file}-wal") if file else None
    server_ms: int = conn.execute(_select_latest_ms).scalar_one()
    due = conn.execute(_select_due, {"before": max(now_ms, server_ms) - WAITING_S_MAX * 1000})
    return StoreFacts(
        dialect=conn.dialect.name,
        revision=stored_revision(conn),
        file=file,
        wal_bytes=log.stat().st_size if log is not None and log.exists() else 0,
        latest_ms=server_ms,
        now_ms=now_ms,
        agents=tuple(store_agents.list_all(conn)),
        waiting=tuple((row.agent, row.n, row.since) for row in due),
        dead_letters=sum(
            dead_letter.retry is None
            for dead_letter in store_dead_letters.load_dead_letters(conn, limit=DEAD_LETTERS_COUNTED_MAX)
        ),
    )


def _database_file(conn: sa.Connection) -> Path | None:
    if conn.dialect.name != "sqlite":
        return None
    raw: Any = conn.connection.dbapi_connection
    return next((Path(file) for _, name, file in raw.execute("PRAGMA database_list") if name == "main" and file), None)


async def gather_integrity_facts(context: DoctorContext) -> IntegrityFacts | None:
    if context.store is None or context.is_quick:
        return None
    return await context.store.scan(partial(_read_integrity_facts, now_ms=to_ms(context.now)))


def _read_integrity_facts(conn: sa.Connection, *, now_ms: int) -> IntegrityFacts:
    integrity: tuple[str, ...] = ()
    strays = 0
    if conn.dialect.name == "sqlite":
        raw: Any = conn.connection.dbapi_connection
        integrity = tuple(row[0] for row in raw.execute("PRAGMA integrity_check(5)") if row[0] != "ok")
        strays = len(raw.execute("PRAGMA foreign_key_check").fetchmany(100))
    return IntegrityFacts(integrity=integrity, dangling_rows=strays, ledger=ledger.check_ledger(conn, now_ms=now_ms))


def check_schema(facts: StoreFacts) -> Iterable[DoctorFinding]:
    if facts.revision != SCHEMA.head:
        yield build_problem(
            f"the database schema is {facts.revision}",
            because=f"this version of retinue needs {SCHEMA.head}",
            try_this="start the server once to migrate it: retinue up",
        )


def check_integrity(facts: IntegrityFacts) -> Iterable[DoctorFinding]:
    if facts.integrity:
        yield build_problem(
            "the database file is damaged",
            because="; ".join(facts.integrity),
            try_this="stop the server, move the file and its -wal away, and restore the latest backup",
        )
    if facts.dangling_rows:
        yield build_problem(
            "the database has rows with dangling foreign keys",
            because=f"{format_quantity(facts.dangling_rows, 'row')} with a reference to a row that does not exist",
            try_this="copy the data directory first, then report it",
        )


def check_ledger(facts: IntegrityFacts) -> Iterable[DoctorFinding]:
    broken = [name for name in facts.ledger.broken_equations if name != "readable"]
    if broken:
        yield build_problem(
            f"the ledger is inconsistent: {', '.join(broken)}",
            because="these equations do not hold in the database",
            try_this="copy the data directory, then report the output of `retinue ledger`",
        )


def check_records(facts: IntegrityFacts) -> Iterable[DoctorFinding]:
    [readable] = [each for each in facts.ledger.equations if each.name == "readable"]
    if not readable.is_ok:
        sessions = {finding.id[:8] for finding in readable.findings}
        yield build_problem(
            f"{format_quantity(readable.count, 'record')} cannot be read",
            because=f"the damage is in session {_join_names(sessions)}; agents see a note in place of such a record",
            try_this="reset those sessions, or restore a backup from before the damage",
        )


def check_clock(facts: StoreFacts) -> Iterable[DoctorFinding]:
    ahead_s = (facts.latest_ms - facts.now_ms) / 1000
    if ahead_s > CLOCK_AHEAD_S_MAX:
        yield build_problem(
            f"the server's time is {ahead_s:,.0f} s ahead of this machine's clock",
            because=f"the server's time never goes back; its last commit is from "
            f"{from_ms(facts.latest_ms):%Y-%m-%d %H:%M} UTC",
            try_this="synchronize the machine's clock; the server continues when the clock has caught up",
        )


def check_wal_size(facts: StoreFacts) -> Iterable[DoctorFinding]:
    if facts.wal_bytes > WAL_BYTES_MAX:
        yield build_warning(
            f"the database's write-ahead log is {facts.wal_bytes:,} bytes",
            because="a reader has kept an old snapshot open for a long time",
            try_this="stop exports and programs that have the file open; stopping the server empties the log",
        )


def check_waiting_envelopes(facts: StoreFacts) -> Iterable[DoctorFinding]:
    for name, count, since in facts.waiting:
        yield build_problem(
            f"no run is open for {format_quantity(count, 'waiting envelope')} to {name}",
            because=f"the oldest has been due since {from_ms(since):%Y-%m-%d %H:%M} UTC",
            try_this="start the server; if it is running, `retinue why ID` explains what an envelope is waiting for",
        )


def check_dead_letters(facts: StoreFacts) -> Iterable[DoctorFinding]:
    if facts.dead_letters:
        are_all_counted = facts.dead_letters < DEAD_LETTERS_COUNTED_MAX
        yield build_warning(
            format_quantity(facts.dead_letters, "dead letter")
            if are_all_counted
            else f"{facts.dead_letters} or more dead letters",
            because="a dead letter is an envelope that failed for good and has not been retried",
            try_this="list them with `retinue dead`, and retry one with `retinue retry ID`",
        )


# --- agents ---


class AgentFacts(Struct, frozen=True, kw_only=True):
    agents: tuple[Agent, ...]
    directories: frozenset[str]
    model_errors: Mapping[str, str]  # by agent: why its model cannot be used
    runners: frozenset[str] | None
    retired_models: Mapping[str, str] = {}  # by agent: its retired models and their replacements


async def gather_agent_facts(context: DoctorContext) -> AgentFacts | None:
    if context.store is None:
        return None
    found = await context.store.scan(lambda conn: tuple(store_agents.list_all(conn)))
    folder = context.data_dir / "agents"
    homes = await asyncio.to_thread(
        lambda: (
            frozenset(each.name for each in folder.iterdir() if each.is_dir()) if folder.is_dir() else frozenset[str]()
        )
    )
    wrong = {
        agent.name: why for agent in found if agent.runner == "loop" and (why := _find_model_error(context, agent))
    }
    retired = {
        agent.name: ends for agent in found if agent.runner == "loop" and (ends := _find_retired_models(context, agent))
    }
    return AgentFacts(
        agents=found, directories=homes, model_errors=wrong, retired_models=retired, runners=context.runners
    )


def _find_model_error(context: DoctorContext, agent: Agent) -> str:
    if context.catalog is None:
        return ""
    try:
        first = context.catalog.build_chain_links(agent=agent, session_options=SessionOptions())[0].ref
    except RetinueError as error:
        return f"{error.sentence}: {error.because}" if error.because else error.sentence
    return "" if context.catalog.has_key(first.provider) else context.catalog.explain_missing_key(first.provider)


def _find_retired_models(context: DoctorContext, agent: Agent) -> str:
    catalog = context.catalog
    if catalog is None:
        return ""
    try:
        refs = [link.ref for link in catalog.build_chain_links(agent=agent, session_options=SessionOptions())]
    except RetinueError:
        return ""  # another check reports it
    return "; ".join(f"{ref} {ends}" for ref in refs if (ends := catalog.describe_retirement(ref)))


def check_retired_models(facts: AgentFacts) -> Iterable[DoctorFinding]:
    for agent in facts.agents:
        if ends := facts.retired_models.get(agent.name):
            yield build_warning(
                f"{agent.name} uses a model that its provider is retiring",
                because=ends,
                try_this=f"retinue agent set {agent.name} --model NAME, or set `models.default`",
            )


def check_agents_usable(facts: AgentFacts) -> Iterable[DoctorFinding]:
    """Yield a finding for each agent whose runner or model cannot be used.

    Without a running server, the available runners are unknown, so runners are not checked.
    """
    for agent in facts.agents:
        if facts.runners is not None and agent.runner not in facts.runners:
            yield build_problem(
                f"{agent.name} cannot work: its runner is '{agent.runner}'",
                because=f"the runners of this server are {_join_names(facts.runners)}",
                try_this=f"retinue agent set {agent.name} --runner NAME",
            )
        elif why := facts.model_errors.get(agent.name):
            yield build_problem(
                f"{agent.name} cannot work: its model is '{agent.model or 'the default'}'",
                because=why,
                try_this=f"see `retinue models`, or: retinue agent set {agent.name} --model NAME",
            )


def check_agent_directories(facts: AgentFacts) -> Iterable[DoctorFinding]:
    orphans = {
        home for home in facts.directories if home.casefold() not in {agent.name.casefold() for agent in facts.agents}
    }
    if orphans:
        yield build_warning(
            f"agent directories without an agent: {_join_names(orphans)}",
            because="their agents were removed, or the folders were created by hand",
            try_this="check their content, and delete those that you do not need",
        )


# --- disk and files ---


class PrivatePath(Struct, frozen=True, kw_only=True):
    """A file or folder that only the owner may read."""

    path: Path
    mode: int
    uid: int
    is_link: bool = False


class DiskFacts(Struct, frozen=True, kw_only=True):
    data_dir: Path
    uid: int
    private_paths: tuple[PrivatePath, ...]
    free_bytes: int
    file_system: str
    are_logs_writable: bool | None  # None if there is no log folder yet
    newest_backup_ms: int | None
    has_database: bool
    now_ms: int
    restore_in_progress: str


async def gather_disk_facts(context: DoctorContext) -> DiskFacts | None:
    return (
        await asyncio.to_thread(_read_disk_facts, context.data_dir, to_ms(context.now))
        if context.data_dir.is_dir()
        else None
    )


def _read_disk_facts(data_dir: Path, now_ms: int) -> DiskFacts:
    from retinue.store.maintenance.backup import FORMER_RESTORE_MARKER, RESTORE_MARKER

    paths = [data_dir, *(data_dir / name for name in PRIVATE_PATHS)]
    if (data_dir / "socket").is_file():
        paths.append(Path((data_dir / "socket").read_text().strip()))
    logs = data_dir / "logs"
    marker = data_dir / (FORMER_RESTORE_MARKER if (data_dir / FORMER_RESTORE_MARKER).exists() else RESTORE_MARKER)
    return DiskFacts(
        data_dir=data_dir,
        uid=os.getuid(),
        private_paths=tuple(
            private for path in dict.fromkeys(paths) if (private := _read_private_path(path)) is not None
        ),
        free_bytes=shutil.disk_usage(data_dir).free,
        file_system=find_file_system(data_dir, _read_mounts()),
        are_logs_writable=os.access(logs, os.W_OK | os.X_OK) if logs.exists() else None,
        newest_backup_ms=_newest_backup_ms(data_dir / "backups"),
        has_database=any((data_dir / name).exists() for name in (STORE_NAME, FORMER_NAME)),
        now_ms=now_ms,
        restore_in_progress=marker.read_text(errors="replace") if marker.is_file() else "",
    )


def _read_private_path(path: Path) -> PrivatePath | None:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            target = path.stat()
            return PrivatePath(path=path, mode=stat.S_IMODE(target.st_mode), uid=target.st_uid, is_link=True)
    except OSError:
        return None
    return PrivatePath(path=path, mode=stat.S_IMODE(found.st_mode), uid=found.st_uid)


def _newest_backup_ms(folder: Path) -> int | None:
    made = [int(each.stat().st_mtime * 1000) for each in folder.glob("*/manifest.json")] if folder.is_dir() else []
    return max(made, default=None)


def _read_mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:  # not Linux
        return ""


def find_file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system that contains a path, or "" if it is unknown."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        place = fields[1].replace("\\040", " ")
        if len(place) >= len(best) and path.resolve().is_relative_to(place):
            best, kind = place, fields[2]
    return kind


def check_permissions(facts: DiskFacts) -> Iterable[DoctorFinding]:
    """Yield a finding for each private file that other users can access.

    If the data directory itself is private, only the key files inside it are checked. Otherwise every
    file is checked.
    """
    closed = all(not each.mode & 0o077 for each in facts.private_paths if each.path == facts.data_dir)
    for each in facts.private_paths:
        if closed and each.path.is_relative_to(facts.data_dir) and each.path.name not in KEY_FILES:
            continue
        if each.uid != facts.uid:
            yield build_problem(
                f"{each.path} belongs to another user",
                because=f"its owner is user {each.uid}, and this check runs as user {facts.uid}",
                try_this=f"find out why, then: chown {facts.uid} {each.path}",
            )
        elif each.mode & 0o077:
            yield build_problem(
                f"other users can access {each.path}",
                because=f"its permissions are {each.mode:04o}",
                try_this=f"chmod go= {each.path}",
            )


def check_disk_space(facts: DiskFacts) -> Iterable[DoctorFinding]:
    if facts.free_bytes < FREE_BYTES_MIN:
        tell = build_problem if facts.free_bytes < FREE_BYTES_CRITICAL else build_warning
        yield tell(
            f"{facts.free_bytes // 1024**2:,} MiB are free on the disk of the data directory",
            because="a server that cannot write accepts no messages",
            try_this="free some space; `retinue server purge` shows what could be deleted",
        )


def check_network_disk(facts: DiskFacts) -> Iterable[DoctorFinding]:
    if facts.file_system in NETWORK_FILE_SYSTEMS:
        yield build_problem(
            f"the data directory is on a network disk ({facts.file_system})",
            because="network disks can lose locks and commits that SQLite relies on",
            try_this="move RETINUE_HOME to a local disk, or use PostgreSQL",
        )


def check_log_directory(facts: DiskFacts) -> Iterable[DoctorFinding]:
    if facts.are_logs_writable is False:
        yield build_warning(
            f"{facts.data_dir / 'logs'} cannot be written",
            because="it belongs to another user, or is not a folder",
            try_this=f"delete {facts.data_dir / 'logs'}, or make yourself its owner",
        )


def check_backups(facts: DiskFacts) -> Iterable[DoctorFinding]:
    if facts.restore_in_progress:
        yield build_problem(
            "a restore was started but not finished",
            because=f"the previous content is in {facts.restore_in_progress}",
            try_this="restore the backup again; the database and its files may not match",
        )
    if not facts.has_database:
        return
    if facts.newest_backup_ms is None:
        yield build_warning(
            "no backup found",
            because=f"{facts.data_dir / 'backups'} contains no backup; backups elsewhere are not checked",
            try_this="retinue backup",
        )
    elif facts.now_ms - facts.newest_backup_ms > BACKUP_AGE_DAYS_MAX * 86_400_000:
        yield build_warning(
            f"the newest backup is {(facts.now_ms - facts.newest_backup_ms) // 86_400_000} days old",
            because=f"it is older than {BACKUP_AGE_DAYS_MAX} days",
            try_this="retinue backup",
        )


# --- settings ---


class SettingsFacts(Struct, frozen=True, kw_only=True):
    faults: tuple[SettingFault, ...]
    settings: Settings


async def gather_settings_facts(context: DoctorContext) -> SettingsFacts:
    examined = await asyncio.to_thread(examine_settings, context.environment)
    return SettingsFacts(faults=examined.faults, settings=examined.configuration.settings)


def check_settings(facts: SettingsFacts) -> Iterable[DoctorFinding]:
    for fault in facts.faults:
        yield build_problem(
            fault.sentence,
            because=f"{fault.because} ({fault.position})" if fault.because else str(fault.position),
            try_this=fault.try_this or "correct it; until then, the server does not start",
        )


def check_exposure(facts: SettingsFacts) -> Iterable[DoctorFinding]:
    listen = facts.settings.listen
    if listen.enabled and not is_loopback(listen.host):
        yield build_warning(
            f"the server listens on {listen.host}, which other machines can reach",
            because="server.listen.host is set to this address",
            try_this='set host = "127.0.0.1", unless a proxy on another machine needs it',
        )


def check_sandbox(facts: SettingsFacts) -> Iterable[DoctorFinding]:
    sandbox = facts.settings.sandbox
    off = [
        f'`sandbox.{name} = "off"`'
        for name, value in (("kind", sandbox.kind), ("mode", sandbox.mode))
        if value == "off"
    ]
    if off:
        yield build_warning(
            "commands of agents run without a sandbox",
            because=" and ".join(off),
            try_this='set kind = "bubblewrap" and mode = "all" in [sandbox]; see `retinue doctor --security`',
        )


# --- versions ---


class MachineFacts(Struct, frozen=True, kw_only=True):
    python: tuple[int, int]
    sqlite: tuple[int, int, int]


async def gather_machine_facts(context: DoctorContext) -> MachineFacts:
    return MachineFacts(python=sys.version_info[:2], sqlite=sqlite3.sqlite_version_info)


def check_versions(facts: MachineFacts) -> Iterable[DoctorFinding]:
    for name, found, least in (
        ("Python", facts.python, PYTHON_VERSION_MIN),
        ("SQLite", facts.sqlite, SQLITE_VERSION_MIN),
    ):
        if found < least:
            yield build_problem(
                f"{name} {'.'.join(map(str, found))} is too old",
                because=f"retinue needs {'.'.join(map(str, least))} or newer",
                try_this=f"run retinue with a newer {name}",
            )


STANDARD_CHECKS: tuple[DoctorCheck[Any], ...] = (
    DoctorCheck(
        name="settings", ok_message="the settings are valid", gather=gather_settings_facts, evaluate=check_settings
    ),
    DoctorCheck(
        name="exposure",
        ok_message="only this machine can reach the server",
        gather=gather_settings_facts,
        evaluate=check_exposure,
    ),
    DoctorCheck(
        name="sandbox",
        ok_message="commands run in a sandbox",
        gather=gather_settings_facts,
        evaluate=check_sandbox,
    ),
    DoctorCheck(
        name="machine",
        ok_message="Python and SQLite are new enough",
        gather=gather_machine_facts,
        evaluate=check_versions,
    ),
    DoctorCheck(
        name="permissions",
        ok_message="only you can access private files",
        gather=gather_disk_facts,
        evaluate=check_permissions,
    ),
    DoctorCheck(
        name="disk", ok_message="there is enough free disk space", gather=gather_disk_facts, evaluate=check_disk_space
    ),
    DoctorCheck(
        name="file_system",
        ok_message="the data directory is on a local disk",
        gather=gather_disk_facts,
        evaluate=check_network_disk,
    ),
    DoctorCheck(name="logs", ok_message="the log is writable", gather=gather_disk_facts, evaluate=check_log_directory),
    DoctorCheck(
        name="backups",
        ok_message="there is a recent backup",
        gather=gather_disk_facts,
        evaluate=check_backups,
    ),
    DoctorCheck(
        name="schema", ok_message="the database schema is current", gather=gather_store_facts, evaluate=check_schema
    ),
    DoctorCheck(
        name="clock",
        ok_message="the server's time is not ahead of the clock",
        gather=gather_store_facts,
        evaluate=check_clock,
    ),
    DoctorCheck(
        name="wal_size", ok_message="the write-ahead log is small", gather=gather_store_facts, evaluate=check_wal_size
    ),
    DoctorCheck(
        name="waiting_envelopes",
        ok_message="no envelope is waiting without a run",
        gather=gather_store_facts,
        evaluate=check_waiting_envelopes,
    ),
    DoctorCheck(
        name="dead_letters",
        ok_message="there are no dead letters",
        gather=gather_store_facts,
        evaluate=check_dead_letters,
    ),
    DoctorCheck(
        name="agents",
        ok_message="the runner and the model of every agent can be used",
        gather=gather_agent_facts,
        evaluate=check_agents_usable,
    ),
    DoctorCheck(
        name="models",
        ok_message="no agent uses a model that is being retired",
        gather=gather_agent_facts,
        evaluate=check_retired_models,
    ),
    DoctorCheck(
        name="agent_directories",
        ok_message="every agent directory belongs to an agent",
        gather=gather_agent_facts,
        evaluate=check_agent_directories,
    ),
    DoctorCheck(
        name="integrity",
        ok_message="the database file is intact",
        gather=gather_integrity_facts,
        evaluate=check_integrity,
    ),
    DoctorCheck(
        name="ledger", ok_message="the ledger is consistent", gather=gather_integrity_facts, evaluate=check_ledger
    ),
    DoctorCheck(
        name="records", ok_message="every record can be read", gather=gather_integrity_facts, evaluate=check_records
    ),
)
