"""Follows a session's events across server restarts. The cursor ensures that each is applied once."""

from __future__ import annotations

import select
import time

from retinue.cli.client import RETRY_FIRST_S, RETRY_MAX_S, Stream
from retinue.cli.errors import HouseClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retinue.cli.chat_state import Conversation

SILENCE_MAX_S = 45.0  # the server sends at least a keep-alive comment every 15 seconds


class Follower:
    """Feeds a chat state from its session's event stream, and reconnects when the connection breaks."""

    def __init__(self, conversation: Conversation, tell: Callable[[bool], None]) -> None:
        self.session = ""  # nothing is followed while this is empty
        self._conversation = conversation
        self._tell = tell  # called with whether the server answers, when that changes
        self._stream: Stream | None = None
        self._heard_at = 0.0
        self._closed_at: float | None = None
        self._try_at = 0.0
        self._pause_s = RETRY_FIRST_S

    @property
    def closed_s(self) -> float:
        """Seconds since the server stopped answering, or 0."""
        return 0.0 if self._closed_at is None else time.monotonic() - self._closed_at

    def step(self, timeout_s: float, also: Sequence[int] = ()) -> list[int]:
        """Wait for input, apply new events, and return those of `extra_fds` that are readable."""
        now = time.monotonic()
        if self._stream is None and self.session:
            if now >= self._try_at and self._connect(now):
                timeout_s = 0.0  # events may have arrived with the response head: return them to the caller first
            else:
                timeout_s = max(0.0, min(timeout_s, self._try_at - now))
        streams = [] if self._stream is None else [self._stream.fileno()]
        readable, _, _ = select.select([*also, *streams], [], [], timeout_s)
        if self._stream is not None:
            self._receive(self._stream, bool(readable) and self._stream.fileno() in readable)
        return [fd for fd in readable if fd in also]

    def go(self, session: str) -> None:
        """Follow another session instead of the current one."""
        self.close()
        self.session = session
        self._try_at = 0.0

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connect(self, now: float) -> bool:
        try:
            self._stream = Stream(after=self._conversation.cursor, session=self.session)
        except HouseClosed:
            self._lost(now)
            return False
        self._heard_at = now
        self._pause_s = RETRY_FIRST_S
        if self._closed_at is not None:
            self._closed_at = None
            self._tell(True)
        self._take(self._stream.ready())
        return True

    def _receive(self, stream: Stream, readable: bool) -> None:
        now = time.monotonic()
        try:
            if readable:
                self._take(stream.receive())
                self._heard_at = now
            elif now - self._heard_at > SILENCE_MAX_S:
                raise HouseClosed("it has gone silent", asked=True)
        except HouseClosed:
            self.close()
            self._lost(now)

    def _take(self, events: Sequence[tuple[str, dict[str, object]]]) -> None:
        for event, data in events:
            self._conversation.take(event, data)

    def _lost(self, now: float) -> None:
        self._try_at = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, RETRY_MAX_S)
        if self._closed_at is None:
            self._closed_at = now
            self._tell(False)
