"""Direct tool calls follow the rules of runs and some more, and no approval can be requested."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
from flows.tools_instance import ADA, ScriptedServer, Visit, open_scripted_server
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
async def server(tmp_path: Path, page: Visit) -> AsyncGenerator[ScriptedServer]:
    async with open_scripted_server(tmp_path / "home", tools=[page]) as made:
        yield made


async def test_tool_invoke_calls_a_tool_of_an_agent_and_returns_its_output(server: ScriptedServer) -> None:
    (server.home() / "SOUL.md").write_text("I am Ada.")
    done = await server.ask("tool.invoke", agent="ada", tool="read", args={"path": "SOUL.md"})
    assert done == {"tool": "read", "output": "I am Ada.", "failed": False}


async def test_tool_invoke_with_invalid_arguments_returns_a_failed_result(server: ScriptedServer) -> None:
    done = await server.ask("tool.invoke", agent="ada", tool="read", args={"colour": "red"})
    assert done["failed"] and "Invalid arguments for 'read'" in done["output"]


@pytest.mark.spec("C93")
async def test_tool_invoke_of_a_denied_tool_looks_like_an_unknown_tool(server: ScriptedServer) -> None:
    server.rule(deny=("append_line",))
    with pytest.raises(NotFound) as denied:
        await server.ask("tool.invoke", agent="ada", tool="append_line", args={"text": "x"})
    with pytest.raises(NotFound) as unknown:
        await server.ask("tool.invoke", agent="ada", tool="fly", args={})
    assert denied.value.code == unknown.value.code == "tool.not_found"
    assert http_status(denied.value) == http_status(unknown.value) == 404
    assert denied.value.try_this == "change tools.deny"
    assert server.lines == []
    server.rule(deny=())
    assert not (await server.ask("tool.invoke", agent="ada", tool="append_line", args={"text": "x"}))["failed"]


@pytest.mark.spec("C93")
async def test_tools_denied_for_tool_invoke_need_the_invoke_allow_setting(server: ScriptedServer) -> None:
    asked = {"agent": "ada", "tool": "write", "args": {"path": "a.txt", "content": "x"}}
    with pytest.raises(NotFound) as denied:
        await server.ask("tool.invoke", **asked)
    assert denied.value.try_this == "change tools.invoke_allow"
    assert not (server.home() / "a.txt").exists()
    server.rule(invoke_allow=("write",))
    assert not (await server.ask("tool.invoke", **asked))["failed"]
    assert (server.home() / "a.txt").read_text() == "x"
    server.rule(invoke_allow=("*",), deny=("write",))
    with pytest.raises(NotFound):  # a tool that the owner denies everywhere stays denied here
        await server.ask("tool.invoke", **asked)
    assert "write" in INVOKE_DENIED


@pytest.mark.spec("C93", "A37")
async def test_tool_invoke_of_a_tool_that_needs_approval_is_refused(server: ScriptedServer) -> None:
    server.rule(ask=("append_line",))
    with pytest.raises(NotAllowed) as refused:
        await server.ask("tool.invoke", agent="ada", tool="append_line", args={"text": "x"})
    assert refused.value.code == "tool.needs_approval" and "grant add" in (refused.value.try_this or "")
    assert server.lines == [] and await server.asked() == [], "no approval is requested"


async def test_tool_invoke_is_refused_below_boss_level(server: ScriptedServer) -> None:
    for who in (person("maria"), person("gus"), agent("bo")):
        with pytest.raises(NotAllowed):
            await server.ask("tool.invoke", who=who, agent="ada", tool="read", args={"path": "SOUL.md"})


async def test_tool_invoke_applies_the_provenance_of_the_given_session(
    server: ScriptedServer,
) -> None:
    """Regression: the session was once taken for empty here, while `policy explain` used its content."""
    session = await server.turn("Visit the page.", tool_call_reply("visit"), "Read.")
    asked = {"agent": "ada", "tool": "append_line", "args": {"text": "x"}, "session": session}
    explained = await server.ask("policy.explain", call_source="invoke", **asked)
    assert explained["decision"] == "ask" and {"origin"} <= {found["layer"] for found in explained["findings"]}
    with pytest.raises(NotAllowed):
        await server.ask("tool.invoke", **asked)
    assert server.lines == []
    assert not (await server.ask("tool.invoke", **{**asked, "session": ""}))["failed"]


async def test_tool_invoke_by_an_agent_is_judged_as_untrusted(server: ScriptedServer) -> None:
    boss = agent("ada", PermissionLevel.BOSS)
    asked = {"agent": "ada", "tool": "append_line", "args": {"text": "x"}}
    with pytest.raises(NotAllowed):
        await server.ask("tool.invoke", who=boss, **asked)
    with pytest.raises(NotAllowed):
        await server.ask("tool.invoke", who=msgspec.structs.replace(boss, trust=Trust.UNTRUSTED), **asked)
    assert server.lines == []


async def test_tool_invoke_with_the_session_of_another_agent_is_not_found(server: ScriptedServer) -> None:
    session = await server.turn("Hello.", "Hello.", to="agent:bo")
    for operation in ("tool.invoke", "policy.explain"):
        with pytest.raises(NotFound):
            await server.ask(operation, agent="ada", tool="read", args={"path": "SOUL.md"}, session=session)


async def test_tool_invoke_truncates_a_long_result_without_a_result_reference(
    server: ScriptedServer, page: Visit
) -> None:
    page.says, page.trust = "x" * (RESULT_CHARS_MAX + 1_000), Trust.PRIVATE
    done = await server.ask("tool.invoke", agent="ada", tool="visit")
    assert done["output"].endswith("[cut: 1000 more characters]") and "result:" not in done["output"]


async def test_tool_invoke_respects_denied_capabilities(tmp_path: Path) -> None:
    staff = (replace(ADA, tools=ToolRules(capabilities_deny=("files.*",))),)
    async with open_scripted_server(tmp_path / "home", staff=staff) as server:
        with pytest.raises(NotFound) as denied:
            await server.ask("tool.invoke", agent="ada", tool="read", args={"path": "SOUL.md"})
        assert denied.value.try_this == "change agents.ada.tools.capabilities_deny"
