from __future__ import annotations

from pathlib import Path

import pytest

from retinue.testing.local_instance import LocalInstance
from retinue.testing.scripted_model import text_reply, tool_call_reply


@pytest.fixture
def instance(tmp_path: Path) -> LocalInstance:
    return LocalInstance(tmp_path)


async def test_a_first_message_to_an_agent_is_answered(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply("Lunch with Noor.")
        receipt = await server.send("What is on today?")
        assert await server.wait_for_answer(receipt.envelope) == "Lunch with Noor."


async def test_an_agent_calls_a_tool_for_its_first_message_and_answers(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(tool_call_reply("append_line", text="hello"), "done")
        receipt = await server.send("do it")
        assert await server.wait_for_answer(receipt.envelope) == "done"
        assert instance.witness_file.read_text().split()[1] == "hello"


async def test_an_envelope_accepted_before_a_crash_is_answered_after_it(instance: LocalInstance) -> None:
    async with instance.run() as server:
        instance.model.will_reply(text_reply("never", after_s=3600))
        r = await server.send("What is on today?")
        await server.wait_for(lambda c: len(instance.model.prompts) == 1, what="x")
        server.crash()
    instance.model.will_reply("Lunch with Noor.")
    async with instance.run() as server:
        assert await server.wait_for_answer(r.envelope) == "Lunch with Noor."
