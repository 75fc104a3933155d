"""Open a store and upgrade its schema.

A damaged store, or one written by a newer version, is rejected and not changed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import exc

from retinue.domain.ports import CrashPoints
from retinue.store.core import sqlite, tables
from retinue.store.core.connection import NO_FAULTS, PERMANENT_ERROR_CODES, LockRequest, Store, translate_error
from retinue.store.core.database_rename import rename_former_file
from retinue.store.core.durable_files import fsync_path
from retinue.store.core.errors import (
    DatabaseEncodingUnsupported,
    PostgresDriverMissing,
    SchemaTooNew,
    StoreCannotOpen,
    StoreDamaged,
    StoreDiskFull,
    StoreReadOnly,
    StoreUpgradeFailed,
    StoreUrlInvalid,
)
from retinue.store.core.file_inspection import inspect_file
from retinue.store.migrations import HEAD

KNOWN_REVISIONS = frozenset(
    {
        "0001",
        "0002",
        "0003",
        "0004",
        "0005",
        "0006",
        "0007",
        "0008",
        "0009",
        "0010",
        "0011",
        "0012",
        "0013",
        "0014",
        "0015",
    }
)

MIGRATION_LOCK_KEY = 7320451
OFFLINE_COPY = ".offline-copy"  # folder of the copy that an offline command reads


class StoreSchema(Struct, frozen=True):
    """The database schema of this version: its newest revision, all revisions, and the folder of the migration scripts.

    With `from_tables`, a new store is created from the table definitions, without importing
    alembic. A test checks that all migrations together produce exactly the same schema.
    """

    head: str = HEAD
    known_revisions: frozenset[str] = KNOWN_REVISIONS
    scripts_dir: Path = Path(__file__).parent / "migrations"
    from_tables: bool = False


SCHEMA = StoreSchema(from_tables=True)


async def open_store(
    url: str | Path, *, faults: CrashPoints = NO_FAULTS, schema: StoreSchema = SCHEMA, lock: LockRequest | None = None
) -> Store:
    """Open the store at a file path or a `postgresql://` URL, and upgrade its schema.

    `lock` describes the server that opens a PostgreSQL database. Raises `StoreLocked` if another
    server is using the database. A SQLite file needs no lock here, because its data directory is
    locked.
    """
    if isinstance(url, str) and url.startswith(("postgresql", "postgres:")):
        return await _open_postgres(url, faults, schema, lock)
    path = Path(url)
    prepare_sqlite(path, schema=schema)
    return sqlite.SqliteStore(path, faults=faults)


async def _open_postgres(text: str, faults: CrashPoints, schema: StoreSchema, request: LockRequest | None) -> Store:
    try:
        from retinue.store.core.postgres import PostgresStore
        from retinue.store.core.server_lock import ServerLock

        _, _, rest = text.partition(":")
        url = sa.make_url(f"postgresql+psycopg:{rest}")
        lock = ServerLock(url, request) if request is not None else None
        if lock is not None:
            await lock.acquire()  # first: nothing may change in a database that another server is using
        try:
            await asyncio.get_running_loop().run_in_executor(None, prepare_postgres, url, schema)
        except BaseException:
            if lock is not None:
                await lock.close()
            raise
        return PostgresStore(url, faults=faults, lock=lock)
    except ImportError as error:
        raise PostgresDriverMissing(error.name or "psycopg") from error
    except exc.ArgumentError as error:
        raise StoreUrlInvalid from error


def prepare_store_file(path: Path, *, schema: StoreSchema = SCHEMA, faults: CrashPoints = NO_FAULTS) -> None:
    """Rename a database file that still has its former name. The caller must hold the instance lock."""
    shutil.rmtree(path.parent / OFFLINE_COPY, ignore_errors=True)  # left by an offline command that was killed
    with _translate_errors(path):
        rename_former_file(path, known_revisions=schema.known_revisions, faults=faults)


def prepare_sqlite(path: Path, *, schema: StoreSchema = SCHEMA) -> None:
    """Create a database file, or migrate an existing one.

    A file that is rejected is not changed. A migration is first tried on a copy of the file.
    """
    with _translate_errors(path):
        _remove_copy(_upgrade_copy_path(path))
        if not path.exists():
            _create_file(path, schema)
        revision = inspect_file(path, schema.known_revisions)
        refuse_unknown_revision(revision, schema)
        if revision != schema.head:
            _upgrade_copy(path, schema)
        with closing(sqlite.connect(path, writable=True)) as conn:
            if revision != schema.head:
                _upgrade_in_transaction(conn, schema)
            _check_writable(conn)


def open_inline_store(
    path: str | Path = ":memory:", *, faults: CrashPoints = NO_FAULTS, yields: bool = True
) -> sqlite.InlineStore:
    """Open a SQLite store without threads, for simulations."""
    store = sqlite.InlineStore(path, faults=faults, yields=yields)
    if stored_revision(store.connection) is None:
        _upgrade_in_transaction(store.connection, SCHEMA)
    return store


def stored_revision(conn: sa.Connection) -> str | None:
    """Return the schema revision of a store, or None if it is empty."""
    if not sa.inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def refuse_unknown_revision(revision: str | None, schema: StoreSchema = SCHEMA) -> None:
    if revision is None or revision in schema.known_revisions:
        return
    raise SchemaTooNew(revision, known=schema.head)


def run_migrations(conn: sa.Connection, schema: StoreSchema = SCHEMA) -> None:
    """Run the missing migrations within the caller's transaction. An empty database gets the current schema."""
    if schema.from_tables and stored_revision(conn) is None:
        tables.create_schema(conn, schema.head)
        return
    # Imported on use: a server whose schema is current does not need alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.scripts_dir).replace("%", "%%"))
    config.attributes["connection"] = conn
    if not conn.in_transaction():
        conn.begin()  # otherwise alembic would begin its own transaction and commit it, which only we may do
    try:
        command.upgrade(config, "head")
    except Exception as error:
        explained = translate_error(error) if isinstance(error, exc.SQLAlchemyError) else None
        if explained is not None and explained.code not in PERMANENT_ERROR_CODES:
            raise explained from error  # such as a full or failing disk: the migration itself did not fail
        because = explained.because if explained else f"{type(error).__name__}: {error}"
        raise StoreUpgradeFailed(because=because) from error


def _upgrade_in_transaction(conn: sa.Connection, schema: StoreSchema) -> None:
    raw: Any = conn.connection.dbapi_connection
    # Batch mode rebuilds tables. The check below replaces the row-by-row foreign key checks. A view must tolerate
    # that its table is missing between dropping the old one and renaming the new one.
    raw.execute("PRAGMA foreign_keys = OFF")
    raw.execute("PRAGMA legacy_alter_table = ON")
    raw.execute("BEGIN IMMEDIATE")
    try:
        run_migrations(conn, schema)
        if raw.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise StoreUpgradeFailed(because="a row references another that does not exist")
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    finally:
        raw.execute("PRAGMA legacy_alter_table = OFF")
        raw.execute("PRAGMA foreign_keys = ON")


# --- files ---


def _create_file(path: Path, schema: StoreSchema) -> None:
    """Create a new database under a temporary name, and give it its final name when it is complete.

    A crash therefore leaves no incomplete file at `path`.
    """
    new = path.with_name(f"{path.name}.new-{os.getpid()}")
    _remove_copy(new)
    try:
        _create_private_file(new)
        with closing(sqlite.connect(new, writable=True)) as conn:
            _upgrade_in_transaction(conn, schema)
        _link_into_place(new, path)
        fsync_path(path.parent)
    finally:
        _remove_copy(new)


def _link_into_place(new: Path, path: Path) -> None:
    """Give a new file its final name with a hard link.

    Unlike a rename, a link does not replace a file that another process has just created.
    """
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if not path.exists():  # the file system does not support links
            os.rename(new, path)


def _upgrade_copy(path: Path, schema: StoreSchema) -> None:
    """Run the migrations on a copy of the database, then delete the copy.

    A migration that fails therefore does not affect the database.
    """
    copy = _upgrade_copy_path(path)
    try:
        _create_private_file(copy)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
            if (found := target.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise StoreDamaged(because=str(found[0]))
        with closing(sqlite.connect(copy, writable=True)) as conn:
            _upgrade_in_transaction(conn, schema)
    finally:
        _remove_copy(copy)


def copy_and_upgrade(path: Path, copy: Path, *, schema: StoreSchema = SCHEMA) -> Path:
    """Copy a database file that no process has open, and upgrade the copy. The original is not changed."""
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with _translate_errors(copy):
        _create_private_file(copy)
        with (
            closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        with closing(sqlite.connect(copy, writable=True)) as conn:
            _upgrade_in_transaction(conn, schema)
    return copy


def _upgrade_copy_path(path: Path) -> Path:
    return path.with_name(path.name + ".upgrade")


def _create_private_file(path: Path) -> None:
    """Create an empty file that only the owner can read, because messages are private."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _remove_copy(path: Path) -> None:
    for leftover in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}-journal")):
        leftover.unlink(missing_ok=True)


@contextmanager
def _translate_errors(path: Path) -> Generator[None]:
    """Translate errors of SQLite and the operating system into `StoreError`."""
    try:
        yield
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise translate_error(error) from error
    except OSError as error:
        because = (os.strerror(error.errno) if error.errno else str(error)).lower()
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                raise StoreDiskFull(because=because, path=path) from error
            case errno.EROFS | errno.EACCES | errno.EPERM:
                raise StoreReadOnly(because=because, path=path) from error
            case _:
                raise StoreCannotOpen(because=because, path=path) from error


def _check_writable(conn: sa.Connection) -> None:
    """Check that the database file is writable.

    SQLite opens a read-only file without an error, so without this check, only the first write
    would fail.
    """
    raw: Any = conn.connection.dbapi_connection
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("ROLLBACK")


# --- PostgreSQL ---


def prepare_postgres(url: sa.URL, schema: StoreSchema = SCHEMA) -> None:
    """Create or migrate the tables of a PostgreSQL database, in one transaction."""
    tables.add_postgres_conditions()
    engine = sa.create_engine(url)
    try:
        with engine.begin() as conn:
            # Two processes that start at the same time take turns here.
            conn.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK_KEY})
            _check_encoding(conn)
            revision = stored_revision(conn)
            refuse_unknown_revision(revision, schema)
            if revision != schema.head:
                run_migrations(conn, schema)
    except exc.SQLAlchemyError as error:
        raise translate_error(error) from error
    finally:
        engine.dispose()


def _check_encoding(conn: sa.Connection) -> None:
    encoding = conn.execute(sa.text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise DatabaseEncodingUnsupported(encoding)
