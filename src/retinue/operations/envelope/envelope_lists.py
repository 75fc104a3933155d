"""Operations that list envelopes: by sender or recipient, the most recent ones, and the caller's inbox."""

from __future__ import annotations

from functools import partial

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.envelope import Envelope, Kind, Outcome, Status
from retinue.domain.errors import Invalid
from retinue.domain.principal import Principal
from retinue.domain.times import parse_when, show, to_ms
from retinue.domain.ui_context import words_of
from retinue.intake.accept import Wake, settle_and_tell
from retinue.operations.base import Desk, Operation
from retinue.operations.envelope.envelopes import EnvelopeShown, envelope_form
from retinue.operations.pagination import check_limit
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelope_lists, envelopes
from retinue.store.envelopes.envelope_lists import MS_LAST, Wanted
from retinue.store.runs.timeline import quoted

LISTED_MIN, LISTED_MAX = 1, 50


class Listing(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Exactly one of `to` and `from` is required.

    `ack` marks the returned envelopes as read, and then returns only due ones. It marks only your own.
    """

    status: Status
    to: str = ""
    from_: str = ""
    limit: int = 10
    created_after: str = ""
    created_before: str = ""
    before: str = ""  # the last id of the previous page
    ack: bool = False


class Inbox(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10
    ack: bool = False


class Recent(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 30


class EnvelopePassed(msgspec.Struct, frozen=True, rename="kebab"):
    """Sender, recipient, start of the text, and the outcome if the envelope is done."""

    id: str
    sender: str = msgspec.field(name="from")
    recipient: str = msgspec.field(name="to")
    kind: Kind
    words: str
    session: str | None
    accepted_at: str
    status: Status
    outcome: Outcome | None


class EnvelopesPassed(msgspec.Struct, frozen=True):
    envelopes: list[EnvelopePassed]


class EnvelopesListed(msgspec.Struct):
    envelopes: list[EnvelopeShown]
    acknowledged: int


class InboxShown(msgspec.Struct):
    envelopes: list[EnvelopeShown]
    unread: int


async def listed(desk: Desk, caller: Principal, asked: Listing) -> EnvelopesListed:
    wanted = await _wanted(desk, caller, asked)
    look = partial(envelope_lists.listed, wanted=wanted, limit=asked.limit, seen_by=caller)
    if not asked.ack:
        found = await desk.store.scan(look)
        return EnvelopesListed(envelopes=[envelope_form(desk, envelope) for envelope in found], acknowledged=0)

    def body(conn: sa.Connection) -> tuple[list[Envelope], int, list[Wake]]:
        page = Page(conn, to_ms(desk.clock.now()))
        found = look(conn)
        wakes: list[Wake] = []
        mine = [envelope for envelope in found if _is_to(envelope, caller)]
        for envelope in mine:
            if envelope.status is Status.PENDING:
                because = f"acknowledged by {caller.address}"
                wakes += settle_and_tell(page, envelope, Outcome.NOTED, because=because, text=f"Read: {because}.")
        envelope_lists.mark_read(conn, [envelope.id for envelope in mine], person=caller.address.name, at_ms=page.at_ms)
        page.close()
        return found, len(mine), wakes

    def acknowledged(done: tuple[list[Envelope], int, list[Wake]] | None) -> None:
        for wake in done[2] if done else ():
            desk.engine.wake(wake)

    found, count, _ = await desk.store.write(body, point="ack", then=acknowledged)
    return EnvelopesListed(envelopes=[envelope_form(desk, envelope) for envelope in found], acknowledged=count)


async def _wanted(desk: Desk, caller: Principal, asked: Listing) -> Wanted:
    if bool(asked.to) == bool(asked.from_):
        raise Invalid(
            "say either whose mail or who sent it",
            because="exactly one of `to` and `from` is needed",
            try_this="for example: to=person:maria, or from=agent:ada",
            code="list.one-side",
        )
    _check_limit(asked.limit)
    now = desk.clock.now()
    after_ms = to_ms(parse_when(asked.created_after, now=now, zone=desk.zone)) if asked.created_after else 0
    before_ms = to_ms(parse_when(asked.created_before, now=now, zone=desk.zone)) if asked.created_before else MS_LAST
    if after_ms >= before_ms:
        raise Invalid(
            "nothing can be in this span of time",
            because="created-after is not before created-before",
            try_this="swap the two",
            code="time.inverted",
        )
    older = 2**62
    if asked.before:
        last = await desk.store.read(partial(envelopes.resolve, text=asked.before, seen_by=caller))
        shown = await desk.store.read(partial(envelopes.get, id_=last))
        older = shown.seq if shown else older
    return Wanted(
        side="to" if asked.to else "from",
        address=address.parse(asked.to or asked.from_),
        status=asked.status,
        after_ms=after_ms,
        before_ms=before_ms,
        # Acknowledging counts as reading, so only envelopes that are due are listed.
        due_ms=to_ms(now) if asked.ack else MS_LAST,
        older_than_seq=older,
    )


def _check_limit(limit: int) -> None:
    older = "ask for one page after the other with `before`"
    check_limit(limit, least=LISTED_MIN, most=LISTED_MAX, try_this=older)


def _is_to(envelope: Envelope, caller: Principal) -> bool:
    return envelope.recipient.kind is caller.address.kind and envelope.recipient.name == caller.address.name


async def recent(desk: Desk, caller: Principal, asked: Recent) -> EnvelopesPassed:
    """List the newest envelopes that the caller may see, from any sender. The activity view starts with them."""
    _check_limit(asked.limit)

    def body(conn: sa.Connection) -> EnvelopesPassed:
        found = envelope_lists.recent(conn, limit=asked.limit, seen_by=caller)
        return EnvelopesPassed([_passed(desk, conn, envelope) for envelope in found])

    return await desk.store.scan(body)


def _passed(desk: Desk, conn: sa.Connection, envelope: Envelope) -> EnvelopePassed:
    settled = envelopes.settled(conn, envelope.id)
    return EnvelopePassed(
        id=envelope.id,
        sender=str(envelope.sender),
        recipient=str(envelope.recipient),
        kind=envelope.kind,
        words=quoted(words_of(envelope.text)),
        session=envelope.session,
        accepted_at=show(envelope.accepted_at, desk.zone),
        status=envelope.status,
        outcome=settled.outcome if settled is not None else None,
    )


def whose_inbox(caller: Principal) -> str:
    if caller.address.kind is not AddressKind.PERSON:
        raise Invalid(
            "only people have an inbox",
            because=f"you are {caller.address}, whose mail is worked by its lane",
            try_this=f"list envelopes to {caller.address}",
            code="inbox.not-a-person",
        )
    return caller.address.name


async def inbox(desk: Desk, caller: Principal, asked: Inbox) -> InboxShown:
    """List unread envelopes of the caller. Listing does not acknowledge them; `ack` does."""
    name = whose_inbox(caller)
    _check_limit(asked.limit)

    def look(conn: sa.Connection) -> tuple[list[Envelope], int]:
        return envelope_lists.unread(conn, name, limit=asked.limit), envelope_lists.count_unread(conn, name)

    def read(conn: sa.Connection) -> tuple[list[Envelope], int]:
        page = Page(conn, to_ms(desk.clock.now()))
        found, count = look(conn)
        marked = envelope_lists.mark_read(conn, [envelope.id for envelope in found], person=name, at_ms=page.at_ms)
        page.close()
        return found, count - marked

    found, left = await (desk.store.write(read, point="ack") if asked.ack else desk.store.scan(look))
    return InboxShown(envelopes=[envelope_form(desk, envelope) for envelope in found], unread=left)


OPERATIONS = (
    Operation(
        name="envelope.list",
        summary="List envelopes by who sent or received them.",
        parameters=Listing,
        handler=listed,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=EnvelopesListed,
    ),
    Operation(
        name="envelope.recent",
        summary="Show the newest envelopes, whoever wrote them.",
        parameters=Recent,
        handler=recent,
        permission=PermissionLevel.RESTRICTED,
        result=EnvelopesPassed,
    ),
    Operation(
        name="inbox.list",
        summary="Show what waits for you.",
        parameters=Inbox,
        handler=inbox,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=InboxShown,
    ),
)
