"""Requests that are repaired within a run: the person gets the answer, and the books know of one call."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from flows.fake_provider import Answer, Asked, Provider, calls_made, household_of, provider, refuses, section

from retinue.domain.agent import Agent
from retinue.domain.structs import replace
from retinue.domain.times import to_ms
from retinue.store.agents import agents
from retinue.store.ledger import ledger
from retinue.testing.local_instance import LocalServer

PRICED = '[models.entries."{ref}"]\ninput_usd = 1\noutput_usd = 10\n'
UNVERIFIED = (
    "Your organization must be verified to generate reasoning summaries. Please go to: "
    "https://platform.openai.com/settings/organization/general and click on Verify Organization."
)
BOUND = (
    "messages.{at}.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
    'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


async def answered(house: LocalServer, text: str) -> str:
    return await house.wait_for_answer((await house.send(text)).envelope)


async def balances(house: LocalServer) -> None:
    now_ms = to_ms(house.instance.clock.now())
    checked = await house.store.scan(lambda conn: ledger.check_ledger(conn, now_ms=now_ms))
    assert checked.is_ok, checked.lines()


def stream(*events: dict[str, Any]) -> Answer:
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Answer(body=body, headers={"content-type": "text/event-stream"})


# OpenAI, before an organization is verified


def unverified(asked: Asked) -> Answer:
    if "summary" in asked.body.get("reasoning", {}):
        return refuses(400, UNVERIFIED, type_="unsupported_value")
    usage = {"input_tokens": 20, "output_tokens": 5}
    return stream(
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Yes."},
        {"type": "response.completed", "response": {"status": "completed", "output": [], "usage": usage}},
    )


async def test_the_first_message_with_the_key_of_an_unverified_organization_is_answered_and_paid_for_once(
    tmp_path: Path,
) -> None:
    ref = "mock/gpt-6.1-sol"
    async with provider() as server:
        server.rule = unverified
        toml = section("mock", server.url, format_="openai-responses") + PRICED.format(ref=ref)
        ada = Agent(name="ada", model=ref, instructions="Be brief.")
        async with household_of(tmp_path, toml, agents=(ada,)).run() as house:
            assert await answered(house, "Is it open?") == "Yes."
            assert await answered(house, "Still?") == "Yes."
            rows = await calls_made(house)
            rests = await house.execute_sql("SELECT * FROM cooldowns")
            await balances(house)
    assert len(server.asked) == 3, "the second message leaves the summary out at once"
    assert [(row.failure, row.next_move, row.attempt) for row in rows] == [(None, None, 1)] * 2
    assert [(row.settled_microusd, row.held_microusd) for row in rows] == [(70, 0)] * 2
    assert not rests


# Claude, whose thoughts belong to what came before them


class PreservedThinking:
    """Checks thoughts as Anthropic does: each is sealed with everything before it, and refused behind anything else."""

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
                    return refuses(400, BOUND.format(at=at), type_="invalid_request_error")
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
        read = json.loads(json.dumps([body.get("system"), body.get("tools"), messages, before]), object_hook=_unmarked)
        return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def _unmarked(found: dict[str, Any]) -> dict[str, Any]:
    """Marks for the cache come and go, and are no part of a conversation."""
    return {name: value for name, value in found.items() if name != "cache_control"}


def sealed(server: Provider) -> list[int]:
    """How many thoughts each request held."""
    return [asked.raw.count(b'"signature"') for asked in server.asked]


async def test_a_conversation_whose_beginning_has_changed_goes_on_with_claude(tmp_path: Path) -> None:
    ref = "mock/claude-opus-5-5"
    thinking = PreservedThinking()
    async with provider() as server:
        server.rule = thinking
        toml = section("mock", server.url, format_="anthropic") + PRICED.format(ref=ref)
        ada = Agent(name="ada", model=ref, instructions="Be brief.", effort="medium")
        async with household_of(tmp_path, toml, agents=(ada,)).run() as house:
            for n in range(3):
                assert await answered(house, f"message {n}") == "Noted."
            assert (thinking.refused, sealed(server)) == (0, [0, 1, 2]), "thoughts go back as they came"
            changed = replace(ada, instructions="Be very brief.")
            await house.store.write(lambda conn: agents.upsert(conn, changed, source="test", at_ms=1), point="test")
            call = {"type": "tool_use", "id": "toolu_1", "name": "append_line", "input": {"text": "snow"}}
            thinking.replies.append([call])
            assert await answered(house, "Write it down.") == "Noted."
            assert await answered(house, "And now?") == "Noted."
            rows = await calls_made(house)
            await balances(house)
    assert thinking.refused == 1, "once, and then it is known"
    assert sealed(server)[3:] == [3, 0, 1, 2], "new thoughts are sent back, also between a call and its result"
    assert [(row.failure, row.settled_microusd, row.held_microusd) for row in rows] == [(None, 70, 0)] * 6


async def test_a_compacted_conversation_goes_on_with_claude_and_keeps_its_newer_thoughts(tmp_path: Path) -> None:
    ref = "mock/claude-opus-5-5"
    thinking = PreservedThinking()
    thinking.input_tokens = None
    async with provider() as server:
        server.rule = thinking
        toml = section("mock", server.url, format_="anthropic") + PRICED.format(ref=ref)
        ada = Agent(name="ada", model=ref, instructions="Be brief.", effort="medium")
        async with household_of(tmp_path, toml, agents=(ada,)).run() as house:
            for n in range(7):
                long = "the cat is on the roof again\n" * 900 if n < 4 else ""
                assert await answered(house, f"message {n}\n{long}") == "Noted."
            server.will(refuses(400, "prompt is too long: 208310 tokens > 200000 maximum"))
            for n in range(3):
                assert await answered(house, f"And now, {n}?") == "Noted."
            rows = await calls_made(house)
            await balances(house)
    overflowed, summary, changed, *after = sealed(server)[7:]
    assert (overflowed, summary) == (7, 0)
    assert changed > 0, "the turns that were kept have thoughts, which stand behind a summary now"
    assert (thinking.refused, after) == (1, [0, 1, 2])
    assert [(row.failure, row.next_move) for row in rows if row.failure] == [("context_overflow", "compaction")]
