"""The connector supervisor: creates every connector from the settings and keeps it listening.

A connector that silently stops would silently lose messages. So each one has a task that restarts
it however it ended, and a status that can be read at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from retinue.config.connectors import OWN_CONNECTORS, ConnectorSettings
from retinue.connectors.base import (
    PATIENT_ATTEMPTS_MAX,
    Accept,
    Checks,
    Connector,
    ConnectorKind,
    Delivery,
    DeliveryFailed,
    FailureKind,
    Finding,
    Incoming,
    LineLost,
    Parcel,
    Surroundings,
)
from retinue.connectors.connector_factory import make, secrets_of, settled
from retinue.connectors.connector_registry import Kinds
from retinue.connectors.supervisor.connector_health import STEADY_S, LineHealth, LineState, wait_s
from retinue.connectors.supervisor.connector_state import StoreShelf
from retinue.connectors.supervisor.poison_messages import Aside
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Receipt
from retinue.domain.errors import NotFound, RetinueError, StoreError
from retinue.domain.ports import Clock, Ids
from retinue.store.core.connection import Store

log = logging.getLogger(__name__)

TRIES_MAX = 3  # failed attempts to process one message before it is stored as a poison message
STUMBLES_KEPT_MAX = 1_000
CLOSE_S = 10.0
CHECK_S = 30.0
ERROR_CHARS_MAX = 500

Take = Callable[[str, Incoming], Awaitable[Receipt | None]]
"""Takes in what an instance heard: the doorway's `accept`."""

TellOwner = Callable[[str, LineLost, int], Awaitable[None]]
"""Says to the owner that an instance needs them, once for each trouble: it began at this millisecond."""


async def tell_nobody(_instance: str, _lost: LineLost, _at_ms: int) -> None: ...


class Needs(Struct, frozen=True, kw_only=True):
    """Services that a supervisor needs."""

    store: Store
    clock: Clock
    ids: Ids
    chance: Random
    take: Take
    home: Path
    environment: Mapping[str, str]
    path_of: Callable[[Attachment], Path]
    kinds: Kinds
    ready: Callable[[], Mapping[str, Connector]] = dict[str, Connector]  # connectors that plugins provide ready-made
    tell_owner: TellOwner = tell_nobody
    opened: Callable[[str], None] = lambda _instance: None  # called when a connector can deliver again


class _Line(Struct, eq=False):
    """One connector, if it could be created, and its history since then."""

    instance: str
    kind: str
    state: LineState
    since: Any
    settings: ConnectorSettings | None = None  # None: it was added ready-made
    connector: Connector | None = None
    task: asyncio.Task[None] | None = None
    heard: Any = None
    delivered: Any = None
    breaks: int = 0
    because: str = ""
    try_this: str = ""
    again: Any = None
    trouble_over: bool = False
    brought: bool = False  # ready-made by a plugin


class Switchboard:
    """Owns the live connectors. `connectors` is the mapping the outbox sends through; it changes as
    connectors come and go.

    `wrap` is applied to each connector before the outbox gets it, so that no secret leaves through
    it.
    """

    def __init__(
        self,
        needs: Needs,
        connectors: MutableMapping[str, Connector],
        wrap: Callable[[Connector], Connector] = lambda connector: connector,
    ) -> None:
        self._needs = needs
        self._clock = needs.clock
        self._connectors = connectors
        self._wrap = wrap
        self._aside = Aside(needs.store, needs.clock, needs.ids)
        self._lines: dict[str, _Line] = {}
        self._stumbles: dict[tuple[str, str, str, str], int] = {}
        self._open = False
        self._closed = False
        self._fitting = asyncio.Lock()
        self._soon: set[asyncio.Task[None]] = set()

    # --- settings ---

    async def fit(self, wanted: Mapping[str, ConnectorSettings]) -> None:
        """Create, start and stop connectors until they match the settings. Unchanged ones are left
        alone.

        If a plugin provides a ready-made connector under a name in the settings, the settings win.
        """
        async with self._fitting:
            if self._closed:  # remaining deliveries use the connectors that are here
                return
            # A plugin cannot replace the server's own connectors, nor remove them when it is
            # unloaded.
            brought = {
                name: each
                for name, each in self._needs.ready().items()
                if name not in wanted and name not in OWN_CONNECTORS
            }
            for instance, line in list(self._lines.items()):
                now = wanted.get(instance)
                if line.state is LineState.FAILED or not _is_same(line, now, brought.get(instance)):
                    comes_back = now.enabled if now is not None else instance in brought
                    await self._hang_up(instance, comes_back=comes_back)
                else:
                    line.settings = now
            for instance, settings in wanted.items():
                if instance not in self._lines:
                    self._set_up(instance, settings)
            for instance, connector in brought.items():
                if instance not in self._lines:
                    line = _Line(instance, instance, LineState.TRYING, self._clock.now(), connector=connector)
                    line.brought = True
                    self._put(line)

    def take_up(self, wanted: Mapping[str, ConnectorSettings]) -> None:
        """Schedule `sync`, for a caller that reports a change and cannot wait."""
        task = asyncio.create_task(self.fit(wanted))
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    def _set_up(self, instance: str, settings: ConnectorSettings) -> None:
        line = _Line(instance, settings.kind, LineState.OFF, self._clock.now(), settings=settings)
        if not settings.enabled:
            line.because = "the settings turn it off"
        else:
            try:
                line.connector = self.made(instance, settings)
                line.state = LineState.TRYING
            except Exception as error:  # noqa: BLE001 - a platform may raise anything, and the server starts without it
                self._could_not(line, error)
        self._put(line)

    def _could_not(self, line: _Line, error: Exception) -> None:
        known = isinstance(error, RetinueError)
        line.state = LineState.FAILED
        line.because = _told(error)
        line.try_this = (error.try_this if known else "") or f"retinue connector test {line.instance}"
        log.error(
            "connector not made",
            exc_info=None if known else error,
            extra={"connector": line.instance, "error": error.code if known else type(error).__name__},
        )

    def made(self, instance: str, settings: ConnectorSettings) -> Connector:
        """Create a connector from these settings, not listening. Raises if the settings are
        invalid."""
        kind = self._needs.kinds.find(settings.kind)
        return make(kind, whole := settled(kind, instance, settings), self._surroundings(instance, whole))

    def kind_of(self, instance: str) -> str:
        """The platform of a connector, such as `telegram`; the connector's own name if it was added
        ready-made."""
        line = self._lines.get(instance)
        return line.settings.kind if line is not None and line.settings is not None else instance

    def _surroundings(self, instance: str, settings: ConnectorSettings) -> Surroundings:
        needs = self._needs
        return Surroundings(
            instance=instance,
            clock=needs.clock,
            chance=needs.chance,
            shelf=StoreShelf(needs.store, needs.clock, instance),
            path_of=needs.path_of,
            secret=secrets_of(settings.own, instance=instance, home=needs.home, environment=needs.environment),
            stands=partial(self._stands, instance),
        )

    def _stands(self, instance: str) -> None:
        """Record that a connector is connected again.

        The count of failures is reset only after the connection has lasted a while. Otherwise a
        platform that accepts and then drops us would be retried without back-off.
        """
        line = self._lines.get(instance)
        if line is not None and line.state is LineState.TRYING:
            line.state, line.because, line.try_this = LineState.LISTENING, "", ""

    # --- connectors ---

    def open(self, connector: Connector, *, kind: str = "") -> None:
        """Add a ready-made connector and start it, replacing any other with the same name."""
        old = self._lines.pop(connector.instance, None)
        if old is not None and old.task is not None:
            old.task.cancel()
        line = _Line(connector.instance, kind or connector.instance, LineState.TRYING, self._clock.now())
        line.connector = connector
        self._put(line)

    def _put(self, line: _Line) -> None:
        self._lines[line.instance] = line
        connector = line.connector
        if connector is not None:
            self._connectors[line.instance] = self._wrap(connector)
            if self._open:
                self._listen(line, connector)
            self._needs.opened(line.instance)
        elif line.state is LineState.FAILED:
            self._connectors[line.instance] = _Shut(line.instance, "it could not be made as the settings have it")

    def start(self) -> None:
        """Start listening with every connector. Received messages are accepted from now on."""
        self._open = True
        for line in self._lines.values():
            if line.connector is not None and line.task is None:
                self._listen(line, line.connector)

    def _listen(self, line: _Line, connector: Connector) -> None:
        line.task = asyncio.create_task(self._keep_listening(line, connector), name=f"listening at {line.instance}")

    async def close(self, instance: str) -> None:
        """Remove a connector for good. Envelopes for it can then not be delivered."""
        async with self._fitting:
            if instance in self._lines:
                await self._hang_up(instance)

    async def _hang_up(self, instance: str, *, comes_back: bool = False) -> None:
        line = self._lines.pop(instance)
        old = self._connectors.pop(instance, None)
        # Deliveries wait for it meanwhile; without a connector they would become dead letters.
        if comes_back and old is not None:
            self._connectors[instance] = _Shut(instance, "it is being opened anew", repeats_safely=old.repeats_safely)
        if line.task is not None:
            line.task.cancel()
            # Two listeners with one account disconnect each other, so the old one ends before the
            # new one starts.
            _, left = await asyncio.wait({line.task}, timeout=CLOSE_S)
            if left:
                log.error("connector does not end", extra={"connector": instance})

    def abandon(self) -> None:
        """Cancel everything at once, as a crash would. Platforms redeliver what was not confirmed."""
        self._open = False
        self._closed = True
        for task in self._tasks():
            task.cancel()

    async def stop(self) -> None:
        tasks = self._tasks()
        self.abandon()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._soon, *(line.task for line in self._lines.values() if line.task is not None)]

    # --- listening ---

    async def _keep_listening(self, line: _Line, connector: Connector) -> None:
        accept = partial(self._accept, line)
        while True:
            lost = await self._listen_once(line, connector, accept)
            line.breaks += 1
            await self._wait(line, lost)
            line.state, line.since, line.again = LineState.TRYING, self._clock.now(), None

    async def _listen_once(self, line: _Line, connector: Connector, accept: Accept) -> LineLost:
        """Listen until the connection breaks for any reason, and return that reason."""
        take_back = self._clock.later(STEADY_S, partial(_well, line))
        try:
            await connector.listen(accept)
            log.warning("connector hung up, listens again", extra={"connector": line.instance})
            return LineLost("it hung up", because="the place ended the line without a word")
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            known = isinstance(error, RetinueError | OSError)
            log.warning(
                "connector lost its line, listens again",
                exc_info=None if known else error,
                extra={
                    "connector": line.instance,
                    "error": error.code if isinstance(error, RetinueError) else type(error).__name__,
                },
            )
            return error if isinstance(error, LineLost) else LineLost(_told(error))
        finally:
            take_back()

    async def _wait(self, line: _Line, lost: LineLost) -> None:
        seconds = wait_s(
            line.breaks,
            chance=self._needs.chance.random(),
            asked_s=lost.retry_after_s,
            needs_owner=lost.needs_owner,
        )
        now = self._clock.now()
        line.state = LineState.NEEDS_OWNER if lost.needs_owner else LineState.WAITING
        line.since, line.again = now, now + timedelta(seconds=seconds)
        line.because = ": ".join(part for part in (lost.sentence, lost.because) if part)[:ERROR_CHARS_MAX]
        line.try_this = lost.try_this
        if lost.needs_owner:
            await self._tell_owner(line, lost)
        await self._clock.sleep(seconds)

    async def _tell_owner(self, line: _Line, lost: LineLost) -> None:
        """Alert the owner once per problem, also across restarts: the start of the problem is
        stored."""
        try:
            began_ms = await self._aside.began(line.instance, anew=line.trouble_over)
            line.trouble_over = False
            await self._needs.tell_owner(line.instance, lost, began_ms)
        except RetinueError as error:
            log.warning("owner not told of a connector", extra={"connector": line.instance, "code": error.code})

    async def _accept(self, line: _Line, incoming: Incoming) -> Receipt | None:
        try:
            receipt = await self._needs.take(line.instance, incoming)
        except StoreError:
            raise  # the server could not decide: the platform redelivers it
        except Exception as error:
            if not self._is_poison(line.instance, incoming):
                raise
            await self._aside.put(line.instance, incoming, because=_told(error), tries=TRIES_MAX)
            receipt = None
        line.heard = self._clock.now()
        _well(line)
        return receipt

    def _is_poison(self, instance: str, incoming: Incoming) -> bool:
        """Count a failed attempt. Returns whether the message failed so often that it would fail
        forever."""
        key = (instance, incoming.room, incoming.message_id, incoming.revision)
        tries = self._stumbles.pop(key, 0) + 1
        if tries >= TRIES_MAX:
            return True
        self._stumbles[key] = tries
        if len(self._stumbles) > STUMBLES_KEPT_MAX:
            del self._stumbles[next(iter(self._stumbles))]
        return False

    # --- status and checks ---

    def health(self) -> list[LineHealth]:
        return [self._health_of(line) for line in self._lines.values()]

    def _health_of(self, line: _Line) -> LineHealth:
        state = line.state
        if state is LineState.TRYING and line.breaks == 0:
            state = LineState.LISTENING  # no failure so far
        return LineHealth(
            instance=line.instance,
            kind=line.kind,
            state=state,
            since=line.since,
            last_heard=line.heard,
            last_delivered=line.delivered,
            breaks=line.breaks,
            because=line.because,
            try_this=line.try_this,
            again_at=line.again,
        )

    def took(self, instance: str) -> None:
        """Record that the platform accepted a delivery part."""
        if (line := self._lines.get(instance)) is not None:
            line.delivered = self._clock.now()

    async def check(self, instance: str) -> Finding:
        """Check the login of a running connector."""
        line = self._lines.get(instance)
        if line is None:
            raise _nobody(instance)
        if line.connector is None and line.settings is not None:
            return await self.try_out(instance, line.settings)
        assert line.connector is not None
        return await _checked(line.connector)

    async def try_out(self, instance: str, settings: ConnectorSettings) -> Finding:
        """Create a connector to check its login once, then discard it."""
        try:
            connector = self.made(instance, settings)
        except RetinueError as error:
            return Finding(
                ok=False, account="", sentence=error.sentence, because=error.because, try_this=error.try_this
            )
        return await _checked(connector)

    async def offer_again(self, id_: str) -> Receipt | None:
        """Accept a poison message as if it had just arrived. Raises the error if it fails again."""
        instance, incoming = await self._aside.get(id_)
        receipt = await self._needs.take(instance, incoming)
        await self._aside.close(id_, done=True)
        return receipt

    def kind(self, name: str) -> ConnectorKind:
        return self._needs.kinds.find(name)

    @property
    def kinds(self) -> Kinds:
        return self._needs.kinds


def _is_same(line: _Line, settings: ConnectorSettings | None, ready: Connector | None) -> bool:
    """Whether a connector can stay as it is. Access rules are read with each message, so a change
    of them is no reason to reconnect."""
    if line.settings is None or settings is None:
        by_hand = line.settings is None and not line.brought
        return settings is line.settings and (by_hand or (ready is not None and ready is line.connector))
    old = (line.settings.kind, line.settings.enabled, line.settings.own)
    return old == (settings.kind, settings.enabled, settings.own)


def _well(line: _Line) -> None:
    if line.state is LineState.TRYING:
        line.state = LineState.LISTENING
    line.breaks = 0
    line.because = line.try_this = ""
    line.trouble_over = True


async def _checked(connector: Connector) -> Finding:
    if not isinstance(connector, Checks):
        return Finding(ok=True, account="", sentence="it cannot be asked without sending something")
    try:
        async with asyncio.timeout(CHECK_S):
            return await connector.check()
    except RetinueError as error:
        return Finding(ok=False, account="", sentence=error.sentence, because=error.because, try_this=error.try_this)
    except (OSError, TimeoutError) as error:
        return Finding(
            ok=False,
            account="",
            sentence="the place could not be reached",
            because=_told(error) or f"it did not answer within {CHECK_S:g} s",
            try_this="look whether this machine has a way there",
        )


class _Shut:
    """Placeholder for a connector that could not be created or is not ready yet.

    Envelopes for it wait for a while, as if the connection were down. Deliveries that were in
    flight at a crash are not marked as safe to repeat.
    """

    attempts_max = PATIENT_ATTEMPTS_MAX

    def __init__(self, instance: str, because: str, *, repeats_safely: bool = False) -> None:
        self.instance = instance
        self.repeats_safely = repeats_safely
        self._because = because

    async def listen(self, accept: Accept) -> None:
        del accept
        await asyncio.Event().wait()

    async def deliver(self, parcel: Parcel) -> Delivery:
        raise DeliveryFailed(
            f"the connector '{self.instance}' is not open",
            kind=FailureKind.ADAPTER_NOT_LOADED,
            because=self._because,
            try_this="look at `retinue connector list`",
        )


def _told(error: BaseException) -> str:
    """A text for the error that may be shown. An unknown error may contain anything, so only its
    class is named."""
    if isinstance(error, RetinueError):
        return ": ".join(part for part in (error.sentence, error.because) if part)[:ERROR_CHARS_MAX]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:ERROR_CHARS_MAX]
    return type(error).__name__


def _nobody(instance: str) -> NotFound:
    return NotFound(
        f"there is no connector '{instance[:64]}' in this house",
        because="no [connectors.NAME] of the settings is called so, and no plug-in brings it",
        try_this="look at `retinue connector list`",
        code="connector.not-found",
    )
