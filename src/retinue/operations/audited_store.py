"""Writes an audit entry for each operation that changes agents, people, settings, credentials, skills or tokens.

The audit entry is written in the same commit as the change. The code that performs tool calls,
approvals and grants writes the audit entries for them.
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.audit import AuditEntry, AuditKind, operation_performed
from retinue.domain.ports import Clock
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.store.agents import agents, audit
from retinue.store.core.connection import AfterCommit, Store, TransactionBody

T = TypeVar("T")

# Each key is an operation name or the noun of operations. An operation name takes precedence over its noun.
AUDIT_KINDS = {
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


def build_audit_entry(operation: str, request: msgspec.Struct, *, by: str) -> AuditEntry | None:
    """Return the audit entry for an operation, or None if it is not audited or is a dry run."""
    noun = operation.partition(".")[0]
    kind = AUDIT_KINDS.get(operation) or AUDIT_KINDS.get(noun)
    if kind is None or getattr(request, "dry_run", False):
        return None
    return operation_performed(kind, operation, by=by, agent=_find_agent_name(noun, request))


def _find_agent_name(noun: str, request: msgspec.Struct) -> str:
    """Return the name of the agent that the request concerns, spelled as in the request, or "" if there is none."""
    match noun:
        case "agent":
            return getattr(request, "name", "")
        case "token":
            kind, _, name = getattr(request, "principal", "").partition(":")
            return name if kind == AddressKind.AGENT else ""
        case _:
            return getattr(request, "agent", "")


class AuditedStore:
    """Wraps the store for one operation, so that the operation's first commit also writes the audit entry.

    If the audit entry cannot be written, the commit fails. Some operations commit nothing through this
    store, because they write a file or change data through another component. For such an operation,
    `ensure_entry_written` writes the audit entry in a separate commit after the operation.
    """

    def __init__(self, store: Store, entry: AuditEntry, clock: Clock) -> None:
        self._store = store
        self._entry = entry
        self._clock = clock
        self._is_written = False
        self.read = store.read
        self.scan = store.scan
        self.on_commit = store.on_commit
        self.close = store.close

    async def write(self, body: TransactionBody[T], *, point: str, then: AfterCommit[T] | None = None) -> T:
        if self._is_written:
            return await self._store.write(body, point=point, then=then)
        line = partial(_append_entry, entry=self._entry, now_ms=to_ms(self._clock.now()))

        def both(conn: sa.Connection) -> T:
            line(conn)  # first: it locks the sequence row, which serializes writes until COMMIT
            return body(conn)

        done = await self._store.write(both, point=point, then=then)
        self._is_written = True
        return done

    async def ensure_entry_written(self) -> None:
        if not self._is_written:
            await self.write(_write_nothing, point="audit")


def _append_entry(conn: sa.Connection, *, entry: AuditEntry, now_ms: int) -> None:
    if entry.agent and (known := agents.find(conn, entry.agent)) is not None:
        entry = replace(entry, agent=known.name)  # the request may spell it in another case
    audit.append_in_transaction(conn, [entry], now_ms=now_ms)


def _write_nothing(conn: sa.Connection) -> None:
    return None
