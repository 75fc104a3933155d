"""Poison messages: inbound messages that failed repeatedly are stored, so that later messages are
processed."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

import msgspec
import sqlalchemy as sa
from msgspec.structs import asdict, replace

from retinue.connectors.base import NOBODY, Heard, Incoming, Quoted, Speaker
from retinue.domain.access import SetAside, SetAsideState
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, Context
from retinue.domain.errors import Conflict, Invalid, NotFound
from retinue.domain.ports import Clock, Ids
from retinue.domain.times import to_ms
from retinue.store.channels import connector_state, poison_messages
from retinue.store.core.connection import Store

log = logging.getLogger(__name__)

TROUBLE = "house/trouble"  # Since when a connector needs its owner. The server's own key in the connector's state.


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A message without its files: they would be fetched from the platform, which may not offer
    them again."""

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
    album: str = ""
    quoted: Quoted | None = None
    mentioned: bool = False
    forwarded: bool = False
    said_at: datetime | None = None
    context: Context = NO_CONTEXT
    revision: str = ""
    files_left: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Kept).decode


class Aside:
    """Stores, reads and closes poison messages."""

    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def put(self, instance: str, incoming: Incoming, *, because: str, tries: int) -> None:
        """Store a poison message. Once this returns, the message may be confirmed to its platform."""
        body = partial(
            poison_messages.put,
            id_=self._ids.new(),
            instance=instance,
            room=incoming.room,
            message_id=_named(incoming),
            body=to_json(incoming),
            because=because,
            tries=tries,
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="connector")
        log.error("message set aside", extra={"connector": instance, "because": because, "tries": tries})

    async def get(self, id_: str) -> tuple[str, Incoming]:
        """The name of the connector that received the message, and the message."""
        found = await self._store.read(partial(poison_messages.get, id_=id_))
        if found is None:
            raise not_there(id_)
        if found.state is not SetAsideState.WAITING:
            raise closed(found)
        try:
            return found.instance, from_json(found.body)
        except msgspec.MsgspecError as error:
            raise Invalid(
                "this message cannot be read back",
                because=f"what was kept of it is damaged: {error}",
                try_this=f"retinue set-aside drop {id_[:8]}",
                code="set-aside.damaged",
            ) from error

    async def close(self, id_: str, *, done: bool) -> None:
        state = SetAsideState.DONE if done else SetAsideState.DROPPED
        if not await self._store.write(partial(poison_messages.close, id_=id_, state=state), point="connector"):
            raise not_there(id_)

    async def began(self, instance: str, *, anew: bool) -> int:
        """Since when a connector needs its owner, in milliseconds. Stored as now if not known yet,
        or with `is_new`."""
        now_ms = to_ms(self._clock.now())

        def body(conn: sa.Connection) -> int:
            known = "" if anew else connector_state.get(conn, instance, TROUBLE) or ""
            if known.isdecimal():
                return int(known)
            connector_state.put(conn, instance, TROUBLE, str(now_ms), at_ms=now_ms)
            return now_ms

        return await self._store.write(body, point="connector")


def to_json(incoming: Incoming) -> str:
    fields = asdict(replace(incoming, files=()))
    del fields["files"]
    return _encode(_Kept(**fields, files_left=len(incoming.files))).decode()


def from_json(body: str) -> Incoming:
    kept = asdict(_decode(body))
    if left := kept.pop("files_left"):
        kept["text"] = f"{kept['text']}\n[left out: {left} files, which were not fetched]".lstrip()
    return Incoming(**kept)


def _named(incoming: Incoming) -> str:
    """A key of the message within its channel. An edit counts as a separate message, because it may
    be the edit alone that fails."""
    return f"{incoming.message_id}/{incoming.revision}" if incoming.revision else incoming.message_id


def not_there(id_: str) -> NotFound:
    return NotFound(
        f"nothing was set aside under '{id_[:64]}'",
        because="there is no such message, or it is not waiting any more",
        try_this="look at `retinue set-aside list`",
        code="set-aside.not-found",
    )


def closed(found: SetAside) -> Conflict:
    return Conflict(
        "this message is not waiting any more",
        because=f"it is {found.state}",
        try_this="look at `retinue set-aside list`",
        code="set-aside.closed",
    )
