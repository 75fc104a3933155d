"""Skills that people use with a command, in a server with all built-in tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents.skill_folders import write_skill
from flows.tools_instance import ScriptedServer, open_scripted_server

from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.models.base import ModelPrompt
from retinue.store.envelopes import envelopes

CONFIG = '[skills]\ntrusted = ["instance"]\n'
NOTE_FRONT_MATTER = "command-dispatch: tool\ncommand-tool: append_line\ncommand-argument: text\n"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ScriptedServer]:
    folder = tmp_path / "skills"
    write_skill(folder, "weather", description="Looks it up.", body="Look out of the window.")
    write_skill(folder, "by-hand", front="disable-model-invocation: true\n", body="Take the long way.")
    write_skill(folder, "note", description="Writes it down.", front=NOTE_FRONT_MATTER)
    write_skill(folder, "odd", front=NOTE_FRONT_MATTER.replace("append_line", "no_such_tool"))
    async with open_scripted_server(tmp_path, config=CONFIG) as made:
        yield made


async def send_and_read_answer(server: ScriptedServer, text: str, **kw: object) -> str:
    """Send a message and return the answer."""
    receipt = await server.post(text, **kw)  # pyright: ignore[reportArgumentType]
    await server.rest()
    settled = await server.server.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
    assert settled is not None and settled.answer is not None, settled
    (answer,) = [mail.text for mail in await server.mail() if mail.id == settled.answer]
    return answer


def _last_prompt_text(prompt: ModelPrompt) -> str:
    """The text of the newest message in a prompt."""
    body = prompt.records[-1].body
    assert isinstance(body, UserTurn)
    return body.text


@pytest.mark.spec("C33")
@pytest.mark.parametrize("command", ["/weather in Rome", "/skill weather in Rome", "/WEATHER: in Rome"])
async def test_a_skill_command_gives_the_model_the_skill_and_the_text_after_it(
    server: ScriptedServer, command: str
) -> None:
    server.model.will_reply("Sunny.")
    assert await send_and_read_answer(server, command) == "Sunny."
    prompt = server.model.prompts[-1]
    assert "Use the skill `weather` for this.\n\nin Rome" in _last_prompt_text(prompt)
    assert "Look out of the window." in prompt.instructions, "the full text of the skill is in the prompt"
    server.model.will_reply("Yes.")
    await send_and_read_answer(server, "and now?")
    assert "Look out of the window." not in server.model.prompts[-1].instructions, "only in that run"


@pytest.mark.spec("C33")
async def test_a_skill_hidden_from_models_can_be_used_by_command(server: ScriptedServer) -> None:
    server.model.will_reply("Yes.", "By hand, then.")
    await send_and_read_answer(server, "hello")
    assert "Take the long way." not in server.model.prompts[-1].instructions
    assert await send_and_read_answer(server, "/by_hand please") == "By hand, then."
    assert "Take the long way." in server.model.prompts[-1].instructions


@pytest.mark.spec("C33")
async def test_a_skill_command_can_call_a_tool_without_a_model(server: ScriptedServer) -> None:
    assert await send_and_read_answer(server, "/note buy Milk /think high") == "appended"
    assert server.lines == ["buy Milk /think high"], "the text is passed unchanged"
    assert server.model.prompts == []
    server.model.will_reply("Yes.")
    await send_and_read_answer(server, "what did I do?")
    context = [record.body for record in server.model.prompts[-1].records]
    assert any(isinstance(body, ToolResult) and body.tool == "append_line" for body in context), (
        "the call is in the context"
    )


@pytest.mark.spec("C33")
async def test_a_tool_call_by_skill_command_is_subject_to_the_policy(server: ScriptedServer) -> None:
    server.rule(deny=("append_line",))
    assert "Not allowed" in await send_and_read_answer(server, "/note buy milk")
    server.rule(deny=(), ask=("append_line",))
    receipt = await server.post("/note buy milk")
    await server.rest()
    (asked,) = await server.asked()
    assert [(call.tool, call.arguments) for call in asked.calls] == [("append_line", {"text": "buy milk"})]
    assert server.lines == []
    await server.answer(asked)
    settled = await server.server.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
    assert settled is not None and settled.outcome is Outcome.ANSWERED
    assert server.lines == ["buy milk"] and server.model.prompts == []
    audited = await server.ask("audit.list", session=receipt.session)
    assert "append_line" in str(audited)


async def test_a_skill_command_for_a_missing_tool_reports_it(server: ScriptedServer) -> None:
    assert "No tool named 'no_such_tool'" in await send_and_read_answer(server, "/odd now")
    assert server.model.prompts == []


@pytest.mark.spec("C33")
async def test_a_strangers_skill_command_is_refused_and_an_agents_is_plain_text(server: ScriptedServer) -> None:
    receipt = await server.post("/note buy milk", sender="channel:quiet:7", trust=Trust.UNTRUSTED)
    assert receipt.outcome is Outcome.REFUSED
    server.model.will_reply("Read.", "Read.")
    await server.post("/note buy milk", sender="agent:bo", trust=Trust.AGENT)
    await server.rest()
    assert server.lines == []
    assert "/note buy milk" in _last_prompt_text(server.model.prompts[0])


async def test_the_help_command_lists_skills_and_typos_get_suggestions(server: ScriptedServer) -> None:
    answer = await send_and_read_answer(server, "/help")
    assert "/weather [WORDS]" in answer and "skill: Looks it up." in answer and "/by_hand [WORDS]" in answer
    assert "Did you mean /weather?" in await send_and_read_answer(server, "/wether")
    assert "No skill named 'wether' that can be called here. Did you mean weather?" in await send_and_read_answer(
        server, "/skill wether"
    )
    assert "/skill note: Writes it down." in await send_and_read_answer(server, "/skill")
