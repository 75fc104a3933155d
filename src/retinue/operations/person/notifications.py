"""Operations on notifications: create, list, mark as read and clear. Each person sees only their own."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.ids import NotificationId, prefix, short
from retinue.domain.notification import TEXT_LENGTH_MAX, TITLE_LENGTH_MAX, Notification
from retinue.domain.principal import Principal
from retinue.domain.storable_text import is_storable
from retinue.domain.times import show, to_ms
from retinue.domain.trust import Trust
from retinue.operations.base import Desk, Operation
from retinue.store.core.transaction import Page
from retinue.store.people import notifications, people

LISTED_MAX = 100

Meta = msgspec.Meta


class Create(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[str, Meta(description="what it is about, in a line")]
    text: str = ""
    to: Annotated[str, Meta(description="person:NAME; left out, yourself")] = ""


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    unread: Annotated[bool, Meta(description="only those that nobody has read")] = False
    limit: int = 20
    before: Annotated[str, Meta(description="the id that the page before gave as next")] = ""


class Which(msgspec.Struct, forbid_unknown_fields=True):
    """Exactly one of `id` and `all`."""

    id: str = ""
    all: Annotated[bool, Meta(description="all of yours")] = False


class NotificationShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One notification. `untrusted`: its text comes from outside, or from untrusted text."""

    id: str
    sender: str = msgspec.field(name="from")
    title: str
    text: str
    at: str
    read: bool
    untrusted: bool
    session: str | None


class NotificationsListed(msgspec.Struct, frozen=True):
    """One page. `next` is the `before` of the next page. `unread` counts all unread notifications."""

    notifications: list[NotificationShown]
    unread: int
    next: str | None


class NotificationCreated(msgspec.Struct, frozen=True):
    id: str
    to: str


class NotificationsChanged(msgspec.Struct, frozen=True):
    changed: int
    unread: int


async def create(desk: Desk, caller: Principal, asked: Create) -> NotificationCreated:
    check_words(asked.title, asked.text)
    to = address.parse(asked.to) if asked.to else caller.address
    if to.kind is not AddressKind.PERSON:
        raise Invalid(
            f"{to} is notified of nothing",
            because="only people are; agents get mail",
            try_this="to=person:NAME",
            code="notification.not-a-person",
        )
    id_ = NotificationId(desk.ids.new())

    def body(conn: sa.Connection) -> Notification:
        page = Page(conn, to_ms(desk.clock.now()))
        found = people.find(conn, to.name)
        if found is None:
            raise NotFound(
                f"there is no person '{to.name}' in this house",
                because="nobody of that name was added",
                try_this="look at `retinue people`",
                code="person.not-found",
            )
        made = Notification(
            id=id_,
            person=found.name,
            sender=str(caller.address),
            title=asked.title.strip(),
            text=asked.text,
            trust=caller.trust,
            at=desk.clock.now(),
        )
        notifications.add(page, made)
        page.close()
        return made

    made = await desk.store.write(body, point="notification")
    return NotificationCreated(id=made.id, to=str(address.person(made.person)))


def check_words(title: str, text: str) -> None:
    if not title.strip() or len(title) > TITLE_LENGTH_MAX or not title.strip().isprintable():
        raise Invalid(
            "this title cannot be used",
            because=f"a title is one line of 1 to {TITLE_LENGTH_MAX} characters",
            try_this="put the rest into the text",
            code="notification.title-invalid",
        )
    if len(text) > TEXT_LENGTH_MAX or not is_storable(text):
        raise Invalid(
            "this text cannot be used",
            because=f"it may have {TEXT_LENGTH_MAX:,} characters, and no NUL or lone surrogate among them",
            try_this="send an envelope for more",
            code="notification.text-invalid",
        )


async def listed(desk: Desk, caller: Principal, asked: Listing) -> NotificationsListed:
    person = _person(caller)
    limit = max(1, min(asked.limit, LISTED_MAX))

    def body(conn: sa.Connection) -> tuple[list[Notification], int]:
        before = _one(conn, person, asked.before) if asked.before else None
        found = notifications.listed(conn, person, limit=limit + 1, unread=asked.unread, before=before)
        return found, notifications.count_unread(conn, person)

    found, unread = await desk.store.scan(body)
    shown = [_form(desk, each) for each in found[:limit]]
    return NotificationsListed(shown, unread=unread, next=shown[-1].id if len(found) > limit else None)


def _form(desk: Desk, found: Notification) -> NotificationShown:
    return NotificationShown(
        id=found.id,
        sender=found.sender,
        title=found.title,
        text=found.text,
        at=show(found.at, desk.zone),
        read=found.read_at is not None,
        untrusted=found.trust is Trust.UNTRUSTED,
        session=found.session,
    )


async def read(desk: Desk, caller: Principal, asked: Which) -> NotificationsChanged:
    return await _change(desk, caller, asked, change="read")


async def clear(desk: Desk, caller: Principal, asked: Which) -> NotificationsChanged:
    return await _change(desk, caller, asked, change="cleared")


async def _change(desk: Desk, caller: Principal, asked: Which, *, change: str) -> NotificationsChanged:
    person = _person(caller)
    if bool(asked.id) == asked.all:
        raise Invalid(
            "say either which one, or all",
            because="exactly one of `id` and `all` is needed",
            try_this="for example: all=true",
            code="notification.which",
        )
    act = notifications.read if change == "read" else notifications.clear

    def body(conn: sa.Connection) -> NotificationsChanged:
        page = Page(conn, to_ms(desk.clock.now()))
        id_ = _one(conn, person, asked.id).id if asked.id else None
        changed = act(page, person, id_)
        if changed:
            notifications.tell(page, person, change=change, notification=id_)
        page.close()
        return NotificationsChanged(changed=changed, unread=notifications.count_unread(conn, person))

    return await desk.store.write(body, point="notification")


def _one(conn: sa.Connection, person: str, text: str) -> Notification:
    found = notifications.find(conn, person, prefix(text))
    if not found:
        raise NotFound(
            f"you have no notification {short(text)}",
            because="it was cleared, or was never yours",
            try_this="copy its id from the list",
            code="notification.not-found",
        )
    if len(found) > 1:
        raise Conflict(
            f"{short(text)} fits several notifications",
            because="their ids begin alike",
            try_this="give more digits of the id",
            code="notification.ambiguous",
        )
    return found[0]


def _person(caller: Principal) -> str:
    if caller.address.kind is not AddressKind.PERSON:
        raise Invalid(
            "only people have notifications",
            because=f"you are {caller.address}",
            try_this="list envelopes instead",
            code="notification.not-a-person",
        )
    return caller.address.name


OPERATIONS = (
    Operation(
        name="notification.create",
        summary="Put something where a person notices it.",
        parameters=Create,
        handler=create,
        permission=PermissionLevel.STANDARD,
        effect=True,
        result=NotificationCreated,
    ),
    Operation(
        name="notification.list",
        summary="List your notifications, newest first.",
        parameters=Listing,
        handler=listed,
        permission=PermissionLevel.RESTRICTED,
        result=NotificationsListed,
    ),
    Operation(
        name="notification.read",
        summary="Mark notifications as read.",
        parameters=Which,
        handler=read,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=NotificationsChanged,
    ),
    Operation(
        name="notification.clear",
        summary="Take notifications away.",
        parameters=Which,
        handler=clear,
        permission=PermissionLevel.RESTRICTED,
        effect=True,
        result=NotificationsChanged,
    ),
)
