"""Reports about a conversation in a complete server: `/context`, and where commands may run."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents.skill_folders import write_skill
from flows.tools_instance import ADA, BO, ScriptedServer, open_scripted_server

from retinue.config.tools import ElevatedPolicy
from retinue.domain.agent import ToolRules
from retinue.domain.display_options import DisplayOptions, Elevation
from retinue.domain.person import Person, Role
from retinue.domain.structs import replace
from retinue.store.envelopes import envelopes
from retinue.store.people import people
from retinue.store.sessions import sessions
from retinue.testing.scripted_model import text_reply, tool_call_reply

CONFIG = '[skills]\ntrusted = ["instance"]\n[sandbox]\nkind = "bubblewrap"\n'
STAFF = (ADA, replace(BO, elevated=Elevation.OFF))
MARIA = Person(name="maria", role=Role.MEMBER)
HAS_BUBBLEWRAP = shutil.which("bwrap") is not None


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ScriptedServer]:
    write_skill(tmp_path / "skills", "weather", description="Looks it up.")
    async with open_scripted_server(tmp_path, config=CONFIG, staff=STAFF) as made:
        yield made


async def send_and_read_answer(server: ScriptedServer, text: str, **kw: Any) -> str:
    """Send a message and return the answer."""
    receipt = await server.post(text, **kw)
    await server.rest()
    settled = await server.server.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
    assert settled is not None and settled.answer is not None, settled
    (answer,) = [mail.text for mail in await server.mail() if mail.id == settled.answer]
    return answer


def set_elevated_policy(server: ScriptedServer, level: ElevatedPolicy, **more: Any) -> None:
    server.rule(exec=replace(server.settings.tools.exec, elevated=level, **more))


async def manner(server: ScriptedServer, session: str) -> DisplayOptions:
    found = await server.server.store.read(lambda conn: sessions.get(conn, session))
    assert found is not None
    return found.options.manner


async def add_maria(server: ScriptedServer) -> None:
    await server.server.store.write(lambda conn: people.add(conn, MARIA, at_ms=1), point="test")


# --- /context ---


@pytest.mark.spec("C28.context")
async def test_the_context_command_reports_usage_by_section_file_skill_and_tool(server: ScriptedServer) -> None:
    (server.home() / "SOUL.md").write_text("Be kind. " * 200)
    server.model.will_reply("Yes.")
    await send_and_read_answer(server, "hello")
    plain = await send_and_read_answer(server, "/context")
    assert "context-tokens: about " in plain and "records-in-context: 3" in plain and "skills:" not in plain
    listed = await send_and_read_answer(server, "/context list")
    assert listed.startswith(plain.rsplit("\nrecords: ", 1)[0])
    detail = await send_and_read_answer(server, "/context detail")
    for kind in ("sections: ", "files: ", "skills: 1, ", "tools: "):
        assert f"\n{kind}" in listed and f"\n{kind}" in detail
    assert "SOUL.md (in files): 1,7" in detail and "weather (in skills)" in detail
    assert "more: /context detail" in listed and "more: /context detail" not in detail
    answer = json.loads(await send_and_read_answer(server, "/context json"))
    parts = {(part["kind"], part["name"]): part for part in answer["parts"]}
    assert 1_700 < parts["file", "SOUL.md"]["chars"] < 1_900 and parts["tool", "exec"]["tokens"] > 50
    assert parts["skill", "weather"]["tokens"] > 0 and ("section", "tools") in parts
    assert "Invalid value 'everything' for /context" in await send_and_read_answer(server, "/context everything")
    assert len(server.model.prompts) == 1, "no model was called"


@pytest.mark.spec("C28.context")
async def test_the_context_command_works_before_the_first_message(server: ScriptedServer) -> None:
    answer = json.loads(await send_and_read_answer(server, "/context json"))
    assert any(part["kind"] == "tool" for part in answer["parts"]) and answer["last_reply"] == "none yet"


# --- /elevated ---


@pytest.mark.spec("C30")
async def test_the_elevated_command_reports_whether_settings_agent_and_person_allow_it(server: ScriptedServer) -> None:
    session = await server.turn("hello", "Yes.")
    assert await send_and_read_answer(server, "/elevated on") == "Not elevated: `tools.exec.elevated` is off."
    set_elevated_policy(server, ElevatedPolicy.ASK)
    answer = await send_and_read_answer(server, "/elevated full")
    assert answer == "Not elevated: `tools.exec.elevated` is ask, so a person must approve each call: /elevated ask."
    assert await manner(server, session) == DisplayOptions(), "a refused command changes nothing"
    maria = {"sender": "person:maria", "origin": "person:maria"}
    await add_maria(server)
    assert (
        await send_and_read_answer(server, "/elevated ask", **maria)
        == "Not elevated: this run does not act on behalf of the owner."
    )
    assert (
        await send_and_read_answer(server, "/elevated ask", to="agent:bo")
        == "Not elevated: this agent may not leave the sandbox."
    )
    for level in ("on", "ask"):
        assert (await send_and_read_answer(server, f"/elevated {level}")).startswith(
            f"Elevated: {level}. Commands run on the host, with approval"
        )
    set_elevated_policy(server, ElevatedPolicy.FULL)
    assert (
        await send_and_read_answer(server, "/elevated full")
        == "Elevated: full. Commands run on the host, without approval."
    )
    assert (await manner(server, session)).elevated is Elevation.FULL
    assert (await send_and_read_answer(server, "/elevated off", to="agent:bo")).startswith("Elevated: off."), (
        "a stricter mode is always allowed"
    )


@pytest.mark.spec("C30")
@pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="needs bubblewrap")
async def test_the_elevated_command_lets_shell_commands_leave_the_sandbox_as_far_as_its_level_allows(
    server: ScriptedServer, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("seen from the host")
    look = tool_call_reply("exec", command=f"cat {outside}")

    async def seen(text: str = "look", **kw: Any) -> bool:
        """In a new context: after untrusted output of a program outside the sandbox, every call needs an approval."""
        await send_and_read_answer(server, "/new")
        session = await server.turn(text, look, "Done.", **kw)
        return "seen from the host" in (await server.results(session))[-1].output

    set_elevated_policy(server, ElevatedPolicy.FULL)
    assert not await seen(), "by default a call runs in the sandbox"
    assert await seen("look /elevated full"), "set for this message"
    assert not await seen()
    await send_and_read_answer(server, "/elevated full")
    assert await seen()
    assert not await seen("look /elevated off"), "the message overrides the session"
    await add_maria(server)
    ada = await only_session(server)
    assert not await seen(sender="person:maria", to=f"agent:ada/{ada}"), "it applies only to the owner's runs"
    await send_and_read_answer(server, "/elevated ask")
    await send_and_read_answer(server, "/new")
    await server.turn("look", look)
    (question,) = await server.asked()
    assert [call.tool for call in question.calls] == ["exec"]
    server.model.will_reply("Done.")
    await server.answer(question, allow=False)
    set_elevated_policy(server, ElevatedPolicy.OFF)
    assert not await seen(), "the setting overrides the session"


@pytest.mark.spec("C114.elevated")
@pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="needs bubblewrap")
@pytest.mark.parametrize(
    ("level", "seen", "asked"), [("off", False, 0), ("ask", False, 1), ("on", False, 1), ("full", True, 0)]
)
async def test_a_default_elevation_applies_to_shell_commands_of_new_sessions(
    tmp_path: Path, level: str, seen: bool, asked: int
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("seen from the host")
    config = f'{CONFIG}[defaults]\nelevated = "{level}"\n'
    async with open_scripted_server(tmp_path / "home", config=config, staff=(ADA,)) as server:
        set_elevated_policy(server, ElevatedPolicy.FULL if level == "full" else ElevatedPolicy.ASK)
        look = tool_call_reply("exec", command=f"cat {outside}")
        session = await server.turn("look", look, *([] if asked else ["Done."]))
        questions = await server.asked()
        assert len(questions) == asked
        assert any("seen from the host" in each.output for each in await server.results(session)) is seen


async def only_session(server: ScriptedServer) -> str:
    found = await server.ask("session.list", limit=10)
    (session,) = [each["sessionId"] for each in found["sessions"] if each["agentId"] == "ada"]
    return session


# --- /approve ---


@pytest.mark.parametrize(
    ("command", "state", "granted"),
    [
        ("/approve {id} allow-once", "allowed", 0),
        ("/approve {id} allow-always", "allowed", 1),
        ("/approve {id} always so be it", "allowed", 1),
        ("/approve {id}", "allowed", 0),
        ("/approve {id} deny", "denied", 0),
        ("/approve: {id} DENY not now", "denied", 0),
        ("/allow {id} allow-always", "allowed", 1),
    ],
)
async def test_an_approval_is_answered_by_each_form_of_the_allow_and_approve_commands(
    tmp_path: Path, command: str, state: str, granted: int
) -> None:
    asking = replace(ADA, tools=ToolRules(ask=("append_line",)))
    async with open_scripted_server(tmp_path, staff=(asking,)) as server:
        await server.turn("note it", tool_call_reply("append_line", text="milk"))
        (question,) = await server.asked()
        server.model.will_reply(text_reply("Done."))
        answer = await send_and_read_answer(server, command.format(id=question.id[:8]))
        assert answer == f"{question.id[:8]} is {state}."
        assert server.lines == (["milk"] if state == "allowed" else [])
        assert len((await server.ask("grant.list"))["grants"]) == granted
