"""Answers operations from the store alone, for the command line when no server is running.

`python -m retinue.app.offline OPERATION PARAMETERS` prints the answer or an error as JSON. It takes
the instance lock, so that no server starts meanwhile, and opens the store read-only. Permissions,
validation and visibility are the same as in a running server, for the same token.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from retinue import __version__
from retinue.app.clock_and_ids import RandomIds, RealClock, new_token
from retinue.app.instance_files import instance_lock
from retinue.config import Settings, examine
from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Ambiguous, Invalid, NotAllowed, NotFound, RetinueError, StoreError
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.domain.token import TokenKind, hash_of
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, parse, perform
from retinue.operations.catalog import OPERATIONS, POLICY
from retinue.operations.doctor_registry import Scene
from retinue.operations.doctor_registry import examine as examine_health
from retinue.operations.server.doctor import Doctor, closedness, report
from retinue.operations.server.security_facts import Ground
from retinue.store.core.connection import Body, Store, Then, explain
from retinue.store.core.file_inspection import look
from retinue.store.core.sqlite import configure
from retinue.store.envelopes.attachment_files import Files
from retinue.store.open_store import SCHEMA
from retinue.store.people import principals

T = TypeVar("T")

AT_REST = (
    "house.ledger",
    "house.why",
    "house.doctor",
    "house.backup",
    "session.export",
    "audit.list",
    "audit.verify",
    "audit.export",
)
"""What can be asked of a closed house, as soon as there is an operation of that name. The command line knows them as
`LOOKS_SELF`. Whoever adds one sees to it that its handler only reads the store, and wants nothing of the engine."""

FAILED, USAGE = 1, 2

WHOEVER_IS_HERE = Principal(address=address.person("owner"), level=PermissionLevel.BOSS, trust=Trust.OWNER)
"""Where there is no store to know anyone by: to these files they can do what the system lets them, with us or not."""


class ClosedStore:
    """A store that no server has open. It is only read."""

    def __init__(self, path: Path) -> None:
        engine = sa.create_engine("sqlite://", creator=lambda: _open(path), poolclass=NullPool)
        self._conn = engine.connect()

    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        raise _is_closed(f"nothing can be changed ({point})")

    async def read(self, body: Body[T]) -> T:
        return await self.scan(body)

    async def scan(self, body: Body[T]) -> T:
        try:
            return body(self._conn)
        except exc.SQLAlchemyError as error:
            raise explain(error) from error

    def on_commit(self, call: Callable[[], None], *tables: sa.Table) -> None:
        return

    async def close(self) -> None:
        self._conn.close()


class _NotHere:
    """Takes the place of services that only a running server has: each use raises an error."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _is_closed("this needs the house itself")


def _is_closed(because: str) -> RetinueError:
    return RetinueError("no house is open here", because=because, try_this="retinue up", code="house.closed")


def _open(path: Path) -> sqlite3.Connection:
    # Without a WAL file there is only the database file, and `mode=ro` would create a WAL and its index.
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    raw = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False)
    configure(raw, writable=False)
    return raw


@contextmanager
def closed_store(settings: Settings) -> Generator[Store]:
    """Open the store of an instance that is not running, and keep a server from starting meanwhile."""
    if not settings.home.is_dir():
        raise _is_closed(f"no house was ever opened in {settings.home}")
    if isinstance(settings.store, str):
        raise RetinueError(
            "a closed house on PostgreSQL cannot be looked at from here",
            because="its store is served by the database, which knows no read-only file",
            try_this="retinue up, then ask again",
            code="store.not-a-file",
        )
    with instance_lock(settings.home), read_only(settings.store) as store:
        yield store


@contextmanager
def read_only(path: Path) -> Generator[Store]:
    """Open a store file read-only. Without the instance lock, a running server may write to it meanwhile."""
    if not path.exists():
        raise _is_closed(f"no house was ever opened in {path.parent}")
    try:
        refuse_other_schema(look(path, SCHEMA.known))
        store = ClosedStore(path)
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise explain(error) from error
    with closing(store._conn):  # pyright: ignore[reportPrivateUsage]
        yield store


def refuse_other_schema(revision: str | None) -> None:
    """Raise `StoreError` unless the schema revision is the current one."""
    if revision != SCHEMA.head:
        raise StoreError(
            "this store is of another version",
            because=f"its schema is {revision}, this version reads {SCHEMA.head}",
            try_this="open the house once with `retinue up`: that brings it up to date",
            code="store.other-schema",
        )


async def answer(settings: Settings, store: Store, operation: str, body: bytes, token: str) -> bytes:
    """Perform an operation and return the encoded answer."""
    clock = RealClock()
    absent: Any = _NotHere()
    caller = await store.scan(lambda conn: _caller(conn, token, now_ms=to_ms(clock.now())))
    desk = Desk(
        store=store,
        post=absent,
        engine=absent,
        live=absent,
        clock=clock,
        ids=RandomIds(),
        secrets=new_token,
        home=settings.home,
        files=Files(settings.home / "files"),
        zone=settings.zone,
        version=__version__,
        policy={**POLICY, **settings.permission_policy},
    )
    return await perform(desk, caller, OPERATIONS[operation], body)


def _caller(conn: sa.Connection, token: str, *, now_ms: int) -> Principal:
    known = principals.by_secret(conn, hash_of(token), now_ms=now_ms)
    if known is None or known[1] is not TokenKind.TOKEN:
        raise NotAllowed(
            "who are you?",
            because="your token is none that this house knows",
            try_this="use the token in RETINUE_HOME/owner-token",
            code="auth.not-signed-in",
        )
    return known[0]


def _token(home: Path, environment: Mapping[str, str]) -> str:
    try:
        return environment.get("RETINUE_TOKEN") or (home / "owner-token").read_text().strip()
    except OSError as error:
        raise NotFound(
            "there is no token to sign in with",
            because=f"{home / 'owner-token'} cannot be read ({error.strerror})",
            try_this="open the house once: it makes the owner's token anew",
            code="auth.no-token",
        ) from error


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in AT_REST:
        sys.stderr.write("usage: python -m retinue.app.offline OPERATION PARAMETERS\n")
        return USAGE
    operation, parameters = arguments[0], arguments[1].encode()
    try:
        if operation not in OPERATIONS:
            raise _is_closed(f"{operation} is nothing that this version knows")
        # Errors in the settings file are reported at start and by `doctor`; they do not prevent reading the store.
        settings = examine(os.environ).configuration.settings
        try:
            with closed_store(settings) as store:
                token = _token(settings.home, os.environ)
                heard = asyncio.run(answer(settings, store, operation, parameters, token))
        except RetinueError as error:
            if operation != "house.doctor" or isinstance(error, NotAllowed | Invalid):
                raise
            heard = asyncio.run(_without_a_store(settings, error, parse(parameters, Doctor)))
    except RetinueError as error:
        sys.stdout.write(json.dumps({"error": _form(error)}, ensure_ascii=False) + "\n")
        return FAILED
    sys.stdout.write(heard.decode() + "\n")
    return 0


async def _without_a_store(settings: Settings, trouble: RetinueError, asked: Doctor) -> bytes:
    """Run `doctor` although the store cannot be opened. That is one of its findings."""
    now = RealClock().now()
    if asked.security or asked.fix:
        ground = Ground(home=settings.home, environment=os.environ, now=now, trouble=trouble, quick=asked.quick)
        found = await closedness(ground, WHOEVER_IS_HERE, fix=asked.fix)
    else:
        scene = Scene(home=settings.home, environment=os.environ, now=now, trouble=trouble, quick=asked.quick)
        found = report(await examine_health(scene))
    return msgspec.json.encode(found)


def _form(error: RetinueError) -> dict[str, Any]:
    """Return the error in the format of the API."""
    form: dict[str, Any] = {
        "code": error.code,
        "sentence": error.sentence,
        "because": error.because,
        "try": error.try_this,
    }
    if isinstance(error, Ambiguous):
        form |= {"candidates": error.candidates, "matches": error.matches}
    return form


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
