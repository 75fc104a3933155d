"""Test that the fault kit finds defects, with connectors that have one defect each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from retinue.connectors.base import (
    Accept,
    Connector,
    ConnectorContext,
    Delivery,
    DeliveryFailed,
    DeliveryPart,
    InboundMessage,
)
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.irc.irc_client import IrcClient, IrcConnectionBroke
from retinue.connectors.irc.irc_message import encode_message
from retinue.domain.envelope import Receipt
from retinue.domain.errors import StoreError
from retinue.domain.structs import replace
from retinue.testing.fault_kit import ContractBroken
from retinue.testing.fault_kit.cases import CASES
from retinue.testing.fault_kit.fake_peer import FakePeer, NonDedupingFakePeer
from retinue.testing.fault_kit.irc_peer import IrcPeer
from retinue.testing.fault_kit.matrix import check_case
from retinue.testing.fault_kit.peer import HostPort
from retinue.testing.virtual_time import simulate


class ConnectorWrapper:
    """Wraps a correct connector. Each subclass adds one defect."""

    def __init__(self, inner: Connector) -> None:
        self.inner = inner
        self.name = inner.name
        self.repeats_safely = inner.repeats_safely

    async def listen(self, accept: Accept) -> None:
        await self.inner.listen(accept)

    async def deliver(self, part: DeliveryPart) -> Delivery:
        return await self.inner.deliver(part)


class ConfirmsBeforeAccept(ConnectorWrapper):
    """Confirms a message to the platform before the server has accepted it."""

    async def listen(self, accept: Accept) -> None:
        held_messages: asyncio.Queue[InboundMessage] = asyncio.Queue()

        async def confirm(incoming: InboundMessage) -> Receipt | None:
            held_messages.put_nowait(incoming)
            return None

        async def accept_queued() -> None:
            while True:
                await accept(await held_messages.get())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(accept_queued())
            tasks.create_task(self.inner.listen(confirm))


class ChangesMessageIds(ConnectorWrapper):
    """Gives a message another id each time it is delivered."""

    numbers = itertools.count(1)

    async def listen(self, accept: Accept) -> None:
        await self.inner.listen(lambda heard: accept(replace(heard, message_id=f"n{next(self.numbers)}")))


class MixesChannels(ConnectorWrapper):
    async def listen(self, accept: Accept) -> None:
        await self.inner.listen(lambda heard: accept(replace(heard, channel=FakePeer.other_channel)))


class SendsToAnotherChannel(ConnectorWrapper):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        elsewhere = replace(part.envelope.recipient, rest=FakePeer.other_channel)
        return await self.inner.deliver(replace(part, envelope=replace(part.envelope, recipient=elsewhere)))


class SendsTwice(ConnectorWrapper):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        await self.inner.deliver(part)
        return await self.inner.deliver(part)


class SendsNothing(ConnectorWrapper):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        return Delivery("surely")


class ReportsRefusedAfterSending(ConnectorWrapper):
    """Reports that a message surely did not arrive, although it did."""

    async def deliver(self, part: DeliveryPart) -> Delivery:
        await self.inner.deliver(part)
        raise DeliveryFailed("who knows")


class HidesPermanentFailures(ConnectorWrapper):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        try:
            return await self.inner.deliver(part)
        except DeliveryFailed as failed:
            raise DeliveryFailed(failed.sentence) from failed


class DropsMessagesOnStoreError(ConnectorWrapper):
    """Drops a message if the server could not store it."""

    async def listen(self, accept: Accept) -> None:
        async def accept_or_drop(incoming: InboundMessage) -> Receipt | None:
            try:
                return await accept(incoming)
            except StoreError:
                return None

        await self.inner.listen(accept_or_drop)


def make_faulty_peer(peer_type: type[FakePeer], add_fault: Callable[[Connector], Connector]) -> FakePeer:
    class FaultyPeer(peer_type):
        def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
            return add_fault(super().create_connector(context, addresses))

    return FaultyPeer()


@pytest.mark.parametrize(
    ("peer_type", "add_fault", "case", "found"),
    [
        (FakePeer, ConfirmsBeforeAccept, "crash-before-commit", "lost"),
        (FakePeer, DropsMessagesOnStoreError, "store-fails", "lost"),
        (FakePeer, ChangesMessageIds, "store-fails-late", "received twice"),
        (FakePeer, ChangesMessageIds, "message-repeated", "received twice"),
        (FakePeer, MixesChannels, "no-fault", "never written there"),
        (FakePeer, SendsToAnotherChannel, "no-fault", "never sent there"),
        (NonDedupingFakePeer, SendsTwice, "no-fault", "duplicate"),
        (FakePeer, SendsNothing, "no-fault", "but missing"),
        (NonDedupingFakePeer, ReportsRefusedAfterSending, "no-fault", "gave-up|duplicate"),
        (FakePeer, HidesPermanentFailures, "channel-gone", "refused permanently, and ended as delivered"),
        (FakePeer, HidesPermanentFailures, "throttled", "not told for how long"),
    ],
)
def test_the_fault_kit_finds_each_defect_of_a_faulty_connector(
    peer_type: type[FakePeer], add_fault: Callable[[Connector], Connector], case: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractBroken, match=found):  # in virtual time, because some cases wait for a timeout
        simulate(1, lambda: check_case(make_faulty_peer(peer_type, add_fault), CASES[case], tmp_path))


class ReportsUnconfirmedSends(IrcConnector):
    """Reports a message as delivered as soon as it is written to the connection."""

    async def _send(self, client: IrcClient, target: str, lines: tuple[str, ...]) -> Delivery:
        for line in lines:
            client.transport.write(encode_message("PRIVMSG", target, trailing=line))
        return Delivery("written")


class ReportsBrokenConnectionAsRefusal(IrcConnector):
    """Reports a broken connection as a refusal."""

    async def _send(self, client: IrcClient, target: str, lines: tuple[str, ...]) -> Delivery:
        try:
            return await super()._send(client, target, lines)
        except IrcConnectionBroke:
            raise DeliveryFailed("the line broke") from None


def make_faulty_irc_peer(faulty_connector: type[IrcConnector]) -> IrcPeer:
    class FaultyIrcPeer(IrcPeer):
        def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
            good = super().create_connector(context, addresses)
            assert isinstance(good, IrcConnector)
            return faulty_connector(good._settings, context)

    return FaultyIrcPeer()


@pytest.mark.parametrize(
    ("faulty_connector", "case", "found"),
    [
        (ReportsUnconfirmedSends, "cut-before", "reported as delivered, but missing"),
        (ReportsBrokenConnectionAsRefusal, "cut-after", "would be sent twice|duplicate"),
    ],
)
async def test_the_fault_kit_finds_defects_of_a_faulty_irc_connector(
    faulty_connector: type[IrcConnector], case: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractBroken, match=found):
        await check_case(make_faulty_irc_peer(faulty_connector), CASES[case], tmp_path)
