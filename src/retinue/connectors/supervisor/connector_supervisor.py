"""Creates every connector from the settings and keeps it listening.

A connector that stops unnoticed loses messages, so each connector has a task that calls its `listen`
again whenever it ends. Its status can be read at any time.
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

from retinue.config.connectors import INTERNAL_CONNECTORS, ConnectorSettings
from retinue.connectors.base import (
    REMOTE_ATTEMPTS_MAX,
    Accept,
    ConnectionLost,
    Connector,
    ConnectorCheckResult,
    ConnectorContext,
    Delivery,
    DeliveryFailed,
    DeliveryPart,
    FailureKind,
    InboundMessage,
    Platform,
    SupportsCheck,
)
from retinue.connectors.connector_factory import make_connector, make_secret_reader, parse_platform_settings
from retinue.connectors.connector_registry import PlatformRegistry
from retinue.connectors.supervisor.connector_health import (
    HEALTHY_AFTER_S,
    ConnectionStatus,
    ConnectorHealth,
    reconnect_delay_s,
)
from retinue.connectors.supervisor.connector_state import StoredConnectorState
from retinue.connectors.supervisor.poison_messages import PoisonMessages
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import Receipt
from retinue.domain.errors import RetinueError, StoreError
from retinue.domain.ports import Clock, IdSource
from retinue.domain.shared_errors import ConnectorNotFound
from retinue.store.core.connection import Store

log = logging.getLogger(__name__)

MESSAGE_ATTEMPTS_MAX = 3  # failed attempts to process one message before it is stored as a poison message
FAILED_MESSAGES_MAX = 1_000
STOP_TIMEOUT_S = 10.0
CHECK_TIMEOUT_S = 30.0
ERROR_CHARS_MAX = 500

AcceptInbound = Callable[[str, InboundMessage], Awaitable[Receipt | None]]
"""Accepts a message that the connector with this name received."""

AlertOwner = Callable[[str, ConnectionLost, int], Awaitable[None]]
"""Notifies the owner, once per problem, that a connector has a problem that only the owner can solve.
The last argument is the time when the problem began, in Unix milliseconds."""


async def ignore_alert(_instance: str, _lost: ConnectionLost, _at_ms: int) -> None: ...


class SupervisorServices(Struct, frozen=True, kw_only=True):
    """Services that the connector supervisor needs."""

    store: Store
    clock: Clock
    ids: IdSource
    random: Random
    accept: AcceptInbound
    data_dir: Path
    environment: Mapping[str, str]
    get_attachment_path: Callable[[Attachment], Path]
    platforms: PlatformRegistry
    get_plugin_connectors: Callable[[], Mapping[str, Connector]] = dict[
        str, Connector
    ]  # connectors that plugins provide ready-made
    alert_owner: AlertOwner = ignore_alert
    on_available: Callable[[str], None] = lambda _instance: None  # called when a connector can deliver again


class _ConnectorEntry(Struct, eq=False):
    """One connector with its status. `connector` is None if the connector is disabled or could not be created."""

    name: str
    platform: str
    status: ConnectionStatus
    since: Any
    settings: ConnectorSettings | None = None  # None: it was added ready-made
    connector: Connector | None = None
    task: asyncio.Task[None] | None = None
    last_received_at: Any = None
    last_delivered_at: Any = None
    failures: int = 0
    because: str = ""
    try_this: str = ""
    retry_at: Any = None
    has_recovered: bool = False
    is_from_plugin: bool = False  # ready-made by a plugin


class ConnectorSupervisor:
    """Creates, starts and stops connectors. The outbox finds the running connectors in the mapping `connectors`.

    `wrap` is applied to each connector before the outbox gets it. This is how secrets are redacted from everything that
    is sent.
    """

    def __init__(
        self,
        services: SupervisorServices,
        connectors: MutableMapping[str, Connector],
        wrap: Callable[[Connector], Connector] = lambda connector: connector,
    ) -> None:
        self._services = services
        self._clock = services.clock
        self._connectors = connectors
        self._wrap = wrap
        self._poison_messages = PoisonMessages(services.store, services.clock, services.ids)
        self._entries: dict[str, _ConnectorEntry] = {}
        self._failed_attempts: dict[tuple[str, str, str, str], int] = {}
        self._is_listening = False
        self._is_stopped = False
        self._sync_lock = asyncio.Lock()
        self._sync_tasks: set[asyncio.Task[None]] = set()

    # --- settings ---

    async def sync(self, wanted: Mapping[str, ConnectorSettings]) -> None:
        """Create, start and stop connectors until they match the settings. Unchanged connectors keep running.

        If a plugin provides a ready-made connector whose name is also in the settings, the settings
        take precedence.
        """
        async with self._sync_lock:
            if self._is_stopped:  # the last deliveries still use the current connectors
                return
            # A plugin cannot replace the server's own connectors, nor remove them when it is
            # unloaded.
            brought = {
                name: each
                for name, each in self._services.get_plugin_connectors().items()
                if name not in wanted and name not in INTERNAL_CONNECTORS
            }
            for instance, line in list(self._entries.items()):
                now = wanted.get(instance)
                if line.status is ConnectionStatus.FAILED or not _is_unchanged(line, now, brought.get(instance)):
                    comes_back = now.enabled if now is not None else instance in brought
                    await self._disconnect(instance, will_return=comes_back)
                else:
                    line.settings = now
            for instance, settings in wanted.items():
                if instance not in self._entries:
                    self._create_from_settings(instance, settings)
            for instance, connector in brought.items():
                if instance not in self._entries:
                    line = _ConnectorEntry(
                        instance, instance, ConnectionStatus.CONNECTING, self._clock.now(), connector=connector
                    )
                    line.is_from_plugin = True
                    self._register(line)

    def schedule_sync(self, wanted: Mapping[str, ConnectorSettings]) -> None:
        """Run `sync` in a task, for a caller that reports changed settings and cannot wait for it."""
        task = asyncio.create_task(self.sync(wanted))
        self._sync_tasks.add(task)
        task.add_done_callback(self._sync_tasks.discard)

    def _create_from_settings(self, connector_name: str, settings: ConnectorSettings) -> None:
        line = _ConnectorEntry(
            connector_name, settings.platform, ConnectionStatus.OFF, self._clock.now(), settings=settings
        )
        if not settings.enabled:
            line.because = "disabled in the settings"
        else:
            try:
                line.connector = self.make_connector(connector_name, settings)
                line.status = ConnectionStatus.CONNECTING
            except Exception as error:  # noqa: BLE001 - a platform may raise anything, and the server starts without it
                self._record_creation_failure(line, error)
        self._register(line)

    def _record_creation_failure(self, entry: _ConnectorEntry, error: Exception) -> None:
        known = isinstance(error, RetinueError)
        entry.status = ConnectionStatus.FAILED
        entry.because = _describe_error(error)
        entry.try_this = (error.try_this if known else "") or f"retinue connector test {entry.name}"
        log.error(
            "connector not created",
            exc_info=None if known else error,
            extra={"connector": entry.name, "error": error.code if known else type(error).__name__},
        )

    def make_connector(self, connector_name: str, settings: ConnectorSettings) -> Connector:
        """Create a connector from these settings without starting it. Raises an error if the settings are invalid."""
        kind = self._services.platforms.find(settings.platform)
        return make_connector(
            kind,
            whole := parse_platform_settings(kind, connector_name, settings),
            self._build_context(connector_name, whole),
        )

    def get_platform_name(self, connector_name: str) -> str:
        """Return the platform of a connector, such as `telegram`.

        For a connector that was added ready-made, return the connector's own name.
        """
        line = self._entries.get(connector_name)
        return line.settings.platform if line is not None and line.settings is not None else connector_name

    def _build_context(self, connector_name: str, settings: ConnectorSettings) -> ConnectorContext:
        needs = self._services
        return ConnectorContext(
            name=connector_name,
            clock=needs.clock,
            random=needs.random,
            state=StoredConnectorState(needs.store, needs.clock, connector_name),
            get_attachment_path=needs.get_attachment_path,
            read_secret=make_secret_reader(
                settings.platform_settings,
                connector_name=connector_name,
                data_dir=needs.data_dir,
                environment=needs.environment,
            ),
            on_connected=partial(self._on_connected, connector_name),
        )

    def _on_connected(self, connector_name: str) -> None:
        """Record that a connector is connected again.

        The count of failures is reset only after the connection has lasted a while. Otherwise a
        platform that accepts every connection and soon drops it would be retried without back-off.
        """
        line = self._entries.get(connector_name)
        if line is not None and line.status is ConnectionStatus.CONNECTING:
            line.status, line.because, line.try_this = ConnectionStatus.LISTENING, "", ""

    # --- connectors ---

    def add(self, connector: Connector, *, platform: str = "") -> None:
        """Add a ready-made connector and start it. It replaces any other connector of the same name."""
        old = self._entries.pop(connector.name, None)
        if old is not None and old.task is not None:
            old.task.cancel()
        name, status = connector.name, ConnectionStatus.CONNECTING
        entry = _ConnectorEntry(name, platform or name, status, self._clock.now())
        entry.connector = connector
        self._register(entry)

    def _register(self, entry: _ConnectorEntry) -> None:
        self._entries[entry.name] = entry
        connector = entry.connector
        if connector is not None:
            self._connectors[entry.name] = self._wrap(connector)
            if self._is_listening:
                self._start_listening(entry, connector)
            self._services.on_available(entry.name)
        elif entry.status is ConnectionStatus.FAILED:
            self._connectors[entry.name] = _UnavailableConnector(
                entry.name, "it could not be created from its settings"
            )

    def start(self) -> None:
        """Start listening with every connector. From now on, received messages are accepted."""
        self._is_listening = True
        for line in self._entries.values():
            if line.connector is not None and line.task is None:
                self._start_listening(line, line.connector)

    def _start_listening(self, entry: _ConnectorEntry, connector: Connector) -> None:
        entry.task = asyncio.create_task(self._keep_listening(entry, connector), name=f"listening at {entry.name}")

    async def remove(self, connector_name: str) -> None:
        """Remove a connector for good. Envelopes for it can no longer be delivered."""
        async with self._sync_lock:
            if connector_name in self._entries:
                await self._disconnect(connector_name)

    async def _disconnect(self, connector_name: str, *, will_return: bool = False) -> None:
        line = self._entries.pop(connector_name)
        old = self._connectors.pop(connector_name, None)
        # Deliveries wait until the connector is back. Without a placeholder they would become dead letters.
        if will_return and old is not None:
            self._connectors[connector_name] = _UnavailableConnector(
                connector_name, "it is being restarted", repeats_safely=old.repeats_safely
            )
        if line.task is not None:
            line.task.cancel()
            # Two listeners with one account disconnect each other, so the old one ends before the
            # new one starts.
            _, left = await asyncio.wait({line.task}, timeout=STOP_TIMEOUT_S)
            if left:
                log.error("connector does not stop", extra={"connector": connector_name})

    def abandon(self) -> None:
        """Cancel everything at once, as in a crash. Platforms redeliver messages that were not confirmed."""
        self._is_listening = False
        self._is_stopped = True
        for task in self._tasks():
            task.cancel()

    async def stop(self) -> None:
        tasks = self._tasks()
        self.abandon()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._sync_tasks, *(line.task for line in self._entries.values() if line.task is not None)]

    # --- listening ---

    async def _keep_listening(self, entry: _ConnectorEntry, connector: Connector) -> None:
        accept = partial(self._accept, entry)
        while True:
            lost = await self._listen_once(entry, connector, accept)
            entry.failures += 1
            await self._back_off(entry, lost)
            entry.status, entry.since, entry.retry_at = ConnectionStatus.CONNECTING, self._clock.now(), None

    async def _listen_once(self, entry: _ConnectorEntry, connector: Connector, accept: Accept) -> ConnectionLost:
        """Listen until the connection breaks for any reason, and return the reason."""
        take_back = self._clock.call_later(HEALTHY_AFTER_S, partial(_mark_healthy, entry))
        try:
            await connector.listen(accept)
            log.warning("connector closed, reconnecting", extra={"connector": entry.name})
            return ConnectionLost("the connection was closed", because="the platform gave no reason")
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            known = isinstance(error, RetinueError | OSError)
            log.warning(
                "connection lost, reconnecting",
                exc_info=None if known else error,
                extra={
                    "connector": entry.name,
                    "error": error.code if isinstance(error, RetinueError) else type(error).__name__,
                },
            )
            return error if isinstance(error, ConnectionLost) else ConnectionLost(_describe_error(error))
        finally:
            take_back()

    async def _back_off(self, entry: _ConnectorEntry, lost: ConnectionLost) -> None:
        seconds = reconnect_delay_s(
            entry.failures,
            random_share=self._services.random.random(),
            retry_after_s=lost.retry_after_s,
            needs_owner=lost.needs_owner,
        )
        now = self._clock.now()
        entry.status = ConnectionStatus.NEEDS_OWNER if lost.needs_owner else ConnectionStatus.WAITING
        entry.since, entry.retry_at = now, now + timedelta(seconds=seconds)
        entry.because = ": ".join(part for part in (lost.sentence, lost.because) if part)[:ERROR_CHARS_MAX]
        entry.try_this = lost.try_this
        if lost.needs_owner:
            await self._alert_owner(entry, lost)
        await self._clock.sleep(seconds)

    async def _alert_owner(self, entry: _ConnectorEntry, lost: ConnectionLost) -> None:
        """Alert the owner once per problem.

        The time at which the problem began is stored, so a restart does not send another alert.
        """
        try:
            began_ms = await self._poison_messages.mark_needs_owner(entry.name, is_new=entry.has_recovered)
            entry.has_recovered = False
            await self._services.alert_owner(entry.name, lost, began_ms)
        except RetinueError as error:
            log.warning("owner not alerted", extra={"connector": entry.name, "code": error.code})

    async def _accept(self, entry: _ConnectorEntry, incoming: InboundMessage) -> Receipt | None:
        """Pass a message to intake. A message that fails again and again is kept as a poison message."""
        try:
            receipt = await self._services.accept(entry.name, incoming)
        except StoreError:
            raise  # the server could not decide: the platform redelivers it
        except Exception as error:
            if not self._is_poison(entry.name, incoming):
                raise
            await self._poison_messages.put(
                entry.name, incoming, because=_describe_error(error), attempts=MESSAGE_ATTEMPTS_MAX
            )
            receipt = None
        entry.last_received_at = self._clock.now()
        _mark_healthy(entry)
        return receipt

    def _is_poison(self, connector_name: str, incoming: InboundMessage) -> bool:
        """Count a failed attempt to process a message. Returns whether the message now counts as a poison message."""
        key = (connector_name, incoming.channel, incoming.message_id, incoming.revision)
        tries = self._failed_attempts.pop(key, 0) + 1
        if tries >= MESSAGE_ATTEMPTS_MAX:
            return True
        self._failed_attempts[key] = tries
        if len(self._failed_attempts) > FAILED_MESSAGES_MAX:
            del self._failed_attempts[next(iter(self._failed_attempts))]
        return False

    # --- status and checks ---

    def health(self) -> list[ConnectorHealth]:
        return [self._build_health(line) for line in self._entries.values()]

    def _build_health(self, entry: _ConnectorEntry) -> ConnectorHealth:
        state = entry.status
        if state is ConnectionStatus.CONNECTING and entry.failures == 0:
            state = ConnectionStatus.LISTENING  # no failure so far
        return ConnectorHealth(
            name=entry.name,
            platform=entry.platform,
            status=state,
            since=entry.since,
            last_received_at=entry.last_received_at,
            last_delivered_at=entry.last_delivered_at,
            failures=entry.failures,
            because=entry.because,
            try_this=entry.try_this,
            retry_at=entry.retry_at,
        )

    def record_delivery(self, connector_name: str) -> None:
        """Record that the platform accepted a delivery part."""
        if (line := self._entries.get(connector_name)) is not None:
            line.last_delivered_at = self._clock.now()

    async def check(self, connector_name: str) -> ConnectorCheckResult:
        """Check the login of a connector. If the connector could not be created, check its settings."""
        line = self._entries.get(connector_name)
        if line is None:
            raise ConnectorNotFound(connector_name)
        if line.connector is None and line.settings is not None:
            return await self.check_settings(connector_name, line.settings)
        assert line.connector is not None
        return await _run_check(line.connector)

    async def check_settings(self, connector_name: str, settings: ConnectorSettings) -> ConnectorCheckResult:
        """Create a connector to check its login once, then discard it."""
        try:
            connector = self.make_connector(connector_name, settings)
        except RetinueError as error:
            return ConnectorCheckResult(
                ok=False, account="", sentence=error.sentence, because=error.because, try_this=error.try_this
            )
        return await _run_check(connector)

    async def retry_poison_message(self, id_: str) -> Receipt | None:
        """Process a poison message again, as if it had just arrived. Raises the error if it fails again."""
        instance, incoming = await self._poison_messages.get(id_)
        receipt = await self._services.accept(instance, incoming)
        await self._poison_messages.close(id_, is_done=True)
        return receipt

    def get_platform(self, name: str) -> Platform:
        return self._services.platforms.find(name)

    @property
    def platforms(self) -> PlatformRegistry:
        return self._services.platforms


def _is_unchanged(
    entry: _ConnectorEntry, settings: ConnectorSettings | None, plugin_connector: Connector | None
) -> bool:
    """Whether a connector can keep running after a change of settings.

    Changed access rules need no reconnect, because they are read with each message.
    """
    if entry.settings is None or settings is None:
        by_hand = entry.settings is None and not entry.is_from_plugin
        return settings is entry.settings and (
            by_hand or (plugin_connector is not None and plugin_connector is entry.connector)
        )
    old = (entry.settings.platform, entry.settings.enabled, entry.settings.platform_settings)
    return old == (settings.platform, settings.enabled, settings.platform_settings)


def _mark_healthy(entry: _ConnectorEntry) -> None:
    if entry.status is ConnectionStatus.CONNECTING:
        entry.status = ConnectionStatus.LISTENING
    entry.failures = 0
    entry.because = entry.try_this = ""
    entry.has_recovered = True


async def _run_check(connector: Connector) -> ConnectorCheckResult:
    if not isinstance(connector, SupportsCheck):
        return ConnectorCheckResult(
            ok=True, account="", sentence="this connector cannot be tested without sending a message"
        )
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await connector.check()
    except RetinueError as error:
        return ConnectorCheckResult(
            ok=False, account="", sentence=error.sentence, because=error.because, try_this=error.try_this
        )
    except (OSError, TimeoutError) as error:
        return ConnectorCheckResult(
            ok=False,
            account="",
            sentence="the platform cannot be reached",
            because=_describe_error(error) or f"timed out after {CHECK_TIMEOUT_S:g} s",
            try_this="check the network connection of this machine",
        )


class _UnavailableConnector:
    """Takes the place of a connector that could not be created or is being restarted.

    Its deliveries fail temporarily, so envelopes wait for a while, as if the connection were down.
    Unless `repeats_safely` is set, a delivery that a crash interrupted is not repeated.
    """

    attempts_max = REMOTE_ATTEMPTS_MAX

    def __init__(self, connector_name: str, because: str, *, repeats_safely: bool = False) -> None:
        self.name = connector_name
        self.repeats_safely = repeats_safely
        self._because = because

    async def listen(self, accept: Accept) -> None:
        del accept
        await asyncio.Event().wait()

    async def deliver(self, part: DeliveryPart) -> Delivery:
        raise DeliveryFailed(
            f"the connector '{self.name}' is not running",
            kind=FailureKind.ADAPTER_NOT_LOADED,
            because=self._because,
            try_this="check its status: retinue connector list",
        )


def _describe_error(error: BaseException) -> str:
    """Return a description of an error that is safe to show.

    The text of an unexpected error may contain anything, so only its class is shown.
    """
    if isinstance(error, RetinueError):
        return ": ".join(part for part in (error.sentence, error.because) if part)[:ERROR_CHARS_MAX]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:ERROR_CHARS_MAX]
    return type(error).__name__
