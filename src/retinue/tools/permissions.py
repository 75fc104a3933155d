"""`request_permission` and `grant_permission`: ask a person for a permission, or pass one on to
another agent.
"""

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
from retinue.domain.event import NewsKind
from retinue.domain.grant import Grant
from retinue.domain.ids import GrantId, RunId, derived, short
from retinue.domain.permission import Permission
from retinue.domain.ports import Clock
from retinue.domain.times import to_ms
from retinue.domain.tool import Effect, ToolSpec
from retinue.policy.access.permissions import reaches
from retinue.policy.tools.approvals import LEAST_LEVEL
from retinue.store.agents import agents, grants
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.runs import runs
from retinue.store.runs.run_principal import whose
from retinue.tools.base import Scene, ToolFailed, as_tool_failed, schema_of
from retinue.tools.files import as_granted
from retinue.tools.grants import Grants

REASON_LENGTH_MAX = 1_000
HANDED_ON_S = 86_400.0  # lifetime of a permission that the granting agent holds for one session only

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_LENGTH_MAX)]
Tag = Annotated[str, msgspec.Meta(description="`web`, `read:/path`, `write:/path` or `tool:name`")]


class RequestArguments(msgspec.Struct, forbid_unknown_fields=True):
    permission: Tag
    reason: Reason
    agent: Annotated[str, msgspec.Meta(description="Who is to have it; left out: yourself")] = ""


class GrantArguments(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    permission: Tag
    reason: Reason


class Asks(Protocol):
    """Asks a person for a permission without waiting. The answer arrives as an envelope."""

    async def __call__(self, run: RunId, *, call: str, agent: str, permission: Permission, reason: str) -> Approval: ...


@dataclass(frozen=True, slots=True)
class RequestPermission:
    """Creates one approval per call. Its id derives from the call, so a repeated call asks once."""

    ask: Asks
    held: Grants
    store: Store
    name: str = "request_permission"
    arguments: type[msgspec.Struct] = RequestArguments
    spec: ToolSpec = field(init=False)

    def __post_init__(self) -> None:
        spec = ToolSpec(
            name=self.name,
            description=(
                "Ask the person for a permission that you lack. Returns at once; their decision comes as a message, "
                "and you go on then."
            ),
            parameters=schema_of(RequestArguments),
            capabilities=frozenset({"permissions.request"}),
            repeatable=True,
        )
        object.__setattr__(self, "spec", spec)

    async def perform(self, arguments: RequestArguments, scene: Scene) -> str:
        wanted = await _parsed(arguments.permission)
        reason = _reason(arguments.reason)
        name = arguments.agent or scene.agent.name
        if name.casefold() != scene.agent.name.casefold():
            if not scene.origin.foreground:
                raise ToolFailed(
                    "you can only ask for yourself",
                    because="nobody sits behind this conversation who would know why another needs it",
                    try_this="leave `agent` out",
                    code="permission.for-another",
                )
            name = await _known(self.store, name)
        elif any(have.covers(wanted) for have in await self.held.held(name, scene.session, scene.origin)):
            return f"You have {wanted} already."
        try:
            approval = await self.ask(scene.run, call=scene.call, agent=name, permission=wanted, reason=reason)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        who = ", ".join(str(each) for each in approval.asked_of)
        return f"Asked {who} for {wanted} (approval {short(approval.id)}). The decision will come as a message."


class GrantPermission(Struct, frozen=True):
    """Grants another agent a permission that the granting agent holds.

    The new grant never lasts longer than the grant it derives from. The run principal must have the
    level that decides about permissions.
    """

    store: Store
    clock: Clock
    arguments: type[msgspec.Struct] = GrantArguments
    spec: ToolSpec = msgspec.field(
        default_factory=lambda: ToolSpec(
            name="grant_permission",
            description="Give another agent a permission that you hold yourself, and say why.",
            parameters=schema_of(GrantArguments),
            effects=frozenset({Effect.WRITES}),
            capabilities=frozenset({"permissions.grant"}),
            repeatable=True,  # the grant's id derives from the call
        )
    )

    async def perform(self, arguments: GrantArguments, scene: Scene) -> str:
        wanted = await _parsed(arguments.permission)
        reason = _reason(arguments.reason)
        name = await _known(self.store, arguments.agent)
        if name == scene.agent.name:
            raise ToolFailed(
                "you cannot grant yourself anything",
                because="what was granted for one conversation would count in others",
                try_this="ask for it with request_permission",
                code="permission.to-yourself",
            )
        await self.store.read(partial(_may_give, scene=scene))
        now = self.clock.now()
        giver = await self._holds(scene, wanted, now)
        ends = now + timedelta(seconds=HANDED_ON_S) if giver.session is not None else None
        grant = Grant(
            id=GrantId(derived(scene.run, f"grant/{scene.call}")),
            agent=name,
            session=None,
            permission=wanted,
            granted_by=grants.handed_on_by(scene.agent.name),
            because=reason,
            at=now,
            expires_at=min((at for at in (giver.expires_at, ends) if at is not None), default=None),
        )
        await self.store.write(partial(_hand_on, grant=grant), point="grant")
        until = f" until {grant.expires_at:%Y-%m-%d %H:%M} UTC" if grant.expires_at is not None else ""
        return f"{name} has {wanted} now{until}."

    async def _holds(self, scene: Scene, wanted: Permission, now: datetime) -> Grant:
        """Return the widest grant by which the agent holds the permission and may pass it on."""
        name = scene.agent.name
        found = await self.store.read(partial(grants.of_agent, agent=name, now_ms=to_ms(now)))
        good = [
            grant
            for grant in found
            if grant.permission.covers(wanted)
            and not grants.is_handed_on(grant)
            and (grant.session == scene.session if grant.session is not None else scene.origin.foreground)
        ]
        if not good:
            raise ToolFailed(
                f"you do not hold {wanted} yourself",
                because="no person has granted it to you here, and what another agent gave you is not yours to give",
                try_this="ask for it with request_permission",
                code="permission.not-held",
            )
        return max(good, key=lambda grant: (grant.session is None, grant.expires_at is None))


def _may_give(conn: sa.Connection, scene: Scene) -> None:
    run = runs.get(conn, scene.run)
    behalf = whose(conn, run) if run is not None else None
    if behalf is not None and not reaches(behalf.level, LEAST_LEVEL):
        raise ToolFailed(
            f"nothing is granted for {behalf.address}",
            because=f"deciding about permissions needs {LEAST_LEVEL}, and whom you work for here has {behalf.level}",
            try_this="ask the owner for it with request_permission",
            code="permission.not-theirs",
        )


def _hand_on(conn: sa.Connection, grant: Grant) -> None:
    page = Page(conn, to_ms(grant.at))
    if grants.add_once(conn, grant):
        named = str(grant.permission)
        page.tell(NewsKind.GRANT_CHANGED, grant=grant.id, agent=grant.agent, permission=named, good=True)
    page.close()


async def _parsed(tag: str) -> Permission:
    """Parse a permission and resolve its path now, so that a link changed later cannot widen the
    grant.
    """
    try:
        return await asyncio.to_thread(as_granted, permission.parse(tag))
    except Invalid as error:
        raise as_tool_failed(error) from error


def _reason(text: str) -> str:
    if not text.strip():
        raise ToolFailed(
            "a permission needs a reason",
            because="none was given",
            try_this="say in a few words what it is for",
            code="permission.no-reason",
        )
    return text.strip()


async def _known(store: Store, name: str) -> str:
    agent = await store.read(lambda conn: agents.find(conn, name))
    if agent is None:
        raise ToolFailed(f"there is no agent '{name[:64]}'", because="nobody of that name works here")
    return agent.name
