"""Operations on bindings: which agent answers in which channel."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain.address import NAME_LENGTH_MAX
from retinue.domain.agent import PermissionLevel
from retinue.domain.binding import Binding, Match, PeerKind
from retinue.domain.errors import Ambiguous, Invalid, NotFound
from retinue.domain.ids import CANDIDATES_SHOWN_MAX, prefix
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import to_ms
from retinue.operations.base import Desk, Nothing, Operation
from retinue.store.channels import bindings

PLACE_CHARS_MAX = 512

Meta = msgspec.Meta


class Set(msgspec.Struct, forbid_unknown_fields=True):
    """Omitted fields match everything: without an account, the binding applies to every account of the connector."""

    agent: Annotated[str, Meta(description="who answers there, by name")]
    connector: Annotated[str, Meta(description="a connector by name, or a kind such as telegram for all of that kind")]
    account: Annotated[str, Meta(description="with a kind: only at this connector of it")] = ""
    peer_kind: Annotated[PeerKind | None, Meta(description="only in rooms of this kind")] = None
    peer: Annotated[str, Meta(description="only with this person, by their id there, or in this room")] = ""
    parent: Annotated[str, Meta(description="only in topics of this room")] = ""
    guild: Annotated[str, Meta(description="only in this guild")] = ""
    team: Annotated[str, Meta(description="only in this team")] = ""
    also: Annotated[list[str], Meta(description="an agent that answers there too, for itself")] = []


class One(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, Meta(description="of a binding")]


class BindingShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One binding. Empty fields match everything."""

    id: str
    agent: str
    connector: str
    account: str
    peer_kind: str
    peer: str
    parent: str
    guild: str
    team: str
    also: list[str]
    made_by: str


class BindingsListed(msgspec.Struct, frozen=True):
    bindings: list[BindingShown]


class BindingSet(msgspec.Struct, frozen=True):
    """`replaced` lists the bindings that it replaced."""

    binding: BindingShown
    replaced: list[BindingShown]


class BindingRemoved(msgspec.Struct, frozen=True):
    id: str
    removed: bool


async def listed(desk: Desk, caller: Principal, asked: Nothing) -> BindingsListed:
    return BindingsListed([_form(each) for each in await desk.store.scan(bindings.everything)])


async def set_(desk: Desk, caller: Principal, asked: Set) -> BindingSet:
    """Set a binding and remove those it replaces, in one commit, so every message finds one of them."""
    match = _match(asked)
    binding = Binding(
        id=desk.ids.new(), agent=asked.agent, also=tuple(asked.also), match=match, made_by=str(caller.address)
    )
    at_ms = to_ms(desk.clock.now())

    def body(conn: sa.Connection) -> BindingSet:
        before = {each.id: each for each in bindings.everything(conn)}
        made = bindings.put(conn, binding, at_ms=at_ms)
        after = {each.id for each in bindings.everything(conn)}
        return BindingSet(_form(made), [_form(each) for id_, each in before.items() if id_ not in after])

    return await desk.store.write(body, point="binding")


async def remove(desk: Desk, caller: Principal, asked: One) -> BindingRemoved:
    digits = prefix(asked.id)

    def body(conn: sa.Connection) -> BindingRemoved:
        found = [each.id for each in bindings.everything(conn) if each.id.startswith(digits)]
        if not found:
            raise NotFound(
                f"there is no binding '{asked.id[:64]}'",
                because="it was removed or replaced, or never made",
                try_this="look at `retinue binding list`",
                code="binding.not-found",
            )
        if len(found) > 1:
            raise Ambiguous(digits, tuple(found[:CANDIDATES_SHOWN_MAX]), matches=len(found))
        return BindingRemoved(found[0], removed=bindings.remove(conn, found[0]))

    return await desk.store.write(body, point="binding")


def _match(asked: Set) -> Match:
    for name in ("connector", "account", "peer", "parent", "guild", "team"):
        value: str = getattr(asked, name)
        longest = NAME_LENGTH_MAX if name in ("connector", "account") else PLACE_CHARS_MAX
        if len(value) > longest or not is_storable(value) or (name == "connector" and not value):
            raise Invalid(
                f"`{name}` cannot be {value[:64]!r}",
                because=f"it has at most {longest} characters, and a connector must be named",
                try_this="copy it from `retinue connector list`, or from a letter from there",
                code="binding.place-invalid",
            )
    return Match(
        connector=asked.connector,
        account=asked.account,
        peer_kind=asked.peer_kind,
        peer=asked.peer,
        parent=asked.parent,
        guild=asked.guild,
        team=asked.team,
    )


def _form(binding: Binding) -> BindingShown:
    match = binding.match
    return BindingShown(
        binding.id,
        binding.agent,
        match.connector,
        match.account,
        match.peer_kind.value if match.peer_kind else "",
        match.peer,
        match.parent,
        match.guild,
        match.team,
        list(binding.also),
        binding.made_by,
    )


_operation = partial(Operation, permission=PermissionLevel.BOSS, effect=True)

OPERATIONS = (
    Operation(
        name="binding.list",
        summary="List which agent answers where.",
        parameters=Nothing,
        handler=listed,
        result=BindingsListed,
        permission=PermissionLevel.PRIVILEGED,
    ),
    _operation(
        name="binding.set",
        summary="Have an agent answer somewhere, in place of whoever did.",
        parameters=Set,
        handler=set_,
        result=BindingSet,
    ),
    _operation(
        name="binding.remove",
        summary="Have nobody in particular answer there any more.",
        parameters=One,
        handler=remove,
        result=BindingRemoved,
    ),
)
