"""Which lane gets the next free slot."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from retinue.domain.ids import SessionId
from retinue.domain.session import LaneKind
from retinue.domain.structs import replace
from retinue.engine import embedded_engine as engine_module
from retinue.engine.embedded_engine import EmbeddedEngine
from retinue.engine.lanes import LaneQueue, SlotLimits
from retinue.intake.accept import LaneWake
from retinue.store.envelopes import envelopes
from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply


def release(ready: LaneQueue, wake: LaneWake) -> None:
    ready.release_slot(wake.agent, wake.lane)


def lane(n: int, agent: str = "ada", kind: LaneKind = LaneKind.MAIN) -> LaneWake:
    return LaneWake(SessionId(f"{agent}-{kind}-{n}"), agent, kind)


def take_all(ready: LaneQueue) -> list[LaneWake]:
    taken: list[LaneWake] = []
    while (wake := ready.take_next()) is not None:
        taken.append(wake)
    return taken


def test_a_lane_that_is_pushed_again_waits_once_and_keeps_its_position() -> None:
    ready = LaneQueue(SlotLimits(main=1), lambda _: 9)
    for wake in (lane(1), lane(2), lane(1), lane(1)):
        ready.push(wake)
    assert len(ready) == 2
    assert take_all(ready) == [lane(1)]
    release(ready, lane(1))
    assert take_all(ready) == [lane(2)]
    release(ready, lane(2))
    assert take_all(ready) == []


def test_agents_alternate_in_the_lane_queue_and_lanes_of_one_agent_stay_in_order() -> None:
    ready = LaneQueue(SlotLimits(main=1), lambda _: 9)
    for n in range(3):
        ready.push(lane(n, "ada"))
    ready.push(lane(0, "bo"))
    order: list[LaneWake] = []
    while taken := ready.take_next():
        order.append(taken)
        release(ready, taken)
    assert order == [lane(0, "ada"), lane(0, "bo"), lane(1, "ada"), lane(2, "ada")]


def test_an_agent_at_its_concurrency_limit_does_not_block_lanes_of_other_agents() -> None:
    ready = LaneQueue(SlotLimits(main=9), {"ada": 1, "bo": 2}.__getitem__)
    for n in range(3):
        ready.push(lane(n, "ada"))
        ready.push(lane(n, "bo"))
    assert sorted(take_all(ready), key=lambda wake: wake.session) == [lane(0, "ada"), lane(0, "bo"), lane(1, "bo")]


def test_a_slot_is_contended_only_if_a_waiting_lane_could_use_it() -> None:
    ready = LaneQueue(SlotLimits(main=1, schedule=1), {"ada": 1, "bo": 0, "cy": 1}.__getitem__)
    ready.push(lane(0, "ada"))
    assert take_all(ready) == [lane(0, "ada")]
    assert not ready.is_contended(lane(0, "ada"))
    ready.push(lane(0, "bo"))
    assert not ready.is_contended(lane(0, "ada")), "bo may not run at all"
    ready.push(lane(0, "cy"))
    assert ready.is_contended(lane(0, "ada")), "cy waits for this slot"


def test_a_slot_is_contended_by_a_lane_of_another_kind_of_the_same_agent() -> None:
    ready = LaneQueue(SlotLimits(main=1, schedule=1), lambda _: 1)
    ready.push(lane(0))
    assert take_all(ready) == [lane(0)]
    ready.push(lane(0, kind=LaneKind.SCHEDULE))
    assert ready.is_contended(lane(0))
    release(ready, lane(0))
    ready.push(lane(0))
    assert ready.take_next() == lane(0, kind=LaneKind.SCHEDULE), "it was pushed first"


@pytest.mark.parametrize("seed", range(20))
def test_slot_limits_are_never_exceeded_and_every_pushed_lane_is_taken(seed: int) -> None:
    chance = random.Random(seed)
    slots = SlotLimits(main=3, schedule=1, subagent=2, background=1)
    room = {"ada": 1, "bo": 2, "cy": 5}
    ready = LaneQueue(slots, room.__getitem__)
    all_wakes = [lane(n, agent, kind) for n in range(4) for agent in room for kind in LaneKind]
    pushed: Counter[SessionId] = Counter()
    taken: Counter[SessionId] = Counter()
    held: list[LaneWake] = []
    waiting: set[SessionId] = set()
    for _ in range(2000):
        if chance.random() < 0.5:
            wake = chance.choice(all_wakes)
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
        for wake in take_all(ready):
            held.append(wake)
            taken[wake.session] += 1
    assert taken == pushed


@pytest.mark.spec("C102")
def test_a_full_lane_queue_drops_lanes_and_reports_the_overflow() -> None:
    ready = LaneQueue(SlotLimits(main=1), lambda _: 1, waiting_max=2)
    for n in range(5):
        ready.push(lane(n))
    assert len(ready) == 2
    assert ready.has_overflowed


@pytest.mark.spec("C102")
def test_the_lane_queue_keeps_nothing_about_released_lanes() -> None:
    ready = LaneQueue(SlotLimits(main=10), lambda _: 1)
    for n in range(1000):
        ready.push(lane(0, f"agent-{n}"))
        (taken,) = take_all(ready)
        release(ready, taken)
    assert len(ready) == 0
    assert sum(len(waiting) for waiting in ready._waiting.values()) == 0  # pyright: ignore[reportPrivateUsage]
    assert len(ready._used_by_agent) == 0  # pyright: ignore[reportPrivateUsage]


@pytest.mark.spec("C102")
async def test_lanes_dropped_from_a_full_queue_are_found_again_in_the_store(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, slots=SlotLimits(main=1), people=[f"p{n}" for n in range(30)])
    instance.create_engine = lambda *args, **kw: EmbeddedEngine(*args, **kw, waiting_lanes_max=3)
    instance.model.rule = lambda prompt: text_reply("ok", after_s=0.1)
    async with instance.run() as server:
        posted = [await server.send("hi", sender=f"person:p{n}") for n in range(30)]
        for receipt in posted:
            while await server.store.scan(lambda conn, id_=receipt.envelope: envelopes.get_outcome(conn, id_)) is None:
                await instance.clock.advance(0.1)
            assert await server.wait_for_answer(receipt.envelope) == "ok"


@pytest.mark.spec("C102")
async def test_an_idle_engine_keeps_no_lanes_in_memory(tmp_path: Path) -> None:
    instance = LocalInstance(tmp_path, people=[f"p{n}" for n in range(20)])
    instance.model.rule = lambda prompt: (
        text_reply("ok") if len(instance.model.prompts) % 3 else text_reply("", fails="tired")
    )
    async with instance.run() as server:
        for _ in range(3):
            for receipt in [await server.send("hi", sender=f"person:p{n}") for n in range(20)]:
                await server.wait_for_outcome(receipt.envelope)
        receipt = await server.send("hi", sender="person:p0")
        assert receipt.session is not None
        await server.engine.cancel(receipt.session, by="p0", reason="enough")
        await server.wait_for_outcome(receipt.envelope)
        await server.wait_until_idle()
        kept = vars(server.engine)
        for name in ("_lanes", "_store_failed_sessions", "_side_tasks"):
            assert len(kept[name]) == 0, name
        assert len(kept["_lane_queue"]) == 0 and not kept["_lane_queue"]._used_by_agent
        assert set(kept["_concurrency"]) == {"ada"}


async def test_the_lanes_of_all_interrupted_runs_are_resumed_even_if_one_scan_does_not_find_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their envelopes are claimed, not due, so only the sessions lead to them."""
    monkeypatch.setattr(engine_module, "LANES_SCANNED_MAX", 3)
    instance = LocalInstance(tmp_path, people=[f"p{n}" for n in range(12)])
    instance.agents = (replace(instance.agents[0], concurrency=100),)
    instance.model.rule = lambda prompt: text_reply("never", after_s=1000)
    async with instance.run(drain_s=0) as server:
        posted = [await server.send("hi", sender=f"person:p{n}") for n in range(12)]
        await server.wait_for(lambda _: len(instance.model.prompts) == 12, what="twelve runs")
        server.crash()
    instance.model.rule = lambda prompt: text_reply("ok")
    async with instance.run() as server:
        for receipt in posted:
            assert await server.wait_for_answer(receipt.envelope) == "ok"


def test_new_slot_limits_apply_to_the_next_lanes_and_stop_no_current_one() -> None:
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
