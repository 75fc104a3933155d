"""A database with the file name of earlier versions: the server renames it, also if it is killed meanwhile."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli.server_process import ServerProcess
from cli.server_process import environment as server_environment

from retinue.store.core.connection import NO_FAULTS
from retinue.store.core.database_rename import find_store_file, rename_former_file
from retinue.store.core.errors import FormerFileInUse, StoreDamaged, StoreFilesConflict
from retinue.store.open_store import KNOWN_REVISIONS, prepare_sqlite
from retinue.testing.fork_server import get_fork_server
from retinue.testing.wait_conditions import WAIT_LIMIT_S

POINTS = (
    "rename-store.begin",
    "rename-store.checkpointed",
    "rename-store.ready",
    "rename-store.renamed",
    "rename-store.done",
)
TEXT = "written before the kill"


def give_former_name(home: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        if (file := home / f"retinue.db{suffix}").exists():
            file.rename(home / f"house.db{suffix}")


def files_of(home: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in home.glob("*.db*")}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instance with the former file name that was killed with commits in its write-ahead log."""
    server = ServerProcess(tmp_path_factory.mktemp("killed") / "home")
    server.open()
    sent = server.retinue("send", "agent:guide", TEXT)
    assert sent.returncode == 0, sent.stderr
    server.kill()
    give_former_name(server.home)
    assert (server.home / "house.db-wal").stat().st_size > 0
    return server.home


@pytest.fixture
def server(killed: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    shutil.copytree(
        killed, tmp_path / "home", symlinks=True, ignore=shutil.ignore_patterns("retinue.sock", "lock", "socket")
    )
    started = ServerProcess(tmp_path / "home")
    yield started
    started.close()


def count_text(home: Path) -> int:
    with closing(sqlite3.connect(f"file:{home / 'retinue.db'}?mode=ro", uri=True)) as raw:
        (found,) = raw.execute("SELECT count(*) FROM envelopes WHERE text = ?", (TEXT,)).fetchone()
    return found


@pytest.mark.parametrize("point", POINTS)
def test_a_server_killed_while_it_renames_the_former_database_file_continues_at_the_next_start(
    server: ServerProcess, point: str, tmp_path: Path
) -> None:
    crash = {"RETINUE_TEST": "1", "RETINUE_TEST_CRASH": f"{point}:1"}
    with (tmp_path / "output").open("wb") as output:
        process = get_fork_server().start(
            "retinue.app.server", environment=server_environment(server.home, **crash), output=output
        )
    assert process.wait(timeout=WAIT_LIMIT_S) == -signal.SIGKILL, (tmp_path / "output").read_text()
    assert (server.home / "house.db").exists() != (server.home / "retinue.db").exists(), (
        "exactly one of the two files exists"
    )

    server.open()

    assert count_text(server.home) == 1
    assert not list(server.home.glob("house.db*"))
    server.close()
    ledger = server.retinue("ledger")
    assert ledger.returncode == 0, ledger.stderr


def test_offline_commands_read_the_former_database_file_and_do_not_rename_it(server: ServerProcess) -> None:
    before = files_of(server.home)
    for command in (["ledger"], ["doctor", "--json"]):
        completed = server.retinue(*command)
        assert "no server was ever started" not in completed.stderr + completed.stdout
        assert "[store." not in completed.stderr, completed.stderr
    after = files_of(server.home)
    # SQLite writes to the shared-memory index when it reads the log of a killed process.
    assert {name: each for name, each in after.items() if "-shm" not in name} == {
        name: each for name, each in before.items() if "-shm" not in name
    }


def test_a_former_and_a_current_database_file_together_are_an_error_and_stay_unchanged(server: ServerProcess) -> None:
    prepare_sqlite(server.home / "retinue.db")
    before = files_of(server.home)
    completed = server.retinue("ledger")
    assert completed.returncode == 1
    assert "[store.files_conflict]" in completed.stderr and "try: move the" in completed.stderr
    with pytest.raises(StoreFilesConflict):
        rename_former_file(server.home / "retinue.db", known_revisions=KNOWN_REVISIONS, faults=NO_FAULTS)
    assert files_of(server.home) == before


def test_a_damaged_former_database_file_is_rejected_unchanged(tmp_path: Path) -> None:
    (tmp_path / "house.db").write_bytes(b"")
    with pytest.raises(StoreDamaged):
        rename_former_file(tmp_path / "retinue.db", known_revisions=KNOWN_REVISIONS, faults=NO_FAULTS)
    assert [each.name for each in tmp_path.iterdir()] == ["house.db"]


def test_a_former_database_file_that_another_program_reads_is_not_renamed(tmp_path: Path) -> None:
    prepare_sqlite(tmp_path / "house.db")
    with closing(sqlite3.connect(tmp_path / "house.db", isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM envelopes").fetchone()
        with closing(sqlite3.connect(tmp_path / "house.db")) as writer:
            writer.execute("UPDATE counters SET latest_ms = 5")
            writer.commit()
        with pytest.raises(FormerFileInUse):
            rename_former_file(tmp_path / "retinue.db", known_revisions=KNOWN_REVISIONS, faults=NO_FAULTS)
    rename_former_file(tmp_path / "retinue.db", known_revisions=KNOWN_REVISIONS, faults=NO_FAULTS)
    assert find_store_file(tmp_path / "retinue.db") == tmp_path / "retinue.db"
    with closing(sqlite3.connect(tmp_path / "retinue.db")) as raw:
        assert raw.execute("SELECT latest_ms FROM counters").fetchone() == (5,)


def test_a_database_file_with_a_configured_name_is_not_renamed(tmp_path: Path) -> None:
    prepare_sqlite(tmp_path / "house.db")
    for path in (tmp_path / "house.db", tmp_path / "other.db"):
        assert find_store_file(path) == path
        rename_former_file(path, known_revisions=KNOWN_REVISIONS, faults=NO_FAULTS)
    assert (tmp_path / "house.db").exists()
