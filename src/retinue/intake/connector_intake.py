"""Where connectors hand in what they heard. Whoever stands at the door is asked first; what is let in becomes mail."""

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
    """A button that somebody of the house pressed. `data` is what it bore, `under` the message it stands under."""

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
    """In a house whose messages have no buttons."""
    log.info("press not taken", extra={"connector": press.instance})


async def unanswered(instance: str, _press_id: str) -> None:
    """In such a house, too."""
    log.info("press refused", extra={"connector": instance})


class _Seen(Struct, frozen=True):
    """What a message became when it was first heard; `is_joined` with others."""

    envelope: Envelope | None = None
    is_joined: bool = False


class _Room(Struct, eq=False):
    """One at a time, first come first served, so that a room's mail stands in the order in which it was said."""

    lock: asyncio.Lock
    users: int = 0


class Doorway:
    """Turns what connectors hear into envelopes. Once `accept` returns a receipt, the envelope outlives us.

    A message that a platform delivers twice is one envelope. One that comes again with other words is an edit: an
    envelope of its own, which names the first and says so. A connector may hand in the next message of a room before
    the one before it is confirmed: they are taken in the order in which they were handed in.
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
        """Drop everything where it is, as a crash would. What was not confirmed, the platforms offer again."""
        self._joiner.abandon()
        for task in self._flushing:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._flushing)
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def accept(self, instance: str, incoming: Incoming) -> Receipt | None:
        """Take in one message. None where it cannot be had, now or later; raises where the store could not say."""
        try:
            async with self._alone_in(instance, incoming.room):
                taken = await self._take(instance, incoming)
            return await asyncio.shield(taken) if isinstance(taken, asyncio.Future) else taken
        except StoreError:
            raise
        except RetinueError as error:
            # Nobody sits at the other end who could mend it; offered again it would be refused again, for ever.
            self._lines.warning("message not taken", instance, code=error.code)
            return None

    async def _take(self, instance: str, incoming: Incoming) -> Receipt | asyncio.Future[Receipt | None] | None:
        address.parse(f"channel:{instance}:{incoming.room}")  # refused before anybody is asked about it
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
        """Whatever waits in the room was said before, and is stored before."""
        joiner, room = self._joiner, incoming.room
        joins = joiner.joins(instance, incoming, welcome)
        if not joins or joiner.others_wait(instance, room, welcome.speaker):
            told = await joiner.flush(instance, room)
            if told:  # what was overheard there was told with that, and is not told again with this
                welcome = replace(welcome, before=tuple(each for each in welcome.before if each.seq > told))
        if not joins:
            return await self._deliver(instance, incoming, welcome)
        waits = joiner.add(instance, incoming, welcome)
        if joiner.is_full(instance, room, welcome.speaker):
            await joiner.flush(instance, room)
        return waits

    # --- one room at a time ---

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
        with suppress(StoreError):  # of which whoever handed it in is told
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
            text = there.text  # as it was heard the first time
        else:
            text = inbound_drafts.text_of(whole, (*missing, *await self._heard(instance, whole)))
        return await self._send(instance, whole, welcome, text, original=there)

    async def _heard(self, instance: str, incoming: Incoming) -> list[str]:
        """What was said in voice messages, as far as anyone can tell. Nothing of it keeps a message outside."""
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
        if len(texts) == 1 or any(known):  # of what was taken in before a crash, each is looked at for itself
            receipts = [await self._deliver(instance, each, welcome) for each in texts]
            return receipts[-1]
        text = clipped_bytes("\n".join(storable(each.text) for each in texts), TEXT_BYTES_MAX)
        id_ = EnvelopeId(self._ids.new())
        # Before it is accepted: each of them is known the moment it is, and nothing is where it never was.
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
        """To each agent who answers there; what it has to know before comes before."""
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
        # A command is no turn of the agent's: what was said before waits for the next one that is.
        before = (
            "" if read_command(text) else inbound_drafts.said_before(welcome.before, incoming, quote_known=bool(quoted))
        )
        if before:
            for draft in drafts:
                await self._note(inbound_drafts.note(draft, before, "before", id_=EnvelopeId(self._ids.new())))
            await self._keeper.told(instance, incoming.room, welcome.before)
        # The first of them last: by that one the message is known, so once it is there all of them have theirs.
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
        """Told before, with other words, it was told: those who speak may have gone on since."""
        try:
            return await self._post.post(draft)
        except Conflict as conflict:
            if conflict.code != "key.reused":
                raise
            return None

    # --- what is no message ---

    async def _reacted(self, instance: str, incoming: Incoming) -> Receipt | None:
        """Noted, where it is to something in the house, by somebody who may talk."""
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
        """Of people of the house alone; whether this one may decide that is asked where it is decided."""
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

    # --- looking up ---

    async def _look(self, instance: str, incoming: Incoming) -> _Seen:
        return await self._store.read(
            partial(_seen, instance=instance, room=incoming.room, message_id=incoming.message_id)
        )

    async def _quoted(self, instance: str, incoming: Incoming) -> Envelope | None:
        """The envelope that a message answers: one of ours that became that message, or what it became itself."""
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
