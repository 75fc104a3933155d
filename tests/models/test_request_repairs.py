"""Requests that a provider refuses for a part that can be left out: asked once more without it, and remembered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from models.replay import KEY, SESSION, Answer, facts_of, hear, linked, model_at, prompt_of, provider
from models.test_anthropic import LOOK, RESULTS, SIGNED

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
THINKS = facts_of(model="gpt-6.1-sol", efforts=("low", "medium", "high"))
OTHER_KEY = "sk-other-0123456789abcdef"


def stream(*events: dict[str, Any]) -> Answer:
    return Answer(body="".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


RESPONSE = stream(
    {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello."},
    {"type": "response.completed", "response": {"status": "completed", "output": []}},
)
MESSAGE = stream(
    {"type": "message_start", "message": {"type": "message", "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
)


def refused(message: str, status: int = 400, **more: Any) -> Answer:
    return Answer(
        status=status, body=json.dumps({"error": {"message": message, "type": "invalid_request_error"} | more})
    )


UNVERIFIED = refused(
    "Your organization must be verified to generate reasoning summaries. Please go to: "
    "https://platform.openai.com/settings/organization/general and click on Verify Organization. If you just "
    "verified, it can take up to 15 minutes for access to propagate.",
    param="reasoning.summary",
    code="unsupported_value",
)
BOUND = refused(
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
    'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)


@pytest.fixture
async def link() -> AsyncIterator[ProviderConnections]:
    async with linked() as link:
        yield link


# Summaries of reasoning, which OpenAI keeps for organizations that it has verified


@pytest.mark.parametrize(("effort", "left"), [("high", {"effort": "high"}), (None, None)])
async def test_an_unverified_organization_is_answered_without_a_summary_of_the_reasoning(
    link: ProviderConnections, effort: str | None, left: Any
) -> None:
    async with provider(UNVERIFIED, RESPONSE) as server:
        model = model_at(link, server.url, RESPONSES, facts=THINKS)
        heard = await hear(model, prompt_of(effort=effort))
    assert heard["text"] == "Hello."
    first, second = (asked.body for asked in server.asked)
    assert first["reasoning"]["summary"] == "auto"
    assert second.get("reasoning") == left
    assert {**first, "reasoning": None} == {**second, "reasoning": None}, "nothing else has changed"


async def test_later_requests_of_the_same_credential_leave_the_summary_out_at_once(link: ProviderConnections) -> None:
    async with provider(UNVERIFIED, RESPONSE) as server:
        await hear(model_at(link, server.url, RESPONSES, facts=THINKS))
        other = model_at(link, server.url, RESPONSES, facts=facts_of(model="gpt-6-luna", efforts=("low",)))
        await hear(other, prompt_of(session=SessionId("a" * 32)))
    assert len(server.asked) == 3
    assert "reasoning" not in server.last.body, "for every session and every model"


async def test_another_credential_still_asks_for_the_summary(link: ProviderConnections) -> None:
    async with provider(UNVERIFIED, RESPONSE) as server:
        model = model_at(link, server.url, RESPONSES, facts=THINKS)
        await hear(model)
        await hear(model, key=OTHER_KEY)
    assert server.last.headers["authorization"] == f"Bearer {OTHER_KEY}"
    assert server.last.body["reasoning"] == {"summary": "auto"}


async def test_a_credential_is_known_again_however_its_key_is_shown(link: ProviderConnections) -> None:
    async with provider(UNVERIFIED, RESPONSE) as server:
        model = model_at(link, server.url, RESPONSES, facts=THINKS, auth=ProviderAuth.API_KEY)
        for _ in range(2):
            assert (await hear(model))["text"] == "Hello."
    assert len(server.asked) == 3
    assert [asked.headers["x-api-key"] for asked in server.asked] == [KEY] * 3


async def test_the_summary_is_asked_for_again_after_a_while_for_the_organization_may_be_verified(
    link: ProviderConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with provider(UNVERIFIED, RESPONSE) as server:
        model = model_at(link, server.url, RESPONSES, facts=THINKS)
        await hear(model)
        monkeypatch.setattr(request_repairs, "LEARNED_TTL_S", 0.0)
        await hear(model)
    assert server.last.body["reasoning"] == {"summary": "auto"}


async def test_what_the_settings_ask_for_is_not_taken_out_and_its_refusal_is_told(link: ProviderConnections) -> None:
    async with provider(UNVERIFIED, RESPONSE) as server:
        params = {"reasoning": {"summary": "detailed"}}
        heard = await hear(model_at(link, server.url, RESPONSES, facts=THINKS, params=params))
    assert (heard["error"], heard["status"]) == ("bad_request", 400)
    assert len(server.asked) == 1


async def test_a_request_is_repaired_once_and_no_more(link: ProviderConnections) -> None:
    async with provider(UNVERIFIED) as server:
        heard = await hear(model_at(link, server.url, RESPONSES, facts=THINKS))
    assert (heard["error"], len(server.asked)) == ("bad_request", 2)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_only_a_request_that_was_not_accepted_as_it_is_can_be_repaired(
    link: ProviderConnections, status: int
) -> None:
    async with provider(replace(UNVERIFIED, status=status), RESPONSE) as server:
        assert "error" in await hear(model_at(link, server.url, RESPONSES, facts=THINKS))
    assert len(server.asked) == 1


async def test_a_refusal_for_any_other_reason_is_not_asked_again(link: ProviderConnections) -> None:
    async with provider(refused("Invalid value: 'input'"), RESPONSE) as server:
        for format_ in (RESPONSES, "anthropic", "openai-chat", "google"):
            assert (await hear(model_at(link, server.url, format_, facts=THINKS)))["error"] == "bad_request"
            assert len(server.asked) == 1
            server.asked.clear()
    assert not link.repairs


# Thoughts of Claude, which belong to the conversation they were made in

CLAUDE = facts_of("anthropic", "claude-opus-5-5", efforts=("low", "medium", "high"))
REDACTED = Reply(
    text="Snow.",
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=0, seal="redacted:SECRET"),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=5),
    ),
    provider="anthropic",
)
TALK = (UserTurn(text="Hm?"), REDACTED, UserTurn(text="Look."), SIGNED, *RESULTS)
NEW = Reply(
    text="Cold.",
    thinking="New.",
    pieces=(
        ReplyPiece(kind=ReplyPieceKind.THINKING, length=4, seal="NEW"),
        ReplyPiece(kind=ReplyPieceKind.TEXT, length=5),
    ),
    provider="anthropic",
)


def claude(
    link: ProviderConnections,
    url: str,
    facts: ModelFacts = CLAUDE,
    quirks: tuple[str, ...] = (ProviderQuirk.ADAPTIVE,),
    **how: Any,
) -> HttpModel:
    return model_at(link, url, "anthropic", facts=facts, quirks=frozenset(quirks), **how)


def talk(*bodies: Any, **more: Any) -> ModelPrompt:
    return prompt_of(*bodies, **{"tools": [LOOK], "effort": "medium", **more})


def kinds(body: Any) -> list[list[str]]:
    """The types of blocks in each message."""
    return [[block["type"] for block in message["content"]] for message in body["messages"]]


def thoughts(body: Any) -> list[str]:
    """What seals the thoughts in a request."""
    blocks = [block for message in body["messages"] for block in message["content"] if "thinking" in block["type"]]
    return [block.get("signature") or block["data"] for block in blocks]


async def test_thoughts_that_are_bound_to_another_conversation_are_left_out_and_it_goes_on(
    link: ProviderConnections,
) -> None:
    async with provider(BOUND, MESSAGE) as server:
        assert (await hear(claude(link, server.url), talk(*TALK)))["text"] == "Hello."
    first, second = (asked.body for asked in server.asked)
    assert thoughts(first) == ["SECRET", "SIG"]
    assert kinds(second) == [["text"], ["text"], ["text"], ["text", "tool_use", "tool_use"], ["tool_result"] * 2]
    assert {**first, "messages": None} == {**second, "messages": None}
    assert second["thinking"]["type"] == "adaptive", "which takes a call that no thought stands before"


async def test_the_next_requests_of_the_session_leave_these_thoughts_out_at_once_and_send_new_ones_back(
    link: ProviderConnections,
) -> None:
    async with provider(BOUND, MESSAGE) as server:
        model = claude(link, server.url)
        await hear(model, talk(*TALK))
        await hear(model, talk(*TALK, NEW, UserTurn(text="And now?")))
    assert len(server.asked) == 3
    assert thoughts(server.last.body) == ["NEW"]


async def test_thoughts_that_are_refused_anew_are_left_out_with_the_older_ones(link: ProviderConnections) -> None:
    async with provider(BOUND, MESSAGE, BOUND, MESSAGE) as server:
        model = claude(link, server.url)
        await hear(model, talk(*TALK))
        assert (await hear(model, talk(*TALK, NEW, UserTurn(text="And now?"))))["text"] == "Hello."
    assert [thoughts(asked.body) for asked in server.asked] == [["SECRET", "SIG"], [], ["NEW"], []]


async def test_another_session_keeps_its_thoughts(link: ProviderConnections) -> None:
    async with provider(BOUND, MESSAGE) as server:
        model = claude(link, server.url)
        await hear(model, talk(*TALK))
        await hear(model, talk(*TALK, session=SessionId("b" * 32)))
    assert thoughts(server.last.body) == ["SECRET", "SIG"]


async def test_without_its_thoughts_a_tool_loop_with_a_budget_of_thinking_goes_on_without_thinking(
    link: ProviderConnections,
) -> None:
    """With `enabled` thinking, a call that no thought stands before is refused; the next turn may think again."""
    async with provider(BOUND, MESSAGE) as server:
        model = claude(link, server.url, quirks=())
        await hear(model, talk(*TALK, output_tokens_max=16_000))
        await hear(model, talk(*TALK, NEW, UserTurn(text="And now?"), output_tokens_max=16_000))
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
async def test_other_words_for_thoughts_that_cannot_be_replayed_are_understood(
    link: ProviderConnections, words: str
) -> None:
    async with provider(refused(words), MESSAGE) as server:
        assert (await hear(claude(link, server.url), talk(*TALK)))["text"] == "Hello."
    assert thoughts(server.last.body) == []


async def test_who_sets_what_a_mismatch_means_is_told_of_it(link: ProviderConnections) -> None:
    params = {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}}
    async with provider(BOUND, MESSAGE) as server:
        heard = await hear(claude(link, server.url, params=params), talk(*TALK))
    assert (heard["error"], len(server.asked)) == ("bad_request", 1)


# What is remembered


def test_lessons_are_bounded_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_repairs, "LEARNED_MAX", 2)
    learned = LearnedRepairs()
    lesson = RequestRepair(scope=RepairScope.SESSION, omitted=OmittedParts(thinking_until_seq=7))
    sessions = [SessionId(name * 32) for name in "abc"]
    for session in sessions:
        learned.remember(lesson, provider="anthropic", session=session, key=KEY, now_s=0.0)
    known = [
        learned.find_omitted(provider="anthropic", session=each, key=KEY, now_s=1.0).thinking_until_seq
        for each in sessions
    ]
    assert known == [0, 7, 7]
    assert learned.find_omitted(provider="other", session=sessions[2], key=KEY, now_s=1.0) == OmittedParts()


def test_no_key_is_kept_with_a_lesson() -> None:
    learned = LearnedRepairs()
    lesson = RequestRepair(scope=RepairScope.CREDENTIAL, omitted=OmittedParts(reasoning_summary=True))
    learned.remember(lesson, provider="openai", session=SESSION, key=KEY, now_s=0.0)
    assert KEY not in repr(vars(learned))
    assert learned.find_omitted(provider="openai", session=SESSION, key=KEY, now_s=1.0).reasoning_summary
