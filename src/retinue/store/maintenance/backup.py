"""Create, verify and restore backups. A backup is a directory with everything that an instance stores:

    retinue.db      the database, copied from one snapshot while the server is running
    files/          the attachments that this snapshot refers to
    agents/         the agent directories
    schedules/      the files of schedules, with the notes that their runs keep
    skills/ ...     skills, hooks, instruction templates, and the data of hooks and plugins
    retinue.toml    the settings, if they are in the data directory
    manifest.json   a list of these files with sizes and hashes; written last

The directory gets its final name only when it is complete. The backup does not contain the owner's
token. If the data directory has no token, the restored server creates a new one.
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

from retinue.domain.errors import NotFound, RetinueError, StoreError
from retinue.store.core.connection import translate_error
from retinue.store.core.database_rename import FORMER_NAME, STORE_NAME
from retinue.store.core.durable_files import fsync_path, write_private_file
from retinue.store.core.fast_connection import FastConnection
from retinue.store.core.untrusted_files import open_untrusted
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.ledger import ledger
from retinue.store.maintenance.errors import (
    BackupChanged,
    BackupFolderExists,
    BackupManifestUnreadable,
    BackupSpaceMissing,
    BackupUnsound,
    BackupUnsupported,
    BackupVersionUnsupported,
    BackupWriteFailed,
    RestoreFailed,
)
from retinue.store.maintenance.purge import list_attachment_hashes
from retinue.store.open_store import SCHEMA

FORMAT = 1
STORE, FILES, AGENTS, SCHEDULES = STORE_NAME, "files", "agents", "schedules"
SETTINGS, MANIFEST = "retinue.toml", "manifest.json"
OPTIONAL_FOLDERS = ("skills", "hooks", "hooks-data", "instructions", "plugins")
COPIED_FOLDERS = (AGENTS, SCHEDULES, *OPTIONAL_FOLDERS)
RESTORE_MARKER, FORMER_RESTORE_MARKER = "restore-in-progress", "restore-under-way"
CHUNK_BYTES = 1024 * 1024
PROBLEMS_SHOWN_MAX = 20
SIZE_FACTOR = 1.05  # space that a backup needs, relative to the size of its parts


class BackupPart(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    format: int
    made_at: str
    version: str
    schema: str
    parts: tuple[BackupPart, ...]
    missing: tuple[str, ...] = ()  # referenced attachments that were missing, and anything that is not a regular file

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class BackupVerification(Struct, frozen=True):
    """The result of verifying a backup. If it has no problems, the backup can be restored."""

    problems: tuple[str, ...]
    parts: int = 0

    @property
    def is_ok(self) -> bool:
        return not self.problems


# --- create ---


def copy_store(conn: sa.Connection, *, target: Path) -> set[str]:
    """Copy the database to `target`. Returns the hashes of the attachments that the copy refers to.

    Run this with `store.scan`, so that the copy and the hashes come from one snapshot.
    """
    if conn.dialect.name != "sqlite":
        url = conn.engine.url.set(drivername="postgresql").render_as_string(hide_password=True)
        raise BackupUnsupported(url, folders=(FILES, AGENTS))
    named = list_attachment_hashes(conn)
    raw: Any = conn.connection.dbapi_connection
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        # All pages in one step: otherwise each commit of the server would restart the copy.
        raw.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a WAL
    fsync_path(target)
    return named


def copy_files(
    data_dir: Path, folder: Path, attachment_hashes: Iterable[str], *, made_at: str, version: str
) -> BackupManifest:
    """Copy attachments, agent directories and settings into a backup, and write its manifest.

    `folder` already contains the database.
    """
    missing: list[str] = []
    parts = [_describe_part(folder, folder / STORE)]
    with _translate_errors():
        parts += _copy_attachments(AttachmentFiles(data_dir / FILES), folder, sorted(attachment_hashes), missing)
        for name in COPIED_FOLDERS:
            for source in _list_plain_files(data_dir / name, missing, data_dir):
                parts.append(_copy_file(source, folder, source.relative_to(data_dir)))
        if (data_dir / SETTINGS).is_file():
            parts.append(_copy_file(data_dir / SETTINGS, folder, Path(SETTINGS)))
        manifest = BackupManifest(
            format=FORMAT,
            made_at=made_at,
            version=version,
            schema=SCHEMA.head,
            parts=tuple(parts),
            missing=tuple(missing),
        )
        write_private_file(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        for directory in {folder, *(path.parent for path in folder.rglob("*"))}:
            fsync_path(directory)
    return manifest


def _copy_attachments(
    files: AttachmentFiles, folder: Path, hashes: list[str], missing: list[str]
) -> Iterator[BackupPart]:
    for hash_ in hashes:
        relative = Path(FILES, hash_[:2], hash_[2:])
        try:
            with files.open(hash_) as reading:
                part = _copy_stream(reading, folder, relative)
        except (NotFound, StoreError):
            missing.append(str(relative))
            continue
        if part.sha256 != hash_:  # damaged at its source: report it now rather than store it as intact
            (folder / relative).unlink()
            missing.append(str(relative))
            continue
        yield part


def _list_plain_files(root: Path, missing: list[str], data_dir: Path) -> Iterator[Path]:
    """Yield the regular files below a directory, and add the path of everything else to `missing`.

    Links are not followed, because their targets do not belong to the instance.
    """
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted([*files, *(each for each in names if Path(folder, each).is_symlink())]):
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield path
            else:
                missing.append(str(path.relative_to(data_dir)))


def check_free_space(data_dir: Path, store: Path | None, target: Path) -> None:
    """Raise `BackupSpaceMissing` if the disk has too little free space for a backup."""
    needed = store.stat().st_size if store is not None and store.exists() else 0
    for folder in (data_dir / FILES, *(data_dir / name for name in COPIED_FOLDERS)):
        needed += sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    free = shutil.disk_usage(target).free
    if needed * SIZE_FACTOR > free:
        raise BackupSpaceMissing(target, needed_bytes=needed, free_bytes=free)


@contextmanager
def create_folder(folder: Path) -> Generator[Path]:
    """Create a directory under a temporary name. On success it gets its final name; on an error it is removed."""
    partial_ = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    with _translate_errors():
        if folder.exists():
            raise BackupFolderExists(folder)
        shutil.rmtree(partial_, ignore_errors=True)
        partial_.mkdir(mode=0o700)
    try:
        yield partial_
        with _translate_errors():
            os.rename(partial_, folder)
            fsync_path(folder.parent)
    finally:
        shutil.rmtree(partial_, ignore_errors=True)


# --- verify ---


def verify(folder: Path, *, now_ms: int) -> BackupVerification:
    """Check a backup: the hashes of its files, its database, and the ledger of the database."""
    try:
        manifest = read_manifest(folder)
    except RetinueError as error:
        return BackupVerification((f"{error.sentence}: {error.because}",))
    problems = [problem for part in manifest.parts for problem in _check_part(folder, part)]
    store = _store_name(manifest)
    if not any(part.path == store for part in manifest.parts):
        problems.append(f"{store}: not in the manifest")
    if not problems:
        problems += _check_store(folder / store, now_ms=now_ms)
    shown = tuple(problems[:PROBLEMS_SHOWN_MAX])
    if len(problems) > len(shown):
        shown = (*shown, f"and {len(problems) - len(shown):,} more")
    return BackupVerification(shown, parts=len(manifest.parts))


def _store_name(manifest: BackupManifest) -> str:
    """Return the file name of the database in a backup. In backups of earlier versions, it is `FORMER_NAME`."""
    return FORMER_NAME if any(part.path == FORMER_NAME for part in manifest.parts) else STORE


def read_manifest(folder: Path) -> BackupManifest:
    try:
        content = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, Any])
        if "made-at" in content:  # the key of backups made before keys were snake_case
            content["made_at"] = content.pop("made-at")
        manifest = msgspec.convert(content, BackupManifest)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise BackupManifestUnreadable(
            folder, manifest=MANIFEST, reason=str(getattr(error, "strerror", None) or error)
        ) from error
    if manifest.format != FORMAT or manifest.schema not in SCHEMA.known_revisions:
        raise BackupVersionUnsupported(
            folder, format_=manifest.format, schema=manifest.schema, version=manifest.version
        )
    return manifest


def _check_part(folder: Path, part: BackupPart) -> Iterator[str]:
    relative = Path(part.path)
    if relative.is_absolute() or ".." in relative.parts:
        yield f"{part.path}: points outside the backup"
        return
    try:
        found = _describe_part(folder, folder / relative)
    except OSError as error:
        yield f"{part.path}: {(error.strerror or 'it cannot be read').lower()}"
        return
    if found != part:
        yield f"{part.path}: differs from what was written"


def _check_store(path: Path, *, now_ms: int) -> Iterator[str]:
    try:
        with open_read_only(path) as conn:
            raw: Any = conn.connection.dbapi_connection
            for row in raw.execute("PRAGMA integrity_check(5)").fetchall():
                if row[0] != "ok":
                    yield f"{STORE}: {row[0]}"
            for row in raw.execute("PRAGMA foreign_key_check").fetchmany(5):
                yield f"{STORE}: a row of {row[0]} references a missing row of {row[2]}"
            revision = raw.execute("SELECT version_num FROM alembic_version").fetchone()[0]
            if revision != SCHEMA.head:
                yield from () if revision in SCHEMA.known_revisions else (f"{STORE}: its schema is {revision}",)
                return  # an older schema: `open_store` upgrades it, and the ledger can be checked then
            checked = ledger.check_ledger(conn, now_ms=now_ms)
            yield from (f"{STORE}: ledger: {name} is broken" for name in checked.broken_equations)
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        yield f"{STORE}: {translate_error(error).because}"


@contextmanager
def open_read_only(path: Path) -> Generator[sa.Connection]:
    """Open a database file that no process has open. The file is not changed, and no other files are created."""

    def dbapi() -> sqlite3.Connection:
        uri = f"{path.absolute().as_uri()}?immutable=1"
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)

    engine = sa.create_engine("sqlite://", creator=dbapi, poolclass=NullPool)
    with closing(FastConnection(engine)) as conn:
        yield conn


# --- restore ---


def restore(folder: Path, *, data_dir: Path, store: Path, now_ms: int, label: str) -> Path:
    """Restore a backup into a data directory. The caller must hold the instance lock.

    The backup is verified and copied, and the copy is compared with the manifest before anything is
    replaced. The database is replaced by a rename, so that at any time either the old or the new
    one exists. Returns the directory to which the previous content was moved.
    """
    found = verify(folder, now_ms=now_ms)
    if not found.is_ok:
        raise BackupUnsound(folder, problems=found.problems)
    manifest = read_manifest(folder)
    staged, before = data_dir / f".restore-{os.getpid()}", _find_free_path(data_dir / f"before-restore-{label}")
    with _translate_errors(restoring=True):
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(mode=0o700, parents=True)
        try:
            for part in manifest.parts:
                if _copy_file(folder / part.path, staged, Path(part.path)) != part:
                    raise BackupChanged(part.path)
            before.mkdir(mode=0o700)
            write_private_file(data_dir / RESTORE_MARKER, str(before).encode())
            _swap(staged, before, data_dir=data_dir, store=store, restored=_store_name(manifest))
            (data_dir / FORMER_RESTORE_MARKER).unlink(missing_ok=True)
            (data_dir / RESTORE_MARKER).unlink()
            fsync_path(data_dir)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return before


def _find_free_path(path: Path) -> Path:
    """Return this path if it does not exist. Otherwise, append the lowest number that makes it unused."""
    names = (path, *(path.with_name(f"{path.name}-{number}") for number in range(2, 1000)))
    return next((name for name in names if not name.exists()), path)


def _swap(staged: Path, before: Path, *, data_dir: Path, store: Path, restored: str) -> None:
    former = store.with_name(FORMER_NAME)
    present = (
        [(store, STORE)] if former == store or store.name != STORE_NAME else [(store, STORE), (former, FORMER_NAME)]
    )
    # Unchanged, with the WAL: damaged files may be needed for analysis, and SQLite would repair them on opening.
    for file, name in present:
        for suffix in ("", "-wal"):
            if (source := Path(f"{file}{suffix}")).exists():
                _link_or_copy(source, before / f"{name}{suffix}")
    fsync_path(before)
    # Remove the WAL before the database is replaced: SQLite would apply the old WAL to the new database.
    for file, _ in present:
        for suffix in ("-wal", "-shm"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
    fsync_path(store.parent)
    if len(present) > 1 and former.exists():
        if store.exists():
            former.unlink()
        else:
            os.rename(former, store)  # so that there is always one database
    os.replace(staged / restored, store)
    fsync_path(store.parent)
    for name in (FILES, AGENTS, SCHEDULES, *OPTIONAL_FOLDERS, SETTINGS):
        if name in (*OPTIONAL_FOLDERS, SETTINGS) and not (staged / name).exists():
            continue  # not in this backup: settings can be elsewhere, and earlier versions copied no such folder
        if (data_dir / name).exists():
            os.rename(data_dir / name, before / name)
        if (staged / name).exists():
            os.rename(staged / name, data_dir / name)
    fsync_path(before)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or no support for links
        shutil.copy2(source, target)
        fsync_path(target)


# --- files ---


def _copy_file(source: Path, folder: Path, relative: Path) -> BackupPart:
    with open_untrusted(source) as reading:
        return _copy_stream(reading, folder, relative)


def _copy_stream(reading: Any, folder: Path, relative: Path) -> BackupPart:
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
    return BackupPart(str(relative), size, digest.hexdigest())


def _describe_part(folder: Path, path: Path) -> BackupPart:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as reading:
        for chunk in _chunks(reading.read):
            digest.update(chunk)
            size += len(chunk)
    return BackupPart(str(path.relative_to(folder)), size, digest.hexdigest())


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    return iter(partial(read, CHUNK_BYTES), b"")


@contextmanager
def _translate_errors(*, restoring: bool = False) -> Generator[None]:
    try:
        yield
    except OSError as error:
        because = f"{(error.strerror or 'the disk gave no reason').lower()} ({error.filename or 'no file'})"
        if restoring:
            raise RestoreFailed(because=because, marker=RESTORE_MARKER) from error
        raise BackupWriteFailed(because=because) from error
