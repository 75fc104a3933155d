"""What was granted, as far as it reaches here; and what a call lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from retinue.domain.grant import Grant
from retinue.domain.ids import SessionId
from retinue.domain.permission import Access, Permission, Rights
from retinue.domain.session import OriginKind
from retinue.text.glob_match import matches_glob


def in_force(
    grants: Iterable[Grant], *, agent: str, session: SessionId, origin: OriginKind, now: datetime
) -> tuple[Permission, ...]:
    """The permissions that count in this session. What was granted for good counts only where a person has opened the
    session: a subagent, a schedule or a task has nothing but what was granted to it."""
    return tuple(
        grant.permission
        for grant in grants
        if grant.agent == agent
        and grant.revoked_at is None
        and (grant.expires_at is None or now < grant.expires_at)
        and (grant.session == session if grant.session is not None else origin.foreground)
    )


def missing(needs: Sequence[Permission], rights: Rights, held: Sequence[Permission]) -> tuple[Permission, ...]:
    """What a call needs and the agent does not have."""
    return tuple(
        need
        for need in dict.fromkeys(needs)
        if not (need.access is Access.WEB and rights.web) and not any(have.covers(need) for have in held)
    )


def lets_use(held: Iterable[Permission], tool: str) -> Permission | None:
    """The grant by which a tool that would be asked about is not."""
    return next((have for have in held if have.access is Access.TOOL and matches_glob(have.what, tool)), None)
