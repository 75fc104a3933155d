"""SQL conditions that match the rows a principal can see. Every list, lookup, stream and search uses them.

- The owner sees everything.
- A person sees the sessions that belong to them or were shared with them, and the sessions of
  subagents started from those. They also see the envelopes in these sessions, and all envelopes
  that they sent or received.
- An agent sees its own sessions and those it spawned.

An object that the principal cannot see is reported as "not found".

Each statement is built once per scope (see `PerScope`). The principal is passed as bind parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.principal import Principal
from retinue.store.core import tables as t

T = TypeVar("T")

_b = sa.bindparam
_AFTER_SLASH = "0"  # the character after "/": the range from "x/" to "x0" contains every string that begins with "x/"


class VisibilityScope(StrEnum):
    ALL = "all"
    PERSON = "person"
    AGENT = "agent"


def visibility_scope(principal: Principal) -> VisibilityScope:
    if principal.sees_everything:
        return VisibilityScope.ALL
    return VisibilityScope.PERSON if principal.address.kind is AddressKind.PERSON else VisibilityScope.AGENT


def principal_parameters(principal: Principal) -> dict[str, Any]:
    """Return the bind parameters that describe the principal, for the conditions of this module."""
    if visibility_scope(principal) is VisibilityScope.ALL:
        return {}
    address = f"{principal.address.kind}:{principal.address.name}"
    # The address as it appears in a JSON list. Names contain no character with a meaning in a LIKE pattern.
    return {**address_parameters("me", address), "my_name": principal.address.name, "me_listed": f'%"{address}"%'}


def address_parameters(name: str, address: str) -> dict[str, str]:
    """Return the bind parameters for the condition that `is_address_or_below` builds for the same name."""
    return {name: address, f"{name}_from": f"{address}/", f"{name}_to": f"{address}{_AFTER_SLASH}"}


def is_address_or_below(name: str, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return a condition that matches the address in the parameter `name`, and all addresses below it.

    For example, the sessions of an agent have addresses below the address of the agent.
    """
    return sa.or_(column == _b(name), sa.and_(column >= _b(f"{name}_from"), column < _b(f"{name}_to")))


class PerScope(dict[VisibilityScope, T]):
    """Caches one SQL statement for each visibility scope. A statement is built when it is first needed."""

    def __init__(self, build: Callable[[VisibilityScope], T]) -> None:
        self._build = build

    def __missing__(self, scope: VisibilityScope) -> T:
        return self.setdefault(scope, self._build(scope))


def _is_own_address(column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    return is_address_or_below("me", column)


def visible_sessions(scope: VisibilityScope, table: Any = t.sessions) -> sa.ColumnElement[bool]:
    """Return a condition that matches the sessions that the principal in the parameters can see."""
    match scope:
        case VisibilityScope.ALL:
            return sa.true()
        case VisibilityScope.PERSON:
            parent = t.sessions.alias("parent")
            below = sa.exists().where(parent.c.id == table.c.parent, sa.or_(origin_is_own(parent), _is_shared(parent)))
            return sa.or_(origin_is_own(table), _is_shared(table), below)
        case VisibilityScope.AGENT:
            parent = t.sessions.alias("parent")
            spawned = sa.exists().where(parent.c.id == table.c.parent, parent.c.agent == _b("my_name"))
            return sa.or_(table.c.agent == _b("my_name"), spawned)


def _is_shared(table: Any) -> sa.ColumnElement[bool]:
    return sa.exists().where(t.session_shares.c.session == table.c.id, t.session_shares.c.person == _b("my_name"))


def origin_is_own(table: Any) -> sa.ColumnElement[bool]:
    """Return a condition that matches the terminal and web sessions that belong to the person in the parameters."""
    return sa.and_(
        table.c.origin_kind.in_((t.sql_literal("'terminal'"), t.sql_literal("'web'"))),
        _is_own_address(table.c.origin_key),
    )


def visible_envelopes(scope: VisibilityScope) -> sa.ColumnElement[bool]:
    """Return a condition that matches envelopes in visible sessions, and those that the principal sent or received."""
    if scope is VisibilityScope.ALL:
        return sa.true()
    return sa.or_(
        _is_own_address(t.envelopes.c.sender),
        _is_own_address(t.envelopes.c.recipient),
        in_visible_session(scope, t.envelopes.c.session),
    )


def in_visible_session(scope: VisibilityScope, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Return a condition that matches rows, such as runs or records, whose `column` is the id of a visible session."""
    if scope is VisibilityScope.ALL:
        return sa.true()
    seen = t.sessions.alias("seen")
    return sa.exists().where(seen.c.id == column, visible_sessions(scope, seen))


def visible_approvals(scope: VisibilityScope) -> sa.ColumnElement[bool]:
    """Return a condition that matches approvals in visible sessions, and those that the person was asked to decide."""
    if scope is not VisibilityScope.PERSON:
        return in_visible_session(scope, t.approvals.c.session)
    return sa.or_(in_visible_session(scope, t.approvals.c.session), t.approvals.c.asked.like(_b("me_listed")))


_visible_session_by_id = PerScope(
    lambda scope: sa.select(t.sessions.c.id).where(t.sessions.c.id == _b("id"), visible_sessions(scope))
)
_visible_envelope_by_id = PerScope(
    lambda scope: sa.select(t.envelopes.c.id).where(t.envelopes.c.id == _b("id"), visible_envelopes(scope))
)


def can_see_session(conn: sa.Connection, principal: Principal, id_: str | None) -> bool:
    if id_ is None:
        return False
    return (
        conn.execute(
            _visible_session_by_id[visibility_scope(principal)], {"id": id_, **principal_parameters(principal)}
        ).scalar()
        is not None
    )


def can_see_envelope(conn: sa.Connection, principal: Principal, id_: str) -> bool:
    return (
        conn.execute(
            _visible_envelope_by_id[visibility_scope(principal)], {"id": id_, **principal_parameters(principal)}
        ).scalar()
        is not None
    )
