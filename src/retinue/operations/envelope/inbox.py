"""Operations on the caller's inbox."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import Envelope
from retinue.domain.principal import Principal
from retinue.domain.times import to_ms
from retinue.operations.base import Operation, Services
from retinue.operations.envelope.envelope_query import check_list_limit
from retinue.operations.envelope.envelopes import EnvelopeDetails, to_envelope_details
from retinue.operations.envelope.errors import InboxPeopleOnly
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import inbox


class InboxListRequest(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10
    ack: bool = False


class InboxList(msgspec.Struct):
    envelopes: list[EnvelopeDetails]
    unread: int


def require_inbox_owner(caller: Principal) -> str:
    if caller.address.kind is not AddressKind.PERSON:
        raise InboxPeopleOnly(str(caller.address))
    return caller.address.name


async def list_inbox(services: Services, caller: Principal, request: InboxListRequest) -> InboxList:
    """List unread envelopes of the caller. Listing does not mark them as read, unless `ack` is set."""
    name = require_inbox_owner(caller)
    check_list_limit(request.limit)

    def read_unread(conn: sa.Connection) -> tuple[list[Envelope], int]:
        return inbox.list_unread(conn, name, limit=request.limit), inbox.count_unread(conn, name)

    def read_and_mark(conn: sa.Connection) -> tuple[list[Envelope], int]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        found, count = read_unread(conn)
        marked = inbox.mark_read(conn, [envelope.id for envelope in found], person=name, at_ms=tx.at_ms)
        tx.close()
        return found, count - marked

    found, left = await (
        services.store.write(read_and_mark, point="ack") if request.ack else services.store.scan(read_unread)
    )
    return InboxList(envelopes=[to_envelope_details(services, envelope) for envelope in found], unread=left)


OPERATIONS = (
    Operation(
        name="inbox.list",
        summary="List your unread messages.",
        parameters=InboxListRequest,
        handler=list_inbox,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=InboxList,
    ),
)
