"""The engine's contract: a run that waits for a person holds nothing, and what it asked for is done once or never."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from contracts.engine_instance import (
    Hands,
    a_moment,
    ada,
    all_news,
    answers_to,
    as_time_goes_by,
    change_agent,
    lane_tasks,
    notices_to,
    open_approval,
    opened,
    outcomes,
    parked,
    power_cuts,
    questions_to,
    results,
    rows,
    shown,
    until,
    user_turns,
    witness,
)

from retinue.domain.agent import ToolRules
from retinue.domain.approval import APPROVAL_EXPIRES_AFTER_S
from retinue.domain.envelope import EnvelopeContext, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.errors import Conflict, NotFound
from retinue.domain.event import EventKind
from retinue.domain.grant import GrantScope
from retinue.domain.record import Note, UserTurn
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolResult
from retinue.engine.lanes import SlotLimits
from retinue.models.base import ModelPrompt
from retinue.store.agents import grants
from retinue.store.core.connection import NO_FAULTS
from retinue.testing.local_instance import LocalInstance, LocalServer, boss_principal
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.permissions import RequestPermissionTool

ASKS = ToolRules(ask=("append_line",))


def cautious(**kw: object):
    return ada(**{"tools": ASKS, **kw})


@pytest.fixture
def asking(household: LocalInstance) -> LocalInstance:
    """A household whose agent asks before it writes."""
    household.agents = (cautious(),)
    return household


async def test_a_run_that_waits_for_a_person_holds_no_slot_and_no_task(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (cautious(),)
    household.slots = SlotLimits(main=1)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "meanwhile", "done")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        assert lane_tasks() == []
        assert house.engine.active_lanes == 0
        assert (await house.get_envelope(first.envelope)).status is EnvelopeStatus.SUSPENDED
        other = await house.send("and me?", sender="person:owner")
        assert await house.wait_for_answer(other.envelope) == "meanwhile"
        (question,) = await questions_to(house, "maria")
        assert "append_line" in question.text and "once" in question.text
        (asked,) = await all_news(house, EventKind.APPROVAL_ASKED)
        assert asked.body["approval"] == await open_approval(house)
        assert len(await all_news(house, EventKind.RUN_SUSPENDED)) == 1
        await house.engine.answer_approval(await open_approval(house), allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(first.envelope) == "done"


async def test_an_allowed_call_is_performed_once_and_the_model_reads_its_result(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (cautious(),)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "done")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        decided = await house.engine.answer_approval(await open_approval(house), allow=True, by=boss_principal("maria"))
        assert decided.decided_by == "maria"
        assert await house.wait_for_answer(first.envelope) == "done"
        assert witness(household) == ["once"]
        assert [result.output for result in results(household.model.prompts[1].records)] == ["appended"]
        assert len(await all_news(house, EventKind.RUN_STARTED)) == 1, "the same run went on"
        (resumed,) = await all_news(house, EventKind.RUN_RESUMED)
        assert resumed.body["attempt"] == 1, "waiting is not a failure"


async def test_a_denied_call_is_not_performed_and_the_model_reads_so(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "as you wish")
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        await house.engine.answer_approval(await open_approval(house), allow=False, by=boss_principal("maria"))
        assert await house.wait_for_answer(first.envelope) == "as you wish"
        assert witness(asking) == []
        (read,) = results(asking.model.prompts[1].records)
        assert read.failed and "is denied" in read.output


async def test_allowed_calls_are_performed_before_the_run_parks_and_all_that_ask_make_one_question(
    household: LocalInstance,
) -> None:
    household.agents = (cautious(tools=ToolRules(ask=("append_line",), deny=("read",))),)
    household.model.will_reply(
        ScriptedReply(
            calls=(
                ("append_line", {"text": "one"}),
                ("session_status", {}),
                ("read", {"path": "SOUL.md"}),
                ("append_line", {"text": "two"}),
                ("no_such_tool", {}),
            )
        ),
        "done",
    )
    async with opened(household) as house:
        first = await house.send("do all that")
        await parked(house)
        session = (await house.get_envelope(first.envelope)).session
        done = results(await house.list_records(session))
        assert {result.tool for result in done} == {"session_status", "read", "no_such_tool"}
        assert witness(household) == []
        assert len(await questions_to(house, "maria")) == 1
        await house.engine.answer_approval(await open_approval(house), allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(first.envelope) == "done"
        assert witness(household) == ["one", "two"]
        assert len(results(household.model.prompts[1].records)) == 5


async def test_new_mail_lets_the_run_go_on_and_a_later_yes_has_a_run_of_its_own(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (cautious(),)
    household.model.will_reply(
        tool_call_reply("append_line", text="once"), "I wait for you", "about the second", "now it is written"
    )
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        second = await house.send("something else")
        assert await house.wait_for_answer(first.envelope) == "I wait for you"
        assert await house.wait_for_answer(second.envelope) == "about the second"
        (read,) = results(household.model.prompts[1].records)
        assert read.output.startswith(f"Waiting for approval {approval[:8]}")
        assert witness(household) == []
        await house.wait_until_idle()

        await house.engine.answer_approval(approval, allow=True, by=boss_principal("owner"))
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        assert await house.wait_for_answer(decision) == "now it is written"
        assert witness(household) == ["once"]
        # It is maria who had asked, and maria who hears of it.
        assert await answers_to(house, "maria") == ["I wait for you", "about the second", "now it is written"]
        assert await answers_to(house, "owner") == []
        notes = [r.body for r in household.model.prompts[3].records if isinstance(r.body, Note)]
        assert [note.text for note in notes] == [
            "The call append_line that was waiting for a decision returned:\nappended"
        ]
        with pytest.raises(Conflict):
            await house.engine.answer_approval(approval, allow=True, by=boss_principal("owner"))


async def test_a_late_decision_comes_at_the_head_of_its_lane(asking: LocalInstance, hands: Hands) -> None:
    asking.model.will_reply(
        tool_call_reply("append_line", text="once"), "waiting", text_reply("second", after_s=1), "decided", "third"
    )
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        second = await house.send("second")
        await house.wait_for_outcome(first.envelope)
        await until(lambda: len(asking.model.prompts) == 3, what="the run over the second")
        third = await house.send("third")
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await asking.clock.advance(1)
        assert await house.wait_for_answer(second.envelope) == "second"
        assert await house.wait_for_answer(third.envelope) == "third"
        assert await answers_to(house, "maria") == ["waiting", "second", "decided", "third"]


async def test_a_late_no_is_read_by_the_model_and_nothing_is_done(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "waiting", "second", "I let it be")
    async with opened(asking) as house:
        await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        await house.wait_for_outcome((await house.send("something else")).envelope)
        await house.engine.answer_approval(approval, allow=False, by=boss_principal("maria"))
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        assert await house.wait_for_answer(decision) == "I let it be"
        assert "maria denied append_line" in shown(asking.model.prompts[3])
        assert witness(asking) == []


async def test_after_its_waiting_time_a_run_goes_on_without_the_answer(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (cautious(approval_wait_s=20.0),)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "I wait for you", "now it is written")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        await a_moment(house)
        await household.clock.advance(15)
        await a_moment(house)
        assert (await house.get_envelope(first.envelope)).status is EnvelopeStatus.SUSPENDED
        await household.clock.advance(5)  # the alarm would not look by itself so soon: it was told
        assert await house.wait_for_answer(first.envelope) == "I wait for you"
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        assert await house.wait_for_answer(decision) == "now it is written"
        assert witness(household) == ["once"]


async def test_the_time_spent_waiting_for_a_person_is_not_the_runs_own(household: LocalInstance) -> None:
    household.agents = (cautious(run_seconds_max=60.0),)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "done")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        await household.clock.advance(300)
        await house.engine.answer_approval(await open_approval(house), allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(first.envelope) == "done"


async def test_mail_that_waited_already_when_the_run_parked_does_not_wait_for_the_person(asking: LocalInstance) -> None:
    """It came before the run and is someone else's, so no new hint tells of it."""
    asking.slots = SlotLimits(main=1)
    asking.model.will_reply(
        text_reply("first", after_s=1), tool_call_reply("append_line", text="once"), "waiting", "for bob"
    )
    async with opened(asking) as house:
        await house.send("keeps the slot", sender="person:owner")
        await until(lambda: asking.model.prompts, what="the slot to be taken")
        alice = await house.send("from alice", context=EnvelopeContext(sender_name="Alice"))
        bob = await house.send("from bob", context=EnvelopeContext(sender_name="Bob"))
        await asking.clock.advance(1)
        assert await house.wait_for_answer(alice.envelope) == "waiting"
        assert await house.wait_for_answer(bob.envelope) == "for bob"


async def test_mail_behind_any_amount_of_silent_mail_ends_the_wait(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "I wait", "second")
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        for n in range(60):
            here = f"agent:ada/{first.session}"
            await house.send(f"psst {n}", kind=EnvelopeKind.SYSTEM, silent=True, sender="agent:ada", recipient=here)
        await house.wait_until_idle()
        assert (await house.get_envelope(first.envelope)).status is EnvelopeStatus.SUSPENDED
        second = await house.send("something else")
        assert await house.wait_for_answer(first.envelope) == "I wait"
        assert await house.wait_for_answer(second.envelope) == "second"


async def test_silent_mail_does_not_end_the_wait(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "done")
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        session = (await house.get_envelope(first.envelope)).session
        await house.send(
            "psst", kind=EnvelopeKind.SYSTEM, silent=True, sender="agent:ada", recipient=f"agent:ada/{session}"
        )
        await a_moment(house)
        await house.wait_until_idle()
        assert (await house.get_envelope(first.envelope)).status is EnvelopeStatus.SUSPENDED
        await house.engine.answer_approval(await open_approval(house), allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(first.envelope) == "done"


async def test_changed_arguments_void_an_approval(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "done")
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        house.crash()
    async with opened(asking) as house:
        await house.execute_sql("UPDATE records SET body = replace(body, 'once', 'more than you think')")
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        again = await open_approval(house)
        assert again != approval
        await house.wait_until_idle()
        assert witness(asking) == []
        questions = await questions_to(house, "maria")
        assert ["more than you think" in question.text for question in questions] == [False, True]
        await house.engine.answer_approval(again, allow=True, by=boss_principal("maria"))
        assert await house.wait_for_answer(first.envelope) == "done"
        assert witness(asking) == ["more than you think"]


async def test_only_the_first_answer_counts(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (cautious(),)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "as you wish")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        await house.engine.answer_approval(approval[:8], allow=False, by=boss_principal("maria"))
        with pytest.raises(Conflict) as raised:
            await house.engine.answer_approval(approval, allow=True, by=boss_principal("owner"))
        assert raised.value.code == "approval.not_open"
        assert raised.value.because == "it is denied by maria"
        assert await house.wait_for_answer(first.envelope) == "as you wish"
        assert witness(household) == []
        with pytest.raises(NotFound):
            await house.engine.answer_approval("0" * 32, allow=True, by=boss_principal("owner"))


async def test_an_expired_approval_cannot_be_answered(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "waiting")
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        await as_time_goes_by(house, house.wait_for_outcome(first.envelope), step_s=60)
        asking.clock.jump(timedelta(seconds=APPROVAL_EXPIRES_AFTER_S))
        with pytest.raises(Conflict) as raised:
            await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        assert raised.value.because == "it has expired"
        await asking.clock.advance(60)
        state = "SELECT state FROM approvals"
        await house.wait_for(lambda conn: conn.exec_driver_sql(state).scalar() == "expired", what="the sweep")
        assert witness(asking) == []


async def test_a_run_that_would_wait_longer_than_its_question_stands_goes_on_when_it_expires(
    household: LocalInstance,
) -> None:
    household.agents = (cautious(approval_wait_s=100 * APPROVAL_EXPIRES_AFTER_S),)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "nobody came")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        household.clock.jump(timedelta(seconds=APPROVAL_EXPIRES_AFTER_S))
        assert await as_time_goes_by(house, house.wait_for_answer(first.envelope), step_s=20) == "nobody came"
        assert witness(household) == []


@pytest.mark.parametrize("late", [False, True])
async def test_policy_is_asked_again_when_the_answer_comes(asking: LocalInstance, late: bool) -> None:
    """A yes from before does not outlive a rule from today."""
    asking.model.rule = lambda prompt: text_reply("so be it")
    asking.model.will_reply(tool_call_reply("append_line", text="once"))
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        if late:
            await house.wait_for_outcome((await house.send("something else")).envelope)
            await house.wait_until_idle()
        await change_agent(house, ada(tools=ToolRules(deny=("append_line",))))
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await house.wait_for_outcome(first.envelope)
        await house.wait_for(lambda _: house.engine.active_lanes == 0, what="quiet")
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        await house.wait_for_outcome(decision)
        assert witness(asking) == []
        prompt = asking.model.prompts[-1]
        read = [r.output for r in results(prompt.records)] + [
            record.body.text for record in prompt.records if isinstance(record.body, Note)
        ]
        assert any("denies 'append_line'" in text for text in read)


async def test_a_no_stays_a_no_where_the_rules_would_no_longer_ask(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "as you wish")
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        await change_agent(house, ada())
        await house.engine.answer_approval(await open_approval(house), allow=False, by=boss_principal("maria"))
        assert await house.wait_for_answer(first.envelope) == "as you wish"
        assert witness(asking) == []


async def test_a_call_that_somebody_was_asked_about_is_not_done_twice_when_the_rules_change(
    asking: LocalInstance,
) -> None:
    """The rules no longer ask, the run goes on for other mail, and the yes comes after all."""
    asking.model.rule = lambda prompt: text_reply("ok")
    asking.model.will_reply(tool_call_reply("append_line", text="once"))
    async with opened(asking) as house:
        await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        await change_agent(house, ada())
        await house.wait_for_outcome((await house.send("something else")).envelope)
        await house.wait_until_idle()
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        await house.wait_for_outcome(decision)
        assert witness(asking) == ["once"]


async def test_a_yes_between_a_crash_and_the_run_that_had_gone_on_is_not_done_twice(
    asking: LocalInstance, hands: Hands
) -> None:
    """The run had been told to go on without the answer; the power went before it wrote that down."""
    asking.model.rule = lambda prompt: text_reply("ok")
    asking.model.will_reply(tool_call_reply("append_line", text="once"))
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        hands.cut_at = (2, True)  # the new mail, and the commit that lets the run go on
        second = await house.send("something else")
        await until(lambda: hands.cut_at == (0, True), what="the power to go")
        house.crash()
    hands.cut_at = None
    with hands.holding("claim") as claim:
        async with opened(asking) as house:
            await claim.reached.wait()
            await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
            hands.release("claim")
            for receipt in (first, second):
                assert (await house.wait_for_outcome(receipt.envelope)).outcome is Outcome.ANSWERED
            ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
            assert (await house.wait_for_outcome(decision)).outcome is Outcome.ANSWERED
            assert witness(asking) == ["once"]


async def test_an_answer_to_an_older_question_is_not_swallowed_by_a_newer_one(asking: LocalInstance) -> None:
    """The run went on without its first answer and then asked about something else."""
    asking.model.rule = lambda prompt: text_reply("ok")
    asking.model.will_reply(
        tool_call_reply("append_line", text="older"),
        tool_call_reply("append_line", text="newer"),
        text_reply("the run ends"),
        text_reply("second"),
    )
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        older = await open_approval(house)
        await house.send("something else")
        await until(lambda: len(asking.model.prompts) >= 2, what="the next turn")
        await house.wait_for(
            lambda conn: conn.exec_driver_sql("SELECT count(*) FROM approvals").scalar() == 2, what="2"
        )
        await house.wait_for_outcome(first.envelope)
        await house.engine.answer_approval(older, allow=True, by=boss_principal("maria"))
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        assert (await house.wait_for_outcome(decision)).outcome is Outcome.ANSWERED
        assert witness(asking) == ["older"]


async def test_a_parked_run_goes_on_for_a_late_answer_to_an_older_question(asking: LocalInstance) -> None:
    asking.model.rule = lambda prompt: text_reply("ok")
    asking.model.will_reply(
        tool_call_reply("append_line", text="older"),  # asks
        text_reply("I wait"),  # goes on for the second
        tool_call_reply("append_line", text="newer"),  # over the second: asks again, and nobody else writes
    )
    async with opened(asking) as house:
        await house.send("write it down")
        await parked(house)
        older = await open_approval(house)
        second = await house.send("something else")
        await house.wait_for(
            lambda conn: (
                conn.exec_driver_sql("SELECT count(*) FROM runs WHERE status = 'parked'").scalar() == 1
                and len(asking.model.prompts) == 3
            ),
            what="the second run to park",
        )
        await house.wait_until_idle()
        await house.engine.answer_approval(older, allow=True, by=boss_principal("maria"))
        assert (await house.wait_for_outcome(second.envelope)).outcome is Outcome.ANSWERED
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        assert (await house.wait_for_outcome(decision)).outcome is Outcome.ANSWERED
        assert witness(asking) == ["older"]


@pytest.mark.parametrize("nth", [1, 2])
async def test_stored_calls_are_not_repeated_when_the_power_goes_between_them(
    asking: LocalInstance, hands: Hands, nth: int
) -> None:
    """Two calls with the same arguments: what was done is told by its place, not by what it looks like."""
    asking.model.rule = lambda prompt: text_reply("ok")
    asking.model.will_reply(ScriptedReply(calls=(("append_line", {"text": "same"}), ("append_line", {"text": "same"}))))
    async with opened(asking) as house:
        await house.send("write it down twice")
        await parked(house)
        approval = await open_approval(house)
        await house.wait_for_outcome((await house.send("something else")).envelope)
        await house.wait_until_idle()
        faults = CrashAt("tool.after", nth, house)
        asking.crash_points = faults
        house.crash()
    async with opened(asking) as house:
        faults.house = house
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        await until(lambda: faults.reached, what="the power to go")
    asking.crash_points = NO_FAULTS
    async with opened(asking) as house:
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        assert (await house.wait_for_outcome(decision)).outcome is Outcome.ANSWERED
        assert witness(asking) == ["same", "same"]
        notes = [r.body.text for r in asking.model.prompts[-1].records if isinstance(r.body, Note)]
        assert ["may or may not" in text for text in notes] == [n == nth for n in (1, 2)]


async def test_a_cancel_closes_the_question_with_the_run(any_household: LocalInstance) -> None:
    household = any_household
    household.agents = (cautious(),)
    household.model.will_reply(tool_call_reply("append_line", text="once"), "fresh")
    async with opened(household) as house:
        first = await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        session = (await house.get_session(first.session)).id
        done = await house.engine.cancel(session, by="maria", reason="never mind")
        assert len(done.runs) == 1
        assert (await house.wait_for_outcome(first.envelope)).outcome is Outcome.CANCELLED
        with pytest.raises(Conflict) as raised:
            await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
        assert raised.value.because == "it is closed"
        assert [result.output for result in results(await house.list_records(first.session))] == [
            "Interrupted: this call may or may not have taken effect. Check before you repeat it."
        ]
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"
        assert witness(household) == []
        await house.wait_until_idle()
        assert (await house.get_session(first.session)).activity == "sleeping"


async def test_a_cancel_closes_also_what_an_earlier_run_had_asked_for(asking: LocalInstance) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "waiting", "second")
    async with opened(asking) as house:
        await house.send("write it down")
        await parked(house)
        approval = await open_approval(house)
        second = await house.send("something else")
        await house.wait_for_outcome(second.envelope)
        await house.engine.cancel((await house.get_session(second.session)).id, by="maria", reason="enough")
        with pytest.raises(Conflict):
            await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))


async def test_a_yes_on_its_way_does_nothing_after_a_cancel(asking: LocalInstance, hands: Hands) -> None:
    asking.model.will_reply(tool_call_reply("append_line", text="once"), "fresh")
    async with opened(asking) as house:
        first = await house.send("write it down")
        await parked(house)
        with hands.holding("claim") as claim:
            await house.engine.answer_approval(await open_approval(house), allow=True, by=boss_principal("maria"))
            await claim.reached.wait()
            await house.engine.cancel((await house.get_session(first.session)).id, by="maria", reason="no, stop")
        ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
        assert (await house.wait_for_outcome(decision)).outcome is Outcome.CANCELLED
        assert await house.wait_for_answer((await house.send("again")).envelope) == "fresh"
        assert witness(asking) == []


def asks_once(prompt: ModelPrompt) -> ScriptedReply:
    """Ask for the line once in a session, and say something about everything else."""
    done = any(isinstance(record.body, ToolResult) for record in prompt.records)
    return text_reply("said") if done else tool_call_reply("append_line", text="once")


async def told_once(house: LocalServer, *, late: bool) -> None:
    """Ask, decide, and be answered; told again after a power cut, it goes on where it was."""
    first = await house.send("write it down", key="first")
    ids = [first.envelope]
    state = "SELECT id, state FROM approvals"
    await house.wait_for(lambda conn: conn.exec_driver_sql(state).first() is not None, what="a question")
    if late:
        ids.append((await house.send("something else", key="second")).envelope)
        for id_ in ids:
            await house.wait_for_outcome(id_)
    ((approval, standing),) = await rows(house, state)
    if standing == "open":
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("maria"))
    for id_ in ids:
        await house.wait_for_outcome(id_)
    ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
    await house.wait_for_outcome(decision)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
async def test_a_question_survives_a_power_cut_at_every_commit(
    new_household: Callable[[], LocalInstance], hands: Hands, late: bool
) -> None:
    def asking() -> LocalInstance:
        household = new_household()
        household.agents = (cautious(),)
        household.model.rule = asks_once
        return household

    lived = 0
    async for house in power_cuts(asking, hands, lambda house: told_once(house, late=late)):
        lived += 1
        messages = [
            id_ for (id_,) in await rows(house, "SELECT id FROM envelopes WHERE kind IN ('message', 'decision')")
        ]
        assert set(await outcomes(house, messages)) <= {Outcome.ANSWERED, Outcome.NOTED}
        ((session,),) = await rows(house, "SELECT id FROM sessions")
        history = await house.list_records(session)
        written = witness(house.instance)
        doubtful = [
            body
            for body in (record.body for record in history)
            if "may or may not" in (body.output if isinstance(body, ToolResult) else getattr(body, "text", ""))
        ]
        assert len(written) <= 1 and len(doubtful) <= 1
        assert written or doubtful, "done once, or the model reads that nobody knows"
        assert not (lived == 1 and doubtful)
        assert sum("write it down" in text for text in user_turns(history)) == 1
        assert await notices_to(house, "maria") == []
    assert lived > 10


def writes_each(prompt: ModelPrompt) -> ScriptedReply:
    """Write down each `line N` that somebody sends, and say something about everything else."""
    last = prompt.records[-1].body
    wanted = re.search(r"line \d", last.text) if isinstance(last, UserTurn) else None
    return tool_call_reply("append_line", text=wanted[0]) if wanted else text_reply("said")


async def told_for_longer(house: LocalServer, *, scope: GrantScope) -> None:
    """Ask once, be allowed for longer, and do it again without a question."""
    first = await house.send("line 1", key="first")
    state = "SELECT id, state FROM approvals"
    await house.wait_for(lambda conn: conn.exec_driver_sql(state).first() is not None, what="a question")
    ((approval, standing),) = await rows(house, state)
    if standing == "open":
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("owner"), scope=scope)
    await house.wait_for_outcome(first.envelope)
    await house.wait_for_outcome((await house.send("line 2", key="second")).envelope)


@pytest.mark.parametrize("scope", [GrantScope.SESSION, GrantScope.ALWAYS])
async def test_a_yes_for_longer_survives_a_power_cut_at_every_commit(
    new_household: Callable[[], LocalInstance], hands: Hands, scope: GrantScope
) -> None:
    def asking() -> LocalInstance:
        household = new_household()
        household.agents = (cautious(),)
        household.model.rule = writes_each
        return household

    lived = 0
    async for house in power_cuts(asking, hands, lambda house: told_for_longer(house, scope=scope)):
        lived += 1
        assert [state for (state,) in await rows(house, "SELECT state FROM approvals")] == ["allowed"]
        assert await rows(house, "SELECT agent, permission, revoked_ms FROM grants") == [
            ("ada", "tool:append_line", None)
        ]
        assert len(await questions_to(house, "maria")) == 1
        written = witness(house.instance)
        ((session,),) = await rows(house, "SELECT id FROM sessions")
        doubtful = [r for r in results(await house.list_records(session)) if "may or may not" in r.output]
        assert len(set(written)) == len(written) and len(written) + len(doubtful) >= 2
        assert len(doubtful) <= 1 and not (lived == 1 and doubtful)
    assert lived > 10


async def told_no(house: LocalServer) -> None:
    first = await house.send("line 1", key="first")
    state = "SELECT id, state FROM approvals"
    await house.wait_for(lambda conn: conn.exec_driver_sql(state).first() is not None, what="a question")
    ((approval, standing),) = await rows(house, state)
    if standing == "open":
        await house.engine.answer_approval(approval, allow=False, by=boss_principal("owner"))
    await house.wait_for_outcome(first.envelope)


async def test_nothing_is_done_without_its_yes_wherever_the_power_goes(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    def asking() -> LocalInstance:
        household = new_household()
        household.agents = (cautious(),)
        household.model.rule = writes_each
        return household

    lived = 0
    async for house in power_cuts(asking, hands, told_no):
        lived += 1
        assert [state for (state,) in await rows(house, "SELECT state FROM approvals")] == ["denied"]
        assert witness(house.instance) == [] and await rows(house, "SELECT 1 FROM grants") == []
    assert lived > 8


def wishes(prompt: ModelPrompt) -> ScriptedReply:
    last = prompt.records[-1].body
    if isinstance(last, UserTurn) and "you may ask" in last.text:
        return tool_call_reply("request_permission", permission="web", reason="to look")
    return text_reply("said")


async def told_a_wish(house: LocalServer) -> None:
    first = await house.send("you may ask", key="first")
    await house.wait_for_outcome(first.envelope)
    ((approval, standing),) = await rows(house, "SELECT id, state FROM approvals")
    if standing == "open":
        await house.engine.answer_approval(approval, allow=True, by=boss_principal("owner"))
    ((decision,),) = await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")
    await house.wait_for_outcome(decision)


async def test_a_wish_is_asked_once_and_granted_once_wherever_the_power_goes(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    def wishing() -> LocalInstance:
        household = new_household()
        household.agents = (ada(),)
        household.model.rule = wishes
        household.create_tools = lambda store, asks: (
            RequestPermissionTool(asks, household.build_grants(store), store),
        )
        return household

    lived = 0
    async for house in power_cuts(wishing, hands, told_a_wish):
        lived += 1
        assert [state for (state,) in await rows(house, "SELECT state FROM approvals")] == ["allowed"]
        assert len(await questions_to(house, "maria")) == 1
        assert [tag for (tag,) in await rows(house, "SELECT permission FROM grants")] == ["web"]
        decisions = [id_ for (id_,) in await rows(house, "SELECT id FROM envelopes WHERE kind = 'decision'")]
        assert await outcomes(house, decisions) == [Outcome.ANSWERED]
    assert lived > 10


async def test_a_grant_that_is_revoked_while_the_intent_of_its_call_is_written_is_not_used(
    asking: LocalInstance, hands: Hands
) -> None:
    """Decided, and taken back before it happens."""
    asking.model.rule = writes_each
    async with opened(asking) as house:
        first = await house.send("line 1")
        await parked(house)
        await house.engine.answer_approval(
            await open_approval(house), allow=True, by=boss_principal("owner"), scope=GrantScope.SESSION
        )
        await house.wait_for_outcome(first.envelope)
        await house.wait_until_idle()
        ((grant,),) = await rows(house, "SELECT id FROM grants")
        revoke = partial(grants.revoke, id_=grant, by="owner", at_ms=to_ms(asking.clock.now()))
        with hands.holding("step") as step:
            second = await house.send("line 2")
            await step.reached.wait()
            await house.store.write(lambda conn: revoke(conn), point="test")
        await house.wait_for_outcome(second.envelope)
        assert witness(asking) == ["line 1"]


class CrashAt:
    """Ends a house in the middle of an effect, at the nth time a named point is reached."""

    def __init__(self, point: str, nth: int, house: LocalServer) -> None:
        self.point = point
        self.left = nth
        self.house = house
        self.reached = False

    def reach(self, point: str) -> None:
        if point != self.point or self.reached:
            return
        self.left -= 1
        if self.left == 0:
            self.reached = True
            self.house.crash()
            raise asyncio.CancelledError
