"""Stores for tests: three databases behind one set of calls, and a connection to look at each from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.util import await_only

from retinue.domain.agent import Agent
from retinue.domain.envelope import SettledOutcome
from retinue.domain.person import Person, Role
from retinue.domain.ports import CrashPoints
from retinue.store.agents import agents
from retinue.store.core import sqlite
from retinue.store.core import tables as t
from retinue.store.core.connection import NO_FAULTS, Store, TransactionBody
from retinue.store.envelopes import envelopes
from retinue.store.open_store import open_inline_store, open_store
from retinue.store.people import people
from retinue.testing.local_instance import LocalServer
from retinue.testing.wait_conditions import WAIT_LIMIT_S, wait_until

SQLITE, INLINE, POSTGRES = "sqlite", "inline", "postgres"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The location of a store, which outlives each store that is opened there."""

    kind: str
    url: str

    @asynccontextmanager
    async def open(self, *, faults: CrashPoints = NO_FAULTS) -> AsyncGenerator[Store]:
        if self.kind == INLINE:
            store: Store = open_inline_store(self.url, faults=faults)
        else:
            store = await open_store(self.url, faults=faults)
        try:
            yield store
        finally:
            await store.close()

    @contextmanager
    def outside(self) -> Generator[sa.Connection]:
        """A separate connection, like that of another program. Each statement sees what is committed."""
        if self.kind != POSTGRES:
            with closing(sqlite.connect(self.url, writable=False)) as conn:
                yield conn
            return
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as conn:
                yield conn
        finally:
            engine.dispose()

    def wait_in_body(self, event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        """Make a body wait while others continue: in its thread, or in its greenlet."""
        if self.kind == POSTGRES:
            await_only(event.wait())
        elif self.kind == SQLITE:
            asyncio.run_coroutine_threadsafe(event.wait(), loop).result(timeout=WAIT_LIMIT_S)


def create_store_location(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    if kind == POSTGRES:
        return StoreLocation(kind, request.getfixturevalue("postgres_url"))
    return StoreLocation(kind, str(tmp_path / "retinue.db"))


def count(day: int, source: str) -> TransactionBody[None]:
    """A small write: one row, at most once for each day and source."""

    def body(conn: sa.Connection) -> None:
        conn.execute(t.accepted_counts.insert(), {"day": day, "source": source, "accepted": 1, "purged": 0})

    return body


def list_tallies(conn: sa.Connection) -> list[tuple[int, str]]:
    rows = conn.execute(
        sa.select(t.accepted_counts.c.day, t.accepted_counts.c.source).order_by(
            t.accepted_counts.c.day, t.accepted_counts.c.source
        )
    )
    return [(row.day, row.source) for row in rows]


def add_agents_and_people(*names: str, **changes: Any) -> TransactionBody[None]:
    """Add agents of these names, and the people maria and owner."""

    def body(conn: sa.Connection) -> None:
        for name in names or ("ada",):
            agents.upsert(conn, Agent(name=name, model="scripted", **changes), source="test", at_ms=0)
        for name, role in (("maria", Role.MEMBER), ("owner", Role.OWNER)):
            if people.find(conn, name) is None:
                people.add(conn, Person(name=name, role=role), at_ms=0)

    return body


async def advance_until_settled(server: LocalServer, *ids: str, step_s: float = 300.0) -> list[SettledOutcome]:
    """Advance the clock until these envelopes are done, one step at a time: commits take real time, but no time on the
    clock.
    """

    async def ended() -> list[SettledOutcome] | None:
        found = await server.store.scan(lambda conn: [envelopes.get_outcome(conn, id_) for id_ in ids])
        if None not in found:
            return [settled for settled in found if settled is not None]
        await server.instance.clock.advance(step_s)
        for _ in range(3):  # a step may find what is due, claim it and end it
            await server.store.scan(lambda conn: None)
            await server.store.write(lambda conn: None, point="time-passing")
        return None

    return await wait_until(ended, f"{len(ids)} envelopes have ended") or []
