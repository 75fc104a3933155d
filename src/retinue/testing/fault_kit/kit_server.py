"""The near end: a house that keeps what it is handed as the real one does, sends as the real outbox does, and fails at
the worst moment when it is told to. All in memory but the shelf, so that a case takes no longer than its fault.
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

PAUSE_S = 0.02  # before a broken line, or a refused parcel, is tried again
DELIVER_S_MAX = 120.0
TRIES_MAX = 5000  # with their pauses, longer than any place takes to come back


class HastyClock(RealClock):
    """Pauses are short here: a connector that waits before it tries again does so sooner. Limits are as long as ever,
    so that a busy machine does not reach them."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / HASTE)  # sleep: the pause that a connector asked for


class FileShelf:
    """A connector's own words, which outlive its process."""

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
    """What befalls the house as it takes something in."""

    FAILS_BEFORE = "fails-before"  # it could not store it, and says so
    FAILS_AFTER = "fails-after"  # it stored it, and could not say so
    DIES_BEFORE = "dies-before"
    DIES_AFTER = "dies-after"


class Outcome(StrEnum):
    """What became of something sent, as the house understands it."""

    DELIVERED = "delivered"
    REFUSED = "refused"  # for good
    UNKNOWN = "unknown"  # it may stand there, or not, and is not sent again
    GAVE_UP = "gave-up"


Key = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class House:
    """What is committed outlives every life of it."""

    committed: list[Incoming] = field(default_factory=list[Incoming])
    mishaps: deque[Mishap] = field(default_factory=deque[Mishap])
    refusals: list[DeliveryFailed] = field(default_factory=list[DeliveryFailed])
    died: asyncio.Event = field(default_factory=asyncio.Event)
    lines_lost: int = 0
    lines_stood: int = 0  # as often as a connector said so
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
        """As the inbox: what it has by the same name in the same room is the same."""
        key = (incoming.room, incoming.message_id, incoming.revision)
        duplicate = key in self._keys
        if not duplicate:
            self._keys.add(key)
            self.committed.append(incoming)
        number = len(self.committed)
        return Receipt(envelope=EnvelopeId(f"{number:032x}"), session=None, news_seq=number, duplicate=duplicate)

    async def _die(self) -> None:
        self.died.set()
        await asyncio.Event().wait()  # nobody comes back from this; the kit ends the life around it

    async def keep_listening(self, connector: Connector) -> None:
        """As the real one: call again when the line broke."""
        while True:
            try:
                await connector.listen(self.accept)
            except LineLost as lost:
                if lost.needs_owner:
                    self.needed_owner.append(lost)
            except Exception:  # noqa: BLE001 - whatever comes out of a connector is a broken line
                pass
            self.lines_lost += 1
            await asyncio.sleep(PAUSE_S)  # sleep: the house pauses before it calls again

    async def send(self, connector: Connector, parcel: Parcel) -> Outcome:
        """As the outbox: what was refused is tried again, and what is in doubt only where that is safe."""
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
