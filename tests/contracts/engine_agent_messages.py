"""The engine's contract: what sessions say to each other, and jobs in the background, are said, done and told once,
wherever the power goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contracts.engine_instance import (
    Hands,
    ada,
    answers_to,
    as_time_goes_by,
    opened,
    power_cuts,
    results,
    rows,
    witness,
)

from retinue.domain.agent import DelegationRules
from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.intake.background_jobs import FAILED_PREFIX
from retinue.models.base import ModelPrompt
from retinue.testing.local_instance import LocalInstance, LocalServer, terminal_origin
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.delegate.agent_message_tools import SendAgentMessageTool
from retinue.tools.delegate.session_tools import SessionsSendTool


def talkative(household: LocalInstance, **delegation: Any) -> LocalInstance:
    rules = DelegationRules(**delegation)
    household.agents = tuple(ada(name=name, delegation=rules) for name in ("ada", "bo"))
    household.create_tools = lambda store, ways: (
        SendAgentMessageTool(ways.send_agent_message, lambda _scene: False),
        SessionsSendTool(ways.delegate, store, lambda _scene: False),
    )
    return household


def read_last(prompt: ModelPrompt) -> str:
    turn = next(r.body for r in reversed(prompt.records) if isinstance(r.body, UserTurn))
    return turn.text


def saying(script: dict[str, ScriptedReply | str], *, after_call: str) -> Callable[[ModelPrompt], ScriptedReply]:
    """What is said to words, whoever reads them; and what to the result of a call."""

    def rule(prompt: ModelPrompt) -> ScriptedReply:
        if isinstance(prompt.records[-1].body, ToolResult):
            return text_reply(after_call)
        line = next(line for key, line in script.items() if key in read_last(prompt))
        return text_reply(line) if isinstance(line, str) else line

    return rule


async def test_a_word_is_said_once_and_worked_on_once(new_household: Callable[[], LocalInstance], hands: Hands) -> None:
    def telling() -> LocalInstance:
        household = talkative(new_household())
        household.model.rule = saying(
            {
                "please": tool_call_reply("send_agent_message", text="the shop is closed", agentId="bo"),
                "the shop is closed": tool_call_reply("append_line", text="bo was told"),
            },
            after_call="done",
        )
        return household

    async def story(house: LocalServer) -> None:
        await house.wait_for_outcome((await house.send("please", key="first")).envelope)

    lived = 0
    async for house in power_cuts(telling, hands, story):
        lived += 1
        words = await rows(
            house,
            "SELECT e.id, o.outcome FROM envelopes e JOIN outcomes o ON o.envelope = e.id WHERE e.kind = 'system'",
        )
        assert [row.outcome for row in words] == [Outcome.ANSWERED]
        assert len(witness(house.instance)) <= 1, "told twice"
        assert await answers_to(house, "maria") == ["done"]
    assert lived > 10


@pytest.mark.parametrize(
    ("turns", "between"),
    [(0, ["asked:\nq0\n\nanswered:\na0"]), (2, ["a0", "q1", "asked:\nq0\n\nanswered:\na0\n\nlast:\na1"])],
)
async def test_two_sessions_say_each_thing_once(
    new_household: Callable[[], LocalInstance], hands: Hands, turns: int, between: list[str]
) -> None:
    def exchanging() -> LocalInstance:
        household = talkative(new_household(), histories=True, exchanges_max=turns)
        household.model.rule = saying(
            {
                "hello": "hello",
                "please": tool_call_reply("sessions_send", sessionKey="agent:bo:main", message="q0"),
                "asked:\nq0": "announced",
                "q0": "a0",
                "a0": "q1",
                "q1": "a1",
            },
            after_call="bo says a0",
        )
        return household

    async def story(house: LocalServer) -> None:
        kw: dict[str, Any] = {"sender": "person:owner", "origin": terminal_origin("owner")}
        await house.wait_for_outcome((await house.send("hello", key="hello", recipient="agent:bo", **kw)).envelope)
        await house.wait_for_outcome((await house.send("please", key="first", **kw)).envelope)

    lived = 0
    async for house in power_cuts(exchanging, hands, story):
        lived += 1
        said = [
            row.text for row in await rows(house, "SELECT text FROM envelopes WHERE source = 'exchange' ORDER BY seq")
        ]
        assert said == between
        mail = [mail.text for mail in await house.list_envelopes_to("owner")]
        assert sorted(mail) == ["announced", "bo says a0", "hello"]
        ((session,),) = await rows(house, "SELECT id FROM sessions WHERE agent = 'ada'")
        assert len(results(await house.list_records(session))) == 1
    assert lived > 20


async def test_a_job_is_begun_at_most_once_and_told_once(
    new_household: Callable[[], LocalInstance], hands: Hands
) -> None:
    def jobs() -> LocalInstance:
        household = talkative(new_household())
        # A job reads nothing but its words; whoever reads an envelope reads what came of it.
        script = {"envelope-id:": "NO_REPLY", "count the chairs": tool_call_reply("append_line", text="counted")}
        household.model.rule = saying(script, after_call="three")
        return household

    async def story(house: LocalServer) -> None:
        sent = {"sender": "agent:ada", "recipient": "agent:background", "trust": Trust.AGENT}
        receipt = await house.send("count the chairs", key="first", **sent)
        settled = await house.wait_for_outcome(receipt.envelope)
        assert settled.outcome is Outcome.NOTED
        await house.wait_for(_told, what="what came of it")

    lived = failed = 0
    async for house in power_cuts(jobs, hands, story):
        lived += 1
        (told,) = await rows(house, "SELECT text FROM envelopes WHERE sender = 'agent:background'")
        failed += told.text.startswith(FAILED_PREFIX)
        assert told.text == "three" or told.text.startswith(FAILED_PREFIX)
        begun = [p for p in house.instance.model.prompts if not isinstance(p.records[-1].body, ToolResult)]
        assert sum(read_last(p) == "count the chairs" for p in begun) <= 1, "begun again"
        assert len(witness(house.instance)) <= 1
    assert lived > 8
    assert failed, "some of them were cut off"


def _told(conn: Any) -> bool:
    return conn.exec_driver_sql("SELECT 1 FROM envelopes WHERE sender = 'agent:background'").first() is not None


async def test_words_from_several_who_work_for_others_are_read_apart(any_household: LocalInstance) -> None:
    """One sender may work for several people in turn: their words are not made one turn of."""
    household = talkative(any_household)
    household.model.rule = saying(
        {
            "tell for": tool_call_reply("send_agent_message", text="a word", agentId="bo"),
            "a word": text_reply("heard", after_s=30.0),
        },
        after_call="told",
    )
    async with opened(household) as house:
        room = "channel:quiet:7"
        kw: dict[str, Any] = {"sender": room, "trust": Trust.PERSON}
        for n in range(3):
            await house.wait_for_outcome((await house.send(f"tell for {n}", key=str(n), **kw)).envelope)
        await as_time_goes_by(house, house.wait_until_idle(), step_s=10.0)
        found = await rows(house, "SELECT envelopes FROM runs WHERE agent = 'bo'")
        assert all(row.envelopes.count('"') == 2 for row in found), "one letter to a run"
        assert len(found) == 3
