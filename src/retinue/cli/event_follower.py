"""Follows a session's events across server restarts. Events are read from a cursor, so each is applied once."""

from __future__ import annotations

import select
import time

from retinue.cli.client import RETRY_FIRST_S, RETRY_MAX_S, EventStream
from retinue.cli.errors import ServerNotAnswering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retinue.cli.chat_state import ChatState

SILENCE_MAX_S = 45.0  # the server sends at least a keep-alive comment every 15 seconds


class EventFollower:
    """Follows the event stream of a session, updates the chat state, and reconnects when the connection breaks."""

    def __init__(self, chat_state: ChatState, on_server_change: Callable[[bool], None]) -> None:
        self.session = ""  # nothing is followed while this is empty
        self._chat_state = chat_state
        self._on_server_change = on_server_change  # called with whether the server answers, when that changes
        self._stream: EventStream | None = None
        self._received_at = 0.0
        self._down_since: float | None = None
        self._retry_at = 0.0
        self._backoff_s = RETRY_FIRST_S

    @property
    def down_s(self) -> float:
        """Seconds since the server stopped responding, or 0 if it responds."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    def step(self, timeout_s: float, extra_fds: Sequence[int] = ()) -> list[int]:
        """Wait for input and apply new events. Returns the file descriptors in `extra_fds` that are readable."""
        now = time.monotonic()
        if self._stream is None and self.session:
            if now >= self._retry_at and self._connect(now):
                timeout_s = 0.0  # events may have arrived with the response head: return them to the caller first
            else:
                timeout_s = max(0.0, min(timeout_s, self._retry_at - now))
        streams = [] if self._stream is None else [self._stream.fileno()]
        readable, _, _ = select.select([*extra_fds, *streams], [], [], timeout_s)
        if self._stream is not None:
            self._receive(self._stream, bool(readable) and self._stream.fileno() in readable)
        return [fd for fd in readable if fd in extra_fds]

    def switch_session(self, session: str) -> None:
        """Follow the given session instead of the current session."""
        self.close()
        self.session = session
        self._retry_at = 0.0

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connect(self, now: float) -> bool:
        try:
            self._stream = EventStream(after=self._chat_state.cursor, session=self.session)
        except ServerNotAnswering:
            self._schedule_retry(now)
            return False
        self._received_at = now
        self._backoff_s = RETRY_FIRST_S
        if self._down_since is not None:
            self._down_since = None
            self._on_server_change(True)
        self._apply_events(self._stream.take_buffered())
        return True

    def _receive(self, stream: EventStream, is_readable: bool) -> None:
        now = time.monotonic()
        try:
            if is_readable:
                self._apply_events(stream.receive())
                self._received_at = now
            elif now - self._received_at > SILENCE_MAX_S:
                raise ServerNotAnswering(f"no data for {SILENCE_MAX_S:g} s", may_have_arrived=True)
        except ServerNotAnswering:
            self.close()
            self._schedule_retry(now)

    def _apply_events(self, events: Sequence[tuple[str, dict[str, object]]]) -> None:
        for event, data in events:
            self._chat_state.apply(event, data)

    def _schedule_retry(self, now: float) -> None:
        self._retry_at = now + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, RETRY_MAX_S)
        if self._down_since is None:
            self._down_since = now
            self._on_server_change(False)
