"""Test the connector supervisor: it makes connectors from settings, keeps them listening and reports their status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retinue.config.access import AccessSettings
from retinue.config.connectors import ConnectorSettings, UnparsedConnectorSettings
from retinue.config.setting_metadata import setting
from retinue.connectors.base import (
    Accept,
    ConnectionLost,
    Connector,
    ConnectorCheckResult,
    ConnectorContext,
    InboundMessage,
    Platform,
    PlatformUser,
    RemoteFile,
    get_attempts_max,
)
from retinue.connectors.connector_registry import PlatformRegistry
from retinue.connectors.email.connector import EmailConnector
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.supervisor.connector_health import (
    BACKOFF_MAX_S,
    HEALTHY_AFTER_S,
    NEEDS_OWNER_RETRY_S,
    RETRY_AFTER_MAX_S,
    ConnectionStatus,
    ConnectorHealth,
    reconnect_delay_s,
)
from retinue.connectors.supervisor.connector_supervisor import (
    MESSAGE_ATTEMPTS_MAX,
    ConnectorSupervisor,
    SupervisorServices,
)
from retinue.connectors.supervisor.poison_messages import from_json, to_json
from retinue.connectors.telegram.connector import TelegramConnector
from retinue.domain.envelope import Outcome, Receipt
from retinue.domain.errors import Invalid, StoreError
from retinue.domain.structs import replace
from retinue.store.channels import connector_state, poison_messages
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.wait_conditions import wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePlatformSettings:
    """A platform of pigeons."""

    birds: int = setting(1, "How many.", least=1)
    token_env: str = setting("", "The variable with the token.")
    token_file: str = setting("", "The file with the token.")


@dataclass(eq=False)
class ScriptedConnector(FakeConnector):
    """A connector for which a test scripts the end of each `listen`."""

    settings: FakePlatformSettings = field(default_factory=FakePlatformSettings)
    connector_context: ConnectorContext | None = None
    listen_errors: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    times: int = 0
    active_listeners: int = 0
    is_closing: bool = False
    close_gate: asyncio.Event | None = None  # if set, closing waits for it
    attempts_max: int | None = None

    async def listen(self, accept: Accept) -> None:
        self.times += 1
        self.active_listeners += 1
        try:
            if self.listen_errors:
                self.listen_errors.pop(0)()
            await super().listen(partial(self._accept_or_break, accept))
        finally:
            self.is_closing = True
            if self.close_gate is not None:
                await self.close_gate.wait()
            self.active_listeners -= 1

    async def _accept_or_break(self, accept: Accept, incoming: InboundMessage) -> Receipt | None:
        if incoming.text == "CUT":
            self._offered.popleft()
            raise ConnectionResetError("cut")
        return await accept(incoming)

    def break_connection(self) -> None:
        self.offer_text("CUT")

    async def check(self) -> ConnectorCheckResult:
        assert self.connector_context is not None
        return ConnectorCheckResult(
            ok=True, account=f"@{self.connector_context.read_secret('token')}", sentence="it knows us"
        )


def make_platform(connectors_made: list[ScriptedConnector], listen_failures: list[Callable[[], None]]) -> Platform:
    def make(settings: FakePlatformSettings, connector_context: ConnectorContext) -> Connector:
        connectors_made.append(
            ScriptedConnector(
                connector_context.clock,
                name=connector_context.name,
                settings=settings,
                connector_context=connector_context,
                listen_errors=listen_failures,
            )
        )
        return connectors_made[-1]

    return Platform(name="pigeon", title="Pigeons", settings=FakePlatformSettings, make_connector=make)


def make_settings(**own: Any) -> ConnectorSettings:
    return ConnectorSettings(platform="pigeon", platform_settings=UnparsedConnectorSettings(table=own))


@pytest.fixture
def connectors_made() -> list[ScriptedConnector]:
    return []


@pytest.fixture
def listen_failures() -> list[Callable[[], None]]:
    """What happens in the next calls of `listen`, in order."""
    return []


@pytest.fixture
def instance(
    tmp_path: Path, connectors_made: list[ScriptedConnector], listen_failures: list[Callable[[], None]]
) -> LocalInstance:
    return LocalInstance(tmp_path, platforms={"pigeon": make_platform(connectors_made, listen_failures)})


ListenFailures = list[Callable[[], None]]


def health(server: LocalServer, connector_name: str = "loft") -> ConnectorHealth:
    return next(each for each in server.supervisor.health() if each.name == connector_name)


async def wait_until_true(condition: Callable[[], Any]) -> None:
    await wait_until(condition, "the condition is true", poll_s=0.002)


async def advance_until_true(instance: LocalInstance, by_s: float, condition: Callable[[], Any]) -> None:
    """Advance the clock until a condition holds.

    The clock advances only after a check, so that a task can first record its state and then sleep.
    """

    async def advance_and_check() -> bool:
        if not (found := bool(condition())):
            await instance.clock.advance(by_s)
        return found

    await wait_until(advance_and_check, "the condition is true", poll_s=0.002)


def connection_lost(**kw: Any) -> Callable[[], None]:
    def raise_connection_lost() -> None:
        raise ConnectionLost("the loft is shut", because="it rains", try_this="wait", **kw)

    return raise_connection_lost


# --- reconnect delays ---


def test_the_reconnect_delay_of_a_connector_doubles_up_to_its_maximum_and_is_shortened_by_jitter() -> None:
    assert [reconnect_delay_s(breaks, random_share=0.0) for breaks in (1, 2, 3, 4, 99)] == [
        1.0,
        2.0,
        4.0,
        8.0,
        BACKOFF_MAX_S,
    ]
    for breaks in range(1, 40):
        longest, shortest = reconnect_delay_s(breaks, random_share=0.0), reconnect_delay_s(breaks, random_share=1.0)
        assert 0 < shortest < longest <= BACKOFF_MAX_S


def test_jitter_spreads_the_connector_reconnect_delays_of_many_servers() -> None:
    waits = {reconnect_delay_s(5, random_share=Random(seed).random()) for seed in range(50)}
    assert len(waits) == 50


def test_the_reconnect_delay_of_a_connector_honors_retry_after_up_to_a_maximum() -> None:
    for seed in range(50):
        assert reconnect_delay_s(1, random_share=Random(seed).random(), retry_after_s=30.0) >= 30.0
    assert reconnect_delay_s(1, random_share=0.0, retry_after_s=1e9) == RETRY_AFTER_MAX_S  # but only up to a maximum
    assert reconnect_delay_s(3, random_share=0.0, retry_after_s=-5.0) == reconnect_delay_s(3, random_share=0.0)


def test_a_connector_error_that_needs_the_owner_is_retried_at_the_longest_interval() -> None:
    assert reconnect_delay_s(1, random_share=0.0, needs_owner=True) == NEEDS_OWNER_RETRY_S > BACKOFF_MAX_S


# --- connections ---


@pytest.mark.spec("D60")
async def test_two_connectors_of_one_platform_keep_separate_settings_state_and_channels(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"home": make_settings(birds=2), "away": make_settings(birds=3)}
    async with instance.run() as server:
        home, away = connectors_made
        assert (home.name, home.settings.birds, away.name, away.settings.birds) == ("home", 2, "away", 3)
        assert home.connector_context is not None and away.connector_context is not None
        await home.connector_context.state.put("offset", "17")
        assert (await home.connector_context.state.get("offset"), await away.connector_context.state.get("offset")) == (
            "17",
            None,
        )
        for each in connectors_made:
            each.offer_text("hello", channel="7", message_id="1")
        found = await server.wait_for(
            lambda conn: rows if len(rows := sorted(list_senders(conn))) == 2 else None,
            what="two messages from two connectors",
        )
        assert found == ["channel:away:7", "channel:home:7"]  # the same channel and message id, but two messages
        assert server.supervisor.get_platform_name("home") == server.supervisor.get_platform_name("away") == "pigeon"


def list_senders(conn: Any) -> set[str]:
    rows = conn.exec_driver_sql("SELECT sender FROM envelopes WHERE sender LIKE 'channel:%'")
    return {row[0] for row in rows}


@pytest.mark.spec("D57")
async def test_connector_state_survives_a_crash_and_rejects_oversized_values(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"loft": make_settings()}
    async with instance.run() as server:
        assert connectors_made[0].connector_context is not None
        await connectors_made[0].connector_context.state.put("offset", "17")
        await connectors_made[0].connector_context.state.put("offset", "18")
        server.crash()
    async with instance.run():
        assert connectors_made[1].connector_context is not None
        assert await connectors_made[1].connector_context.state.get("offset") == "18"
        with pytest.raises(Invalid) as refused:
            await connectors_made[1].connector_context.state.put("offset", "1" * (connector_state.VALUE_CHARS_MAX + 1))
        assert refused.value.code == "connector.state_invalid"
        assert await connectors_made[1].connector_context.state.get("offset") == "18"


async def test_the_supervisor_retries_a_broken_connection_and_reports_the_reason_as_connector_health(
    instance: LocalInstance, connectors_made: list[ScriptedConnector], listen_failures: ListenFailures
) -> None:
    instance.connector_settings = {"loft": make_settings()}
    listen_failures += [connection_lost(), connection_lost(), connection_lost()]
    async with instance.run() as server:
        assert (
            health(server).status is ConnectionStatus.LISTENING and health(server).is_healthy
        )  # no failure is known yet
        await wait_until_true(lambda: health(server).status is ConnectionStatus.WAITING)
        now = health(server)
        assert (now.failures, now.because, now.try_this) == (1, "the loft is shut: it rains", "wait")
        assert now.retry_at is not None and now.retry_at > instance.clock.now() and not now.is_healthy
        for times in (2, 3, 4):
            await instance.clock.advance(4.0)
            await wait_until_true(lambda times=times: connectors_made[0].times >= times)
        assert (health(server).status, health(server).failures) == (ConnectionStatus.CONNECTING, 3)
        await connectors_made[0].send_inbound("hello")
        well = health(server)
        assert (well.status, well.failures, well.because) == (ConnectionStatus.LISTENING, 0, "")
        assert well.last_received_at == instance.clock.now()


async def test_a_restored_connection_of_a_connector_is_reported_at_once_but_keeps_its_failure_count(
    instance: LocalInstance, connectors_made: list[ScriptedConnector], listen_failures: ListenFailures
) -> None:
    instance.connector_settings = {"loft": make_settings()}
    listen_failures.append(connection_lost())
    async with instance.run() as server:
        await wait_until_true(lambda: health(server).status is ConnectionStatus.WAITING)
        connector_context = connectors_made[0].connector_context
        assert connector_context is not None
        connector_context.on_connected()  # too late: the connection broke afterwards
        assert health(server).status is ConnectionStatus.WAITING
        await instance.clock.advance(1.0)
        await wait_until_true(lambda: connectors_made[0].times == 2)
        assert health(server).status is ConnectionStatus.CONNECTING
        connector_context.on_connected()
        now = health(server)
        assert (now.status, now.because, now.try_this) == (ConnectionStatus.LISTENING, "", "")
        assert now.failures == 1  # the next failure has a longer delay


async def test_a_reconnected_connector_without_messages_is_healthy_after_the_healthy_period(
    instance: LocalInstance, connectors_made: list[ScriptedConnector], listen_failures: ListenFailures
) -> None:
    instance.connector_settings = {"loft": make_settings()}
    listen_failures.append(connection_lost())
    async with instance.run() as server:
        await wait_until_true(lambda: health(server).status is ConnectionStatus.WAITING)
        await instance.clock.advance(1.0)
        await wait_until_true(lambda: connectors_made[0].times == 2)
        assert health(server).status is ConnectionStatus.CONNECTING
        await instance.clock.advance(HEALTHY_AFTER_S)
        assert (health(server).status, health(server).failures) == (ConnectionStatus.LISTENING, 0)


async def test_the_supervisor_does_not_reconnect_before_retry_after_has_passed(
    instance: LocalInstance, connectors_made: list[ScriptedConnector], listen_failures: ListenFailures
) -> None:
    instance.connector_settings = {"loft": make_settings()}
    listen_failures.append(connection_lost(retry_after_s=300.0))
    async with instance.run() as server:
        await wait_until_true(lambda: health(server).status is ConnectionStatus.WAITING)
        await instance.clock.advance(299.0)
        assert connectors_made[0].times == 1
        await instance.clock.advance(2.0)
        await wait_until_true(lambda: connectors_made[0].times == 2)


async def test_the_owner_is_notified_once_of_a_connector_error_that_needs_the_owner(
    instance: LocalInstance, connectors_made: list[ScriptedConnector], listen_failures: ListenFailures
) -> None:
    instance.connector_settings = {"loft": make_settings()}
    listen_failures += [connection_lost(needs_owner=True)] * 40
    async with instance.run() as server:
        await wait_until_true(lambda: health(server).status is ConnectionStatus.NEEDS_OWNER)
        for times in (2, 3):
            await advance_until_true(
                instance, NEEDS_OWNER_RETRY_S, lambda times=times: connectors_made[0].times >= times
            )
            await wait_until_true(lambda: health(server).status is ConnectionStatus.NEEDS_OWNER)
        notices = await server.list_envelopes_to("owner")
        assert [notice.text for notice in notices] == [
            "The connector 'loft' needs your help: the loft is shut.\nbecause: it rains\ntry: wait"
        ]
        server.crash()
    async with instance.run() as server:
        await wait_until_true(lambda: health(server).status is ConnectionStatus.NEEDS_OWNER)
        assert len(await server.list_envelopes_to("owner")) == 1  # it is the same error


async def test_the_owner_is_notified_again_if_a_fixed_connector_error_comes_back(
    instance: LocalInstance, connectors_made: list[ScriptedConnector], listen_failures: ListenFailures
) -> None:
    instance.connector_settings = {"loft": make_settings()}
    listen_failures += [connection_lost(needs_owner=True)]
    async with instance.run() as server:
        await wait_until_true(lambda: health(server).status is ConnectionStatus.NEEDS_OWNER)
        await advance_until_true(instance, NEEDS_OWNER_RETRY_S, lambda: connectors_made[0].times == 2)
        await connectors_made[0].send_inbound("hello")  # the owner has fixed it
        listen_failures += [connection_lost(needs_owner=True)]
        connectors_made[0].break_connection()
        await wait_until_true(lambda: health(server).status is ConnectionStatus.WAITING)
        await instance.clock.advance(BACKOFF_MAX_S)
        await wait_until_true(lambda: health(server).status is ConnectionStatus.NEEDS_OWNER)
        await server.wait_for(lambda conn: count_owner_envelopes(conn) == 2, what="a second message")


def count_owner_envelopes(conn: Any) -> int:
    return conn.exec_driver_sql("SELECT count(*) FROM envelopes WHERE recipient = 'person:owner'").scalar_one()


# --- settings ---


async def test_the_supervisor_closes_and_reopens_only_a_connector_with_changed_settings(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"a": make_settings(), "b": make_settings()}
    async with instance.run() as server:
        await wait_until_true(lambda: [each.times for each in connectors_made] == [1, 1])
        await server.supervisor.sync({"a": make_settings(), "b": make_settings(birds=5)})
        assert [each.name for each in connectors_made] == ["a", "b", "b"]
        assert connectors_made[1].active_listeners == 0
        await wait_until_true(lambda: connectors_made[2].times == 1)
        assert (connectors_made[0].times, connectors_made[0].active_listeners) == (1, 1)
        assert instance.connectors["b"] is connectors_made[2]


async def test_an_envelope_sent_while_its_connector_is_reopened_waits_and_is_delivered(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"a": make_settings()}
    async with instance.run() as server:
        await wait_until_true(lambda: connectors_made[0].times == 1)
        connectors_made[0].close_gate = asyncio.Event()
        fitting = asyncio.create_task(server.supervisor.sync({"a": make_settings(birds=5)}))
        await wait_until_true(lambda: connectors_made[0].is_closing)
        sent = await server.send("still here?", sender="agent:ada", recipient="channel:a:7")
        await wait_until_true(lambda: server.outbox.waiting_count > 0)
        connectors_made[0].close_gate.set()
        await fitting
        await instance.clock.advance(5.0)
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED
        assert connectors_made[1].list_texts("7") == ["still here?"]


async def test_a_stopped_supervisor_keeps_connectors_open_for_pending_deliveries(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"a": make_settings()}
    async with instance.run() as server:
        await wait_until_true(lambda: connectors_made[0].times == 1)
        await server.supervisor.stop()
        await server.supervisor.sync({})
        sent = await server.send("the last word", sender="agent:ada", recipient="channel:a:7")
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED


async def test_the_supervisor_closes_connectors_that_are_disabled_or_removed_from_the_settings(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"a": make_settings(), "b": make_settings()}
    async with instance.run() as server:
        await wait_until_true(lambda: [each.times for each in connectors_made] == [1, 1])
        await server.supervisor.sync({"a": replace(make_settings(), enabled=False)})
        assert [each.active_listeners for each in connectors_made] == [0, 0]
        assert {each.name: each.status for each in server.supervisor.health()} == {"a": ConnectionStatus.OFF}
        assert not {"a", "b"} & set(instance.connectors)


async def test_changed_access_rules_do_not_reopen_the_connector(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"a": make_settings()}
    async with instance.run() as server:
        await wait_until_true(lambda: connectors_made[0].times == 1)
        await server.supervisor.sync({"a": replace(make_settings(), access=AccessSettings(allow_from=("4711",)))})
        assert len(connectors_made) == 1 and connectors_made[0].active_listeners == 1


async def test_a_connector_with_invalid_settings_reports_why_and_does_not_stop_the_others(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {
        "a": make_settings(),
        "b": make_settings(bords=1),
        "c": ConnectorSettings(platform="whatsapp"),
    }
    async with instance.run() as server:
        found = {each.name: each for each in server.supervisor.health()}
        assert found["a"].status is ConnectionStatus.LISTENING
        assert found["b"].status is ConnectionStatus.FAILED and "connectors.b.bords" in found["b"].because
        assert found["c"].status is ConnectionStatus.FAILED and "whatsapp" in found["c"].because
        sent = await server.send("hello?", sender="agent:ada", recipient="channel:b:7")
        # Its envelopes wait, as for a lost connection: the settings may be corrected in time.
        await wait_until_true(lambda: server.outbox.active_count == 0)
        assert (await server.get_envelope(sent.envelope)).status == "pending"
        instance.connector_settings = {"a": make_settings(), "b": make_settings(birds=1)}
        await server.supervisor.sync(instance.connector_settings)
        assert health(server, "b").status is ConnectionStatus.LISTENING


async def test_a_delivery_interrupted_by_a_crash_is_not_repeated_if_its_connector_cannot_be_made(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"a": make_settings()}
    async with instance.run() as server:
        await wait_until_true(lambda: connectors_made[0].times == 1)
        connectors_made[0].will_be_slow(60)
        sent = await server.send("pay Noor", sender="agent:ada", recipient="channel:a:7")
        await wait_until_true(lambda: bool(connectors_made[0].attempted_envelopes))
        server.crash()
    instance.connector_settings = {"a": make_settings(bords=1)}
    async with instance.run() as server:
        # It is unknown whether the platform would recognize a repeated message.
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.INTERRUPTED


@pytest.mark.parametrize("place", [TelegramConnector, EmailConnector, IrcConnector])
async def test_an_answer_is_delivered_after_a_platform_was_unreachable_for_minutes(
    instance: LocalInstance, connectors_made: list[ScriptedConnector], place: type[Any]
) -> None:
    instance.connector_settings = {"a": make_settings()}
    async with instance.run() as server:
        await wait_until_true(lambda: connectors_made[0].times == 1)
        connectors_made[0].attempts_max = get_attempts_max(place)
        connectors_made[0].will_fail(times=12)
        sent = await server.send("still here?", sender="agent:ada", recipient="channel:a:7")
        await advance_until_true(instance, 30.0, lambda: connectors_made[0].list_texts("7"))
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED


async def test_an_envelope_for_a_connector_with_invalid_settings_waits_until_they_are_fixed(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    instance.connector_settings = {"a": make_settings(bords=1)}
    async with instance.run() as server:
        sent = await server.send("still here?", sender="agent:ada", recipient="channel:a:7")
        for _ in range(10):
            await wait_until_true(lambda: server.outbox.waiting_count > 0)
            await instance.clock.advance(61.0)
        await server.supervisor.sync({"a": make_settings()})
        await advance_until_true(instance, 30.0, lambda: connectors_made[0].list_texts("7"))
        assert (await server.wait_for_outcome(sent.envelope)).outcome is Outcome.DELIVERED


async def test_a_plugin_connector_cannot_replace_a_built_in_connector(instance: LocalInstance, tmp_path: Path) -> None:
    async with instance.run() as server:
        own = FakeConnector(instance.clock, name="completion")
        brought = [FakeConnector(instance.clock, name=name) for name in ("completion", "pigeons")]
        ready: dict[str, Connector] = {each.name: each for each in brought}
        lines: dict[str, Connector] = {own.name: own}
        needs = SupervisorServices(
            store=server.store,
            clock=instance.clock,
            ids=instance.ids,
            random=Random(0),
            accept=server.connector_intake.accept,
            data_dir=tmp_path,
            environment={},
            get_attachment_path=lambda _: tmp_path,
            platforms=PlatformRegistry(),
            get_plugin_connectors=lambda: ready,
        )
        board = ConnectorSupervisor(needs, lines)
        await board.sync({})
        assert lines == {"completion": own, "pigeons": brought[1]}
        ready.clear()
        await board.sync({})
        assert lines == {"completion": own}


async def test_a_platform_that_raises_any_error_fails_its_connector_and_not_the_server(instance: LocalInstance) -> None:
    def make(settings: FakePlatformSettings, connector_context: ConnectorContext) -> Connector:
        raise KeyError("secret words")

    instance.platforms["pigeon"] = Platform(
        name="pigeon", title="x", settings=FakePlatformSettings, make_connector=make
    )
    instance.connector_settings = {"loft": make_settings()}
    async with instance.run() as server:
        assert (health(server).status, health(server).because) == (ConnectionStatus.FAILED, "KeyError")


async def test_a_connector_reads_its_secret_from_the_configured_variable_or_file(
    instance: LocalInstance, connectors_made: list[ScriptedConnector]
) -> None:
    file = instance.root / "secrets" / "loft-token"
    file.parent.mkdir()
    file.write_text("coo\n")
    file.chmod(0o600)
    instance.environment = {"LOFT": "grr"}
    instance.connector_settings = {
        "env": make_settings(token_env="LOFT"),
        "file": make_settings(token_file="secrets/loft-token"),
        "none": make_settings(),
        "both": make_settings(token_env="LOFT", token_file="secrets/loft-token"),
    }
    async with instance.run() as server:
        board = server.supervisor
        assert (await board.check("env")).account == "@grr"
        assert (await board.check("file")).account == "@coo"
        for connector_name in ("none", "both"):
            found = await board.check(connector_name)
            assert not found.ok and "token" in found.sentence and found.because
        tried = await board.check_settings("new", make_settings(token_env="LOFT"))
        assert tried.ok and "new" not in {each.name for each in board.health()}


# --- poison messages ---


class FailingIntake:
    """An intake that raises an error for some messages."""

    def __init__(self, server: LocalServer) -> None:
        self.accept = server.connector_intake.accept
        self.failing = {"bad"}
        self.error: Exception = ValueError("a secret word")
        self.tries = 0

    async def __call__(self, connector_name: str, incoming: InboundMessage) -> Receipt | None:
        if incoming.text in self.failing:
            self.tries += 1
            raise self.error
        return await self.accept(connector_name, incoming)


async def install_failing_intake(server: LocalServer) -> FailingIntake:
    found = FailingIntake(server)
    supervisor: Any = server.supervisor
    services = supervisor._services
    supervisor._services = type(services)(
        **{name: getattr(services, name) for name in services.__struct_fields__} | {"accept": found}
    )
    return found


async def test_a_poison_message_is_stored_after_its_last_attempt_and_the_next_message_is_accepted(
    instance: LocalInstance,
) -> None:
    quiet = instance.connectors["quiet"] = FakeConnector(instance.clock)
    async with instance.run() as server:
        failing = await install_failing_intake(server)
        bad = quiet.offer_text("bad", channel="7", message_id="13")
        good = quiet.offer_text("good", channel="7", message_id="14")
        await advance_until_true(instance, BACKOFF_MAX_S, lambda: bad.confirmed.done() and good.confirmed.done())
        assert bad.confirmed.result() is None  # confirmed, or it would be delivered forever
        assert good.confirmed.result() is not None
        assert failing.tries == MESSAGE_ATTEMPTS_MAX
        [kept] = await server.store.read(poison_messages.list_messages)
        assert (kept.connector, kept.channel, kept.message_id, kept.attempts) == (
            "quiet",
            "7",
            "13",
            MESSAGE_ATTEMPTS_MAX,
        )
        assert kept.because == "ValueError"  # the text of such an error may contain anything

        failing.failing.clear()
        assert await server.supervisor.retry_poison_message(kept.id) is not None
        assert await server.store.read(poison_messages.list_messages) == []
        [done] = await server.store.read(lambda conn: poison_messages.list_messages(conn, include_closed=True))
        assert (done.state, done.body) == ("done", "")  # the text is now in an envelope, and only there


async def test_a_message_that_failed_with_a_store_error_never_becomes_a_poison_message(instance: LocalInstance) -> None:
    quiet = instance.connectors["quiet"] = FakeConnector(instance.clock)
    async with instance.run() as server:
        failing = await install_failing_intake(server)
        failing.error = StoreError("the disk is full")
        offered = quiet.offer_text("bad")
        for times in range(1, MESSAGE_ATTEMPTS_MAX * 3):
            await wait_until_true(lambda times=times: failing.tries >= times)
            await instance.clock.advance(BACKOFF_MAX_S)
        assert not offered.confirmed.done()
        assert await server.store.read(poison_messages.list_messages) == []
        failing.failing.clear()
        await instance.clock.advance(BACKOFF_MAX_S)
        async with asyncio.timeout(120):
            assert await offered.confirmed is not None


def test_a_stored_poison_message_is_read_back_without_its_files() -> None:
    async def fetch() -> AsyncIterator[bytes]:
        yield b""

    inbound = InboundMessage(
        channel="7",
        message_id="13",
        text="look",
        sender=PlatformUser(id="4711", name="Maria"),
        peer="4711",
        mentioned=True,
        files=(RemoteFile(name="a.png", media_type="image/png", size_bytes=1, fetch=lambda: fetch()),),
    )
    again = from_json(to_json(inbound))
    assert again.text == "look\n[not downloaded: 1 file]"
    assert (again.sender, again.peer, again.mentioned, again.files) == (inbound.sender, "4711", True, ())


def test_a_poison_message_that_an_earlier_version_stored_is_read_back() -> None:
    body = """{"room": "7", "message_id": "13", "text": "look", "speaker": {"id": "4711", "vouched": false},
        "said_at": "2026-01-05T12:00:00Z", "context": {"speaker": "4711"}}"""
    stored = from_json(body)
    assert (stored.channel, stored.sender) == ("7", PlatformUser(id="4711", is_verified=False))
    assert (stored.sent_at, stored.context.sender_id) == (datetime(2026, 1, 5, 12, tzinfo=UTC), "4711")
    assert from_json(to_json(stored)) == stored


async def test_the_store_keeps_only_the_newest_poison_messages(
    instance: LocalInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poison_messages, "WAITING_MAX", 3)
    monkeypatch.setattr(poison_messages, "_beyond", poison_messages._beyond.offset(3))  # pyright: ignore[reportPrivateUsage]
    async with instance.run() as server:
        for number in range(10):
            await server.store.write(
                lambda conn, n=number: poison_messages.upsert(
                    conn,
                    id_=f"{n:032x}",
                    connector="quiet",
                    channel="7",
                    message_id=str(n),
                    body="{}",
                    because="no",
                    tries=3,
                    at_ms=n,
                ),
                point="test",
            )
        waiting = await server.store.read(poison_messages.list_messages)
        assert [each.message_id for each in waiting] == ["9", "8", "7"]
