"""Serves live events over a WebSocket, with JSON text frames in both directions.

The connection is authenticated before this module gets it. This module enforces the limits of the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import msgspec
from starlette.types import Receive, Send

from retinue.api.errors import EventFilterInvalid, EventFilterTooLong, WindowOwnerInvalid
from retinue.api.event_feed import (
    BATCH_DELAY_S,
    MESSAGE_TYPES,
    PHASES,
    EventFeed,
    EventFilter,
    FeedMessage,
    OwnEnvelopeRegistry,
    SignedOut,
)
from retinue.api.responses import to_error_form
from retinue.domain.address import AddressKind
from retinue.domain.errors import RetinueError
from retinue.domain.event import EventKind
from retinue.domain.ids import SessionId
from retinue.domain.principal import Principal
from retinue.operations.base import Services
from retinue.store.sessions import sessions
from retinue.tools.ui_windows import Panel, Window, WindowInventory

PROTOCOL_VERSION = 2
HELLO_TIMEOUT_S = 10.0
FRAMES_MAX = 120  # within FRAMES_WINDOW_S
FRAMES_WINDOW_S = 10.0
CLIENT_NAME_CHARS_MAX = 64
FILTER_ITEMS_MAX = 200
REASON_BYTES_MAX = 120  # a close frame carries at most 125 bytes, of which 2 are the code

CLOSE_SERVER_ERROR = 1011
CLOSE_SERVER_STOPPING = 1012
CLOSE_BAD_FRAME = 4400
CLOSE_SIGNED_OUT = 4401
CLOSE_WRONG_PROTOCOL = 4406
CLOSE_NO_HELLO = 4408
CLOSE_TOO_MANY_FRAMES = 4429

_encode = msgspec.json.Encoder().encode


class EventFilterForm(msgspec.Struct, forbid_unknown_fields=True):
    """The filter of a subscription, as a client sends it. An omitted list allows everything."""

    types: list[str] | None = None
    kinds: list[EventKind] | None = None
    tools: list[str] | None = None
    phases: list[str] | None = None

    def to_filter(self) -> EventFilter:
        if unknown := {*(self.phases or ())} - PHASES | {*(self.types or ())} - MESSAGE_TYPES:
            raise EventFilterInvalid(
                ", ".join(sorted(unknown))[:80],
                types=", ".join(sorted(MESSAGE_TYPES)),
                phases=", ".join(sorted(PHASES)),
            )
        lists = (self.types, self.kinds, self.tools, self.phases)
        if any(len(each) > FILTER_ITEMS_MAX for each in lists if each):
            raise EventFilterTooLong(items_max=FILTER_ITEMS_MAX)
        return EventFilter(
            types=_to_set(self.types),
            event_kinds=_to_set(self.kinds),
            tools=_to_set(self.tools),
            phases=_to_set(self.phases),
        )


def _to_set(texts: Any) -> frozenset[str] | None:
    return None if texts is None else frozenset(str(text) for text in texts)


class _Frame(msgspec.Struct, forbid_unknown_fields=True, tag_field="type"):
    pass


class FollowForm(msgspec.Struct, forbid_unknown_fields=True):
    """A session to follow. `*` follows all visible sessions."""

    session: str
    filter: EventFilterForm = msgspec.field(default_factory=EventFilterForm)


class HelloFrame(_Frame, tag="hello"):
    """The first frame that a client sends.

    Events about envelopes that were sent with the same client name, in the header `x-retinue-client`, are not sent to
    this client.
    """

    protocol: int
    client: str = ""
    after: int | None = None
    follow: list[FollowForm] = []


class SubscribeFrame(_Frame, tag="subscribe"):
    session: str
    filter: EventFilterForm = msgspec.field(default_factory=EventFilterForm)
    after: int | None = None


class UnsubscribeFrame(_Frame, tag="unsubscribe"):
    session: str


class PingFrame(_Frame, tag="ping"):
    nonce: str = ""


class _ClientProtocol(msgspec.Struct):
    """The protocol version in a hello frame. It is decoded first, because other fields may differ between versions."""

    type: str = ""
    protocol: int = PROTOCOL_VERSION


class PanelForm(msgspec.Struct, forbid_unknown_fields=True):
    """One panel in a browser window.

    `binding` is the session that the panel shows, and `context` describes its content.
    """

    id: str
    type: str
    title: str = ""
    visible: bool = True
    binding: str | None = None
    context: dict[str, Any] = {}

    def to_panel(self) -> Panel:
        return Panel(
            id=self.id,
            type=self.type,
            title=self.title,
            visible=self.visible,
            binding=self.binding,
            context=self.context,
        )


class PanelsFrame(_Frame, tag="panels"):
    """The panels of the client's window.

    A client sends them again on each change and when the window gets the focus.
    """

    window: str
    panels: list[PanelForm]
    selected: str | None = None
    layout: Any = None


class PanelDoneFrame(_Frame, tag="panel_done"):
    """The client's response to a `panel_command`. If the command opened a panel, `panel` is the id of that panel."""

    command: str
    ok: bool
    error: str | None = None
    panel: str | None = None


ClientFrame = HelloFrame | SubscribeFrame | UnsubscribeFrame | PingFrame | PanelsFrame | PanelDoneFrame

_decode = msgspec.json.Decoder(ClientFrame).decode
_decode_protocol = msgspec.json.Decoder(_ClientProtocol).decode


class WebSocketClosed(Exception):
    """Ends the connection with a code and a reason for the client. With code 0, the connection has already ended."""

    def __init__(self, code: int = 0, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class LiveWebSocket:
    """Serves one WebSocket connection: reads the hello frame, then reads frames and sends messages concurrently."""

    ALL_SESSIONS: ClassVar[str] = "*"

    def __init__(
        self,
        services: Services,
        caller: Principal,
        own_envelopes: OwnEnvelopeRegistry,
        recheck: Callable[[], Awaitable[Principal | None]],
        receive: Receive,
        send: Send,
    ) -> None:
        self._services = services
        self._caller = caller
        self._own_envelopes = own_envelopes
        self._recheck = recheck
        self._receive = receive
        self._send = send
        self._frame_times: list[float] = []
        self._window: Window | None = None

    async def serve(self) -> None:
        await self._send({"type": "websocket.accept"})
        try:
            hello = await self._receive_hello()
            await self._serve_feed(hello)
        except WebSocketClosed as closed:
            if closed.code:
                await self._close(closed)
        except RetinueError as error:  # the store does not answer: the client reconnects with its cursor
            await self._close(WebSocketClosed(CLOSE_SERVER_ERROR, error.sentence))

    async def _receive_hello(self) -> HelloFrame:
        try:
            data = await asyncio.wait_for(self._receive_data(), HELLO_TIMEOUT_S)
        except TimeoutError:
            raise WebSocketClosed(CLOSE_NO_HELLO, "no hello frame received") from None
        _check_protocol(data)  # first: another protocol may have other fields
        frame = _decode_frame(data)
        if not isinstance(frame, HelloFrame):
            raise WebSocketClosed(CLOSE_BAD_FRAME, "the first frame must be hello")
        if len(frame.client) > CLIENT_NAME_CHARS_MAX:
            raise WebSocketClosed(CLOSE_BAD_FRAME, f"the client name is longer than {CLIENT_NAME_CHARS_MAX} characters")
        return frame

    async def _serve_feed(self, hello: HelloFrame) -> None:
        sent = self._own_envelopes.join(self._caller, hello.client) if hello.client else None
        feed = EventFeed(self._services, self._caller, recheck=self._recheck, own_envelopes=sent)
        try:
            refused = [event for each in hello.follow if (event := await self._follow_session(feed, each)) is not None]
            first = [
                FeedMessage(e.name, {"protocol": PROTOCOL_VERSION, **e.data}) if e.name == "hello" else e
                for e in await feed.open(hello.after)
            ]
            await self._send_messages([*first, *refused])
            await self._receive_and_send(feed)
        finally:
            if self._window is not None and self._services.ui_windows is not None:
                self._services.ui_windows.remove_window(self._window)
            feed.close()
            if hello.client:
                self._own_envelopes.leave(self._caller, hello.client)

    async def _receive_and_send(self, feed: EventFeed) -> None:
        """Receive frames and send messages concurrently. When one of the two tasks ends, cancel the other."""
        listening = asyncio.create_task(self._receive_frames(feed))
        sending = asyncio.create_task(self._send_feed(feed))
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            sending.cancel()
            ends = await asyncio.gather(listening, sending, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _follow_session(self, feed: EventFeed, request: FollowForm) -> FeedMessage | None:
        """Follow a session from the cursor in the hello frame.

        Returns an error message for the client if the session cannot be followed. Other sessions are still followed.
        """
        try:
            event_filter = request.filter.to_filter()
            if request.session == self.ALL_SESSIONS:
                feed.follow_all(event_filter)
            else:
                feed.follow(await self._resolve_session(request.session), event_filter)
        except RetinueError as error:
            return _to_error_message(error, request.session)
        return None

    async def _resolve_session(self, text: str) -> SessionId:
        return (
            await self._services.store.read(lambda conn: sessions.get_by_short_id(conn, text, seen_by=self._caller))
        ).id

    # --- frames from the client ---

    async def _receive_frames(self, feed: EventFeed) -> None:
        while True:
            frame = await self._receive_frame()
            await feed.wait_for_reply_space()  # stop reading from a client that does not read its replies
            try:
                await self._handle_frame(feed, frame)
            except RetinueError as error:
                feed.queue_reply(_to_error_message(error, getattr(frame, "session", None)))

    async def _handle_frame(self, feed: EventFeed, frame: ClientFrame) -> None:
        match frame:
            case HelloFrame():
                raise WebSocketClosed(CLOSE_BAD_FRAME, "hello was already received")
            case PingFrame(nonce=nonce):
                feed.queue_reply(FeedMessage("pong", {"nonce": nonce[:CLIENT_NAME_CHARS_MAX], "cursor": feed.cursor}))
            case SubscribeFrame(session=self.ALL_SESSIONS):
                feed.follow_all(frame.filter.to_filter())
                feed.queue_reply(FeedMessage("subscribed", {"session": self.ALL_SESSIONS, "cursor": feed.cursor}))
            case SubscribeFrame():
                await feed.subscribe(await self._resolve_session(frame.session), frame.filter.to_filter(), frame.after)
            case UnsubscribeFrame(session=self.ALL_SESSIONS):
                feed.unfollow_all()
                feed.queue_reply(FeedMessage("unsubscribed", {"session": self.ALL_SESSIONS}))
            case UnsubscribeFrame():
                session = await self._resolve_session(frame.session)
                feed.unsubscribe(session)
                feed.queue_reply(FeedMessage("unsubscribed", {"session": session}))
            case PanelsFrame():
                self._update_window(feed, frame)
            case PanelDoneFrame():
                if self._window is not None and self._services.ui_windows is not None:
                    error, panel = frame.error or "", frame.panel or ""
                    self._services.ui_windows.finish_command(
                        self._window, frame.command, ok=frame.ok, error=error, panel=panel
                    )

    def _update_window(self, feed: EventFeed, frame: PanelsFrame) -> None:
        """Store the panels of this browser window. Agents that act on behalf of its user may read them."""
        if self._services.ui_windows is None or self._caller.address.kind is not AddressKind.PERSON:
            raise WindowOwnerInvalid
        self._window = self._services.ui_windows.update_window(
            self._caller.address.name,
            frame.window,
            WindowInventory(
                panels=tuple(each.to_panel() for each in frame.panels), selected=frame.selected, layout=frame.layout
            ),
            send=lambda command: feed.queue_reply(FeedMessage("panel_command", command)),
            window=self._window,
        )

    async def _receive_frame(self) -> ClientFrame:
        return _decode_frame(await self._receive_data())

    async def _receive_data(self) -> str | bytes:
        message = await self._receive()
        while message["type"] == "websocket.connect":
            message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketClosed
        self._check_frame_rate()
        return message.get("text") or message.get("bytes") or b""

    def _check_frame_rate(self) -> None:
        """Close the connection if the client sends too many frames."""
        now = asyncio.get_running_loop().time()
        self._frame_times = [at for at in self._frame_times if now - at < FRAMES_WINDOW_S]
        self._frame_times.append(now)
        if len(self._frame_times) > FRAMES_MAX:
            raise WebSocketClosed(
                CLOSE_TOO_MANY_FRAMES, f"more than {FRAMES_MAX} frames in {FRAMES_WINDOW_S:.0f} seconds"
            )

    # --- messages to the client ---

    async def _send_feed(self, feed: EventFeed) -> None:
        try:
            while not feed.is_closed:
                if events := await feed.next_messages():
                    await self._send_messages(events)
                    await asyncio.sleep(BATCH_DELAY_S)
        except SignedOut:
            raise WebSocketClosed(CLOSE_SIGNED_OUT, "your token is no longer valid") from None
        raise WebSocketClosed(CLOSE_SERVER_STOPPING, "the server is stopping")

    async def _send_messages(self, messages: list[FeedMessage]) -> None:
        """Send the messages one after the other.

        Each send is awaited before the next one, so that messages do not accumulate in memory.
        """
        for event in messages:
            body = (
                msgspec.to_builtins(event.data, builtin_types=(msgspec.Raw,))
                if event.name in ("delta", "nested")
                else event.data
            )
            try:
                await self._send({"type": "websocket.send", "text": _encode({"type": event.name, **body}).decode()})
            except OSError:
                raise WebSocketClosed from None

    async def _close(self, closed: WebSocketClosed) -> None:
        reason = closed.reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        try:
            await self._send({"type": "websocket.close", "code": closed.code, "reason": reason})
        except OSError:
            pass  # already disconnected


def _check_protocol(data: str | bytes) -> None:
    try:
        hello = _decode_protocol(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return  # decoding the whole frame reports it
    if hello.type == "hello" and hello.protocol != PROTOCOL_VERSION:
        raise WebSocketClosed(
            CLOSE_WRONG_PROTOCOL, f"unsupported protocol {hello.protocol}; this server has protocol {PROTOCOL_VERSION}"
        )


def _decode_frame(data: str | bytes) -> ClientFrame:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WebSocketClosed(CLOSE_BAD_FRAME, f"invalid frame: {error}") from None


def _to_error_message(error: RetinueError, session: str | None) -> FeedMessage:
    return FeedMessage("error", {"error": to_error_form(error), "session": session})
