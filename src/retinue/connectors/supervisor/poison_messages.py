"""Stores poison messages: inbound messages that failed repeatedly. Later messages can then be processed."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

import msgspec
import sqlalchemy as sa
from msgspec.structs import asdict, replace

from retinue.connectors.base import UNKNOWN_USER, InboundKind, InboundMessage, PlatformUser, QuotedMessage
from retinue.connectors.errors import PoisonMessageClosed, PoisonMessageDamaged, PoisonMessageNotFound
from retinue.domain.access import PoisonMessageState
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, EnvelopeContext
from retinue.domain.ports import Clock, IdSource
from retinue.domain.times import to_ms
from retinue.store.channels import connector_state, poison_messages
from retinue.store.core.connection import Store
from retinue.text.quantity import format_quantity

log = logging.getLogger(__name__)

NEEDS_OWNER_KEY = "server/trouble"
"""Key in the state of a connector, for the time since which the connector has needed its owner. Do not
change the key: the owner would be notified again after an upgrade."""


class _StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A poison message as stored. Its files are not stored, so they are missing when the message is retried.

    Some fields are stored under older names.
    """

    channel: str = msgspec.field(name="room")
    message_id: str
    text: str
    kind: InboundKind = InboundKind.MESSAGE
    sender: PlatformUser = msgspec.field(default=UNKNOWN_USER, name="speaker")
    peer: str = ""
    service: str = ""
    parent: str = ""
    guild: str = ""
    team: str = ""
    attachments: tuple[Attachment, ...] = ()
    album: str = ""
    quoted: QuotedMessage | None = None
    mentioned: bool = False
    forwarded: bool = False
    sent_at: datetime | None = msgspec.field(default=None, name="said_at")
    context: EnvelopeContext = NO_CONTEXT
    revision: str = ""
    files_left: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_StoredMessage).decode


class PoisonMessages:
    """Stores, reads and closes poison messages."""

    def __init__(self, store: Store, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def put(self, connector_name: str, incoming: InboundMessage, *, because: str, attempts: int) -> None:
        """Store a poison message. Once this returns, the message may be confirmed to its platform."""
        body = partial(
            poison_messages.upsert,
            id_=self._ids.new(),
            connector=connector_name,
            channel=incoming.channel,
            message_id=_make_message_key(incoming),
            body=to_json(incoming),
            because=because,
            tries=attempts,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="connector")
        log.error("poison message stored", extra={"connector": connector_name, "because": because, "tries": attempts})

    async def get(self, id_: str) -> tuple[str, InboundMessage]:
        """Return a poison message, and the name of the connector that received it."""
        found = await self._store.read(partial(poison_messages.get, id_=id_))
        if found is None:
            raise PoisonMessageNotFound(id_)
        if found.state is not PoisonMessageState.WAITING:
            raise PoisonMessageClosed(found.state)
        try:
            return found.connector, from_json(found.body)
        except msgspec.MsgspecError as error:
            raise PoisonMessageDamaged(id_, because=str(error)) from error

    async def close(self, id_: str, *, is_done: bool) -> None:
        state = PoisonMessageState.DONE if is_done else PoisonMessageState.DROPPED
        if not await self._store.write(partial(poison_messages.close, id_=id_, state=state), point="connector"):
            raise PoisonMessageNotFound(id_)

    async def mark_needs_owner(self, connector_name: str, *, is_new: bool) -> int:
        """Return the time since which only the owner can solve a connector's problem, in Unix milliseconds.

        If no time is stored, or with `is_new`, store and return the current time.
        """
        now_ms = to_ms(self._clock.now())

        def body(conn: sa.Connection) -> int:
            known = "" if is_new else connector_state.get_value(conn, connector_name, NEEDS_OWNER_KEY) or ""
            if known.isdecimal():
                return int(known)
            connector_state.set_value(conn, connector_name, NEEDS_OWNER_KEY, str(now_ms), at_ms=now_ms)
            return now_ms

        return await self._store.write(body, point="connector")


def to_json(incoming: InboundMessage) -> str:
    fields = asdict(replace(incoming, files=()))
    del fields["files"]
    return _encode(_StoredMessage(**fields, files_left=len(incoming.files))).decode()


def from_json(body: str) -> InboundMessage:
    kept = asdict(_decode(body))
    if left := kept.pop("files_left"):
        kept["text"] = f"{kept['text']}\n[not downloaded: {format_quantity(left, 'file')}]".lstrip()
    return InboundMessage(**kept)


def _make_message_key(incoming: InboundMessage) -> str:
    """Return the key of a message within its channel.

    An edit has a separate key, because an edit may fail although the original message did not.
    """
    return f"{incoming.message_id}/{incoming.revision}" if incoming.revision else incoming.message_id
