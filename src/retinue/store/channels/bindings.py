"""Bindings: at most one for each match."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.binding import BROADCAST_MAX, Binding, Match, PeerKind
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.store.agents import agents
from retinue.store.core import tables as t

BINDINGS_MAX = 2_000  # per instance: every message is compared with all of them

_b = sa.bindparam
_c = t.bindings.c
_MATCH = ("connector", "account", "peer_kind", "peer", "parent", "guild", "team")
_all = sa.select(t.bindings).order_by(_c.connector, _c.account, _c.peer, _c.id)
_get = sa.select(t.bindings).where(_c.id == _b("id"))
_same = sa.select(t.bindings).where(*(_c[name] == _b(name) for name in _MATCH))
_count = sa.select(sa.func.count()).select_from(t.bindings)
_insert = t.bindings.insert()
_remove = t.bindings.delete().where(_c.id == _b("the_id"))
_clear = t.bindings.delete()
_whole = sa.and_(*(_c[name] == "" for name in ("peer_kind", "peer", "parent", "guild", "team")))
_accounts_of_agent = sa.select(_c.id).where(_whole, _c.agent == _b("agent"), _c.connector == _b("connector"))
# An account may be named together with its platform or instead of it: both mean the same account.
_account = sa.select(_c.id).where(
    _whole, sa.or_(_c.account == _b("name"), sa.and_(_c.account == "", _c.connector == _b("name")))
)
_in_room = sa.select(t.bindings).where(
    sa.or_(_c.account == _b("instance"), _c.connector == _b("instance"), _c.account == ""),
    sa.or_(_c.peer == _b("room"), _c.parent == _b("room")),
)
_move = t.bindings.update().where(_c.id == _b("the_id")).values(peer=_b("new_peer"), parent=_b("new_parent"))
_names = msgspec.json.Decoder(tuple[str, ...])
_encode = msgspec.json.Encoder().encode


def _binding(row: sa.Row[Any]) -> Binding:
    return Binding(
        id=row.id,
        agent=row.agent,
        also=_names.decode(row.also),
        match=Match(
            connector=row.connector,
            account=row.account,
            peer_kind=PeerKind(row.peer_kind) if row.peer_kind else None,
            peer=row.peer,
            parent=row.parent,
            guild=row.guild,
            team=row.team,
        ),
        made_by=row.made_by,
    )


def _row(match: Match) -> dict[str, str]:
    return {name: str(getattr(match, name) or "") for name in _MATCH}


def everything(conn: sa.Connection) -> list[Binding]:
    return [_binding(row) for row in conn.execute(_all)]


def get(conn: sa.Connection, id_: str) -> Binding | None:
    row = conn.execute(_get, {"id": id_}).one_or_none()
    return _binding(row) if row else None


def same(conn: sa.Connection, match: Match) -> Binding | None:
    """Return the binding with exactly this match."""
    row = conn.execute(_same, _row(match)).one_or_none()
    return _binding(row) if row else None


def add(conn: sa.Connection, binding: Binding, *, at_ms: int) -> Binding:
    """Insert a binding. Fails if one with the same match exists: `replace` replaces it."""
    if (there := same(conn, binding.match)) is not None:
        raise Conflict(
            f"this place is {there.agent}'s already",
            because=f"binding {there.id[:8]} is for exactly the same place",
            try_this="set it anew, which replaces that one, or say more exactly what it is for",
            code="binding.taken",
        )
    return _write(conn, binding, at_ms=at_ms)


def put(conn: sa.Connection, binding: Binding, *, at_ms: int) -> Binding:
    """Set the binding, replacing the one with the same match.

    An agent has one account of a connector, and an account has one agent. Both are changed in one
    commit, so that no message falls in between.
    """
    if (there := same(conn, binding.match)) is not None:
        conn.execute(_remove, {"the_id": there.id})
    if binding.match.whole_account:
        match = binding.match
        mine = conn.execute(_accounts_of_agent, {"agent": binding.agent, "connector": match.connector}).all()
        others = conn.execute(_account, {"name": match.account or match.connector}).all()
        for row in (*mine, *others):
            conn.execute(_remove, {"the_id": row.id})
    return _write(conn, binding, at_ms=at_ms)


def _write(conn: sa.Connection, binding: Binding, *, at_ms: int) -> Binding:
    found = [agents.find(conn, name) for name in binding.agents]
    if missing := [name for name, agent in zip(binding.agents, found, strict=True) if agent is None]:
        raise NotFound(
            f"there is no agent '{missing[0][:64]}'",
            because="only somebody on the staff can answer",
            try_this="retinue agent list",
            code="agent.not-found",
        )
    spelled = [agent.name for agent in found if agent is not None]
    if len(set(spelled)) < len(spelled) or len(spelled) > BROADCAST_MAX:
        raise Invalid(
            "these agents cannot answer there together",
            because=f"each is named once, and {BROADCAST_MAX} at most",
            try_this="name each of them once",
            code="binding.agents-invalid",
        )
    if conn.execute(_count).scalar_one() >= BINDINGS_MAX:
        raise Conflict(
            "there are too many bindings",
            because=f"a house has {BINDINGS_MAX} at most",
            try_this="bind a whole account, a guild or a team instead of each of its rooms",
            code="binding.too-many",
        )
    conn.execute(
        _insert,
        {
            "id": binding.id,
            "agent": spelled[0],
            "also": _encode(spelled[1:]).decode(),
            **_row(binding.match),
            "made_by": binding.made_by,
            "at_ms": at_ms,
        },
    )
    return Binding(
        id=binding.id, agent=spelled[0], also=tuple(spelled[1:]), match=binding.match, made_by=binding.made_by
    )


def remove(conn: sa.Connection, id_: str) -> bool:
    return bool(conn.execute(_remove, {"the_id": id_}).rowcount)


def clear(conn: sa.Connection) -> int:
    """Remove all bindings."""
    return conn.execute(_clear).rowcount


def forget_agent(conn: sa.Connection, agent: str, *, at_ms: int) -> int:
    """Remove an agent from all bindings. Other agents of a binding stay."""
    going = [each for each in everything(conn) if agent in each.agents]
    for binding in going:
        conn.execute(_remove, {"the_id": binding.id})
        others = [name for name in binding.agents if name != agent]
        if others:
            row = {"id": binding.id, "agent": others[0], "also": _encode(others[1:]).decode(), **_row(binding.match)}
            conn.execute(_insert, {**row, "made_by": binding.made_by, "at_ms": at_ms})
    return len(going)


def move(conn: sa.Connection, instance: str, room: str, new_room: str) -> int:
    """Move the bindings of a channel to its new id, unless the new one already has a binding."""
    moved = 0
    for row in conn.execute(_in_room, {"instance": instance, "room": room}).all():
        binding = _binding(row)
        match = msgspec.structs.replace(
            binding.match,
            peer=new_room if binding.match.peer == room else binding.match.peer,
            parent=new_room if binding.match.parent == room else binding.match.parent,
        )
        if same(conn, match) is None:
            conn.execute(_move, {"the_id": binding.id, "new_peer": match.peer, "new_parent": match.parent})
            moved += 1
    return moved
