"""Merges messages that one sender writes in quick succession into one envelope.

The messages are confirmed only after the envelope is stored. The caller that passed the first message
therefore waits until the sender pauses or a limit is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from retinue.connectors.base import InboundKind, InboundMessage
from retinue.domain.envelope import Receipt
from retinue.domain.errors import StoreError
from retinue.domain.ports import Clock
from retinue.domain.slash_command import parse_commands as read_command
from retinue.intake.access_control import Admission

MERGED_MAX = 20  # messages in one envelope
MERGED_CHARS_MAX = 20_000
WINDOWS_MAX = 5  # the maximum wait of the first message, as a multiple of the debounce time
PENDING_MAX = 1_000  # envelopes waiting for more messages; beyond this number, messages are not merged

CoalescingKey = tuple[str, str, str]
"""The connector, channel and sender of messages that may be merged."""


def _do_nothing() -> None: ...


class _PendingMessages(Struct, eq=False):
    admission: Admission
    messages: list[InboundMessage]
    receipt: asyncio.Future[Receipt | None]
    since_s: float
    cancel_timer: Callable[[], None] = _do_nothing  # the timer that ends the wait


StoreMerged = Callable[[str, list[InboundMessage], Admission], Awaitable[Receipt | None]]
"""Stores messages of one sender as one envelope, in the order in which they were sent."""


class MessageCoalescer:
    """Keeps messages in memory until their sender pauses, then stores them as one envelope.

    Calls for the same channel must not overlap. `ConnectorIntake.accept` locks the channel.
    """

    def __init__(self, clock: Clock, store_merged: StoreMerged, on_timer: Callable[[str, str], None]) -> None:
        """`on_timer` is called with the connector and channel whose messages have waited long enough.

        It must call `flush`.
        """
        self._clock = clock
        self._store_merged = store_merged
        self._on_timer = on_timer
        self._pending: dict[CoalescingKey, _PendingMessages] = {}

    def can_wait(self, connector: str, incoming: InboundMessage, admission: Admission) -> bool:
        """Whether a message may wait for more messages. Edits, replies, commands and messages with files may not."""
        whose = (connector, incoming.channel, admission.sender_id)
        return (
            admission.settings.debounce_ms > 0
            and (whose in self._pending or len(self._pending) < PENDING_MAX)
            and incoming.kind is InboundKind.MESSAGE
            and bool(incoming.text.strip())
            and not (incoming.attachments or incoming.files or incoming.quoted or incoming.revision)
            and not incoming.forwarded  # forwarded text is not the sender's own
            and len(incoming.text) <= MERGED_CHARS_MAX
            and read_command(incoming.text) is None
        )

    def add(self, connector: str, incoming: InboundMessage, admission: Admission) -> asyncio.Future[Receipt | None]:
        """Add a message. Returns a future for the receipt of its envelope. Then call `flush` if `is_full` is true."""
        whose = (connector, incoming.channel, admission.sender_id)
        waiting = self._pending.get(whose)
        now_s = self._clock.now().timestamp()
        if waiting is None:
            done: asyncio.Future[Receipt | None] = asyncio.get_running_loop().create_future()
            # If all callers are gone by then, asyncio would log that the exception was never
            # retrieved. Retrieve it here; remaining callers still get it.
            done.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception() and None)
            waiting = self._pending[whose] = _PendingMessages(admission, [], done, now_s)
        waiting.cancel_timer()
        if all(each.message_id != incoming.message_id for each in waiting.messages):
            waiting.messages.append(incoming)
        window_s = admission.settings.debounce_ms / 1000
        left_s = waiting.since_s + WINDOWS_MAX * window_s - now_s
        waiting.cancel_timer = self._clock.call_later(
            max(0.0, min(window_s, left_s)), lambda: self._on_timer(connector, incoming.channel)
        )
        return waiting.receipt

    def has_other_senders(self, connector: str, channel: str, sender_id: str) -> bool:
        """Whether messages from another sender are waiting in this channel. They are older, and stored first."""
        return any(whose[:2] == (connector, channel) and whose[2] != sender_id for whose in self._pending)

    def is_full(self, connector: str, channel: str, sender_id: str) -> bool:
        waiting = self._pending.get((connector, channel, sender_id))
        return waiting is not None and (
            len(waiting.messages) >= MERGED_MAX or sum(len(each.text) for each in waiting.messages) >= MERGED_CHARS_MAX
        )

    async def flush(self, connector: str, channel: str) -> int:
        """Store the messages waiting in a channel, ordered by the first message of each sender.

        Returns the highest sequence number of the ambient messages that were sent with them. Raises
        `StoreError` if the store fails; the messages after the failed one are then not stored.
        """
        failed: StoreError | None = None
        last_seq = 0
        for whose in [each for each in self._pending if each[:2] == (connector, channel)]:
            waiting = self._pending.pop(whose)
            waiting.cancel_timer()
            try:
                if failed is not None:
                    raise failed
                receipt = await self._store_merged(connector, waiting.messages, waiting.admission)
                last_seq = max((last_seq, *(each.seq for each in waiting.admission.ambient_messages)))
            except BaseException as error:
                if not waiting.receipt.done():
                    waiting.receipt.set_exception(
                        error if isinstance(error, Exception) else ConnectionAbortedError("the server stopped")
                    )
                if not isinstance(error, Exception):
                    raise
                failed = error if isinstance(error, StoreError) else failed
            else:
                if not waiting.receipt.done():
                    waiting.receipt.set_result(receipt)
        if failed is not None:
            raise failed
        return last_seq

    def abandon(self) -> None:
        for waiting in self._pending.values():
            waiting.cancel_timer()
            waiting.receipt.cancel()
        self._pending.clear()
