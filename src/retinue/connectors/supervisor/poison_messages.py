"""Messages that the house stumbled over again and again: put aside, so that what was said after them is heard."""

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

TROUBLE = "house/trouble"  # since when an instance needs its owner; the house's own word on a connector's shelf


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A message without the files it offered: they are fetched from the place, and it may not offer them again."""

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
    def __init__(self, store: Store, clock: Clock, ids: Ids) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    async def put(self, instance: str, incoming: Incoming, *, because: str, tries: int) -> None:
        """Once this returns, the message may be confirmed to its place."""
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
        """The instance that heard it, and the message as it was heard."""
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
        """Since when an instance needs its owner, in milliseconds: since now, unless that is known already."""
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
    """An edit is another message: it may be the edit alone that the house stumbles over."""
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
