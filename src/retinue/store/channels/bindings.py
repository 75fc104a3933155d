"""Store bindings: rules that determine which agents answer in which channels.

A binding matches channels by the fields in its `match`. No two bindings have the same values in all these fields.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.binding import BINDING_AGENTS_MAX, Binding, BindingMatch, PeerKind
from retinue.domain.shared_errors import AgentNotFound
from retinue.store.agents import agents
from retinue.store.channels.errors import BindingAgentsInvalid, BindingExists, TooManyBindings
from retinue.store.core import tables as t

BINDINGS_MAX = 2_000  # per instance: every message is compared with all of them

_b = sa.bindparam
_c = t.bindings.c
_MATCH = ("connector", "account", "peer_kind", "peer", "parent", "guild", "team")
_all = sa.select(t.bindings).order_by(_c.connector, _c.account, _c.peer, _c.id)
_get = sa.select(t.bindings).where(_c.id == _b("id"))
_by_match = sa.select(t.bindings).where(*(_c[name] == _b(name) for name in _MATCH))
_count = sa.select(sa.func.count()).select_from(t.bindings)
_insert = t.bindings.insert()
_remove = t.bindings.delete().where(_c.id == _b("the_id"))
_clear = t.bindings.delete()
_is_whole_account = sa.and_(*(_c[name] == "" for name in ("peer_kind", "peer", "parent", "guild", "team")))
_accounts_of_agent = sa.select(_c.id).where(_is_whole_account, _c.agent == _b("agent"), _c.connector == _b("connector"))
# A binding may name an account in `account`, or in `connector` alone: both mean the same account.
_by_account = sa.select(_c.id).where(
    _is_whole_account, sa.or_(_c.account == _b("name"), sa.and_(_c.account == "", _c.connector == _b("name")))
)
_in_channel = sa.select(t.bindings).where(
    sa.or_(_c.account == _b("instance"), _c.connector == _b("instance"), _c.account == ""),
    sa.or_(_c.peer == _b("channel"), _c.parent == _b("channel")),
)
_move = t.bindings.update().where(_c.id == _b("the_id")).values(peer=_b("new_peer"), parent=_b("new_parent"))
_names_decoder = msgspec.json.Decoder(tuple[str, ...])
_encode = msgspec.json.Encoder().encode


def _binding_from_row(row: sa.Row[Any]) -> Binding:
    return Binding(
        id=row.id,
        agent=row.agent,
        extra_agents=_names_decoder.decode(row.extra_agents),
        match=BindingMatch(
            connector=row.connector,
            account=row.account,
            peer_kind=PeerKind(row.peer_kind) if row.peer_kind else None,
            peer=row.peer,
            parent=row.parent,
            guild=row.guild,
            team=row.team,
        ),
        created_by=row.made_by,
    )


def _match_values(match: BindingMatch) -> dict[str, str]:
    return {name: str(getattr(match, name) or "") for name in _MATCH}


def list_all(conn: sa.Connection) -> list[Binding]:
    return [_binding_from_row(row) for row in conn.execute(_all)]


def get(conn: sa.Connection, id_: str) -> Binding | None:
    row = conn.execute(_get, {"id": id_}).one_or_none()
    return _binding_from_row(row) if row else None


def get_by_match(conn: sa.Connection, match: BindingMatch) -> Binding | None:
    """Return the binding that has exactly these match fields, or None."""
    row = conn.execute(_by_match, _match_values(match)).one_or_none()
    return _binding_from_row(row) if row else None


def add(conn: sa.Connection, binding: Binding, *, at_ms: int) -> Binding:
    """Insert a binding. Raises `BindingExists` if another binding has the same match fields."""
    if (there := get_by_match(conn, binding.match)) is not None:
        raise BindingExists(agent=there.agent, binding=there.id[:8])
    return _insert_checked(conn, binding, at_ms=at_ms)


def replace(conn: sa.Connection, binding: Binding, *, at_ms: int) -> Binding:
    """Store a binding, replacing the one with the same match fields.

    A binding for a whole account also replaces other whole-account bindings: those for the same
    account, and those of the same agent on this connector. All changes are part of one transaction,
    so every message finds either the old bindings or the new one.
    """
    if (there := get_by_match(conn, binding.match)) is not None:
        conn.execute(_remove, {"the_id": there.id})
    if binding.match.is_account_wide:
        match = binding.match
        mine = conn.execute(_accounts_of_agent, {"agent": binding.agent, "connector": match.connector}).all()
        others = conn.execute(_by_account, {"name": match.account or match.connector}).all()
        for row in (*mine, *others):
            conn.execute(_remove, {"the_id": row.id})
    return _insert_checked(conn, binding, at_ms=at_ms)


def _insert_checked(conn: sa.Connection, binding: Binding, *, at_ms: int) -> Binding:
    found = [agents.find(conn, name) for name in binding.agents]
    if missing := [name for name, agent in zip(binding.agents, found, strict=True) if agent is None]:
        raise AgentNotFound(missing[0])
    spelled = [agent.name for agent in found if agent is not None]
    if len(set(spelled)) < len(spelled) or len(spelled) > BINDING_AGENTS_MAX:
        raise BindingAgentsInvalid(count_max=BINDING_AGENTS_MAX)
    if conn.execute(_count).scalar_one() >= BINDINGS_MAX:
        raise TooManyBindings(count_max=BINDINGS_MAX)
    conn.execute(
        _insert,
        {
            "id": binding.id,
            "agent": spelled[0],
            "extra_agents": _encode(spelled[1:]).decode(),
            **_match_values(binding.match),
            "made_by": binding.created_by,
            "at_ms": at_ms,
        },
    )
    return Binding(
        id=binding.id,
        agent=spelled[0],
        extra_agents=tuple(spelled[1:]),
        match=binding.match,
        created_by=binding.created_by,
    )


def remove(conn: sa.Connection, id_: str) -> bool:
    return bool(conn.execute(_remove, {"the_id": id_}).rowcount)


def remove_all(conn: sa.Connection) -> int:
    """Remove all bindings. Returns how many there were."""
    return conn.execute(_clear).rowcount


def remove_agent(conn: sa.Connection, agent: str, *, at_ms: int) -> int:
    """Remove an agent from all bindings, and delete the bindings that have no other agent.

    Returns how many bindings were changed or deleted.
    """
    going = [each for each in list_all(conn) if agent in each.agents]
    for binding in going:
        conn.execute(_remove, {"the_id": binding.id})
        others = [name for name in binding.agents if name != agent]
        if others:
            row = {
                "id": binding.id,
                "agent": others[0],
                "extra_agents": _encode(others[1:]).decode(),
                **_match_values(binding.match),
            }
            conn.execute(_insert, {**row, "made_by": binding.created_by, "at_ms": at_ms})
    return len(going)


def move_channel(conn: sa.Connection, connector: str, channel: str, new_channel: str) -> int:
    """Change the bindings of a channel to the channel's new id. Returns the number of changed bindings.

    A binding is left unchanged if the result would have the same match fields as another binding.
    """
    moved = 0
    for row in conn.execute(_in_channel, {"instance": connector, "channel": channel}).all():
        binding = _binding_from_row(row)
        match = msgspec.structs.replace(
            binding.match,
            peer=new_channel if binding.match.peer == channel else binding.match.peer,
            parent=new_channel if binding.match.parent == channel else binding.match.parent,
        )
        if get_by_match(conn, match) is None:
            conn.execute(_move, {"the_id": binding.id, "new_peer": match.peer, "new_parent": match.parent})
            moved += 1
    return moved
