"""Opening a store: created completely, refused without a change, and never confused with another database."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from stores import count, list_tallies

from retinue.domain.errors import StoreError
from retinue.store.open_store import open_store, prepare_sqlite
from retinue.testing.local_instance import LocalInstance

PAGE_BYTES = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "retinue.db"


async def make_filled_store(path: Path) -> None:
    """Make a store with some rows, and close it properly."""
    instance = LocalInstance(path.parent, url=path)
    async with instance.run() as server:
        instance.model.will_reply("one", "two")
        await server.wait_for_answer((await server.send("first")).envelope)
        await server.wait_for_answer((await server.send("second")).envelope)
        await server.wait_until_idle()


async def make_crashed_store(path: Path) -> None:
    """Make a store as kill -9 leaves it: its newest commits are only in its WAL."""
    store = await open_store(path)
    for n in range(20):
        await store.write(count(n, "x"), point="test")
    left = {file: file.read_bytes() for file in (path, Path(f"{path}-wal"))}
    await store.close()
    for file, content in left.items():
        file.write_bytes(content)
    assert Path(f"{path}-wal").stat().st_size > 0


def database_files(path: Path) -> dict[str, bytes]:
    """Return the bytes of each database file, except the index of the WAL, which SQLite can rebuild."""
    return {file.name: file.read_bytes() for file in path.parent.glob("*.db*") if not file.name.endswith("-shm")}


async def refusal_of(path: Path) -> StoreError:
    """Return the error with which the store refuses to open, and check that no file has changed."""
    before = database_files(path)
    with pytest.raises(StoreError) as refused:
        await open_store(path)
    assert database_files(path) == before
    assert refused.value.because and refused.value.try_this
    return refused.value


# Creating


async def test_a_new_store_is_private_and_leaves_no_partial_file(path: Path) -> None:
    prepare_sqlite(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["retinue.db"]
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT event_seq FROM counters").fetchall() == [(0,)]


async def test_the_wal_is_as_private_as_the_database_file(path: Path) -> None:
    store = await open_store(path)
    await store.write(count(1, "x"), point="test")
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    await store.close()
    assert modes == {"retinue.db": 0o600, "retinue.db-wal": 0o600, "retinue.db-shm": 0o600}


def test_a_partial_file_of_a_killed_start_does_not_block_the_next_start(path: Path) -> None:
    leftover = path.with_name(f"retinue.db.new-{os.getpid()}")
    leftover.write_bytes(b"half")
    prepare_sqlite(path)
    assert [file.name for file in path.parent.iterdir()] == ["retinue.db"]


CONCURRENT_STARTS_SCRIPT = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import alembic.command
from stores import count
from retinue.store.open_store import open_store

async def start(n: int) -> None:
    store = await open_store(Path(sys.argv[1]))
    await store.write(count(n, "x"), point="test")
    await store.close()

waiting, go = os.pipe()
children = []
for n in range(4):
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(waiting, 1)  # until the other end is closed
        asyncio.run(start(n))
        os._exit(0)
    children.append(child)
os.close(go)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


async def test_processes_that_create_the_store_at_once_open_the_same_store(path: Path) -> None:
    command = [sys.executable, "-c", CONCURRENT_STARTS_SCRIPT, path, Path(__file__).parent.parent]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=120)
    store = await open_store(path)
    assert await store.read(list_tallies) == [(n, "x") for n in range(4)]
    await store.close()


async def test_opening_a_store_in_a_missing_directory_is_refused_and_the_directory_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as refused:
        await open_store(tmp_path / "nowhere" / "retinue.db")
    assert refused.value.code == "store.cannot_open"
    assert "nowhere" in refused.value.sentence and "folder of the file" in refused.value.try_this


async def test_opening_a_store_is_refused_if_the_path_of_the_database_file_is_a_directory(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError) as refused:
        await open_store(path)
    assert refused.value.code in ("store.cannot_open", "store.damaged")


# Damage


async def test_opening_a_store_from_a_file_that_is_no_database_is_refused_and_leaves_it_unchanged(path: Path) -> None:
    path.write_bytes(b"These are my holiday notes.\n" * 400)
    assert (await refusal_of(path)).code == "store.damaged"


async def test_opening_a_store_from_an_empty_database_file_is_refused_as_damaged(path: Path) -> None:
    path.write_bytes(b"")
    error = await refusal_of(path)
    assert error.code == "store.damaged"
    assert "empty" in error.because


@pytest.mark.parametrize("keep", [60, PAGE_BYTES // 2, PAGE_BYTES, 5 * PAGE_BYTES])
async def test_opening_a_store_with_a_truncated_database_file_is_refused_and_leaves_it_unchanged(
    path: Path, keep: int
) -> None:
    await make_filled_store(path)
    os.truncate(path, keep)
    error = await refusal_of(path)
    assert error.code == "store.damaged"
    assert "backup" in error.try_this


@pytest.mark.parametrize("page", [0, 1])
async def test_opening_a_store_with_overwritten_first_pages_is_refused_and_leaves_it_unchanged(
    path: Path, page: int
) -> None:
    await make_filled_store(path)
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(b"\xff" * PAGE_BYTES)
    assert (await refusal_of(path)).code == "store.damaged"


async def test_opening_a_store_without_its_row_of_counters_is_refused_and_leaves_it_unchanged(path: Path) -> None:
    await make_filled_store(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DELETE FROM counters")
        raw.commit()
    error = await refusal_of(path)
    assert (error.code, error.because) == ("store.damaged", "the row with its counters is missing")


async def test_opening_a_store_whose_wal_has_a_damaged_header_is_refused_and_keeps_the_wal(path: Path) -> None:
    """SQLite itself would treat it as empty, and lose twenty acknowledged commits without an error."""
    await make_crashed_store(path)
    log = Path(f"{path}-wal")
    whole = log.read_bytes()
    for broken in (b"\0" * 32 + whole[32:], whole[:8] + b"\xff" + whole[9:], os.urandom(len(whole))):
        log.write_bytes(broken)
        error = await refusal_of(path)
        assert error.code == "store.damaged"
        assert "retinue.db-wal" in error.because
    log.write_bytes(whole)
    store = await open_store(path)
    assert len(await store.read(list_tallies)) == 20
    await store.close()


async def test_opening_a_store_with_the_wal_of_another_database_is_refused(path: Path, tmp_path: Path) -> None:
    await make_filled_store(path)
    foreign = tmp_path / "other.sqlite"
    raw = sqlite3.connect(foreign, isolation_level=None)
    raw.execute("PRAGMA page_size = 8192")
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("CREATE TABLE t (a)")
    shutil.copy(f"{foreign}-wal", f"{path}-wal")
    raw.close()
    error = await refusal_of(path)
    assert error.code == "store.damaged"
    assert "belongs to another file" in error.because


async def test_opening_a_store_that_contradicts_its_counters_is_refused(path: Path) -> None:
    """This happens if an old copy of the file is put beside a newer WAL, or the reverse."""
    await make_filled_store(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE counters SET envelope_seq = 1")
        raw.commit()
    error = await refusal_of(path)
    assert (error.code, error.because) == ("store.damaged", "it has more envelopes than its counter says")


async def test_a_store_opens_with_all_commits_after_a_kill(path: Path) -> None:
    await make_crashed_store(path)
    store = await open_store(path)
    assert len(await store.read(list_tallies)) == 20
    await store.close()


async def test_a_store_whose_wal_is_truncated_in_its_last_commit_opens_without_that_commit(path: Path) -> None:
    """A power cut leaves such a file: the last commit was never acknowledged."""
    await make_crashed_store(path)
    log = Path(f"{path}-wal")
    os.truncate(log, log.stat().st_size - 100)
    store = await open_store(path)
    assert len(await store.read(list_tallies)) == 19
    await store.close()


# Files of others


async def test_opening_a_store_from_the_database_of_another_program_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT)")
        raw.commit()
    error = await refusal_of(path)
    assert error.code == "store.foreign_database"
    assert "moz_places" in error.because


@pytest.mark.parametrize("killed", [False, True])
async def test_opening_a_store_of_a_newer_version_is_refused_and_leaves_it_unchanged(path: Path, killed: bool) -> None:
    if killed:
        await make_crashed_store(path)
        # A newer version that was killed: its last commit is in the WAL only, because there is no checkpoint.
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        raw.execute("UPDATE alembic_version SET version_num = '0099'")
        copies = {file.name: file.read_bytes() for file in path.parent.glob("retinue.db*")}
        raw.close()
        for name, content in copies.items():
            (path.parent / name).write_bytes(content)
    else:
        await make_filled_store(path)
        with closing(sqlite3.connect(path)) as raw:
            raw.execute("UPDATE alembic_version SET version_num = '0099'")
            raw.commit()
    error = await refusal_of(path)
    assert error.code == "store.newer_schema"
    assert "0099" in error.because and "backup" in error.try_this
    if not killed:
        assert sorted(file.name for file in path.parent.glob("retinue.db*")) == ["retinue.db"]


# Directories that cannot be written


@contextmanager
def read_only_directory(directory: Path) -> Generator[None]:
    """A directory on a disk that is mounted read-only, or without write permission if the test cannot mount."""
    if os.geteuid() == 0:
        commands = (["mount", "--bind", directory, directory], ["mount", "-o", "remount,ro,bind", directory])
        for command in commands:
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"nothing can be mounted read-only here: {done.stderr.decode().strip()}")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)
    else:
        directory.chmod(0o500)
        for file in directory.iterdir():
            file.chmod(0o400)
        try:
            yield
        finally:
            directory.chmod(0o700)
            for file in directory.iterdir():
                file.chmod(0o600)


async def test_opening_a_new_store_in_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    with read_only_directory(place), pytest.raises(StoreError) as refused:
        await open_store(place / "retinue.db")
    assert refused.value.code in ("store.read_only", "store.cannot_open")
    assert refused.value.because and refused.value.try_this


@pytest.mark.parametrize("killed", [False, True])
async def test_opening_an_existing_store_in_a_read_only_directory_is_refused(tmp_path: Path, killed: bool) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    if killed:
        await make_crashed_store(place / "retinue.db")
    else:
        prepare_sqlite(place / "retinue.db")
    with read_only_directory(place):
        error = await refusal_of(place / "retinue.db")
    assert error.code in ("store.read_only", "store.cannot_open")
    assert "read-only" in str(error) or "owns" in str(error)


# Addresses


@pytest.mark.parametrize("url", ["postgresql://", "postgres:", "postgresql+psycopg://[broken"])
async def test_opening_a_store_with_an_invalid_database_url_is_refused(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        await open_store(url)
    assert refused.value.code in ("store.url_invalid", "store.unreachable")
    assert refused.value.because and refused.value.try_this
