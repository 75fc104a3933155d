"""The tools `request_permission` and `grant_permission`: ask a person for a permission, or pass one
on to another agent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Protocol

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import permission
from retinue.domain.approval import Approval
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.event import EventKind
from retinue.domain.grant import Grant
from retinue.domain.ids import GrantId, RunId, derive_id, short_id
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.shared_errors import AgentNotFound
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.policy.access.operation_permissions import is_at_least
from retinue.policy.tools.approvals import APPROVER_LEVEL_MIN
from retinue.store.agents import agents, grants
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.runs import runs
from retinue.store.runs.run_principal import get_run_principal
from retinue.tools.base import ToolContext, as_tool_failed, schema_of
from retinue.tools.errors import (
    PermissionForAnother,
    PermissionNotHeld,
    PermissionReasonMissing,
    PermissionToSelf,
    PrincipalCannotGrant,
)
from retinue.tools.files import resolve_permission
from retinue.tools.grants import GrantCache

REASON_LENGTH_MAX = 1_000
PASSED_ON_GRANT_S = 86_400.0  # lifetime of a permission that the granting agent holds for one session only

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_LENGTH_MAX)]
PermissionTag = Annotated[str, msgspec.Meta(description="`web`, `read:/path`, `write:/path` or `tool:name`")]


class RequestPermissionArguments(msgspec.Struct, forbid_unknown_fields=True):
    permission: PermissionTag
    reason: Reason
    agent: Annotated[str, msgspec.Meta(description="Agent that needs the permission. Default: you")] = ""


class GrantPermissionArguments(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    permission: PermissionTag
    reason: Reason


class PermissionRequester(Protocol):
    """Asks a person for a permission without waiting. The answer arrives as an envelope."""

    async def __call__(self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str) -> Approval: ...


@dataclass(frozen=True, slots=True)
class RequestPermissionTool:
    """The tool `request_permission`: creates one approval per call. The approval's id derives from
    the call, so a repeated call asks once."""

    ask: PermissionRequester
    grants: GrantCache
    store: Store
    name: str = "request_permission"
    arguments: type[msgspec.Struct] = RequestPermissionArguments
    spec: ToolSpec = field(init=False)

    def __post_init__(self) -> None:
        spec = ToolSpec(
            name=self.name,
            description=(
                "Ask a person for a permission that you lack. Returns at once; you get the decision as a message, and "
                "continue then."
            ),
            parameters=schema_of(RequestPermissionArguments),
            capabilities=frozenset({"permissions.request"}),
            is_repeatable=True,
        )
        object.__setattr__(self, "spec", spec)

    async def perform(self, arguments: RequestPermissionArguments, context: ToolContext) -> str:
        wanted = await _parse_permission(arguments.permission)
        reason = _check_reason(arguments.reason)
        name = arguments.agent or context.agent.name
        if name.casefold() != context.agent.name.casefold():
            if not context.origin.is_foreground:
                raise PermissionForAnother
            name = await _resolve_agent_name(self.store, name)
        elif any(
            have.covers(wanted) for have in await self.grants.active_permissions(name, context.session, context.origin)
        ):
            return f"You already have {wanted}."
        try:
            approval = await self.ask(context.run, call=context.call, agent=name, permission=wanted, reason=reason)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        who = ", ".join(str(each) for each in approval.recipients)
        return f"Asked {who} for {wanted} (approval {short_id(approval.id)}). You will get the decision as a message."


class GrantPermissionTool(Struct, frozen=True):
    """The tool `grant_permission`: grants another agent a permission that the granting agent holds.

    The new grant never lasts longer than the grant it derives from. The person on whose behalf the
    run acts must have a permission level that may grant the permission.
    """

    store: Store
    clock: Clock
    arguments: type[msgspec.Struct] = GrantPermissionArguments
    spec: ToolSpec = msgspec.field(
        default_factory=lambda: ToolSpec(
            name="grant_permission",
            description="Grant another agent a permission that a person has granted to you. Returns its expiry.",
            parameters=schema_of(GrantPermissionArguments),
            effects=frozenset({ToolEffect.WRITES}),
            capabilities=frozenset({"permissions.grant"}),
            is_repeatable=True,  # the grant's id derives from the call
        )
    )

    async def perform(self, arguments: GrantPermissionArguments, context: ToolContext) -> str:
        wanted = await _parse_permission(arguments.permission)
        reason = _check_reason(arguments.reason)
        name = await _resolve_agent_name(self.store, arguments.agent)
        if name == context.agent.name:
            raise PermissionToSelf
        await self.store.read(partial(_check_principal_level, context=context))
        now = self.clock.now()
        giver = await self._find_grant(context, wanted, now)
        ends = now + timedelta(seconds=PASSED_ON_GRANT_S) if giver.session is not None else None
        grant = Grant(
            id=GrantId(derive_id(context.run, f"grant/{context.call}")),
            agent=name,
            session=None,
            permission=wanted,
            granted_by=grants.granted_by_agent(context.agent.name),
            because=reason,
            at=now,
            expires_at=min((at for at in (giver.expires_at, ends) if at is not None), default=None),
        )
        await self.store.write(partial(_store_grant, grant=grant), point="grant")
        until = f" until {grant.expires_at:%Y-%m-%d %H:%M} UTC" if grant.expires_at is not None else ""
        return f"{name} now has {wanted}{until}."

    async def _find_grant(self, context: ToolContext, wanted: Permission, now: datetime) -> Grant:
        """Return the widest grant by which the agent holds the permission and may pass it on."""
        name = context.agent.name
        found = await self.store.read(partial(grants.list_of_agent, agent=name, now_ms=to_ms(now)))
        good = [
            grant
            for grant in found
            if grant.permission.covers(wanted)
            and not grants.is_passed_on(grant)
            and (grant.session == context.session if grant.session is not None else context.origin.is_foreground)
        ]
        if not good:
            raise PermissionNotHeld(str(wanted))
        return max(good, key=lambda grant: (grant.session is None, grant.expires_at is None))


def _check_principal_level(conn: sa.Connection, context: ToolContext) -> None:
    run = runs.get(conn, context.run)
    principal = get_run_principal(conn, run) if run is not None else None
    if principal is not None and not is_at_least(principal.level, APPROVER_LEVEL_MIN):
        raise PrincipalCannotGrant(str(principal.address), level=principal.level, needed=APPROVER_LEVEL_MIN)


def _store_grant(conn: sa.Connection, grant: Grant) -> None:
    transaction = Transaction(conn, to_ms(grant.at))
    if grants.add_once(conn, grant):
        named = str(grant.permission)
        transaction.emit(EventKind.GRANT_CHANGED, grant=grant.id, agent=grant.agent, permission=named, good=True)
    transaction.close()


async def _parse_permission(tag: str) -> Permission:
    """Parse a permission and resolve its path now, so that a link changed later cannot widen the
    grant.
    """
    try:
        return await asyncio.to_thread(resolve_permission, permission.parse_permission(tag))
    except Invalid as error:
        raise as_tool_failed(error) from error


def _check_reason(text: str) -> str:
    if not text.strip():
        raise PermissionReasonMissing
    return text.strip()


async def _resolve_agent_name(store: Store, name: str) -> str:
    agent = await store.read(lambda conn: agents.find(conn, name))
    if agent is None:
        raise as_tool_failed(AgentNotFound(name), try_this="use agents_list to see the agents")
    return agent.name
