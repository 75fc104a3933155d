"""The outbox on rough days: places that fail in every way, crashes at every point, clocks that jump. Seeds replay."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retinue.connectors.base import DeliveryFailed
from retinue.domain import address
from retinue.domain.envelope import Envelope, EnvelopeDraft, Outcome
from retinue.domain.errors import StoreError
from retinue.domain.ids import EnvelopeId
from retinue.domain.times import to_ms
from retinue.intake.accept import ChannelWake, EnvelopeIntake, Wake
from retinue.outbox.deliveries import Outbox, OutboxLimits
from retinue.store.channels import deliveries
from retinue.store.core.sqlite import InlineStore
from retinue.store.core.transaction import latest_ms
from retinue.store.envelopes import envelopes
from retinue.store.ledger.ledger import LedgerReport, check_ledger
from retinue.store.open_store import open_inline_store
from retinue.testing.fake_connector import DeliveryFault, FakeConnector
from retinue.testing.local_instance import SequentialIds
from retinue.testing.virtual_time import VirtualClock, simulate

SEEDS_QUICK = 10
SEEDS = [
    seed if seed < SEEDS_QUICK else pytest.param(seed, marks=pytest.mark.slow)
    for seed in range(max(SEEDS_QUICK, int(os.environ.get("RETINUE_SEEDS", "0"))))
]
ENVELOPES = 60
CRASHES_MAX = 8


class Crash(BaseException):
    """The house stops here, as `kill -9` would have it."""


class Unreliable(FakeConnector):
    """Draws what befalls each delivery."""

    chance: random.Random

    def _next_fault(self, channel: str) -> DeliveryFault:
        drawn = self.chance.random()
        if drawn < 0.12:
            return DeliveryFault(failure=DeliveryFailed("closed"), delay_s=self.chance.random())
        if drawn < 0.16:
            return DeliveryFault(failure=DeliveryFailed("not so fast", retry_after_s=self.chance.randint(1, 90)))
        if drawn < 0.18:
            return DeliveryFault(failure=DeliveryFailed("no such room", permanent=True))
        if drawn < 0.26:
            return DeliveryFault(breaks=True, arrives=self.chance.random() < 0.5, delay_s=self.chance.random())
        return DeliveryFault(delay_s=self.chance.choice((0.0, 0.0, 0.3, 4.0)))


@dataclass
class World:
    """What outlives a crash, and who decides when there is one."""

    path: Path
    chance: random.Random
    clock: VirtualClock
    connectors: dict[str, Unreliable]
    crashes_left: int = CRASHES_MAX
    outbox: Outbox | None = None
    down: asyncio.Event = field(default_factory=asyncio.Event)
    drafts_left: int = ENVELOPES

    def reach(self, point: str) -> None:
        if self.down.is_set():
            raise Crash(point)  # nothing is written by a house that is down
        if self.outbox is not None and self.crashes_left and self.chance.random() < 0.02:
            self.crashes_left -= 1
            self.outbox.abandon()
            self.down.set()
            raise Crash(point)

    def wake(self, wake: Wake) -> None:
        if isinstance(wake, ChannelWake) and self.outbox is not None:
            self.outbox.wake(wake.channel)


async def live_through(world: World) -> None:
    """Open the house again after every crash, until everything was posted and has ended."""
    ids = SequentialIds()
    while True:
        world.down.clear()
        store = open_inline_store(world.path, faults=world)
        outbox = Outbox(
            store,
            world.clock,
            world.connectors,
            limits=OutboxLimits(
                channels_active_max=4, channels_per_connector_max=3, channels_queued_max=4, channels_waiting_max=2
            ),
            faults=world,
        )
        tasks: list[asyncio.Task[Any]] = []
        try:
            await outbox.start()
            world.outbox = outbox
            inbox = EnvelopeIntake(store, world.clock, world.wake)
            tasks = [
                asyncio.create_task(post_all(world, inbox, ids)),
                asyncio.create_task(ring(world, store)),
                asyncio.create_task(jump_about(world)),
                asyncio.create_task(world.down.wait()),
            ]
            done = asyncio.create_task(all_ended(world, store))
            tasks.append(done)
            await asyncio.wait({tasks[-2], done}, return_when=asyncio.FIRST_COMPLETED)
            if not world.down.is_set():
                await done
                await outbox.stop(drain_s=0)
                return
        except Crash:
            pass
        finally:
            world.outbox = None
            outbox.abandon()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await outbox.stop(drain_s=0)
            await store.close()


async def post_all(world: World, inbox: EnvelopeIntake, ids: SequentialIds) -> None:
    try:
        while world.drafts_left:
            draft = next_draft(world, ids)
            while True:
                try:
                    await inbox.accept(draft)
                    break
                except StoreError:
                    await world.clock.sleep(0.5)
            world.drafts_left -= 1
            await world.clock.sleep(world.chance.choice((0.0, 0.0, 0.1, 3.0)))
    except Crash:
        return  # no receipt: whoever posts sends the same again


def next_draft(world: World, ids: SequentialIds) -> EnvelopeDraft:
    number = ENVELOPES - world.drafts_left
    draw = random.Random(f"{number} of {world.path.name}")  # the same after a crash, as a careful client would
    later = draw.random() < 0.15
    return EnvelopeDraft(
        id=EnvelopeId(ids.new()),
        sender=address.agent_address("ada"),
        recipient=address.parse_address(f"channel:{draw.choice(('safe', 'forgetful'))}:{draw.randrange(5)}"),
        text=f"{number}",
        source="test",
        idempotency_key=f"{number}",
        deliver_at=world.clock.now() + timedelta(seconds=draw.randint(1, 60)) if later else None,
    )


async def ring(world: World, store: InlineStore) -> None:
    """What the engine's alarm does for the outbox."""
    while True:
        await world.clock.sleep(5.0)
        now_ms = to_ms(world.clock.now())
        for channel in await store.scan(partial(deliveries.list_due_channels, now_ms=now_ms, after="", limit=100)):
            world.wake(ChannelWake(channel))


async def jump_about(world: World) -> None:
    while True:
        await world.clock.sleep(world.chance.uniform(5.0, 60.0))
        world.clock.jump(timedelta(seconds=world.chance.choice((-90.0, -1.0, 1.0, 45.0))))


async def all_ended(world: World, store: InlineStore) -> None:
    while True:
        await world.clock.sleep(10.0)
        left = await store.read(
            lambda conn: conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE status <> 'done'")).scalar_one()
        )
        if not left and not world.drafts_left:
            return


@dataclass(frozen=True)
class Found:
    envelopes: list[Envelope]
    outcomes: dict[EnvelopeId, Outcome]
    open_attempts: int
    ledger: LedgerReport


def look_into(path: Path) -> Found:
    store = open_inline_store(path, yields=False)
    conn = store.connection
    rows = conn.execute(sa.text("SELECT id FROM envelopes ORDER BY seq")).all()
    kept = [envelope for row in rows if (envelope := envelopes.get(conn, row.id)) is not None]
    outcomes = {e.id: ended.outcome for e in kept if (ended := envelopes.get_outcome(conn, e.id)) is not None}
    opened = conn.execute(sa.text("SELECT count(*) FROM deliveries WHERE state = 'sending'")).scalar_one()
    checked = check_ledger(conn, now_ms=latest_ms(conn))
    conn.close()
    return Found(kept, outcomes, opened, checked)


def in_line(envelope: Envelope) -> tuple[int, int]:
    """Its place in its room: when it was first due, then when it came."""
    accepted_ms = to_ms(envelope.accepted_at)
    return max(accepted_ms, to_ms(envelope.deliver_at) if envelope.deliver_at else 0), envelope.seq


def rooms_of(found: Iterable[Envelope]) -> dict[str, list[Envelope]]:
    rooms: dict[str, list[Envelope]] = {}
    for envelope in found:
        rooms.setdefault(str(envelope.recipient), []).append(envelope)
    return rooms


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_reordered_on_a_rough_day(seed: int, tmp_path: Path) -> None:
    path = tmp_path / f"seed-{seed}"
    connectors: dict[str, Unreliable] = {}

    async def main() -> None:
        clock = VirtualClock()
        chance = random.Random(f"rough day {seed}")
        for name, safe in (("safe", True), ("forgetful", False)):
            connectors[name] = Unreliable(clock, name=name, repeats_safely=safe)
            connectors[name].chance = chance
        await live_through(World(path, chance, clock, connectors))

    simulate(seed, main)

    found = look_into(path)
    assert [envelope.text for envelope in found.envelopes] == [str(number) for number in range(ENVELOPES)]
    assert len(found.outcomes) == ENVELOPES
    assert found.open_attempts == 0
    assert found.ledger.is_ok, "\n".join(found.ledger.lines())
    for name, connector in connectors.items():
        arrived = [envelope.id for envelope in connector.delivered_envelopes]
        assert len(arrived) == len(set(arrived)), f"{name}: something was read twice"
        for envelope in found.envelopes:
            if envelope.recipient.name != name:
                continue
            match found.outcomes[envelope.id]:
                case Outcome.DELIVERED:
                    assert envelope.id in arrived
                case Outcome.INTERRUPTED:
                    assert name == "forgetful"
                case outcome:
                    assert outcome is Outcome.DEAD
        kept = {envelope.id: envelope for envelope in found.envelopes}
        for channel, read in rooms_of(kept[id_] for id_ in arrived).items():
            assert read == sorted(read, key=in_line), f"{channel} was read in another order"


@pytest.mark.parametrize(
    ("rooms", "bounds"),
    [
        pytest.param(6, OutboxLimits(), id="roomy"),
        pytest.param(25, OutboxLimits(channels_active_max=2, channels_queued_max=2), id="cramped"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_mail_that_arrives_at_any_moment_leaves_without_the_help_of_the_alarm(
    seed: int, rooms: int, bounds: OutboxLimits
) -> None:
    async def main() -> None:
        clock, chance, ids = VirtualClock(), random.Random(f"any moment {seed}"), SequentialIds()
        store = open_inline_store()
        connector = FakeConnector(clock, delay_s=chance.choice((0.0, 0.2)))
        outbox = Outbox(store, clock, {"quiet": connector}, limits=bounds)
        inbox = EnvelopeIntake(
            store, clock, lambda wake: outbox.wake(wake.channel) if isinstance(wake, ChannelWake) else None
        )
        await outbox.start()
        for number in range(100):
            await inbox.accept(
                EnvelopeDraft(
                    id=EnvelopeId(ids.new()),
                    sender=address.agent_address("ada"),
                    recipient=address.parse_address(f"channel:quiet:{chance.randrange(rooms)}"),
                    text=f"{number}",
                    source="test",
                    idempotency_key=f"{number}",
                )
            )
            for _ in range(chance.choice((0, 0, 1, 2, 3, 5, 8))):
                await asyncio.sleep(0)
        await clock.sleep(60.0)
        assert len(connector.delivered_envelopes) == 100
        await outbox.stop()
        await store.close()

    simulate(seed, main)
