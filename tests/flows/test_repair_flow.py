"""Requests that are repaired within a run: the person gets the answer, and one call is stored."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from flows.fake_provider import (
    Answer,
    Asked,
    Provider,
    build_instance,
    calls_made,
    error_answer,
    provider,
    provider_section,
)

from retinue.domain.agent import Agent
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.store.agents import agents
from retinue.store.ledger import ledger
from retinue.testing.local_instance import LocalServer

PRICES_TOML = '[models.entries."{ref}"]\ninput_usd = 1\noutput_usd = 10\n'
UNVERIFIED_ERROR = (
    "Your organization must be verified to generate reasoning summaries. Please go to: "
    "https://platform.openai.com/settings/organization/general and click on Verify Organization."
)
BOUND_THINKING_ERROR = (
    "messages.{at}.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
    'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


async def send_and_wait_for_answer(server: LocalServer, text: str) -> str:
    return await server.wait_for_answer((await server.send(text)).envelope)


async def assert_ledger_is_ok(server: LocalServer) -> None:
    now_ms = to_ms(server.instance.clock.now())
    checked = await server.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()


def stream(*events: dict[str, Any]) -> Answer:
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Answer(body=body, headers={"content-type": "text/event-stream"})


# --- OpenAI, before the organization is verified ---


def reply_to_unverified(asked: Asked) -> Answer:
    if "summary" in asked.body.get("reasoning", {}):
        return error_answer(400, UNVERIFIED_ERROR, type_="unsupported_value")
    usage = {"input_tokens": 20, "output_tokens": 5}
    return stream(
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Yes."},
        {"type": "response.completed", "response": {"status": "completed", "output": [], "usage": usage}},
    )


async def test_the_repaired_request_of_an_unverified_organization_has_no_reasoning_summary_and_pays_once(
    tmp_path: Path,
) -> None:
    ref = "mock/gpt-6.1-sol"
    async with provider() as provider_server:
        provider_server.rule = reply_to_unverified
        toml = provider_section("mock", provider_server.url, format_="openai-responses") + PRICES_TOML.format(ref=ref)
        ada = Agent(name="ada", model=ref, instructions="Be brief.")
        async with build_instance(tmp_path, toml, agents=(ada,)).run() as server:
            assert await send_and_wait_for_answer(server, "Is it open?") == "Yes."
            assert await send_and_wait_for_answer(server, "Still?") == "Yes."
            rows = await calls_made(server)
            cooldowns = await server.execute_sql("SELECT * FROM cooldowns")
            await assert_ledger_is_ok(server)
    assert len(provider_server.asked) == 3, "the second message omits the reasoning summary at once"
    assert [(row.failure, row.next_action, row.attempt) for row in rows] == [(None, None, 1)] * 2
    assert [(row.settled_microusd, row.held_microusd) for row in rows] == [(70, 0)] * 2
    assert not cooldowns


# --- Claude, whose thinking depends on what came before it ---


class PreservedThinking:
    """Checks thinking as Anthropic does: each block is signed with everything before it, and refused after anything
    else.
    """

    def __init__(self) -> None:
        self.refused = 0
        self.input_tokens: int | None = 20  # None: counted
        self.replies: list[list[dict[str, Any]]] = []

    def __call__(self, asked: Asked) -> Answer:
        body = asked.body
        for at, message in enumerate(body["messages"]):
            for number, block in enumerate(message["content"]):
                sealed = block.get("signature", "")
                if sealed and sealed != self._seal(body, body["messages"][:at], message["content"][:number]):
                    self.refused += 1
                    return error_answer(400, BOUND_THINKING_ERROR.format(at=at), type_="invalid_request_error")
        return self._reply(body)

    def _reply(self, body: dict[str, Any]) -> Answer:
        calls = self.replies.pop(0) if self.replies else []
        read = len(json.dumps(body)) // 4 if self.input_tokens is None else self.input_tokens
        blocks = [
            {"type": "thinking", "thinking": "Hm.", "signature": self._seal(body, body["messages"], [])},
            *(calls or [{"type": "text", "text": "Noted."}]),
        ]
        started = [{"type": "content_block_start", "index": n, "content_block": each} for n, each in enumerate(blocks)]
        return stream(
            {"type": "message_start", "message": {"usage": {"input_tokens": read, "output_tokens": 0}}},
            *(event for each in started for event in (each, {"type": "content_block_stop", "index": each["index"]})),
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use" if calls else "end_turn"},
                "usage": {"output_tokens": 5},
            },
            {"type": "message_stop"},
        )

    def _seal(self, body: dict[str, Any], messages: list[Any], before: list[Any]) -> str:
        read = json.loads(
            json.dumps([body.get("system"), body.get("tools"), messages, before]), object_hook=_without_cache_control
        )
        return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _without_cache_control(found: dict[str, Any]) -> dict[str, Any]:
    """Cache marks change and are not part of a conversation."""
    return {name: value for name, value in found.items() if name != "cache_control"}


def sealed(provider_server: Provider) -> list[int]:
    """The number of thinking blocks in each request."""
    return [asked.raw.count(b'"signature"') for asked in provider_server.asked]


async def test_the_repair_of_a_claude_session_with_changed_instructions_drops_bound_thinking_once(
    tmp_path: Path,
) -> None:
    ref = "mock/claude-opus-5-5"
    thinking = PreservedThinking()
    async with provider() as provider_server:
        provider_server.rule = thinking
        toml = provider_section("mock", provider_server.url, format_="anthropic") + PRICES_TOML.format(ref=ref)
        ada = Agent(name="ada", model=ref, instructions="Be brief.", effort="medium")
        async with build_instance(tmp_path, toml, agents=(ada,)).run() as server:
            for n in range(3):
                assert await send_and_wait_for_answer(server, f"message {n}") == "Noted."
            assert (thinking.refused, sealed(provider_server)) == (0, [0, 1, 2]), "thinking is sent back unchanged"
            changed = replace(ada, instructions="Be very brief.")
            await server.store.write(lambda conn: agents.upsert(conn, changed, source="test", at_ms=1), point="test")
            call = {"type": "tool_use", "id": "toolu_1", "name": "append_line", "input": {"text": "snow"}}
            thinking.replies.append([call])
            assert await send_and_wait_for_answer(server, "Write it down.") == "Noted."
            assert await send_and_wait_for_answer(server, "And now?") == "Noted."
            rows = await calls_made(server)
            await assert_ledger_is_ok(server)
    assert thinking.refused == 1, "refused once, then repaired from the start"
    assert sealed(provider_server)[3:] == [3, 0, 1, 2], "new thinking is sent back, also between a call and its result"
    assert [(row.failure, row.settled_microusd, row.held_microusd) for row in rows] == [(None, 70, 0)] * 6


async def test_the_repair_of_a_compacted_claude_session_drops_bound_thinking_once_and_keeps_newer_thinking(
    tmp_path: Path,
) -> None:
    ref = "mock/claude-opus-5-5"
    thinking = PreservedThinking()
    thinking.input_tokens = None
    async with provider() as provider_server:
        provider_server.rule = thinking
        toml = provider_section("mock", provider_server.url, format_="anthropic") + PRICES_TOML.format(ref=ref)
        ada = Agent(name="ada", model=ref, instructions="Be brief.", effort="medium")
        async with build_instance(tmp_path, toml, agents=(ada,)).run() as server:
            for n in range(7):
                long = "the cat is on the roof again\n" * 900 if n < 4 else ""
                assert await send_and_wait_for_answer(server, f"message {n}\n{long}") == "Noted."
            provider_server.add_replies(error_answer(400, "prompt is too long: 208310 tokens > 200000 maximum"))
            for n in range(3):
                assert await send_and_wait_for_answer(server, f"And now, {n}?") == "Noted."
            rows = await calls_made(server)
            await assert_ledger_is_ok(server)
    overflowed, summary, changed, *after = sealed(provider_server)[7:]
    assert (overflowed, summary) == (7, 0)
    assert changed > 0, "the kept turns have thinking, which now comes after a summary"
    assert (thinking.refused, after) == (1, [0, 1, 2])
    assert [(row.failure, row.next_action) for row in rows if row.failure] == [("context_overflow", "compaction")]
