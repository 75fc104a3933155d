"""A connector for tests: channels in memory, and every way in which a real platform can fail."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.connectors.base import (
    Abilities,
    Accept,
    Delivery,
    DeliveryFailed,
    FailureKind,
    Finding,
    Incoming,
    Parcel,
)
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, Context, Envelope, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock

SAY_S_MAX = 120.0


class LineBroke(ConnectionError):
    """The connection broke during a delivery, so it is unknown whether it arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A fault for one delivery. Without `failure` and `breaks` the part arrives, after `delay_s`."""

    failure: DeliveryFailed | None = None
    # the connection breaks; `arrives` decides whether before or after the platform accepted the part
    breaks: bool = False
    arrives: bool = False
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Said:
    """An inbound message that is offered to the server until it is confirmed."""

    incoming: Incoming
    confirmed: asyncio.Future[Receipt | None]


@dataclass(slots=True, eq=False)
class QuietConnector:
    """A connector and its platform in one object, without a network.

    Deliveries are recorded in `parts`; `will_fail`, `will_throttle`, `will_break` and
    `will_be_slow` set faults for the next ones. `send_inbound` sends a message as a person would.

    With `repeats_safely` the platform recognizes a part by its idempotency key and accepts it once.
    Without it, a part that is sent twice appears twice. The object also represents the platform, so
    it survives a server that crashes. Without `capabilities` it takes every envelope as one part.
    It edits, reacts and shows typing where the capabilities say so.
    """

    clock: Clock
    instance: str = "quiet"
    repeats_safely: bool = True
    after_s: float = 0.0  # how long the platform takes for each delivery
    abilities: Abilities | None = None
    parcels: list[Parcel] = field(default_factory=list[Parcel])  # the ones that arrived
    previews: dict[str, str] = field(default_factory=dict[str, str])  # message id -> its current text
    shown: list[str] = field(default_factory=list[str])  # every text that a preview ever showed
    reactions: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # channel, message, emoji
    typed: list[str] = field(default_factory=list[str])  # channels, one entry each time typing was shown
    presses: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    attempts: list[EnvelopeId] = field(default_factory=list[EnvelopeId])
    at_once: int = 0  # deliveries in progress
    at_once_max: int = 0
    on_deliver: Callable[[Parcel], None] | None = None
    _troubles: dict[str | None, deque[Trouble]] = field(default_factory=dict[str | None, deque[Trouble]])
    _said: deque[Said] = field(default_factory=deque[Said])
    _spoken: asyncio.Event = field(default_factory=asyncio.Event)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- outbound ---

    async def deliver(self, parcel: Parcel) -> Delivery:
        self.attempts.append(parcel.envelope.id)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            return await self._deliver(parcel, self._next_trouble(parcel.room))
        finally:
            self.at_once -= 1

    async def _deliver(self, parcel: Parcel, trouble: Trouble) -> Delivery:
        wait_s = self.after_s + trouble.after_s
        if wait_s:
            await self.clock.sleep(wait_s)
        if trouble.failure is not None:
            raise trouble.failure
        if not trouble.breaks or trouble.arrives:
            self._take(parcel)
        if trouble.breaks:
            raise LineBroke("the line broke")
        part = f"-{parcel.index}" if parcel.count > 1 else ""
        return Delivery(f"quiet-{parcel.envelope.id[:8]}{part}")

    def _take(self, parcel: Parcel) -> None:
        if self.repeats_safely and any(known.key == parcel.key for known in self.parcels):
            return
        self.parcels.append(parcel)
        if self.on_deliver is not None:
            self.on_deliver(parcel)

    @property
    def arrived(self) -> list[Envelope]:
        """The envelopes that arrived, oldest first, one entry per arrival of a first part."""
        return [parcel.envelope for parcel in self.parcels if parcel.index == 0]

    def texts(self, room: str) -> list[str]:
        """Returns the texts of the parts that arrived in a channel, oldest first."""
        return [parcel.text for parcel in self.parcels if parcel.room == room]

    def will_fail(
        self,
        *,
        times: int = 1,
        room: str | None = None,
        kind: FailureKind = FailureKind.SEND_FAILED,
        permanent: bool = False,
        retry_after_s: float | None = None,
        sentence: str = "the place is closed",
    ) -> None:
        """Make the next deliveries fail, to one channel or to any."""
        for _ in range(times):
            failure = DeliveryFailed(sentence, kind=kind, permanent=permanent, retry_after_s=retry_after_s)
            self._will(Trouble(failure=failure), room)

    def will_throttle(self, retry_after_s: float, *, times: int = 1, room: str | None = None) -> None:
        """Make the next deliveries fail with a rate limit and a retry time."""
        self.will_fail(
            times=times, room=room, kind=FailureKind.THROTTLED, retry_after_s=retry_after_s, sentence="not so fast"
        )

    def will_break(self, *, arrives: bool, times: int = 1, room: str | None = None) -> None:
        """Break the connection during the next deliveries, before or after they arrived."""
        for _ in range(times):
            self._will(Trouble(breaks=True, arrives=arrives), room)

    def will_be_slow(self, after_s: float, *, times: int = 1, room: str | None = None) -> None:
        """Delay the next deliveries."""
        for _ in range(times):
            self._will(Trouble(after_s=after_s), room)

    def _will(self, trouble: Trouble, room: str | None) -> None:
        self._troubles.setdefault(room, deque()).append(trouble)

    def _next_trouble(self, room: str) -> Trouble:
        for which in (room, None):
            waiting = self._troubles.get(which)
            if waiting:
                return waiting.popleft()
        return Trouble()

    # --- previews, reactions and typing ---

    async def preview(self, room: str, text: str, *, shown: str = "", quote: str = "") -> str:
        message = shown or f"{room}-preview-{next(self._ids)}"
        self.previews[message] = text
        self.shown.append(text)
        return message

    async def take_back(self, room: str, message_id: str) -> None:
        self.previews.pop(message_id, None)

    async def react(self, room: str, message_id: str, emoji: str) -> None:
        trouble = self._next_trouble(room)
        if trouble.failure is not None:
            raise trouble.failure
        self.reactions.append((room, message_id, emoji))

    async def type_in(self, room: str) -> None:
        self.typed.append(room)

    async def answer_press(self, press_id: str, text: str) -> None:
        self.presses.append((press_id, text))

    async def check(self) -> Finding:
        return Finding(ok=True, account=f"@{self.instance}", sentence="it is quiet here")

    # --- inbound ---

    async def listen(self, accept: Accept) -> None:
        while True:
            self._spoken.clear()
            while self._said:
                said = self._said[0]
                receipt = await accept(said.incoming)
                self._said.popleft()  # only now: a message that was not accepted is offered again
                if not said.confirmed.done():
                    said.confirmed.set_result(receipt)
            await self._spoken.wait()

    def mention(
        self,
        text: str,
        *,
        room: str = "42",
        message_id: str | None = None,
        revision: str = "",
        attachments: tuple[Attachment, ...] = (),
        context: Context = NO_CONTEXT,
    ) -> Said:
        """Offer a text message in a channel, without waiting for the server to accept it."""
        return self.offer(
            Incoming(
                room=room,
                message_id=message_id or str(next(self._ids)),
                text=text,
                attachments=attachments,
                context=context,
                revision=revision,
            )
        )

    def offer(self, incoming: Incoming) -> Said:
        """Offer a complete inbound message, without waiting for the server to accept it."""
        said = Said(incoming, asyncio.get_running_loop().create_future())
        self._said.append(said)
        self._spoken.set()
        return said

    async def say(
        self,
        text: str,
        *,
        room: str = "42",
        message_id: str | None = None,
        revision: str = "",
        attachments: tuple[Attachment, ...] = (),
        context: Context = NO_CONTEXT,
    ) -> Receipt | None:
        """Send a text message in a channel, and wait until the server has accepted or refused it.

        Returns the receipt, or None if the message was refused.
        """
        said = self.mention(
            text, room=room, message_id=message_id, revision=revision, attachments=attachments, context=context
        )
        async with asyncio.timeout(SAY_S_MAX):
            return await said.confirmed
