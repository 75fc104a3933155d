"""Changes of the house itself in its audit: each a line, in the commit of the change.

What is not the house's own is written where it happens: calls, approvals, grants.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.audit import AuditKind, Entry, changed
from retinue.domain.ports import Clock
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.store.agents import agents, audit
from retinue.store.core.connection import Body, Store, Then

T = TypeVar("T")

# By the operation, or by its noun.
AUDITED = {
    "agent": AuditKind.AGENT_CHANGED,
    "binding": AuditKind.SETTINGS_CHANGED,
    "config": AuditKind.SETTINGS_CHANGED,
    "connector": AuditKind.SETTINGS_CHANGED,
    "credential": AuditKind.CREDENTIAL_CHANGED,
    "identity": AuditKind.PERSON_CHANGED,
    "mcp": AuditKind.MCP_APPROVED,
    "pairing": AuditKind.PERSON_CHANGED,
    "person": AuditKind.PERSON_CHANGED,
    "person.forget": AuditKind.FORGOTTEN,
    "plugin": AuditKind.SETTINGS_CHANGED,
    "skill": AuditKind.SKILL_APPROVED,
    "token": AuditKind.TOKEN_MADE,
    "token.revoke": AuditKind.TOKEN_REVOKED,
}


def line_of(operation: str, asked: msgspec.Struct, *, by: str) -> Entry | None:
    """What the audit has of an operation. None where it has nothing, or only a look at what would be done was asked
    for."""
    noun = operation.partition(".")[0]
    kind = AUDITED.get(operation) or AUDITED.get(noun)
    if kind is None or getattr(asked, "dry_run", False):
        return None
    return changed(kind, operation, by=by, agent=_agent_of(noun, asked))


def _agent_of(noun: str, asked: msgspec.Struct) -> str:
    """Whom it concerns, as it was asked for; empty where it concerns no agent."""
    match noun:
        case "agent":
            return getattr(asked, "name", "")
        case "token":
            kind, _, name = getattr(asked, "principal", "").partition(":")
            return name if kind == AddressKind.AGENT else ""
        case _:
            return getattr(asked, "agent", "")


class AuditedStore:
    """The store in the hands of one operation: its first commit has the line, or is not made.

    One that commits nothing here, but writes a file or goes through another part of the house, says with `settle` that
    it is done: then the line has a commit of its own, after it.
    """

    def __init__(self, store: Store, entry: Entry, clock: Clock) -> None:
        self._store = store
        self._entry = entry
        self._clock = clock
        self._is_written = False
        self.read = store.read
        self.scan = store.scan
        self.on_commit = store.on_commit
        self.close = store.close

    async def write(self, body: Body[T], *, point: str, then: Then[T] | None = None) -> T:
        if self._is_written:
            return await self._store.write(body, point=point, then=then)
        line = partial(_write, entry=self._entry, now_ms=to_ms(self._clock.now()))

        def both(conn: sa.Connection) -> T:
            line(conn)  # first: it opens the page, after which writes stand in one line
            return body(conn)

        done = await self._store.write(both, point=point, then=then)
        self._is_written = True
        return done

    async def settle(self) -> None:
        if not self._is_written:
            await self.write(_nothing, point="audit")


def _write(conn: sa.Connection, *, entry: Entry, now_ms: int) -> None:
    if entry.agent and (known := agents.find(conn, entry.agent)) is not None:
        entry = replace(entry, agent=known.name)  # in whatever case it was asked for
    audit.on_its_own(conn, [entry], now_ms=now_ms)


def _nothing(conn: sa.Connection) -> None:
    return None
