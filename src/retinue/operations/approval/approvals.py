"""Operations that list and answer approvals."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import Approval, ApprovalState
from retinue.domain.grant import GrantScope
from retinue.domain.ids import ApprovalId, short_id
from retinue.domain.principal import Principal
from retinue.domain.times import format_time
from retinue.domain.tool import Call
from retinue.operations.base import Operation, Services
from retinue.operations.pagination import check_limit
from retinue.operations.run.runs import format_cursor, parse_cursor
from retinue.policy.tools.approvals import limit_scope, may_decide
from retinue.store.runs import approvals
from retinue.store.sessions import sessions

OPEN_APPROVALS_MAX = 50
LISTED_MIN, LISTED_MAX = 1, 50


class ApprovalDetails(msgspec.Struct, frozen=True, kw_only=True):
    """One approval.

    `needed_permissions` lists the permissions that the tool calls need and that the agent does not have
    yet. `grant_permissions` lists the permissions that the agent keeps if the approval is remembered. If
    there are no calls, it lists the requested permissions. If this list is empty, the approval
    cannot be remembered.

    `recipients` are the people who are asked to decide; the owner may decide too. `scopes` lists the
    grant scopes that you may choose, and is empty if you may not decide. `comment` is the comment on the
    decision, which the agent reads.
    """

    id: ApprovalId
    agent: str
    grantee: str
    session: str
    session_name: str | None
    run: str
    calls: tuple[Call, ...]
    needed_permissions: list[str]
    grant_permissions: list[str]
    because: str
    recipients: list[str]
    scopes: list[GrantScope]
    requested_at: str
    expires_at: str
    state: ApprovalState
    decided_by: str
    decided_at: str | None
    scope: GrantScope | None
    comment: str


class ApprovalListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """List approvals, newest first. `cursor` is the `next` of the previous page."""

    decided: Annotated[bool, msgspec.Meta(description="list decided and expired approvals instead of pending ones")] = (
        False
    )
    limit: int = 20
    cursor: str = ""


class ApprovalList(msgspec.Struct, frozen=True):
    """One page of approvals. `next` is the cursor of the next page. That page can be empty."""

    approvals: list[ApprovalDetails]
    next: str | None


async def list_approvals(services: Services, caller: Principal, request: ApprovalListRequest) -> ApprovalList:
    check_limit(request.limit, least=LISTED_MIN, most=LISTED_MAX)
    after = parse_cursor(request.cursor)

    def body(conn: sa.Connection) -> ApprovalList:
        found, more = approvals.list_page(conn, past=request.decided, after=after, limit=request.limit, seen_by=caller)
        return ApprovalList(
            approvals=[_to_details(services, conn, caller, approval) for approval in found],
            next=format_cursor(more) if more is not None else None,
        )

    return await services.store.scan(body)


def list_open_approvals(services: Services, conn: sa.Connection, caller: Principal) -> list[ApprovalDetails]:
    """Return the open approvals, oldest first."""
    found = approvals.list_open(conn, limit=OPEN_APPROVALS_MAX, seen_by=caller)
    return [_to_details(services, conn, caller, approval) for approval in found]


def _to_details(services: Services, conn: sa.Connection, caller: Principal, approval: Approval) -> ApprovalDetails:
    session = sessions.get(conn, approval.session)
    agent = session.agent if session is not None else ""
    return ApprovalDetails(
        id=approval.id,
        agent=agent,
        grantee=approval.agent or agent,
        session=approval.session,
        session_name=(session.name or None) if session is not None else None,
        run=approval.run,
        calls=approval.calls,
        needed_permissions=[str(each) for each in approval.call_permissions],
        grant_permissions=[str(each) for each in approval.grant_permissions],
        because=approval.because,
        recipients=[str(each) for each in approval.recipients],
        scopes=_allowed_scopes(caller, approval),
        requested_at=format_time(approval.requested_at, services.zone),
        expires_at=format_time(approval.expires_at, services.zone),
        state=approval.state,
        decided_by=approval.decided_by,
        decided_at=format_time(approval.decided_at, services.zone) if approval.decided_at else None,
        scope=approval.scope,
        comment=approval.comment,
    )


def _allowed_scopes(caller: Principal, approval: Approval) -> list[GrantScope]:
    """Return the grant scopes that the caller may choose for an open approval.

    If the permission was requested without a tool call, it cannot be granted for a single call.
    """
    if approval.state is not ApprovalState.OPEN:
        return []
    offered = [scope for scope in GrantScope if approval.calls or scope is not GrantScope.ONCE]
    return [
        scope for scope in offered if limit_scope(scope, approval) and may_decide(caller, approval, scope).is_allowed
    ]


class ApprovalAnswerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Answer an approval.

    `scope` is how long the permission lasts: for these calls only, for this session, or always.
    `because` is a comment for the agent.
    """

    id: str
    allow: bool
    scope: GrantScope = GrantScope.ONCE
    because: Annotated[str, msgspec.Meta(max_length=2_000)] = ""


class ApprovalAnswered(msgspec.Struct):
    approval: str
    state: ApprovalState


async def answer_approval(services: Services, caller: Principal, request: ApprovalAnswerRequest) -> ApprovalAnswered:
    seen = await services.store.read(partial(approvals.get_by_short_id, text=request.id, seen_by=caller))
    approval = await services.engine.answer_approval(
        seen.id, allow=request.allow, by=caller, scope=request.scope, comment=request.because
    )
    return ApprovalAnswered(approval=short_id(approval.id), state=approval.state)


OPERATIONS = (
    Operation(
        name="approval.list",
        summary="List pending or past approvals.",
        parameters=ApprovalListRequest,
        handler=list_approvals,
        permission=PermissionLevel.RESTRICTED,
        result=ApprovalList,
    ),
    Operation(
        name="approval.answer",
        summary="Answer an approval: allow or deny the calls.",
        parameters=ApprovalAnswerRequest,
        handler=answer_approval,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=ApprovalAnswered,
    ),
)
