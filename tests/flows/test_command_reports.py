"""What a person reads of a conversation in a whole house: what takes up the room, and where commands may run."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents.skill_folders import write_skill
from flows.tools_instance import ADA, BO, HandsHouse, hands_house

from retinue.config.tools import ElevatedPolicy
from retinue.domain.agent import ToolRules
from retinue.domain.display_options import DisplayOptions, Elevation
from retinue.domain.person import Person, Role
from retinue.domain.structs import replace
from retinue.store.envelopes import envelopes
from retinue.store.people import people
from retinue.store.sessions import sessions
from retinue.testing.scripted_model import text_reply, tool_call_reply

CONFIG = '[skills]\ntrusted = ["house"]\n[sandbox]\nkind = "bubblewrap"\n'
STAFF = (ADA, replace(BO, elevated=Elevation.OFF))
MARIA = Person(name="maria", role=Role.MEMBER)
WALLED = shutil.which("bwrap") is not None


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[HandsHouse]:
    write_skill(tmp_path / "skills", "weather", description="Looks it up.")
    async with hands_house(tmp_path, config=CONFIG, staff=STAFF) as made:
        yield made


async def say(house: HandsHouse, text: str, **kw: Any) -> str:
    """Say it, and read what came back."""
    receipt = await house.post(text, **kw)
    await house.rest()
    settled = await house.house.store.read(lambda conn: envelopes.get_outcome(conn, receipt.envelope))
    assert settled is not None and settled.answer is not None, settled
    (answer,) = [mail.text for mail in await house.mail() if mail.id == settled.answer]
    return answer


def elevating(house: HandsHouse, level: ElevatedPolicy, **more: Any) -> None:
    house.rule(exec=replace(house.settings.tools.exec, elevated=level, **more))


async def manner(house: HandsHouse, session: str) -> DisplayOptions:
    found = await house.house.store.read(lambda conn: sessions.get(conn, session))
    assert found is not None
    return found.options.manner


async def add_maria(house: HandsHouse) -> None:
    await house.house.store.write(lambda conn: people.add(conn, MARIA, at_ms=1), point="test")


# /context


@pytest.mark.spec("C28.context")
async def test_the_context_is_told_by_section_file_skill_and_tool(house: HandsHouse) -> None:
    (house.home() / "SOUL.md").write_text("Be kind. " * 200)
    house.model.will_reply("Yes.")
    await say(house, "hello")
    plain = await say(house, "/context")
    assert "in-mind-now: about " in plain and "records-in-context: 3" in plain and "skills:" not in plain
    listed = await say(house, "/context list")
    assert listed.startswith(plain.rsplit("\nrecords-kept", 1)[0])
    detail = await say(house, "/context detail")
    for kind in ("sections: ", "files: ", "skills: 1, ", "tools: "):
        assert f"\n{kind}" in listed and f"\n{kind}" in detail
    assert "SOUL.md (in files): 1,7" in detail and "weather (in skills)" in detail
    assert "more: /context detail" in listed and "more: /context detail" not in detail
    told = json.loads(await say(house, "/context json"))
    parts = {(part["kind"], part["name"]): part for part in told["parts"]}
    assert 1_700 < parts["file", "SOUL.md"]["chars"] < 1_900 and parts["tool", "exec"]["tokens"] > 50
    assert parts["skill", "weather"]["tokens"] > 0 and ("section", "tools") in parts
    assert "Invalid value 'everything' for /context" in await say(house, "/context everything")
    assert len(house.model.prompts) == 1, "nobody's model was asked"


@pytest.mark.spec("C28.context")
async def test_a_context_is_told_before_anything_was_said_in_it(house: HandsHouse) -> None:
    told = json.loads(await say(house, "/context json"))
    assert any(part["kind"] == "tool" for part in told["parts"]) and told["last-reply"] == "none yet"


# /elevated


@pytest.mark.spec("C30")
async def test_a_conversation_is_elevated_only_through_every_gate(house: HandsHouse) -> None:
    session = await house.turn("hello", "Yes.")
    assert await say(house, "/elevated on") == "Not elevated: `tools.exec.elevated` is off."
    elevating(house, ElevatedPolicy.ASK)
    told = await say(house, "/elevated full")
    assert told == "Not elevated: `tools.exec.elevated` is ask, so a person must approve each call: /elevated ask."
    assert await manner(house, session) == DisplayOptions(), "what was refused changed nothing"
    maria = {"sender": "person:maria", "origin": "person:maria"}
    await add_maria(house)
    assert await say(house, "/elevated ask", **maria) == "Not elevated: this run does not act on behalf of the owner."
    assert await say(house, "/elevated ask", to="agent:bo") == "Not elevated: this agent may not leave the sandbox."
    for level in ("on", "ask"):
        assert (await say(house, f"/elevated {level}")).startswith(
            f"Elevated: {level}. Commands run on the host, with approval"
        )
    elevating(house, ElevatedPolicy.FULL)
    assert await say(house, "/elevated full") == "Elevated: full. Commands run on the host, without approval."
    assert (await manner(house, session)).elevated is Elevation.FULL
    assert (await say(house, "/elevated off", to="agent:bo")).startswith("Elevated: off."), "stricter it may always be"


@pytest.mark.spec("C30")
@pytest.mark.skipif(not WALLED, reason="needs bubblewrap")
async def test_commands_of_an_elevated_conversation_run_outside_as_far_as_its_level_says(
    house: HandsHouse, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("seen from the host")
    look = tool_call_reply("exec", command=f"cat {outside}")

    async def seen(text: str = "look", **kw: Any) -> bool:
        """In a context of its own: after words of a program without walls, everything is asked about."""
        await say(house, "/new")
        session = await house.turn(text, look, "Done.", **kw)
        return "seen from the host" in (await house.results(session))[-1].output

    elevating(house, ElevatedPolicy.FULL)
    assert not await seen(), "not set, a call stays inside unless it asks"
    assert await seen("look /elevated full"), "for this message"
    assert not await seen()
    await say(house, "/elevated full")
    assert await seen()
    assert not await seen("look /elevated off"), "a message goes before its session"
    await add_maria(house)
    ada = await only_session(house)
    assert not await seen(sender="person:maria", to=f"agent:ada/{ada}"), "it holds for the owner's runs"
    await say(house, "/elevated ask")
    await say(house, "/new")
    await house.turn("look", look)
    (question,) = await house.asked()
    assert [call.tool for call in question.calls] == ["exec"]
    house.model.will_reply("Done.")
    await house.answer(question, allow=False)
    elevating(house, ElevatedPolicy.OFF)
    assert not await seen(), "the setting has the last word"


@pytest.mark.spec("C114.elevated")
@pytest.mark.skipif(not WALLED, reason="needs bubblewrap")
@pytest.mark.parametrize(
    ("level", "seen", "asked"), [("off", False, 0), ("ask", False, 1), ("on", False, 1), ("full", True, 0)]
)
async def test_conversations_of_a_house_are_elevated_from_the_start_where_its_defaults_say_so(
    tmp_path: Path, level: str, seen: bool, asked: int
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("seen from the host")
    config = f'{CONFIG}[defaults]\nelevated = "{level}"\n'
    async with hands_house(tmp_path / "home", config=config, staff=(ADA,)) as house:
        elevating(house, ElevatedPolicy.FULL if level == "full" else ElevatedPolicy.ASK)
        look = tool_call_reply("exec", command=f"cat {outside}")
        session = await house.turn("look", look, *([] if asked else ["Done."]))
        questions = await house.asked()
        assert len(questions) == asked
        assert any("seen from the host" in each.output for each in await house.results(session)) is seen


async def only_session(house: HandsHouse) -> str:
    found = await house.ask("session.list", limit=10)
    (session,) = [each["sessionId"] for each in found["sessions"] if each["agentId"] == "ada"]
    return session


# /approve


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
async def test_a_question_is_answered_in_the_words_of_both_houses(
    tmp_path: Path, command: str, state: str, granted: int
) -> None:
    asking = replace(ADA, tools=ToolRules(ask=("append_line",)))
    async with hands_house(tmp_path, staff=(asking,)) as house:
        await house.turn("note it", tool_call_reply("append_line", text="milk"))
        (question,) = await house.asked()
        house.model.will_reply(text_reply("Done."))
        told = await say(house, command.format(id=question.id[:8]))
        assert told == f"{question.id[:8]} is {state}."
        assert house.lines == (["milk"] if state == "allowed" else [])
        assert len((await house.ask("grant.list"))["grants"]) == granted
