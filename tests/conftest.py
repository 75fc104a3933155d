"""Fixtures and settings for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from retinue.store.open_store import prepare_postgres
from retinue.testing.memory_disk import find_memory_disk
from retinue.testing.postgres import PostgresMissing, PostgresServer, run_postgres_server

pytest_plugins = [
    "spec_plugin",
    "timing_plugin",
    "retry_plugin",
    "steady_plugin",
    "failure_report",
    "pytester",
    "retinue.testing.fault_kit.pytest_plugin",
]

# The contracts are modules that test files import: show the values of their asserts too.
pytest.register_assert_rewrite("contracts")

# A busy machine must not fail a test.
# The same 50 examples in each run, so that results repeat. `make test-slow` uses 200 random examples.
_draws = "RETINUE_SEEDS" in os.environ
settings.register_profile(
    "patient",
    deadline=None,
    derandomize=not _draws,
    max_examples=200 if _draws else 50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

# If a shell runs the tests in the background, they ignore Ctrl-C, and every process that a test starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The environment may have provider keys, and no test may use them.
for _name in [name for name in os.environ if name.endswith("_API_KEY")]:
    del os.environ[_name]


def pytest_collection_finish() -> None:
    """Exclude tests, modules and plugins from garbage collection: they live until the end of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, as the server does."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real PostgreSQL for the session, started on first use. Tests use `postgres_url` instead."""
    try:
        with run_postgres_server() as server:
            yield server
    except PostgresMissing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a template database with all tables and no rows: copying it is faster than creating the tables."""
    with postgres_server.create_database() as url:
        prepare_postgres(sa.make_url(url))
        yield str(sa.make_url(url).database)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a PostgreSQL database with all tables and no rows, as after the first start of a server."""
    with postgres_server.create_database(postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty PostgreSQL database without tables."""
    with postgres_server.create_database() as url:
        yield url


@pytest.fixture(scope="session")
def memory_root() -> Iterator[Path | None]:
    """A directory in memory, deleted at the end of the session; None if there is not enough memory."""
    if (memory := find_memory_disk()) is None:
        yield None
        return
    for left in memory.glob("retinue-test-pid*-*"):  # left by a killed session, it would keep the memory
        if not Path("/proc", left.name.split("-")[2].removeprefix("pid")).exists():
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=f"retinue-test-pid{os.getpid()}-", dir=memory) as root:
        yield Path(root)


@pytest.fixture
def memory_path(memory_root: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary directory in memory. SQLite syncs each commit to the disk, and some tests make thousands.

    `conftest.py` of a package with many such tests returns it as `tmp_path`. Do not mount it into a sandbox, which has
    its own /dev. With RETINUE_TEST_SYNC=1 it is on the disk and kept like `tmp_path`.
    """
    if memory_root is None:
        yield tmp_path_factory.mktemp("test")
        return
    with TemporaryDirectory(dir=memory_root) as path:
        yield Path(path)
