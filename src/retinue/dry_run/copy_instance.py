"""Copies an instance for a dry run. The original is only read, and its server may be running."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc

from retinue.app.errors import ServerAlreadyRunning
from retinue.app.offline import open_offline_store, open_read_only, refuse_other_schema
from retinue.config import Settings
from retinue.dry_run.errors import DryRunDiskFull, DryRunTargetExists, DryRunTargetUnwritable
from retinue.schedules.schedule_files import DIRECTORY as SCHEDULES
from retinue.store.core import tables
from retinue.store.core.connection import translate_error
from retinue.store.core.database_rename import find_store_file
from retinue.store.maintenance.backup import STORE, copy_store
from retinue.store.open_store import prepare_sqlite, stored_revision

FOLDER_PREFIX = "retinue-dry-run-"
SPACE_FACTOR = 1.5  # size of the copy with the simulated data, as a multiple of the store
ROWS_PER_BATCH = 1_000
DERIVED_TABLES = frozenset({"record_chunks"})  # derived tables, which the server fills if they are empty


@contextmanager
def copy_folder(keep: str) -> Generator[Path]:
    """Yield the folder for the copy: a temporary folder, or the given folder, which is kept."""
    if not keep:
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
            yield Path(folder)
        return
    folder = Path(keep).expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise DryRunTargetExists(folder) from None
    except OSError as error:
        raise DryRunTargetUnwritable(folder, because=error.strerror or str(error)) from error
    yield folder


def copy_instance(settings: Settings, folder: Path) -> bool:
    """Copy a consistent snapshot of the store. Returns whether a server is running.

    With a PostgreSQL store, always returns True. If no server is running, the schedule files are
    copied too, because they may have changed since the server stopped.
    """
    if isinstance(settings.store, str):
        _copy_postgres(settings.store, folder / STORE)
        return True
    with ExitStack() as opened:
        try:
            store = opened.enter_context(open_offline_store(settings))
            is_open = False
        except ServerAlreadyRunning:
            store = opened.enter_context(open_read_only(find_store_file(settings.store)))
            is_open = True
        _check_free_space(find_store_file(settings.store), folder)
        asyncio.run(store.scan(partial(copy_store, target=folder / STORE)))
        if not is_open:
            _copy_files(settings.home / SCHEDULES, folder / SCHEDULES)
    return is_open


def _check_free_space(store: Path, folder: Path) -> None:
    needed, free = int(store.stat().st_size * SPACE_FACTOR), shutil.disk_usage(folder).free
    if needed > free:
        raise DryRunDiskFull(folder, needed_bytes=needed, free_bytes=free)


def _copy_files(source: Path, target: Path) -> None:
    """Copy regular files. Links are not followed."""
    target.mkdir(mode=0o700)
    for path in source.glob("*.md"):
        if path.is_file() and not path.is_symlink():
            shutil.copy2(path, target / path.name)


def _copy_postgres(url: str, target: Path) -> None:
    """Copy a PostgreSQL database to an SQLite file row by row, from one snapshot. The original is only read."""
    prepare_sqlite(target)
    try:
        source = sa.create_engine(_psycopg_url(url))
        copy = sa.create_engine(f"sqlite:///{target}")
        try:
            with source.connect() as reading, copy.begin() as writing:
                reading.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                refuse_other_schema(stored_revision(reading))
                writing.execute(tables.counters.delete())
                for table in tables.metadata.sorted_tables:
                    if table.name not in DERIVED_TABLES:
                        _copy_table(reading, writing, table)
        finally:
            source.dispose()
            copy.dispose()
    except exc.SQLAlchemyError as error:
        raise translate_error(error) from error


def _copy_table(reading: sa.Connection, writing: sa.Connection, table: sa.Table) -> None:
    rows = reading.execution_options(stream_results=True).execute(sa.select(table))
    for some in rows.partitions(ROWS_PER_BATCH):
        writing.execute(table.insert(), [dict(row._mapping) for row in some])  # pyright: ignore[reportPrivateUsage]


def _psycopg_url(url: str) -> sa.URL:
    return sa.make_url(url).set(drivername="postgresql+psycopg")
