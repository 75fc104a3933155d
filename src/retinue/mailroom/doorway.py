"""Where connectors hand in what they heard, and where someone sees to it that they keep listening."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from retinue.config.sessions import SessionSettings, plain
from retinue.connectors.base import Connector, Incoming
from retinue.domain import address, session_keys
from retinue.domain.address import Address
from retinue.domain.envelope import ATTACHMENTS_MAX, KEY_LENGTH_MAX, TEXT_BYTES_MAX, Context, Draft, Envelope, Receipt
from retinue.domain.errors import Conflict, Invalid, NotFound, RetinueError, StoreError
from retinue.domain.ids import EnvelopeId, short
from retinue.domain.ports import Clock, Ids, Post
from retinue.domain.session import Origin, OriginKind
from retinue.domain.session_keys import ChatType, DmScope
from retinue.domain.text import clipped_bytes, storable
from retinue.domain.trust import Trust
from retinue.store import envelopes
from retinue.store.connection import Store

log = logging.getLogger(__name__)

CONTEXT_CHARS_MAX = 256
LISTEN_AGAIN_FIRST_S = 1.0
LISTEN_AGAIN_MAX_S = 60.0
_EDIT = "/edit/"
_HASH_CHARS = 16

Bound = Callable[[Address], Address | None]
"""Which agent answers in a channel; None where no agent does."""

_encode = msgspec.json.Encoder().encode


class Doorway:
    """Turns what connectors hear into envelopes. Once `accept` returns a receipt, the envelope outlives us.

    A message that a platform delivers twice is one envelope. One that comes again with other words is an edit: an
    envelope of its own, which names the first and says so.
    """

    def __init__(
        self,
        store: Store,
        post: Post,
        clock: Clock,
        ids: Ids,
        bound: Bound,
        sessions: Callable[[], SessionSettings] = plain,
    ) -> None:
        self._store = store
        self._post = post
        self._clock = clock
        self._ids = ids
        self._bound = bound
        self._sessions = sessions
        self._listening: dict[str, asyncio.Task[None]] = {}

    def open(self, connector: Connector) -> None:
        """Have a connector listen from now on, in place of any other of the same instance."""
        self.close(connector.instance)
        self._listening[connector.instance] = asyncio.create_task(
            self._keep_listening(connector), name=f"listening at {connector.instance}"
        )

    def close(self, instance: str) -> None:
        task = self._listening.pop(instance, None)
        if task is not None:
            task.cancel()

    def abandon(self) -> None:
        """Drop everything where it is, as a crash would. What was not confirmed, the platforms offer again."""
        for task in self._listening.values():
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._listening.values())
        self.abandon()
        self._listening.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_listening(self, connector: Connector) -> None:
        """A connector that quietly stops is a door that quietly shuts: listen again, however it ended."""
        heard = False
        breaks = 0

        async def accept(incoming: Incoming) -> Receipt | None:
            nonlocal heard
            receipt = await self.accept(connector.instance, incoming)
            heard = True
            return receipt

        while True:
            try:
                await connector.listen(accept)
                log.warning("connector hung up, listens again", extra={"connector": connector.instance})
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                    raise
                log.warning(
                    "connector lost its line, listens again",
                    exc_info=None if isinstance(error, RetinueError | OSError) else error,
                    extra={"connector": connector.instance, "error": type(error).__name__},
                )
            breaks = 1 if heard else breaks + 1
            heard = False
            await self._clock.sleep(min(LISTEN_AGAIN_FIRST_S * 2 ** min(breaks - 1, 10), LISTEN_AGAIN_MAX_S))

    async def accept(self, instance: str, incoming: Incoming) -> Receipt | None:
        """Take in one message. None where it cannot be had, now or later; raises where the store could not say."""
        try:
            return await self._accept(instance, incoming)
        except StoreError:
            raise
        except RetinueError as error:
            # Nobody sits at the other end who could mend it; offered again it would be refused again, for ever.
            log.warning("message not taken", extra={"connector": instance, "code": error.code})
            return None

    async def _accept(self, instance: str, incoming: Incoming) -> Receipt:
        draft = self._draft(instance, incoming)
        if not incoming.revision:
            try:
                return await self._post.post(draft)
            except Conflict as conflict:
                if conflict.code != "key.reused":
                    raise
        original = await self._store.read(partial(envelopes.by_key, source=draft.source, key=draft.key))
        return await self._post.post(_edit(draft, original, revision=incoming.revision))

    def _draft(self, instance: str, incoming: Incoming) -> Draft:
        sender = address.parse(f"channel:{instance}:{incoming.room}")
        recipient = self._bound(sender)
        if recipient is None:
            raise NotFound(
                f"no agent answers in {sender}",
                because="nobody was bound to this channel",
                try_this="bind an agent to it",
                code="binding.not-found",
            )
        return Draft(
            id=EnvelopeId(self._ids.new()),
            sender=sender,
            recipient=recipient,
            text=_text(incoming),
            source=f"connector:{instance}",
            key=message_key(incoming.room, incoming.message_id),
            origin=self._origin(instance, incoming, recipient.name),
            attachments=incoming.attachments[:ATTACHMENTS_MAX],
            context=_context(incoming),
            trust=Trust.OWNER if incoming.context.from_boss else Trust.UNTRUSTED,
        )

    def _origin(self, instance: str, incoming: Incoming, agent: str) -> Origin | None:
        """The session of whoever writes in person; None where it is that of the room: where several speak, and by the
        narrowest scope, which is one person at one account of ours."""
        settings = self._sessions()
        narrow = settings.dm_scope is DmScope.PER_ACCOUNT_CHANNEL_PEER and not settings.identity_links
        if not incoming.peer or narrow:
            return None
        key = session_keys.direct(
            agent,
            scope=settings.dm_scope,
            channel=incoming.service or instance,
            account=instance,
            peer=incoming.peer,
            links=settings.identity_links,
        )
        same_as_room = key.account and key.id == incoming.peer.casefold()
        return None if same_as_room else Origin(OriginKind.CHAT, str(key))


def message_key(room: str, message_id: str) -> str:
    """`ROOM/MESSAGE_ID`, told apart from every other: a room may hold slashes, so an id's own are spelled out."""
    if not message_id:
        raise Invalid(
            "this message has no id",
            because="without one, a message that is delivered twice would be two",
            try_this="have the connector name each message",
            code="message.no-id",
        )
    key = f"{room}/{storable(message_id).replace('%', '%25').replace('/', '%2F')}"
    if len(key) <= KEY_LENGTH_MAX - len(_EDIT) - _HASH_CHARS:
        return key
    return hashlib.sha256(key.encode()).hexdigest()  # It has no slash, as every key that fits does.


def _edit(draft: Draft, original: Envelope | None, *, revision: str) -> Draft:
    body = _encode([draft.text, [attachment.hash for attachment in draft.attachments], storable(revision)])
    which = f" of {short(original.id)}" if original else ""
    return replace(
        draft,
        text=clipped_bytes(f"[edit{which}]\n{draft.text}", TEXT_BYTES_MAX),
        key=f"{draft.key}{_EDIT}{hashlib.sha256(body).hexdigest()[:_HASH_CHARS]}",
        reply_to=original.id if original else None,
    )


def _text(incoming: Incoming) -> str:
    """What a platform let through we cannot send back to be corrected: kept as far as it can be, and visibly cut."""
    text = storable(incoming.text)
    left_out = len(incoming.attachments) - ATTACHMENTS_MAX
    if left_out > 0:
        text += f"\n[left out: {left_out} more attachments]"
    return clipped_bytes(text, TEXT_BYTES_MAX)


def _context(incoming: Incoming) -> Context:
    """What the connector knows of the sender. A verdict is not among it: decisions come in by another door."""
    given = incoming.context
    return Context(
        sender_name=_named(given.sender_name),
        username=_named(given.username),
        chat_title=_named(given.chat_title),
        from_boss=given.from_boss,
        platform_id=_named(incoming.message_id),
        chat_type=given.chat_type or (ChatType.DIRECT if incoming.peer else ChatType.GROUP),
    )


def _named(text: str) -> str:
    return storable(text[:CONTEXT_CHARS_MAX])
