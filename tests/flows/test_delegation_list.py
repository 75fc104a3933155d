"""The list of delegations: who asked whom, the status of each, and cancelling them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.concurrent_model import set_scripted_rule
from flows.team_instance import add_people
from flows.tools_instance import ADA, BO, ScriptedServer, open_scripted_server
from operations.operations_instance import person

from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.errors import NotFound, RetinueError
from retinue.domain.person import Role
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until

DEEP_DELEGATION = DelegationRules(depth_max=3)
BO_ASKS = Agent(name="bo", model="scripted", delegation=DEEP_DELEGATION)
CY = Agent(name="cy", model="scripted")


def ask(agent: str, content: str, **more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId=agent, content=content, **more)


async def list_delegations(server: ScriptedServer, **asked: Any) -> list[dict[str, Any]]:
    return (await server.ask("delegation.list", **asked))["delegations"]


async def wait_for_delegations(
    server: ScriptedServer, matches: Callable[[list[dict[str, Any]]], bool], **asked: Any
) -> list[dict[str, Any]]:
    async def has_matched() -> bool:
        nonlocal found
        found = await list_delegations(server, **asked)
        return matches(found)

    found: list[dict[str, Any]] = []
    await wait_until(has_matched, "the delegations have the expected status", describe=lambda: found)
    return found


async def test_a_delegation_tree_is_listed_and_stopped_from_its_root(tmp_path: Path) -> None:
    ada = Agent(name="ada", model="scripted", delegation=DEEP_DELEGATION)
    async with open_scripted_server(tmp_path, staff=(ada, BO_ASKS, CY)) as server:
        set_scripted_rule(
            server.model,
            {
                "Have it counted": [ask("bo", "Count everything", mode="async"), "I asked bo."],
                "Count everything": [ask("cy", "Count the chairs")],
                "Count the chairs": text_reply("Three.", after_s=3600),
                "Stopped": "It was stopped.",
            },
        )
        session = (await server.post("Have it counted")).session
        under, top = await wait_for_delegations(
            server, lambda all_: {each["status"] for each in all_} == {"suspended", "working"}
        )
        assert (top["agent"], top["target"], top["session"], top["status"]) == ("ada", "bo", session, "suspended")
        assert (under["agent"], under["target"], under["status"]) == ("bo", "cy", "working")
        assert under["requester_run"] == top["run"], "the parent of the nested delegation is a run"
        assert under["session"] == top["target_session"]
        assert (under["blocking"], top["blocking"]) == (True, False)
        assert (await server.ask("delegation.list"))["open_count"] == 2
        assert [each["id"] for each in await list_delegations(server, session=session)] == [top["id"]]

        done = await server.ask("delegation.stop", id=top["id"][:8], reason="enough")
        assert done["stopped"] == [top["id"], under["id"]]
        await server.rest()
        assert {each["status"] for each in await list_delegations(server)} == {"stopped"}
        assert await list_delegations(server, open=True) == []
        assert [mail.text for mail in await server.mail("person:owner")] == ["I asked bo.", "It was stopped."]
        assert (await server.ask("delegation.stop", id=top["id"]))["stopped"] == [], (
            "finished delegations are not changed"
        )


async def test_a_waiting_delegation_in_the_list_is_stopped_while_a_working_one_continues(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        both = ScriptedReply(
            calls=(
                ("agents_message", {"agentId": "bo", "content": "Chairs", "mode": "async"}),
                ("agents_message", {"agentId": "bo", "content": "Lamps", "mode": "async"}),
            )
        )
        stopped = asyncio.Event()
        set_scripted_rule(
            server.model,
            {
                "Ask twice": [both, "Asked."],
                "Chairs": text_reply("Three chairs.", once=stopped.wait),
                "Three chairs": "Bo has chairs.",
                "Stopped before": "No lamps then.",
            },
        )
        await server.post("Ask twice")
        found = await wait_for_delegations(
            server, lambda all_: sorted(each["status"] for each in all_) == ["waiting", "working"]
        )
        waiting = next(each for each in found if each["status"] == "waiting")
        done = await server.ask("delegation.stop", id=waiting["id"])
        assert (done["stopped"], done["cancelled_runs"]) == ([waiting["id"]], [])
        stopped.set()
        await server.rest()
        assert sorted(each["status"] for each in await list_delegations(server)) == ["ok", "stopped"]


async def test_delegation_costs_and_failures_are_listed_in_pages(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        await server.turn("Ask.", ask("bo", "chairs"), ScriptedReply(fails="no such model"), "It failed.")
        await server.turn("Ask.", ask("bo", "lamps"), "Two lamps.", "Two.")
        await server.turn(
            "Send.", tool_call_reply("sessions_spawn", task="Count", label="counting"), "Sent.", "Four.", "It is four."
        )
        found = await list_delegations(server)
        assert [(each["kind"], each["status"]) for each in found] == [
            ("spawn", "ok"),
            ("message", "ok"),
            ("message", "error"),
        ]
        assert found[0]["label"] == "counting"
        assert "no such model" in found[2]["because"]
        assert all(each["cost_microusd"] >= 0 and each["ended_at"] for each in found)
        pages, cursor = [], ""
        while cursor is not None:
            page = await server.ask("delegation.list", limit=1, cursor=cursor)
            pages += page["delegations"]
            cursor = page["next"]
        assert pages == found
        for wrong in ({"cursor": "no"}, {"limit": 0}, {"limit": 1_000}, {"session": "ffff"}):
            with pytest.raises(RetinueError):
                await list_delegations(server, **wrong)


async def test_a_member_lists_and_stops_only_delegations_of_their_own_sessions(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ADA, BO)) as server:
        await add_people(server, maria=Role.MEMBER)
        maria = person("maria")
        await server.turn("Ask.", ask("bo", "chairs"), "Three.", "Three.")
        set_scripted_rule(
            server.model,
            {
                "Hers": [ask("bo", "lamps", mode="async"), "Asked."],
                "lamps": text_reply("Two.", after_s=3600),
                "Stopped": "Oh.",
            },
        )
        await server.post("Hers", sender="person:maria", origin="person:maria")
        [hers] = await wait_for_delegations(
            server, lambda all_: [each["status"] for each in all_] == ["working"], who=maria
        )
        assert hers["target"] == "bo"
        assert (hers["target_session"], hers["run"]) == (None, None), "she may not open the session of bo"
        [owners] = [each for each in await list_delegations(server) if each["id"] != hers["id"]]
        assert owners["target_session"] is not None
        with pytest.raises(NotFound):
            await server.ask("delegation.stop", id=owners["id"], who=maria)
        assert (await server.ask("delegation.stop", id=hers["id"], who=maria))["stopped"] == [hers["id"]]
        await server.rest()


@pytest.mark.parametrize("own", [False, True])
async def test_the_agent_prompt_preview_shows_sections_files_changes_and_template_errors(
    tmp_path: Path, own: bool
) -> None:
    async with open_scripted_server(tmp_path) as server:
        (server.home() / "AGENTS.md").write_text("Count twice.")
        session = await server.turn("Hello.", "Good day.")
        plain = await server.ask("agent.prompt", name="ada", session=session)
        assert not {"files", "previous", "template_error"} & set(plain)
        await server.ask("agent.set", name="ada", instructions="You are the sea.")
        shown = await server.ask("agent.prompt", name="ada", session=session, parts=True)
        assert shown["text"] == "\n\n".join(each["text"] for each in shown["sections"])
        assert all(len(each["text"]) == each["chars"] for each in shown["sections"])
        assert [(each["name"], each["section"]) for each in shown["files"]] == [("AGENTS.md", "files")]
        assert shown["previous"]["text"] == plain["text"] != shown["text"]
        assert "template_error" not in shown
        folder = tmp_path / "instructions" / ("ada" if own else "")
        folder.mkdir(parents=True)
        (folder / "instructions.md.j2").write_text("one\n{{ nobody }}")
        broken = await server.ask("agent.prompt", name="ada", parts=True)
        assert "2" in broken["template_error"]["because"] + broken["template_error"]["sentence"]
        assert "nobody" in broken["template_error"]["because"]
        assert ("template_error" in await server.ask("agent.prompt", name="bo", parts=True)) is not own
