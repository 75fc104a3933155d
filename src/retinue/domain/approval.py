"""Approvals: questions put to a person about exact calls, answerable from any door, surviving restarts."""

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
    CLOSED = "closed"  # its run was cancelled before anyone answered


class Approval(Struct, frozen=True, kw_only=True):
    id: ApprovalId
    session: SessionId
    run: RunId
    calls: tuple[Call, ...]
    because: str
    state: ApprovalState
    asked_at: datetime
    expires_at: datetime
    decided_by: str = ""
    decided_at: datetime | None = None
    released: bool = False  # its run went on without the answer: a decision now makes a run of its own
    gives: tuple[Permission, ...] = ()  # what any yes gives these calls: what they reach for and nobody had granted
    would_grant: tuple[Permission, ...] = ()  # by a yes for longer than once; none where only these calls are meant
    asked_of: tuple[Address, ...] = ()
    agent: str = ""  # who is to have what was asked for; empty: who asked
    scope: GrantScope | None = None  # of a yes
    words: str = ""  # what was said with the decision
    escalate_at: datetime | None = None  # when the next in line is asked
