"""Requests refused for an optional part: they are repeated once without it, and later requests omit it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from models.replay import (
    KEY,
    SESSION,
    Answer,
    collect_reply,
    make_http_model,
    make_model_facts,
    open_provider_connections,
    prompt_of,
    provider,
)
from models.test_anthropic import LOOK_TOOL, SIGNED_REPLY, TOOL_RESULTS

from retinue.config.models import ProviderAuth, ProviderQuirk
from retinue.domain.ids import SessionId
from retinue.domain.model import ModelFacts
from retinue.domain.record import Reply, ReplyPiece, ReplyPieceKind, UserTurn
from retinue.domain.structs import replace
from retinue.models import request_repairs
from retinue.models.base import ModelPrompt
from retinue.models.provider_http import HttpModel, ProviderConnections
from retinue.models.request_repairs import LearnedRepairs, OmittedParts, RepairScope, RequestRepair

RESPONSES = "openai-responses"
REASONING_FACTS = make_model_facts(model="gpt-6.1-sol", efforts=("low", "medium", "high"))
OTHER_KEY = "sk-other-0123456789abcdef"


def stream(*events: dict[str, Any]) -> Answer:
    return Answer(body="".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


RESPONSES_ANSWER = stream(
    {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello."},
    {"type": "response.completed", "response": {"status": "completed", "output": []}},
)
ANTHROPIC_ANSWER = stream(
    {"type": "message_start", "message": {"type": "message", "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
)


def refusal_answer(message: str, status: int = 400, **more: Any) -> Answer:
    return Answer(
        status=status, body=json.dumps({"error": {"message": message, "type": "invalid_request_error"} | more})
    )


UNVERIFIED_REFUSAL = refusal_answer(
    "Your organization must be verified to generate reasoning summaries. Please go to: "
    "https://platform.openai.com/settings/organization/general and click on Verify Organization. If you just "
    "verified, it can take up to 15 minutes for access to propagate.",
    param="reasoning.summary",
    code="unsupported_value",
)
BOUND_THINKING_REFUSAL = refusal_answer(
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
    'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


@pytest.fixture
async def link() -> AsyncIterator[ProviderConnections]:
    async with open_provider_connections() as link:
        yield link


# Reasoning summaries, which OpenAI reserves for verified organizations


@pytest.mark.parametrize(("effort", "left"), [("high", {"effort": "high"}), (None, None)])
async def test_a_model_request_refused_for_its_reasoning_summary_is_repeated_without_it(
    link: ProviderConnections, effort: str | None, left: Any
) -> None:
    async with provider(UNVERIFIED_REFUSAL, RESPONSES_ANSWER) as server:
        model = make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS)
        collected = await collect_reply(model, prompt_of(effort=effort))
    assert collected["text"] == "Hello."
    first, second = (asked.body for asked in server.asked)
    assert first["reasoning"]["summary"] == "auto"
    assert second.get("reasoning") == left
    assert {**first, "reasoning": None} == {**second, "reasoning": None}, "nothing else has changed"


async def test_later_model_requests_with_the_same_credential_omit_a_refused_summary_at_once(
    link: ProviderConnections,
) -> None:
    async with provider(UNVERIFIED_REFUSAL, RESPONSES_ANSWER) as server:
        await collect_reply(make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS))
        other = make_http_model(
            link, server.url, RESPONSES, facts=make_model_facts(model="gpt-6-luna", efforts=("low",))
        )
        await collect_reply(other, prompt_of(session=SessionId("a" * 32)))
    assert len(server.asked) == 3
    assert "reasoning" not in server.last.body, "for every session and every model"


async def test_after_a_repair_a_request_with_another_credential_still_asks_for_the_reasoning_summary(
    link: ProviderConnections,
) -> None:
    async with provider(UNVERIFIED_REFUSAL, RESPONSES_ANSWER) as server:
        model = make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS)
        await collect_reply(model)
        await collect_reply(model, key=OTHER_KEY)
    assert server.last.headers["authorization"] == f"Bearer {OTHER_KEY}"
    assert server.last.body["reasoning"] == {"summary": "auto"}


async def test_a_learned_request_repair_applies_however_the_key_is_sent(link: ProviderConnections) -> None:
    async with provider(UNVERIFIED_REFUSAL, RESPONSES_ANSWER) as server:
        model = make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS, auth=ProviderAuth.API_KEY)
        for _ in range(2):
            assert (await collect_reply(model))["text"] == "Hello."
    assert len(server.asked) == 3
    assert [asked.headers["x-api-key"] for asked in server.asked] == [KEY] * 3


async def test_the_reasoning_summary_is_requested_again_after_the_learned_repair_expired(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider(UNVERIFIED_REFUSAL, RESPONSES_ANSWER) as server:
        model = make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS)
        await collect_reply(model)
        monkeypatch.setattr(request_repairs, "LEARNED_TTL_S", 0.0)
        await collect_reply(model)
    assert server.last.body["reasoning"] == {"summary": "auto"}


async def test_a_summary_from_the_settings_is_not_removed_as_a_repair_and_its_refusal_is_reported(
    link: ProviderConnections,
) -> None:
    async with provider(UNVERIFIED_REFUSAL, RESPONSES_ANSWER) as server:
        params = {"reasoning": {"summary": "detailed"}}
        collected = await collect_reply(
            make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS, params=params)
        )
    assert (collected["error"], collected["status"]) == ("bad_request", 400)
    assert len(server.asked) == 1


async def test_a_model_request_is_repaired_only_once(link: ProviderConnections) -> None:
    async with provider(UNVERIFIED_REFUSAL) as server:
        collected = await collect_reply(make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS))
    assert (collected["error"], len(server.asked)) == ("bad_request", 2)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_model_request_refused_with_a_status_other_than_400_is_not_repaired(
    link: ProviderConnections, status: int
) -> None:
    async with provider(replace(UNVERIFIED_REFUSAL, status=status), RESPONSES_ANSWER) as server:
        assert "error" in await collect_reply(make_http_model(link, server.url, RESPONSES, facts=REASONING_FACTS))
    assert len(server.asked) == 1


async def test_a_model_request_refused_for_an_unknown_reason_is_not_repaired(link: ProviderConnections) -> None:
    async with provider(refusal_answer("Invalid value: 'input'"), RESPONSES_ANSWER) as server:
        for format_ in (RESPONSES, "anthropic", "openai-chat", "google"):
            assert (await collect_reply(make_http_model(link, server.url, format_, facts=REASONING_FACTS)))[
                "error"
            ] == "bad_request"
            assert len(server.asked) == 1
            server.asked.clear()
    assert not link.repairs


# Thinking of Claude, which is bound to its conversation

CLAUDE_FACTS = make_model_facts("anthropic", "claude-opus-5-5", efforts=("low", "medium", "high"))
REDACTED_REPLY = Reply(
    text="Snow.",
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=0, seal="redacted:SECRET"),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=5),
    ),
    provider="anthropic",
)
CONVERSATION = (UserTurn(text="Hm?"), REDACTED_REPLY, UserTurn(text="Look."), SIGNED_REPLY, *TOOL_RESULTS)
NEW_REPLY = Reply(
    text="Cold.",
    thinking="New.",
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=4, seal="NEW"),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=5),
    ),
    provider="anthropic",
)


def make_claude_model(
    link: ProviderConnections,
    url: str,
    facts: ModelFacts = CLAUDE_FACTS,
    quirks: tuple[str, ...] = (ProviderQuirk.ADAPTIVE,),
    **how: Any,
) -> HttpModel:
    return make_http_model(link, url, "anthropic", facts=facts, quirks=frozenset(quirks), **how)


def make_prompt(*bodies: Any, **more: Any) -> ModelPrompt:
    return prompt_of(*bodies, **{"tools": [LOOK_TOOL], "effort": "medium", **more})


def block_types(body: Any) -> list[list[str]]:
    """Return the types of the blocks in each message."""
    return [[block["type"] for block in message["content"]] for message in body["messages"]]


def thinking_seals(body: Any) -> list[str]:
    """Return the seals of the thinking in a request."""
    blocks = [block for message in body["messages"] for block in message["content"] if "thinking" in block["type"]]
    return [block.get("signature") or block["data"] for block in blocks]


async def test_a_model_request_refused_for_bound_thinking_is_repeated_without_the_thinking(
    link: ProviderConnections,
) -> None:
    async with provider(BOUND_THINKING_REFUSAL, ANTHROPIC_ANSWER) as server:
        assert (await collect_reply(make_claude_model(link, server.url), make_prompt(*CONVERSATION)))[
            "text"
        ] == "Hello."
    first, second = (asked.body for asked in server.asked)
    assert thinking_seals(first) == ["SECRET", "SIG"]
    assert block_types(second) == [["text"], ["text"], ["text"], ["text", "tool_use", "tool_use"], ["tool_result"] * 2]
    assert {**first, "messages": None} == {**second, "messages": None}
    assert second["thinking"]["type"] == "adaptive", "it accepts a call without thinking before it"


async def test_after_a_repair_requests_of_the_session_omit_refused_thinking_but_send_new_thinking(
    link: ProviderConnections,
) -> None:
    async with provider(BOUND_THINKING_REFUSAL, ANTHROPIC_ANSWER) as server:
        model = make_claude_model(link, server.url)
        await collect_reply(model, make_prompt(*CONVERSATION))
        await collect_reply(model, make_prompt(*CONVERSATION, NEW_REPLY, UserTurn(text="And now?")))
    assert len(server.asked) == 3
    assert thinking_seals(server.last.body) == ["NEW"]


async def test_a_repair_omits_thinking_that_is_refused_again_with_the_older_thinking(link: ProviderConnections) -> None:
    async with provider(BOUND_THINKING_REFUSAL, ANTHROPIC_ANSWER, BOUND_THINKING_REFUSAL, ANTHROPIC_ANSWER) as server:
        model = make_claude_model(link, server.url)
        await collect_reply(model, make_prompt(*CONVERSATION))
        assert (await collect_reply(model, make_prompt(*CONVERSATION, NEW_REPLY, UserTurn(text="And now?"))))[
            "text"
        ] == "Hello."
    assert [thinking_seals(asked.body) for asked in server.asked] == [["SECRET", "SIG"], [], ["NEW"], []]


async def test_after_a_repair_the_thinking_of_another_session_is_still_sent(link: ProviderConnections) -> None:
    async with provider(BOUND_THINKING_REFUSAL, ANTHROPIC_ANSWER) as server:
        model = make_claude_model(link, server.url)
        await collect_reply(model, make_prompt(*CONVERSATION))
        await collect_reply(model, make_prompt(*CONVERSATION, session=SessionId("b" * 32)))
    assert thinking_seals(server.last.body) == ["SECRET", "SIG"]


async def test_a_repair_of_a_tool_loop_without_its_thinking_blocks_disables_thinking_for_that_turn(
    link: ProviderConnections,
) -> None:
    """With `enabled` thinking, a call without thinking before it is refused; the next turn may think again."""
    async with provider(BOUND_THINKING_REFUSAL, ANTHROPIC_ANSWER) as server:
        model = make_claude_model(link, server.url, quirks=())
        await collect_reply(model, make_prompt(*CONVERSATION, output_tokens_max=16_000))
        await collect_reply(
            model, make_prompt(*CONVERSATION, NEW_REPLY, UserTurn(text="And now?"), output_tokens_max=16_000)
        )
    first, second, third = (asked.body for asked in server.asked)
    assert first["thinking"]["type"] == "enabled"
    assert "thinking" not in second
    assert third["thinking"]["type"] == "enabled"


@pytest.mark.parametrize(
    "words",
    [
        "messages.3.content.0: Invalid `signature` in `thinking` block",
        "messages.1.content.0: The thinking block is bound to a different account.",
        "litellm.BadRequestError: AnthropicException - "
        + json.dumps(
            {"type": "error", "error": {"message": "thinking: the block is bound to a different conversation"}}
        ),
    ],
)
async def test_a_repair_recognizes_other_messages_about_unusable_thinking_blocks(
    link: ProviderConnections, words: str
) -> None:
    async with provider(refusal_answer(words), ANTHROPIC_ANSWER) as server:
        assert (await collect_reply(make_claude_model(link, server.url), make_prompt(*CONVERSATION)))[
            "text"
        ] == "Hello."
    assert thinking_seals(server.last.body) == []


async def test_a_configured_mismatch_behavior_for_thinking_prevents_the_request_repair(
    link: ProviderConnections,
) -> None:
    params = {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}}
    async with provider(BOUND_THINKING_REFUSAL, ANTHROPIC_ANSWER) as server:
        collected = await collect_reply(make_claude_model(link, server.url, params=params), make_prompt(*CONVERSATION))
    assert (collected["error"], len(server.asked)) == ("bad_request", 1)


# What is stored


def test_learned_request_repairs_are_limited_and_the_oldest_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_repairs, "LEARNED_MAX", 2)
    learned_repairs = LearnedRepairs()
    repair = RequestRepair(scope=RepairScope.SESSION, omitted=OmittedParts(thinking_until_seq=7))
    sessions = [SessionId(name * 32) for name in "abc"]
    for session in sessions:
        learned_repairs.remember(repair, provider="anthropic", session=session, key=KEY, now_s=0.0)
    known = [
        learned_repairs.find_omitted(provider="anthropic", session=each, key=KEY, now_s=1.0).thinking_until_seq
        for each in sessions
    ]
    assert known == [0, 7, 7]
    assert learned_repairs.find_omitted(provider="other", session=sessions[2], key=KEY, now_s=1.0) == OmittedParts()


def test_no_api_key_is_kept_with_a_learned_request_repair() -> None:
    learned_repairs = LearnedRepairs()
    repair = RequestRepair(scope=RepairScope.CREDENTIAL, omitted=OmittedParts(reasoning_summary=True))
    learned_repairs.remember(repair, provider="openai", session=SESSION, key=KEY, now_s=0.0)
    assert KEY not in repr(vars(learned_repairs))
    assert learned_repairs.find_omitted(provider="openai", session=SESSION, key=KEY, now_s=1.0).reasoning_summary
