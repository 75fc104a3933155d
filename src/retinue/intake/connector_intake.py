"""Accepts messages from connectors. Messages that access control admits become envelopes."""

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

from retinue.config.sessions import SessionSettings, built_in_session_settings
from retinue.connectors.base import InboundKind, InboundMessage
from retinue.domain import address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import ATTACHMENTS_MAX, ENVELOPE_TEXT_BYTES_MAX, Envelope, EnvelopeDraft, Receipt
from retinue.domain.errors import Conflict, RetinueError, StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock, EnvelopeAcceptor, IdSource
from retinue.domain.principal import Principal
from retinue.domain.slash_command import parse_commands as read_command
from retinue.domain.storable_text import make_storable, truncate_bytes
from retinue.domain.times import to_ms
from retinue.intake import inbound_drafts
from retinue.intake.access_control import AccessControl, Admission, get_sender_id
from retinue.intake.attachment_fetch import FetchAttachment, fetch_attachments, refuse_attachment
from retinue.intake.inbound_drafts import get_source, make_message_key
from retinue.intake.log_throttle import LogThrottle
from retinue.intake.message_coalescing import MessageCoalescer
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes, merged_messages

log = logging.getLogger(__name__)


class ButtonPress(Struct, frozen=True, kw_only=True):
    """A button press by a person whose platform id is linked.

    `data` is the button's data, and `message_id` is the id of the message with the button.
    """

    connector: str
    channel: str
    press_id: str
    data: str
    message_id: str
    principal: Principal


HandlePress = Callable[[ButtonPress], Awaitable[None]]
RefusePress = Callable[[str, str], Awaitable[None]]
"""Shows the sender of a button press that it was refused. The arguments are the connector's name and the press id."""


Transcribe = Callable[[Attachment], Awaitable[str]]
"""Returns the transcript of a voice message, or an empty string if there is none."""


async def skip_transcription(_attachment: Attachment) -> str:
    return ""


async def ignore_press(press: ButtonPress) -> None:
    """Ignore a button press. For servers that send no buttons."""
    log.info("button press ignored", extra={"connector": press.connector})


async def ignore_refused_press(connector: str, _press_id: str) -> None:
    """Ignore a button press by a sender without access. For servers that send no buttons."""
    log.info("button press refused", extra={"connector": connector})


class _KnownMessage(Struct, frozen=True):
    """The envelope in which a message is already stored. `is_merged` means that it contains other messages too."""

    envelope: Envelope | None = None
    is_merged: bool = False


class _ChannelLock(Struct, eq=False):
    """A first-come, first-served lock of one channel, so that its messages are stored in order."""

    lock: asyncio.Lock
    users: int = 0


class ConnectorIntake:
    """Stores messages from connectors as envelopes. Once `accept` returns a receipt, the envelope survives a crash.

    If a platform delivers a message twice, it is stored once. If the content has changed, the second
    delivery is an edit: a separate envelope that refers to the first. A connector may call `accept`
    for the next message of a channel before the previous call has returned. The messages are stored
    in the order of the calls.
    """

    def __init__(
        self,
        store: Store,
        post: EnvelopeAcceptor,
        clock: Clock,
        ids: IdSource,
        access_control: AccessControl,
        sessions: Callable[[], SessionSettings] = built_in_session_settings,
        *,
        fetch_attachment: FetchAttachment = refuse_attachment,
        handle_press: HandlePress = ignore_press,
        refuse_press: RefusePress = ignore_refused_press,
        transcribe: Transcribe = skip_transcription,
    ) -> None:
        self._store = store
        self._post = post
        self._clock = clock
        self._throttled_log = LogThrottle(log, clock)
        self._ids = ids
        self._access_control = access_control
        self._sessions = sessions
        self._fetch_attachment = fetch_attachment
        self._handle_press_event = handle_press
        self._refuse_press = refuse_press
        self._transcribe = transcribe
        self._channel_locks: dict[tuple[str, str], _ChannelLock] = {}
        self._coalescer = MessageCoalescer(clock, self._store_merged, self._schedule_flush)
        self._flush_tasks: set[asyncio.Task[None]] = set()

    def abandon(self) -> None:
        """Stop at once, as in a crash. Platforms redeliver unconfirmed messages."""
        self._coalescer.abandon()
        for task in self._flush_tasks:
            task.cancel()

    async def stop(self) -> None:
        tasks = list(self._flush_tasks)
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def accept(self, connector: str, incoming: InboundMessage) -> Receipt | None:
        """Accept one message. Returns None if no envelope is stored for it, for example because it was refused.

        Raises `StoreError` if the store fails. The connector must then pass the message again.
        """
        try:
            async with self._lock_channel(connector, incoming.channel):
                taken = await self._handle(connector, incoming)
            return await asyncio.shield(taken) if isinstance(taken, asyncio.Future) else taken
        except StoreError:
            raise
        except RetinueError as error:
            # The sender cannot correct this error, and a redelivered message would be refused again.
            self._throttled_log.warning("message not accepted", connector, code=error.code)
            return None

    async def _handle(
        self, connector: str, incoming: InboundMessage
    ) -> Receipt | asyncio.Future[Receipt | None] | None:
        """Check who may write, and handle the message according to its kind."""
        address.parse_address(f"channel:{connector}:{incoming.channel}")  # refuse an invalid channel before any lookup
        match incoming.kind:
            case InboundKind.MESSAGE:
                welcome = await self._access_control.admit(connector, incoming)
                return await self._accept_admitted(connector, incoming, welcome) if welcome is not None else None
            case InboundKind.REACTION:
                return await self._handle_reaction(connector, incoming)
            case InboundKind.PRESS:
                return await self._handle_press(connector, incoming)
            case InboundKind.MOVED:
                await self._coalescer.flush(connector, incoming.channel)
                return await self._access_control.migrate_channel(connector, incoming)

    async def _accept_admitted(
        self, connector: str, incoming: InboundMessage, admission: Admission
    ) -> Receipt | asyncio.Future[Receipt | None]:
        """Store an admitted message, or let it wait for more messages from its sender.

        Waiting messages that cannot be merged with it are older, so they are stored first.
        """
        joiner, channel = self._coalescer, incoming.channel
        joins = joiner.can_wait(connector, incoming, admission)
        if not joins or joiner.has_other_senders(connector, channel, admission.sender_id):
            last_seq = await joiner.flush(connector, channel)
            if last_seq:  # do not repeat the ambient messages that were sent with the flushed messages
                admission = replace(
                    admission,
                    ambient_messages=tuple(each for each in admission.ambient_messages if each.seq > last_seq),
                )
        if not joins:
            return await self._store_message(connector, incoming, admission)
        waits = joiner.add(connector, incoming, admission)
        if joiner.is_full(connector, channel, admission.sender_id):
            await joiner.flush(connector, channel)
        return waits

    # --- one channel at a time ---

    @asynccontextmanager
    async def _lock_channel(self, connector: str, channel: str) -> AsyncGenerator[None]:
        key = (connector, channel)
        mine = self._channel_locks.setdefault(key, _ChannelLock(asyncio.Lock()))
        mine.users += 1
        try:
            async with mine.lock:
                yield
        finally:
            mine.users -= 1
            if not mine.users:
                del self._channel_locks[key]

    def _schedule_flush(self, connector: str, channel: str) -> None:
        task = asyncio.create_task(self._flush(connector, channel), name=f"texts at {connector}")
        self._flush_tasks.add(task)
        task.add_done_callback(self._flush_tasks.discard)

    async def _flush(self, connector: str, channel: str) -> None:
        with suppress(StoreError):  # the callers that passed the messages get the error
            async with self._lock_channel(connector, channel):
                await self._coalescer.flush(connector, channel)

    # --- messages ---

    async def _store_message(self, connector: str, incoming: InboundMessage, admission: Admission) -> Receipt:
        """Recognize a repeated message, fetch its attachments, and post it to the agents."""
        seen = await self._find_known(connector, incoming)
        there = seen.envelope
        same = (
            there is not None
            and not incoming.revision
            and inbound_drafts.is_same_message(there, incoming, is_merged=seen.is_merged)
        )
        if same and there is not None and (seen.is_merged or len(admission.agents) == 1):
            return Receipt(envelope=there.id, session=there.session, event_seq=0, duplicate=True)
        bytes_max = admission.settings.file_bytes_max
        files, missing = await fetch_attachments(
            incoming.files, self._fetch_attachment, bytes_max=bytes_max, connector=connector
        )
        whole = inbound_drafts.add_attachments(incoming, files)
        if same and there is not None:
            text = there.text  # as it was first received
        else:
            text = inbound_drafts.build_text(whole, (*missing, *await self._transcribe_voice(connector, whole)))
        return await self._post_to_agents(connector, whole, admission, text, original=there)

    async def _transcribe_voice(self, connector: str, incoming: InboundMessage) -> list[str]:
        """Return transcripts of the voice messages. If one fails, the message is accepted without that transcript."""
        transcripts: list[str] = []
        for file in incoming.attachments[:ATTACHMENTS_MAX]:
            try:
                if words := await self._transcribe(file):
                    transcripts.append(inbound_drafts.format_transcript(file.name, words))
            except StoreError:
                raise
            except Exception as error:
                log.warning("voice message not transcribed", exc_info=error, extra={"connector": connector})
        return transcripts

    async def _store_merged(
        self, connector: str, messages: list[InboundMessage], admission: Admission
    ) -> Receipt | None:
        first = messages[0]
        known = [(await self._find_known(connector, each)).envelope for each in messages]
        if len(messages) == 1 or any(known):  # after a crash some may be stored already, so each is handled separately
            receipts = [await self._store_message(connector, each, admission) for each in messages]
            return receipts[-1]
        text = truncate_bytes("\n".join(make_storable(each.text) for each in messages), ENVELOPE_TEXT_BYTES_MAX)
        id_ = EnvelopeId(self._ids.new())
        # Store the message ids first, so that a redelivery of each message is recognized as soon as
        # the envelope is accepted. If it is not accepted, the leftover rows are harmless.
        body = partial(
            merged_messages.insert,
            envelope=id_,
            channel=f"channel:{connector}:{first.channel}",
            message_ids=[make_storable(each.message_id) for each in messages],
            at_ms=to_ms(self._clock.now()),
        )
        await self._store.write(body, point="join")
        return await self._post_to_agents(connector, first, admission, text, original=None, id_=id_)

    async def _post_to_agents(
        self,
        connector: str,
        incoming: InboundMessage,
        admission: Admission,
        text: str,
        *,
        original: Envelope | None,
        id_: EnvelopeId | None = None,
    ) -> Receipt:
        """Post a message to each agent that answers in the channel.

        A note with ambient messages, which the agent must read first, is posted before the message.
        """
        quoted = await self._find_quoted(connector, incoming)
        drafts = [
            inbound_drafts.build_draft(
                connector,
                incoming,
                admission,
                id_=id_ if id_ is not None and agent == admission.agents[0] else EnvelopeId(self._ids.new()),
                agent=agent,
                text=text,
                settings=self._sessions(),
            )
            for agent in admission.agents
        ]
        # The agent does not read a command, so the ambient messages wait for the next message.
        before = (
            ""
            if read_command(text)
            else inbound_drafts.format_ambient(admission.ambient_messages, incoming, is_quote_stored=bool(quoted))
        )
        if before:
            for draft in drafts:
                await self._post_note(
                    inbound_drafts.build_note(draft, before, "before", id_=EnvelopeId(self._ids.new()))
                )
            await self._access_control.mark_ambient_read(connector, incoming.channel, admission.ambient_messages)
        # The first agent's envelope is posted last. It has the key of the message, so if it exists,
        # all the others exist too.
        receipts = [
            await self._post_or_edit(
                replace(draft, reply_to=quoted.id if quoted is not None else None), incoming, original
            )
            for draft in reversed(drafts)
        ]
        return receipts[-1]

    async def _post_or_edit(self, draft: EnvelopeDraft, incoming: InboundMessage, original: Envelope | None) -> Receipt:
        """Post a message, or its new text if the person has edited it."""
        if not incoming.revision:
            try:
                return await self._post.accept(draft)
            except Conflict as conflict:
                if conflict.code != "key.reused":
                    raise
        return await self._post.accept(inbound_drafts.build_edit(draft, original, revision=incoming.revision))

    async def _post_note(self, draft: EnvelopeDraft) -> Receipt | None:
        """Post a note to an agent. If a note with this key but different content exists, keep the existing note."""
        try:
            return await self._post.accept(draft)
        except Conflict as conflict:
            if conflict.code != "key.reused":
                raise
            return None

    # --- reactions and presses ---

    async def _handle_reaction(self, connector: str, incoming: InboundMessage) -> Receipt | None:
        """Post a note about a reaction, if the reaction is to a stored message and the sender is admitted."""
        to = await self._find_quoted(connector, incoming)
        if to is None:
            return None
        welcome = await self._access_control.admit(connector, incoming)
        if welcome is None:
            return None
        await self._coalescer.flush(connector, incoming.channel)
        identity = f"{get_sender_id(incoming)}\n{incoming.text}".encode(errors="replace")
        draft = inbound_drafts.build_draft(
            connector,
            incoming,
            welcome,
            id_=EnvelopeId(self._ids.new()),
            agent=welcome.agents[0],
            text="",
            settings=self._sessions(),
        )
        purpose = f"reaction/{hashlib.sha256(identity).hexdigest()[:16]}"
        noted = inbound_drafts.build_note(
            replace(draft, reply_to=to.id),
            inbound_drafts.format_reaction(incoming, to),
            purpose,
            id_=draft.id,
            trust=welcome.trust,
        )
        return await self._post_note(noted)

    async def _handle_press(self, connector: str, incoming: InboundMessage) -> None:
        """Pass a button press to the press handler, if the sender's platform id is linked to a person.

        The handler checks whether this person may decide.
        """
        who = await self._access_control.identify_presser(connector, incoming)
        if who is None:
            await self._refuse_press(connector, incoming.message_id)
            return
        press = ButtonPress(
            connector=connector,
            channel=incoming.channel,
            press_id=incoming.message_id,
            data=incoming.text,
            message_id=incoming.quoted.message_id if incoming.quoted is not None else "",
            principal=who,
        )
        await self._handle_press_event(press)

    # --- lookups ---

    async def _find_known(self, connector: str, incoming: InboundMessage) -> _KnownMessage:
        return await self._store.read(
            partial(_read_known, instance=connector, channel=incoming.channel, message_id=incoming.message_id)
        )

    async def _find_quoted(self, connector: str, incoming: InboundMessage) -> Envelope | None:
        """Return the envelope that a message replies to, whether it was sent to the channel or received from it."""
        if incoming.quoted is None or not incoming.quoted.message_id:
            return None
        look = partial(
            _read_known, instance=connector, channel=incoming.channel, message_id=incoming.quoted.message_id, ours=True
        )
        return (await self._store.read(look)).envelope


def _read_known(
    conn: sa.Connection, *, instance: str, channel: str, message_id: str, ours: bool = False
) -> _KnownMessage:
    sender = f"channel:{instance}:{channel}"
    found = merged_messages.find(conn, sender, make_storable(message_id))
    if found is not None and (ours or str(found.sender) == sender):
        return _KnownMessage(found, is_merged=True)
    return _KnownMessage(envelopes.get_by_key(conn, get_source(instance), make_message_key(channel, message_id)))
