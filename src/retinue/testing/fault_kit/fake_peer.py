"""The peer for `FakeConnector`, which simulates the faults itself because it has no network connection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retinue.connectors.base import Accept, Connector, ConnectorContext, Delivery, DeliveryPart
from retinue.testing.fake_connector import FakeConnector
from retinue.testing.fault_kit.kit_server import FastClock
from retinue.testing.fault_kit.peer import BasePeer, HostPort, PeerFault

_NO_CONNECTION = "it is in the memory of the server, so there is no connection that could break"
_NO_PROCESS = "it is in the memory of the server, and would be killed with it; the crash tests cover that"
RETRY_AFTER_S = 3.0


class _FakePeerConnector:
    """The connector of one test server. Its platform keeps its state when the server ends."""

    def __init__(self, platform: FakeConnector, name: str) -> None:
        self.name = name
        self._platform = platform

    @property
    def repeats_safely(self) -> bool:
        return self._platform.repeats_safely

    async def listen(self, accept: Accept) -> None:
        await self._platform.listen(accept)

    async def deliver(self, part: DeliveryPart) -> Delivery:
        return await self._platform.deliver(part)


class FakePeer(BasePeer):
    """A platform in memory that recognizes a repeated part, and accepts it once."""

    platform = "quiet"
    factory = "quiet"
    channel = "42"
    other_channel = "43"
    repeats_safely = True
    exemptions: Mapping[str, str] = {
        **dict.fromkeys(
            ("connection-cut", "message-while-offline", "no-connection", "slow-connection", "half-open"), _NO_CONNECTION
        ),
        **dict.fromkeys(
            ("cut-half-way", "cut-before", "cut-after", "platform-restarts", "faults-combined"), _NO_CONNECTION
        ),
        **dict.fromkeys(("killed-sending", "killed-before-commit", "killed-after-commit"), _NO_PROCESS),
        "revoked": "it needs no credential, so none can be revoked",
        "messages-reordered": "inbound messages wait in one queue, which has no other order",
    }

    def __init__(self) -> None:
        self.fake_platform = FakeConnector(FastClock(), repeats_safely=self.repeats_safely)
        self._sends_twice = False

    async def start(self, folder: Path) -> Mapping[str, HostPort]:
        return {}

    async def stop(self) -> None: ...

    async def restart(self) -> None: ...

    def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
        return _FakePeerConnector(self.fake_platform, context.name)

    async def send_as_person(self, channel: str, text: str) -> None:
        offered = self.fake_platform.offer_text(text, channel=channel)
        if self._sends_twice:
            self.fake_platform.offer_text(text, channel=channel, message_id=offered.message.message_id)

    async def list_texts(self, channel: str) -> list[str]:
        return self.fake_platform.list_texts(channel)

    async def start_fault(self, fault: PeerFault) -> None:
        match fault:
            case PeerFault.REFUSES:
                self.fake_platform.will_fail()
            case PeerFault.FORBIDS:
                self.fake_platform.will_fail(permanent=True)
            case PeerFault.THROTTLES:
                self.fake_platform.will_throttle(RETRY_AFTER_S)
            case PeerFault.REPEATS:
                self._sends_twice = True
            case _:
                await super().start_fault(fault)

    async def stop_fault(self, fault: PeerFault) -> None:
        self._sends_twice = False


class NonDedupingFakePeer(FakePeer):
    """A platform in memory that does not recognize repeated parts, so that they appear twice."""

    factory = "quiet-forgetful"
    repeats_safely = False
