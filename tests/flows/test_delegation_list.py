"""Work that was handed on, as people look at it: who asked whom, how it stands, and an end to all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.concurrent_model import plays
from flows.team_instance import let_in
from flows.tools_instance import ADA, BO, HandsHouse, hands_house
from operations.operations_instance import person

from retinue.domain.agent import Agent, DelegationRules
from retinue.domain.errors import NotFound, RetinueError
from retinue.domain.person import Role
from retinue.testing.scripted_model import ScriptedReply, text_reply, tool_call_reply
from retinue.testing.wait_conditions import wait_until

FAR = DelegationRules(depth_max=3)
BO_ASKS = Agent(name="bo", model="scripted", delegation=FAR)
CY = Agent(name="cy", model="scripted")


def ask(agent: str, content: str, **more: Any) -> ScriptedReply:
    return tool_call_reply("agents_message", agentId=agent, content=content, **more)


async def listed(house: HandsHouse, **asked: Any) -> list[dict[str, Any]]:
    return (await house.ask("delegation.list", **asked))["delegations"]


async def until(house: HandsHouse, so: Callable[[list[dict[str, Any]]], bool], **asked: Any) -> list[dict[str, Any]]:
    async def is_so() -> bool:
        nonlocal found
        found = await listed(house, **asked)
        return so(found)

    found: list[dict[str, Any]] = []
    await wait_until(is_so, "the list is as it should be", describe=lambda: found)
    return found


async def test_a_tree_is_told_by_who_asked_whom_and_stopped_from_its_root(tmp_path: Path) -> None:
    ada = Agent(name="ada", model="scripted", delegation=FAR)
    async with hands_house(tmp_path, staff=(ada, BO_ASKS, CY)) as house:
        plays(
            house.model,
            {
                "Have it counted": [ask("bo", "Count everything", mode="async"), "I asked bo."],
                "Count everything": [ask("cy", "Count the chairs")],
                "Count the chairs": text_reply("Three.", after_s=3600),
                "Stopped": "It was stopped.",
            },
        )
        session = (await house.post("Have it counted")).session
        under, top = await until(house, lambda all_: {each["stands"] for each in all_} == {"parked", "working"})
        assert (top["agent"], top["target"], top["session"], top["stands"]) == ("ada", "bo", session, "parked")
        assert (under["agent"], under["target"], under["stands"]) == ("bo", "cy", "working")
        assert under["asked-by"] == top["run"], "a tree is made of runs"
        assert under["session"] == top["to"]
        assert (under["waits"], top["waits"]) == (True, False)
        assert (await house.ask("delegation.list"))["open-count"] == 2
        assert [each["id"] for each in await listed(house, session=session)] == [top["id"]]

        done = await house.ask("delegation.stop", id=top["id"][:8], why="enough")
        assert done["stopped"] == [top["id"], under["id"]]
        await house.rest()
        assert {each["stands"] for each in await listed(house)} == {"stopped"}
        assert await listed(house, open=True) == []
        assert [mail.text for mail in await house.mail("person:owner")] == ["I asked bo.", "It was stopped."]
        assert (await house.ask("delegation.stop", id=top["id"]))["stopped"] == [], "what is over stays as it is"


async def test_what_nobody_has_begun_is_taken_back_and_what_is_at_work_there_goes_on(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        both = ScriptedReply(
            calls=(
                ("agents_message", {"agentId": "bo", "content": "Chairs", "mode": "async"}),
                ("agents_message", {"agentId": "bo", "content": "Lamps", "mode": "async"}),
            )
        )
        stopped = asyncio.Event()
        plays(
            house.model,
            {
                "Ask twice": [both, "Asked."],
                "Chairs": text_reply("Three chairs.", once=stopped.wait),
                "Three chairs": "Bo has chairs.",
                "Stopped before": "No lamps then.",
            },
        )
        await house.post("Ask twice")
        found = await until(house, lambda all_: sorted(each["stands"] for each in all_) == ["waiting", "working"])
        waiting = next(each for each in found if each["stands"] == "waiting")
        done = await house.ask("delegation.stop", id=waiting["id"])
        assert (done["stopped"], done["cancelled-runs"]) == ([waiting["id"]], [])
        stopped.set()
        await house.rest()
        assert sorted(each["stands"] for each in await listed(house)) == ["ok", "stopped"]


async def test_costs_and_failures_are_told_and_pages_follow_one_another(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        await house.turn("Ask.", ask("bo", "chairs"), ScriptedReply(fails="no such model"), "It failed.")
        await house.turn("Ask.", ask("bo", "lamps"), "Two lamps.", "Two.")
        await house.turn(
            "Send.", tool_call_reply("sessions_spawn", task="Count", label="counting"), "Sent.", "Four.", "It is four."
        )
        found = await listed(house)
        assert [(each["kind"], each["stands"]) for each in found] == [
            ("spawn", "ok"),
            ("message", "ok"),
            ("message", "error"),
        ]
        assert found[0]["label"] == "counting"
        assert "no such model" in found[2]["because"]
        assert all(each["cost-microusd"] >= 0 and each["ended-at"] for each in found)
        pages, cursor = [], ""
        while cursor is not None:
            page = await house.ask("delegation.list", limit=1, cursor=cursor)
            pages += page["delegations"]
            cursor = page["next"]
        assert pages == found
        for wrong in ({"cursor": "no"}, {"limit": 0}, {"limit": 1_000}, {"session": "ffff"}):
            with pytest.raises(RetinueError):
                await listed(house, **wrong)


async def test_others_see_and_stop_only_what_came_of_their_own_conversations(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ADA, BO)) as house:
        await let_in(house, maria=Role.MEMBER)
        maria = person("maria")
        await house.turn("Ask.", ask("bo", "chairs"), "Three.", "Three.")
        plays(
            house.model,
            {
                "Hers": [ask("bo", "lamps", mode="async"), "Asked."],
                "lamps": text_reply("Two.", after_s=3600),
                "Stopped": "Oh.",
            },
        )
        await house.post("Hers", sender="person:maria", origin="person:maria")
        [hers] = await until(house, lambda all_: [each["stands"] for each in all_] == ["working"], who=maria)
        assert hers["target"] == "bo"
        assert (hers["to"], hers["run"]) == (None, None), "bo's session is not hers to open"
        [owners] = [each for each in await listed(house) if each["id"] != hers["id"]]
        assert owners["to"] is not None
        with pytest.raises(NotFound):
            await house.ask("delegation.stop", id=owners["id"], who=maria)
        assert (await house.ask("delegation.stop", id=hers["id"], who=maria))["stopped"] == [hers["id"]]
        await house.rest()


@pytest.mark.parametrize("own", [False, True])
async def test_a_preview_tells_words_by_section_what_changed_and_what_is_wrong_with_a_template(
    tmp_path: Path, own: bool
) -> None:
    async with hands_house(tmp_path) as house:
        (house.home() / "AGENTS.md").write_text("Count twice.")
        session = await house.turn("Hello.", "Good day.")
        plain = await house.ask("agent.prompt", name="ada", session=session)
        assert not {"files", "before", "trouble"} & set(plain)
        await house.ask("agent.set", name="ada", instructions="You are the sea.")
        shown = await house.ask("agent.prompt", name="ada", session=session, parts=True)
        assert shown["text"] == "\n\n".join(each["text"] for each in shown["sections"])
        assert all(len(each["text"]) == each["chars"] for each in shown["sections"])
        assert [(each["name"], each["section"]) for each in shown["files"]] == [("AGENTS.md", "files")]
        assert shown["before"]["text"] == plain["text"] != shown["text"]
        assert "trouble" not in shown
        folder = tmp_path / "instructions" / ("ada" if own else "")
        folder.mkdir(parents=True)
        (folder / "instructions.md.j2").write_text("one\n{{ nobody }}")
        broken = await house.ask("agent.prompt", name="ada", parts=True)
        assert "2" in broken["trouble"]["because"] + broken["trouble"]["sentence"]
        assert "nobody" in broken["trouble"]["because"]
        assert ("trouble" in await house.ask("agent.prompt", name="bo", parts=True)) is not own
