"""The engine's contract for subagents: each works once, reports once, is stopped with its parent and is archived in
time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from contracts.engine_instance import (
    StoreControl,
    ada,
    advance_clock_until_done,
    let_tasks_settle,
    list_answers_to,
    list_notices_to,
    list_tool_results,
    query_rows,
    read_witness_file,
    run_with_ledger_check,
    run_with_power_cuts,
    user_turns,
)

from retinue.config.agent_defaults import BUILT_IN_AGENT_DEFAULTS
from retinue.domain.agent import CrashPolicy, DelegationRules, SubagentRules, ToolRules
from retinue.domain.delegation import Delegation, DelegationState
from retinue.domain.envelope import EnvelopeKind, EnvelopeStatus
from retinue.domain.record import UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.engine.lanes import SlotLimits
from retinue.engine.subagent_cleanup import RETRY_AFTER_MS
from retinue.models.base import ModelPrompt
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.sessions import sessions
from retinue.testing.local_instance import EngineReference, LocalInstance, LocalServer, boss_principal
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.base import Tool
from retinue.tools.delegate.spawn_tools import SessionsSpawnTool, SubagentSpawner

HOUR_S = 3600.0


def with_spawn_tool(instance: LocalInstance, **kw: Any) -> LocalInstance:
    def tools(store: Store, ways: EngineReference) -> tuple[Tool, ...]:
        return (
            SessionsSpawnTool(
                SubagentSpawner(
                    ways.delegate, store, lambda: instance.loop_parts.models.catalog, lambda: BUILT_IN_AGENT_DEFAULTS
                )
            ),
        )

    kw.setdefault("delegation", DelegationRules(open_max=100))
    instance.agents = (ada(**kw), ada(name="bo"))
    instance.create_tools = tools
    instance.model.rule = reply_to_errand
    return instance


def get_last_user_text(prompt: ModelPrompt) -> str:
    return next(r.body.text for r in reversed(prompt.records) if isinstance(r.body, UserTurn))


def reply_to_errand(prompt: ModelPrompt) -> ScriptedReply:
    """Have `please N` start a subagent for errand N, which writes it down. A slow errand takes a while."""
    last, words = prompt.records[-1].body, get_last_user_text(prompt)
    if isinstance(last, ToolResult):
        return text_reply("did it" if last.tool == "append_line" else "it is out")
    if "The subagent" in words:
        return text_reply(f"reports: {len(re.findall('has ended:', words))}")
    if wanted := re.search(r"please (.+)", words):
        cleanup, agent = ("delete" if "gone" in wanted[1] else "keep"), ("bo" if "bo" in wanted[1] else "")
        return tool_call_reply("sessions_spawn", task=f"errand {wanted[1]}", cleanup=cleanup, agentId=agent)
    if "slow" in words:
        return text_reply("did it slowly", after_s=60.0)
    if "fail" in words:
        return ScriptedReply(fails="no errand")
    return tool_call_reply("append_line", text=re.findall(r"errand \S+", words)[-1])


async def list_spawned(server: LocalServer) -> list[Delegation]:
    found = await query_rows(server, "SELECT id FROM delegations ORDER BY created_ms, id")
    made = [await server.store.read(lambda conn, id_=row.id: delegations.get(conn, id_)) for row in found]
    return [each for each in made if each is not None]


async def list_announcements(server: LocalServer) -> list[Any]:
    return await query_rows(
        server, "SELECT id, kind, status, text FROM envelopes WHERE text LIKE 'The subagent%' ORDER BY seq"
    )


async def list_messages_to(server: LocalServer, person: str) -> list[str]:
    return [mail.text for mail in await server.list_envelopes_to(person) if mail.kind is EnvelopeKind.MESSAGE]


async def send_errand_requests(server: LocalServer) -> None:
    for n in (1, 2):
        posted = await server.send(f"please {n}", key=f"errand {n}")
        await server.wait_for_outcome(posted.envelope)


@pytest.mark.spec("C51", "C52", "D8")
@pytest.mark.parametrize("delivery", list(CrashPolicy))
async def test_a_subagent_does_its_work_and_is_announced_once_across_power_cuts(
    new_instance: Callable[[], LocalInstance], store_control: StoreControl, delivery: CrashPolicy
) -> None:
    """Power cuts happen before it starts, while it works, between its end and its parent's turn, and at every other
    commit."""

    def make_sending_instance() -> LocalInstance:
        instance = with_spawn_tool(new_instance(), crash_policy=delivery)
        instance.agents = tuple(replace(agent, crash_policy=delivery) for agent in instance.agents)
        return instance

    scenario_count = 0
    async for server in run_with_power_cuts(make_sending_instance, store_control, send_errand_requests):
        scenario_count += 1
        written = read_witness_file(server.instance)
        assert len(set(written)) == len(written), "an errand was run twice"
        made = await list_spawned(server)
        assert not any(each.state.is_open for each in made)
        announced = await list_announcements(server)
        assert len(announced) == len(made), "each is reported once"
        assert all(announcement.status == EnvelopeStatus.DONE for announcement in announced)
        ((session,),) = await query_rows(server, "SELECT id FROM sessions WHERE agent = 'ada' AND parent IS NULL")
        read = "\n".join(user_turns(await server.list_records(session)))
        answered = await list_answers_to(server, "maria")
        if delivery is CrashPolicy.RESUME:
            assert set(written) <= {"errand 1", "errand 2"}  # a subagent that was interrupted is not started again
            assert [each.state for each in made] == [DelegationState.DONE] * 2
            assert read.count("has ended: ok.") == 2
            spawn_results = [json.loads(each.output) for each in list_tool_results(await server.list_records(session))]
            assert [each["status"] for each in spawn_results] == ["accepted"] * 2
            assert {each["runId"] for each in spawn_results} == {each.worker_run for each in made}
            assert answered == ["it is out"] * 2
            counted = [int(text.removeprefix("reports: ")) for text in await list_messages_to(server, "maria")]
            assert sum(counted) == 2
        else:
            assert len(answered) + len(await list_notices_to(server, "maria")) >= 2
            assert read.count("has ended:") == len(made)
    assert scenario_count > 20


# --- stopping ---


@pytest.mark.spec("C29", "C52")
async def test_a_stop_cancels_running_and_queued_subagents_without_waking_the_parent(instance: LocalInstance) -> None:
    staff = with_spawn_tool(instance)
    staff.slots = SlotLimits(main=4, subagent=1)
    async with run_with_ledger_check(staff) as server:
        first = await server.send("please slow 1")
        await server.wait_for_outcome(first.envelope)
        second = await server.send("please slow 2")
        await server.wait_for_outcome(second.envelope)
        assert first.session is not None
        done = await server.engine.cancel(first.session, by="person:maria", reason="enough", clear_due=True)
        assert len(done.runs) == 1, "the active one"
        assert done.cleared_envelopes == 1, "and the one that waited for a slot"
        await let_tasks_settle(server)
        assert [each.state for each in await list_spawned(server)] == [DelegationState.CANCELLED] * 2
        announced = await list_announcements(server)
        assert len(announced) == 2 and all("has ended: stopped." in announcement.text for announcement in announced)
        assert await list_messages_to(server, "maria") == [], "the person who stopped them gets no notice for each one"
        begun = [
            get_last_user_text(prompt) for prompt in staff.model.prompts if "please" not in get_last_user_text(prompt)
        ]
        assert not any("errand slow 2" in words for words in begun), "it never started"


async def test_a_subagent_stopped_alone_is_announced_to_its_parent_session(instance: LocalInstance) -> None:
    async with run_with_ledger_check(with_spawn_tool(instance)) as server:
        first = await server.send("please slow 1")
        await server.wait_for_outcome(first.envelope)
        [made] = await list_spawned(server)
        assert made.target_session is not None
        await server.engine.cancel(made.target_session, by="person:maria", reason="enough", clear_due=True)
        await server.wait_until_idle()
        assert len(await list_announcements(server)) == 1
        assert await list_messages_to(server, "maria") == ["reports: 1"]


@pytest.mark.parametrize("gone", [False, True])
async def test_a_queued_subagent_does_not_start_if_the_parent_agent_was_removed(
    instance: LocalInstance, gone: bool
) -> None:
    staff = with_spawn_tool(instance, subagents=SubagentRules(allow=("bo",)))
    staff.slots = SlotLimits(main=4, subagent=1)
    async with run_with_ledger_check(staff) as server:
        for words in ("please slow 1", "please bo-2"):
            await server.wait_for_outcome((await server.send(words)).envelope)
        if gone:
            await server.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        await advance_clock_until_done(server, server.wait_until_idle(), step_s=10)
        assert read_witness_file(staff) == ([] if gone else ["errand bo-2"])


# --- archiving ---


async def read_session(server: LocalServer, id_: str) -> Any:
    found = await server.store.read(lambda conn: sessions.get(conn, id_))
    assert found is not None
    return found


@pytest.mark.spec("C52", "C114.subagents_archive")
async def test_a_subagent_session_is_archived_after_an_hour_and_unarchived_by_the_next_envelope(
    any_instance: LocalInstance,
) -> None:
    async with run_with_ledger_check(with_spawn_tool(any_instance)) as server:
        first = await server.send("please 1")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        [made] = await list_spawned(server)
        assert made.target_session is not None and made.archive_after_s == HOUR_S
        await server.instance.clock.advance(HOUR_S - 60)
        await let_tasks_settle(server)
        assert (await read_session(server, made.target_session)).archived_at is None
        await server.instance.clock.advance(120)
        await server.wait_for(_archived(made.target_session), what="the session to be archived")
        listed = await server.store.scan(
            lambda conn: sessions.list_sessions(conn, after=sessions.SessionListPosition(), limit=10)
        )
        assert [each.id for each in listed] == [first.session]
        listed_with_archived = await server.store.scan(
            lambda conn: sessions.list_sessions(conn, after=sessions.SessionListPosition(), limit=10, archived=True)
        )
        assert {each.id for each in listed_with_archived} == {first.session, made.target_session}
        assert await server.list_records(made.target_session), "nothing of it is lost"
        await server.send("errand 7", recipient=f"agent:ada/{made.target_session}")
        await server.wait_until_idle()
        assert (await read_session(server, made.target_session)).archived_at is None


def _archived(id_: str) -> Callable[[sa.Connection], bool]:
    def look(conn: sa.Connection) -> bool:
        found = sessions.get(conn, id_)
        return found is not None and found.archived_at is not None

    return look


def _deleted(id_: str) -> Callable[[sa.Connection], bool]:
    def look(conn: sa.Connection) -> bool:
        found = sessions.get(conn, id_)
        return found is not None and found.deleted_at is not None

    return look


@pytest.mark.spec("C52")
async def test_an_active_or_pinned_subagent_session_is_not_archived(
    instance: LocalInstance,
) -> None:
    staff = with_spawn_tool(instance, subagents=SubagentRules(archive_after_s=5.0))
    async with run_with_ledger_check(staff) as server:
        first = await server.send("please 1")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        [made] = await list_spawned(server)
        child = made.target_session or ""
        assert made.archive_after_s == 5.0
        await server.send("slow", recipient=f"agent:ada/{child}")
        await let_tasks_settle(server)
        await server.instance.clock.advance(6)
        await let_tasks_settle(server)
        assert (await read_session(server, child)).archived_at is None, "it is active"
        await server.store.write(lambda conn: sessions.set_pinned(conn, child, pinned=True, at_ms=1), point="test")
        await advance_clock_until_done(server, server.wait_until_idle(), step_s=10)
        await server.instance.clock.advance(2 * RETRY_AFTER_MS / 1000)
        await server.wait_for(
            lambda conn: (found := delegations.get(conn, made.id)) and found.archived_at, what="its time to pass"
        )
        assert (await read_session(server, child)).archived_at is None, "it is pinned"


async def test_a_subagent_session_with_archiving_disabled_is_never_archived(instance: LocalInstance) -> None:
    async with run_with_ledger_check(with_spawn_tool(instance, subagents=SubagentRules(archive_after_s=0))) as server:
        first = await server.send("please 1")
        await server.wait_for_outcome(first.envelope)
        await server.wait_until_idle()
        [made] = await list_spawned(server)
        assert made.archive_after_s is None and made.archive_at is None
        await server.instance.clock.advance(100 * HOUR_S)
        await let_tasks_settle(server)
        assert (await read_session(server, made.target_session or "")).archived_at is None


@pytest.mark.spec("C52")
async def test_a_subagent_session_with_cleanup_delete_is_deleted_after_its_result_was_read(
    any_instance: LocalInstance,
) -> None:
    staff = with_spawn_tool(any_instance)
    base = staff.model.rule
    assert base is not None
    staff.model.rule = lambda prompt: (
        replace(base(prompt), after_s=30.0) if "The subagent" in get_last_user_text(prompt) else base(prompt)
    )
    async with run_with_ledger_check(staff) as server:
        first = await server.send("please gone 1")
        await server.wait_for_outcome(first.envelope)
        await server.wait_for(_announcement_count_is(1), what="the announcement")
        [made] = await list_spawned(server)
        child = made.target_session or ""
        await server.instance.clock.advance(5)
        await let_tasks_settle(server)
        assert (await read_session(server, child)).deleted_at is None, "its result is being read"
        await advance_clock_until_done(server, server.wait_until_idle(), step_s=10)
        await advance_clock_until_done(server, server.wait_for(_deleted(child), what="it to be deleted"), step_s=5)
        assert len(await list_announcements(server)) == 1
        [made] = await list_spawned(server)
        assert made.archived_at is not None and made.state is DelegationState.DONE, "the record of it stays"


def _announcement_count_is(count: int) -> Callable[[sa.Connection], bool]:
    statement = sa.text("SELECT count(*) FROM envelopes WHERE text LIKE 'The subagent%'")
    return lambda conn: conn.execute(statement).scalar_one() == count


async def test_many_subagent_sessions_are_all_archived(instance: LocalInstance) -> None:
    async with run_with_ledger_check(with_spawn_tool(instance, subagents=SubagentRules(archive_after_s=1.0))) as server:
        for n in range(12):
            await server.wait_for_outcome((await server.send(f"please {n}")).envelope)
        await server.wait_until_idle()
        made = await list_spawned(server)
        assert len(made) == 12
        await server.instance.clock.advance(2)
        left = "SELECT count(*) FROM delegations WHERE archived_ms IS NULL"
        await server.wait_for(lambda conn: conn.exec_driver_sql(left).scalar_one() == 0, what="all to be archived")


async def test_a_subagent_suspended_for_an_approval_resumes_and_is_announced_once(instance: LocalInstance) -> None:
    staff = with_spawn_tool(instance, tools=ToolRules(ask=("append_line",)))
    async with run_with_ledger_check(staff) as server:
        first = await server.send("please 1", sender="person:owner")
        await server.wait_for_outcome(first.envelope)
        approval = await server.wait_for(
            lambda conn: conn.exec_driver_sql("SELECT id FROM approvals WHERE state = 'open'").scalar(),
            what="a question",
        )
        assert read_witness_file(staff) == [] and await list_announcements(server) == []
        await server.engine.answer_approval(approval, allow=True, by=boss_principal("owner"))
        await server.wait_for(_announcement_count_is(1), what="the announcement")
        await server.wait_until_idle()
        assert read_witness_file(staff) == ["errand 1"]
        assert await list_messages_to(server, "owner") == ["reports: 1"]
        announcement = (await list_announcements(server))[0]
        settled = await server.store.read(lambda conn: envelopes.get(conn, announcement.id))
        assert settled is not None and settled.status is EnvelopeStatus.DONE
