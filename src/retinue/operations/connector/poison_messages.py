"""Operations that list, retry and drop poison messages: inbound messages that could not be processed."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from retinue.connectors.errors import PoisonMessageClosed, PoisonMessageNotFound
from retinue.domain.access import PoisonMessage, PoisonMessageState
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import AmbiguousId
from retinue.domain.ids import parse_id_prefix
from retinue.domain.principal import Principal
from retinue.domain.times import format_time as show_time
from retinue.operations.base import Operation, Services
from retinue.operations.connector.connectors import require_supervisor
from retinue.store.channels import poison_messages

LISTED_MAX = 200


class PoisonMessageListRequest(msgspec.Struct, forbid_unknown_fields=True):
    all: Annotated[bool, msgspec.Meta(description="include retried and dropped messages")] = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = 50


class PoisonMessageIdRequest(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(description="id of an unprocessed message")]


class PoisonMessageDetails(msgspec.Struct, frozen=True):
    """One poison message: an inbound message that could not be processed. `because` is the error that it caused."""

    id: str
    connector: str
    channel: str
    message_id: str
    because: str
    attempts: int
    state: PoisonMessageState
    at: str


class PoisonMessageList(msgspec.Struct, frozen=True):
    poison_messages: list[PoisonMessageDetails]


class PoisonMessageRetried(msgspec.Struct, frozen=True):
    """Result of a retry. `envelope` is the accepted envelope, or null if the access rules refused the message."""

    id: str
    envelope: str | None


class PoisonMessageDropped(msgspec.Struct, frozen=True):
    id: str
    dropped: bool


async def list_poison_messages(
    services: Services, caller: Principal, request: PoisonMessageListRequest
) -> PoisonMessageList:
    found = await services.store.scan(
        partial(poison_messages.list_messages, limit=request.limit, include_closed=request.all)
    )
    return PoisonMessageList([_to_details(services, each) for each in found])


async def retry_poison_message(
    services: Services, caller: Principal, request: PoisonMessageIdRequest
) -> PoisonMessageRetried:
    found = await _require_waiting(services, request.id)
    receipt = await require_supervisor(services).retry_poison_message(found.id)
    return PoisonMessageRetried(found.id, receipt.envelope if receipt is not None else None)


async def drop_poison_message(
    services: Services, caller: Principal, request: PoisonMessageIdRequest
) -> PoisonMessageDropped:
    found = await _require_waiting(services, request.id)
    close = partial(poison_messages.close, id_=found.id, state=PoisonMessageState.DROPPED)
    return PoisonMessageDropped(found.id, dropped=await services.store.write(close, point="connector"))


async def _require_waiting(services: Services, id_: str) -> PoisonMessage:
    found = await services.store.read(partial(poison_messages.find_by_prefix, prefix=parse_id_prefix(id_)))
    if not found:
        raise PoisonMessageNotFound(id_)
    if len(found) > 1:
        raise AmbiguousId(parse_id_prefix(id_), tuple(each.id for each in found), matches=len(found))
    if found[0].state is not PoisonMessageState.WAITING:
        raise PoisonMessageClosed(found[0].state)
    return found[0]


def _to_details(services: Services, message: PoisonMessage) -> PoisonMessageDetails:
    return PoisonMessageDetails(
        message.id,
        message.connector,
        message.channel,
        message.message_id,
        message.because,
        message.attempts,
        message.state,
        show_time(message.at, services.zone),
    )


OPERATIONS = (
    Operation(
        name="poison_message.list",
        summary="List unprocessed messages.",
        parameters=PoisonMessageListRequest,
        handler=list_poison_messages,
        result=PoisonMessageList,
        permission=PermissionLevel.PRIVILEGED,
    ),
    Operation(
        name="poison_message.retry",
        summary="Process an unprocessed message again.",
        parameters=PoisonMessageIdRequest,
        handler=retry_poison_message,
        result=PoisonMessageRetried,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
    Operation(
        name="poison_message.drop",
        summary="Drop an unprocessed message.",
        parameters=PoisonMessageIdRequest,
        handler=drop_poison_message,
        result=PoisonMessageDropped,
        permission=PermissionLevel.BOSS,
        has_effect=True,
    ),
)
