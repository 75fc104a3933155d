"""Why a tool may be used or not, and which recorded decisions other rules would have made otherwise."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from flows.tools_instance import ADA, HandsHouse, Visit, hands_house

from retinue.domain.agent import ToolRules
from retinue.domain.errors import Invalid, NotFound
from retinue.domain.structs import replace
from retinue.testing.scripted_model import tool_call_reply


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[HandsHouse]:
    async with hands_house(tmp_path / "home", tools=[Visit()]) as made:
        yield made


def layers(explained: Any) -> dict[str, str]:
    return {found["layer"]: found["verdict"] for found in explained["findings"]}


# --- why ---


@pytest.mark.spec("C57")
async def test_each_layer_says_its_word_and_the_key_is_the_one_to_change(tmp_path: Path) -> None:
    config = """
[tools]
ask = ["write"]
[tools.by_sender."person:maria"]
deny = ["exec"]
[tools.by_session.subagent]
deny = ["read"]
"""
    staff = (replace(ADA, tools=ToolRules(deny=("ls",), capabilities_deny=("messages.*",))),)
    async with hands_house(tmp_path / "home", staff=staff, config=config) as house:

        async def key(tool: str, **kw: Any) -> tuple[str, str]:
            found = await house.ask("policy.explain", agent="ada", tool=tool, **kw)
            return found["verdict"], found["key"]

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
        assert await key("exec", door="invoke") == ("deny", "tools.invoke_allow")
        assert await key("config_show") == ("deny", "agents.ada.tools.also_allow")
        found = await house.ask("policy.explain", agent="ada", tool="write")
        assert layers(found) == {
            "the server": "ask",
            "the agent ada": "allow",
            "the rule for schedules": "allow",
            "the rule for chats": "allow",
        }
        assert found["would-grant"] == ["tool:write"]


@pytest.mark.spec("C57")
async def test_it_says_what_a_grant_would_change_and_what_one_has_changed(house: HandsHouse) -> None:
    asked: dict[str, Any] = {"agent": "ada", "tool": "web_fetch", "args": {"url": "https://example.com/"}}
    found = await house.ask("policy.explain", **asked)
    assert (found["verdict"], found["would-grant"]) == ("ask", ["web"]) and layers(found)["permissions"] == "ask"
    await house.ask("grant.add", agent="ada", permission="web", because="test")
    assert (await house.ask("policy.explain", **asked))["verdict"] == "allow"
    assert (await house.ask("policy.explain", **asked, origin="schedule"))["verdict"] == "ask", "not in a schedule"


async def test_fields_that_are_not_saved_yet_are_judged_as_if_they_were(house: HandsHouse) -> None:
    async def verdict(tool: str, **changes: Any) -> tuple[str, str]:
        found = await house.ask("policy.explain", agent="ada", tool=tool, changes=changes)
        return found["verdict"], found["key"]

    assert await verdict("ls") == ("allow", "")
    assert await verdict("ls", tools_deny=["ls"]) == ("deny", "agents.ada.tools.deny")
    assert await verdict("ls", tools_ask=["ls"]) == ("ask", "agents.ada.tools.ask")
    assert await verdict("ls", tools_allow=["read"]) == ("deny", "agents.ada.tools.allow")
    assert await verdict("ls", tools_deny=["ls"], clear=["tools_ask"]) == ("deny", "agents.ada.tools.deny")
    assert await verdict("ls") == ("allow", ""), "nothing was saved"
    warned = await house.ask("policy.explain", agent="ada", tool="ls", changes={"tools_deny": ["lss"]})
    assert any("lss" in warning for warning in warned["warnings"])
    all_tools = (await house.ask("tool.list", agent="ada", changes={"tools_deny": ["*"]}))["tools"]
    assert {each["verdict"] for each in all_tools if not each["name"].startswith("system_")} == {"deny"}
    for wrong in ({"tools_deny": "ls"}, {"shape": "round"}, {"tools_profile": "royal"}, {"turns_max": 0}):
        with pytest.raises(Invalid):
            await house.ask("policy.explain", agent="ada", tool="ls", changes=wrong)


async def test_a_path_outside_is_explained_by_what_it_needs(house: HandsHouse, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("x")
    asked: dict[str, Any] = {"agent": "ada", "tool": "read"}
    inside = await house.ask("policy.explain", **asked, args={"path": "SOUL.md"})
    outside = await house.ask("policy.explain", **asked, args={"path": str(tmp_path / "outside.txt")})
    assert inside["verdict"] == "allow" and outside["verdict"] == "ask"
    assert outside["would-grant"] == [f"read:{tmp_path / 'outside.txt'}"]


async def test_in_a_session_it_is_explained_by_what_was_read_there(house: HandsHouse) -> None:
    session = await house.turn("Visit the page and note it in notes.txt", tool_call_reply("visit"), "Read.")
    asked: dict[str, Any] = {"agent": "ada", "tool": "write", "session": session}
    named = await house.ask("policy.explain", **asked, args={"path": "notes.txt", "content": "x"})
    other = await house.ask("policy.explain", **asked, args={"path": "other.txt", "content": "x"})
    assert named["verdict"] == "allow" and layers(named)["origin"] == "allow"
    assert other["verdict"] == "ask" and "other.txt" in other["because"]
    await house.turn("/reset")
    assert (await house.ask("policy.explain", **asked, args={"path": "other.txt", "content": "x"}))[
        "verdict"
    ] == "allow"


async def test_a_list_that_names_a_tool_that_is_not_there_is_warned_about(house: HandsHouse) -> None:
    house.rule(deny=("raed",))
    found = await house.ask("policy.explain", agent="ada", tool="read")
    assert found["warnings"] == ["tools.deny names 'raed', which is not a known tool"]


async def test_what_is_not_there_cannot_be_explained(house: HandsHouse) -> None:
    with pytest.raises(NotFound):
        await house.ask("policy.explain", agent="ada", tool="fly")
    with pytest.raises(NotFound):
        await house.ask("policy.explain", agent="nobody", tool="read")


# --- what a change would change ---


async def differing(house: HandsHouse, text: str, **kw: Any) -> tuple[set[tuple[str, str, str]], Any]:
    found = await house.ask("policy.test", text=text, **kw)
    told = {(each["tool"], each["now"], each["then"]) for each in found["differences"]}
    assert len(told) == len(found["differences"]) and found["left-out"] == 0 and found["stopped"] == ""
    return told, found


async def lived(house: HandsHouse) -> None:
    """Some calls, of two agents, in two sessions."""
    await house.turn("Go.", tool_call_reply("session_status"), tool_call_reply("append_line", text="mine"), "Done.")
    await house.turn(
        "Visit the page.", tool_call_reply("visit"), tool_call_reply("session_status"), "Read.", origin="person:owner/2"
    )
    await house.turn("Go.", tool_call_reply("append_line", text="bo's"), "Done.", to="agent:bo")


async def test_exactly_the_calls_that_would_be_decided_otherwise_are_listed(house: HandsHouse) -> None:
    await lived(house)
    same, found = await differing(house, "")
    assert same == set() and found["calls"] == 5 and found["sessions"] == 3
    asks, found = await differing(house, '[tools]\nask = ["visit"]\n')
    assert asks == {("visit", "allow", "ask")}
    (difference,) = found["differences"]
    assert difference["key"] == "tools.ask" and difference["agent"] == "ada"
    found = await house.ask("policy.test", text='[tools]\ndeny = ["append_line"]\n')
    assert [(each["agent"], each["arguments"]) for each in found["differences"]] in (
        [("ada", {"text": "mine"}), ("bo", {"text": "bo's"})],
        [("bo", {"text": "bo's"}), ("ada", {"text": "mine"})],
    )
    only, _ = await differing(house, '[tools]\ndeny = ["append_line"]\n', agent="bo")
    assert only == {("append_line", "allow", "deny")}
    assert house.lines == ["mine", "bo's"], "and nothing was done again"


async def test_a_rule_for_one_sender_differs_for_the_runs_that_worked_for_them(house: HandsHouse) -> None:
    """Whose session it is says not for whom each of its runs has worked."""
    session = await house.turn("Go.", tool_call_reply("append_line", text="one"), "Done.")
    await house.turn(
        "Go.", tool_call_reply("append_line", text="two"), "Done.", sender="person:maria", to=f"agent:ada/{session}"
    )
    found = await house.ask("policy.test", text='[tools.by_sender."person:maria"]\ndeny = ["append_line"]\n')
    assert [each["arguments"] for each in found["differences"]] == [{"text": "two"}]


async def test_where_values_come_from_is_asked_of_both_rules_in_the_context_of_the_call(house: HandsHouse) -> None:
    await house.turn("Visit the page and note it in notes.txt", tool_call_reply("visit"), "Read.")
    await house.turn("Do it.", tool_call_reply("write", path="notes.txt", content="x"), "Done.")
    await house.turn("/reset")
    await house.turn(
        "Go.", tool_call_reply("write", path="other.txt", content="x"), "Done."
    )  # long after what was read
    standing = '[[origin.act]]\ntools = "write"\nwords = ["never-said"]\n'
    found = await house.ask("policy.test", text=standing)
    assert [(each["arguments"]["path"], each["then"]) for each in found["differences"]] == [("notes.txt", "ask")]


async def test_rules_for_commands_are_asked_too_and_nothing_is_taken_for_asked(house: HandsHouse) -> None:
    await house.turn("Go.", tool_call_reply("exec", command="true"), "Done.")
    denies, _ = await differing(house, '[tools.exec]\nsandbox_security = "deny"\n')
    assert denies == {("exec", "allow", "deny")}
    asks, _ = await differing(house, '[tools.exec]\nsandbox_ask = "always"\n')
    assert asks == {("exec", "allow", "ask")}


async def test_an_agent_that_would_be_declared_otherwise_is_judged_so(house: HandsHouse) -> None:
    await lived(house)
    text = '[agents.ada]\nmodel = "scripted"\n[agents.ada.tools]\ndeny = ["session_status"]\n'
    found = await house.ask("policy.test", text=text)
    assert [each["tool"] for each in found["differences"]] == ["session_status", "session_status"]


async def test_settings_that_cannot_be_read_change_nothing(house: HandsHouse) -> None:
    with pytest.raises(Invalid):
        await house.ask("policy.test", text="[tools]\nallow = 7\n")
