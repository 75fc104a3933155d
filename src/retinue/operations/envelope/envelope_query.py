"""Operations that list envelopes by sender or recipient, or the newest envelopes from all senders."""

from __future__ import annotations

from functools import partial

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import Envelope, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import TimeRangeInvalid
from retinue.domain.times import LAST_MS, format_time, parse_time, to_ms
from retinue.domain.ui_context import text_without_context
from retinue.intake.accept import Wake, settle_and_notify
from retinue.operations.base import Operation, Services
from retinue.operations.envelope.envelopes import EnvelopeDetails, to_envelope_details
from retinue.operations.envelope.errors import EnvelopeFilterInvalid
from retinue.operations.pagination import check_limit
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelope_query, envelopes, inbox
from retinue.store.envelopes.envelope_query import EnvelopeQuery
from retinue.store.runs.explanation_facts import excerpt

LIST_LIMIT_MIN, LIST_LIMIT_MAX = 1, 50


class EnvelopeListRequest(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """List envelopes by recipient or by sender: exactly one of `to` and `from` is required.

    With `ack`, only due envelopes are returned, and those that are addressed to you are marked as read.
    """

    status: EnvelopeStatus
    to: str = ""
    from_: str = ""
    limit: int = 10
    created_after: str = ""
    created_before: str = ""
    before: str = ""  # id of the last envelope on the previous page
    ack: bool = False


class EnvelopeRecentRequest(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 30


class EnvelopeRow(msgspec.Struct, frozen=True):
    """One envelope in a list: sender, recipient, start of the text, and the outcome if the envelope is done."""

    id: str
    sender: str = msgspec.field(name="from")
    recipient: str = msgspec.field(name="to")
    kind: EnvelopeKind
    excerpt: str
    session: str | None
    accepted_at: str
    status: EnvelopeStatus
    outcome: Outcome | None


class RecentEnvelopeList(msgspec.Struct, frozen=True):
    envelopes: list[EnvelopeRow]


class EnvelopeList(msgspec.Struct):
    envelopes: list[EnvelopeDetails]
    acknowledged: int


async def list_envelopes(services: Services, caller: Principal, request: EnvelopeListRequest) -> EnvelopeList:
    wanted = await _build_filter(services, caller, request)
    look = partial(envelope_query.list_envelopes, query=wanted, limit=request.limit, seen_by=caller)
    if not request.ack:
        found = await services.store.scan(look)
        return EnvelopeList(envelopes=[to_envelope_details(services, envelope) for envelope in found], acknowledged=0)

    def body(conn: sa.Connection) -> tuple[list[Envelope], int, list[Wake]]:
        tx = Transaction(conn, to_ms(services.clock.now()))
        found = look(conn)
        wakes: list[Wake] = []
        mine = [envelope for envelope in found if _is_addressed_to(envelope, caller)]
        for envelope in mine:
            if envelope.status is EnvelopeStatus.PENDING:
                because = f"acknowledged by {caller.address}"
                wakes += settle_and_notify(tx, envelope, Outcome.NOTED, because=because, text=f"Read: {because}.")
        inbox.mark_read(conn, [envelope.id for envelope in mine], person=caller.address.name, at_ms=tx.at_ms)
        tx.close()
        return found, len(mine), wakes

    def on_commit(done: tuple[list[Envelope], int, list[Wake]] | None) -> None:
        for wake in done[2] if done else ():
            services.engine.wake(wake)

    found, count, _ = await services.store.write(body, point="ack", then=on_commit)
    return EnvelopeList(envelopes=[to_envelope_details(services, envelope) for envelope in found], acknowledged=count)


async def _build_filter(services: Services, caller: Principal, request: EnvelopeListRequest) -> EnvelopeQuery:
    if bool(request.to) == bool(request.from_):
        raise EnvelopeFilterInvalid
    check_list_limit(request.limit)
    now = services.clock.now()
    after_ms = to_ms(parse_time(request.created_after, now=now, zone=services.zone)) if request.created_after else 0
    before_ms = (
        to_ms(parse_time(request.created_before, now=now, zone=services.zone)) if request.created_before else LAST_MS
    )
    if after_ms >= before_ms:
        raise TimeRangeInvalid(request.created_after, request.created_before)
    older = 2**62
    if request.before:
        last = await services.store.read(partial(envelopes.resolve_id, text=request.before, seen_by=caller))
        shown = await services.store.read(partial(envelopes.get, id_=last))
        older = shown.seq if shown else older
    return EnvelopeQuery(
        side="to" if request.to else "from",
        address=address.parse_address(request.to or request.from_),
        status=request.status,
        after_ms=after_ms,
        before_ms=before_ms,
        # Listed envelopes are marked as read, so only those that are due are listed.
        due_ms=to_ms(now) if request.ack else LAST_MS,
        older_than_seq=older,
    )


def check_list_limit(limit: int) -> None:
    older = "use a smaller limit, and read the rest with `before`"
    check_limit(limit, least=LIST_LIMIT_MIN, most=LIST_LIMIT_MAX, try_this=older)


def _is_addressed_to(envelope: Envelope, caller: Principal) -> bool:
    return envelope.recipient.kind is caller.address.kind and envelope.recipient.name == caller.address.name


async def list_recent_envelopes(
    services: Services, caller: Principal, request: EnvelopeRecentRequest
) -> RecentEnvelopeList:
    """List the newest envelopes that the caller may see, from any sender.

    The activity screen of the web app starts with this list.
    """
    check_list_limit(request.limit)

    def body(conn: sa.Connection) -> RecentEnvelopeList:
        found = envelope_query.list_recent(conn, limit=request.limit, seen_by=caller)
        return RecentEnvelopeList([_to_row(services, conn, envelope) for envelope in found])

    return await services.store.scan(body)


def _to_row(services: Services, conn: sa.Connection, envelope: Envelope) -> EnvelopeRow:
    settled = envelopes.get_outcome(conn, envelope.id)
    return EnvelopeRow(
        id=envelope.id,
        sender=str(envelope.sender),
        recipient=str(envelope.recipient),
        kind=envelope.kind,
        excerpt=excerpt(text_without_context(envelope.text)),
        session=envelope.session,
        accepted_at=format_time(envelope.accepted_at, services.zone),
        status=envelope.status,
        outcome=settled.outcome if settled is not None else None,
    )


OPERATIONS = (
    Operation(
        name="envelope.list",
        summary="List envelopes by sender or recipient.",
        parameters=EnvelopeListRequest,
        handler=list_envelopes,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=EnvelopeList,
    ),
    Operation(
        name="envelope.recent",
        summary="List the newest envelopes.",
        parameters=EnvelopeRecentRequest,
        handler=list_recent_envelopes,
        permission=PermissionLevel.RESTRICTED,
        result=RecentEnvelopeList,
    ),
)
