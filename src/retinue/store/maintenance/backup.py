"""Backups: a directory with everything an instance stores, a manifest, and a check that it can be opened.

    house.db        the database, copied from one snapshot while the server runs
    files/          the attachments that this snapshot refers to
    agents/         the agent directories
    retinue.toml    the settings, if they are in the data directory
    manifest.json   what the backup contains, with sizes and hashes; written last

The directory gets its name only when it is complete. It does not contain the owner's token: a
restored server creates a new one if there is none in its data directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, StoreError
from retinue.store.core.connection import explain
from retinue.store.core.durable_files import sync, write_private
from retinue.store.core.fast_connection import QuickConnection
from retinue.store.envelopes.attachment_files import Files
from retinue.store.ledger import ledger
from retinue.store.maintenance.purge import named_attachments
from retinue.store.open_store import SCHEMA

FORMAT = 1
STORE, FILES, AGENTS, SETTINGS, MANIFEST = "house.db", "files", "agents", "retinue.toml", "manifest.json"
UNDER_WAY = "restore-under-way"
CHUNK_BYTES = 1024 * 1024
PROBLEMS_TOLD_MAX = 20
ROOM = 1.05  # space that a backup needs, relative to its parts


class Part(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, rename="kebab"):
    format: int
    made_at: str
    version: str
    schema: str
    parts: tuple[Part, ...]
    missing: tuple[str, ...] = ()  # attachments that were referred to and missing, and anything but plain files

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class Verified(Struct, frozen=True):
    """The problems of a backup. None means that it can be restored."""

    problems: tuple[str, ...]
    parts: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems


# --- create ---


def copy_store(conn: sa.Connection, *, target: Path) -> set[str]:
    """Copy the database as `conn` sees it.

    Run by `store.scan`, so that the returned attachments are those of the copy.
    """
    if conn.dialect.name != "sqlite":
        raise _not_ours_to_copy(conn.engine.url)
    named = named_attachments(conn)
    raw: Any = conn.connection.dbapi_connection
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        # All pages in one step: otherwise each commit of the server would make it start again.
        raw.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a WAL
    sync(target)
    return named


def _not_ours_to_copy(url: sa.URL) -> Invalid:
    place = url.set(drivername="postgresql").render_as_string(hide_password=True)
    return Invalid(
        "a house on PostgreSQL is not copied from here",
        because="its database has a tool of its own, which takes one picture of it and fits later versions",
        try_this=f"pg_dump --format=custom --file=house.dump '{place}', then copy RETINUE_HOME/{FILES} and "
        f"RETINUE_HOME/{AGENTS}; restore with pg_restore --clean --if-exists --dbname='{place}' house.dump",
        code="backup.postgres",
    )


def copy_rest(home: Path, folder: Path, named: Iterable[str], *, made_at: str, version: str) -> Manifest:
    """Copy the files next to the database, and write the manifest. `folder` already contains the database."""
    missing: list[str] = []
    parts = [_described(folder, folder / STORE)]
    with _telling("be made"):
        parts += _copy_attachments(Files(home / FILES), folder, sorted(named), missing)
        for source in _plain_files(home / AGENTS, missing, home):
            parts.append(_copied(source, folder, source.relative_to(home)))
        if (home / SETTINGS).is_file():
            parts.append(_copied(home / SETTINGS, folder, Path(SETTINGS)))
        manifest = Manifest(
            format=FORMAT,
            made_at=made_at,
            version=version,
            schema=SCHEMA.head,
            parts=tuple(parts),
            missing=tuple(missing),
        )
        write_private(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        for directory in {folder, *(path.parent for path in folder.rglob("*"))}:
            sync(directory)
    return manifest


def _copy_attachments(files: Files, folder: Path, named: list[str], missing: list[str]) -> Iterator[Part]:
    for hash_ in named:
        relative = Path(FILES, hash_[:2], hash_[2:])
        try:
            with files.open(hash_) as reading:
                part = _copied_from(reading, folder, relative)
        except (NotFound, StoreError):
            missing.append(str(relative))
            continue
        if part.sha256 != hash_:  # damaged at its source: report it now rather than store it as intact
            (folder / relative).unlink()
            missing.append(str(relative))
            continue
        yield part


def _plain_files(root: Path, missing: list[str], home: Path) -> Iterator[Path]:
    """Yield the files below a directory. Links are not followed: their targets are not ours."""
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted([*files, *(each for each in names if Path(folder, each).is_symlink())]):
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path
            else:
                missing.append(str(path.relative_to(home)))


def room_for(home: Path, store: Path | None, target: Path) -> None:
    """Check, before anything is written, that the disk has enough space."""
    needed = store.stat().st_size if store is not None and store.exists() else 0
    for folder in (home / FILES, home / AGENTS):
        needed += sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    free = shutil.disk_usage(target).free
    if needed * ROOM > free:
        raise StoreError(
            "there is no room for a backup",
            because=f"it takes {needed:,} bytes, and {free:,} are free at {target}",
            try_this="free some space, or name a folder on another disk",
            code="backup.no-room",
        )


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """Create a directory that gets its name only when it is complete, and is removed on an error."""
    partial_ = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    with _telling("be made"):
        if folder.exists():
            raise Conflict(
                f"{folder} is already there",
                because="a backup is not written over anything",
                try_this="name a folder that does not exist yet",
                code="backup.exists",
            )
        shutil.rmtree(partial_, ignore_errors=True)
        partial_.mkdir(mode=0o700)
    try:
        yield partial_
        with _telling("be made"):
            os.rename(partial_, folder)
            sync(folder.parent)
    finally:
        shutil.rmtree(partial_, ignore_errors=True)


# --- verify ---


def verify(folder: Path, *, now_ms: int) -> Verified:
    """Read everything back: hashes, the checks of the database, and the ledger."""
    try:
        manifest = read_manifest(folder)
    except RetinueError as error:
        return Verified((f"{error.sentence}: {error.because}",))
    problems = [problem for part in manifest.parts for problem in _wrong_with(folder, part)]
    if not any(part.path == STORE for part in manifest.parts):
        problems.append(f"{STORE}: not in the manifest")
    if not problems:
        problems += _wrong_with_store(folder / STORE, now_ms=now_ms)
    told = tuple(problems[:PROBLEMS_TOLD_MAX])
    if len(problems) > len(told):
        told = (*told, f"and {len(problems) - len(told):,} more")
    return Verified(told, parts=len(manifest.parts))


def read_manifest(folder: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise Invalid(
            f"{folder} is no backup",
            because=f"its {MANIFEST} cannot be read ({getattr(error, 'strerror', None) or error})",
            try_this="name the folder that `retinue backup` made",
            code="backup.invalid",
        ) from error
    if manifest.format != FORMAT or manifest.schema not in SCHEMA.known:
        raise Invalid(
            f"the backup {folder} was made by another retinue",
            because=f"its format is {manifest.format} and its schema {manifest.schema}",
            try_this=f"install retinue {manifest.version}, or a later one",
            code="backup.other-version",
        )
    return manifest


def _wrong_with(folder: Path, part: Part) -> Iterator[str]:
    relative = Path(part.path)
    if relative.is_absolute() or ".." in relative.parts:
        yield f"{part.path}: points out of the backup"
        return
    try:
        found = _described(folder, folder / relative)
    except OSError as error:
        yield f"{part.path}: {(error.strerror or 'it cannot be read').lower()}"
        return
    if found != part:
        yield f"{part.path}: not as it was written"


def _wrong_with_store(path: Path, *, now_ms: int) -> Iterator[str]:
    try:
        with opened(path) as conn:
            raw: Any = conn.connection.dbapi_connection
            for row in raw.execute("PRAGMA integrity_check(5)").fetchall():
                if row[0] != "ok":
                    yield f"{STORE}: {row[0]}"
            for row in raw.execute("PRAGMA foreign_key_check").fetchmany(5):
                yield f"{STORE}: a row of {row[0]} points to one of {row[2]} that is not there"
            revision = raw.execute("SELECT version_num FROM alembic_version").fetchone()[0]
            if revision != SCHEMA.head:
                yield from () if revision in SCHEMA.known else (f"{STORE}: its schema is {revision}",)
                return  # an older schema: `open_store` upgrades it, and the ledger can be checked then
            checked = ledger.check(conn, now_ms=now_ms)
            yield from (f"{STORE}: ledger: {name} does not hold" for name in checked.broken)
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        yield f"{STORE}: {explain(error).because}"


@contextmanager
def opened(path: Path) -> Generator[sa.Connection]:
    """Open a database file that no process has open, without changing it or creating a WAL or index."""

    def dbapi() -> sqlite3.Connection:
        uri = f"{path.absolute().as_uri()}?immutable=1"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)

    engine = sa.create_engine("sqlite://", creator=dbapi, poolclass=NullPool)
    with closing(QuickConnection(engine)) as conn:
        yield conn


# --- restore ---


def restore(folder: Path, *, home: Path, store: Path, now_ms: int, label: str) -> Path:
    """Restore a backup into a data directory. The caller holds the server's lock.

    Everything is verified, copied and verified again before anything is moved. The previous content
    is in the returned directory. The database is replaced by one rename, so that there is always
    one, the old or the new.
    """
    found = verify(folder, now_ms=now_ms)
    if not found.ok:
        raise StoreError(
            f"the backup {folder} is not sound, so nothing was changed",
            because="; ".join(found.problems),
            try_this="take another backup",
            code="backup.unsound",
        )
    manifest = read_manifest(folder)
    staged, before = home / f".restore-{os.getpid()}", _free(home / f"before-restore-{label}")
    with _telling("be restored"):
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(mode=0o700, parents=True)
        try:
            for part in manifest.parts:
                if _copied(folder / part.path, staged, Path(part.path)) != part:
                    raise StoreError(
                        "the backup changed while it was read, so nothing was changed",
                        because=f"{part.path} is not as it was a moment ago",
                        try_this="look after the disk it lies on",
                        code="backup.unsound",
                    )
            before.mkdir(mode=0o700)
            write_private(home / UNDER_WAY, str(before).encode())
            _exchange(staged, before, home=home, store=store)
            (home / UNDER_WAY).unlink()
            sync(home)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return before


def _free(path: Path) -> Path:
    """Return this path, or the next numbered one that does not exist."""
    names = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000)))
    return next((name for name in names if not name.exists()), path)


def _exchange(staged: Path, before: Path, *, home: Path, store: Path) -> None:
    log, index = Path(f"{store}-wal"), Path(f"{store}-shm")
    # Unchanged, with the WAL: damaged files may be needed for analysis, and SQLite would repair them on opening.
    for source, name in ((store, STORE), (log, f"{STORE}-wal")):
        if source.exists():
            _keep_too(source, before / name)
    sync(before)
    # Remove the WAL before the database is replaced: SQLite would apply the old WAL to the new database.
    for leftover in (log, index):
        leftover.unlink(missing_ok=True)
    sync(store.parent)
    os.replace(staged / STORE, store)
    sync(store.parent)
    for name in (FILES, AGENTS, SETTINGS):
        if name == SETTINGS and not (staged / name).exists():
            continue  # settings outside the data directory are not in the backup and stay unchanged
        if (home / name).exists():
            os.rename(home / name, before / name)
        if (staged / name).exists():
            os.rename(staged / name, home / name)
    sync(before)


def _keep_too(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or no support for links
        shutil.copy2(source, target)
        sync(target)


# --- files ---


def _copied(source: Path, folder: Path, relative: Path) -> Part:
    descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as reading:
        return _copied_from(reading, folder, relative)


def _copied_from(reading: Any, folder: Path, relative: Path) -> Part:
    target = folder / relative
    for parent in reversed(relative.parents[:-1]):
        (folder / parent).mkdir(mode=0o700, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as writing:
        for chunk in _chunks(reading.read):
            digest.update(chunk)
            size += len(chunk)
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())
    return Part(str(relative), size, digest.hexdigest())


def _described(folder: Path, path: Path) -> Part:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as reading:
        for chunk in _chunks(reading.read):
            digest.update(chunk)
            size += len(chunk)
    return Part(str(path.relative_to(folder)), size, digest.hexdigest())


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(partial(read, CHUNK_BYTES), b"")


@contextmanager
def _telling(doing: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the backup cannot {doing}",
            because=f"{(error.strerror or 'the disk did not say why').lower()} ({error.filename or 'no file'})",
            try_this="check the folder, who owns it and its free space; nothing of the house was changed"
            if doing == "be made"
            else f"look at RETINUE_HOME/{UNDER_WAY} if it is there, then try again",
            code="backup.disk",
        ) from error
