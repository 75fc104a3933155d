"""A connector for tests, with channels in memory. It can fail in every way in which a real platform can."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.connectors.base import (
    Accept,
    ConnectorCapabilities,
    ConnectorCheckResult,
    Delivery,
    DeliveryFailed,
    DeliveryPart,
    FailureKind,
    InboundMessage,
)
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import NO_CONTEXT, Envelope, EnvelopeContext, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock

CONFIRM_WAIT_S_MAX = 120.0


class FakeConnectionLost(ConnectionError):
    """The connection broke during a delivery, so it is unknown whether the message arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryFault:
    """A fault for one delivery.

    Without `failure` and `breaks`, the delivery part arrives after `delay_s`.
    """

    failure: DeliveryFailed | None = None
    # the connection breaks; `arrives` decides whether before or after the platform accepted the part
    breaks: bool = False
    arrives: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OfferedMessage:
    """An inbound message that the connector offers to the server until the server confirms it."""

    message: InboundMessage
    confirmed: asyncio.Future[Receipt | None]


@dataclass(slots=True, eq=False)
class FakeConnector:
    """A connector and its platform in one object, without a network.

    Deliveries are recorded in `parts`. `will_fail`, `will_throttle`, `will_break` and
    `will_be_slow` set faults for the next deliveries. `send_inbound` sends a message as a person
    would.

    With `repeats_safely`, the platform recognizes a part by its idempotency key, and accepts it
    once. Without it, a part that is sent twice appears twice. Because the object also represents
    the platform, its state survives a crash of the server. Without `capabilities`, each envelope is
    one part. The connector supports edits, reactions and typing if the capabilities say so.
    """

    clock: Clock
    name: str = "quiet"
    repeats_safely: bool = True
    delay_s: float = 0.0  # how long the platform takes for each delivery
    capabilities: ConnectorCapabilities | None = None
    parts: list[DeliveryPart] = field(default_factory=list[DeliveryPart])  # the ones that arrived
    previews: dict[str, str] = field(default_factory=dict[str, str])  # message id -> its current text
    preview_texts: list[str] = field(default_factory=list[str])  # every text that a preview ever showed
    reactions: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # channel, message, emoji
    typing_channels: list[str] = field(default_factory=list[str])  # channels, one entry each time typing was shown
    press_answers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    attempted_envelopes: list[EnvelopeId] = field(default_factory=list[EnvelopeId])
    active_deliveries: int = 0  # deliveries in progress
    active_deliveries_max: int = 0
    on_deliver: Callable[[DeliveryPart], None] | None = None
    _faults: dict[str | None, deque[DeliveryFault]] = field(default_factory=dict[str | None, deque[DeliveryFault]])
    _offered: deque[OfferedMessage] = field(default_factory=deque[OfferedMessage])
    _message_offered: asyncio.Event = field(default_factory=asyncio.Event)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- outbound ---

    async def deliver(self, part: DeliveryPart) -> Delivery:
        self.attempted_envelopes.append(part.envelope.id)
        self.active_deliveries += 1
        self.active_deliveries_max = max(self.active_deliveries_max, self.active_deliveries)
        try:
            return await self._deliver(part, self._next_fault(part.channel))
        finally:
            self.active_deliveries -= 1

    async def _deliver(self, delivery_part: DeliveryPart, fault: DeliveryFault) -> Delivery:
        wait_s = self.delay_s + fault.delay_s
        if wait_s:
            await self.clock.sleep(wait_s)
        if fault.failure is not None:
            raise fault.failure
        if not fault.breaks or fault.arrives:
            self._record_part(delivery_part)
        if fault.breaks:
            raise FakeConnectionLost("the connection broke")
        part = f"-{delivery_part.index}" if delivery_part.count > 1 else ""
        return Delivery(f"quiet-{delivery_part.envelope.id[:8]}{part}")

    def _record_part(self, part: DeliveryPart) -> None:
        if self.repeats_safely and any(known.key == part.key for known in self.parts):
            return
        self.parts.append(part)
        if self.on_deliver is not None:
            self.on_deliver(part)

    @property
    def delivered_envelopes(self) -> list[Envelope]:
        """The envelopes that arrived, oldest first. An envelope is listed each time its first part arrives."""
        return [part.envelope for part in self.parts if part.index == 0]

    def list_texts(self, channel: str) -> list[str]:
        """Return the texts of the parts that arrived in a channel, oldest first."""
        return [part.text for part in self.parts if part.channel == channel]

    def will_fail(
        self,
        *,
        times: int = 1,
        channel: str | None = None,
        kind: FailureKind = FailureKind.SEND_FAILED,
        permanent: bool = False,
        retry_after_s: float | None = None,
        sentence: str = "the platform is down",
    ) -> None:
        """Make the next deliveries fail: those to one channel or, if `channel` is None, those to any channel."""
        for _ in range(times):
            failure = DeliveryFailed(sentence, kind=kind, permanent=permanent, retry_after_s=retry_after_s)
            self._add_fault(DeliveryFault(failure=failure), channel)

    def will_throttle(self, retry_after_s: float, *, times: int = 1, channel: str | None = None) -> None:
        """Make the next deliveries fail with a rate limit and a retry time."""
        self.will_fail(
            times=times,
            channel=channel,
            kind=FailureKind.THROTTLED,
            retry_after_s=retry_after_s,
            sentence="too many messages",
        )

    def will_break(self, *, arrives: bool, times: int = 1, channel: str | None = None) -> None:
        """Break the connection during the next deliveries, before or after they arrive."""
        for _ in range(times):
            self._add_fault(DeliveryFault(breaks=True, arrives=arrives), channel)

    def will_be_slow(self, delay_s: float, *, times: int = 1, channel: str | None = None) -> None:
        """Delay the next deliveries."""
        for _ in range(times):
            self._add_fault(DeliveryFault(delay_s=delay_s), channel)

    def _add_fault(self, fault: DeliveryFault, channel: str | None) -> None:
        self._faults.setdefault(channel, deque()).append(fault)

    def _next_fault(self, channel: str) -> DeliveryFault:
        for which in (channel, None):
            waiting = self._faults.get(which)
            if waiting:
                return waiting.popleft()
        return DeliveryFault()

    # --- previews, reactions and typing ---

    async def preview(self, channel: str, text: str, *, preview_id: str = "", quoted_message_id: str = "") -> str:
        message = preview_id or f"{channel}-preview-{next(self._ids)}"
        self.previews[message] = text
        self.preview_texts.append(text)
        return message

    async def delete_preview(self, channel: str, message_id: str) -> None:
        self.previews.pop(message_id, None)

    async def react(self, channel: str, message_id: str, emoji: str) -> None:
        trouble = self._next_fault(channel)
        if trouble.failure is not None:
            raise trouble.failure
        self.reactions.append((channel, message_id, emoji))

    async def show_typing(self, channel: str) -> None:
        self.typing_channels.append(channel)

    async def answer_press(self, press_id: str, text: str) -> None:
        self.press_answers.append((press_id, text))

    async def check(self) -> ConnectorCheckResult:
        return ConnectorCheckResult(ok=True, account=f"@{self.name}", sentence="the connector is idle")

    # --- inbound ---

    async def listen(self, accept: Accept) -> None:
        while True:
            self._message_offered.clear()
            while self._offered:
                offered = self._offered[0]
                receipt = await accept(offered.message)
                self._offered.popleft()  # only now: a message that was not accepted is offered again
                if not offered.confirmed.done():
                    offered.confirmed.set_result(receipt)
            await self._message_offered.wait()

    def offer_text(
        self,
        text: str,
        *,
        channel: str = "42",
        message_id: str | None = None,
        revision: str = "",
        attachments: tuple[Attachment, ...] = (),
        context: EnvelopeContext = NO_CONTEXT,
    ) -> OfferedMessage:
        """Offer a text message in a channel, without waiting for the server to accept it."""
        return self.offer_message(
            InboundMessage(
                channel=channel,
                message_id=message_id or str(next(self._ids)),
                text=text,
                attachments=attachments,
                context=context,
                revision=revision,
            )
        )

    def offer_message(self, message: InboundMessage) -> OfferedMessage:
        """Offer a complete inbound message, without waiting for the server to accept it."""
        offered = OfferedMessage(message, asyncio.get_running_loop().create_future())
        self._offered.append(offered)
        self._message_offered.set()
        return offered

    async def send_inbound(
        self,
        text: str,
        *,
        channel: str = "42",
        message_id: str | None = None,
        revision: str = "",
        attachments: tuple[Attachment, ...] = (),
        context: EnvelopeContext = NO_CONTEXT,
    ) -> Receipt | None:
        """Send a text message in a channel, and wait until the server has accepted or refused it.

        Returns the receipt, or None if the message was refused.
        """
        offered = self.offer_text(
            text, channel=channel, message_id=message_id, revision=revision, attachments=attachments, context=context
        )
        async with asyncio.timeout(CONFIRM_WAIT_S_MAX):
            return await offered.confirmed
