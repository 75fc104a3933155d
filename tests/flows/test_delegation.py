"""One agent asks another: what comes back, to whom, and exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import plays
from flows.tools_instance import ADA, BO, HandsHouse, hands_house

from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeKind
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.delegate.delegation_result import RESPONSE_BYTES_MAX

CY = Agent(name="cy", model="scripted")


def ask(agent: str = "bo", content: str = "What is in stock?", **more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId=agent, content=content, **more)


async def result(house: HandsHouse, session: str) -> dict[str, Any]:
    last = (await house.results(session))[-1]
    return json.loads(last.output)


async def said_to(house: HandsHouse, person: str = "person:owner") -> list[str]:
    return [mail.text for mail in await house.mail(person)]


@pytest.mark.spec("A24", "A31", "A77.complete", "A77.arguments")
async def test_an_answer_comes_back_into_the_call_that_asked(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        session = await house.turn(
            "Ask bo.", ask(), text_reply("Three chairs.", thinking="I counted."), "Bo says: three chairs."
        )
        told = await result(house, session)
        assert told["mode"] == "sync"
        assert told["status"] == "complete"
        assert told["agentId"] == "bo"
        assert told["created"] is True
        assert told["response"] == "Three chairs."
        assert told["toolCallCount"] == 0
        assert told["thinkingText"] == "I counted."
        assert told["durationMs"] >= 0
        assert await said_to(house) == ["Bo says: three chairs."]
        letters = [mail for mail in await house.mail() if mail.kind is EnvelopeKind.DELEGATION]
        assert [str(mail.sender) for mail in letters] == [f"agent:ada/{session}"]


@pytest.mark.spec("A26")
async def test_an_answer_to_one_who_did_not_wait_is_a_message_and_one_more_turn(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {
                "Ask bo.": [ask(mode="async"), "I asked bo."],
                "What is in stock?": ["Three chairs."],
                "Three chairs.": ["Bo says: three chairs."],
            }
        )
        await house.turn("Ask bo.")
        assert sorted(await said_to(house)) == ["Bo says: three chairs.", "I asked bo."]


@pytest.mark.spec("A77.arguments", "A77.complete", "A77.details")
async def test_a_sync_result_has_every_field_that_applies(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        works = (tool_call_reply("append_line", text="x"), text_reply("c" * 50_000, thinking="I counted."))
        session = await house.turn("Ask bo.", ask(), *works, "Many.")
        told = await result(house, session)
        [letter] = [mail for mail in await house.mail() if mail.kind is EnvelopeKind.DELEGATION]
        assert told["toolCalls"] == [{"name": "append_line", "durationMs": told["toolCalls"][0]["durationMs"]}]
        assert told.pop("toolCalls")[0]["durationMs"] >= 0 and told.pop("durationMs") >= 0
        assert told["response"].startswith("ccc") and len(told.pop("response")) <= RESPONSE_BYTES_MAX
        assert told == {
            "mode": "sync",
            "status": "complete",
            "agentId": "bo",
            "sessionId": letter.session,
            "sessionName": "",
            "created": True,
            "responseId": letter.id,
            "truncated": True,
            "toolCallCount": 1,
            "thinkingText": "I counted.",
        }
        again = await result(house, await house.turn("Ask bo.", ask(), "Three.", "Three."))
        assert (again["sessionId"], again["created"]) == (letter.session, False), "the latest, where there is one"
        offered = next(each for each in house.model.prompts[0].tools if each.name == "agents_message")
        defaults = {name: each.get("default") for name, each in offered.parameters["properties"].items()}
        assert (defaults["session"], defaults["mode"], defaults["timeout"]) == ("latest-or-create", "sync", 300.0)
        assert set(offered.parameters["required"]) == {"agentId", "content"}


async def test_several_are_asked_at_once_and_each_call_gets_its_own_answer(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ADA, BO, CY)) as house:
        house.model.rule = lambda prompt: text_reply(f"about {_last(prompt)}")
        both = ScriptedReply(
            calls=(
                ("agents_message", {"agentId": "bo", "content": "chairs"}),
                ("agents_message", {"agentId": "cy", "content": "tables"}),
                ("agents_message", {"agentId": "bo", "content": "lamps", "session": "create"}),
            )
        )
        session = await house.turn("Ask both.", both)
        told = [json.loads(each.output)["response"] for each in await house.results(session)]
        assert told == ["about chairs", "about tables", "about lamps"]


def _last(prompt: Any) -> str:
    """What the newest mail in a prompt says."""
    text = next(r.body.text for r in reversed(prompt.records) if hasattr(r.body, "envelopes"))
    return text.rstrip().removesuffix("---").strip().splitlines()[-1]


@pytest.mark.spec("A27")
async def test_a_failure_comes_back_once(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        session = await house.turn("Ask bo.", ask(), ScriptedReply(fails="no such model"), "Bo could not.")
        told = await result(house, session)
        assert told["status"] == "failed"
        assert "no such model" in told["message"]
        house.model.rule = plays(
            {
                "Again.": [ask(mode="async"), "Asked."],
                "What is in stock?": [ScriptedReply(fails="no such model", once=house.once_told("Asked."))],
                "no such model": ["It failed."],
            }
        )
        await house.turn("Again.")
        assert (await said_to(house))[-2:] == ["Asked.", "It failed."]


@pytest.mark.spec("A25", "A77.timeout")
async def test_a_wait_that_is_over_leaves_the_other_at_work_and_its_answer_comes_as_mail(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        house.model.rule = plays(
            {
                "Ask bo.": [ask(timeout=0.05), "Still counting."],  # time limit: it is what is tested
                "What is in stock?": [text_reply("Three chairs.", once=house.once_told("Still counting."))],
                "Three chairs.": ["Three chairs, says bo."],
            }
        )
        session = await house.turn("Ask bo.")
        told = await result(house, session)
        assert told["status"] == "timeout"
        assert told["timeoutSeconds"] == 0.05
        assert told["message"].startswith("It is still running")
        assert await said_to(house) == ["Still counting.", "Three chairs, says bo."]


@pytest.mark.spec("A80", "A30.depth")
async def test_work_is_not_handed_on_again_and_the_refusal_names_the_setting(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ADA, BO, CY)) as house:
        await house.turn("Ask bo.", ask(), ask("cy"), "I may not ask cy.", "Bo may not.")
        refused = [r for r in await _all_results(house) if r.failed]
        assert len(refused) == 1
        assert "agents.bo.delegation.depth_max" in refused[0].output


async def _all_results(house: HandsHouse) -> list[Any]:
    sessions = {mail.session for mail in await house.mail() if mail.session}
    return [each for session in sorted(sessions) for each in await house.results(session)]
