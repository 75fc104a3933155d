"""Operations on bindings. A binding decides which agent answers in which channels."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.address import NAME_LENGTH_MAX
from retinue.domain.agent import PermissionLevel
from retinue.domain.binding import Binding, BindingMatch, PeerKind
from retinue.domain.errors import AmbiguousId
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, parse_id_prefix
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import to_ms
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.connector.errors import BindingMatchInvalid, BindingNotFound
from retinue.store.channels import bindings

MATCH_CHARS_MAX = 512

Meta = msgspec.Meta


class BindingSetRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Bind an agent to channels.

    An omitted field matches every channel. For example, without `peer_kind`, the binding applies to
    channels of every kind.
    """

    agent: Annotated[str, Meta(description="name of the agent that answers")]
    connector: Annotated[
        str, Meta(description="name of a connector, or a platform such as telegram for all its connectors")
    ]
    account: Annotated[str, Meta(description="name of one connector, if `connector` is a platform")] = ""
    peer_kind: Annotated[PeerKind | None, Meta(description="only channels of this kind")] = None
    peer: Annotated[str, Meta(description="only this sender or channel, by its platform id")] = ""
    parent: Annotated[str, Meta(description="only topics of this channel")] = ""
    guild: Annotated[str, Meta(description="only channels of this guild")] = ""
    team: Annotated[str, Meta(description="only channels of this team")] = ""
    extra_agents: Annotated[list[str], Meta(description="name of another agent that also answers")] = []


class BindingIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(description="id of a binding")]


class BindingDetails(msgspec.Struct, frozen=True):
    """One binding: an agent, and the channels in which it answers. An empty field matches every channel."""

    id: str
    agent: str
    connector: str
    account: str
    peer_kind: str
    peer: str
    parent: str
    guild: str
    team: str
    extra_agents: list[str]
    created_by: str


class BindingList(msgspec.Struct, frozen=True):
    bindings: list[BindingDetails]


class BindingSet(msgspec.Struct, frozen=True):
    """The new binding. `replaced` lists the bindings that it replaced."""

    binding: BindingDetails
    replaced: list[BindingDetails]


class BindingRemoved(msgspec.Struct, frozen=True):
    id: str
    removed: bool


async def list_bindings(services: Services, caller: Principal, request: EmptyRequest) -> BindingList:
    return BindingList([_to_details(each) for each in await services.store.scan(bindings.list_all)])


async def set_binding(services: Services, caller: Principal, request: BindingSetRequest) -> BindingSet:
    """Set a binding and remove the bindings that it replaces, in one commit.

    A message that arrives meanwhile uses either the old or the new binding.
    """
    match = _build_match(request)
    binding = Binding(
        id=services.ids.new(),
        agent=request.agent,
        extra_agents=tuple(request.extra_agents),
        match=match,
        created_by=str(caller.address),
    )
    at_ms = to_ms(services.clock.now())

    def body(conn: sa.Connection) -> BindingSet:
        before = {each.id: each for each in bindings.list_all(conn)}
        made = bindings.replace(conn, binding, at_ms=at_ms)
        after = {each.id for each in bindings.list_all(conn)}
        return BindingSet(_to_details(made), [_to_details(each) for id_, each in before.items() if id_ not in after])

    return await services.store.write(body, point="binding")


async def remove_binding(services: Services, caller: Principal, request: BindingIdRequest) -> BindingRemoved:
    digits = parse_id_prefix(request.id)

    def body(conn: sa.Connection) -> BindingRemoved:
        found = [each.id for each in bindings.list_all(conn) if each.id.startswith(digits)]
        if not found:
            raise BindingNotFound(request.id)
        if len(found) > 1:
            raise AmbiguousId(digits, tuple(found[:CANDIDATES_SHOWN_MAX]), matches=len(found))
        return BindingRemoved(found[0], removed=bindings.remove(conn, found[0]))

    return await services.store.write(body, point="binding")


def _build_match(request: BindingSetRequest) -> BindingMatch:
    for name in ("connector", "account", "peer", "parent", "guild", "team"):
        value: str = getattr(request, name)
        longest = NAME_LENGTH_MAX if name in ("connector", "account") else MATCH_CHARS_MAX
        if len(value) > longest or not is_storable(value) or (name == "connector" and not value):
            raise BindingMatchInvalid(name, value, chars_max=longest)
    return BindingMatch(
        connector=request.connector,
        account=request.account,
        peer_kind=request.peer_kind,
        peer=request.peer,
        parent=request.parent,
        guild=request.guild,
        team=request.team,
    )


def _to_details(binding: Binding) -> BindingDetails:
    match = binding.match
    return BindingDetails(
        binding.id,
        binding.agent,
        match.connector,
        match.account,
        match.peer_kind.value if match.peer_kind else "",
        match.peer,
        match.parent,
        match.guild,
        match.team,
        list(binding.extra_agents),
        binding.created_by,
    )


_boss_operation = partial(Operation, permission=PermissionLevel.BOSS, has_effect=True)

OPERATIONS = (
    Operation(
        name="binding.list",
        summary="List which agent answers in which channel.",
        parameters=EmptyRequest,
        handler=list_bindings,
        result=BindingList,
        permission=PermissionLevel.PRIVILEGED,
    ),
    _boss_operation(
        name="binding.set",
        summary="Set which agent answers in a channel, and replace the previous binding.",
        parameters=BindingSetRequest,
        handler=set_binding,
        result=BindingSet,
    ),
    _boss_operation(
        name="binding.remove",
        summary="Remove a binding.",
        parameters=BindingIdRequest,
        handler=remove_binding,
        result=BindingRemoved,
    ),
)
