"""A minimal server for the fault kit, which fails at the worst moment on demand.

It stores inbound messages and retries deliveries by the rules of the real intake and outbox.
Everything but the connector's state is in memory, so that a case takes no longer than its fault.
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
from retinue.connectors.base import Connector, DeliveryFailed, Incoming, LineLost, Parcel
from retinue.domain import address
from retinue.domain.envelope import NO_CONTEXT, Envelope, Kind, Receipt, Status
from retinue.domain.errors import StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.trust import Trust
from retinue.testing.fake_clock import START

HASTE = 20.0
"""How many times shorter a connector's pauses are here."""

PAUSE_S = 0.02  # before a broken connection or a refused delivery is tried again
DELIVER_S_MAX = 120.0
TRIES_MAX = 5000  # including pauses, longer than any platform takes to come back


class HastyClock(RealClock):
    """A clock whose sleeps are shortened, so that a connector retries sooner.

    Time limits keep their length, so that a busy machine does not reach them.
    """

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / HASTE)  # sleep: the pause that a connector asked for


class FileShelf:
    """A connector's stored state in a JSON file, which survives its process."""

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


class Mishap(StrEnum):
    """A fault of the server while it accepts a message."""

    FAILS_BEFORE = "fails-before"  # it could not store the message, and says so
    FAILS_AFTER = "fails-after"  # it stored the message, and could not say so
    DIES_BEFORE = "dies-before"
    DIES_AFTER = "dies-after"


class Outcome(StrEnum):
    """The end of a delivery, as the server knows it."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # for good
    UNKNOWN = "unknown"  # it may or may not have arrived, and is not repeated
    GAVE_UP = "gave-up"


Key = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class House:
    """The server of the fault kit. `committed` survives each of its restarts."""

    committed: list[Incoming] = field(default_factory=list[Incoming])
    mishaps: deque[Mishap] = field(default_factory=deque[Mishap])
    refusals: list[DeliveryFailed] = field(default_factory=list[DeliveryFailed])
    died: asyncio.Event = field(default_factory=asyncio.Event)
    lines_lost: int = 0
    lines_stood: int = 0  # how often a connector reported a connection
    needed_owner: list[LineLost] = field(default_factory=list[LineLost])
    _keys: set[Key] = field(default_factory=set[Key])

    def stands(self) -> None:
        self.lines_stood += 1

    async def accept(self, incoming: Incoming) -> Receipt | None:
        mishap = self.mishaps.popleft() if self.mishaps else None
        if mishap is Mishap.FAILS_BEFORE:
            raise StoreError("the disk is full", code="store.disk-full")
        if mishap is Mishap.DIES_BEFORE:
            await self._die()
        receipt = self.commit(incoming)
        if mishap is Mishap.FAILS_AFTER:
            raise StoreError("the store answers no more", code="store.disk-full")
        if mishap is Mishap.DIES_AFTER:
            await self._die()
        return receipt

    def commit(self, incoming: Incoming) -> Receipt:
        """Store a message as the real intake does: same channel, message id and revision is a duplicate."""
        key = (incoming.room, incoming.message_id, incoming.revision)
        duplicate = key in self._keys
        if not duplicate:
            self._keys.add(key)
            self.committed.append(incoming)
        number = len(self.committed)
        return Receipt(envelope=EnvelopeId(f"{number:032x}"), session=None, news_seq=number, duplicate=duplicate)

    async def _die(self) -> None:
        self.died.set()
        await asyncio.Event().wait()  # never returns; the kit ends the process around it

    async def keep_listening(self, connector: Connector) -> None:
        """Call `listen` again whenever the connection breaks, as the real server does."""
        while True:
            try:
                await connector.listen(self.accept)
            except LineLost as lost:
                if lost.needs_owner:
                    self.needed_owner.append(lost)
            except Exception:  # noqa: BLE001 - whatever comes out of a connector is a broken line
                pass
            self.lines_lost += 1
            await asyncio.sleep(PAUSE_S)  # sleep: before the server listens again

    async def send(self, connector: Connector, parcel: Parcel) -> Outcome:
        """Deliver a part by the rules of the outbox.

        A refused part is tried again. A part with an unknown result is repeated only if that is
        safe.
        """
        for _ in range(TRIES_MAX):
            try:
                async with asyncio.timeout(DELIVER_S_MAX):
                    delivery = await connector.deliver(parcel)
            except DeliveryFailed as failed:
                self.refusals.append(failed)
                if failed.permanent:
                    return Outcome.REFUSED
            except Exception:  # noqa: BLE001 - whatever comes out of a connector here means: nobody knows
                if not connector.repeats_safely:
                    return Outcome.UNKNOWN
            else:
                assert delivery.receipt, "a delivery without a receipt proves nothing"
                return Outcome.DELIVERED
            await asyncio.sleep(PAUSE_S)  # sleep: the outbox pauses before it tries again
        return Outcome.GAVE_UP


def parcel_to(instance: str, room: str, text: str, *, number: int) -> Parcel:
    """Returns a delivery part for a channel, whose ids follow from `number`."""
    envelope = Envelope(
        seq=number,
        id=EnvelopeId(f"{number:032x}"),
        sender=address.agent("ada", "0" * 32),
        recipient=address.parse(f"channel:{instance}:{room}"),
        session=None,
        kind=Kind.ANSWER,
        text=text,
        attachments=(),
        context=NO_CONTEXT,
        reply_to=None,
        trust=Trust.AGENT,
        source="fault-kit",
        key=str(number),
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=START,
        status=Status.CLAIMED,
        attempts=1,
        accepted_at=START,
        claimed_at=START,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return Parcel(envelope=envelope, text=text)
