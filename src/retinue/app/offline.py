"""Performs operations for the command line while no server is running. They only read the store.

`python -m retinue.app.offline OPERATION PARAMETERS` prints the response or an error as JSON. It takes
the instance lock, so that no server can start at the same time, and opens the store read-only.
The caller's token has the same permissions as on a running server.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from retinue import __version__
from retinue.app.clock_and_ids import RandomIds, RealClock, new_token
from retinue.app.errors import OfflineStoreUnsupported, ServerNotRunning, StoreSchemaMismatch, TokenFileUnreadable
from retinue.app.instance_files import instance_lock
from retinue.config import Settings, examine_configuration
from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import AmbiguousId, Invalid, NotAllowed, RetinueError
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import NotSignedIn
from retinue.domain.times import to_ms
from retinue.domain.token import TokenKind, hash_token
from retinue.domain.trust import Trust
from retinue.operations.base import Services, parse_request, perform_operation
from retinue.operations.catalog import DEFAULT_PERMISSIONS, OPERATIONS
from retinue.operations.doctor_registry import DoctorContext
from retinue.operations.doctor_registry import run_checks as examine_health
from retinue.operations.server.doctor import DoctorRequest, build_report, check_security
from retinue.operations.server.security_facts import SecurityContext
from retinue.policy.access.operation_permissions import override_levels
from retinue.store.core.connection import AfterCommit, Store, TransactionBody, translate_error
from retinue.store.core.database_rename import STORE_NAME, find_store_file
from retinue.store.core.file_inspection import inspect_file
from retinue.store.core.sqlite import configure
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.store.open_store import OFFLINE_COPY, SCHEMA, copy_and_upgrade
from retinue.store.people import principals

T = TypeVar("T")

OFFLINE_OPERATIONS = (
    "server.ledger",
    "server.why",
    "server.doctor",
    "server.backup",
    "session.export",
    "audit.list",
    "audit.verify",
    "audit.export",
)
"""Operations that work without a running server: their handlers only read the store, and do not use the engine.
`retinue.cli.operation_command` has the same list."""

EXIT_FAILED, EXIT_USAGE = 1, 2
NEVER_STARTED = "no server was ever started there"

LOCAL_OWNER = Principal(address=address.person_address("owner"), level=PermissionLevel.BOSS, trust=Trust.OWNER)
"""The caller if the store with the tokens cannot be opened. File permissions then decide who can read the files."""


class OfflineStore:
    """A read-only store for an instance whose server is not running."""

    def __init__(self, path: Path) -> None:
        engine = sa.create_engine("sqlite://", creator=lambda: _open_sqlite(path), poolclass=NullPool)
        self._conn = engine.connect()

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        raise ServerNotRunning(None, because=f"the store cannot be changed without a running server ({point})")

    async def read(self, body: TransactionBody[T]) -> T:
        return await self.scan(body)

    async def scan(self, body: TransactionBody[T]) -> T:
        try:
            return body(self._conn)
        except exc.SQLAlchemyError as error:
            raise translate_error(error) from error

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        return

    async def close(self) -> None:
        self._conn.close()


class _Unavailable:
    """Placeholder for a service that only a running server has. Any use of it raises `ServerNotRunning`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ServerNotRunning(None, because="this operation needs a running server")


def _open_sqlite(path: Path) -> sqlite3.Connection:
    # Without a WAL file there is only the database file, and `mode=ro` would create a WAL and its index.
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    raw = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False)
    configure(raw, writable=False)
    return raw


@contextmanager
def open_offline_store(settings: Settings) -> Generator[Store]:
    """Open the store of an instance whose server is not running. No server can start until the store is closed."""
    if not settings.home.is_dir():
        raise ServerNotRunning(settings.home, because=NEVER_STARTED)
    if isinstance(settings.store, str):
        raise OfflineStoreUnsupported
    with instance_lock(settings.home), _open_upgraded(find_store_file(settings.store)) as store:
        yield store


@contextmanager
def _open_upgraded(path: Path) -> Generator[Store]:
    """Open a store file read-only. If its schema is older, upgrade a private copy and read that.

    Commands such as `retinue ledger` and `retinue backup` thus work after an upgrade, even before the new version has
    started for the first time. The store itself is not changed.
    """
    if not path.exists():
        raise ServerNotRunning(path.parent, because=NEVER_STARTED)
    folder = path.parent / OFFLINE_COPY
    with ExitStack() as opened:
        try:
            revision = inspect_file(path, SCHEMA.known_revisions)
            if revision in SCHEMA.known_revisions and revision != SCHEMA.head:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700)
                opened.callback(shutil.rmtree, folder, ignore_errors=True)
                path = copy_and_upgrade(path, folder / STORE_NAME)
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise translate_error(error) from error
        yield opened.enter_context(open_read_only(path))


@contextmanager
def open_read_only(path: Path) -> Generator[Store]:
    """Open a store file read-only.

    If the caller does not hold the instance lock, a running server may write to the store at the same time.
    """
    if not path.exists():
        raise ServerNotRunning(path.parent, because=NEVER_STARTED)
    try:
        refuse_other_schema(inspect_file(path, SCHEMA.known_revisions))
        store = OfflineStore(path)
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise translate_error(error) from error
    with closing(store._conn):  # pyright: ignore[reportPrivateUsage]
        yield store


def refuse_other_schema(revision: str | None) -> None:
    """Raise `StoreSchemaMismatch` unless the schema revision is the current one."""
    if revision != SCHEMA.head:
        raise StoreSchemaMismatch(revision, expected=SCHEMA.head)


async def perform_offline(settings: Settings, store: Store, operation: str, body: bytes, token: str) -> bytes:
    """Perform an operation without a server, and return the response as JSON."""
    clock = RealClock()
    absent: Any = _Unavailable()
    caller = await store.scan(lambda conn: _authenticate(conn, token, now_ms=to_ms(clock.now())))
    services = Services(
        store=store,
        intake=absent,
        engine=absent,
        event_broadcast=absent,
        clock=clock,
        ids=RandomIds(),
        new_secret=new_token,
        data_dir=settings.home,
        attachment_files=AttachmentFiles(settings.home / "files"),
        zone=settings.zone,
        version=__version__,
        permission_policy=override_levels(DEFAULT_PERMISSIONS, settings.permission_policy),
    )
    return await perform_operation(services, caller, OPERATIONS[operation], body)


def _authenticate(conn: sa.Connection, token: str, *, now_ms: int) -> Principal:
    known = principals.find_principal(conn, hash_token(token), now_ms=now_ms)
    if known is None or known[1] is not TokenKind.TOKEN:
        raise NotSignedIn
    return known[0]


def _read_token(data_dir: Path, environment: Mapping[str, str]) -> str:
    try:
        return environment.get("RETINUE_TOKEN") or (data_dir / "owner-token").read_text().strip()
    except OSError as error:
        raise TokenFileUnreadable(data_dir / "owner-token", because=str(error.strerror or error)) from error


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in OFFLINE_OPERATIONS:
        sys.stderr.write("usage: python -m retinue.app.offline OPERATION PARAMETERS\n")
        return EXIT_USAGE
    operation, parameters = arguments[0], arguments[1].encode()
    try:
        if operation not in OPERATIONS:
            raise ServerNotRunning(None, because=f"this version has no operation {operation}")
        # Errors in the settings file are reported at start and by `doctor`; they do not prevent reading the store.
        settings = examine_configuration(os.environ).configuration.settings
        try:
            with open_offline_store(settings) as store:
                token = _read_token(settings.home, os.environ)
                response = asyncio.run(perform_offline(settings, store, operation, parameters, token))
        except RetinueError as error:
            if operation != "server.doctor" or isinstance(error, NotSignedIn | NotAllowed | Invalid):
                raise
            response = asyncio.run(_doctor_without_store(settings, error, parse_request(parameters, DoctorRequest)))
    except RetinueError as error:
        sys.stdout.write(json.dumps({"error": _error_body(error)}, ensure_ascii=False) + "\n")
        return EXIT_FAILED
    sys.stdout.write(response.decode() + "\n")
    return 0


async def _doctor_without_store(settings: Settings, store_error: RetinueError, request: DoctorRequest) -> bytes:
    """Perform `server.doctor` without a store. One of the findings is that the store cannot be opened."""
    now = RealClock().now()
    if request.security or request.fix:
        security_context = SecurityContext(
            data_dir=settings.home, environment=os.environ, now=now, store_error=store_error, is_quick=request.quick
        )
        found = await check_security(security_context, LOCAL_OWNER, fix=request.fix)
    else:
        doctor_context = DoctorContext(
            data_dir=settings.home, environment=os.environ, now=now, store_error=store_error, is_quick=request.quick
        )
        found = build_report(await examine_health(doctor_context))
    return msgspec.json.encode(found)


def _error_body(error: RetinueError) -> dict[str, Any]:
    """Return an error as the API would send it."""
    form: dict[str, Any] = {
        "code": error.code,
        "sentence": error.sentence,
        "because": error.because,
        "try": error.try_this,
    }
    if isinstance(error, AmbiguousId):
        form |= {"candidates": error.candidates, "matches": error.matches}
    return form


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
