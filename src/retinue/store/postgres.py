"""The store on PostgreSQL, through psycopg 3: the same bodies, run on a synchronous face of an async connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from retinue.domain.errors import StoreError
from retinue.domain.ports import Faults
from retinue.store.connection import NO_FAULTS, Body, Listeners, explain

T = TypeVar("T")

POOL_SIZE = 8
RETRIES_MAX = 5
_RETRY = ("40001", "40P01")  # serialization failure, deadlock: the database asks us to run the body again


class PostgresStore:
    """Opened by `retinue.store.opening.open_store`."""

    def __init__(self, url: str, *, faults: Faults = NO_FAULTS) -> None:
        self._faults = faults
        self._engine = create_async_engine(url, pool_size=POOL_SIZE, max_overflow=0)
        self._listeners = Listeners()
        self._closed = False

    async def write(self, body: Body[T], *, point: str) -> T:
        for attempt in range(1, RETRIES_MAX + 1):
            try:
                return await self._write_once(body, point)
            except exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in _RETRY or attempt == RETRIES_MAX:
                    raise explain(error) from error
            except exc.SQLAlchemyError as error:
                raise explain(error) from error
        raise AssertionError("unreachable")

    async def _write_once(self, body: Body[T], point: str) -> T:
        async with self._connection() as conn:
            result = await conn.run_sync(body)
            self._faults.reach(f"{point}.before-commit")
            # Once COMMIT is on its way, a cancelled caller must not leave us guessing what became of it.
            await asyncio.shield(conn.commit())
            self._faults.reach(f"{point}.after-commit")
        self._listeners.tell()
        return result

    async def read(self, body: Body[T]) -> T:
        try:
            async with self._connection() as conn:
                return await conn.run_sync(body)
        except exc.SQLAlchemyError as error:
            raise explain(error) from error

    async def scan(self, body: Body[T]) -> T:
        try:
            async with self._connection() as conn:
                await conn.execution_options(isolation_level="REPEATABLE READ")
                return await conn.run_sync(body)
        except exc.SQLAlchemyError as error:
            raise explain(error) from error

    def on_commit(self, call: Callable[[], None]) -> None:
        self._listeners.add(call)

    async def close(self) -> None:
        self._closed = True
        await self._engine.dispose()

    def _connection(self) -> AsyncConnection:
        if self._closed:
            raise StoreError("the house is closing", because="its store was closed", code="store.closed")
        return self._engine.connect()
