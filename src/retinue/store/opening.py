"""Opening a store: schema brought up to date, refused when damaged or made by a newer version."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from retinue.domain.errors import StoreError
from retinue.domain.ports import Faults
from retinue.store import sqlite
from retinue.store.connection import NO_FAULTS, Store, explain
from retinue.store.migrations import HEAD

KNOWN_REVISIONS = frozenset({"0001"})


async def open_store(url: str | Path, *, faults: Faults = NO_FAULTS) -> Store:
    """Open the store at a file path, or at a `postgresql+psycopg://` address. On return it is ready for use."""
    if isinstance(url, str) and url.startswith("postgresql"):
        from retinue.store.postgres import PostgresStore

        await asyncio.get_running_loop().run_in_executor(None, _prepare_postgres, url)
        return PostgresStore(url, faults=faults)
    path = Path(url)
    prepare_sqlite(path)
    return sqlite.SqliteStore(path, faults=faults)


def prepare_sqlite(path: Path) -> None:
    """Make or migrate the file. A migration is rehearsed on a copy before it touches the real one."""
    if not path.exists():
        # Ours alone from the first byte on: letters are private.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        conn = sqlite.connect(path, writable=True)
        try:
            revision = stored_revision(conn)
            if revision == HEAD:
                conn.execute(sa.text("SELECT news_seq FROM house")).one()
                return
            refuse_unknown(revision)
            if revision is not None:
                _rehearse(path)
            _upgrade_in_transaction(conn)
        finally:
            conn.close()
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise explain(error) from error


def open_inline(
    path: str | Path = ":memory:", *, faults: Faults = NO_FAULTS, yields: bool = True
) -> sqlite.InlineStore:
    """A store without threads, for simulation."""
    store = sqlite.InlineStore(path, faults=faults, yields=yields)
    if stored_revision(store.connection) is None:
        _upgrade_in_transaction(store.connection)
    return store


def stored_revision(conn: sa.Connection) -> str | None:
    """Which revision a store has; None for an empty one."""
    if not sa.inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def refuse_unknown(revision: str | None) -> None:
    if revision is None or revision in KNOWN_REVISIONS:
        return
    raise StoreError(
        "this store was written by a newer retinue",
        because=f"its schema is {revision}, this version knows {HEAD}",
        try_this="install that version again, or restore a backup from before the upgrade",
        code="store.newer-schema",
    )


def upgrade(conn: sa.Connection) -> None:
    """Run what is missing, within the caller's transaction."""
    # Imported on use: a house whose schema is current never pays for alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = conn
    command.upgrade(config, "head")


def _upgrade_in_transaction(conn: sa.Connection) -> None:
    raw: Any = conn.connection.dbapi_connection
    raw.execute("PRAGMA foreign_keys = OFF")  # batch mode rebuilds tables; the check below replaces row by row ones
    raw.execute("BEGIN IMMEDIATE")
    try:
        upgrade(conn)
        if raw.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise StoreError(
                "the upgraded store contradicts itself, so the upgrade was undone",
                because="a row points to another that does not exist",
                try_this="keep the previous version running and report this",
                code="store.upgrade-failed",
            )
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    finally:
        raw.execute("PRAGMA foreign_keys = ON")


def _rehearse(path: Path) -> None:
    """Upgrade a copy first: a migration that fails leaves the house as it was."""
    copy = path.with_name(path.name + ".rehearsal")
    copy.unlink(missing_ok=True)
    try:
        with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        conn = sqlite.connect(copy, writable=True)
        try:
            _upgrade_in_transaction(conn)
        finally:
            conn.close()
    finally:
        for leftover in (copy, Path(f"{copy}-wal"), Path(f"{copy}-shm")):
            leftover.unlink(missing_ok=True)


def _prepare_postgres(url: str) -> None:
    engine = sa.create_engine(url)
    try:
        with engine.begin() as conn:
            # Two processes that start at once take turns here.
            conn.execute(sa.text("SELECT pg_advisory_xact_lock(7320451)"))
            revision = stored_revision(conn)
            if revision != HEAD:
                refuse_unknown(revision)
                upgrade(conn)
    except exc.SQLAlchemyError as error:
        raise explain(error) from error
    finally:
        engine.dispose()
