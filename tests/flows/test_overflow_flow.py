"""A conversation that has outgrown its server goes on, whichever words that server has for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows.fake_provider import Answer, Asked, Said, calls_made, household_of, provider, refuses, says, section

from retinue.testing.local_instance import LocalServer

FITS_BYTES_MAX = 60_000
LONG = "the garden needs water, and the cat is on the roof again\n" * 500  # about 28,000 bytes
OLLAMA = "prompt too long; exceeded max context length by 9134 tokens"
VLLM = (
    "You passed 40243 input tokens and requested 6142 output tokens. However, the model's context length is only "
    "32768 tokens, resulting in a maximum input length of 26626 tokens. Please reduce the length of the input prompt."
)


async def answered(house: LocalServer, text: str) -> str:
    return await house.wait_for_answer((await house.send(text)).envelope)


@pytest.mark.parametrize(
    ("status", "words"),
    [(400, OLLAMA), (400, VLLM), (400, "litellm.ContextWindowExceededError"), (413, "larger than the context window")],
    ids=["ollama", "vllm", "litellm", "413"],
)
async def test_an_overflow_in_the_words_of_an_own_server_is_compacted_and_answered(
    tmp_path: Path, status: int, words: str
) -> None:
    def small_window(asked: Asked) -> Answer | Said:
        if "summar" in str(asked.body["messages"][0]["content"]).lower():
            return says("The garden needs water, and the cat climbs.")
        return refuses(status, words) if len(asked.raw) > FITS_BYTES_MAX else says("Noted.")

    async with provider() as server:
        server.rule = small_window
        async with household_of(tmp_path, section("mock", server.url)).run() as house:
            for n in range(1, 5):
                assert await answered(house, f"message {n}\n{LONG}") == "Noted."
            calls = await calls_made(house)
    moves = [(row.failure, row.next_move) for row in calls if row.failure]
    assert ("context_overflow", "compaction") in moves
    assert {failure for failure, _ in moves} == {"context_overflow"}
    assert len(server.asked[-1].raw) <= FITS_BYTES_MAX
