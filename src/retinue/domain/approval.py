"""Approvals: questions that ask a person whether an agent may perform certain tool calls.

Approvals survive restarts, and people can answer them in any client.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from retinue.domain.address import Address
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ApprovalId, RunId, SessionId
from retinue.domain.permission import Permission
from retinue.domain.tool import Call

APPROVAL_EXPIRES_AFTER_S = 24 * 3600.0


class ApprovalState(StrEnum):
    OPEN = "open"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"
    CLOSED = "closed"  # the run was cancelled before a person answered


class Approval(Struct, frozen=True, kw_only=True):
    id: ApprovalId
    session: SessionId
    run: RunId
    calls: tuple[Call, ...]
    because: str
    state: ApprovalState
    requested_at: datetime
    expires_at: datetime
    decided_by: str = ""
    decided_at: datetime | None = None
    is_released: bool = False  # the run continued without the answer, so a decision starts a new run
    call_permissions: tuple[Permission, ...] = ()  # needed by the calls but not granted; any yes allows them
    grant_permissions: tuple[Permission, ...] = ()  # what a lasting yes grants; empty if none is possible
    recipients: tuple[Address, ...] = ()
    agent: str = ""  # the agent that receives the grant; empty: the agent that asked
    scope: GrantScope | None = None  # how long a yes lasts
    comment: str = ""  # comment given with the decision
    escalate_at: datetime | None = None  # when the next person is asked
