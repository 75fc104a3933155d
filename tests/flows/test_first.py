from __future__ import annotations

from pathlib import Path

import pytest

from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply, tool_call_reply


@pytest.fixture
def household(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


async def test_a_question_is_answered(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply("Lunch with Noor.")
        receipt = await house.send("What is on today?")
        assert await house.wait_for_answer(receipt.envelope) == "Lunch with Noor."


async def test_a_tool_is_used(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
        receipt = await house.send("do it")
        assert await house.wait_for_answer(receipt.envelope) == "done"
        assert household.witness_file.read_text().split()[1] == "hello"


async def test_an_envelope_accepted_before_a_crash_is_answered_after_it(household: LocalInstance) -> None:
    async with household.run() as house:
        household.model.will_reply(text_reply("never", after_s=3600))
        r = await house.send("What is on today?")
        await house.wait_for(lambda c: len(household.model.prompts) == 1, what="x")
        house.crash()
    household.model.will_reply("Lunch with Noor.")
    async with household.run() as house:
        assert await house.wait_for_answer(r.envelope) == "Lunch with Noor."
