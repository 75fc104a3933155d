"""The kit itself: connectors with one wrong in each, and what it says of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from retinue.connectors.base import Accept, Connector, Delivery, DeliveryFailed, Incoming, Parcel, Surroundings
from retinue.connectors.irc.connector import IrcConnector
from retinue.connectors.irc.irc_client import LineBroke, Presence
from retinue.connectors.irc.irc_message import encoded
from retinue.domain.envelope import Receipt
from retinue.domain.errors import StoreError
from retinue.domain.structs import replace
from retinue.testing.fault_kit import Broken
from retinue.testing.fault_kit.cases import CASES
from retinue.testing.fault_kit.fake_peer import ForgetfulBench, QuietBench
from retinue.testing.fault_kit.irc_peer import IrcBench
from retinue.testing.fault_kit.matrix import hold
from retinue.testing.fault_kit.peer import At
from retinue.testing.virtual_time import simulate


class Around:
    """A connector around a good one, which each of those below spoils in one way."""

    def __init__(self, inside: Connector) -> None:
        self.inside = inside
        self.instance = inside.instance
        self.repeats_safely = inside.repeats_safely

    async def listen(self, accept: Accept) -> None:
        await self.inside.listen(accept)

    async def deliver(self, parcel: Parcel) -> Delivery:
        return await self.inside.deliver(parcel)


class ConfirmsFirst(Around):
    """Has the place forget what it heard before the house has it."""

    async def listen(self, accept: Accept) -> None:
        heard: asyncio.Queue[Incoming] = asyncio.Queue()

        async def confirm(incoming: Incoming) -> Receipt | None:
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
        await self.inside.listen(lambda heard: accept(replace(heard, room=QuietBench.other_room)))


class SendsElsewhere(Around):
    async def deliver(self, parcel: Parcel) -> Delivery:
        elsewhere = replace(parcel.envelope.recipient, rest=QuietBench.other_room)
        return await self.inside.deliver(replace(parcel, envelope=replace(parcel.envelope, recipient=elsewhere)))


class SendsTwice(Around):
    async def deliver(self, parcel: Parcel) -> Delivery:
        await self.inside.deliver(parcel)
        return await self.inside.deliver(parcel)


class SendsNothing(Around):
    async def deliver(self, parcel: Parcel) -> Delivery:
        return Delivery("surely")


class CallsItRefused(Around):
    """Says that it surely did not arrive, when it did."""

    async def deliver(self, parcel: Parcel) -> Delivery:
        await self.inside.deliver(parcel)
        raise DeliveryFailed("who knows")


class NeverForGood(Around):
    async def deliver(self, parcel: Parcel) -> Delivery:
        try:
            return await self.inside.deliver(parcel)
        except DeliveryFailed as failed:
            raise DeliveryFailed(failed.sentence) from failed


class DiesOfAFullDisk(Around):
    """Drops what it holds when the house could not take it."""

    async def listen(self, accept: Accept) -> None:
        async def once(incoming: Incoming) -> Receipt | None:
            try:
                return await accept(incoming)
            except StoreError:
                return None

        await self.inside.listen(once)


def spoiled(bench: type[QuietBench], spoil: Callable[[Connector], Connector]) -> QuietBench:
    class Spoiled(bench):
        def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
            return spoil(super().connector(surroundings, at))

    return Spoiled()


@pytest.mark.parametrize(
    ("bench", "spoil", "case", "found"),
    [
        (QuietBench, ConfirmsFirst, "crash-before-commit", "lost"),
        (QuietBench, DiesOfAFullDisk, "store-fails", "lost"),
        (QuietBench, NamesAnew, "store-fails-late", "taken in twice"),
        (QuietBench, NamesAnew, "told-twice", "taken in twice"),
        (QuietBench, MixesRooms, "calm", "not said there"),
        (QuietBench, SendsElsewhere, "calm", "was not sent there"),
        (ForgetfulBench, SendsTwice, "calm", "doubled"),
        (QuietBench, SendsNothing, "calm", "not there"),
        (ForgetfulBench, CallsItRefused, "calm", "gave-up|doubled"),
        (QuietBench, NeverForGood, "room-gone", "refused for good, and ended as delivered"),
        (QuietBench, NeverForGood, "throttled", "not told for how long"),
    ],
)
def test_a_wrong_in_a_connector_is_found(
    bench: type[QuietBench], spoil: Callable[[Connector], Connector], case: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(Broken, match=found):  # in virtual time, because something is waited for in vain
        simulate(1, lambda: hold(spoiled(bench, spoil), CASES[case], tmp_path))


class Unproven(IrcConnector):
    """Takes what it has written for what was read."""

    async def _say(self, present: Presence, target: str, lines: tuple[str, ...]) -> Delivery:
        for line in lines:
            present.wire.write(encoded("PRIVMSG", target, last=line))
        return Delivery("written")


class Presumptuous(IrcConnector):
    """Takes a broken line for a refusal."""

    async def _say(self, present: Presence, target: str, lines: tuple[str, ...]) -> Delivery:
        try:
            return await super()._say(present, target, lines)
        except LineBroke:
            raise DeliveryFailed("the line broke") from None


def irc_with(wrong: type[IrcConnector]) -> IrcBench:
    class Wrong(IrcBench):
        def connector(self, surroundings: Surroundings, at: Mapping[str, At]) -> Connector:
            good = super().connector(surroundings, at)
            assert isinstance(good, IrcConnector)
            return wrong(good._settings, surroundings)

    return Wrong()


@pytest.mark.parametrize(
    ("wrong", "case", "found"),
    [
        (Unproven, "cut-before", "said to be delivered, and not there"),
        (Presumptuous, "cut-after", "would be sent twice|doubled"),
    ],
)
async def test_a_wrong_on_a_real_line_is_found(
    wrong: type[IrcConnector], case: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(Broken, match=found):
        await hold(irc_with(wrong), CASES[case], tmp_path)
