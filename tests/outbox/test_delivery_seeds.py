"""Test the outbox with random failures of platforms, crashes at every point and clock jumps. A seed can be replayed."""

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


class ServerCrash(BaseException):
    """The server stops here, as with `kill -9`."""


class Unreliable(FakeConnector):
    """A platform that draws the fate of each delivery at random."""

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
class Simulation:
    """State that outlives a crash, and the source of crashes."""

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
            raise ServerCrash(point)  # a stopped server writes nothing
        if self.outbox is not None and self.crashes_left and self.chance.random() < 0.02:
            self.crashes_left -= 1
            self.outbox.abandon()
            self.down.set()
            raise ServerCrash(point)

    def wake(self, wake: Wake) -> None:
        if isinstance(wake, ChannelWake) and self.outbox is not None:
            self.outbox.wake(wake.channel)


async def run_until_all_ended(simulation: Simulation) -> None:
    """Restart the server after every crash, until every envelope was accepted and has an outcome."""
    ids = SequentialIds()
    while True:
        simulation.down.clear()
        store = open_inline_store(simulation.path, faults=simulation)
        outbox = Outbox(
            store,
            simulation.clock,
            simulation.connectors,
            limits=OutboxLimits(
                channels_active_max=4, channels_per_connector_max=3, channels_queued_max=4, channels_waiting_max=2
            ),
            faults=simulation,
        )
        tasks: list[asyncio.Task[Any]] = []
        try:
            await outbox.start()
            simulation.outbox = outbox
            inbox = EnvelopeIntake(store, simulation.clock, simulation.wake)
            tasks = [
                asyncio.create_task(send_all(simulation, inbox, ids)),
                asyncio.create_task(wake_due_channels(simulation, store)),
                asyncio.create_task(jump_clock_randomly(simulation)),
                asyncio.create_task(simulation.down.wait()),
            ]
            done = asyncio.create_task(wait_until_all_ended(simulation, store))
            tasks.append(done)
            await asyncio.wait({tasks[-2], done}, return_when=asyncio.FIRST_COMPLETED)
            if not simulation.down.is_set():
                await done
                await outbox.stop(drain_s=0)
                return
        except ServerCrash:
            pass
        finally:
            simulation.outbox = None
            outbox.abandon()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await outbox.stop(drain_s=0)
            await store.close()


async def send_all(simulation: Simulation, inbox: EnvelopeIntake, ids: SequentialIds) -> None:
    try:
        while simulation.drafts_left:
            draft = next_draft(simulation, ids)
            while True:
                try:
                    await inbox.accept(draft)
                    break
                except StoreError:
                    await simulation.clock.sleep(0.5)
            simulation.drafts_left -= 1
            await simulation.clock.sleep(simulation.chance.choice((0.0, 0.0, 0.1, 3.0)))
    except ServerCrash:
        return  # no receipt: the sender sends the same envelope again


def next_draft(simulation: Simulation, ids: SequentialIds) -> EnvelopeDraft:
    number = ENVELOPES - simulation.drafts_left
    draw = random.Random(f"{number} of {simulation.path.name}")  # the same draft after a crash
    later = draw.random() < 0.15
    return EnvelopeDraft(
        id=EnvelopeId(ids.new()),
        sender=address.agent_address("ada"),
        recipient=address.parse_address(f"channel:{draw.choice(('safe', 'forgetful'))}:{draw.randrange(5)}"),
        text=f"{number}",
        source="test",
        idempotency_key=f"{number}",
        deliver_at=simulation.clock.now() + timedelta(seconds=draw.randint(1, 60)) if later else None,
    )


async def wake_due_channels(simulation: Simulation, store: InlineStore) -> None:
    """Wake due channels, as the engine's alarm does."""
    while True:
        await simulation.clock.sleep(5.0)
        now_ms = to_ms(simulation.clock.now())
        for channel in await store.scan(partial(deliveries.list_due_channels, now_ms=now_ms, after="", limit=100)):
            simulation.wake(ChannelWake(channel))


async def jump_clock_randomly(simulation: Simulation) -> None:
    while True:
        await simulation.clock.sleep(simulation.chance.uniform(5.0, 60.0))
        simulation.clock.jump(timedelta(seconds=simulation.chance.choice((-90.0, -1.0, 1.0, 45.0))))


async def wait_until_all_ended(simulation: Simulation, store: InlineStore) -> None:
    while True:
        await simulation.clock.sleep(10.0)
        left = await store.read(
            lambda conn: conn.execute(sa.text("SELECT count(*) FROM envelopes WHERE status <> 'done'")).scalar_one()
        )
        if not left and not simulation.drafts_left:
            return


@dataclass(frozen=True)
class StoreContents:
    envelopes: list[Envelope]
    outcomes: dict[EnvelopeId, Outcome]
    open_attempts: int
    ledger: LedgerReport


def read_store(path: Path) -> StoreContents:
    store = open_inline_store(path, yields=False)
    conn = store.connection
    rows = conn.execute(sa.text("SELECT id FROM envelopes ORDER BY seq")).all()
    kept = [envelope for row in rows if (envelope := envelopes.get(conn, row.id)) is not None]
    outcomes = {e.id: ended.outcome for e in kept if (ended := envelopes.get_outcome(conn, e.id)) is not None}
    opened = conn.execute(sa.text("SELECT count(*) FROM deliveries WHERE state = 'sending'")).scalar_one()
    checked = check_ledger(conn, now_ms=latest_ms(conn))
    conn.close()
    return StoreContents(kept, outcomes, opened, checked)


def channel_position(envelope: Envelope) -> tuple[int, int]:
    """Return the position of an envelope in its channel: by its first due time, then by its sequence number."""
    accepted_ms = to_ms(envelope.accepted_at)
    return max(accepted_ms, to_ms(envelope.deliver_at) if envelope.deliver_at else 0), envelope.seq


def group_by_channel(found: Iterable[Envelope]) -> dict[str, list[Envelope]]:
    rooms: dict[str, list[Envelope]] = {}
    for envelope in found:
        rooms.setdefault(str(envelope.recipient), []).append(envelope)
    return rooms


@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures_crashes_and_clock_jumps_lose_duplicate_and_reorder_no_delivery(
    seed: int, tmp_path: Path
) -> None:
    path = tmp_path / f"seed-{seed}"
    connectors: dict[str, Unreliable] = {}

    async def main() -> None:
        clock = VirtualClock()
        chance = random.Random(f"rough day {seed}")
        for name, safe in (("safe", True), ("forgetful", False)):
            connectors[name] = Unreliable(clock, name=name, repeats_safely=safe)
            connectors[name].chance = chance
        await run_until_all_ended(Simulation(path, chance, clock, connectors))

    simulate(seed, main)

    found = read_store(path)
    assert [envelope.text for envelope in found.envelopes] == [str(number) for number in range(ENVELOPES)]
    assert len(found.outcomes) == ENVELOPES
    assert found.open_attempts == 0
    assert found.ledger.is_ok, "\n".join(found.ledger.lines())
    for name, connector in connectors.items():
        arrived = [envelope.id for envelope in connector.delivered_envelopes]
        assert len(arrived) == len(set(arrived)), f"{name}: a message was read twice"
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
        for channel, read in group_by_channel(kept[id_] for id_ in arrived).items():
            assert read == sorted(read, key=channel_position), f"{channel} was read in another order"


@pytest.mark.parametrize(
    ("rooms", "bounds"),
    [
        pytest.param(6, OutboxLimits(), id="roomy"),
        pytest.param(25, OutboxLimits(channels_active_max=2, channels_queued_max=2), id="cramped"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_outbox_delivers_an_envelope_accepted_at_any_moment_without_a_timer_wake(
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
