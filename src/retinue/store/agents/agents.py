"""Store agents and all their versions."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import Agent, AgentVersion
from retinue.domain.ids import SessionId
from retinue.domain.renamed_names import SETTINGS
from retinue.domain.structs import replace
from retinue.domain.times import from_ms
from retinue.store.core import tables as t

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_agent_decoder = msgspec.json.Decoder(Agent)
AGENTS_CACHED_MAX = 1024
_SETTINGS_PREFIX = "agents.*."


def _renamed_fields() -> Iterator[tuple[str, str, str]]:
    """Yield the fields of an agent that were renamed since earlier versions, as (group, old name, new name).

    The group is the JSON object that contains the field. It is empty for a top-level field.
    """
    for old, new in SETTINGS.items():
        if old.startswith(_SETTINGS_PREFIX):
            group, _, name = old.removeprefix(_SETTINGS_PREFIX).rpartition(".")
            yield group, name, new.rpartition(".")[2]


_RENAMED_FIELDS = tuple(_renamed_fields())

_find = sa.select(t.agents.c.name, t.agents.c.version, t.agents.c.body, t.agents.c.removed_ms).where(
    t.agents.c.name_folded == _b("name_folded")
)
_insert = t.agents.insert()
_change = (
    t.agents.update()
    .where(t.agents.c.name == _b("the_name"))
    .values(body=_b("new_body"), version=_b("new_version"), source=_b("new_source"), removed_ms=None)
)
_remove = t.agents.update().where(t.agents.c.name_folded == _b("the_name")).values(removed_ms=_b("now"))
_all = sa.select(t.agents.c.body).where(t.agents.c.removed_ms.is_(None)).order_by(t.agents.c.name)
_sources = sa.select(t.agents.c.name, t.agents.c.source).where(t.agents.c.removed_ms.is_(None))
_add_version = t.agent_versions.insert()
_versions = (
    sa.select(t.agent_versions)
    .where(t.agent_versions.c.agent == _b("agent"), t.agent_versions.c.version < _b("before"))
    .order_by(t.agent_versions.c.version.desc())
    .limit(_b("limit"))
)
_version = sa.select(t.agent_versions).where(
    t.agent_versions.c.agent == _b("agent"), t.agent_versions.c.version == _b("version")
)
_sessions_with_open_run = sa.select(t.runs.c.session).where(
    t.runs.c.agent == _b("agent"), t.runs.c.status.in_(t.OPEN_RUN_STATUSES)
)


@functools.lru_cache(maxsize=AGENTS_CACHED_MAX)
def _decode(body: str) -> Agent:
    """Decode an agent from its stored JSON, which may contain the field names of an earlier version.

    Reading does not change the stored JSON. The next change of the agent stores the new names.
    """
    if not any(f'"{old}":' in body for _, old, _ in _RENAMED_FIELDS):
        return _agent_decoder.decode(body)
    fields: dict[str, Any] = msgspec.json.decode(body)
    for group, old, new in _RENAMED_FIELDS:
        table = fields.get(group, {}) if group else fields
        if old in table:
            table.setdefault(new, table.pop(old))
    return msgspec.convert(fields, Agent)


def find(conn: sa.Connection, name: str) -> Agent | None:
    """Return the agent with this name (case-insensitive), or None if there is none or it was removed."""
    row = conn.execute(_find, {"name_folded": name.casefold()}).one_or_none()
    if row is None or row.removed_ms is not None:
        return None
    return _decode(row.body)


def has_existed(conn: sa.Connection, name: str) -> bool:
    """Whether an agent with this name exists or existed."""
    return conn.execute(_find, {"name_folded": name.casefold()}).one_or_none() is not None


def upsert(conn: sa.Connection, agent: Agent, *, source: str, at_ms: int, changed_by: str = "server") -> Agent:
    """Insert an agent, or store a new version of the existing agent with this name.

    The name keeps the spelling with which the agent was first stored. All earlier versions are
    kept.
    """
    row = conn.execute(_find, {"name_folded": agent.name.casefold()}).one_or_none()
    if row is None:
        conn.execute(
            _insert,
            {
                "name": agent.name,
                "name_folded": agent.name.casefold(),
                "version": agent.version,
                "body": _encode(agent).decode(),
                "source": source,
                "created_ms": at_ms,
                "removed_ms": None,
            },
        )
        _insert_version(conn, agent, source=source, changed_by=changed_by, at_ms=at_ms)
        return agent
    changed = replace(agent, name=row.name, version=row.version + 1)
    conn.execute(
        _change,
        {
            "the_name": row.name,
            "new_body": _encode(changed).decode(),
            "new_version": changed.version,
            "new_source": source,
        },
    )
    _insert_version(conn, changed, source=source, changed_by=changed_by, at_ms=at_ms)
    return changed


def _insert_version(conn: sa.Connection, agent: Agent, *, source: str, changed_by: str, at_ms: int) -> None:
    conn.execute(
        _add_version,
        {
            "agent": agent.name,
            "version": agent.version,
            "body": _encode(agent).decode(),
            "source": source,
            "changed_by": changed_by,
            "at_ms": at_ms,
        },
    )


def _version_from_row(row: sa.Row[Any]) -> AgentVersion:
    return AgentVersion(agent=_decode(row.body), source=row.source, changed_by=row.changed_by, at=from_ms(row.at_ms))


def list_versions(conn: sa.Connection, name: str, *, limit: int, before: int = 2**31 - 1) -> Sequence[AgentVersion]:
    """List the versions of an agent, newest first."""
    return [
        _version_from_row(row) for row in conn.execute(_versions, {"agent": name, "before": before, "limit": limit})
    ]


def get_version(conn: sa.Connection, name: str, number: int) -> AgentVersion | None:
    row = conn.execute(_version, {"agent": name, "version": number}).one_or_none()
    return _version_from_row(row) if row else None


def list_working_sessions(conn: sa.Connection, name: str) -> list[SessionId]:
    """List the sessions in which this agent has a running or suspended run."""
    return [SessionId(id_) for id_ in conn.execute(_sessions_with_open_run, {"agent": name}).scalars()]


def remove(conn: sa.Connection, name: str, *, at_ms: int) -> None:
    """Mark an agent as removed. Its sessions and runs stay readable."""
    conn.execute(_remove, {"the_name": name.casefold(), "now": at_ms})


def get_sources(conn: sa.Connection) -> dict[str, str]:
    """Return where the current definition of each agent came from, by the agent's name."""
    return {row.name: row.source for row in conn.execute(_sources)}


def list_all(conn: sa.Connection) -> list[Agent]:
    return [_decode(row.body) for row in conn.execute(_all)]
