"""Opening a store: made whole, refused untouched, and never mistaken for another."""

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
from stores import count, counted

from retinue.domain.errors import StoreError
from retinue.store.open_store import open_store, prepare_sqlite
from retinue.testing.local_instance import LocalInstance

PAGE_BYTES = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "house.db"


async def filled(path: Path) -> None:
    """A house in which something happened, closed as it should be."""
    household = LocalInstance(path.parent, url=path)
    async with household.run() as house:
        household.model.will_reply("one", "two")
        await house.wait_for_answer((await house.send("first")).envelope)
        await house.wait_for_answer((await house.send("second")).envelope)
        await house.wait_until_idle()


async def crashed(path: Path) -> None:
    """A house as kill -9 leaves it: its newest commits lie in its log alone."""
    store = await open_store(path)
    for n in range(20):
        await store.write(count(n, "x"), point="test")
    left = {file: file.read_bytes() for file in (path, Path(f"{path}-wal"))}
    await store.close()
    for file, content in left.items():
        file.write_bytes(content)
    assert Path(f"{path}-wal").stat().st_size > 0


def everything_beside(path: Path) -> dict[str, bytes]:
    """Every file of the house byte for byte; but for the log's index, which is rebuilt from the log at will."""
    return {file.name: file.read_bytes() for file in path.parent.glob("*.db*") if not file.name.endswith("-shm")}


async def refusal(path: Path) -> StoreError:
    """How the store refuses to open, having changed nothing."""
    before = everything_beside(path)
    with pytest.raises(StoreError) as refused:
        await open_store(path)
    assert everything_beside(path) == before
    assert refused.value.because and refused.value.try_this
    return refused.value


# Making


async def test_a_new_store_is_ours_alone_and_appears_only_when_it_is_whole(path: Path) -> None:
    prepare_sqlite(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["house.db"]
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT news_seq FROM house").fetchall() == [(0,)]


async def test_the_log_is_as_private_as_the_file(path: Path) -> None:
    store = await open_store(path)
    await store.write(count(1, "x"), point="test")
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    await store.close()
    assert modes == {"house.db": 0o600, "house.db-wal": 0o600, "house.db-shm": 0o600}


def test_a_start_that_was_killed_while_it_made_the_store_leaves_nothing_in_the_way(path: Path) -> None:
    leftover = path.with_name(f"house.db.new-{os.getpid()}")
    leftover.write_bytes(b"half")
    prepare_sqlite(path)
    assert [file.name for file in path.parent.iterdir()] == ["house.db"]


STARTERS = """
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


async def test_processes_that_make_the_store_at_once_open_one_and_the_same(path: Path) -> None:
    command = [sys.executable, "-c", STARTERS, path, Path(__file__).parent.parent]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=120)
    store = await open_store(path)
    assert await store.read(counted) == [(n, "x") for n in range(4)]
    await store.close()


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as refused:
        await open_store(tmp_path / "nowhere" / "house.db")
    assert refused.value.code == "store.cannot_open"
    assert "nowhere" in refused.value.sentence and "directory" in refused.value.try_this


async def test_a_directory_in_the_files_place_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError) as refused:
        await open_store(path)
    assert refused.value.code in ("store.cannot_open", "store.damaged")


# Damage


async def test_a_file_that_is_no_database_is_refused_as_it_is(path: Path) -> None:
    path.write_bytes(b"These are my holiday notes.\n" * 400)
    assert (await refusal(path)).code == "store.damaged"


async def test_an_empty_file_is_a_lost_store_and_not_a_new_one(path: Path) -> None:
    path.write_bytes(b"")
    error = await refusal(path)
    assert error.code == "store.damaged"
    assert "empty" in error.because


@pytest.mark.parametrize("keep", [60, PAGE_BYTES // 2, PAGE_BYTES, 5 * PAGE_BYTES])
async def test_a_truncated_file_is_refused_as_it_is(path: Path, keep: int) -> None:
    await filled(path)
    os.truncate(path, keep)
    error = await refusal(path)
    assert error.code == "store.damaged"
    assert "backup" in error.try_this


@pytest.mark.parametrize("page", [0, 1])
async def test_a_file_whose_first_pages_were_overwritten_is_refused_as_it_is(path: Path, page: int) -> None:
    await filled(path)
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(b"\xff" * PAGE_BYTES)
    assert (await refusal(path)).code == "store.damaged"


async def test_a_file_that_has_lost_its_own_row_is_refused_as_it_is(path: Path) -> None:
    await filled(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DELETE FROM house")
        raw.commit()
    error = await refusal(path)
    assert (error.code, error.because) == ("store.damaged", "the row with its counters is missing")


async def test_a_log_whose_head_is_broken_is_refused_instead_of_forgotten(path: Path) -> None:
    """SQLite itself would take it for empty: twenty acknowledged commits, gone without a word."""
    await crashed(path)
    log = Path(f"{path}-wal")
    whole = log.read_bytes()
    for broken in (b"\0" * 32 + whole[32:], whole[:8] + b"\xff" + whole[9:], os.urandom(len(whole))):
        log.write_bytes(broken)
        error = await refusal(path)
        assert error.code == "store.damaged"
        assert "house.db-wal" in error.because
    log.write_bytes(whole)
    store = await open_store(path)
    assert len(await store.read(counted)) == 20
    await store.close()


async def test_a_log_of_another_kind_of_file_is_refused(path: Path, tmp_path: Path) -> None:
    await filled(path)
    foreign = tmp_path / "other.sqlite"
    raw = sqlite3.connect(foreign, isolation_level=None)
    raw.execute("PRAGMA page_size = 8192")
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("CREATE TABLE t (a)")
    shutil.copy(f"{foreign}-wal", f"{path}-wal")
    raw.close()
    error = await refusal(path)
    assert error.code == "store.damaged"
    assert "belongs to another file" in error.because


async def test_a_file_that_contradicts_its_own_counters_is_refused(path: Path) -> None:
    """So it looks when an old copy of the file is put beside a newer log, or the other way round."""
    await filled(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE house SET envelope_seq = 1")
        raw.commit()
    error = await refusal(path)
    assert (error.code, error.because) == ("store.damaged", "it has more envelopes than its counter says")


async def test_a_store_that_was_killed_is_opened_with_everything_in_it(path: Path) -> None:
    await crashed(path)
    store = await open_store(path)
    assert len(await store.read(counted)) == 20
    await store.close()


async def test_a_log_that_was_cut_off_in_mid_write_is_no_damage(path: Path) -> None:
    """That is what a power cut leaves: the last commit was never acknowledged."""
    await crashed(path)
    log = Path(f"{path}-wal")
    os.truncate(log, log.stat().st_size - 100)
    store = await open_store(path)
    assert len(await store.read(counted)) == 19
    await store.close()


# Other people's files


async def test_another_programs_database_is_not_moved_into(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT)")
        raw.commit()
    error = await refusal(path)
    assert error.code == "store.foreign_database"
    assert "moz_places" in error.because


@pytest.mark.parametrize("killed", [False, True])
async def test_a_store_of_a_newer_version_is_refused_byte_for_byte_as_it_was(path: Path, killed: bool) -> None:
    if killed:
        await crashed(path)
        # A newer version that was killed: what it wrote last is in its log. Written past the log's own checkpoint.
        raw = sqlite3.connect(path, isolation_level=None)
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        raw.execute("UPDATE alembic_version SET version_num = '0099'")
        copies = {file.name: file.read_bytes() for file in path.parent.glob("house.db*")}
        raw.close()
        for name, content in copies.items():
            (path.parent / name).write_bytes(content)
    else:
        await filled(path)
        with closing(sqlite3.connect(path)) as raw:
            raw.execute("UPDATE alembic_version SET version_num = '0099'")
            raw.commit()
    error = await refusal(path)
    assert error.code == "store.newer_schema"
    assert "0099" in error.because and "backup" in error.try_this
    if not killed:
        assert sorted(file.name for file in path.parent.glob("house.db*")) == ["house.db"]


# Places that cannot be written


@contextmanager
def read_only(directory: Path) -> Generator[None]:
    """A directory on a disk that is mounted read-only; for whoever may not mount, one without write permission."""
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


async def test_a_place_that_cannot_be_written_is_named_before_anything_is_accepted(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    with read_only(place), pytest.raises(StoreError) as refused:
        await open_store(place / "house.db")
    assert refused.value.code in ("store.read_only", "store.cannot_open")
    assert refused.value.because and refused.value.try_this


@pytest.mark.parametrize("killed", [False, True])
async def test_a_store_that_cannot_be_written_is_named_before_anything_is_accepted(
    tmp_path: Path, killed: bool
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    if killed:
        await crashed(place / "house.db")
    else:
        prepare_sqlite(place / "house.db")
    with read_only(place):
        error = await refusal(place / "house.db")
    assert error.code in ("store.read_only", "store.cannot_open")
    assert "read-only" in str(error) or "owns" in str(error)


# Addresses


@pytest.mark.parametrize("url", ["postgresql://", "postgres:", "postgresql+psycopg://[broken"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(StoreError) as refused:
        await open_store(url)
    assert refused.value.code in ("store.url_invalid", "store.unreachable")
    assert refused.value.because and refused.value.try_this
