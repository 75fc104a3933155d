"""Doors to people: what the code for one outside place promises the house, and what it is promised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, Context, Envelope, Receipt
from retinue.domain.errors import RetinueError


class FailureKind(StrEnum):
    """Why an envelope did not reach its channel. Words of ours, so they may be shown to an agent."""

    INVALID_ADDRESS = "invalid-address"  # the place has no such room
    INVALID_SENDER = "invalid-sender"  # the place will not have it from us
    NO_BINDING = "no-binding"
    ADAPTER_NOT_LOADED = "adapter-not-loaded"
    THROTTLED = "throttled"
    SEND_FAILED = "send-failed"


class DeliveryFailed(RetinueError):
    """The place surely did not take the envelope, so sending it again cannot double it.

    `permanent` means that it never will; `retry_after_s` is how long the place asked us to wait.
    """

    code = "delivery.failed"

    def __init__(
        self,
        sentence: str,
        *,
        kind: FailureKind = FailureKind.SEND_FAILED,
        permanent: bool = False,
        retry_after_s: float | None = None,
        because: str = "",
        try_this: str = "",
    ) -> None:
        super().__init__(sentence, because=because, try_this=try_this)
        self.kind = FailureKind(kind)  # a plug-in may be careless, and this word is shown to agents
        self.permanent = permanent
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Delivery:
    """A platform's proof that it took ours: the id it gave our message, or its word for yes. Never empty."""

    receipt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One message as a connector heard it. Which agent it is for is not the connector's to know.

    `message_id` is the platform's own and names this message within its room. `revision` names an edit of it, where the
    platform marks edits; where it does not, the same id with other content is one.

    `peer` is whoever the room is shared with, by an id that stays, where it is one person alone; empty where several
    speak. `service` is what the place is called, such as `telegram`; empty: as its connector is.
    """

    room: str
    message_id: str
    text: str
    peer: str = ""
    service: str = ""
    attachments: tuple[Attachment, ...] = ()
    context: Context = NO_CONTEXT
    revision: str = ""


Accept = Callable[[Incoming], Awaitable[Receipt | None]]
"""Hands the house what was said. A receipt: it is stored, so confirm it. None: the house will not have it, and says
why in its log; confirm it too, or it comes for ever. It raises where the house could not say: then do not confirm, and
offer it again."""


def attempts_of(connector: object) -> int | None:
    """How often a connector has an envelope tried, where it has a word on that (`attempts_max`); None: as the house."""
    own: int | None = getattr(connector, "attempts_max", None)
    return own


class Connector(Protocol):
    """Speaks with one outside place: knows its API and our envelopes, nothing of agents."""

    @property
    def instance(self) -> str:
        """Which of the house's connectors this is: the INSTANCE of `channel:INSTANCE:ROOM`."""
        ...

    @property
    def repeats_safely(self) -> bool:
        """Whether delivering an envelope twice has one effect, its id being the key by which the place knows it."""
        ...

    async def listen(self, accept: Accept) -> None:
        """Hand in what is said, each room in its order, until cancelled. Returning or raising means the line broke:
        the house waits a little and calls again."""
        ...

    async def deliver(self, envelope: Envelope) -> Delivery:
        """Bring one envelope to the room its recipient names, and return once the place took it.

        Raise `DeliveryFailed` only where the place surely did not take it. Anything else that comes out of here (a
        timeout, a broken line, a bug) is understood as: nobody knows.
        """
        ...
