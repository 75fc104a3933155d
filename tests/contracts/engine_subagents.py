"""The engine's contract: a subagent does its work once and is told of once, is stopped with whoever sent it out, and
leaves nothing behind that is not put away in its time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    answers_to,
    as_time_goes_by,
    notices_to,
    opened,
    power_cuts,
    results,
    rows,
    user_turns,
    witness,
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


def spawning(household: LocalInstance, **kw: Any) -> LocalInstance:
    def tools(store: Store, ways: EngineReference) -> tuple[Tool, ...]:
        return (
            SessionsSpawnTool(
                SubagentSpawner(
                    ways.delegate, store, lambda: household.loop_parts.models.catalog, lambda: BUILT_IN_AGENT_DEFAULTS
                )
            ),
        )

    kw.setdefault("delegation", DelegationRules(open_max=100))
    household.agents = (ada(**kw), ada(name="bo"))
    household.create_tools = tools
    household.model.rule = errands
    return household


def newest(prompt: ModelPrompt) -> str:
    return next(r.body.text for r in reversed(prompt.records) if isinstance(r.body, UserTurn))


def errands(prompt: ModelPrompt) -> ScriptedReply:
    """`please N` has a subagent sent out for errand N, which writes it down; a slow one takes a while."""
    last, words = prompt.records[-1].body, newest(prompt)
    if isinstance(last, ToolResult):
        return text_reply("did it" if last.tool == "append_line" else "it is out")
    if "The subagent" in words:
        return text_reply(f"told of {len(re.findall('has ended:', words))}")
    if wanted := re.search(r"please (.+)", words):
        cleanup, agent = ("delete" if "gone" in wanted[1] else "keep"), ("bo" if "bo" in wanted[1] else "")
        return tool_call_reply("sessions_spawn", task=f"errand {wanted[1]}", cleanup=cleanup, agentId=agent)
    if "slow" in words:
        return text_reply("did it slowly", after_s=60.0)
    if "fail" in words:
        return ScriptedReply(fails="no errand")
    return tool_call_reply("append_line", text=re.findall(r"errand \S+", words)[-1])


async def spawned(house: LocalServer) -> list[Delegation]:
    found = await rows(house, "SELECT id FROM delegations ORDER BY created_ms, id")
    made = [await house.store.read(lambda conn, id_=row.id: delegations.get(conn, id_)) for row in found]
    return [each for each in made if each is not None]


async def announcements(house: LocalServer) -> list[Any]:
    return await rows(
        house, "SELECT id, kind, status, text FROM envelopes WHERE text LIKE 'The subagent%' ORDER BY seq"
    )


async def messages_to(house: LocalServer, person: str) -> list[str]:
    return [mail.text for mail in await house.list_envelopes_to(person) if mail.kind is EnvelopeKind.MESSAGE]


async def sent_out(house: LocalServer) -> None:
    for n in (1, 2):
        posted = await house.send(f"please {n}", key=f"errand {n}")
        await house.wait_for_outcome(posted.envelope)


@pytest.mark.spec("C51", "C52", "D8")
@pytest.mark.parametrize("delivery", list(CrashPolicy))
async def test_a_subagent_does_its_work_once_and_is_told_of_once_wherever_the_power_goes(
    new_household: Callable[[], LocalInstance], hands: Hands, delivery: CrashPolicy
) -> None:
    """Before it starts, while it works, between its end and the turn of whoever sent it out, and everywhere else."""

    def sending() -> LocalInstance:
        household = spawning(new_household(), delivery=delivery)
        household.agents = tuple(replace(agent, delivery=delivery) for agent in household.agents)
        return household

    lived = 0
    async for house in power_cuts(sending, hands, sent_out):
        lived += 1
        written = witness(house.instance)
        assert len(set(written)) == len(written), "an errand was run twice"
        made = await spawned(house)
        assert not any(each.state.is_open for each in made)
        told = await announcements(house)
        assert len(told) == len(made), "each is told of once"
        assert all(letter.status == EnvelopeStatus.DONE for letter in told)
        ((session,),) = await rows(house, "SELECT id FROM sessions WHERE agent = 'ada' AND parent IS NULL")
        read = "\n".join(user_turns(await house.list_records(session)))
        answered = await answers_to(house, "maria")
        if delivery is CrashPolicy.RESUME:
            assert set(written) <= {"errand 1", "errand 2"}  # one that was cut off in the middle is not made again
            assert [each.state for each in made] == [DelegationState.DONE] * 2
            assert read.count("has ended: ok.") == 2
            told_of = [json.loads(each.output) for each in results(await house.list_records(session))]
            assert [each["status"] for each in told_of] == ["accepted"] * 2
            assert {each["runId"] for each in told_of} == {each.worker_run for each in made}
            assert answered == ["it is out"] * 2
            counted = [int(text.removeprefix("told of ")) for text in await messages_to(house, "maria")]
            assert sum(counted) == 2
        else:
            assert len(answered) + len(await notices_to(house, "maria")) >= 2
            assert read.count("has ended:") == len(made)
    assert lived > 20


# --- stopping ---


@pytest.mark.spec("C29", "C52")
async def test_a_stop_takes_those_at_work_and_those_in_line_with_it_and_wakes_nobody(household: LocalInstance) -> None:
    staff = spawning(household)
    staff.slots = SlotLimits(main=4, subagent=1)
    async with opened(staff) as house:
        first = await house.send("please slow 1")
        await house.wait_for_outcome(first.envelope)
        second = await house.send("please slow 2")
        await house.wait_for_outcome(second.envelope)
        assert first.session is not None
        done = await house.engine.cancel(first.session, by="person:maria", reason="enough", clear_due=True)
        assert len(done.runs) == 1, "the one at work"
        assert done.cleared_envelopes == 1, "and the one that waited for a slot"
        await a_moment(house)
        assert [each.state for each in await spawned(house)] == [DelegationState.CANCELLED] * 2
        told = await announcements(house)
        assert len(told) == 2 and all("has ended: stopped." in letter.text for letter in told)
        assert await messages_to(house, "maria") == [], "whoever has stopped it all is not told of each"
        begun = [newest(prompt) for prompt in staff.model.prompts if "please" not in newest(prompt)]
        assert not any("errand slow 2" in words for words in begun), "it never began"


async def test_one_that_is_stopped_alone_is_told_of_to_whoever_sent_it_out(household: LocalInstance) -> None:
    async with opened(spawning(household)) as house:
        first = await house.send("please slow 1")
        await house.wait_for_outcome(first.envelope)
        [made] = await spawned(house)
        assert made.target_session is not None
        await house.engine.cancel(made.target_session, by="person:maria", reason="enough", clear_due=True)
        await house.wait_until_idle()
        assert len(await announcements(house)) == 1
        assert await messages_to(house, "maria") == ["told of 1"]


@pytest.mark.parametrize("gone", [False, True])
async def test_whoever_was_let_go_has_nothing_more_done_for_them(household: LocalInstance, gone: bool) -> None:
    staff = spawning(household, subagents=SubagentRules(allow=("bo",)))
    staff.slots = SlotLimits(main=4, subagent=1)
    async with opened(staff) as house:
        for words in ("please slow 1", "please bo-2"):
            await house.wait_for_outcome((await house.send(words)).envelope)
        if gone:
            await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        await as_time_goes_by(house, house.wait_until_idle(), step_s=10)
        assert witness(staff) == ([] if gone else ["errand bo-2"])


# --- what is left of them ---


async def put(house: LocalServer, id_: str) -> Any:
    found = await house.store.read(lambda conn: sessions.get(conn, id_))
    assert found is not None
    return found


@pytest.mark.spec("C52", "C114.subagents_archive")
async def test_a_session_is_put_away_an_hour_after_its_end_and_comes_back_with_its_next_mail(
    any_household: LocalInstance,
) -> None:
    async with opened(spawning(any_household)) as house:
        first = await house.send("please 1")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        [made] = await spawned(house)
        assert made.target_session is not None and made.archive_after_s == HOUR_S
        await house.instance.clock.advance(HOUR_S - 60)
        await a_moment(house)
        assert (await put(house, made.target_session)).archived_at is None
        await house.instance.clock.advance(120)
        await house.wait_for(_archived(made.target_session), what="the session to be put away")
        listed = await house.store.scan(
            lambda conn: sessions.list_sessions(conn, after=sessions.SessionListPosition(), limit=10)
        )
        assert [each.id for each in listed] == [first.session]
        everyone = await house.store.scan(
            lambda conn: sessions.list_sessions(conn, after=sessions.SessionListPosition(), limit=10, archived=True)
        )
        assert {each.id for each in everyone} == {first.session, made.target_session}
        assert await house.list_records(made.target_session), "nothing of it is lost"
        await house.send("errand 7", recipient=f"agent:ada/{made.target_session}")
        await house.wait_until_idle()
        assert (await put(house, made.target_session)).archived_at is None


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
async def test_it_is_put_away_only_when_nothing_happens_in_it_and_not_where_it_is_pinned(
    household: LocalInstance,
) -> None:
    staff = spawning(household, subagents=SubagentRules(archive_after_s=5.0))
    async with opened(staff) as house:
        first = await house.send("please 1")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        [made] = await spawned(house)
        child = made.target_session or ""
        assert made.archive_after_s == 5.0
        await house.send("slow", recipient=f"agent:ada/{child}")
        await a_moment(house)
        await house.instance.clock.advance(6)
        await a_moment(house)
        assert (await put(house, child)).archived_at is None, "it is at work"
        await house.store.write(lambda conn: sessions.set_pinned(conn, child, pinned=True, at_ms=1), point="test")
        await as_time_goes_by(house, house.wait_until_idle(), step_s=10)
        await house.instance.clock.advance(2 * RETRY_AFTER_MS / 1000)
        await house.wait_for(
            lambda conn: (found := delegations.get(conn, made.id)) and found.archived_at, what="its time to pass"
        )
        assert (await put(house, child)).archived_at is None, "someone has pinned it"


async def test_of_one_that_is_never_to_be_put_away_nothing_is(household: LocalInstance) -> None:
    async with opened(spawning(household, subagents=SubagentRules(archive_after_s=0))) as house:
        first = await house.send("please 1")
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        [made] = await spawned(house)
        assert made.archive_after_s is None and made.archive_at is None
        await house.instance.clock.advance(100 * HOUR_S)
        await a_moment(house)
        assert (await put(house, made.target_session or "")).archived_at is None


@pytest.mark.spec("C52")
async def test_one_that_is_not_to_be_kept_is_deleted_once_its_result_was_read_and_not_before(
    any_household: LocalInstance,
) -> None:
    staff = spawning(any_household)
    base = staff.model.rule
    assert base is not None
    staff.model.rule = lambda prompt: (
        replace(base(prompt), after_s=30.0) if "The subagent" in newest(prompt) else base(prompt)
    )
    async with opened(staff) as house:
        first = await house.send("please gone 1")
        await house.wait_for_outcome(first.envelope)
        await house.wait_for(_told_of(1), what="the announcement")
        [made] = await spawned(house)
        child = made.target_session or ""
        await house.instance.clock.advance(5)
        await a_moment(house)
        assert (await put(house, child)).deleted_at is None, "its result is being read"
        await as_time_goes_by(house, house.wait_until_idle(), step_s=10)
        await as_time_goes_by(house, house.wait_for(_deleted(child), what="it to be deleted"), step_s=5)
        assert len(await announcements(house)) == 1
        [made] = await spawned(house)
        assert made.archived_at is not None and made.state is DelegationState.DONE, "the record of it stays"


def _told_of(count: int) -> Callable[[sa.Connection], bool]:
    statement = sa.text("SELECT count(*) FROM envelopes WHERE text LIKE 'The subagent%'")
    return lambda conn: conn.execute(statement).scalar_one() == count


async def test_however_many_there_are_all_are_put_away(household: LocalInstance) -> None:
    async with opened(spawning(household, subagents=SubagentRules(archive_after_s=1.0))) as house:
        for n in range(12):
            await house.wait_for_outcome((await house.send(f"please {n}")).envelope)
        await house.wait_until_idle()
        made = await spawned(house)
        assert len(made) == 12
        await house.instance.clock.advance(2)
        left = "SELECT count(*) FROM delegations WHERE archived_ms IS NULL"
        await house.wait_for(lambda conn: conn.exec_driver_sql(left).scalar_one() == 0, what="all to be put away")


async def test_a_child_that_waits_for_a_person_is_answered_and_told_of_once(household: LocalInstance) -> None:
    staff = spawning(household, tools=ToolRules(ask=("append_line",)))
    async with opened(staff) as house:
        first = await house.send("please 1", sender="person:owner")
        await house.wait_for_outcome(first.envelope)
        approval = await house.wait_for(
            lambda conn: conn.exec_driver_sql("SELECT id FROM approvals WHERE state = 'open'").scalar(),
            what="a question",
        )
        assert witness(staff) == [] and await announcements(house) == []
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("owner"))
        await house.wait_for(_told_of(1), what="the announcement")
        await house.wait_until_idle()
        assert witness(staff) == ["errand 1"]
        assert await messages_to(house, "owner") == ["told of 1"]
        letter = (await announcements(house))[0]
        settled = await house.store.read(lambda conn: envelopes.get(conn, letter.id))
        assert settled is not None and settled.status is EnvelopeStatus.DONE
