"""The engine's contract: whose turn it is. One session, one run at a time, in order; many sessions side by side."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    all_news,
    opened,
    rows,
    until,
)

from retinue.domain.envelope import EnvelopeContext, EnvelopeKind, Outcome
from retinue.domain.event import EventKind
from retinue.domain.session import Origin, OriginKind, QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.engine.lanes import SlotLimits
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply


async def run_order(house: LocalServer) -> list[tuple[str, tuple[str, ...]]]:
    """Which session began a run over what, in the order of their beginning."""
    started = await all_news(house, EventKind.RUN_STARTED)
    return [(str(piece.session), tuple(piece.body["envelopes"])) for piece in started]


@pytest.mark.spec("D3", "C22", "H33")
async def test_one_session_has_one_run_at_a_time_and_in_order(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (ada(queue=QueuePolicy(mode=QueueMode.FOLLOWUP)),)
    household.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with opened(household) as house:
        posted = [(await house.send(f"number {n}")).envelope for n in range(4)]
        for n in range(4):
            await until(lambda n=n: len(household.model.prompts) == n + 1, what=f"run {n}")
            await a_moment(house)
            assert len(household.model.prompts) == n + 1
            (running,) = await rows(house, "SELECT count(*) FROM runs WHERE status = 'running'")
            assert running == (1,)
            await household.clock.advance(1)
            await house.wait_for_outcome(posted[n])
        assert [ids for _, ids in await run_order(house)] == [(id_,) for id_ in posted]
        settled = await rows(house, "SELECT id FROM envelopes WHERE kind = 'message' ORDER BY settled_ms, seq")
        assert [id_ for (id_,) in settled] == posted


@pytest.mark.spec("H33")
async def test_sessions_of_one_agent_and_of_different_agents_run_side_by_side(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (ada(), replace(ada(), name="bo"))
    household.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with opened(household) as house:
        posted = [
            await house.send("a", sender="person:maria"),
            await house.send("b", sender="person:owner"),
            await house.send("c", sender="person:maria", recipient="agent:bo"),
        ]
        await until(lambda: len(household.model.prompts) == 3, what="three runs at once")
        await household.clock.advance(1)
        for receipt in posted:
            assert await house.wait_for_answer(receipt.envelope) == "ok"


@pytest.mark.spec("H33", "C22")
async def test_an_agent_with_a_concurrency_of_one_has_no_two_runs_at_once(household: LocalInstance) -> None:
    household.agents = (ada(concurrency=1), replace(ada(concurrency=1), name="bo"))
    household.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with opened(household) as house:
        first = await house.send("a", sender="person:maria")
        second = await house.send("b", sender="person:owner")
        other = await house.send("c", sender="person:owner", recipient="agent:bo")
        await until(lambda: len(household.model.prompts) == 2, what="one run of each agent")
        await a_moment(house)
        assert len(household.model.prompts) == 2
        await household.clock.advance(1)
        await house.wait_for_outcome(first.envelope)
        await house.wait_for_outcome(other.envelope)
        await until(lambda: len(household.model.prompts) == 3, what="the second run")
        await household.clock.advance(1)
        await house.wait_for_outcome(second.envelope)


@pytest.mark.spec("C22")
async def test_each_kind_of_lane_keeps_to_its_slots(household: LocalInstance) -> None:
    household.slots = SlotLimits(main=2, schedule=1, subagent=3, background=1)
    household.agents = (ada(concurrency=100),)
    household.model.rule = lambda prompt: text_reply("ok", after_s=1)
    wanted = {OriginKind.WEB: 5, OriginKind.SCHEDULE: 3, OriginKind.HEARTBEAT: 2, OriginKind.SUBAGENT: 5}
    async with opened(household) as house:
        posted = [
            await house.send("work", origin=Origin(kind, f"person:maria{n}" if kind.is_foreground else f"{n}"))
            for kind, count in wanted.items()
            for n in range(count)
        ]
        seen: Counter[str] = Counter()
        while any(await outstanding(house)):
            await a_moment(house)
            running = await rows(house, "SELECT lane, count(*) FROM runs WHERE status = 'running' GROUP BY lane")
            for lane, count in running:
                seen[lane] = max(seen[lane], count)
            await household.clock.advance(1)
        assert seen == {"main": 2, "schedule": 1, "subagent": 3}
        for receipt in posted:
            assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED


async def outstanding(house: LocalServer) -> list[str]:
    found = await rows(house, "SELECT id FROM envelopes WHERE kind = 'message' AND status <> 'done'")
    return [id_ for (id_,) in found]


@pytest.mark.spec("C22")
async def test_the_start_of_a_run_tells_how_long_its_lane_waited(household: LocalInstance) -> None:
    household.slots = SlotLimits(main=1)
    household.model.rule = lambda prompt: text_reply("ok", after_s=7)
    async with opened(household) as house:
        await house.send("a", sender="person:maria")
        await until(lambda: len(household.model.prompts) == 1, what="the first run")
        second = await house.send("b", sender="person:owner")
        await household.clock.advance(7)
        await until(lambda: len(household.model.prompts) == 2, what="the second run")
        await household.clock.advance(7)
        await house.wait_for_outcome(second.envelope)
        started = await all_news(house, EventKind.RUN_STARTED)
        assert [piece.body["waited_ms"] for piece in started] == [0, 7000]


@pytest.mark.spec("H34")
async def test_a_run_reads_at_most_ten_envelopes_and_the_next_goes_on(
    any_household: LocalInstance, hands: Hands
) -> None:
    household = any_household
    household.agents = (ada(queue=QueuePolicy(cap=100)),)
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("claim") as claim:
            posted = [(await house.send(f"number {n}")).envelope for n in range(25)]
            await claim.reached.wait()
        for id_ in posted:
            assert (await house.wait_for_outcome(id_)).outcome is Outcome.ANSWERED
        assert [ids for _, ids in await run_order(house)] == [
            tuple(posted[:10]),
            tuple(posted[10:20]),
            tuple(posted[20:]),
        ]
        # All of a batch are answered by the one answer of their run.
        assert len({(await house.wait_for_outcome(id_)).answer for id_ in posted[:10]}) == 1


@pytest.mark.spec("C25")
async def test_a_change_of_sender_or_of_reply_route_ends_a_batch(any_household: LocalInstance, hands: Hands) -> None:
    household = any_household
    household.model.rule = lambda prompt: text_reply("ok")
    alice = EnvelopeContext(sender_name="Alice", username="alice")
    bob = EnvelopeContext(sender_name="Bob", username="bob")
    async with opened(household) as house:
        first = await house.send("to make the session")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        assert first.session is not None
        here = f"agent:ada/{first.session}"
        with hands.holding("claim") as claim:
            order: list[str] = []
            letters: tuple[tuple[str, dict[str, Any]], ...] = (
                ("maria 1", {}),
                ("maria 2", {}),
                ("the owner", {"sender": "person:owner"}),
                ("maria 3", {}),
                ("alice", {"context": alice}),
                ("bob", {"context": bob}),
                ("alice again", {"context": alice}),
                ("an answer is not owed one", {"context": alice, "kind": EnvelopeKind.ANSWER}),
            )
            for text, kw in letters:
                order.append((await house.send(text, recipient=here, **kw)).envelope)
            await claim.reached.wait()
        await house.wait_for_outcome(order[-1])
        runs = [ids for _, ids in await run_order(house)][1:]
        assert runs == [tuple(order[:2]), *((id_,) for id_ in order[2:])]


@pytest.mark.spec("H34", "C22")
async def test_a_flooded_session_does_not_keep_quiet_ones_waiting(household: LocalInstance, hands: Hands) -> None:
    household.slots = SlotLimits(main=1)
    household.agents = (ada(queue=QueuePolicy(cap=1000)),)
    household.people = ("maria", "owner", *(f"quiet{n}" for n in range(20)))
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("finish") as finish:
            # The flood is in before the first of its runs ends; the quiet ones come while it is being worked.
            flood = [(await house.send(f"flood {n}")).envelope for n in range(500)]
            await finish.reached.wait()
            quiet = [await house.send("hello", sender=f"person:quiet{n}") for n in range(20)]
        for receipt in quiet:
            assert await house.wait_for_answer(receipt.envelope) == "ok"
        for id_ in flood:
            await house.wait_for_outcome(id_)
        order = [session for session, _ in await run_order(house)]
        mine = {receipt.session for receipt in quiet}
        last_quiet = max(place for place, session in enumerate(order) if session in mine)
        flooded_before = sum(session not in mine for session in order[:last_quiet])
        assert flooded_before <= 2, "one batch under way, one that may have been claimed with its end"
        assert len(order) == 20 + 51  # the first run held one envelope, the others ten or what was left


@pytest.mark.spec("C22")
async def test_an_agents_schedule_is_not_kept_waiting_by_its_flooded_chat(
    household: LocalInstance, hands: Hands
) -> None:
    """They wait for the same agent, not for the same kind of slot."""
    household.agents = (ada(concurrency=1, queue=QueuePolicy(cap=1000)),)
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("finish") as finish:
            flood = [(await house.send(f"flood {n}")).envelope for n in range(100)]
            await finish.reached.wait()
            clock = await house.send("tick", sender="schedule:0123456789abcdef")
        await house.wait_for_outcome(clock.envelope)
        await house.wait_for_outcome(flood[-1])
        order = [session for session, _ in await run_order(house)]
        assert order.index(str(clock.session)) <= 2


async def test_agents_take_turns_for_the_slots_of_a_kind(household: LocalInstance, hands: Hands) -> None:
    household.slots = SlotLimits(main=1)
    household.people = ("maria", "owner", *(f"p{n}" for n in range(10)))
    household.agents = (ada(), replace(ada(), name="bo"))
    household.model.rule = lambda prompt: text_reply("ok")
    async with opened(household) as house:
        with hands.holding("finish") as finish:
            first = await house.send("first")
            await finish.reached.wait()
            busy = [await house.send("hi", sender=f"person:p{n}") for n in range(10)]
            other = await house.send("hi", recipient="agent:bo")
        await house.wait_for_outcome(other.envelope)
        for receipt in (first, *busy):
            await house.wait_for_outcome(receipt.envelope)
        order = [session for session, _ in await run_order(house)]
        assert order.index(str(other.session)) <= 2
