"""Coalesces messages that one sender writes in quick succession into one envelope.

Nothing is confirmed before all of it is stored. The caller of the first message waits for the last,
but never longer than the limits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from retinue.connectors.base import Heard, Incoming
from retinue.domain.envelope import Receipt
from retinue.domain.errors import StoreError
from retinue.domain.ports import Clock
from retinue.domain.slash_command import read as read_command
from retinue.intake.access_control import Welcome

JOINED_MAX = 20  # messages in one envelope
JOINED_CHARS_MAX = 20_000
WINDOWS_MAX = 5  # the maximum wait of the first message, as a multiple of the debounce time
ROOMS_MAX = 1_000  # that wait at once; beyond them, each message is a separate envelope

Whose = tuple[str, str, str]
"""Instance, room and speaker."""


def _nothing() -> None: ...


class _Waiting(Struct, eq=False):
    welcome: Welcome
    texts: list[Incoming]
    done: asyncio.Future[Receipt | None]
    since_s: float
    take_back: Callable[[], None] = _nothing  # the timer


Deliver = Callable[[str, list[Incoming], Welcome], Awaitable[Receipt | None]]
"""Stores texts of one speaker as one envelope, in the order they were said."""


class Joiner:
    """Holds messages until their sender pauses. One caller per channel at a time: see
    `ConnectorIntake.accept`."""

    def __init__(self, clock: Clock, deliver: Deliver, ring: Callable[[str, str], None]) -> None:
        """`on_timer` is called when the messages of a channel have waited long enough. It must
        arrange a call of `flush`."""
        self._clock = clock
        self._deliver = deliver
        self._ring = ring
        self._waiting: dict[Whose, _Waiting] = {}

    def joins(self, instance: str, incoming: Incoming, welcome: Welcome) -> bool:
        """Whether it may wait for more: plain text, not an edit, and no command."""
        whose = (instance, incoming.room, welcome.speaker)
        return (
            welcome.settings.debounce_ms > 0
            and (whose in self._waiting or len(self._waiting) < ROOMS_MAX)
            and incoming.kind is Heard.MESSAGE
            and bool(incoming.text.strip())
            and not (incoming.attachments or incoming.files or incoming.quoted or incoming.revision)
            and not incoming.forwarded  # forwarded text is not the sender's own
            and len(incoming.text) <= JOINED_CHARS_MAX
            and read_command(incoming.text) is None
        )

    def add(self, instance: str, incoming: Incoming, welcome: Welcome) -> asyncio.Future[Receipt | None]:
        """The future receipt of its envelope. Call `is_full` afterwards."""
        whose = (instance, incoming.room, welcome.speaker)
        waiting = self._waiting.get(whose)
        now_s = self._clock.now().timestamp()
        if waiting is None:
            done: asyncio.Future[Receipt | None] = asyncio.get_running_loop().create_future()
            # The callers may be gone by then. Marks the exception as retrieved; remaining callers
            # still get it.
            done.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception() and None)
            waiting = self._waiting[whose] = _Waiting(welcome, [], done, now_s)
        waiting.take_back()
        if all(each.message_id != incoming.message_id for each in waiting.texts):
            waiting.texts.append(incoming)
        window_s = welcome.settings.debounce_ms / 1000
        left_s = waiting.since_s + WINDOWS_MAX * window_s - now_s
        waiting.take_back = self._clock.later(
            max(0.0, min(window_s, left_s)), lambda: self._ring(instance, incoming.room)
        )
        return waiting.done

    def others_wait(self, instance: str, room: str, speaker: str) -> bool:
        """Whether messages of another sender wait in this channel: they are older, and are stored
        first."""
        return any(whose[:2] == (instance, room) and whose[2] != speaker for whose in self._waiting)

    def is_full(self, instance: str, room: str, speaker: str) -> bool:
        waiting = self._waiting.get((instance, room, speaker))
        return waiting is not None and (
            len(waiting.texts) >= JOINED_MAX or sum(len(each.text) for each in waiting.texts) >= JOINED_CHARS_MAX
        )

    async def flush(self, instance: str, room: str) -> int:
        """Store what waits in a channel, in order of its first message.

        Returns the sequence number up to which ambient messages were passed on. Raises if the
        result of a store call is unknown: then nothing later is stored before it.
        """
        failed: StoreError | None = None
        told = 0
        for whose in [each for each in self._waiting if each[:2] == (instance, room)]:
            waiting = self._waiting.pop(whose)
            waiting.take_back()
            try:
                if failed is not None:
                    raise failed
                receipt = await self._deliver(instance, waiting.texts, waiting.welcome)
                told = max((told, *(each.seq for each in waiting.welcome.before)))
            except BaseException as error:
                if not waiting.done.done():
                    waiting.done.set_exception(
                        error if isinstance(error, Exception) else ConnectionAbortedError("the house stopped")
                    )
                if not isinstance(error, Exception):
                    raise
                failed = error if isinstance(error, StoreError) else failed
            else:
                if not waiting.done.done():
                    waiting.done.set_result(receipt)
        if failed is not None:
            raise failed
        return told

    def abandon(self) -> None:
        for waiting in self._waiting.values():
            waiting.take_back()
            waiting.done.cancel()
        self._waiting.clear()
