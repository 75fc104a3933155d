from __future__ import annotations

from pathlib import Path

import pytest

from retinue.testing.local_instance import Household
from retinue.testing.scripted_model import calls, says


@pytest.fixture
def household(tmp_path: Path) -> Household:
    return Household(tmp_path)


async def test_a_question_is_answered(household: Household) -> None:
    async with household.open() as house:
        household.model.will_reply("Lunch with Noor.")
        receipt = await house.post("What is on today?")
        assert await house.answer_to(receipt.envelope) == "Lunch with Noor."


async def test_a_tool_is_used(household: Household) -> None:
    async with household.open() as house:
        household.model.will_reply(calls("append_line", text="hello"), "done")
        receipt = await house.post("do it")
        assert await house.answer_to(receipt.envelope) == "done"
        assert household.witness.read_text().split()[1] == "hello"


async def test_an_envelope_accepted_before_a_crash_is_answered_after_it(household: Household) -> None:
    async with household.open() as house:
        household.model.will_reply(says("never", after_s=3600))
        r = await house.post("What is on today?")
        await house.eventually(lambda c: len(household.model.prompts) == 1, what="x")
        house.crash()
    household.model.will_reply("Lunch with Noor.")
    async with household.open() as house:
        assert await house.answer_to(r.envelope) == "Lunch with Noor."
