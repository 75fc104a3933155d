"""Live events over a WebSocket, as JSON text frames in both directions.

The caller is already authenticated; this module enforces the limits of the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import msgspec
from starlette.types import Receive, Send

from retinue.api.event_feed import EVENTS, PHASES, TOGETHER_S, Event, Feed, Mask, Senders, SignedOut
from retinue.api.responses import form_of
from retinue.domain.address import AddressKind
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.event import NewsKind
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.operations.base import Desk
from retinue.store.sessions import sessions
from retinue.tools.ui_windows import Inventory, Panel, Window

PROTOCOL = 1
HELLO_WITHIN_S = 10.0
FRAMES_MAX = 120  # within FRAMES_WINDOW_S
FRAMES_WITHIN_S = 10.0
CLIENT_LENGTH_MAX = 64
MASK_LENGTH_MAX = 200
REASON_BYTES_MAX = 120  # a close frame has 125 bytes, of which 2 are the code

CANNOT_GO_ON = 1011
CLOSING = 1012
BAD_FRAME = 4400
SIGNED_OUT = 4401
WRONG_PROTOCOL = 4406
NO_HELLO = 4408
TOO_MANY_FRAMES = 4429

_encode = msgspec.json.Encoder().encode


class MaskForm(msgspec.Struct, forbid_unknown_fields=True):
    """Filter of a subscription. A list that is omitted allows everything."""

    events: list[str] | None = None
    news: list[NewsKind] | None = None
    tools: list[str] | None = None
    phases: list[str] | None = None

    def mask(self) -> Mask:
        if unknown := {*(self.phases or ())} - PHASES | {*(self.events or ())} - EVENTS:
            raise Invalid(
                f"a mask knows no {', '.join(sorted(unknown))[:80]}",
                because=f"events are {', '.join(sorted(EVENTS))}; phases are {', '.join(sorted(PHASES))}",
                try_this="leave out what the mask should not judge by",
                code="live.mask-invalid",
            )
        lists = (self.events, self.news, self.tools, self.phases)
        if any(len(each) > MASK_LENGTH_MAX for each in lists if each):
            raise Invalid(
                "this mask is too long",
                because=f"a list in it has {MASK_LENGTH_MAX} entries at most",
                try_this="leave that list out, and pass over what you do not want",
                code="live.mask-invalid",
            )
        return Mask(events=_set(self.events), news=_set(self.news), tools=_set(self.tools), phases=_set(self.phases))


def _set(texts: Any) -> frozenset[str] | None:
    return None if texts is None else frozenset(str(text) for text in texts)


class _Frame(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    pass


class Follow(msgspec.Struct, forbid_unknown_fields=True):
    """A session to follow, or `*` for all visible sessions."""

    session: str
    mask: MaskForm = msgspec.field(default_factory=MaskForm)


class Hello(_Frame, tag="hello"):
    """First frame.

    Envelopes sent with the same name in the header `x-retinue-client` are not echoed to this
    client.
    """

    protocol: int
    client: str = ""
    after: int | None = None
    follow: list[Follow] = []


class Subscribe(_Frame, tag="subscribe"):
    session: str
    mask: MaskForm = msgspec.field(default_factory=MaskForm)
    after: int | None = None


class Unsubscribe(_Frame, tag="unsubscribe"):
    session: str


class Ping(_Frame, tag="ping"):
    nonce: str = ""


class PanelForm(msgspec.Struct, forbid_unknown_fields=True):
    """`binding` is the session it shows; `context` describes its content."""

    id: str
    type: str
    title: str = ""
    visible: bool = True
    binding: str | None = None
    context: dict[str, Any] = {}

    def panel(self) -> Panel:
        return Panel(
            id=self.id,
            type=self.type,
            title=self.title,
            visible=self.visible,
            binding=self.binding,
            context=self.context,
        )


class PanelsFrame(_Frame, tag="panels"):
    """The panels of this window. Sent again on each change and when the window gets the focus."""

    window: str
    panels: list[PanelForm]
    selected: str | None = None
    layout: Any = None


class PanelDone(_Frame, tag="panel-done"):
    """Result of a `panel-command`. `panel` is the id of an opened panel."""

    command: str
    ok: bool
    error: str | None = None
    panel: str | None = None


Frame = Hello | Subscribe | Unsubscribe | Ping | PanelsFrame | PanelDone

_decode = msgspec.json.Decoder(Frame).decode


class Closed(Exception):
    """The connection ends, with a code and a reason for the client, or has ended already."""

    def __init__(self, code: int = 0, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class LiveSocket:
    """One WebSocket connection: hello, then frames from the client and messages to it."""

    ALL: ClassVar[str] = "*"

    def __init__(
        self,
        desk: Desk,
        caller: Principal,
        senders: Senders,
        again: Callable[[], Awaitable[Principal | None]],
        receive: Receive,
        send: Send,
    ) -> None:
        self._desk = desk
        self._caller = caller
        self._senders = senders
        self._again = again
        self._receive = receive
        self._send = send
        self._frames: list[float] = []
        self._window: Window | None = None

    async def serve(self) -> None:
        await self._send({"type": "websocket.accept"})
        try:
            hello = await self._hello()
            await self._follow(hello)
        except Closed as closed:
            if closed.code:
                await self._close(closed)
        except RetinueError as error:  # the store does not answer; the client reconnects with its cursor
            await self._close(Closed(CANNOT_GO_ON, error.sentence))

    async def _hello(self) -> Hello:
        try:
            frame = await asyncio.wait_for(self._frame(), HELLO_WITHIN_S)
        except TimeoutError:
            raise Closed(NO_HELLO, "say hello first") from None
        if not isinstance(frame, Hello):
            raise Closed(BAD_FRAME, "say hello first")
        if frame.protocol != PROTOCOL:
            raise Closed(WRONG_PROTOCOL, f"this house speaks protocol {PROTOCOL}, not {frame.protocol}")
        if len(frame.client) > CLIENT_LENGTH_MAX:
            raise Closed(BAD_FRAME, f"the name of a client has {CLIENT_LENGTH_MAX} characters at most")
        return frame

    async def _follow(self, hello: Hello) -> None:
        sent = self._senders.join(self._caller, hello.client) if hello.client else None
        feed = Feed(self._desk, self._caller, again=self._again, sent=sent)
        try:
            refused = [event for each in hello.follow if (event := await self._take_up(feed, each)) is not None]
            first = [
                Event(e.name, {"protocol": PROTOCOL, **e.data}) if e.name == "hello" else e
                for e in await feed.open(hello.after)
            ]
            await self._tell([*first, *refused])
            await self._both_ways(feed)
        finally:
            if self._window is not None and self._desk.windows is not None:
                self._desk.windows.leave(self._window)
            feed.close()
            if hello.client:
                self._senders.leave(self._caller, hello.client)

    async def _both_ways(self, feed: Feed) -> None:
        """Receive and send until either ends, then end the other."""
        listening = asyncio.create_task(self._listen(feed))
        telling = asyncio.create_task(self._pump(feed))
        try:
            await asyncio.wait({listening, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            telling.cancel()
            ends = await asyncio.gather(listening, telling, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _take_up(self, feed: Feed, asked: Follow) -> Event | None:
        """Follow a session from the cursor in hello.

        Returns an error message if that fails; the others go on.
        """
        try:
            mask = asked.mask.mask()
            if asked.session == self.ALL:
                feed.follow_all(mask)
            else:
                feed.follow(await self._session(asked.session), mask)
        except RetinueError as error:
            return _error(error, asked.session)
        return None

    async def _session(self, text: str) -> SessionId:
        return (await self._desk.store.read(lambda conn: sessions.resolve(conn, text, seen_by=self._caller))).id

    # --- frames from the client ---

    async def _listen(self, feed: Feed) -> None:
        while True:
            frame = await self._frame()
            await feed.room()  # stop reading from a client that does not read its replies
            try:
                await self._obey(feed, frame)
            except RetinueError as error:
                feed.reply(_error(error, getattr(frame, "session", None)))

    async def _obey(self, feed: Feed, frame: Frame) -> None:
        match frame:
            case Hello():
                raise Closed(BAD_FRAME, "hello was said already")
            case Ping(nonce=nonce):
                feed.reply(Event("pong", {"nonce": nonce[:CLIENT_LENGTH_MAX], "cursor": feed.cursor}))
            case Subscribe(session=self.ALL):
                feed.follow_all(frame.mask.mask())
                feed.reply(Event("subscribed", {"session": self.ALL, "cursor": feed.cursor}))
            case Subscribe():
                await feed.join(await self._session(frame.session), frame.mask.mask(), frame.after)
            case Unsubscribe(session=self.ALL):
                feed.unfollow_all()
                feed.reply(Event("unsubscribed", {"session": self.ALL}))
            case Unsubscribe():
                session = await self._session(frame.session)
                feed.leave(session)
                feed.reply(Event("unsubscribed", {"session": session}))
            case PanelsFrame():
                self._show(feed, frame)
            case PanelDone():
                if self._window is not None and self._desk.windows is not None:
                    error, panel = frame.error or "", frame.panel or ""
                    self._desk.windows.done(self._window, frame.command, ok=frame.ok, error=error, panel=panel)

    def _show(self, feed: Feed, frame: PanelsFrame) -> None:
        """Store what this window shows, for agents that work on behalf of its user."""
        if self._desk.windows is None or self._caller.address.kind is not AddressKind.PERSON:
            raise Invalid(
                "no windows are kept for you",
                because="only people have windows",
                try_this="leave out what is on your screen",
                code="window.not-a-person",
            )
        self._window = self._desk.windows.show(
            self._caller.address.name,
            frame.window,
            Inventory(
                panels=tuple(each.panel() for each in frame.panels), selected=frame.selected, layout=frame.layout
            ),
            say=lambda command: feed.reply(Event("panel-command", command)),
            window=self._window,
        )

    async def _frame(self) -> Frame:
        message = await self._receive()
        while message["type"] == "websocket.connect":
            message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise Closed
        self._count()
        try:
            return _decode(message.get("text") or message.get("bytes") or b"")
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Closed(BAD_FRAME, f"this frame is not understood: {error}") from None

    def _count(self) -> None:
        """Close the connection if the client sends too many frames."""
        now = asyncio.get_running_loop().time()
        self._frames = [at for at in self._frames if now - at < FRAMES_WITHIN_S]
        self._frames.append(now)
        if len(self._frames) > FRAMES_MAX:
            raise Closed(TOO_MANY_FRAMES, f"more than {FRAMES_MAX} frames in {FRAMES_WITHIN_S:.0f} seconds")

    # --- messages to the client ---

    async def _pump(self, feed: Feed) -> None:
        try:
            while not feed.closed:
                if events := await feed.next():
                    await self._tell(events)
                    await asyncio.sleep(TOGETHER_S)
        except SignedOut:
            raise Closed(SIGNED_OUT, "your token is no longer good") from None
        raise Closed(CLOSING, "the house closes")

    async def _tell(self, events: list[Event]) -> None:
        """Send each message after the previous one has left, so that unread messages do not accumulate."""
        for event in events:
            body = (
                msgspec.to_builtins(event.data, builtin_types=(msgspec.Raw,))
                if event.name in ("delta", "nested")
                else event.data
            )
            try:
                await self._send({"type": "websocket.send", "text": _encode({"type": event.name, **body}).decode()})
            except OSError:
                raise Closed from None

    async def _close(self, closed: Closed) -> None:
        reason = closed.reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        try:
            await self._send({"type": "websocket.close", "code": closed.code, "reason": reason})
        except OSError:
            pass  # already disconnected


def _error(error: RetinueError, session: str | None) -> Event:
    return Event("error", {"error": form_of(error), "session": session})
