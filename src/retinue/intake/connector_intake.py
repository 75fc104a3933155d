"""Accepts messages from connectors. Access control is asked first; admitted messages become
envelopes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.sessions import SessionSettings, plain
from retinue.connectors.base import Heard, Incoming
from retinue.domain import address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import ATTACHMENTS_MAX, TEXT_BYTES_MAX, Draft, Envelope, Receipt
from retinue.domain.errors import Conflict, RetinueError, StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock, Ids, Post
from retinue.domain.principal import Principal
from retinue.domain.slash_command import read as read_command
from retinue.domain.storable_text import clipped_bytes, storable
from retinue.domain.times import to_ms
from retinue.intake import inbound_drafts
from retinue.intake.access_control import Keeper, Welcome, speaker_of
from retinue.intake.attachment_fetch import Keep, bring, keep_nothing
from retinue.intake.inbound_drafts import message_key, source_of
from retinue.intake.log_throttle import Sparing
from retinue.intake.message_coalescing import Joiner
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes, merged_messages

log = logging.getLogger(__name__)


class Press(Struct, frozen=True, kw_only=True):
    """A button pressed by a linked person. `data` is the button's data, `message_id` the message
    that has it."""

    instance: str
    room: str
    press_id: str
    data: str
    under: str
    who: Principal


TakePress = Callable[[Press], Awaitable[None]]
RefusePress = Callable[[str, str], Awaitable[None]]
"""Tells whoever pressed, by the instance and the id of the press, that it was not theirs to press."""


Hear = Callable[[Attachment], Awaitable[str]]
"""What is said in a voice message; empty where it is none, or nobody can tell."""


async def hears_nothing(_attachment: Attachment) -> str:
    return ""


async def no_presses(press: Press) -> None:
    """For a server whose messages have no buttons."""
    log.info("press not taken", extra={"connector": press.instance})


async def unanswered(instance: str, _press_id: str) -> None:
    """For a server whose messages have no buttons."""
    log.info("press refused", extra={"connector": instance})


class _Seen(Struct, frozen=True):
    """The envelope that a message became when it was first received; `is_merged` if merged with
    others."""

    envelope: Envelope | None = None
    is_joined: bool = False


class _Room(Struct, eq=False):
    """Lock of one channel, first come, first served, so that its envelopes keep their order."""

    lock: asyncio.Lock
    users: int = 0


class Doorway:
    """Converts messages of connectors to envelopes. Once `accept` returns a receipt, the envelope
    survives a crash.

    A message that a platform delivers twice is one envelope. If it returns with different content,
    it is an edit: a separate envelope that refers to the first. A connector may pass the next
    message of a channel before the previous one is confirmed. They are accepted in the order in
    which they were passed.
    """

    def __init__(
        self,
        store: Store,
        post: Post,
        clock: Clock,
        ids: Ids,
        keeper: Keeper,
        sessions: Callable[[], SessionSettings] = plain,
        *,
        keep: Keep = keep_nothing,
        press: TakePress = no_presses,
        refuse_press: RefusePress = unanswered,
        hear: Hear = hears_nothing,
    ) -> None:
        self._store = store
        self._post = post
        self._clock = clock
        self._lines = Sparing(log, clock)
        self._ids = ids
        self._keeper = keeper
        self._sessions = sessions
        self._keep = keep
        self._press = press
        self._refuse_press = refuse_press
        self._hear = hear
        self._rooms: dict[tuple[str, str], _Room] = {}
        self._joiner = Joiner(clock, self._deliver_joined, self._ring)
        self._flushing: set[asyncio.Task[None]] = set()

    def abandon(self) -> None:
        """Cancel everything at once, as a crash would. Platforms redeliver what was not confirmed."""
        self._joiner.abandon()
        for task in self._flushing:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._flushing)
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def accept(self, instance: str, incoming: Incoming) -> Receipt | None:
        """Accept one message. None if it can never be accepted. Raises if the result of a store
        call is unknown."""
        try:
            async with self._alone_in(instance, incoming.room):
                taken = await self._take(instance, incoming)
            return await asyncio.shield(taken) if isinstance(taken, asyncio.Future) else taken
        except StoreError:
            raise
        except RetinueError as error:
            # No person could correct it, and a redelivery would be refused forever.
            self._lines.warning("message not taken", instance, code=error.code)
            return None

    async def _take(self, instance: str, incoming: Incoming) -> Receipt | asyncio.Future[Receipt | None] | None:
        address.parse(f"channel:{instance}:{incoming.room}")  # refuse an invalid channel before any lookup
        match incoming.kind:
            case Heard.MESSAGE:
                welcome = await self._keeper.meet(instance, incoming)
                return await self._let_in(instance, incoming, welcome) if welcome is not None else None
            case Heard.REACTION:
                return await self._reacted(instance, incoming)
            case Heard.PRESS:
                return await self._pressed(instance, incoming)
            case Heard.MOVED:
                await self._joiner.flush(instance, incoming.room)
                return await self._keeper.moved(instance, incoming)

    async def _let_in(
        self, instance: str, incoming: Incoming, welcome: Welcome
    ) -> Receipt | asyncio.Future[Receipt | None]:
        """Accept an admitted message. Messages that wait in the channel are older, and are stored
        first."""
        joiner, room = self._joiner, incoming.room
        joins = joiner.joins(instance, incoming, welcome)
        if not joins or joiner.others_wait(instance, room, welcome.speaker):
            told = await joiner.flush(instance, room)
            if told:  # ambient messages that were passed on with those are not repeated with this one
                welcome = replace(welcome, before=tuple(each for each in welcome.before if each.seq > told))
        if not joins:
            return await self._deliver(instance, incoming, welcome)
        waits = joiner.add(instance, incoming, welcome)
        if joiner.is_full(instance, room, welcome.speaker):
            await joiner.flush(instance, room)
        return waits

    # --- one channel at a time ---

    @asynccontextmanager
    async def _alone_in(self, instance: str, room: str) -> AsyncGenerator[None]:
        key = (instance, room)
        mine = self._rooms.setdefault(key, _Room(asyncio.Lock()))
        mine.users += 1
        try:
            async with mine.lock:
                yield
        finally:
            mine.users -= 1
            if not mine.users:
                del self._rooms[key]

    def _ring(self, instance: str, room: str) -> None:
        task = asyncio.create_task(self._flush(instance, room), name=f"texts at {instance}")
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def _flush(self, instance: str, room: str) -> None:
        with suppress(StoreError):  # the callers that passed the messages get the error
            async with self._alone_in(instance, room):
                await self._joiner.flush(instance, room)

    # --- messages ---

    async def _deliver(self, instance: str, incoming: Incoming, welcome: Welcome) -> Receipt:
        seen = await self._look(instance, incoming)
        there = seen.envelope
        same = (
            there is not None
            and not incoming.revision
            and inbound_drafts.is_the_same(there, incoming, is_joined=seen.is_joined)
        )
        if same and there is not None and (seen.is_joined or len(welcome.agents) == 1):
            return Receipt(envelope=there.id, session=there.session, news_seq=0, duplicate=True)
        bytes_max = welcome.settings.file_bytes_max
        files, missing = await bring(incoming.files, self._keep, bytes_max=bytes_max, instance=instance)
        whole = inbound_drafts.attached(incoming, files)
        if same and there is not None:
            text = there.text  # as it was first received
        else:
            text = inbound_drafts.text_of(whole, (*missing, *await self._heard(instance, whole)))
        return await self._send(instance, whole, welcome, text, original=there)

    async def _heard(self, instance: str, incoming: Incoming) -> list[str]:
        """Transcripts of voice messages, as far as possible. A failure never keeps a message out."""
        said: list[str] = []
        for file in incoming.attachments[:ATTACHMENTS_MAX]:
            try:
                if words := await self._hear(file):
                    said.append(inbound_drafts.overheard(file.name, words))
            except StoreError:
                raise
            except Exception as error:
                log.warning("voice not heard", exc_info=error, extra={"connector": instance})
        return said

    async def _deliver_joined(self, instance: str, texts: list[Incoming], welcome: Welcome) -> Receipt | None:
        first = texts[0]
        known = [(await self._look(instance, each)).envelope for each in texts]
        if len(texts) == 1 or any(known):  # after a crash some may be stored already, so each is handled separately
            receipts = [await self._deliver(instance, each, welcome) for each in texts]
            return receipts[-1]
        text = clipped_bytes("\n".join(storable(each.text) for each in texts), TEXT_BYTES_MAX)
        id_ = EnvelopeId(self._ids.new())
        # Before the envelope is accepted: then each message is known as soon as it is. A leftover
        # row is harmless.
        body = partial(
            merged_messages.put,
            envelope=id_,
            channel=f"channel:{instance}:{first.room}",
            message_ids=[storable(each.message_id) for each in texts],
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="join")
        return await self._send(instance, first, welcome, text, original=None, id_=id_)

    async def _send(
        self,
        instance: str,
        incoming: Incoming,
        welcome: Welcome,
        text: str,
        *,
        original: Envelope | None,
        id_: EnvelopeId | None = None,
    ) -> Receipt:
        """Post the message to each agent that answers here, after the notes that it has to read
        first."""
        quoted = await self._quoted(instance, incoming)
        drafts = [
            inbound_drafts.letter(
                instance,
                incoming,
                welcome,
                id_=id_ if id_ is not None and agent == welcome.agents[0] else EnvelopeId(self._ids.new()),
                agent=agent,
                text=text,
                settings=self._sessions(),
            )
            for agent in welcome.agents
        ]
        # A command is no turn of the agent: ambient messages wait for the next message.
        before = (
            "" if read_command(text) else inbound_drafts.said_before(welcome.before, incoming, quote_known=bool(quoted))
        )
        if before:
            for draft in drafts:
                await self._note(inbound_drafts.note(draft, before, "before", id_=EnvelopeId(self._ids.new())))
            await self._keeper.told(instance, incoming.room, welcome.before)
        # The first agent's envelope last: it has the key of the message, so once it exists all the
        # others do.
        receipts = [
            await self._post_or_edit(
                replace(draft, reply_to=quoted.id if quoted is not None else None), incoming, original
            )
            for draft in reversed(drafts)
        ]
        return receipts[-1]

    async def _post_or_edit(self, draft: Draft, incoming: Incoming, original: Envelope | None) -> Receipt:
        if not incoming.revision:
            try:
                return await self._post.post(draft)
            except Conflict as conflict:
                if conflict.code != "key.reused":
                    raise
        return await self._post.post(inbound_drafts.edit(draft, original, revision=incoming.revision))

    async def _note(self, draft: Draft) -> Receipt | None:
        """Post a note. If it was posted before with other text, that is fine: the ambient messages
        may have changed."""
        try:
            return await self._post.post(draft)
        except Conflict as conflict:
            if conflict.code != "key.reused":
                raise
            return None

    # --- reactions and presses ---

    async def _reacted(self, instance: str, incoming: Incoming) -> Receipt | None:
        """Note a reaction, if it is to a known envelope and the sender may write."""
        to = await self._quoted(instance, incoming)
        if to is None:
            return None
        welcome = await self._keeper.meet(instance, incoming)
        if welcome is None:
            return None
        await self._joiner.flush(instance, incoming.room)
        said = f"{speaker_of(incoming)}\n{incoming.text}".encode(errors="replace")
        draft = inbound_drafts.letter(
            instance,
            incoming,
            welcome,
            id_=EnvelopeId(self._ids.new()),
            agent=welcome.agents[0],
            text="",
            settings=self._sessions(),
        )
        purpose = f"reaction/{hashlib.sha256(said).hexdigest()[:16]}"
        noted = inbound_drafts.note(
            replace(draft, reply_to=to.id),
            inbound_drafts.reaction(incoming, to),
            purpose,
            id_=draft.id,
            trust=welcome.trust,
        )
        return await self._note(noted)

    async def _pressed(self, instance: str, incoming: Incoming) -> None:
        """Accept a press only from linked people. Whether this person may decide is checked by the
        handler."""
        who = await self._keeper.who_pressed(instance, incoming)
        if who is None:
            await self._refuse_press(instance, incoming.message_id)
            return
        press = Press(
            instance=instance,
            room=incoming.room,
            press_id=incoming.message_id,
            data=incoming.text,
            under=incoming.quoted.message_id if incoming.quoted is not None else "",
            who=who,
        )
        await self._press(press)

    # --- lookups ---

    async def _look(self, instance: str, incoming: Incoming) -> _Seen:
        return await self._store.read(
            partial(_seen, instance=instance, room=incoming.room, message_id=incoming.message_id)
        )

    async def _quoted(self, instance: str, incoming: Incoming) -> Envelope | None:
        """The envelope that a message replies to: one that we sent there, or one that a message
        there became."""
        if incoming.quoted is None or not incoming.quoted.message_id:
            return None
        look = partial(_seen, instance=instance, room=incoming.room, message_id=incoming.quoted.message_id, ours=True)
        return (await self._store.read(look)).envelope


def _seen(conn: sa.Connection, *, instance: str, room: str, message_id: str, ours: bool = False) -> _Seen:
    channel = f"channel:{instance}:{room}"
    found = merged_messages.find(conn, channel, storable(message_id))
    if found is not None and (ours or str(found.sender) == channel):
        return _Seen(found, is_joined=True)
    return _Seen(envelopes.by_key(conn, source_of(instance), message_key(room, message_id)))
