"""The outbox: delivers envelopes to channels, one queue per channel, through their connectors."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from random import Random
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from retinue.config.sessions import SessionSettings, plain
from retinue.connectors.base import Connector, DeliveryFailed, FailureKind, Parcel, abilities_of, attempts_of, whole
from retinue.connectors.redacted_connector import Masked
from retinue.domain.envelope import Envelope
from retinue.domain.errors import StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock, Faults
from retinue.domain.reply_delivery import Words, plain_words
from retinue.domain.storable_text import storable
from retinue.domain.times import to_ms
from retinue.intake.accept import ClockWake, Wake
from retinue.outbox.delivery_attempts import (
    ATTEMPTS_MAX,
    BACKOFF_MAX_S,
    UNKNOWN,
    Closed,
    Failed,
    Nothing,
    Resting,
    Sent,
    Taken,
    Terms,
    claim,
    close,
    keep_part,
    polite_s,
)
from retinue.outbox.outbound_access import WhyNot, everywhere
from retinue.policy.delivery_split import shape
from retinue.store.channels import deliveries
from retinue.store.core.connection import HOPELESS, NO_FAULTS, Store

log = logging.getLogger(__name__)
T = TypeVar("T")

SEND_S_MAX = 300.0
ROOMS_AT_ONCE_MAX = 32
ROOMS_AT_ONCE_EACH_MAX = 8
ROOMS_READY_MAX = 10_000
ROOMS_RESTING_MAX = 1_000
SENT_IN_TURN_MAX = 20
RECEIPT_CHARS_MAX = 1_000
ERROR_CHARS_MAX = 500
DRAIN_S = 30.0
STORE_RETRY_S = 1.0
LOOK_AGAIN_S = 1.0


_LEFT_OFF = Failed(kind="stopped", message="the house stopped between two parts", ours=True)


class Bounds(Struct, frozen=True, kw_only=True):
    attempts_max: int = ATTEMPTS_MAX
    send_s_max: float = SEND_S_MAX
    rooms_at_once: int = ROOMS_AT_ONCE_MAX
    rooms_at_once_each: int = ROOMS_AT_ONCE_EACH_MAX  # for each connector: a slow one leaves slots to the others
    rooms_ready_max: int = ROOMS_READY_MAX
    rooms_resting_max: int = ROOMS_RESTING_MAX


class _Room(Struct, eq=False):
    """A channel with work: queued, being served, or waiting for a retry."""

    channel: str
    instance: str
    again: bool = False  # woken while it was served: check once more before it is dropped
    look: bool = True  # an attempt may have been left open, or may wait for a retry
    rested: EnvelopeId | None = None
    breaks: int = 0


class _Line:
    """Channels that wait for a slot: first come, first served within a connector, round-robin
    between connectors."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._waiting: dict[str, deque[_Room]] = {}
        self._count = 0
        self._used: Counter[str] = Counter()
        self._paused: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self._bounds.rooms_ready_max

    def push(self, room: _Room) -> None:
        self._waiting.setdefault(room.instance, deque()).append(room)
        self._count += 1

    def take(self) -> _Room | None:
        """The next channel for which there is a slot; takes the slot."""
        if self._used.total() >= self._bounds.rooms_at_once:
            return None
        for instance in self._waiting:
            if self._used[instance] < self._bounds.rooms_at_once_each and not self.is_paused(instance):
                return self._take_from(instance)
        return None

    def _take_from(self, instance: str) -> _Room:
        rooms = self._waiting.pop(instance)
        room = rooms.popleft()
        if rooms:
            self._waiting[instance] = rooms  # at the end: the other connectors come first now
        self._count -= 1
        self._used[instance] += 1
        return room

    def release(self, room: _Room) -> None:
        self._used[room.instance] -= 1
        if not self._used[room.instance]:
            del self._used[room.instance]

    def pause(self, instance: str) -> None:
        """Take none of its channels until it was resumed as often as it was paused."""
        self._paused[instance] += 1

    def resume(self, instance: str) -> None:
        self._paused[instance] -= 1

    def is_paused(self, instance: str) -> bool:
        return self._paused[instance] > 0

    def contended(self, room: _Room) -> bool:
        """Whether another channel waits for the slot that this one holds."""
        if room.instance in self._waiting:
            return True
        return bool(self._waiting) and self._used.total() >= self._bounds.rooms_at_once


class Outbox:
    """Delivers envelopes to channels, each channel in order.

    Every envelope ends delivered, dead, or interrupted if the result is unknown. A channel that
    waits, fails or is slow does not block any other.

    Connectors are looked up by name when an envelope is sent, so `connectors` may change meanwhile.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        connectors: Mapping[str, Connector],
        *,
        bounds: Bounds | None = None,
        sessions: Callable[[], SessionSettings] = plain,
        words: Callable[[str], Words] = plain_words,
        why_not: WhyNot = everywhere,
        chance: Random | None = None,
        faults: Faults = NO_FAULTS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._connectors = connectors
        self._bounds = bounds or Bounds()
        self._sessions = sessions
        self._words = words
        self._why_not = why_not
        self._chance = chance or Random(0)
        self._faults = faults
        self._wake_house: Callable[[Wake], None] = lambda _wake: None
        self._rooms: dict[str, _Room] = {}
        self._line = _Line(self._bounds)
        self._serving: set[asyncio.Task[None]] = set()
        self._resting: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[asyncio.Task[None], str] = {}
        self._closing = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._looked_to = ""
        self._overflowed = False
        self._open = False

    def on_wake(self, wake: Callable[[Wake], None]) -> None:
        """Set the callback for a notice that gave a session something to do."""
        self._wake_house = wake

    async def start(self) -> None:
        """Resume interrupted deliveries, then send whatever is due."""
        await self._look()
        self._open = True
        self._closing.clear()
        self._dispatch()

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Claim nothing more, let sends in progress finish within the given time, and leave the
        rest to the store."""
        self._open = False
        self._closing.set()
        if self._serving and drain_s > 0:
            await asyncio.wait(self._serving, timeout=drain_s)
        tasks = self._tasks()
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Cancel everything at once, as a crash would. The store knows how to continue."""
        self._open = False
        for task in self._tasks():
            task.cancel()

    def wake(self, channel: str) -> None:
        """Signal that an envelope may be due in a channel. Only a hint: the store is authoritative,
        and the timer finds a lost hint."""
        room = self._rooms.get(channel)
        if room is not None:
            room.again = True
        elif self._line.full:
            self._overflowed = True
        else:
            room = _Room(channel, instance=channel.split(":", 2)[1])
            self._rooms[channel] = room
            self._line.push(room)
            self._dispatch()

    @property
    def active(self) -> int:
        """The number of channels that are served or queued."""
        return len(self._rooms) - len(self._resting)

    @property
    def resting(self) -> int:
        """The number of channels that wait for a retry."""
        return len(self._resting)

    def _dispatch(self) -> None:
        while self._open and (room := self._line.take()) is not None:
            task = asyncio.create_task(self._serve(room), name=f"room {room.channel}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        if self._open and self._overflowed and self._looking is None and not len(self._line):
            self._looking = asyncio.create_task(self._look_again(), name="outbox looks again")

    async def _serve(self, room: _Room) -> None:
        """Serve a channel until nothing is due or another needs the slot. Catches every error in
        it."""
        try:
            wait_s = await self._send_in_turn(room)
            room.breaks = 0
        except Exception as error:  # the store has the state of this channel: check it again
            log.error(
                "room broke, tries again",
                exc_info=None if isinstance(error, StoreError) else error,
                extra={"channel": room.channel, "error": type(error).__name__},
            )
            wait_s = min(STORE_RETRY_S * 2 ** min(room.breaks, 10), BACKOFF_MAX_S)
            room.look = True
            room.breaks += 1
        finally:
            self._line.release(room)
        if not self._open:
            return
        if wait_s:
            self._rest(room, wait_s)
        elif wait_s == 0 or room.again:
            self._line.push(room)
        else:
            del self._rooms[room.channel]
        self._dispatch()

    async def _send_in_turn(self, room: _Room) -> float | None:
        """Send what is due. Returns the seconds until the channel is served again: 0 for its next
        turn, None until it is woken."""
        sent = 0
        while self._open:
            if self._line.is_paused(room.instance):
                return 0.0
            if sent >= SENT_IN_TURN_MAX and self._line.contended(room):
                return 0.0
            room.again = False
            taken = await self._claim(room)
            self._wake_all(taken.wakes)
            match taken:
                case Nothing():
                    return 0.0 if taken.again else None
                case Resting():
                    room.look, room.rested = True, taken.envelope
                    return taken.wait_s
                case Taken():
                    closed = await self._send(room, taken)
                    self._wake_all(closed.wakes)
                    if closed.wait_s is not None:
                        room.look, room.rested = True, taken.envelope.id
                        return closed.wait_s
                    sent += 1
        return None

    async def _claim(self, room: _Room) -> Taken | Resting | Nothing:
        body = partial(
            claim,
            channel=room.channel,
            look=room.look,
            rested=room.rested,
            terms=self._terms(room),
            now_ms=self._now_ms(),
        )
        taken = await self._store.write(body, point="deliver-claim")
        room.look, room.rested = False, None
        return taken

    async def _send(self, room: _Room, taken: Taken) -> Closed:
        envelope = taken.envelope
        connector = self._connectors.get(room.instance)
        if connector is None:
            message = f"there is no connector '{room.instance}' in this house"
            result = Failed(kind=FailureKind.ADAPTER_NOT_LOADED, message=message, permanent=True)
        else:
            result = await self._send_parts(room, connector, taken)
        log.info(
            "delivery attempted",
            extra={
                "envelope": envelope.id,
                "connector": room.instance,
                "attempt": envelope.attempts,
                "result": "sent" if isinstance(result, Sent) else result.kind,
            },
        )
        if isinstance(result, Failed):
            room.look = True
            if result.kind == FailureKind.THROTTLED and (wait_s := polite_s(result)):
                self._pause(room.instance, wait_s)
        return await self._write_down(envelope, result, self._terms(room))

    async def _send_parts(self, room: _Room, connector: Connector, taken: Taken) -> Sent | Failed:
        """Send each part in turn, and store each receipt before the next part is sent, so that no
        part is sent twice.

        The last receipt is stored in the commit that ends the envelope.
        """
        result: Sent | Failed | None = None
        last = 0
        for parcel in self._parcels(connector, taken):
            last = parcel.index
            if last in taken.arrived:
                continue
            if result is not None:
                await self._write_part(taken, result)
                if not await self._between(room):
                    return _LEFT_OFF
            self._faults.reach("deliver.before")
            result = await self._hand_over(connector, parcel)
            self._faults.reach("deliver.after")
            if isinstance(result, Failed):
                return result
        return result or Sent(taken.arrived[last], last)

    def _parcels(self, connector: Connector, taken: Taken) -> Iterable[Parcel]:
        """The delivery parts. Secrets are redacted before the text is split, because half a secret
        would not be recognized."""
        envelope, cut = taken.envelope, taken.cut
        if cut is None:
            return (whole(envelope),)
        if isinstance(connector, Masked) and (text := connector.mask(envelope.text)) != envelope.text:
            envelope = replace(envelope, text=text)
        return shape(envelope, cut.able, cut.words, cut.setting)

    async def _between(self, room: _Room) -> bool:
        """Wait before the next part: a human-like delay, and any delay that the platform requested.
        False if the outbox stops."""
        if (delay := self._words(room.instance).delay_ms) is not None:
            await self._unless_closing(self._clock.sleep(self._chance.uniform(*delay) / 1000))
        while self._open and (pauses := [task for task, who in self._pauses.items() if who == room.instance]):
            await self._unless_closing(asyncio.wait(pauses))
        return self._open

    async def _unless_closing(self, waiting: Awaitable[object]) -> None:
        closing, task = asyncio.ensure_future(self._closing.wait()), asyncio.ensure_future(waiting)
        try:
            await asyncio.wait({closing, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            task.cancel()

    async def _hand_over(self, connector: Connector, parcel: Parcel) -> Sent | Failed:
        try:
            async with asyncio.timeout(self._bounds.send_s_max):
                delivery = await connector.deliver(parcel)
            return Sent(_kept(delivery.receipt, RECEIPT_CHARS_MAX), parcel.index)
        except DeliveryFailed as failed:
            return Failed(
                kind=failed.kind,
                message=_kept(failed.sentence, ERROR_CHARS_MAX),
                permanent=failed.permanent,
                retry_after_s=failed.retry_after_s,
            )
        except TimeoutError:
            return Failed(kind=UNKNOWN, message="no answer in time", arrived_maybe=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return Failed(kind=UNKNOWN, message="the connector gave up", arrived_maybe=True)
        except Exception as error:  # whatever a connector raises, its channel continues
            log.warning(
                "connector broke off",
                exc_info=None if isinstance(error, OSError) else error,
                extra={"envelope": parcel.envelope.id, "connector": connector.instance, "error": type(error).__name__},
            )
            message = _kept(f"{type(error).__name__}: {error}", ERROR_CHARS_MAX)
            return Failed(kind=UNKNOWN, message=message, arrived_maybe=True)

    async def _write_part(self, taken: Taken, sent: Sent) -> None:
        body = partial(
            keep_part,
            envelope=taken.envelope,
            part=sent.part,
            receipt=sent.receipt,
            now_ms=self._now_ms(),
            cut=taken.cut,
        )
        await self._surely(lambda: self._store.write(body, point="deliver-part"))

    async def _write_down(self, envelope: Envelope, result: Sent | Failed, terms: Terms) -> Closed:
        def write() -> Awaitable[Closed]:
            body = partial(close, envelope=envelope, result=result, terms=terms, now_ms=self._now_ms())
            return self._store.write(body, point="deliver-done")

        return await self._surely(write)

    async def _surely(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write with retries: a platform reports its result once, so it is kept in memory until the
        store accepts it."""
        while True:
            try:
                return await write()
            except StoreError as error:
                if error.code in HOPELESS or error.code == "store.closed":
                    raise
                log.error("store failed, a delivery waits to be written down", extra={"code": error.code})
                await self._clock.sleep(STORE_RETRY_S)

    # --- waiting, and polling the store for what did not fit in memory ---

    def _pause(self, instance: str, wait_s: float) -> None:
        """Pause a connector: a platform that throttles means the whole account, not one channel."""

        async def pause() -> None:
            try:
                await self._clock.sleep(wait_s)
            finally:
                self._line.resume(instance)
            self._dispatch()

        self._line.pause(instance)
        task = asyncio.create_task(pause(), name=f"pause at {instance}")
        self._pauses[task] = instance
        task.add_done_callback(lambda done: self._pauses.pop(done, None))

    def _rest(self, room: _Room, wait_s: float) -> None:
        if len(self._resting) < self._bounds.rooms_resting_max:
            self._resting[room.channel] = asyncio.create_task(self._rest_for(room, wait_s))
            return
        del self._rooms[room.channel]
        self._overflowed = True
        self._wake_house(ClockWake())

    async def _rest_for(self, room: _Room, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        del self._resting[room.channel]
        self._line.push(room)
        self._dispatch()

    async def _look_again(self) -> None:
        await self._clock.sleep(LOOK_AGAIN_S)
        try:
            await self._look()
        except StoreError as error:
            log.error("store failed, the outbox looks again", extra={"code": error.code})
        self._looking = None
        self._dispatch()

    async def _look(self) -> None:
        """Wake channels that were interrupted or have something due. Scans in address order and
        continues there next time, so that each is found."""
        limit = self._bounds.rooms_ready_max
        due = partial(deliveries.due_rooms, now_ms=self._now_ms(), after=self._looked_to, limit=limit)
        cut_off = await self._store.scan(deliveries.cut_off_rooms)
        found = await self._store.scan(due)
        self._overflowed = len(found) == limit or bool(self._looked_to)
        self._looked_to = found[-1] if len(found) == limit else ""
        for channel in (*cut_off, *found):
            self.wake(channel)

    def _tasks(self) -> list[asyncio.Task[None]]:
        looking = [self._looking] if self._looking else []
        return [*self._serving, *self._resting.values(), *self._pauses, *looking]

    def _wake_all(self, wakes: Iterable[Wake]) -> None:
        for wake in wakes:
            self._wake_house(wake)

    def _terms(self, room: _Room) -> Terms:
        connector = self._connectors.get(room.instance)
        safe = connector is not None and connector.repeats_safely
        return Terms(
            attempts_max=attempts_of(connector) or self._bounds.attempts_max,
            repeats_safely=safe,
            sending=self._sessions().send,
            able=abilities_of(connector) if connector is not None else None,
            words=self._words(room.instance),
            why_not=self._why_not,
        )

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def _kept(text: str, chars_max: int) -> str:
    """Text from outside, made storable and limited."""
    plain = storable(text)
    return plain if len(plain) <= chars_max else plain[: chars_max - 1] + "…"
