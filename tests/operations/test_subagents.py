"""What one can ask about subagents, on every door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flows.concurrent_model import ENDED, plays, spawn
from flows.tools_instance import HandsHouse, hands_house

from retinue.domain.agent import Agent, SubagentRules
from retinue.domain.errors import Invalid, NotFound
from retinue.testing.scripted_model import ScriptedReply, text_reply
from retinue.testing.wait_conditions import wait_until

ADA = Agent(name="ada", model="scripted", subagents=SubagentRules(archive_after_s=0.1))


def three(**more: Any) -> ScriptedReply:
    return ScriptedReply(
        calls=tuple(("sessions_spawn", {"task": f"task {n}", "label": f"number {n}", **more}) for n in range(3))
    )


async def until(house: HandsHouse, operation: str, fits: Any, **asked: Any) -> Any:
    async def found() -> Any:
        now = await house.ask(operation, **asked)
        return now if fits(now) else None

    return await wait_until(found, f"{operation} tells it")


@pytest.mark.spec("C52")
async def test_they_are_listed_newest_first_a_page_at_a_time(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [three(), "out"], "task": "done", "Hello.": "Hello."})
        session = await house.turn("Go.")
        other = await house.turn("Hello.", to="agent:bo")
        first = await house.ask("subagent.list", limit=2)
        rest = await house.ask("subagent.list", limit=2, cursor=first["next"])
        found = [*first["subagents"], *rest["subagents"]]
        assert sorted(each["label"] for each in found) == ["number 0", "number 1", "number 2"]
        assert len(first["subagents"]) == 2 and rest["next"] is None
        for each in found:
            assert each["requester"] == f"agent:ada/{session}"
            assert each["session-key"] == f"agent:ada:subagent:{each['session']}"
            assert each["outcome"] == "ok" and each["started-at"] and each["ended-at"]
        assert len((await house.ask("subagent.list", session=session))["subagents"]) == 3
        assert (await house.ask("subagent.list", session=other))["subagents"] == []
        shown = await house.ask("subagent.show", id=found[0]["id"][:12])
        assert shown["task"].startswith("task ") and shown["result-text"].endswith("done")
        assert (shown["input-tokens"], shown["output-tokens"]) == (10, 5)
        by_key = await house.ask("subagent.show", id=found[0]["session-key"])
        assert by_key["id"] == shown["id"]
        with pytest.raises(Invalid, match="invalid cursor"):
            await house.ask("subagent.list", cursor="nonsense")


@pytest.mark.spec("C52")
async def test_one_or_all_of_a_session_are_stopped_and_counted(tmp_path: Path) -> None:
    async with hands_house(tmp_path, config="[house.slots]\nsubagent = 2\n") as house:
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [three(), "out"], "task": text_reply("done", after_s=3600)})
        receipt = await house.post("Go.")
        found = await until(house, "subagent.list", lambda got: len(got["subagents"]) == 3)
        at_work = ["ok", "open", "open"]
        await until(house, "run.list", lambda got: sorted(each["status"] for each in got["runs"]) == at_work)
        one = found["subagents"][0]["id"]
        stopped = await house.ask("subagent.stop", id=one, why="wrong one")
        assert stopped["stopped"] == 1 and stopped["subagents"] == [one]
        again = await house.ask("subagent.stop", id=one)
        assert again["stopped"] == 0, "it is over already"
        all_ = await house.ask("subagent.stop", session=receipt.session)
        assert all_["stopped"] == 2
        await house.rest()
        outcomes = [each["outcome"] for each in (await house.ask("subagent.list"))["subagents"]]
        assert outcomes == ["stopped"] * 3
        for unclear in ({}, {"id": one, "session": receipt.session}):
            with pytest.raises(Invalid, match="give either `id` or `session`"):
                await house.ask("subagent.stop", **unclear)


@pytest.mark.spec("C29")
async def test_stop_counts_the_subagents_it_has_stopped(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [three(), "out"], "task": text_reply("done", after_s=3600)})
        await house.post("Go.")
        at_work = ["ok", "open", "open", "open"]
        await until(house, "run.list", lambda got: sorted(each["status"] for each in got["runs"]) == at_work)
        await house.post("/stop")
        await house.rest()
        first, stopped = await house.mail("person:owner")
        assert first.text == "out" and "3 subagents stopped" in stopped.text
        told = [mail for mail in await house.mail() if mail.text.startswith("The subagent")]
        assert len(told) == 3 and all(mail.silent and "NO_REPLY" not in mail.text for mail in told)


async def test_one_can_read_along_and_write_to_it(tmp_path: Path) -> None:
    async with hands_house(tmp_path) as house:
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [spawn("look"), "out"], "look": "I see.", "What?": "A chair."})
        await house.turn("Go.")
        [found] = (await house.ask("subagent.list"))["subagents"]
        sent = await house.ask("subagent.send", id=found["id"], text="What?")
        await house.rest()
        assert sent["session"] == found["session"]
        assert (await house.mail("person:owner"))[-1].text == "A chair."
        said = [record["body"].get("text") for record in (await house.ask("subagent.log", id=found["id"]))["records"]]
        assert "I see." in said and "A chair." in said


@pytest.mark.spec("C52")
async def test_what_was_put_away_is_listed_and_exported_where_someone_asks_for_it(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ADA,)) as house:
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [spawn("look", label="eyes"), "out"], "look": "I see."})
        session = await house.turn("Go.")
        [found] = (await house.ask("subagent.list", all=True))["subagents"]
        await until(house, "subagent.list", lambda got: got["subagents"] == [])
        [found] = (await house.ask("subagent.list", all=True))["subagents"]
        assert found["archived-at"] is not None
        assert [each["sessionId"] for each in (await house.ask("session.list"))["sessions"]] == [session]
        with_archived = (await house.ask("session.list", archived=True))["sessions"]
        away = {each["sessionId"]: each for each in with_archived}[found["session"]]
        assert away["archivedAt"] is not None and away["name"] == "eyes"
        exported = await house.ask("session.export", session=found["session"])
        assert "I see." in str(exported)
        assert (await house.ask("subagent.log", id=found["id"]))["records"]


@pytest.mark.spec("C52", "C121.cleanup")
async def test_one_that_was_not_to_be_kept_leaves_its_record_and_no_session(tmp_path: Path) -> None:
    async with hands_house(tmp_path, staff=(ADA,)) as house:
        plays(house.model, {ENDED: "NO_REPLY", "Go.": [spawn("look", cleanup="delete"), "out"], "look": "I see."})
        session = await house.turn("Go.")
        [found] = (await house.ask("subagent.list", all=True))["subagents"]
        await until(house, "subagent.list", lambda got: got["subagents"] == [])
        listed = (await house.ask("session.list", archived=True))["sessions"]
        assert [each["sessionId"] for each in listed] == [session]
        shown = await house.ask("subagent.show", id=found["id"])
        assert shown["outcome"] == "ok" and "I see." in shown["result-text"]
        with pytest.raises(NotFound, match="was deleted"):
            await house.ask("subagent.log", id=found["id"])
        with pytest.raises(NotFound, match="was deleted"):
            await house.ask("subagent.send", id=found["id"], text="Hello?")
