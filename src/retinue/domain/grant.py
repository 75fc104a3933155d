"""Grants: a yes that is worth remembering, for whom, for what and for how long."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.ids import ApprovalId, GrantId, SessionId
from retinue.domain.permission import Permission


class GrantScope(StrEnum):
    ONCE = "once"  # the exact calls that were asked about, and no grant is kept
    SESSION = "session"
    ALWAYS = "always"


class Grant(Struct, frozen=True, kw_only=True):
    """A permission of one agent, in one session or in all of its own. It reaches no subagent, schedule or task."""

    id: GrantId
    agent: str
    session: SessionId | None  # None: in every session of the agent that a person opened
    permission: Permission
    granted_by: str
    because: str
    at: datetime
    approval: ApprovalId | None = None  # the question that it answers
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""
