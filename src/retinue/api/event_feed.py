"""Feed of stored events from a cursor on, and of deltas, for server-sent events and WebSockets.

Memory per feed is bounded: one batch of events and a bounded list of deltas. Sending waits for a
slow reader. Missed deltas are replaced by `partials`, and events are read from the store again from
the cursor.
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

from retinue.domain.errors import Invalid
from retinue.domain.event import Delta, DeltaKind, Nested, News, NewsKind
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.domain.record import RecordKind
from retinue.engine.event_broadcast import Within
from retinue.operations.base import Desk
from retinue.operations.session.sessions import PartialShown, partial_form
from retinue.store.core import events as store_events
from retinue.store.core.events import Stretch
from retinue.store.core.row_visibility import sees_session

NEWS_AT_ONCE_MAX = 200
KEEP_ALIVE_S = 15.0
TOGETHER_S = 0.002
SESSIONS_REMEMBERED_MAX = 1_000
SUBSCRIPTIONS_MAX = 200
LOOK_AGAIN_S = 5.0
REPLIES_WAITING_MAX = 50
OWN_ENVELOPES_MAX = 512
OWN_WAIT_S = 2.0

_encode = msgspec.json.Encoder().encode


class Event(Struct, frozen=True):
    """One message of a feed. `cursor` is the position to resume from after it."""

    name: str
    data: Any
    id_: int | None = None


class Mask(Struct, frozen=True, kw_only=True):
    """Filter of a subscription.

    Each list applies only to messages that have that property; all lists must match.
    """

    events: frozenset[str] | None = None
    news: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    phases: frozenset[str] | None = None

    def takes_delta(self, delta: Delta) -> bool:
        return _fits(self.events, "delta") and _fits(self.phases, delta.kind.value)

    def takes_nested(self) -> bool:
        return _fits(self.events, "nested")

    def takes_news(self, piece: News) -> bool:
        if not (_fits(self.events, "news") and _fits(self.news, piece.kind.value)):
            return False
        if self.tools is None and self.phases is None:
            return True
        tool, phase = _tool_and_phase(piece)
        return _fits(self.tools, tool) and _fits(self.phases, phase)


EVERYTHING = Mask()
EVENTS = frozenset({"news", "delta", "nested"})
PHASES = frozenset({"thinking", "text", "call", "result", "interim", "final"})


def _fits(wanted: frozenset[str] | None, found: str | None) -> bool:
    return wanted is None or found is None or found in wanted


class _Told(msgspec.Struct):
    """The fields of a record's body that a filter needs."""

    tool: str | None = None
    envelopes: list[str] = []


_told = msgspec.json.Decoder(_Told).decode


def _tool_and_phase(piece: News) -> tuple[str | None, str | None]:
    """Return the tool and the phase of an event.

    A call and its result have a tool. A reply is interim while it requests calls, and final when
    its run ends.
    """
    record = piece.body.get("record")
    match piece.kind:
        case NewsKind.STEP_OPENED:
            return piece.body.get("tool"), "call"
        case NewsKind.STEP_CLOSED if record is not None and record["kind"] == RecordKind.TOOL:
            return _told(record["body"]).tool, "result"
        case NewsKind.STEP_CLOSED if record is not None:
            return None, "interim"
        case NewsKind.RUN_ENDED:
            return None, "final"
        case _:
            return None, None


class Sent(Struct):
    """Envelopes that one client sent while following. They are not echoed to it."""

    envelopes: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    sending: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    followers: int = 0

    def begin(self) -> None:
        self.sending += 1
        self.settled.clear()

    def end(self, envelope: str | None) -> None:
        if envelope is not None:
            self.envelopes[envelope] = None
            if len(self.envelopes) > OWN_ENVELOPES_MAX:
                self.envelopes.popitem(last=False)
        self.sending -= 1
        if not self.sending:
            self.settled.set()


class Senders:
    """Clients that do not want their own envelopes echoed, by principal and client name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Sent] = {}

    def find(self, principal: Principal, client: str) -> Sent | None:
        return self._known.get((str(principal.address), client)) if self._known else None

    def join(self, principal: Principal, client: str) -> Sent:
        sent = self._known.setdefault((str(principal.address), client), Sent())
        sent.followers += 1
        return sent

    def leave(self, principal: Principal, client: str) -> None:
        key = (str(principal.address), client)
        self._known[key].followers -= 1
        if not self._known[key].followers:
            del self._known[key]


class _Subscription(Struct):
    mask: Mask
    since: int = 0  # events up to this one are skipped
    behind: int | None = None  # catch up from here to the feed's cursor; None: up to date


class SignedOut(Exception):
    """The follower's token is no longer valid."""


class Feed:
    """What one client follows: its sessions, their filters, and its cursor."""

    def __init__(
        self,
        desk: Desk,
        caller: Principal,
        *,
        again: Callable[[], Awaitable[Principal | None]] | None = None,
        sent: Sent | None = None,
    ) -> None:
        self._desk = desk
        self._caller = caller
        self._again = again
        self._sent = sent
        self._watcher = desk.live.watch(None)
        self._seen = _Seen(desk, caller)
        self._all: Mask | None = None
        self._sessions: dict[SessionId, _Subscription] = {}
        self._cursor = 0
        self._replies: list[Event] = []
        self._room = asyncio.Event()
        self._room.set()
        self._looked_at = asyncio.get_running_loop().time()

    def close(self) -> None:
        self._desk.live.unwatch(self._watcher)

    @property
    def closed(self) -> bool:
        return self._watcher.closed

    @property
    def cursor(self) -> int:
        return self._cursor

    def end(self) -> None:
        """Stop the feed: the client disconnected."""
        self._watcher.closed = True
        self._watcher.changed.set()

    # --- subscriptions ---

    async def open(self, after: int | None) -> list[Event]:
        """Return the first messages, ending with `hello`.

        A `reset` before it means that the cursor is unknown, and the client must fetch the state
        again.
        """
        oldest, newest = await self._desk.store.read(_bounds)
        self._cursor = newest if after is None else after
        events: list[Event] = []
        if not oldest - 1 <= self._cursor <= newest:
            self._cursor = newest
            events.append(Event("reset", {"cursor": newest, "because": "this cursor is unknown here"}))
        said, nested = await self._partials(), await self._nested()
        return [*events, Event("hello", {"cursor": self._cursor, "partials": said, "nested": nested})]

    def follow_all(self, mask: Mask = EVERYTHING) -> None:
        self._all = mask
        self._narrow()

    def unfollow_all(self) -> None:
        self._all = None
        self._narrow()

    def follow(self, session: SessionId, mask: Mask = EVERYTHING) -> None:
        """Follow a session from the feed's cursor.

        The caller has checked that the session is visible.
        """
        self._add(session, _Subscription(mask))

    async def join(self, session: SessionId, mask: Mask, after: int | None) -> None:
        """Follow a session from now on, or from its own cursor.

        Missed events are then sent first.
        """
        oldest, newest = await self._desk.store.read(_bounds)
        if after is None:
            self._add(session, _Subscription(mask, since=newest))
            self.reply(Event("subscribed", {"session": session, "cursor": newest}))
        elif oldest - 1 <= after <= newest:
            self._add(session, _Subscription(mask, behind=after))
        else:
            self._add(session, _Subscription(mask, since=newest))
            because = "this cursor is unknown here"
            self.reply(Event("reset", {"session": session, "cursor": newest, "because": because}))
            self.reply(Event("subscribed", {"session": session, "cursor": newest}))
        said, nested = await self._partials({session}), await self._nested({session})
        self.reply(Event("partials", {"session": session, "partials": said, "nested": nested}))

    def leave(self, session: SessionId) -> None:
        self._sessions.pop(session, None)
        self._narrow()

    def _add(self, session: SessionId, subscription: _Subscription) -> None:
        if session not in self._sessions and len(self._sessions) >= SUBSCRIPTIONS_MAX:
            raise Invalid(
                f"you follow {SUBSCRIPTIONS_MAX} sessions already",
                because="that is the most for one connection",
                try_this="follow all of them at once, or leave some",
                code="live.too-many-sessions",
            )
        self._sessions[session] = subscription
        self._narrow()

    def _narrow(self) -> None:
        """With a single followed session, read and wake up for that session only."""
        alone = next(iter(self._sessions)) if len(self._sessions) == 1 and self._all is None else None
        self._watcher.session = alone
        self._watcher.news = True
        self._watcher.changed.set()

    def reply(self, event: Event) -> None:
        """Queue a message, to be sent between events."""
        self._replies.append(event)
        self._watcher.changed.set()
        if len(self._replies) >= REPLIES_WAITING_MAX:
            self._room.clear()

    async def room(self) -> None:
        """Wait while too many replies are queued."""
        await self._room.wait()

    def _mask(self, session: SessionId | None, seq: int | None = None) -> Mask | None:
        subscription = self._sessions.get(session) if session is not None else None
        if subscription is None:
            return self._all
        if seq is not None and (subscription.behind is not None or seq <= subscription.since):
            return None
        return subscription.mask

    # --- messages ---

    async def next(self) -> list[Event] | None:
        """Wait for messages and return them.

        Returns None after a long pause, to send a keep-alive.
        """
        quiet = not self._watcher.changed.is_set() and await _quiet(self._watcher.changed)
        await self._look_again()
        self._watcher.changed.clear()
        if self._watcher.closed:
            return []
        events = await self._deltas()
        events += await self._missed_news()
        events += await self._news()
        replies, self._replies = self._replies, []
        self._room.set()
        return (events + replies) or (None if quiet else [])

    async def _look_again(self) -> None:
        """Check the token and visibility again: tokens are revoked and shares removed while a client follows."""
        now = asyncio.get_running_loop().time()
        if self._again is None or now - self._looked_at < LOOK_AGAIN_S:
            return
        self._looked_at = now
        caller = await self._again()
        if caller is None:
            raise SignedOut
        self._caller, self._seen = caller, _Seen(self._desk, caller)

    async def _deltas(self) -> list[Event]:
        watcher = self._watcher
        if watcher.missed:
            watcher.missed = False
            watcher.deltas.clear()
            return [Event("partials", {"partials": await self._partials(), "nested": await self._nested()})]
        deltas, watcher.deltas = watcher.deltas, []
        told: list[Event] = []
        for delta in deltas:
            mask = self._mask(delta.session)
            if isinstance(delta, Nested):
                if mask is not None and mask.takes_nested() and await self._seen.session(delta.session):
                    told.append(Event("nested", delta))
            elif mask is not None and mask.takes_delta(delta) and await self._seen.session(delta.session):
                told.append(Event("delta", delta))
        return told

    async def _partials(self, sessions: Collection[SessionId] | None = None) -> list[PartialShown]:
        forms: list[PartialShown] = []
        for said in self._desk.live.partials():
            mask = self._mask(said.session)
            if mask is None or (sessions is not None and said.session not in sessions):
                continue
            if _fits(mask.events, "delta") and await self._seen.session(said.session):
                silenced = {kind.value: "" for kind in DeltaKind if not _fits(mask.phases, kind.value)}
                forms.append(msgspec.structs.replace(partial_form(said), **silenced))
        return forms

    async def _nested(self, sessions: Collection[SessionId] | None = None) -> list[Within]:
        """Return the progress of work that waiting calls delegated, if the caller sees the call's session."""
        found: list[Within] = []
        for within in self._desk.live.nested():
            mask = self._mask(within.session)
            if mask is None or not mask.takes_nested() or (sessions is not None and within.session not in sessions):
                continue
            if await self._seen.session(within.session):
                found.append(within)
        return found

    async def _news(self) -> list[Event]:
        """Return the events committed since the cursor.

        If there are more than one batch, read again at once.
        """
        watcher = self._watcher
        if not watcher.news or (self._all is None and not self._sessions):
            return []
        watcher.news = False
        read = await self._read(self._cursor, watcher.session)
        if read.more:
            watcher.news = True
            watcher.changed.set()
        self._cursor = read.upto
        return [
            event for piece in read.found for event in await self._told(piece, self._mask(piece.session, piece.seq))
        ]

    async def _missed_news(self) -> list[Event]:
        """Send missed events to subscriptions with their own cursor, one batch at a time."""
        events: list[Event] = []
        for session, subscription in list(self._sessions.items()):
            if subscription.behind is None:
                continue
            read = await self._read(subscription.behind, session)
            for piece in read.found:
                if piece.seq <= self._cursor:
                    events += await self._told(piece, subscription.mask)
            if read.more and read.upto < self._cursor:
                subscription.behind = read.upto
                self._watcher.changed.set()
            else:
                subscription.behind, subscription.since = None, max(self._cursor, subscription.behind)
                events.append(Event("subscribed", {"session": session, "cursor": subscription.since}))
            break  # one subscription per round, so that memory holds one batch
        if any(s.behind is not None for s in self._sessions.values()):
            self._watcher.changed.set()
        return events

    async def _read(self, cursor: int, session: SessionId | None) -> Stretch:
        return await self._desk.store.read(
            lambda conn: store_events.next_of(conn, session, cursor, limit=NEWS_AT_ONCE_MAX, seen_by=self._caller)
        )

    async def _told(self, piece: News, mask: Mask | None) -> list[Event]:
        if mask is None or not mask.takes_news(piece):
            return []
        body = piece.body
        if self._sent is not None:
            if await self._is_own(piece):
                return []
            body = self._without_own_words(body)
        form = {**body, "seq": piece.seq, "news": piece.kind, "session": piece.session, "at": piece.at}
        return [Event("news", form, id_=piece.seq)]

    async def _is_own(self, piece: News) -> bool:
        """Whether this client sent the envelope.

        If a send is in progress, wait briefly for its id.
        """
        sent = self._sent
        if sent is None or piece.kind is not NewsKind.ENVELOPE_ACCEPTED:
            return False
        if sent.sending and piece.body.get("from") == str(self._caller.address):
            try:
                await asyncio.wait_for(sent.settled.wait(), OWN_WAIT_S)
            except TimeoutError:
                pass
        return piece.body.get("envelope") in sent.envelopes

    def _without_own_words(self, body: dict[str, Any]) -> dict[str, Any]:
        """Remove the record from a run's event if this client wrote all of its envelopes."""
        record = body.get("record")
        if self._sent is None or record is None or record["kind"] != RecordKind.USER:
            return body
        envelopes = _told(record["body"]).envelopes
        if not envelopes or not all(envelope in self._sent.envelopes for envelope in envelopes):
            return body
        return {name: value for name, value in body.items() if name != "record"}


async def _quiet(changed: asyncio.Event) -> bool:
    """Wait for a change. Returns whether the wait was long enough for a keep-alive."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    timer = loop.call_later(KEEP_ALIVE_S, changed.set)
    try:
        await changed.wait()
    finally:
        timer.cancel()
    return loop.time() - began >= KEEP_ALIVE_S


def _bounds(conn: sa.Connection) -> tuple[int, int]:
    return store_events.oldest(conn) or 1, store_events.newest(conn)


async def server_sent(feed: Feed, *, after: int | None) -> AsyncGenerator[bytes]:
    """Yield a feed as server-sent events."""
    try:
        yield b"".join(_lines(event) for event in await feed.open(after))
        while not feed.closed:
            events = await feed.next()
            if events is None:
                yield b": still here\n\n"
            elif events:
                yield b"".join(_lines(event) for event in events)
                # Send events that follow within a moment together: a turn emits several.
                await asyncio.sleep(TOGETHER_S)
    except SignedOut:
        return
    finally:
        feed.close()


def _lines(event: Event) -> bytes:
    head = f"event: {event.name}\n" + (f"id: {event.id_}\n" if event.id_ is not None else "")
    return head.encode() + b"data: " + _encode(event.data) + b"\n\n"


class _Seen:
    """Cache of which sessions a caller sees, because one reply has many deltas."""

    def __init__(self, desk: Desk, caller: Principal) -> None:
        self._desk = desk
        self._caller = caller
        self._known: dict[SessionId, bool] = {}

    async def session(self, id_: SessionId) -> bool:
        if self._caller.sees_all:
            return True
        if id_ not in self._known:
            if len(self._known) >= SESSIONS_REMEMBERED_MAX:
                self._known.clear()
            look = partial(sees_session, principal=self._caller, id_=id_)
            self._known[id_] = await self._desk.store.read(look)
        return self._known[id_]
