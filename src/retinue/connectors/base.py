"""The connector API: the protocols that a connector implements, and the types that it exchanges with the server.

A connector only receives and delivers messages. It cannot confirm a message to the platform before the message is
stored, because `accept` returns only after the commit. It sends only what the outbox passes to it, one delivery part at
a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.delivery_part import NO_CAPABILITIES as NO_CAPABILITIES
from retinue.domain.delivery_part import Button as Button
from retinue.domain.delivery_part import ConnectorCapabilities, DeliveryPart
from retinue.domain.delivery_part import LengthUnit as LengthUnit
from retinue.domain.delivery_part import make_single_part as make_single_part
from retinue.domain.envelope import NO_CONTEXT, EnvelopeContext, Receipt
from retinue.domain.errors import RetinueError
from retinue.domain.ports import Clock

# --- errors ---


class FailureKind(StrEnum):
    """Why an envelope did not reach its channel. The values are fixed strings, which are safe to show to an agent."""

    INVALID_ADDRESS = "invalid_address"  # the platform has no such channel
    INVALID_SENDER = "invalid_sender"  # the platform refuses us as the sender
    NO_BINDING = "no_binding"
    ADAPTER_NOT_LOADED = "adapter_not_loaded"
    THROTTLED = "throttled"
    TOO_LARGE = "too_large"
    SEND_FAILED = "send_failed"


class DeliveryFailed(RetinueError):
    """The platform certainly did not accept the delivery part, so a retry cannot duplicate it.

    `permanent` means that a retry cannot succeed. `retry_after_s` is the delay that the platform
    requested.
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
        self.kind = FailureKind(kind)  # validates a plugin's value, which is shown to agents
        self.permanent = permanent
        self.retry_after_s = retry_after_s


class ConnectionLost(RetinueError):
    """The connection to the platform broke, or the platform refused the login. Raised by the connector's `listen`.

    `retry_after_s` is the delay that the platform requested. `needs_owner` means that only the owner can solve the
    problem, such as a revoked token. The server then notifies the owner and retries rarely.
    """

    code = "connector.connection_lost"

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


# --- outbound ---


class Delivery(Struct, frozen=True):
    """A platform's proof that it accepted a delivery part.

    `receipt` is the message id that the platform assigned, or its acknowledgement. It is never empty.
    """

    receipt: str


# --- inbound ---


class InboundKind(StrEnum):
    """The kind of event that a connector received."""

    MESSAGE = "message"
    PRESS = "press"  # a button was pressed: `text` is the button's data, `quoted` is the message with the button
    REACTION = "reaction"  # `text` is the emoji, or empty if it was removed; `quoted` is the message
    MOVED = "moved"  # the channel has a new id: `text` is the new id


class PlatformUser(Struct, frozen=True, kw_only=True):
    """The platform user who sent a message.

    `id` never changes. Users can change their names at any time, so a name does not identify a user.
    """

    id: str
    name: str = ""
    username: str = ""
    is_program: bool = False  # another bot or an auto-responder: never answered, to prevent an endless exchange
    # The platform authenticated the sender. An unverified sender is never linked to a person.
    is_verified: bool = field(default=True, name="vouched")  # stored under an older name


UNKNOWN_USER = PlatformUser(id="")


class QuotedMessage(Struct, frozen=True, kw_only=True):
    """The message that another message replies to, as the platform shows it."""

    message_id: str
    text: str = ""
    author: str = ""
    ours: bool = False


class RemoteFile(Struct, frozen=True, kw_only=True):
    """A file that is still on the platform. It is fetched only after the sender is admitted."""

    name: str
    media_type: str
    size_bytes: int | None
    fetch: Callable[[], AsyncIterator[bytes]]


class InboundMessage(Struct, frozen=True, kw_only=True):
    """One message as a connector received it.

    The connector does not know which agent the message is for, nor whether the sender may write.

    `message_id` is assigned by the platform and identifies the message within its channel.
    `revision` identifies an edit of the message, if the platform marks edits. On other platforms,
    the same `message_id` with different content is an edit.

    `peer` is the permanent id of the person in a private channel. It is empty if several people can
    write in the channel. `service` is the name of the platform, such as `telegram`. Empty means the
    name of the connector. If the channel is a topic, `parent` is the channel that contains it.
    `guild` and `team` are the levels above channels, on platforms that have them.
    """

    channel: str
    message_id: str
    text: str
    kind: InboundKind = InboundKind.MESSAGE
    sender: PlatformUser = UNKNOWN_USER
    peer: str = ""
    service: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""
    attachments: tuple[Attachment, ...] = ()
    files: tuple[RemoteFile, ...] = ()
    album: str = ""  # id of the album: the same for all messages that the platform shows together
    quoted: QuotedMessage | None = None
    mentioned: bool = False  # addressed to us: by name, as a reply to our message, or as a command to us
    # written by another person and forwarded by the sender: nothing in it is the sender's command
    forwarded: bool = False
    sent_at: datetime | None = None
    context: EnvelopeContext = NO_CONTEXT
    revision: str = ""


Accept = Callable[[InboundMessage], Awaitable[Receipt | None]]
"""Passes a message to the server. A receipt means that the message is stored, so confirm it to the
platform. None means that no envelope is stored, for example because the sender was refused. Confirm
the message in this case too; otherwise the platform redelivers it forever. If the call raises an
error, do not confirm the message; pass it again."""


# --- the connector ---

REMOTE_ATTEMPTS_MAX = 40
"""Maximum number of delivery attempts for a remote platform, which may be unreachable for a while.
The delay between attempts grows to a minute, so these attempts outlast an outage of half an hour."""


def get_attempts_max(connector: object) -> int | None:
    """Return the connector's maximum number of delivery attempts (`attempts_max`), or None for the server's default."""
    own: int | None = getattr(connector, "attempts_max", None)
    return own


def get_capabilities(connector: object) -> ConnectorCapabilities | None:
    """Return the capabilities that the connector declares. None means that it accepts every envelope in one part."""
    own: ConnectorCapabilities | None = getattr(connector, "capabilities", None)
    return own


def has_numbered_answers(connector: object | None) -> bool:
    """Whether the connector declares that its platform has no buttons, so people answer questions with numbers."""
    able = get_capabilities(connector)
    return able is not None and not able.can_show_buttons


class Connector(Protocol):
    """Connects the server to one platform. Knows its API and delivery parts, and nothing about agents.

    It may also have the attributes `capabilities` and `attempts_max`, and the methods of
    `SupportsPreview`, `SupportsReactions`, `SupportsTyping`, `SupportsPressAnswers` and
    `SupportsCheck`.
    """

    @property
    def name(self) -> str:
        """The name of this connector: the part CONNECTOR of an address `channel:CONNECTOR:CHANNEL`."""
        ...

    @property
    def repeats_safely(self) -> bool:
        """Whether the platform deduplicates delivery parts by key, so that a part can be sent again safely."""
        ...

    async def listen(self, accept: Accept) -> None:
        """Pass received messages to `accept`, in order within each channel, until cancelled.

        If `listen` returns or raises, the connection broke. The server then waits and calls it again.
        """
        ...

    async def deliver(self, part: DeliveryPart) -> Delivery:
        """Send one delivery part to its envelope's channel. Returns when the platform has accepted the part.

        Raise `DeliveryFailed` only if the platform certainly did not accept the part. Any other exception (a timeout, a
        broken connection, a bug) means that the result is unknown.
        """
        ...


@runtime_checkable
class SupportsPreview(Protocol):
    """A connector that can show an answer while it is being written."""

    async def preview(self, channel: str, text: str, *, preview_id: str = "", quoted_message_id: str = "") -> str:
        """Show text that is still being written, and return the platform's message id.

        `preview_id` is the id of the preview to replace. If it is empty, a new message is posted. A
        preview is not a delivery: it may be lost, and `deliver` sends the complete answer.
        """
        ...

    async def delete_preview(self, channel: str, message_id: str) -> None:
        """Delete a preview, if the platform allows that."""
        ...


@runtime_checkable
class SupportsReactions(Protocol):
    """A connector that can react to a message with an emoji."""

    async def react(self, channel: str, message_id: str, emoji: str) -> None:
        """Set the bot's reaction to a message. An empty `emoji` removes the reaction. Raises `DeliveryFailed`."""
        ...


@runtime_checkable
class SupportsTyping(Protocol):
    """A connector that can show a typing indicator."""

    async def show_typing(self, channel: str) -> None:
        """Show the typing indicator. The platform removes it after a few seconds."""
        ...


@runtime_checkable
class SupportsPressAnswers(Protocol):
    """A connector that can respond when a person presses a button."""

    async def answer_press(self, press_id: str, text: str) -> None:
        """Show text only to the person who pressed a button.

        `press_id` is the `message_id` of the inbound message of kind `press`.
        """
        ...


def get_preview_support(connector: object) -> SupportsPreview | None:
    """Return the connector if it implements previews and its capabilities declare them, else None."""
    return connector if _has_capability(connector, "can_edit") and isinstance(connector, SupportsPreview) else None


def get_reaction_support(connector: object) -> SupportsReactions | None:
    return connector if _has_capability(connector, "can_react") and isinstance(connector, SupportsReactions) else None


def get_typing_support(connector: object) -> SupportsTyping | None:
    return (
        connector if _has_capability(connector, "can_show_typing") and isinstance(connector, SupportsTyping) else None
    )


def _has_capability(connector: object, capability: str) -> bool:
    able = get_capabilities(connector)
    return able is not None and bool(getattr(able, capability))


class ConnectorCheckResult(Struct, frozen=True, kw_only=True):
    """The result of a connector check: whether the login works, and for which account."""

    ok: bool
    account: str  # our account name on the platform, such as `@example_bot`
    sentence: str
    because: str = ""
    try_this: str = ""


@runtime_checkable
class SupportsCheck(Protocol):
    """A connector that can check its login."""

    async def check(self) -> ConnectorCheckResult:
        """Check that the connector can sign in to the platform, without changing anything there."""
        ...


# --- construction ---


class ConnectorState(Protocol):
    """The key-value state of one connector in the store, such as its read position.

    When `put` returns, the value is committed.
    """

    async def get(self, key: str) -> str | None: ...

    async def put(self, key: str, value: str) -> None: ...


def _do_nothing() -> None:
    pass


class ConnectorContext(Struct, frozen=True, kw_only=True):
    """Services that the server passes to a connector when creating it."""

    name: str
    clock: Clock
    random: Random
    state: ConnectorState
    get_attachment_path: Callable[
        [Attachment], Path
    ]  # where the bytes of an attachment are stored; read the file, never write to it
    # reads the secret of a setting that names a variable or a file; raises if there is none
    read_secret: Callable[[str], str]
    on_connected: Callable[[], None] = _do_nothing  # call it when the connection is established; may be repeated


class SettingQuestion(Struct, frozen=True, kw_only=True):
    """A question with which `retinue connector add` asks for the value of one setting."""

    key: str
    ask: str
    secret: bool = False
    default: str = ""
    help: str = ""


class Platform(Struct, frozen=True, kw_only=True):
    """A platform that connectors can connect to.

    Each settings section `[connectors.NAME]` whose `kind` is the name of the platform creates one
    connector. `settings` is a frozen dataclass with the settings of this platform, in addition to
    those that every connector has. Its fields are declared with
    `retinue.config.setting_metadata.setting`.
    """

    name: str
    title: str
    settings: type
    make_connector: Callable[[Any, ConnectorContext], Connector]
    questions: tuple[SettingQuestion, ...] = ()
    next_steps: tuple[str, ...] = ()  # shown after the connector has been added and has connected
    defaults: Mapping[str, object] = {}
