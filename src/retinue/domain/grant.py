"""Grants: permissions that a person has given to an agent, and how long they last."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.ids import ApprovalId, GrantId, SessionId
from retinue.domain.permission import Permission


class GrantScope(StrEnum):
    ONCE = "once"  # only the calls that were asked about; no grant is stored
    SESSION = "session"
    ALWAYS = "always"


class Grant(Struct, frozen=True, kw_only=True):
    """A permission of one agent, in one of its sessions or in all its sessions that a person opened.

    A grant does not apply to subagents, schedules or background jobs.
    """

    id: GrantId
    agent: str
    session: SessionId | None  # None: in every session of the agent that a person opened
    permission: Permission
    granted_by: str
    because: str
    at: datetime
    approval: ApprovalId | None = None  # the approval that created it
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str = ""
