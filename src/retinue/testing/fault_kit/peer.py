"""The protocol `Peer`: a platform under the control of a test, which the author of a connector provides."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from retinue.connectors.base import Connector, ConnectorContext

HostPort = tuple[str, int]
"""A host and a port on this machine."""


class PeerFault(StrEnum):
    """A fault of the platform. It starts with `Peer.start_fault` and ends with `Peer.stop_fault`."""

    REFUSES = "refuses"  # fails the next delivery with a temporary error: a 5xx
    FORBIDS = "forbids"  # refuses deliveries to `channel` for good: it is gone, or the connector may not write there
    THROTTLES = "throttles"  # refuses the next delivery with a rate limit and a retry time: a 429
    REVOKED = "revoked"  # rejects the connector's credential
    REPEATS = "repeats"  # sends every inbound message twice
    SHUFFLES = "shuffles"  # sends a later inbound message before an earlier one


class Peer(Protocol):
    """One platform with its connector, under the control of a test.

    The fault test suite creates a new peer for every case, with a temporary folder. Derive your
    peer from `BasePeer`, and implement the other methods. Use the real server of the platform if
    possible. A fake must behave like it.
    """

    @property
    def platform(self) -> str:
        """The name of the platform, as its connector registers it."""
        ...

    @property
    def factory(self) -> str:
        """`MODULE:NAME` of a callable without arguments that creates this peer, or a name in the registry.

        For a test case with `kill -9`, a separate process uses this name to create its own peer.
        """
        ...

    @property
    def channel(self) -> str: ...

    @property
    def other_channel(self) -> str: ...

    @property
    def exemptions(self) -> Mapping[str, str]:
        """Test cases that do not apply to this platform, each with the reason as a sentence for the matrix."""
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """The values that the connector reads as secrets, by the name of the setting."""
        ...

    async def start(self, folder: Path) -> Mapping[str, HostPort]:
        """Start the platform, and return the addresses at which it listens, by the name of each connection.

        The fault test suite puts a proxy in front of each address. Return an empty mapping if there
        is no network connection. In that case, only faults of the platform and of the server are
        tested.
        """
        ...

    async def stop(self) -> None: ...

    async def restart(self) -> None:
        """Stop the platform and start it again, at the same address and with its stored data."""
        ...

    def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
        """Create a connector that reaches the platform at these addresses.

        In a process that is going to be killed, this is called without `start`.
        """
        ...

    @property
    def has_inbound(self) -> bool:
        """Whether this connector receives messages. If it does not, the test cases test only deliveries."""
        ...

    @property
    def keeps_messages(self) -> bool:
        """Whether the platform keeps messages for a connector that is offline."""
        ...

    async def wait_until_ready(self, connector: Connector | None) -> None:
        """Return once the connector would receive a message that is sent now.

        `connector` is None if it runs in another process. Return at once if the platform keeps
        messages.
        """
        ...

    async def send_as_person(self, channel: str, text: str) -> None:
        """Send a message as a person, bypassing the proxy. Return once the platform has the message."""
        ...

    async def list_texts(self, channel: str) -> list[str]:
        """Return the texts from the connector that a person sees in a channel, oldest first."""
        ...

    async def start_fault(self, fault: PeerFault) -> None: ...

    async def stop_fault(self, fault: PeerFault) -> None: ...


class BasePeer:
    """A base class with the defaults that suit most peers. Derive from it: `class MyPeer(BasePeer)`."""

    secrets: Mapping[str, str] = {}
    exemptions: Mapping[str, str] = {}

    has_inbound = True
    keeps_messages = True

    async def wait_until_ready(self, connector: Connector | None) -> None:
        """Return at once, because the platform keeps messages for a connector that is offline."""

    async def start_fault(self, fault: PeerFault) -> None:
        raise NotImplementedError(f"this peer cannot simulate {fault}: list it in `exemptions`, or implement it")

    async def stop_fault(self, fault: PeerFault) -> None:
        """Do nothing, which is right for faults that end by themselves."""
