"""Why a tool is allowed or denied, and which recorded decisions would differ under other rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import ADA, ScriptedServer, Visit, open_scripted_server

from retinue.domain.agent import ToolRules
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.structs import replace
from retinue.testing.scripted_model import tool_call_reply


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[ScriptedServer]:
    async with open_scripted_server(tmp_path / "home", tools=[Visit()]) as made:
        yield made


def layers(explained: Any) -> dict[str, str]:
    return {found["layer"]: found["decision"] for found in explained["findings"]}


# --- policy.explain ---


@pytest.mark.spec("C57")
async def test_policy_explain_names_the_setting_that_decides(tmp_path: Path) -> None:
    config = """
[tools]
ask = ["write"]
[tools.by_sender."person:maria"]
deny = ["exec"]
[tools.by_session.subagent]
deny = ["read"]
"""
    staff = (replace(ADA, tools=ToolRules(deny=("ls",), capabilities_deny=("messages.*",))),)
    async with open_scripted_server(tmp_path / "home", staff=staff, config=config) as server:

        async def key(tool: str, **kw: Any) -> tuple[str, str]:
            found = await server.ask("policy.explain", agent="ada", tool=tool, **kw)
            return found["decision"], found["key"]

        assert await key("session_status") == ("allow", "")
        assert await key("write") == ("ask", "tools.ask")
        assert await key("ls") == ("deny", "agents.ada.tools.deny")
        assert await key("message") == ("deny", "agents.ada.tools.capabilities_deny")
        assert await key("exec", args={"command": "ls"}, sender="person:maria") == (
            "deny",
            "tools.by_sender.person:maria.deny",
        )
        assert await key("read", origin="subagent") == ("deny", "tools.by_session.subagent.deny")
        assert await key("read", origin="terminal") == ("allow", "")
        assert await key("exec", call_source="invoke") == ("deny", "tools.invoke_allow")
        assert await key("config_show") == ("deny", "agents.ada.tools.also_allow")
        found = await server.ask("policy.explain", agent="ada", tool="write")
        assert layers(found) == {
            "the server": "ask",
            "the agent ada": "allow",
            "the rule for schedules": "allow",
            "the rule for chats": "allow",
        }
        assert found["grant_permissions"] == ["tool:write"]


@pytest.mark.spec("C57")
async def test_policy_explain_shows_what_a_grant_would_allow_or_has_allowed(server: ScriptedServer) -> None:
    asked: dict[str, Any] = {"agent": "ada", "tool": "web_fetch", "args": {"url": "https://example.com/"}}
    found = await server.ask("policy.explain", **asked)
    assert (found["decision"], found["grant_permissions"]) == ("ask", ["web"]) and layers(found)["permissions"] == "ask"
    await server.ask("grant.add", agent="ada", permission="web", because="test")
    assert (await server.ask("policy.explain", **asked))["decision"] == "allow"
    assert (await server.ask("policy.explain", **asked, origin="schedule"))["decision"] == "ask", "not in a schedule"


async def test_policy_explain_applies_unsaved_agent_changes(server: ScriptedServer) -> None:
    async def verdict(tool: str, **changes: Any) -> tuple[str, str]:
        found = await server.ask("policy.explain", agent="ada", tool=tool, changes=changes)
        return found["decision"], found["key"]

    assert await verdict("ls") == ("allow", "")
    assert await verdict("ls", tools_deny=["ls"]) == ("deny", "agents.ada.tools.deny")
    assert await verdict("ls", tools_ask=["ls"]) == ("ask", "agents.ada.tools.ask")
    assert await verdict("ls", tools_allow=["read"]) == ("deny", "agents.ada.tools.allow")
    assert await verdict("ls", tools_deny=["ls"], clear=["tools_ask"]) == ("deny", "agents.ada.tools.deny")
    assert await verdict("ls") == ("allow", ""), "nothing was saved"
    warned = await server.ask("policy.explain", agent="ada", tool="ls", changes={"tools_deny": ["lss"]})
    assert any("lss" in warning for warning in warned["warnings"])
    all_tools = (await server.ask("tool.list", agent="ada", changes={"tools_deny": ["*"]}))["tools"]
    assert {each["decision"] for each in all_tools if not each["name"].startswith("system_")} == {"deny"}
    for wrong in ({"tools_deny": "ls"}, {"shape": "round"}, {"tools_profile": "royal"}, {"turns_max": 0}):
        with pytest.raises(Invalid):
            await server.ask("policy.explain", agent="ada", tool="ls", changes=wrong)


async def test_policy_explain_names_the_grant_for_a_path_outside_the_workspace(
    server: ScriptedServer, tmp_path: Path
) -> None:
    (tmp_path / "outside.txt").write_text("x")
    asked: dict[str, Any] = {"agent": "ada", "tool": "read"}
    inside = await server.ask("policy.explain", **asked, args={"path": "SOUL.md"})
    outside = await server.ask("policy.explain", **asked, args={"path": str(tmp_path / "outside.txt")})
    assert inside["decision"] == "allow" and outside["decision"] == "ask"
    assert outside["grant_permissions"] == [f"read:{tmp_path / 'outside.txt'}"]


async def test_policy_explain_takes_the_provenance_of_the_session_into_account(server: ScriptedServer) -> None:
    session = await server.turn("Visit the page and note it in notes.txt", tool_call_reply("visit"), "Read.")
    asked: dict[str, Any] = {"agent": "ada", "tool": "write", "session": session}
    named = await server.ask("policy.explain", **asked, args={"path": "notes.txt", "content": "x"})
    other = await server.ask("policy.explain", **asked, args={"path": "other.txt", "content": "x"})
    assert named["decision"] == "allow" and layers(named)["origin"] == "allow"
    assert other["decision"] == "ask" and "other.txt" in other["because"]
    await server.turn("/reset")
    assert (await server.ask("policy.explain", **asked, args={"path": "other.txt", "content": "x"}))[
        "decision"
    ] == "allow"


async def test_policy_explain_warns_about_an_unknown_tool_in_a_rule(server: ScriptedServer) -> None:
    server.rule(deny=("raed",))
    found = await server.ask("policy.explain", agent="ada", tool="read")
    assert found["warnings"] == ["tools.deny names 'raed', which is not a known tool"]


async def test_policy_explain_of_an_unknown_tool_or_agent_is_not_found(server: ScriptedServer) -> None:
    with pytest.raises(NotFound):
        await server.ask("policy.explain", agent="ada", tool="fly")
    with pytest.raises(NotFound):
        await server.ask("policy.explain", agent="nobody", tool="read")


# --- policy.test ---


async def policy_differences(server: ScriptedServer, text: str, **kw: Any) -> tuple[set[tuple[str, str, str]], Any]:
    found = await server.ask("policy.test", text=text, **kw)
    differences = {(each["tool"], each["current"], each["proposed"]) for each in found["differences"]}
    assert (
        len(differences) == len(found["differences"])
        and found["omitted_count"] == 0
        and found["incomplete_because"] == ""
    )
    return differences, found


async def make_recorded_calls(server: ScriptedServer) -> None:
    """Make tool calls of two agents in two sessions."""
    await server.turn("Go.", tool_call_reply("session_status"), tool_call_reply("append_line", text="mine"), "Done.")
    await server.turn(
        "Visit the page.", tool_call_reply("visit"), tool_call_reply("session_status"), "Read.", origin="person:owner/2"
    )
    await server.turn("Go.", tool_call_reply("append_line", text="bo's"), "Done.", to="agent:bo")


async def test_policy_test_lists_exactly_the_calls_that_would_be_decided_differently(server: ScriptedServer) -> None:
    await make_recorded_calls(server)
    same, found = await policy_differences(server, "")
    assert same == set() and found["calls"] == 5 and found["sessions"] == 3
    asks, found = await policy_differences(server, '[tools]\nask = ["visit"]\n')
    assert asks == {("visit", "allow", "ask")}
    (difference,) = found["differences"]
    assert difference["key"] == "tools.ask" and difference["agent"] == "ada"
    found = await server.ask("policy.test", text='[tools]\ndeny = ["append_line"]\n')
    assert [(each["agent"], each["arguments"]) for each in found["differences"]] in (
        [("ada", {"text": "mine"}), ("bo", {"text": "bo's"})],
        [("bo", {"text": "bo's"}), ("ada", {"text": "mine"})],
    )
    only, _ = await policy_differences(server, '[tools]\ndeny = ["append_line"]\n', agent="bo")
    assert only == {("append_line", "allow", "deny")}
    assert server.lines == ["mine", "bo's"], "no tool ran again"


async def test_policy_test_applies_a_sender_rule_to_the_runs_of_that_sender_only(server: ScriptedServer) -> None:
    """The owner of a session need not be the sender of each of its runs."""
    session = await server.turn("Go.", tool_call_reply("append_line", text="one"), "Done.")
    await server.turn(
        "Go.", tool_call_reply("append_line", text="two"), "Done.", sender="person:maria", to=f"agent:ada/{session}"
    )
    found = await server.ask("policy.test", text='[tools.by_sender."person:maria"]\ndeny = ["append_line"]\n')
    assert [each["arguments"] for each in found["differences"]] == [{"text": "two"}]


async def test_policy_test_judges_provenance_rules_in_the_context_of_each_call(server: ScriptedServer) -> None:
    await server.turn("Visit the page and note it in notes.txt", tool_call_reply("visit"), "Read.")
    await server.turn("Do it.", tool_call_reply("write", path="notes.txt", content="x"), "Done.")
    await server.turn("/reset")
    await server.turn(
        "Go.", tool_call_reply("write", path="other.txt", content="x"), "Done."
    )  # long after the page was read
    rule = '[[provenance.tool_request]]\ntools = "write"\nwords = ["never-used"]\n'
    found = await server.ask("policy.test", text=rule)
    assert [(each["arguments"]["path"], each["proposed"]) for each in found["differences"]] == [("notes.txt", "ask")]


async def test_policy_test_applies_command_rules_to_recorded_exec_calls(server: ScriptedServer) -> None:
    await server.turn("Go.", tool_call_reply("exec", command="true"), "Done.")
    denies, _ = await policy_differences(server, '[tools.exec]\nsandbox_security = "deny"\n')
    assert denies == {("exec", "allow", "deny")}
    asks, _ = await policy_differences(server, '[tools.exec]\nsandbox_ask = "always"\n')
    assert asks == {("exec", "allow", "ask")}


async def test_policy_test_applies_changed_agent_declarations(server: ScriptedServer) -> None:
    await make_recorded_calls(server)
    text = '[agents.ada]\nmodel = "scripted"\n[agents.ada.tools]\ndeny = ["session_status"]\n'
    found = await server.ask("policy.test", text=text)
    assert [each["tool"] for each in found["differences"]] == ["session_status", "session_status"]


async def test_policy_test_refuses_invalid_settings(server: ScriptedServer) -> None:
    with pytest.raises(Invalid):
        await server.ask("policy.test", text="[tools]\nallow = 7\n")
