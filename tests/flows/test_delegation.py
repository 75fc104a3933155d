"""Delegation: what comes back, to whom, and exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flows.team_instance import scripted_rule
from flows.tools_instance import ADA, BO, ScriptedServer, open_scripted_server

from retinue.domain.agent import Agent
from retinue.domain.envelope import EnvelopeKind
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.tools.delegate.delegation_result import RESPONSE_BYTES_MAX

CY = Agent(name="cy", model="scripted")


def delegation_call(agent: str = "bo", content: str = "What is in stock?", **more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId=agent, content=content, **more)


async def read_last_result(server: ScriptedServer, session: str) -> dict[str, Any]:
    last = (await server.results(session))[-1]
    return json.loads(last.output)


async def list_texts_to(server: ScriptedServer, person: str = "person:owner") -> list[str]:
    return [mail.text for mail in await server.mail(person)]


@pytest.mark.spec("A24", "A31", "A77.complete", "A77.arguments")
async def test_a_sync_delegation_returns_the_answer_as_the_call_result(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        session = await server.turn(
            "Ask bo.", delegation_call(), text_reply("Three chairs.", thinking="I counted."), "Bo says: three chairs."
        )
        result = await read_last_result(server, session)
        assert result["mode"] == "sync"
        assert result["status"] == "complete"
        assert result["agentId"] == "bo"
        assert result["created"] is True
        assert result["response"] == "Three chairs."
        assert result["toolCallCount"] == 0
        assert result["thinkingText"] == "I counted."
        assert result["durationMs"] >= 0
        assert await list_texts_to(server) == ["Bo says: three chairs."]
        delegations = [mail for mail in await server.mail() if mail.kind is EnvelopeKind.DELEGATION]
        assert [str(mail.sender) for mail in delegations] == [f"agent:ada/{session}"]


@pytest.mark.spec("A26")
async def test_the_answer_to_an_async_delegation_is_a_message_that_starts_one_more_turn(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [delegation_call(mode="async"), "I asked bo."],
                "What is in stock?": ["Three chairs."],
                "Three chairs.": ["Bo says: three chairs."],
            }
        )
        await server.turn("Ask bo.")
        assert sorted(await list_texts_to(server)) == ["Bo says: three chairs.", "I asked bo."]


@pytest.mark.spec("A77.arguments", "A77.complete", "A77.details")
async def test_a_sync_delegation_result_has_every_field_that_applies(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        works = (tool_call_reply("append_line", text="x"), text_reply("c" * 50_000, thinking="I counted."))
        session = await server.turn("Ask bo.", delegation_call(), *works, "Many.")
        result = await read_last_result(server, session)
        [delegation] = [mail for mail in await server.mail() if mail.kind is EnvelopeKind.DELEGATION]
        assert result["toolCalls"] == [{"name": "append_line", "durationMs": result["toolCalls"][0]["durationMs"]}]
        assert result.pop("toolCalls")[0]["durationMs"] >= 0 and result.pop("durationMs") >= 0
        assert result["response"].startswith("ccc") and len(result.pop("response")) <= RESPONSE_BYTES_MAX
        assert result == {
            "mode": "sync",
            "status": "complete",
            "agentId": "bo",
            "sessionId": delegation.session,
            "sessionName": "",
            "created": True,
            "responseId": delegation.id,
            "truncated": True,
            "toolCallCount": 1,
            "thinkingText": "I counted.",
        }
        again = await read_last_result(server, await server.turn("Ask bo.", delegation_call(), "Three.", "Three."))
        assert (again["sessionId"], again["created"]) == (delegation.session, False), "the most recent session is used"
        offered = next(each for each in server.model.prompts[0].tools if each.name == "agents_message")
        defaults = {name: each.get("default") for name, each in offered.parameters["properties"].items()}
        assert (defaults["session"], defaults["mode"], defaults["timeout"]) == ("latest-or-create", "sync", 300.0)
        assert set(offered.parameters["required"]) == {"agentId", "content"}


async def test_parallel_delegations_return_each_answer_to_its_own_call(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ADA, BO, CY)) as server:
        server.model.rule = lambda prompt: text_reply(f"about {_last_message_line(prompt)}")
        both = ScriptedReply(
            calls=(
                ("agents_message", {"agentId": "bo", "content": "chairs"}),
                ("agents_message", {"agentId": "cy", "content": "tables"}),
                ("agents_message", {"agentId": "bo", "content": "lamps", "session": "create"}),
            )
        )
        session = await server.turn("Ask both.", both)
        told = [json.loads(each.output)["response"] for each in await server.results(session)]
        assert told == ["about chairs", "about tables", "about lamps"]


def _last_message_line(prompt: Any) -> str:
    """The last line of the newest message in a prompt."""
    text = next(r.body.text for r in reversed(prompt.records) if hasattr(r.body, "envelopes"))
    return text.rstrip().removesuffix("---").strip().splitlines()[-1]


@pytest.mark.spec("A27")
async def test_a_failed_delegation_is_reported_once(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        session = await server.turn("Ask bo.", delegation_call(), ScriptedReply(fails="no such model"), "Bo could not.")
        result = await read_last_result(server, session)
        assert result["status"] == "failed"
        assert "no such model" in result["message"]
        server.model.rule = scripted_rule(
            {
                "Again.": [delegation_call(mode="async"), "Asked."],
                "What is in stock?": [ScriptedReply(fails="no such model", once=server.once_sent_to("Asked."))],
                "no such model": ["It failed."],
            }
        )
        await server.turn("Again.")
        assert (await list_texts_to(server))[-2:] == ["Asked.", "It failed."]


@pytest.mark.spec("A25", "A77.timeout")
async def test_a_timed_out_delegation_continues_and_its_answer_arrives_as_a_message(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        server.model.rule = scripted_rule(
            {
                "Ask bo.": [delegation_call(timeout=0.05), "Still counting."],  # time limit: under test here
                "What is in stock?": [text_reply("Three chairs.", once=server.once_sent_to("Still counting."))],
                "Three chairs.": ["Three chairs, says bo."],
            }
        )
        session = await server.turn("Ask bo.")
        result = await read_last_result(server, session)
        assert result["status"] == "timeout"
        assert result["timeoutSeconds"] == 0.05
        assert result["message"].startswith("It is still running")
        assert await list_texts_to(server) == ["Still counting.", "Three chairs, says bo."]


@pytest.mark.spec("A80", "A30.depth")
async def test_delegation_beyond_the_maximum_depth_is_refused_and_the_error_names_the_setting(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ADA, BO, CY)) as server:
        await server.turn("Ask bo.", delegation_call(), delegation_call("cy"), "I may not ask cy.", "Bo may not.")
        refused = [r for r in await _all_results(server) if r.failed]
        assert len(refused) == 1
        assert "agents.bo.delegation.depth_max" in refused[0].output


async def _all_results(server: ScriptedServer) -> list[Any]:
    sessions = {mail.session for mail in await server.mail() if mail.session}
    return [each for session in sorted(sessions) for each in await server.results(session)]
