"""Determines which grants apply in a session, and which permissions a call lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from retinue.domain.grant import Grant
from retinue.domain.ids import SessionId
from retinue.domain.permission import AgentRights, Permission, PermissionKind
from retinue.domain.session import OriginKind
from retinue.text.glob_match import matches_glob


def list_active_permissions(
    grants: Iterable[Grant], *, agent: str, session: SessionId, origin: OriginKind, now: datetime
) -> tuple[Permission, ...]:
    """Return the permissions that apply in this session.

    A grant that is not limited to one session applies in every session that a person opened. A subagent,
    a schedule or a background job has only the permissions that were granted to its session.
    """
    return tuple(
        grant.permission
        for grant in grants
        if grant.agent == agent
        and grant.revoked_at is None
        and (grant.expires_at is None or now < grant.expires_at)
        and (grant.session == session if grant.session is not None else origin.is_foreground)
    )


def find_missing_permissions(
    needs: Sequence[Permission], rights: AgentRights, held: Sequence[Permission]
) -> tuple[Permission, ...]:
    """Return the needed permissions that the agent does not have."""
    return tuple(
        need
        for need in dict.fromkeys(needs)
        if not (need.kind is PermissionKind.WEB and rights.web) and not any(have.covers(need) for have in held)
    )


def find_tool_grant(held: Iterable[Permission], tool: str) -> Permission | None:
    """Return the granted permission that allows calls of a tool without approval, or None."""
    return next((have for have in held if have.kind is PermissionKind.TOOL and matches_glob(have.target, tool)), None)
