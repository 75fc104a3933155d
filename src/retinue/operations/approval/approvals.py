"""Operation that lists approvals, open or decided."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ApprovalId
from retinue.domain.principal import Principal
from retinue.domain.times import show
from retinue.domain.tool import Call
from retinue.operations.base import Desk, Operation
from retinue.operations.pagination import check_limit
from retinue.operations.run.run_list import cursor_of, place_of
from retinue.policy.tools.approvals import may_decide, scope_of
from retinue.store.runs import approval_list, approvals
from retinue.store.sessions import sessions

WAITING_SHOWN_MAX = 50
LISTED_MIN, LISTED_MAX = 1, 50


class ApprovalShown(msgspec.Struct, frozen=True, rename="kebab", kw_only=True):
    """One approval.

    `to_reach` lists the permissions that its calls need and do not have yet. `would_grant` lists what a
    lasting yes grants, or what was requested if there are no calls; if it is empty, a yes counts once.

    `asked_of` are the people asked; the owner may answer too. `scopes` are the grant scopes that you may
    choose; it is empty if you may not decide. `words` is the comment on the decision, passed to the
    agent.
    """

    id: ApprovalId
    agent: str
    for_whom: str
    session: str
    session_name: str | None
    run: str
    calls: tuple[Call, ...]
    to_reach: list[str]
    would_grant: list[str]
    because: str
    asked_of: list[str]
    scopes: list[GrantScope]
    asked_at: str
    expires_at: str
    state: ApprovalState
    decided_by: str
    decided_at: str | None
    scope: GrantScope | None
    words: str


class List(msgspec.Struct, forbid_unknown_fields=True):
    """Newest first. `cursor` is the `next` of the previous page."""

    past: Annotated[bool, msgspec.Meta(description="those that are no longer open")] = False
    limit: int = 20
    cursor: str = ""


class ApprovalsListed(msgspec.Struct, frozen=True):
    """One page. `next` is the cursor of the next page, which may be empty for you."""

    approvals: list[ApprovalShown]
    next: str | None


async def listing(desk: Desk, caller: Principal, asked: List) -> ApprovalsListed:
    check_limit(asked.limit, least=LISTED_MIN, most=LISTED_MAX)
    after = place_of(asked.cursor)

    def body(conn: sa.Connection) -> ApprovalsListed:
        found, more = approval_list.page(conn, past=asked.past, after=after, limit=asked.limit, seen_by=caller)
        return ApprovalsListed(
            approvals=[_shown(desk, conn, caller, approval) for approval in found],
            next=cursor_of(more) if more is not None else None,
        )

    return await desk.store.scan(body)


def waiting(desk: Desk, conn: sa.Connection, caller: Principal) -> list[ApprovalShown]:
    """Return the open approvals, oldest first."""
    found = approvals.listed(conn, limit=WAITING_SHOWN_MAX, seen_by=caller)
    return [_shown(desk, conn, caller, approval) for approval in found]


def _shown(desk: Desk, conn: sa.Connection, caller: Principal, approval: Approval) -> ApprovalShown:
    session = sessions.get(conn, approval.session)
    agent = session.agent if session is not None else ""
    return ApprovalShown(
        id=approval.id,
        agent=agent,
        for_whom=approval.agent or agent,
        session=approval.session,
        session_name=(session.name or None) if session is not None else None,
        run=approval.run,
        calls=approval.calls,
        to_reach=[str(each) for each in approval.gives],
        would_grant=[str(each) for each in approval.would_grant],
        because=approval.because,
        asked_of=[str(each) for each in approval.asked_of],
        scopes=_scopes(caller, approval),
        asked_at=show(approval.asked_at, desk.zone),
        expires_at=show(approval.expires_at, desk.zone),
        state=approval.state,
        decided_by=approval.decided_by,
        decided_at=show(approval.decided_at, desk.zone) if approval.decided_at else None,
        scope=approval.scope,
        words=approval.words,
    )


def _scopes(caller: Principal, approval: Approval) -> list[GrantScope]:
    """Return the grant scopes that the caller may choose. A permission requested without a call is never for once."""
    if approval.state is not ApprovalState.OPEN:
        return []
    offered = [scope for scope in GrantScope if approval.calls or scope is not GrantScope.ONCE]
    return [scope for scope in offered if scope_of(scope, approval) and may_decide(caller, approval, scope).allowed]


OPERATIONS = (
    Operation(
        name="approval.list",
        summary="List the questions that wait for an answer, or what became of the others.",
        parameters=List,
        handler=listing,
        permission=PermissionLevel.RESTRICTED,
        result=ApprovalsListed,
    ),
)
