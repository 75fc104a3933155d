"""`notify`: stores a notification for the person an agent works for, besides the answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.ids import NotificationId, derived
from retinue.domain.notification import TEXT_LENGTH_MAX, TITLE_LENGTH_MAX, Notification
from retinue.domain.ports import Clock
from retinue.domain.storable_text import storable
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.domain.tool import Effect, ToolSpec
from retinue.domain.trust import Trust, least
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.people import notifications, people
from retinue.store.sessions import sessions
from retinue.tools.base import Scene, ToolFailed, schema_of


class NotifyArguments(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=TITLE_LENGTH_MAX, description="In one line")]
    text: Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)] = ""


class Notify(Struct, frozen=True):
    """Stores a notification.

    The id derives from the call, so a call repeated after a crash stores one notification.
    """

    store: Store
    clock: Clock
    owner: str  # notified if no person wrote: a schedule works for the owner
    mask: Callable[[str], str] = str
    arguments: type[msgspec.Struct] = NotifyArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="notify",
            description=(
                "Leave a notification for the person you work for. They see it when they next look; "
                "nobody answers it. For what must be read in the conversation, just answer."
            ),
            parameters=schema_of(NotifyArguments),
            effects=frozenset({Effect.WRITES}),
            capabilities=frozenset({"notifications.create"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: NotifyArguments, scene: Scene) -> str:
        title = " ".join(storable(self.mask(arguments.title)).split())[:TITLE_LENGTH_MAX]
        if not title:
            raise ToolFailed("a notification needs a title", because="this one is blank", code="notification.no-title")
        made = Notification(
            id=NotificationId(derived(scene.run, f"notify/{scene.call}")),
            person=person_of(scene) or self.owner,
            sender=str(address.agent(scene.agent.name)),
            title=title,
            text=storable(self.mask(arguments.text))[:TEXT_LENGTH_MAX],
            trust=least((Trust.AGENT, scene.trust)),
            at=self.clock.now(),
            session=scene.session,
        )
        await self.store.write(partial(_keep, made=made), point="notification")
        return f"{made.person} will see it."


def _keep(conn: sa.Connection, *, made: Notification) -> None:
    page = Page(conn, to_ms(made.at))
    if people.find(conn, made.person) is None:
        raise ToolFailed(
            f"{made.person} cannot be notified",
            because="nobody of that name is here any more",
            try_this="answer in the conversation",
            code="notification.nobody",
        )
    if sessions.get(conn, made.session or "") is None:  # a direct call has no session
        made = replace(made, session=None)
    notifications.add(page, made)
    page.close()


def person_of(scene: Scene) -> str | None:
    """Return the person the run works for, or None for an agent, a schedule or a channel."""
    sender = scene.sender
    return sender.name if sender is not None and sender.kind is AddressKind.PERSON else None
