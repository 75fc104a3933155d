"""The outbox: sends the envelopes of each channel in order, through the channel's connector."""

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

from retinue.config.sessions import SessionSettings, built_in_session_settings
from retinue.connectors.base import (
    Connector,
    DeliveryFailed,
    DeliveryPart,
    FailureKind,
    get_attempts_max,
    get_capabilities,
    make_single_part,
)
from retinue.connectors.redacted_connector import RedactedConnector
from retinue.domain.envelope import Envelope
from retinue.domain.errors import StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.ports import Clock, CrashPoints
from retinue.domain.reply_delivery import ReplyDelivery, default_reply_delivery
from retinue.domain.storable_text import make_storable
from retinue.domain.times import to_ms
from retinue.intake.accept import TimerWake, Wake
from retinue.outbox.delivery_attempts import (
    ATTEMPTS_MAX,
    BACKOFF_MAX_S,
    UNKNOWN_RESULT,
    AttemptFailed,
    ClosedAttempt,
    DeliveryRules,
    NothingDue,
    OpenAttempt,
    PartSent,
    WaitingAttempt,
    close_attempt,
    get_requested_delay_s,
    open_attempt,
    store_part,
)
from retinue.outbox.outbound_access import GetRefusal, allow_all
from retinue.policy.delivery_split import split_envelope
from retinue.store.channels import deliveries
from retinue.store.core.connection import NO_FAULTS, PERMANENT_ERROR_CODES, Store

log = logging.getLogger(__name__)
T = TypeVar("T")

SEND_S_MAX = 300.0
CHANNELS_ACTIVE_MAX = 32
CHANNELS_PER_CONNECTOR_MAX = 8
CHANNELS_QUEUED_MAX = 10_000
CHANNELS_WAITING_MAX = 1_000
ENVELOPES_PER_TURN_MAX = 20
RECEIPT_CHARS_MAX = 1_000
ERROR_CHARS_MAX = 500
DRAIN_S = 30.0
STORE_RETRY_S = 1.0
RESCAN_S = 1.0


_STOPPED_BETWEEN_PARTS = AttemptFailed(kind="stopped", message="the server stopped between two parts", is_own_stop=True)


class OutboxLimits(Struct, frozen=True, kw_only=True):
    attempts_max: int = ATTEMPTS_MAX
    send_s_max: float = SEND_S_MAX
    channels_active_max: int = CHANNELS_ACTIVE_MAX
    channels_per_connector_max: int = (
        CHANNELS_PER_CONNECTOR_MAX  # per connector, so that a slow connector leaves slots for the others
    )
    channels_queued_max: int = CHANNELS_QUEUED_MAX
    channels_waiting_max: int = CHANNELS_WAITING_MAX


class _ChannelState(Struct, eq=False):
    """State of a channel with envelopes to send: queued, being served, or waiting for a retry."""

    channel: str
    connector_name: str
    was_woken: bool = False  # `wake` was called while it was served: check it again before removing it
    may_have_attempt: bool = True  # an earlier attempt may have been left open, or may be waiting for a retry
    waited: EnvelopeId | None = None
    failures: int = 0


class _ChannelQueue:
    """Queue of channels waiting for a slot: first in, first out per connector, round-robin across connectors."""

    def __init__(self, limits: OutboxLimits) -> None:
        self._limits = limits
        self._waiting: dict[str, deque[_ChannelState]] = {}
        self._count = 0
        self._used: Counter[str] = Counter()
        self._paused: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._limits.channels_queued_max

    def push(self, channel: _ChannelState) -> None:
        self._waiting.setdefault(channel.connector_name, deque()).append(channel)
        self._count += 1

    def take(self) -> _ChannelState | None:
        """Return the next channel that may send, and take a slot for it. None if there is no channel or slot."""
        if self._used.total() >= self._limits.channels_active_max:
            return None
        for instance in self._waiting:
            if self._used[instance] < self._limits.channels_per_connector_max and not self.is_paused(instance):
                return self._take_from(instance)
        return None

    def _take_from(self, connector_name: str) -> _ChannelState:
        states = self._waiting.pop(connector_name)
        state = states.popleft()
        if states:
            self._waiting[connector_name] = states  # at the end: the other connectors come first now
        self._count -= 1
        self._used[connector_name] += 1
        return state

    def release(self, channel: _ChannelState) -> None:
        self._used[channel.connector_name] -= 1
        if not self._used[channel.connector_name]:
            del self._used[channel.connector_name]

    def pause(self, connector_name: str) -> None:
        """Take no channel of this connector until `resume` has been called once for each `pause`."""
        self._paused[connector_name] += 1

    def resume(self, connector_name: str) -> None:
        self._paused[connector_name] -= 1

    def is_paused(self, connector_name: str) -> bool:
        return self._paused[connector_name] > 0

    def is_contended(self, channel: _ChannelState) -> bool:
        """Whether another channel is waiting for the slot that this channel uses."""
        if channel.connector_name in self._waiting:
            return True
        return bool(self._waiting) and self._used.total() >= self._limits.channels_active_max


class Outbox:
    """Sends envelopes to channels. The envelopes of one channel are sent in order.

    Each envelope gets one outcome, such as delivered, dead (it failed for good) or interrupted (it
    is unknown whether it arrived). A channel that waits, fails or is slow does not block other
    channels. Connectors are looked up by name when an envelope is sent, so `connectors` may change
    at any time.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        connectors: Mapping[str, Connector],
        *,
        limits: OutboxLimits | None = None,
        sessions: Callable[[], SessionSettings] = built_in_session_settings,
        get_reply_delivery: Callable[[str], ReplyDelivery] = default_reply_delivery,
        get_refusal: GetRefusal = allow_all,
        random: Random | None = None,
        faults: CrashPoints = NO_FAULTS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._connectors = connectors
        self._limits = limits or OutboxLimits()
        self._sessions = sessions
        self._get_reply_delivery = get_reply_delivery
        self._get_refusal = get_refusal
        self._random = random or Random(0)
        self._faults = faults
        self._on_wake: Callable[[Wake], None] = lambda _wake: None
        self._channels: dict[str, _ChannelState] = {}
        self._queue = _ChannelQueue(self._limits)
        self._serve_tasks: set[asyncio.Task[None]] = set()
        self._wait_tasks: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[asyncio.Task[None], str] = {}
        self._stopping = asyncio.Event()
        self._scan_task: asyncio.Task[None] | None = None
        self._scan_position = ""
        self._overflowed = False
        self._is_running = False

    def set_wake_callback(self, wake: Callable[[Wake], None]) -> None:
        """Set the function that wakes a session, for example when a delivery fails and its sender gets a notice."""
        self._on_wake = wake

    async def start(self) -> None:
        """Resume interrupted deliveries, then send the envelopes that are due."""
        await self._scan_store()
        self._is_running = True
        self._stopping.clear()
        self._dispatch()

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Start no new delivery, and wait up to `drain_s` seconds for current ones. The next start resumes the rest."""
        self._is_running = False
        self._stopping.set()
        if self._serve_tasks and drain_s > 0:
            await asyncio.wait(self._serve_tasks, timeout=drain_s)
        tasks = self._tasks()
        self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Cancel all tasks at once, as in a crash. The next start resumes all deliveries from the store."""
        self._is_running = False
        for task in self._tasks():
            task.cancel()

    def wake(self, channel: str) -> None:
        """Signal that an envelope may be due in a channel. This is only a hint: a timer also finds due envelopes."""
        state = self._channels.get(channel)
        if state is not None:
            state.was_woken = True
        elif self._queue.is_full:
            self._overflowed = True
        else:
            state = _ChannelState(channel, connector_name=channel.split(":", 2)[1])
            self._channels[channel] = state
            self._queue.push(state)
            self._dispatch()

    @property
    def active_count(self) -> int:
        """Number of channels that are queued or being served."""
        return len(self._channels) - len(self._wait_tasks)

    @property
    def waiting_count(self) -> int:
        """Number of channels that are waiting for a retry."""
        return len(self._wait_tasks)

    def _dispatch(self) -> None:
        while self._is_running and (state := self._queue.take()) is not None:
            task = asyncio.create_task(self._serve(state), name=f"channel {state.channel}")
            self._serve_tasks.add(task)
            task.add_done_callback(self._serve_tasks.discard)
        if self._is_running and self._overflowed and self._scan_task is None and not len(self._queue):
            self._scan_task = asyncio.create_task(self._rescan(), name="outbox checked again")

    async def _serve(self, channel: _ChannelState) -> None:
        """Send the due envelopes of a channel, until none is left or another channel needs the slot.

        All errors are caught here, so that they affect no other channel.
        """
        try:
            wait_s = await self._send_due(channel)
            channel.failures = 0
        except Exception as error:  # retry: the state of this channel is read from the store again
            log.error(
                "channel delivery failed, retrying",
                exc_info=None if isinstance(error, StoreError) else error,
                extra={"channel": channel.channel, "error": type(error).__name__},
            )
            wait_s = min(STORE_RETRY_S * 2 ** min(channel.failures, 10), BACKOFF_MAX_S)
            channel.may_have_attempt = True
            channel.failures += 1
        finally:
            self._queue.release(channel)
        if not self._is_running:
            return
        if wait_s:
            self._wait_for_retry(channel, wait_s)
        elif wait_s == 0 or channel.was_woken:
            self._queue.push(channel)
        else:
            del self._channels[channel.channel]
        self._dispatch()

    async def _send_due(self, channel: _ChannelState) -> float | None:
        """Send the channel's due envelopes. Returns the seconds until the channel is served again.

        0 means as soon as a slot is free. None means not before `wake` is called.
        """
        sent = 0
        while self._is_running:
            if self._queue.is_paused(channel.connector_name):
                return 0.0
            if sent >= ENVELOPES_PER_TURN_MAX and self._queue.is_contended(channel):
                return 0.0
            channel.was_woken = False
            taken = await self._claim(channel)
            self._wake_all(taken.wakes)
            match taken:
                case NothingDue():
                    return 0.0 if taken.has_more else None
                case WaitingAttempt():
                    channel.may_have_attempt, channel.waited = True, taken.envelope
                    return taken.wait_s
                case OpenAttempt():
                    closed = await self._send(channel, taken)
                    self._wake_all(closed.wakes)
                    if closed.wait_s is not None:
                        channel.may_have_attempt, channel.waited = True, taken.envelope.id
                        return closed.wait_s
                    sent += 1
        return None

    async def _claim(self, channel: _ChannelState) -> OpenAttempt | WaitingAttempt | NothingDue:
        body = partial(
            open_attempt,
            channel=channel.channel,
            look=channel.may_have_attempt,
            rested=channel.waited,
            terms=self._build_rules(channel),
            now_ms=self._now_ms(),
        )
        taken = await self._store.write(body, point="deliver-claim")
        channel.may_have_attempt, channel.waited = False, None
        return taken

    async def _send(self, channel: _ChannelState, attempt: OpenAttempt) -> ClosedAttempt:
        """Make one delivery attempt, and return its result."""
        envelope = attempt.envelope
        connector = self._connectors.get(channel.connector_name)
        if connector is None:
            message = f"no connector named '{channel.connector_name}'"
            result = AttemptFailed(kind=FailureKind.ADAPTER_NOT_LOADED, message=message, permanent=True)
        else:
            result = await self._send_parts(channel, connector, attempt)
        log.info(
            "delivery attempted",
            extra={
                "envelope": envelope.id,
                "connector": channel.connector_name,
                "attempt": envelope.attempts,
                "result": "sent" if isinstance(result, PartSent) else result.kind,
            },
        )
        if isinstance(result, AttemptFailed):
            channel.may_have_attempt = True
            if result.kind == FailureKind.THROTTLED and (wait_s := get_requested_delay_s(result)):
                self._pause_connector(channel.connector_name, wait_s)
        return await self._close_attempt(envelope, result, self._build_rules(channel))

    async def _send_parts(
        self, channel: _ChannelState, connector: Connector, attempt: OpenAttempt
    ) -> PartSent | AttemptFailed:
        """Send the parts of an envelope in order, except for those that have already arrived.

        The receipt of each part is stored before the next part is sent, so a retry continues with
        the next part. The receipt of the last part is stored together with the outcome.
        """
        result: PartSent | AttemptFailed | None = None
        last = 0
        for part in self._build_parts(connector, attempt):
            last = part.index
            if last in attempt.receipts:
                continue
            if result is not None:
                await self._store_part(attempt, result)
                if not await self._wait_between_parts(channel):
                    return _STOPPED_BETWEEN_PARTS
            self._faults.reach("deliver.before")
            result = await self._deliver_part(connector, part)
            self._faults.reach("deliver.after")
            if isinstance(result, AttemptFailed):
                return result
        return result or PartSent(attempt.receipts[last], last)

    def _build_parts(self, connector: Connector, attempt: OpenAttempt) -> Iterable[DeliveryPart]:
        """Split an envelope into delivery parts.

        Secrets are redacted before the split, because redaction does not recognize half a secret.
        """
        envelope, cut = attempt.envelope, attempt.split
        if cut is None:
            return (make_single_part(envelope),)
        if isinstance(connector, RedactedConnector) and (text := connector.redact(envelope.text)) != envelope.text:
            envelope = replace(envelope, text=text)
        return split_envelope(envelope, cut.able, cut.words, cut.setting)

    async def _wait_between_parts(self, channel: _ChannelState) -> bool:
        """Wait before the next part: the configured delay, and any delay that the platform requested.

        Returns False if the outbox is stopping.
        """
        if (delay := self._get_reply_delivery(channel.connector_name).delay_range_ms) is not None:
            await self._wait_unless_stopping(self._clock.sleep(self._random.uniform(*delay) / 1000))
        while self._is_running and (
            pauses := [task for task, who in self._pauses.items() if who == channel.connector_name]
        ):
            await self._wait_unless_stopping(asyncio.wait(pauses))
        return self._is_running

    async def _wait_unless_stopping(self, awaitable: Awaitable[object]) -> None:
        closing, task = asyncio.ensure_future(self._stopping.wait()), asyncio.ensure_future(awaitable)
        try:
            await asyncio.wait({closing, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            task.cancel()

    async def _deliver_part(self, connector: Connector, part: DeliveryPart) -> PartSent | AttemptFailed:
        """Let the connector send one part. Every failure becomes a result."""
        try:
            async with asyncio.timeout(self._limits.send_s_max):
                delivery = await connector.deliver(part)
            return PartSent(_limit_text(delivery.receipt, RECEIPT_CHARS_MAX), part.index)
        except DeliveryFailed as failed:
            return AttemptFailed(
                kind=failed.kind,
                message=_limit_text(failed.sentence, ERROR_CHARS_MAX),
                permanent=failed.permanent,
                retry_after_s=failed.retry_after_s,
            )
        except TimeoutError:
            return AttemptFailed(kind=UNKNOWN_RESULT, message="the connector did not answer in time", is_unknown=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return AttemptFailed(kind=UNKNOWN_RESULT, message="the connector cancelled the delivery", is_unknown=True)
        except Exception as error:  # whatever a connector raises, its channel continues
            log.warning(
                "connector raised an error",
                exc_info=None if isinstance(error, OSError) else error,
                extra={"envelope": part.envelope.id, "connector": connector.name, "error": type(error).__name__},
            )
            message = _limit_text(f"{type(error).__name__}: {error}", ERROR_CHARS_MAX)
            return AttemptFailed(kind=UNKNOWN_RESULT, message=message, is_unknown=True)

    async def _store_part(self, attempt: OpenAttempt, sent: PartSent) -> None:
        body = partial(
            store_part,
            envelope=attempt.envelope,
            part=sent.part,
            receipt=sent.receipt,
            now_ms=self._now_ms(),
            cut=attempt.split,
        )
        await self._write_with_retry(lambda: self._store.write(body, point="deliver-part"))

    async def _close_attempt(
        self, envelope: Envelope, result: PartSent | AttemptFailed, rules: DeliveryRules
    ) -> ClosedAttempt:
        def write() -> Awaitable[ClosedAttempt]:
            body = partial(close_attempt, envelope=envelope, result=result, terms=rules, now_ms=self._now_ms())
            return self._store.write(body, point="deliver-done")

        return await self._write_with_retry(write)

    async def _write_with_retry(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write to the store, and retry if it fails. A delivery result is known only once, so it must not be lost."""
        while True:
            try:
                return await write()
            except StoreError as error:
                if error.code in PERMANENT_ERROR_CODES or error.code == "store.closed":
                    raise
                log.error("store failed, delivery result not stored yet", extra={"code": error.code})
                await self._clock.sleep(STORE_RETRY_S)

    # --- waiting, and polling the store for what did not fit in memory ---

    def _pause_connector(self, connector_name: str, wait_s: float) -> None:
        """Pause all channels of a connector, because a platform's rate limit usually applies to the whole account."""

        async def pause() -> None:
            try:
                await self._clock.sleep(wait_s)
            finally:
                self._queue.resume(connector_name)
            self._dispatch()

        self._queue.pause(connector_name)
        task = asyncio.create_task(pause(), name=f"pause at {connector_name}")
        self._pauses[task] = connector_name
        task.add_done_callback(lambda done: self._pauses.pop(done, None))

    def _wait_for_retry(self, channel: _ChannelState, wait_s: float) -> None:
        if len(self._wait_tasks) < self._limits.channels_waiting_max:
            self._wait_tasks[channel.channel] = asyncio.create_task(self._wait_then_queue(channel, wait_s))
            return
        del self._channels[channel.channel]
        self._overflowed = True
        self._on_wake(TimerWake())

    async def _wait_then_queue(self, channel: _ChannelState, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        del self._wait_tasks[channel.channel]
        self._queue.push(channel)
        self._dispatch()

    async def _rescan(self) -> None:
        await self._clock.sleep(RESCAN_S)
        try:
            await self._scan_store()
        except StoreError as error:
            log.error("outbox could not read the store, retrying", extra={"code": error.code})
        self._scan_task = None
        self._dispatch()

    async def _scan_store(self) -> None:
        """Wake the channels that have an interrupted delivery or a due envelope.

        One call scans a limited number of channels, in address order. The next call continues after
        the last of them.
        """
        limit = self._limits.channels_queued_max
        due = partial(deliveries.list_due_channels, now_ms=self._now_ms(), after=self._scan_position, limit=limit)
        cut_off = await self._store.scan(deliveries.list_unclosed_channels)
        found = await self._store.scan(due)
        self._overflowed = len(found) == limit or bool(self._scan_position)
        self._scan_position = found[-1] if len(found) == limit else ""
        for channel in (*cut_off, *found):
            self.wake(channel)

    def _tasks(self) -> list[asyncio.Task[None]]:
        looking = [self._scan_task] if self._scan_task else []
        return [*self._serve_tasks, *self._wait_tasks.values(), *self._pauses, *looking]

    def _wake_all(self, wakes: Iterable[Wake]) -> None:
        for wake in wakes:
            self._on_wake(wake)

    def _build_rules(self, channel: _ChannelState) -> DeliveryRules:
        connector = self._connectors.get(channel.connector_name)
        safe = connector is not None and connector.repeats_safely
        return DeliveryRules(
            attempts_max=get_attempts_max(connector) or self._limits.attempts_max,
            repeats_safely=safe,
            sending=self._sessions().send,
            capabilities=get_capabilities(connector) if connector is not None else None,
            reply_delivery=self._get_reply_delivery(channel.connector_name),
            get_refusal=self._get_refusal,
        )

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())


def _limit_text(text: str, chars_max: int) -> str:
    """Replace the characters that cannot be stored, and truncate the text to `chars_max` characters."""
    plain = make_storable(text)
    return plain if len(plain) <= chars_max else plain[: chars_max - 1] + "…"
