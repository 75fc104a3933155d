"""A conversation that exceeded the context window continues, whichever error text the provider uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from flows.fake_provider import (
    Answer,
    Asked,
    FakeReply,
    build_instance,
    calls_made,
    error_answer,
    provider,
    provider_section,
    says,
)

from retinue.testing.local_instance import LocalServer

FITS_BYTES_MAX = 60_000
LONG_TEXT = "the garden needs water, and the cat is on the roof again\n" * 500  # about 28,000 bytes
OLLAMA_ERROR = "prompt too long; exceeded max context length by 9134 tokens"
VLLM_ERROR = (
    "You passed 40243 input tokens and requested 6142 output tokens. However, the model's context length is only "
    "32768 tokens, resulting in a maximum input length of 26626 tokens. Please reduce the length of the input prompt."
)


async def send_and_wait_for_answer(server: LocalServer, text: str) -> str:
    return await server.wait_for_answer((await server.send(text)).envelope)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, OLLAMA_ERROR),
        (400, VLLM_ERROR),
        (400, "litellm.ContextWindowExceededError"),
        (413, "larger than the context window"),
    ],
    ids=["ollama", "vllm", "litellm", "413"],
)
async def test_an_overflow_error_of_a_self_hosted_server_leads_to_compaction_and_an_answer(
    tmp_path: Path, status: int, words: str
) -> None:
    def small_window(asked: Asked) -> Answer | FakeReply:
        if "summar" in str(asked.body["messages"][0]["content"]).lower():
            return says("The garden needs water, and the cat climbs.")
        return error_answer(status, words) if len(asked.raw) > FITS_BYTES_MAX else says("Noted.")

    async with provider() as provider_server:
        provider_server.rule = small_window
        async with build_instance(tmp_path, provider_section("mock", provider_server.url)).run() as server:
            for n in range(1, 5):
                assert await send_and_wait_for_answer(server, f"message {n}\n{LONG_TEXT}") == "Noted."
            calls = await calls_made(server)
    failures_and_moves = [(row.failure, row.next_action) for row in calls if row.failure]
    assert ("context_overflow", "compaction") in failures_and_moves
    assert {failure for failure, _ in failures_and_moves} == {"context_overflow"}
    assert len(provider_server.asked[-1].raw) <= FITS_BYTES_MAX
