"""Models over pydantic-ai: the same chunks, failures and behavior as our own formats."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from models.replay import KEY, Answer, Then, collect_reply, make_model_facts, prompt_of, provider

from retinue.config.models import ModelEntry
from retinue.domain.attachment import Attachment
from retinue.domain.model import ModelFailed, ModelFailureKind, ModelRef
from retinue.domain.record import Reply, ReplyPiece, ReplyPieceKind, UserTurn
from retinue.domain.tool import Call, ToolResult, ToolSpec
from retinue.models.base import SignatureChunk, ToolCallChunk
from retinue.models.pydantic_ai_bridge import BridgedModel, BridgedModels, infer_model_maker

FACTS = make_model_facts("bridge", "some-model", vision=True)
TOOL = ToolSpec(name="read", description="Reads.", parameters={"type": "object", "properties": {}})

BRIDGE_MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("pydantic_ai") is None, reason="pydantic-ai is not installed: requirements/slow.txt"
    ),
    pytest.mark.filterwarnings("ignore"),  # warnings of the libraries below, about themselves
]


def needs_pydantic_ai(test: Callable[..., Any]) -> Callable[..., Any]:
    for mark in BRIDGE_MARKS:
        test = mark(test)
    return test


def make_openai_model_factory(url: str) -> Callable[[str], Any]:
    def make(key: str) -> Any:
        from pydantic_ai.models.openai import OpenAIChatModel  # pyright: ignore
        from pydantic_ai.providers.openai import OpenAIProvider  # pyright: ignore

        return OpenAIChatModel("some-model", provider=OpenAIProvider(base_url=url, api_key=key))

    return make


def make_anthropic_model_factory(url: str) -> Callable[[str], Any]:
    def make(key: str) -> Any:
        from pydantic_ai.models.anthropic import AnthropicModel  # pyright: ignore
        from pydantic_ai.providers.anthropic import AnthropicProvider  # pyright: ignore

        return AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(base_url=url, api_key=key))

    return make


def chat_answer(*deltas: dict[str, Any], finish: str = "stop") -> Answer:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "some-model"}
    events: list[Any] = [{**base, "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    events.append({**base, "choices": [], "usage": usage})
    return Answer(body="".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")


def anthropic_answer(*events: dict[str, Any], stop: str = "end_turn") -> Answer:
    message = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 20, "output_tokens": 1, "cache_read_input_tokens": 5},
    }
    last = {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}}
    all_events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        *events,
        last,
        {"type": "message_stop"},
    ]
    return Answer(body="".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in all_events))


THINKING_EVENTS = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "It is"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": " open."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "signed"}},
    {"type": "content_block_stop", "index": 0},
]
TOOL_USE_EVENTS = [
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"path":"a"}'}},
    {"type": "content_block_stop", "index": 1},
]


@needs_pydantic_ai
async def test_text_and_usage_come_through_the_pydantic_ai_bridge() -> None:
    async with provider(chat_answer({"content": "Hel"}, {"content": "lo."})) as server:
        collected = await collect_reply(BridgedModel(FACTS, make_openai_model_factory(server.url)))
    assert (collected["text"], collected["finish"]) == ("Hello.", "stop")
    assert collected["usage"] == {"input": 30, "output": 12, "cache_read": 10, "cache_write": 0, "reasoning": 5}
    assert server.last.headers["authorization"] == f"Bearer {KEY}"
    assert server.last.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert 8_192 in (server.last.body.get("max_tokens"), server.last.body.get("max_completion_tokens"))


@needs_pydantic_ai
async def test_tool_calls_through_the_pydantic_ai_bridge_are_complete_and_their_results_are_sent_back() -> None:
    piece = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":'}}
    more = {"index": 0, "function": {"arguments": '"a"}'}}
    other = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    answer = chat_answer({"tool_calls": [piece]}, {"tool_calls": [more]}, {"tool_calls": [other]}, finish="tool_calls")
    async with provider(answer, chat_answer({"content": "Done."})) as server:
        model = BridgedModel(FACTS, make_openai_model_factory(server.url))
        collected = await collect_reply(model, prompt_of(tools=[TOOL]))
        assert collected["tool_calls"] == [
            {"id": "call_1", "name": "read", "arguments": {"path": "a"}},
            {"id": "call_2", "name": "read", "arguments": {}},
        ]
        assert collected["finish"] == "tool_call"
        asked = Reply(text="", calls=(Call(id="call_1", tool="read", arguments={"path": "a"}),))
        result = ToolResult(call="call_1", tool="read", output="It is there.")
        await collect_reply(model, prompt_of(UserTurn(text="Look."), asked, result, tools=[TOOL]))
    sent = server.last.body["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool"]
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == {"path": "a"}
    assert (sent[3]["tool_call_id"], sent[3]["content"]) == ("call_1", "It is there.")
    assert server.last.body["tools"][0]["function"]["name"] == "read"


@needs_pydantic_ai
async def test_thinking_through_the_pydantic_ai_bridge_is_sent_back_with_its_signature() -> None:
    async with provider(
        anthropic_answer(*THINKING_EVENTS, *TOOL_USE_EVENTS, stop="tool_use"), anthropic_answer()
    ) as server:
        model = BridgedModel(FACTS, make_anthropic_model_factory(server.url))
        chunks = [chunk async for chunk in model.reply(prompt_of(tools=[TOOL]), key=KEY)]
        [seal] = [chunk.signature for chunk in chunks if isinstance(chunk, SignatureChunk)]
        [call] = [chunk.call for chunk in chunks if isinstance(chunk, ToolCallChunk)]
        reply = Reply(
            text="",
            thinking="It is open.",
            calls=(call,),
            provider="bridge",
            pieces=(
                ReplyPiece(kind=ReplyPieceKind.THINKING, length=len("It is open."), seal=seal),
                ReplyPiece(kind=ReplyPieceKind.CALL, length=1),
            ),
        )
        result = ToolResult(call=call.id, tool="read", output="It is there.")
        await collect_reply(model, prompt_of(UserTurn(text="Look."), reply, result, tools=[TOOL]))
    sent_blocks = server.last.body["messages"][1]["content"]
    assert sent_blocks[0] == {"type": "thinking", "thinking": "It is open.", "signature": "signed"}
    assert (sent_blocks[1]["type"], sent_blocks[1]["input"]) == ("tool_use", {"path": "a"})
    assert any(value.endswith(KEY) for value in server.last.headers.values())


@needs_pydantic_ai
async def test_images_are_sent_through_the_pydantic_ai_bridge() -> None:
    image = Attachment(hash="ab" * 32, name="cat.png", media_type="image/png", size_bytes=3)

    class KeptMedia:
        def read(self, attachment: Attachment) -> bytes | None:
            return b"png"

    async with provider(chat_answer({"content": "A cat."})) as server:
        turn = UserTurn(text="What is it?", attachments=(image,))
        await collect_reply(
            BridgedModel(FACTS, make_openai_model_factory(server.url)), prompt_of(turn, media=KeptMedia())
        )
    content = server.last.body["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url"]
    assert content[1]["image_url"]["url"] == "data:image/png;base64,cG5n"


REFUSALS = [
    (401, {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}, ModelFailureKind.AUTH),
    (403, {"error": {"message": "Not for you"}}, ModelFailureKind.PERMISSION),
    (404, {"error": {"message": "no such model", "code": "model_not_found"}}, ModelFailureKind.NOT_FOUND),
    (429, {"error": {"message": "Slow down", "code": "rate_limit_exceeded"}}, ModelFailureKind.RATE_LIMIT),
    (429, {"error": {"message": "No credit", "code": "insufficient_quota"}}, ModelFailureKind.QUOTA),
    (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, ModelFailureKind.CONTEXT_OVERFLOW),
    (400, {"error": {"message": "bad temperature"}}, ModelFailureKind.BAD_REQUEST),
    (500, {"error": {"message": "oh no"}}, ModelFailureKind.SERVER),
]


@needs_pydantic_ai
@pytest.mark.parametrize(("status", "body", "failure"), REFUSALS)
async def test_an_error_through_the_pydantic_ai_bridge_is_classified_and_not_retried_by_pydantic_ai(
    status: int, body: Any, failure: ModelFailureKind
) -> None:
    headers = {"retry-after": "3", "content-type": "application/json"}
    async with provider(Answer(status=status, body=json.dumps(body), headers=headers)) as server:
        failed = await collect_failure(BridgedModel(FACTS, make_openai_model_factory(server.url)))
    assert (failed.failure, failed.status) == (failure, status)
    assert len(server.asked) == 1
    if failure is ModelFailureKind.RATE_LIMIT:
        assert failed.retry_after_s == 3.0


@needs_pydantic_ai
async def test_an_api_key_repeated_by_a_provider_is_in_no_error_of_the_pydantic_ai_bridge() -> None:
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}})
    async with provider(Answer(status=401, body=body, headers={"content-type": "application/json"})) as server:
        failed = await collect_failure(BridgedModel(FACTS, make_openai_model_factory(server.url)))
    assert not any(KEY in words for words in (failed.sentence, failed.because, str(failed), repr(failed)))
    assert failed.__cause__ is None


@needs_pydantic_ai
async def test_a_connection_failure_through_the_pydantic_ai_bridge_differs_from_a_timeout() -> None:
    cut = chat_answer({"content": "Hel"})
    half = Answer(body=cut.wire[: cut.wire.index(b"\n\n") + 2], then=Then.CUT)
    async with provider(half) as server:
        failed = await collect_failure(BridgedModel(FACTS, make_openai_model_factory(server.url)))
    assert (failed.failure, failed.may_be_charged) == (ModelFailureKind.CONNECTION, True)
    async with provider(Answer(before=Then.HANG)) as server:
        failed = await collect_failure(BridgedModel(FACTS, make_openai_model_factory(server.url), first_byte_s=0.3))
    assert failed.failure is ModelFailureKind.TIMEOUT
    async with provider(Answer(body=half.body, then=Then.HANG)) as server:
        failed = await collect_failure(BridgedModel(FACTS, make_openai_model_factory(server.url), silence_s=0.3))
    assert (failed.failure, failed.may_be_charged) == (ModelFailureKind.TIMEOUT, True)


@needs_pydantic_ai
async def test_a_pydantic_ai_bridge_model_is_built_by_name_with_the_key_of_the_request() -> None:
    model = infer_model_maker("openai-chat:some-model")(KEY)
    assert model.client.api_key == KEY
    with pytest.raises(ModelFailed) as failed:
        infer_model_maker("nobody-sells-this:model")(KEY)
    assert failed.value.code == "model.bridge_invalid"
    assert KEY not in str(failed.value)


def test_a_pydantic_ai_bridge_model_is_reused_until_its_facts_change() -> None:
    facts = {"now": FACTS}
    bridges = BridgedModels(lambda ref: facts["now"])
    ref = ModelRef("bridge", "groq:llama")
    first = bridges.find(ref, ModelEntry())
    assert bridges.find(ref, ModelEntry()) is first
    facts["now"] = make_model_facts("bridge", "some-model", vision=False)
    assert bridges.find(ref, ModelEntry()) is not first


async def test_without_the_pydantic_ai_bridge_extra_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("pydantic_ai")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)  # as if it were not installed
    failed = await collect_failure(BridgedModel(FACTS, infer_model_maker("groq:llama")))
    assert failed.code == "model.bridge_missing"
    assert "pip install 'retinue[bridge]'" in failed.try_this


async def collect_failure(model: BridgedModel) -> ModelFailed:
    with pytest.raises(ModelFailed) as failed:
        async for _ in model.reply(prompt_of(), key=KEY):
            pass
    return failed.value
