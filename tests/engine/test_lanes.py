"""Which envelopes make a batch, and who gets the next free slot."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.domain import address
from retinue.domain.envelope import Envelope, EnvelopeContext, EnvelopeKind, EnvelopeStatus
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.domain.session import BATCH_MAX, LaneKind, QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.engine import embedded_engine as engine_module
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.lanes import LaneQueue, SlotLimits, next_batch
from retinue.intake.accept import LaneWake
from retinue.store.envelopes import envelopes
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
COLLECT = QueuePolicy()


def letter(seq: int, sender: str = "person:maria", **kw: Any) -> Envelope:
    plain = Envelope(
        seq=seq,
        id=EnvelopeId(f"{seq:032x}"),
        sender=address.parse_address(sender),
        recipient=address.agent_address("ada"),
        session=SessionId("s" * 32),
        kind=EnvelopeKind.MESSAGE,
        text=f"number {seq}",
        attachments=(),
        context=EnvelopeContext(),
        reply_to=None,
        trust=Trust.PERSON,
        source=sender,
        idempotency_key=f"{seq}",
        silent=False,
        deliver_at=None,
        expires_at=None,
        due_at=NOON,
        status=EnvelopeStatus.PENDING,
        attempts=0,
        accepted_at=NOON,
        claimed_at=None,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=None,
    )
    return msgspec.structs.replace(plain, **kw)


def seqs(envelopes: tuple[Envelope, ...]) -> list[int]:
    return [envelope.seq for envelope in envelopes]


def release(ready: LaneQueue, wake: LaneWake) -> None:
    ready.release_slot(wake.agent, wake.lane)


def test_nothing_due_makes_no_batch() -> None:
    batch = next_batch([], COLLECT)
    assert (batch.silent, batch.envelopes) == ((), ())


def test_a_batch_is_of_one_sender_and_at_most_ten() -> None:
    assert seqs(next_batch([letter(n) for n in range(15)], COLLECT).envelopes) == list(range(BATCH_MAX))
    mixed = [letter(1), letter(2), letter(3, "person:owner"), letter(4)]
    assert seqs(next_batch(mixed, COLLECT).envelopes) == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        {"context": EnvelopeContext(sender_name="Alice")},
        {"context": EnvelopeContext(username="alice")},
        {"context": EnvelopeContext(speaker="8")},
        {"kind": EnvelopeKind.ANSWER},
        {"kind": EnvelopeKind.DECISION},
    ],
    ids=["another name", "another account", "another id", "no answer owed", "a decision"],
)
def test_a_change_of_voice_or_of_what_is_owed_ends_a_batch(other: dict[str, Any]) -> None:
    assert seqs(next_batch([letter(1), letter(2, **other), letter(3)], COLLECT).envelopes) == [1]


def test_what_is_said_about_a_sender_beside_its_name_does_not_end_a_batch() -> None:
    """A message has an id of its own on its platform; that makes it no other conversation."""
    apart = [letter(n, context=EnvelopeContext(sender_name="Alice", platform_id=f"{n}")) for n in range(3)]
    assert seqs(next_batch(apart, COLLECT).envelopes) == [0, 1, 2]


@pytest.mark.parametrize("mode", [QueueMode.FOLLOWUP, QueueMode.STEER_BACKLOG])
def test_some_modes_take_one_at_a_time(mode: QueueMode) -> None:
    assert seqs(next_batch([letter(1), letter(2)], QueuePolicy(mode=mode)).envelopes) == [1]


def test_silent_mail_is_written_down_wherever_it_stands_and_parts_no_batch() -> None:
    batch = next_batch([letter(1), letter(2, silent=True), letter(3), letter(4, "person:owner", silent=True)], COLLECT)
    assert seqs(batch.silent) == [2, 4]
    assert seqs(batch.envelopes) == [1, 3]


def test_a_decision_is_worked_alone() -> None:
    assert seqs(next_batch([letter(1, kind=EnvelopeKind.DECISION), letter(2)], COLLECT).envelopes) == [1]


def lane(n: int, agent: str = "ada", kind: LaneKind = LaneKind.MAIN) -> LaneWake:
    return LaneWake(SessionId(f"{agent}-{kind}-{n}"), agent, kind)


def drain(ready: LaneQueue) -> list[LaneWake]:
    taken: list[LaneWake] = []
    while (wake := ready.take_next()) is not None:
        taken.append(wake)
    return taken


def test_a_lane_waits_once_and_keeps_its_place() -> None:
    ready = LaneQueue(SlotLimits(main=1), lambda _: 9)
    for wake in (lane(1), lane(2), lane(1), lane(1)):
        ready.push(wake)
    assert len(ready) == 2
    assert drain(ready) == [lane(1)]
    release(ready, lane(1))
    assert drain(ready) == [lane(2)]
    release(ready, lane(2))
    assert drain(ready) == []


def test_agents_take_turns_and_lanes_of_one_agent_come_in_order() -> None:
    ready = LaneQueue(SlotLimits(main=1), lambda _: 9)
    for n in range(3):
        ready.push(lane(n, "ada"))
    ready.push(lane(0, "bo"))
    order: list[LaneWake] = []
    while taken := ready.take_next():
        order.append(taken)
        release(ready, taken)
    assert order == [lane(0, "ada"), lane(0, "bo"), lane(1, "ada"), lane(2, "ada")]


def test_an_agent_without_room_does_not_hold_up_the_others() -> None:
    ready = LaneQueue(SlotLimits(main=9), {"ada": 1, "bo": 2}.__getitem__)
    for n in range(3):
        ready.push(lane(n, "ada"))
        ready.push(lane(n, "bo"))
    assert sorted(drain(ready), key=lambda wake: wake.session) == [lane(0, "ada"), lane(0, "bo"), lane(1, "bo")]


def test_a_slot_is_contended_when_somebody_could_use_it() -> None:
    ready = LaneQueue(SlotLimits(main=1, schedule=1), {"ada": 1, "bo": 0, "cy": 1}.__getitem__)
    ready.push(lane(0, "ada"))
    assert drain(ready) == [lane(0, "ada")]
    assert not ready.is_contended(lane(0, "ada"))
    ready.push(lane(0, "bo"))
    assert not ready.is_contended(lane(0, "ada")), "bo may not run at all"
    ready.push(lane(0, "cy"))
    assert ready.is_contended(lane(0, "ada")), "cy waits for this very slot"


def test_an_agents_slot_is_contended_by_its_lanes_of_other_kinds() -> None:
    ready = LaneQueue(SlotLimits(main=1, schedule=1), lambda _: 1)
    ready.push(lane(0))
    assert drain(ready) == [lane(0)]
    ready.push(lane(0, kind=LaneKind.SCHEDULE))
    assert ready.is_contended(lane(0))
    release(ready, lane(0))
    ready.push(lane(0))
    assert ready.take_next() == lane(0, kind=LaneKind.SCHEDULE), "and comes first, although it came later"


@pytest.mark.parametrize("seed", range(20))
def test_slots_are_never_exceeded_and_every_lane_has_its_turn(seed: int) -> None:
    chance = random.Random(seed)
    slots = SlotLimits(main=3, schedule=1, subagent=2, background=1)
    room = {"ada": 1, "bo": 2, "cy": 5}
    ready = LaneQueue(slots, room.__getitem__)
    everyone = [lane(n, agent, kind) for n in range(4) for agent in room for kind in LaneKind]
    pushed: Counter[SessionId] = Counter()
    taken: Counter[SessionId] = Counter()
    held: list[LaneWake] = []
    waiting: set[SessionId] = set()
    for _ in range(2000):
        if chance.random() < 0.5:
            wake = chance.choice(everyone)
            if wake not in held and wake.session not in waiting:
                pushed[wake.session] += 1
                waiting.add(wake.session)
                ready.push(wake)
        elif held and chance.random() < 0.6:
            release(ready, held.pop(chance.randrange(len(held))))
        while (wake := ready.take_next()) is not None:
            held.append(wake)
            taken[wake.session] += 1
            waiting.remove(wake.session)
        for kind in LaneKind:
            assert sum(wake.lane is kind for wake in held) <= slots.limit_for(kind)
        for agent, most in room.items():
            assert sum(wake.agent == agent for wake in held) <= most
        assert len(ready) == len(waiting)
    while held or len(ready):
        if held:
            release(ready, held.pop())
        for wake in drain(ready):
            held.append(wake)
            taken[wake.session] += 1
    assert taken == pushed


@pytest.mark.spec("C102")
def test_what_does_not_fit_is_left_out_and_said_so() -> None:
    ready = LaneQueue(SlotLimits(main=1), lambda _: 1, waiting_max=2)
    for n in range(5):
        ready.push(lane(n))
    assert len(ready) == 2
    assert ready.has_overflowed


@pytest.mark.spec("C102")
def test_nothing_is_remembered_of_lanes_that_are_done() -> None:
    ready = LaneQueue(SlotLimits(main=10), lambda _: 1)
    for n in range(1000):
        ready.push(lane(0, f"agent-{n}"))
        (taken,) = drain(ready)
        release(ready, taken)
    assert len(ready) == 0
    assert sum(len(waiting) for waiting in ready._waiting.values()) == 0  # pyright: ignore[reportPrivateUsage]
    assert len(ready._used_by_agent) == 0  # pyright: ignore[reportPrivateUsage]


@pytest.mark.spec("C102")
async def test_lanes_that_do_not_fit_in_memory_are_found_again_in_the_store(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, slots=SlotLimits(main=1), people=[f"p{n}" for n in range(30)])
    household.create_engine = lambda *args, **kw: EmbeddedEngine(*args, **kw, waiting_lanes_max=3)
    household.model.rule = lambda prompt: text_reply("ok", after_s=0.1)
    async with household.run() as house:
        posted = [await house.send("hi", sender=f"person:p{n}") for n in range(30)]
        for receipt in posted:
            while await house.store.scan(lambda conn, id_=receipt.envelope: envelopes.get_outcome(conn, id_)) is None:
                await household.clock.advance(0.1)
            assert await house.wait_for_answer(receipt.envelope) == "ok"


@pytest.mark.spec("C102")
async def test_a_house_at_rest_remembers_no_lane(tmp_path: Path) -> None:
    household = LocalInstance(tmp_path, people=[f"p{n}" for n in range(20)])
    household.model.rule = lambda prompt: (
        text_reply("ok") if len(household.model.prompts) % 3 else text_reply("", fails="tired")
    )
    async with household.run() as house:
        for _ in range(3):
            for receipt in [await house.send("hi", sender=f"person:p{n}") for n in range(20)]:
                await house.wait_for_outcome(receipt.envelope)
        receipt = await house.send("hi", sender="person:p0")
        assert receipt.session is not None
        await house.engine.cancel(receipt.session, by="p0", reason="enough")
        await house.wait_for_outcome(receipt.envelope)
        await house.wait_until_idle()
        kept = vars(house.engine)
        for name in ("_lanes", "_store_failed_sessions", "_side_tasks"):
            assert len(kept[name]) == 0, name
        assert len(kept["_lane_queue"]) == 0 and not kept["_lane_queue"]._used_by_agent
        assert set(kept["_concurrency"]) == {"ada"}


async def test_more_runs_cut_off_than_one_look_finds_are_all_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their mail is claimed, not due: only the sessions themselves tell of them."""
    monkeypatch.setattr(engine_module, "LANES_SCANNED_MAX", 3)
    household = LocalInstance(tmp_path, people=[f"p{n}" for n in range(12)])
    household.agents = (replace(household.agents[0], concurrency=100),)
    household.model.rule = lambda prompt: text_reply("never", after_s=1000)
    async with household.run(drain_s=0) as house:
        posted = [await house.send("hi", sender=f"person:p{n}") for n in range(12)]
        await house.wait_for(lambda _: len(household.model.prompts) == 12, what="twelve runs")
        house.crash()
    household.model.rule = lambda prompt: text_reply("ok")
    async with household.run() as house:
        for receipt in posted:
            assert await house.wait_for_answer(receipt.envelope) == "ok"


def test_other_slots_hold_from_now_on_and_take_nothing_away() -> None:
    ready = LaneQueue(SlotLimits(main=1), lambda agent: 10)
    for n in range(4):
        ready.push(lane(n))
    first = ready.take_next()
    assert first is not None and ready.take_next() is None
    ready.set_limits(SlotLimits(main=3))
    more = [ready.take_next(), ready.take_next(), ready.take_next()]
    assert [wake is not None for wake in more] == [True, True, False]
    ready.set_limits(SlotLimits(main=1))
    release(ready, first)
    assert ready.take_next() is None  # two are still in use
