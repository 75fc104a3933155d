"""Operations on poison messages: list, retry and drop."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from retinue.connectors.supervisor.poison_messages import closed, not_there
from retinue.domain.access import SetAside, SetAsideState
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Ambiguous
from retinue.domain.ids import prefix
from retinue.domain.principal import Principal
from retinue.domain.times import show as show_time
from retinue.operations.base import Desk, Operation
from retinue.operations.connector.connectors import board_of
from retinue.store.channels import poison_messages

LISTED_MAX = 200


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    every: Annotated[bool, msgspec.Meta(description="also those that are done with")] = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 50


class One(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(description="of what was set aside")]


class SetAsideShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One poison message. `because` is the error that it caused."""

    id: str
    connector: str
    room: str
    message_id: str
    because: str
    tries: int
    state: SetAsideState
    at: str


class SetAsideListed(msgspec.Struct, frozen=True, rename="kebab"):
    set_aside: list[SetAsideShown]


class SetAsideRetried(msgspec.Struct, frozen=True):
    """`envelope` is the accepted envelope, or null if the access rules refused the message."""

    id: str
    envelope: str | None


class SetAsideDropped(msgspec.Struct, frozen=True):
    id: str
    dropped: bool


async def listed(desk: Desk, caller: Principal, asked: Listing) -> SetAsideListed:
    found = await desk.store.scan(partial(poison_messages.listed, limit=asked.limit, every=asked.every))
    return SetAsideListed([_form(desk, each) for each in found])


async def retry(desk: Desk, caller: Principal, asked: One) -> SetAsideRetried:
    found = await _waiting(desk, asked.id)
    receipt = await board_of(desk).offer_again(found.id)
    return SetAsideRetried(found.id, receipt.envelope if receipt is not None else None)


async def drop(desk: Desk, caller: Principal, asked: One) -> SetAsideDropped:
    found = await _waiting(desk, asked.id)
    close = partial(poison_messages.close, id_=found.id, state=SetAsideState.DROPPED)
    return SetAsideDropped(found.id, dropped=await desk.store.write(close, point="connector"))


async def _waiting(desk: Desk, id_: str) -> SetAside:
    found = await desk.store.read(partial(poison_messages.find, prefix=prefix(id_)))
    if not found:
        raise not_there(id_)
    if len(found) > 1:
        raise Ambiguous(prefix(id_), tuple(each.id for each in found), matches=len(found))
    if found[0].state is not SetAsideState.WAITING:
        raise closed(found[0])
    return found[0]


def _form(desk: Desk, each: SetAside) -> SetAsideShown:
    return SetAsideShown(
        each.id,
        each.instance,
        each.room,
        each.message_id,
        each.because,
        each.tries,
        each.state,
        show_time(each.at, desk.zone),
    )


OPERATIONS = (
    Operation(
        name="set-aside.list",
        summary="List messages that the house could not take in.",
        parameters=Listing,
        handler=listed,
        result=SetAsideListed,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="set-aside.retry",
        summary="Take in what was set aside, as if it were said now.",
        parameters=One,
        handler=retry,
        result=SetAsideRetried,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
    Operation(
        name="set-aside.drop",
        summary="Let go of what was set aside.",
        parameters=One,
        handler=drop,
        result=SetAsideDropped,
        permission=PermissionLevel.BOSS,
        effect=True,
    ),
)
