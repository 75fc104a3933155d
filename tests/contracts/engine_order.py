"""The engine's contract for order: each session has one run at a time, in order; many sessions run concurrently."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from contracts.engine_instance import (
    StoreControl,
    ada,
    let_tasks_settle,
    list_events,
    query_rows,
    run_with_ledger_check,
    wait_until_true,
)

from retinue.domain.envelope import EnvelopeContext, EnvelopeKind, Outcome
from retinue.domain.event import EventKind
from retinue.domain.session import Origin, OriginKind, QueueMode, QueuePolicy
from retinue.domain.structs import replace
from retinue.engine.lanes import SlotLimits
from retinue.testing.local_instance import LocalInstance, LocalServer
from retinue.testing.scripted_model import text_reply


async def run_order(server: LocalServer) -> list[tuple[str, tuple[str, ...]]]:
    """Return which session started a run for which text, in the order in which they started."""
    started = await list_events(server, EventKind.RUN_STARTED)
    return [(str(piece.session), tuple(piece.body["envelopes"])) for piece in started]


@pytest.mark.spec("D3", "C22", "H33")
async def test_a_session_has_one_run_at_a_time_in_order(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.agents = (ada(queue=QueuePolicy(mode=QueueMode.FOLLOWUP)),)
    instance.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with run_with_ledger_check(instance) as server:
        posted = [(await server.send(f"number {n}")).envelope for n in range(4)]
        for n in range(4):
            await wait_until_true(lambda n=n: len(instance.model.prompts) == n + 1, what=f"run {n}")
            await let_tasks_settle(server)
            assert len(instance.model.prompts) == n + 1
            (running,) = await query_rows(server, "SELECT count(*) FROM runs WHERE status = 'running'")
            assert running == (1,)
            await instance.clock.advance(1)
            await server.wait_for_outcome(posted[n])
        assert [ids for _, ids in await run_order(server)] == [(id_,) for id_ in posted]
        settled = await query_rows(server, "SELECT id FROM envelopes WHERE kind = 'message' ORDER BY settled_ms, seq")
        assert [id_ for (id_,) in settled] == posted


@pytest.mark.spec("H33")
async def test_sessions_of_one_agent_and_of_different_agents_run_concurrently(any_instance: LocalInstance) -> None:
    instance = any_instance
    instance.agents = (ada(), replace(ada(), name="bo"))
    instance.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with run_with_ledger_check(instance) as server:
        posted = [
            await server.send("a", sender="person:maria"),
            await server.send("b", sender="person:owner"),
            await server.send("c", sender="person:maria", recipient="agent:bo"),
        ]
        await wait_until_true(lambda: len(instance.model.prompts) == 3, what="three runs at once")
        await instance.clock.advance(1)
        for receipt in posted:
            assert await server.wait_for_answer(receipt.envelope) == "ok"


@pytest.mark.spec("H33", "C22")
async def test_an_agent_with_a_concurrency_of_one_has_no_two_runs_at_once(instance: LocalInstance) -> None:
    instance.agents = (ada(concurrency=1), replace(ada(concurrency=1), name="bo"))
    instance.model.rule = lambda prompt: text_reply("ok", after_s=1)
    async with run_with_ledger_check(instance) as server:
        first = await server.send("a", sender="person:maria")
        second = await server.send("b", sender="person:owner")
        other = await server.send("c", sender="person:owner", recipient="agent:bo")
        await wait_until_true(lambda: len(instance.model.prompts) == 2, what="one run of each agent")
        await let_tasks_settle(server)
        assert len(instance.model.prompts) == 2
        await instance.clock.advance(1)
        await server.wait_for_outcome(first.envelope)
        await server.wait_for_outcome(other.envelope)
        await wait_until_true(lambda: len(instance.model.prompts) == 3, what="the second run")
        await instance.clock.advance(1)
        await server.wait_for_outcome(second.envelope)


@pytest.mark.spec("C22")
async def test_each_lane_kind_respects_its_slot_limit(instance: LocalInstance) -> None:
    instance.slots = SlotLimits(main=2, schedule=1, subagent=3, background=1)
    instance.agents = (ada(concurrency=100),)
    instance.model.rule = lambda prompt: text_reply("ok", after_s=1)
    wanted = {OriginKind.WEB: 5, OriginKind.SCHEDULE: 3, OriginKind.HEARTBEAT: 2, OriginKind.SUBAGENT: 5}
    async with run_with_ledger_check(instance) as server:
        posted = [
            await server.send("work", origin=Origin(kind, f"person:maria{n}" if kind.is_foreground else f"{n}"))
            for kind, count in wanted.items()
            for n in range(count)
        ]
        seen: Counter[str] = Counter()
        while any(await list_unfinished_messages(server)):
            await let_tasks_settle(server)
            running = await query_rows(server, "SELECT lane, count(*) FROM runs WHERE status = 'running' GROUP BY lane")
            for lane, count in running:
                seen[lane] = max(seen[lane], count)
            await instance.clock.advance(1)
        assert seen == {"main": 2, "schedule": 1, "subagent": 3}
        for receipt in posted:
            assert (await server.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED


async def list_unfinished_messages(server: LocalServer) -> list[str]:
    found = await query_rows(server, "SELECT id FROM envelopes WHERE kind = 'message' AND status <> 'done'")
    return [id_ for (id_,) in found]


@pytest.mark.spec("C22")
async def test_the_run_started_event_contains_the_time_its_lane_waited(instance: LocalInstance) -> None:
    instance.slots = SlotLimits(main=1)
    instance.model.rule = lambda prompt: text_reply("ok", after_s=7)
    async with run_with_ledger_check(instance) as server:
        await server.send("a", sender="person:maria")
        await wait_until_true(lambda: len(instance.model.prompts) == 1, what="the first run")
        second = await server.send("b", sender="person:owner")
        await instance.clock.advance(7)
        await wait_until_true(lambda: len(instance.model.prompts) == 2, what="the second run")
        await instance.clock.advance(7)
        await server.wait_for_outcome(second.envelope)
        started = await list_events(server, EventKind.RUN_STARTED)
        assert [piece.body["waited_ms"] for piece in started] == [0, 7000]


@pytest.mark.spec("H34")
async def test_a_run_claims_at_most_ten_envelopes_and_the_next_run_takes_the_rest(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    instance.agents = (ada(queue=QueuePolicy(cap=100)),)
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("claim") as claim:
            posted = [(await server.send(f"number {n}")).envelope for n in range(25)]
            await claim.reached.wait()
        for id_ in posted:
            assert (await server.wait_for_outcome(id_)).outcome is Outcome.ANSWERED
        assert [ids for _, ids in await run_order(server)] == [
            tuple(posted[:10]),
            tuple(posted[10:20]),
            tuple(posted[20:]),
        ]
        # All envelopes of a batch are answered by the one answer of their run.
        assert len({(await server.wait_for_outcome(id_)).answer for id_ in posted[:10]}) == 1


@pytest.mark.spec("C25")
async def test_a_change_of_sender_or_of_reply_route_ends_a_batch(
    any_instance: LocalInstance, store_control: StoreControl
) -> None:
    instance = any_instance
    instance.model.rule = lambda prompt: text_reply("ok")
    alice = EnvelopeContext(sender_name="Alice", username="alice")
    bob = EnvelopeContext(sender_name="Bob", username="bob")
    async with run_with_ledger_check(instance) as server:
        first = await server.send("to make the session")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        assert first.session is not None
        here = f"agent:ada/{first.session}"
        with store_control.hold_commits("claim") as claim:
            order: list[str] = []
            messages: tuple[tuple[str, dict[str, Any]], ...] = (
                ("maria 1", {}),
                ("maria 2", {}),
                ("the owner", {"sender": "person:owner"}),
                ("maria 3", {}),
                ("alice", {"context": alice}),
                ("bob", {"context": bob}),
                ("alice again", {"context": alice}),
                ("an answer is not owed one", {"context": alice, "kind": EnvelopeKind.ANSWER}),
            )
            for text, kw in messages:
                order.append((await server.send(text, recipient=here, **kw)).envelope)
            await claim.reached.wait()
        await server.wait_for_outcome(order[-1])
        runs = [ids for _, ids in await run_order(server)][1:]
        assert runs == [tuple(order[:2]), *((id_,) for id_ in order[2:])]


@pytest.mark.spec("H34", "C22")
async def test_a_flooded_session_does_not_delay_other_sessions(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.slots = SlotLimits(main=1)
    instance.agents = (ada(queue=QueuePolicy(cap=1000)),)
    instance.people = ("maria", "owner", *(f"quiet{n}" for n in range(20)))
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish") as finish:
            # The flood is stored before the first of its runs ends; the other messages arrive during that run.
            flood = [(await server.send(f"flood {n}")).envelope for n in range(500)]
            await finish.reached.wait()
            quiet = [await server.send("hello", sender=f"person:quiet{n}") for n in range(20)]
        for receipt in quiet:
            assert await server.wait_for_answer(receipt.envelope) == "ok"
        for id_ in flood:
            await server.wait_for_outcome(id_)
        order = [session for session, _ in await run_order(server)]
        mine = {receipt.session for receipt in quiet}
        last_quiet = max(place for place, session in enumerate(order) if session in mine)
        flooded_before = sum(session not in mine for session in order[:last_quiet])
        assert flooded_before <= 2, "one active batch, and one that may be claimed in its finish commit"
        assert len(order) == 20 + 51  # the first run took one envelope, the others ten or the rest


@pytest.mark.spec("C22")
async def test_a_flooded_chat_does_not_delay_a_schedule_of_the_same_agent(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    """They share the agent, but not the kind of slot."""
    instance.agents = (ada(concurrency=1, queue=QueuePolicy(cap=1000)),)
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish") as finish:
            flood = [(await server.send(f"flood {n}")).envelope for n in range(100)]
            await finish.reached.wait()
            clock = await server.send("tick", sender="schedule:0123456789abcdef")
        await server.wait_for_outcome(clock.envelope)
        await server.wait_for_outcome(flood[-1])
        order = [session for session, _ in await run_order(server)]
        assert order.index(str(clock.session)) <= 2


async def test_agents_take_turns_for_the_slots_of_a_lane_kind(
    instance: LocalInstance, store_control: StoreControl
) -> None:
    instance.slots = SlotLimits(main=1)
    instance.people = ("maria", "owner", *(f"p{n}" for n in range(10)))
    instance.agents = (ada(), replace(ada(), name="bo"))
    instance.model.rule = lambda prompt: text_reply("ok")
    async with run_with_ledger_check(instance) as server:
        with store_control.hold_commits("finish") as finish:
            first = await server.send("first")
            await finish.reached.wait()
            busy = [await server.send("hi", sender=f"person:p{n}") for n in range(10)]
            other = await server.send("hi", recipient="agent:bo")
        await server.wait_for_outcome(other.envelope)
        for receipt in (first, *busy):
            await server.wait_for_outcome(receipt.envelope)
        order = [session for session, _ in await run_order(server)]
        assert order.index(str(other.session)) <= 2
