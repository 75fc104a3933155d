"""Open a store and upgrade its schema. A damaged store, or one written by a newer version, is rejected unchanged."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from sqlalchemy import exc

from retinue.domain.errors import StoreError
from retinue.domain.ports import Faults
from retinue.store.core import sqlite, tables
from retinue.store.core.connection import NO_FAULTS, LockRequest, Store, explain
from retinue.store.core.durable_files import sync
from retinue.store.core.file_inspection import damaged, look
from retinue.store.migrations import HEAD

KNOWN_REVISIONS = frozenset(
    {"0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013", "0014"}
)

PREPARE_LOCK = 7320451


class Schema(Struct, frozen=True):
    """The schema that this version knows: its newest revision, all revisions, and the path of their scripts.

    `from_tables`: create a new store from the table definitions and stamp it, without importing
    alembic. A test proves that all scripts together produce exactly the same schema.
    """

    head: str = HEAD
    known: frozenset[str] = KNOWN_REVISIONS
    scripts: Path = Path(__file__).parent / "migrations"
    from_tables: bool = False


SCHEMA = Schema(from_tables=True)


async def open_store(
    url: str | Path, *, faults: Faults = NO_FAULTS, schema: Schema = SCHEMA, lock: LockRequest | None = None
) -> Store:
    """Open the store at a file path or at a `postgresql://` URL. It is ready for use when this returns.

    `lock` identifies the server that opens it. A database that another server uses is rejected. A
    file is protected by the lock of its data directory instead.
    """
    if isinstance(url, str) and url.startswith(("postgresql", "postgres:")):
        return await _open_postgres(url, faults, schema, lock)
    path = Path(url)
    prepare_sqlite(path, schema=schema)
    return sqlite.SqliteStore(path, faults=faults)


async def _open_postgres(text: str, faults: Faults, schema: Schema, request: LockRequest | None) -> Store:
    try:
        from retinue.store.core.postgres import PostgresStore
        from retinue.store.core.server_lock import ServerLock

        _, _, place = text.partition(":")
        url = sa.make_url(f"postgresql+psycopg:{place}")
        lock = ServerLock(url, request) if request is not None else None
        if lock is not None:
            await lock.take()  # first: nothing may change in a database that another server uses
        try:
            await asyncio.get_running_loop().run_in_executor(None, prepare_postgres, url, schema)
        except BaseException:
            if lock is not None:
                await lock.close()
            raise
        return PostgresStore(url, faults=faults, lock=lock)
    except ImportError as error:
        raise StoreError(
            "this installation cannot speak to PostgreSQL",
            because=f"the package {error.name or 'psycopg'} is missing",
            try_this="pip install 'retinue[postgres]'",
            code="store.driver-missing",
        ) from error
    except exc.ArgumentError as error:
        raise StoreError(
            "the store's address cannot be read",
            because="it is no address of a PostgreSQL database",
            try_this="write it as postgresql://USER@HOST/DATABASE",
            code="store.address-invalid",
        ) from error


def prepare_sqlite(path: Path, *, schema: Schema = SCHEMA) -> None:
    """Create or migrate the file. A rejected file is unchanged, and a migration runs on a copy first."""
    with _telling(path):
        _remove_copy(_rehearsal_of(path))
        if not path.exists():
            _make(path, schema)
        revision = look(path, schema.known)
        refuse_unknown(revision, schema)
        if revision != schema.head:
            _rehearse(path, schema)
        with closing(sqlite.connect(path, writable=True)) as conn:
            if revision != schema.head:
                _upgrade_in_transaction(conn, schema)
            _see_that_it_can_be_written(conn)


def open_inline(
    path: str | Path = ":memory:", *, faults: Faults = NO_FAULTS, yields: bool = True
) -> sqlite.InlineStore:
    """Open a store without threads, for simulation."""
    store = sqlite.InlineStore(path, faults=faults, yields=yields)
    if stored_revision(store.connection) is None:
        _upgrade_in_transaction(store.connection, SCHEMA)
    return store


def stored_revision(conn: sa.Connection) -> str | None:
    """Return the schema revision of a store, or None if it is empty."""
    if not sa.inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def refuse_unknown(revision: str | None, schema: Schema = SCHEMA) -> None:
    if revision is None or revision in schema.known:
        return
    raise StoreError(
        "this store was written by a newer retinue",
        because=f"its schema is {revision}, this version knows {schema.head}",
        try_this="install that version again, or restore a backup from before the upgrade",
        code="store.newer-schema",
    )


def upgrade(conn: sa.Connection, schema: Schema = SCHEMA) -> None:
    """Run the missing migrations within the caller's transaction."""
    if schema.from_tables and stored_revision(conn) is None:
        tables.create(conn, schema.head)
        return
    # Imported on use: a server whose schema is current does not need alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.scripts).replace("%", "%%"))
    config.attributes["connection"] = conn
    if not conn.in_transaction():
        conn.begin()  # otherwise alembic would begin its own transaction and commit it, which only we may do
    try:
        command.upgrade(config, "head")
    except Exception as error:
        explained = explain(error) if isinstance(error, exc.SQLAlchemyError) else None
        if explained is not None and explained.code not in ("store.refused", "store.constraint-broken"):
            raise explained from error  # a full or failing disk is not the migration's fault
        said = explained.because if explained else f"{type(error).__name__}: {error}"
        raise _upgrade_failed(said) from error


def _upgrade_failed(because: str) -> StoreError:
    return StoreError(
        "the store could not be brought up to date, so it was left as it was",
        because=because,
        try_this="keep the previous version running and report this",
        code="store.upgrade-failed",
    )


def _upgrade_in_transaction(conn: sa.Connection, schema: Schema) -> None:
    raw: Any = conn.connection.dbapi_connection
    # Batch mode rebuilds tables. The check below replaces the row-by-row foreign key checks. A view must tolerate
    # that its table is missing between dropping the old one and renaming the new one.
    raw.execute("PRAGMA foreign_keys = OFF")
    raw.execute("PRAGMA legacy_alter_table = ON")
    raw.execute("BEGIN IMMEDIATE")
    try:
        upgrade(conn, schema)
        if raw.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise _upgrade_failed("a row points to another that does not exist")
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    finally:
        raw.execute("PRAGMA legacy_alter_table = OFF")
        raw.execute("PRAGMA foreign_keys = ON")


# --- files ---


def _make(path: Path, schema: Schema) -> None:
    """Create a new store. It appears at its path only when it is complete, so we never leave an empty file there."""
    new = path.with_name(f"{path.name}.new-{os.getpid()}")
    _remove_copy(new)
    try:
        _touch_private(new)
        with closing(sqlite.connect(new, writable=True)) as conn:
            _upgrade_in_transaction(conn, schema)
        _put(new, path)
        sync(path.parent)
    finally:
        _remove_copy(new)


def _put(new: Path, path: Path) -> None:
    """Link the new file into place. Unlike a rename, a link fails if another process has just created the file."""
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        if not path.exists():  # the file system does not support links
            os.rename(new, path)


def _rehearse(path: Path, schema: Schema) -> None:
    """Upgrade a copy first, so that a failing migration leaves the store unchanged."""
    copy = _rehearsal_of(path)
    try:
        _touch_private(copy)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
            if (found := target.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise damaged(str(found[0]))
        with closing(sqlite.connect(copy, writable=True)) as conn:
            _upgrade_in_transaction(conn, schema)
    finally:
        _remove_copy(copy)


def _rehearsal_of(path: Path) -> Path:
    return path.with_name(path.name + ".rehearsal")


def _touch_private(path: Path) -> None:
    """Create an empty file that only the owner can read, from the first byte on: messages are private."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _remove_copy(path: Path) -> None:
    for leftover in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}-journal")):
        leftover.unlink(missing_ok=True)


@contextmanager
def _telling(path: Path) -> Generator[None]:
    """Translate errors of SQLite and the operating system into `StoreError`."""
    try:
        yield
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise explain(error) from error
    except OSError as error:
        said = os.strerror(error.errno) if error.errno else str(error)
        code, try_this = {
            errno.ENOSPC: ("store.disk-full", "free some space, then start again"),
            errno.EDQUOT: ("store.disk-full", "free some space, then start again"),
            errno.EROFS: ("store.read-only", "mount its disk so that it can be written, or move the store"),
            errno.EACCES: ("store.read-only", "check who owns RETINUE_HOME"),
            errno.EPERM: ("store.read-only", "check who owns RETINUE_HOME"),
        }.get(error.errno or 0, ("store.cannot-open", "check that its directory exists and can be written"))
        raise StoreError(
            f"the store cannot be opened at {path}", because=said.lower(), try_this=try_this, code=code
        ) from error


def _see_that_it_can_be_written(conn: sa.Connection) -> None:
    """Check now rather than at the first envelope: SQLite opens a file that it cannot write without an error."""
    raw: Any = conn.connection.dbapi_connection
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("ROLLBACK")


# --- PostgreSQL ---


def prepare_postgres(url: sa.URL, schema: Schema = SCHEMA) -> None:
    """Create or migrate the tables in one transaction."""
    tables.know_postgres()
    engine = sa.create_engine(url)
    try:
        with engine.begin() as conn:
            # Two processes that start at the same time take turns here.
            conn.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": PREPARE_LOCK})
            _see_that_it_keeps_any_text(conn)
            revision = stored_revision(conn)
            refuse_unknown(revision, schema)
            if revision != schema.head:
                upgrade(conn, schema)
    except exc.SQLAlchemyError as error:
        raise explain(error) from error
    finally:
        engine.dispose()


def _see_that_it_keeps_any_text(conn: sa.Connection) -> None:
    encoding = conn.execute(sa.text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise StoreError(
            "this database cannot keep every text",
            because=f"its encoding is {encoding}",
            try_this="make it with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
            code="store.encoding",
        )
