"""Subagent operations as tools, over HTTP and in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flows.concurrent_model import SUBAGENT_ENDED_TEXT, set_scripted_rule, spawn_call
from flows.tools_instance import ScriptedServer, open_scripted_server

from retinue.domain.agent import Agent, SubagentRules
from retinue.domain.errors import Invalid, NotFound
from retinue.testing.scripted_model import ScriptedReply, text_reply
from retinue.testing.wait_conditions import wait_until

ADA = Agent(name="ada", model="scripted", subagents=SubagentRules(archive_after_s=0.1))


def spawn_three_reply(**more: Any) -> ScriptedReply:
    return ScriptedReply(
        calls=tuple(("sessions_spawn", {"task": f"task {n}", "label": f"number {n}", **more}) for n in range(3))
    )


async def wait_for_answer_that(server: ScriptedServer, operation: str, fits: Any, **asked: Any) -> Any:
    async def found() -> Any:
        now = await server.ask(operation, **asked)
        return now if fits(now) else None

    return await wait_until(found, f"{operation} shows it")


@pytest.mark.spec("C52")
async def test_subagent_list_returns_subagents_in_pages_with_their_outcome(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        set_scripted_rule(
            server.model,
            {SUBAGENT_ENDED_TEXT: "NO_REPLY", "Go.": [spawn_three_reply(), "out"], "task": "done", "Hello.": "Hello."},
        )
        session = await server.turn("Go.")
        other = await server.turn("Hello.", to="agent:bo")
        first = await server.ask("subagent.list", limit=2)
        rest = await server.ask("subagent.list", limit=2, cursor=first["next"])
        found = [*first["subagents"], *rest["subagents"]]
        assert sorted(each["label"] for each in found) == ["number 0", "number 1", "number 2"]
        assert len(first["subagents"]) == 2 and rest["next"] is None
        for each in found:
            assert each["requester"] == f"agent:ada/{session}"
            assert each["session_key"] == f"agent:ada:subagent:{each['session']}"
            assert each["outcome"] == "ok" and each["started_at"] and each["ended_at"]
        assert len((await server.ask("subagent.list", session=session))["subagents"]) == 3
        assert (await server.ask("subagent.list", session=other))["subagents"] == []
        shown = await server.ask("subagent.show", id=found[0]["id"][:12])
        assert shown["task"].startswith("task ") and shown["result_text"].endswith("done")
        assert (shown["input_tokens"], shown["output_tokens"]) == (10, 5)
        by_key = await server.ask("subagent.show", id=found[0]["session_key"])
        assert by_key["id"] == shown["id"]
        with pytest.raises(Invalid, match="invalid cursor"):
            await server.ask("subagent.list", cursor="nonsense")


@pytest.mark.spec("C52")
async def test_subagent_stop_stops_one_or_all_subagents_of_a_session_and_counts_them(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, config="[server.slots]\nsubagent = 2\n") as server:
        set_scripted_rule(
            server.model,
            {
                SUBAGENT_ENDED_TEXT: "NO_REPLY",
                "Go.": [spawn_three_reply(), "out"],
                "task": text_reply("done", after_s=3600),
            },
        )
        receipt = await server.post("Go.")
        found = await wait_for_answer_that(server, "subagent.list", lambda got: len(got["subagents"]) == 3)
        at_work = ["ok", "open", "open"]
        await wait_for_answer_that(
            server, "run.list", lambda got: sorted(each["status"] for each in got["runs"]) == at_work
        )
        one = found["subagents"][0]["id"]
        stopped = await server.ask("subagent.stop", id=one, reason="wrong one")
        assert stopped["stopped"] == 1 and stopped["subagents"] == [one]
        again = await server.ask("subagent.stop", id=one)
        assert again["stopped"] == 0, "it has ended already"
        all_ = await server.ask("subagent.stop", session=receipt.session)
        assert all_["stopped"] == 2
        await server.rest()
        outcomes = [each["outcome"] for each in (await server.ask("subagent.list"))["subagents"]]
        assert outcomes == ["stopped"] * 3
        for unclear in ({}, {"id": one, "session": receipt.session}):
            with pytest.raises(Invalid, match="invalid selection of subagents"):
                await server.ask("subagent.stop", **unclear)


@pytest.mark.spec("C29")
async def test_the_slash_command_stop_counts_the_subagents_that_it_stopped(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        set_scripted_rule(
            server.model,
            {
                SUBAGENT_ENDED_TEXT: "NO_REPLY",
                "Go.": [spawn_three_reply(), "out"],
                "task": text_reply("done", after_s=3600),
            },
        )
        await server.post("Go.")
        at_work = ["ok", "open", "open", "open"]
        await wait_for_answer_that(
            server, "run.list", lambda got: sorted(each["status"] for each in got["runs"]) == at_work
        )
        await server.post("/stop")
        await server.rest()
        first, stopped = await server.mail("person:owner")
        assert first.text == "out" and "3 subagents stopped" in stopped.text
        reports = [mail for mail in await server.mail() if mail.text.startswith("The subagent")]
        assert len(reports) == 3 and all(mail.silent and "NO_REPLY" not in mail.text for mail in reports)


async def test_a_person_can_read_the_log_of_a_subagent_and_write_to_it(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path) as server:
        set_scripted_rule(
            server.model,
            {
                SUBAGENT_ENDED_TEXT: "NO_REPLY",
                "Go.": [spawn_call("look"), "out"],
                "look": "I see.",
                "What?": "A chair.",
            },
        )
        await server.turn("Go.")
        [found] = (await server.ask("subagent.list"))["subagents"]
        sent = await server.ask("subagent.send", id=found["id"], text="What?")
        await server.rest()
        assert sent["session"] == found["session"]
        assert (await server.mail("person:owner"))[-1].text == "A chair."
        texts = [record["body"].get("text") for record in (await server.ask("subagent.log", id=found["id"]))["records"]]
        assert "I see." in texts and "A chair." in texts


@pytest.mark.spec("C52")
async def test_an_archived_subagent_is_listed_and_exported_only_on_request(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ADA,)) as server:
        set_scripted_rule(
            server.model,
            {SUBAGENT_ENDED_TEXT: "NO_REPLY", "Go.": [spawn_call("look", label="eyes"), "out"], "look": "I see."},
        )
        session = await server.turn("Go.")
        [found] = (await server.ask("subagent.list", all=True))["subagents"]
        await wait_for_answer_that(server, "subagent.list", lambda got: got["subagents"] == [])
        [found] = (await server.ask("subagent.list", all=True))["subagents"]
        assert found["archived_at"] is not None
        assert [each["sessionId"] for each in (await server.ask("session.list"))["sessions"]] == [session]
        with_archived = (await server.ask("session.list", archived=True))["sessions"]
        away = {each["sessionId"]: each for each in with_archived}[found["session"]]
        assert away["archivedAt"] is not None and away["name"] == "eyes"
        exported = await server.ask("session.export", session=found["session"])
        assert "I see." in str(exported)
        assert (await server.ask("subagent.log", id=found["id"]))["records"]


@pytest.mark.spec("C52", "C121.cleanup")
async def test_a_subagent_with_cleanup_delete_keeps_its_entry_but_not_its_session(tmp_path: Path) -> None:
    async with open_scripted_server(tmp_path, staff=(ADA,)) as server:
        set_scripted_rule(
            server.model,
            {SUBAGENT_ENDED_TEXT: "NO_REPLY", "Go.": [spawn_call("look", cleanup="delete"), "out"], "look": "I see."},
        )
        session = await server.turn("Go.")
        [found] = (await server.ask("subagent.list", all=True))["subagents"]
        await wait_for_answer_that(server, "subagent.list", lambda got: got["subagents"] == [])
        listed = (await server.ask("session.list", archived=True))["sessions"]
        assert [each["sessionId"] for each in listed] == [session]
        shown = await server.ask("subagent.show", id=found["id"])
        assert shown["outcome"] == "ok" and "I see." in shown["result_text"]
        with pytest.raises(NotFound, match="was deleted"):
            await server.ask("subagent.log", id=found["id"])
        with pytest.raises(NotFound, match="was deleted"):
            await server.ask("subagent.send", id=found["id"], text="Hello?")
