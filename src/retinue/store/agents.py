"""Agents in the store."""

from __future__ import annotations

import functools
from dataclasses import replace

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import Agent
from retinue.store import tables as t

_b = sa.bindparam
_encode = msgspec.json.Encoder().encode
_agent = msgspec.json.Decoder(Agent)
AGENTS_CACHED_MAX = 1024

_find = sa.select(t.agents.c.name, t.agents.c.version, t.agents.c.body, t.agents.c.removed_ms).where(
    t.agents.c.folded == _b("folded")
)
_insert = t.agents.insert()
_change = (
    t.agents.update()
    .where(t.agents.c.name == _b("the_name"))
    .values(body=_b("new_body"), version=_b("new_version"), source=_b("new_source"), removed_ms=None)
)
_remove = t.agents.update().where(t.agents.c.folded == _b("the_name")).values(removed_ms=_b("now"))
_all = sa.select(t.agents.c.body).where(t.agents.c.removed_ms.is_(None)).order_by(t.agents.c.name)


@functools.lru_cache(maxsize=AGENTS_CACHED_MAX)
def _read(body: str) -> Agent:
    return _agent.decode(body)


def find(conn: sa.Connection, name: str) -> Agent | None:
    """The agent of this name, in whatever case it is written; None where there is none, or no longer."""
    row = conn.execute(_find, {"folded": name.casefold()}).one_or_none()
    if row is None or row.removed_ms is not None:
        return None
    return _read(row.body)


def put(conn: sa.Connection, agent: Agent, *, source: str, at_ms: int) -> Agent:
    """Add an agent, or make this its next version. Its first spelling stays."""
    row = conn.execute(_find, {"folded": agent.name.casefold()}).one_or_none()
    if row is None:
        conn.execute(
            _insert,
            {
                "name": agent.name,
                "folded": agent.name.casefold(),
                "version": agent.version,
                "body": _encode(agent).decode(),
                "source": source,
                "created_ms": at_ms,
                "removed_ms": None,
            },
        )
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
    return changed


def remove(conn: sa.Connection, name: str, *, at_ms: int) -> None:
    """Let an agent go. Its sessions and runs stay readable."""
    conn.execute(_remove, {"the_name": name.casefold(), "now": at_ms})


def everyone(conn: sa.Connection) -> list[Agent]:
    return [_read(row.body) for row in conn.execute(_all)]
