"""A minimal test server for the fault test suite. On demand, this server fails at a chosen moment.

It stores inbound messages, and retries deliveries by the rules of the real intake and outbox.
Everything but the state of the connector is in memory, so that a case takes no longer than its
fault.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

from retinue.app.clock_and_ids import RealClock
from retinue.connectors.base import ConnectionLost, Connector, DeliveryFailed, DeliveryPart, InboundMessage
from retinue.domain import address
from retinue.domain.envelope import NO_CONTEXT, Envelope, EnvelopeKind, EnvelopeStatus, Receipt
from retinue.domain.ids import EnvelopeId
from retinue.domain.trust import Trust
from retinue.store.core.errors import StoreDiskFull
from retinue.testing.fake_clock import START

SPEEDUP = 20.0
"""The factor by which a connector's pauses are shortened."""

RETRY_PAUSE_S = 0.02  # before a broken connection or a refused delivery is tried again
DELIVER_S_MAX = 120.0
TRIES_MAX = 5000  # including pauses, longer than any platform takes to come back


class FastClock(RealClock):
    """A clock that shortens sleeps, so that a connector retries sooner.

    It does not shorten time limits, so that a busy machine does not reach them.
    """

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / SPEEDUP)  # sleep: the pause that a connector asked for


class FileConnectorState:
    """Stores the state of a connector in a JSON file, which survives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def get(self, key: str) -> str | None:
        return self._read().get(key)

    async def put(self, key: str, value: str) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({**self._read(), key: value}))
        fresh.replace(self._path)

    def _read(self) -> dict[str, str]:
        return cast("dict[str, str]", json.loads(self._path.read_text())) if self._path.exists() else {}


class IntakeFault(StrEnum):
    """A fault of the test server while it accepts a message."""

    FAILS_BEFORE = "fails-before"  # it could not store the message, and reports this
    FAILS_AFTER = "fails-after"  # it stored the message, but could not confirm it
    DIES_BEFORE = "dies-before"
    DIES_AFTER = "dies-after"


class SendOutcome(StrEnum):
    """How a delivery ended, as far as the test server can determine."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # for good
    UNKNOWN = "unknown"  # it may or may not have arrived, and is not repeated
    GAVE_UP = "gave-up"


MessageKey = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class KitServer:
    """The test server of the fault test suite.

    `committed` contains the stored messages, which are kept when the test server is restarted.
    """

    committed: list[InboundMessage] = field(default_factory=list[InboundMessage])
    intake_faults: deque[IntakeFault] = field(default_factory=deque[IntakeFault])
    refusals: list[DeliveryFailed] = field(default_factory=list[DeliveryFailed])
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    connections_lost: int = 0
    connections_made: int = 0  # how often a connector reported a connection
    owner_alerts: list[ConnectionLost] = field(default_factory=list[ConnectionLost])
    _keys: set[MessageKey] = field(default_factory=set[MessageKey])

    def record_connected(self) -> None:
        self.connections_made += 1

    async def accept(self, message: InboundMessage) -> Receipt | None:
        mishap = self.intake_faults.popleft() if self.intake_faults else None
        if mishap is IntakeFault.FAILS_BEFORE:
            raise StoreDiskFull(because="the test simulates it before the commit")
        if mishap is IntakeFault.DIES_BEFORE:
            await self._simulate_kill()
        receipt = self.commit(message)
        if mishap is IntakeFault.FAILS_AFTER:
            raise StoreDiskFull(because="the test simulates it after the commit")
        if mishap is IntakeFault.DIES_AFTER:
            await self._simulate_kill()
        return receipt

    def commit(self, message: InboundMessage) -> Receipt:
        """Store a message as the real intake does.

        A message with the same channel, message id and revision is a duplicate.
        """
        key = (message.channel, message.message_id, message.revision)
        duplicate = key in self._keys
        if not duplicate:
            self._keys.add(key)
            self.committed.append(message)
        number = len(self.committed)
        return Receipt(envelope=EnvelopeId(f"{number:032x}"), session=None, event_seq=number, duplicate=duplicate)

    async def _simulate_kill(self) -> None:
        self.killed.set()
        await asyncio.Event().wait()  # never returns; the test case kills the process

    async def listen_forever(self, connector: Connector) -> None:
        """Call `listen` again whenever the connection breaks, as the real server does."""
        while True:
            try:
                await connector.listen(self.accept)
            except ConnectionLost as lost:
                if lost.needs_owner:
                    self.owner_alerts.append(lost)
            except Exception:  # noqa: BLE001 - any exception from a connector counts as a lost connection
                pass
            self.connections_lost += 1
            await asyncio.sleep(RETRY_PAUSE_S)  # sleep: before the server listens again

    async def send(self, connector: Connector, part: DeliveryPart) -> SendOutcome:
        """Deliver a part by the rules of the outbox.

        A part that the platform refused is retried. A part with an unknown result is sent again
        only if the platform recognizes repeated parts.
        """
        for _ in range(TRIES_MAX):
            try:
                async with asyncio.timeout(DELIVER_S_MAX):
                    delivery = await connector.deliver(part)
            except DeliveryFailed as failed:
                self.refusals.append(failed)
                if failed.permanent:
                    return SendOutcome.REFUSED
            except Exception:  # noqa: BLE001 - after any other error it is unknown whether the message was sent
                if not connector.repeats_safely:
                    return SendOutcome.UNKNOWN
            else:
                assert delivery.receipt, "a delivery without a receipt proves nothing"
                return SendOutcome.DELIVERED
            await asyncio.sleep(RETRY_PAUSE_S)  # sleep: the outbox pauses before it tries again
        return SendOutcome.GAVE_UP


def build_part(connector: str, channel: str, text: str, *, number: int) -> DeliveryPart:
    """Return a delivery part for a channel. Its ids are derived from `number`."""
    envelope = Envelope(
        seq=number,
        id=EnvelopeId(f"{number:032x}"),
        sender=address.agent_address("ada", "0" * 32),
        recipient=address.parse_address(f"channel:{connector}:{channel}"),
        session=None,
        kind=EnvelopeKind.ANSWER,
        text=text,
        attachments=(),
        context=NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="fault-kit",
        idempotency_key=str(number),
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=START,
        status=EnvelopeStatus.CLAIMED,
        attempts=1,
        accepted_at=START,
        claimed_at=START,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return DeliveryPart(envelope=envelope, text=text)
