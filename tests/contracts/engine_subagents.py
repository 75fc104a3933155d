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

from retinue.config.agent_defaults import PLAIN
from retinue.domain.agent import DelegationRules, Delivery, SubagentRules, ToolRules
from retinue.domain.delegation import Delegation, DelegationState
from retinue.domain.envelope import Kind, Status
from retinue.domain.record import UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.engine.lanes import Slots
from retinue.engine.subagent_cleanup import LOOK_AGAIN_MS
from retinue.models.base import Prompt
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import delegations
from retinue.store.sessions import sessions
from retinue.testing.local_instance import House, Household, Ways, boss
from retinue.testing.scripted_model import Line, calls, says
from retinue.tools.base import Tool
from retinue.tools.delegate.spawn_tools import Sending, SessionsSpawn

HOUR_S = 3600.0


def spawning(household: Household, **kw: Any) -> Household:
    def tools(store: Store, ways: Ways) -> tuple[Tool, ...]:
        return (SessionsSpawn(Sending(ways.hand_over, store, lambda: household.thinking.minds.catalog, lambda: PLAIN)),)

    kw.setdefault("delegation", DelegationRules(open_max=100))
    household.agents = (ada(**kw), ada(name="bo"))
    household.furnishing = tools
    household.model.rule = errands
    return household


def newest(prompt: Prompt) -> str:
    return next(r.body.text for r in reversed(prompt.records) if isinstance(r.body, UserTurn))


def errands(prompt: Prompt) -> Line:
    """`please N` has a subagent sent out for errand N, which writes it down; a slow one takes a while."""
    last, words = prompt.records[-1].body, newest(prompt)
    if isinstance(last, ToolResult):
        return says("did it" if last.tool == "append_line" else "it is out")
    if "The subagent" in words:
        return says(f"told of {len(re.findall('has ended:', words))}")
    if wanted := re.search(r"please (.+)", words):
        cleanup, agent = ("delete" if "gone" in wanted[1] else "keep"), ("bo" if "bo" in wanted[1] else "")
        return calls("sessions_spawn", task=f"errand {wanted[1]}", cleanup=cleanup, agentId=agent)
    if "slow" in words:
        return says("did it slowly", after_s=60.0)
    if "fail" in words:
        return Line(fails="no errand")
    return calls("append_line", text=re.findall(r"errand \S+", words)[-1])


async def spawned(house: House) -> list[Delegation]:
    found = await rows(house, "SELECT id FROM delegations ORDER BY created_ms, id")
    made = [await house.store.read(lambda conn, id_=row.id: delegations.get(conn, id_)) for row in found]
    return [each for each in made if each is not None]


async def announcements(house: House) -> list[Any]:
    return await rows(
        house, "SELECT id, kind, status, text FROM envelopes WHERE text LIKE 'The subagent%' ORDER BY seq"
    )


async def messages_to(house: House, person: str) -> list[str]:
    return [mail.text for mail in await house.mail_for(person) if mail.kind is Kind.MESSAGE]


async def sent_out(house: House) -> None:
    for n in (1, 2):
        posted = await house.post(f"please {n}", key=f"errand {n}")
        await house.outcome(posted.envelope)


@pytest.mark.spec("C51", "C52", "D8")
@pytest.mark.parametrize("delivery", list(Delivery))
async def test_a_subagent_does_its_work_once_and_is_told_of_once_wherever_the_power_goes(
    new_household: Callable[[], Household], hands: Hands, delivery: Delivery
) -> None:
    """Before it starts, while it works, between its end and the turn of whoever sent it out, and everywhere else."""

    def sending() -> Household:
        household = spawning(new_household(), delivery=delivery)
        household.agents = tuple(replace(agent, delivery=delivery) for agent in household.agents)
        return household

    lived = 0
    async for house in power_cuts(sending, hands, sent_out):
        lived += 1
        written = witness(house.household)
        assert len(set(written)) == len(written), "an errand was run twice"
        made = await spawned(house)
        assert not any(each.state.open for each in made)
        told = await announcements(house)
        assert len(told) == len(made), "each is told of once"
        assert all(letter.status == Status.DONE for letter in told)
        ((session,),) = await rows(house, "SELECT id FROM sessions WHERE agent = 'ada' AND parent IS NULL")
        read = "\n".join(user_turns(await house.records(session)))
        answered = await answers_to(house, "maria")
        if delivery is Delivery.RESUME:
            assert set(written) <= {"errand 1", "errand 2"}  # one that was cut off in the middle is not made again
            assert [each.state for each in made] == [DelegationState.DONE] * 2
            assert read.count("has ended: ok.") == 2
            told_of = [json.loads(each.output) for each in results(await house.records(session))]
            assert [each["status"] for each in told_of] == ["accepted"] * 2
            assert {each["runId"] for each in told_of} == {each.worked_by for each in made}
            assert answered == ["it is out"] * 2
            counted = [int(text.removeprefix("told of ")) for text in await messages_to(house, "maria")]
            assert sum(counted) == 2
        else:
            assert len(answered) + len(await notices_to(house, "maria")) >= 2
            assert read.count("has ended:") == len(made)
    assert lived > 20


# --- stopping ---


@pytest.mark.spec("C29", "C52")
async def test_a_stop_takes_those_at_work_and_those_in_line_with_it_and_wakes_nobody(household: Household) -> None:
    staff = spawning(household)
    staff.slots = Slots(main=4, subagent=1)
    async with opened(staff) as house:
        first = await house.post("please slow 1")
        await house.outcome(first.envelope)
        second = await house.post("please slow 2")
        await house.outcome(second.envelope)
        assert first.session is not None
        done = await house.engine.cancel(first.session, by="person:maria", why="enough", clear_due=True)
        assert len(done.runs) == 1, "the one at work"
        assert done.cleared == 1, "and the one that waited for a slot"
        await a_moment(house)
        assert [each.state for each in await spawned(house)] == [DelegationState.CANCELLED] * 2
        told = await announcements(house)
        assert len(told) == 2 and all("has ended: stopped." in letter.text for letter in told)
        assert await messages_to(house, "maria") == [], "whoever has stopped it all is not told of each"
        begun = [newest(prompt) for prompt in staff.model.prompts if "please" not in newest(prompt)]
        assert not any("errand slow 2" in words for words in begun), "it never began"


async def test_one_that_is_stopped_alone_is_told_of_to_whoever_sent_it_out(household: Household) -> None:
    async with opened(spawning(household)) as house:
        first = await house.post("please slow 1")
        await house.outcome(first.envelope)
        [made] = await spawned(house)
        assert made.to is not None
        await house.engine.cancel(made.to, by="person:maria", why="enough", clear_due=True)
        await house.quiet()
        assert len(await announcements(house)) == 1
        assert await messages_to(house, "maria") == ["told of 1"]


@pytest.mark.parametrize("gone", [False, True])
async def test_whoever_was_let_go_has_nothing_more_done_for_them(household: Household, gone: bool) -> None:
    staff = spawning(household, subagents=SubagentRules(allow=("bo",)))
    staff.slots = Slots(main=4, subagent=1)
    async with opened(staff) as house:
        for words in ("please slow 1", "please bo-2"):
            await house.outcome((await house.post(words)).envelope)
        if gone:
            await house.store.write(lambda conn: agents.remove(conn, "ada", at_ms=1), point="test")
        await as_time_goes_by(house, house.quiet(), step_s=10)
        assert witness(staff) == ([] if gone else ["errand bo-2"])


# --- what is left of them ---


async def put(house: House, id_: str) -> Any:
    found = await house.store.read(lambda conn: sessions.get(conn, id_))
    assert found is not None
    return found


@pytest.mark.spec("C52", "C114.subagents_archive")
async def test_a_session_is_put_away_an_hour_after_its_end_and_comes_back_with_its_next_mail(
    any_household: Household,
) -> None:
    async with opened(spawning(any_household)) as house:
        first = await house.post("please 1")
        await house.outcome(first.envelope)
        await house.quiet()
        [made] = await spawned(house)
        assert made.to is not None and made.archive_after_s == HOUR_S
        await house.household.clock.advance(HOUR_S - 60)
        await a_moment(house)
        assert (await put(house, made.to)).archived_at is None
        await house.household.clock.advance(120)
        await house.eventually(_archived(made.to), what="the session to be put away")
        listed = await house.store.scan(lambda conn: sessions.listed(conn, after=sessions.Place(), limit=10))
        assert [each.id for each in listed] == [first.session]
        everyone = await house.store.scan(
            lambda conn: sessions.listed(conn, after=sessions.Place(), limit=10, archived=True)
        )
        assert {each.id for each in everyone} == {first.session, made.to}
        assert await house.records(made.to), "nothing of it is lost"
        await house.post("errand 7", recipient=f"agent:ada/{made.to}")
        await house.quiet()
        assert (await put(house, made.to)).archived_at is None


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
async def test_it_is_put_away_only_when_nothing_happens_in_it_and_not_where_it_is_pinned(household: Household) -> None:
    staff = spawning(household, subagents=SubagentRules(archive_after_s=5.0))
    async with opened(staff) as house:
        first = await house.post("please 1")
        await house.outcome(first.envelope)
        await house.quiet()
        [made] = await spawned(house)
        child = made.to or ""
        assert made.archive_after_s == 5.0
        await house.post("slow", recipient=f"agent:ada/{child}")
        await a_moment(house)
        await house.household.clock.advance(6)
        await a_moment(house)
        assert (await put(house, child)).archived_at is None, "it is at work"
        await house.store.write(lambda conn: sessions.pin(conn, child, pinned=True, at_ms=1), point="test")
        await as_time_goes_by(house, house.quiet(), step_s=10)
        await house.household.clock.advance(2 * LOOK_AGAIN_MS / 1000)
        await house.eventually(
            lambda conn: (found := delegations.get(conn, made.id)) and found.archived_at, what="its time to pass"
        )
        assert (await put(house, child)).archived_at is None, "someone has pinned it"


async def test_of_one_that_is_never_to_be_put_away_nothing_is(household: Household) -> None:
    async with opened(spawning(household, subagents=SubagentRules(archive_after_s=0))) as house:
        first = await house.post("please 1")
        await house.outcome(first.envelope)
        await house.quiet()
        [made] = await spawned(house)
        assert made.archive_after_s is None and made.archive_at is None
        await house.household.clock.advance(100 * HOUR_S)
        await a_moment(house)
        assert (await put(house, made.to or "")).archived_at is None


@pytest.mark.spec("C52")
async def test_one_that_is_not_to_be_kept_is_deleted_once_its_result_was_read_and_not_before(
    any_household: Household,
) -> None:
    staff = spawning(any_household)
    base = staff.model.rule
    assert base is not None
    staff.model.rule = lambda prompt: (
        replace(base(prompt), after_s=30.0) if "The subagent" in newest(prompt) else base(prompt)
    )
    async with opened(staff) as house:
        first = await house.post("please gone 1")
        await house.outcome(first.envelope)
        await house.eventually(_told_of(1), what="the announcement")
        [made] = await spawned(house)
        child = made.to or ""
        await house.household.clock.advance(5)
        await a_moment(house)
        assert (await put(house, child)).deleted_at is None, "its result is being read"
        await as_time_goes_by(house, house.quiet(), step_s=10)
        await as_time_goes_by(house, house.eventually(_deleted(child), what="it to be deleted"), step_s=5)
        assert len(await announcements(house)) == 1
        [made] = await spawned(house)
        assert made.archived_at is not None and made.state is DelegationState.DONE, "the record of it stays"


def _told_of(count: int) -> Callable[[sa.Connection], bool]:
    statement = sa.text("SELECT count(*) FROM envelopes WHERE text LIKE 'The subagent%'")
    return lambda conn: conn.execute(statement).scalar_one() == count


async def test_however_many_there_are_all_are_put_away(household: Household) -> None:
    async with opened(spawning(household, subagents=SubagentRules(archive_after_s=1.0))) as house:
        for n in range(12):
            await house.outcome((await house.post(f"please {n}")).envelope)
        await house.quiet()
        made = await spawned(house)
        assert len(made) == 12
        await house.household.clock.advance(2)
        left = "SELECT count(*) FROM delegations WHERE archived_ms IS NULL"
        await house.eventually(lambda conn: conn.exec_driver_sql(left).scalar_one() == 0, what="all to be put away")


async def test_a_child_that_waits_for_a_person_is_answered_and_told_of_once(household: Household) -> None:
    staff = spawning(household, tools=ToolRules(ask=("append_line",)))
    async with opened(staff) as house:
        first = await house.post("please 1", sender="person:owner")
        await house.outcome(first.envelope)
        approval = await house.eventually(
            lambda conn: conn.exec_driver_sql("SELECT id FROM approvals WHERE state = 'open'").scalar(),
            what="a question",
        )
        assert witness(staff) == [] and await announcements(house) == []
        await house.engine.answer(approval, allow=True, by=boss("owner"))
        await house.eventually(_told_of(1), what="the announcement")
        await house.quiet()
        assert witness(staff) == ["errand 1"]
        assert await messages_to(house, "owner") == ["told of 1"]
        letter = (await announcements(house))[0]
        settled = await house.store.read(lambda conn: envelopes.get(conn, letter.id))
        assert settled is not None and settled.status is Status.DONE
