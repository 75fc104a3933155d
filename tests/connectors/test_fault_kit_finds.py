"""The kit itself: connectors with one wrong in each, and what it says of them."""

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


class Around:
    """A connector around a good one, which each of those below spoils in one way."""

    def __init__(self, inside: Connector) -> None:
        self.inside = inside
        self.name = inside.name
        self.repeats_safely = inside.repeats_safely

    async def listen(self, accept: Accept) -> None:
        await self.inside.listen(accept)

    async def deliver(self, part: DeliveryPart) -> Delivery:
        return await self.inside.deliver(part)


class ConfirmsFirst(Around):
    """Has the place forget what it heard before the house has it."""

    async def listen(self, accept: Accept) -> None:
        heard: asyncio.Queue[InboundMessage] = asyncio.Queue()

        async def confirm(incoming: InboundMessage) -> Receipt | None:
            heard.put_nowait(incoming)
            return None

        async def hand_in() -> None:
            while True:
                await accept(await heard.get())

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hand_in())
            tasks.create_task(self.inside.listen(confirm))


class NamesAnew(Around):
    """Gives what it hears another name each time it is offered."""

    numbers = itertools.count(1)

    async def listen(self, accept: Accept) -> None:
        await self.inside.listen(lambda heard: accept(replace(heard, message_id=f"n{next(self.numbers)}")))


class MixesRooms(Around):
    async def listen(self, accept: Accept) -> None:
        await self.inside.listen(lambda heard: accept(replace(heard, room=FakePeer.other_channel)))


class SendsElsewhere(Around):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        elsewhere = replace(part.envelope.recipient, rest=FakePeer.other_channel)
        return await self.inside.deliver(replace(part, envelope=replace(part.envelope, recipient=elsewhere)))


class SendsTwice(Around):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        await self.inside.deliver(part)
        return await self.inside.deliver(part)


class SendsNothing(Around):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        return Delivery("surely")


class CallsItRefused(Around):
    """Says that it surely did not arrive, when it did."""

    async def deliver(self, part: DeliveryPart) -> Delivery:
        await self.inside.deliver(part)
        raise DeliveryFailed("who knows")


class NeverForGood(Around):
    async def deliver(self, part: DeliveryPart) -> Delivery:
        try:
            return await self.inside.deliver(part)
        except DeliveryFailed as failed:
            raise DeliveryFailed(failed.sentence) from failed


class DiesOfAFullDisk(Around):
    """Drops what it holds when the house could not take it."""

    async def listen(self, accept: Accept) -> None:
        async def once(incoming: InboundMessage) -> Receipt | None:
            try:
                return await accept(incoming)
            except StoreError:
                return None

        await self.inside.listen(once)


def spoiled(bench: type[FakePeer], spoil: Callable[[Connector], Connector]) -> FakePeer:
    class Spoiled(bench):
        def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
            return spoil(super().create_connector(context, addresses))

    return Spoiled()


@pytest.mark.parametrize(
    ("bench", "spoil", "case", "found"),
    [
        (FakePeer, ConfirmsFirst, "crash-before-commit", "lost"),
        (FakePeer, DiesOfAFullDisk, "store-fails", "lost"),
        (FakePeer, NamesAnew, "store-fails-late", "received twice"),
        (FakePeer, NamesAnew, "told-twice", "received twice"),
        (FakePeer, MixesRooms, "calm", "never written there"),
        (FakePeer, SendsElsewhere, "calm", "never sent there"),
        (NonDedupingFakePeer, SendsTwice, "calm", "duplicate"),
        (FakePeer, SendsNothing, "calm", "and missing"),
        (NonDedupingFakePeer, CallsItRefused, "calm", "gave-up|duplicate"),
        (FakePeer, NeverForGood, "room-gone", "refused permanently, and ended as delivered"),
        (FakePeer, NeverForGood, "throttled", "not told for how long"),
    ],
)
def test_a_wrong_in_a_connector_is_found(
    bench: type[FakePeer], spoil: Callable[[Connector], Connector], case: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractBroken, match=found):  # in virtual time, because something is waited for in vain
        simulate(1, lambda: check_case(spoiled(bench, spoil), CASES[case], tmp_path))


class Unproven(IrcConnector):
    """Takes what it has written for what was read."""

    async def _send(self, client: IrcClient, target: str, lines: tuple[str, ...]) -> Delivery:
        for line in lines:
            client.transport.write(encode_message("PRIVMSG", target, trailing=line))
        return Delivery("written")


class Presumptuous(IrcConnector):
    """Takes a broken line for a refusal."""

    async def _send(self, client: IrcClient, target: str, lines: tuple[str, ...]) -> Delivery:
        try:
            return await super()._send(client, target, lines)
        except IrcConnectionBroke:
            raise DeliveryFailed("the line broke") from None


def irc_with(wrong: type[IrcConnector]) -> IrcPeer:
    class Wrong(IrcPeer):
        def create_connector(self, context: ConnectorContext, addresses: Mapping[str, HostPort]) -> Connector:
            good = super().create_connector(context, addresses)
            assert isinstance(good, IrcConnector)
            return wrong(good._settings, context)

    return Wrong()


@pytest.mark.parametrize(
    ("wrong", "case", "found"),
    [
        (Unproven, "cut-before", "reported as delivered, and missing"),
        (Presumptuous, "cut-after", "would be sent twice|duplicate"),
    ],
)
async def test_a_wrong_on_a_real_line_is_found(
    wrong: type[IrcConnector], case: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractBroken, match=found):
        await check_case(irc_with(wrong), CASES[case], tmp_path)
