"""Doors to people: what the code for one outside place promises the house, and what it is promised.

A connector hears and delivers, and owns nothing else. It cannot confirm what the house has not stored, since `accept`
returns only then; and it sends nothing but what the outbox hands it, one parcel at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from retinue.domain.attachment import Attachment
from retinue.domain.delivery_part import NO_ABILITIES as NO_ABILITIES
from retinue.domain.delivery_part import Abilities, Parcel
from retinue.domain.delivery_part import Button as Button
from retinue.domain.delivery_part import Unit as Unit
from retinue.domain.delivery_part import whole as whole
from retinue.domain.envelope import NO_CONTEXT, Context, Receipt
from retinue.domain.errors import RetinueError
from retinue.domain.ports import Clock

# --- what goes wrong ---


class FailureKind(StrEnum):
    """Why an envelope did not reach its channel. Words of ours, so they may be shown to an agent."""

    INVALID_ADDRESS = "invalid-address"  # the place has no such room
    INVALID_SENDER = "invalid-sender"  # the place will not have it from us
    NO_BINDING = "no-binding"
    ADAPTER_NOT_LOADED = "adapter-not-loaded"
    THROTTLED = "throttled"
    TOO_LARGE = "too-large"
    SEND_FAILED = "send-failed"


class DeliveryFailed(RetinueError):
    """The place surely did not take the parcel, so sending it again cannot double it.

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


class LineLost(RetinueError):
    """The line to the place broke, or the place would not have us: raised by `listen`.

    `retry_after_s` is how long the place asked us to wait. With `needs_owner` waiting does not help: a token was
    revoked, a name is taken. The house then says so to its owner, and tries again seldom.
    """

    code = "connector.line-lost"

    def __init__(
        self,
        sentence: str,
        *,
        because: str = "",
        try_this: str = "",
        retry_after_s: float | None = None,
        needs_owner: bool = False,
        code: str | None = None,
    ) -> None:
        super().__init__(sentence, because=because, try_this=try_this, code=code)
        self.retry_after_s = retry_after_s
        self.needs_owner = needs_owner


# --- what goes out ---


class Delivery(Struct, frozen=True):
    """A platform's proof that it took ours: the id it gave our message, or its word for yes. Never empty."""

    receipt: str


# --- what comes in ---


class Heard(StrEnum):
    """What a connector heard."""

    MESSAGE = "message"
    PRESS = "press"  # of a button: `text` is the data it bore, `quote` the message it stands under
    REACTION = "reaction"  # `text` is the emoji, or empty where it was taken back; `quote` the message
    MOVED = "moved"  # the room has a new name: `text` is the new one


class Speaker(Struct, frozen=True, kw_only=True):
    """Whoever said it. `id` stays theirs for good; names may be changed by anyone, and prove nothing."""

    id: str
    name: str = ""
    username: str = ""
    is_program: bool = False  # another bot, or an answering machine: never answered, so that two never go on for ever
    vouched: bool = True  # the place says that it is they; who is not vouched for is never linked to a person


NOBODY = Speaker(id="")


class Quoted(Struct, frozen=True, kw_only=True):
    """The message that another one answers, as the platform shows it."""

    message_id: str
    text: str = ""
    author: str = ""
    ours: bool = False


class OfferedFile(Struct, frozen=True, kw_only=True):
    """A file as the place has it. It is fetched once somebody is let in, and never before."""

    name: str
    media_type: str
    size_bytes: int | None
    fetch: Callable[[], AsyncIterator[bytes]]


class Incoming(Struct, frozen=True, kw_only=True):
    """One message as a connector heard it. Which agent it is for is not the connector's to know, nor whether whoever
    said it may talk.

    `message_id` is the platform's own and names this message within its room. `revision` names an edit of it, where the
    platform marks edits; where it does not, the same id with other content is one.

    `peer` is whoever the room is shared with, by an id that stays, where it is one person alone; empty where several
    speak. `service` is what the place is called, such as `telegram`; empty: as its connector is. `parent` is the room
    that this one is a topic of; `guild` and `team` are what the platform has above rooms.
    """

    room: str
    message_id: str
    text: str
    kind: Heard = Heard.MESSAGE
    speaker: Speaker = NOBODY
    peer: str = ""
    service: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""
    attachments: tuple[Attachment, ...] = ()
    files: tuple[OfferedFile, ...] = ()
    album: str = ""  # messages that the platform shows as one bear the same
    quoted: Quoted | None = None
    mentioned: bool = False  # it is said to us, whatever the room: by name, by a quote of ours, by a command to us
    forwarded: bool = False  # somebody else said it, and the speaker brings it: nothing in it is their command
    said_at: datetime | None = None
    context: Context = NO_CONTEXT
    revision: str = ""


Accept = Callable[[Incoming], Awaitable[Receipt | None]]
"""Hands the house what was said. A receipt: it is stored, so confirm it. None: the house will not have it, and says
why in its log; confirm it too, or it comes for ever. It raises where the house could not say: then do not confirm, and
offer it again."""


# --- the connector itself ---

PATIENT_ATTEMPTS_MAX = 40
"""For a place out in the world, which may not be reached for a while. The waits between attempts grow to a minute, so
that a letter outlasts an outage of half an hour."""


def attempts_of(connector: object) -> int | None:
    """How often a connector has an envelope tried, where it has a word on that (`attempts_max`); None: as the house."""
    own: int | None = getattr(connector, "attempts_max", None)
    return own


def abilities_of(connector: object) -> Abilities | None:
    """What its place can, where a connector says so (`abilities`); None: it takes every envelope whole."""
    own: Abilities | None = getattr(connector, "abilities", None)
    return own


def by_number(connector: object | None) -> bool:
    """Whether questions there are answered with numbers, for want of buttons."""
    able = abilities_of(connector)
    return able is not None and not able.buttons


class Connector(Protocol):
    """Speaks with one outside place: knows its API and our parcels, nothing of agents.

    It may also have `abilities`, `attempts_max`, and the methods of `Edits`, `Reacts`, `Types`, `Answers` and `Checks`.
    """

    @property
    def instance(self) -> str:
        """Which of the house's connectors this is: the INSTANCE of `channel:INSTANCE:ROOM`."""
        ...

    @property
    def repeats_safely(self) -> bool:
        """Whether delivering a parcel twice has one effect, its key being how the place knows it."""
        ...

    async def listen(self, accept: Accept) -> None:
        """Hand in what is said, each room in its order, until cancelled. Returning or raising means the line broke:
        the house waits a little and calls again."""
        ...

    async def deliver(self, parcel: Parcel) -> Delivery:
        """Bring one parcel to the room its envelope names, and return once the place took it.

        Raise `DeliveryFailed` only where the place surely did not take it. Anything else that comes out of here (a
        timeout, a broken line, a bug) is understood as: nobody knows.
        """
        ...


@runtime_checkable
class Edits(Protocol):
    async def preview(self, room: str, text: str, *, shown: str = "", quote: str = "") -> str:
        """Show words that are still being written: as a new message, or in place of the one that is `shown`. Gives the
        platform's id of it. Never a delivery: what is shown may be lost, and the answer itself comes by `deliver`."""
        ...

    async def take_back(self, room: str, message_id: str) -> None:
        """Remove a preview, as far as the place lets us."""
        ...


@runtime_checkable
class Reacts(Protocol):
    async def react(self, room: str, message_id: str, emoji: str) -> None:
        """Put our reaction to a message; an empty one takes it back. Raises `DeliveryFailed`."""
        ...


@runtime_checkable
class Types(Protocol):
    async def type_in(self, room: str) -> None:
        """Show that someone writes, for as long as the place shows it (some seconds)."""
        ...


@runtime_checkable
class Answers(Protocol):
    async def answer_press(self, press_id: str, text: str) -> None:
        """Say something to whoever pressed a button, and to nobody else. `press_id` is the press's `message_id`."""
        ...


def edits_of(connector: object) -> Edits | None:
    """A connector as one that shows what is being written, where its place can and it says so."""
    return connector if _can(connector, "edits") and isinstance(connector, Edits) else None


def reacts_of(connector: object) -> Reacts | None:
    return connector if _can(connector, "reacts") and isinstance(connector, Reacts) else None


def types_of(connector: object) -> Types | None:
    return connector if _can(connector, "types") and isinstance(connector, Types) else None


def _can(connector: object, ability: str) -> bool:
    able = abilities_of(connector)
    return able is not None and bool(getattr(able, ability))


class Finding(Struct, frozen=True, kw_only=True):
    """What a connector found when it asked its place who we are there."""

    ok: bool
    account: str  # who we are there, such as `@the_house_bot`
    sentence: str
    because: str = ""
    try_this: str = ""


@runtime_checkable
class Checks(Protocol):
    async def check(self) -> Finding:
        """Ask the place, without changing anything there, whether we may come in."""
        ...


# --- how the house makes one ---


class Shelf(Protocol):
    """A connector's own few words in the store: how far it has heard, whom it has met. Committed when `put` returns."""

    async def get(self, key: str) -> str | None: ...

    async def put(self, key: str, value: str) -> None: ...


def _nothing() -> None:
    pass


class Surroundings(Struct, frozen=True, kw_only=True):
    """What the house hands to a connector it makes."""

    instance: str
    clock: Clock
    chance: Random
    shelf: Shelf
    path_of: Callable[[Attachment], Path]  # where the bytes of a file lie, to be read and never written
    secret: Callable[[str], str]  # of a setting that names a variable or a file; raises where there is none
    stands: Callable[[], None] = _nothing  # to be called when the line stands, as often as one likes


class Question(Struct, frozen=True, kw_only=True):
    """What `retinue connector add` asks for, to fill in one setting."""

    key: str
    ask: str
    secret: bool = False
    default: str = ""
    help: str = ""


class ConnectorKind(Struct, frozen=True, kw_only=True):
    """A kind of connector, from which any number of instances is made: each `[connectors.NAME]` with `kind = name`.

    `settings` is a frozen dataclass of `retinue.config.settings_form.setting`s beside those that every connector has.
    """

    name: str
    title: str
    settings: type
    make: Callable[[Any, Surroundings], Connector]
    questions: tuple[Question, ...] = ()
    next_steps: tuple[str, ...] = ()  # told once it is connected
    defaults: Mapping[str, object] = {}
