"""Store grants. A grant is a remembered approval: calls that it covers need no further approval."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from retinue.domain import permission
from retinue.domain.grant import Grant
from retinue.domain.ids import ApprovalId, GrantId, SessionId
from retinue.domain.times import from_ms, to_ms
from retinue.store.core import tables as t

GRANTS_READ_MAX = 1_000  # per agent
GRANTS_LISTED_MAX = 500

_b = sa.bindparam
_insert = t.grants.insert()
_is_valid = sa.and_(
    t.grants.c.revoked_ms.is_(None), sa.or_(t.grants.c.expires_ms.is_(None), t.grants.c.expires_ms > _b("now"))
)
_of_agent = (
    sa.select(t.grants)
    .where(t.grants.c.agent == _b("the_agent"), _is_valid)
    .order_by(t.grants.c.at_ms, t.grants.c.id)
    .limit(GRANTS_READ_MAX)
)
_listed = sa.select(t.grants).where(_is_valid).order_by(t.grants.c.at_ms, t.grants.c.id).limit(_b("limit"))
_by_prefix = sa.select(t.grants).where(t.grants.c.id.startswith(_b("prefix"))).limit(2)
_by_giver = sa.select(t.grants).where(t.grants.c.granted_by == _b("giver"), _is_valid).limit(GRANTS_READ_MAX)
_revoke = (
    t.grants.update()
    .where(t.grants.c.id == _b("the_id"), t.grants.c.revoked_ms.is_(None))
    .values(revoked_ms=_b("at"), revoked_by=_b("who"))
)


def granted_by_agent(agent: str) -> str:
    """Return the value of `granted_by` for a grant that this agent passes on to another agent.

    For a grant from a person, `granted_by` is the person's name.
    """
    return f"agent:{agent}"


def is_passed_on(grant: Grant) -> bool:
    return ":" in grant.granted_by


def _grant_from_row(row: sa.Row[Any]) -> Grant:
    return Grant(
        id=GrantId(row.id),
        agent=row.agent,
        session=SessionId(row.session) if row.session else None,
        permission=permission.parse_permission(row.permission),
        granted_by=row.granted_by,
        because=row.because,
        at=from_ms(row.at_ms),
        approval=ApprovalId(row.approval) if row.approval else None,
        expires_at=from_ms(row.expires_ms) if row.expires_ms is not None else None,
        revoked_at=from_ms(row.revoked_ms) if row.revoked_ms is not None else None,
        revoked_by=row.revoked_by,
    )


def add(conn: sa.Connection, grant: Grant) -> None:
    conn.execute(
        _insert,
        {
            "id": grant.id,
            "agent": grant.agent,
            "session": grant.session,
            "permission": str(grant.permission),
            "granted_by": grant.granted_by,
            "because": grant.because,
            "approval": grant.approval,
            "at_ms": to_ms(grant.at),
            "expires_ms": to_ms(grant.expires_at) if grant.expires_at is not None else None,
            "revoked_ms": None,
            "revoked_by": "",
        },
    )


def add_once(conn: sa.Connection, grant: Grant) -> bool:
    """Insert a grant unless one with this id exists. Returns whether it was inserted. Safe to repeat after a crash."""
    if find_by_prefix(conn, grant.id):
        return False
    add(conn, grant)
    return True


def list_of_agent(conn: sa.Connection, agent: str, *, now_ms: int) -> list[Grant]:
    """List the grants of an agent that are neither revoked nor expired, for all its sessions."""
    return [_grant_from_row(row) for row in conn.execute(_of_agent, {"the_agent": agent, "now": now_ms})]


def list_grants(conn: sa.Connection, *, now_ms: int, limit: int = GRANTS_LISTED_MAX) -> list[Grant]:
    return [_grant_from_row(row) for row in conn.execute(_listed, {"now": now_ms, "limit": limit})]


def find_by_prefix(conn: sa.Connection, prefix: str) -> list[Grant]:
    """Return up to two grants whose ids start with this prefix. Two grants mean that the prefix is ambiguous."""
    return [_grant_from_row(row) for row in conn.execute(_by_prefix, {"prefix": prefix})]


def revoke_all(conn: sa.Connection, agent: str, *, by: str, at_ms: int) -> list[Grant]:
    """Revoke all grants of an agent, and the grants that it passed on to other agents.

    A new agent with the same name therefore starts without grants.
    """
    ended = list_of_agent(conn, agent, now_ms=at_ms)
    for grant in ended:
        revoke(conn, grant.id, by=by, at_ms=at_ms)
    return [*ended, *revoke_passed_on(conn, agent, by=by, at_ms=at_ms)]


def revoke_passed_on(conn: sa.Connection, agent: str, *, by: str, at_ms: int) -> list[Grant]:
    """Revoke the grants that an agent passed on to others, if the agent no longer has the same permission itself.

    A grant that was passed on cannot be passed on again, so this does not recurse.
    """
    own = [grant for grant in list_of_agent(conn, agent, now_ms=at_ms) if not is_passed_on(grant)]
    given = [_grant_from_row(row) for row in conn.execute(_by_giver, {"giver": granted_by_agent(agent), "now": at_ms})]
    ended = [heir for heir in given if not any(held.permission.covers(heir.permission) for held in own)]
    for heir in ended:
        revoke(conn, heir.id, by=by, at_ms=at_ms)
    return ended


def revoke(conn: sa.Connection, id_: str, *, by: str, at_ms: int) -> bool:
    """Revoke a grant. Returns False if it was already revoked."""
    return conn.execute(_revoke, {"the_id": id_, "at": at_ms, "who": by}).rowcount == 1
