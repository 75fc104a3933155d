"""Feeds of stored events and deltas (pieces of streamed text), for server-sent events and WebSockets.

A feed starts after a cursor. It holds at most one batch of events and a limited list of deltas in memory. If a client
reads slowly, sending waits. Deltas that the client has missed are replaced by `partials`, which contain the text so
far. Events that it has missed are read from the store, starting at the cursor.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.api.errors import TooManyFollowedSessions
from retinue.domain.event import Delta, DeltaKind, EventKind, NestedActivity, StoredEvent
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import RecordKind
from retinue.engine.event_broadcast import NestedRun
from retinue.operations.base import Services
from retinue.operations.session.session_state import PartialReplyDetails, to_partial_reply_details
from retinue.store.core import events as store_events
from retinue.store.core.events import EventRange
from retinue.store.core.row_visibility import can_see_session

EVENTS_PER_BATCH = 200
KEEP_ALIVE_INTERVAL_S = 15.0
BATCH_DELAY_S = 0.002
CACHED_SESSIONS_MAX = 1_000
SUBSCRIPTIONS_MAX = 200
RECHECK_INTERVAL_S = 5.0
QUEUED_REPLIES_MAX = 50
OWN_ENVELOPES_MAX = 512
OWN_SEND_TIMEOUT_S = 2.0

_encode = msgspec.json.Encoder().encode


class FeedMessage(Struct, frozen=True):
    """One message of a feed. A client that has received the message can resume from `cursor`."""

    name: str
    data: Any
    cursor: int | None = None


class EventFilter(Struct, frozen=True, kw_only=True):
    """The filter of a subscription: which messages of a session a client gets.

    Each field lists the allowed values of one property, such as the tool. A field does not apply to messages
    without that property. A message must match all fields that apply to it.
    """

    types: frozenset[str] | None = None
    event_kinds: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    phases: frozenset[str] | None = None

    def matches_delta(self, delta: Delta) -> bool:
        return _allows(self.types, "delta") and _allows(self.phases, delta.kind.value)

    def matches_nested(self) -> bool:
        return _allows(self.types, "nested")

    def matches_event(self, event: StoredEvent) -> bool:
        if not (_allows(self.types, "event") and _allows(self.event_kinds, event.kind.value)):
            return False
        if self.tools is None and self.phases is None:
            return True
        tool, phase = _get_tool_and_phase(event)
        return _allows(self.tools, tool) and _allows(self.phases, phase)


NO_FILTER = EventFilter()
MESSAGE_TYPES = frozenset({"event", "delta", "nested"})
PHASES = frozenset({"thinking", "text", "call", "result", "interim", "final"})


def _allows(allowed: frozenset[str] | None, value: str | None) -> bool:
    return allowed is None or value is None or value in allowed


class _RecordBody(msgspec.Struct):
    """The fields of a record's body that a filter needs."""

    tool: str | None = None
    envelopes: list[str] = []


_decode_record_body = msgspec.json.Decoder(_RecordBody).decode


def _get_tool_and_phase(event: StoredEvent) -> tuple[str | None, str | None]:
    """Return the tool and the phase of an event.

    Only a call and its result have a tool. The phase of a reply is `interim` if the reply requests calls, and `final`
    if it ends the run.
    """
    record = event.body.get("record")
    match event.kind:
        case EventKind.STEP_OPENED:
            return event.body.get("tool"), "call"
        case EventKind.STEP_CLOSED if record is not None and record["kind"] == RecordKind.TOOL:
            return _decode_record_body(record["body"]).tool, "result"
        case EventKind.STEP_CLOSED if record is not None:
            return None, "interim"
        case EventKind.RUN_ENDED:
            return None, "final"
        case _:
            return None, None


class OwnEnvelopes(Struct):
    """The envelopes that one client sent while it followed sessions. Their events are not sent back to the client."""

    envelopes: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    sends_in_progress: int = 0
    sends_finished: asyncio.Event = field(default_factory=asyncio.Event)
    followers: int = 0

    def begin_send(self) -> None:
        self.sends_in_progress += 1
        self.sends_finished.clear()

    def end_send(self, envelope: str | None) -> None:
        if envelope is not None:
            self.envelopes[envelope] = None
            if len(self.envelopes) > OWN_ENVELOPES_MAX:
                self.envelopes.popitem(last=False)
        self.sends_in_progress -= 1
        if not self.sends_in_progress:
            self.sends_finished.set()


class OwnEnvelopeRegistry:
    """The `OwnEnvelopes` of clients that do not want events about their own envelopes, by principal and client name."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], OwnEnvelopes] = {}

    def find(self, principal: Principal, client: str) -> OwnEnvelopes | None:
        return self._clients.get((str(principal.address), client)) if self._clients else None

    def join(self, principal: Principal, client: str) -> OwnEnvelopes:
        sent = self._clients.setdefault((str(principal.address), client), OwnEnvelopes())
        sent.followers += 1
        return sent

    def leave(self, principal: Principal, client: str) -> None:
        key = (str(principal.address), client)
        self._clients[key].followers -= 1
        if not self._clients[key].followers:
            del self._clients[key]


class _Subscription(Struct):
    event_filter: EventFilter
    skip_until: int = 0  # events up to this one are skipped
    catch_up_from: int | None = None  # catch up from here to the feed's cursor; None: up to date


class SignedOut(Exception):
    """The token of a client that follows a feed is no longer valid."""


class EventFeed:
    """The event feed of one client: the sessions that it follows, their filters, and its cursor."""

    def __init__(
        self,
        services: Services,
        caller: Principal,
        *,
        recheck: Callable[[], Awaitable[Principal | None]] | None = None,
        own_envelopes: OwnEnvelopes | None = None,
    ) -> None:
        self._services = services
        self._caller = caller
        self._recheck = recheck
        self._own_envelopes = own_envelopes
        self._subscriber = services.event_broadcast.subscribe(None)
        self._visibility = _SessionVisibility(services, caller)
        self._filter_for_all: EventFilter | None = None
        self._subscriptions: dict[SessionId, _Subscription] = {}
        self._cursor = 0
        self._replies: list[FeedMessage] = []
        self._has_reply_space = asyncio.Event()
        self._has_reply_space.set()
        self._rechecked_at = asyncio.get_running_loop().time()

    def close(self) -> None:
        self._services.event_broadcast.unsubscribe(self._subscriber)

    @property
    def is_closed(self) -> bool:
        return self._subscriber.is_closed

    @property
    def cursor(self) -> int:
        return self._cursor

    def stop(self) -> None:
        """Stop the feed, because its client has disconnected."""
        self._subscriber.is_closed = True
        self._subscriber.changed.set()

    # --- subscriptions ---

    async def open(self, after: int | None) -> list[FeedMessage]:
        """Return the first messages of the feed. The last one is `hello`.

        If the server no longer has the events after the cursor, a `reset` comes first. The client must then fetch the
        state again.
        """
        oldest, newest = await self._services.store.read(_read_cursor_range)
        self._cursor = newest if after is None else after
        events: list[FeedMessage] = []
        if not oldest - 1 <= self._cursor <= newest:
            self._cursor = newest
            events.append(FeedMessage("reset", {"cursor": newest, "because": "unknown cursor"}))
        partials, nested = await self._list_partial_replies(), await self._list_nested_runs()
        return [*events, FeedMessage("hello", {"cursor": self._cursor, "partials": partials, "nested": nested})]

    def follow_all(self, event_filter: EventFilter = NO_FILTER) -> None:
        self._filter_for_all = event_filter
        self._update_subscriber()

    def unfollow_all(self) -> None:
        self._filter_for_all = None
        self._update_subscriber()

    def follow(self, session: SessionId, event_filter: EventFilter = NO_FILTER) -> None:
        """Follow a session from the feed's cursor.

        The caller has checked that the session is visible.
        """
        self._add_subscription(session, _Subscription(event_filter))

    async def subscribe(self, session: SessionId, event_filter: EventFilter, after: int | None) -> None:
        """Follow a session from now on, or from a cursor.

        With a cursor, the events since the cursor are sent first.
        """
        oldest, newest = await self._services.store.read(_read_cursor_range)
        if after is None:
            self._add_subscription(session, _Subscription(event_filter, skip_until=newest))
            self.queue_reply(FeedMessage("subscribed", {"session": session, "cursor": newest}))
        elif oldest - 1 <= after <= newest:
            self._add_subscription(session, _Subscription(event_filter, catch_up_from=after))
        else:
            self._add_subscription(session, _Subscription(event_filter, skip_until=newest))
            because = "unknown cursor"
            self.queue_reply(FeedMessage("reset", {"session": session, "cursor": newest, "because": because}))
            self.queue_reply(FeedMessage("subscribed", {"session": session, "cursor": newest}))
        partials, nested = await self._list_partial_replies({session}), await self._list_nested_runs({session})
        self.queue_reply(FeedMessage("partials", {"session": session, "partials": partials, "nested": nested}))

    def unsubscribe(self, session: SessionId) -> None:
        self._subscriptions.pop(session, None)
        self._update_subscriber()

    def _add_subscription(self, session: SessionId, subscription: _Subscription) -> None:
        if session not in self._subscriptions and len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise TooManyFollowedSessions(sessions_max=SUBSCRIPTIONS_MAX)
        self._subscriptions[session] = subscription
        self._update_subscriber()

    def _update_subscriber(self) -> None:
        """Choose which events wake up the feed: if it follows a single session, only those of that session."""
        alone = (
            next(iter(self._subscriptions)) if len(self._subscriptions) == 1 and self._filter_for_all is None else None
        )
        self._subscriber.session = alone
        self._subscriber.has_new_events = True
        self._subscriber.changed.set()

    def queue_reply(self, message: FeedMessage) -> None:
        """Queue a reply to a frame of the client. It is sent between events."""
        self._replies.append(message)
        self._subscriber.changed.set()
        if len(self._replies) >= QUEUED_REPLIES_MAX:
            self._has_reply_space.clear()

    async def wait_for_reply_space(self) -> None:
        """Wait until the number of queued replies is below the limit."""
        await self._has_reply_space.wait()

    def _filter_for(self, session: SessionId | None, seq: int | None = None) -> EventFilter | None:
        subscription = self._subscriptions.get(session) if session is not None else None
        if subscription is None:
            return self._filter_for_all
        if seq is not None and (subscription.catch_up_from is not None or seq <= subscription.skip_until):
            return None
        return subscription.event_filter

    # --- messages ---

    async def next_messages(self) -> list[FeedMessage] | None:
        """Wait for the next messages and return them.

        Returns None if there was no message for a while, so that the caller sends a keep-alive.
        """
        quiet = not self._subscriber.changed.is_set() and await _wait_for_change(self._subscriber.changed)
        await self._recheck_if_due()
        self._subscriber.changed.clear()
        if self._subscriber.is_closed:
            return []
        events = await self._take_deltas()
        events += await self._read_missed_events()
        events += await self._read_new_events()
        replies, self._replies = self._replies, []
        self._has_reply_space.set()
        return (events + replies) or (None if quiet else [])

    async def _recheck_if_due(self) -> None:
        """Check from time to time whether the token is still valid and the sessions are still visible.

        While a client follows sessions, its token may be revoked, or a session may no longer be shared with it.
        """
        now = asyncio.get_running_loop().time()
        if self._recheck is None or now - self._rechecked_at < RECHECK_INTERVAL_S:
            return
        self._rechecked_at = now
        caller = await self._recheck()
        if caller is None:
            raise SignedOut
        self._caller, self._visibility = caller, _SessionVisibility(self._services, caller)

    async def _take_deltas(self) -> list[FeedMessage]:
        watcher = self._subscriber
        if watcher.has_missed_deltas:
            watcher.has_missed_deltas = False
            watcher.deltas.clear()
            return [
                FeedMessage(
                    "partials",
                    {"partials": await self._list_partial_replies(), "nested": await self._list_nested_runs()},
                )
            ]
        deltas, watcher.deltas = watcher.deltas, []
        messages: list[FeedMessage] = []
        for delta in deltas:
            allowed = self._filter_for(delta.session)
            if isinstance(delta, NestedActivity):
                if allowed is not None and allowed.matches_nested() and await self._visibility.can_see(delta.session):
                    messages.append(FeedMessage("nested", delta))
            elif allowed is not None and allowed.matches_delta(delta) and await self._visibility.can_see(delta.session):
                messages.append(FeedMessage("delta", delta))
        return messages

    async def _list_partial_replies(self, sessions: Collection[SessionId] | None = None) -> list[PartialReplyDetails]:
        forms: list[PartialReplyDetails] = []
        for reply in self._services.event_broadcast.partial_replies():
            allowed = self._filter_for(reply.session)
            if allowed is None or (sessions is not None and reply.session not in sessions):
                continue
            if _allows(allowed.types, "delta") and await self._visibility.can_see(reply.session):
                silenced = {kind.value: "" for kind in DeltaKind if not _allows(allowed.phases, kind.value)}
                forms.append(msgspec.structs.replace(to_partial_reply_details(reply), **silenced))
        return forms

    async def _list_nested_runs(self, sessions: Collection[SessionId] | None = None) -> list[NestedRun]:
        """Return the progress of each run that a tool call is waiting for, if the client may see the call's session."""
        found: list[NestedRun] = []
        for within in self._services.event_broadcast.nested_runs():
            allowed = self._filter_for(within.session)
            if (
                allowed is None
                or not allowed.matches_nested()
                or (sessions is not None and within.session not in sessions)
            ):
                continue
            if await self._visibility.can_see(within.session):
                found.append(within)
        return found

    async def _read_new_events(self) -> list[FeedMessage]:
        """Return one batch of the events that were committed since the cursor.

        If there are more events, the feed is woken up again, so that the next batch follows at once.
        """
        watcher = self._subscriber
        if not watcher.has_new_events or (self._filter_for_all is None and not self._subscriptions):
            return []
        watcher.has_new_events = False
        read = await self._read_events(self._cursor, watcher.session)
        if read.has_more:
            watcher.has_new_events = True
            watcher.changed.set()
        self._cursor = read.cursor
        return [
            event
            for piece in read.events
            for event in await self._to_messages(piece, self._filter_for(piece.session, piece.seq))
        ]

    async def _read_missed_events(self) -> list[FeedMessage]:
        """Return one batch of missed events for one subscription that started from a cursor."""
        events: list[FeedMessage] = []
        for session, subscription in list(self._subscriptions.items()):
            if subscription.catch_up_from is None:
                continue
            read = await self._read_events(subscription.catch_up_from, session)
            for piece in read.events:
                if piece.seq <= self._cursor:
                    events += await self._to_messages(piece, subscription.event_filter)
            if read.has_more and read.cursor < self._cursor:
                subscription.catch_up_from = read.cursor
                self._subscriber.changed.set()
            else:
                subscription.catch_up_from, subscription.skip_until = (
                    None,
                    max(self._cursor, subscription.catch_up_from),
                )
                events.append(FeedMessage("subscribed", {"session": session, "cursor": subscription.skip_until}))
            break  # one subscription per round, so that memory holds one batch
        if any(s.catch_up_from is not None for s in self._subscriptions.values()):
            self._subscriber.changed.set()
        return events

    async def _read_events(self, cursor: int, session: SessionId | None) -> EventRange:
        return await self._services.store.read(
            lambda conn: store_events.list_next(conn, session, cursor, limit=EVENTS_PER_BATCH, seen_by=self._caller)
        )

    async def _to_messages(self, event: StoredEvent, event_filter: EventFilter | None) -> list[FeedMessage]:
        if event_filter is None or not event_filter.matches_event(event):
            return []
        body = event.body
        if self._own_envelopes is not None:
            if await self._is_own(event):
                return []
            body = self._without_own_record(body)
        form = {**body, "seq": event.seq, "event": event.kind, "session": event.session, "at": event.at}
        return [FeedMessage("event", form, cursor=event.seq)]

    async def _is_own(self, event: StoredEvent) -> bool:
        """Whether the event is about an envelope that this client sent.

        If the client is still sending an envelope, wait briefly until the id of that envelope is known.
        """
        sent = self._own_envelopes
        if sent is None or event.kind is not EventKind.ENVELOPE_ACCEPTED:
            return False
        if sent.sends_in_progress and event.body.get("from") == str(self._caller.address):
            try:
                await asyncio.wait_for(sent.sends_finished.wait(), OWN_SEND_TIMEOUT_S)
            except TimeoutError:
                pass
        return event.body.get("envelope") in sent.envelopes

    def _without_own_record(self, body: dict[str, Any]) -> dict[str, Any]:
        """Remove the record from an event if this client sent all envelopes that the record contains."""
        record = body.get("record")
        if self._own_envelopes is None or record is None or record["kind"] != RecordKind.USER:
            return body
        envelopes = _decode_record_body(record["body"]).envelopes
        if not envelopes or not all(envelope in self._own_envelopes.envelopes for envelope in envelopes):
            return body
        return {name: value for name, value in body.items() if name != "record"}


async def _wait_for_change(changed: asyncio.Event) -> bool:
    """Wait until the feed has something to send. Returns true if a keep-alive is due, because the wait was long."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    timer = loop.call_later(KEEP_ALIVE_INTERVAL_S, changed.set)
    try:
        await changed.wait()
    finally:
        timer.cancel()
    return loop.time() - began >= KEEP_ALIVE_INTERVAL_S


def _read_cursor_range(conn: sa.Connection) -> tuple[int, int]:
    return store_events.oldest_seq(conn) or 1, store_events.newest_seq(conn)


async def stream_server_sent_events(feed: EventFeed, *, after: int | None) -> AsyncGenerator[bytes]:
    """Yield a feed as server-sent events."""
    try:
        yield b"".join(_format_server_sent_event(event) for event in await feed.open(after))
        while not feed.is_closed:
            events = await feed.next_messages()
            if events is None:
                yield b": keep-alive\n\n"
            elif events:
                yield b"".join(_format_server_sent_event(event) for event in events)
                # Send events that follow within a moment together: a turn emits several.
                await asyncio.sleep(BATCH_DELAY_S)
    except SignedOut:
        return
    finally:
        feed.close()


def _format_server_sent_event(message: FeedMessage) -> bytes:
    head = f"event: {message.name}\n" + (f"id: {message.cursor}\n" if message.cursor is not None else "")
    return head.encode() + b"data: " + _encode(message.data) + b"\n\n"


class _SessionVisibility:
    """Caches which sessions a caller may see, because the check is made for each of many deltas."""

    def __init__(self, services: Services, caller: Principal) -> None:
        self._services = services
        self._caller = caller
        self._cache: dict[SessionId, bool] = {}

    async def can_see(self, id_: SessionId) -> bool:
        if self._caller.sees_everything:
            return True
        if id_ not in self._cache:
            if len(self._cache) >= CACHED_SESSIONS_MAX:
                self._cache.clear()
            look = partial(can_see_session, principal=self._caller, id_=id_)
            self._cache[id_] = await self._services.store.read(look)
        return self._cache[id_]
