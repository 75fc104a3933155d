"""Skills that people call for by a command, in a house with its real hands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents.skill_folders import write_skill
from flows.tools_instance import HandsHouse, hands_house

from retinue.domain.envelope import Outcome
from retinue.domain.record import UserTurn
from retinue.domain.tool import ToolResult
from retinue.domain.trust import Trust
from retinue.models.base import ModelPrompt
from retinue.store.envelopes import envelopes

CONFIG = '[skills]\ntrusted = ["house"]\n'
NOTE = "command-dispatch: tool\ncommand-tool: append_line\ncommand-argument: text\n"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[HandsHouse]:
    folder = tmp_path / "skills"
    write_skill(folder, "weather", description="Looks it up.", body="Look out of the window.")
    write_skill(folder, "by-hand", front="disable-model-invocation: true\n", body="Take the long way.")
    write_skill(folder, "note", description="Writes it down.", front=NOTE)
    write_skill(folder, "odd", front=NOTE.replace("append_line", "no_such_tool"))
    async with hands_house(tmp_path, config=CONFIG) as made:
        yield made


async def say(house: HandsHouse, text: str, **kw: object) -> str:
    """Say it, and read what came back."""
    receipt = await house.post(text, **kw)  # pyright: ignore[reportArgumentType]
    await house.rest()
    settled = await house.house.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
    assert settled is not None and settled.answer is not None, settled
    (answer,) = [mail.text for mail in await house.mail() if mail.id == settled.answer]
    return answer


def _words(prompt: ModelPrompt) -> str:
    """The newest mail in it."""
    body = prompt.records[-1].body
    assert isinstance(body, UserTurn)
    return body.text


@pytest.mark.spec("C33")
@pytest.mark.parametrize("command", ["/weather in Rome", "/skill weather in Rome", "/WEATHER: in Rome"])
async def test_a_skill_is_used_on_the_words_behind_its_command(house: HandsHouse, command: str) -> None:
    house.model.will_reply("Sunny.")
    assert await say(house, command) == "Sunny."
    prompt = house.model.prompts[-1]
    assert "Use the skill `weather` for this.\n\nin Rome" in _words(prompt)
    assert "Look out of the window." in prompt.instructions, "and it is told in full"
    house.model.will_reply("Yes.")
    await say(house, "and now?")
    assert "Look out of the window." not in house.model.prompts[-1].instructions, "in that run"


@pytest.mark.spec("C33")
async def test_a_skill_that_models_are_not_told_of_is_used_where_a_person_calls_for_it(house: HandsHouse) -> None:
    house.model.will_reply("Yes.", "By hand, then.")
    await say(house, "hello")
    assert "Take the long way." not in house.model.prompts[-1].instructions
    assert await say(house, "/by_hand please") == "By hand, then."
    assert "Take the long way." in house.model.prompts[-1].instructions


@pytest.mark.spec("C33")
async def test_a_skill_may_go_straight_to_a_tool_and_no_model_is_asked(house: HandsHouse) -> None:
    assert await say(house, "/note buy Milk /think high") == "appended"
    assert house.lines == ["buy Milk /think high"], "word for word"
    assert house.model.prompts == []
    house.model.will_reply("Yes.")
    await say(house, "what did I do?")
    context = [record.body for record in house.model.prompts[-1].records]
    assert any(isinstance(body, ToolResult) and body.tool == "append_line" for body in context), "it is remembered"


@pytest.mark.spec("C33")
async def test_policy_decides_a_call_by_command_like_any_other(house: HandsHouse) -> None:
    house.rule(deny=("append_line",))
    assert "Not allowed" in await say(house, "/note buy milk")
    house.rule(deny=(), ask=("append_line",))
    receipt = await house.post("/note buy milk")
    await house.rest()
    (asked,) = await house.asked()
    assert [(call.tool, call.arguments) for call in asked.calls] == [("append_line", {"text": "buy milk"})]
    assert house.lines == []
    await house.answer(asked)
    settled = await house.house.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
    assert settled is not None and settled.outcome is Outcome.ANSWERED
    assert house.lines == ["buy milk"] and house.model.prompts == []
    audited = await house.ask("audit.list", session=receipt.session)
    assert "append_line" in str(audited)


async def test_a_skill_whose_tool_is_not_there_says_so(house: HandsHouse) -> None:
    assert "No tool named 'no_such_tool'" in await say(house, "/odd now")
    assert house.model.prompts == []


@pytest.mark.spec("C33")
async def test_a_strangers_skill_command_is_refused_and_an_agents_is_words(house: HandsHouse) -> None:
    receipt = await house.post("/note buy milk", sender="channel:quiet:7", trust=Trust.UNTRUSTED)
    assert receipt.outcome is Outcome.REFUSED
    house.model.will_reply("Read.", "Read.")
    await house.post("/note buy milk", sender="agent:bo", trust=Trust.AGENT)
    await house.rest()
    assert house.lines == []
    assert "/note buy milk" in _words(house.model.prompts[0])


async def test_skills_are_listed_where_help_is_and_near_misses_are_named(house: HandsHouse) -> None:
    told = await say(house, "/help")
    assert "/weather [WORDS]" in told and "skill: Looks it up." in told and "/by_hand [WORDS]" in told
    assert "Did you mean /weather?" in await say(house, "/wether")
    assert "No skill named 'wether' that can be called here. Did you mean weather?" in await say(house, "/skill wether")
    assert "/skill note: Writes it down." in await say(house, "/skill")
