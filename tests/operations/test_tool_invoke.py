"""Calling a tool directly: the same rules as in a run, a few more, and nobody to ask."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from flows.tools_instance import ADA, HandsHouse, Visit, hands_house
from operations.operations_instance import agent, person

from retinue.api.responses import http_status
from retinue.domain.agent import PermissionLevel, ToolRules
from retinue.domain.errors import NotAllowed, NotFound
from retinue.domain.structs import replace
from retinue.domain.tool import RESULT_CHARS_MAX
from retinue.domain.trust import Trust
from retinue.policy.tools.tool_groups import INVOKE_DENIED
from retinue.testing.scripted_model import tool_call_reply


@pytest.fixture
def page() -> Visit:
    return Visit()


@pytest.fixture
async def house(tmp_path: Path, page: Visit) -> AsyncGenerator[HandsHouse]:
    async with hands_house(tmp_path / "home", tools=[page]) as made:
        yield made


async def test_a_tool_is_called_as_an_agent_would_and_its_answer_comes_back(house: HandsHouse) -> None:
    (house.home() / "SOUL.md").write_text("I am Ada.")
    done = await house.ask("tool.invoke", agent="ada", tool="read", args={"path": "SOUL.md"})
    assert done == {"tool": "read", "output": "I am Ada.", "failed": False}


async def test_arguments_that_do_not_fit_are_a_failed_answer_and_not_a_crash(house: HandsHouse) -> None:
    done = await house.ask("tool.invoke", agent="ada", tool="read", args={"colour": "red"})
    assert done["failed"] and "Invalid arguments for 'read'" in done["output"]


@pytest.mark.spec("C93")
async def test_what_is_not_allowed_is_not_there(house: HandsHouse) -> None:
    house.rule(deny=("append_line",))
    with pytest.raises(NotFound) as denied:
        await house.ask("tool.invoke", agent="ada", tool="append_line", args={"text": "x"})
    with pytest.raises(NotFound) as unknown:
        await house.ask("tool.invoke", agent="ada", tool="fly", args={})
    assert denied.value.code == unknown.value.code == "tool.not_found"
    assert http_status(denied.value) == http_status(unknown.value) == 404
    assert denied.value.try_this == "change tools.deny"
    assert house.lines == []
    house.rule(deny=())
    assert not (await house.ask("tool.invoke", agent="ada", tool="append_line", args={"text": "x"}))["failed"]


@pytest.mark.spec("C93")
async def test_some_tools_cannot_be_called_directly_unless_the_owner_says_so(house: HandsHouse) -> None:
    asked = {"agent": "ada", "tool": "write", "args": {"path": "a.txt", "content": "x"}}
    with pytest.raises(NotFound) as denied:
        await house.ask("tool.invoke", **asked)
    assert denied.value.try_this == "change tools.invoke_allow"
    assert not (house.home() / "a.txt").exists()
    house.rule(invoke_allow=("write",))
    assert not (await house.ask("tool.invoke", **asked))["failed"]
    assert (house.home() / "a.txt").read_text() == "x"
    house.rule(invoke_allow=("*",), deny=("write",))
    with pytest.raises(NotFound):  # what the owner denies everywhere stays denied here
        await house.ask("tool.invoke", **asked)
    assert "write" in INVOKE_DENIED


@pytest.mark.spec("C93", "A37")
async def test_what_would_ask_is_refused_for_there_is_nobody_to_ask(house: HandsHouse) -> None:
    house.rule(ask=("append_line",))
    with pytest.raises(NotAllowed) as refused:
        await house.ask("tool.invoke", agent="ada", tool="append_line", args={"text": "x"})
    assert refused.value.code == "tool.needs_approval" and "grant add" in (refused.value.try_this or "")
    assert house.lines == [] and await house.asked() == [], "and nobody finds a question that nobody waits for"


async def test_only_who_may_do_everything_may_call_a_tool_directly(house: HandsHouse) -> None:
    for who in (person("maria"), person("gus"), agent("bo")):
        with pytest.raises(NotAllowed):
            await house.ask("tool.invoke", who=who, agent="ada", tool="read", args={"path": "SOUL.md"})


async def test_in_a_conversation_that_has_read_strangers_words_a_direct_call_is_judged_by_that(
    house: HandsHouse,
) -> None:
    """It was once judged as if the conversation were empty, while `policy explain` said otherwise."""
    session = await house.turn("Visit the page.", tool_call_reply("visit"), "Read.")
    asked = {"agent": "ada", "tool": "append_line", "args": {"text": "x"}, "session": session}
    explained = await house.ask("policy.explain", door="invoke", **asked)
    assert explained["verdict"] == "ask" and {"origin"} <= {found["layer"] for found in explained["findings"]}
    with pytest.raises(NotAllowed):
        await house.ask("tool.invoke", **asked)
    assert house.lines == []
    assert not (await house.ask("tool.invoke", **{**asked, "session": ""}))["failed"]


async def test_what_an_agent_calls_outside_of_its_runs_may_come_from_anywhere(house: HandsHouse) -> None:
    boss = agent("ada", PermissionLevel.BOSS)
    asked = {"agent": "ada", "tool": "append_line", "args": {"text": "x"}}
    with pytest.raises(NotAllowed):
        await house.ask("tool.invoke", who=boss, **asked)
    with pytest.raises(NotAllowed):
        await house.ask("tool.invoke", who=msgspec.structs.replace(boss, trust=Trust.UNTRUSTED), **asked)
    assert house.lines == []


async def test_the_session_of_another_agent_is_not_to_be_had(house: HandsHouse) -> None:
    session = await house.turn("Hello.", "Hello.", to="agent:bo")
    for operation in ("tool.invoke", "policy.explain"):
        with pytest.raises(NotFound):
            await house.ask(operation, agent="ada", tool="read", args={"path": "SOUL.md"}, session=session)


async def test_a_long_answer_is_cut_and_sends_nobody_to_a_record_that_is_not_there(
    house: HandsHouse, page: Visit
) -> None:
    page.says, page.trust = "x" * (RESULT_CHARS_MAX + 1_000), Trust.PRIVATE
    done = await house.ask("tool.invoke", agent="ada", tool="visit")
    assert done["output"].endswith("[cut: 1000 more characters]") and "result:" not in done["output"]


async def test_capabilities_hold_here_too(tmp_path: Path) -> None:
    staff = (replace(ADA, tools=ToolRules(capabilities_deny=("files.*",))),)
    async with hands_house(tmp_path / "home", staff=staff) as house:
        with pytest.raises(NotFound) as denied:
            await house.ask("tool.invoke", agent="ada", tool="read", args={"path": "SOUL.md"})
        assert denied.value.try_this == "change agents.ada.tools.capabilities_deny"
