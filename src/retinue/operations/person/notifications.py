"""Operations that create, list and clear notifications, and mark them as read. Each person sees only their own."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.ids import NotificationId, parse_id_prefix, short_id
from retinue.domain.notification import NOTIFICATION_TEXT_LENGTH_MAX, NOTIFICATION_TITLE_LENGTH_MAX, Notification
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import PersonNotFound
from retinue.domain.storable_text import is_storable
from retinue.domain.times import format_time, to_ms
from retinue.domain.trust import Trust
from retinue.operations.base import Operation, Services
from retinue.operations.person.errors import (
    NotificationIdAmbiguous,
    NotificationNotFound,
    NotificationRecipientInvalid,
    NotificationSelectionInvalid,
    NotificationsNotForAgents,
    NotificationTextInvalid,
    NotificationTitleInvalid,
)
from retinue.store.core.transaction import Transaction
from retinue.store.people import notifications, people

LIST_LIMIT_MAX = 100

Meta = msgspec.Meta


class NotificationCreateRequest(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[str, Meta(description="title of the notification, in one line")]
    text: str = ""
    to: Annotated[str, Meta(description="recipient: person:NAME; default: yourself")] = ""


class NotificationListRequest(msgspec.Struct, forbid_unknown_fields=True):
    unread: Annotated[bool, Meta(description="list only unread notifications")] = False
    limit: int = 20
    before: Annotated[str, Meta(description="`next` of the previous page; default: the first page")] = ""


class NotificationSelectionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Select one notification or all: exactly one of `id` and `all` must be set."""

    id: str = ""
    all: Annotated[bool, Meta(description="select all your notifications")] = False


class NotificationDetails(msgspec.Struct, frozen=True):
    """One notification. `untrusted` is true if its text came from outside or was made from untrusted text."""

    id: str
    sender: str = msgspec.field(name="from")
    title: str
    text: str
    at: str
    read: bool
    untrusted: bool
    session: str | None


class NotificationList(msgspec.Struct, frozen=True):
    """One page of notifications. `next` is the `before` of the next page. `unread` counts all unread notifications."""

    notifications: list[NotificationDetails]
    unread: int
    next: str | None


class NotificationCreated(msgspec.Struct, frozen=True):
    id: str
    to: str


class NotificationsChanged(msgspec.Struct, frozen=True):
    changed: int
    unread: int


async def create_notification(
    services: Services, caller: Principal, request: NotificationCreateRequest
) -> NotificationCreated:
    check_title_and_text(request.title, request.text)
    to = address.parse_address(request.to) if request.to else caller.address
    if to.kind is not AddressKind.PERSON:
        raise NotificationRecipientInvalid(str(to))
    id_ = NotificationId(services.ids.new())

    def body(conn: sa.Connection) -> Notification:
        tx = Transaction(conn, to_ms(services.clock.now()))
        found = people.find(conn, to.name)
        if found is None:
            raise PersonNotFound(to.name)
        made = Notification(
            id=id_,
            person=found.name,
            sender=str(caller.address),
            title=request.title.strip(),
            text=request.text,
            trust=caller.trust,
            at=services.clock.now(),
        )
        notifications.add(tx, made)
        tx.close()
        return made

    made = await services.store.write(body, point="notification")
    return NotificationCreated(id=made.id, to=str(address.person_address(made.person)))


def check_title_and_text(title: str, text: str) -> None:
    if not title.strip() or len(title) > NOTIFICATION_TITLE_LENGTH_MAX or not title.strip().isprintable():
        raise NotificationTitleInvalid(chars_max=NOTIFICATION_TITLE_LENGTH_MAX)
    if len(text) > NOTIFICATION_TEXT_LENGTH_MAX or not is_storable(text):
        raise NotificationTextInvalid(chars_max=NOTIFICATION_TEXT_LENGTH_MAX)


async def list_notifications(
    services: Services, caller: Principal, request: NotificationListRequest
) -> NotificationList:
    person = _require_person(caller)
    limit = max(1, min(request.limit, LIST_LIMIT_MAX))

    def body(conn: sa.Connection) -> tuple[list[Notification], int]:
        before = _require_notification(conn, person, request.before) if request.before else None
        found = notifications.list_notifications(conn, person, limit=limit + 1, unread=request.unread, before=before)
        return found, notifications.count_unread(conn, person)

    found, unread = await services.store.scan(body)
    shown = [_to_details(services, each) for each in found[:limit]]
    return NotificationList(shown, unread=unread, next=shown[-1].id if len(found) > limit else None)


def _to_details(services: Services, notification: Notification) -> NotificationDetails:
    return NotificationDetails(
        id=notification.id,
        sender=notification.sender,
        title=notification.title,
        text=notification.text,
        at=format_time(notification.at, services.zone),
        read=notification.read_at is not None,
        untrusted=notification.trust is Trust.UNTRUSTED,
        session=notification.session,
    )


async def mark_notifications_read(
    services: Services, caller: Principal, request: NotificationSelectionRequest
) -> NotificationsChanged:
    return await _change_notifications(services, caller, request, change="read")


async def clear_notifications(
    services: Services, caller: Principal, request: NotificationSelectionRequest
) -> NotificationsChanged:
    return await _change_notifications(services, caller, request, change="cleared")


async def _change_notifications(
    services: Services, caller: Principal, request: NotificationSelectionRequest, *, change: str
) -> NotificationsChanged:
    person = _require_person(caller)
    if bool(request.id) == request.all:
        raise NotificationSelectionInvalid()
    act = notifications.mark_read if change == "read" else notifications.delete

    def body(conn: sa.Connection) -> NotificationsChanged:
        tx = Transaction(conn, to_ms(services.clock.now()))
        id_ = _require_notification(conn, person, request.id).id if request.id else None
        changed = act(tx, person, id_)
        if changed:
            notifications.emit_change(tx, person, change=change, notification=id_)
        tx.close()
        return NotificationsChanged(changed=changed, unread=notifications.count_unread(conn, person))

    return await services.store.write(body, point="notification")


def _require_notification(conn: sa.Connection, person: str, text: str) -> Notification:
    found = notifications.find_by_prefix(conn, person, parse_id_prefix(text))
    if not found:
        raise NotificationNotFound(short_id(text))
    if len(found) > 1:
        raise NotificationIdAmbiguous(short_id(text))
    return found[0]


def _require_person(caller: Principal) -> str:
    if caller.address.kind is not AddressKind.PERSON:
        raise NotificationsNotForAgents(str(caller.address))
    return caller.address.name


OPERATIONS = (
    Operation(
        name="notification.create",
        summary="Notify a person.",
        parameters=NotificationCreateRequest,
        handler=create_notification,
        permission=PermissionLevel.STANDARD,
        has_effect=True,
        result=NotificationCreated,
    ),
    Operation(
        name="notification.list",
        summary="List your notifications, newest first.",
        parameters=NotificationListRequest,
        handler=list_notifications,
        permission=PermissionLevel.RESTRICTED,
        result=NotificationList,
    ),
    Operation(
        name="notification.read",
        summary="Mark notifications as read.",
        parameters=NotificationSelectionRequest,
        handler=mark_notifications_read,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=NotificationsChanged,
    ),
    Operation(
        name="notification.clear",
        summary="Delete notifications.",
        parameters=NotificationSelectionRequest,
        handler=clear_notifications,
        permission=PermissionLevel.RESTRICTED,
        has_effect=True,
        result=NotificationsChanged,
    ),
)
