"""The tool `notify`: stores a notification for the person an agent works for, besides the answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.ids import NotificationId, derive_id
from retinue.domain.notification import NOTIFICATION_TEXT_LENGTH_MAX, NOTIFICATION_TITLE_LENGTH_MAX, Notification
from retinue.domain.ports import Clock
from retinue.domain.storable_text import make_storable
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolEffect, ToolSpec
from retinue.domain.trust import Trust, least_trust
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.people import notifications, people
from retinue.store.sessions import sessions
from retinue.tools.base import ToolContext, schema_of
from retinue.tools.errors import NotificationPersonGone, NotificationTitleMissing


class NotifyArguments(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=NOTIFICATION_TITLE_LENGTH_MAX, description="Title of the notification in one line"
        ),
    ]
    text: Annotated[str, msgspec.Meta(max_length=NOTIFICATION_TEXT_LENGTH_MAX)] = ""


class NotifyTool(Struct, frozen=True):
    """The tool `notify`: stores a notification.

    The id derives from the call, so a call repeated after a crash stores one notification.
    """

    store: Store
    clock: Clock
    owner: str  # notified if no person wrote: a schedule works for the owner
    redact: Callable[[str], str] = str
    arguments: type[msgspec.Struct] = NotifyArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="notify",
            description=(
                "Create a notification for the person you work for. They see it in the web app and cannot answer it. "
                "Do not use it for what belongs in the conversation: put that in your answer."
            ),
            parameters=schema_of(NotifyArguments),
            effects=frozenset({ToolEffect.WRITES}),
            capabilities=frozenset({"notifications.create"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: NotifyArguments, context: ToolContext) -> str:
        title = " ".join(make_storable(self.redact(arguments.title)).split())[:NOTIFICATION_TITLE_LENGTH_MAX]
        if not title:
            raise NotificationTitleMissing
        made = Notification(
            id=NotificationId(derive_id(context.run, f"notify/{context.call}")),
            person=person_of(context) or self.owner,
            sender=str(address.agent_address(context.agent.name)),
            title=title,
            text=make_storable(self.redact(arguments.text))[:NOTIFICATION_TEXT_LENGTH_MAX],
            trust=least_trust((Trust.AGENT, context.trust)),
            at=self.clock.now(),
            session=context.session,
        )
        await self.store.write(partial(_store_notification, made=made), point="notification")
        return f"Notified {made.person}."


def _store_notification(conn: sa.Connection, *, made: Notification) -> None:
    transaction = Transaction(conn, to_ms(made.at))
    if people.find(conn, made.person) is None:
        raise NotificationPersonGone(made.person)
    if sessions.get(conn, made.session or "") is None:  # a direct call has no session
        made = replace(made, session=None)
    notifications.add(transaction, made)
    transaction.close()


def person_of(context: ToolContext) -> str | None:
    """Return the person for whom the run works, or None if it works for an agent, a schedule or a channel."""
    sender = context.sender
    return sender.name if sender is not None and sender.kind is AddressKind.PERSON else None
