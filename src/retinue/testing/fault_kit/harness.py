"""Runs one case of the fault test suite: a platform, proxies that break connections, a test server, and checks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from retinue.app.clock_and_ids import new_random
from retinue.connectors.base import Connector, ConnectorContext, InboundMessage
from retinue.testing.fault_kit.breaking_proxy import BreakingProxy, BreakPoint
from retinue.testing.fault_kit.kit_server import FastClock, FileConnectorState, KitServer, SendOutcome, build_part
from retinue.testing.fault_kit.peer import HostPort, Peer
from retinue.testing.loop_time import skip_loop_time
from retinue.testing.wait_conditions import POLL_S, WAIT_LIMIT_S, wait_until

CONNECTOR_NAME = "kit"
STATE_FILE = "connector_state.json"
SKIP_S = 61.0  # longer than a peer lets its connector wait for an answer
SILENCE_S_MAX = 24 * 3600.0


class ContractBroken(AssertionError):
    """A connector broke its contract. The message says how."""


@dataclass(frozen=True, slots=True)
class KitDelivery:
    """One delivery that a test case made, and its outcome."""

    channel: str
    text: str
    outcome: SendOutcome


@dataclass(slots=True, eq=False)
class KitServerLife:
    """One lifetime of the test server, from its start until it is stopped or killed, or crashes."""

    connector: Connector
    listening: asyncio.Task[None]


@dataclass(slots=True, eq=False)
class FaultHarness:
    """The objects that a test case uses: the peer, the proxies, the test server, and the messages that were sent."""

    bench: Peer
    folder: Path
    proxies: dict[str, BreakingProxy]
    server: KitServer = field(default_factory=KitServer)
    inbound: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    deliveries: list[KitDelivery] = field(default_factory=list[KitDelivery])
    is_ordered: bool = True  # whether the platform delivers messages in the order in which they were sent
    life: KitServerLife | None = None
    _text_count: int = 0
    _number: int = 0

    # --- server ---

    @property
    def connector(self) -> Connector:
        assert self.life is not None, "the server is stopped"
        return self.life.connector

    @property
    def addresses(self) -> dict[str, HostPort]:
        return {name: proxy.address for name, proxy in self.proxies.items()}

    async def start_server(self) -> None:
        surroundings = replace(build_context(self.folder, self.bench), on_connected=self.server.record_connected)
        connector = self.bench.create_connector(surroundings, self.addresses)
        self.life = KitServerLife(connector, asyncio.create_task(self.server.listen_forever(connector)))
        await self.wait_until_ready()

    async def wait_until_ready(self, *, connections_lost: int = 0) -> None:
        """Wait until the connector would receive a message that is sent now.

        If the platform keeps no messages, first wait until `connections_lost` connections have
        been lost. A message sent on a lost connection would never arrive.
        """
        if not self.bench.keeps_messages:
            await self.wait_until_true(
                lambda: self.server.connections_lost >= connections_lost,
                "the connector did not notice the broken connection",
            )
        connector = self.life.connector if self.life is not None else None
        await self.wait_for(lambda: self.bench.wait_until_ready(connector), "the connector did not connect")

    async def stop_server(self) -> None:
        """Stop the test server in an orderly way, as the real server does when its settings change."""
        assert self.life is not None
        self.life.listening.cancel()
        done, _ = await asyncio.wait([self.life.listening], timeout=WAIT_LIMIT_S)
        if not done:
            raise ContractBroken("listening did not end when it was cancelled")
        self.life = None

    async def break_connection(self) -> None:
        """Break the connections, and wait until the connector is ready again."""
        before = self.server.connections_lost
        self.break_connections()
        await self.wait_until_ready(connections_lost=before + 1)

    async def restart_server(self) -> None:
        await self.crash_server()
        await self.start_server()

    async def restart_platform(self) -> None:
        before = self.server.connections_lost
        await self.bench.restart()
        await self.wait_until_ready(connections_lost=before + 1)

    async def crash_server(self) -> None:
        """Stop the test server abruptly, so that the platform sees no orderly close of the connection."""
        self.break_connections()
        await self.stop_server()
        self.server.killed.clear()

    # --- network ---

    def break_connections(self) -> None:
        for proxy in self.proxies.values():
            proxy.break_connections()

    def freeze_connections(self) -> None:
        for proxy in self.proxies.values():
            proxy.freeze_connections()

    async def skip_time_limits(self, sending: asyncio.Task[SendOutcome]) -> None:
        """Let the connector's time limits pass while its connection is frozen.

        Returns once the delivery has ended and no frozen connection is left.
        """
        skipped_s = 0.0
        while (frozen := any(proxy.is_frozen for proxy in self.proxies.values())) or not sending.done():
            if skipped_s > SILENCE_S_MAX:
                raise ContractBroken("the connector keeps a connection on which no data arrives")
            if frozen:
                skip_loop_time(SKIP_S)
                skipped_s += SKIP_S
            await asyncio.sleep(POLL_S)  # sleep: the connector reacts meanwhile; see the loop's condition

    def slow_down(self) -> None:
        for proxy in self.proxies.values():
            proxy.slow_down()

    def refuse_connections(self) -> None:
        for proxy in self.proxies.values():
            proxy.refuse_connections()
            proxy.break_connections()

    async def accept_connections(self) -> None:
        for proxy in self.proxies.values():
            await proxy.open()

    def break_at(self, text: str, where: BreakPoint) -> None:
        for proxy in self.proxies.values():
            proxy.break_at(text, where)

    # --- messages and deliveries ---

    def unique_text(self, prefix: str) -> str:
        """Return a unique text, which a check can find again, even in the bytes of a connection."""
        self._text_count += 1
        return f"{prefix} kit{self._text_count:03d}mark"

    async def send_inbound(self, *, channel: str | None = None, text: str | None = None) -> str:
        where, words = channel or self.bench.channel, text or self.unique_text("question")
        if not self.bench.has_inbound:
            return words
        self.inbound.append((where, words))
        await self.bench.send_as_person(where, words)
        return words

    async def deliver_during(self, cause_fault: Callable[[], Awaitable[None]]) -> None:
        """Deliver a part while a fault happens.

        If the test server is killed during the delivery, the result is unknown. The next test
        server repeats the delivery only if the platform recognizes repeated parts.
        """
        room, text, dying = self.bench.channel, self.unique_text("answer"), self.life
        part = build_part(CONNECTOR_NAME, room, text, number=self.next_number())
        sending = asyncio.create_task(self.server.send(self.connector, part))
        await asyncio.sleep(0)  # let the delivery start
        await cause_fault()
        if self.life is dying:
            outcome = await sending
        else:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            again = self.connector.repeats_safely
            outcome = await self.server.send(self.connector, part) if again else SendOutcome.UNKNOWN
        self.deliveries.append(KitDelivery(room, text, outcome))

    async def deliver(self, text: str | None = None, *, channel: str | None = None) -> SendOutcome:
        where, words = channel or self.bench.channel, text or self.unique_text("answer")
        outcome = await self.server.send(
            self.connector, build_part(CONNECTOR_NAME, where, words, number=self.next_number())
        )
        self.deliveries.append(KitDelivery(where, words, outcome))
        return outcome

    def next_number(self) -> int:
        self._number += 1
        return self._number

    async def wait_for(self, done: Callable[[], Awaitable[object]], failure: str) -> None:
        """Wait for a task that ends without further action. Raises `ContractBroken` after the time limit."""
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                await done()
        except (TimeoutError, AssertionError):
            raise ContractBroken(failure) from None

    async def wait_until_true(self, holds: Callable[[], bool | Awaitable[bool]], failure: str) -> None:
        await self.wait_for(lambda: wait_until(holds, failure), failure)

    async def wait_until_delivered(self, text: str, *, channel: str | None = None) -> None:
        async def stands() -> bool:
            return text in await self.bench.list_texts(channel or self.bench.channel)

        await self.wait_until_true(stands, f"a sent message did not arrive: {text}")

    async def wait_until_all_received(self) -> None:
        wanted = {text for _, text in self.inbound}
        await self.wait_until_true(
            lambda: wanted <= {each.text for each in self.server.committed},
            f"lost: {sorted(wanted - {each.text for each in self.server.committed})}",
        )

    # --- final checks ---

    async def check_contract(self) -> None:
        """Check all messages that were sent and received in this case.

        No message may be lost or duplicated, and all must be in order and in the right channel.
        """
        await self._check_all_received()
        channels = (self.bench.channel, self.bench.other_channel)
        standing = {channel: await self.bench.list_texts(channel) for channel in channels}
        for channel in channels:
            self._check_channel(channel, standing[channel])
        for channel in channels:
            self._check_inbound(channel)
            self._check_deliveries(channel, standing[channel])

    async def _check_all_received(self) -> None:
        try:
            await self.wait_until_all_received()
        except ContractBroken:
            heard = {each.text for each in self.server.committed}
            raise ContractBroken(
                f"inbound messages lost: {[text for _, text in self.inbound if text not in heard]}"
            ) from None

    def _check_channel(self, channel: str, texts: list[str]) -> None:
        written = {text for where, text in self.inbound if where == channel}
        if strange := [
            each.text for each in self.server.committed if each.channel == channel and each.text not in written
        ]:
            raise ContractBroken(f"received in {channel}, but never written there: {strange}")
        sent = {each.text for each in self.deliveries if each.channel == channel}
        if strange := [text for text in texts if text not in sent]:
            raise ContractBroken(f"delivered to {channel}, but never sent there: {strange}")

    def _check_inbound(self, channel: str) -> None:
        sent = [text for where, text in self.inbound if where == channel]
        heard = [each for each in self.server.committed if each.channel == channel]
        if doubled := [text for text, times in Counter(each.text for each in heard).items() if times > 1]:
            raise ContractBroken(f"received twice: {doubled}")
        if self.is_ordered and [each.text for each in heard] != sent:
            raise ContractBroken(
                f"not received in the order in which they were written in {channel}: {[each.text for each in heard]}"
            )
        if nameless := [each.text for each in heard if _has_no_id(each)]:
            raise ContractBroken(f"without a message id or a sender id: {nameless}")

    def _check_deliveries(self, channel: str, texts: list[str]) -> None:
        sent = [each for each in self.deliveries if each.channel == channel]
        ours = {each.text for each in sent}
        for each in sent:
            self._check_delivery(each, texts.count(each.text))
        kept = [text for text in texts if text in ours]
        if kept != [each.text for each in sent if each.text in kept]:
            raise ContractBroken(f"not delivered in the order in which they were sent to {channel}: {kept}")

    def _check_delivery(self, sent: KitDelivery, count: int) -> None:
        if count > 1:
            raise ContractBroken(f"duplicate: {sent.text} was delivered {count} times")
        if sent.outcome is SendOutcome.DELIVERED and not count:
            raise ContractBroken(f"reported as delivered, but missing: {sent.text}")
        if sent.outcome is SendOutcome.REFUSED and count:
            raise ContractBroken(f"reported as refused, but delivered: {sent.text}")
        if sent.outcome is SendOutcome.GAVE_UP:
            raise ContractBroken(f"it has no outcome: {sent.text}")


def _has_no_id(message: InboundMessage) -> bool:
    return not message.message_id or not message.channel


def build_context(folder: Path, peer: Peer) -> ConnectorContext:
    def secret(key: str) -> str:
        return peer.secrets[key]

    return ConnectorContext(
        name=CONNECTOR_NAME,
        clock=FastClock(),
        random=new_random(),
        state=FileConnectorState(folder / STATE_FILE),
        get_attachment_path=lambda attachment: folder / attachment.hash,
        read_secret=secret,
    )


@asynccontextmanager
async def open_harness(peer: Peer, folder: Path) -> AsyncGenerator[FaultHarness]:
    """Start the peer, the proxies and the test server, and stop them at the end of the block."""
    lines = {name: BreakingProxy(far) for name, far in (await peer.start(folder)).items()}
    stage = FaultHarness(peer, folder, lines)
    try:
        for proxy in lines.values():
            await proxy.open()
        await stage.start_server()
        yield stage
    finally:
        if stage.life is not None:
            stage.life.listening.cancel()
            await asyncio.gather(stage.life.listening, return_exceptions=True)
        for proxy in lines.values():
            await proxy.close()
        await peer.stop()
